//! Writes into validated batches the values that a broker sets before it appends them to a log.

use crate::batch::header::{
    BatchHeader, CRC_START, HEADER_SIZE, LOG_APPEND_TIME, LOG_OVERHEAD, MAGIC_END,
};
use crate::checksum::crc32c;
use crate::error::{Error, ErrorKind, Result};

/// The values that a broker assigns to the batches of one append.
#[derive(Clone, Copy, Debug)]
pub struct Assigned<'a> {
    /// Offset of the first record.
    pub base_offset: i64,
    /// Epoch of the leader that appends.
    pub leader_epoch: i32,
    /// Largest timestamp of each batch, or the append time.
    pub max_timestamps_ms: &'a [i64],
    /// True if `max_timestamps_ms` are append times, which are then the timestamps of all records.
    pub log_append_time: bool,
}

/// Writes the assigned values into the batches of `data`, which were validated before, and returns
/// the offset after the last record. The CRC changes only if a timestamp changes, because it does
/// not cover offset and leader epoch.
pub fn assign(data: &mut [u8], assigned: &Assigned<'_>) -> Result<i64> {
    let mut next_offset = assigned.base_offset;
    let mut position = 0;
    let mut timestamps = assigned.max_timestamps_ms.iter();
    while position < data.len() {
        let batch = whole_batch(&mut data[position..], position as u64)?;
        let size_bytes = batch.len();
        let Some(max_timestamp_ms) = timestamps.next() else {
            return Err(mismatch(position as u64, assigned.max_timestamps_ms.len()));
        };
        next_offset = assign_one(batch, next_offset, *max_timestamp_ms, assigned, position as u64)?;
        position += size_bytes;
    }
    match timestamps.len() {
        0 => Ok(next_offset),
        _ => Err(mismatch(position as u64, assigned.max_timestamps_ms.len())),
    }
}

fn mismatch(position: u64, timestamps: usize) -> Error {
    let expected = format!("{timestamps} batches, one for each timestamp");
    Error::new(ErrorKind::InvalidArgument, position, expected, "another number of batches")
}

/// Returns the first batch of `rest`, which starts at byte `position`.
fn whole_batch(rest: &mut [u8], position: u64) -> Result<&mut [u8]> {
    let bad = |kind, expected: &str, found: String| {
        Err(Error::new(kind, position, expected.to_owned(), found))
    };
    let Some(header) = rest.first_chunk::<HEADER_SIZE>() else {
        return bad(ErrorKind::Truncated, "a whole batch", format!("{} bytes", rest.len()));
    };
    if header[MAGIC_END - 1] != 2 {
        let found = header[MAGIC_END - 1].to_string();
        return bad(ErrorKind::UnknownMagic, "magic 2", found);
    }
    let length = BatchHeader::parse(header).batch_length;
    let size_bytes = usize::try_from(length).unwrap_or(0) + LOG_OVERHEAD;
    let left = rest.len();
    match rest.get_mut(..size_bytes) {
        Some(batch) if size_bytes >= HEADER_SIZE => Ok(batch),
        _ => bad(ErrorKind::BadLength, "a whole batch", format!("length {length} of {left}")),
    }
}

fn assign_one(
    batch: &mut [u8],
    base_offset: i64,
    max_timestamp_ms: i64,
    assigned: &Assigned<'_>,
    position: u64,
) -> Result<i64> {
    let Some((bytes, _)) = batch.split_first_chunk_mut::<HEADER_SIZE>() else {
        return Err(Error::new(ErrorKind::Truncated, position, "a header", "less"));
    };
    bytes[..8].copy_from_slice(&base_offset.to_be_bytes());
    bytes[12..16].copy_from_slice(&assigned.leader_epoch.to_be_bytes());
    let mut header = BatchHeader::parse(bytes);
    header.validate(position)?;
    let attributes = if assigned.log_append_time {
        header.attributes | LOG_APPEND_TIME
    } else {
        header.attributes & !LOG_APPEND_TIME
    };
    if attributes != header.attributes || max_timestamp_ms != header.max_timestamp_ms {
        bytes[21..23].copy_from_slice(&attributes.to_be_bytes());
        bytes[35..43].copy_from_slice(&max_timestamp_ms.to_be_bytes());
        header.crc = crc32c(&batch[CRC_START..]);
        batch[17..CRC_START].copy_from_slice(&header.crc.to_be_bytes());
    }
    // `validate` refused an offset that overflows.
    Ok(header.last_offset().saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::columns::BatchColumns;
    use crate::segment::{ScanOptions, StopReason, scan_slice};
    use crate::vectors::vector;

    fn scan(data: &[u8]) -> BatchColumns {
        let mut columns = BatchColumns::default();
        let scan = scan_slice(data, &ScanOptions::default(), &mut columns).unwrap();
        assert_eq!(scan.stop.reason, StopReason::End);
        columns
    }

    fn two_batches() -> Vec<u8> {
        [vector("v2_none"), vector("v2_none")].concat()
    }

    #[test]
    fn offsets_and_epoch_leave_the_checksum_as_it_is() {
        let mut data = two_batches();
        let crc = data[17..21].to_vec();
        let assigned = Assigned {
            base_offset: 500,
            leader_epoch: 9,
            max_timestamps_ms: &[1005, 1005],
            log_append_time: false,
        };
        assert_eq!(assign(&mut data, &assigned).unwrap(), 506);
        let found = scan(&data);
        assert_eq!(found.base_offset, [500, 503]);
        assert_eq!((found.leader_epoch, &data[17..21]), (vec![9, 9], &crc[..]));
    }

    #[test]
    fn an_append_time_gets_its_own_checksum() {
        let mut data = two_batches();
        let assigned = Assigned {
            base_offset: 0,
            leader_epoch: 0,
            max_timestamps_ms: &[7777, 7777],
            log_append_time: true,
        };
        assert_eq!(assign(&mut data, &assigned).unwrap(), 6);
        let found = scan(&data);
        assert_eq!(found.max_timestamp_ms, [7777, 7777]);
        assert!(found.attributes.iter().all(|attributes| attributes & LOG_APPEND_TIME != 0));
        let create =
            Assigned { max_timestamps_ms: &[1005, 1004], log_append_time: false, ..assigned };
        assign(&mut data, &create).unwrap();
        let found = scan(&data);
        assert_eq!((found.max_timestamp_ms, found.attributes), (vec![1005, 1004], vec![0, 0]));
    }

    #[test]
    fn refuses_what_is_not_a_row_of_whole_batches() {
        let assigned = Assigned {
            base_offset: 0,
            leader_epoch: 0,
            max_timestamps_ms: &[1, 2],
            log_append_time: true,
        };
        let mut torn = two_batches();
        torn.pop();
        assert_eq!(assign(&mut torn, &assigned).unwrap_err().kind, ErrorKind::BadLength);
        let mut one = vector("v2_none");
        assert_eq!(assign(&mut one, &assigned).unwrap_err().kind, ErrorKind::InvalidArgument);
        let mut old = vector("v1_none");
        old.resize(80, 0);
        assert_eq!(assign(&mut old, &assigned).unwrap_err().kind, ErrorKind::UnknownMagic);
        let last = Assigned { base_offset: i64::MAX, ..assigned };
        assert_eq!(assign(&mut two_batches(), &last).unwrap_err().kind, ErrorKind::BadHeader);
    }
}
