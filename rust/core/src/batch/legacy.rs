//! Messages of magic 0 and 1, and the wrapper messages that hold a compressed set of messages.
//!
//! ```text
//!  0 offset i64   8 size i32   12 crc u32 (CRC-32 of 16..end)   16 magic i8   17 attributes i8
//! 18 timestamp i64, magic 1 only
//! then keyLength i32 (-1 null), key, valueLength i32 (-1 null), value
//! ```

use std::ops::Range;

use crate::batch::header::{
    BatchHeader, Codec, LOG_OVERHEAD, MAGIC_END, MIN_BATCH_LENGTH, be_i32, be_i64,
};
use crate::checksum;
use crate::codec::compression::Decompressor;
use crate::codec::output::Output;
use crate::error::{Error, ErrorKind, Result};

const CRC_AT: usize = 12;
const MAGIC_AT: usize = 16;
const ATTRIBUTES_AT: usize = 17;
const TIMESTAMP_AT: usize = 18;
const CODEC_MASK: i8 = 0x07;
const LOG_APPEND_TIME: i8 = 0x08;

/// A message. Key and value are ranges of the bytes from which the message was parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Offset as stored: absolute, or relative inside a wrapper of magic 1.
    pub offset: i64,
    /// The stored CRC-32.
    pub crc: u32,
    /// 0 or 1.
    pub magic: i8,
    /// Codec and timestamp type.
    pub attributes: i8,
    /// -1 for magic 0.
    pub timestamp_ms: i64,
    /// Range of the key; `None` is null.
    pub key: Option<Range<usize>>,
    /// Range of the value; `None` is null.
    pub value: Option<Range<usize>>,
    /// Bytes of the whole message.
    pub size_bytes: usize,
}

/// Summary of the messages inside a wrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InnerSet {
    /// Value to add to every inner offset; 0 for magic 0.
    pub offset_shift: i64,
    /// Absolute offset of the first message.
    pub base_offset: i64,
    /// Absolute offset of the last message.
    pub last_offset: i64,
    /// Timestamp of the first message, as stored.
    pub first_timestamp_ms: i64,
    /// Number of messages.
    pub record_count: i32,
}

impl Message {
    /// Parses the message at the start of `data`, which must contain all of it. Error positions
    /// count from the start of `data`.
    pub fn parse(data: &[u8]) -> Result<Self> {
        let size = size_bytes(data)?;
        let message = &data[..size];
        let magic = message[MAGIC_AT] as i8;
        let mut at = match magic {
            0 => TIMESTAMP_AT,
            1 => TIMESTAMP_AT + 8,
            _ => {
                let found = magic.to_string();
                return Err(Error::new(ErrorKind::UnknownMagic, 16, "magic 0 or 1", found));
            }
        };
        if message.len() < at + 8 {
            let expected = format!("size >= {}", at + 8 - LOG_OVERHEAD);
            return Err(bad_length(8, &expected, (size - LOG_OVERHEAD).to_string()));
        }
        let key = field(message, &mut at)?;
        let value = field(message, &mut at)?;
        if at != size {
            let found = format!("{} more bytes", size - at);
            return Err(bad_record(at, "a message that ends with its value", found));
        }
        Ok(Self {
            offset: be_i64(message, 0),
            crc: be_i32(message, CRC_AT) as u32,
            magic,
            attributes: message[ATTRIBUTES_AT] as i8,
            timestamp_ms: if magic == 0 { -1 } else { be_i64(message, TIMESTAMP_AT) },
            key,
            value,
            size_bytes: size,
        })
    }

    /// Returns the codec of the value. A codec that messages of magic 0 and 1 cannot have is an
    /// error.
    pub fn codec(&self) -> Result<Codec> {
        match Codec::of(i16::from(self.attributes & CODEC_MASK)) {
            Some(codec) if codec != Codec::Zstd => Ok(codec),
            _ => {
                let found = (self.attributes & CODEC_MASK).to_string();
                Err(Error::new(ErrorKind::BadHeader, 17, "codec 0 to 3", found))
            }
        }
    }

