//! Checks indexes that are rebuilt from a segment.

use tierlog_core::batch::checksums::BatchChecksums;
use tierlog_core::batch::columns::BatchColumns;
use tierlog_core::error::{ErrorKind, Result};
use tierlog_core::index::local::{
    Tail, parse_offset_index, parse_time_index, parse_transaction_index,
};
use tierlog_core::index::producer_state::{ProducerState, parse_snapshot};
use tierlog_core::segment::rebuild::{RebuildVisitor, Rebuilder, Rebuilt};
use tierlog_core::segment::{ScanOptions, scan_slice};

use super::scan::columns;

/// Index entries are this many bytes apart, so that small segments have some.
const INTERVAL_BYTES: u64 = 100;

/// Rebuilds the indexes of `data`, then the indexes of a second segment with the same batches.
pub fn check_rebuild(data: &[u8]) {
    let (batches, scan) = columns(data);
    let (rebuilt, state) = match rebuild(data, INTERVAL_BYTES, ProducerState::default()) {
        Ok(rebuilt) => rebuilt,
        Err(error) => {
            assert!(!must_succeed(&batches), "{error}");
            assert!(error.position <= data.len() as u64);
            assert!(matches!(
                error.kind,
                ErrorKind::OffsetOrder
                    | ErrorKind::BadRecord
                    | ErrorKind::BadCompression
                    | ErrorKind::TooLarge
            ));
            return;
        }
    };
    check_rebuilt(data, &batches, &rebuilt);
    let bytes: u64 = rebuilt.bytes_per_epoch.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(bytes, scan.stop.position);

    if state.producers().is_empty() {
        return;
    }
    let Ok(reloaded) = ProducerState::from_snapshot(&rebuilt.producer_snapshot, None) else {
        panic!("the snapshot that was made is refused");
    };
    assert_eq!(reloaded.first_open_offset(), state.first_open_offset());
    match (rebuild(data, INTERVAL_BYTES, state), rebuild(data, INTERVAL_BYTES, reloaded)) {
        (Ok((one, _)), Ok((other, _))) => assert_same(&one, &other),
        (Err(one), Err(other)) => {
            assert_eq!((one.kind, one.position), (other.kind, other.position));
        }
        (one, other) => panic!("{:?} {:?}", one.err(), other.err()),
    }
}

/// Returns the indexes of the batches that a scan of `data` accepts.
pub fn rebuild(
    data: &[u8],
    interval_bytes: u64,
    producers: ProducerState,
) -> Result<(Rebuilt, ProducerState)> {
    let mut visitor = RebuildVisitor::new(Rebuilder::new(None, interval_bytes, producers), 4);
    let scan = scan_slice(data, &ScanOptions::default(), &mut visitor)?;
    assert!(visitor.batches.len() <= 4 && scan.stop.position <= data.len() as u64);
    visitor.rebuilder.finish(None)
}

/// Returns true when the batches have no producers and their offsets fit an index.
fn must_succeed(batches: &BatchColumns) -> bool {
    let (Some(first), Some(last)) = (batches.base_offset.first(), batches.last_offset.last())
    else {
        return true;
    };
    let fits = last.checked_sub(*first).is_some_and(|range| i32::try_from(range).is_ok());
    fits && batches.producer_id.iter().all(|&id| id < 0)
}

fn check_rebuilt(data: &[u8], batches: &BatchColumns, rebuilt: &Rebuilt) {
    let base_offset = batches.base_offset.first().copied().unwrap_or(0);
    let offsets = parse_offset_index(&rebuilt.offset_index, base_offset, Tail::Empty);
    let times = parse_time_index(&rebuilt.time_index, base_offset, Tail::Empty);
    let aborted = parse_transaction_index(&rebuilt.transaction_index, base_offset);
    let producers = parse_snapshot(&rebuilt.producer_snapshot);
    let (Ok(offsets), Ok(times), Ok(_), Ok(_)) = (offsets, times, aborted, producers) else {
        panic!("an index that was made is refused");
    };
    let mut before = 0;
    for (&offset, &position) in offsets.key.iter().zip(&offsets.value) {
        let row = batches.position.iter().position(|&at| at == position);
        assert_eq!(row.map(|row| batches.last_offset[row]), Some(offset));
        assert!(position - before > INTERVAL_BYTES as i64);
        before = position;
    }
    let latest = batches.max_timestamp_ms.iter().copied().max().unwrap_or(-1).max(-1);
    assert_eq!(
        (rebuilt.max_timestamp_ms, times.key.last().copied().unwrap_or(-1)),
        (latest, latest)
    );
    let end_offset = batches.last_offset.last().map_or(0, |last| last.saturating_add(1));
    assert_eq!(rebuilt.end_offset, end_offset);
    assert!(rebuilt.last_stable_offset <= end_offset);
    assert!(rebuilt.leader_epochs.is_sorted_by(|one, next| one.0 < next.0 && one.1 < next.1));
    let checksums = BatchChecksums::new(&rebuilt.offset_index, &rebuilt.batch_checksums);
    let Some(checksums) = checksums else { panic!("checksums without their entries") };
    assert_eq!(checksums.find_mismatch(data, 0, &batches.position), None);
}

/// Asserts that a reloaded state led to the same indexes. A snapshot's order has no meaning.
fn assert_same(one: &Rebuilt, other: &Rebuilt) {
    let producers = |rebuilt: &Rebuilt| {
        let mut entries = parse_snapshot(&rebuilt.producer_snapshot).unwrap_or_default();
        entries.sort_by_key(|entry| entry.producer_id);
        entries
    };
    assert_eq!(producers(one), producers(other));
    assert_eq!(one.transaction_index, other.transaction_index);
    assert_eq!(one.offset_index, other.offset_index);
    assert_eq!(one.time_index, other.time_index);
    assert_eq!(one.last_stable_offset, other.last_stable_offset);
    assert_eq!(one.end_offset, other.end_offset);
}
