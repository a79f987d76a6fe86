//! Runs a cache in its own process. `benches/` starts this program to compare other caches with the
//! cache of this crate: `rounds WARMUP_SECONDS CACHE OPERATION THREADS ENTRIES PROBES REPEATS`. The
//! program warms up, then runs one round for every line that it reads. It answers with a line of
//! JSON that has the nanoseconds and the result of the round.
//!
//! * `get` and `put`: the cache holds `ENTRIES` of weight 1. Each thread uses `PROBES` keys
//!   `REPEATS` times: hits in a pseudo-random order, or keys evicted since their last use.
//! * `mixed`: two threads get, put, load, remove and sweep, `PROBES` operations in total, with
//!   weights of 1 to 1,000. The result is the largest excess over the limit that a thread saw.
//! * `overshoot`: two threads put `PROBES` new keys in total. The result is the largest number of
//!   live values above `ENTRIES`, counted by their references.
//!
//! All caches use foldhash, like this crate's cache.

use foldhash::fast::RandomState;
use std::convert::Infallible;
use std::error::Error;
use std::hint::black_box;
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tierlog_core::cache::{Cache as Core, CacheSettings};

const TTL: Duration = Duration::from_secs(900);
const HEAVIEST_BYTES: u64 = 1_000;

type Key = Box<[u8]>;
type Value = Arc<u64>;

trait Cache: Sync {
    fn get(&self, key: &[u8]) -> Option<Value>;
    fn put(&self, key: Key, value: Value);
    fn entries(&self) -> u64;
}

/// The clock of this cache stands still, because callers of the core pass the time.
type Ours = Core<Key, Value, Infallible>;
type Moka = moka::sync::Cache<Key, Value, RandomState>;
type Quick = quick_cache::sync::Cache<Key, Value, quick_cache::UnitWeighter, RandomState>;

fn ours_of(entries: u64) -> Ours {
    Core::new(CacheSettings {
        max_bytes: entries,
        ttl_ms: u64::try_from(TTL.as_millis()).ok(),
        record_stats: false,
    })
}

fn moka_of(entries: u64) -> Moka {
    moka::sync::Cache::builder()
        .max_capacity(entries)
        .weigher(|_: &Key, _: &Value| 1)
        .time_to_idle(TTL)
        .build_with_hasher(RandomState::default())
}

fn quick_of(entries: u64) -> Quick {
    quick_cache::sync::Cache::with(
        entries as usize,
        entries,
        quick_cache::UnitWeighter,
        RandomState::default(),
        quick_cache::sync::DefaultLifecycle::default(),
    )
}

impl Cache for Ours {
    fn get(&self, key: &[u8]) -> Option<Value> {
        self.get(key, 0)
    }

    fn put(&self, key: Key, value: Value) {
        // Only a closed cache refuses a value, and then a get finds no value.
        let _kept = self.put(key, value, 1, 0);
    }

    fn entries(&self) -> u64 {
        self.len() as u64
    }
}

impl Cache for Moka {
    fn get(&self, key: &[u8]) -> Option<Value> {
        self.get(key)
    }

    fn put(&self, key: Key, value: Value) {
        self.insert(key, value);
    }

    fn entries(&self) -> u64 {
        self.run_pending_tasks();
        self.entry_count()
    }
}

impl Cache for Quick {
    fn get(&self, key: &[u8]) -> Option<Value> {
        self.get(key)
    }

    fn put(&self, key: Key, value: Value) {
        self.insert(key, value);
    }

    fn entries(&self) -> u64 {
        self.len() as u64
    }
}

fn key_of(number: u64) -> Key {
    format!("segment-{number:014}").into_bytes().into_boxed_slice()
}

/// Returns the pseudo-random numbers that every side uses: xorshift of 64 bits.
struct Numbers(u64);

