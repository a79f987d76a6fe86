//! Targets that need a file, which are table rows and scans of files, and the search for sound
//! batches.

use std::cell::OnceCell;
use std::fs::File;
use std::os::unix::fs::FileExt;

use tierlog_core::batch::columns::BatchColumns;
use tierlog_core::batch::header::{BatchHeader, CRC_START, HEADER_SIZE};
use tierlog_core::checksum::crc32c;
use tierlog_core::memory::vector_pool::VectorPool;
use tierlog_core::records::columns::Records;
use tierlog_core::records::table_rows::{TableRows, Wanted, read_rows};
use tierlog_core::records::{DecodeOptions, decode_records};
use tierlog_core::segment::resync::{Bounds, find_batch};
use tierlog_core::segment::{ScanOptions, StopReason, scan_file};
use tierlog_core::source::SegmentFile;

use super::records::{LIMIT_BYTES, value};
use super::scan::columns;

thread_local! {
    static FILE: OnceCell<File> = const { OnceCell::new() };
}

/// Calls `use_file` with a file that holds `data`. The file has no name and is used again.
pub fn with_file<R>(data: &[u8], use_file: impl FnOnce(&File) -> R) -> R {
    FILE.with(|cell| {
        let file = cell.get_or_init(|| {
            let folder = ["/dev/shm", "/tmp"]
                .into_iter()
                .find(|path| std::fs::metadata(path).is_ok_and(|metadata| metadata.is_dir()));
            let path = std::path::Path::new(folder.unwrap_or(".")).join(format!(
                "tierlog-fuzz-{}-{:?}",
                std::process::id(),
                std::thread::current().id()
            ));
            let file = File::options().read(true).write(true).create_new(true).open(&path);
            let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            std::fs::remove_file(&path).unwrap_or_else(|error| panic!("{error}"));
            file
        });
        let written = file.write_all_at(data, 0).and_then(|()| file.set_len(data.len() as u64));
        written.unwrap_or_else(|error| panic!("{error}"));
        use_file(file)
    })
}

fn segment_file(file: &File) -> SegmentFile {
    let opened = file.try_clone().map(SegmentFile::from_file);
    match opened {
        Ok(Ok(segment)) => segment,
        other => panic!("{other:?}"),
    }
}

/// Checks that a scan of a file gives the same result as a scan of memory, and that table rows
/// equal the rows of a decode.
pub fn check_table_rows(data: &[u8]) {
    let (expected, scan) = columns(data);
    with_file(data, |file| {
        let segment = segment_file(file);
        let mut batches = BatchColumns::default();
        let options = ScanOptions::default();
        match scan_file(&segment, &options, &mut batches) {
            Ok(found) => assert_eq!(found.stop, scan.stop),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(batches.position, expected.position);
        let whole = read(&segment, data.len(), 0..i64::MAX);
        let end = whole.stop_position as usize;
        let options =
            DecodeOptions { max_decompressed_bytes: LIMIT_BYTES, ..DecodeOptions::default() };
        let records = match decode_records(&data[..end], 0, &options) {
            Ok(records) => records,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(records.stop.reason, StopReason::End);
        check_rows(data, &whole, &records, 0..records.offset.len());
        if let [first, .., last] = records.offset[..] {
            let some = read(&segment, data.len(), first + 1..last);
            let end = records.offset.partition_point(|&offset| offset < last);
            check_rows(data, &some, &records, 1..end);
        }
    });
}

fn read(segment: &SegmentFile, size_bytes: usize, offsets: std::ops::Range<i64>) -> TableRows {
    let wanted = Wanted {
        position: 0,
        size_bytes,
        rows: usize::MAX,
        offsets,
        batch_offsets: 0..i64::MAX,
        keys: true,
        values: true,
    };
    match read_rows(segment, &wanted, &mut VectorPool::default()) {
        Ok(rows) => rows,
        Err(error) => panic!("{error}"),
    }
}

/// Asserts that `found` has the rows `rows` of `records`, which are plain records of `data`.
fn check_rows(data: &[u8], found: &TableRows, records: &Records, rows: std::ops::Range<usize>) {
    assert_eq!(found.offset, records.offset[rows.clone()]);
    let max_ms = i64::MAX / 1000;
    for (row, from) in rows.enumerate() {
        let timestamp_us = records.timestamp_ms[from].clamp(-max_ms, max_ms) * 1000;
        assert_eq!(found.columns.timestamp_us[row], timestamp_us);
        for (strings, column) in [(&found.keys, &records.keys), (&found.values, &records.values)] {
            let (start, end) = (strings.offsets[row] as usize, strings.offsets[row + 1] as usize);
            let is_null =
                strings.validity.get(row / 8).is_some_and(|bits| bits >> (row % 8) & 1 == 0);
            let bytes = (!is_null).then(|| strings.data[start..end].to_vec());
            assert_eq!(bytes, value(column, from, &[data]), "row {row}");
        }
    }
}

/// Searches for the first two sound batches.
pub fn check_resync(data: &[u8]) {
    let bounds = Bounds { offset: 0, next_base_offset: i64::MAX };
    let mut start = 0;
    for _ in 0..2 {
        let found = match find_batch(data, start, &bounds) {
            Ok(found) => found,
            Err(error) => panic!("{error}"),
        };
        let Some(position) = found else { return };
        assert!(position >= start);
        let batch = &data[position as usize..];
        let Some(header) = batch.first_chunk::<HEADER_SIZE>().map(BatchHeader::parse) else {
            panic!("no header at {position}");
        };
        assert!(header.validate(position).is_ok());
        let size = header.size_bytes() as usize;
        assert!(batch.len() >= size && crc32c(&batch[CRC_START..size]) == header.crc);
        start = position + 1;
    }
}
