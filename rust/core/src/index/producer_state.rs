//! Producer state, as Kafka rebuilds it by replaying a log, and its snapshot file.
//!
//! ```text
//! 0 version i16 = 1    2 crc u32, CRC-32C from byte 6    6 count i32    10 entries of 46 bytes:
//! producerId i64, producerEpoch i16, lastSequence i32, lastOffset i64, offsetDelta i32,
//! timestamp i64, coordinatorEpoch i32, currentTxnFirstOffset i64
//! ```
//! A broker remembers five batches per producer to detect duplicates. The snapshot file contains
//! only the newest batch, so this module keeps only that batch.

use std::collections::{BTreeMap, HashMap};

use crate::batch::header::{BatchHeader, be_i16, be_i32, be_i64};
use crate::checksum::crc32c;
use crate::error::{Error, ErrorKind, Result};
use crate::index::local::AbortedTransaction;
use crate::varint::{read_varint, read_varlong};

const VERSION: i16 = 1;
const CRC_START: usize = 6;
const HEADER_SIZE: usize = 10;
const ENTRY_SIZE: usize = 46;

const ABORT: i16 = 0;
const COMMIT: i16 = 1;

/// The newest data batch of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastBatch {
    /// Sequence of its last record.
    pub last_sequence: i32,
    /// Offset of its last record.
    pub last_offset: i64,
    /// Last offset minus base offset.
    pub offset_delta: i32,
}

/// State of one producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerEntry {
    /// Its id.
    pub producer_id: i64,
    /// Its newest epoch; -1 means unknown.
    pub producer_epoch: i16,
    /// Its newest batch of that epoch.
    pub last_batch: Option<LastBatch>,
    /// Largest timestamp of the producer's newest batch, or the timestamp of a newer marker; -1
    /// means unknown.
    pub timestamp_ms: i64,
    /// Epoch of the coordinator that wrote the producer's newest marker; -1 means unknown.
    pub coordinator_epoch: i32,
    /// Base offset of its open transaction.
    pub current_txn_first_offset: Option<i64>,
}

impl ProducerEntry {
    fn unknown(producer_id: i64) -> Self {
        Self {
            producer_id,
            producer_epoch: -1,
            last_batch: None,
            timestamp_ms: -1,
            coordinator_epoch: -1,
            current_txn_first_offset: None,
        }
    }

    fn parse(slot: &[u8; ENTRY_SIZE]) -> Self {
        let last_offset = be_i64(slot, 14);
        let first_offset = be_i64(slot, 38);
        Self {
            producer_id: be_i64(slot, 0),
            producer_epoch: be_i16(slot, 8),
            last_batch: (last_offset >= 0).then(|| LastBatch {
                last_sequence: be_i32(slot, 10),
                last_offset,
                offset_delta: be_i32(slot, 22),
            }),
            timestamp_ms: be_i64(slot, 26),
            coordinator_epoch: be_i32(slot, 34),
            current_txn_first_offset: (first_offset >= 0).then_some(first_offset),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let last = self.last_batch.unwrap_or(LastBatch {
            last_sequence: -1,
            last_offset: -1,
            offset_delta: 0,
        });
        out.extend_from_slice(&self.producer_id.to_be_bytes());
        out.extend_from_slice(&self.producer_epoch.to_be_bytes());
        out.extend_from_slice(&last.last_sequence.to_be_bytes());
        out.extend_from_slice(&last.last_offset.to_be_bytes());
        out.extend_from_slice(&last.offset_delta.to_be_bytes());
        out.extend_from_slice(&self.timestamp_ms.to_be_bytes());
        out.extend_from_slice(&self.coordinator_epoch.to_be_bytes());
        out.extend_from_slice(&self.current_txn_first_offset.unwrap_or(-1).to_be_bytes());
    }

    /// Sets the epoch and drops the batch of an earlier epoch.
    fn set_epoch(&mut self, producer_epoch: i16) {
        if self.producer_epoch != producer_epoch {
            self.producer_epoch = producer_epoch;
            self.last_batch = None;
        }
    }

    fn is_expired(&self, expiry: Expiry) -> bool {
        self.current_txn_first_offset.is_none()
            && expiry.now_ms.saturating_sub(self.timestamp_ms) >= expiry.expiration_ms
    }
}

/// Expiry of producers without an open transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// Current time.
    pub now_ms: i64,
    /// `producer.id.expiration.ms`.
    pub expiration_ms: i64,
}

