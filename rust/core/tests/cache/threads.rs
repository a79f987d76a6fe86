//! Many threads use a cache. The tests assert that there is never a wrong value, too much weight,
//! two loads of a key, a double drop or a leak.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use tierlog_core::cache::{Cache, CacheSettings, RemovalCause};

use super::settings;

const THREADS: u64 = 4;

/// A value that detects use after drop and counts the live values.
struct Tracked {
    key: u64,
    alive: AtomicBool,
    living: Arc<AtomicI64>,
}

impl Tracked {
    fn new(key: u64, living: &Arc<AtomicI64>) -> Arc<Self> {
        living.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { key, alive: AtomicBool::new(true), living: Arc::clone(living) })
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        assert!(self.alive.swap(false, Ordering::Relaxed), "dropped twice");
        self.living.fetch_sub(1, Ordering::Relaxed);
    }
}

type Tracking = Cache<u64, Arc<Tracked>, String>;

/// Pseudo-random numbers, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn look(cache: &Tracking, key: u64, now_ms: i64) -> bool {
    let right = |value: &Arc<Tracked>| value.key == key && value.alive.load(Ordering::Relaxed);
    cache.get_with(&key, now_ms, right).unwrap_or(true)
}

/// State shared by a run of mixed operations.
struct Mixed {
    cache: Tracking,
    now_ms: AtomicI64,
    living: Arc<AtomicI64>,
    /// Number of active loads of each key. It is checked only when no key is removed explicitly.
    loading: Vec<AtomicUsize>,
    by_hand: bool,
    max_bytes: u64,
}

impl Mixed {
    fn one(&self, dice: &mut Dice) {
        let now_ms = self.now_ms.load(Ordering::Relaxed);
        let key = dice.below(self.loading.len() as u64);
        let value = || Tracked::new(key, &self.living);
        match dice.below(1000) {
            0..700 => assert!(look(&self.cache, key, now_ms), "{key}"),
            700..800 => self.load(key, now_ms, dice.below(10)),
            800..900 if self.by_hand => {
                assert!(self.cache.put(key, value(), dice.below(100), now_ms).is_ok());
            }
            900..950 if self.by_hand => {
                self.cache.remove(&key);
            }
            950 if self.by_hand && dice.below(20) == 0 => {
                self.cache.remove_if(|other| other % 7 == key % 7);
            }
            951 => self.cache.resize(self.max_bytes / (1 + dice.below(3))),
            952..955 => {
                self.now_ms.fetch_add(1, Ordering::Relaxed);
                self.cache.sweep(now_ms);
            }
            955 => self.cache.set_ttl(Some(5 + dice.below(50))),
            956 => assert!(self.cache.stats().weight_bytes <= self.max_bytes),
            _ => assert!(self.cache.get(&key, now_ms).is_none_or(|value| value.key == key)),
        }
        assert!(self.cache.weight_bytes() <= self.max_bytes);
    }

    fn load(&self, key: u64, now_ms: i64, fate: u64) {
        let loaded = self.cache.get_or_load(
            &key,
            || now_ms,
            None,
            |_| {
                let others = self.loading[key as usize].fetch_add(1, Ordering::AcqRel);
                assert!(self.by_hand || others == 0, "two loads of {key}");
                if fate == 1 {
                    thread::yield_now();
                }
                let weight = key % 100;
                self.loading[key as usize].fetch_sub(1, Ordering::AcqRel);
                if fate == 0 {
                    Err("fails".into())
                } else {
                    Ok((Tracked::new(key, &self.living), weight))
                }
            },
        );
        assert!(loaded.is_err() || loaded.is_ok_and(|value| value.key == key));
    }

