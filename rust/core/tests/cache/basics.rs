//! Each test checks one property on one thread.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tierlog_core::cache::{Cache, CacheStats, Closed, RemovalCause};

use super::{drain, settings, told};

const TEN_YEARS_MS: i64 = 10 * 366 * 86_400_000;

#[test]
fn a_value_is_found_until_it_is_removed() {
    let (cache, told) = told(100, None);
    assert_eq!(cache.get(&1, 0), None);
    assert_eq!(cache.put(1, 10, 5, 0), Ok(true));
    assert_eq!(cache.get(&1, 0), Some(10));
    assert_eq!(cache.get_with(&1, 0, |value| value * 2), Some(20));
    assert_eq!((cache.len(), cache.weight_bytes()), (1, 5));
    assert!(cache.contains(&1, 0));
    assert!(cache.remove(&1));
    assert!(!cache.remove(&1));
    assert!(!cache.contains(&1, 0));
    assert_eq!((cache.len(), cache.weight_bytes()), (0, 0));
    assert_eq!(drain(&told), [(1, 10, 5, RemovalCause::Explicit)]);
}

#[test]
fn least_recently_used_entries_go_first_on_a_stopped_clock() {
    let (cache, told) = told(3, Some(1000));
    for key in 1..=3 {
        cache.put(key, key, 1, 0).expect("open");
    }
    cache.get(&1, 0);
    cache.get(&2, 0);
    cache.get(&1, 0);
    cache.put(4, 4, 1, 0).expect("open");
    cache.put(5, 5, 1, 0).expect("open");
    let gone: Vec<_> = drain(&told).into_iter().map(|(key, ..)| key).collect();
    assert_eq!(gone, [3, 2]);
    assert_eq!(cache.get(&1, 0), Some(1));
}

#[test]
fn entries_are_evicted_before_one_is_put() {
    let cache = Arc::new(std::sync::OnceLock::<Cache<u64, u64>>::new());
    let most = Arc::new(AtomicU64::new(0));
    let listener = {
        let (cache, most) = (Arc::downgrade(&cache), Arc::clone(&most));
        Box::new(move |_: &u64, _: &u64, _, _| {
            let cache = cache.upgrade();
            let weight =
                cache.as_ref().and_then(|cache| cache.get()).map_or(0, Cache::weight_bytes);
            most.fetch_max(weight, Ordering::Relaxed);
        })
    };
    let cache = cache.get_or_init(|| Cache::with_listener(settings(10, None), listener));
    for key in 0..100 {
        cache.put(key % 7, key, 1 + key % 10, 0).expect("open");
        assert!(cache.weight_bytes() <= 10);
    }
    assert_eq!(most.load(Ordering::Relaxed), 10);
}

#[test]
fn unused_entries_expire_and_a_use_restarts_the_time() {
    let (cache, told) = told(100, Some(1000));
    cache.put(1, 1, 1, 0).expect("open");
    cache.put(2, 2, 1, 0).expect("open");
    assert_eq!(cache.get(&1, 999), Some(1));
    assert_eq!(cache.get(&2, 1000), None);
    assert!(!cache.contains(&2, 1000));
    assert_eq!(cache.len(), 2);
    assert_eq!(cache.sweep(1000), 1);
    assert_eq!(drain(&told), [(2, 2, 1, RemovalCause::Expired)]);
    assert_eq!(cache.get(&1, 1998), Some(1));
    assert_eq!(cache.sweep(2997), 0);
    assert_eq!(cache.sweep(2998), 1);
    assert!(cache.is_empty());
}

#[test]
fn puts_remove_expired_entries() {
    let (cache, told) = told(u64::MAX, Some(10));
    for key in 0..1000 {
        cache.put(key, key, 1, key as i64).expect("open");
    }
    assert!(cache.len() <= 12);
    assert!(drain(&told).iter().all(|(.., cause)| *cause == RemovalCause::Expired));
}

#[test]
fn put_replaces_the_value() {
    let (cache, told) = told(10, Some(1000));
    cache.put(1, 1, 6, 0).expect("open");
    cache.put(2, 2, 4, 0).expect("open");
    cache.put(1, 11, 6, 0).expect("open");
    assert_eq!(drain(&told), [(1, 1, 6, RemovalCause::Replaced)]);
    cache.put(1, 12, 7, 0).expect("open");
    let both = [(2, 2, 4, RemovalCause::Size), (1, 11, 6, RemovalCause::Replaced)];
    assert_eq!(drain(&told), both);
    cache.put(1, 13, 1, 1000).expect("open");
    assert_eq!(drain(&told), [(1, 12, 7, RemovalCause::Expired)]);
    assert_eq!(cache.weight_bytes(), 1);
}

