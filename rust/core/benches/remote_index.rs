//! Measures a remoteLogIndex with entries of 94 bytes, of which the rdi takes 48. It has as many
//! entries as a segment of 1 GiB with one entry for every 256 KiB. Each result is checked before
//! the operation is timed.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use tierlog_core::index::remote::{NewEntry, decode, encode, lookup_offset, lookup_timestamp};

const ROWS: usize = 4096;
const RDI_BYTES: usize = 48;

fn bench(criterion: &mut Criterion) {
    let rdis: Vec<String> = (0..ROWS).map(|row| format!("{row:0RDI_BYTES$}")).collect();
    let entries: Vec<NewEntry<'_>> = (0..ROWS as i64)
        .zip(&rdis)
        .map(|(row, rdi)| NewEntry {
            first_offset: row * 100,
            last_offset: row * 100 + 99,
            first_timestamp_ms: 1_700_000_000_000 + row,
            last_timestamp_ms: 1_700_000_000_000 + row,
            data_length: 256 << 10,
            rdi: rdi.as_bytes(),
        })
        .collect();
    let out = encode(&entries).unwrap_or_default();
    let decoded = decode(&out, false).unwrap_or_default();
    assert_eq!(decoded.len(), ROWS);
    assert_eq!(decoded.last_offset.last(), entries.last().map(|entry| &entry.last_offset));

    let mut group = criterion.benchmark_group("remote_index");
    group.throughput(Throughput::Elements(ROWS as u64));
    group.bench_function("encode", |b| {
        b.iter(|| encode(black_box(&entries)).map(|data| data.len()));
    });
    group.bench_function("decode", |b| {
        b.iter(|| decode(black_box(&out), false).map(|found| found.len()));
    });
    group.throughput(Throughput::Elements(1));
    group.bench_function("lookup_offset", |b| {
        let mut target = 0;
        b.iter(|| {
            target = (target + 7_654_321) % (ROWS as i64 * 100);
            lookup_offset(black_box(&decoded.last_offset), target)
        });
    });
    group.bench_function("lookup_timestamp", |b| {
        b.iter(|| lookup_timestamp(black_box(&decoded.last_timestamp_ms), 1_700_000_002_000));
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
