//! Checks the columns of decoded records, and that the records agree with a scan.

use tierlog_core::batch::columns::BatchColumns;
use tierlog_core::memory::vector_pool::VectorPool;
use tierlog_core::records::binary::{binary_data, binary_offsets};
use tierlog_core::records::columns::{BinaryParts, Records, with_view};
use tierlog_core::records::row_columns::{BatchFields, RowColumns};
use tierlog_core::records::{DecodeOptions, check_records as decode_and_drop, decode_records};

use super::scan::columns;

/// Largest decompressed size of one batch.
pub const LIMIT_BYTES: usize = 64 << 10;

/// Returns the settings that most targets decode with.
pub fn options() -> DecodeOptions {
    DecodeOptions {
        include_control: true,
        max_decompressed_bytes: LIMIT_BYTES,
        ..DecodeOptions::default()
    }
}

/// Checks a decode of `data`. A scan, and a decode that drops the records, must give the same
/// result.
pub fn check_records(data: &[u8]) {
    let decoded = decode_records(data, 0, &options());
    let dropped = decode_and_drop(data, 0, &options());
    let (batches, scan) = columns(data);
    match (decoded, dropped) {
        (Ok(records), Ok(dropped)) => {
            check_columns(data, &records);
            assert_eq!(records.stop, dropped.stop);
            assert_same(&records.batches, &dropped.batches);
            assert_same(&records.batches, &batches);
            let stop = scan.stop;
            assert_eq!((records.stop.reason, records.stop.position), (stop.reason, stop.position));
        }
        (Err(error), Err(other)) => {
            assert_eq!((error.kind, error.position), (other.kind, other.position));
            assert!(error.position <= data.len() as u64);
        }
        (one, other) => panic!("{:?} {:?}", one.err(), other.err()),
    }
}

/// Asserts properties of the columns of every decode of `data`.
pub fn check_columns(data: &[u8], records: &Records) {
    let mut buffers = vec![data];
    buffers.extend(records.opened.iter().map(Vec::as_slice));
    let rows = records.offset.len();
    assert_eq!(records.timestamp_ms.len(), rows);
    check_strings(&records.keys, rows, &buffers);
    check_strings(&records.values, rows, &buffers);
    let headers = &records.headers;
    let ends = headers.list_offsets.as_deref();
    assert!(ends.is_none_or(|ends| ends.is_sorted() && ends.len() == rows + 1 && ends[0] == 0));
    let count = ends.map_or(0, |ends| ends[rows] as usize);
    check_strings(&headers.keys, count, &buffers);
    check_strings(&headers.values, count, &buffers);
    assert_eq!(headers.keys.null_count, 0);
    let batches = &records.batches;
    assert_eq!(records.batch_starts.len(), batches.len() + 1);
    assert!(records.offset.is_sorted_by(|one, next| one < next));
    for (index, starts) in records.batch_starts.windows(2).enumerate() {
        let offsets = &records.offset[starts[0] as usize..starts[1] as usize];
        // Records whose offsets do not ascend are skipped.
        assert!(offsets.len() <= batches.record_count[index] as usize);
        let whole = batches.base_offset[index]..=batches.last_offset[index];
        assert!(offsets.iter().all(|offset| whole.contains(offset)));
    }
    assert!(records.opened.iter().map(Vec::len).sum::<usize>() <= LIMIT_BYTES * batches.len());
    let columns = RowColumns::of(fields(batches), &records.batch_starts, &records.timestamp_ms);
    assert!(columns.is_some_and(|columns| columns.producer_id.len() == rows));
}

/// Returns the fields that a batch gives to its rows.
pub fn fields(batches: &BatchColumns) -> BatchFields<'_> {
    BatchFields {
        magic: &batches.magic,
        attributes: &batches.attributes,
        leader_epoch: &batches.leader_epoch,
        producer_id: &batches.producer_id,
        producer_epoch: &batches.producer_epoch,
        base_sequence: &batches.base_sequence,
    }
}

/// Asserts that every view points into `buffers`, and that the values join to their total size.
fn check_strings(column: &BinaryParts, rows: usize, buffers: &[&[u8]]) {
    assert_eq!(column.views.len(), rows);
    let mut size = 0;
    let mut nulls = 0;
    for (row, &view) in column.views.iter().enumerate() {
        nulls += usize::from(column.is_null(row));
        match with_view(view, buffers, <[u8]>::len) {
            Some(length) => size += length,
            None => panic!("row {row} points outside its buffers"),
        }
    }
    assert_eq!(column.null_count, nulls);
    if rows == 0 {
        return;
    }
    let end = binary_offsets(&column.views).and_then(|offsets| offsets.last().copied());
    assert_eq!(end, Some(size as i32));
    let data = binary_data(&column.views, buffers, size, &mut VectorPool::default());
    assert_eq!(data.map(|data| data.len()), Some(size));
}

fn assert_same(one: &BatchColumns, other: &BatchColumns) {
    assert_eq!(one.base_offset, other.base_offset);
    assert_eq!(one.last_offset, other.last_offset);
    assert_eq!(one.position, other.position);
    assert_eq!(one.size_bytes, other.size_bytes);
    assert_eq!(one.base_timestamp_ms, other.base_timestamp_ms);
    assert_eq!(one.max_timestamp_ms, other.max_timestamp_ms);
    assert_eq!(one.leader_epoch, other.leader_epoch);
    assert_eq!(one.producer_id, other.producer_id);
    assert_eq!(one.producer_epoch, other.producer_epoch);
    assert_eq!(one.base_sequence, other.base_sequence);
    assert_eq!(one.attributes, other.attributes);
    assert_eq!(one.record_count, other.record_count);
    assert_eq!(one.magic, other.magic);
}

/// Returns the value of a row; `None` is null.
pub fn value(column: &BinaryParts, row: usize, buffers: &[&[u8]]) -> Option<Vec<u8>> {
    let view = column.views[row];
    (!column.is_null(row)).then(|| with_view(view, buffers, <[u8]>::to_vec)).flatten()
}
