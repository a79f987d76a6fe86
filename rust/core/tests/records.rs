//! Tests of decoding records into columns: bytes that Kafka wrote, every codec and version, every
//! kind of row.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "build/mod.rs"]
mod build;
#[path = "../src/vectors.rs"]
mod vectors;

use build::{BASE_TIMESTAMP_MS, Record, batch, payload, put_varlong, raw_batch, text};
use tierlog_core::error::ErrorKind;
use tierlog_core::memory::vector_pool::VectorPool;
use tierlog_core::records::columns::{BinaryParts, INLINE_BYTES, Records, with_view};
use tierlog_core::records::{DecodeOptions, decode_records, decode_records_into};
use tierlog_core::segment::StopReason;
use vectors::vector;

type Bytes = Option<Vec<u8>>;
type Row = (i64, i64, Bytes, Bytes, Vec<(Bytes, Bytes)>);

fn decode(data: &[u8]) -> Records {
    decode_records(data, 0, &DecodeOptions::default()).unwrap()
}

fn bytes_at(column: &BinaryParts, row: usize, buffers: &[&[u8]]) -> Bytes {
    if column.is_null(row) {
        assert_eq!(column.views[row], 0, "a null is all zeros");
        return None;
    }
    let view = column.views[row];
    let length = view as u32 as usize;
    if length < INLINE_BYTES {
        assert_eq!(view >> (32 + 8 * length), 0, "nothing follows a short value");
    }
    with_view(view, buffers, <[u8]>::to_vec)
}

fn rows(source: &[u8], records: &Records) -> Vec<Row> {
    let mut buffers = vec![source];
    buffers.extend(records.opened.iter().map(Vec::as_slice));
    let headers = &records.headers;
    let list = |row: usize| match &headers.list_offsets {
        Some(offsets) => (offsets[row]..offsets[row + 1])
            .map(|at| at as usize)
            .map(|at| {
                (bytes_at(&headers.keys, at, &buffers), bytes_at(&headers.values, at, &buffers))
            })
            .collect(),
        None => Vec::new(),
    };
    for column in [&records.keys, &records.values] {
        assert_eq!(column.views.len(), records.offset.len());
        let nulls = (0..column.views.len()).filter(|&row| column.is_null(row)).count();
        assert_eq!(nulls, column.null_count);
        assert_eq!(nulls > 0, column.validity.is_some());
    }
    (0..records.offset.len())
        .map(|row| {
            let key = bytes_at(&records.keys, row, &buffers);
            let value = bytes_at(&records.values, row, &buffers);
            (records.offset[row], records.timestamp_ms[row], key, value, list(row))
        })
        .collect()
}

fn some(bytes: &[u8]) -> Bytes {
    Some(bytes.to_vec())
}

/// Returns the three records of the v2 vectors.
fn vector_rows() -> Vec<Row> {
    let headers = vec![(some(b"h"), some(b"\x09")), (some(b"n"), None)];
    vec![
        (100, 1000, some(b"k1"), some(b"v1"), headers),
        (101, 1005, None, some(b"v2"), vec![]),
        (102, 1003, some(b"k3"), None, vec![]),
    ]
}

#[test]
fn v2_batches_written_by_kafka() {
    for name in ["none", "transactional", "gzip", "snappy", "lz4", "zstd"] {
        let data = vector(&format!("v2_{name}"));
        let records = decode(&data);
        assert_eq!(rows(&data, &records), vector_rows(), "{name}");
        assert_eq!(records.headers.list_offsets, Some(vec![0, 2, 2, 2]));
        assert_eq!(records.batch_starts, [0, 3]);
        assert_eq!(records.stop.reason, StopReason::End);
        assert_eq!(records.opened.is_empty(), ["none", "transactional"].contains(&name));
    }
}

#[test]
fn legacy_messages_written_by_kafka() {
    for magic in [0, 1] {
        for codec in ["none", "gzip", "snappy", "lz4"] {
            let data = vector(&format!("v{magic}_{codec}"));
            let records = decode(&data);
            let times = if magic == 0 { [-1, -1] } else { [1000, 1005] };
            let expected = [
                (100, times[0], some(b"k1"), some(b"v1"), vec![]),
                (101, times[1], None, some(b"v2"), vec![]),
            ];
            assert_eq!(rows(&data, &records), expected, "v{magic} {codec}");
            let batches = if codec == "none" { 2 } else { 1 };
            assert_eq!(records.batches.len(), batches);
            assert_eq!(records.batches.magic[0], magic);
            assert_eq!(records.batches.base_offset[0], 100);
            assert_eq!(records.batches.last_offset[batches - 1], 101);
            assert_eq!(records.batches.record_count.iter().sum::<i32>(), 2);
            assert_eq!(*records.batch_starts.last().unwrap(), 2);
        }
    }
}

