//! Table rows equal the records that a decode of the same bytes returns, and end at the right
//! position.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "build/mod.rs"]
mod build;

use std::ops::Range;
use std::path::PathBuf;

use build::{BASE_TIMESTAMP_MS, Record, batch, text};
use tierlog_core::memory::vector_pool::VectorPool;
use tierlog_core::records::binary::BinaryRows;
use tierlog_core::records::columns::{BinaryParts, with_view};
use tierlog_core::records::row_columns::RowColumns;
use tierlog_core::records::table_rows::{TableRows, Wanted, read_rows};
use tierlog_core::records::{DecodeOptions, decode_records};
use tierlog_core::source::SegmentFile;

const LOG_APPEND_TIME: i16 = 0x08;
const CONTROL: i16 = 0x20;
const EVERY: Range<i64> = 0..i64::MAX;

type Bytes = Option<Vec<u8>>;
/// Offset, timestamp in microseconds, key, value, leader epoch, timestamp type.
type Row = (i64, i64, Bytes, Bytes, i32, i32);

struct TempFile(PathBuf);

impl TempFile {
    fn new(bytes: &[u8]) -> Self {
        let thread = std::thread::current().id();
        let name = format!("tierlog-rows-{}-{thread:?}.log", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn wanted() -> Wanted {
    Wanted {
        position: 0,
        size_bytes: 2 << 20,
        rows: 1 << 16,
        offsets: EVERY,
        batch_offsets: EVERY,
        keys: true,
        values: true,
    }
}

fn read(bytes: &[u8], wanted: &Wanted) -> TableRows {
    let file = TempFile::new(bytes);
    let file = SegmentFile::open(&file.0).unwrap();
    read_rows(&file, wanted, &mut VectorPool::default()).unwrap()
}

fn bytes_at(column: &BinaryRows, row: usize) -> Bytes {
    let ends = &column.offsets[row..row + 2];
    let is_null = column.validity.get(row / 8).is_some_and(|bits| bits >> (row % 8) & 1 == 0);
    assert!(!is_null || ends[0] == ends[1], "a null has no bytes");
    (!is_null).then(|| column.data[ends[0] as usize..ends[1] as usize].to_vec())
}

fn rows_of(table: &TableRows) -> Vec<Row> {
    let (columns, rows) = (&table.columns, table.offset.len());
    for column in [&table.keys, &table.values] {
        assert_eq!(column.offsets.len(), rows + 1);
        assert_eq!(*column.offsets.last().unwrap() as usize, column.data.len());
        assert!(column.validity.is_empty() || column.validity.len() == rows.div_ceil(8));
    }
    for length in
        [columns.producer_id.len(), columns.producer_epoch.len(), columns.base_sequence.len()]
    {
        assert_eq!(length, rows);
    }
    (0..rows)
        .map(|row| {
            let (key, value) = (bytes_at(&table.keys, row), bytes_at(&table.values, row));
            let (epoch, kind) = (columns.leader_epoch[row], columns.timestamp_type[row]);
            (table.offset[row], columns.timestamp_us[row], key, value, epoch, kind)
        })
        .collect()
}

/// Returns the rows of all windows, and where they end.
fn all(bytes: &[u8], mut wanted: Wanted) -> (Vec<Row>, u64) {
    let file = TempFile::new(bytes);
    let file = SegmentFile::open(&file.0).unwrap();
    let mut pool = VectorPool::new(8 << 20);
    let mut rows = Vec::new();
    loop {
        let table = read_rows(&file, &wanted, &mut pool).unwrap();
        rows.extend(rows_of(&table));
        if table.is_last || table.next_offset >= wanted.offsets.end {
            return (rows, table.stop_position);
        }
        assert!(table.stop_position > wanted.position);
        assert!(table.stop_position <= wanted.position + wanted.size_bytes as u64);
        assert!(table.offset.len() <= wanted.rows);
        wanted.position = table.stop_position;
        wanted.batch_offsets.start = table.next_offset;
        pool.give(table.values.data);
    }
}

/// Returns the rows of a decode.
fn truth(bytes: &[u8]) -> Vec<Row> {
    let records = decode_records(bytes, 0, &DecodeOptions::default()).unwrap();
    let at = |column: &BinaryParts, row: usize| {
        (!column.is_null(row))
            .then(|| with_view(column.views[row], &[bytes], <[u8]>::to_vec).unwrap())
    };
    let batches = &records.batches;
    (0..records.offset.len())
        .map(|row| {
            let batch = records.batch_starts.partition_point(|&start| start <= row as i64) - 1;
            let kind = i32::from(batches.attributes[batch] & LOG_APPEND_TIME != 0);
            let (key, value) = (at(&records.keys, row), at(&records.values, row));
            let (offset, time_us) = (records.offset[row], records.timestamp_ms[row] * 1000);
            (offset, time_us, key, value, batches.leader_epoch[batch], kind)
        })
        .collect()
}

/// Returns batches of all sizes up to `most` bytes, with nulls, empty and long values, headers,
/// gaps and markers.
fn segment(batches: i64, most: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut offset = 0;
    for number in 0..batches {
        let size = most >> (number * 5 % 16);
        let records: Vec<Record> = (0..1 + (number * 7 % 40) as i32)
            .map(|row| {
                let seed = number * 1000 + i64::from(row);
                let key = (seed % 3 > 0).then(|| text(seed as u64, (seed % 15) as usize));
                let value = (seed % 5 > 0).then(|| text(seed as u64, size / 40));
                let headers = match seed % 11 {
                    0 => vec![(b"h".to_vec(), Some(b"1".to_vec())), (b"n".to_vec(), None)],
                    _ => vec![],
                };
                Record {
                    timestamp_delta: seed % 100 - 50,
                    offset_delta: 2 * row,
                    key,
                    value,
                    headers,
                }
            })
            .collect();
        let attributes = match number % 6 {
            4 => CONTROL,
            5 => LOG_APPEND_TIME,
            _ => 0,
        };
        bytes.extend(batch(offset, attributes, &records));
        offset += 2 * records.len() as i64 + number % 3;
    }
    bytes
}

fn one(offset: i64, value: &[u8]) -> Vec<u8> {
    let record = Record {
        timestamp_delta: 0,
        offset_delta: 0,
        key: None,
        value: Some(value.to_vec()),
        headers: vec![],
    };
    batch(offset, 0, &[record])
}

#[test]
fn rows_equal_the_records_for_every_window() {
    let bytes = segment(120, 400_000);
    let expected = truth(&bytes);
    assert!(expected.len() > 2000);
    for size_bytes in [450_000, 600_000, 1 << 20, 64 << 20] {
        for rows in [40, 41, 1000, 1 << 16] {
            let (found, end) = all(&bytes, Wanted { size_bytes, rows, ..wanted() });
            assert!(found == expected, "windows of {size_bytes} bytes and {rows} rows");
            assert_eq!(end, bytes.len() as u64);
        }
    }
}

#[test]
fn rows_of_some_offsets() {
    let bytes = segment(60, 100_000);
    let expected = truth(&bytes);
    let last = expected.last().unwrap().0;
    for start in [0, 1, last / 3, last, last + 1] {
        for end in [0, start, start + 1, start + 77, last, last + 1, i64::MAX] {
            let offsets = start..end;
            let is_wanted = |row: &&Row| offsets.contains(&row.0);
            let rows: Vec<Row> = expected.iter().filter(is_wanted).cloned().collect();
            let (found, stop) = all(&bytes, Wanted { offsets: offsets.clone(), ..wanted() });
            assert!(found == rows, "offsets {offsets:?}");
            // Later batches are not read.
            assert!(end > last / 2 || stop < bytes.len() as u64 / 2 + 100_000, "{offsets:?}");
            assert!(end <= last || stop == bytes.len() as u64, "{offsets:?}");
        }
    }
}

#[test]
fn unrequested_columns_are_empty() {
    let bytes = segment(20, 50_000);
    let whole = read(&bytes, &wanted());
    let table = read(&bytes, &Wanted { keys: false, values: false, ..wanted() });
    assert_eq!((table.keys.data.len(), table.values.data.capacity()), (0, 0));
    assert_eq!((table.offset, table.columns), (whole.offset, whole.columns));
}

#[test]
fn fields_of_a_row_equal_those_of_its_batch() {
    let bytes = segment(20, 1000);
    let records = decode_records(&bytes, 0, &DecodeOptions::default()).unwrap();
    let batches = &records.batches;
    let fields = tierlog_core::records::row_columns::BatchFields {
        magic: &batches.magic,
        attributes: &batches.attributes,
        leader_epoch: &batches.leader_epoch,
        producer_id: &batches.producer_id,
        producer_epoch: &batches.producer_epoch,
        base_sequence: &batches.base_sequence,
    };
    let expected = RowColumns::of(fields, &records.batch_starts, &records.timestamp_ms);
    assert_eq!(Some(read(&bytes, &wanted()).columns), expected);
}

#[test]
fn rows_end_before_an_unusual_batch() {
    let (first, last) = (one(0, b"first"), one(9, b"last"));
    let record = || Record {
        timestamp_delta: 0,
        offset_delta: 0,
        key: None,
        value: Some(b"x".to_vec()),
        headers: vec![],
    };
    let flipped = |at: usize| {
        let mut bytes = one(5, b"in between");
        bytes[at] ^= 1;
        bytes
    };
    let mut cut = one(5, b"cut off");
    cut.truncate(70);
    let mut endless = one(5, b"endless");
    endless[8..12].copy_from_slice(&i32::MAX.to_be_bytes());
    let mut negative = one(5, b"negative");
    negative[8..12].copy_from_slice(&(-1i32).to_be_bytes());
    for (name, odd) in [
        ("compressed", batch(5, 1, &[record()])),
        ("of no codec", batch(5, 7, &[])),
        ("a wrong checksum", flipped(17)),
        ("a wrong value", flipped(70)),
        ("of magic 3", flipped(16)),
        ("an offset again", one(0, b"again")),
        ("an offset beyond", one(1000, b"beyond")),
        ("larger than a window", one(5, &[7; 4096])),
        (
            "too many rows",
            batch(
                5,
                0,
                &(0..9).map(|row| Record { offset_delta: row, ..record() }).collect::<Vec<_>>(),
            ),
        ),
        ("zeros", vec![0; 300]),
        ("without an end", endless),
        ("of negative size", negative),
        ("no records where the header has one", build::raw_batch(5, 0, 0, 1, &[])),
        (
            "more records than the header has",
            build::raw_batch(5, 0, 0, 0, &build::payload(&[record()])),
        ),
    ] {
        let bytes = [first.clone(), odd, last.clone()].concat();
        let asked = Wanted { size_bytes: 2048, rows: 8, batch_offsets: 0..1000, ..wanted() };
        let (rows, end) = all(&bytes, asked);
        assert_eq!(end, first.len() as u64, "{name}");
        assert_eq!(rows, truth(&first), "{name}");
    }
    let (rows, end) = all(&[first.clone(), cut].concat(), wanted());
    assert_eq!((rows, end), (truth(&first), first.len() as u64));
}

#[test]
fn rows_end_at_the_end_of_the_file() {
    let bytes = segment(10, 1000);
    for (position, size) in [(bytes.len(), 0), (bytes.len() + 100, 0), (0, bytes.len())] {
        let table = read(&bytes, &Wanted { position: position as u64, ..wanted() });
        assert!(table.is_last);
        assert_eq!(table.stop_position, (position + size) as u64);
        assert_eq!(table.offset.is_empty(), size == 0);
    }
    assert!(read(&[], &wanted()).is_last);
}

#[test]
fn times_beyond_microseconds_are_saturated() {
    let record = Record {
        timestamp_delta: i64::MAX - BASE_TIMESTAMP_MS,
        offset_delta: 0,
        key: None,
        value: None,
        headers: vec![],
    };
    let table = read(&batch(0, 0, &[record]), &wanted());
    assert_eq!(table.columns.timestamp_us, [i64::MAX / 1000 * 1000]);
}
