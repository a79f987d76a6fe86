//! Decodes the records of a range of batches into columns. Uncompressed records are not copied;
//! views of keys and values point into the source.
//!
//! Each batch is checked as in a scan and then decoded. Any deviation from the format is an error
//! with its byte position. Only a tail that is cut off or is all zeros is not an error. The decode
//! then ends before the tail and reports it.

pub mod appended;
pub mod binary;
pub(crate) mod careful;
pub mod columns;
pub(crate) mod quick;
pub mod row_columns;
pub(crate) mod rows;
pub(crate) mod stage;
pub mod table_rows;
pub mod text;

use crate::batch::columns::{Batch, BatchColumns};
use crate::batch::header::{BatchHeader, CRC_START, Codec, HEADER_SIZE, MAGIC_END};
use crate::batch::legacy::{self, Message};
use crate::checksum::crc32c;
use crate::codec::compression::{Decompressor, USUAL_RATIO};
pub use crate::codec::output::MAX_BUFFER_BYTES;
use crate::codec::output::Output;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::vector_pool::VectorPool;
use crate::records::columns::Records;
use crate::records::rows::Rows;
use crate::records::stage::Payload;
use crate::segment::{self, Stop, StopReason};

/// The columns of one batch may take this many times `max_decompressed_bytes`, because a header of
/// two bytes becomes two views.
const COLUMNS_RATIO: usize = 2;
/// The columns of one batch may always take this much memory.
const MIN_COLUMNS_BYTES: usize = 1 << 20;

/// Size of the data buffers for decompressed batches. The larger an allocation, the less it costs
/// per byte.
const OPENED_BYTES: usize = 64 << 20;

/// Settings of a decode.
#[derive(Clone, Copy, Debug)]
pub struct DecodeOptions {
    /// Whether the checksum of every batch is verified.
    pub verify_crc: bool,
    /// Whether the records of control batches are decoded, too.
    pub include_control: bool,
    /// Largest decompressed size of one batch.
    pub max_decompressed_bytes: usize,
    /// The decode stops before the next batch when decompressed batches and columns take this much
    /// memory.
    pub budget_bytes: usize,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self {
            verify_crc: true,
            include_control: false,
            max_decompressed_bytes: 64 << 20,
            budget_bytes: usize::MAX,
        }
    }
}

/// Decodes the batches of `data`. `data` starts at byte `first_position` of the source and becomes
/// data buffer 0 of the columns.
pub fn decode_records(
    data: &[u8],
    first_position: u64,
    options: &DecodeOptions,
) -> Result<Records> {
    decode_records_into(data, first_position, options, &mut VectorPool::default())
}

/// Checks the batches of `data` like [`decode_records`], but holds only one batch in memory at a
/// time and drops its records.
pub fn check_records(data: &[u8], first_position: u64, options: &DecodeOptions) -> Result<Records> {
    decode(data, first_position, options, &mut VectorPool::default(), true)
}

/// Decodes like [`decode_records`], but takes memory from `pool` if possible.
pub fn decode_records_into(
    data: &[u8],
    first_position: u64,
    options: &DecodeOptions,
    pool: &mut VectorPool,
) -> Result<Records> {
    decode(data, first_position, options, pool, false)
}

fn decode(
    data: &[u8],
    first_position: u64,
    options: &DecodeOptions,
    pool: &mut VectorPool,
    is_check: bool,
) -> Result<Records> {
    if data.len() > MAX_BUFFER_BYTES {
        let expected = format!("a range of at most {MAX_BUFFER_BYTES} bytes");
        return Err(Error::new(ErrorKind::TooLarge, 0, expected, data.len().to_string()));
    }
    let mut decoder = Decoder::new(data, first_position, options, pool);
    decoder.rows.is_check = is_check;
    let mut at = 0;
    let stop = loop {
        match decoder.next_batch(at)? {
            Next::Batch(size) => at += size,
            Next::Stop(stop) => break stop,
        }
    };
    Ok(decoder.finish(stop))
}

enum Next {
    /// Size of the decoded batch.
    Batch(usize),
    Stop(Stop),
}

struct Decoder<'a> {
    data: &'a [u8],
    first_position: u64,
    options: &'a DecodeOptions,
    decompressor: Decompressor,
    rows: Rows,
    batches: BatchColumns,
    batch_starts: Vec<i64>,
    previous_last_offset: i64,
    open: Output,
    /// Compressed and decompressed bytes so far.
    compressed_bytes: u128,
    opened_bytes: u128,
    pool: &'a mut VectorPool,
}

impl<'a> Decoder<'a> {
    fn new(
        data: &'a [u8],
        first_position: u64,
        options: &'a DecodeOptions,
        pool: &'a mut VectorPool,
    ) -> Self {
        Self {
            data,
            first_position,
            options,
            decompressor: Decompressor::new(),
            rows: Rows::default(),
            batches: BatchColumns::default(),
            batch_starts: Vec::new(),
            previous_last_offset: -1,
            open: Output::default(),
            compressed_bytes: 0,
            opened_bytes: 0,
            pool,
        }
    }

