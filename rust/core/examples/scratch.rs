use std::hint::black_box;
use std::time::Instant;
use tierlog_core::cache::{Cache, CacheSettings};
fn best(n: usize, mut f: impl FnMut()) -> f64 {
    let mut b = f64::MAX;
    for _ in 0..300 {
        let t = Instant::now();
        f();
        let d = t.elapsed().as_nanos() as f64 / n as f64;
        if d < b {
            b = d
        }
    }
    b
}
fn main() {
    for entries in [1_000u64, 100_000] {
        let cache: Cache<u64, u64> = Cache::new(CacheSettings {
            max_bytes: 2 * entries * 64,
            ttl_ms: Some(900_000),
            record_stats: false,
        });
        let quick: quick_cache::sync::Cache<
            u64,
            u64,
            quick_cache::UnitWeighter,
            foldhash::fast::RandomState,
        > = quick_cache::sync::Cache::with(
            entries as usize * 2,
            entries * 2,
            quick_cache::UnitWeighter,
            Default::default(),
            Default::default(),
        );
        for k in 0..entries {
            cache.put(k, k, 64, 0).unwrap();
            quick.insert(k, k);
        }
        let mut s = 1u64;
        let keys: Vec<u64> = (0..65536)
            .map(|_| {
                s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (s >> 33) % entries
            })
            .collect();
        let chunk = 8192;
        let mut at = 0;
        println!(
            "{entries} hit ours  {:.1}",
            best(chunk, || {
                for i in 0..chunk {
                    black_box(cache.get(&keys[(at + i) & 65535], black_box(1000)));
                }
                at += chunk;
            })
        );
        println!(
            "{entries} hit quick {:.1}",
            best(chunk, || {
                for i in 0..chunk {
                    black_box(quick.get(&keys[(at + i) & 65535]));
                }
                at += chunk;
            })
        );
        println!(
            "{entries} miss ours  {:.1}",
            best(chunk, || {
                for i in 0..chunk {
                    black_box(cache.get(&(keys[(at + i) & 65535] + 1_000_000), black_box(1000)));
                }
                at += chunk;
            })
        );
        let cache: Cache<u64, u64> = Cache::new(CacheSettings {
            max_bytes: entries * 64,
            ttl_ms: Some(900_000),
            record_stats: false,
        });
        let quick: quick_cache::sync::Cache<
            u64,
            u64,
            quick_cache::UnitWeighter,
            foldhash::fast::RandomState,
        > = quick_cache::sync::Cache::with(
            entries as usize,
            entries,
            quick_cache::UnitWeighter,
            Default::default(),
            Default::default(),
        );
        let mut next = 0;
        for _ in 0..2 * entries {
            next += 1;
            cache.put(next, next, 64, 0).unwrap();
            quick.insert(next, next);
        }
        println!(
            "{entries} put ours  {:.1}",
            best(chunk, || {
                for _ in 0..chunk {
                    next += 1;
                    cache.put(next, next, 64, black_box(1000)).unwrap();
                }
            })
        );
        println!(
            "{entries} put quick {:.1}",
            best(chunk, || {
                for _ in 0..chunk {
                    next += 1;
                    quick.insert(next, next);
                }
            })
        );
    }
}
