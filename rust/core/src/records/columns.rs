//! Decoded records as columns. Keys, values and headers are Arrow binary views. A view has 16
//! bytes. It holds a short value itself, and for a longer value it points into a data buffer.
//!
//! ```text
//! 0 length i32   4 the bytes, zero-filled, if length <= 12
//!                4 first 4 bytes   8 data buffer i32   12 position in it i32, otherwise
//! ```
//! All values are little-endian; a null is 16 zero bytes. Data buffer 0 is the source itself; the
//! other buffers hold decompressed batches. Validity is Arrow's bitmap: lowest bit first, 1 means
//! not null.

use crate::batch::columns::BatchColumns;
use crate::memory::hints::{LARGE_PAGE_BYTES, prefer_large_pages};
use crate::memory::vector_pool::{Item, VectorPool};
use crate::segment::Stop;

/// Longest value that a view stores inline.
pub const INLINE_BYTES: usize = 12;

/// Marks a null value until the rows become a column. No view has this length.
pub(crate) const NULL_VIEW: u128 = u128::MAX;

/// Calls `use_bytes` with the bytes of a view that is not null. Returns `None` if the view points
/// outside `buffers`, which the views of this crate never do.
pub fn with_view<R>(
    view: u128,
    buffers: &[&[u8]],
    use_bytes: impl FnOnce(&[u8]) -> R,
) -> Option<R> {
    let word = |shift: u32| (view >> shift) as u32 as usize;
    let length = word(0);
    if length <= INLINE_BYTES {
        return view.to_le_bytes()[4..].get(..length).map(use_bytes);
    }
    buffers.get(word(64))?.get(word(96)..)?.get(..length).map(use_bytes)
}

/// Returns the number of the data buffer that a view points into, or `None` for an inline value.
pub fn buffer_of(view: u128) -> Option<usize> {
    (view as u32 as usize > INLINE_BYTES).then_some((view >> 64) as u32 as usize)
}

/// Byte strings, some of them null.
#[derive(Debug, Default)]
pub(crate) struct BinaryColumn {
    views: Vec<u128>,
    /// Bitmap; it is built only when a row is null.
    validity: Vec<u8>,
    null_count: usize,
    /// Number of nulls before the first value. These nulls take no memory until a value follows.
    leading_nulls: usize,
    /// Memory for the rows after the first value.
    prepared: Vec<u128>,
    /// Number of rows to reserve if `prepared` is too small.
    planned: usize,
}

/// A finished [`BinaryColumn`].
#[derive(Debug, Default)]
pub struct BinaryParts {
    /// One view per row.
    pub views: Vec<u128>,
    /// One bit per row; `None` if no row is null.
    pub validity: Option<Vec<u8>>,
    /// Number of nulls.
    pub null_count: usize,
}

impl BinaryParts {
    /// Returns true when row `row` is null or does not exist.
    pub fn is_null(&self, row: usize) -> bool {
        row >= self.views.len()
            || self.validity.as_ref().is_some_and(|bits| bits[row / 8] >> (row % 8) & 1 == 0)
    }
}

impl BinaryColumn {
    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.views.len().max(self.leading_nulls)
    }

    /// Reserves memory now, or if there is no value yet, when the first value is appended.
    pub(crate) fn reserve(&mut self, rows: usize, pool: &mut VectorPool) {
        if !self.views.is_empty() {
            return reserve(&mut self.views, rows, pool);
        }
        self.planned = self.len() + rows;
        if self.prepared.capacity() < self.planned {
            pool.give(std::mem::take(&mut self.prepared));
            self.prepared = pool.take(self.planned).unwrap_or_default();
        }
    }

    /// Appends rows. If `may_be_null` is false, no view is null.
    pub(crate) fn append(&mut self, views: &[u128], may_be_null: bool) {
        let is_null = |view: &&u128| **view == NULL_VIEW;
        let nulls = if may_be_null { views.iter().filter(is_null).count() } else { 0 };
        if self.views.is_empty() {
            if nulls == views.len() {
                self.leading_nulls += nulls;
                return;
            }
            self.materialise();
        }
        let first = self.views.len();
        self.views.extend_from_slice(views);
        if nulls > 0 {
            for row in first..self.views.len() {
                if self.views[row] == NULL_VIEW {
                    self.set_null(row);
                }
            }
        }
    }

    /// Allocates the leading nulls, because a value follows.
    fn materialise(&mut self) {
        let rows = std::mem::take(&mut self.leading_nulls);
        self.views = std::mem::take(&mut self.prepared);
        self.views.clear();
        reserve_large(&mut self.views, self.planned.max(rows));
        if rows > 0 {
            self.views.resize(rows, 0);
            self.null_count = rows;
            self.validity = vec![0; rows / 8];
            if !rows.is_multiple_of(8) {
                self.validity.push(0xff << (rows % 8));
            }
        }
    }

    /// Appends one row.
    pub(crate) fn push(&mut self, view: Option<u128>) {
        if self.views.is_empty() {
            self.materialise();
        }
        if view.is_none() {
            let row = self.views.len();
            self.views.push(0);
            self.set_null(row);
        } else {
            self.views.extend(view);
        }
    }

    /// Marks a row in memory as null.
    pub(crate) fn set_null(&mut self, row: usize) {
        let bytes = self.views.len().div_ceil(8);
        if self.validity.len() < bytes {
            // Earlier rows that have no bit yet are not null. Unused bits are set here, and
            // `finish` clears them.
            self.validity.resize(bytes, 0xff);
        }
        self.views[row] = 0;
        self.validity[row / 8] &= !(1 << (row % 8));
        self.null_count += 1;
    }

    /// Returns the views of all rows, and the bitmap. Rows past the end of the bitmap are not null.
    pub(crate) fn parts(&mut self) -> (&[u128], &[u8]) {
        if self.views.is_empty() {
            self.materialise();
        }
        (&self.views, &self.validity)
    }

    /// Removes all rows and keeps their memory.
    pub(crate) fn clear(&mut self) {
        self.leading_nulls = 0;
        self.null_count = 0;
        self.validity.clear();
        if !self.views.is_empty() {
            self.prepared = std::mem::take(&mut self.views);
        }
    }

    pub(crate) fn finish(mut self, pool: &mut VectorPool) -> BinaryParts {
        pool.give(self.prepared);
        if self.views.is_empty() && self.leading_nulls > 0 {
            // Zeroed allocations of any size cost almost nothing until they are read.
            let rows = self.leading_nulls;
            let validity = Some(vec![0; rows.div_ceil(8)]);
            return BinaryParts { views: vec![0; rows], validity, null_count: rows };
        }
        let rows = self.views.len();
        let validity = (self.null_count > 0).then(|| {
            self.validity.resize(rows.div_ceil(8), 0xff);
            if let (Some(last), true) = (self.validity.last_mut(), !rows.is_multiple_of(8)) {
                *last &= (1 << (rows % 8)) - 1;
            }
            self.validity
        });
        BinaryParts { views: self.views, validity, null_count: self.null_count }
    }
}

