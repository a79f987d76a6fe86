//! Reads one segment by its own offset index: finds the range, reads it, checks its batches and
//! returns the batches that answer the read.
//!
//! The bytes come from an open file ([`SegmentIndex::read`]) or from a request to a store
//! ([`SegmentIndex::span`], then [`SegmentIndex::answer`]). Both return batches only if all checks
//! succeed. Otherwise they return `None`, and the caller checks the same range batch by batch.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::batch::answer::{Answer, Asked, Origin, answer};
use crate::batch::checksums::BatchChecksums;
use crate::batch::header::{LOG_OVERHEAD, be_i32};
use crate::index::local as local_index;

/// The largest range of a file that [`SegmentIndex::read`] reads.
const MAX_RANGE_BYTES: usize = 256 << 10;
/// Each range ends this many bytes into the batch after the last one, because that batch's base
/// offset proves the offsets of the last batch.
const NEXT_HEADER_BYTES: i64 = 17;

/// The offset index of a segment, the checksums of the batches that the index points at, and the
/// bounds of the segment.
#[derive(Clone, Copy, Debug)]
pub struct SegmentIndex<'a> {
    /// The entries of the offset index, which were checked.
    pub entries: &'a [u8],
    /// The checksum of each batch that an entry points at, recorded when the segment was copied.
    pub checksums: BatchChecksums<'a>,
    /// The lowest offset of the segment.
    pub start_offset: i64,
    /// The highest offset of the segment.
    pub end_offset: i64,
    /// The size of the segment.
    pub size_bytes: i64,
}

/// The index entries around an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The last offset of the batch at `position`.
    pub last_offset: i64,
    /// The position of the last entry at or below the offset, or 0 if there is no such entry.
    pub position: i64,
    /// The next entry as the last offset of its batch and the position of the batch.
    pub next: Option<(i64, i64)>,
    /// Every batch that can hold the offset ends at or before this position.
    pub covers: i64,
}

/// A range of a segment that begins with a batch.
#[derive(Clone, Copy, Debug)]
struct Range {
    position: i64,
    end: i64,
    first_last_offset: i64,
}

impl Range {
    fn size(&self) -> i64 {
        self.end.saturating_sub(self.position)
    }
}

/// The batches that [`SegmentIndex::read`] found in the memory that it filled.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The position in the segment of the first byte in memory.
    pub position: i64,
    /// The batches in memory.
    pub answer: Answer,
}

/// The size of the batch that was returned last, or 0 before the first batch. A read assumes that
/// the next batch has this size.
#[derive(Debug, Default)]
pub struct BatchSize(AtomicI64);

impl BatchSize {
    fn set_from(&self, batch: &[u8]) {
        if let Some(start) = batch.first_chunk::<LOG_OVERHEAD>() {
            let size = LOG_OVERHEAD as i64 + i64::from(be_i32(start, 8));
            if size != self.0.load(Ordering::Relaxed) {
                self.0.store(size, Ordering::Relaxed);
            }
        }
    }
}

