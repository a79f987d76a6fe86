//! Consecutive byte strings in Arrow's `binary` layout. Readers without support for views, such as
//! the JVM of Spark, need this layout.

use std::ops::Range;

use crate::memory::vector_pool::VectorPool;
use crate::records::columns::{BinaryColumn, buffer_of};

/// Consecutive byte strings, some of them null.
#[derive(Debug)]
pub struct BinaryRows {
    /// Start of each string, and the end of the last one.
    pub offsets: Vec<i32>,
    /// A null has no bytes.
    pub data: Vec<u8>,
    /// One bit per row, lowest bit first; 1 means not null. Empty when no row is null.
    pub validity: Vec<u8>,
}

impl Default for BinaryRows {
    fn default() -> Self {
        Self { offsets: vec![0], data: Vec::new(), validity: Vec::new() }
    }
}

impl BinaryRows {
    /// Appends rows of a column whose views point into `bytes`. Returns `None` if the rows have
    /// more than 2^31 - 1 bytes or a view points elsewhere.
    pub(crate) fn extend(
        &mut self,
        column: &mut BinaryColumn,
        rows: Range<usize>,
        bytes: &[u8],
    ) -> Option<()> {
        let (views, validity) = column.parts();
        let first = self.offsets.len() - 1;
        for &view in views.get(rows.clone())? {
            append(view, &[bytes], &mut self.data)?;
            self.offsets.push(i32::try_from(self.data.len()).ok()?);
        }
        self.mark_nulls(first, rows, validity);
        Some(())
    }

    /// Does the same as [`Self::extend`] for rows whose bytes are in `data` itself. The earlier
    /// rows end at `end`, and the bytes of the new rows are at or after `end`. Moves these bytes to
    /// `end` and returns the new end.
    pub(crate) fn extend_within(
        &mut self,
        column: &mut BinaryColumn,
        rows: Range<usize>,
        data: &mut [u8],
        mut end: usize,
    ) -> Option<usize> {
        let (views, validity) = column.parts();
        let first = self.offsets.len() - 1;
        for &view in views.get(rows.clone())? {
            let length = view as u32 as usize;
            match buffer_of(view) {
                None => {
                    let place = data.get_mut(end..)?.get_mut(..length)?;
                    place.copy_from_slice(view.to_le_bytes()[4..].get(..length)?);
                }
                Some(_) => {
                    let start = (view >> 96) as u32 as usize;
                    if start < end || data.len() - length.min(data.len()) < start {
                        return None;
                    }
                    data.copy_within(start..start + length, end);
                }
            }
            end += length;
            self.offsets.push(i32::try_from(end).ok()?);
        }
        self.mark_nulls(first, rows, validity);
        Some(end)
    }

    /// Records which of the rows from `first` on are null. `validity` is the bitmap of `rows`; rows
    /// past its end are not null.
    fn mark_nulls(&mut self, first: usize, rows: Range<usize>, validity: &[u8]) {
        if validity.is_empty() && self.validity.is_empty() {
            return;
        }
        self.validity.resize(first.div_ceil(8), 0xff);
        for (row, from) in (first..).zip(rows) {
            if row % 8 == 0 {
                self.validity.push(0xff);
            }
            let is_null = validity.get(from / 8).is_some_and(|bits| bits >> (from % 8) & 1 == 0);
            if let (Some(last), true) = (self.validity.last_mut(), is_null) {
                *last &= !(1 << (row % 8));
            }
        }
    }
}

/// Appends the bytes of a view. Returns `None` if it points outside `buffers`, which the views of
/// this crate never do.
#[inline(always)]
fn append(view: u128, buffers: &[&[u8]], data: &mut Vec<u8>) -> Option<()> {
    let length = view as u32 as usize;
    match buffer_of(view) {
        None => data.extend_from_slice(view.to_le_bytes()[4..].get(..length)?),
        Some(index) => {
            let start = (view >> 96) as u32 as usize;
            data.extend_from_slice(buffers.get(index)?.get(start..)?.get(..length)?);
        }
    }
    Some(())
}