/// Reserves memory for `rows` more rows, from the pool if possible.
pub(crate) fn reserve<T: Item + Copy>(column: &mut Vec<T>, rows: usize, pool: &mut VectorPool) {
    if column.capacity() - column.len() >= rows {
        return;
    }
    if let Some(mut roomy) = pool.take(column.len() + rows) {
        roomy.clear();
        roomy.extend_from_slice(column);
        pool.give(std::mem::replace(column, roomy));
    }
    reserve_large(column, rows);
}

/// Reserves memory for `rows` more rows. Large columns get whole large pages.
pub(crate) fn reserve_large<T>(column: &mut Vec<T>, rows: usize) {
    let row_bytes = size_of::<T>();
    let bytes = (column.len() + rows).saturating_mul(row_bytes);
    if column.capacity() - column.len() >= rows || bytes < LARGE_PAGE_BYTES {
        return column.reserve(rows);
    }
    let bytes = bytes.next_multiple_of(LARGE_PAGE_BYTES);
    column.reserve_exact(bytes / row_bytes - column.len());
    prefer_large_pages(column.spare_capacity_mut());
}

/// The headers of all records: a list per record.
#[derive(Debug, Default)]
pub struct HeaderColumns {
    /// Start of each record's headers in the two columns below, and the end of the last record's
    /// headers. `None` if no record has headers.
    pub list_offsets: Option<Vec<i32>>,
    /// Header keys, never null.
    pub keys: BinaryParts,
    /// Header values.
    pub values: BinaryParts,
}

/// Result of a decode.
#[derive(Debug)]
pub struct Records {
    /// Offset of each record.
    pub offset: Vec<i64>,
    /// Timestamp of each record; -1 for messages of magic 0.
    pub timestamp_ms: Vec<i64>,
    /// Keys.
    pub keys: BinaryParts,
    /// Values.
    pub values: BinaryParts,
    /// Headers.
    pub headers: HeaderColumns,
    /// One row per batch, including control batches.
    pub batches: BatchColumns,
    /// First row of each batch. The last item is the number of rows.
    pub batch_starts: Vec<i64>,
    /// Data buffers 1 and up.
    pub opened: Vec<Vec<u8>>,
    /// Where and why the decode ended.
    pub stop: Stop,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(blocks: &[&[u128]]) -> BinaryParts {
        let mut column = BinaryColumn::default();
        for views in blocks {
            column.append(views, views.contains(&NULL_VIEW));
        }
        column.finish(&mut VectorPool::default())
    }

    #[test]
    fn leading_nulls_take_no_memory_until_the_first_value() {
        for before in [1, 3, 7, 8, 9, 64, 100] {
            let nulls = vec![NULL_VIEW; before];
            let parts = column(&[&nulls, &[5, NULL_VIEW, 6]]);
            assert_eq!(parts.views.len(), before + 3);
            assert_eq!(parts.null_count, before + 1);
            let found: Vec<bool> = (0..before + 4).map(|row| parts.is_null(row)).collect();
            let mut expected = vec![true; before];
            expected.extend([false, true, false, true]);
            assert_eq!(found, expected);
            assert_eq!(parts.views[before..], [5, 0, 6]);
            let only = column(&[&nulls, &nulls]);
            assert_eq!((only.null_count, only.views), (2 * before, vec![0; 2 * before]));
            assert_eq!(only.validity, Some(vec![0; (2 * before).div_ceil(8)]));
        }
    }

    #[test]
    fn bitmap_covers_exactly_its_rows() {
        for after in [0, 1, 7, 8, 20] {
            let parts = column(&[&[1, NULL_VIEW], &vec![2; after]]);
            let bits = parts.validity.unwrap();
            assert_eq!(bits.len(), (2 + after).div_ceil(8));
            assert_eq!(bits.iter().map(|byte| byte.count_ones()).sum::<u32>() as usize, 1 + after);
        }
        assert_eq!(column(&[&[1], &[2]]).validity, None);
        assert_eq!(column(&[]).validity, None);
    }
}
