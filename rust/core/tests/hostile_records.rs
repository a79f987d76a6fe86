//! For damaged and arbitrary bytes, the decoder returns an error, a shorter result or the true
//! records. It never panics, allocates huge memory or returns a view outside its buffers.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "build/mod.rs"]
mod build;
#[path = "../src/vectors.rs"]
mod vectors;

use build::{Record, batch, compress, payload, raw_batch, text};
use proptest::prelude::*;
use tierlog_core::batch::header::{Codec, LOG_OVERHEAD};
use tierlog_core::codec::compression::Decompressor;
use tierlog_core::codec::output::Output;
use tierlog_core::error::{ErrorKind, Result};
use tierlog_core::records::columns::{BinaryParts, Records, with_view};
use tierlog_core::records::{DecodeOptions, decode_records};
use tierlog_core::segment::StopReason;
use vectors::vector;

const LIMIT: usize = 1 << 20;

fn decode(data: &[u8], verify_crc: bool) -> Result<Records> {
    let options = DecodeOptions {
        verify_crc,
        include_control: true,
        max_decompressed_bytes: LIMIT,
        ..DecodeOptions::default()
    };
    let decoded = decode_records(data, 0, &options);
    if let Ok(records) = &decoded {
        check(data, records);
    }
    decoded
}

fn check_column(column: &BinaryParts, rows: usize, buffers: &[&[u8]]) {
    assert_eq!(column.views.len(), rows);
    for row in 0..rows {
        assert!(column.is_null(row) || with_view(column.views[row], buffers, |_| ()).is_some());
    }
}

/// Asserts the invariants of every result.
fn check(data: &[u8], records: &Records) {
    let mut buffers = vec![data];
    buffers.extend(records.opened.iter().map(Vec::as_slice));
    let rows = records.offset.len();
    assert_eq!(records.timestamp_ms.len(), rows);
    check_column(&records.keys, rows, &buffers);
    check_column(&records.values, rows, &buffers);
    let headers = &records.headers;
    let ends = headers.list_offsets.clone().unwrap_or_else(|| vec![0; rows + 1]);
    assert!(ends.is_sorted() && ends.len() == rows + 1 && ends[0] == 0);
    check_column(&headers.keys, ends[rows] as usize, &buffers);
    check_column(&headers.values, ends[rows] as usize, &buffers);
    let batches = &records.batches;
    assert_eq!(records.batch_starts.len(), batches.len() + 1);
    for index in 0..batches.len() {
        let range = records.batch_starts[index] as usize..records.batch_starts[index + 1] as usize;
        let offsets = &records.offset[range];
        // There are fewer when offsets do not ascend.
        assert!(offsets.len() <= batches.record_count[index] as usize);
        assert!(offsets.iter().all(|offset| {
            (batches.base_offset[index]..=batches.last_offset[index]).contains(offset)
        }));
    }
    assert!(records.offset.windows(2).all(|pair| pair[0] < pair[1]));
}

/// Returns three batches of a log. The tests damage the middle batch.
fn three_batches(codec: i16) -> Vec<u8> {
    let record = |index: i32| Record {
        timestamp_delta: i64::from(index) * 50,
        offset_delta: index * 2,
        key: (index % 3 > 0).then(|| text(index as u64, index as usize * 5)),
        value: (index % 4 > 0).then(|| text(index as u64, index as usize * 11)),
        headers: match index % 2 {
            0 => vec![],
            _ => vec![(b"h".to_vec(), None), (text(9, 20), Some(text(8, 13)))],
        },
    };
    let records: Vec<Record> = (0..8).map(record).collect();
    [0, 100, 200].iter().flat_map(|&base| batch(base, codec, &records)).collect()
}

/// Returns true when the CRC does not cover byte `at`: base offset, length and leader epoch.
fn is_outside_crc(data: &[u8], at: usize) -> bool {
    let mut start = 0;
    loop {
        let length = i32::from_be_bytes(data[start + 8..start + 12].try_into().unwrap()) as usize;
        let end = start + LOG_OVERHEAD + length;
        if at < end {
            return at - start < 16;
        }
        start = end;
    }
}

#[test]
fn every_bit_flip_under_a_checksum_is_detected() {
    for codec in 0..=4 {
        let data = three_batches(codec);
        let whole = decode(&data, true).unwrap().offset;
        for bit in 0..data.len() * 8 {
            let mut wrong = data.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let decoded = decode(&wrong, true);
            if !is_outside_crc(&data, bit / 8) {
                assert!(decoded.is_err(), "codec {codec}, bit {bit}");
            } else if let Ok(records) = decoded {
                // The result has another base offset, another leader epoch, or a length beyond the
                // end.
                let torn = records.stop.reason == StopReason::TornTail;
                assert!(torn || records.offset.len() == whole.len(), "codec {codec}, bit {bit}");
            }
            let _ = decode(&wrong, false);
        }
    }
}

