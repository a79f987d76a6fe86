//! The fast path of a read. From bytes that begin with a batch, it selects and checks the batches
//! to return.
//!
//! [`answer`] returns batches only if all checks succeed. If the data is damaged, ends within a
//! batch, has an old format or has offsets that do not ascend, it returns `None`. The caller then
//! reads the same bytes on the slow path, which reports the error.

use crate::batch::checksums::BatchChecksums;
use crate::batch::header::{
    BatchHeader, CRC_START, HEADER_SIZE, LOG_OVERHEAD, MAGIC_END, be_i32, be_i64,
};
use crate::checksum::crc32c;

/// The offsets and the size that a read requests.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The first batch of the answer holds this offset, or is the next batch after it.
    pub offset: i64,
    /// No batch of the answer ends after this offset.
    pub last_offset: i64,
    /// Largest size of all batches together.
    pub max_bytes: u64,
    /// Whether the first batch is returned even if it is larger than `max_bytes`.
    pub minimum_one: bool,
}

/// What is known about the bytes before they are checked.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// Position of the bytes in the segment.
    pub position: u64,
    /// Recorded checksums of the segment's batches.
    pub checksums: BatchChecksums<'a>,
    /// Lowest offset of the segment.
    pub start_offset: i64,
    /// Highest offset of the segment.
    pub end_offset: i64,
    /// Last offset of the first batch, from the index.
    pub first_last_offset: i64,
    /// True when the segment ends where the bytes end.
    pub is_end: bool,
}

/// Consecutive whole batches: bytes `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Position of the first byte.
    pub start: usize,
    /// Position after the last byte.
    pub end: usize,
    /// Base offset of the first batch.
    pub first_offset: i64,
    /// Offset after the last record.
    pub next_offset: i64,
}

/// Returns the requested batches of `data`, or `None` when the slow path has to read them.
///
/// No checksum covers the base offset of a batch, so it is compared with the base offset of the
/// next batch. Therefore `data` must also hold the base offset after the last returned batch,
/// unless the segment ends there.
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
        let last_offset = check_batch(rest.get(..size)?, recorded, origin)?;
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

/// Returns the last offset of a batch that passes all checks.
fn check_batch(batch: &[u8], recorded: Option<u32>, origin: &Origin<'_>) -> Option<i64> {
    let header = BatchHeader::parse(batch.first_chunk::<HEADER_SIZE>()?);
    let is_sound = recorded.is_none_or(|crc| crc == header.crc)
        && crc32c(&batch[CRC_START..]) == header.crc
        && header.validate(0).is_ok()
        && header.last_offset() <= origin.end_offset;
    is_sound.then(|| header.last_offset())
}
