//! The last offset of each key, in a bounded table (Kafka's `SkimpyOffsetMap`).

use std::hash::{BuildHasher, Hasher, RandomState};

use crate::compaction::batches::{BatchFile, Opener};
use crate::compaction::raw_record::RawRecords;
use crate::compaction::transactions::{Marker, Transactions};
use crate::error::Result;
use crate::source::SegmentFile;

/// Bytes per slot: a hash of 128 bits and an offset.
const SLOT_BYTES: usize = 24;
/// Slots of ten that may be used (`log.cleaner.io.buffer.load.factor`).
const USED_OF_TEN: usize = 9;
const FEWEST_SLOTS: usize = 16;

/// Keys by their hash, with the last offset of each.
///
/// A key is known by a hash of 128 bits under two secret keys: two keys with the same hash are not
/// found by chance, nor by a client that chooses its keys.
pub struct KeyOffsets {
    /// Two halves of the hash, and the offset plus one; 0 is an empty slot.
    slots: Vec<[u64; 3]>,
    used: usize,
    most: usize,
    hashers: [RandomState; 2],
    latest_offset: i64,
    opener: Opener,
}

impl KeyOffsets {
    /// Returns a table of at most `budget_bytes`, and no larger than `expected_keys` need.
    pub fn new(budget_bytes: usize, expected_keys: usize, max_decompressed_bytes: usize) -> Self {
        let needed = expected_keys.saturating_mul(10) / USED_OF_TEN + 1;
        let slots = (budget_bytes / SLOT_BYTES).min(needed).max(FEWEST_SLOTS);
        Self {
            slots: vec![[0; 3]; slots],
            used: 0,
            most: slots * USED_OF_TEN / 10,
            hashers: [RandomState::new(), RandomState::new()],
            latest_offset: -1,
            opener: Opener::new(max_decompressed_bytes),
        }
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Returns true before the first key.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns the offset up to which every record of the log was taken in; -1 at first.
    pub fn latest_offset(&self) -> i64 {
        self.latest_offset
    }

    /// Records that there is nothing else up to `offset`.
    pub fn raise_latest_offset(&mut self, offset: i64) {
        self.latest_offset = self.latest_offset.max(offset);
    }

    /// Takes in the records of a segment from `first_offset` on, without those of aborted
    /// transactions; returns true when the table is full before the end.
    pub fn add_segment(
        &mut self,
        file: &SegmentFile,
        first_offset: i64,
        transactions: &mut Transactions,
    ) -> Result<bool> {
        let mut opener = std::mem::replace(&mut self.opener, Opener::new(0));
        let added = self.add_batches(file, first_offset, transactions, &mut opener);
        self.opener = opener;
        added
    }

    fn add_batches(
        &mut self,
        file: &SegmentFile,
        first_offset: i64,
        transactions: &mut Transactions,
        opener: &mut Opener,
    ) -> Result<bool> {
        let mut batches = BatchFile::new(file, 0);
        while let Some(batch) = batches.next()? {
            let header = &batch.header;
            if header.last_offset() < first_offset {
                continue;
            }
            if header.is_control() {
                let mut records = RawRecords::new(opener.open(&batch)?, header, batch.position);
                let marker = records.next()?.map(|one| Marker::of_key(one.key.unwrap_or_default()));
                transactions.end(header, marker);
            } else if !transactions.is_aborted(header) {
                let mut records = RawRecords::new(opener.open(&batch)?, header, batch.position);
                while let Some(record) = records.next()? {
                    let offset = header.base_offset + i64::from(record.offset_delta);
                    let Some(key) = record.key.filter(|_| offset >= first_offset) else { continue };
                    if self.used >= self.most {
                        return Ok(true);
                    }
                    self.put(key, offset);
                    self.latest_offset = offset;
                }
            }
            self.raise_latest_offset(header.last_offset());
        }
        Ok(false)
    }

    fn put(&mut self, key: &[u8], offset: i64) {
        let hash = self.hash(key);
        let slot = self.slot(hash);
        let found = &mut self.slots[slot];
        self.used += usize::from(found[2] == 0);
        *found = [hash[0], hash[1], offset as u64 + 1];
    }

    /// Returns the last offset of a key, -1 for an unknown one.
    pub fn get(&self, key: &[u8]) -> i64 {
        self.slots[self.slot(self.hash(key))][2] as i64 - 1
    }

    fn hash(&self, key: &[u8]) -> [u64; 2] {
        self.hashers.each_ref().map(|state| {
            let mut hasher = state.build_hasher();
            hasher.write(key);
            hasher.finish()
        })
    }

    /// Returns the slot of a hash, or the empty slot where it belongs. A tenth of the slots is
    /// always empty.
    fn slot(&self, hash: [u64; 2]) -> usize {
        let count = self.slots.len();
        let mut at = ((u128::from(hash[0]) * count as u128) >> 64) as usize;
        loop {
            let [first, second, offset] = self.slots[at];
            if offset == 0 || [first, second] == hash {
                return at;
            }
            at = if at + 1 == count { 0 } else { at + 1 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_keeps_the_last_offset_of_each_key() {
        let mut table = KeyOffsets::new(1 << 20, 1000, 0);
        for offset in 0..3000i64 {
            table.put(format!("key {}", offset % 900).as_bytes(), offset);
        }
        assert_eq!(table.len(), 900);
        for key in 0..900i64 {
            let last = if key < 300 { 2700 + key } else { 1800 + key };
            assert_eq!(table.get(format!("key {key}").as_bytes()), last);
        }
        assert_eq!(table.get(b"another key"), -1);
    }

    #[test]
    fn the_budget_bounds_the_table() {
        let table = KeyOffsets::new(2400, 1 << 40, 0);
        assert_eq!((table.slots.len(), table.most), (100, 90));
        assert_eq!(KeyOffsets::new(usize::MAX, 90, 0).slots.len(), 101);
    }
}
