//! Decoded records as columns. Keys, values and headers are Arrow binary views: rows of 16 bytes
//! that hold short values themselves and point into a data buffer for longer ones.
//!
//! ```text
//! 0 length i32   4 the bytes, zero-filled, if length <= 12
//!                4 first 4 bytes   8 data buffer i32   12 position in it i32, otherwise
//! ```
//! All little-endian; a null is 16 zero bytes. Data buffer 0 is the source itself, the others are
//! what compressed batches opened to. Validity is Arrow's bitmap, lowest bit first, 1 = not null.

use crate::batch::columns::BatchColumns;
use crate::memory::hints::{LARGE_PAGE_BYTES, prefer_large_pages};
use crate::memory::spare::{Item, Spare};
use crate::segment::Stop;

/// The longest value that a view holds itself.
pub const INLINE_BYTES: usize = 12;

/// Stands for a null until rows become a column: no view has this length.
pub(crate) const NULL_VIEW: u128 = u128::MAX;

/// Calls `use_bytes` with the bytes of a view that is not null; `None` if it points outside of
/// `buffers`, which views made here never do.
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

/// The data buffer that a view points into, if it does.
pub fn buffer_of(view: u128) -> Option<usize> {
    (view as u32 as usize > INLINE_BYTES).then_some((view >> 64) as u32 as usize)
}

/// Byte strings, some of them null.
#[derive(Debug, Default)]
pub(crate) struct BinaryColumn {
    views: Vec<u128>,
    /// Kept only from the first null on.
    validity: Vec<u8>,
    null_count: usize,
    /// Rows before the first one that is not null: no memory is spent on them until then.
    leading_nulls: usize,
    /// Memory for the rows once there is one that is not null.
    prepared: Vec<u128>,
    /// Rows to make room for then, if that is too small.
    planned: usize,
}

/// A finished [`BinaryColumn`].
#[derive(Debug, Default)]
pub struct BinaryParts {
    /// One view per row.
    pub views: Vec<u128>,
    /// One bit per row; `None` when nothing is null.
    pub validity: Option<Vec<u8>>,
    /// Nulls.
    pub null_count: usize,
}

impl BinaryParts {
    /// Row `row` is null; rows that do not exist are, too.
    pub fn is_null(&self, row: usize) -> bool {
        row >= self.views.len()
            || self.validity.as_ref().is_some_and(|bits| bits[row / 8] >> (row % 8) & 1 == 0)
    }
}

impl BinaryColumn {
    /// Rows.
    pub(crate) fn len(&self) -> usize {
        self.views.len().max(self.leading_nulls)
    }

    /// Makes room, at once or when the first row comes that is not null.
    pub(crate) fn reserve(&mut self, rows: usize, spare: &mut Spare) {
        if !self.views.is_empty() {
            return reserve(&mut self.views, rows, spare);
        }
        self.planned = self.len() + rows;
        if self.prepared.capacity() < self.planned {
            spare.give(std::mem::take(&mut self.prepared));
            self.prepared = spare.take(self.planned).unwrap_or_default();
        }
    }

    /// Adds rows, among which are nulls only if the caller says so.
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

    /// Gives the leading nulls their memory, because a row follows that is not null.
    fn materialise(&mut self) {
        let rows = std::mem::take(&mut self.leading_nulls);
        self.views = std::mem::take(&mut self.prepared);
        self.views.clear();
        make_room(&mut self.views, self.planned.max(rows));
        if rows > 0 {
            self.views.resize(rows, 0);
            self.null_count = rows;
            self.validity = vec![0; rows / 8];
            if !rows.is_multiple_of(8) {
                self.validity.push(0xff << (rows % 8));
            }
        }
    }

    /// Adds one row.
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

    /// Marks a row that is in memory as null.
    pub(crate) fn set_null(&mut self, row: usize) {
        let bytes = self.views.len().div_ceil(8);
        if self.validity.len() < bytes {
            // Rows without a bit so far are not null; spare bits are set, too, and cleared at last.
            self.validity.resize(bytes, 0xff);
        }
        self.views[row] = 0;
        self.validity[row / 8] &= !(1 << (row % 8));
        self.null_count += 1;
    }

    /// The views of all rows, and the bitmap as far as it goes: rows behind it are not null.
    pub(crate) fn parts(&mut self) -> (&[u128], &[u8]) {
        if self.views.is_empty() {
            self.materialise();
        }
        (&self.views, &self.validity)
    }

    /// Forgets all rows and keeps their memory.
    pub(crate) fn clear(&mut self) {
        self.leading_nulls = 0;
        self.null_count = 0;
        self.validity.clear();
        if !self.views.is_empty() {
            self.prepared = std::mem::take(&mut self.views);
        }
    }

    pub(crate) fn finish(mut self, spare: &mut Spare) -> BinaryParts {
        spare.give(self.prepared);
        if self.views.is_empty() && self.leading_nulls > 0 {
            // Zeroed allocations of any size cost next to nothing until they are read.
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

/// Makes room for `rows` more, in memory that was used before if there is some.
pub(crate) fn reserve<T: Item + Copy>(column: &mut Vec<T>, rows: usize, spare: &mut Spare) {
    if column.capacity() - column.len() >= rows {
        return;
    }
    if let Some(mut roomy) = spare.take(column.len() + rows) {
        roomy.clear();
        roomy.extend_from_slice(column);
        spare.give(std::mem::replace(column, roomy));
    }
    make_room(column, rows);
}

/// Makes room for `rows` more; in large columns, for whole large pages.
pub(crate) fn make_room<T>(column: &mut Vec<T>, rows: usize) {
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
    /// Where each record's headers start in the two columns below, and where the last one's end;
    /// `None` when no record has any.
    pub list_offsets: Option<Vec<i32>>,
    /// Never null.
    pub keys: BinaryParts,
    /// Values.
    pub values: BinaryParts,
}

/// Everything a decode produces.
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
    /// One row per batch, control batches too.
    pub batches: BatchColumns,
    /// First row of each batch, and the number of rows last.
    pub batch_starts: Vec<i64>,
    /// Data buffers 1 and up.
    pub opened: Vec<Vec<u8>>,
    /// Why and where the decode ended: the end, or a torn or zero tail.
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
        column.finish(&mut Spare::default())
    }

    #[test]
    fn nulls_before_the_first_value_have_no_bits_until_then() {
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
    fn a_bitmap_covers_its_rows_and_no_more() {
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
