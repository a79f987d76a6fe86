//! Many threads use a quota sensor. It counts every byte, and a thread that exceeds the limit
//! always gets a throttle time.

#![allow(clippy::expect_used, clippy::panic, missing_docs)]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;

use tierlog_core::quota::{QuotaSensor, QuotaSettings, RateMode, Reserve};

const THREADS: u64 = 64;

fn sensor(rate: RateMode, num_samples: u32, window_ms: u64, limit: Option<u64>) -> QuotaSensor {
    let settings = QuotaSettings { num_samples, window_ms, rate, limit_bytes_per_second: limit };
    QuotaSensor::new(settings).expect("good settings")
}

/// Runs `THREADS` threads at once, each with its number.
fn together(body: impl Fn(u64) + Sync) {
    let start = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (start, body) = (&start, &body);
            scope.spawn(move || {
                start.wait();
                body(number);
            });
        }
    });
}

/// Records `records` from all threads while windows move, sometimes backwards, and the limit
/// changes.
fn exact(rate: RateMode, records: u64) {
    let sensor = sensor(rate, 11, 10, Some(1 << 40));
    let each = records / THREADS;
    let clock_ms = AtomicI64::new(0);
    together(|number| {
        for record in 0..each {
            if record % 4096 == 0 {
                clock_ms.fetch_add(1, Ordering::Relaxed);
            }
            let now_ms = clock_ms.load(Ordering::Relaxed) - (record % 7) as i64;
            match record % 65_536 {
                1 => sensor.set_limit(Some(1 << (number % 50)), now_ms),
                2 => sensor.set_limit(None, now_ms),
                3 => assert_eq!(sensor.snapshot(now_ms).reserved_bytes, 0),
                _ => {}
            }
            let amount = number + record % 1000;
            if record % 2 == 0 {
                assert_eq!(sensor.record(amount, now_ms), Ok(()));
            } else {
                assert!(sensor.record_and_throttle_ms(amount, now_ms).is_ok());
            }
        }
    });
    let thousands =
        (each / 1000) * (999 * 1000 / 2) + (each % 1000) * (each % 1000).saturating_sub(1) / 2;
    let recorded = THREADS * thousands + each * (THREADS * (THREADS - 1) / 2);
    assert_eq!(sensor.total(), recorded);
    // All samples expire, and no bytes remain.
    let later_ms = clock_ms.into_inner() + 1000;
    assert_eq!(sensor.snapshot(later_ms).window_bytes, 0);
    assert_eq!(sensor.total(), recorded);
}

#[test]
fn sixty_four_threads_are_exact_to_the_byte() {
    exact(RateMode::Window, 10_000_000);
    exact(RateMode::Elapsed, 2_000_000);
}

#[test]
#[ignore = "minutes: make proofs"]
fn sixty_four_threads_are_exact_to_the_byte_over_a_thousand_million_records() {
    exact(RateMode::Window, 1_000_000_000);
    exact(RateMode::Elapsed, 100_000_000);
}

#[test]
fn concurrent_records_never_exceed_the_limit_unnoticed() {
    // A thread that gets 0 continues. The last record over the limit and all later records must get
    // a throttle time.
    for rate in [RateMode::Window, RateMode::Elapsed] {
        for round in 0..200 {
            let limit = 1000 + round;
            let sensor = sensor(rate, 1, 1000, Some(limit));
            assert_eq!(sensor.throttle_ms(0), 0);
            let over = AtomicBool::new(false);
            together(|number| {
                for _ in 0..100 {
                    let known_over = over.load(Ordering::Acquire);
                    let wait_ms = sensor.record_and_throttle_ms(number % 3, 0).expect("a record");
                    assert!(wait_ms > 0 || !known_over);
                    if wait_ms > 0 {
                        over.store(true, Ordering::Release);
                    }
                }
            });
            let is_over = sensor.snapshot(0).window_bytes > limit;
            assert!(is_over);
            assert!(over.into_inner());
        }
    }
}

#[test]
fn concurrent_requests_are_granted_up_to_the_limit() {
    for round in 0..200 {
        let permits = round % 5 + 1;
        let sensor = sensor(RateMode::Window, 2, 1000, Some(50 * permits));
        let granted = AtomicU64::new(0);
        together(|number| match sensor.try_reserve(100, 0).expect("an answer") {
            Reserve::Granted(token) => {
                granted.fetch_add(1, Ordering::Relaxed);
                let actual = if number % 2 == 0 { 0 } else { 100 };
                sensor.settle(token, actual, 1500).expect("settled");
            }
            Reserve::Wait(wait_ms) => assert!(wait_ms > 0),
        });
        // Bytes that were not sent are granted again, so there may be more grants than permits.
        assert!(granted.into_inner() >= permits);
        let snapshot = sensor.snapshot(1500);
        assert_eq!(snapshot.reserved_bytes, 0);
        assert!(snapshot.total_bytes <= 100 * permits);
    }
}

#[test]
fn one_permit_goes_to_one_of_many_threads() {
    for _ in 0..500 {
        let sensor = sensor(RateMode::Window, 1, 1000, Some(1));
        let granted = AtomicU64::new(0);
        together(|_| {
            if let Ok(Reserve::Granted(_)) = sensor.try_reserve(1 << 30, 0) {
                granted.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(granted.into_inner(), 1);
        assert_eq!(sensor.total(), 1 << 30);
    }
}
