//! Tests of the public interface of the quota sensor on one thread: Kafka's cases, limits, clocks,
//! bad input.

#![allow(clippy::expect_used, clippy::panic, missing_docs)]

use tierlog_core::quota::{
    FULL_WINDOW_BYTES, MAX_AMOUNT_BYTES, QuotaError, QuotaSensor, QuotaSettings, RateMode, Reserve,
    Token,
};

const TEN_YEARS_MS: i64 = 315_576_000_000;

fn sensor(rate: RateMode, num_samples: u32, limit: Option<u64>) -> QuotaSensor {
    let settings =
        QuotaSettings { num_samples, window_ms: 1000, rate, limit_bytes_per_second: limit };
    QuotaSensor::new(settings).expect("good settings")
}

/// Returns a sensor with Kafka's window of 11 samples of a second.
fn kafka(limit: u64) -> QuotaSensor {
    sensor(RateMode::Elapsed, 11, Some(limit))
}

fn record(sensor: &QuotaSensor, amount: u64, now_ms: i64) {
    sensor.record(amount, now_ms).expect("a record");
}

#[track_caller]
fn check(sensor: &QuotaSensor, now_ms: i64, rate: f64, throttle_ms: u64) {
    let found = sensor.throttle_ms(now_ms);
    assert_eq!(found, throttle_ms, "throttle at {now_ms}");
    let found = sensor.rate(now_ms);
    assert!((found - rate).abs() < 0.0005, "rate {found} at {now_ms}, not {rate}");
}

#[track_caller]
fn granted(reserve: Result<Reserve, QuotaError>) -> Token {
    match reserve {
        Ok(Reserve::Granted(token)) => token,
        other => panic!("not granted: {other:?}"),
    }
}

#[track_caller]
fn wait_ms(reserve: Result<Reserve, QuotaError>) -> u64 {
    match reserve {
        Ok(Reserve::Wait(wait_ms)) => wait_ms,
        other => panic!("no wait: {other:?}"),
    }
}

#[test]
fn case_a_check_starts_the_clock() {
    let sensor = kafka(1000);
    assert_eq!(sensor.throttle_ms(0), 0);
    record(&sensor, 5000, 0);
    check(&sensor, 0, 5000.0, 4000);
    check(&sensor, 500, 5000.0, 4000);
    check(&sensor, 1000, 5000.0, 4000);
    check(&sensor, 2000, 2500.0, 3000);
    check(&sensor, 5000, 1000.0, 0);
    check(&sensor, 10_999, 454.587, 0);
    check(&sensor, 11_000, 0.0, 0);
}

#[test]
fn case_b_record_starts_the_clock() {
    let sensor = kafka(1000);
    record(&sensor, 5000, 300);
    check(&sensor, 300, 5000.0, 4000);
    check(&sensor, 1300, 5000.0, 4000);
    check(&sensor, 5300, 1000.0, 0);
}

#[test]
fn case_c_steady_stream_at_the_limit_is_never_over() {
    let sensor = kafka(1000);
    for half in 0..7 {
        // The rate is checked before the record of the same time. After that record, the rate
        // exceeds the limit at 1000.
        assert_eq!(sensor.throttle_ms(half * 500), 0);
        if [2000, 3000].contains(&(half * 500)) {
            check(&sensor, half * 500, 1000.0, 0);
        }
        record(&sensor, 500, half * 500);
        if half == 1 {
            check(&sensor, 999, 1000.0, 0);
        }
    }
}

#[test]
fn case_d_expiry_goes_by_the_last_event() {
    let sensor = kafka(1000);
    for now_ms in [0, 900, 1000, 11_800] {
        record(&sensor, 1000, now_ms);
    }
    check(&sensor, 11_800, 338.983, 0);
    check(&sensor, 11_899, 336.163, 0);
    check(&sensor, 11_900, 183.486, 0);
    check(&sensor, 12_000, 1000.0, 0);
}

#[test]
fn case_e_measuring_an_idle_sensor_changes_later_results() {
    let sensor = kafka(1000);
    record(&sensor, 20_000, 0);
    assert_eq!(sensor.throttle_ms(50_000), 0);
    record(&sensor, 20_000, 60_000);
    check(&sensor, 60_000, 2000.0, 10_000);
    check(&sensor, 60_999, 1818.347, 9001);
    check(&sensor, 61_000, 20_000.0, 19_000);
    check(&sensor, 65_000, 4000.0, 15_000);
}

