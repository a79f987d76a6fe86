//! Reads the batches of a segment file one after the other, with their checksums.

use crate::batch::header::{
    BatchHeader, CRC_START, Codec, HEADER_SIZE, LOG_OVERHEAD, MAGIC_END, be_i32,
};
use crate::checksum::crc32c;
use crate::codec::compression::Decompressor;
use crate::codec::output::Output;
use crate::error::{Error, ErrorKind, Result};
use crate::source::SegmentFile;

/// Bytes per read, unless a batch is larger.
const READ_BYTES: usize = 1 << 20;

/// A sound batch of magic 2.
pub(crate) struct RawBatch<'a> {
    pub(crate) position: u64,
    pub(crate) header: BatchHeader,
    /// The whole batch.
    pub(crate) bytes: &'a [u8],
}

/// The batches of a file from a position on.
pub(crate) struct BatchFile<'f> {
    file: &'f SegmentFile,
    /// Position of the first byte of `buffer`.
    position: u64,
    buffer: Vec<u8>,
    /// Where the next batch starts in `buffer`.
    at: usize,
}

impl<'f> BatchFile<'f> {
    pub(crate) fn new(file: &'f SegmentFile, position: u64) -> Self {
        Self { file, position, buffer: Vec::new(), at: 0 }
    }

    /// Returns the position of the next batch.
    pub(crate) fn next_position(&self) -> u64 {
        self.position + self.at as u64
    }

    /// Returns the next batch, `None` at the end of the file. A rolled segment ends on a batch
    /// border, so a part of a batch is an error, as is a batch of magic 0 or 1, which has no place
    /// in a log that is compacted.
    pub(crate) fn next(&mut self) -> Result<Option<RawBatch<'_>>> {
        let position = self.next_position();
        if position >= self.file.size_bytes() {
            return Ok(None);
        }
        self.fill(HEADER_SIZE)?;
        let size = batch_size(&self.buffer[self.at..], position)?;
        self.fill(size)?;
        let bytes = &self.buffer[self.at..self.at + size];
        self.at += size;
        let Some(head) = bytes.first_chunk::<HEADER_SIZE>() else {
            return Err(truncated(position, HEADER_SIZE, size as u64));
        };
        let header = BatchHeader::parse(head);
        let computed = crc32c(&bytes[CRC_START..]);
        if computed != header.crc {
            let expected = format!("CRC-32C {:#010x} as the header says", header.crc);
            let found = format!("{computed:#010x}");
            return Err(Error::new(ErrorKind::BadCrc, position, expected, found));
        }
        header.validate(position)?;
        Ok(Some(RawBatch { position, header, bytes }))
    }

    /// Reads on until `size` bytes from the next batch on are in the buffer.
    fn fill(&mut self, size: usize) -> Result<()> {
        let kept = self.buffer.len() - self.at;
        if kept >= size {
            return Ok(());
        }
        let position = self.next_position();
        let left = self.file.size_bytes().saturating_sub(position);
        if left < size as u64 {
            return Err(truncated(position, size, left));
        }
        self.buffer.copy_within(self.at.., 0);
        self.position = position;
        self.at = 0;
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(size.max(READ_BYTES));
        self.buffer.resize(wanted, 0);
        let filled = self.file.read_at(position + kept as u64, &mut self.buffer[kept..])?;
        self.buffer.truncate(kept + filled);
        match self.buffer.len() >= size {
            true => Ok(()),
            false => Err(truncated(position, size, self.buffer.len() as u64)),
        }
    }
}

fn truncated(position: u64, expected: usize, found: u64) -> Error {
    let expected = format!("a whole batch, of at least {expected} bytes");
    Error::new(ErrorKind::Truncated, position, expected, format!("{found} bytes"))
}

/// Returns the size that the batch at the start of `rest` announces.
fn batch_size(rest: &[u8], position: u64) -> Result<usize> {
    let magic = rest.get(MAGIC_END - 1).copied().unwrap_or(0);
    if magic != 2 {
        let expected = "batches of magic 2 in a compacted log";
        return Err(Error::new(ErrorKind::UnknownMagic, position, expected, magic.to_string()));
    }
    let length = be_i32(rest, 8);
    match usize::try_from(length) {
        Ok(length) if length >= HEADER_SIZE - LOG_OVERHEAD => Ok(length + LOG_OVERHEAD),
        _ => Err(Error::new(
            ErrorKind::BadLength,
            position,
            format!("a batch length of at least {}", HEADER_SIZE - LOG_OVERHEAD),
            length.to_string(),
        )),
    }
}

/// Decompresses the records of batches, one batch at a time.
pub(crate) struct Opener {
    decompressor: Decompressor,
    output: Output,
    max_bytes: usize,
}

impl Opener {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { decompressor: Decompressor::new(), output: Output::default(), max_bytes }
    }

    /// Returns the plain records of a batch.
    pub(crate) fn open<'a>(&'a mut self, batch: &RawBatch<'a>) -> Result<&'a [u8]> {
        let payload = &batch.bytes[HEADER_SIZE..];
        let codec = batch.header.codec().unwrap_or(Codec::None);
        if codec == Codec::None {
            return Ok(payload);
        }
        self.output.clear();
        self.decompressor
            .decompress(codec, 2, payload, self.max_bytes, &mut self.output)
            .map_err(|error| error.shifted(batch.position + HEADER_SIZE as u64))?;
        Ok(self.output.bytes())
    }
}
