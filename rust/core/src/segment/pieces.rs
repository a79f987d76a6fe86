//! A segment scanned in pieces, and the pieces put together again.
//!
//! A piece is the batches that begin in a range of bytes. Where the first one of them begins is a
//! guess ([`crate::segment::resync`]), so a [`SegmentFold`] takes pieces in order and takes one only if it
//! begins exactly where the batches before it end: the stitch check. By induction every piece taken
//! begins where a batch does, and holds what a scan of the whole would have found there. A piece
//! that does not fit is scanned again from where the fold is.

use crate::batch::columns::{Batch, BatchColumns};
use crate::checksum::join_crc32c;
use crate::error::{Error, ErrorKind, Result};
use crate::index::producer_state::Expiry;
use crate::segment::outline::{OutlineWriter, replay};
use crate::segment::rebuild::{RebuildVisitor, Rebuilt};
use crate::segment::resync::{Bounds, find_batch};
use crate::segment::{Scan, ScanOptions, Stop, StopReason, Visitor, scan_file};
use crate::source::SegmentFile;

/// Embedded batches are followed by something that is none: so often another beginning is tried.
const MAX_ATTEMPTS: usize = 16;

/// The batches that begin in a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where the first one begins.
    pub start: u64,
    /// Where the last one ends, and why the scan ended: [`StopReason::End`] at a batch that begins
    /// behind the range, or at the end of the file.
    pub stop: Stop,
    /// CRC-32C of the bytes between; `None` unless the scan came to its end.
    pub crc32c: Option<u32>,
    /// First and last offset, if there are batches.
    pub offsets: Option<(i64, i64)>,
    /// How many batches.
    pub batches: u64,
    /// What they are; `None` when that took more room than there was.
    pub outline: Option<Vec<u8>>,
}

/// The piece of `[start, until)`, from the first place on at which a batch seems to begin and whose
/// batches go on to the end of the range. `None` when there is no such place.
pub fn find_piece(
    file: &SegmentFile,
    start: u64,
    until: u64,
    bounds: &Bounds,
    max_outline_bytes: usize,
) -> Result<Option<Piece>> {
    let (mut first, mut from) = (None, start);
    for _ in 0..MAX_ATTEMPTS {
        let Some(begin) = find_batch(file, from, until, bounds)? else { break };
        let options = ScanOptions {
            start: begin,
            end: Some(bounds.end),
            until: Some(until),
            hash_bytes: true,
            ..ScanOptions::default()
        };
        let piece = scan_piece(file, &options, max_outline_bytes)?;
        if piece.stop.reason == StopReason::End {
            return Ok(Some(piece));
        }
        // What holds these batches, if anything, ends behind them.
        from = piece.stop.position.max(begin + 1);
        first.get_or_insert(piece);
    }
    Ok(first)
}

/// The piece that begins at `options.start`, where a batch does.
pub fn scan_piece(
    file: &SegmentFile,
    options: &ScanOptions,
    max_outline_bytes: usize,
) -> Result<Piece> {
    let mut outline = OutlineWriter::new(max_outline_bytes);
    let scan = scan_file(file, options, &mut outline)?;
    Ok(Piece {
        start: options.start,
        stop: scan.stop,
        crc32c: scan.range_crc32c,
        offsets: outline.offsets(),
        batches: outline.batches(),
        outline: outline.into_bytes(),
    })
}

/// The same piece with its outline, whatever room that takes. Its checksums were compared before
/// and are not again.
pub fn outline_again(file: &SegmentFile, piece: &Piece) -> Result<Piece> {
    let options = ScanOptions {
        start: piece.start,
        end: Some(piece.stop.position),
        verify_crc: false,
        ..ScanOptions::default()
    };
    let again = scan_piece(file, &options, usize::MAX)?;
    Ok(Piece { outline: again.outline, ..piece.clone() })
}

/// A segment, piece by piece from its beginning.
#[derive(Debug)]
pub struct SegmentFold {
    visitor: RebuildVisitor,
    crc32c: u32,
    last_offset: i64,
    stop: Stop,
}

impl SegmentFold {
    /// Nothing yet; what the batches make goes to `visitor`.
    pub fn new(visitor: RebuildVisitor) -> Self {
        let stop = Stop {
            reason: StopReason::End,
            position: 0,
            expected: String::new(),
            found: String::new(),
        };
        Self { visitor, crc32c: 0, last_offset: -1, stop }
    }

