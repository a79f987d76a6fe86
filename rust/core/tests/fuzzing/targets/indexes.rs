//! Checks a segment's own indexes and producer snapshots.

use std::collections::HashMap;

use tierlog_core::batch::answer::Asked;
use tierlog_core::batch::checksums::BatchChecksums;
use tierlog_core::index::local::{
    IndexEntries, OffsetIndexWriter, Tail, TimeIndexWriter, collect_aborted, lookup_around,
    lookup_offset, lookup_time, lookup_upper_bound, parse_offset_index, parse_time_index,
    parse_transaction_index,
};
use tierlog_core::index::producer_state::{Expiry, ProducerEntry, ProducerState, parse_snapshot};
use tierlog_core::segment::read::SegmentIndex;

/// The base offset of the segments whose index is checked.
const BASE_OFFSET: i64 = 1000;

/// Checks all bytes after the first. The first byte selects the index and which bytes may follow
/// its entries.
pub fn check_indexes(data: &[u8]) {
    let Some((&settings, index)) = data.split_first() else { return };
    let tail = [Tail::Empty, Tail::Zeros, Tail::Anything][usize::from(settings >> 2) % 3];
    match settings & 3 {
        0 => check_offset_index(index, tail),
        1 => check_time_index(index, tail),
        2 => check_transaction_index(index),
        _ => check_hostile_index(index),
    }
}

fn check_length(index: &[u8], found: &IndexEntries, tail: Tail, entry_size: usize) {
    assert_eq!(found.key.len(), found.value.len());
    assert_eq!(found.valid_length, found.key.len() * entry_size);
    assert!(found.valid_length <= index.len());
    match tail {
        Tail::Empty => assert_eq!(found.valid_length, index.len()),
        Tail::Zeros => assert!(index[found.valid_length..].iter().all(|&byte| byte == 0)),
        Tail::Anything => {}
    }
}

fn check_offset_index(index: &[u8], tail: Tail) {
    let Ok(found) = parse_offset_index(index, BASE_OFFSET, tail) else { return };
    check_length(index, &found, tail, 8);
    let mut writer = OffsetIndexWriter::new(BASE_OFFSET);
    for (&offset, &position) in found.key.iter().zip(&found.value) {
        assert!(writer.append(offset, position as u64, 0).is_ok());
    }
    let valid = &index[..found.valid_length];
    assert_eq!(writer.into_bytes(), valid);
    let entries: Vec<(i64, i32)> =
        found.key.iter().zip(&found.value).map(|(&key, &value)| (key, value as i32)).collect();
    for &(offset, position) in &entries {
        for target in [offset - 1, offset, offset + 1] {
            let below = entries.iter().rev().find(|entry| entry.0 <= target);
            let expected = below.copied().unwrap_or((BASE_OFFSET, 0));
            assert_eq!(lookup_offset(valid, BASE_OFFSET, target), expected);
            let (around, [next, after]) = lookup_around(valid, BASE_OFFSET, target);
            assert_eq!(around, expected);
            assert!(next.is_none_or(|next| next.1 > around.1));
            assert!(after.is_none() || next.is_some_and(|next| Some(next) < after));
        }
        for target in [i64::from(position) - 1, position.into(), i64::from(position) + 1] {
            let above = entries.iter().find(|entry| i64::from(entry.1) >= target);
            assert_eq!(lookup_upper_bound(valid, BASE_OFFSET, target), above.copied());
        }
    }
}

fn check_time_index(index: &[u8], tail: Tail) {
    let Ok(found) = parse_time_index(index, BASE_OFFSET, tail) else { return };
    check_length(index, &found, tail, 12);
    let mut writer = TimeIndexWriter::new(BASE_OFFSET);
    for (&timestamp_ms, &offset) in found.key.iter().zip(&found.value) {
        assert!(writer.maybe_append(timestamp_ms, offset, 0).is_ok());
    }
    let valid = &index[..found.valid_length];
    assert_eq!(writer.into_bytes(), valid);
    for &timestamp_ms in &found.key {
        for target in [timestamp_ms - 1, timestamp_ms, timestamp_ms.saturating_add(1)] {
            let rows = found.key.iter().zip(&found.value).rev();
            let below = rows.map(|(&key, &value)| (key, value)).find(|row| row.0 <= target);
            let expected = below.unwrap_or((-1, BASE_OFFSET));
            assert_eq!(lookup_time(valid, BASE_OFFSET, target), expected);
        }
    }
}

fn check_transaction_index(index: &[u8]) {
    let Ok(found) = parse_transaction_index(index, BASE_OFFSET) else { return };
    let bytes: Vec<u8> = found.iter().flat_map(|entry| entry.to_bytes()).collect();
    assert_eq!(bytes, index);
    assert!(found.is_sorted_by(|one, next| one.last_offset < next.last_offset));
    for entry in &found {
        let (from, end) = (entry.first_offset, entry.last_offset);
        let (aborted, _) = collect_aborted(&found, from, end);
        assert!(aborted.iter().all(|one| one.last_offset >= from && one.first_offset < end));
        let (all, is_complete) = collect_aborted(&found, i64::MIN, i64::MAX);
        assert!(
            is_complete || all.len() == found.iter().filter(|e| e.first_offset < i64::MAX).count()
        );
    }
}

/// Reads with index entries and checksums that were not checked.
fn check_hostile_index(index: &[u8]) {
    let half = index.len() / 16 * 8;
    let (entries, bytes) = index.split_at(half);
    let Some(checksums) = BatchChecksums::new(entries, &[]) else { panic!("no checksums refused") };
    let checksums = BatchChecksums::new(entries, bytes).unwrap_or(checksums);
    let hostile = SegmentIndex {
        entries,
        checksums,
        start_offset: BASE_OFFSET,
        end_offset: i64::MAX,
        size_bytes: index.len() as i64,
    };
    let asked =
        Asked { offset: BASE_OFFSET + 5, last_offset: i64::MAX, max_bytes: 100, minimum_one: true };
    let span = hostile.span(asked.offset, 4096);
    for position in [0, span.position, span.covers] {
        if let Some(found) = hostile.answer(bytes, position, span.last_offset, &asked) {
            assert!(found.start < found.end && found.end <= bytes.len());
        }
    }
    checksums.find_mismatch(bytes, 0, &[0, 1, 8, span.position, span.covers]);
}

/// Checks the state that is read from a producer snapshot, and the snapshot that is written from
/// this state.
pub fn check_snapshot(data: &[u8]) {
    let (parsed, loaded) = (parse_snapshot(data), ProducerState::from_snapshot(data, None));
    let (Ok(entries), Ok(mut state)) = (parsed, loaded) else { return };
    // The last entry of a producer wins.
    let newest: HashMap<i64, ProducerEntry> =
        entries.iter().map(|entry| (entry.producer_id, *entry)).collect();
    let Ok(written) = parse_snapshot(&state.to_snapshot()) else { panic!("own snapshot refused") };
    assert_eq!(written.len(), newest.len());
    assert!(written.iter().all(|entry| newest.get(&entry.producer_id) == Some(entry)));
    state.expire(Expiry { now_ms: i64::MAX, expiration_ms: 0 });
    let open = newest.values().filter(|entry| entry.current_txn_first_offset.is_some());
    assert_eq!(state.producers().len(), open.count());
    let first = state.producers().iter().filter_map(|entry| entry.current_txn_first_offset).min();
    assert!(state.first_open_offset() <= first || first.is_none());
}
