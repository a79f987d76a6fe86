//! Puts the records of payloads into columns. The fast path handles usual records; the slow path
//! handles all other records and finds errors.

use std::ops::Range;

use crate::batch::header::BatchHeader;
use crate::batch::legacy::Message;
use crate::error::Result;
use crate::memory::vector_pool::VectorPool;
use crate::records::careful::{HeaderRows, bad, find_fault, parse_record};
use crate::records::columns::{BinaryColumn, reserve};
use crate::records::quick::{WINDOW_BYTES, quick_rows, quick_rows_with_headers};
use crate::records::stage::{BLOCK_ROWS, Payload, Stage, Walk, too_many};

/// Size of the smallest record: seven fields of one byte each.
pub(crate) const MIN_RECORD_BYTES: usize = 7;
/// Size of an offset and a timestamp.
const ROW_BYTES: usize = 2 * size_of::<i64>();
/// Size of the views of a key and a value.
const PAIR_BYTES: usize = 2 * size_of::<u128>();
/// The columns being filled, and the staged rows that follow.
#[derive(Default)]
pub(crate) struct Rows {
    pub(crate) offset: Vec<i64>,
    pub(crate) timestamp_ms: Vec<i64>,
    pub(crate) keys: BinaryColumn,
    pub(crate) values: BinaryColumn,
    pub(crate) headers: HeaderRows,
    /// Largest memory of the columns.
    pub(crate) limit_bytes: Option<usize>,
    /// True if rows are checked but not kept.
    pub(crate) is_check: bool,
    /// Memory that dropped rows would have taken.
    dropped_bytes: usize,
    stage: Box<Stage>,
}

impl Rows {
    /// Returns the number of rows so far.
    pub(crate) fn len(&self) -> usize {
        self.offset.len() + self.stage.filled
    }

    pub(crate) fn capacity(&self) -> usize {
        self.offset.capacity()
    }

    /// Returns the memory of the rows.
    pub(crate) fn size_bytes(&self) -> usize {
        let views = self.keys.len() + self.values.len() + self.headers.len() * 2;
        self.dropped_bytes + self.len() * ROW_BYTES + views * size_of::<u128>()
    }

    /// Refuses more rows when the memory limit is reached. `position` is the position of the
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

    pub(crate) fn reserve(&mut self, rows: usize, pool: &mut VectorPool) {
        reserve(&mut self.offset, rows, pool);
        reserve(&mut self.timestamp_ms, rows, pool);
        self.keys.reserve(rows, pool);
        self.values.reserve(rows, pool);
        self.headers.reserve(self.len(), rows, pool);
    }

    /// Appends the records of a v2 batch, which fill the payload exactly. Error positions count
    /// from the start of the data buffer.
    pub(crate) fn append(&mut self, payload: &Payload<'_>, header: &BatchHeader) -> Result<()> {
        let count = header.record_count as usize;
        let size = payload.end - payload.start;
        if count > size / MIN_RECORD_BYTES {
            let expected = format!("{count} records");
            return Err(bad(payload.start, &expected, format!("{size} bytes, which are too few")));
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
            // Deltas ascend, so one check per batch is enough. Now find the record with the error.
            return Err(find_fault(payload, header));
        }
        Ok(())
    }

    /// Appends the legacy message at the start of the payload.
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

    /// Fills the stage up to row `end`. Offsets and timestamps are still deltas. Each skipped
    /// record lowers `end` by one.
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
                parse_record(payload, walk.at, row, walk.last_delta, header, &mut self.headers)?;
            walk.at = record.next;
            if i64::from(record.offset_delta) <= walk.last_delta {
                // Kafka's consumer skips offsets below its position.
                end -= 1;
                continue;
            }
            let (offset, timestamp_ms) = (record.offset_delta.into(), record.timestamp_delta);
            self.stage.push(offset, timestamp_ms, record.key, record.value);
            walk.last_delta = record.offset_delta.into();
        }
        Ok(())
    }

    /// Fills the stage on the fast path and returns true when it reached row `end`.
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
        // If one record has headers, the other records usually have headers, too.
        walk.has_headers = stage.filled > before;
        stage.filled == end
    }

    /// Removes all rows and keeps their memory.
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
