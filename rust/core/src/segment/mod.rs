//! Scans a log segment batch by batch and returns the reason why the scan ended.
//!
//! A slice is scanned in place. A file is read by `pread` in blocks that fit a core's second-level
//! cache. If a batch crosses a block border, the computation of its CRC continues in the next
//! block. So each byte is read once and never moved, and a scan takes one block of memory for a
//! segment of any size. If no CRC is checked, only the header of a large batch is read, while small
//! batches are read whole. Reading never writes and never panics.

pub mod append;
pub mod peek;
pub mod read;
pub mod rebuild;
pub mod resync;

use std::sync::{Mutex, PoisonError};

use crate::batch::columns::{Batch, BatchColumns};
use crate::batch::header::{
    BatchHeader, CRC_START, HEADER_SIZE, LOG_OVERHEAD, MAGIC_END, MIN_BATCH_LENGTH, be_i32, be_i64,
};
use crate::batch::legacy;
use crate::checksum::{Running, crc32c, join_crc32c};
use crate::codec::compression::Decompressor;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::vector_pool::VectorPool;
use crate::source::{CopyTarget, ReadBuffer, SegmentFile, WRITE_BYTES};

/// Bytes per `pread`.
pub const BLOCK_BYTES: usize = 512 << 10;
/// Bytes per `pread` when only the headers of large batches are read.
const HEADER_READ_BYTES: usize = 256;
/// A scan of headers skips the bodies of batches of at least this size.
const SKIP_BATCH_BYTES: u64 = 4096;
/// The checksum of a batch of at least this size is joined to the checksum of the range. The bytes
/// of a smaller batch are hashed a second time, because that is faster.
const JOINED_BATCH_BYTES: u64 = 4096;
/// Largest size of a control batch or legacy message, which is read into memory as a whole.
const MAX_WHOLE_BATCH_BYTES: u64 = 64 << 20;
/// Largest decompressed size of a legacy message set that a scan opens in its own memory.
const MAX_SET_BYTES: usize = 64 << 20;
/// Largest decompressed size of any legacy message set; see [`LARGE_SET`].
const MAX_LARGE_SET_BYTES: usize = 128 << 20;
/// A scan holds this lock while it opens a message set of more than [`MAX_SET_BYTES`]. A process
/// opens one such set at a time, so parallel scans need no more memory for them than one scan.
static LARGE_SET: Mutex<()> = Mutex::new(());
/// Upper limit on the number of batches for which memory is reserved at the start. That number is
/// estimated from the size of the first batch, and the other batches may be larger.
const MAX_EXPECTED_BATCHES: u64 = 1 << 17;
/// The smallest `batchLength` of a v2 batch, which has only a header.
const MIN_V2_LENGTH: i32 = (HEADER_SIZE - LOG_OVERHEAD) as i32;
/// The smallest size field of a v1 message.
const MIN_V1_LENGTH: i32 = 22;

/// Why a scan ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The scan reached the end of the range, which is the end of a batch.
    End,
    /// The last batch is cut off.
    TornTail,
    /// Only zeros are left, as after a power cut or in a preallocated file.
    ZeroTail,
    /// A checksum does not match.
    BadCrc,
    /// A length that no batch can have.
    BadLength,
    /// A magic byte above 2.
    UnknownMagic,
    /// A header field with an impossible value, or a legacy message that cannot be opened.
    BadHeader,
    /// The base offset of the batch is not above the last offset of the batch before.
    OffsetOrder,
    /// A decode reached its memory budget at the end of a batch. The rest was not read.
    MemoryBudget,
}

impl StopReason {
    /// The name users see.
    pub fn name(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::TornTail => "torn_tail",
            Self::ZeroTail => "zero_tail",
            Self::BadCrc => "bad_crc",
            Self::BadLength => "bad_length",
            Self::UnknownMagic => "unknown_magic",
            Self::BadHeader => "bad_header",
            Self::OffsetOrder => "offset_order",
            Self::MemoryBudget => "memory_budget",
        }
    }
}

/// The end of a scan. All bytes before `position` were accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The reason.
    pub reason: StopReason,
    /// The first byte that was not accepted.
    pub position: u64,
    /// The expected content at this position.
    pub expected: String,
    /// The content that was found.
    pub found: String,
}