/// Returns the entries of a snapshot file in file order.
pub fn parse_snapshot(data: &[u8]) -> Result<Vec<ProducerEntry>> {
    let bad = |kind, at: usize, expected: String, found: String| {
        Err(Error::new(kind, at as u64, expected, found))
    };
    if data.len() < HEADER_SIZE {
        let found = format!("{} bytes", data.len());
        return bad(ErrorKind::Truncated, data.len(), format!("{HEADER_SIZE} header bytes"), found);
    }
    let version = be_i16(data, 0);
    if version != VERSION {
        return bad(ErrorKind::UnknownMagic, 0, format!("version {VERSION}"), version.to_string());
    }
    let (stored, computed) = (be_i32(data, 2) as u32, crc32c(&data[CRC_START..]));
    if stored != computed {
        let found = format!("crc {stored:#010x}");
        return bad(ErrorKind::BadCrc, 2, format!("crc {computed:#010x}"), found);
    }
    let count = be_i32(data, 6);
    let (slots, rest) = data[HEADER_SIZE..].as_chunks::<ENTRY_SIZE>();
    if !rest.is_empty() || i64::from(count) != slots.len() as i64 {
        let expected = format!("{count} entries of {ENTRY_SIZE} bytes");
        return bad(ErrorKind::BadLength, 6, expected, format!("{} bytes", data.len()));
    }
    Ok(slots.iter().map(ProducerEntry::parse).collect())
}

/// Returns a snapshot file that has these entries in this order.
fn encode_snapshot<'a>(entries: impl ExactSizeIterator<Item = &'a ProducerEntry>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_SIZE + entries.len() * ENTRY_SIZE);
    bytes.extend_from_slice(&VERSION.to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&i32::try_from(entries.len()).unwrap_or(i32::MAX).to_be_bytes());
    entries.for_each(|entry| entry.write(&mut bytes));
    let crc = crc32c(&bytes[CRC_START..]);
    bytes[2..CRC_START].copy_from_slice(&crc.to_be_bytes());
    bytes
}

/// All producers of a partition and their open transactions at one offset.
#[derive(Clone, Debug)]
pub struct ProducerState {
    /// Producers in order of arrival. `buckets` determines the order in which a broker writes them.
    producers: Vec<ProducerEntry>,
    rows: HashMap<i64, usize>,
    /// First offset and producer id of every open transaction.
    open_transactions: BTreeMap<i64, i64>,
    buckets: usize,
}

impl Default for ProducerState {
    fn default() -> Self {
        Self {
            producers: Vec::new(),
            rows: HashMap::new(),
            open_transactions: BTreeMap::new(),
            buckets: 16,
        }
    }
}

impl ProducerState {
    /// Loads the state from a snapshot file, without the producers that have expired since.
    pub fn from_snapshot(data: &[u8], expiry: Option<Expiry>) -> Result<Self> {
        let mut state = Self::default();
        for entry in parse_snapshot(data)? {
            if expiry.is_some_and(|expiry| entry.is_expired(expiry)) {
                continue;
            }
            if let Some(first_offset) = entry.current_txn_first_offset {
                state.open_transactions.insert(first_offset, entry.producer_id);
            }
            *state.producer(entry.producer_id) = entry;
        }
        Ok(state)
    }

    /// Returns the producers, in no particular order.
    pub fn producers(&self) -> &[ProducerEntry] {
        &self.producers
    }

    /// Returns the first offset of the oldest open transaction.
    pub fn first_open_offset(&self) -> Option<i64> {
        self.open_transactions.keys().next().copied()
    }

    /// Removes producers that have no open transaction and wrote nothing during the expiration
    /// time.
    pub fn expire(&mut self, expiry: Expiry) {
        self.producers.retain(|entry| !entry.is_expired(expiry));
        self.rows =
            self.producers.iter().enumerate().map(|(row, e)| (e.producer_id, row)).collect();
    }

    /// Returns the snapshot file that a broker would write now. The entries have the order of the
    /// broker's hash map.
    pub fn to_snapshot(&self) -> Vec<u8> {
        let mut order: Vec<&ProducerEntry> = self.producers.iter().collect();
        order.sort_by_key(|entry| bucket(entry.producer_id, self.buckets));
        encode_snapshot(order.into_iter())
    }

    /// Applies one v2 batch that starts at byte `position`. `control` is the uncompressed record
    /// section of a control batch. Returns the aborted transaction when an ABORT marker ends one.
    pub fn append(
        &mut self,
        position: u64,
        header: &BatchHeader,
        control: Option<&[u8]>,
    ) -> Result<Option<AbortedTransaction>> {
        if header.producer_id < 0 {
            return Ok(None);
        }
        if !header.is_control() {
            return self.append_data(position, header).map(|()| None);
        }
        // A control batch that the cleaner emptied still registers its producer.
        if header.record_count == 0 {
            self.producer(header.producer_id);
            return Ok(None);
        }
        let marker = Marker::parse(header, control.unwrap_or_default())
            .map_err(|error| error.shifted(position))?;
        self.end_transaction(position, header, marker)
    }

