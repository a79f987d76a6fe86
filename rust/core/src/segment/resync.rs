//! Finds the first sound batch after a damaged batch.
//!
//! A candidate is a header of magic 2 with values that this segment can have and a correct
//! checksum. Records may contain whole batches of another log. So a scan starts at the candidate,
//! and the search looks for the next candidate after the scanned batches. The candidate counts only
//! if the offsets of the scanned batches are below the offset of that next candidate. Messages of
//! magic 0 and 1 are not searched for.

use crate::batch::columns::Batch;
use crate::batch::header::{
    BatchHeader, CRC_START, HEADER_SIZE, LOG_OVERHEAD, MAGIC_END, MIN_BATCH_LENGTH,
};
use crate::checksum::Running;
use crate::error::Result;
use crate::segment::{BLOCK_BYTES, Scan, ScanOptions, StopReason, Visitor, scan_file, scan_slice};
use crate::source::{ReadBuffer, SegmentFile};

/// Largest number of bytes with a wrong checksum in one search. It limits the cost of bytes that
/// only look like headers.
const MAX_VAIN_BYTES: u64 = 64 << 20;
/// Largest number of candidates inside records that a search skips.
const MAX_ATTEMPTS: usize = 16;

/// Bytes of a segment that can be searched.
pub trait Searched {
    /// The number of bytes.
    fn size_bytes(&self) -> u64;
    /// Fills `buffer` from `position` and returns the number of bytes, which is below the size of
    /// `buffer` only at the end.
    fn read_at(&self, position: u64, buffer: &mut [u8]) -> Result<usize>;
    /// Scans from `options.start`.
    fn scan(&self, options: &ScanOptions, visitor: &mut LastOffset) -> Result<Scan>;
}

impl Searched for SegmentFile {
    fn size_bytes(&self) -> u64 {
        self.size_bytes()
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> Result<usize> {
        self.read_at(position, buffer)
    }

    fn scan(&self, options: &ScanOptions, visitor: &mut LastOffset) -> Result<Scan> {
        scan_file(self, options, visitor)
    }
}

impl Searched for [u8] {
    fn size_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> Result<usize> {
        let rest = &self[usize::try_from(position).unwrap_or(usize::MAX).min(self.len())..];
        let filled = rest.len().min(buffer.len());
        buffer[..filled].copy_from_slice(&rest[..filled]);
        Ok(filled)
    }

    fn scan(&self, options: &ScanOptions, visitor: &mut LastOffset) -> Result<Scan> {
        scan_slice(self, options, visitor)
    }
}

/// A visitor that keeps the last offset of a scan.
#[derive(Debug)]
pub struct LastOffset(i64);

impl Visitor for LastOffset {
    fn batch(&mut self, _position: u64, batch: &Batch, _records: &[u8]) -> Result<()> {
        self.0 = batch.header.last_offset();
        Ok(())
    }
}

/// The offsets that a searched batch may have.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The last offset of the batch is at least this offset.
    pub offset: i64,
    /// The last offset of the batch is below this offset: the base offset of the next segment, or
    /// the largest offset.
    pub next_base_offset: i64,
}

impl Bounds {
    fn plausible(&self, header: &BatchHeader, position: u64, end: u64) -> bool {
        header.batch_length >= MIN_BATCH_LENGTH
            && header.size_bytes() >= HEADER_SIZE as u64
            && header.size_bytes() <= end.saturating_sub(position)
            && header.validate(position).is_ok()
            && header.last_offset() >= self.offset
            && header.last_offset() < self.next_base_offset
    }
}

/// The position and the base offset of a sound batch.
type Candidate = (u64, i64);

/// Returns the position of the first sound batch at or after `start`.
pub fn find_batch<S: Searched + ?Sized>(
    source: &S,
    start: u64,
    bounds: &Bounds,
) -> Result<Option<u64>> {
    let Some(mut found) = find_candidate(source, start, bounds)? else { return Ok(None) };
    for _ in 0..MAX_ATTEMPTS {
        let mut last = LastOffset(found.1);
        let options = ScanOptions { start: found.0, ..ScanOptions::default() };
        let stop = source.scan(&options, &mut last)?.stop;
        if stop.reason == StopReason::End {
            break;
        }
        let next = find_candidate(source, stop.position.max(found.0 + 1), bounds)?;
        match next {
            // The batches before `next` are inside a record.
            Some(next) if next.1 <= last.0 => found = next,
            _ => break,
        }
    }
    Ok(Some(found.0))
}

/// Returns the first batch at or after `start` whose checksum is correct.
fn find_candidate<S: Searched + ?Sized>(
    source: &S,
    start: u64,
    bounds: &Bounds,
) -> Result<Option<Candidate>> {
    let end = source.size_bytes();
    let mut buffer = ReadBuffer::new(BLOCK_BYTES);
    let mut summing = Vec::new();
    let (mut position, mut vain_bytes) = (start, 0);
    while position < end {
        let filled = source.read_at(position, &mut buffer)?;
        let window = &buffer[..filled];
        for at in candidates(window) {
            let here = position + at as u64;
            let Some(bytes) = window[at..].first_chunk::<HEADER_SIZE>() else { break };
            let header = BatchHeader::parse(bytes);
            if !bounds.plausible(&header, here, end) {
                continue;
            }
            if crc_holds(source, here, &header, &mut summing)? {
                return Ok(Some((here, header.base_offset)));
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

/// Yields the positions at which a header may start: the magic byte is 2, and base offset and
/// length are not negative.
fn candidates(window: &[u8]) -> impl Iterator<Item = usize> {
    let magics = window.get(MAGIC_END - 1..).unwrap_or_default();
    let found = magics.iter().enumerate().filter(|&(_, &magic)| magic == 2).map(|(at, _)| at);
    found.filter(|&at| window[at] < 0x80 && window[at + LOG_OVERHEAD - 4] < 0x80)
}

fn crc_holds<S: Searched + ?Sized>(
    source: &S,
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
        let filled = source.read_at(at, &mut buffer[..wanted])?;
        if filled == 0 {
            return Ok(false);
        }
        sum.update(&buffer[..filled]);
        at += filled as u64;
    }
    Ok(sum.value() == header.crc)
}
