//! Checks the remoteLogIndex: its entries, look-ups, and the two indexes that are made from its
//! entries.

use tierlog_core::error::Error;
use tierlog_core::index::local::{Tail, parse_offset_index, parse_time_index};
use tierlog_core::index::offset_search::Slope;
use tierlog_core::index::remote::{
    Entry, NewEntry, RemoteLogIndex, TRAILER_SIZE, decode, encode, lookup_offset, lookup_timestamp,
};

/// Decodes `data` as a whole file and as a file with a torn end.
pub fn check_entries(data: &[u8]) {
    let recovered = decode(data, true);
    match (decode(data, false), &recovered) {
        (Ok(whole), Ok(recovered)) => {
            assert!(recovered.torn.is_none() && recovered.position == whole.position);
            let trailer = if whole.has_trailer { TRAILER_SIZE } else { 0 };
            assert_eq!(whole.valid_length + trailer, data.len());
        }
        (Ok(_), Err(error)) => panic!("{error}"),
        (Err(error), Ok(recovered)) => {
            assert!(recovered.torn.as_ref().is_some_and(|torn| same(torn, &error)));
            assert_eq!(error.position, recovered.valid_length as u64);
        }
        (Err(error), Err(other)) => assert!(same(&error, other)),
    }
    if let Ok(found) = &recovered {
        check_index(data, found);
    }
}

fn same(one: &Error, other: &Error) -> bool {
    (one.kind, one.position) == (other.kind, other.position)
}

fn check_index(data: &[u8], found: &RemoteLogIndex) {
    assert!(found.valid_length <= data.len());
    let mut end = 0;
    let mut entries = Vec::with_capacity(found.len());
    for row in 0..found.len() {
        let entry = match Entry::read(data, end) {
            Ok(entry) => entry,
            Err(error) => panic!("row {row}: {error}"),
        };
        assert_eq!(found.position[row], end as i64);
        end += entry.size();
        entries.push(NewEntry {
            first_offset: found.first_offset[row],
            last_offset: found.last_offset[row],
            first_timestamp_ms: found.first_timestamp_ms[row],
            last_timestamp_ms: found.last_timestamp_ms[row],
            data_length: found.data_length[row].into(),
            rdi: entry.rdi,
        });
    }
    assert_eq!(end, found.valid_length);
    assert!(encode(&entries).is_ok_and(|bytes| bytes == data[..end]));
    let slope = Slope::of(&found.last_offset);
    let offsets = found.first_offset.iter().chain(&found.last_offset);
    let edges = [i64::MIN, -1, 0, i64::MAX];
    for &offset in offsets.chain(&edges) {
        let first = found.last_offset.iter().position(|&last| last >= offset);
        assert_eq!(lookup_offset(&found.last_offset, offset), first);
        assert_eq!(slope.lookup(&found.last_offset, offset), first);
    }
    for &timestamp_ms in &found.last_timestamp_ms {
        let row = lookup_timestamp(&found.last_timestamp_ms, timestamp_ms);
        assert!(row.is_some_and(|row| found.last_timestamp_ms[row] >= timestamp_ms));
    }
    check_made_indexes(found);
}

fn check_made_indexes(found: &RemoteLogIndex) {
    let Some(&base_offset) = found.first_offset.first() else { return };
    if let Ok(made) = found.offset_index(base_offset) {
        let Ok(parsed) = parse_offset_index(&made, base_offset, Tail::Empty) else {
            panic!("the offset index that was made is refused");
        };
        assert_eq!((&parsed.key, &parsed.value), (&found.last_offset, &found.position));
    }
    if let Ok(made) = found.time_index(base_offset) {
        assert!(parse_time_index(&made, base_offset, Tail::Empty).is_ok());
    }
}
