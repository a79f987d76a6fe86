//! Measures the decoding of records into columns for several shapes. The name of a shape is its
//! codec, its bytes of key and value, and its bytes of a batch before compression. Run with `cargo
//! bench -p tierlog-core --bench records`
#![allow(missing_docs, clippy::panic)]

#[path = "../tests/build/mod.rs"]
mod build;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tierlog_core::records::{DecodeOptions, decode_records};

const SHAPES: [(&str, i16, usize, usize, bool); 8] = [
    ("none-100-16k", 0, 100, 16 << 10, true),
    ("none-100-16k-no-key", 0, 100, 16 << 10, false),
    ("none-1024-16k", 0, 1024, 16 << 10, true),
    ("none-1024-1024k", 0, 1024, 1 << 20, true),
    ("gzip-100-16k", 1, 100, 16 << 10, true),
    ("snappy-100-16k", 2, 100, 16 << 10, true),
    ("lz4-100-16k", 3, 100, 16 << 10, true),
    ("zstd-100-16k", 4, 100, 16 << 10, true),
];
/// Source size before compression: larger than a second-level cache, like segments.
const SOURCE_BYTES: usize = 16 << 20;

fn decode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode_records");
    for (name, codec, record_bytes, batch_bytes, keyed) in SHAPES {
        let data = build::segment(codec, record_bytes, batch_bytes, SOURCE_BYTES, keyed);
        for (check, verify_crc) in [("plain", false), ("crc", true)] {
            let options = DecodeOptions { verify_crc, ..DecodeOptions::default() };
            let rows = match decode_records(&data, 0, &options) {
                Ok(records) => records.offset.len(),
                Err(error) => panic!("{name}: {error}"),
            };
            assert_eq!(rows, build::rows(record_bytes, batch_bytes, SOURCE_BYTES), "{name}");
            group.throughput(Throughput::Elements(rows as u64));
            group.bench_function(BenchmarkId::new(name, check), |bencher| {
                bencher.iter(|| decode_records(&data, 0, &options));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, decode);
criterion_main!(benches);
