//! Batches as columns: one row per batch, one vector per field.

use crate::batch::header::{BatchHeader, CODEC_MASK, CONTROL, DELETE_HORIZON, TRANSACTIONAL};

/// A batch of any magic. Legacy batches have -1 in the fields that their format lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// 0, 1 or 2.
    pub magic: i8,
    /// The header fields. A legacy message set has leader epoch and producer fields of -1.
    pub header: BatchHeader,
}

/// The columns of a scan. All have the same length. Each column holds a field of the batch header.
#[derive(Debug, Default)]
pub struct BatchColumns {
    /// Offset of the first record.
    pub base_offset: Vec<i64>,
    /// Offset of the last record, inclusive.
    pub last_offset: Vec<i64>,
    /// Byte position of the batch in the source.
    pub position: Vec<i64>,
    /// Bytes of the whole batch.
    pub size_bytes: Vec<i32>,
    /// First timestamp, or the delete horizon.
    pub base_timestamp_ms: Vec<i64>,
    /// Largest timestamp.
    pub max_timestamp_ms: Vec<i64>,
    /// Leader epoch; -1 means unknown.
    pub leader_epoch: Vec<i32>,
    /// Producer id; -1 means none.
    pub producer_id: Vec<i64>,
    /// Producer epoch; -1 means none.
    pub producer_epoch: Vec<i16>,
    /// Sequence of the first record; -1 means none.
    pub base_sequence: Vec<i32>,
    /// Codec and flags.
    pub attributes: Vec<i16>,
    /// Records present.
    pub record_count: Vec<i32>,
    /// Format version.
    pub magic: Vec<i8>,
}

/// Totals over all batches, for callers that need no columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Records present.
    pub records: i64,
    /// Smallest base timestamp. Unset timestamps and delete horizons do not count.
    pub first_timestamp_ms: Option<i64>,
    /// Whether a batch belongs to a transaction.
    pub has_transactions: bool,
    /// Codecs of the data batches: bit `n` is set for codec `n`. Control batches do not count.
    pub codecs: u8,
    /// Position after the last batch, or 0 if there are no batches.
    pub end_position: i64,
    /// The offset and epoch range of the batches, if they are contiguous.
    pub run: Option<Run>,
}

/// Contiguous batches of magic 2: each batch starts at the offset after the last record of the
/// previous batch, and leader epochs never decrease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Offset of the first record.
    pub first_offset: i64,
    /// Offset of the last record.
    pub last_offset: i64,
    /// Leader epoch of the first batch.
    pub first_epoch: i32,
    /// Leader epoch of the last batch.
    pub last_epoch: i32,
}

impl Run {
    /// Returns this run extended by `next`, if `next` follows without a gap.
    fn followed_by(self, next: Self) -> Option<Self> {
        let follows = self.last_offset.checked_add(1) == Some(next.first_offset)
            && next.first_epoch >= self.last_epoch;
        follows.then_some(Self {
            first_offset: self.first_offset,
            first_epoch: self.first_epoch,
            ..next
        })
    }
}

impl BatchColumns {
    /// Returns the totals over all rows.
    pub fn summary(&self) -> Summary {
        let mut found = Summary::default();
        for row in 0..self.len() {
            let attributes = self.attributes[row];
            found.records += i64::from(self.record_count[row]);
            found.has_transactions |= attributes & TRANSACTIONAL != 0;
            if attributes & CONTROL == 0 {
                found.codecs |= 1 << (attributes & CODEC_MASK);
            }
            let base_ms = self.base_timestamp_ms[row];
            if attributes & DELETE_HORIZON == 0 && base_ms >= 0 {
                let before = found.first_timestamp_ms.unwrap_or(base_ms);
                found.first_timestamp_ms = Some(base_ms.min(before));
            }
            let batch = self.run_of(row);
            found.run = match (row, found.run) {
                (0, _) => batch,
                (_, Some(run)) => batch.and_then(|next| run.followed_by(next)),
                (_, None) => None,
            };
            found.end_position = self.position[row].saturating_add(self.size_bytes[row].into());
        }
        found
    }

    /// Returns the run of a single batch.
    fn run_of(&self, row: usize) -> Option<Run> {
        let (first_offset, last_offset) = (self.base_offset[row], self.last_offset[row]);
        let epoch = self.leader_epoch[row];
        (self.magic[row] == 2 && first_offset <= last_offset).then_some(Run {
            first_offset,
            last_offset,
            first_epoch: epoch,
            last_epoch: epoch,
        })
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.base_offset.len()
    }

