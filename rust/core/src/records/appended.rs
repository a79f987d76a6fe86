//! What a log needs to know of batches before it appends them: one row per batch, from its header
//! and its records.

use crate::error::Result;
use crate::records::columns::Records;
use crate::records::{DecodeOptions, decode_records};
use crate::segment::{Stop, StopReason};

/// A sound batch that has no offset yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewBatch {
    /// Format version.
    pub magic: i8,
    /// Codec and flags.
    pub attributes: i16,
    /// Bytes of the whole batch.
    pub size_bytes: i32,
    /// Records that the header counts.
    pub record_count: i32,
    /// Offsets that the header spans.
    pub offset_count: i64,
    /// Producer id, -1 none.
    pub producer_id: i64,
    /// Producer epoch, -1 none.
    pub producer_epoch: i16,
    /// Sequence of the first record, -1 none.
    pub base_sequence: i32,
    /// Whether the records have the offset deltas 0, 1, 2 ..., as many as the header counts.
    pub is_dense: bool,
    /// Smallest and largest timestamp of the records; `None` without records.
    pub timestamps_ms: Option<(i64, i64)>,
    /// Records without a key.
    pub null_keys: usize,
}

/// Decodes and checks the batches of `data` like [`decode_records`] and returns a row for each. The
/// records of at most `options.budget_bytes` are in memory at a time, or those of one batch.
pub fn check_new_batches(data: &[u8], options: &DecodeOptions) -> Result<(Vec<NewBatch>, Stop)> {
    let mut rows = Vec::new();
    let mut position = 0;
    loop {
        let records = decode_records(&data[position..], position as u64, options)?;
        rows.extend((0..records.batches.len()).map(|row| new_batch(&records, row)));
        if records.stop.reason != StopReason::MemoryBudget {
            return Ok((rows, records.stop));
        }
        position = records.stop.position as usize;
    }
}

fn new_batch(records: &Records, row: usize) -> NewBatch {
    let batches = &records.batches;
    let rows = records.batch_starts[row] as usize..records.batch_starts[row + 1] as usize;
    let (base, last) = (batches.base_offset[row], batches.last_offset[row]);
    let times = &records.timestamp_ms[rows.clone()];
    let bounds = times.iter().min().zip(times.iter().max());
    let is_whole = usize::try_from(batches.record_count[row]) == Ok(rows.len());
    NewBatch {
        magic: batches.magic[row],
        attributes: batches.attributes[row],
        size_bytes: batches.size_bytes[row],
        record_count: batches.record_count[row],
        offset_count: last.saturating_sub(base).saturating_add(1),
        producer_id: batches.producer_id[row],
        producer_epoch: batches.producer_epoch[row],
        base_sequence: batches.base_sequence[row],
        is_dense: is_whole && (base..).zip(&records.offset[rows.clone()]).all(|(a, b)| a == *b),
        timestamps_ms: bounds.map(|(least, largest)| (*least, *largest)),
        null_keys: rows.filter(|record| records.keys.is_null(*record)).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::vectors::vector;

    fn check(data: &[u8]) -> Result<(Vec<NewBatch>, Stop)> {
        check_new_batches(data, &DecodeOptions::default())
    }

    #[test]
    fn a_row_has_what_header_and_records_say() {
        let data = [vector("v2_none"), vector("v2_none")].concat();
        // As a second batch of a log, whose offset no checksum covers.
        let half = data.len() / 2;
        let mut data = data;
        data[half..half + 8].copy_from_slice(&9000_i64.to_be_bytes());
        let (rows, stop) = check(&data).unwrap();
        assert_eq!((rows.len(), stop.reason), (2, StopReason::End));
        let row = rows[1];
        assert_eq!((row.magic, row.size_bytes as usize), (2, half));
        assert_eq!((row.record_count, row.offset_count, row.is_dense), (3, 3, true));
        assert_eq!(NewBatch { ..rows[0] }, row);
        let records = decode_records(&vector("v2_none"), 0, &DecodeOptions::default()).unwrap();
        let times = &records.timestamp_ms;
        let bounds = (*times.iter().min().unwrap(), *times.iter().max().unwrap());
        assert_eq!(row.timestamps_ms, Some(bounds));
        let nulls = (0..3).filter(|record| records.keys.is_null(*record)).count();
        assert_eq!(row.null_keys, nulls);
    }

    #[test]
    fn a_small_budget_changes_no_row() {
        let one = vector("v2_none");
        let mut data = one.repeat(5);
        for (row, base) in (0..5_i64).enumerate() {
            let start = row * one.len();
            data[start..start + 8].copy_from_slice(&(base * 1000).to_be_bytes());
        }
        let options = DecodeOptions { budget_bytes: 1, ..DecodeOptions::default() };
        assert_eq!(check_new_batches(&data, &options).unwrap(), check(&data).unwrap());
        assert_eq!(check(&data).unwrap().0.len(), 5);
    }

    #[test]
    fn a_cut_batch_ends_the_rows_and_a_damaged_one_is_an_error() {
        let mut data = vector("v2_none");
        data.extend_from_slice(&vector("v2_none")[..30]);
        let (rows, stop) = check(&data).unwrap();
        assert_eq!((rows.len(), stop.reason), (1, StopReason::TornTail));
        let last = vector("v2_none").len() - 1;
        data[last] ^= 1;
        assert_eq!(check(&data).unwrap_err().kind, ErrorKind::BadCrc);
    }
}
