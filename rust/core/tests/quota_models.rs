//! The quota sensor compared with simple models that keep every event in a list.

#![allow(clippy::expect_used, clippy::panic, missing_docs)]

use proptest::prelude::*;
use tierlog_core::quota::{QuotaSensor, QuotaSettings, RateMode, Reserve, Token};

fn thorough() -> ProptestConfig {
    ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() }
}

fn sensor(rate: RateMode, num_samples: u32, window_ms: u64, limit: Option<u64>) -> QuotaSensor {
    let settings = QuotaSettings { num_samples, window_ms, rate, limit_bytes_per_second: limit };
    QuotaSensor::new(settings).expect("good settings")
}

#[derive(Clone, Debug)]
enum Step {
    Pass(i64),
    Record(u64),
    Check,
    RecordAndCheck(u64),
    Limit(Option<u64>),
    Reserve(u64),
    /// Settles the outstanding reservation with this index with this many thousandths of its bytes.
    Settle(usize, u64),
}

/// Amounts around the limit of one second; some amounts are huge, and some are 0.
fn amounts() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..1500_u64, 2 => Just(0_u64), 1 => 0..20_000_u64]
}

fn limits() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![6 => (1..3000_u64).prop_map(Some), 1 => Just(None), 1 => Just(Some(0))]
}

fn steps(window_ms: i64, reservations: bool) -> impl Strategy<Value = Vec<Step>> {
    let some = if reservations { 6 } else { 0 };
    let step = prop_oneof![
        8 => (0..window_ms * 2).prop_map(Step::Pass),
        1 => (0..window_ms * 40).prop_map(Step::Pass),
        4 => amounts().prop_map(Step::Record),
        4 => Just(Step::Check),
        6 => amounts().prop_map(Step::RecordAndCheck),
        1 => limits().prop_map(Step::Limit),
        some => amounts().prop_map(Step::Reserve),
        some => (any::<usize>(), 0..1500_u64).prop_map(|(which, part)| Step::Settle(which, part)),
    ];
    prop::collection::vec(step, 1..120)
}

/// The buckets of KIP-956, as a list of every record with its bucket.
struct Buckets {
    num_samples: i64,
    window_ms: i64,
    limit: Option<u64>,
    /// Bucket and bytes of each event; returned bytes are negative.
    events: Vec<(i64, i64)>,
}

impl Buckets {
    fn sum(&self, from_bucket: i64, to_bucket: i64) -> u64 {
        let within = from_bucket..=to_bucket;
        let events = self.events.iter().filter(|(bucket, _)| within.contains(bucket));
        events.map(|(_, bytes)| bytes).sum::<i64>() as u64
    }

    fn window(&self, bucket: i64) -> u64 {
        self.sum(bucket - self.num_samples + 1, bucket)
    }

    fn span_ms(&self) -> i64 {
        self.num_samples * self.window_ms
    }

    fn rate(&self, now_ms: i64) -> f64 {
        let bytes = self.window(now_ms.div_euclid(self.window_ms));
        bytes as f64 / (self.span_ms() as f64 / 1000.0)
    }

    /// Steps forward until the rate is within the limit.
    fn throttle_ms(&self, now_ms: i64) -> u64 {
        match self.limit {
            None => 0,
            Some(0) => self.span_ms() as u64,
            Some(limit) => {
                let allowed = limit as u128 * self.span_ms() as u128;
                let mut bucket = now_ms.div_euclid(self.window_ms);
                let mut then_ms = now_ms;
                // All records are in this bucket or an earlier one.
                while u128::from(self.window(bucket)) * 1000 > allowed {
                    bucket += 1;
                    then_ms = bucket * self.window_ms;
                }
                (then_ms - now_ms) as u64
            }
        }
    }
}

/// Kafka's `SampledStat`, `SimpleRate` and `QuotaUtils`, implemented directly.
struct KafkaRing {
    num_samples: usize,
    window_ms: i64,
    limit: Option<u64>,
    samples: Vec<(i64, i64, u64)>,
    current: usize,
}

