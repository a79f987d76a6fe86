//! The records of one payload after the other, put into columns (formats section 2.1): the quick way
//! as far as it goes, the careful way for the rest and for errors.

use std::ops::Range;

use crate::batch::header::BatchHeader;
use crate::batch::legacy::Message;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::spare::Spare;
use crate::records::careful::{HeaderRows, bad, careful, find_fault};
use crate::records::columns::{BinaryColumn, NULL_VIEW, reserve};
use crate::records::quick::{WINDOW_BYTES, quick_rows, quick_rows_with_headers};

/// The smallest record: seven fields of one byte each.
pub(crate) const MIN_RECORD_BYTES: usize = 7;
/// An offset and a timestamp.
const ROW_BYTES: usize = 2 * size_of::<i64>();
/// The views of a key and a value.
const PAIR_BYTES: usize = 2 * size_of::<u128>();
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

/// The columns being filled, and the rows that are on their way into them.
#[derive(Default)]
pub(crate) struct Rows {
    pub(crate) offset: Vec<i64>,
    pub(crate) timestamp_ms: Vec<i64>,
    pub(crate) keys: BinaryColumn,
    pub(crate) values: BinaryColumn,
    pub(crate) headers: HeaderRows,
    /// The most memory that the columns may take.
    pub(crate) limit_bytes: Option<usize>,
    /// Rows are checked and not kept.
    pub(crate) is_check: bool,
    /// Memory that rows would have taken.
    dropped_bytes: usize,
    stage: Box<Stage>,
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

impl Rows {
    /// Rows so far.
    pub(crate) fn len(&self) -> usize {
        self.offset.len() + self.stage.filled
    }

    pub(crate) fn capacity(&self) -> usize {
        self.offset.capacity()
    }

    /// Memory that the rows take.
    pub(crate) fn size_bytes(&self) -> usize {
        let views = self.keys.len() + self.values.len() + self.headers.len() * 2;
        self.dropped_bytes + self.len() * ROW_BYTES + views * size_of::<u128>()
    }

    /// Refuses more rows when they take all the memory that they may; `position` is that of their
    /// payload.
    fn check_limit(&mut self, position: usize) -> Result<()> {
        let Some(limit) = self.limit_bytes else {
            self.headers.most = usize::MAX;
            return Ok(());
        };
        let Some(left) = limit.checked_sub(self.size_bytes()) else {
            return Err(too_many(position, limit));
        };
        self.headers.most = self.headers.len() + left / PAIR_BYTES;
        Ok(())
    }

    pub(crate) fn reserve(&mut self, rows: usize, spare: &mut Spare) {
        reserve(&mut self.offset, rows, spare);
        reserve(&mut self.timestamp_ms, rows, spare);
        self.keys.reserve(rows, spare);
        self.values.reserve(rows, spare);
        self.headers.reserve(self.len(), rows, spare);
    }

    /// Appends the records of a v2 batch; they fill the payload exactly. Error positions are those
    /// in the data buffer.
    pub(crate) fn append(&mut self, payload: &Payload<'_>, header: &BatchHeader) -> Result<()> {
        let count = header.record_count as usize;
        let size = payload.end - payload.start;
        if count > size / MIN_RECORD_BYTES {
            let expected = format!("{count} records");
            return Err(bad(payload.start, &expected, format!("{size} bytes, too few for them")));
        }
        let mut walk = Walk::new(payload);
        let mut left = count;
        while left > 0 {
            let first = self.stage.filled;
            let end = BLOCK_ROWS.min(first + left);
            self.check_limit(payload.start)?;
            self.fill(payload, header, end, &mut walk)?;
            self.stage.rebase(first, header);
            left -= end - first;
            if self.stage.filled == BLOCK_ROWS {
                self.flush();
            }
        }
        if walk.at != payload.end {
            let found = format!("{} bytes", payload.end - walk.at);
            return Err(bad(walk.at, "nothing after the last record", found));
        }
        if walk.last_delta > header.last_offset_delta.into() {
            // Deltas ascend, so this is looked at once per batch; now find the record.
            return Err(find_fault(payload, header));
        }
        Ok(())
    }

