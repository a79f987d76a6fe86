//! A segment scanned in ranges equals the whole scan, whatever the cuts; false batches are
//! rejected.

#![expect(clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::path::PathBuf;

use tierlog_core::batch::columns::{Batch, BatchColumns};
use tierlog_core::checksum::crc32c;
use tierlog_core::error::Result;
use tierlog_core::index::producer_state::ProducerState;
use tierlog_core::segment::outline::{OutlineWriter, replay};
use tierlog_core::segment::pieces::{SegmentFold, find_piece, outline_again, scan_piece};
use tierlog_core::segment::rebuild::{RebuildVisitor, Rebuilder};
use tierlog_core::segment::resync::{Bounds, find_batch};
use tierlog_core::segment::{ScanOptions, StopReason, Visitor, scan_file, scan_slice};
use tierlog_core::source::SegmentFile;

const ROOM: usize = 1 << 20;

/// A v2 batch of ten offsets whose records are `body`.
fn batch(base_offset: i64, body: &[u8]) -> Vec<u8> {
    let mut tail = vec![0, 0, 0, 0, 0, 9];
    for timestamp in [1000 + base_offset, 2000, -1] {
        tail.extend_from_slice(&timestamp.to_be_bytes());
    }
    tail.extend_from_slice(&[0xff; 6]);
    tail.extend_from_slice(&10i32.to_be_bytes());
    tail.extend_from_slice(body);
    let mut bytes = base_offset.to_be_bytes().to_vec();
    bytes.extend_from_slice(&(tail.len() as i32 + 9).to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0, 7, 2]);
    bytes.extend_from_slice(&crc32c(&tail).to_be_bytes());
    bytes.extend_from_slice(&tail);
    bytes
}

fn segment(bodies: &[&[u8]]) -> Vec<u8> {
    let numbered = bodies.iter().enumerate();
    numbered.flat_map(|(number, body)| batch(10 * number as i64, body)).collect()
}

struct TempFile(PathBuf);

