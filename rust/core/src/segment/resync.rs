//! Where a batch begins, looked for from any byte of a segment (formats section 2).
//!
//! A candidate is a header of magic 2 with values that this segment can have, and it counts when
//! its checksum does. Payloads may hold whole batches of some other log, so what is found here is
//! only ever a guess: whoever uses it compares it with where the batches before it really end.
//! Messages before magic 2 are not looked for.

use crate::batch::header::{
    BatchHeader, CRC_START, HEADER_SIZE, LOG_OVERHEAD, MAGIC_END, MIN_BATCH_LENGTH,
};
use crate::checksum::Running;
use crate::error::Result;
use crate::segment::BLOCK_BYTES;
use crate::source::{ReadBuffer, SegmentFile};

/// Bytes that may be summed in vain: bytes made to look like headers cost no more than that.
const MAX_VAIN_BYTES: u64 = 64 << 20;

/// What is known of a segment whose batches are looked for.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The segment's base offset.
    pub base_offset: i64,
    /// Where the next segment starts, or the largest offset.
    pub next_base_offset: i64,
    /// Where the bytes end.
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

/// The first byte in `[start, until)` at which a batch seems to begin.
pub fn find_batch(
    file: &SegmentFile,
    start: u64,
    until: u64,
    bounds: &Bounds,
) -> Result<Option<u64>> {
    let mut buffer = ReadBuffer::new(BLOCK_BYTES);
    let mut summing = Vec::new();
    let (mut position, mut vain_bytes) = (start, 0);
    while position < until {
        let filled = file.read_at(position, &mut buffer)?;
        let window = &buffer[..filled];
        for at in candidates(window) {
            let here = position + at as u64;
            if here >= until {
                return Ok(None);
            }
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

/// Where a magic of 2 and a length above 0 stand as in a header.
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