    fn run(by_hand: bool, steps: u64) {
        let living = Arc::new(AtomicI64::new(0));
        let told = Arc::new(AtomicU64::new(0));
        let listener = {
            let told = Arc::clone(&told);
            Box::new(move |key: &u64, value: &Arc<Tracked>, _, _: RemovalCause| {
                assert!(value.key == *key && value.alive.load(Ordering::Relaxed));
                told.fetch_add(1, Ordering::Relaxed);
            })
        };
        let max_bytes = 5_000;
        let mixed = Self {
            cache: Cache::with_listener(settings(max_bytes, Some(20)), listener),
            now_ms: AtomicI64::new(0),
            living: Arc::clone(&living),
            loading: (0..300).map(|_| AtomicUsize::new(0)).collect(),
            by_hand,
            max_bytes,
        };
        thread::scope(|scope| {
            for seed in 0..THREADS {
                let mixed = &mixed;
                scope.spawn(move || {
                    let mut dice = Dice(seed);
                    (0..steps / THREADS).for_each(|_| mixed.one(&mut dice));
                });
            }
        });
        let cache = mixed.cache;
        cache.sweep(mixed.now_ms.load(Ordering::Relaxed));
        // No reader is left, so no entry is kept back.
        assert_eq!(living.load(Ordering::Relaxed), cache.len() as i64);
        let stats = cache.stats();
        let left = stats.entries as u64;
        let removed = stats.removed_size
            + stats.removed_expired
            + stats.removed_explicit
            + stats.removed_replaced;
        assert_eq!(told.load(Ordering::Relaxed), removed);
        drop(cache);
        assert_eq!(told.load(Ordering::Relaxed), removed + left);
        assert_eq!(living.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn ten_million_mixed_operations_keep_every_invariant() {
    Mixed::run(true, 5_000_000);
    Mixed::run(false, 5_000_000);
}

#[test]
#[ignore = "a thousand million operations, for the long proofs"]
fn a_thousand_million_mixed_operations_keep_every_promise() {
    Mixed::run(true, 500_000_000);
    Mixed::run(false, 500_000_000);
}

#[test]
fn readers_find_every_entry_while_the_table_grows() {
    let cache: Cache<u64, u64> = Cache::new(settings(u64::MAX, Some(1000)));
    let (there, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for seed in 0..2 {
            let (cache, there, done) = (&cache, &there, &done);
            scope.spawn(move || {
                let mut dice = Dice(seed);
                while !done.load(Ordering::Relaxed) {
                    let bound = there.load(Ordering::Acquire);
                    let key = dice.below(bound.max(1));
                    assert!(cache.get(&key, 0) == Some(key) || bound == 0, "{key}");
                }
            });
        }
        for key in 0..300_000 {
            assert_eq!(cache.put(key, key, 1, 0), Ok(true));
            there.store(key + 1, Ordering::Release);
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn replaced_key_is_never_missing() {
    let cache: Cache<u64, u64> = Cache::new(settings(100, Some(1000)));
    cache.put(1, 0, 60, 0).expect("open");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = 0;
            while !done.load(Ordering::Relaxed) {
                let now = cache.get(&1, 0);
                assert!(now >= Some(last), "{now:?} after {last}");
                last = now.unwrap_or(0);
            }
        });
        for value in 0..300_000 {
            assert_eq!(cache.put(1, value, 60, 0), Ok(true));
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn values_live_while_two_hundred_threads_read_them() {
    const LOOKING: usize = 200;
    let living = Arc::new(AtomicI64::new(0));
    let settings = CacheSettings { max_bytes: 50, ttl_ms: None, record_stats: true };
    let cache: Tracking = Cache::new(settings);
    for key in 0..50 {
        cache.put(key, Tracked::new(key, &living), 1, 0).expect("open");
    }
    let (inside, emptied) = (Barrier::new(LOOKING + 1), Barrier::new(LOOKING + 1));
    thread::scope(|scope| {
        for number in 0..LOOKING as u64 {
            let (cache, inside, emptied) = (&cache, &inside, &emptied);
            scope.spawn(move || {
                let key = number % 50;
                let seen = cache.get_with(&key, 0, |value| {
                    inside.wait();
                    emptied.wait();
                    assert!(value.alive.load(Ordering::Relaxed));
                    value.key
                });
                assert_eq!(seen, Some(key));
                // Now fewer threads read at once, so each has a lane.
                assert_eq!(cache.get(&key, 0).map(|value| value.key), None);
            });
        }
        inside.wait();
        assert_eq!(cache.remove_if(|_| true), 50);
        cache.sweep(0);
        assert_eq!(living.load(Ordering::Relaxed), 50);
        emptied.wait();
    });
    cache.sweep(0);
    assert_eq!(living.load(Ordering::Relaxed), 0);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (LOOKING as u64, LOOKING as u64));
}

#[test]
fn closing_under_load_leaves_nothing_behind() {
    for seed in 0..20 {
        let living = Arc::new(AtomicI64::new(0));
        let cache: Tracking = Cache::new(settings(1000, Some(50)));
        let together = Barrier::new(3);
        thread::scope(|scope| {
            for thread in 0..2 {
                let (cache, living, together) = (&cache, &living, &together);
                scope.spawn(move || {
                    let mut dice = Dice(seed * 2 + thread);
                    together.wait();
                    while !cache.is_closed() {
                        let key = dice.below(100);
                        let load = |_: &u64| Ok((Tracked::new(key, living), 1));
                        let loaded = cache.get_or_load(&key, || 0, None, load);
                        assert!(loaded.is_err() || loaded.is_ok_and(|value| value.key == key));
                    }
                });
            }
            together.wait();
            (0..1000).for_each(|key| {
                cache.get(&(key % 100), 0);
            });
            cache.close();
        });
        cache.sweep(0);
        assert_eq!((cache.len(), living.load(Ordering::Relaxed)), (0, 0));
    }
}
