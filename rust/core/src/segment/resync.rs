//! Finds the first sound batch after a damaged one (docs/FORMATS.md section 2).
//!
//! A candidate is a header of magic 2 with values that this segment can have and a correct checksum.
//! Records may hold whole batches of another log, so a candidate counts first when the batches from
//! it on reach the end of the segment. Messages before magic 2 are not searched for.

use crate::batch::columns::Batch;
use crate::batch::header::{
    BatchHeader, CRC_START, HEADER_SIZE, LOG_OVERHEAD, MAGIC_END, MIN_BATCH_LENGTH,
};
use crate::checksum::Running;
use crate::error::Result;
use crate::segment::{BLOCK_BYTES, ScanOptions, StopReason, Visitor, scan_file};
use crate::source::{ReadBuffer, SegmentFile};

/// Bytes whose checksum may be wrong in one search. It bounds the cost of bytes that look like headers.
const MAX_VAIN_BYTES: u64 = 64 << 20;
/// Candidates that a search tries until one leads to the end of the segment.
const MAX_ATTEMPTS: usize = 16;

/// The bounds of the segment that is searched.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The segment's base offset.
    pub base_offset: i64,
    /// The base offset of the next segment, or the largest offset.
    pub next_base_offset: i64,
    /// The position at which the bytes end.
    pub end: u64,
}

impl Bounds {
    fn plausible(&self, header: &BatchHeader, position: u64) -> bool {
        header.batch_length >= MIN_BATCH_LENGTH
            && header.size_bytes() >= HEADER_SIZE as u64
            && header.size_bytes() <= self.end.saturating_sub(position)
            && header.base_offset >= self.base_offset
            && header.validate(position).is_ok()
            && header.last_offset() < self.next_base_offset
            && i32::try_from(header.last_offset() - self.base_offset).is_ok()
    }
}

/// Returns the position of the first batch at or after `start` whose successors reach the end of the
/// segment. If there is none, returns the first candidate.
pub fn find_batch(file: &SegmentFile, start: u64, bounds: &Bounds) -> Result<Option<u64>> {
    let (mut first, mut from) = (None, start);
    for _ in 0..MAX_ATTEMPTS {
        let Some(position) = find_candidate(file, from, bounds)? else { break };
        let options = ScanOptions { start: position, end: Some(bounds.end), ..Default::default() };
        let stop = scan_file(file, &options, &mut Ignore)?.stop;
        if stop.reason == StopReason::End {
            return Ok(Some(position));
        }
        // The batch that holds these batches, if there is one, ends after them.
        from = stop.position.max(position + 1);
        first.get_or_insert(position);
    }
    Ok(first)
}

/// A visitor for scans that only check.
struct Ignore;

impl Visitor for Ignore {
    fn batch(&mut self, _position: u64, _batch: &Batch, _records: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Returns the position of the first sound batch at or after `start`.
fn find_candidate(file: &SegmentFile, start: u64, bounds: &Bounds) -> Result<Option<u64>> {
    let mut buffer = ReadBuffer::new(BLOCK_BYTES);
    let mut summing = Vec::new();
    let (mut position, mut vain_bytes) = (start, 0);
    while position < bounds.end {
        let filled = file.read_at(position, &mut buffer)?;
        let window = &buffer[..filled];
        for at in candidates(window) {
            let here = position + at as u64;
            let Some(bytes) = window[at..].first_chunk::<HEADER_SIZE>() else { break };
            let header = BatchHeader::parse(bytes);
            if !bounds.plausible(&header, here) {
                continue;
            }
            if crc_holds(file, here, &header, &mut summing)? {
                return Ok(Some(here));
            }
            vain_bytes += header.size_bytes();
            if vain_bytes > MAX_VAIN_BYTES {
                return Ok(None);
            }
        }
        if filled < HEADER_SIZE {
            return Ok(None);
        }
        position += (filled - HEADER_SIZE + 1) as u64;
    }
    Ok(None)
}

/// Yields the positions with a magic byte of 2 and a length above 0 where a header has them.
fn candidates(window: &[u8]) -> impl Iterator<Item = usize> {
    let magics = window.get(MAGIC_END - 1..).unwrap_or_default();
    let found = magics.iter().enumerate().filter(|&(_, &magic)| magic == 2).map(|(at, _)| at);
    found.filter(|&at| window[at] < 0x80 && window[at + LOG_OVERHEAD - 4] < 0x80)
}

fn crc_holds(
    file: &SegmentFile,
    position: u64,
    header: &BatchHeader,
    buffer: &mut Vec<u8>,
) -> Result<bool> {
    buffer.resize(BLOCK_BYTES, 0);
    let end = position + header.size_bytes();
    let mut at = position + CRC_START as u64;
    let mut sum = Running::crc32c();
    while at < end {
        let wanted = (end - at).min(BLOCK_BYTES as u64) as usize;
        let filled = file.read_at(at, &mut buffer[..wanted])?;
        if filled == 0 {
            return Ok(false);
        }
        sum.update(&buffer[..filled]);
        at += filled as u64;
    }
    Ok(sum.value() == header.crc)
}