    /// Returns true when the broker set the timestamp. The timestamp of a wrapper then replaces the
    /// timestamps of its inner messages.
    pub fn is_log_append_time(&self) -> bool {
        self.magic > 0 && self.attributes & LOG_APPEND_TIME != 0
    }
}

/// Returns the size of the message at the start of `data`, which must contain all of it.
fn size_bytes(data: &[u8]) -> Result<usize> {
    if data.len() < MAGIC_END {
        let found = format!("{} bytes", data.len());
        return Err(Error::new(ErrorKind::Truncated, 0, "a message header", found));
    }
    let length = be_i32(data, 8);
    if length < MIN_BATCH_LENGTH {
        return Err(bad_length(8, "size >= 14", length.to_string()));
    }
    let size = LOG_OVERHEAD + length.unsigned_abs() as usize;
    if size > data.len() {
        let found = format!("{length} with {} bytes left", data.len() - LOG_OVERHEAD);
        return Err(bad_length(8, "a message within its set", found));
    }
    Ok(size)
}

/// Reads an i32 length and the field after it. Moves `at` to the end of the field and returns the
/// range of its bytes. Returns `None` for length -1, which means null.
fn field(message: &[u8], at: &mut usize) -> Result<Option<Range<usize>>> {
    let rest = message.get(*at..).unwrap_or_default();
    let (length, left) = match rest.len().checked_sub(4) {
        Some(left) => (be_i32(rest, 0), left),
        None => return Err(bad_record(*at, "a field length", "end of message")),
    };
    let start = *at + 4;
    if length == -1 {
        *at = start;
        return Ok(None);
    }
    match usize::try_from(length) {
        Ok(length) if length <= left => {
            *at = start + length;
            Ok(Some(start..start + length))
        }
        _ => {
            let found = format!("{length} with {left} bytes left");
            Err(bad_record(*at, "a field within its message", found))
        }
    }
}

/// Verifies the CRC-32 of the message at the start of `data`.
pub fn verify_crc(data: &[u8]) -> Result<()> {
    let size = size_bytes(data)?;
    let stored = be_i32(data, CRC_AT) as u32;
    let computed = checksum::crc32(&data[MAGIC_AT..size]);
    if stored != computed {
        let (expected, found) = (format!("crc {computed:#010x}"), format!("{stored:#010x}"));
        return Err(Error::new(ErrorKind::BadCrc, CRC_AT as u64, expected, found));
    }
    Ok(())
}

/// Returns the range of the compressed set of a wrapper.
pub(crate) fn wrapped_range(wrapper: &Message) -> Result<Range<usize>> {
    wrapper.value.clone().ok_or_else(|| {
        let position = wrapper.size_bytes as u64 - 4;
        Error::new(ErrorKind::BadRecord, position, "a compressed set", "null")
    })
}

/// Appends the message set inside `wrapper` to `output`. `data` holds the bytes from which the
/// wrapper was parsed.
fn open_wrapper(
    data: &[u8],
    wrapper: &Message,
    decompressor: &mut Decompressor,
    max_bytes: usize,
    output: &mut Output,
) -> Result<()> {
    let value = wrapped_range(wrapper)?;
    let start = value.start as u64;
    decompressor
        .decompress(wrapper.codec()?, wrapper.magic, &data[value], max_bytes, output)
        .map_err(|error| error.shifted(start))
}

/// Parses the message at `at` of a decompressed set.
fn next_inner(set: &[u8], at: usize, magic: i8, check_crc: bool) -> Result<Message> {
    let here = |error: Error| error.shifted(at as u64);
    let rest = &set[at..];
    let message = Message::parse(rest).map_err(here)?;
    if message.magic != magic {
        let (expected, found) = (format!("inner magic {magic}"), message.magic.to_string());
        return Err(here(Error::new(ErrorKind::BadRecord, 16, expected, found)));
    }
    if message.codec().map_err(here)? != Codec::None {
        return Err(here(Error::new(
            ErrorKind::BadRecord,
            17,
            "plain messages inside a wrapper",
            "a compressed message",
        )));
    }
    if check_crc {
        verify_crc(rest).map_err(here)?;
    }
    Ok(message)
}