    fn finish(mut self, stop: Stop) -> Records {
        self.rows.flush();
        let rows = self.rows.len();
        self.batch_starts.push(rows as i64);
        let headers = self.rows.headers;
        Records {
            offset: self.rows.offset,
            timestamp_ms: self.rows.timestamp_ms,
            keys: self.rows.keys.finish(self.pool),
            values: self.rows.values.finish(self.pool),
            headers: headers.finish(rows, self.pool),
            batches: self.batches,
            batch_starts: self.batch_starts,
            opened: self.open.into_buffers(self.pool),
            stop,
        }
    }

    /// Returns the memory of the columns and decompressed batches.
    fn used_bytes(&self) -> usize {
        self.rows.size_bytes() + self.opened_bytes as usize
    }

    /// Decodes the batch at `at`, or returns why no batch can be decoded there.
    fn next_batch(&mut self, at: usize) -> Result<Next> {
        let rest = &self.data[at..];
        let position = self.first_position + at as u64;
        if self.used_bytes() >= self.options.budget_bytes && !rest.is_empty() && at > 0 {
            return Ok(Next::Stop(Stop::new(StopReason::MemoryBudget, position, "", "")));
        }
        let end = self.first_position + self.data.len() as u64;
        let size = match segment::frame_slice(rest, position, end) {
            Ok(size) => size,
            Err(stop) => return accept_tail(stop).map(Next::Stop),
        };
        self.batch_starts.push(self.rows.len() as i64);
        let batch = &rest[..size];
        let magic = batch[MAGIC_END - 1] as i8;
        let header = match batch.first_chunk() {
            Some(bytes) if magic == 2 => {
                let header = self.check(bytes, batch, position)?;
                if self.options.include_control || !header.is_control() {
                    self.records(at, size, &header)?;
                }
                header
            }
            _ => self.message(at, size).map_err(|error| error.shifted(position))?,
        };
        if header.base_offset <= self.previous_last_offset {
            let expected = format!("a base offset above {}", self.previous_last_offset);
            let found = header.base_offset.to_string();
            return Err(Error::new(ErrorKind::OffsetOrder, position, expected, found));
        }
        self.previous_last_offset = header.last_offset();
        self.batches.push(position, &Batch { magic, header });
        self.reserve_rest(at + size);
        Ok(Next::Batch(size))
    }

    /// Checks and returns the header of a v2 batch.
    fn check(&self, bytes: &[u8; HEADER_SIZE], batch: &[u8], position: u64) -> Result<BatchHeader> {
        let header = BatchHeader::parse(bytes);
        if self.options.verify_crc {
            let computed = crc32c(&batch[CRC_START..]);
            if computed != header.crc {
                let expected = format!("CRC-32C {:#010x} as the header says", header.crc);
                let found = format!("{computed:#010x}");
                return Err(Error::new(ErrorKind::BadCrc, position, expected, found));
            }
        }
        header.validate(position)?;
        Ok(header)
    }

    /// Reserves memory for the rest of the rows, within the budget. The estimate assumes that the
    /// rest resembles the first `taken` bytes. If the columns grew step by step, they would be
    /// moved many times. Memory that stays unused costs nothing, but an estimate from few bytes is
    /// kept small.
    fn reserve_rest(&mut self, taken: usize) {
        const MAX_ROWS: usize = 16 << 20;
        let (rows, used) = (self.rows.len(), self.used_bytes());
        let budget = self.options.budget_bytes;
        if used / 2 > budget {
            // This batch took much more memory than usual, and pooled memory would add to that.
            self.pool.clear();
        }
        let has_room = self.rows.is_check || self.rows.capacity() > rows + rows / 64;
        if has_room || taken == self.data.len() || used >= budget {
            return;
        }
        // Number of further bytes that fit the budget, if they resemble the bytes before.
        let fitting = taken as u128 * (budget - used) as u128 / used.max(1) as u128;
        let left = ((self.data.len() - taken) as u128).min(fitting);
        let more = (rows as u128 * left / taken as u128) as usize;
        let more = (more + more / 32).min(MAX_ROWS.max(rows));
        self.rows.reserve(more, self.pool);
        let batches = self.batches.len();
        let more = (batches as u128 * left / taken as u128) as usize;
        self.batches.reserve((more + more / 32).min(MAX_ROWS));
    }