#[test]
fn case_e2_without_the_measurement() {
    let sensor = kafka(1000);
    record(&sensor, 20_000, 0);
    record(&sensor, 20_000, 60_000);
    check(&sensor, 60_000, 20_000.0, 19_000);
    check(&sensor, 61_000, 20_000.0, 19_000);
    check(&sensor, 65_000, 4000.0, 15_000);
}

#[test]
fn case_f_the_ring_has_one_sample_more_than_the_window() {
    let sensor = sensor(RateMode::Elapsed, 3, Some(1000));
    for now_ms in [0, 1000, 2000, 3000] {
        record(&sensor, 1000, now_ms);
    }
    check(&sensor, 3000, 1500.0, 1000);
}

#[test]
fn case_g_kafka_forgets_a_unit_larger_than_the_window() {
    let sensor = kafka(10_485_760);
    record(&sensor, 1 << 30, 0);
    check(&sensor, 0, 1_073_741_824.0, 101_400);
    check(&sensor, 10_000, 107_374_182.4, 92_400);
    assert_eq!(sensor.throttle_ms(10_999), 91_401);
    check(&sensor, 11_000, 0.0, 0);
}

#[test]
fn case_h_only_more_than_the_limit_is_over() {
    let sensor = kafka(1000);
    assert_eq!(sensor.record_and_throttle_ms(1000, 0), Ok(0));
    check(&sensor, 0, 1000.0, 0);
    assert_eq!(sensor.record_and_throttle_ms(1, 0), Ok(1));
    check(&sensor, 0, 1001.0, 1);
}

#[test]
fn a_window_is_the_average_over_all_its_buckets() {
    let sensor = sensor(RateMode::Window, 10, Some(1000));
    record(&sensor, 10_000, 500);
    check(&sensor, 500, 1000.0, 0);
    record(&sensor, 1, 999);
    check(&sensor, 999, 1000.1, 9001);
    record(&sensor, 5000, 2500);
    // The first bucket expires at 10,000; the remaining bytes are within the limit.
    check(&sensor, 2500, 1500.1, 7500);
    check(&sensor, 9999, 1500.1, 1);
    check(&sensor, 10_000, 500.0, 0);
    check(&sensor, 11_999, 500.0, 0);
    check(&sensor, 12_000, 0.0, 0);
    assert_eq!(sensor.total(), 15_001);
}

#[test]
fn buckets_are_aligned_to_the_clock_below_zero_too() {
    for start_ms in [-3_000_000_000_500, -500, 500, 1_700_000_000_500] {
        let sensor = sensor(RateMode::Window, 2, Some(1000));
        record(&sensor, 2001, start_ms);
        assert_eq!(sensor.throttle_ms(start_ms), 1500);
        assert_eq!(sensor.throttle_ms(start_ms + 1499), 1);
        assert_eq!(sensor.throttle_ms(start_ms + 1500), 0);
    }
}

#[test]
fn limit_changes_at_once_and_samples_stay() {
    for rate in [RateMode::Window, RateMode::Elapsed] {
        let sensor = sensor(rate, 1, None);
        assert_eq!(sensor.record_and_throttle_ms(5000, 0), Ok(0));
        assert_eq!(sensor.limit(), None);
        sensor.set_limit(Some(4000), 0);
        assert_eq!(sensor.limit(), Some(4000));
        assert!(sensor.throttle_ms(0) > 0);
        sensor.set_limit(Some(5000), 0);
        assert_eq!(sensor.throttle_ms(0), 0);
        sensor.set_limit(Some(u64::MAX), 0);
        assert_eq!(sensor.limit(), Some(u64::MAX));
        assert_eq!(sensor.throttle_ms(0), 0);
        sensor.set_limit(None, 0);
        assert_eq!(sensor.throttle_ms(0), 0);
        assert_eq!(sensor.total(), 5000);
    }
}