impl KafkaRing {
    fn record(&mut self, amount: u64, now_ms: i64) {
        if self.samples.is_empty() {
            self.samples.push((now_ms, now_ms, 0));
        } else if now_ms - self.samples[self.current].0 >= self.window_ms {
            self.current = (self.current + 1) % (self.num_samples + 1);
            let fresh = (now_ms, now_ms, 0);
            if self.current < self.samples.len() {
                self.samples[self.current] = fresh;
            } else {
                self.samples.push(fresh);
            }
        }
        let (_, last_event_ms, bytes) = &mut self.samples[self.current];
        *bytes += amount;
        *last_event_ms = now_ms;
    }

    fn measure(&mut self, now_ms: i64) -> (f64, i64) {
        let expiry_ms = self.num_samples as i64 * self.window_ms;
        for sample in &mut self.samples {
            if now_ms - sample.1 >= expiry_ms {
                *sample = (now_ms, now_ms, 0);
            }
        }
        if self.samples.is_empty() {
            self.samples.push((now_ms, now_ms, 0));
        }
        let bytes: f64 = self.samples.iter().map(|sample| sample.2 as f64).sum();
        let oldest_ms = self.samples.iter().map(|sample| sample.0).min().expect("a sample");
        let window_ms = (now_ms - oldest_ms).max(self.window_ms);
        (bytes / (window_ms as f64 / 1000.0), window_ms)
    }

    fn throttle_ms(&mut self, now_ms: i64) -> u64 {
        let (rate, window_ms) = self.measure(now_ms);
        match self.limit {
            None => 0,
            Some(0) => (self.num_samples as i64 * self.window_ms) as u64,
            Some(limit) if rate > limit as f64 => {
                let bound = limit as f64;
                ((rate - bound) / bound * window_ms as f64).round() as u64
            }
            Some(_) => 0,
        }
    }
}

/// The conditions of a grant: the N + 1 newest buckets and the debt, computed from the list of
/// events.
#[derive(Default)]
struct Grants {
    /// Debt in thousandths of a byte at the start of the current bucket, and its minimum since the
    /// last time without an outstanding reservation.
    owed: u128,
    lowest: u128,
    bucket: i64,
    outstanding: Vec<(Token, i64)>,
}

impl Grants {
    fn came(model: &Buckets, bucket: i64) -> u128 {
        u128::from(model.sum(bucket, bucket)) * 1000
    }

    fn advance(&mut self, model: &Buckets, now_ms: i64) {
        let bucket = now_ms.div_euclid(model.window_ms);
        while self.bucket < bucket {
            let owed = self.owed + Self::came(model, self.bucket);
            self.owed = match model.limit {
                None => 0,
                Some(limit) => owed.saturating_sub(limit as u128 * model.window_ms as u128),
            };
            self.lowest = self.lowest.min(self.owed / 1000 * 1000);
            self.bucket += 1;
        }
    }

    /// Settles one outstanding reservation on the sensor and in the model.
    fn settle_one(
        &mut self,
        sensor: &QuotaSensor,
        model: &mut Buckets,
        which: usize,
        part: u64,
        now_ms: i64,
    ) {
        if self.outstanding.is_empty() {
            return;
        }
        let which = which % self.outstanding.len();
        let (token, granted_in) = self.outstanding.swap_remove(which);
        let actual = token.amount() * part / 1000;
        assert_eq!(sensor.settle(token, actual, now_ms), Ok(()));
        if actual > token.amount() {
            let bucket = now_ms.div_euclid(model.window_ms);
            model.events.push((bucket, (actual - token.amount()) as i64));
        } else {
            self.give_back(model, granted_in, token.amount() - actual);
        }
    }

