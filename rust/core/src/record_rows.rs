//! The records of one payload, row by row (formats section 2.1). This is the hottest loop of the
//! house: a record whose lengths and deltas take at most two bytes and that has no headers goes
//! through [`quick`], anything else through [`careful`], which is also what names errors.

use std::ops::Range;

use crate::error::{Error, ErrorKind, Result};
use crate::legacy::Message;
use crate::record_batch::BatchHeader;
use crate::record_columns::{BinaryColumn, HeaderColumns, INLINE_BYTES};
use crate::varint::{read_varint, read_varlong};

/// The smallest record: seven fields of one byte each.
pub(crate) const MIN_RECORD_BYTES: usize = 7;
/// Rows that are made room for at a time.
const BLOCK_ROWS: usize = 256;
/// Base timestamps within these bounds cannot overflow by a delta that `quick` reads.
const SAFE_TIMESTAMPS: Range<i64> = -(1 << 62)..(1 << 62);

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
    stage: Box<Stage>,
}

/// Rows are put together here, where the compiler knows the bounds and the first-level cache takes
/// the stores, and then copied as a block.
struct Stage {
    offset: [i64; BLOCK_ROWS],
    timestamp_ms: [i64; BLOCK_ROWS],
    keys: [u128; BLOCK_ROWS],
    values: [u128; BLOCK_ROWS],
    key_nulls: [u64; BLOCK_ROWS / 64],
    value_nulls: [u64; BLOCK_ROWS / 64],
    filled: usize,
}

impl Default for Stage {
    fn default() -> Self {
        Self {
            offset: [0; BLOCK_ROWS],
            timestamp_ms: [0; BLOCK_ROWS],
            keys: [0; BLOCK_ROWS],
            values: [0; BLOCK_ROWS],
            key_nulls: [0; BLOCK_ROWS / 64],
            value_nulls: [0; BLOCK_ROWS / 64],
            filled: 0,
        }
    }
}

/// Headers so far; empty until the first record that has any.
#[derive(Default)]
pub(crate) struct HeaderRows {
    /// Where the headers of each row up to the last one with headers end.
    pub(crate) ends: Vec<i32>,
    pub(crate) keys: BinaryColumn,
    pub(crate) values: BinaryColumn,
}

/// One record, parsed.
struct Record {
    timestamp_delta: i64,
    offset_delta: i32,
    key: Option<u128>,
    value: Option<u128>,
    /// Where the next one starts.
    next: usize,
}

impl Rows {
    /// Rows so far.
    pub(crate) fn len(&self) -> usize {
        self.offset.len() + self.stage.filled
    }

    pub(crate) fn capacity(&self) -> usize {
        self.offset.capacity()
    }

