//! loom models that try every interleaving of two or three threads:
//! `RUSTFLAGS="--cfg tierlog_loom" cargo test --release -p tierlog-core --target-dir target/loom --lib loom`
//!
//! In a model a freed entry is only marked as freed, and every access to an entry checks the mark.
//! loom reports an access that is concurrent with the marking. A key is its own hash, and keys that
//! are equal modulo 4 share a chain.

use std::hash::{BuildHasher, Hasher};

use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use crate::sync::set_thread_number;

use super::*;

#[derive(Clone, Default)]
struct Same(u64);

impl BuildHasher for Same {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

type Modelled = Cache<u64, u64, &'static str, Same>;

/// Runs a model in every interleaving.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    explore_within(None, model);
}

/// Runs a model with a limit on unforced switches between threads, because all interleavings would
/// be too many.
fn explore_within(switches: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = switches;
    builder.check(move || {
        set_thread_number(0);
        model();
    });
}

/// Returns a cache with these entries, each of weight 1 and with ten times its key as value.
fn cache(max_bytes: u64, keys: &[u64]) -> Arc<Modelled> {
    let settings = CacheSettings { max_bytes, ttl_ms: Some(1000), record_stats: false };
    let cache = Cache::with_hasher(settings, None, Same(0));
    for key in keys {
        assert_eq!(cache.put(*key, key * 10, 1, 0), Ok(true));
    }
    Arc::new(cache)
}

/// Runs `work` in a thread with this number.
fn spawn<R: 'static>(
    cache: &Arc<Modelled>,
    number: usize,
    work: impl FnOnce(&Modelled) -> R + 'static,
) -> thread::JoinHandle<R> {
    let cache = Arc::clone(cache);
    thread::spawn(move || {
        set_thread_number(number);
        work(&cache)
    })
}

/// Asserts that all removed entries can be freed when all readers have left.
fn assert_nothing_held_back(cache: &Modelled) {
    cache.sweep(0);
    assert_eq!(cache.lock().owner.retired(), 0);
}

fn evict_against_get(reader: usize) {
    let cache = cache(1, &[1]);
    let got = spawn(&cache, reader, |cache| cache.get(&1, 0));
    assert_eq!(cache.put(2, 20, 1, 0), Ok(true));
    assert!(matches!(got.join(), Ok(None | Some(10))));
    assert_nothing_held_back(&cache);
}

#[test]
fn loom_evict_against_get() {
    explore(|| evict_against_get(1));
}

#[test]
fn loom_evict_against_a_guests_get() {
    explore(|| evict_against_get(7));
}

#[test]
fn loom_evict_against_a_get_without_a_lane() {
    explore_within(Some(3), || {
        let cache = cache(2, &[1, 2]);
        // There is one guest lane, so the second reader gets none.
        let other = spawn(&cache, 9, |cache| cache.get(&2, 0));
        let got = spawn(&cache, 7, |cache| cache.get(&1, 0));
        assert!(cache.remove(&1));
        assert!(matches!(got.join(), Ok(None | Some(10))));
        assert!(matches!(other.join(), Ok(Some(20))));
        assert_nothing_held_back(&cache);
    });
}

#[test]
fn loom_reader_on_a_removed_entry_reaches_the_next_one() {
    explore(|| {
        let cache = cache(2, &[1, 5]);
        let got = spawn(&cache, 1, |cache| cache.get(&1, 0));
        assert!(cache.remove(&5));
        assert!(matches!(got.join(), Ok(Some(10))));
        assert_nothing_held_back(&cache);
    });
}

#[test]
fn loom_chain_is_removed_under_a_reader() {
    explore(|| {
        // Keys 1 and 5 share a chain, and 5 is before 1.
        let cache = cache(2, &[1, 5]);
        let got = spawn(&cache, 1, |cache| cache.get(&1, 0));
        assert!(cache.remove(&5));
        assert!(cache.remove(&1));
        assert!(matches!(got.join(), Ok(None | Some(10))));
        assert_nothing_held_back(&cache);
    });
}

#[test]
fn loom_two_writers_free_under_a_reader() {
    explore(|| {
        let cache = cache(2, &[1, 2]);
        let other = spawn(&cache, 1, |cache| {
            assert!(matches!(cache.get(&2, 0), None | Some(20)));
            assert!(cache.remove(&1));
        });
        let got = cache.get(&1, 0);
        assert!(matches!(got, None | Some(10)));
        assert!(cache.remove(&2));
        other.join().expect("the other writer");
        assert_nothing_held_back(&cache);
    });
}

#[test]
fn loom_two_readers_against_a_removal() {
    explore_within(Some(3), || {
        let cache = cache(2, &[1, 5]);
        let first = spawn(&cache, 1, |cache| cache.get(&1, 0));
        let second = spawn(&cache, 7, |cache| cache.get(&5, 0));
        assert!(cache.remove(&1));
        assert!(matches!(first.join(), Ok(None | Some(10))));
        assert!(matches!(second.join(), Ok(Some(50))));
        assert_nothing_held_back(&cache);
    });
}

