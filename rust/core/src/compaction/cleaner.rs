//! Copies batches without the records that compaction removes (Kafka's `Cleaner.cleanInto` and
//! `MemoryRecords.filterTo`).

use std::collections::HashMap;

use crate::batch::header::{
    BatchHeader, CODEC_MASK, CRC_START, Codec, DELETE_HORIZON, HEADER_SIZE, LOG_OVERHEAD,
};
use crate::checksum::crc32c;
use crate::codec::compress::compress;
use crate::compaction::batches::{BatchFile, Opener, RawBatch};
use crate::compaction::key_offsets::KeyOffsets;
use crate::compaction::raw_record::{RawRecord, RawRecords};
use crate::compaction::transactions::{Marker, Transactions};
use crate::error::{Error, ErrorKind, Result};
use crate::index::local::AbortedTransaction;
use crate::source::SegmentFile;

const NO_TIMESTAMP: i64 = -1;

/// What a round of compaction goes by.
#[derive(Clone, Copy, Debug)]
pub struct CleanerOptions {
    /// The time of the round.
    pub now_ms: i64,
    /// How long a tombstone or a marker stays after the first round that met it.
    pub delete_retention_ms: i64,
    /// The first offset that the round leaves alone.
    pub end_offset: i64,
    /// Largest decompressed size of one batch.
    pub max_decompressed_bytes: usize,
}

/// The last record of a producer that has not expired; its batch stays, if need be without records,
/// so that the producer's sequence and epoch stay known.
#[derive(Clone, Copy, Debug)]
pub struct LastRecord {
    /// Offset of its last data record.
    pub data_offset: Option<i64>,
    /// Its epoch.
    pub epoch: i16,
}

/// Copies the segments of one round, in order.
pub struct Cleaner {
    options: CleanerOptions,
    transactions: Transactions,
    producers: HashMap<i64, LastRecord>,
    kept_aborts: Vec<AbortedTransaction>,
    opener: Opener,
    plain: Vec<u8>,
}

impl Cleaner {
    /// `transactions` are those of the whole log, `producers` those that have not expired.
    pub fn new(
        options: CleanerOptions,
        transactions: Transactions,
        producers: HashMap<i64, LastRecord>,
    ) -> Self {
        let opener = Opener::new(options.max_decompressed_bytes);
        let kept_aborts = Vec::new();
        Self { options, transactions, producers, kept_aborts, opener, plain: Vec::new() }
    }

    /// Returns the entries of the transaction index for what was copied since the last call.
    pub fn take_aborts(&mut self) -> Vec<AbortedTransaction> {
        std::mem::take(&mut self.kept_aborts)
    }

    /// Appends what stays of the batches from `position` on to `output`, until about `step_bytes`
    /// were read. Returns the position of the next batch.
    pub fn copy(
        &mut self,
        file: &SegmentFile,
        position: u64,
        step_bytes: u64,
        keys: &KeyOffsets,
        output: &mut Vec<u8>,
    ) -> Result<u64> {
        let mut batches = BatchFile::new(file, position);
        while batches.next_position() - position < step_bytes {
            let Some(batch) = batches.next()? else { break };
            self.copy_batch(&batch, keys, output)?;
        }
        Ok(batches.next_position())
    }

    fn copy_batch(
        &mut self,
        batch: &RawBatch<'_>,
        keys: &KeyOffsets,
        output: &mut Vec<u8>,
    ) -> Result<()> {
        let header = &batch.header;
        let is_needless = self.is_needless(batch)?;
        let drops_records = is_needless && (!header.is_control() || self.is_over(header));
        let stays_empty = self.must_stay(header);
        if drops_records {
            if stays_empty {
                write_empty(header, output);
            }
            return Ok(());
        }
        let mut opener = std::mem::replace(&mut self.opener, Opener::new(0));
        let chosen = self.choose(batch, keys, &mut opener);
        let written = chosen.and_then(|chosen| match chosen.records.is_empty() {
            true if stays_empty => {
                write_empty(header, output);
                Ok(())
            }
            true => Ok(()),
            false => self.write(batch, &chosen, is_needless, output),
        });
        self.opener = opener;
        written
    }

    /// Returns true for a batch of an aborted transaction, and for a marker without batches.
    fn is_needless(&mut self, batch: &RawBatch<'_>) -> Result<bool> {
        let header = &batch.header;
        if !header.is_control() {
            return Ok(self.transactions.is_aborted(header));
        }
        let mut records = RawRecords::new(self.opener.open(batch)?, header, batch.position);
        let marker = records.next()?.map(|one| Marker::of_key(one.key.unwrap_or_default()));
        let (is_needless, kept) = self.transactions.end(header, marker);
        self.kept_aborts.extend(kept);
        Ok(is_needless)
    }

    fn is_over(&self, header: &BatchHeader) -> bool {
        delete_horizon(header).is_some_and(|horizon_ms| horizon_ms <= self.options.now_ms)
    }

    /// Returns true for a batch that stays without records rather than not at all: it has the last
    /// sequence of a producer, or the last offset of the round.
    fn must_stay(&self, header: &BatchHeader) -> bool {
        let last = self.producers.get(&header.producer_id).filter(|_| header.producer_id >= 0);
        let is_last_of_producer = last.is_some_and(|last| match last.data_offset {
            Some(offset) => header.last_offset() == offset,
            None => header.is_control() && header.producer_epoch == last.epoch,
        });
        is_last_of_producer || header.last_offset().checked_add(1) == Some(self.options.end_offset)
    }