impl Stop {
    pub(crate) fn new(
        reason: StopReason,
        position: u64,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self { reason, position, expected: expected.into(), found: found.into() }
    }

    fn end(position: u64) -> Self {
        Self::new(StopReason::End, position, "", "")
    }
}

/// The range of a scan, and its checks.
#[derive(Clone, Copy, Debug)]
pub struct ScanOptions {
    /// Byte position of the first batch.
    pub start: u64,
    /// Byte position at which the scan ends. It ends at the end of the source if this is `None` or
    /// larger.
    pub end: Option<u64>,
    /// Whether the checksum of every batch is checked.
    pub verify_crc: bool,
    /// Whether the CRC-32C of all bytes of the range is computed, too.
    pub hash_bytes: bool,
}

impl Default for ScanOptions {
    fn default() -> Self {
        Self { start: 0, end: None, verify_crc: true, hash_bytes: false }
    }
}

/// Receives the batches of a scan in order.
pub trait Visitor {
    /// `batch` starts at byte `position`. For a control batch, `records` are the bytes after the
    /// header. Otherwise `records` is empty.
    fn batch(&mut self, position: u64, batch: &Batch, records: &[u8]) -> Result<()>;

    /// Receives an estimate of the number of batches that will follow. The estimate is based on the
    /// size of the first batch.
    fn expect(&mut self, _batches: usize) {}
}

impl Visitor for BatchColumns {
    #[inline]
    fn batch(&mut self, position: u64, batch: &Batch, _records: &[u8]) -> Result<()> {
        self.push(position, batch);
        Ok(())
    }

    fn expect(&mut self, batches: usize) {
        self.reserve(batches);
    }
}

/// How a scan ended.
#[derive(Debug)]
pub struct Scan {
    /// The end of the scan.
    pub stop: Stop,
    /// CRC-32C of the whole range, if it was requested and the scan reached the end of the range.
    pub range_crc32c: Option<u32>,
}

/// Scans a segment in memory.
pub fn scan_slice<V: Visitor>(data: &[u8], options: &ScanOptions, visitor: &mut V) -> Result<Scan> {
    let end = options.end.unwrap_or(u64::MAX).min(data.len() as u64);
    let start = options.start.min(end);
    let range = &data[start as usize..end as usize];
    let mut walker = Walker::new(options, end, visitor);
    let stop = match walker.walk(range, start)? {
        Walk::Stopped(stop) => stop,
        Walk::BadLength(stop) => {
            let rest = &range[(stop.position - start) as usize..];
            if rest.iter().all(|&byte| byte == 0) { zero_tail(&stop, end) } else { stop }
        }
        // No more bytes can follow, so an incomplete batch is torn.
        Walk::Incomplete { consumed, .. } => torn(start + consumed as u64, end),
    };
    Ok(walker.ended(stop))
}

/// Scans a segment file.
pub fn scan_file<V: Visitor>(
    file: &SegmentFile,
    options: &ScanOptions,
    visitor: &mut V,
) -> Result<Scan> {
    copy_file(file, options, visitor, None)
}

/// Scans a segment file and writes every byte that it reads to the same position of `target`.
///
/// A scan that reaches the end has written all bytes of the range. With
/// [`ScanOptions::hash_bytes`], their CRC-32C is [`Scan::range_crc32c`].
pub fn copy_file<V: Visitor>(
    file: &SegmentFile,
    options: &ScanOptions,
    visitor: &mut V,
    target: Option<&mut CopyTarget>,
) -> Result<Scan> {
    let end = options.end.unwrap_or(u64::MAX).min(file.size_bytes());
    let start = options.start.min(end);
    let mut walker = Walker::new(options, end, visitor);
    let mut blocks = Blocks::new(file, start, end);
    blocks.target = target;
    blocks.fill(BLOCK_BYTES)?;
    let stop = loop {
        walker.end = blocks.end;
        match walker.walk(blocks.window(), blocks.window_position())? {
            Walk::Stopped(stop) => break stop,
            Walk::BadLength(stop) => break blocks.zeros_or(stop)?,
            Walk::Incomplete { consumed, size_bytes } => {
                blocks.begin += consumed;
                if let Some(stop) = walker.cross_border(&mut blocks, size_bytes)? {
                    break stop;
                }
            }
        }
    };
    Ok(walker.ended(stop))
}

