//! All threads that miss the same key share one load.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use tierlog_core::cache::{Begun, Cache, Closed, LoadError, Outcome, Ticket, Waiter};

use super::{settings, told};

type Loads = Cache<u64, u64, String>;
type Begin<'a> = Begun<'a, u64, u64, String, foldhash::fast::RandomState>;

fn cache() -> Loads {
    Cache::new(settings(100, Some(1000)))
}

fn ticket(begun: Begin<'_>) -> Ticket<'_, u64, u64, String, foldhash::fast::RandomState> {
    match begun {
        Begun::Load(ticket) => ticket,
        _ => panic!("expected to be the loader"),
    }
}

/// Asks for the key from another thread, because a thread does not wait for its own load.
fn waiter(cache: &Loads, key: u64) -> Waiter<u64, u64, String> {
    thread::scope(|scope| {
        let asked = scope.spawn(|| match cache.begin_load(&key, 0) {
            Ok(Begun::Wait(waiter)) => waiter,
            _ => panic!("expected to wait"),
        });
        asked.join().expect("a waiter")
    })
}

#[test]
fn miss_loads_and_hit_does_not() {
    let cache = cache();
    let loaded = cache.get_or_load(&7, || 0, None, |key| Ok((key * 2, 3)));
    assert_eq!(loaded, Ok(14));
    assert_eq!(cache.get_or_load(&7, || 0, None, |_| Err("no".into())), Ok(14));
    assert_eq!(cache.weight_bytes(), 3);
    let failed = cache.get_or_load(&8, || 0, None, |_| Err("no".into()));
    assert_eq!(failed, Err(LoadError::Failed("no".into())));
    assert_eq!(cache.get(&8, 0), None);
    assert_eq!(cache.get_or_load(&8, || 0, None, |_| Ok((1, 1))), Ok(1));
    // An expired entry counts as absent.
    assert_eq!(cache.get_or_load(&7, || 1000, None, |_| Ok((15, 1))), Ok(15));
    let stats = cache.stats();
    assert_eq!((stats.loads, stats.failed_loads, stats.hits, stats.misses), (3, 1, 1, 5));
}

#[test]
fn thousand_threads_that_miss_one_key_load_once() {
    let cache = cache();
    let (loads, together) = (AtomicUsize::new(0), Barrier::new(1000));
    thread::scope(|scope| {
        for _ in 0..1000 {
            scope.spawn(|| {
                together.wait();
                let loaded = cache.get_or_load(
                    &1,
                    || 0,
                    None,
                    |_| {
                        loads.fetch_add(1, Ordering::Relaxed);
                        thread::yield_now();
                        Ok((42, 1))
                    },
                );
                assert_eq!(loaded, Ok(42));
            });
        }
    });
    assert_eq!(loads.load(Ordering::Relaxed), 1);
}

#[test]
fn slow_load_delays_no_other_key() {
    let cache = cache();
    let slow = ticket(cache.begin_load(&1, 0).expect("open"));
    assert_eq!(cache.get_or_load(&2, || 0, None, |_| Ok((2, 1))), Ok(2));
    assert_eq!(slow.key(), &1);
    assert_eq!(slow.finish(1, 1, 250), Ok(true));
    assert_eq!(cache.get(&1, 250), Some(1));
    assert_eq!(cache.stats().load_ms, 250);
}

#[test]
fn waiters_get_the_value_or_the_error() {
    let cache = cache();
    let first = ticket(cache.begin_load(&1, 0).expect("open"));
    let waiting = waiter(&cache, 1);
    assert_eq!(waiting.wait(Some(Duration::from_millis(1))), None);
    assert_eq!(first.finish(5, 1, 0), Ok(true));
    assert_eq!(waiting.wait(None), Some(&Outcome::Loaded(5)));
    let second = ticket(cache.begin_load(&2, 0).expect("open"));
    let waiting = waiter(&cache, 2);
    second.fail("broken".into(), 10);
    assert_eq!(waiting.wait(None), Some(&Outcome::Failed("broken".into())));
    assert_eq!(cache.get(&2, 0), None);
}

#[test]
fn waiters_of_a_hanging_load_time_out() {
    let cache = cache();
    let hanging = ticket(cache.begin_load(&1, 0).expect("open"));
    thread::scope(|scope| {
        scope.spawn(|| {
            let timeout = Some(Duration::from_millis(5));
            let waited = cache.get_or_load(&1, || 0, timeout, |_| Ok((2, 1)));
            assert_eq!(waited, Err(LoadError::TimedOut));
        });
    });
    assert_eq!(hanging.finish(1, 1, 0), Ok(true));
    assert_eq!(cache.get(&1, 0), Some(1));
}

#[test]
fn after_a_cancelled_load_a_waiter_loads() {
    let cache = cache();
    let (entered, asked) = channel();
    let first = ticket(cache.begin_load(&1, 0).expect("open"));
    thread::scope(|scope| {
        let next = scope.spawn(|| {
            let clock = || {
                entered.send(()).expect("somebody listens");
                0
            };
            cache.get_or_load(&1, clock, None, |_| Ok((2, 1)))
        });
        asked.recv().expect("somebody asks");
        drop(first);
        assert_eq!(next.join().expect("a loader"), Ok(2));
    });
    assert_eq!(cache.stats().failed_loads, 1);
}

#[test]
fn panicking_loader_cancels_the_load() {
    let cache = cache();
    let unwound = thread::scope(|scope| {
        scope.spawn(|| cache.get_or_load(&1, || 0, None, |_| panic!("on purpose"))).join()
    });
    assert!(unwound.is_err());
    assert_eq!(cache.get_or_load(&1, || 0, None, |_| Ok((2, 1))), Ok(2));
}

#[test]
fn remove_or_put_during_a_load_wins() {
    let cache = cache();
    let remove: fn(&Loads) = |cache| assert!(!cache.remove(&1));
    let remove_if: fn(&Loads) = |cache| assert_eq!(cache.remove_if(|key| *key == 1), 0);
    let put: fn(&Loads) = |cache| assert_eq!(cache.put(1, 9, 1, 0), Ok(true));
    for (name, act) in [("remove", remove), ("remove_if", remove_if), ("put", put)] {
        cache.remove(&1);
        let first = ticket(cache.begin_load(&1, 0).expect("open"));
        let waiting = waiter(&cache, 1);
        act(&cache);
        let kept = cache.get(&1, 0);
        if name != "put" {
            // Later callers do not get the value that was read before the removal.
            let second = ticket(cache.begin_load(&1, 0).expect("open"));
            second.fail("later".into(), 0);
        }
        assert_eq!(first.finish(5, 1, 0), Ok(false), "{name}");
        assert_eq!(waiting.wait(None), Some(&Outcome::Loaded(5)), "{name}");
        assert_eq!(cache.get(&1, 0), kept, "{name}");
    }
}

#[test]
fn loader_that_asks_for_its_own_key_gets_an_error() {
    let cache = cache();
    let outer = cache.get_or_load(
        &1,
        || 0,
        None,
        |_| {
            let own = cache.get_or_load(&1, || 0, None, |_| Ok((1, 1)));
            assert_eq!(own, Err(LoadError::Reentrant));
            let other = cache.get_or_load(&2, || 0, None, |_| Ok((2, 1)));
            other.map(|value| (value + 1, 1)).map_err(|error| error.to_string())
        },
    );
    assert_eq!(outer, Ok(3));
}

#[test]
fn loaders_that_ask_for_each_others_keys_get_an_error() {
    const LOADERS: u64 = 3;
    let cache = cache();
    let all_load = std::sync::Barrier::new(usize::try_from(LOADERS).expect("few"));
    let outcomes: Vec<_> = thread::scope(|scope| {
        let loaders: Vec<_> = (0..LOADERS)
            .map(|key: u64| {
                let (cache, all_load) = (&cache, &all_load);
                scope.spawn(move || {
                    cache.get_or_load(
                        &key,
                        || 0,
                        None,
                        |_| {
                            all_load.wait();
                            let next = (key + 1) % LOADERS;
                            let other = cache.get_or_load(&next, || 0, None, |_| Ok((0, 1)));
                            other.map(|value| (value + 1, 1)).map_err(|error| error.to_string())
                        },
                    )
                })
            })
            .collect();
        loaders.into_iter().map(|loader| loader.join().expect("no panic")).collect()
    });
    // One loader is refused, and every loader that waits for it fails with the same error.
    let refused = "the loader asked for a key whose load waits for this loader";
    assert!(
        outcomes
            .iter()
            .all(|outcome| { matches!(outcome, Err(LoadError::Failed(text)) if text == refused) })
    );
    assert_eq!(cache.get_or_load(&0, || 0, None, |_| Ok((7, 1))), Ok(7));
}

#[test]
fn closing_ends_every_wait_and_keeps_nothing() {
    let (cache, told) = told(100, None);
    let first = ticket(cache.begin_load(&1, 0).expect("open"));
    let waiting = waiter(&cache, 1);
    thread::scope(|scope| {
        let (entered, asked) = channel();
        let waits = scope.spawn(|| {
            let entered = entered;
            let clock = || {
                entered.send(()).expect("somebody listens");
                0
            };
            cache.get_or_load(&1, clock, None, |_| Ok((2, 1)))
        });
        asked.recv().expect("somebody asks");
        cache.close();
        assert_eq!(waits.join().expect("a waiter"), Err(LoadError::Closed));
    });
    assert_eq!(waiting.wait(None), Some(&Outcome::Closed));
    assert_eq!(first.finish(1, 1, 0), Err(Closed));
    let after = cache.get_or_load(&2, || 0, None, |_| Ok((2, 1)));
    assert_eq!(after, Err(LoadError::Closed));
    assert_eq!((cache.len(), told.lock().expect("told").len()), (0, 0));
}
