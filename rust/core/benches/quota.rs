//! Measures quota sensors with a simulated clock: record and check on one and on two threads, and a
//! reservation. The sensors have 61 samples of one second, like the copy quota. The clock advances
//! one millisecond every 100,000 calls, so windows move. Totals are checked after the timing.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tierlog_core::quota::{QuotaSensor, QuotaSettings, RateMode, Reserve};

const AMOUNT: u64 = 1000;
const CALLS_PER_MS: u64 = 100_000;

fn sensor(rate: RateMode, limit_bytes_per_second: Option<u64>) -> Option<QuotaSensor> {
    let settings = QuotaSettings { num_samples: 61, window_ms: 1000, rate, limit_bytes_per_second };
    QuotaSensor::new(settings).ok()
}

fn record_and_check(sensor: &QuotaSensor, calls: u64) -> u64 {
    let mut waited = 0;
    for call in 0..calls {
        let now_ms = (call / CALLS_PER_MS) as i64;
        waited |= sensor.record_and_throttle_ms(black_box(AMOUNT), now_ms).unwrap_or(u64::MAX);
    }
    waited
}

/// Returns the time that `threads` threads take for `calls` calls each.
fn together(sensor: &QuotaSensor, threads: usize, calls: u64) -> Duration {
    let (ready, done) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                ready.wait();
                black_box(record_and_check(sensor, calls));
                done.wait();
            });
        }
        ready.wait();
        let start = Instant::now();
        done.wait();
        start.elapsed()
    })
}

fn rates(criterion: &mut Criterion) {
    // Limits that are far away or exceeded on every machine.
    let limits = [("unlimited", None), ("far_below", Some(1 << 55)), ("over", Some(1))];
    for (mode, rate) in [("window", RateMode::Window), ("elapsed", RateMode::Elapsed)] {
        let mut group = criterion.benchmark_group(format!("quota_{mode}"));
        group.throughput(Throughput::Elements(1));
        for (name, limit) in limits {
            let Some(alone) = sensor(rate, limit) else { continue };
            let mut total = 0;
            group.bench_function(format!("record_and_check/{name}"), |b| {
                b.iter_custom(|calls| {
                    total += calls * AMOUNT;
                    let start = Instant::now();
                    let waited = black_box(record_and_check(&alone, calls));
                    let taken = start.elapsed();
                    assert_eq!(waited > 0, name == "over");
                    taken
                });
            });
            assert_eq!(alone.total(), total);
            let Some(shared) = sensor(rate, limit) else { continue };
            let mut total = 0;
            group.bench_function(format!("record_and_check/{name}/two_threads"), |b| {
                b.iter_custom(|calls| {
                    total += 2 * calls * AMOUNT;
                    together(&shared, 2, calls)
                });
            });
            assert_eq!(shared.total(), total);
        }
        let Some(alone) = sensor(rate, Some(1 << 55)) else { continue };
        group.bench_function("record", |b| b.iter(|| alone.record(black_box(AMOUNT), 0)));
        group.bench_function("check", |b| b.iter(|| alone.throttle_ms(black_box(0))));
        group.finish();
    }
}

fn reservations(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("quota_reservation");
    for (name, limit) in [("unlimited", None), ("far_below", Some(1 << 55))] {
        let Some(alone) = sensor(RateMode::Window, limit) else { continue };
        group.bench_function(format!("try_reserve_and_settle/{name}"), |b| {
            b.iter(|| match alone.try_reserve(black_box(AMOUNT), 0) {
                Ok(Reserve::Granted(token)) => alone.settle(token, AMOUNT, 0).is_ok(),
                _ => false,
            });
        });
        assert_eq!(alone.snapshot(0).reserved_bytes, 0);
    }
    let Some(full) = sensor(RateMode::Window, Some(1)) else { return };
    assert_eq!(full.record(AMOUNT, 0), Ok(()));
    group.bench_function("try_reserve/wait", |b| {
        b.iter(|| full.try_reserve(black_box(AMOUNT), 0));
    });
    group.finish();
}

criterion_group!(benches, rates, reservations);
criterion_main!(benches);