#[test]
fn limit_zero_blocks_with_a_finite_wait() {
    for rate in [RateMode::Window, RateMode::Elapsed] {
        let sensor = sensor(rate, 11, Some(0));
        assert_eq!(sensor.throttle_ms(0), 11_000);
        assert_eq!(sensor.record_and_throttle_ms(1, 5), Ok(11_000));
    }
    let sensor = sensor(RateMode::Window, 11, Some(0));
    assert_eq!(sensor.try_reserve(0, 7), Ok(Reserve::Wait(11_000)));
}

#[test]
fn amounts_and_settings_out_of_bounds_are_refused() {
    for rate in [RateMode::Window, RateMode::Elapsed] {
        let sensor = sensor(rate, 11, None);
        let too_large = MAX_AMOUNT_BYTES + 1;
        let refused = Err(QuotaError::AmountTooLarge(too_large));
        assert_eq!(sensor.record(too_large, 0), refused);
        assert_eq!(sensor.record(u64::MAX, 0), Err(QuotaError::AmountTooLarge(u64::MAX)));
        assert_eq!(sensor.record(0, 0), Ok(()));
        assert_eq!(sensor.record(too_large, 0), refused);
        assert_eq!(sensor.record(MAX_AMOUNT_BYTES, 0), Ok(()));
        assert_eq!(sensor.total(), MAX_AMOUNT_BYTES);
    }
    let settings = |num_samples, window_ms| QuotaSettings {
        num_samples,
        window_ms,
        rate: RateMode::Window,
        limit_bytes_per_second: None,
    };
    let refusal = |num_samples, window_ms| {
        QuotaSensor::new(settings(num_samples, window_ms)).err().expect("refused").to_string()
    };
    assert_eq!(refusal(0, 1), "num_samples must be 1 to 3600, found 0");
    assert_eq!(refusal(3601, 1), "num_samples must be 1 to 3600, found 3601");
    assert_eq!(refusal(1, 0), "window_ms must be 1 to 86400000, found 0");
    assert_eq!(refusal(1, 86_400_001), "window_ms must be 1 to 86400000, found 86400001");
    let largest = QuotaSensor::new(settings(3600, 86_400_000)).expect("the largest there is");
    record(&largest, 7, i64::MAX);
    assert_eq!(largest.snapshot(i64::MAX).window_bytes, 7);
}

#[test]
fn a_full_window_refuses_before_it_counts_and_moves_on() {
    for rate in [RateMode::Window, RateMode::Elapsed] {
        let sensor = sensor(rate, 2, None);
        let mut taken = 0;
        while sensor.record(MAX_AMOUNT_BYTES, 1500) == Ok(()) {
            taken += MAX_AMOUNT_BYTES;
        }
        assert_eq!(taken, FULL_WINDOW_BYTES);
        assert_eq!(sensor.record(1, 1500), Err(QuotaError::WindowFull));
        assert_eq!(sensor.snapshot(1500).window_bytes, taken);
        assert_eq!(sensor.record(1, 3500), Ok(()));
        assert_eq!(sensor.snapshot(3500).window_bytes, 1);
    }
}

#[test]
fn totals_wrap_and_windows_do_not() {
    let sensor = sensor(RateMode::Window, 1, Some(MAX_AMOUNT_BYTES * 16_000));
    let mut now_ms = 0;
    let mut total = 0_u64;
    for _ in 0..5 {
        for _ in 0..16_000 {
            assert_eq!(sensor.record_and_throttle_ms(MAX_AMOUNT_BYTES, now_ms), Ok(0));
            total = total.wrapping_add(MAX_AMOUNT_BYTES);
        }
        assert_eq!(sensor.record_and_throttle_ms(1, now_ms), Ok(1000));
        total = total.wrapping_add(1);
        now_ms += 1000;
    }
    assert_eq!(sensor.total(), total);
}

#[test]
fn clock_that_leaps_ahead_expires_everything() {
    for rate in [RateMode::Window, RateMode::Elapsed] {
        let sensor = sensor(rate, 11, Some(1000));
        for leaps in 0..50 {
            let now_ms = leaps * TEN_YEARS_MS;
            assert_eq!(sensor.throttle_ms(now_ms), 0);
            assert!(sensor.record_and_throttle_ms(20_000, now_ms).expect("a record") > 0);
            assert_eq!(sensor.snapshot(now_ms).window_bytes, 20_000);
        }
    }
}