#[test]
fn loom_returning_reader_is_seen_again() {
    explore(|| {
        let cache = cache(1, &[1]);
        let got = spawn(&cache, 1, |cache| (cache.get(&1, 0), cache.get(&2, 0)));
        assert_eq!(cache.put(2, 20, 1, 0), Ok(true));
        assert!(cache.remove(&2));
        assert!(matches!(got.join(), Ok((None | Some(10), None | Some(20)))));
        assert_nothing_held_back(&cache);
    });
}

#[test]
fn loom_growth_hides_no_entry() {
    explore(|| {
        let cache = cache(9, &[1, 5]);
        let got = spawn(&cache, 1, |cache| cache.get(&1, 0));
        // Two of four buckets may be used, so the third entry makes the table grow.
        assert_eq!(cache.put(2, 20, 1, 0), Ok(true));
        assert!(matches!(got.join(), Ok(Some(10))));
    });
}

#[test]
fn loom_tables_grow_twice_under_a_reader() {
    explore(|| {
        let cache = cache(9, &[1, 5]);
        let got = spawn(&cache, 1, |cache| cache.get(&1, 0));
        for key in [2, 3, 4] {
            assert_eq!(cache.put(key, key * 10, 1, 0), Ok(true));
        }
        assert!(matches!(got.join(), Ok(Some(10))));
    });
}

#[test]
fn loom_replaced_key_is_never_missing() {
    explore(|| {
        let cache = cache(1, &[1]);
        let got = spawn(&cache, 1, |cache| cache.get(&1, 0));
        assert_eq!(cache.put(1, 11, 1, 0), Ok(true));
        assert!(matches!(got.join(), Ok(Some(10 | 11))));
        assert_nothing_held_back(&cache);
    });
}

#[test]
fn loom_resize_against_insert() {
    explore(|| {
        let cache = cache(2, &[1]);
        let put = spawn(&cache, 1, |cache| cache.put(2, 20, 1, 0));
        cache.resize(1);
        assert!(cache.weight_bytes() <= 1);
        assert!(matches!(put.join(), Ok(Ok(true))));
        assert_eq!((cache.len(), cache.weight_bytes()), (1, 1));
        assert_nothing_held_back(&cache);
    });
}

#[test]
fn loom_load_against_remove() {
    explore(|| {
        let cache = cache(2, &[]);
        let source = Arc::new(AtomicU64::new(1));
        let loaded = {
            let source = Arc::clone(&source);
            spawn(&cache, 1, move |cache| {
                let read = |_: &u64| Ok((source.load(Ordering::Acquire), 1));
                cache.get_or_load(&1, || 0, None, read)
            })
        };
        source.store(2, Ordering::Release);
        cache.remove(&1);
        assert!(matches!(loaded.join(), Ok(Ok(1 | 2))));
        // The cache does not keep a value that was read before the removal.
        assert_ne!(cache.get(&1, 0), Some(1));
    });
}

#[test]
fn loom_load_against_load() {
    explore(|| {
        let cache = cache(2, &[]);
        let loads = Arc::new(AtomicU64::new(0));
        let load = |loads: Arc<AtomicU64>| {
            move |cache: &Modelled| {
                cache.get_or_load(
                    &1,
                    || 0,
                    None,
                    |_| Ok((loads.fetch_add(1, Ordering::Relaxed), 1)),
                )
            }
        };
        let other = spawn(&cache, 1, load(Arc::clone(&loads)));
        assert_eq!(load(Arc::clone(&loads))(&cache), Ok(0));
        assert!(matches!(other.join(), Ok(Ok(0))));
        assert_eq!(loads.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn loom_after_a_failed_load_the_next_one_loads() {
    explore(|| {
        let cache = cache(2, &[]);
        let other =
            spawn(&cache, 1, |cache| cache.get_or_load(&1, || 0, None, |_| Err("on purpose")));
        let own = cache.get_or_load(&1, || 0, None, |_| Ok((5, 1)));
        // This thread waited for the other load, or it loaded before or after the other thread did.
        let failed = Err(LoadError::Failed("on purpose"));
        assert!(own == Ok(5) || own == failed);
        assert_eq!(cache.get(&1, 0), own.clone().ok());
        let other = other.join().expect("a loader");
        assert!(other == failed || (other == Ok(5) && own == Ok(5)));
    });
}

#[test]
fn loom_after_a_cancelled_load_the_waiter_loads() {
    explore(|| {
        let cache = cache(2, &[]);
        let other = spawn(&cache, 1, |cache| drop(cache.begin_load(&1, 0)));
        assert_eq!(cache.get_or_load(&1, || 0, None, |_| Ok((5, 1))), Ok(5));
        other.join().expect("a loader");
        assert_eq!(cache.get(&1, 0), Some(5));
    });
}

#[test]
fn loom_load_against_close() {
    explore(|| {
        let cache = cache(2, &[]);
        let loaded = spawn(&cache, 1, |cache| cache.get_or_load(&1, || 0, None, |_| Ok((5, 1))));
        cache.close();
        assert!(matches!(loaded.join(), Ok(Ok(5) | Err(LoadError::Closed))));
        assert_eq!((cache.len(), cache.get(&1, 0)), (0, None));
        assert_nothing_held_back(&cache);
    });
}
