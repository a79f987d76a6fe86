//! Builds every index of a segment from the batches of the segment, in the same way as Kafka's
//! recovery of a segment. It is a pure state machine that receives the batches of a scan.
//!
//! For each batch, the rebuild does the following in this order. It updates the largest max
//! timestamp so far, and keeps the last offset of the first batch that has this timestamp. If the
//! batch starts more than the index interval after the last indexed position (0 at first), it
//! writes an offset entry, and a time entry with that largest timestamp. For a v2 batch it updates
//! leader epochs and producer state. After the last batch it writes one more time entry.

use std::collections::BTreeMap;

use crate::batch::columns::{Batch, BatchColumns};
use crate::batch::header::{BatchHeader, Codec, HEADER_SIZE};
use crate::codec::compression::Decompressor;
use crate::codec::output::Output;
use crate::error::{Error, ErrorKind, Result};
use crate::index::local::{NO_TIMESTAMP, OffsetIndexWriter, TimeIndexWriter, relative_offset};
use crate::index::producer_state::{Expiry, ProducerState};
use crate::segment::Visitor;

/// Largest decompressed size of the records of a control batch.
const MAX_CONTROL_BYTES: usize = 1 << 20;

/// The default of `index.interval.bytes`.
pub const DEFAULT_INDEX_INTERVAL_BYTES: u64 = 4096;

/// The index files of a segment as bytes, and other results of the rebuild.
#[derive(Debug, PartialEq, Eq)]
pub struct Rebuilt {
    /// `.index`
    pub offset_index: Vec<u8>,
    /// The checksums of the batches that the offset index points at (see
    /// [`crate::batch::checksums`]).
    pub batch_checksums: Vec<u8>,
    /// `.timeindex`
    pub time_index: Vec<u8>,
    /// `.txnindex`; empty when no transaction was aborted. A broker then has no such file.
    pub transaction_index: Vec<u8>,
    /// `.snapshot` at [`Self::end_offset`].
    pub producer_snapshot: Vec<u8>,
    /// (epoch, start offset) of each batch at which the leader epoch rises.
    pub leader_epochs: Vec<(i32, i64)>,
    /// (leader epoch, bytes of its batches); batches without an epoch count under -1.
    pub bytes_per_epoch: Vec<(i32, u64)>,
    /// Offset after the last batch, or the base offset of an empty segment.
    pub end_offset: i64,
    /// First offset of the oldest open transaction, or the end offset if none is open.
    pub last_stable_offset: i64,
    /// First offset of the oldest open transaction.
    pub first_open_transaction_offset: Option<i64>,
    /// Largest timestamp of any batch, or -1 if there is none.
    pub max_timestamp_ms: i64,
    /// Last offset of the first batch that has the largest timestamp.
    pub max_timestamp_offset: i64,
}

/// Builds [`Rebuilt`] batch by batch.
#[derive(Debug)]
pub struct Rebuilder {
    base_offset: Option<i64>,
    index_interval_bytes: u64,
    offset_index: OffsetIndexWriter,
    batch_checksums: Vec<u8>,
    time_index: TimeIndexWriter,
    transaction_index: Vec<u8>,
    producers: ProducerState,
    leader_epochs: Vec<(i32, i64)>,
    bytes_per_epoch: BTreeMap<i32, u64>,
    last_indexed_position: u64,
    last_offset: Option<i64>,
    max_timestamp_ms: i64,
    max_timestamp_offset: i64,
}

impl Rebuilder {
    /// Starts a segment with the producer state at its start. If `base_offset` is `None`, the
    /// segment starts at the base offset of its first batch.
    pub fn new(
        base_offset: Option<i64>,
        index_interval_bytes: u64,
        producers: ProducerState,
    ) -> Self {
        let base = base_offset.unwrap_or(0);
        Self {
            base_offset,
            index_interval_bytes,
            offset_index: OffsetIndexWriter::new(base),
            batch_checksums: Vec::new(),
            time_index: TimeIndexWriter::new(base),
            transaction_index: Vec::new(),
            producers,
            leader_epochs: Vec::new(),
            bytes_per_epoch: BTreeMap::new(),
            last_indexed_position: 0,
            last_offset: None,
            max_timestamp_ms: NO_TIMESTAMP,
            max_timestamp_offset: base,
        }
    }