/// Checks the decompressed set of a wrapper and returns a summary of it. Error positions count from
/// the start of the decompressed set.
pub(crate) fn inner_set(wrapper: &Message, set: &[u8], check_crc: bool) -> Result<InnerSet> {
    let mut at = 0;
    let mut first: Option<(i64, i64)> = None;
    let mut last = -1;
    let mut record_count = 0;
    while at < set.len() {
        let message = next_inner(set, at, wrapper.magic, check_crc)?;
        if message.offset <= last {
            let found = message.offset.to_string();
            let expected = format!("an inner offset above {last}");
            return Err(Error::new(ErrorKind::OffsetOrder, at as u64, expected, found));
        }
        last = message.offset;
        first.get_or_insert((message.offset, message.timestamp_ms));
        record_count += 1;
        at += message.size_bytes;
    }
    let Some((first_offset, first_timestamp_ms)) = first else {
        return Err(Error::new(ErrorKind::BadRecord, 0, "messages in a wrapper", "none"));
    };
    let offset_shift = offset_shift(wrapper, last)?;
    Ok(InnerSet {
        offset_shift,
        base_offset: first_offset + offset_shift,
        last_offset: last + offset_shift,
        first_timestamp_ms,
        record_count,
    })
}

/// Returns the value to add to inner offsets. Messages of magic 0 store absolute offsets. Messages
/// of magic 1 count from 0, and their wrapper stores the absolute offset of the last message. Old
/// versions of librdkafka stored 0 in the wrapper.
fn offset_shift(wrapper: &Message, last_inner: i64) -> Result<i64> {
    let refuse = || {
        let (expected, found) = (format!("wrapper offset >= {last_inner}"), wrapper.offset);
        Err(Error::new(ErrorKind::OffsetOrder, 0, expected, found.to_string()))
    };
    match (wrapper.magic, wrapper.offset) {
        (0, offset) if last_inner > offset => refuse(),
        (0, _) | (_, 0) => Ok(0),
        (_, offset) if last_inner > offset => refuse(),
        (_, offset) => Ok(offset - last_inner),
    }
}

/// Calls `each` for every message of a decompressed set that [`inner_set`] has accepted.
pub(crate) fn inner_messages(
    set: &[u8],
    magic: i8,
    mut each: impl FnMut(usize, &Message),
) -> Result<()> {
    let mut at = 0;
    while at < set.len() {
        let message = next_inner(set, at, magic, false)?;
        each(at, &message);
        at += message.size_bytes;
    }
    Ok(())
}

/// Converts the message at the start of `data` to a header of magic 2. Fields that the message
/// lacks are -1. A wrapper is decompressed, because only its inner messages hold the first offset.
/// `check_crc` also verifies the checksums of inner messages. Error positions count from the start
/// of `data`. An error inside a wrapper has the position of the wrapper's value.
pub fn describe(
    data: &[u8],
    check_crc: bool,
    decompressor: &mut Decompressor,
    max_bytes: usize,
) -> Result<BatchHeader> {
    if check_crc {
        verify_crc(data)?;
    }
    let message = Message::parse(data)?;
    if message.codec()? == Codec::None {
        return header(&message, None);
    }
    let mut output = std::mem::take(decompressor.scratch());
    output.clear();
    let opened = open_wrapper(data, &message, decompressor, max_bytes, &mut output);
    let set = opened.and_then(|()| {
        inner_set(&message, output.bytes(), check_crc).map_err(|error| inside(&message, error))
    });
    *decompressor.scratch() = output;
    header(&message, Some(&set?))
}

/// Moves an error about a decompressed set to the position of the wrapper's value, because
/// decompressed bytes have no position in the source. Every error inside the set, except a bad
/// checksum, becomes `BadRecord`.
pub(crate) fn inside(wrapper: &Message, error: Error) -> Error {
    let kind = match error.kind {
        ErrorKind::BadCrc => ErrorKind::BadCrc,
        _ => ErrorKind::BadRecord,
    };
    let found = format!("{} (byte {} of the decompressed set)", error.found, error.position);
    let position = wrapper.value.as_ref().map_or(0, |value| value.start as u64);
    Error { kind, position, found, ..error }
}

