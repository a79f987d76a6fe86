//! One row per batch, one vector per field.

use crate::record_batch::BatchHeader;

/// A batch of any magic as a row: legacy ones fill what they know and leave the rest at -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// 0, 1 or 2.
    pub magic: i8,
    /// The fields. A legacy message set has leader epoch and producer fields of -1.
    pub header: BatchHeader,
}

/// The columns of a scan, as formats section 2 names the fields; all have the same length.
#[derive(Debug, Default)]
pub struct BatchColumns {
    /// Offset of the first record.
    pub base_offset: Vec<i64>,
    /// Offset of the last record, inclusive.
    pub last_offset: Vec<i64>,
    /// Byte position of the batch in the source.
    pub position: Vec<i64>,
    /// Bytes of the whole batch.
    pub size_bytes: Vec<i32>,
    /// First timestamp, or the delete horizon.
    pub base_timestamp_ms: Vec<i64>,
    /// Largest timestamp.
    pub max_timestamp_ms: Vec<i64>,
    /// Leader epoch, -1 unknown.
    pub leader_epoch: Vec<i32>,
    /// Producer id, -1 none.
    pub producer_id: Vec<i64>,
    /// Producer epoch, -1 none.
    pub producer_epoch: Vec<i16>,
    /// Sequence of the first record, -1 none.
    pub base_sequence: Vec<i32>,
    /// Codec and flags.
    pub attributes: Vec<i16>,
    /// Records present.
    pub record_count: Vec<i32>,
    /// Format version.
    pub magic: Vec<i8>,
}

impl BatchColumns {
    /// Rows.
    pub fn len(&self) -> usize {
        self.base_offset.len()
    }

    /// No rows.
    pub fn is_empty(&self) -> bool {
        self.base_offset.is_empty()
    }

    /// Makes room for `rows` more.
    pub fn reserve(&mut self, rows: usize) {
        self.base_offset.reserve(rows);
        self.last_offset.reserve(rows);
        self.position.reserve(rows);
        self.size_bytes.reserve(rows);
        self.base_timestamp_ms.reserve(rows);
        self.max_timestamp_ms.reserve(rows);
        self.leader_epoch.reserve(rows);
        self.producer_id.reserve(rows);
        self.producer_epoch.reserve(rows);
        self.base_sequence.reserve(rows);
        self.attributes.reserve(rows);
        self.record_count.reserve(rows);
        self.magic.reserve(rows);
    }

    /// Appends the batch that starts at byte `position`.
    #[inline]
    pub fn push(&mut self, position: u64, batch: &Batch) {
        let header = &batch.header;
        self.base_offset.push(header.base_offset);
        self.last_offset.push(header.last_offset());
        self.position.push(position as i64);
        self.size_bytes.push(header.batch_length.saturating_add(12));
        self.base_timestamp_ms.push(header.base_timestamp_ms);
        self.max_timestamp_ms.push(header.max_timestamp_ms);
        self.leader_epoch.push(header.leader_epoch);
        self.producer_id.push(header.producer_id);
        self.producer_epoch.push(header.producer_epoch);
        self.base_sequence.push(header.base_sequence);
        self.attributes.push(header.attributes);
        self.record_count.push(header.record_count);
        self.magic.push(batch.magic);
    }
}