impl TempFile {
    fn new(bytes: &[u8]) -> Self {
        let thread = std::thread::current().id();
        let name = format!("tierlog-pieces-{}-{thread:?}.log", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).expect("a writable folder");
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

fn bounds(file: &SegmentFile) -> Bounds {
    Bounds { base_offset: 0, next_base_offset: i64::MAX, end: file.size_bytes() }
}

fn fold() -> SegmentFold {
    let rebuilder = Rebuilder::new(Some(0), 100, ProducerState::default());
    SegmentFold::new(RebuildVisitor::new(rebuilder, usize::MAX))
}

/// Returns all results of a scan in ranges, and the number of ranges that had to be repeated.
fn folded(bytes: &[u8], cut: u64) -> (String, usize) {
    let temporary = TempFile::new(bytes);
    let file = temporary.open();
    let (mut fold, mut again) = (fold(), 0);
    let mut start = 0;
    while start < file.size_bytes() && !fold.is_stopped() {
        let until = start + cut;
        if fold.position() < until.min(file.size_bytes()) {
            let guess = match start {
                0 => Some(scan_piece(&file, &from(0, until, -1), ROOM).expect("readable")),
                _ => find_piece(&file, start, until, &bounds(&file), ROOM).expect("readable"),
            };
            let piece = guess.filter(|piece| fold.fits(piece)).unwrap_or_else(|| {
                again += 1;
                let options = from(fold.position(), until, fold.last_offset());
                scan_piece(&file, &options, ROOM).expect("readable")
            });
            let outlined = outline_again(&file, &piece).expect("readable");
            assert_eq!(outlined, piece);
            assert!(fold.fits(&piece));
            if let Err(error) = fold.take(&piece) {
                return (error.to_string(), again);
            }
        }
        start = until;
    }
    let done = fold.finish(None).expect("sound batches");
    (format!("{:?} {:?} {:?}", done.rebuilt, done.scan, done.batches), again)
}

fn from(start: u64, until: u64, after_offset: i64) -> ScanOptions {
    ScanOptions {
        start,
        until: Some(until),
        after_offset,
        hash_bytes: true,
        ..ScanOptions::default()
    }
}

fn whole(bytes: &[u8]) -> String {
    let temporary = TempFile::new(bytes);
    let rebuilder = Rebuilder::new(Some(0), 100, ProducerState::default());
    let mut visitor = RebuildVisitor::new(rebuilder, usize::MAX);
    let options = ScanOptions { hash_bytes: true, ..ScanOptions::default() };
    let scan = match scan_file(&temporary.open(), &options, &mut visitor) {
        Ok(scan) => scan,
        Err(error) => return error.to_string(),
    };
    let (rebuilt, _) = visitor.rebuilder.finish(None).expect("sound batches");
    format!("{rebuilt:?} {scan:?} {:?}", visitor.batches)
}

#[test]
fn every_cut_equals_the_whole_and_reads_no_byte_twice() {
    let bytes = segment(&[&[1; 40], &[], &[3; 300], &[4; 5], &[5; 61], &[6; 17], &[7; 90]]);
    for cut in 1..=bytes.len() as u64 + 1 {
        assert_eq!(folded(&bytes, cut), (whole(&bytes), 0), "{cut}");
    }
}

#[test]
fn every_flipped_byte_stops_both_scans_alike() {
    let bytes = segment(&[&[1; 40], &[2; 20], &[3; 60], &[4; 5]]);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x81;
        for cut in [90, 150] {
            assert_eq!(folded(&damaged, cut).0, whole(&damaged), "byte {at}, cut {cut}");
        }
    }
}

#[test]
fn embedded_batches_are_found_and_rejected() {
    // Offsets that seem to continue the segment: the range is wrong, and the fold rejects it.
    let (inner, next) = (batch(10, &[9; 40]), batch(20, &[9; 40]));
    let bytes = segment(&[&[1; 40], &inner, &next, &[4; 5]]);
    let temporary = TempFile::new(&bytes);
    let file = temporary.open();
    let second = 101 + 61;
    let found = find_batch(&file, second, second + 50, &bounds(&file)).expect("readable");
    assert_eq!(found, Some(second));
    let mut again = 0;
    for cut in 1..=bytes.len() as u64 {
        let (told, count) = folded(&bytes, cut);
        assert_eq!(told, whole(&bytes), "{cut}");
        again += count;
    }
    assert!(again > 0);
}

#[test]
fn false_start_is_replaced_by_a_later_one() {
    let inner = batch(30, &[9; 40]);
    let bytes = segment(&[&[1; 40], &inner, &[3; 70], &[4; 5]]);
    let temporary = TempFile::new(&bytes);
    let file = temporary.open();
    let end = file.size_bytes();
    let piece = find_piece(&file, 110, end, &bounds(&file), ROOM).expect("readable");
    let third = 101 + 61 + inner.len() as u64;
    assert_eq!(piece.map(|piece| (piece.start, piece.stop.position)), Some((third, end)));
}

#[test]
fn false_headers_stay_within_their_budget() {
    // Each of many headers claims half of the file; none has the right checksum.
    let mut header = batch(0, &[])[..61].to_vec();
    header[8..12].copy_from_slice(&(2i32 << 20).to_be_bytes());
    let bytes = header.repeat(4 << 20 >> 6);
    let temporary = TempFile::new(&bytes);
    let file = temporary.open();
    assert_eq!(find_batch(&file, 1, bytes.len() as u64, &bounds(&file)).expect("readable"), None);
}

#[test]
fn outline_equals_the_scan() {
    #[derive(Debug, Default, PartialEq)]
    struct Seen(Vec<(u64, Batch, Vec<u8>)>);
    impl Visitor for Seen {
        fn batch(&mut self, position: u64, batch: &Batch, records: &[u8]) -> Result<()> {
            let mut batch = *batch;
            batch.header.crc = 0;
            self.0.push((position, batch, records.to_vec()));
            Ok(())
        }
    }
    let mut control = batch(40, &[8; 30]);
    control[22] = 0x20;
    let crc = crc32c(&control[21..]);
    control[17..21].copy_from_slice(&crc.to_be_bytes());
    let bytes = [segment(&[&[1; 40], &[2; 9]]), control, batch(90, &[])].concat();
    let (mut seen, mut writer) = (Seen::default(), OutlineWriter::new(ROOM));
    let options = ScanOptions::default();
    scan_slice(&bytes, &options, &mut seen).expect("no I/O");
    scan_slice(&bytes, &options, &mut writer).expect("no I/O");
    assert_eq!((writer.batches(), writer.offsets()), (4, Some((0, 99))));
    let outline = writer.into_bytes().expect("room");
    let mut again = Seen::default();
    assert_eq!(replay(&outline, 0, &mut again).expect("an outline"), bytes.len() as u64);
    assert_eq!(again, seen);
    for cut in 1..outline.len() {
        // The result is whole rows or an error, never a panic.
        let _ = replay(&outline[..cut], 0, &mut BatchColumns::default());
    }
    let mut small = OutlineWriter::new(3);
    scan_slice(&bytes, &options, &mut small).expect("no I/O");
    assert!(small.into_bytes().is_none());
}

#[test]
fn fold_accepts_only_the_next_range() {
    let bytes = segment(&[&[1; 40], &[2; 40], &[3; 40]]);
    let temporary = TempFile::new(&bytes);
    let file = temporary.open();
    let first = scan_piece(&file, &from(0, 50, -1), ROOM).expect("readable");
    let third = scan_piece(&file, &from(202, 303, -1), ROOM).expect("readable");
    let mut fold = fold();
    assert!(fold.take(&third).is_err());
    fold.take(&first).expect("the first piece");
    assert!(!fold.fits(&first) && !fold.fits(&third));
    let second = scan_piece(&file, &from(101, 202, 9), ROOM).expect("readable");
    // Offsets must ascend from one range to the next.
    let backwards = scan_piece(&file, &from(101, 202, 10), ROOM).expect("readable");
    assert_eq!(backwards.stop.reason, StopReason::OffsetOrder);
    assert!(fold.fits(&second));
}
