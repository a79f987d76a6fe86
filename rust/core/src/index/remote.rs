//! The remoteLogIndex: positions of log data in remote storage.
//!
//! ```text
//!  0 magic i16 = 0     2 length i16, of the whole entry    4 crc u32, CRC-32 (zlib) of [8, end)
//!  8 firstOffset i64  16 lastOffset i64  24 firstTimestamp i64  32 lastTimestamp i64
//! 40 dataLength i32   44 rdiLength i16   46 rdi
//! ```
//! Entries follow each other directly, and last offsets ascend strictly. The rdi of an entry says
//! where the data is. A file on a node ends with a trailer of 8 bytes, the position of the last
//! entry. A reader checks the trailer but does not need it. A copy in a store has no trailer. The
//! checksum does not cover magic and length; the check `length == 46 + rdiLength` guards them.
//!
//! A timestamp may be any i64, because Kafka has no illegal timestamp. As in Kafka, -1 means
//! "none". Offsets are never negative and `dataLength` is at least 1.

use crate::batch::header::{be_i16, be_i32, be_i64};
use crate::checksum::crc32;
use crate::error::{Error, ErrorKind, Result};
use crate::index::local::{OffsetIndexWriter, TimeIndexWriter};

/// Bytes of an entry without its rdi.
pub const FIXED_SIZE: usize = 46;
/// The longest rdi an entry can hold.
pub const MAX_RDI_SIZE: usize = i16::MAX as usize - FIXED_SIZE;
/// Size of the trailer of a file.
pub const TRAILER_SIZE: usize = 8;

const CRC_START: usize = 8;
/// An entry to encode.
#[derive(Clone, Copy, Debug)]
pub struct NewEntry<'a> {
    /// Offset of the first record.
    pub first_offset: i64,
    /// Offset of the last record, inclusive.
    pub last_offset: i64,
    /// Timestamp of the first batch.
    pub first_timestamp_ms: i64,
    /// Largest timestamp.
    pub last_timestamp_ms: i64,
    /// Bytes of log data.
    pub data_length: i64,
    /// Location of the data.
    pub rdi: &'a [u8],
}

impl NewEntry<'_> {
    /// Passes the fixed part of the entry to `put`, field by field. The checksum is zero until
    /// [`seal`] fills it in. The caller writes the rdi after the fixed part. `before` is the last
    /// offset of the previous row, or -1 for the first row.
    #[inline]
    pub fn put_fixed(&self, row: usize, before: i64, mut put: impl FnMut(&[u8])) -> Result<()> {
        let data_length = match i32::try_from(self.data_length) {
            Ok(length) if length > 0 => length,
            _ => return Err(refused(row, "a dataLength from 1 to 2147483647", self.data_length)),
        };
        if !(0..=self.last_offset).contains(&self.first_offset) || self.last_offset <= before {
            return Err(self.refused_offsets(row, before));
        }
        let rdi_length = rdi_length(row, self.rdi)?;
        // One number holds magic 0, the length and a checksum of zero.
        put(&(((rdi_length as u64) + FIXED_SIZE as u64) << 32).to_be_bytes());
        put(&self.first_offset.to_be_bytes());
        put(&self.last_offset.to_be_bytes());
        put(&self.first_timestamp_ms.to_be_bytes());
        put(&self.last_timestamp_ms.to_be_bytes());
        put(&data_length.to_be_bytes());
        put(&rdi_length.to_be_bytes());
        Ok(())
    }

    #[cold]
    fn refused_offsets(&self, row: usize, before: i64) -> Error {
        if self.first_offset < 0 {
            return refused(row, "a firstOffset >= 0", self.first_offset);
        }
        if self.last_offset < self.first_offset {
            let expected = format!("a lastOffset >= firstOffset {}", self.first_offset);
            return refused(row, expected, self.last_offset);
        }
        refused(
            row,
            format!("a lastOffset > {before}, the lastOffset of the row before"),
            self.last_offset,
        )
    }
}

/// Returns the error for an argument that no entry can hold.
#[cold]
pub(crate) fn refused(row: usize, expected: impl Into<String>, found: impl ToString) -> Error {
    Error::new(ErrorKind::InvalidArgument, row as u64, expected, found.to_string())
}