    /// Returns true when there are no rows.
    pub fn is_empty(&self) -> bool {
        self.base_offset.is_empty()
    }

    /// Reserves memory for `rows` more rows.
    pub fn reserve(&mut self, rows: usize) {
        self.base_offset.reserve(rows);
        self.last_offset.reserve(rows);
        self.position.reserve(rows);
        self.size_bytes.reserve(rows);
        self.base_timestamp_ms.reserve(rows);
        self.max_timestamp_ms.reserve(rows);
        self.leader_epoch.reserve(rows);
        self.producer_id.reserve(rows);
        self.producer_epoch.reserve(rows);
        self.base_sequence.reserve(rows);
        self.attributes.reserve(rows);
        self.record_count.reserve(rows);
        self.magic.reserve(rows);
    }

    /// Appends the batch that starts at byte `position`.
    #[inline]
    pub fn push(&mut self, position: u64, batch: &Batch) {
        let header = &batch.header;
        self.base_offset.push(header.base_offset);
        self.last_offset.push(header.last_offset());
        self.position.push(position as i64);
        self.size_bytes.push(header.batch_length.saturating_add(12));
        self.base_timestamp_ms.push(header.base_timestamp_ms);
        self.max_timestamp_ms.push(header.max_timestamp_ms);
        self.leader_epoch.push(header.leader_epoch);
        self.producer_id.push(header.producer_id);
        self.producer_epoch.push(header.producer_epoch);
        self.base_sequence.push(header.base_sequence);
        self.attributes.push(header.attributes);
        self.record_count.push(header.record_count);
        self.magic.push(batch.magic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(base_offset: i64, records: i32, leader_epoch: i32, attributes: i16) -> Batch {
        let header = BatchHeader {
            base_offset,
            batch_length: 88,
            leader_epoch,
            crc: 0,
            attributes,
            last_offset_delta: records - 1,
            base_timestamp_ms: 1000_i64.wrapping_sub(base_offset),
            max_timestamp_ms: 2000,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            record_count: records,
        };
        Batch { magic: 2, header }
    }

    fn summary(batches: &[Batch]) -> Summary {
        let mut columns = BatchColumns::default();
        for (row, batch) in batches.iter().enumerate() {
            columns.push(100 * row as u64, batch);
        }
        columns.summary()
    }

    #[test]
    fn batches_without_a_gap_are_contiguous() {
        let rows = [batch(100, 5, 3, 0), batch(105, 1, 3, 0x34), batch(106, 2, 7, 0x42)];
        let found = summary(&rows);
        let run = Run { first_offset: 100, last_offset: 107, first_epoch: 3, last_epoch: 7 };
        assert_eq!((found.run, found.records, found.end_position), (Some(run), 8, 300));
        // The codec of a control batch does not count, and a delete horizon is not a timestamp.
        assert_eq!((found.codecs, found.first_timestamp_ms), (0b101, Some(895)));
        assert!(found.has_transactions);
        assert!(!summary(&rows[..1]).has_transactions);
    }

    #[test]
    fn batches_with_gaps_or_falling_epochs_are_not_contiguous() {
        let first = batch(100, 5, 3, 0);
        let legacy = Batch { magic: 1, ..batch(105, 1, 3, 0) };
        let backwards = Batch {
            header: BatchHeader { last_offset_delta: -2, ..batch(105, 1, 3, 0).header },
            ..first
        };
        let gap_and_back = [first, batch(106, 1, 3, 0), batch(107, 1, 3, 0)];
        assert_eq!(summary(&gap_and_back).run, None);
        for second in [batch(104, 1, 3, 0), batch(105, 1, 2, 0), legacy, backwards] {
            assert_eq!(summary(&[first, second]).run, None);
        }
        for alone in [legacy, backwards] {
            assert_eq!(summary(&[alone, batch(106, 1, 3, 0)]).run, None);
        }
        let last = batch(i64::MAX, 1, 3, 0);
        assert_eq!(summary(&[last, batch(i64::MIN, 1, 3, 0)]).run, None);
        assert_eq!(summary(&[]), Summary::default());
    }

    #[test]
    fn unset_timestamps_do_not_count() {
        let mut unknown = batch(100, 1, 0, 0);
        unknown.header.base_timestamp_ms = -1;
        assert_eq!(summary(&[unknown]).first_timestamp_ms, None);
        assert_eq!(summary(&[unknown, batch(101, 1, 0, 0)]).first_timestamp_ms, Some(899));
    }
}
