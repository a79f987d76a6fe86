//! The fast path for usual records. A usual record has few or no headers, deltas of at most three
//! bytes and lengths of at most two bytes. The fast path refuses any other record without an error,
//! and [`crate::records::careful`] then parses that record.

use crate::memory::hints::prefetch;
use crate::records::careful::HeaderRows;
use crate::records::columns::{INLINE_BYTES, NULL_VIEW};
use crate::records::stage::{BLOCK_ROWS, Stage, Walk};

const CACHE_LINE_BYTES: usize = 64;
/// Largest number of headers on the fast path.
const MAX_QUICK_HEADERS: usize = 16;

/// Number of bytes after a record that [`quick_rows`] may read.
pub(crate) const WINDOW_BYTES: usize = 16;

/// Masks for the first 4 and the next 8 bytes of an inline value, by length.
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

/// Stages records up to row `end` of the stage. It stops at a record that has headers, a length of
/// more than two bytes or a delta of more than three, or that ends too close to the end of the
/// window.
#[inline(never)]
pub(crate) fn quick_rows<const EVERY_LINE: bool>(
    window: &[u8],
    buffer: u32,
    stage: &mut Stage,
    end: usize,
    walk: &mut Walk,
) {
    let mut row = stage.filled;
    let end = end.min(BLOCK_ROWS);
    // Adding a small number as 64 bits to a 32-bit position cannot overflow, so each check needs
    // one comparison.
    let Ok(mut at) = u32::try_from(walk.at) else { return };
    while row < end {
        let Some(next) = quick(window, buffer, stage, row, at, &mut walk.last_delta) else { break };
        let mut line = (at as usize).wrapping_add(walk.ahead);
        prefetch(window, line);
        prefetch(window, line.wrapping_add(CACHE_LINE_BYTES));
        if EVERY_LINE {
            let last = (next as usize).wrapping_add(walk.ahead);
            line = line.wrapping_add(2 * CACHE_LINE_BYTES);
            while line < last {
                prefetch(window, line);
                line = line.wrapping_add(CACHE_LINE_BYTES);
            }
        }
        at = next;
        row += 1;
    }
    stage.filled = row;
    walk.at = at as usize;
}

/// Returns `SIZE` bytes from `at`.
#[inline(always)]
fn bytes_at<const SIZE: usize>(window: &[u8], at: u32) -> Option<&[u8; SIZE]> {
    window.get(at as usize..at as usize + SIZE)?.first_chunk()
}

/// Does the same as [`quick_rows`], also for records with a few headers.
#[inline(never)]
pub(crate) fn quick_rows_with_headers(
    payload: (&[u8], u32),
    stage: &mut Stage,
    first_row: usize,
    headers: &mut HeaderRows,
    end: usize,
    walk: &mut Walk,
) {
    let (window, buffer) = payload;
    let end = end.min(BLOCK_ROWS);
    let Ok(mut at) = u32::try_from(walk.at) else { return };
    while stage.filled < end {
        let row = stage.filled;
        let Some((fields_end, next, delta)) =
            quick_fields(window, buffer, stage, row, at, walk.last_delta)
        else {
            break;
        };
        let row = first_row + row;
        if quick_headers(window, buffer, fields_end, next, row, headers).is_none() {
            break;
        }
        prefetch(window, (at as usize).wrapping_add(walk.ahead));
        prefetch(window, (at as usize).wrapping_add(walk.ahead + CACHE_LINE_BYTES));
        walk.last_delta = delta;
        at = next;
        stage.filled += 1;
    }
    walk.at = at as usize;
}

/// Appends the headers that start at `at`. Returns `None` if the headers do not end exactly at `end`,
/// or if one of them does not have the usual form.
#[inline(always)]
fn quick_headers(
    window: &[u8],
    buffer: u32,
    at: u32,
    end: u32,
    row: usize,
    headers: &mut HeaderRows,
) -> Option<()> {
    let count = *window.get(at as usize)?;
    let mut at = at.wrapping_add(1);
    if count == 0 {
        return (at == end).then_some(());
    }
    let mut views = [(0, 0); MAX_QUICK_HEADERS];
    // An odd zig-zag number is negative, and 0x80 starts a longer number.
    let views = views.get_mut(..usize::from(count / 2)).filter(|_| count & 0x81 == 0)?;
    let (mut null_key, mut null_value) = (false, false);
    for (key, value) in views.iter_mut() {
        at = quick_field(window, buffer, at, key, &mut null_key)?;
        at = quick_field(window, buffer, at, value, &mut null_value)?;
    }
    if at != end || null_key {
        return None;
    }
    headers.append_views(row, views)
}

/// Stages the record at `start` and returns the position of the next record. On failure, the next
/// record overwrites the staged values.
#[inline(always)]
fn quick(
    window: &[u8],
    buffer: u32,
    stage: &mut Stage,
    row: usize,
    start: u32,
    last_delta: &mut i64,
) -> Option<u32> {
    let (at, end, offset_delta) = quick_fields(window, buffer, stage, row, start, *last_delta)?;
    if at.wrapping_add(1) != end || *window.get(at as usize)? != 0 {
        return None;
    }
    *last_delta = offset_delta;
    Some(end)
}