impl SegmentIndex<'_> {
    /// Returns the index entries around `offset`. The batch at the last entry must end at most
    /// `reach_bytes` after the entry's position.
    #[must_use]
    pub fn span(&self, offset: i64, reach_bytes: i64) -> Span {
        let ((last_offset, position), following) =
            local_index::lookup_around(self.entries, self.start_offset, offset);
        let [next, after] = following.map(|found| found.map(|(last, at)| (last, i64::from(at))));
        let covers = match (next, after) {
            (None, _) => self.size_bytes,
            (_, Some((_, position))) => position,
            (Some((_, latest)), None) => latest.saturating_add(reach_bytes).min(self.size_bytes),
        };
        Span { last_offset, position: position.into(), next, covers }
    }

    /// Returns the batches of `data` that answer `asked`. `data` begins at byte `position` of the
    /// segment with a batch whose last offset is `first_last_offset`.
    #[must_use]
    pub fn answer(
        &self,
        data: &[u8],
        position: i64,
        first_last_offset: i64,
        asked: &Asked,
    ) -> Option<Answer> {
        let end = position.saturating_add_unsigned(data.len() as u64);
        let origin = Origin {
            position: position.max(0) as u64,
            checksums: self.checksums,
            start_offset: self.start_offset,
            end_offset: self.end_offset,
            first_last_offset,
            is_end: end == self.size_bytes,
        };
        answer(data, &origin, asked)
    }

    /// Reads the batches that answer `asked` from `file` into `memory`, and adds the number of
    /// bytes that it requests from the file to `read_bytes`.
    ///
    /// The first attempt reads the range that holds the batches if all batches here have the same
    /// size. The second attempt reads the range that holds them in any case.
    pub fn read(
        &self,
        file: &File,
        reach_bytes: i64,
        asked: &Asked,
        likely_size: &BatchSize,
        memory: &mut Vec<u8>,
        read_bytes: &mut i64,
    ) -> Option<Found> {
        let span = self.span(asked.offset, reach_bytes);
        if span.position <= 0 {
            return None;
        }
        let max_bytes = i64::try_from(asked.max_bytes).unwrap_or(i64::MAX);
        let latest = span.next.map_or(self.size_bytes, |(_, latest)| latest);
        let whole = Range {
            position: span.position,
            end: self.cut(span.covers.max(latest.saturating_add(max_bytes))),
            first_last_offset: span.last_offset,
        };
        let batch_bytes = likely_size.0.load(Ordering::Relaxed);
        let likely = self.likely_range(&span, asked.offset, max_bytes, batch_bytes);
        for range in likely.filter(|one| one.size() < whole.size()).into_iter().chain([whole]) {
            *read_bytes = read_bytes.saturating_add(range.size());
            if let Some(answer) = self.read_range(file, &range, asked, memory) {
                likely_size.set_from(&memory[answer.start..]);
                return Some(Found { position: range.position, answer });
            }
        }
        None
    }

    /// Returns the range of the answer if all batches here have the same size and the same number
    /// of offsets. The range begins at a batch that the index points at.
    fn likely_range(
        &self,
        span: &Span,
        offset: i64,
        max_bytes: i64,
        batch_bytes: i64,
    ) -> Option<Range> {
        let (next_last_offset, latest) = span.next?;
        let gap = latest.checked_sub(span.position).filter(|&gap| gap > 0)?;
        let offsets = next_last_offset.checked_sub(span.last_offset).filter(|&count| count > 0)?;
        let batch_bytes = if batch_bytes == 0 { gap } else { batch_bytes.min(gap) };
        let before = match offset.checked_sub(span.last_offset)? {
            ..=0 => 0,
            above => 1 + (above - 1).checked_mul(gap)? / offsets.checked_mul(batch_bytes)?,
        };
        let begin = span.position.checked_add(before.checked_mul(batch_bytes)?)?.min(latest);
        let is_next = begin.saturating_add(batch_bytes / 2) >= latest;
        let (position, first_last_offset) =
            if is_next { (latest, next_last_offset) } else { (span.position, span.last_offset) };
        let end = self.cut(begin.max(position).saturating_add(batch_bytes.max(max_bytes)));
        Some(Range { position, end, first_last_offset })
    }

    fn cut(&self, end: i64) -> i64 {
        end.saturating_add(NEXT_HEADER_BYTES).min(self.size_bytes)
    }

    fn read_range(
        &self,
        file: &File,
        range: &Range,
        asked: &Asked,
        memory: &mut Vec<u8>,
    ) -> Option<Answer> {
        let size = usize::try_from(range.size()).ok()?;
        let position = u64::try_from(range.position).ok()?;
        if size == 0 || size > MAX_RANGE_BYTES {
            return None;
        }
        if memory.len() < size {
            memory.resize(size, 0);
        }
        file.read_exact_at(&mut memory[..size], position).ok()?;
        let found = self.answer(&memory[..size], range.position, range.first_last_offset, asked)?;
        // If the first batch is above the offset, a batch before the range may hold the offset.
        (found.start > 0 || found.first_offset <= asked.offset).then_some(found)
    }
}
