//! Scans of files and slices give the same rows and the same stop for any position of block
//! borders.

#![expect(clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use proptest::prelude::*;
use tierlog_core::batch::columns::{Batch, BatchColumns};
use tierlog_core::checksum::crc32c;
use tierlog_core::error::Result;
use tierlog_core::segment::{
    BLOCK_BYTES, ScanOptions, Stop, StopReason, Visitor, copy_file, scan_file, scan_slice,
};
use tierlog_core::source::{CopyTarget, SegmentFile};

/// Returns a v2 batch with the records `body`, which the scanner does not decode.
fn batch(base_offset: i64, records: i32, attributes: i16, body: &[u8]) -> Vec<u8> {
    let mut tail = Vec::new();
    tail.extend_from_slice(&attributes.to_be_bytes());
    tail.extend_from_slice(&(records - 1).to_be_bytes());
    for timestamp in [1000i64, 2000, -1] {
        tail.extend_from_slice(&timestamp.to_be_bytes());
    }
    tail.extend_from_slice(&(-1i16).to_be_bytes());
    tail.extend_from_slice(&(-1i32).to_be_bytes());
    tail.extend_from_slice(&records.to_be_bytes());
    tail.extend_from_slice(body);
    let mut bytes = base_offset.to_be_bytes().to_vec();
    bytes.extend_from_slice(&(tail.len() as i32 + 9).to_be_bytes());
    bytes.extend_from_slice(&7i32.to_be_bytes());
    bytes.push(2);
    bytes.extend_from_slice(&crc32c(&tail).to_be_bytes());
    bytes.extend_from_slice(&tail);
    bytes
}

fn segment(body_sizes: &[usize]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, &size) in body_sizes.iter().enumerate() {
        let control = if index % 5 == 4 && size < 100 { 0x20 } else { 0 };
        bytes.extend(batch(index as i64 * 10, 10, control, &vec![index as u8; size]));
    }
    bytes
}

struct TempFile(PathBuf);

impl TempFile {
    fn new(bytes: &[u8]) -> Self {
        let thread = std::thread::current().id();
        let path = std::env::temp_dir()
            .join(format!("tierlog-scan-{}-{thread:?}.log", std::process::id()));
        File::create(&path).and_then(|mut file| file.write_all(bytes)).expect("a writable folder");
        Self(path)
    }

