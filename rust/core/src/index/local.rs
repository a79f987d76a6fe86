//! Kafka's index files of a segment.
//!
//! ```text
//! .index      8 bytes: i32 offset - base, i32 position of the batch that ends at that offset
//! .timeindex 12 bytes: i64 timestamp, i32 offset - base
//! .txnindex  34 bytes: i16 version 0, i64 producerId, firstOffset, lastOffset, lastStableOffset
//! ```
//! While a segment is active, Kafka pre-allocates its `.index` and `.timeindex` and fills them with
//! zeros. A reader stops at the first entry that does not ascend. With [`Tail`] the caller chooses
//! which bytes may follow.

use crate::batch::header::{be_i16, be_i64};
use crate::error::{Error, ErrorKind, Result};

/// Size of an offset index entry.
pub const OFFSET_ENTRY_SIZE: usize = 8;
/// Size of a time index entry.
pub const TIME_ENTRY_SIZE: usize = 12;
/// Size of a transaction index entry.
pub const TRANSACTION_ENTRY_SIZE: usize = 34;
/// Value of a timestamp that is not set.
pub const NO_TIMESTAMP: i64 = -1;

/// Bytes that may follow the last ascending entry of an offset or time index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// No bytes may follow: the file is not pre-allocated.
    Empty,
    /// Zeros may follow: the file of a broker is not being written.
    Zeros,
    /// Any bytes may follow: the file is live, and an entry may be half written.
    Anything,
}

/// Offset and position.
pub type OffsetEntry = (i64, i32);

/// An offset or time index as columns.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct IndexEntries {
    /// Offset (`.index`) or timestamp in ms (`.timeindex`), ascending.
    pub key: Vec<i64>,
    /// Byte position (`.index`) or offset (`.timeindex`).
    pub value: Vec<i64>,
    /// Bytes of the entries; the rest of the file is its tail.
    pub valid_length: usize,
}

/// Returns the i32 that an index stores for `offset`. `at` is the position or row that an error
/// names.
#[inline]
pub fn relative_offset(offset: i64, base_offset: i64, at: u64) -> Result<i32> {
    offset
        .checked_sub(base_offset)
        .and_then(|relative| i32::try_from(relative).ok())
        .filter(|&relative| relative >= 0)
        .ok_or_else(|| {
            let expected = format!("an offset from {base_offset} to 2147483647 past it");
            Error::new(ErrorKind::OffsetOrder, at, expected, offset.to_string())
        })
}

fn slots<const SIZE: usize>(data: &[u8]) -> Result<&[[u8; SIZE]]> {
    let (slots, rest) = data.as_chunks::<SIZE>();
    if rest.is_empty() {
        return Ok(slots);
    }
    let expected = format!("a multiple of {SIZE} bytes");
    let at = data.len() - rest.len();
    Err(Error::new(ErrorKind::BadLength, at as u64, expected, format!("{} bytes", data.len())))
}

