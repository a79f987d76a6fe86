//! remoteLogIndex entries of 94 bytes (an rdi of 48), as many as a segment of 1 GiB has in runs
//! of 256 KiB; each result is checked before it is timed.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use tierlog_core::remote_index::{
    NewEntries, decode, encode_into, encoded_size, lookup_offset, lookup_timestamp,
};

const ROWS: usize = 4096;
const RDI_BYTES: usize = 48;

fn bench(criterion: &mut Criterion) {
    let first_offset: Vec<i64> = (0..ROWS as i64).map(|row| row * 100).collect();
    let last_offset: Vec<i64> = first_offset.iter().map(|offset| offset + 99).collect();
    let timestamp_ms: Vec<i64> = (0..ROWS as i64).map(|row| 1_700_000_000_000 + row).collect();
    let data_length = vec![256 << 10; ROWS];
    let rdis: Vec<String> = (0..ROWS).map(|row| format!("{row:0RDI_BYTES$}")).collect();
    let entries = NewEntries {
        first_offset: &first_offset,
        last_offset: &last_offset,
        first_timestamp_ms: &timestamp_ms,
        last_timestamp_ms: &timestamp_ms,
        data_length: &data_length,
    };
    let mut out = vec![0; encoded_size(&entries, &rdis).unwrap_or_default()];
    assert!(encode_into(&entries, &rdis, &mut out).is_ok());
    let decoded = decode(&out, false).unwrap_or_default();
    assert_eq!(decoded.last_offset, last_offset);

    let mut group = criterion.benchmark_group("remote_index");
    group.throughput(Throughput::Elements(ROWS as u64));
    group.bench_function("encode", |b| {
        b.iter(|| encode_into(black_box(&entries), &rdis, black_box(&mut out)).is_ok());
    });
    group.bench_function("decode", |b| {
        b.iter(|| decode(black_box(&out), false).map(|found| found.len()));
    });
    group.throughput(Throughput::Elements(1));
    group.bench_function("lookup_offset", |b| {
        let mut target = 0;
        b.iter(|| {
            target = (target + 7_654_321) % (ROWS as i64 * 100);
            lookup_offset(black_box(&last_offset), target)
        });
    });
    group.bench_function("lookup_timestamp", |b| {
        b.iter(|| lookup_timestamp(black_box(&timestamp_ms), 1_700_000_002_000));
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