/// Returns the length of a row's rdi, or an error when it is too long.
#[inline]
pub fn rdi_length(row: usize, rdi: &[u8]) -> Result<i16> {
    match i16::try_from(rdi.len()) {
        Ok(length) if rdi.len() <= MAX_RDI_SIZE => Ok(length),
        _ => Err(refused(row, format!("an rdi of at most {MAX_RDI_SIZE} bytes"), rdi.len())),
    }
}

/// Fills in the checksums of consecutive whole entries.
pub fn seal(mut entries: &mut [u8]) {
    while entries.len() >= FIXED_SIZE {
        let size = usize::from(be_i16(entries, 2) as u16).clamp(FIXED_SIZE, entries.len());
        let (entry, rest) = std::mem::take(&mut entries).split_at_mut(size);
        let crc = crc32(&entry[CRC_START..]);
        entry[4..CRC_START].copy_from_slice(&crc.to_be_bytes());
        entries = rest;
    }
}

/// Encodes entries one after the other. Errors name the row.
pub fn encode(entries: &[NewEntry<'_>]) -> Result<Vec<u8>> {
    let size = entries.iter().map(|entry| FIXED_SIZE + entry.rdi.len()).sum();
    let mut out = Vec::with_capacity(size);
    let mut before = -1;
    for (row, entry) in entries.iter().enumerate() {
        entry.put_fixed(row, before, |bytes| out.extend_from_slice(bytes))?;
        out.extend_from_slice(entry.rdi);
        before = entry.last_offset;
    }
    seal(&mut out);
    Ok(out)
}

/// A verified entry inside its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Byte position of the entry.
    pub position: usize,
    /// Offset of the first record.
    pub first_offset: i64,
    /// Offset of the last record, inclusive.
    pub last_offset: i64,
    /// Timestamp of the first batch.
    pub first_timestamp_ms: i64,
    /// Largest timestamp. In entries of other programs it is only a hint.
    pub last_timestamp_ms: i64,
    /// Bytes of log data.
    pub data_length: i32,
    /// Location of the data; untrusted input.
    pub rdi: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Reads and verifies the entry at `position`; errors name that position.
    pub fn read(data: &'a [u8], position: usize) -> Result<Self> {
        let rest = data.get(position..).unwrap_or_default();
        let Some((entry, fixed)) = Self::split_first(rest) else {
            return Err(not_whole(position, rest));
        };
        let (stored, computed) = (be_i32(fixed, 4) as u32, crc32(&entry[CRC_START..]));
        if stored != computed {
            let found = format!("crc {stored:#010x}");
            return Err(bad(ErrorKind::BadCrc, position, format!("crc {computed:#010x}"), found));
        }
        let entry = Self::parse(position, fixed, entry);
        if entry.is_possible() { Ok(entry) } else { Err(entry.impossible()) }
    }

    /// Returns the bytes of the entry at the start of `rest`, and its fixed part. Returns `None`
    /// when magic or lengths are wrong or bytes are missing.
    #[inline]
    fn split_first(rest: &'a [u8]) -> Option<(&'a [u8], &'a [u8; FIXED_SIZE])> {
        let fixed = rest.first_chunk::<FIXED_SIZE>()?;
        let rdi_length = be_i16(fixed, 44);
        // Magic and length together form one i32.
        if rdi_length < 0 || be_i32(fixed, 0) != FIXED_SIZE as i32 + i32::from(rdi_length) {
            return None;
        }
        Some((rest.get(..FIXED_SIZE + rdi_length as usize)?, fixed))
    }

    #[inline]
    fn parse(position: usize, fixed: &[u8; FIXED_SIZE], entry: &'a [u8]) -> Self {
        Self {
            position,
            first_offset: be_i64(fixed, 8),
            last_offset: be_i64(fixed, 16),
            first_timestamp_ms: be_i64(fixed, 24),
            last_timestamp_ms: be_i64(fixed, 32),
            data_length: be_i32(fixed, 40),
            rdi: &entry[FIXED_SIZE..],
        }
    }

    #[inline]
    fn is_possible(&self) -> bool {
        self.first_offset >= 0 && self.first_offset <= self.last_offset && self.data_length > 0
    }

    #[cold]
    fn impossible(&self) -> Error {
        let found =
            format!("{} to {}, {} bytes", self.first_offset, self.last_offset, self.data_length);
        let expected = "0 <= firstOffset <= lastOffset and dataLength >= 1";
        bad(ErrorKind::BadRecord, self.position, expected, found)
    }

    /// Returns the size of the entry.
    pub fn size(&self) -> usize {
        FIXED_SIZE + self.rdi.len()
    }
}