    /// Appends a legacy message, which lies at the start of the payload.
    pub(crate) fn push_message(
        &mut self,
        payload: &Payload<'_>,
        message: &Message,
        offset: i64,
        timestamp_ms: i64,
    ) {
        let view = |field: &Option<Range<usize>>| {
            field.as_ref().map(|range| payload.view(payload.start + range.start, range.len()))
        };
        self.stage.push(offset, timestamp_ms, view(&message.key), view(&message.value));
        if self.stage.filled == BLOCK_ROWS {
            self.flush();
        }
    }

    /// Fills the stage up to row `end` of it, with deltas for offsets and timestamps; one row less for
    /// each record that is passed over.
    fn fill(
        &mut self,
        payload: &Payload<'_>,
        header: &BatchHeader,
        mut end: usize,
        walk: &mut Walk,
    ) -> Result<()> {
        let window = &payload.bytes[..payload.bytes.len().min(payload.end + WINDOW_BYTES)];
        while self.stage.filled < end {
            if self.fill_quickly(window, payload.buffer, end, walk) {
                break;
            }
            let row = self.offset.len() + self.stage.filled;
            let record =
                careful(payload, walk.at, row, walk.last_delta, header, &mut self.headers)?;
            walk.at = record.next;
            if i64::from(record.offset_delta) <= walk.last_delta {
                // Kafka's consumer passes over offsets that it is beyond.
                end -= 1;
                continue;
            }
            let (offset, timestamp_ms) = (record.offset_delta.into(), record.timestamp_delta);
            self.stage.push(offset, timestamp_ms, record.key, record.value);
            walk.last_delta = record.offset_delta.into();
        }
        Ok(())
    }

    /// Fills the stage as far as the quick ways go; whether that is up to row `end`.
    fn fill_quickly(&mut self, window: &[u8], buffer: u32, end: usize, walk: &mut Walk) -> bool {
        let stage = &mut self.stage;
        if !walk.has_headers {
            let quick = match walk.every_line {
                true => quick_rows::<true>,
                false => quick_rows::<false>,
            };
            quick(window, buffer, stage, end, walk);
            if stage.filled == end {
                return true;
            }
        }
        let (before, first_row) = (stage.filled, self.offset.len());
        let payload = (window, buffer);
        quick_rows_with_headers(payload, stage, first_row, &mut self.headers, end, walk);
        // Where one record has headers, the others have, too.
        walk.has_headers = stage.filled > before;
        stage.filled == end
    }

    /// Forgets all rows and keeps their memory.
    pub(crate) fn clear(&mut self) {
        self.offset.clear();
        self.timestamp_ms.clear();
        self.keys.clear();
        self.values.clear();
        self.headers.clear();
        self.stage.filled = 0;
    }

    /// Moves the staged rows into the columns.
    pub(crate) fn flush(&mut self) {
        if self.is_check {
            let rows = self.stage.filled;
            self.dropped_bytes = self.size_bytes() + rows * PAIR_BYTES;
            (self.stage.null_keys, self.stage.null_values) = (false, false);
            return self.clear();
        }
        let stage = &mut *self.stage;
        let rows = std::mem::take(&mut stage.filled);
        self.offset.extend_from_slice(&stage.offset[..rows]);
        self.timestamp_ms.extend_from_slice(&stage.timestamp_ms[..rows]);
        self.keys.append(&stage.keys[..rows], std::mem::take(&mut stage.null_keys));
        self.values.append(&stage.values[..rows], std::mem::take(&mut stage.null_values));
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
    has_headers: bool,
}

impl Walk {
    fn new(payload: &Payload<'_>) -> Self {
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
    fn rebase(&mut self, first: usize, header: &BatchHeader) {
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

    fn push(&mut self, offset: i64, timestamp_ms: i64, key: Option<u128>, value: Option<u128>) {
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