fn torn(position: u64, end: u64) -> Stop {
    let left = end.saturating_sub(position);
    Stop::new(StopReason::TornTail, position, "a whole batch", format!("{left} bytes of a batch"))
}

fn zero_tail(stop: &Stop, end: u64) -> Stop {
    let zeros = end.saturating_sub(stop.position);
    Stop::new(StopReason::ZeroTail, stop.position, "a batch", format!("{zeros} zero bytes"))
}

/// The result of a scan of one window.
enum Walk {
    Stopped(Stop),
    /// The scan stopped at a bad length, which may be the start of a tail of zeros.
    BadLength(Stop),
    /// The batch at `consumed` ends after the window. `size_bytes` is its size if the window has
    /// its header.
    Incomplete {
        consumed: usize,
        size_bytes: Option<u64>,
    },
}

struct Walker<'v, V> {
    visitor: &'v mut V,
    verify_crc: bool,
    end: u64,
    previous_last_offset: i64,
    /// The checksum of all batches so far.
    hash: Option<Running>,
    decompressor: Decompressor,
}

impl<'v, V: Visitor> Walker<'v, V> {
    fn new(options: &ScanOptions, end: u64, visitor: &'v mut V) -> Self {
        Self {
            visitor,
            verify_crc: options.verify_crc,
            end,
            previous_last_offset: -1,
            hash: options.hash_bytes.then(Running::crc32c),
            decompressor: Decompressor::default(),
        }
    }

    /// Returns the scan that ended with `stop`.
    fn ended(self, stop: Stop) -> Scan {
        let whole = stop.reason == StopReason::End;
        Scan { stop, range_crc32c: self.hash.filter(|_| whole).map(|hash| hash.value()) }
    }

    fn wants_crc(&self) -> bool {
        self.verify_crc || self.hash.is_some()
    }

    /// Accepts the whole batches of `window`, which starts at byte `position` of the source.
    fn walk(&mut self, window: &[u8], position: u64) -> Result<Walk> {
        let mut consumed = 0;
        loop {
            let rest = &window[consumed..];
            let at = position + consumed as u64;
            let left = self.end.saturating_sub(at);
            if left == 0 {
                return Ok(Walk::Stopped(Stop::end(at)));
            }
            let Some(prefix) = rest.first_chunk::<MAGIC_END>() else {
                if left >= MAGIC_END as u64 || (rest.len() as u64) < left {
                    return Ok(Walk::Incomplete { consumed, size_bytes: None });
                }
                // The source ends here with fewer bytes than any header has. They are zeros or a
                // torn header.
                return Ok(if rest.iter().all(|&byte| byte == 0) {
                    Walk::BadLength(torn(at, self.end))
                } else {
                    Walk::Stopped(torn(at, self.end))
                });
            };
            let size_bytes = match frame(prefix, at, left) {
                Ok(size_bytes) => size_bytes,
                Err(stop) if stop.reason == StopReason::BadLength => {
                    return Ok(Walk::BadLength(stop));
                }
                Err(stop) => return Ok(Walk::Stopped(stop)),
            };
            let Some(batch) = rest.get(..size_bytes as usize) else {
                return Ok(Walk::Incomplete { consumed, size_bytes: Some(size_bytes) });
            };
            if let Some(stop) = self.accept_whole(at, batch)? {
                return Ok(Walk::Stopped(stop));
            }
            consumed += batch.len();
        }
    }

    /// Checks a batch that is in memory as a whole, and passes it to the visitor.
    #[inline]
    fn accept_whole(&mut self, position: u64, batch: &[u8]) -> Result<Option<Stop>> {
        match batch.first_chunk::<HEADER_SIZE>() {
            Some(bytes) if batch[MAGIC_END - 1] == 2 => {
                let header = BatchHeader::parse(bytes);
                let crc = if self.wants_crc() { crc32c(&batch[CRC_START..]) } else { header.crc };
                self.accept_v2(position, &header, crc, batch)
            }
            _ => self.accept_legacy(position, batch),
        }
    }

