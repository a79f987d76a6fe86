//! Decodes table rows directly from a segment file.
//!
//! The file is read, checked and decoded in parts that fit a core's cache. The parts are read
//! directly into the memory that will hold the values, so bytes cross the memory bus once in each
//! direction. This fast path covers whole, uncompressed batches of magic 2 in ascending order. The
//! rows end at any other batch, and [`crate::records`] continues there.

use crate::batch::header::{
    BatchHeader, CRC_START, Codec, HEADER_SIZE, LOG_OVERHEAD, MAGIC_END, be_i32,
};
use crate::checksum::crc32c;
use crate::codec::output::MAX_BUFFER_BYTES;
use crate::error::Result;
use crate::memory::vector_pool::VectorPool;
use crate::records::binary::BinaryRows;
use crate::records::row_columns::RowColumns;
use crate::records::rows::Rows;
use crate::records::stage::Payload;
use crate::segment::{StopReason, frame_slice};
use crate::source::SegmentFile;

/// Size of a part: a quarter of the second-level cache of common cores.
const PIECE_BYTES: usize = 128 << 10;
/// Number of bytes after a record that the decoder may read.
const BEHIND_BYTES: usize = 64;

/// Which rows to decode.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Position of the first batch.
    pub position: u64,
    /// Largest number of file bytes to decode.
    pub size_bytes: usize,
    /// Largest number of rows.
    pub rows: usize,
    /// Offsets of the rows. Batches after this range are not read.
    pub offsets: std::ops::Range<i64>,
    /// Valid batch offsets. The slow path handles other batches.
    pub batch_offsets: std::ops::Range<i64>,
    /// Make keys.
    pub keys: bool,
    /// Make values.
    pub values: bool,
}

/// Rows as columns of the same length. Keys or values that were not requested are empty.
#[derive(Debug, Default)]
pub struct TableRows {
    /// Offset of each record.
    pub offset: Vec<i64>,
    /// Columns besides the record.
    pub columns: RowColumns,
    /// Keys.
    pub keys: BinaryRows,
    /// Values.
    pub values: BinaryRows,
    /// Position of the first batch that was not read.
    pub stop_position: u64,
    /// Smallest offset that the batch at `stop_position` may have.
    pub next_offset: i64,
    /// True when the slow path has to continue at `stop_position`, or when the file ends there.
    pub is_last: bool,
}

/// Decodes the rows of batches from a position on. The only error is
/// [`crate::error::ErrorKind::Io`], which means that the file cannot be read.
pub fn read_rows(file: &SegmentFile, wanted: &Wanted, pool: &mut VectorPool) -> Result<TableRows> {
    let mut window = Window::new(file, wanted, pool);
    let mut rows = Rows::default();
    let mut table = TableRows { next_offset: wanted.batch_offsets.start, ..TableRows::default() };
    while table.next_offset < wanted.offsets.end {
        let (size, header) = match window.next_batch(&table, wanted)? {
            Next::Batch(size, header) => (size, header),
            // The slow path handles a batch that does not fit even alone.
            Next::NoRoom => {
                table.is_last = window.position == wanted.position;
                break;
            }
            Next::Unusual => {
                table.is_last = true;
                break;
            }
        };
        if !header.is_control() && rows.append(&window.payload(size), &header).is_err() {
            table.is_last = true;
            break;
        }
        if window.take(&mut rows, &header, wanted, &mut table).is_none() {
            // Columns of different lengths cannot be used.
            let (stop_position, next_offset) = (wanted.position, wanted.batch_offsets.start);
            return Ok(TableRows {
                stop_position,
                next_offset,
                is_last: true,
                ..Default::default()
            });
        }
        table.next_offset = header.last_offset().saturating_add(1);
        window.skip(size);
    }
    table.stop_position = window.position;
    table.values.data = window.finish(pool);
    Ok(table)
}

enum Next {
    /// Size and header of the batch.
    Batch(usize, BatchHeader),
    /// The batch exceeds the requested range.
    NoRoom,
    Unusual,
}

/// The memory in which values are built. File bytes are read into the memory after the finished
/// values. The values in these bytes are then moved next to the finished values.
///
/// ```text
/// values | free | batches that were read | unused
///        kept   at                       filled
/// ```
struct Window<'f> {
    file: &'f SegmentFile,
    /// Values never take more bytes than their batches, so all values fit.
    data: Vec<u8>,
    kept: usize,
    at: usize,
    filled: usize,
    /// File position of the batch at `at`.
    position: u64,
    /// End of the requested range.
    end: u64,
}