fn check_tail(data: &[u8], found: &mut IndexEntries, size: usize, tail: Tail) -> Result<()> {
    let all_zero = data.iter().all(|&byte| byte == 0);
    // A pre-sized file without entries looks like one entry of (base, 0).
    if tail != Tail::Empty && all_zero {
        *found = IndexEntries::default();
        return Ok(());
    }
    found.valid_length = found.key.len() * size;
    let rest = &data[found.valid_length..];
    let fine = match tail {
        Tail::Empty => rest.is_empty(),
        Tail::Zeros => rest.iter().all(|&byte| byte == 0),
        Tail::Anything => true,
    };
    if fine {
        return Ok(());
    }
    let slot = rest.get(..size).unwrap_or(rest);
    Err(Error::new(
        ErrorKind::OffsetOrder,
        found.valid_length as u64,
        "an entry larger than the entry before",
        hex(slot),
    ))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[inline]
fn offset_slot(slot: &[u8; OFFSET_ENTRY_SIZE]) -> (i32, i32) {
    let [a, b, c, d, e, f, g, h] = *slot;
    (i32::from_be_bytes([a, b, c, d]), i32::from_be_bytes([e, f, g, h]))
}

#[inline]
fn time_slot(slot: &[u8; TIME_ENTRY_SIZE]) -> (i64, i32) {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *slot;
    (i64::from_be_bytes([a, b, c, d, e, f, g, h]), i32::from_be_bytes([i, j, k, l]))
}

/// Parses a `.index` (or remoteOffsetIndex), in which offsets and positions ascend strictly.
pub fn parse_offset_index(data: &[u8], base_offset: i64, tail: Tail) -> Result<IndexEntries> {
    let slots = slots::<OFFSET_ENTRY_SIZE>(data)?;
    let mut found = IndexEntries::default();
    let mut before = (-1, -1);
    for (relative, position) in slots.iter().map(offset_slot) {
        if relative <= before.0 || position <= before.1 {
            break;
        }
        found.key.push(base_offset.saturating_add(relative.into()));
        found.value.push(position.into());
        before = (relative, position);
    }
    check_tail(data, &mut found, OFFSET_ENTRY_SIZE, tail)?;
    Ok(found)
}

/// Parses a `.timeindex` (or remoteTimeIndex), in which timestamps ascend strictly from 0 and
/// offsets never decrease.
pub fn parse_time_index(data: &[u8], base_offset: i64, tail: Tail) -> Result<IndexEntries> {
    let slots = slots::<TIME_ENTRY_SIZE>(data)?;
    let mut found = IndexEntries::default();
    let mut before = (NO_TIMESTAMP, 0);
    for (timestamp_ms, relative) in slots.iter().map(time_slot) {
        if timestamp_ms <= before.0 || relative < before.1 {
            break;
        }
        found.key.push(timestamp_ms);
        found.value.push(base_offset.saturating_add(relative.into()));
        before = (timestamp_ms, relative);
    }
    check_tail(data, &mut found, TIME_ENTRY_SIZE, tail)?;
    Ok(found)
}

/// Returns the last entry whose offset is at most `target_offset` as (offset, position), or (base,
/// 0) if there is no such entry. `data` must be a checked index; an unchecked index yields an
/// arbitrary entry.
pub fn lookup_offset(data: &[u8], base_offset: i64, target_offset: i64) -> (i64, i32) {
    let (slots, _) = data.as_chunks::<OFFSET_ENTRY_SIZE>();
    let absolute = |relative: i32| base_offset.saturating_add(relative.into());
    let above = slots.partition_point(|slot| absolute(offset_slot(slot).0) <= target_offset);
    above.checked_sub(1).and_then(|slot| slots.get(slot)).map_or((base_offset, 0), |slot| {
        let (relative, position) = offset_slot(slot);
        (absolute(relative), position)
    })
}

/// Returns the entry that [`lookup_offset`] returns, and the two entries after it.
pub fn lookup_around(
    data: &[u8],
    base_offset: i64,
    target_offset: i64,
) -> (OffsetEntry, [Option<OffsetEntry>; 2]) {
    let (slots, _) = data.as_chunks::<OFFSET_ENTRY_SIZE>();
    let absolute = |relative: i32| base_offset.saturating_add(relative.into());
    let above = slots.partition_point(|slot| absolute(offset_slot(slot).0) <= target_offset);
    let entry = |row: usize| {
        slots.get(row).map(|slot| {
            let (relative, position) = offset_slot(slot);
            (absolute(relative), position)
        })
    };
    let found = above.checked_sub(1).and_then(entry).unwrap_or((base_offset, 0));
    // Skip an entry at position 0, which only says that the segment begins there.
    let next = above + usize::from(entry(above).is_some_and(|(_, position)| position <= found.1));
    (found, [entry(next), entry(next + 1)])
}

/// Returns the first entry at or past the end position of a fetch as (offset, position), or `None`
/// if there is no such entry. The offset of this entry is outside the fetched range.
pub fn lookup_upper_bound(data: &[u8], base_offset: i64, end_position: i64) -> Option<(i64, i32)> {
    let (slots, _) = data.as_chunks::<OFFSET_ENTRY_SIZE>();
    let below = slots.partition_point(|slot| i64::from(offset_slot(slot).1) < end_position);
    let (relative, position) = offset_slot(slots.get(below)?);
    Some((base_offset.saturating_add(relative.into()), position))
}

/// Returns the last entry whose timestamp is at most `target_ms` as (timestamp, offset), or (-1,
/// base) if there is no such entry.
pub fn lookup_time(data: &[u8], base_offset: i64, target_ms: i64) -> (i64, i64) {
    let (slots, _) = data.as_chunks::<TIME_ENTRY_SIZE>();
    let above = slots.partition_point(|slot| time_slot(slot).0 <= target_ms);
    above.checked_sub(1).and_then(|slot| slots.get(slot)).map_or(
        (NO_TIMESTAMP, base_offset),
        |slot| {
            let (timestamp_ms, relative) = time_slot(slot);
            (timestamp_ms, base_offset.saturating_add(relative.into()))
        },
    )
}

/// Writes a `.index` (or remoteOffsetIndex) entry by entry.
#[derive(Debug)]
pub struct OffsetIndexWriter {
    base_offset: i64,
    before: Option<i32>,
    bytes: Vec<u8>,
}

impl OffsetIndexWriter {
    /// Creates an empty index of a segment.
    pub fn new(base_offset: i64) -> Self {
        Self { base_offset, before: None, bytes: Vec::new() }
    }

    /// Appends (last offset of a batch, its position). `at` is the position that an error names.
    pub fn append(&mut self, offset: i64, position: u64, at: u64) -> Result<()> {
        let relative = relative_offset(offset, self.base_offset, at)?;
        let Ok(position) = i32::try_from(position) else {
            return Err(Error::new(
                ErrorKind::TooLarge,
                at,
                "a position within 2147483647",
                position.to_string(),
            ));
        };
        if self.before.is_some_and(|before| relative <= before) {
            return Err(Error::new(
                ErrorKind::OffsetOrder,
                at,
                "an offset larger than the previous offset",
                offset.to_string(),
            ));
        }
        self.before = Some(relative);
        self.bytes.extend_from_slice(&relative.to_be_bytes());
        self.bytes.extend_from_slice(&position.to_be_bytes());
        Ok(())
    }

    /// Returns the entries so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes of the file.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Writes a `.timeindex` (or remoteTimeIndex) entry by entry.
#[derive(Debug)]
pub struct TimeIndexWriter {
    base_offset: i64,
    last_timestamp_ms: i64,
    bytes: Vec<u8>,
}

impl TimeIndexWriter {
    /// Creates an empty index of a segment.
    pub fn new(base_offset: i64) -> Self {
        Self { base_offset, last_timestamp_ms: NO_TIMESTAMP, bytes: Vec::new() }
    }

    /// Appends (timestamp, offset) if the timestamp exceeds the last one. `at` is the position that
    /// an error names.
    pub fn maybe_append(&mut self, timestamp_ms: i64, offset: i64, at: u64) -> Result<()> {
        if timestamp_ms > self.last_timestamp_ms {
            let relative = relative_offset(offset, self.base_offset, at)?;
            self.last_timestamp_ms = timestamp_ms;
            self.bytes.extend_from_slice(&timestamp_ms.to_be_bytes());
            self.bytes.extend_from_slice(&relative.to_be_bytes());
        }
        Ok(())
    }

    /// Returns the entries so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes of the file.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// A transaction that ended with an ABORT marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// Producer of the transaction.
    pub producer_id: i64,
    /// Base offset of the first batch of the transaction.
    pub first_offset: i64,
    /// Offset of the ABORT marker.
    pub last_offset: i64,
    /// Last stable offset after the transaction ended.
    pub last_stable_offset: i64,
}

impl AbortedTransaction {
    /// Returns the 34 bytes of the index entry.
    pub fn to_bytes(&self) -> [u8; TRANSACTION_ENTRY_SIZE] {
        let mut bytes = [0; TRANSACTION_ENTRY_SIZE];
        bytes[2..10].copy_from_slice(&self.producer_id.to_be_bytes());
        bytes[10..18].copy_from_slice(&self.first_offset.to_be_bytes());
        bytes[18..26].copy_from_slice(&self.last_offset.to_be_bytes());
        bytes[26..34].copy_from_slice(&self.last_stable_offset.to_be_bytes());
        bytes
    }

    fn parse(slot: &[u8; TRANSACTION_ENTRY_SIZE]) -> Self {
        Self {
            producer_id: be_i64(slot, 2),
            first_offset: be_i64(slot, 10),
            last_offset: be_i64(slot, 18),
            last_stable_offset: be_i64(slot, 26),
        }
    }
}

/// Parses a `.txnindex`. Pass empty data for an absent file. Last offsets must ascend strictly, and
/// none may be below the segment's base offset.
pub fn parse_transaction_index(data: &[u8], base_offset: i64) -> Result<Vec<AbortedTransaction>> {
    let slots = slots::<TRANSACTION_ENTRY_SIZE>(data)?;
    let mut found: Vec<AbortedTransaction> = Vec::with_capacity(slots.len());
    for (row, slot) in slots.iter().enumerate() {
        let at = (row * TRANSACTION_ENTRY_SIZE) as u64;
        let version = be_i16(slot, 0);
        if version != 0 {
            return Err(Error::new(ErrorKind::UnknownMagic, at, "version 0", version.to_string()));
        }
        let entry = AbortedTransaction::parse(slot);
        let before =
            found.last().map_or(base_offset.saturating_sub(1), |before| before.last_offset);
        if entry.last_offset <= before {
            let expected = format!("lastOffset > {before}");
            let found = entry.last_offset.to_string();
            return Err(Error::new(ErrorKind::OffsetOrder, at, expected, found));
        }
        found.push(entry);
    }
    Ok(found)
}

/// Returns the aborted transactions that a reader of `[from_offset, upper_bound_offset)` needs, and
/// whether the list is complete. If the list is not complete, the index of the next segment may
/// have more.
pub fn collect_aborted(
    entries: &[AbortedTransaction],
    from_offset: i64,
    upper_bound_offset: i64,
) -> (Vec<AbortedTransaction>, bool) {
    let mut found = Vec::new();
    for entry in entries {
        if entry.last_offset >= from_offset && entry.first_offset < upper_bound_offset {
            found.push(*entry);
        }
        if entry.last_stable_offset >= upper_bound_offset {
            return (found, true);
        }
    }
    (found, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset_index() -> Vec<u8> {
        let mut writer = OffsetIndexWriter::new(100);
        for (offset, position) in [(103, 0), (150, 4200), (300, 9000)] {
            writer.append(offset, position, 0).unwrap();
        }
        writer.into_bytes()
    }

    #[test]
    fn looks_up_offsets() {
        let data = offset_index();
        for (target, answer) in [
            (99, (100, 0)),
            (103, (103, 0)),
            (149, (103, 0)),
            (150, (150, 4200)),
            (999, (300, 9000)),
        ] {
            assert_eq!(lookup_offset(&data, 100, target), answer);
        }
        assert_eq!(lookup_offset(&[], 100, 999), (100, 0));
        assert_eq!(lookup_upper_bound(&data, 100, 4300), Some((300, 9000)));
        assert_eq!(lookup_upper_bound(&data, 100, 9000), Some((300, 9000)));
        assert_eq!(lookup_upper_bound(&data, 100, 14_200), None);
    }

    #[test]
    fn stops_at_the_zero_tail_of_a_live_file() {
        let mut data = offset_index();
        data.extend([0; 64]);
        let found = parse_offset_index(&data, 100, Tail::Zeros).unwrap();
        assert_eq!((found.key, found.value), (vec![103, 150, 300], vec![0, 4200, 9000]));
        assert_eq!(found.valid_length, 24);
        let error = parse_offset_index(&data, 100, Tail::Empty).unwrap_err();
        assert_eq!((error.kind, error.position), (ErrorKind::OffsetOrder, 24));
        assert!(parse_offset_index(&[0; 64], 100, Tail::Zeros).unwrap().key.is_empty());
        // A remote index never has a tail, so its only entry may be all zeros.
        assert_eq!(parse_offset_index(&[0; 8], 100, Tail::Empty).unwrap().key, [100]);
    }

    #[test]
    fn refuses_garbage_after_the_entries_unless_the_file_is_live() {
        let mut data = offset_index();
        data.extend([0, 0, 0, 1, 0, 0, 0, 1]);
        let error = parse_offset_index(&data, 100, Tail::Zeros).unwrap_err();
        assert_eq!(error.found, "0000000100000001");
        assert_eq!(parse_offset_index(&data, 100, Tail::Anything).unwrap().valid_length, 24);
        let error = parse_offset_index(&data[..29], 100, Tail::Anything).unwrap_err();
        assert_eq!((error.kind, error.position), (ErrorKind::BadLength, 24));
    }

    #[test]
    fn values_must_ascend_as_well_as_keys() {
        let offsets: Vec<u8> = [3, 100, 50, 100].into_iter().flat_map(i32::to_be_bytes).collect();
        let error = parse_offset_index(&offsets, 0, Tail::Zeros).unwrap_err();
        assert_eq!((error.kind, error.position), (ErrorKind::OffsetOrder, 8));
        let time = |timestamp_ms: i64, offset: i32| {
            [&timestamp_ms.to_be_bytes()[..], &offset.to_be_bytes()].concat()
        };
        let same = [time(5, 7), time(6, 7)].concat();
        assert_eq!(parse_time_index(&same, 0, Tail::Zeros).unwrap().value, [7, 7]);
        let falling = [time(5, 7), time(6, 6)].concat();
        let error = parse_time_index(&falling, 0, Tail::Zeros).unwrap_err();
        assert_eq!((error.kind, error.position), (ErrorKind::OffsetOrder, 12));
    }

    #[test]
    fn time_index_takes_only_larger_timestamps() {
        let mut writer = TimeIndexWriter::new(100);
        for (timestamp_ms, offset) in [(1005, 103), (1005, 150), (2000, 300)] {
            writer.maybe_append(timestamp_ms, offset, 0).unwrap();
        }
        let data = writer.into_bytes();
        let found = parse_time_index(&data, 100, Tail::Zeros).unwrap();
        assert_eq!((found.key, found.value), (vec![1005, 2000], vec![103, 300]));
        assert_eq!(lookup_time(&data, 100, 1004), (-1, 100));
        assert_eq!(lookup_time(&data, 100, 1005), (1005, 103));
        assert_eq!(lookup_time(&data, 100, 3000), (2000, 300));
    }

    #[test]
    fn offsets_must_fit_and_ascend() {
        let mut writer = OffsetIndexWriter::new(100);
        assert_eq!(writer.append(99, 0, 7).unwrap_err().position, 7);
        assert!(writer.append(100 + (1 << 31), 0, 0).is_err());
        assert_eq!(writer.append(100, 1 << 31, 0).unwrap_err().kind, ErrorKind::TooLarge);
        writer.append(100, 0, 0).unwrap();
        assert_eq!(writer.append(100, 9, 0).unwrap_err().kind, ErrorKind::OffsetOrder);
    }

    #[test]
    fn collects_aborted_transactions() {
        let entries =
            [(4242, 100, 103, 104), (4243, 101, 120, 121)].map(|(p, f, l, s)| AbortedTransaction {
                producer_id: p,
                first_offset: f,
                last_offset: l,
                last_stable_offset: s,
            });
        let data = entries.iter().flat_map(AbortedTransaction::to_bytes).collect::<Vec<_>>();
        assert_eq!(parse_transaction_index(&data, 100).unwrap(), entries);
        assert_eq!(collect_aborted(&entries, 100, 104), (vec![entries[0]], true));
        assert_eq!(collect_aborted(&entries, 100, 200), (entries.to_vec(), false));
        let error = parse_transaction_index(&data, 104).unwrap_err();
        assert_eq!((error.kind, error.position), (ErrorKind::OffsetOrder, 0));
        // No entry can follow the largest offset.
        let last = AbortedTransaction { last_offset: i64::MAX, ..entries[1] }.to_bytes();
        let error = parse_transaction_index(&[last, last].concat(), 100).unwrap_err();
        assert_eq!((error.kind, error.position), (ErrorKind::OffsetOrder, 34));
        let mut later = data.clone();
        later[35] = 1;
        let error = parse_transaction_index(&later, 100).unwrap_err();
        assert_eq!((error.kind, error.position), (ErrorKind::UnknownMagic, 34));
        assert_eq!(
            parse_transaction_index(&data[..40], 100).unwrap_err().kind,
            ErrorKind::BadLength
        );
    }
}