#[test]
fn clock_that_is_set_back_neither_frees_nor_freezes() {
    for rate in [RateMode::Window, RateMode::Elapsed] {
        let sensor = sensor(rate, 11, Some(1000));
        record(&sensor, 20_000, TEN_YEARS_MS);
        let back_ms = 500;
        let wait_ms = sensor.throttle_ms(back_ms);
        assert!(wait_ms >= 9000, "freed by the clock: {wait_ms}");
        assert_eq!(sensor.snapshot(back_ms).window_bytes, 20_000);
        assert!(sensor.throttle_ms(back_ms + 4000) > 0);
        assert_eq!(sensor.throttle_ms(back_ms + 12_000), 0);
        record(&sensor, 20_000, back_ms + 12_000);
        assert!(sensor.throttle_ms(back_ms + 12_000) > 0);
        // The clock may jump back and forth any number of times.
        for _ in 0..1000 {
            for now_ms in [i64::MAX, i64::MIN, 0, -TEN_YEARS_MS] {
                record(&sensor, 1, now_ms);
                let _any = sensor.throttle_ms(now_ms);
            }
        }
        assert_eq!(sensor.total(), 40_000 + 4000);
    }
}

#[test]
fn a_clock_slightly_behind_counts_as_the_current_moment() {
    let sensor = sensor(RateMode::Window, 2, Some(1000));
    record(&sensor, 1000, 10_000);
    record(&sensor, 2000, 8_500);
    assert_eq!(sensor.throttle_ms(9_999), 2000);
    assert_eq!(sensor.snapshot(10_000).window_bytes, 3000);
}

#[test]
fn a_grant_waits_until_the_leaving_bucket_has_left() {
    let sensor = sensor(RateMode::Window, 2, Some(1000));
    let token = granted(sensor.try_reserve(2000, 100));
    assert_eq!(sensor.settle(token, 2000, 200), Ok(()));
    // The limit is used up in buckets 0 and 1, and in bucket 2 for windows that began within bucket
    // 0.
    assert_eq!(wait_ms(sensor.try_reserve(1, 200)), 2800);
    assert_eq!(wait_ms(sensor.try_reserve(1, 2999)), 1);
    granted(sensor.try_reserve(1, 3000));
}

#[test]
fn grant_larger_than_the_window_is_given_and_paid_for() {
    let sensor = sensor(RateMode::Window, 2, Some(1000));
    let token = granted(sensor.try_reserve(20_000, 0));
    assert_eq!(sensor.settle(token, 20_000, 0), Ok(()));
    // The debt must fall below 2,000. 18 buckets pay 18,000, and one more bucket makes the debt
    // smaller than 2,000.
    assert_eq!(wait_ms(sensor.try_reserve(20_000, 0)), 19_000);
    assert_eq!(wait_ms(sensor.try_reserve(20_000, 18_999)), 1);
    granted(sensor.try_reserve(20_000, 19_000));
}

#[test]
fn idle_time_without_calls_pays_debt() {
    let sensor = sensor(RateMode::Window, 2, Some(1000));
    granted(sensor.try_reserve(1_000_000_000, 0));
    let wait = wait_ms(sensor.try_reserve(1, 0)) as i64;
    assert_eq!(wait, 999_999_000);
    granted(sensor.try_reserve(1, wait));
}

#[test]
fn fractions_of_a_byte_are_paid() {
    let settings = QuotaSettings {
        num_samples: 1,
        window_ms: 1,
        rate: RateMode::Window,
        limit_bytes_per_second: Some(1),
    };
    let sensor = QuotaSensor::new(settings).expect("good settings");
    granted(sensor.try_reserve(3, 0));
    // Each millisecond pays a thousandth of a byte, and the debt may be less than a thousandth.
    for now_ms in 0..3000 {
        assert_eq!(wait_ms(sensor.try_reserve(3, now_ms)), 3000 - now_ms as u64);
    }
    granted(sensor.try_reserve(3, 3000));
}