    fn open(&self) -> SegmentFile {
        SegmentFile::open(&self.0).expect("a regular file")
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Positions and base offsets of the rows, and the control payloads.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    rows: Vec<(u64, i64)>,
    control: Vec<Vec<u8>>,
}

impl Visitor for Seen {
    fn batch(&mut self, position: u64, batch: &Batch, records: &[u8]) -> Result<()> {
        self.rows.push((position, batch.header.base_offset));
        if batch.header.is_control() {
            self.control.push(records.to_vec());
        }
        Ok(())
    }
}

fn both(bytes: &[u8], options: &ScanOptions) -> ((Seen, Stop, Option<u32>), bool) {
    let mut in_memory = Seen::default();
    let slice = scan_slice(bytes, options, &mut in_memory).expect("no I/O in a slice");
    let file = TempFile::new(bytes);
    let mut from_file = Seen::default();
    let scan = scan_file(&file.open(), options, &mut from_file).expect("a readable file");
    let same = in_memory == from_file
        && slice.stop == scan.stop
        && slice.range_crc32c == scan.range_crc32c;
    ((in_memory, slice.stop, slice.range_crc32c), same)
}

/// Returns the bytes of the copy that a scan writes, after checking that its rows equal those of a
/// scan without a copy.
fn copied(bytes: &[u8]) -> (Vec<u8>, StopReason, Option<u32>) {
    let options = ScanOptions { hash_bytes: true, ..ScanOptions::default() };
    let file = TempFile::new(bytes);
    let (mut alone, mut copying) = (Seen::default(), Seen::default());
    let expected = scan_file(&file.open(), &options, &mut alone).expect("a readable file");
    let path = file.0.with_extension("copy");
    let mut target = CopyTarget::new(File::create(&path).expect("a writable folder"));
    let scan = copy_file(&file.open(), &options, &mut copying, Some(&mut target));
    let scan = scan.expect("a readable and a writable file");
    let arrived = std::fs::read(&path).expect("a readable file");
    std::fs::remove_file(&path).expect("a writable folder");
    assert_eq!((alone, expected.stop), (copying, scan.stop.clone()));
    assert_eq!(expected.range_crc32c, scan.range_crc32c);
    assert!(!target.failed());
    (arrived, scan.stop.reason, scan.range_crc32c)
}

#[test]
fn a_copy_holds_every_byte_that_was_scanned() {
    let around = BLOCK_BYTES - 100;
    let large = 20 * BLOCK_BYTES + 7;
    let sizes = [10, around, 60, 3 * BLOCK_BYTES, 0, large, BLOCK_BYTES - 61, 5, 9, BLOCK_BYTES];
    let bytes = segment(&sizes);
    let (arrived, reason, hash) = copied(&bytes);
    assert!(arrived == bytes, "{} bytes arrived, {} expected", arrived.len(), bytes.len());
    assert_eq!((reason, hash), (StopReason::End, Some(crc32c(&bytes))));

    // Also when the scan stops early, the copy holds all bytes that were read.
    let (arrived, reason, hash) = copied(&bytes[..bytes.len() - 1]);
    assert_eq!((reason, hash), (StopReason::TornTail, None));
    assert!(bytes.starts_with(&arrived));
    assert_eq!(copied(&[]), (Vec::new(), StopReason::End, Some(0)));
}

#[test]
fn failed_copy_is_reported() {
    let file = TempFile::new(&segment(&[100; 3]));
    let options = ScanOptions { hash_bytes: true, ..ScanOptions::default() };
    let full = File::options().write(true).open("/dev/full").expect("a device of every Linux");
    let mut target = CopyTarget::new(full);
    let scan = copy_file(&file.open(), &options, &mut Seen::default(), Some(&mut target));
    let error = scan.err().and_then(|error| error.io).and_then(|error| error.raw_os_error());
    assert_eq!((error, target.failed()), (Some(28), true));
}

#[test]
fn batches_that_cross_block_borders() {
    let around = BLOCK_BYTES - 100;
    let sizes = [10, around, 60, 3 * BLOCK_BYTES, 0, BLOCK_BYTES, 20, 17, BLOCK_BYTES - 61, 5, 9];
    let bytes = segment(&sizes);
    for verify_crc in [true, false] {
        for hash_bytes in [true, false] {
            let options = ScanOptions { verify_crc, hash_bytes, ..ScanOptions::default() };
            let ((seen, stop, hash), same) = both(&bytes, &options);
            assert!(same, "file and slice differ");
            assert_eq!(seen.rows.len(), sizes.len());
            assert_eq!((stop.reason, stop.position), (StopReason::End, bytes.len() as u64));
            assert_eq!(hash, hash_bytes.then(|| crc32c(&bytes)));
            assert_eq!(seen.control, [vec![], vec![9; 5]]);
        }
    }
}

#[test]
fn a_flipped_bit_beyond_the_border_is_found() {
    let mut bytes = segment(&[10, 2 * BLOCK_BYTES, 10]);
    let inside = 71 + 61 + BLOCK_BYTES + 5;
    bytes[inside] ^= 1;
    let ((seen, stop, _), same) = both(&bytes, &ScanOptions::default());
    assert!(same);
    assert_eq!((seen.rows.len(), stop.reason, stop.position), (1, StopReason::BadCrc, 71));
}

#[test]
fn zeros_at_the_end_are_distinguished_from_damage() {
    let whole = segment(&[10, 20]);
    for zeros in [1usize, 16, 17, 61, BLOCK_BYTES + 3] {
        let mut bytes = whole.clone();
        bytes.resize(whole.len() + zeros, 0);
        let ((_, stop, _), same) = both(&bytes, &ScanOptions::default());
        assert!(same);
        assert_eq!((stop.reason, stop.position), (StopReason::ZeroTail, whole.len() as u64));
        bytes.push(1);
        let ((_, stop, _), same) = both(&bytes, &ScanOptions::default());
        assert!(same);
        assert_ne!(stop.reason, StopReason::ZeroTail);
        assert_eq!(stop.position, whole.len() as u64);
    }
}

#[test]
fn every_cut_is_a_torn_tail_at_the_right_batch() {
    let bytes = segment(&[10, 0, 33]);
    let starts = [0usize, 71, 132];
    for cut in 0..bytes.len() {
        let ((seen, stop, _), same) = both(&bytes[..cut], &ScanOptions::default());
        assert!(same);
        let batches = [71, 132, bytes.len()].iter().filter(|&&end| end <= cut).count();
        assert_eq!(seen.rows.len(), batches);
        let clean = starts.contains(&cut);
        let reason = if clean { StopReason::End } else { StopReason::TornTail };
        let position = if clean { cut } else { starts[batches] };
        // A cut that leaves only the leading zeros of a base offset is a zero tail.
        let zeros = !clean && bytes[starts[batches]..cut].iter().all(|&byte| byte == 0);
        let reason = if zeros { StopReason::ZeroTail } else { reason };
        assert_eq!((stop.reason, stop.position), (reason, position as u64), "cut at {cut}");
    }
}

#[test]
fn every_bit_flip_under_the_crc_is_detected() {
    let bytes = segment(&[10, 0, 33]);
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let mut rows = BatchColumns::default();
        let scan = scan_slice(&flipped, &ScanOptions::default(), &mut rows).expect("no I/O");
        let starts = [0usize, 71, 132];
        let owner = starts.iter().rposition(|&start| start <= bit / 8).expect("a batch");
        let field = bit / 8 - starts[owner];
        // The CRC does not cover base offset and leader epoch. The copy path compares them with the
        // segment's name, the neighbouring segments and the leader epochs.
        if (0..8).contains(&field) || (12..16).contains(&field) {
            continue;
        }
        assert_ne!(scan.stop.reason, StopReason::End, "bit {bit}");
        assert_eq!(scan.stop.position, starts[owner] as u64, "bit {bit}");
    }
}