#[test]
fn control_batches_keep_their_row_and_give_records_on_request() {
    let mut data = vector("v2_transactional");
    data.extend(vector("v2_abort_marker"));
    let records = decode(&data);
    assert_eq!(rows(&data, &records), vector_rows());
    assert_eq!(records.batch_starts, [0, 3, 3]);
    assert_eq!(records.batches.attributes, [0x10, 0x30]);
    let options = DecodeOptions { include_control: true, ..DecodeOptions::default() };
    let records = decode_records(&data, 0, &options).unwrap();
    let marker = (103, 1010, some(&[0, 0, 0, 0]), some(&[0, 0, 0, 0, 0, 5]), vec![]);
    assert_eq!(rows(&data, &records)[3], marker);
}

/// Returns records with every length near the limits of varints and inline views, nulls in every
/// field, headers in some, negative and large timestamps, and gaps between offsets.
fn many(count: usize) -> Vec<Record> {
    let lengths = [0, 1, 3, 4, 5, 11, 12, 13, 14, 63, 64, 65, 100, 300, 8191, 8192, 9000];
    let field = |seed: usize| match seed % 5 {
        0 => None,
        _ => Some(text(seed as u64, lengths[seed % lengths.len()])),
    };
    (0..count)
        .map(|index| Record {
            timestamp_delta: match index % 7 {
                0 => -1,
                1 => 64,
                2 => 9000,
                3 => 1 << 40,
                4 => -(1 << 40),
                _ => index as i64,
            },
            offset_delta: (index * 3 / 2) as i32,
            key: field(index),
            value: field(index * 7 + 3),
            headers: match index % 11 {
                3 => vec![(b"trace".to_vec(), Some(text(index as u64, 40))), (vec![], None)],
                4 => vec![(b"a header key longer than twelve".to_vec(), Some(vec![]))],
                _ => vec![],
            },
        })
        .collect()
}

fn expected(base_offset: i64, records: &[Record]) -> Vec<Row> {
    records
        .iter()
        .map(|record| {
            let headers =
                record.headers.iter().map(|(k, v)| (Some(k.clone()), v.clone())).collect();
            let offset = base_offset + i64::from(record.offset_delta);
            let timestamp_ms = BASE_TIMESTAMP_MS + record.timestamp_delta;
            (offset, timestamp_ms, record.key.clone(), record.value.clone(), headers)
        })
        .collect()
}

#[test]
fn every_kind_of_row_in_every_codec() {
    for codec in 0..=4 {
        let mut data = Vec::new();
        let mut wanted = Vec::new();
        let mut starts = vec![0];
        // Batches that end before, on and after the end of a stage block.
        for (index, count) in
            [1, 2, 60, 961, 1, 1023, 1024, 1025, 12_000, 3].into_iter().enumerate()
        {
            let records = many(count);
            let base_offset = index as i64 * 100_000;
            data.extend(batch(base_offset, codec, &records));
            wanted.extend(expected(base_offset, &records));
            starts.push(wanted.len() as i64);
        }
        let records = decode(&data);
        assert!(rows(&data, &records) == wanted, "codec {codec}");
        assert_eq!(records.batch_starts, starts);
        assert_eq!(records.stop.position, data.len() as u64);
    }
}

#[test]
fn deltas_of_every_size() {
    let edges = |bits: u32| [(1i64 << bits) - 1, 1 << bits, (1 << bits) + 1];
    let sizes: Vec<i64> = (0..31).flat_map(edges).filter(|&size| size < 1 << 30).collect();
    for &first in &sizes {
        for timestamp_delta in sizes.iter().flat_map(|&size| [size, -size]) {
            // Only the gap detects a wrong delta, because a smaller delta would still ascend.
            let record = |offset_delta: i64| Record {
                timestamp_delta,
                offset_delta: offset_delta as i32,
                key: some(b"k"),
                value: some(b"value"),
                headers: vec![],
            };
            let records = [record(first), record(first + 1), record(first + (1 << 29))];
            let mut data = batch(0, 0, &records);
            data.extend(raw_batch(1 << 40, 0, 0, 0, &[]));
            assert_eq!(rows(&data, &decode(&data)), expected(0, &records));
        }
    }
}