impl<'f> Window<'f> {
    fn new(file: &'f SegmentFile, wanted: &Wanted, pool: &mut VectorPool) -> Self {
        let left = file.size_bytes().saturating_sub(wanted.position);
        let size = usize::try_from(left).unwrap_or(usize::MAX).min(wanted.size_bytes);
        let size = size.min(MAX_BUFFER_BYTES - BEHIND_BYTES);
        let room = size + BEHIND_BYTES;
        let mut data = pool.take(room).unwrap_or_else(|| vec![0; room]);
        data.resize(room, 0);
        let position = wanted.position;
        let end = position.saturating_add(size as u64);
        Self { file, data, kept: 0, at: 0, filled: 0, position, end }
    }

    /// Returns the current batch after reading all of it into memory.
    fn next_batch(&mut self, table: &TableRows, wanted: &Wanted) -> Result<Next> {
        loop {
            let rest = &self.data[self.at..self.filled];
            let size = match rest.len() {
                0..MAGIC_END => MAGIC_END,
                _ => match frame_slice(rest, 0, u64::MAX) {
                    Ok(size) => return Ok(self.check_batch(size, table, wanted)),
                    Err(stop) if stop.reason == StopReason::TornTail => {
                        LOG_OVERHEAD + be_i32(rest, 8) as usize
                    }
                    Err(_) => return Ok(Next::Unusual),
                },
            };
            if size as u64 > self.end - self.position || !self.read_more(size)? {
                let is_end = self.end >= self.file.size_bytes();
                return Ok(if is_end { Next::Unusual } else { Next::NoRoom });
            }
        }
    }

    /// Moves the bytes that were not decoded next to the values, and reads on until at least `size`
    /// bytes of a batch are in memory. Returns false when the file has fewer bytes.
    fn read_more(&mut self, size: usize) -> Result<bool> {
        self.data.copy_within(self.at..self.filled, self.kept);
        self.filled -= self.at - self.kept;
        self.at = self.kept;
        let held = self.filled - self.at;
        let left = usize::try_from(self.end - self.position).unwrap_or(usize::MAX);
        let stop = (self.at + left.min(size.max(PIECE_BYTES))).min(self.data.len());
        let place = self.data.get_mut(self.filled..stop).unwrap_or_default();
        self.filled += self.file.read_at(self.position + held as u64, place)?;
        Ok(self.filled - self.at >= size)
    }

    /// Returns the current batch of `size` bytes, if the fast path covers it and it is valid.
    fn check_batch(&self, size: usize, table: &TableRows, wanted: &Wanted) -> Next {
        let batch = &self.data[self.at..self.at + size];
        let Some(header) = batch.first_chunk::<HEADER_SIZE>().map(BatchHeader::parse) else {
            return Next::Unusual;
        };
        let is_usual = batch[MAGIC_END - 1] == 2
            && header.crc == crc32c(&batch[CRC_START..])
            && header.validate(0).is_ok()
            && header.codec() == Some(Codec::None)
            && header.base_offset >= table.next_offset
            && header.last_offset() < wanted.batch_offsets.end;
        if !is_usual {
            return Next::Unusual;
        }
        match usize::try_from(header.record_count) {
            Ok(count) if count <= wanted.rows - table.offset.len() => Next::Batch(size, header),
            _ => Next::NoRoom,
        }
    }

    /// Returns the records of the current batch.
    fn payload(&self, size: usize) -> Payload<'_> {
        Payload {
            bytes: &self.data,
            buffer: 0,
            start: self.at + HEADER_SIZE,
            end: self.at + size,
            is_checked: false,
        }
    }

    /// Appends the requested rows of the current batch. Returns `None` if a view points elsewhere,
    /// which the views of this crate never do.
    fn take(
        &mut self,
        rows: &mut Rows,
        header: &BatchHeader,
        wanted: &Wanted,
        table: &mut TableRows,
    ) -> Option<()> {
        rows.flush();
        let first = rows.offset.partition_point(|&offset| offset < wanted.offsets.start);
        let end = rows.offset.partition_point(|&offset| offset < wanted.offsets.end);
        let taken = first..end.max(first);
        // Keys are copied before values are moved over them.
        if wanted.keys {
            table.keys.extend(&mut rows.keys, taken.clone(), &self.data)?;
        }
        if wanted.values {
            let (values, column) = (&mut table.values, &mut rows.values);
            self.kept = values.extend_within(column, taken.clone(), &mut self.data, self.kept)?;
        }
        table.offset.extend_from_slice(&rows.offset[taken.clone()]);
        table.columns.extend(header, &rows.timestamp_ms[taken]);
        rows.clear();
        Some(())
    }

    fn skip(&mut self, size: usize) {
        self.at += size;
        self.position += size as u64;
    }

    /// Returns the values.
    fn finish(mut self, pool: &mut VectorPool) -> Vec<u8> {
        if self.kept == 0 {
            pool.give(self.data);
            return Vec::new();
        }
        self.data.truncate(self.kept);
        self.data
    }
}