#[test]
fn entry_heavier_than_the_cache_is_not_kept() {
    let (cache, told) = told(10, None);
    cache.put(1, 1, 1, 0).expect("open");
    assert_eq!(cache.put(1, 2, 11, 0), Ok(false));
    assert_eq!(cache.get(&1, 0), None);
    let both = [(1, 1, 1, RemovalCause::Replaced), (1, 2, 11, RemovalCause::Size)];
    assert_eq!(drain(&told), both);
    assert_eq!(cache.put(2, 2, u64::MAX, 0), Ok(false));
    assert_eq!(cache.put(3, 3, 10, 0), Ok(true));
    assert_eq!(cache.put(4, 4, 0, 0), Ok(true));
    assert_eq!(cache.len(), 2);
}

#[test]
fn weights_above_four_gib_count_in_full() {
    let four_gib = 1 << 32;
    let cache: Cache<u64, u64> = Cache::new(settings(u64::MAX, None));
    for key in 0..5 {
        cache.put(key, key, u64::MAX / 5, 0).expect("open");
    }
    assert_eq!(cache.weight_bytes(), u64::MAX);
    cache.put(5, 5, four_gib + 1, 0).expect("open");
    assert_eq!(cache.len(), 5);
    assert_eq!(cache.weight_bytes(), u64::MAX / 5 * 4 + four_gib + 1);
    cache.resize(4 * four_gib);
    assert_eq!((cache.len(), cache.weight_bytes()), (1, four_gib + 1));
}

#[test]
fn smaller_bound_holds_at_once() {
    let (cache, told) = told(10_000, Some(1000));
    for key in 0..10_000 {
        cache.put(key, key, 1, 0).expect("open");
    }
    cache.get(&0, 1);
    cache.resize(1);
    assert_eq!((cache.len(), cache.get(&0, 1)), (1, Some(0)));
    assert_eq!(drain(&told).len(), 9999);
    cache.resize(0);
    assert_eq!(cache.len(), 0);
    assert_eq!(cache.put(1, 1, 1, 1), Ok(false));
    cache.resize(5);
    assert_eq!(cache.put(1, 1, 1, 1), Ok(true));
    assert_eq!(cache.max_bytes(), 5);
}

#[test]
fn changed_time_to_live_holds_for_existing_entries() {
    let (cache, _) = told(100, None);
    cache.put(1, 1, 1, 0).expect("open");
    assert_eq!(cache.sweep(TEN_YEARS_MS), 0);
    assert_eq!(cache.get(&1, TEN_YEARS_MS), Some(1));
    cache.set_ttl(Some(10));
    assert_eq!(cache.get(&1, TEN_YEARS_MS + 9), Some(1));
    assert_eq!(cache.get(&1, TEN_YEARS_MS + 19), None);
    cache.set_ttl(Some(u64::MAX));
    assert_eq!(cache.get(&1, TEN_YEARS_MS + 19), Some(1));
    cache.set_ttl(Some(0));
    assert_eq!(cache.get(&1, TEN_YEARS_MS + 19), None);
}

#[test]
fn keys_that_match_the_predicate_are_removed() {
    let (cache, told) = told(10_000, None);
    for key in 0..1000 {
        cache.put(key, key, 1, 0).expect("open");
    }
    // The predicate may use the cache.
    let odd = |key: &u64| cache.get(key, 0).is_some() && key % 2 == 1;
    assert_eq!(cache.remove_if(odd), 500);
    assert_eq!((cache.len(), cache.get(&1, 0), cache.get(&2, 0)), (500, None, Some(2)));
    assert!(drain(&told).iter().all(|(.., cause)| *cause == RemovalCause::Explicit));
}

#[test]
fn nothing_is_kept_after_closing() {
    let (cache, told) = told(10_000, None);
    for key in 0..1000 {
        cache.put(key, key, 1, 0).expect("open");
    }
    cache.close();
    assert!(cache.is_closed() && cache.is_empty());
    assert_eq!(cache.put(1, 1, 1, 0), Err(Closed));
    assert_eq!(cache.get(&1, 0), None);
    assert_eq!((cache.remove(&1), cache.sweep(0), cache.remove_if(|_| true)), (false, 0, 0));
    let closed = drain(&told);
    assert_eq!(closed.len(), 1000);
    assert!(closed.iter().all(|(.., cause)| *cause == RemovalCause::Closed));
    cache.close();
}

#[test]
fn clock_that_jumps_ten_years_does_no_harm() {
    for (first, second) in [(0, TEN_YEARS_MS), (TEN_YEARS_MS, 0), (i64::MIN, i64::MAX), (9, -9)] {
        let cache: Cache<u64, u64> = Cache::new(settings(100, Some(900_000)));
        cache.put(1, 1, 1, first).expect("open");
        assert_eq!(cache.get(&1, first), Some(1));
        for back_and_forth in 0..20 {
            let now = if back_and_forth % 2 == 0 { second } else { first };
            cache.put(2, 2, 1, now).expect("open");
            assert_eq!(cache.get(&2, now), Some(2));
        }
        // The cache's time then continues from the latest time, even if the clock went back.
        let last = first.clamp(-TEN_YEARS_MS, TEN_YEARS_MS);
        cache.put(3, 3, 1, last).expect("open");
        assert_eq!(cache.get(&3, last + 899_999), Some(3));
        assert_eq!(cache.get(&3, last + 899_999 + 900_000), None);
        assert!(cache.sweep(last + 3_600_000) > 0);
        assert!(cache.is_empty(), "{first} {second}");
    }
}