    fn append_data(&mut self, position: u64, header: &BatchHeader) -> Result<()> {
        let entry = self.producer(header.producer_id);
        if let (Some(first_offset), false) =
            (entry.current_txn_first_offset, header.is_transactional())
        {
            let expected = format!(
                "a transactional batch: producer {} has a transaction open since offset {first_offset}",
                header.producer_id
            );
            return Err(Error::new(
                ErrorKind::BadRecord,
                position,
                expected,
                "a batch without a transaction",
            ));
        }
        entry.set_epoch(header.producer_epoch);
        entry.timestamp_ms = header.max_timestamp_ms;
        entry.last_batch = Some(LastBatch {
            last_sequence: header.last_sequence(),
            last_offset: header.last_offset(),
            offset_delta: header.last_offset_delta,
        });
        if header.is_transactional() && entry.current_txn_first_offset.is_none() {
            entry.current_txn_first_offset = Some(header.base_offset);
            self.open_transactions.insert(header.base_offset, header.producer_id);
        }
        Ok(())
    }

    fn end_transaction(
        &mut self,
        position: u64,
        header: &BatchHeader,
        marker: Marker,
    ) -> Result<Option<AbortedTransaction>> {
        let entry = self.producer(header.producer_id);
        entry.set_epoch(header.producer_epoch);
        entry.coordinator_epoch = marker.coordinator_epoch;
        entry.timestamp_ms = marker.timestamp_ms;
        // If the transaction has no records in this partition, its marker changes nothing else.
        let Some(first_offset) = entry.current_txn_first_offset.take() else {
            return Ok(None);
        };
        let last_stable_offset = self
            .open_transactions
            .iter()
            .find(|(_, producer_id)| **producer_id != header.producer_id)
            .map_or(header.base_offset.saturating_add(1), |(first_offset, _)| *first_offset);
        if self.open_transactions.remove(&first_offset).is_none() {
            let expected = format!("an open transaction at {first_offset}");
            return Err(Error::new(ErrorKind::BadRecord, position, expected, "none"));
        }
        Ok(marker.is_abort.then_some(AbortedTransaction {
            producer_id: header.producer_id,
            first_offset,
            last_offset: header.base_offset,
            last_stable_offset,
        }))
    }

    fn producer(&mut self, producer_id: i64) -> &mut ProducerEntry {
        let next = self.producers.len();
        let row = *self.rows.entry(producer_id).or_insert(next);
        if row == next {
            self.grow(producer_id);
            self.producers.push(ProducerEntry::unknown(producer_id));
        }
        &mut self.producers[row]
    }

    /// Grows `buckets` as a broker's hash map grows when `producer_id` is added. The map doubles
    /// when it becomes more than three quarters full. Below 64 buckets, it also doubles when a
    /// chain gets a ninth entry. In larger maps trees replace such chains. This model has no trees,
    /// since the order of entries has no meaning.
    fn grow(&mut self, producer_id: i64) {
        if self.buckets < 64 {
            let home = bucket(producer_id, self.buckets);
            let chain =
                self.producers.iter().filter(|e| bucket(e.producer_id, self.buckets) == home);
            if chain.count() >= 8 {
                self.buckets *= 2;
            }
        }
        if self.producers.len() + 1 > self.buckets / 4 * 3 {
            self.buckets *= 2;
        }
    }
}

/// Returns the bucket of an id in a broker's hash map.
fn bucket(producer_id: i64, buckets: usize) -> usize {
    let folded = (producer_id ^ ((producer_id as u64) >> 32) as i64) as u32;
    (folded ^ (folded >> 16)) as usize & (buckets - 1)
}

/// An ABORT or COMMIT record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marker {
    is_abort: bool,
    coordinator_epoch: i32,
    timestamp_ms: i64,
}