    /// Where the next piece must begin.
    pub fn position(&self) -> u64 {
        self.stop.position
    }

    /// The last offset so far, -1 before any batch.
    pub fn last_offset(&self) -> i64 {
        self.last_offset
    }

    /// Whether batches have ended before the file did: nothing more is taken.
    pub fn is_stopped(&self) -> bool {
        self.stop.reason != StopReason::End
    }

    /// Whether `piece` goes on exactly where this ends.
    pub fn fits(&self, piece: &Piece) -> bool {
        let ascends = piece.offsets.is_none_or(|(first_offset, _)| first_offset > self.last_offset);
        !self.is_stopped() && piece.start == self.stop.position && ascends
    }

    /// Takes a piece that fits.
    pub fn take(&mut self, piece: &Piece) -> Result<()> {
        let Some(outline) = piece.outline.as_deref().filter(|_| self.fits(piece)) else {
            let expected = format!("an outlined piece from byte {} on", self.stop.position);
            let found = format!("one from byte {}", piece.start);
            return Err(Error::new(ErrorKind::InvalidArgument, piece.start, expected, found));
        };
        let end = replay(outline, piece.start, &mut self.visitor)?;
        if end != piece.stop.position {
            let expected = format!("batches up to byte {}", piece.stop.position);
            let found = format!("byte {end}");
            return Err(Error::new(ErrorKind::BadLength, piece.start, expected, found));
        }
        self.crc32c = join_crc32c(self.crc32c, piece.crc32c.unwrap_or(0), end - piece.start);
        self.last_offset = piece.offsets.map_or(self.last_offset, |(_, last_offset)| last_offset);
        self.stop = piece.stop.clone();
        Ok(())
    }

    /// What a scan of the whole would have come to.
    pub fn finish(self, expiry: Option<Expiry>) -> Result<Folded> {
        let whole = !self.is_stopped();
        let (rebuilt, _) = self.visitor.rebuilder.finish(expiry)?;
        Ok(Folded {
            rebuilt,
            scan: Scan { stop: self.stop, range_crc32c: whole.then_some(self.crc32c) },
            batches: self.visitor.batches,
            batches_complete: self.visitor.batches_complete,
        })
    }
}

/// The rows of pieces as tables of the batches of about `part_bytes` each, cut as if the segment had
/// been walked in such parts: a batch that goes beyond its part begins the next one.
#[derive(Debug)]
pub struct PartTables {
    part_bytes: u64,
    end: u64,
    part: BatchColumns,
    done: Vec<BatchColumns>,
}

impl PartTables {
    /// No rows yet.
    pub fn new(part_bytes: u64) -> Self {
        Self { part_bytes, end: 0, part: BatchColumns::default(), done: Vec::new() }
    }

    /// The parts that are whole once the rows of `piece` were added.
    pub fn take(&mut self, piece: &Piece) -> Result<Vec<BatchColumns>> {
        replay(piece.outline.as_deref().unwrap_or_default(), piece.start, self)?;
        Ok(std::mem::take(&mut self.done))
    }

    /// The last part, which may be empty.
    pub fn finish(&mut self) -> BatchColumns {
        std::mem::take(&mut self.part)
    }
}

impl Visitor for PartTables {
    fn batch(&mut self, position: u64, batch: &Batch, _records: &[u8]) -> Result<()> {
        let size_bytes = batch.header.size_bytes();
        if self.part.is_empty() || position.saturating_add(size_bytes) > self.end {
            if !self.part.is_empty() {
                self.done.push(std::mem::take(&mut self.part));
            }
            // A part is made as large as its first batch asks for.
            let mut part_bytes = self.part_bytes.max(1);
            while part_bytes < size_bytes {
                part_bytes = part_bytes.saturating_mul(2);
            }
            self.end = position.saturating_add(part_bytes);
        }
        self.part.push(position, batch);
        Ok(())
    }
}

/// A segment put together.
#[derive(Debug)]
pub struct Folded {
    /// Its indexes.
    pub rebuilt: Rebuilt,
    /// How the scan of the whole would have ended.
    pub scan: Scan,
    /// One row per batch; none where there would be too many.
    pub batches: BatchColumns,
    /// Whether every batch has its row.
    pub batches_complete: bool,
}