    /// Accepts a batch whose checksum is `crc`. `batch` has at least the bytes of its header, and
    /// all bytes of a control batch.
    #[inline]
    fn accept_v2(
        &mut self,
        position: u64,
        header: &BatchHeader,
        crc: u32,
        batch: &[u8],
    ) -> Result<Option<Stop>> {
        if self.verify_crc && crc != header.crc {
            return Ok(Some(Stop::new(
                StopReason::BadCrc,
                position,
                format!("CRC-32C {:#010x} as the header says", header.crc),
                format!("{crc:#010x}"),
            )));
        }
        if let Err(error) = header.validate(position) {
            return Ok(Some(stop_for(StopReason::BadHeader, position, &error)));
        }
        if let Some(hash) = &mut self.hash {
            let size_bytes = header.size_bytes();
            if size_bytes < JOINED_BATCH_BYTES && batch.len() as u64 == size_bytes {
                hash.update(batch);
            } else {
                hash.update(&batch[..CRC_START]);
                let joined = join_crc32c(hash.value(), crc, size_bytes - CRC_START as u64);
                *hash = Running::crc32c_from(joined);
            }
        }
        let records = if header.is_control() { &batch[HEADER_SIZE..] } else { &[] };
        self.hand_on(position, &Batch { magic: 2, header: *header }, records)
    }

    fn describe_legacy(&mut self, message: &[u8]) -> Result<BatchHeader> {
        let described =
            legacy::describe(message, self.verify_crc, &mut self.decompressor, MAX_SET_BYTES);
        match described {
            Err(error) if error.kind == ErrorKind::TooLarge => {
                let _one_at_a_time = LARGE_SET.lock().unwrap_or_else(PoisonError::into_inner);
                // Use one buffer of that size instead of growing buffers, and free the scan's own
                // buffers first.
                self.decompressor = Decompressor::new();
                let mut decompressor = Decompressor::new();
                decompressor.scratch().plan(MAX_LARGE_SET_BYTES, &mut VectorPool::default());
                legacy::describe(message, self.verify_crc, &mut decompressor, MAX_LARGE_SET_BYTES)
            }
            described => described,
        }
    }

    fn accept_legacy(&mut self, position: u64, message: &[u8]) -> Result<Option<Stop>> {
        match self.describe_legacy(message) {
            Ok(header) => {
                if let Some(hash) = &mut self.hash {
                    hash.update(message);
                }
                let magic = message[MAGIC_END - 1] as i8;
                self.hand_on(position, &Batch { magic, header }, &[])
            }
            Err(error) => {
                let reason = match error.kind {
                    ErrorKind::BadCrc => StopReason::BadCrc,
                    ErrorKind::BadLength => StopReason::BadLength,
                    _ => StopReason::BadHeader,
                };
                Ok(Some(stop_for(reason, position, &error)))
            }
        }
    }

    #[inline]
    fn hand_on(&mut self, position: u64, batch: &Batch, records: &[u8]) -> Result<Option<Stop>> {
        let base_offset = batch.header.base_offset;
        if base_offset <= self.previous_last_offset {
            return Ok(Some(Stop::new(
                StopReason::OffsetOrder,
                position,
                format!("a base offset above {}", self.previous_last_offset),
                base_offset.to_string(),
            )));
        }
        if self.previous_last_offset < 0 {
            let left = self.end.saturating_sub(position) / batch.header.size_bytes().max(1);
            self.visitor.expect(left.min(MAX_EXPECTED_BATCHES) as usize);
        }
        self.previous_last_offset = batch.header.last_offset();
        self.visitor.batch(position, batch, records)?;
        Ok(None)
    }

    /// Handles the batch at the start of the window. The batch ends after the window.
    fn cross_border(
        &mut self,
        blocks: &mut Blocks<'_, '_>,
        size_bytes: Option<u64>,
    ) -> Result<Option<Stop>> {
        let window = blocks.window();
        let (Some(size_bytes), Some(bytes)) = (size_bytes, window.first_chunk::<HEADER_SIZE>())
        else {
            return blocks.extend(BLOCK_BYTES as u64);
        };
        let (bytes, header) = (*bytes, BatchHeader::parse(bytes));
        if bytes[MAGIC_END - 1] != 2 || header.is_control() {
            return self.whole_batch(blocks, size_bytes);
        }
        let position = blocks.window_position();
        let crc = if self.wants_crc() {
            match blocks.crc_across(size_bytes)? {
                Some(crc) => crc,
                None => return Ok(Some(torn(position, blocks.end))),
            }
        } else {
            blocks.skip(size_bytes)?;
            header.crc
        };
        self.accept_v2(position, &header, crc, &bytes)
    }

