//! `SegmentIndex`: what a read of a segment needs whose offset index is at hand; from an open file
//! all of it in one call.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tierlog_core::batch_answer::{Answer, Asked, First, Origin, answer, leads_on};
use tierlog_core::local_index;
use tierlog_core::record_batch::HEADER_SIZE;

use crate::buffer::{Input, duplicate};

/// Of so many bytes on they are walked without the interpreter lock.
const LARGE_BYTES: usize = 64 << 10;
/// No larger piece of a file is read in one call.
const MOST_BYTES: usize = 256 << 10;
/// To be read, what nobody asks for has to be smaller than this.
const SKIPPED_BYTES: i64 = 8 << 10;
/// A little of the batch that follows is read as well: its offset bears out the last one's.
const NEXT_BYTES: i64 = 17;

/// Start, end, first offset, next offset.
type Found = (usize, usize, i64, i64);
/// The batches, the position of the first one, first offset, next offset.
type Read<'py> = (Bound<'py, PyBytes>, i64, i64, i64);

thread_local! {
    /// Where a thread reads to; what is handed out is copied from here, while it is in the cache.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// An open file that reads share; closed when the last one lets go of it.
#[pyclass(frozen, module = "tierlog._core")]
pub struct ReadFile(File);

#[pymethods]
impl ReadFile {
    /// Of a descriptor that stays the caller's.
    #[new]
    fn new(descriptor: RawFd) -> PyResult<Self> {
        Ok(Self(duplicate(descriptor)?))
    }

    fn fileno(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The offset index of a segment, its entries checked, and the segment's bounds.
#[pyclass(frozen, module = "tierlog._core")]
pub struct SegmentIndex {
    entries: Input,
    start_offset: i64,
    end_offset: i64,
    size_bytes: i64,
}

#[pymethods]
impl SegmentIndex {
    #[new]
    fn new(
        entries: &Bound<'_, PyAny>,
        start_offset: i64,
        end_offset: i64,
        size_bytes: i64,
    ) -> PyResult<Self> {
        Ok(Self { entries: Input::new(entries)?, start_offset, end_offset, size_bytes })
    }

    /// Where a batch of `offset` may lie: (last offset, position) of the entry at or below it, the
    /// position of the next entry, and of the one after that. Behind the last one the segment
    /// ends, at most `reach_bytes` further.
    fn span(&self, offset: i64, reach_bytes: i64) -> (i64, i64, i64, i64) {
        let entries = self.entries.bytes();
        let (last_offset, position) =
            local_index::lookup_offset(entries, self.start_offset, offset);
        let next = |position: i64| {
            let found = local_index::lookup_upper_bound(entries, self.start_offset, position + 1);
            found.map(|(_, position)| i64::from(position))
        };
        let position = i64::from(position);
        let Some(latest) = next(position) else {
            return (last_offset, position, self.size_bytes, self.size_bytes);
        };
        let reach = latest.saturating_add(reach_bytes).min(self.size_bytes);
        (last_offset, position, latest, next(latest).unwrap_or(reach))
    }

    /// The batches that answer a read of `offset`, out of the segment's file: looked up, read,
    /// checked and cut; `None` when that takes more than one small read, or a closer look.
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
    ) -> PyResult<Option<Read<'py>>> {
        let asked = asked(offset, last_offset, max_bytes, minimum_one)?;
        let span = self.span(offset, reach_bytes);
        let mut scratch = SCRATCH.take();
        let file = &file.get().0;
        let found = py.detach(|| self.read_answer(file, span, &asked, &mut scratch));
        let read = found.map(|(position, found)| {
            let records = PyBytes::new(py, &scratch[found.start..found.end]);
            (records, position + found.start as i64, found.first_offset, found.next_offset)
        });
        SCRATCH.set(scratch);
        Ok(read)
    }

    /// Which batches of `data`, read from byte `position` of the segment, answer a read of `offset`:
    /// (start, end) in it, the first offset and the one after the last; `None` when that needs a
    /// closer look. Its first batch has to end with `first_last_offset`.
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
        let end = position.saturating_add_unsigned(bytes.len() as u64);
        let origin = self.origin(First::EndsWith(first_last_offset), end);
        let found = if bytes.len() < LARGE_BYTES {
            answer(bytes, &origin, &asked)
        } else {
            py.detach(|| answer(bytes, &origin, &asked))
        };
        Ok(found.map(|Answer { start, end, first_offset, next_offset }| {
            (start, end, first_offset, next_offset)
        }))
    }
}

impl SegmentIndex {
    fn origin(&self, first: First, end: i64) -> Origin {
        Origin {
            start_offset: self.start_offset,
            end_offset: self.end_offset,
            first,
            is_end: end == self.size_bytes,
        }
    }

    /// From where it was read, and the answer in `scratch`. A large batch before the one that is
    /// asked for is not read when its header says no more than the index: that it ends where the
    /// next one begins.
    fn read_answer(
        &self,
        file: &File,
        (first_last_offset, position, latest, covers): (i64, i64, i64, i64),
        asked: &Asked,
        scratch: &mut Vec<u8>,
    ) -> Option<(i64, Answer)> {
        let most = i64::try_from(asked.max_bytes).unwrap_or(i64::MAX);
        let end = covers.max(latest.saturating_add(most)).saturating_add(NEXT_BYTES);
        let end = end.min(self.size_bytes);
        let mut read = |position: i64, first: First| {
            let size = usize::try_from(end.checked_sub(position)?).ok()?;
            if position <= 0 || size > MOST_BYTES {
                return None;
            }
            if scratch.len() < size {
                scratch.resize(size, 0);
            }
            let data = &mut scratch[..size];
            file.read_exact_at(data, position as u64).ok()?;
            Some((position, answer(data, &self.origin(first, end), asked)?))
        };
        let skipped = latest.saturating_sub(position);
        if skipped >= SKIPPED_BYTES && asked.offset > first_last_offset && position > 0 {
            let mut header = [0; HEADER_SIZE];
            file.read_exact_at(&mut header, position as u64).ok()?;
            if leads_on(&header, first_last_offset, skipped as u64) {
                let found = read(latest, First::BeginsWith(first_last_offset.saturating_add(1)));
                if found.is_some() {
                    return found;
                }
            }
        }
        read(position, First::EndsWith(first_last_offset))
    }
}

fn asked(offset: i64, last_offset: i64, max_bytes: i64, minimum_one: bool) -> PyResult<Asked> {
    let Ok(max_bytes) = u64::try_from(max_bytes) else {
        let message = format!("expected max_bytes of 0 or more, found {max_bytes}");
        return Err(PyValueError::new_err(message));
    };
    Ok(Asked { offset, last_offset, max_bytes, minimum_one })
}