    pub(crate) fn reserve(&mut self, rows: usize) {
        self.offset.reserve(rows);
        self.timestamp_ms.reserve(rows);
        self.keys.reserve(rows);
        self.values.reserve(rows);
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
        let mut walk = Walk { at: payload.start, last_delta: -1 };
        let mut left = count;
        while left > 0 {
            let first = self.stage.filled;
            let end = BLOCK_ROWS.min(first + left);
            self.fill(payload, header, end, &mut walk)?;
            self.stage.rebase(first, header);
            left -= end - first;
            if end == BLOCK_ROWS {
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

    /// Fills the stage up to row `end` of it, with deltas for offsets and timestamps.
    fn fill(
        &mut self,
        payload: &Payload<'_>,
        header: &BatchHeader,
        end: usize,
        walk: &mut Walk,
    ) -> Result<()> {
        let may_be_quick = SAFE_TIMESTAMPS.contains(&header.base_timestamp_ms);
        let window = &payload.bytes[..payload.bytes.len().min(payload.end + WINDOW_BYTES)];
        while self.stage.filled < end {
            if may_be_quick {
                quick_rows(window, payload.buffer, &mut self.stage, end, walk);
                if self.stage.filled == end {
                    break;
                }
            }
            let row = self.offset.len() + self.stage.filled;
            let record = careful(payload, walk.at, row, header, &mut self.headers)?;
            if i64::from(record.offset_delta) <= walk.last_delta {
                return Err(order(walk.at, walk.last_delta, record.offset_delta));
            }
            let (offset, timestamp_ms) = (record.offset_delta.into(), record.timestamp_delta);
            self.stage.push(offset, timestamp_ms, record.key, record.value);
            walk.last_delta = record.offset_delta.into();
            walk.at = record.next;
        }
        Ok(())
    }

    /// Moves the staged rows into the columns.
    pub(crate) fn flush(&mut self) {
        let stage = &mut *self.stage;
        let rows = std::mem::take(&mut stage.filled);
        self.offset.extend_from_slice(&stage.offset[..rows]);
        self.timestamp_ms.extend_from_slice(&stage.timestamp_ms[..rows]);
        self.keys.append(&stage.keys[..rows], &stage.key_nulls);
        self.values.append(&stage.values[..rows], &stage.value_nulls);
        stage.key_nulls = [0; BLOCK_ROWS / 64];
        stage.value_nulls = [0; BLOCK_ROWS / 64];
    }
}

/// Where a walk over a payload stands.
struct Walk {
    at: usize,
    last_delta: i64,
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
        self.keys[row] = key.unwrap_or(0);
        self.values[row] = value.unwrap_or(0);
        self.key_nulls[row / 64] |= u64::from(key.is_none()) << (row % 64);
        self.value_nulls[row / 64] |= u64::from(value.is_none()) << (row % 64);
        self.filled += 1;
    }
}

/// Takes a varint of one or two bytes, zig-zag still on, from the low end of `word`.
macro_rules! take {
    ($word:ident, $at:ident) => {
        if $word & 0x80 == 0 {
            let value = $word & 0x7f;
            $word >>= 8;
            $at = $at.wrapping_add(1);
            value
        } else if $word & 0x8000 == 0 {
            let value = $word & 0x7f | $word >> 1 & 0x3f80;
            $word >>= 16;
            $at = $at.wrapping_add(2);
            value
        } else {
            return None;
        }
    };
}

/// Bytes that [`quick_rows`] may read behind a record.
const WINDOW_BYTES: usize = 16;

/// Masks for the first 4 and the next 8 bytes of a value that a view holds itself, by length.
const INLINE_MASKS: [(u32, u64); 16] = {
    let mut masks = [(u32::MAX, u64::MAX); 16];
    let mut size = 0;
    while size < INLINE_BYTES {
        masks[size] = if size < 4 {
            ((1 << (8 * size)) - 1, 0)
        } else {
            (u32::MAX, (1 << (8 * (size - 4))) - 1)
        };
        size += 1;
    }
    masks
};

#[inline(always)]
fn zig_zag(raw: u64) -> i64 {
    (raw >> 1) as i64 ^ -((raw & 1) as i64)
}

/// Stages records up to row `end` of the stage, as long as they have no headers, varints of two
/// bytes at most, and end well before the window does.
#[inline(never)]
fn quick_rows(window: &[u8], buffer: u32, stage: &mut Stage, end: usize, walk: &mut Walk) {
    let mut row = stage.filled;
    let end = end.min(BLOCK_ROWS);
    while row < end {
        let Some(next) = quick(window, buffer, stage, row, walk) else { break };
        walk.at = next;
        row += 1;
    }
    stage.filled = row;
}

/// Stages one record; where the next one starts. Leaves nothing behind in `walk` if it cannot.
#[inline(always)]
fn quick(
    window: &[u8],
    buffer: u32,
    stage: &mut Stage,
    row: usize,
    walk: &mut Walk,
) -> Option<usize> {
    let mut at = walk.at;
    let mut word = u64::from_le_bytes(*window.get(at..)?.first_chunk()?);
    let length = take!(word, at);
    let end = at.wrapping_add((length >> 1) as usize);
    // The attributes byte is unused.
    word >>= 8;
    at = at.wrapping_add(1);
    let timestamp_delta = zig_zag(take!(word, at));
    let offset_delta = take!(word, at);
    let _ = word;
    // Numbers from 0 up have an even zig-zag.
    if (length | offset_delta) & 1 != 0 || end.wrapping_add(WINDOW_BYTES) > window.len() {
        return None;
    }
    let offset_delta = (offset_delta >> 1) as i64;
    if offset_delta <= walk.last_delta {
        return None;
    }
    let key = quick_field(window, buffer, &mut at, end)?;
    let value = quick_field(window, buffer, &mut at, end)?;
    if at.wrapping_add(1) != end || *window.get(at)? != 0 {
        return None;
    }
    stage.offset[row] = offset_delta;
    stage.timestamp_ms[row] = timestamp_delta;
    stage.keys[row] = match key {
        Some(view) => view,
        None => {
            stage.key_nulls[row / 64] |= 1 << (row % 64);
            0
        }
    };
    stage.values[row] = match value {
        Some(view) => view,
        None => {
            stage.value_nulls[row / 64] |= 1 << (row % 64);
            0
        }
    };
    walk.last_delta = offset_delta;
    Some(end)
}

/// A nullable field at `at` that ends before `end`: its view, and `at` moved behind it.
#[inline(always)]
fn quick_field(window: &[u8], buffer: u32, at: &mut usize, end: usize) -> Option<Option<u128>> {
    let mut word = u64::from(u16::from_le_bytes(*window.get(*at..)?.first_chunk()?));
    let mut start = *at;
    let length = take!(word, start);
    let _ = word;
    if length & 1 != 0 {
        *at = start;
        return (length == 1).then_some(None);
    }
    let length = (length >> 1) as usize;
    let next = start.wrapping_add(length);
    if next >= end {
        return None;
    }
    let [a, b, c, d, rest @ ..] = *window.get(start..)?.first_chunk::<INLINE_BYTES>()?;
    let (head, rest) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(rest));
    let (head, rest) = if length <= INLINE_BYTES {
        let (head_mask, rest_mask) = INLINE_MASKS[length];
        (head & head_mask, rest & rest_mask)
    } else {
        (head, (start as u64) << 32 | u64::from(buffer))
    };
    *at = next;
    Some(Some(length as u128 | u128::from(head) << 32 | u128::from(rest) << 64))
}

/// Any record, with errors that say what is wrong; keeps its headers.
#[cold]
#[inline(never)]
fn careful(
    payload: &Payload<'_>,
    start: usize,
    row: usize,
    header: &BatchHeader,
    headers: &mut HeaderRows,
) -> Result<Record> {
    let bytes = &payload.bytes[..payload.end];
    let (length, size) = varint(bytes, start, "a record length")?;
    let at = start + size;
    let end = match usize::try_from(length) {
        Ok(length) if length <= bytes.len() - at => at + length,
        _ => {
            let found = format!("{length} with {} bytes left", bytes.len() - at);
            return Err(bad(start, "a record within its payload", found));
        }
    };
    let mut body = Body { bytes: &bytes[..end], at: at + 1 };
    let Some((timestamp_delta, size)) = bytes[..end].get(at + 1..).and_then(read_varlong) else {
        return Err(bad(at + 1, "a timestamp delta", "no varlong in the record"));
    };
    body.at += size;
    if header.base_timestamp_ms.checked_add(timestamp_delta).is_none() {
        let expected = "a timestamp within 64 bits";
        return Err(bad(at + 1, expected, format!("delta {timestamp_delta}")));
    }
    let from = body.at;
    let offset_delta = body.varint("an offset delta")?;
    if offset_delta > header.last_offset_delta || offset_delta < 0 {
        let expected = format!("an offset delta of 0 to {}", header.last_offset_delta);
        return Err(bad(from, &expected, offset_delta.to_string()));
    }
    let key = body.field("a key")?.map(|(at, size)| payload.view(at, size));
    let value = body.field("a value")?.map(|(at, size)| payload.view(at, size));
    body.headers(payload, row, headers)?;
    if body.at != end {
        let found = format!("{} more bytes", end - body.at);
        return Err(bad(body.at, "the end of the record", found));
    }
    Ok(Record { timestamp_delta, offset_delta, key, value, next: end })
}

/// The error in a payload that the quick way let pass.
#[cold]
fn find_fault(payload: &Payload<'_>, header: &BatchHeader) -> Error {
    let mut at = payload.start;
    while at < payload.end {
        match careful(payload, at, 0, header, &mut HeaderRows::default()) {
            Ok(record) => at = record.next,
            Err(error) => return error,
        }
    }
    bad(payload.end, "offset deltas within the batch", "one beyond")
}

/// What is left of a record.
struct Body<'a> {
    /// The payload up to the record's end.
    bytes: &'a [u8],
    at: usize,
}