impl Numbers {
    const FIRST: Self = Self(88_172_645_463_325_252);

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

fn hits(cache: &impl Cache, probes: &[Key], repeats: u64) -> u64 {
    let (mut hits, mut sum) = (0, 0);
    for _ in 0..repeats {
        for probe in probes {
            if let Some(value) = cache.get(black_box(probe)) {
                hits += 1;
                sum += *value;
            }
        }
    }
    black_box(sum);
    hits
}

fn hits_of_threads(cache: &impl Cache, probes: &[Key], plan: &Plan) -> u64 {
    thread::scope(|scope| {
        let others: Vec<_> =
            (1..plan.threads).map(|_| scope.spawn(|| hits(cache, probes, plan.repeats))).collect();
        let first = hits(cache, probes, plan.repeats);
        // A thread that panicked reports no result.
        first + others.into_iter().map(|other| other.join().unwrap_or(0)).sum::<u64>()
    })
}

/// Results of gets and puts by name.
fn race(cache: &impl Cache, plan: &Plan) -> impl FnMut() -> (&'static str, u64) {
    for number in 0..plan.entries {
        cache.put(key_of(number), Arc::new(number));
    }
    let put = plan.operation == "put";
    let mut numbers = Numbers::FIRST;
    let probes: Vec<Key> = (0..plan.probes)
        .map(|number| key_of(if put { plan.entries + number } else { numbers.below(plan.entries) }))
        .collect();
    let value = Arc::new(0);
    move || {
        if !put {
            return ("hits", hits_of_threads(cache, &probes, plan));
        }
        for _ in 0..plan.repeats {
            for probe in &probes {
                cache.put(probe.clone(), Arc::clone(&value));
            }
        }
        ("entries", cache.entries())
    }
}

/// Returns the largest excess over `max_bytes` that one thread saw after its operations.
fn mixed(cache: &Ours, max_bytes: u64, seed: u64, plan: &Plan) -> u64 {
    let mut numbers = Numbers(seed);
    let mut above = 0;
    for time_ms in 0..(plan.probes / 2) as i64 {
        let key = key_of(numbers.below(2 * plan.entries));
        let weight = 1 + numbers.below(HEAVIEST_BYTES);
        let value = Arc::new(weight);
        // The result does not matter here; the cache is open.
        match numbers.below(100) {
            0..50 => drop(cache.get(&*key, time_ms)),
            50..85 => drop(cache.put(key, value, weight, time_ms)),
            85..95 => {
                drop(cache.get_or_load(&key, || time_ms, None, |_| Ok((value, weight))));
            }
            95..99 => drop(cache.remove(&*key)),
            _ => drop(cache.sweep(time_ms)),
        }
        above = above.max(cache.weight_bytes().saturating_sub(max_bytes));
    }
    above
}

fn mixed_of_two(plan: &Plan) -> (&'static str, u64) {
    let max_bytes = plan.entries * HEAVIEST_BYTES / 2;
    let cache = ours_of(max_bytes);
    let above = thread::scope(|scope| {
        let other = scope.spawn(|| mixed(&cache, max_bytes, 1, plan));
        let mine = mixed(&cache, max_bytes, 2, plan);
        other.join().unwrap_or(u64::MAX).max(mine)
    });
    ("bytes_above", above)
}

fn overshoot(cache: &impl Cache, plan: &Plan) -> (&'static str, u64) {
    let value = Arc::new(0);
    let most = |thread: u64| {
        let keys = (0..plan.probes / 2).map(|number| key_of(2 * number + thread));
        let alive = keys.map(|key| {
            cache.put(key, Arc::clone(&value));
            Arc::strong_count(&value) as u64 - 1
        });
        alive.max().unwrap_or(0).saturating_sub(plan.entries)
    };
    let above = thread::scope(|scope| {
        let other = scope.spawn(|| most(1));
        most(0).max(other.join().unwrap_or(u64::MAX))
    });
    ("entries_above", above)
}

/// Runs one round for every line.
fn serve(warmup: Duration, mut round: impl FnMut() -> (&'static str, u64)) -> io::Result<()> {
    let started = Instant::now();
    while started.elapsed() < warmup {
        black_box(round());
    }
    for line in io::stdin().lock().lines() {
        line?;
        let started = Instant::now();
        let (name, seen) = round();
        let nanos = started.elapsed().as_nanos();
        println!(
            "{{\"nanos\": {nanos}, \"cpu_nanos\": {nanos}, \"seen\": {{\"{name}\": {seen}}}}}"
        );
        io::stdout().flush()?;
    }
    Ok(())
}

fn play(cache: &impl Cache, warmup: Duration, plan: &Plan) -> io::Result<()> {
    match plan.operation.as_str() {
        "get" | "put" => serve(warmup, race(cache, plan)),
        "overshoot" => serve(Duration::ZERO, || overshoot(cache, plan)),
        other => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no operation {other}"))),
    }
}

struct Plan {
    operation: String,
    threads: u64,
    entries: u64,
    probes: u64,
    repeats: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [warmup, cache, operation, threads, entries, probes, repeats] = words.as_slice() else {
        // `cargo bench` runs every bench of the workspace; this one is only for `benches/`.
        return Ok(());
    };
    let warmup = Duration::from_secs_f64(warmup.parse()?);
    let plan = Plan {
        operation: operation.clone(),
        threads: threads.parse()?,
        entries: entries.parse()?,
        probes: probes.parse()?,
        repeats: repeats.parse()?,
    };
    // Some caches keep fewer entries than their limit.
    let room = if operation == "get" { 2 * plan.entries } else { plan.entries };
    match cache.as_str() {
        "tierlog" if operation == "mixed" => serve(Duration::ZERO, || mixed_of_two(&plan))?,
        "tierlog" => play(&ours_of(room), warmup, &plan)?,
        "moka" => play(&moka_of(room), warmup, &plan)?,
        "quick_cache" => play(&quick_of(room), warmup, &plan)?,
        other => return Err(format!("no cache {other}").into()),
    }
    Ok(())
}