    /// Steps forward bucket by bucket until both conditions are true.
    fn wait_ms(&self, model: &Buckets, now_ms: i64) -> u64 {
        let Some(limit) = model.limit else { return 0 };
        if limit == 0 {
            return model.span_ms() as u64;
        }
        let allowed = limit as u128 * model.span_ms() as u128;
        let mut owed = self.owed + Self::came(model, self.bucket);
        let mut bucket = self.bucket;
        let mut then_ms = now_ms;
        while owed >= allowed
            || u128::from(model.sum(bucket - model.num_samples, bucket)) * 1000 >= allowed
        {
            bucket += 1;
            then_ms = bucket * model.window_ms;
            owed = owed.saturating_sub(limit as u128 * model.window_ms as u128);
        }
        (then_ms - now_ms) as u64
    }

    fn give_back(&mut self, model: &mut Buckets, granted_in: i64, unused: u64) {
        model.events.push((granted_in, -(unused as i64)));
        if granted_in < self.bucket {
            let less = (u128::from(unused) * 1000).min(self.lowest);
            self.owed = self.owed.saturating_sub(less);
            self.lowest -= less;
        }
    }
}

proptest! {
    #![proptest_config(thorough())]

    #[test]
    fn elapsed_mode_equals_kafka(
        num_samples in 1..12_u32,
        window_ms in prop_oneof![1..20_i64, Just(1000_i64)],
        limit in limits(),
        start_ms in prop_oneof![Just(0_i64), -5000..5000_i64, Just(1_700_000_000_000_i64)],
        steps in (1..2000_i64).prop_flat_map(|window_ms| steps(window_ms, false)),
    ) {
        let sensor = sensor(RateMode::Elapsed, num_samples, window_ms as u64, limit);
        let mut model =
            KafkaRing { num_samples: num_samples as usize, window_ms, limit, samples: vec![], current: 0 };
        let mut now_ms = start_ms;
        let mut total = 0;
        for step in steps {
            match step {
                Step::Pass(ms) => now_ms += ms,
                Step::Record(amount) => {
                    prop_assert_eq!(sensor.record(amount, now_ms), Ok(()));
                    model.record(amount, now_ms);
                    total += amount;
                }
                Step::RecordAndCheck(amount) => {
                    model.record(amount, now_ms);
                    total += amount;
                    let found = sensor.record_and_throttle_ms(amount, now_ms);
                    prop_assert_eq!(found, Ok(model.throttle_ms(now_ms)));
                }
                Step::Limit(limit) => {
                    sensor.set_limit(limit, now_ms);
                    model.limit = limit;
                }
                _ => {
                    prop_assert_eq!(sensor.throttle_ms(now_ms), model.throttle_ms(now_ms));
                    // The rates are equal in every bit.
                    prop_assert_eq!(sensor.rate(now_ms), model.measure(now_ms).0);
                }
            }
        }
        prop_assert_eq!(sensor.total(), total);
    }

    #[test]
    fn window_mode_and_grants_equal_the_model(
        num_samples in 1..12_u32,
        window_ms in prop_oneof![1..20_i64, Just(1000_i64)],
        limit in limits(),
        start_ms in prop_oneof![Just(0_i64), -5000..5000_i64, Just(1_700_000_000_000_i64)],
        steps in (1..2000_i64).prop_flat_map(|window_ms| steps(window_ms, true)),
    ) {
        let sensor = sensor(RateMode::Window, num_samples, window_ms as u64, limit);
        let mut model =
            Buckets { num_samples: i64::from(num_samples), window_ms, limit, events: vec![] };
        let mut now_ms = start_ms;
        let mut grants = Grants { bucket: now_ms.div_euclid(window_ms), ..Grants::default() };
        prop_assert_eq!(sensor.throttle_ms(now_ms), model.throttle_ms(now_ms));
        for step in steps {
            grants.advance(&model, now_ms);
            let bucket = now_ms.div_euclid(window_ms);
            match step {
                Step::Pass(ms) => now_ms += ms,
                Step::Record(amount) => {
                    prop_assert_eq!(sensor.record(amount, now_ms), Ok(()));
                    model.events.push((bucket, amount as i64));
                }
                Step::RecordAndCheck(amount) => {
                    model.events.push((bucket, amount as i64));
                    let found = sensor.record_and_throttle_ms(amount, now_ms);
                    prop_assert_eq!(found, Ok(model.throttle_ms(now_ms)));
                }
                Step::Check => {
                    prop_assert_eq!(sensor.throttle_ms(now_ms), model.throttle_ms(now_ms));
                    prop_assert_eq!(sensor.rate(now_ms), model.rate(now_ms));
                }
                Step::Limit(limit) => {
                    sensor.set_limit(limit, now_ms);
                    model.limit = limit;
                }
                Step::Reserve(amount) => match sensor.try_reserve(amount, now_ms) {
                    Ok(Reserve::Granted(token)) => {
                        prop_assert_eq!(grants.wait_ms(&model, now_ms), 0);
                        if grants.outstanding.iter().all(|(token, _)| token.amount() == 0) {
                            grants.lowest = u128::MAX;
                        }
                        grants.outstanding.push((token, bucket));
                        model.events.push((bucket, amount as i64));
                    }
                    Ok(Reserve::Wait(wait_ms)) => {
                        prop_assert_eq!(grants.wait_ms(&model, now_ms), wait_ms);
                    }
                    Err(error) => panic!("{error}"),
                },
                Step::Settle(which, part) => {
                    grants.settle_one(&sensor, &mut model, which, part, now_ms);
                }
            }
        }
        grants.advance(&model, now_ms);
        let snapshot = sensor.snapshot(now_ms);
        let outstanding: u64 = grants.outstanding.iter().map(|(token, _)| token.amount()).sum();
        prop_assert_eq!(snapshot.reserved_bytes, outstanding);
        prop_assert_eq!(snapshot.total_bytes, model.sum(i64::MIN, i64::MAX));
        prop_assert_eq!(snapshot.window_bytes, model.window(now_ms.div_euclid(window_ms)));
        for (token, _) in grants.outstanding {
            prop_assert_eq!(sensor.cancel(token, now_ms), Ok(()));
        }
        prop_assert_eq!(sensor.snapshot(now_ms).reserved_bytes, 0);
    }
}

