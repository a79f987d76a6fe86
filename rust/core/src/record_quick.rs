//! The hottest loop of the house: records without headers whose deltas take at most three bytes and
//! whose lengths take at most two. It refuses everything else without a word, for
//! [`crate::record_careful`] to look at.

use crate::memory::prefetch;
use crate::record_columns::INLINE_BYTES;
use crate::record_rows::{BLOCK_ROWS, Stage, Walk};

const CACHE_LINE_BYTES: usize = 64;

/// Takes a varint of up to two bytes, zig-zag still on, from the low end of `word`, or leaves the
/// rest of it to `$longer`.
macro_rules! take {
    ($word:ident, $at:ident, $longer:expr) => {
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
            $longer
        }
    };
}

/// Takes one of up to three bytes.
macro_rules! take_longer {
    ($word:ident, $at:ident) => {
        take!($word, $at, {
            if $word & 0x80_0000 != 0 {
                return None;
            }
            let value = $word & 0x7f | $word >> 1 & 0x3f80 | $word >> 2 & 0x1f_c000;
            $word >>= 24;
            $at = $at.wrapping_add(3);
            value
        })
    };
}

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

#[inline(always)]
fn zig_zag(raw: u64) -> i64 {
    (raw >> 1) as i64 ^ -((raw & 1) as i64)
}

/// Stages records up to row `end` of the stage, as long as they have no headers, varints of three
/// bytes at most, and end well before the window does.
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
    while row < end {
        let Some(next) = quick(window, buffer, stage, row, walk) else { break };
        let mut line = walk.at.wrapping_add(walk.ahead);
        prefetch(window, line);
        prefetch(window, line.wrapping_add(CACHE_LINE_BYTES));
        if EVERY_LINE {
            let last = next.wrapping_add(walk.ahead);
            line = line.wrapping_add(2 * CACHE_LINE_BYTES);
            while line < last {
                prefetch(window, line);
                line = line.wrapping_add(CACHE_LINE_BYTES);
            }
        }
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
    let length = take!(word, at, return None);
    let end = at.wrapping_add((length >> 1) as usize);
    // The attributes byte is unused.
    word >>= 8;
    at = at.wrapping_add(1);
    let timestamp_delta = zig_zag(take_longer!(word, at));
    let offset_delta = take_longer!(word, at);
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
    let length = take!(word, start, return None);
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