impl Body<'_> {
    fn varint(&mut self, what: &str) -> Result<i32> {
        let (value, size) = varint(self.bytes, self.at, what)?;
        self.at += size;
        Ok(value)
    }

    /// Position and size of a nullable field.
    fn field(&mut self, what: &str) -> Result<Option<(usize, usize)>> {
        let from = self.at;
        let length = self.varint(what)?;
        let (start, left) = (self.at, self.bytes.len() - self.at);
        match usize::try_from(length) {
            Ok(length) if length <= left => {
                self.at += length;
                Ok(Some((start, length)))
            }
            Err(_) if length == -1 => Ok(None),
            _ => {
                let expected = format!("{what} within its record");
                Err(bad(from, &expected, format!("length {length} with {left} bytes left")))
            }
        }
    }

    fn headers(
        &mut self,
        payload: &Payload<'_>,
        row: usize,
        headers: &mut HeaderRows,
    ) -> Result<()> {
        let from = self.at;
        let count = self.varint("a header count")?;
        let left = self.bytes.len() - self.at;
        if usize::try_from(count).is_ok_and(|count| count <= left / 2) {
            return match count {
                0 => Ok(()),
                _ => headers.append(self, payload, row, count),
            };
        }
        let found = format!("{count} with {left} bytes left");
        Err(bad(from, "a header count that fits", found))
    }
}