/// Returns the largest sum of `sent` in any window of `span_ms`.
fn most_in_a_sliding_window(sent: &[(i64, u64)], span_ms: i64) -> u64 {
    let mut oldest = 0;
    let mut held = 0;
    let mut most = 0;
    for &(at_ms, bytes) in sent {
        held += bytes;
        while sent[oldest].0 <= at_ms - span_ms {
            held -= sent[oldest].1;
            oldest += 1;
        }
        most = most.max(held);
    }
    most
}

/// Checks the quota at each of `times_ms`, and sends units while it is not exceeded.
fn send_while_not_over(
    sensor: &QuotaSensor,
    unit: u64,
    times_ms: std::ops::Range<i64>,
) -> Vec<(i64, u64)> {
    let mut sent = vec![];
    for now_ms in times_ms {
        while sensor.throttle_ms(now_ms) == 0 {
            assert_eq!(sensor.record(unit, now_ms), Ok(()));
            sent.push((now_ms, unit));
        }
    }
    sent
}

fn send_what_is_granted(
    sensor: &QuotaSensor,
    unit: u64,
    times_ms: std::ops::Range<i64>,
) -> Vec<(i64, u64)> {
    let mut sent = vec![];
    for now_ms in times_ms {
        while let Ok(Reserve::Granted(token)) = sensor.try_reserve(unit, now_ms) {
            assert_eq!(sensor.settle(token, unit, now_ms), Ok(()));
            sent.push((now_ms, unit));
        }
    }
    sent
}