#[cold]
fn bad(kind: ErrorKind, position: usize, expected: impl Into<String>, found: String) -> Error {
    Error::new(kind, position as u64, expected, found)
}

/// Returns the reason why [`Entry::split_first`] returned `None`.
#[cold]
fn not_whole(position: usize, rest: &[u8]) -> Error {
    let torn = |size: usize| {
        let found = format!("{} bytes", rest.len());
        bad(ErrorKind::Truncated, position, format!("an entry of {size} bytes"), found)
    };
    if rest.len() < FIXED_SIZE {
        return torn(FIXED_SIZE);
    }
    let (magic, length, rdi_length) = (be_i16(rest, 0), be_i16(rest, 2), be_i16(rest, 44));
    if magic != 0 {
        return bad(ErrorKind::UnknownMagic, position, "magic 0", format!("magic {magic}"));
    }
    if rdi_length < 0 || i32::from(length) != FIXED_SIZE as i32 + i32::from(rdi_length) {
        let found = format!("length {length} with rdiLength {rdi_length}");
        return bad(ErrorKind::BadLength, position, "length = 46 + rdiLength", found);
    }
    torn(FIXED_SIZE + rdi_length as usize)
}

/// A remoteLogIndex as columns. The rdis are not included; [`Entry::read`] returns them.
#[derive(Debug, Default)]
pub struct RemoteLogIndex {
    /// Byte position of each entry. The rdi of an entry starts 46 bytes after that position and
    /// ends at the next entry.
    pub position: Vec<i64>,
    /// Offset of the first record.
    pub first_offset: Vec<i64>,
    /// Offset of the last record, inclusive; ascends strictly.
    pub last_offset: Vec<i64>,
    /// Timestamp of the first batch.
    pub first_timestamp_ms: Vec<i64>,
    /// Largest timestamp. In entries of other programs it is only a hint.
    pub last_timestamp_ms: Vec<i64>,
    /// Bytes of log data.
    pub data_length: Vec<i32>,
    /// Size of all entries together.
    pub valid_length: usize,
    /// True when a trailer follows the entries.
    pub has_trailer: bool,
    /// The error after the last good entry, if the bytes there are a torn append and were ignored.
    pub torn: Option<Error>,
}