#[test]
fn clock_slightly_behind_counts_as_the_latest_time() {
    let cache: Cache<u64, u64> = Cache::new(settings(100, Some(10_000)));
    cache.put(1, 1, 1, 50_000).expect("open");
    assert_eq!(cache.get(&1, 45_000), Some(1));
    cache.put(2, 2, 1, 45_000).expect("open");
    assert_eq!(cache.sweep(59_999), 0);
    assert_eq!(cache.sweep(60_000), 2);
}

#[test]
fn counters_are_kept_if_requested() {
    let (cache, _) = told(2, Some(100));
    for key in 0..3 {
        cache.put(key, key, 1, 0).expect("open");
    }
    cache.get(&0, 0);
    cache.get(&1, 0);
    cache.put(1, 1, 1, 0).expect("open");
    cache.remove(&1);
    cache.sweep(100);
    cache.put(9, 9, 9, 100).expect("open");
    cache.put(1, 1, 1, 100).expect("open");
    let expected = CacheStats {
        hits: 1,
        misses: 1,
        removed_size: 2,
        removed_expired: 1,
        removed_explicit: 1,
        removed_replaced: 1,
        entries: 1,
        weight_bytes: 1,
        ..CacheStats::default()
    };
    assert_eq!(cache.stats(), expected);
}

/// Hashes every key to the same value.
#[derive(Clone, Default)]
struct OnePlace;

impl BuildHasher for OnePlace {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self
    }
}

impl Hasher for OnePlace {
    fn finish(&self) -> u64 {
        42
    }

    fn write(&mut self, _: &[u8]) {}
}

#[test]
fn colliding_keys_are_distinguished() {
    let cache: Cache<u64, u64, String, _> = Cache::with_hasher(settings(500, None), None, OnePlace);
    for key in 0..1000 {
        cache.put(key, key * 3, 1, 0).expect("open");
    }
    for key in 0..1000 {
        assert_eq!(cache.get(&key, 0), (key >= 500).then_some(key * 3));
    }
    for key in (500..1000).step_by(2) {
        assert!(cache.remove(&key));
    }
    for key in 0..1000 {
        assert_eq!(cache.get(&key, 0), (key >= 500 && key % 2 == 1).then_some(key * 3));
    }
}

#[test]
fn a_million_keys_come_and_go() {
    let cache: Cache<u64, u64> = Cache::new(settings(1 << 40, Some(1000)));
    for key in 0..1_000_000 {
        cache.put(key, !key, 1000, 0).expect("open");
    }
    assert_eq!(cache.len(), 1_000_000);
    for key in 0..1_000_000 {
        assert_eq!(cache.get(&key, 1), Some(!key));
    }
    cache.resize(500_000 * 1000);
    assert_eq!(cache.len(), 500_000);
    assert_eq!((cache.get(&499_999, 1), cache.get(&500_000, 1)), (None, Some(!500_000)));
    assert_eq!(cache.sweep(1001), 500_000);
}

#[test]
fn keys_are_found_by_their_borrowed_form() {
    let cache: Cache<Vec<u8>, u64> = Cache::new(settings(100, None));
    cache.put(b"abc".to_vec(), 1, 1, 0).expect("open");
    assert_eq!(cache.get(b"abc".as_slice(), 0), Some(1));
    assert!(cache.remove(b"abc".as_slice()));
}

#[test]
fn value_lives_while_a_reader_uses_it() {
    let dropped = Arc::new(());
    let cache: Cache<u64, Arc<()>> = Cache::new(settings(1, None));
    cache.put(1, Arc::clone(&dropped), 1, 0).expect("open");
    let seen = cache.get_with(&1, 0, |value| {
        assert!(cache.remove(&1));
        cache.put(2, Arc::new(()), 1, 0).expect("open");
        cache.put(3, Arc::new(()), 1, 0).expect("open");
        assert_eq!(cache.get_with(&1, 0, |_| ()), None);
        cache.get_with(&3, 0, |_| ());
        Arc::strong_count(value)
    });
    assert_eq!(seen, Some(2));
    cache.sweep(0);
    assert_eq!(Arc::strong_count(&dropped), 1);
}

#[test]
fn panicking_listener_leaves_the_cache_intact() {
    let listener = Box::new(|key: &u64, _: &Arc<()>, _, _| assert_ne!(*key, 1));
    let cache: Cache<u64, Arc<()>> = Cache::with_listener(settings(10, None), listener);
    let value = Arc::new(());
    cache.put(1, Arc::clone(&value), 1, 0).expect("open");
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cache.remove(&1)));
    assert!(unwound.is_err());
    assert_eq!(Arc::strong_count(&value), 1);
    assert_eq!((cache.len(), cache.get(&1, 0)), (0, None));
    cache.put(2, value, 1, 0).expect("open");
    assert!(cache.remove(&2));
}
