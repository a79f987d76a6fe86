//! `SegmentIndex`: the offset index of a segment as a Python object, and reads by it.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tierlog_core::batch::answer::{Answer, Asked};
use tierlog_core::batch::checksums::{BatchChecksums, CHECKSUM_SIZE, Mismatch};
use tierlog_core::error::{Error, ErrorKind};
use tierlog_core::index::local::OFFSET_ENTRY_SIZE;
use tierlog_core::segment::peek::{BatchStart, peek};
use tierlog_core::segment::read::{self, BatchSize, Span};

use crate::buffer::{Input, duplicate};
use crate::error::to_python;
use crate::remote_index::column;

/// Data of at least this size is examined without the interpreter lock.
const LARGE_BYTES: usize = 64 << 10;

/// Start and end of the found batches, their first offset, and the offset after them.
type Found = (usize, usize, i64, i64);
/// The batches, the position of the first batch, its first offset, the offset after the last batch,
/// and the number of bytes requested from the file.
type Records<'py> = (Option<Bound<'py, PyBytes>>, i64, i64, i64, i64);

thread_local! {
    /// Memory into which this thread reads from files. It is kept for the next read.
    static MEMORY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Base offset, size, magic and base timestamp of a batch.
type Start = (Option<i64>, Option<i64>, Option<u8>, Option<i64>);

/// Returns the base offset, the size, the magic byte and the base timestamp of the batch at the
/// start of `data`, unchecked. A value is `None` if `data` is too short to hold it.
#[pyfunction]
pub fn batch_start(data: &Bound<'_, PyAny>) -> PyResult<Start> {
    let BatchStart { base_offset, size_bytes, magic, base_timestamp_ms } =
        peek(Input::new(data)?.bytes());
    Ok((base_offset, size_bytes, magic, base_timestamp_ms))
}

/// An open file that several reads share. It is closed when the last read releases it.
#[pyclass(frozen, module = "tierlog._core")]
pub struct ReadFile(File);

#[pymethods]
impl ReadFile {
    /// Duplicates a descriptor. The caller still owns the descriptor that it passes.
    #[new]
    fn new(descriptor: RawFd) -> PyResult<Self> {
        Ok(Self(duplicate(descriptor)?))
    }

    fn fileno(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The checked offset index of a segment, the checksums of the batches that the index points at,
/// and the bounds of the segment.
#[pyclass(frozen, module = "tierlog._core")]
pub struct SegmentIndex {
    entries: Input,
    checksums: Input,
    start_offset: i64,
    end_offset: i64,
    size_bytes: i64,
    likely_size: BatchSize,
}

#[pymethods]
impl SegmentIndex {
    /// `checksums` is the section that [`tierlog_core::batch::checksums`] describes. It is empty if
    /// the checksums are not known.
    #[new]
    fn new(
        py: Python<'_>,
        entries: &Bound<'_, PyAny>,
        checksums: &Bound<'_, PyAny>,
        start_offset: i64,
        end_offset: i64,
        size_bytes: i64,
    ) -> PyResult<Self> {
        let (entries, checksums) = (Input::new(entries)?, Input::new(checksums)?);
        if BatchChecksums::new(entries.bytes(), checksums.bytes()).is_none() {
            let rows = entries.bytes().len() / OFFSET_ENTRY_SIZE + 1;
            let expected = format!("{rows} batch checksums of {CHECKSUM_SIZE} bytes");
            let found = format!("{} bytes", checksums.bytes().len());
            let error = Error::new(ErrorKind::BadLength, 0, expected, found);
            return Err(to_python(py, error, None));
        }
        Ok(Self {
            entries,
            checksums,
            start_offset,
            end_offset,
            size_bytes,
            likely_size: BatchSize::default(),
        })
    }

    /// Returns the range in which a batch of `offset` may be: (last offset, position) of the entry
    /// at or below `offset`, the position of the next entry, and the position at which every batch
    /// that can hold `offset` has ended. The batch at the last entry must end at most `reach_bytes`
    /// after the entry's position.
    fn span(&self, offset: i64, reach_bytes: i64) -> (i64, i64, i64, i64) {
        let Span { last_offset, position, next, covers } = self.native().span(offset, reach_bytes);
        (last_offset, position, next.map_or(self.size_bytes, |(_, latest)| latest), covers)
    }

    /// Reads the batches that answer a read of `offset` from the segment's file. Returns the
    /// batches, the position of the first batch, its first offset, the offset after the last batch,
    /// and how many bytes were requested from the file. The batches are `None` when the range is
    /// too large or a check fails.
    #[expect(clippy::too_many_arguments, reason = "what a read asks for")]
    fn read<'py>(
        &self,
        py: Python<'py>,
        file: &Bound<'py, ReadFile>,
        reach_bytes: i64,
        offset: i64,
        last_offset: i64,
        max_bytes: i64,
        minimum_one: bool,
    ) -> PyResult<Records<'py>> {
        let asked = asked(offset, last_offset, max_bytes, minimum_one)?;
        let (index, file, mut read_bytes) = (self.native(), &file.get().0, 0);
        let mut memory = MEMORY.take();
        let found = py.detach(|| {
            index.read(file, reach_bytes, &asked, &self.likely_size, &mut memory, &mut read_bytes)
        });
        let records = match found {
            Some(read::Found {
                position,
                answer: Answer { start, end, first_offset, next_offset },
            }) => {
                let records = PyBytes::new(py, &memory[start..end]);
                (Some(records), position + start as i64, first_offset, next_offset, read_bytes)
            }
            None => (None, -1, -1, -1, read_bytes),
        };
        MEMORY.set(memory);
        Ok(records)
    }

    /// Returns which batches of `data` answer a read of `offset`: their start and end in `data`,
    /// their first offset, and the offset after them. Returns `None` when a check fails. `data` was
    /// read from byte `position` of the segment, and the last offset of its first batch must be
    /// `first_last_offset`.
    #[expect(clippy::too_many_arguments, reason = "what a read asks for")]
    fn answer(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        position: i64,
        first_last_offset: i64,
        offset: i64,
        last_offset: i64,
        max_bytes: i64,
        minimum_one: bool,
    ) -> PyResult<Option<Found>> {
        let input = Input::new(data)?;
        let bytes = input.bytes();
        let asked = asked(offset, last_offset, max_bytes, minimum_one)?;
        let index = self.native();
        let find = || index.answer(bytes, position, first_last_offset, &asked);
        let found = if bytes.len() < LARGE_BYTES { find() } else { py.detach(find) };
        Ok(found.map(|Answer { start, end, first_offset, next_offset }| {
            (start, end, first_offset, next_offset)
        }))
    }

    /// Returns the first batch of `data` that differs from the batch that was copied, as (row,
    /// expected checksum, found checksum). Returns `None` when all batches agree or no checksum is
    /// known. `data` begins at byte `data_position` of the segment, and its batches begin at bytes
    /// `positions` of `data`.
    fn find_mismatch(
        &self,
        data: &Bound<'_, PyAny>,
        data_position: u64,
        positions: &Bound<'_, PyAny>,
    ) -> PyResult<Option<(usize, u32, u32)>> {
        let (data, positions) = (Input::new(data)?, column::<i64>(positions, "positions")?);
        let found = self.native().checksums.find_mismatch(data.bytes(), data_position, &positions);
        Ok(found.map(|Mismatch { row, expected, found }| (row, expected, found)))
    }
}

impl SegmentIndex {
    fn native(&self) -> read::SegmentIndex<'_> {
        let (entries, checksums) = (self.entries.bytes(), self.checksums.bytes());
        read::SegmentIndex {
            entries,
            checksums: BatchChecksums::new(entries, checksums).unwrap_or_default(),
            start_offset: self.start_offset,
            end_offset: self.end_offset,
            size_bytes: self.size_bytes,
        }
    }
}

fn asked(offset: i64, last_offset: i64, max_bytes: i64, minimum_one: bool) -> PyResult<Asked> {
    let Ok(max_bytes) = u64::try_from(max_bytes) else {
        let message = format!("expected max_bytes of 0 or more, found {max_bytes}");
        return Err(PyValueError::new_err(message));
    };
    Ok(Asked { offset, last_offset, max_bytes, minimum_one })
}
