//! The state of a walk over a payload, and the block of rows that the walk fills.

use crate::batch::header::BatchHeader;
use crate::error::{Error, ErrorKind};
use crate::records::columns::NULL_VIEW;

/// Number of rows that are collected before they are copied as a block. A large copy does not have
/// to read its target.
pub(crate) const BLOCK_ROWS: usize = 1024;
/// Limits of the prefetch distance. It must exceed the distance of the hardware prefetcher and fit
/// the core's cache.
const MIN_AHEAD_BYTES: usize = 4 << 10;
const MAX_AHEAD_BYTES: usize = 64 << 10;

/// The records of one batch inside a data buffer.
#[derive(Clone, Copy)]
pub(crate) struct Payload<'a> {
    /// The whole data buffer, at most 2^31 - 1 bytes. The start of a record is read in words, which
    /// may extend past the payload.
    pub(crate) bytes: &'a [u8],
    /// Number of the data buffer.
    pub(crate) buffer: u32,
    /// Start of the payload within `bytes`.
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// True when checksums of batches in the data buffer are computed.
    pub(crate) is_checked: bool,
}

impl Payload<'_> {
    /// Returns the view of `length` bytes at `at`. The caller has checked that these bytes are in
    /// the payload.
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

    /// Returns the upper half of a long value's view.
    #[inline(always)]
    fn pointer(&self, at: usize) -> u128 {
        u128::from(self.buffer) << 64 | (at as u128) << 96
    }
}

/// A block of rows that is copied at once. The compiler knows its size, and it fits the first-level
/// cache.
pub(crate) struct Stage {
    pub(crate) offset: [i64; BLOCK_ROWS],
    pub(crate) timestamp_ms: [i64; BLOCK_ROWS],
    pub(crate) keys: [u128; BLOCK_ROWS],
    pub(crate) values: [u128; BLOCK_ROWS],
    /// Keys may be `NULL_VIEW`.
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

/// State of a walk over a payload.
pub(crate) struct Walk {
    pub(crate) at: usize,
    pub(crate) last_delta: i64,
    /// Prefetch distance.
    pub(crate) ahead: usize,
    /// Whether every line is prefetched, not only the lines that the decode reads.
    pub(crate) every_line: bool,
    /// Whether the last records had headers.
    pub(crate) has_headers: bool,
}

impl Walk {
    pub(crate) fn new(payload: &Payload<'_>) -> Self {
        let size = payload.end - payload.start;
        // Prefetch one batch ahead if a batch fits the cache, so that the next batch is in the
        // cache when its checksum is computed.
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