/// Converts `message` to a header of version 2.
pub(crate) fn header(message: &Message, inner: Option<&InnerSet>) -> Result<BatchHeader> {
    let refuse = |expected: &str, found: i64| {
        Err(Error::new(ErrorKind::BadHeader, 0, expected, found.to_string()))
    };
    if message.offset < 0 {
        return refuse("offset >= 0", message.offset);
    }
    let base_offset = inner.map_or(message.offset, |set| set.base_offset);
    // A wrapper of an old librdkafka has offset 0, although its messages have larger offsets.
    let last_offset = inner.map_or(message.offset, |set| set.last_offset.max(message.offset));
    let Ok(last_offset_delta) = i32::try_from(last_offset - base_offset) else {
        return refuse("an offset range of 31 bits", last_offset - base_offset);
    };
    let timestamp_ms = message.timestamp_ms;
    let base_timestamp_ms = match inner {
        Some(set) if !message.is_log_append_time() => set.first_timestamp_ms,
        _ => timestamp_ms,
    };
    Ok(BatchHeader {
        base_offset,
        batch_length: (message.size_bytes - LOG_OVERHEAD) as i32,
        leader_epoch: -1,
        crc: message.crc,
        // Ignore bits that only later versions define.
        attributes: i16::from(message.attributes & (CODEC_MASK | LOG_APPEND_TIME)),
        last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms: timestamp_ms,
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
        record_count: inner.map_or(1, |set| set.record_count),
    })
}

#[cold]
fn bad_length(position: usize, expected: &str, found: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadLength, position as u64, expected, found)
}