#[test]
fn aligned_buckets_pass_twice_the_limit_and_reservations_do_not() {
    let (span_ms, allowed, unit) = (1000, 100_000, 100);
    // Sends nothing until the last moment of a bucket.
    let checked = sensor(RateMode::Window, 1, span_ms, Some(allowed));
    let sent = send_while_not_over(&checked, unit, 999..5000);
    let most = most_in_a_sliding_window(&sent, span_ms as i64);
    assert_eq!(most, 2 * (allowed + unit));

    let reserved = sensor(RateMode::Window, 1, span_ms, Some(allowed));
    let sent = send_what_is_granted(&reserved, unit, 999..5000);
    assert_eq!(most_in_a_sliding_window(&sent, span_ms as i64), allowed);

    for num_samples in [2, 10] {
        let limit = allowed * 1000 / (u64::from(num_samples) * 100);
        let span_ms = i64::from(num_samples) * 100;
        let reserved = sensor(RateMode::Window, num_samples, 100, Some(limit));
        let sent = send_what_is_granted(&reserved, unit, 99..5000);
        assert!(most_in_a_sliding_window(&sent, span_ms) <= allowed + unit);
    }
}

#[test]
fn unit_larger_than_the_window_is_paced_at_the_limit_and_tenfold_by_kafka() {
    // 1 GiB segments at 10 MiB/s for an hour: case G.
    let (limit, unit, hour_ms) = (10 << 20, 1 << 30, 3_600_000);
    let kafka = sensor(RateMode::Elapsed, 11, 1000, Some(limit));
    let ours = sensor(RateMode::Window, 11, 1000, Some(limit));
    let (mut by_kafka, mut by_us, mut longest_ms, mut last_ms) = (0, 0, 0, 0);
    for now_ms in (0..hour_ms).step_by(100) {
        if kafka.throttle_ms(now_ms) == 0 {
            assert_eq!(kafka.record(unit, now_ms), Ok(()));
            by_kafka += unit;
        }
        if let Ok(Reserve::Granted(token)) = ours.try_reserve(unit, now_ms) {
            // Half of the segments turn out smaller, and the unused bytes are returned.
            let actual = if by_us % 2 == 0 { unit } else { unit / 2 + 1 };
            assert_eq!(ours.settle(token, actual, now_ms), Ok(()));
            by_us += actual;
            longest_ms = longest_ms.max(now_ms - last_ms);
            last_ms = now_ms;
        }
    }
    let allowed = limit * (hour_ms as u64 / 1000);
    assert!(by_kafka > 9 * allowed);
    assert!(by_us <= allowed + 11 * limit + unit);
    assert!(by_us >= allowed - unit);
    assert!(longest_ms <= (unit / limit * 1000 + 2000) as i64);
}

proptest! {
    #![proptest_config(thorough())]

    #[test]
    fn no_sliding_window_holds_more_than_the_limit_and_one_grant(
        num_samples in 1..8_u32,
        window_ms in 1..50_u64,
        limit in 1..5000_u64,
        asks in prop::collection::vec((0..60_i64, 0..400_u64, 0..=100_u64), 1..300),
    ) {
        let sensor = sensor(RateMode::Window, num_samples, window_ms, Some(limit));
        let (mut now_ms, mut unit, mut sent) = (0, 0, vec![]);
        for (pass_ms, amount, percent) in asks {
            now_ms += pass_ms;
            if let Ok(Reserve::Granted(token)) = sensor.try_reserve(amount, now_ms) {
                let actual = amount * percent / 100;
                prop_assert_eq!(sensor.settle(token, actual, now_ms), Ok(()));
                sent.push((now_ms, actual));
                unit = unit.max(actual);
            }
        }
        let span_ms = i64::from(num_samples) * window_ms as i64;
        let most = most_in_a_sliding_window(&sent, span_ms);
        prop_assert!(most * 1000 <= limit * span_ms as u64 + unit * 1000);
    }
}