impl RemoteLogIndex {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.position.len()
    }

    /// Returns true when there are no entries.
    pub fn is_empty(&self) -> bool {
        self.position.is_empty()
    }

    fn with_room_for(data: &[u8]) -> Self {
        let first = usize::from(be_i16(data, 2) as u16).max(FIXED_SIZE);
        let rows = data.len() / first;
        Self {
            position: Vec::with_capacity(rows),
            first_offset: Vec::with_capacity(rows),
            last_offset: Vec::with_capacity(rows),
            first_timestamp_ms: Vec::with_capacity(rows),
            last_timestamp_ms: Vec::with_capacity(rows),
            data_length: Vec::with_capacity(rows),
            ..Self::default()
        }
    }

    /// Reads entries up to the first invalid entry.
    fn read_good_entries(&mut self, data: &[u8]) {
        let mut before = -1;
        let mut rest = data;
        while let Some((entry, fixed)) = Entry::split_first(rest) {
            let row = Entry::parse(0, fixed, entry);
            if crc32(&entry[CRC_START..]) != be_i32(fixed, 4) as u32
                || !row.is_possible()
                || row.last_offset <= before
            {
                break;
            }
            self.position.push((data.len() - rest.len()) as i64);
            self.first_offset.push(row.first_offset);
            self.last_offset.push(row.last_offset);
            self.first_timestamp_ms.push(row.first_timestamp_ms);
            self.last_timestamp_ms.push(row.last_timestamp_ms);
            self.data_length.push(row.data_length);
            before = row.last_offset;
            rest = &rest[entry.len()..];
        }
        self.valid_length = data.len() - rest.len();
    }

    /// Returns true when no bytes or only a valid trailer follow the last good entry.
    fn is_end(&self, data: &[u8]) -> bool {
        let rest = data.get(self.valid_length..).unwrap_or_default();
        rest.is_empty() || self.is_trailer(rest)
    }

    fn is_trailer(&self, rest: &[u8]) -> bool {
        rest.len() == TRAILER_SIZE && self.position.last() == Some(&be_i64(rest, 0))
    }

    /// Returns the remoteOffsetIndex: last offset and position of each entry.
    pub fn offset_index(&self, base_offset: i64) -> Result<Vec<u8>> {
        let mut writer = OffsetIndexWriter::new(base_offset);
        for (&offset, &position) in self.last_offset.iter().zip(&self.position) {
            writer.append(offset, position as u64, position as u64)?;
        }
        Ok(writer.into_bytes())
    }

    /// Returns the remoteTimeIndex: last timestamp and last offset of each entry that raises the
    /// maximum.
    pub fn time_index(&self, base_offset: i64) -> Result<Vec<u8>> {
        let mut writer = TimeIndexWriter::new(base_offset);
        for ((&timestamp_ms, &offset), &position) in
            self.last_timestamp_ms.iter().zip(&self.last_offset).zip(&self.position)
        {
            writer.maybe_append(timestamp_ms, offset, position as u64)?;
        }
        Ok(writer.into_bytes())
    }
}

/// Reads and verifies a whole file, with or without a trailer. Any bad byte is an error. With
/// `recover`, however, an append that a crash cut off at the end of the file is reported in
/// [`RemoteLogIndex::torn`], and the entries before it are returned.
pub fn decode(data: &[u8], recover: bool) -> Result<RemoteLogIndex> {
    let mut found = RemoteLogIndex::with_room_for(data);
    found.read_good_entries(data);
    let position = found.valid_length;
    if found.is_end(data) {
        found.has_trailer = position < data.len();
        return Ok(found);
    }
    // The loop stopped at a bad entry, or at a good entry that is out of order.
    let error = match Entry::read(data, position) {
        Ok(entry) => {
            let expected = format!("lastOffset > {}", found.last_offset.last().unwrap_or(&-1));
            bad(ErrorKind::OffsetOrder, position, expected, entry.last_offset.to_string())
        }
        Err(error) => error,
    };
    if recover && is_torn(data, position, error.kind) {
        found.torn = Some(error);
        return Ok(found);
    }
    Err(error)
}

/// Returns true when the bytes at `position` can be an append that a crash cut off. Such bytes end
/// within an entry, are all zero, or are the last entry of the file with a bad checksum.
fn is_torn(data: &[u8], position: usize, kind: ErrorKind) -> bool {
    let rest = data.get(position..).unwrap_or_default();
    match kind {
        ErrorKind::Truncated => true,
        ErrorKind::BadCrc => {
            let after = rest.len().saturating_sub(be_i16(rest, 2).max(0) as usize);
            after == 0 || after == TRAILER_SIZE
        }
        _ => rest.iter().all(|&byte| byte == 0),
    }
}

/// Returns the row of the first entry whose last offset is at least `target_offset`, or `None` if
/// there is no such entry. `last_offset` must ascend.
#[inline]
pub fn lookup_offset(last_offset: &[i64], target_offset: i64) -> Option<usize> {
    let row = last_offset.partition_point(|&offset| offset < target_offset);
    (row < last_offset.len()).then_some(row)
}

/// Returns the first row whose largest timestamp is at least `target_ms`, or `None` if there is no
/// such row. Entries of other programs may store a timestamp that is not their largest, so the
/// searched record can be in an earlier row.
pub fn lookup_timestamp(last_timestamp_ms: &[i64], target_ms: i64) -> Option<usize> {
    last_timestamp_ms.iter().position(|&timestamp_ms| timestamp_ms >= target_ms)
}