    /// Reads a control batch or legacy message into memory as a whole.
    fn whole_batch(
        &mut self,
        blocks: &mut Blocks<'_, '_>,
        size_bytes: u64,
    ) -> Result<Option<Stop>> {
        if size_bytes > MAX_WHOLE_BATCH_BYTES {
            return Ok(Some(Stop::new(
                StopReason::BadLength,
                blocks.window_position(),
                format!("at most {MAX_WHOLE_BATCH_BYTES} bytes for a control or legacy batch"),
                size_bytes.to_string(),
            )));
        }
        blocks.extend(size_bytes.max(BLOCK_BYTES as u64))
    }
}

fn stop_for(reason: StopReason, position: u64, error: &Error) -> Stop {
    Stop::new(reason, position, error.expected.clone(), error.found.clone())
}

/// Returns the size of the batch that begins with these 17 bytes.
#[inline]
fn frame(prefix: &[u8; MAGIC_END], position: u64, left: u64) -> std::result::Result<u64, Stop> {
    let length = be_i32(prefix, 8);
    let magic = prefix[MAGIC_END - 1];
    let least = match magic {
        2 => MIN_V2_LENGTH,
        1 => MIN_V1_LENGTH,
        _ => MIN_BATCH_LENGTH,
    };
    if length < MIN_BATCH_LENGTH || (magic <= 2 && length < least) {
        let expected = format!("batchLength >= {least}");
        return Err(Stop::new(StopReason::BadLength, position, expected, length.to_string()));
    }
    if magic > 2 {
        return Err(Stop::new(
            StopReason::UnknownMagic,
            position,
            "magic 0, 1 or 2",
            (magic as i8).to_string(),
        ));
    }
    let size_bytes = LOG_OVERHEAD as u64 + length as u64;
    if size_bytes > i32::MAX as u64 {
        let expected = format!("batchLength <= {}", i32::MAX - LOG_OVERHEAD as i32);
        return Err(Stop::new(StopReason::BadLength, position, expected, length.to_string()));
    }
    if size_bytes > left {
        let base_offset = be_i64(prefix, 0);
        return Err(Stop::new(
            StopReason::TornTail,
            position,
            format!("{size_bytes} bytes for the batch at offset {base_offset}"),
            format!("{left} bytes"),
        ));
    }
    Ok(size_bytes)
}

/// Returns the size of the whole batch at the start of `rest`, or the stop if `rest` does not start
/// with a whole batch. `rest` ends at the end of the source.
pub(crate) fn frame_slice(
    rest: &[u8],
    position: u64,
    end: u64,
) -> std::result::Result<usize, Stop> {
    let Some(prefix) = rest.first_chunk::<MAGIC_END>() else {
        return Err(match rest.iter().position(|&byte| byte != 0) {
            None if rest.is_empty() => Stop::end(position),
            None => zero_tail(&torn(position, end), end),
            Some(_) => torn(position, end),
        });
    };
    match frame(prefix, position, rest.len() as u64) {
        Err(stop) if stop.reason == StopReason::BadLength && rest.iter().all(|&b| b == 0) => {
            Err(zero_tail(&stop, end))
        }
        framed => framed.map(|size| size as usize),
    }
}

/// A window of a file that moves forward.
struct Blocks<'f, 't> {
    file: &'f SegmentFile,
    target: Option<&'t mut CopyTarget>,
    buffer: ReadBuffer,
    /// The position of `buffer[0]` in the source.
    position: u64,
    /// The window is `buffer[begin..filled]`.
    begin: usize,
    filled: usize,
    end: u64,
}

