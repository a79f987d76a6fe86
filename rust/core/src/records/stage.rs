//! The rows of a payload on their way into the columns: where the walk over the payload is, and the
//! block of rows that is filled next.

use crate::batch::header::BatchHeader;
use crate::error::{Error, ErrorKind};
use crate::records::columns::NULL_VIEW;

/// Rows that are put together before they are copied: long copies do not read what they write over.
pub(crate) const BLOCK_ROWS: usize = 1024;
/// Bounds of how far ahead memory is asked for: beyond a core's own prefetching, within its cache.
const MIN_AHEAD_BYTES: usize = 4 << 10;
const MAX_AHEAD_BYTES: usize = 64 << 10;

/// The records of one batch inside a data buffer.
#[derive(Clone, Copy)]
pub(crate) struct Payload<'a> {
    /// The whole data buffer, at most 2^31 - 1 bytes: a record's head is read in words that may
    /// go beyond the payload.
    pub(crate) bytes: &'a [u8],
    /// Its number.
    pub(crate) buffer: u32,
    /// The payload, within `bytes`.
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Checksums are computed over the data buffer.
    pub(crate) is_checked: bool,
}

impl Payload<'_> {
    /// The view of `length` bytes at `at`, which the caller has compared with the payload.
    #[inline]
    pub(crate) fn view(&self, at: usize, length: usize) -> u128 {
        let value = self.bytes.get(at..).and_then(|rest| rest.get(..length)).unwrap_or_default();
        let mut head = [0; 16];
        head[..4].copy_from_slice(&(length as u32).to_le_bytes());
        if let Some(inline) = head[4..].get_mut(..length) {
            inline.copy_from_slice(value);
            return u128::from_le_bytes(head);
        }
        head[4..8].copy_from_slice(value.first_chunk::<4>().unwrap_or(&[0; 4]));
        u128::from_le_bytes(head) | self.pointer(at)
    }

    /// The upper half of a long value's view.
    #[inline(always)]
    fn pointer(&self, at: usize) -> u128 {
        u128::from(self.buffer) << 64 | (at as u128) << 96
    }
}

/// Rows are put together here, where the compiler knows the bounds and the first-level cache takes
/// the stores, and then copied as a block.
pub(crate) struct Stage {
    pub(crate) offset: [i64; BLOCK_ROWS],
    pub(crate) timestamp_ms: [i64; BLOCK_ROWS],
    pub(crate) keys: [u128; BLOCK_ROWS],
    pub(crate) values: [u128; BLOCK_ROWS],
    /// Rows may be `NULL_VIEW`.
    pub(crate) null_keys: bool,
    pub(crate) null_values: bool,
    pub(crate) filled: usize,
}

impl Default for Stage {
    fn default() -> Self {
        Self {
            offset: [0; BLOCK_ROWS],
            timestamp_ms: [0; BLOCK_ROWS],
            keys: [0; BLOCK_ROWS],
            values: [0; BLOCK_ROWS],
            null_keys: false,
            null_values: false,
            filled: 0,
        }
    }
}

/// Where a walk over a payload stands.
pub(crate) struct Walk {
    pub(crate) at: usize,
    pub(crate) last_delta: i64,
    /// How far ahead to ask for memory.
    pub(crate) ahead: usize,
    /// Ask for every line of it, not only for those that the decode looks at.
    pub(crate) every_line: bool,
    /// Records with headers were the last ones seen.
    pub(crate) has_headers: bool,
}

impl Walk {
    pub(crate) fn new(payload: &Payload<'_>) -> Self {
        let size = payload.end - payload.start;
        // A batch ahead, if that still fits a cache: then its checksum finds it there.
        let fits = size <= MAX_AHEAD_BYTES;
        Self {
            at: payload.start,
            last_delta: -1,
            ahead: if fits { size.max(MIN_AHEAD_BYTES) } else { MIN_AHEAD_BYTES },
            every_line: fits && payload.is_checked,
            has_headers: false,
        }
    }
}

impl Stage {
    /// Turns the deltas of the rows from `first` on into offsets and timestamps.
    pub(crate) fn rebase(&mut self, first: usize, header: &BatchHeader) {
        for offset in &mut self.offset[first..self.filled] {
            *offset = offset.wrapping_add(header.base_offset);
        }
        if header.is_log_append_time() {
            self.timestamp_ms[first..self.filled].fill(header.max_timestamp_ms);
            return;
        }
        for timestamp in &mut self.timestamp_ms[first..self.filled] {
            *timestamp = timestamp.wrapping_add(header.base_timestamp_ms);
        }
    }

    pub(crate) fn push(
        &mut self,
        offset: i64,
        timestamp_ms: i64,
        key: Option<u128>,
        value: Option<u128>,
    ) {
        let row = self.filled;
        self.offset[row] = offset;
        self.timestamp_ms[row] = timestamp_ms;
        self.keys[row] = key.unwrap_or(NULL_VIEW);
        self.values[row] = value.unwrap_or(NULL_VIEW);
        self.null_keys |= key.is_none();
        self.null_values |= value.is_none();
        self.filled += 1;
    }
}

#[cold]
pub(crate) fn too_many(position: usize, limit: usize) -> Error {
    let expected = format!("at most {limit} bytes of columns for the decompressed records");
    Error::new(ErrorKind::TooLarge, position as u64, expected, "more")
}
