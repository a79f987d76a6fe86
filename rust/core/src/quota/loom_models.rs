//! loom models. They try every interleaving of a few threads with up to four forced switches, under
//! the C11 memory model. Run them with `make models`.

use loom::sync::Arc;
use loom::thread;

use crate::sync::set_thread_number;

use super::published::{Published, Slot};
use super::{QuotaSensor, QuotaSettings, RateMode, Reserve};

const FORCED_SWITCHES: usize = 4;

fn model(forced_switches: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(forced_switches);
    builder.max_branches = 100_000;
    builder.check(body);
}

/// Returns a sensor with one sample of 10 ms and two stripes. It has recorded once, so it has
/// ceilings.
fn sensor(rate: RateMode, limit_bytes_per_window: Option<u64>) -> Arc<QuotaSensor> {
    let limit_bytes_per_second = limit_bytes_per_window.map(|bytes| bytes * 100);
    let settings = QuotaSettings { num_samples: 1, window_ms: 10, rate, limit_bytes_per_second };
    let sensor = QuotaSensor::with_stripes(settings, 2).expect("good settings");
    assert_eq!(sensor.record(0, 0), Ok(()));
    Arc::new(sensor)
}

/// Runs `first` on this thread and `second` on another.
fn both<A, B: 'static>(
    sensor: &Arc<QuotaSensor>,
    first: impl FnOnce(&QuotaSensor) -> A,
    second: impl FnOnce(&QuotaSensor) -> B + 'static,
) -> (A, B) {
    let shared = Arc::clone(sensor);
    let other = thread::spawn(move || {
        set_thread_number(1);
        second(&shared)
    });
    let one = first(sensor);
    (one, other.join().expect("the other thread"))
}

#[test]
fn readers_see_whole_versions_and_no_version_is_lost() {
    fn count(published: &Published) {
        loop {
            let (was, seen) = published.read(|slot| slot.word(1));
            let fill = |slot: Slot<'_>| {
                slot.set(1, was + 1);
                slot.set(2, 2 * (was + 1));
            };
            if published.try_replace(seen, fill) {
                return;
            }
        }
    }
    fn look(published: &Published) -> u64 {
        let ((one, two), _) = published.read(|slot| (slot.word(1), slot.word(2)));
        assert_eq!(two, 2 * one);
        one
    }
    model(3, || {
        let published = Arc::new(Published::new(3, |_| ()));
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let published = Arc::clone(&published);
                thread::spawn(move || count(&published))
            })
            .collect();
        look(&published);
        for writer in writers {
            writer.join().expect("a writer");
        }
        assert_eq!(look(&published), 2);
    });
}

#[test]
fn concurrent_record_and_roll_over_lose_no_bytes() {
    for rate in [RateMode::Window, RateMode::Elapsed] {
        model(FORCED_SWITCHES, move || {
            let sensor = sensor(rate, None);
            assert_eq!(sensor.record(4, 0), Ok(()));
            let done = both(&sensor, |one| one.record(1, 10), |other| other.record(2, 10));
            assert_eq!(done, (Ok(()), Ok(())));
            assert_eq!(sensor.total(), 7);
            assert_eq!(sensor.snapshot(10).window_bytes, 3);
        });
    }
}

#[test]
fn record_during_a_roll_over_stays_for_the_whole_window() {
    for rate in [RateMode::Window, RateMode::Elapsed] {
        model(FORCED_SWITCHES, move || {
            let sensor = sensor(rate, None);
            let done = both(&sensor, |one| one.record(1, 9), |other| other.record(2, 10));
            assert_eq!(done, (Ok(()), Ok(())));
            assert_eq!(sensor.total(), 3);
            // Kafka's samples expire one window after their last event, which is at 9 ms or later.
            // Buckets expire one window after their start.
            let (now_ms, least) = if rate == RateMode::Elapsed { (18, 3) } else { (19, 2) };
            assert!(sensor.snapshot(now_ms).window_bytes >= least);
        });
    }
}

#[test]
fn expired_bytes_never_return_to_the_window() {
    for rate in [RateMode::Window, RateMode::Elapsed] {
        model(FORCED_SWITCHES, move || {
            let sensor = sensor(rate, None);
            let (_, left) = both(
                &sensor,
                |one| one.throttle_ms(20),
                |other| {
                    assert_eq!(other.record(5, 0), Ok(()));
                    other.snapshot(10).window_bytes == 0
                },
            );
            assert!(!left || sensor.snapshot(20).window_bytes == 0);
        });
    }
}

