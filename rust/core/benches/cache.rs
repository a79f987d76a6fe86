//! Compares the index cache with moka (expiry after access) and quick_cache (no expiry). All three
//! are limited by weight. Reports the time of one operation in each thread. Run with `cargo bench
//! -p tierlog-core --bench cache`
#![allow(missing_docs, clippy::panic)]

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use tierlog_core::cache::{Cache, CacheSettings};

const TTL_MS: u64 = 900_000;
const WEIGHT: u64 = 64;
const SIZES: [u64; 2] = [1_000, 100_000];
/// Number of look-ups before the sequence repeats.
const LOOK_UPS: usize = 1 << 16;

/// Operations that all caches have.
trait Peer: Sync {
    fn new(entries: u64) -> Self;
    fn get(&self, key: u64) -> Option<u64>;
    fn put(&self, key: u64, value: u64);
    /// Returns the number of entries after all deferred work.
    fn settled_len(&self) -> u64;
}

struct Ours(Cache<u64, u64>);

impl Peer for Ours {
    fn new(entries: u64) -> Self {
        let max_bytes = entries * WEIGHT;
        let settings = CacheSettings { max_bytes, ttl_ms: Some(TTL_MS), record_stats: false };
        Self(Cache::new(settings))
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key, black_box(1_000))
    }

    fn put(&self, key: u64, value: u64) {
        if self.0.put(key, value, WEIGHT, black_box(1_000)).is_err() {
            panic!("closed");
        }
    }

    fn settled_len(&self) -> u64 {
        self.0.len() as u64
    }
}

struct Moka(moka::sync::Cache<u64, u64, foldhash::fast::RandomState>);

impl Peer for Moka {
    fn new(entries: u64) -> Self {
        let builder = moka::sync::Cache::builder()
            .max_capacity(entries * WEIGHT)
            .weigher(|_, _| WEIGHT as u32)
            .time_to_idle(Duration::from_millis(TTL_MS));
        Self(builder.build_with_hasher(foldhash::fast::RandomState::default()))
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key)
    }

    fn put(&self, key: u64, value: u64) {
        self.0.insert(key, value);
    }

    fn settled_len(&self) -> u64 {
        self.0.run_pending_tasks();
        self.0.entry_count()
    }
}

#[derive(Clone)]
struct Same;

impl quick_cache::Weighter<u64, u64> for Same {
    fn weight(&self, _: &u64, _: &u64) -> u64 {
        WEIGHT
    }
}

type QuickCache = quick_cache::sync::Cache<u64, u64, Same, foldhash::fast::RandomState>;

struct Quick(QuickCache);

impl Peer for Quick {
    fn new(entries: u64) -> Self {
        Self(QuickCache::with(
            entries as usize,
            entries * WEIGHT,
            Same,
            foldhash::fast::RandomState::default(),
            quick_cache::sync::DefaultLifecycle::default(),
        ))
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key)
    }

    fn put(&self, key: u64, value: u64) {
        self.0.insert(key, value);
    }

    fn settled_len(&self) -> u64 {
        self.0.len() as u64
    }
}

/// Returns uniformly distributed keys below `below`. The same `state` gives the same keys.
fn keys(below: u64, mut state: u64) -> Vec<u64> {
    let step = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    std::iter::repeat_with(step).take(LOOK_UPS).collect()
}

/// Returns a cache of twice the required size, so that nothing is evicted.
fn filled<P: Peer>(entries: u64) -> P {
    let peer = P::new(2 * entries);
    for key in 0..entries {
        peer.put(key, key ^ 0x55);
    }
    assert_eq!(peer.settled_len(), entries);
    for key in 0..2 * entries {
        assert_eq!(peer.get(key), (key < entries).then_some(key ^ 0x55));
    }
    peer
}

/// Returns the time for `iterations` operations in each of two threads.
fn two_threads(iterations: u64, work: impl Fn(usize) + Sync) -> Duration {
    let together = Barrier::new(3);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                together.wait();
                (0..iterations as usize).for_each(&work);
                together.wait();
            });
        }
        together.wait();
        let began = Instant::now();
        together.wait();
        began.elapsed()
    })
}

fn hits<P: Peer>(criterion: &mut Criterion, name: &str) {
    for entries in SIZES {
        let peer: P = filled(entries);
        let keys = keys(entries, 1);
        let look_up = |index: usize| {
            let key = keys[index % LOOK_UPS];
            assert_eq!(black_box(peer.get(key)), Some(key ^ 0x55));
        };
        let mut group = criterion.benchmark_group(format!("hit-{entries}"));
        group.bench_function(BenchmarkId::new(name, "one thread"), |bencher| {
            bencher.iter_custom(|iterations| {
                let began = Instant::now();
                (0..iterations as usize).for_each(look_up);
                began.elapsed()
            });
        });
        group.bench_function(BenchmarkId::new(name, "two threads"), |bencher| {
            bencher.iter_custom(|iterations| two_threads(iterations, look_up));
        });
        group.finish();
    }
}

fn puts<P: Peer>(criterion: &mut Criterion, name: &str) {
    for entries in SIZES {
        let peer = P::new(entries);
        let mut next = 0;
        let mut put = || {
            next += 1;
            peer.put(next, next);
        };
        for _ in 0..2 * entries {
            put();
        }
        let mut group = criterion.benchmark_group(format!("put-evict-{entries}"));
        group
            .bench_function(BenchmarkId::new(name, "one thread"), |bencher| bencher.iter(&mut put));
        group.finish();
        let settled = peer.settled_len();
        assert!(settled <= entries && settled >= entries / 2, "{name}: {settled} of {entries}");
    }
}

fn all(criterion: &mut Criterion) {
    hits::<Ours>(criterion, "tierlog");
    hits::<Quick>(criterion, "quick_cache");
    hits::<Moka>(criterion, "moka");
    puts::<Ours>(criterion, "tierlog");
    puts::<Quick>(criterion, "quick_cache");
    puts::<Moka>(criterion, "moka");
}

criterion_group!(benches, all);
criterion_main!(benches);
