//! The answer to one read, out of bytes that begin with a batch: which batches to hand out, each of
//! them checked.
//!
//! Only what is beyond doubt. Damage, a batch that is cut off, an old format, offsets that do not
//! ascend: for those there is no answer here, and the careful way goes over the same bytes again and
//! says what is wrong.

use crate::batch::checksums::BatchChecksums;
use crate::batch::header::{
    BatchHeader, CRC_START, HEADER_SIZE, LOG_OVERHEAD, MAGIC_END, be_i32, be_i64,
};
use crate::checksum::crc32c;

/// What a read asks for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The first batch is the one that holds this offset, or the next one.
    pub offset: i64,
    /// No batch ends behind this offset.
    pub last_offset: i64,
    /// Bytes of all batches together, at most.
    pub max_bytes: u64,
    /// The first batch comes even if it is larger.
    pub minimum_one: bool,
}

/// What is known of the bytes beforehand.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// Where in the segment they begin.
    pub position: u64,
    /// What was recorded of its batches.
    pub checksums: BatchChecksums<'a>,
    /// The lowest offset of their segment.
    pub start_offset: i64,
    /// The highest one.
    pub end_offset: i64,
    /// The first batch ends with it, by the index.
    pub first_last_offset: i64,
    /// Whether the segment ends where they do.
    pub is_end: bool,
}

/// Whole batches, back to back: bytes `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// First byte.
    pub start: usize,
    /// The one after the last.
    pub end: usize,
    /// Base offset of the first batch.
    pub first_offset: i64,
    /// The offset after the last one.
    pub next_offset: i64,
}

/// The batches of `data` that are asked for; `None` when a closer look is needed.
///
/// No checksum covers the base offset of a batch, so each is borne out by that of the next one: it
/// has to be in the bytes, unless the segment ends there.
pub fn answer(data: &[u8], origin: &Origin<'_>, asked: &Asked) -> Option<Answer> {
    let mut found: Option<Answer> = None;
    let mut last_before = origin.start_offset.checked_sub(1)?;
    let mut checksums = origin.checksums.starting_at(origin.position);
    let mut at = 0;
    loop {
        let rest = data.get(at..)?;
        if rest.is_empty() {
            return found.filter(|_| origin.is_end);
        }
        let prefix = rest.first_chunk::<MAGIC_END>()?;
        let base_offset = be_i64(prefix, 0);
        let size = LOG_OVERHEAD + usize::try_from(be_i32(prefix, 8)).ok()?;
        if base_offset <= last_before || size < HEADER_SIZE || prefix[MAGIC_END - 1] != 2 {
            return None;
        }
        if let Some(answer) = found {
            let whole = (answer.end - answer.start + size) as u64;
            if whole > asked.max_bytes || base_offset > asked.last_offset {
                return found;
            }
        }
        let recorded = checksums.expected(origin.position + at as u64);
        let last_offset = checked(rest.get(..size)?, recorded, origin)?;
        if at == 0 && last_offset != origin.first_last_offset {
            return None;
        }
        if last_offset > asked.last_offset {
            return found;
        }
        let (start, first_offset) = match found {
            Some(answer) => (answer.start, answer.first_offset),
            None => (at, base_offset),
        };
        at += size;
        last_before = last_offset;
        if last_offset < asked.offset {
            continue;
        }
        if found.is_none() && size as u64 > asked.max_bytes && !asked.minimum_one {
            return None;
        }
        found =
            Some(Answer { start, end: at, first_offset, next_offset: last_offset.checked_add(1)? });
    }
}

/// The last offset of a batch that is what it should be.
fn checked(batch: &[u8], recorded: Option<u32>, origin: &Origin<'_>) -> Option<i64> {
    let header = BatchHeader::parse(batch.first_chunk::<HEADER_SIZE>()?);
    let is_sound = recorded.is_none_or(|crc| crc == header.crc)
        && crc32c(&batch[CRC_START..]) == header.crc
        && header.validate(0).is_ok()
        && header.last_offset() <= origin.end_offset;
    is_sound.then(|| header.last_offset())
}