#[test]
fn impossible_lengths_are_refused_before_anything_is_allocated() {
    for (length, reason) in [
        (-1, StopReason::BadLength),
        (0, StopReason::BadLength),
        (13, StopReason::BadLength),
        (48, StopReason::BadLength),
        (i32::MIN, StopReason::BadLength),
        (i32::MAX, StopReason::BadLength),
        (i32::MAX - 12, StopReason::TornTail),
    ] {
        let mut bytes = segment(&[10]);
        bytes[8..12].copy_from_slice(&i32::to_be_bytes(length));
        let ((_, stop, _), same) = both(&bytes, &ScanOptions::default());
        assert!(same);
        assert_eq!((stop.reason, stop.position), (reason, 0), "length {length}");
    }
}

#[test]
fn offsets_must_ascend() {
    let mut bytes = batch(10, 10, 0, &[]);
    bytes.extend(batch(19, 1, 0, &[]));
    let ((_, stop, _), same) = both(&bytes, &ScanOptions::default());
    assert!(same);
    assert_eq!((stop.reason, stop.position), (StopReason::OffsetOrder, 61));
}

#[test]
fn range_starts_and_ends_as_requested() {
    let bytes = segment(&[10, 0, 33]);
    let options = ScanOptions { start: 71, end: Some(132), ..ScanOptions::default() };
    let ((seen, stop, _), same) = both(&bytes, &options);
    assert!(same);
    assert_eq!(seen.rows, [(71, 10)]);
    assert_eq!((stop.reason, stop.position), (StopReason::End, 132));
    let beyond = ScanOptions { start: 1 << 40, ..ScanOptions::default() };
    let ((seen, stop, _), same) = both(&bytes, &beyond);
    assert!(same);
    assert_eq!((seen.rows.len(), stop.reason), (0, StopReason::End));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_end_the_scan(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let ((_, stop, _), same) = both(&bytes, &ScanOptions::default());
        prop_assert!(same);
        prop_assert!(stop.position <= bytes.len() as u64);
    }

    #[test]
    fn damaged_segments_end_at_or_before_the_damage(
        sizes in proptest::collection::vec(0usize..3000, 1..12),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
        verify_crc in any::<bool>(),
    ) {
        let mut bytes = segment(&sizes);
        let at = at.index(bytes.len());
        bytes[at] = value;
        let options = ScanOptions { verify_crc, ..ScanOptions::default() };
        let (_, same) = both(&bytes, &options);
        prop_assert!(same);
    }
}