/// Stages the record at `start` without its headers. Returns the start of the headers, the end of
/// the record and its offset delta.
#[inline(always)]
fn quick_fields(
    window: &[u8],
    buffer: u32,
    stage: &mut Stage,
    row: usize,
    start: u32,
    last_delta: i64,
) -> Option<(u32, u32, i64)> {
    let word = u64::from_le_bytes(*bytes_at(window, start)?);
    // `rest` starts at the attributes byte, which is unused.
    let (length, at, rest) = if word & 0x80 == 0 {
        (word & 0x7f, start.wrapping_add(1), word >> 8)
    } else if word & 0x8000 == 0 {
        (word & 0x7f | word >> 1 & 0x3f80, start.wrapping_add(2), word >> 16)
    } else {
        return None;
    };
    let (timestamp_delta, offset_delta, size) = deltas(rest)?;
    let end = at.wrapping_add((length >> 1) as u32);
    // The zig-zag encoding of a non-negative number is even.
    if (length | offset_delta) & 1 != 0 || end as usize + WINDOW_BYTES > window.len() {
        return None;
    }
    let offset_delta = (offset_delta >> 1) as i64;
    if offset_delta <= last_delta {
        return None;
    }
    stage.offset[row] = offset_delta;
    stage.timestamp_ms[row] = (timestamp_delta >> 1) as i64 ^ -((timestamp_delta & 1) as i64);
    let at = at.wrapping_add(size);
    let at = quick_field(window, buffer, at, &mut stage.keys[row], &mut stage.null_keys)?;
    let (value, nulls) = (&mut stage.values[row], &mut stage.null_values);
    let at = quick_field(window, buffer, at, value, nulls)?;
    Some((at, end, offset_delta))
}

/// Returns both deltas of a record, still zig-zag encoded, and the number of bytes from the
/// attributes byte to the end of the deltas.
#[inline(always)]
fn deltas(rest: u64) -> Option<(u64, u64, u32)> {
    // The mask shows which bytes after the attributes are not the last byte of their number.
    match rest & 0x8080_8000 {
        0 | 0x8000_0000 => Some((rest >> 8 & 0x7f, rest >> 16 & 0x7f, 3)),
        0x80_0000 => Some((rest >> 8 & 0x7f, rest >> 16 & 0x7f | rest >> 17 & 0x3f80, 4)),
        _ => longer_deltas(rest),
    }
}

/// Decodes deltas of up to three bytes.
#[inline(always)]
fn longer_deltas(rest: u64) -> Option<(u64, u64, u32)> {
    let take = |word: u64| {
        let low = word & 0x7f | word >> 1 & 0x3f80;
        match (word & 0x80, word & 0x8000, word & 0x80_0000) {
            (0, _, _) => Some((word & 0x7f, 1)),
            (_, 0, _) => Some((low, 2)),
            (_, _, 0) => Some((low | word >> 2 & 0x1f_c000, 3)),
            _ => None,
        }
    };
    let (timestamp_delta, first) = take(rest >> 8)?;
    let (offset_delta, second) = take(rest >> (8 + 8 * first))?;
    Some((timestamp_delta, offset_delta, 1 + first + second))
}

/// Stages the nullable field at `at` and returns its end. The end is unchecked, so the caller
/// compares the end of the last field with the end of the record.
#[inline(always)]
fn quick_field(
    window: &[u8],
    buffer: u32,
    at: u32,
    view: &mut u128,
    may_be_null: &mut bool,
) -> Option<u32> {
    let bytes = bytes_at::<WINDOW_BYTES>(window, at)?;
    let [a, b, ..] = *bytes;
    let (length, start, first) = if a < 0x80 {
        (u32::from(a), at.wrapping_add(1), &bytes[1..13])
    } else if b < 0x80 {
        (u32::from(a & 0x7f) | u32::from(b) << 7, at.wrapping_add(2), &bytes[2..14])
    } else {
        return None;
    };
    if length & 1 != 0 {
        *view = NULL_VIEW;
        *may_be_null = true;
        return (length == 1).then_some(start);
    }
    let length = length >> 1;
    let [a, b, c, d, rest @ ..] = *first.first_chunk::<INLINE_BYTES>()?;
    let (head, rest) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(rest));
    *view = if length <= INLINE_BYTES as u32 {
        let (head_mask, rest_mask) = INLINE_MASKS[length as usize];
        join(length, head & head_mask, rest & rest_mask)
    } else {
        join(length, head, u64::from(start) << 32 | u64::from(buffer))
    };
    Some(start.wrapping_add(length))
}

#[inline(always)]
fn join(length: u32, head: u32, rest: u64) -> u128 {
    u128::from(length) | u128::from(head) << 32 | u128::from(rest) << 64
}