    /// Adds the batch of `magic` at byte `position` of the segment. `control` is the decompressed
    /// record section of a producer's control batch. The header of a legacy batch is -1 in every
    /// field that the batch lacks.
    pub fn push(
        &mut self,
        position: u64,
        magic: i8,
        header: &BatchHeader,
        control: Option<&[u8]>,
    ) -> Result<()> {
        let last_offset = header.last_offset();
        self.check_offsets(position, header, last_offset)?;
        if header.max_timestamp_ms > self.max_timestamp_ms {
            self.max_timestamp_ms = header.max_timestamp_ms;
            self.max_timestamp_offset = last_offset;
        }
        if self.batch_checksums.is_empty() {
            self.batch_checksums.extend(header.crc.to_be_bytes());
        }
        if position.saturating_sub(self.last_indexed_position) > self.index_interval_bytes {
            self.offset_index.append(last_offset, position, position)?;
            self.batch_checksums.extend(header.crc.to_be_bytes());
            self.append_time(position)?;
            self.last_indexed_position = position;
        }
        self.last_offset = Some(last_offset);
        *self.bytes_per_epoch.entry(header.leader_epoch).or_default() += header.size_bytes();
        if magic >= 2 {
            self.push_epoch(header);
            if let Some(aborted) = self.producers.append(position, header, control)? {
                self.transaction_index.extend_from_slice(&aborted.to_bytes());
            }
        }
        Ok(())
    }

    /// Checks that offsets ascend and fit the index of this segment.
    fn check_offsets(
        &mut self,
        position: u64,
        header: &BatchHeader,
        last_offset: i64,
    ) -> Result<()> {
        let base_offset = match self.base_offset {
            Some(base_offset) => base_offset,
            None => self.start_at(header.base_offset),
        };
        relative_offset(last_offset, base_offset, position)?;
        match self.last_offset {
            Some(before) if header.base_offset <= before => Err(Error::new(
                ErrorKind::OffsetOrder,
                position,
                format!("baseOffset > {before}"),
                header.base_offset.to_string(),
            )),
            _ => Ok(()),
        }
    }

    fn start_at(&mut self, base_offset: i64) -> i64 {
        self.base_offset = Some(base_offset);
        self.offset_index = OffsetIndexWriter::new(base_offset);
        self.time_index = TimeIndexWriter::new(base_offset);
        self.max_timestamp_offset = base_offset;
        base_offset
    }

    fn append_time(&mut self, position: u64) -> Result<()> {
        self.time_index.maybe_append(self.max_timestamp_ms, self.max_timestamp_offset, position)
    }

    fn push_epoch(&mut self, header: &BatchHeader) {
        let latest = self.leader_epochs.last().map_or(-1, |(epoch, _)| *epoch);
        if header.leader_epoch > latest {
            self.leader_epochs.push((header.leader_epoch, header.base_offset));
        }
    }

    /// Returns the entries of the offset, time and transaction index so far.
    pub fn entries(&self) -> [&[u8]; 3] {
        [self.offset_index.bytes(), self.time_index.bytes(), &self.transaction_index]
    }

    /// Returns the producer state after the last batch.
    pub fn producers(&self) -> &ProducerState {
        &self.producers
    }

    /// Returns the offset after the last batch, or the base offset of an empty segment.
    pub fn end_offset(&self) -> i64 {
        match self.last_offset {
            Some(last_offset) => last_offset.saturating_add(1),
            None => self.base_offset.unwrap_or(0),
        }
    }

    /// Returns the largest timestamp of any batch, or -1 if there is none.
    pub fn max_timestamp_ms(&self) -> i64 {
        self.max_timestamp_ms
    }

