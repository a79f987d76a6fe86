//! The checksums of the batches that an offset index points at. They distinguish two segments that
//! have the same size, offsets and timestamps.
//!
//! The section of an `.indexes` object that holds them is a list of big-endian `u32` values. The
//! first value is the checksum field of the batch at byte 0. One value follows for each entry of
//! the offset index: the checksum field of the batch at the position of that entry. A batch
//! checksum covers the records, so two segments with equal checksums hold equal records. In
//! `.indexes` objects of format version 1 the section is empty, and no checksum is compared.

use crate::batch::header::{MAGIC_END, be_i32};
use crate::index::local::OFFSET_ENTRY_SIZE;

/// Bytes of one checksum.
pub const CHECKSUM_SIZE: usize = 4;

const LEGACY_CRC_AT: usize = 12;
const CRC_AT: usize = 17;

/// A batch whose checksum differs from the recorded checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Row of the batch.
    pub row: usize,
    /// The checksum that was recorded when the segment was copied.
    pub expected: u32,
    /// The checksum field of the batch that was read.
    pub found: u32,
}

/// The recorded checksums of a segment, starting at a byte position.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchChecksums<'a> {
    entries: &'a [[u8; OFFSET_ENTRY_SIZE]],
    checksums: &'a [[u8; CHECKSUM_SIZE]],
    row: usize,
}

impl<'a> BatchChecksums<'a> {
    /// Combines the section `checksums` with its offset index. Returns `None` unless the section is
    /// empty or has one checksum for the first batch and one for each entry.
    pub fn new(offset_index: &'a [u8], checksums: &'a [u8]) -> Option<Self> {
        let (entries, _) = offset_index.as_chunks::<OFFSET_ENTRY_SIZE>();
        let (checksums, rest) = checksums.as_chunks::<CHECKSUM_SIZE>();
        let is_complete = checksums.is_empty() || checksums.len() == entries.len() + 1;
        (rest.is_empty() && is_complete).then_some(Self { entries, checksums, row: 0 })
    }

    /// Returns the checksums of the batches from byte `position` of the segment on.
    #[must_use]
    pub fn starting_at(mut self, position: u64) -> Self {
        if !self.checksums.is_empty() && position > 0 {
            self.row =
                1 + self.entries.partition_point(|entry| (entry_position(entry) as u64) < position);
        }
        self
    }

    /// Returns the recorded checksum of the batch at byte `position`, or `None` if none was
    /// recorded for this batch. Positions must ascend from call to call.
    pub fn expected(&mut self, position: u64) -> Option<u32> {
        loop {
            let checksum = self.checksums.get(self.row)?;
            let recorded = match self.row.checked_sub(1) {
                None => 0,
                Some(entry) => entry_position(self.entries.get(entry)?) as u64,
            };
            if recorded > position {
                return None;
            }
            self.row += 1;
            if recorded == position {
                return Some(u32::from_be_bytes(*checksum));
            }
        }
    }

    /// Checks the batches at `positions` of `data`. Returns the first batch whose checksum differs
    /// from the recorded checksum. `data` begins at byte `data_position` of the segment.
    pub fn find_mismatch(
        self,
        data: &[u8],
        data_position: u64,
        positions: &[i64],
    ) -> Option<Mismatch> {
        let mut checksums = self.starting_at(data_position);
        positions.iter().enumerate().find_map(|(row, &position)| {
            let expected = checksums.expected(data_position.checked_add_signed(position)?)?;
            let found = checksum_of(data.get(usize::try_from(position).ok()?..)?)?;
            (found != expected).then_some(Mismatch { row, expected, found })
        })
    }
}

fn entry_position(entry: &[u8; OFFSET_ENTRY_SIZE]) -> u32 {
    be_i32(entry, 4) as u32
}

/// Returns the checksum field of the batch at the start of `data`.
pub fn checksum_of(data: &[u8]) -> Option<u32> {
    let magic = *data.get(MAGIC_END - 1)?;
    let at = if magic < 2 { LEGACY_CRC_AT } else { CRC_AT };
    let field = data.get(at..)?.first_chunk::<CHECKSUM_SIZE>()?;
    Some(u32::from_be_bytes(*field))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(positions: &[i32]) -> Vec<u8> {
        positions.iter().flat_map(|at| [5_i32.to_be_bytes(), at.to_be_bytes()]).flatten().collect()
    }

    fn section(checksums: &[u32]) -> Vec<u8> {
        checksums.iter().flat_map(|one| one.to_be_bytes()).collect()
    }

    #[test]
    fn only_indexed_batches_have_a_checksum() {
        let (index, section) = (index(&[100, 300]), section(&[1, 2, 3]));
        let whole = BatchChecksums::new(&index, &section).unwrap();
        let of = |start: u64, positions: &[u64]| {
            let mut found = whole.starting_at(start);
            positions.iter().map(|&at| found.expected(at)).collect::<Vec<_>>()
        };
        assert_eq!(of(0, &[0, 50, 100, 200, 300]), [Some(1), None, Some(2), None, Some(3)]);
        assert_eq!(of(100, &[100, 300, 400]), [Some(2), Some(3), None]);
        assert_eq!(of(101, &[101, 300]), [None, Some(3)]);
        assert_eq!(of(301, &[301]), [None]);
    }

    #[test]
    fn a_section_has_a_checksum_for_each_entry_or_none_at_all() {
        let index = index(&[100]);
        assert!(BatchChecksums::new(&index, &[]).unwrap().expected(0).is_none());
        for size in [1, 4, 7, 9, 12] {
            assert!(BatchChecksums::new(&index, &vec![0; size]).is_none());
        }
        assert!(BatchChecksums::new(&[], &[0; 4]).is_some());
    }

    #[test]
    fn first_batch_with_another_checksum_is_found() {
        let (index, section) = (index(&[100, 200]), section(&[1, 2, 3]));
        let mut data = vec![0; 300];
        for (at, crc) in [(0, 1_u32), (100, 2), (200, 4)] {
            data[at + MAGIC_END - 1] = 2;
            data[at + CRC_AT..][..CHECKSUM_SIZE].copy_from_slice(&crc.to_be_bytes());
        }
        let whole = BatchChecksums::new(&index, &section).unwrap();
        let found = whole.find_mismatch(&data, 0, &[0, 100, 200]);
        assert_eq!(found, Some(Mismatch { row: 2, expected: 3, found: 4 }));
        assert_eq!(whole.find_mismatch(&data[100..], 100, &[0, 100]).map(|one| one.row), Some(1));
        assert_eq!(whole.find_mismatch(&data[..200], 0, &[0, 100]), None);
    }

    #[test]
    fn legacy_batches_have_the_field_elsewhere() {
        let mut data = vec![0; 30];
        data[12..16].copy_from_slice(&7_u32.to_be_bytes());
        data[MAGIC_END - 1] = 1;
        assert_eq!(checksum_of(&data), Some(7));
        assert_eq!(checksum_of(&data[..15]), None);
    }
}