impl<'f> Blocks<'f, '_> {
    fn new(file: &'f SegmentFile, start: u64, end: u64) -> Self {
        let room = (end - start).min(BLOCK_BYTES as u64) as usize;
        Self {
            file,
            target: None,
            buffer: ReadBuffer::new(room.max(HEADER_READ_BYTES)),
            position: start,
            begin: 0,
            filled: 0,
            end,
        }
    }

    fn window(&self) -> &[u8] {
        &self.buffer[self.begin..self.filled]
    }

    fn window_position(&self) -> u64 {
        self.position + self.begin as u64
    }

    /// Reads up to `most` bytes and appends them to the buffer. If the file has become shorter,
    /// lowers `end`.
    fn fill(&mut self, most: usize) -> Result<()> {
        let from = self.position + self.filled as u64;
        let left = usize::try_from(self.end.saturating_sub(from)).unwrap_or(usize::MAX);
        let mut stop = self.filled + left.min(most).min(self.buffer.len() - self.filled);
        if self.target.is_some() && stop - self.filled > WRITE_BYTES {
            // Let the write end at a multiple of [`WRITE_BYTES`], which is best for the page cache.
            stop -= ((from + (stop - self.filled) as u64) % WRITE_BYTES as u64) as usize;
        }
        let count = self.file.read_at(from, &mut self.buffer[self.filled..stop])?;
        if let Some(target) = &mut self.target {
            target.write(&self.buffer[self.filled..self.filled + count], from)?;
        }
        if count < stop - self.filled {
            self.end = from + count as u64;
        }
        self.filled += count;
        Ok(())
    }

    /// Continues to read at `position`.
    fn restart_at(&mut self, position: u64, most: usize) -> Result<()> {
        self.position = position;
        self.begin = 0;
        self.filled = 0;
        self.fill(most)
    }

    /// Extends the window to `bytes` bytes, with the same start. If the file ends before the
    /// window grows, returns the stop for a torn tail.
    fn extend(&mut self, bytes: u64) -> Result<Option<Stop>> {
        self.buffer.copy_within(self.begin..self.filled, 0);
        self.position += self.begin as u64;
        self.filled -= self.begin;
        self.begin = 0;
        let left = self.end.saturating_sub(self.position);
        let room = usize::try_from(bytes.min(left)).unwrap_or(usize::MAX);
        if room > self.buffer.len() {
            let mut larger = ReadBuffer::new(room);
            larger[..self.filled].copy_from_slice(&self.buffer[..self.filled]);
            self.buffer = larger;
        }
        let before = self.filled;
        self.fill(usize::MAX)?;
        Ok((self.filled == before).then(|| torn(self.position, self.end)))
    }

    /// Returns the CRC-32C of the v2 batch at the start of the window, or `None` if the batch is
    /// cut off. Reads the bytes after the window for it.
    fn crc_across(&mut self, size_bytes: u64) -> Result<Option<u32>> {
        let mut running = Running::crc32c();
        running.update(&self.window()[CRC_START..]);
        let mut left = size_bytes - self.window().len() as u64;
        while left > 0 {
            self.restart_at(self.position + self.filled as u64, BLOCK_BYTES)?;
            if self.filled == 0 {
                return Ok(None);
            }
            let part = left.min(self.filled as u64);
            running.update(&self.buffer[..part as usize]);
            self.begin = part as usize;
            left -= part;
        }
        Ok(Some(running.value()))
    }

    /// Moves to the next batch without reading the body of the batch at the start of the window.
    fn skip(&mut self, size_bytes: u64) -> Result<()> {
        let next = self.window_position() + size_bytes;
        let most = if size_bytes >= SKIP_BATCH_BYTES { HEADER_READ_BYTES } else { BLOCK_BYTES };
        self.restart_at(next.min(self.end), most)
    }

    /// Returns a stop at a tail of zeros if only zeros follow the position of `stop`, else returns
    /// `stop`.
    fn zeros_or(&mut self, stop: Stop) -> Result<Stop> {
        let mut at = stop.position;
        while at < self.end {
            self.restart_at(at, BLOCK_BYTES)?;
            if self.filled == 0 {
                break;
            }
            if self.window().iter().any(|&byte| byte != 0) {
                return Ok(stop);
            }
            at += self.filled as u64;
        }
        Ok(zero_tail(&stop, self.end))
    }
}