    /// Returns the indexes, and the producer state at the start of the next segment. Expired
    /// producers are removed first.
    pub fn finish(mut self, expiry: Option<Expiry>) -> Result<(Rebuilt, ProducerState)> {
        self.append_time(self.last_indexed_position)?;
        if let Some(expiry) = expiry {
            self.producers.expire(expiry);
        }
        let end_offset = self.end_offset();
        let first_open = self.producers.first_open_offset();
        let rebuilt = Rebuilt {
            offset_index: self.offset_index.into_bytes(),
            batch_checksums: self.batch_checksums,
            time_index: self.time_index.into_bytes(),
            transaction_index: self.transaction_index,
            producer_snapshot: self.producers.to_snapshot(),
            leader_epochs: self.leader_epochs,
            bytes_per_epoch: self.bytes_per_epoch.into_iter().collect(),
            end_offset,
            last_stable_offset: first_open.unwrap_or(end_offset),
            first_open_transaction_offset: first_open,
            max_timestamp_ms: self.max_timestamp_ms,
            max_timestamp_offset: self.max_timestamp_offset,
        };
        Ok((rebuilt, self.producers))
    }
}

/// Rebuilds the indexes of a segment from its scan, and keeps a row per batch.
#[derive(Debug)]
pub struct RebuildVisitor {
    /// Receives the batches.
    pub rebuilder: Rebuilder,
    /// One row per batch, or no rows if there are more than `max_rows` batches.
    pub batches: BatchColumns,
    /// The most rows to keep.
    pub max_rows: usize,
    /// Whether every batch has a row.
    pub batches_complete: bool,
}

impl RebuildVisitor {
    /// Returns a visitor that keeps all rows, or no rows if there are more than `max_rows`.
    pub fn new(rebuilder: Rebuilder, max_rows: usize) -> Self {
        Self { rebuilder, batches: BatchColumns::default(), max_rows, batches_complete: true }
    }

    fn keep(&mut self, position: u64, batch: &Batch) {
        if self.batches.len() < self.max_rows {
            self.batches.push(position, batch);
        } else if self.batches_complete {
            self.batches = BatchColumns::default();
            (self.max_rows, self.batches_complete) = (0, false);
        }
    }
}

impl Visitor for RebuildVisitor {
    fn expect(&mut self, batches: usize) {
        self.batches.reserve(batches.min(self.max_rows));
    }

    fn batch(&mut self, position: u64, batch: &Batch, records: &[u8]) -> Result<()> {
        self.keep(position, batch);
        let header = &batch.header;
        let codec = header.codec().unwrap_or(Codec::None);
        if header.is_control() && header.producer_id >= 0 && codec != Codec::None {
            let mut plain = Output::default();
            Decompressor::new()
                .decompress(codec, batch.magic, records, MAX_CONTROL_BYTES, &mut plain)
                .map_err(|error| error.shifted(position + HEADER_SIZE as u64))?;
            return self.rebuilder.push(position, batch.magic, header, Some(plain.bytes()));
        }
        self.rebuilder.push(position, batch.magic, header, Some(records))
    }
}

/// Passes the batches of an append to a visitor. The append starts at byte `start` of its segment.
#[derive(Debug)]
pub struct Appended<'v> {
    /// Receives the batches, at their positions in the segment.
    pub visitor: &'v mut RebuildVisitor,
    /// Position of the append.
    pub start: u64,
}