#[cold]
fn bad_record(position: usize, expected: &str, found: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadRecord, position as u64, expected, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::vector;

    const MAX: usize = 1 << 20;

    fn message(
        magic: i8,
        attributes: i8,
        offset: i64,
        timestamp_ms: i64,
        value: Option<&[u8]>,
    ) -> Vec<u8> {
        let mut tail = vec![magic as u8, attributes as u8];
        if magic == 1 {
            tail.extend(timestamp_ms.to_be_bytes());
        }
        tail.extend((-1i32).to_be_bytes());
        match value {
            Some(value) => {
                tail.extend((value.len() as i32).to_be_bytes());
                tail.extend(value);
            }
            None => tail.extend((-1i32).to_be_bytes()),
        }
        let mut whole = offset.to_be_bytes().to_vec();
        whole.extend((tail.len() as i32 + 4).to_be_bytes());
        whole.extend(checksum::crc32(&tail).to_be_bytes());
        whole.extend(tail);
        whole
    }

    /// Returns a wrapper around `inner` as one raw snappy block.
    fn wrapper(magic: i8, attributes: i8, offset: i64, timestamp_ms: i64, inner: &[u8]) -> Vec<u8> {
        let packed = snap::raw::Encoder::new().compress_vec(inner).unwrap();
        message(magic, attributes | 2, offset, timestamp_ms, Some(&packed))
    }

    fn row(data: &[u8]) -> Result<(i64, i64, i32, i64, i64)> {
        let h = describe(data, true, &mut Decompressor::new(), MAX)?;
        let last = h.last_offset();
        Ok((h.base_offset, last, h.record_count, h.base_timestamp_ms, h.max_timestamp_ms))
    }

    #[test]
    fn plain_vectors() {
        let set = vector("v1_none");
        let first = Message::parse(&set).unwrap();
        assert_eq!((first.offset, first.timestamp_ms, first.size_bytes), (100, 1000, 38));
        assert_eq!(&set[first.key.clone().unwrap()], b"k1");
        assert_eq!(&set[first.value.clone().unwrap()], b"v1");
        let second = Message::parse(&set[38..]).unwrap();
        assert_eq!((second.offset, second.timestamp_ms, &second.key), (101, 1005, &None));
        assert_eq!(row(&set).unwrap(), (100, 100, 1, 1000, 1000));
        assert_eq!(row(&vector("v0_none")).unwrap(), (100, 100, 1, -1, -1));
    }

    #[test]
    fn wrapped_vectors() {
        for codec in ["gzip", "lz4", "snappy"] {
            assert_eq!(row(&vector(&format!("v1_{codec}"))).unwrap(), (100, 101, 2, 1000, 1005));
            assert_eq!(row(&vector(&format!("v0_{codec}"))).unwrap(), (100, 101, 2, -1, -1));
        }
    }

    #[test]
    fn offset_rules_of_version_1() {
        let mut set = message(1, 0, 0, 10, Some(b"a"));
        set.extend(message(1, 0, 2, 30, Some(b"b")));
        assert_eq!(row(&wrapper(1, 0, 52, 30, &set)).unwrap(), (50, 52, 2, 10, 30));
        // Written by an old librdkafka.
        assert_eq!(row(&wrapper(1, 0, 0, 30, &set)).unwrap(), (0, 2, 2, 10, 30));
        // The append time replaces the first timestamp, too.
        assert_eq!(row(&wrapper(1, 8, 52, 99, &set)).unwrap(), (50, 52, 2, 99, 99));
        assert_eq!(row(&wrapper(1, 0, 1, 30, &set)).unwrap_err().kind, ErrorKind::BadRecord);
    }

    #[test]
    fn flags_of_later_versions_mean_nothing() {
        for magic in [0, 1] {
            let plain = message(magic, !7, 5, 30, Some(b"a"));
            let header = describe(&plain, true, &mut Decompressor::new(), MAX).unwrap();
            assert_eq!((header.attributes, header.is_control()), (LOG_APPEND_TIME.into(), false));
            assert!(!header.is_transactional());
        }
    }

    #[test]
    fn offset_rules_of_version_0() {
        let mut set = message(0, 0, 50, 0, Some(b"a"));
        set.extend(message(0, 0, 52, 0, Some(b"b")));
        assert_eq!(row(&wrapper(0, 0, 52, 0, &set)).unwrap(), (50, 52, 2, -1, -1));
        assert!(row(&wrapper(0, 0, 51, 0, &set)).is_err());
    }

    #[test]
    fn refusals_name_kind_and_position() {
        let plain = message(1, 0, 0, 1, Some(b"a"));
        let cases = [
            (message(1, 2, 0, 1, None), ErrorKind::BadRecord, 30),
            (message(1, 4, 0, 1, Some(b"a")), ErrorKind::BadHeader, 17),
            (message(1, 7, 0, 1, Some(b"a")), ErrorKind::BadHeader, 17),
            (message(3, 0, 0, 1, Some(b"a")), ErrorKind::UnknownMagic, 16),
            (message(1, 0, -1, 1, Some(b"a")), ErrorKind::BadHeader, 0),
            (wrapper(1, 0, 0, 1, b""), ErrorKind::BadRecord, 34),
            (wrapper(0, 0, 0, 1, &plain), ErrorKind::BadRecord, 26),
            (wrapper(1, 0, 0, 1, &wrapper(1, 0, 0, 1, &plain)), ErrorKind::BadRecord, 34),
            (plain[..plain.len() - 1].to_vec(), ErrorKind::BadLength, 8),
            (plain[..16].to_vec(), ErrorKind::Truncated, 0),
        ];
        for (data, kind, position) in cases {
            let error = row(&data).unwrap_err();
            assert_eq!((error.kind, error.position), (kind, position), "{error}");
        }
        let mut set = plain.clone();
        set.extend(&plain);
        assert!(row(&wrapper(1, 0, 1, 1, &set)).unwrap_err().expected.contains("above 0"));
        let mut flipped = plain.clone();
        flipped[12] ^= 1;
        assert_eq!(row(&flipped).unwrap_err().kind, ErrorKind::BadCrc);
        assert_eq!(row(&wrapper(1, 0, 0, 1, &flipped)).unwrap_err().kind, ErrorKind::BadCrc);
    }

    #[test]
    fn every_cut_and_flip_ends_in_an_answer() {
        for name in ["v0_none", "v0_snappy", "v0_lz4", "v1_gzip", "v1_lz4", "v1_none"] {
            let data = vector(name);
            for size in 0..data.len() {
                let _ = row(&data[..size]);
            }
            for bit in 0..data.len() * 8 {
                let mut wrong = data.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                let _ = describe(&wrong, false, &mut Decompressor::new(), MAX);
            }
        }
    }
}