#[test]
fn every_cut_ends_in_a_torn_tail() {
    for codec in 0..=4 {
        let data = three_batches(codec);
        let whole = decode(&data, true).unwrap();
        for size in 0..data.len() {
            let records = decode(&data[..size], true).unwrap();
            assert!(whole.offset.starts_with(&records.offset));
            let borders = whole.batches.position.contains(&(size as i64));
            assert_eq!(records.stop.reason == StopReason::End, borders);
        }
    }
}

#[test]
fn every_flip_and_cut_of_bytes_written_by_kafka() {
    for name in [
        "v0_none",
        "v0_gzip",
        "v0_lz4",
        "v0_snappy",
        "v1_none",
        "v1_gzip",
        "v1_lz4",
        "v1_snappy",
        "v2_none",
        "v2_abort_marker",
        "v2_zstd",
    ] {
        let data = vector(name);
        for size in 0..data.len() {
            let _ = decode(&data[..size], true);
        }
        for bit in 0..data.len() * 8 {
            let mut wrong = data.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let _ = decode(&wrong, true);
            let _ = decode(&wrong, false);
        }
    }
}

#[test]
fn batch_cannot_claim_more_memory_than_its_bytes_justify() {
    for codec in 0..=4 {
        let payload = compress(codec, &[0; 70]);
        for count in [11, 1000, i32::MAX] {
            let data = raw_batch(0, codec, i32::MAX, count, &payload);
            assert!(decode(&data, true).is_err(), "codec {codec}, count {count}");
        }
    }
    // Many rows in few bytes are followed by much data. The reserved memory stays small.
    let record = |offset_delta| Record { offset_delta, ..Record::default() };
    let records: Vec<Record> = (0..100_000).map(record).collect();
    let mut data = batch(0, 4, &records);
    data.extend(raw_batch(1 << 40, 0, 0, 0, &vec![0; 64 << 20]));
    assert!(decode(&data, false).is_err());
}

#[test]
fn error_about_the_last_byte_names_a_position_in_the_data() {
    let mut records = payload(&[Record { value: Some(vec![7; 8]), ..Record::default() }]);
    records.push(0);
    let data = raw_batch(0, 0, 1, 2, &records);
    let error = decode(&data, true).unwrap_err();
    assert_eq!((error.kind, error.position), (ErrorKind::BadRecord, data.len() as u64));
}

fn codecs() -> impl Strategy<Value = Codec> {
    prop::sample::select(vec![Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd])
}

fn codec_id(codec: Codec) -> i16 {
    match codec {
        Codec::None => 0,
        Codec::Gzip => 1,
        Codec::Snappy => 2,
        Codec::Lz4 => 3,
        Codec::Zstd => 4,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(data in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(&data, true);
        let _ = decode(&data, false);
    }

    #[test]
    fn any_payload_behind_a_true_header(
        payload in prop::collection::vec(any::<u8>(), 0..200),
        attributes in 0i16..0x60,
        count in 0i32..20,
    ) {
        let mut data = raw_batch(10, attributes, 40, count, &payload);
        let _ = decode(&data, true);
        data.extend(raw_batch(1000, 0, 0, 0, &[]));
        let _ = decode(&data, true);
    }

    #[test]
    fn damaged_batches(
        codec in 0i16..=4,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut data = three_batches(codec);
        for (at, byte) in damage {
            let at = at.index(data.len());
            data[at] = byte;
        }
        let _ = decode(&data, false);
        let _ = decode(&data[..cut.index(data.len())], false);
    }

    #[test]
    fn damaged_streams(
        codec in codecs(),
        seed in any::<u64>(),
        size in 0usize..200_000,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut stream = compress(codec_id(codec), &text(seed, size));
        for (at, byte) in damage {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        let mut output = Output::default();
        let _ = Decompressor::new().decompress(codec, 2, &stream, LIMIT, &mut output);
        prop_assert!(output.bytes().len() <= LIMIT);
    }

    #[test]
    fn any_stream(
        codec in codecs(),
        magic in 0i8..=2,
        head in any::<bool>(),
        tail in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut stream = if head { compress(codec_id(codec), b"head")[..7].to_vec() } else { vec![] };
        stream.extend(tail);
        let mut output = Output::default();
        let _ = Decompressor::new().decompress(codec, magic, &stream, LIMIT, &mut output);
        prop_assert!(output.bytes().len() <= LIMIT);
    }
}