#[test]
fn keys_that_start_late_or_never() {
    let plain = |count, key: Bytes| -> Vec<Record> {
        let record = |i| Record {
            offset_delta: i,
            key: key.clone(),
            value: some(b"v"),
            ..Record::default()
        };
        (0..count).map(record).collect()
    };
    for before in [1, 7, 8, 9, 1023, 1024, 1025, 3000] {
        let keyless = plain(before, None);
        let mut data = batch(0, 0, &keyless);
        let records = decode(&data);
        assert_eq!(rows(&data, &records), expected(0, &keyless));
        assert_eq!(records.keys.null_count, before as usize);
        let keyed = plain(300, some(b"key"));
        data.extend(batch(5000, 0, &keyed));
        let mut wanted = expected(0, &keyless);
        wanted.extend(expected(5000, &keyed));
        assert_eq!(rows(&data, &decode(&data)), wanted, "{before}");
    }
}

#[test]
fn compressed_batches_share_buffers_and_spill_into_new_ones() {
    // Batches with usual ratios, batches with much higher ratios at the end, and the reverse order.
    let sizes = |count: u64, size| (0..count).map(move |index| text(index, size));
    let usual = || sizes(40, 150_000).collect::<Vec<_>>();
    let dense = || (0..40).map(|index| vec![index; 150_000]).collect::<Vec<_>>();
    for (values, most) in [
        (usual(), 3),
        (dense(), 45),
        ([usual(), dense()].concat(), 45),
        ([dense(), usual()].concat(), 10),
    ] {
        for codec in 1..=4 {
            let mut data = Vec::new();
            let mut wanted = Vec::new();
            for (index, value) in values.iter().enumerate() {
                let record = Record { value: Some(value.clone()), ..Record::default() };
                let base_offset = index as i64;
                wanted.extend(expected(base_offset, std::slice::from_ref(&record)));
                data.extend(batch(base_offset, codec, &[record]));
            }
            let records = decode(&data);
            assert!(rows(&data, &records) == wanted, "codec {codec}");
            assert!((1..=most).contains(&records.opened.len()), "{}", records.opened.len());
            // No free memory is kept, and no bytes are stored twice.
            let held: usize = records.opened.iter().map(Vec::len).sum();
            let values: usize = values.iter().map(Vec::len).sum();
            assert!((values..values + 20 * wanted.len()).contains(&held));
        }
    }
}

fn give_back(records: Records, pool: &mut VectorPool) {
    pool.give(records.offset);
    pool.give(records.timestamp_ms);
    pool.give(records.keys.views);
    pool.give(records.values.views);
    records.opened.into_iter().for_each(|buffer| pool.give(buffer));
}

#[test]
fn reused_memory_shows_no_old_bytes() {
    let mut pool = VectorPool::new(1 << 30);
    let options = DecodeOptions::default();
    for (codec, batches) in [(0, 45), (4, 45), (0, 40), (3, 50), (2, 40), (1, 45)] {
        let mut data = Vec::new();
        for index in 0..batches {
            let record = |row: i32| Record {
                offset_delta: row,
                key: (index > batches / 2).then(|| b"key".to_vec()),
                value: (row % 9 > 0).then(|| text(row as u64, 8 + row as usize % 9)),
                ..Record::default()
            };
            let records: Vec<Record> = (0..4000).map(record).collect();
            data.extend(batch(i64::from(index) * 10_000, codec, &records));
        }
        let fresh = decode(&data);
        let before = pool.size_bytes();
        let again = decode_records_into(&data, 0, &options, &mut pool).unwrap();
        assert!(before == 0 || pool.size_bytes() < before, "codec {codec}: nothing was used");
        assert!(rows(&data, &again) == rows(&data, &fresh), "codec {codec}");
        give_back(again, &mut pool);
    }
}

#[test]
fn append_time_replaces_every_timestamp() {
    let data = batch(7, 8, &many(300));
    let records = decode(&data);
    assert!(records.timestamp_ms.iter().all(|&time| time == BASE_TIMESTAMP_MS + 1_000_000));
}

