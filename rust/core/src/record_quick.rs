//! The hottest loop of the house: records without headers whose deltas take at most three bytes and
//! whose lengths take at most two. It refuses everything else without a word, for
//! [`crate::record_careful`] to look at.

use crate::memory::prefetch;
use crate::record_columns::{INLINE_BYTES, NULL_VIEW};
use crate::record_rows::{BLOCK_ROWS, Stage, Walk};

const CACHE_LINE_BYTES: usize = 64;

/// Bytes that [`quick_rows`] may read behind a record.
pub(crate) const WINDOW_BYTES: usize = 16;

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

/// Stages records up to row `end` of the stage, as long as they have no headers, lengths of two and
/// deltas of three bytes at most, and end well before the window does.
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
    // Positions of 32 bits cannot overflow when a small number is added to them as 64 bits, which
    // leaves one comparison of every check.
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

/// `SIZE` bytes from `at` on.
#[inline(always)]
fn bytes_at<const SIZE: usize>(window: &[u8], at: u32) -> Option<&[u8; SIZE]> {
    window.get(at as usize..at as usize + SIZE)?.first_chunk()
}

/// Stages the record at `start`; where the next one starts. What it leaves behind when it cannot is
/// written over.
#[inline(always)]
fn quick(
    window: &[u8],
    buffer: u32,
    stage: &mut Stage,
    row: usize,
    start: u32,
    last_delta: &mut i64,
) -> Option<u32> {
    let word = u64::from_le_bytes(*bytes_at(window, start)?);
    // From the attributes byte on, which is unused.
    let (length, at, rest) = if word & 0x80 == 0 {
        (word & 0x7f, start.wrapping_add(1), word >> 8)
    } else if word & 0x8000 == 0 {
        (word & 0x7f | word >> 1 & 0x3f80, start.wrapping_add(2), word >> 16)
    } else {
        return None;
    };
    let (timestamp_delta, offset_delta, size) = deltas(rest)?;
    let end = at.wrapping_add((length >> 1) as u32);
    // Numbers from 0 up have an even zig-zag.
    if (length | offset_delta) & 1 != 0 || end as usize + WINDOW_BYTES > window.len() {
        return None;
    }
    let offset_delta = (offset_delta >> 1) as i64;
    if offset_delta <= *last_delta {
        return None;
    }
    stage.offset[row] = offset_delta;
    stage.timestamp_ms[row] = (timestamp_delta >> 1) as i64 ^ -((timestamp_delta & 1) as i64);
    let at = at.wrapping_add(size);
    let at = quick_field(window, buffer, at, end, &mut stage.keys[row], &mut stage.null_keys)?;
    let (value, nulls) = (&mut stage.values[row], &mut stage.null_values);
    let at = quick_field(window, buffer, at, end, value, nulls)?;
    if at.wrapping_add(1) != end || *window.get(at as usize)? != 0 {
        return None;
    }
    *last_delta = offset_delta;
    Some(end)
}

/// Both deltas of a record from its attributes byte on, zig-zag still on, and the bytes up to their
/// end.
#[inline(always)]
fn deltas(rest: u64) -> Option<(u64, u64, u32)> {
    // Which bytes behind the attributes are not the last of their number.
    match rest & 0x8080_8000 {
        0 | 0x8000_0000 => Some((rest >> 8 & 0x7f, rest >> 16 & 0x7f, 3)),
        0x80_0000 => Some((rest >> 8 & 0x7f, rest >> 16 & 0x7f | rest >> 17 & 0x3f80, 4)),
        _ => longer_deltas(rest),
    }
}

/// Deltas of up to three bytes.
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

/// Stages the nullable field at `at`, which ends before `end`; where it ends.
#[inline(always)]
fn quick_field(
    window: &[u8],
    buffer: u32,
    at: u32,
    end: u32,
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
    let next = start.wrapping_add(length);
    if next >= end {
        return None;
    }
    let [a, b, c, d, rest @ ..] = *first.first_chunk::<INLINE_BYTES>()?;
    let (head, rest) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(rest));
    *view = if length <= INLINE_BYTES as u32 {
        let (head_mask, rest_mask) = INLINE_MASKS[length as usize];
        join(length, head & head_mask, rest & rest_mask)
    } else {
        join(length, head, u64::from(start) << 32 | u64::from(buffer))
    };
    Some(next)
}

#[inline(always)]
fn join(length: u32, head: u32, rest: u64) -> u128 {
    u128::from(length) | u128::from(head) << 32 | u128::from(rest) << 64
}