impl Marker {
    /// Parses the first record of a control batch. Key: i16 version, i16 type. Value: i16 version,
    /// i32 coordinator epoch. Versions above 0 are read as version 0.
    fn parse(header: &BatchHeader, records: &[u8]) -> Result<Self> {
        let bad = |expected: &str, found: String| {
            Error::new(ErrorKind::BadRecord, 0, format!("a control record with {expected}"), found)
        };
        let (record, rest) = ControlRecord::parse(records)
            .ok_or_else(|| bad("whole fields", format!("{} bytes", records.len())))?;
        if header.record_count == 1 && !rest.is_empty() {
            return Err(bad("nothing after it", format!("{} bytes", rest.len())));
        }
        let (Some(&[k0, k1, t0, t1, ..]), Some(&[v0, v1, e0, e1, e2, e3, ..])) =
            (record.key, record.value)
        else {
            let size = |part: Option<&[u8]>| part.map_or(-1, |bytes| bytes.len() as i64);
            let found = format!("{} and {}", size(record.key), size(record.value));
            return Err(bad("a key of 4 and a value of 6 bytes", found));
        };
        let kind = i16::from_be_bytes([t0, t1]);
        if kind != ABORT && kind != COMMIT {
            return Err(bad("type 0 or 1", format!("type {kind} of a producer")));
        }
        for version in [i16::from_be_bytes([k0, k1]), i16::from_be_bytes([v0, v1])] {
            if version < 0 {
                return Err(bad("versions >= 0", version.to_string()));
            }
        }
        let timestamp_ms = if header.is_log_append_time() {
            header.max_timestamp_ms
        } else {
            // As in Java, a sum beyond 64 bits wraps.
            header.base_timestamp_ms.wrapping_add(record.timestamp_delta)
        };
        Ok(Self {
            is_abort: kind == ABORT,
            coordinator_epoch: i32::from_be_bytes([e0, e1, e2, e3]),
            timestamp_ms,
        })
    }
}

/// The fields of a control record that [`Marker`] needs.
struct ControlRecord<'a> {
    timestamp_delta: i64,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
}

impl<'a> ControlRecord<'a> {
    /// Parses a record and returns it with the bytes after it. Returns `None` when its lengths
    /// exceed `records`.
    fn parse(records: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (length, size) = read_varint(records)?;
        let (body, rest) = records.get(size..)?.split_at_checked(usize::try_from(length).ok()?)?;
        let (_attributes, body) = body.split_first()?;
        let (timestamp_delta, size) = read_varlong(body)?;
        let body = body.get(size..)?;
        let (_offset_delta, size) = read_varint(body)?;
        let (key, body) = nullable(body.get(size..)?)?;
        let (value, body) = nullable(body)?;
        let (header_count, size) = read_varint(body)?;
        let mut body = body.get(size..)?;
        for _ in 0..u32::try_from(header_count).ok()? {
            let (name, after) = nullable(body)?;
            name?;
            (_, body) = nullable(after)?;
        }
        body.is_empty().then_some((Self { timestamp_delta, key, value }, rest))
    }
}

/// Parses a length-prefixed field and returns it with the bytes after it. A negative length means
/// null.
fn nullable(data: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let (length, size) = read_varint(data)?;
    let rest = data.get(size..)?;
    if length < 0 {
        return Some((None, rest));
    }
    let (field, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    Some((Some(field), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `ids` in the order of a snapshot, if the producers arrived in the order of `ids`.
    fn order(ids: impl Iterator<Item = i64>) -> Vec<i64> {
        let mut state = ProducerState::default();
        ids.for_each(|id| {
            state.producer(id);
        });
        let entries = parse_snapshot(&state.to_snapshot()).unwrap();
        entries.iter().map(|entry| entry.producer_id).collect()
    }

    /// The expected orders are the iteration orders of `java.util.HashMap<Long, ...>` on Java 17.
    #[test]
    fn snapshots_have_the_order_of_a_broker() {
        let falling = |count: i64| (0..count).map(|number| 1000 - 37 * number);
        let twelve = [704, 593, 963, 852, 741, 630, 1000, 889, 778, 667, 926, 815];
        assert_eq!(order(falling(12)), twelve);
        // The thirteenth entry doubles the table.
        let thirteen = [704, 963, 741, 1000, 778, 556, 815, 593, 852, 630, 889, 667, 926];
        assert_eq!(order(falling(13)), thirteen);
        // The ninth entry of one bucket doubles the table, too.
        let multiples: Vec<i64> = (1..10).map(|number| 64 * (10 - number)).collect();
        assert_eq!(order(multiples.iter().copied()), multiples);
        let mut colliding: Vec<i64> = (0..9).map(|number| 16 * number).collect();
        colliding.push(1);
        assert_eq!(order(colliding.into_iter()), COLLIDING);
        let wide = order((0..30).map(|number| (number * 7919) << (number % 40)));
        assert_eq!(wide[..4], [0, 3_892_346_880, 843_341_824, 1_816_428_544]);
        assert_eq!(wide[26..], [16_218_112, 63_352, 17_645_305_856, 78_884_896_768]);
    }

    const COLLIDING: [i64; 10] = [0, 32, 64, 96, 128, 1, 16, 48, 80, 112];
}