#[test]
fn positions_count_from_the_start_of_the_source() {
    let data = batch(7, 0, &many(3));
    let records = decode_records(&data, 1 << 40, &DecodeOptions::default()).unwrap();
    assert_eq!(records.batches.position, [1 << 40]);
    assert_eq!(records.stop.position, (1 << 40) + data.len() as u64);
    let mut wrong = data.clone();
    wrong[30] ^= 1;
    let error = decode_records(&wrong, 1 << 40, &DecodeOptions::default()).unwrap_err();
    assert_eq!((error.kind, error.position), (ErrorKind::BadCrc, 1 << 40));
}

#[test]
fn tails_end_the_decode_and_corruption_refuses_it() {
    let first = batch(0, 0, &many(3));
    let mut data = first.clone();
    data.extend(batch(100, 0, &many(3)));
    // The first seven bytes of the second batch are zero. If only these bytes follow the first
    // batch, they are a zero tail.
    for size in first.len() + 8..data.len() {
        let records = decode(&data[..size]);
        assert_eq!(records.stop.reason, StopReason::TornTail);
        assert_eq!(records.stop.position, first.len() as u64);
        assert_eq!(records.offset.len(), 3);
    }
    let mut zeros = first.clone();
    zeros.resize(first.len() + 1000, 0);
    assert_eq!(decode(&zeros).stop.reason, StopReason::ZeroTail);
    zeros.push(1);
    let refuse = |data: &[u8]| {
        let error = decode_records(data, 0, &DecodeOptions::default()).unwrap_err();
        (error.kind, error.position)
    };
    assert_eq!(refuse(&zeros), (ErrorKind::BadLength, first.len() as u64));
    let mut twice = first.clone();
    twice.extend(&first);
    assert_eq!(refuse(&twice), (ErrorKind::OffsetOrder, first.len() as u64));
    let mut magic = first.clone();
    magic[16] = 3;
    assert_eq!(refuse(&magic), (ErrorKind::UnknownMagic, 0));
    assert_eq!(decode(&[]).stop.reason, StopReason::End);
    assert_eq!(decode(&[]).batch_starts, [0]);
}

/// Returns a payload of one record with this body.
fn with_body(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varlong(&mut out, body.len() as i64);
    out.extend(body);
    out
}

#[test]
fn invalid_records_are_refused_at_their_byte() {
    // attributes, timestamp delta, offset delta, key length, value length, header count
    let good = [0, 0, 0, 1, 1, 0];
    let cases: [(&str, Vec<u8>, u64); 12] = [
        ("cut length", vec![0x80], 0),
        ("length beyond", vec![100, 0, 0, 0, 1, 1, 0], 0),
        ("negative length", vec![1, 0, 0, 0, 1, 1, 0], 0),
        ("empty body", vec![0, 0, 0, 0, 0, 0, 0], 1),
        ("key beyond", with_body(&[0, 0, 0, 20, 1, 0]), 4),
        ("value beyond", with_body(&[0, 0, 0, 1, 20, 0]), 5),
        ("negative header count", with_body(&[0, 0, 0, 1, 1, 1]), 6),
        ("header count beyond", with_body(&[0, 0, 0, 1, 1, 4, 0]), 6),
        ("null header key", with_body(&[0, 0, 0, 1, 1, 2, 1, 1]), 7),
        ("bytes left in the record", with_body(&[0, 0, 0, 1, 1, 0, 9]), 7),
        ("bytes after the last record", [with_body(&good), vec![0]].concat(), 7),
        ("offset delta beyond the batch", with_body(&[0, 0, 2, 1, 1, 0]), 3),
    ];
    for padding in [0, 100] {
        // With another batch after it, a record is not at the end of its buffer.
        for (name, payload, position) in &cases {
            let mut data = raw_batch(0, 0, 0, 1, payload);
            data.extend(raw_batch(1000, 0, 0, 1, &with_body(&[0; 100][..padding])));
            let error = decode_records(&data, 0, &DecodeOptions::default()).unwrap_err();
            assert_eq!(error.kind, ErrorKind::BadRecord, "{name}: {error}");
            assert_eq!(error.position, 61 + position, "{name}: {error}");
        }
    }
}