impl HeaderRows {
    pub(crate) fn finish(mut self, rows: usize) -> HeaderColumns {
        let list_offsets = self.ends.last().copied().map(|end| {
            self.ends.resize(rows, end);
            self.ends.insert(0, 0);
            self.ends
        });
        HeaderColumns { list_offsets, keys: self.keys.finish(), values: self.values.finish() }
    }

    fn append(
        &mut self,
        body: &mut Body<'_>,
        payload: &Payload<'_>,
        row: usize,
        count: i32,
    ) -> Result<()> {
        let before = self.ends.last().copied().unwrap_or(0);
        self.ends.resize(row, before);
        for _ in 0..count {
            let from = body.at;
            let Some((at, size)) = body.field("a header key")? else {
                return Err(bad(from, "a header key", "null"));
            };
            self.keys.push(Some(payload.view(at, size)));
            let value = body.field("a header value")?;
            self.values.push(value.map(|(at, size)| payload.view(at, size)));
        }
        let Some(end) = before.checked_add(count) else {
            let expected = "at most 2^31 - 1 headers in one decode";
            return Err(Error::new(ErrorKind::TooLarge, body.at as u64, expected, "more"));
        };
        self.ends.push(end);
        Ok(())
    }
}

fn varint(bytes: &[u8], at: usize, what: &str) -> Result<(i32, usize)> {
    match bytes.get(at..).and_then(read_varint) {
        Some(read) => Ok(read),
        None => Err(bad(at, what, "no varint before the end")),
    }
}

#[cold]
fn order(position: usize, previous: i64, delta: i32) -> Error {
    bad(position, &format!("an offset delta above {previous}"), delta.to_string())
}

#[cold]
fn bad(position: usize, expected: &str, found: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadRecord, position as u64, expected, found)
}
