//! The header of a record batch of magic 2.
//!
//! ```text
//!  0 baseOffset i64      12 leaderEpoch i32   17 crc u32            27 baseTimestamp i64
//!  8 batchLength i32     16 magic i8          21 attributes i16     35 maxTimestamp i64
//! 43 producerId i64      51 producerEpoch i16 23 lastOffsetDelta i32
//! 53 baseSequence i32    57 recordsCount i32  61 records (or one compressed stream of them)
//! ```
//! The CRC-32C covers all bytes from byte 21 on. It does not cover offset, length and leader epoch.

use crate::error::{Error, ErrorKind, Result};

/// Number of bytes before the bytes that `batchLength` counts.
pub const LOG_OVERHEAD: usize = 12;
/// Position after the version (magic) byte of a batch.
pub const MAGIC_END: usize = 17;
/// Size of the fixed header of a v2 batch.
pub const HEADER_SIZE: usize = 61;
/// First byte that the CRC of a v2 batch covers.
pub const CRC_START: usize = 21;
/// Smallest length field of any version (legacy v0).
pub const MIN_BATCH_LENGTH: i32 = 14;

pub(crate) const CODEC_MASK: i16 = 0x07;
pub(crate) const LOG_APPEND_TIME: i16 = 0x08;
pub(crate) const TRANSACTIONAL: i16 = 0x10;
pub(crate) const CONTROL: i16 = 0x20;
pub(crate) const DELETE_HORIZON: i16 = 0x40;

/// Compression codec of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Plain records.
    None,
    /// RFC 1952.
    Gzip,
    /// xerial stream, or one raw block.
    Snappy,
    /// LZ4 frame, independent blocks.
    Lz4,
    /// zstd frame.
    Zstd,
}

impl Codec {
    /// Returns the codec of an attributes field, or `None` for the unused codes 5 to 7.
    pub fn of(attributes: i16) -> Option<Self> {
        Some(match attributes & CODEC_MASK {
            0 => Self::None,
            1 => Self::Gzip,
            2 => Self::Snappy,
            3 => Self::Lz4,
            4 => Self::Zstd,
            _ => return None,
        })
    }
}

/// Every header field of a v2 batch, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record, before compaction.
    pub base_offset: i64,
    /// Bytes after the length field.
    pub batch_length: i32,
    /// Leader epoch; -1 means unknown.
    pub leader_epoch: i32,
    /// CRC-32C of the bytes from 21 to the end.
    pub crc: u32,
    /// Codec and flags.
    pub attributes: i16,
    /// Last offset minus base offset; unchanged by compaction.
    pub last_offset_delta: i32,
    /// First timestamp, or the delete horizon.
    pub base_timestamp_ms: i64,
    /// Largest timestamp, or the append time.
    pub max_timestamp_ms: i64,
    /// Producer id; -1 means none.
    pub producer_id: i64,
    /// Producer epoch; -1 means none.
    pub producer_epoch: i16,
    /// Sequence of the first record; -1 means none.
    pub base_sequence: i32,
    /// Records present.
    pub record_count: i32,
}

impl BatchHeader {
    /// Parses the 61 header bytes. The caller has checked that magic is 2.
    #[inline]
    pub fn parse(bytes: &[u8; HEADER_SIZE]) -> Self {
        Self {
            base_offset: be_i64(bytes, 0),
            batch_length: be_i32(bytes, 8),
            leader_epoch: be_i32(bytes, 12),
            crc: be_i32(bytes, 17) as u32,
            attributes: be_i16(bytes, 21),
            last_offset_delta: be_i32(bytes, 23),
            base_timestamp_ms: be_i64(bytes, 27),
            max_timestamp_ms: be_i64(bytes, 35),
            producer_id: be_i64(bytes, 43),
            producer_epoch: be_i16(bytes, 51),
            base_sequence: be_i32(bytes, 53),
            record_count: be_i32(bytes, 57),
        }
    }

    /// Refuses values that no broker writes. `position` is the start of the batch.
    #[inline]
    pub fn validate(&self, position: u64) -> Result<()> {
        let bad = |at: u64, expected: &str, found: i64| {
            Err(Error::new(ErrorKind::BadHeader, position + at, expected, found.to_string()))
        };
        if self.base_offset < 0 {
            return bad(0, "baseOffset >= 0", self.base_offset);
        }
        if self.last_offset_delta < 0 {
            return bad(23, "lastOffsetDelta >= 0", self.last_offset_delta.into());
        }
        if self.base_offset.checked_add(self.last_offset_delta.into()).is_none() {
            return bad(0, "baseOffset + lastOffsetDelta within 63 bits", self.base_offset);
        }
        if self.record_count < 0 {
            return bad(57, "recordsCount >= 0", self.record_count.into());
        }
        if i64::from(self.record_count) > i64::from(self.last_offset_delta) + 1 {
            return bad(57, "recordsCount <= lastOffsetDelta + 1", self.record_count.into());
        }
        if Codec::of(self.attributes).is_none() {
            return bad(21, "codec 0 to 4", (self.attributes & CODEC_MASK).into());
        }
        Ok(())
    }

    /// Returns the offset of the last record, before compaction.
    #[inline]
    pub fn last_offset(&self) -> i64 {
        self.base_offset.saturating_add(self.last_offset_delta.into())
    }

    /// Returns the size of the whole batch.
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        LOG_OVERHEAD as u64 + u64::try_from(self.batch_length).unwrap_or(0)
    }

    /// Returns the sequence of the last record, or -1 if the batch has no sequences. As in Kafka,
    /// it wraps at 2^31. No producer sends sequences below -1; they are handled as in Kafka.
    pub fn last_sequence(&self) -> i32 {
        if self.base_sequence == -1 {
            return -1;
        }
        match self.base_sequence.checked_add(self.last_offset_delta) {
            Some(sequence) => sequence,
            None => self.base_sequence.wrapping_add(self.last_offset_delta) & i32::MAX,
        }
    }

    /// Returns the codec, or `None` for an unknown codec. [`Self::validate`] refuses unknown
    /// codecs.
    #[inline]
    pub fn codec(&self) -> Option<Codec> {
        Codec::of(self.attributes)
    }

    /// Returns true when the timestamp of every record is the time at which the broker appended it.
    #[inline]
    pub fn is_log_append_time(&self) -> bool {
        self.attributes & LOG_APPEND_TIME != 0
    }

    /// Returns true for a batch of a transaction.
    #[inline]
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    /// Returns true for a batch of control records.
    #[inline]
    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL != 0
    }
}

/// Returns the big-endian i64 at `at`, or 0 when `at` is out of range. Callers check the length
/// first.
#[inline]
pub fn be_i64(bytes: &[u8], at: usize) -> i64 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |chunk| i64::from_be_bytes(*chunk))
}

/// Returns the big-endian i32 at `at`; see [`be_i64`].
#[inline]
pub fn be_i32(bytes: &[u8], at: usize) -> i32 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |chunk| i32::from_be_bytes(*chunk))
}

/// Returns the big-endian i16 at `at`; see [`be_i64`].
#[inline]
pub fn be_i16(bytes: &[u8], at: usize) -> i16 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |chunk| i16::from_be_bytes(*chunk))
}