#[test]
fn offsets_ascend_and_counts_are_true() {
    let record = |offset_delta| Record { offset_delta, ..Record::default() };
    let refuse = |deltas: &[i32], last_delta, count| {
        let records: Vec<Record> = deltas.iter().map(|&delta| record(delta)).collect();
        let mut data = raw_batch(0, 0, last_delta, count, &payload(&records));
        data.extend(raw_batch(1000, 0, 0, 0, &[]));
        decode_records(&data, 0, &DecodeOptions::default()).err().map(|error| error.kind)
    };
    assert_eq!(refuse(&[0, 2, 5], 5, 3), None);
    assert_eq!(refuse(&[0, 2, 5], 9, 3), None);
    assert_eq!(refuse(&[0, 2, 5], 4, 3), Some(ErrorKind::BadRecord));
    assert_eq!(refuse(&[0, 2, 5], 5, 2), Some(ErrorKind::BadRecord));
    assert_eq!(refuse(&[0, 2, 5], 5, 4), Some(ErrorKind::BadRecord));
    assert_eq!(refuse(&[0, 2, 5], i32::MAX, i32::MAX), Some(ErrorKind::BadRecord));
    assert_eq!(refuse(&[], 5, 0), None);
}

/// Records before and after have headers, which stay with their records.
#[test]
fn records_below_the_consumer_position_are_skipped() {
    let record = |offset_delta: i32, header: &str| Record {
        offset_delta,
        headers: vec![(header.as_bytes().to_vec(), None)],
        ..Record::default()
    };
    let records: Vec<Record> = [(0, "a"), (2, "b"), (2, "c"), (1, "d"), (-3, "e"), (5, "f")]
        .map(|(d, h)| record(d, h))
        .into();
    let data = raw_batch(10, 0, 5, 6, &payload(&records));
    let found: Vec<(i64, Vec<(Bytes, Bytes)>)> =
        rows(&data, &decode(&data)).into_iter().map(|row| (row.0, row.4)).collect();
    let expected = [(10, b"a"), (12, b"b"), (15, b"f")];
    assert_eq!(found, expected.map(|(offset, name)| (offset, vec![(some(name), None)])));
}

#[test]
fn negative_lengths_are_null() {
    let data = raw_batch(0, 0, 0, 1, &with_body(&[0, 0, 0, 3, 9, 2, 0, 3]));
    let headers = vec![(some(b""), None)];
    assert_eq!(rows(&data, &decode(&data)), [(0, BASE_TIMESTAMP_MS, None, None, headers)]);
}

#[test]
fn timestamps_wrap() {
    for (base, delta) in
        [(i64::MAX - 5, 5), (i64::MAX - 5, 6), (i64::MIN + 5, -5), (i64::MIN + 5, -6)]
    {
        let record = Record { timestamp_delta: delta, ..Record::default() };
        let mut data = batch(0, 0, &[record]);
        data.extend([0; 64]);
        data[27..35].copy_from_slice(&i64::to_be_bytes(base));
        let options = DecodeOptions { verify_crc: false, ..DecodeOptions::default() };
        let records = decode_records(&data, 0, &options).unwrap();
        assert_eq!(records.timestamp_ms, [base.wrapping_add(delta)]);
    }
}

#[test]
fn decompression_bomb_is_refused_at_its_limit() {
    let bomb = vec![0; 100 << 20];
    for codec in 1..=4 {
        let data = raw_batch(0, codec, 0, 1, &build::compress(codec, &bomb));
        let options = DecodeOptions { max_decompressed_bytes: 1 << 20, ..DecodeOptions::default() };
        let error = decode_records(&data, 0, &options).unwrap_err();
        assert_eq!((error.kind, error.position), (ErrorKind::TooLarge, 61), "codec {codec}");
    }
}

#[test]
fn errors_inside_a_compressed_batch_name_both_positions() {
    let inner = with_body(&[0, 0, 0, 20, 1, 0]);
    for codec in 1..=4 {
        let data = raw_batch(0, codec, 0, 1, &build::compress(codec, &inner));
        let error = decode_records(&data, 50, &DecodeOptions::default()).unwrap_err();
        assert_eq!((error.kind, error.position), (ErrorKind::BadRecord, 111));
        assert!(error.found.ends_with("(byte 4 of the decompressed records)"), "{error}");
    }
}
