//! A run of batches without their records: every header, and the bytes of control batches. All
//! that the indexes of a segment are made of, in about a thousandth of its bytes.
//!
//! A row is a header's fields as differences to the row before, each a zig-zag varlong; the base
//! offset as the difference to the offset after the batch before. The record section of a control
//! batch follows its row, its checksum lies before it. Byte positions are left out: batches lie next to each other.
//! Outlines live as long as a rebuild, so the layout may change.

use crate::batch::columns::Batch;
use crate::batch::header::{BatchHeader, HEADER_SIZE};
use crate::error::{Error, ErrorKind, Result};
use crate::segment::Visitor;
use crate::varint::{read_varlong, write_varlong};

const FIELDS: usize = 12;
type Row = [i64; FIELDS];

fn row_of(batch: &Batch) -> Row {
    let header = &batch.header;
    [
        batch.magic.into(),
        header.attributes.into(),
        header.base_offset,
        header.last_offset_delta.into(),
        header.batch_length.into(),
        header.base_timestamp_ms,
        header.max_timestamp_ms,
        header.leader_epoch.into(),
        header.producer_id,
        header.producer_epoch.into(),
        header.base_sequence.into(),
        header.record_count.into(),
    ]
}

fn batch_of(row: &Row, crc: u32, at: u64) -> Result<Batch> {
    fn fit<T: TryFrom<i64>>(value: i64, at: u64) -> Result<T> {
        T::try_from(value).map_err(|_| bad(at, "a header field", format!("{value}")))
    }
    let [magic, attributes, base_offset, last_offset_delta, batch_length, ..] = *row;
    let [
        ..,
        base_timestamp_ms,
        max_timestamp_ms,
        leader_epoch,
        producer_id,
        epoch,
        sequence,
        count,
    ] = *row;
    let header = BatchHeader {
        base_offset,
        batch_length: fit(batch_length, at)?,
        leader_epoch: fit(leader_epoch, at)?,
        crc,
        attributes: fit(attributes, at)?,
        last_offset_delta: fit(last_offset_delta, at)?,
        base_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch: fit(epoch, at)?,
        base_sequence: fit(sequence, at)?,
        record_count: fit(count, at)?,
    };
    Ok(Batch { magic: fit(magic, at)?, header })
}

#[cold]
fn bad(at: u64, expected: &str, found: String) -> Error {
    Error::new(ErrorKind::BadRecord, at, format!("{expected} of an outline"), found)
}

/// What is to be expected of the batch after `batch`: the same again, at the next offset.
fn row_after(batch: &Batch) -> Row {
    let mut row = row_of(batch);
    row[2] = batch.header.last_offset().wrapping_add(1);
    row
}

/// Takes the batches of a scan down.
#[derive(Debug)]
pub struct OutlineWriter {
    bytes: Vec<u8>,
    expected: Row,
    max_bytes: usize,
    complete: bool,
    batches: u64,
    first_offset: Option<i64>,
    last_offset: i64,
}

impl OutlineWriter {
    /// An outline of at most `max_bytes`: all rows or none.
    pub fn new(max_bytes: usize) -> Self {
        Self {
            bytes: Vec::new(),
            expected: [0; FIELDS],
            max_bytes,
            complete: true,
            batches: 0,
            first_offset: None,
            last_offset: -1,
        }
    }

    /// How many batches.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// First and last offset of the batches.
    pub fn offsets(&self) -> Option<(i64, i64)> {
        self.first_offset.map(|first_offset| (first_offset, self.last_offset))
    }

    /// The outline; `None` when it was to become too large.
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        self.complete.then_some(self.bytes)
    }
}

impl Visitor for OutlineWriter {
    fn batch(&mut self, _position: u64, batch: &Batch, records: &[u8]) -> Result<()> {
        self.batches += 1;
        self.first_offset.get_or_insert(batch.header.base_offset);
        self.last_offset = batch.header.last_offset();
        if !self.complete {
            return Ok(());
        }
        for (value, expected) in row_of(batch).into_iter().zip(self.expected) {
            write_varlong(value.wrapping_sub(expected), &mut self.bytes);
        }
        self.bytes.extend_from_slice(&batch.header.crc.to_be_bytes());
        self.bytes.extend_from_slice(records);
        self.expected = row_after(batch);
        if self.bytes.len() > self.max_bytes {
            self.complete = false;
            self.bytes = Vec::new();
        }
        Ok(())
    }
}

/// Hands the batches of an outline to `visitor`, as the scan did that wrote it, the first one at
/// byte `position` of the segment. An error is about the outline, or the visitor's.
pub fn replay<V: Visitor>(outline: &[u8], mut position: u64, visitor: &mut V) -> Result<u64> {
    let (mut at, mut expected): (usize, Row) = (0, [0; FIELDS]);
    while at < outline.len() {
        let mut row = expected;
        for value in &mut row {
            let (difference, size) = read_varlong(&outline[at..])
                .ok_or_else(|| bad(at as u64, "a whole row", "a cut one".into()))?;
            *value = value.wrapping_add(difference);
            at += size;
        }
        let crc = outline
            .get(at..)
            .and_then(|rest| rest.first_chunk::<4>())
            .ok_or_else(|| bad(at as u64, "a checksum", "a cut one".into()))?;
        at += crc.len();
        let batch = batch_of(&row, u32::from_be_bytes(*crc), at as u64)?;
        let size_bytes = batch.header.size_bytes();
        let is_control = batch.magic == 2 && batch.header.is_control();
        let inside = if is_control { size_bytes.saturating_sub(HEADER_SIZE as u64) } else { 0 };
        let records = usize::try_from(inside)
            .ok()
            .and_then(|inside| outline[at..].get(..inside))
            .ok_or_else(|| bad(at as u64, "a whole control batch", "a cut one".into()))?;
        at += records.len();
        visitor.batch(position, &batch, records)?;
        position = position.saturating_add(size_bytes);
        expected = row_after(&batch);
    }
    Ok(position)
}