impl Visitor for Appended<'_> {
    fn batch(&mut self, position: u64, batch: &Batch, records: &[u8]) -> Result<()> {
        self.visitor.batch(self.start + position, batch, records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::local::{
        Tail, parse_offset_index, parse_time_index, parse_transaction_index,
    };
    use crate::index::producer_state::{LastBatch, parse_snapshot};
    use crate::vectors::vector;

    const TRANSACTIONAL: i16 = 0x10;
    const CONTROL: i16 = 0x20;

    fn batch(base_offset: i64, records: i32, timestamp_ms: i64) -> BatchHeader {
        BatchHeader {
            base_offset,
            batch_length: 988,
            leader_epoch: 7,
            crc: 0,
            attributes: 0,
            last_offset_delta: records - 1,
            base_timestamp_ms: timestamp_ms,
            max_timestamp_ms: timestamp_ms,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            record_count: records,
        }
    }

    fn of_producer(base_offset: i64, producer_id: i64, attributes: i16) -> BatchHeader {
        BatchHeader {
            producer_id,
            producer_epoch: 3,
            base_sequence: if attributes & CONTROL == 0 { 17 } else { -1 },
            attributes,
            ..batch(base_offset, if attributes & CONTROL == 0 { 3 } else { 1 }, 1000)
        }
    }

    fn marker(kind: u8) -> Vec<u8> {
        let mut bytes = vec![0x20, 0, 0x14, 0, 0x08, 0, 0, 0, kind, 0x0c, 0, 0, 0, 0, 0, 5, 0];
        bytes[0] = 2 * (bytes.len() as u8 - 1);
        bytes
    }

    fn rebuilder() -> Rebuilder {
        Rebuilder::new(Some(100), 4096, ProducerState::default())
    }

    #[test]
    fn indexes_more_than_an_interval_apart() {
        let mut rebuilder = rebuilder();
        for row in 0..12 {
            let timestamp_ms = [1000, 5000, 3000, 4000][row as usize % 4] + row;
            let header = batch(100 + 10 * row, 10, timestamp_ms);
            rebuilder.push(1000 * row as u64, 2, &header, None).unwrap();
        }
        let (rebuilt, _) = rebuilder.finish(None).unwrap();
        let offsets = parse_offset_index(&rebuilt.offset_index, 100, Tail::Empty).unwrap();
        assert_eq!((offsets.key, offsets.value), (vec![159, 209], vec![5000, 10_000]));
        let times = parse_time_index(&rebuilt.time_index, 100, Tail::Empty).unwrap();
        assert_eq!((times.key, times.value), (vec![5005, 5009], vec![159, 199]));
        assert_eq!((rebuilt.max_timestamp_ms, rebuilt.max_timestamp_offset), (5009, 199));
        assert_eq!(rebuilt.leader_epochs, [(7, 100)]);
        assert_eq!(rebuilt.bytes_per_epoch, [(7, 12_000)]);
        assert_eq!((rebuilt.end_offset, rebuilt.last_stable_offset), (220, 220));
    }

    #[test]
    fn the_first_batch_keeps_the_largest_timestamp() {
        let mut rebuilder = rebuilder();
        for (row, timestamp_ms) in [1000, 2000, 2000, 1500].into_iter().enumerate() {
            let header = batch(100 + 10 * row as i64, 10, timestamp_ms);
            rebuilder.push(1000 * row as u64, 2, &header, None).unwrap();
        }
        let (rebuilt, _) = rebuilder.finish(None).unwrap();
        assert_eq!((rebuilt.max_timestamp_ms, rebuilt.max_timestamp_offset), (2000, 119));
        let times = parse_time_index(&rebuilt.time_index, 100, Tail::Empty).unwrap();
        assert_eq!((times.key, times.value), (vec![2000], vec![119]));
    }

    #[test]
    fn the_base_offset_is_the_first_batch_unless_given() {
        let mut rebuilder = Rebuilder::new(None, 0, ProducerState::default());
        rebuilder.push(0, 2, &batch(500, 1, 1), None).unwrap();
        rebuilder.push(1000, 2, &batch(501, 1, 2), None).unwrap();
        let (rebuilt, _) = rebuilder.finish(None).unwrap();
        assert_eq!(rebuilt.offset_index, [0, 0, 0, 1, 0, 0, 3, 232]);
        assert_eq!(rebuilt.time_index.len(), 12);
        let (empty, _) = Rebuilder::new(None, 0, ProducerState::default()).finish(None).unwrap();
        assert_eq!((empty.end_offset, empty.max_timestamp_ms), (0, -1));
        assert!(empty.time_index.is_empty());
    }

    #[test]
    fn aborts_interleaved_with_an_open_transaction() {
        let mut rebuilder = rebuilder();
        rebuilder.push(0, 2, &of_producer(100, 1, TRANSACTIONAL), None).unwrap();
        rebuilder.push(1000, 2, &of_producer(103, 2, TRANSACTIONAL), None).unwrap();
        let end = |base_offset, producer_id| {
            of_producer(base_offset, producer_id, TRANSACTIONAL | CONTROL)
        };
        rebuilder.push(2000, 2, &end(106, 2), Some(&marker(0))).unwrap();
        rebuilder.push(3000, 2, &end(107, 1), Some(&marker(0))).unwrap();
        rebuilder.push(4000, 2, &of_producer(108, 2, TRANSACTIONAL), None).unwrap();
        let (rebuilt, producers) = rebuilder.finish(None).unwrap();
        let aborted = parse_transaction_index(&rebuilt.transaction_index, 100).unwrap();
        let fields = |i: usize| {
            (aborted[i].first_offset, aborted[i].last_offset, aborted[i].last_stable_offset)
        };
        assert_eq!((aborted.len(), fields(0), fields(1)), (2, (103, 106, 100), (100, 107, 108)));
        assert_eq!(rebuilt.first_open_transaction_offset, Some(108));
        assert_eq!((rebuilt.last_stable_offset, rebuilt.end_offset), (108, 111));
        let entries = parse_snapshot(&rebuilt.producer_snapshot).unwrap();
        assert_eq!(entries, producers.producers());
        assert_eq!((entries[0].coordinator_epoch, entries[0].timestamp_ms), (5, 1010));
        assert_eq!(
            entries[0].last_batch,
            Some(LastBatch { last_sequence: 19, last_offset: 102, offset_delta: 2 })
        );
    }

    #[test]
    fn state_goes_on_in_the_next_segment() {
        let mut first = rebuilder();
        first.push(0, 2, &of_producer(100, 9, TRANSACTIONAL), None).unwrap();
        let (rebuilt, state) = first.finish(None).unwrap();
        let reloaded = ProducerState::from_snapshot(&rebuilt.producer_snapshot, None).unwrap();
        for producers in [state, reloaded] {
            let mut second = Rebuilder::new(Some(103), 4096, producers);
            let header = of_producer(103, 9, TRANSACTIONAL | CONTROL);
            second.push(0, 2, &header, Some(&marker(0))).unwrap();
            let (rebuilt, _) = second.finish(None).unwrap();
            let aborted = parse_transaction_index(&rebuilt.transaction_index, 103).unwrap();
            assert_eq!((aborted[0].first_offset, aborted[0].last_offset), (100, 103));
        }
    }

    #[test]
    fn a_new_epoch_forgets_the_batches_and_a_commit_keeps_them() {
        let mut rebuilder = rebuilder();
        rebuilder.push(0, 2, &of_producer(100, 1, TRANSACTIONAL), None).unwrap();
        let mut commit = of_producer(103, 1, TRANSACTIONAL | CONTROL);
        rebuilder.push(1000, 2, &commit, Some(&marker(1))).unwrap();
        assert!(rebuilder.producers.producers()[0].last_batch.is_some());
        commit.base_offset = 104;
        commit.producer_epoch = 4;
        rebuilder.push(2000, 2, &commit, Some(&marker(1))).unwrap();
        let entry = rebuilder.producers.producers()[0];
        assert_eq!((entry.last_batch, entry.producer_epoch), (None, 4));
        let (rebuilt, _) = rebuilder.finish(None).unwrap();
        assert!(rebuilt.transaction_index.is_empty());
    }

    #[test]
    fn an_emptied_control_batch_makes_its_producer_known() {
        let mut rebuilder = rebuilder();
        let header =
            BatchHeader { record_count: 0, ..of_producer(100, 5, TRANSACTIONAL | CONTROL) };
        rebuilder.push(0, 2, &header, None).unwrap();
        let entry = rebuilder.producers.producers()[0];
        assert_eq!((entry.producer_epoch, entry.timestamp_ms), (-1, -1));
    }

    #[test]
    fn refuses_what_no_broker_appends() {
        let kind = |header: &BatchHeader, control: Option<&[u8]>| {
            let mut rebuilder = rebuilder();
            rebuilder.push(0, 2, &of_producer(100, 1, TRANSACTIONAL), None).unwrap();
            rebuilder.push(1000, 2, header, control).map_err(|e| (e.kind, e.position))
        };
        let bad = Err((ErrorKind::BadRecord, 1000));
        assert_eq!(kind(&of_producer(103, 1, 0), None), bad);
        let control = of_producer(103, 1, TRANSACTIONAL | CONTROL);
        assert_eq!(kind(&control, None), bad);
        assert_eq!(kind(&control, Some(&marker(2))), bad);
        for cut in 0..marker(0).len() {
            assert_eq!(kind(&control, Some(&marker(0)[..cut])), bad);
        }
        assert_eq!(kind(&control, Some(&marker(1))), Ok(()));
        assert_eq!(kind(&batch(102, 1, 0), None), Err((ErrorKind::OffsetOrder, 1000)));
        assert_eq!(kind(&batch(100 + (1 << 31), 1, 0), None), Err((ErrorKind::OffsetOrder, 1000)));
        // Control records that belong to no producer, such as a leader change, do not change
        // producer state.
        let leader_change = BatchHeader { producer_id: -1, ..control };
        assert_eq!(kind(&leader_change, Some(&marker(2))), Ok(()));
    }

    #[test]
    fn legacy_batches_advance_the_indexes_only() {
        let mut rebuilder = Rebuilder::new(Some(0), 0, ProducerState::default());
        let header = BatchHeader { leader_epoch: -1, ..batch(0, 1, 50) };
        rebuilder.push(0, 1, &header, None).unwrap();
        rebuilder.push(100, 1, &BatchHeader { base_offset: 1, ..header }, None).unwrap();
        let (rebuilt, producers) = rebuilder.finish(None).unwrap();
        assert_eq!((rebuilt.offset_index.len(), rebuilt.time_index.len()), (8, 12));
        assert!(rebuilt.leader_epochs.is_empty() && producers.producers().is_empty());
        assert_eq!(rebuilt.bytes_per_epoch, [(-1, 2000)]);
    }

    #[test]
    fn golden_batches_end_in_the_golden_state() {
        let bytes = [vector("v2_transactional"), vector("v2_abort_marker")].concat();
        let mut rebuilder = rebuilder();
        for at in [0, 97] {
            let header = BatchHeader::parse(bytes[at..].first_chunk().unwrap());
            let end = at + header.size_bytes() as usize;
            let control = &bytes[at + HEADER_SIZE..end];
            rebuilder.push(at as u64, 2, &header, Some(control)).unwrap();
        }
        let (rebuilt, _) = rebuilder.finish(None).unwrap();
        let aborted = parse_transaction_index(&rebuilt.transaction_index, 100).unwrap();
        assert_eq!((aborted[0].first_offset, aborted[0].last_offset), (100, 103));
        let entry = parse_snapshot(&rebuilt.producer_snapshot).unwrap()[0];
        assert_eq!((entry.producer_id, entry.producer_epoch), (4242, 3));
        assert_eq!((entry.coordinator_epoch, entry.timestamp_ms), (5, 1010));
    }

    #[test]
    fn silent_producers_expire_unless_a_transaction_is_open() {
        let mut rebuilder = rebuilder();
        rebuilder.push(0, 2, &of_producer(100, 1, 0), None).unwrap();
        rebuilder.push(1000, 2, &of_producer(103, 2, TRANSACTIONAL), None).unwrap();
        let (rebuilt, mut state) = rebuilder.finish(None).unwrap();
        let expiry = Expiry { now_ms: 2000, expiration_ms: 1000 };
        let reloaded = ProducerState::from_snapshot(&rebuilt.producer_snapshot, Some(expiry));
        state.expire(expiry);
        for state in [state, reloaded.unwrap()] {
            assert_eq!(state.producers().len(), 1);
            assert_eq!(
                (state.producers()[0].producer_id, state.first_open_offset()),
                (2, Some(103))
            );
        }
    }
}