    fn choose<'a>(
        &self,
        batch: &RawBatch<'a>,
        keys: &KeyOffsets,
        opener: &'a mut Opener,
    ) -> Result<Chosen<'a>> {
        let header = &batch.header;
        let keeps_tombstones =
            delete_horizon(header).is_none_or(|horizon_ms| self.options.now_ms < horizon_ms);
        let mut records = RawRecords::new(opener.open(batch)?, header, batch.position);
        let mut chosen = Chosen { records: Vec::new(), is_all: true, has_tombstones: false };
        while let Some(record) = records.next()? {
            let offset = header.base_offset + i64::from(record.offset_delta);
            let stays = header.is_control()
                || offset > keys.latest_offset()
                || record.key.is_some_and(|key| {
                    offset >= keys.get(key) && (record.has_value || keeps_tombstones)
                });
            chosen.is_all &= stays;
            if stays {
                chosen.has_tombstones |= !record.has_value;
                chosen.records.push(record);
            }
        }
        Ok(chosen)
    }

    fn write(
        &mut self,
        batch: &RawBatch<'_>,
        chosen: &Chosen<'_>,
        is_needless_marker: bool,
        output: &mut Vec<u8>,
    ) -> Result<()> {
        let header = &batch.header;
        let horizon_ms = delete_horizon(header);
        let begins_horizon = (chosen.has_tombstones || is_needless_marker) && horizon_ms.is_none();
        if chosen.is_all && !begins_horizon {
            output.extend_from_slice(batch.bytes);
            return Ok(());
        }
        let horizon_ms = match begins_horizon {
            true => Some(self.options.now_ms.saturating_add(self.options.delete_retention_ms)),
            false => horizon_ms,
        };
        self.rewrite(header, &chosen.records, horizon_ms, output)
            .map_err(|error| error.shifted(batch.position))
    }

    /// Appends a batch with some of its records. Offsets and sequences stay those of the original;
    /// a delete horizon takes the place of the base timestamp.
    fn rewrite(
        &mut self,
        header: &BatchHeader,
        records: &[RawRecord<'_>],
        horizon_ms: Option<i64>,
        output: &mut Vec<u8>,
    ) -> Result<()> {
        let time_of = |record: &RawRecord<'_>| match header.is_log_append_time() {
            true => header.max_timestamp_ms,
            false => header.base_timestamp_ms.wrapping_add(record.timestamp_delta),
        };
        let first_ms = records.first().map_or(NO_TIMESTAMP, time_of);
        let base_ms = horizon_ms.unwrap_or(first_ms);
        let mut newest_ms = NO_TIMESTAMP;
        self.plain.clear();
        for record in records {
            let timestamp_ms = time_of(record);
            newest_ms = newest_ms.max(timestamp_ms);
            record.write(timestamp_ms.wrapping_sub(base_ms), &mut self.plain);
        }
        let horizon_bit = if horizon_ms.is_some() { DELETE_HORIZON } else { 0 };
        let rewritten = BatchHeader {
            attributes: header.attributes & !DELETE_HORIZON | horizon_bit,
            base_timestamp_ms: base_ms,
            max_timestamp_ms: newest_ms,
            record_count: records.len() as i32,
            ..*header
        };
        let start = output.len();
        output.resize(start + HEADER_SIZE, 0);
        compress(header.codec().unwrap_or(Codec::None), &self.plain, output)?;
        seal(&rewritten, &mut output[start..])
    }
}

/// The records of a batch that stay.
struct Chosen<'a> {
    records: Vec<RawRecord<'a>>,
    /// No record of the batch goes.
    is_all: bool,
    has_tombstones: bool,
}

/// Returns from when on the tombstones of a batch, or its marker, may go.
fn delete_horizon(header: &BatchHeader) -> Option<i64> {
    (header.attributes & DELETE_HORIZON != 0).then_some(header.base_timestamp_ms)
}

/// Appends a batch without records, with the offsets, sequences and the largest timestamp that it
/// had.
fn write_empty(header: &BatchHeader, output: &mut Vec<u8>) {
    let empty = BatchHeader {
        attributes: header.attributes & !(CODEC_MASK | DELETE_HORIZON),
        base_timestamp_ms: NO_TIMESTAMP,
        record_count: 0,
        ..*header
    };
    let start = output.len();
    output.resize(start + HEADER_SIZE, 0);
    // A header alone is never too large.
    let _ = seal(&empty, &mut output[start..]);
}

/// Writes header, length and checksum of the batch whose records `batch` has behind its header.
fn seal(header: &BatchHeader, batch: &mut [u8]) -> Result<()> {
    let Ok(length) = i32::try_from(batch.len() - LOG_OVERHEAD) else {
        let found = format!("{} bytes", batch.len());
        return Err(Error::new(ErrorKind::TooLarge, 0, "a batch below 2 GiB", found));
    };
    let fields: [(usize, &[u8]); 12] = [
        (0, &header.base_offset.to_be_bytes()),
        (8, &length.to_be_bytes()),
        (12, &header.leader_epoch.to_be_bytes()),
        (16, &[2]),
        (21, &header.attributes.to_be_bytes()),
        (23, &header.last_offset_delta.to_be_bytes()),
        (27, &header.base_timestamp_ms.to_be_bytes()),
        (35, &header.max_timestamp_ms.to_be_bytes()),
        (43, &header.producer_id.to_be_bytes()),
        (51, &header.producer_epoch.to_be_bytes()),
        (53, &header.base_sequence.to_be_bytes()),
        (57, &header.record_count.to_be_bytes()),
    ];
    for (at, bytes) in fields {
        batch[at..at + bytes.len()].copy_from_slice(bytes);
    }
    let crc = crc32c(&batch[CRC_START..]);
    batch[CRC_START - 4..CRC_START].copy_from_slice(&crc.to_be_bytes());
    Ok(())
}