/// Returns the start of each value in consecutive storage, and the end of the last value. Returns
/// `None` if the values have more than 2^31 - 1 bytes, the limit of Arrow's `binary`. A null has no
/// bytes.
pub fn binary_offsets(views: &[u128]) -> Option<Vec<i32>> {
    let mut offsets = Vec::with_capacity(views.len() + 1);
    offsets.push(0);
    let mut end = 0u64;
    for &view in views {
        end += u64::from(view as u32);
        // The cast truncates an end that does not fit; the check of the last end detects that.
        offsets.push(end as i32);
    }
    i32::try_from(end).is_ok().then_some(offsets)
}

/// Returns the values one after the other, `size` bytes in total. The memory comes from `pool`,
/// because pooled memory is likely still in the CPU cache. Returns `None` if a view points outside
/// `buffers`, which the views of this crate never do.
pub fn binary_data(
    views: &[u128],
    buffers: &[&[u8]],
    size: usize,
    pool: &mut VectorPool,
) -> Option<Vec<u8>> {
    let mut data = pool.take(size).unwrap_or_default();
    data.clear();
    data.reserve_exact(size);
    for &view in views {
        append(view, buffers, &mut data)?;
    }
    Some(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inline(value: &[u8]) -> u128 {
        let mut view = [0; 16];
        view[0] = value.len() as u8;
        view[4..4 + value.len()].copy_from_slice(value);
        u128::from_le_bytes(view)
    }

    fn pointer(length: usize, buffer: u32, start: u32) -> u128 {
        length as u128 | u128::from(buffer) << 64 | u128::from(start) << 96
    }

    #[test]
    fn values_are_joined_from_every_buffer() {
        let (first, second) = (vec![1; 100], (0..200).collect::<Vec<u8>>());
        let twelve = [9; 12];
        let views = [
            inline(b"ab"),
            0,
            pointer(13, 1, 20),
            inline(&twelve),
            pointer(50, 0, 50),
            inline(b""),
        ];
        let offsets = binary_offsets(&views).unwrap();
        assert_eq!(offsets, [0, 2, 2, 15, 27, 77, 77]);
        let mut pool = VectorPool::default();
        let data = binary_data(&views, &[&first, &second], 77, &mut pool).unwrap();
        let expected = [b"ab".as_slice(), &second[20..33], &twelve, &first[50..]].concat();
        assert_eq!(data, expected);
        assert_eq!(data.capacity(), 77);
        assert_eq!(binary_offsets(&[]), Some(vec![0]));
    }

    #[test]
    fn reused_memory_shows_no_old_bytes() {
        let mut pool = VectorPool::new(8 << 20);
        let used = vec![7; 2 << 20];
        let place = used.as_ptr();
        pool.give(used);
        let value = vec![1; 1 << 20];
        let data = binary_data(&[pointer(1 << 20, 0, 0)], &[&value], 1 << 20, &mut pool).unwrap();
        assert_eq!((data.as_ptr(), &data), (place, &value));
        assert_eq!(pool.size_bytes(), 0);
    }

    #[test]
    fn view_outside_its_buffers_is_none() {
        let buffer: &[u8] = &[0; 32];
        for (view, is_inside) in [
            (pointer(13, 0, 19), true),
            (pointer(13, 0, 20), false),
            (pointer(13, 0, u32::MAX), false),
            (pointer(u32::MAX as usize, 0, 0), false),
            (pointer(13, 1, 0), false),
        ] {
            let found = binary_data(&[view], &[buffer], 13, &mut VectorPool::default());
            assert_eq!(found.is_some(), is_inside, "{view:#x}");
        }
    }

    #[test]
    fn values_beyond_the_offset_limit_are_none() {
        let half = pointer(1 << 30, 0, 0);
        assert!(binary_offsets(&[half]).is_some());
        assert_eq!(binary_offsets(&[half, half]), None);
        assert!(binary_offsets(&[half, pointer((1 << 30) - 1, 0, 0)]).is_some());
        assert_eq!(binary_offsets(&[half; 4]), None);
    }
}