    /// Appends the records of the v2 batch of `size` bytes at `at`.
    fn records(&mut self, at: usize, size: usize, header: &BatchHeader) -> Result<()> {
        let start = at + HEADER_SIZE;
        let position = self.first_position + start as u64;
        let codec = header.codec().unwrap_or(Codec::None);
        let most = self
            .options
            .max_decompressed_bytes
            .saturating_mul(COLUMNS_RATIO)
            .max(MIN_COLUMNS_BYTES);
        self.rows.limit_bytes = Some(self.rows.size_bytes().saturating_add(most));
        if codec == Codec::None {
            let is_checked = self.options.verify_crc;
            let payload =
                Payload { bytes: self.data, buffer: 0, start, end: at + size, is_checked };
            return self
                .rows
                .append(&payload, header)
                .map_err(|error| error.shifted(self.first_position));
        }
        let compressed = &self.data[start..at + size];
        let left = self.data.len() - at - size;
        self.open(codec, 2, compressed, left).map_err(|error| error.shifted(position))?;
        let payload = last_payload(&self.open);
        self.rows.append(&payload, header).map_err(|error| {
            let inner = error.position - payload.start as u64;
            let found = format!("{} (byte {inner} of the decompressed records)", error.found);
            Error { position, found, ..error }
        })
    }

    /// Decompresses a payload that ends `left` bytes before the end of the source.
    fn open(&mut self, codec: Codec, magic: i8, compressed: &[u8], left: usize) -> Result<()> {
        let limit = self.options.max_decompressed_bytes.min(MAX_BUFFER_BYTES);
        if self.rows.is_check {
            self.open.clear();
            return self.decompressor.decompress(codec, magic, compressed, limit, &mut self.open);
        }
        let size = compressed.len();
        let planned = match self.compressed_bytes {
            0 => size.saturating_mul(USUAL_RATIO),
            // Assume the average ratio of the batches so far, and a little more.
            before => {
                let rest = (size + left) as u128 * self.opened_bytes / before;
                let left = self.options.budget_bytes.saturating_sub(self.used_bytes());
                usize::try_from(rest + rest / 32).unwrap_or(usize::MAX).min(OPENED_BYTES).min(left)
            }
        };
        self.open.plan(planned, self.pool);
        self.decompressor.decompress(codec, magic, compressed, limit, &mut self.open)?;
        self.compressed_bytes += size as u128;
        self.opened_bytes += self.open.bytes().len() as u128;
        Ok(())
    }

    /// Appends the message at `at`, or the messages in the wrapper at `at`. Error positions count
    /// from `at`.
    fn message(&mut self, at: usize, size: usize) -> Result<BatchHeader> {
        let source = self.data;
        let data = &source[at..at + size];
        if self.options.verify_crc {
            legacy::verify_crc(data)?;
        }
        let message = Message::parse(data)?;
        let codec = message.codec()?;
        if codec != Codec::None {
            let left = source.len() - at - size;
            return self.wrapper(codec, &message, data, left);
        }
        let header = legacy::header(&message, None)?;
        let payload =
            Payload { bytes: source, buffer: 0, start: at, end: at + size, is_checked: true };
        self.rows.push_message(&payload, &message, message.offset, message.timestamp_ms);
        Ok(header)
    }

    fn wrapper(
        &mut self,
        codec: Codec,
        wrapper: &Message,
        data: &[u8],
        left: usize,
    ) -> Result<BatchHeader> {
        let value = legacy::wrapped_range(wrapper)?;
        let value_position = value.start as u64;
        self.open(codec, wrapper.magic, &data[value], left)
            .map_err(|error| error.shifted(value_position))?;
        let set = self.open.bytes();
        let whole = last_payload(&self.open);
        let inside = |error| legacy::inside(wrapper, error);
        let inner = legacy::inner_set(wrapper, set, self.options.verify_crc).map_err(inside)?;
        let header = legacy::header(wrapper, Some(&inner))?;
        legacy::inner_messages(set, wrapper.magic, |at, message| {
            let start = whole.start + at;
            let payload = Payload { start, end: start + message.size_bytes, ..whole };
            let offset = message.offset + inner.offset_shift;
            let timestamp_ms = match wrapper.is_log_append_time() {
                true => wrapper.timestamp_ms,
                false => message.timestamp_ms,
            };
            self.rows.push_message(&payload, message, offset, timestamp_ms);
        })
        .map_err(inside)?;
        Ok(header)
    }
}

/// Returns the payload that was decompressed last.
fn last_payload(open: &Output) -> Payload<'_> {
    Payload {
        bytes: open.buffer(),
        buffer: open.closed() as u32 + 1,
        start: open.start(),
        end: open.end(),
        is_checked: false,
    }
}

/// Returns `stop` if it is the end or a torn or zero tail; any other stop becomes an error.
fn accept_tail(stop: Stop) -> Result<Stop> {
    let kind = match stop.reason {
        StopReason::End | StopReason::TornTail | StopReason::ZeroTail => return Ok(stop),
        StopReason::UnknownMagic => ErrorKind::UnknownMagic,
        _ => ErrorKind::BadLength,
    };
    Err(Error::new(kind, stop.position, stop.expected, stop.found))
}
