//! Columns of table rows in addition to the record itself: the fields of the record's batch,
//! repeated for each record, and the timestamp in microseconds, as in Arrow and Spark.

use crate::batch::header::{BatchHeader, LOG_APPEND_TIME};

/// Largest time in ms that can be expressed in microseconds. The smallest time is the negative of
/// it.
const MAX_MS: i64 = i64::MAX / 1000;

/// Batch fields that rows repeat. All columns have the same length.
#[derive(Clone, Copy, Debug)]
pub struct BatchFields<'a> {
    /// Format version.
    pub magic: &'a [i8],
    /// Codec and flags.
    pub attributes: &'a [i16],
    /// Leader epoch; -1 means unknown.
    pub leader_epoch: &'a [i32],
    /// Producer id; -1 means none.
    pub producer_id: &'a [i64],
    /// Producer epoch; -1 means none.
    pub producer_epoch: &'a [i16],
    /// Sequence of the first record; -1 means none.
    pub base_sequence: &'a [i32],
}

impl BatchFields<'_> {
    /// Returns Kafka's timestamp type of each batch: -1 none, 0 create time, 1 log append time.
    pub fn timestamp_types(&self) -> Vec<i32> {
        self.magic
            .iter()
            .zip(self.attributes)
            .map(|(&magic, &attributes)| timestamp_type(magic, attributes))
            .collect()
    }
}

/// Columns of rows. All columns have the same length.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RowColumns {
    /// Timestamp in microseconds, saturated at the limits.
    pub timestamp_us: Vec<i64>,
    /// Kafka's timestamp type: -1 none, 0 create time, 1 log append time.
    pub timestamp_type: Vec<i32>,
    /// Leader epoch of the batch.
    pub leader_epoch: Vec<i32>,
    /// Producer id of the batch.
    pub producer_id: Vec<i64>,
    /// Producer epoch of the batch.
    pub producer_epoch: Vec<i16>,
    /// First sequence of the batch.
    pub base_sequence: Vec<i32>,
}

impl RowColumns {
    /// Builds the columns of rows with these timestamps. Rows `starts[i]` to `starts[i + 1]` belong
    /// to batch i. Returns `None` unless every row has a batch and every batch has its fields.
    pub fn of(batches: BatchFields<'_>, starts: &[i64], timestamp_ms: &[i64]) -> Option<Self> {
        let counts = counts(starts, timestamp_ms.len())?;
        let types = batches.timestamp_types();
        Some(Self {
            timestamp_us: timestamp_ms.iter().map(|&ms| microseconds(ms)).collect(),
            timestamp_type: repeat(&types, &counts)?,
            leader_epoch: repeat(batches.leader_epoch, &counts)?,
            producer_id: repeat(batches.producer_id, &counts)?,
            producer_epoch: repeat(batches.producer_epoch, &counts)?,
            base_sequence: repeat(batches.base_sequence, &counts)?,
        })
    }

    /// Appends rows with these timestamps, all of one batch of magic 2.
    pub(crate) fn extend(&mut self, header: &BatchHeader, timestamp_ms: &[i64]) {
        self.timestamp_us.extend(timestamp_ms.iter().map(|&ms| microseconds(ms)));
        let rows = self.timestamp_us.len();
        self.timestamp_type.resize(rows, timestamp_type(2, header.attributes));
        self.leader_epoch.resize(rows, header.leader_epoch);
        self.producer_id.resize(rows, header.producer_id);
        self.producer_epoch.resize(rows, header.producer_epoch);
        self.base_sequence.resize(rows, header.base_sequence);
    }
}

fn timestamp_type(magic: i8, attributes: i16) -> i32 {
    if magic == 0 { -1 } else { i32::from(attributes & LOG_APPEND_TIME != 0) }
}

fn microseconds(ms: i64) -> i64 {
    ms.clamp(-MAX_MS, MAX_MS) * 1000
}

/// Returns the number of rows of each batch, or `None` if the numbers do not sum to `rows`.
fn counts(starts: &[i64], rows: usize) -> Option<Vec<usize>> {
    let (&first, &last) = (starts.first()?, starts.last()?);
    if first != 0 || usize::try_from(last) != Ok(rows) {
        return None;
    }
    starts.windows(2).map(|pair| usize::try_from(pair[1].checked_sub(pair[0])?).ok()).collect()
}

fn repeat<T: Copy>(values: &[T], counts: &[usize]) -> Option<Vec<T>> {
    if values.len() != counts.len() {
        return None;
    }
    let mut rows = Vec::with_capacity(counts.iter().sum());
    for (&value, &count) in values.iter().zip(counts) {
        rows.resize(rows.len() + count, value);
    }
    Some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCHES: BatchFields<'static> = BatchFields {
        magic: &[2, 2, 0, 1],
        attributes: &[0x10, 0x0b, 0x08, 0],
        leader_epoch: &[3, 4, -1, -1],
        producer_id: &[1 << 40, -1, -1, -1],
        producer_epoch: &[7, -1, -1, -1],
        base_sequence: &[9, -1, -1, -1],
    };

    #[test]
    fn a_batch_gives_its_fields_to_each_of_its_rows() {
        let times = [1, -1, i64::MAX, i64::MIN, MAX_MS];
        let found = RowColumns::of(BATCHES, &[0, 2, 3, 3, 5], &times).unwrap();
        let least = -(i64::MAX / 1000 * 1000);
        let expected = RowColumns {
            timestamp_us: vec![1000, -1000, -least, least, -least],
            timestamp_type: vec![0, 0, 1, 0, 0],
            leader_epoch: vec![3, 3, 4, -1, -1],
            producer_id: vec![1 << 40, 1 << 40, -1, -1, -1],
            producer_epoch: vec![7, 7, -1, -1, -1],
            base_sequence: vec![9, 9, -1, -1, -1],
        };
        assert_eq!(found, expected);
        let legacy = RowColumns::of(BATCHES, &[0, 0, 0, 1, 1], &[5]).unwrap();
        assert_eq!((legacy.timestamp_us, legacy.timestamp_type), (vec![5000], vec![-1]));
    }

    #[test]
    fn rows_without_a_batch_are_refused() {
        for (starts, rows) in [
            (&[0, 2, 3, 3, 5][..], 4),
            (&[0, 2, 3, 3, 5], 6),
            (&[1, 2, 3, 3, 5], 5),
            (&[0, 3, 2, 3, 5], 5),
            (&[0, 2, 3, 5], 5),
            (&[0, i64::MIN, i64::MAX, 3, 5], 5),
            (&[0, 2, 3, 3, -1], 5),
            (&[], 0),
        ] {
            assert_eq!(RowColumns::of(BATCHES, starts, &vec![0; rows]), None, "{starts:?}");
        }
    }
}
