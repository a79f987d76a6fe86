//! Scans of segments.

use tierlog_core::batch::columns::{Batch, BatchColumns};
use tierlog_core::checksum::crc32c;
use tierlog_core::error::Result;
use tierlog_core::segment::peek::peek;
use tierlog_core::segment::{Scan, ScanOptions, StopReason, Visitor, scan_slice};

/// Asserts that batches follow each other directly and in order.
#[derive(Default)]
struct Walked {
    end: u64,
    last_offset: Option<i64>,
    batches: usize,
}

impl Visitor for Walked {
    fn batch(&mut self, position: u64, batch: &Batch, records: &[u8]) -> Result<()> {
        let header = &batch.header;
        assert_eq!(position, self.end);
        assert!(header.base_offset >= 0 && header.last_offset() >= header.base_offset);
        assert!(self.last_offset.is_none_or(|before| before < header.base_offset));
        let expected = if header.is_control() { header.size_bytes() as usize - 61 } else { 0 };
        assert_eq!(records.len(), expected);
        self.end += header.size_bytes();
        self.last_offset = Some(header.last_offset());
        self.batches += 1;
        Ok(())
    }
}

fn walk(data: &[u8], options: &ScanOptions) -> (Scan, Walked) {
    let mut walked = Walked::default();
    let Ok(scan) = scan_slice(data, options, &mut walked) else {
        panic!("a visitor without errors caused one");
    };
    assert_eq!(scan.stop.position, walked.end);
    assert!(walked.end <= options.end.unwrap_or(u64::MAX).min(data.len() as u64));
    (scan, walked)
}

/// Checks scans of `data` with and without checksums, and a scan of the bytes that were accepted.
pub fn check_scan(data: &[u8]) {
    let options = ScanOptions { hash_bytes: true, ..ScanOptions::default() };
    let (scan, walked) = walk(data, &options);
    let (reason, end) = (scan.stop.reason, walked.end);
    assert_eq!(reason == StopReason::End, end == data.len() as u64);
    assert_eq!(scan.range_crc32c, (reason == StopReason::End).then(|| crc32c(data)));
    if reason == StopReason::ZeroTail {
        assert!(data[end as usize..].iter().all(|&byte| byte == 0));
    }
    let start = peek(data);
    assert!(walked.batches == 0 || start.magic.is_some_and(|magic| magic <= 2));

    let (trusting, found) = walk(data, &ScanOptions { verify_crc: false, ..Default::default() });
    if reason == StopReason::BadCrc {
        assert!(found.end >= end && found.batches >= walked.batches);
    } else {
        assert_eq!((trusting.stop, found.batches), (scan.stop, walked.batches));
    }
    if 0 < end && end < data.len() as u64 {
        let (again, found) = walk(data, &ScanOptions { end: Some(end), ..options });
        assert_eq!((again.stop.reason, found.batches), (StopReason::End, walked.batches));
        assert_eq!(again.range_crc32c, Some(crc32c(&data[..end as usize])));
    }
}

/// Returns the batches that a scan accepts, and the scan.
pub fn columns(data: &[u8]) -> (BatchColumns, Scan) {
    let mut columns = BatchColumns::default();
    match scan_slice(data, &ScanOptions::default(), &mut columns) {
        Ok(scan) => (columns, scan),
        Err(error) => panic!("a visitor without errors caused one: {error}"),
    }
}