#[test]
fn concurrent_records_over_the_limit_throttle_one_of_them_and_later_ones() {
    for rate in [RateMode::Window, RateMode::Elapsed] {
        model(FORCED_SWITCHES, move || {
            let sensor = sensor(rate, Some(12));
            let (one, other) = both(
                &sensor,
                |one| one.record_and_throttle_ms(8, 0),
                |other| other.record_and_throttle_ms(5, 0),
            );
            assert!(one != Ok(0) || other != Ok(0));
            assert!(sensor.throttle_ms(0) > 0);
        });
    }
}

#[test]
fn three_threads_never_exceed_the_limit_unnoticed() {
    model(3, || {
        let sensor = sensor(RateMode::Window, Some(20));
        let others: Vec<_> = [(1, 6), (0, 7)]
            .into_iter()
            .map(|(number, amount)| {
                let sensor = Arc::clone(&sensor);
                thread::spawn(move || {
                    set_thread_number(number);
                    sensor.record_and_throttle_ms(amount, 0)
                })
            })
            .collect();
        let mut waits = vec![sensor.record_and_throttle_ms(8, 0)];
        waits.extend(others.into_iter().map(|other| other.join().expect("a thread")));
        assert!(waits.iter().any(|&wait_ms| wait_ms != Ok(0)));
        assert!(sensor.throttle_ms(0) > 0);
        // Two of the three threads add to the same counter.
        assert_eq!(sensor.total(), 21);
    });
}

#[test]
fn new_limit_holds_for_concurrent_records() {
    for rate in [RateMode::Window, RateMode::Elapsed] {
        for was in [None, Some(100)] {
            model(FORCED_SWITCHES, move || {
                let sensor = sensor(rate, was);
                let new = |one: &QuotaSensor| one.set_limit(Some(500), 0);
                let done = both(&sensor, new, |other| other.record(6, 0));
                assert_eq!(done, ((), Ok(())));
                assert_eq!(sensor.limit(), Some(500));
                assert!(sensor.throttle_ms(0) > 0);
                sensor.set_limit(Some(600), 0);
                assert_eq!(sensor.throttle_ms(0), 0);
            });
        }
    }
}

#[test]
fn one_of_two_concurrent_reservations_is_granted() {
    model(FORCED_SWITCHES, || {
        let sensor = sensor(RateMode::Window, Some(10));
        let attempt = |sensor: &QuotaSensor| sensor.try_reserve(10, 0);
        match both(&sensor, attempt, attempt) {
            (Ok(Reserve::Granted(token)), Ok(Reserve::Wait(20)))
            | (Ok(Reserve::Wait(20)), Ok(Reserve::Granted(token))) => {
                assert_eq!(sensor.snapshot(0).reserved_bytes, 10);
                assert_eq!(sensor.cancel(token, 0), Ok(()));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(sensor.snapshot(0).reserved_bytes, 0);
        assert_eq!(sensor.total(), 0);
    });
}

#[test]
fn settled_bytes_become_available_exactly_once() {
    model(FORCED_SWITCHES, || {
        let sensor = sensor(RateMode::Window, Some(10));
        let Ok(Reserve::Granted(token)) = sensor.try_reserve(10, 0) else { panic!("not granted") };
        let (settled, other) =
            both(&sensor, |one| one.settle(token, 4, 0), |other| other.try_reserve(7, 0));
        assert_eq!(settled, Ok(()));
        let granted = if matches!(other, Ok(Reserve::Granted(_))) { 7 } else { 0 };
        let snapshot = sensor.snapshot(0);
        assert_eq!((snapshot.total_bytes, snapshot.reserved_bytes), (4 + granted, granted));
    });
}

#[test]
fn settlement_during_a_roll_over_and_a_record_is_exact() {
    model(FORCED_SWITCHES, || {
        let sensor = sensor(RateMode::Window, Some(10));
        let Ok(Reserve::Granted(token)) = sensor.try_reserve(9, 0) else { panic!("not granted") };
        let settle = move |one: &QuotaSensor| one.settle(token, 4, 5);
        let done = both(&sensor, settle, |other| other.record(1, 10));
        assert_eq!(done, (Ok(()), Ok(())));
        let snapshot = sensor.snapshot(10);
        assert_eq!((snapshot.total_bytes, snapshot.reserved_bytes), (5, 0));
        assert_eq!(snapshot.window_bytes, 1);
    });
}