#[test]
fn unused_bytes_return_to_their_bucket() {
    let sensor = sensor(RateMode::Window, 2, Some(1000));
    let token = granted(sensor.try_reserve(2000, 0));
    assert_eq!(token.amount(), 2000);
    assert_eq!(sensor.snapshot(0).reserved_bytes, 2000);
    record(&sensor, 300, 1000);
    assert_eq!(sensor.snapshot(1000).window_bytes, 2300);
    assert_eq!(sensor.settle(token, 500, 1500), Ok(()));
    let snapshot = sensor.snapshot(1500);
    assert_eq!((snapshot.window_bytes, snapshot.reserved_bytes), (800, 0));
    assert_eq!(snapshot.overshoot_bytes, 300);
    assert_eq!(sensor.snapshot(2000).window_bytes, 300);
    assert_eq!(sensor.snapshot(3000).window_bytes, 0);
    assert_eq!(sensor.total(), 800);
}

#[test]
fn bytes_beyond_the_grant_are_recorded_at_the_settlement() {
    let sensor = sensor(RateMode::Window, 2, Some(1000));
    let token = granted(sensor.try_reserve(10, 0));
    assert_eq!(sensor.settle(token, 2010, 1000), Ok(()));
    assert_eq!(sensor.snapshot(1000).reserved_bytes, 0);
    assert_eq!(sensor.throttle_ms(1000), 1000);
    assert_eq!(sensor.snapshot(2000).window_bytes, 2000);
}

#[test]
fn late_cancel_of_a_large_grant_leaves_no_debt() {
    for cancel_ms in [0, 999, 1000, 5000, 50_000] {
        let sensor = sensor(RateMode::Window, 2, Some(1000));
        let token = granted(sensor.try_reserve(1_000_000, 0));
        assert!(wait_ms(sensor.try_reserve(1, 0)) > 900_000);
        assert_eq!(sensor.cancel(token, cancel_ms), Ok(()));
        granted(sensor.try_reserve(1, cancel_ms));
        assert_eq!(sensor.total(), 1);
    }
}

#[test]
fn a_late_cancel_does_not_forgive_a_newer_debt() {
    let sensor = sensor(RateMode::Window, 2, Some(1000));
    let first = granted(sensor.try_reserve(10_000, 0));
    let second = granted(sensor.try_reserve(20_000, 100_000));
    assert_eq!(sensor.cancel(first, 100_000), Ok(()));
    assert_eq!(wait_ms(sensor.try_reserve(1, 100_000)), 19_000);
    assert_eq!(sensor.cancel(second, 100_000), Ok(()));
    granted(sensor.try_reserve(1, 100_000));
}

#[test]
fn a_token_settles_once() {
    let sensor = sensor(RateMode::Window, 2, None);
    let token = granted(sensor.try_reserve(5000, 0));
    assert_eq!(sensor.settle(token, u64::MAX, 0), Err(QuotaError::AmountTooLarge(u64::MAX)));
    assert_eq!(sensor.settle(token, 5000, 0), Ok(()));
    assert_eq!(sensor.cancel(token, 0), Err(QuotaError::NotReserved(5000)));
    assert_eq!(sensor.total(), 5000);
}

#[test]
fn reservations_need_the_window_mode() {
    let sensor = kafka(1000);
    assert_eq!(sensor.try_reserve(1, 0), Err(QuotaError::NeedsWindow));
}

#[test]
fn snapshot_counts_each_moment_of_waiting_once() {
    let sensor = sensor(RateMode::Window, 2, Some(1000));
    record(&sensor, 2001, 0);
    assert_eq!(sensor.throttle_ms(0), 2000);
    assert_eq!(sensor.throttle_ms(500), 1500);
    assert_eq!(sensor.snapshot(500).throttled_ms, 2000);
    record(&sensor, 2001, 1500);
    assert_eq!(sensor.throttle_ms(1500), 1500);
    record(&sensor, 2500, 10_000);
    assert_eq!(sensor.throttle_ms(10_100), 1900);
    let snapshot = sensor.snapshot(10_100);
    assert_eq!(snapshot.throttled_ms, 2000 + 1000 + 1900);
    assert_eq!(snapshot.overshoot_bytes, 2002);
    assert_eq!(snapshot.limit_bytes_per_second, Some(1000));
    assert_eq!(snapshot.rate, 1250.0);
}
