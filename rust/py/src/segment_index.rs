//! `SegmentIndex`: what a read of a segment needs whose offset index is at hand; from an open file
//! all of it in one call.
#![expect(unsafe_code, reason = "C callers hand over pointers")]

use std::ffi::c_int;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicI64, Ordering};
use std::{io, ptr, slice};

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tierlog_core::batch::answer::{Answer, Asked, Origin, answer};
use tierlog_core::batch::checksums::{BatchChecksums, CHECKSUM_SIZE, Mismatch};
use tierlog_core::batch::header::{LOG_OVERHEAD, be_i32};
use tierlog_core::error::{Error, ErrorKind};
use tierlog_core::index::local::{self as local_index, OFFSET_ENTRY_SIZE};

use crate::buffer::{Input, duplicate};
use crate::error::to_python;
use crate::object::{python, raise};
use crate::remote_index::column;

/// Of so many bytes on they are walked without the interpreter lock.
const LARGE_BYTES: usize = 64 << 10;
/// No larger piece of a file is read in one call.
const MOST_BYTES: usize = 256 << 10;
/// A little of the batch that follows is read as well: its offset bears out the last one's.
const NEXT_BYTES: i64 = 17;

/// Start, end, first offset, next offset.
type Found = (usize, usize, i64, i64);
/// The batches, the position of the first one, first offset, next offset.
type Records<'py> = (Bound<'py, PyBytes>, i64, i64, i64);

/// An answer so many times as small as what was read for it is copied, so that the rest can go.
const COPY_FROM: usize = 4;

/// What was read from byte `position` of the file on, and the answer in it.
struct Read<'py> {
    bytes: Bound<'py, PyBytes>,
    position: i64,
    answer: Answer,
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

/// What the offset index says of the neighbourhood of an offset: the entry at or below it, the
/// next one, and the position of the one after that.
#[derive(Clone, Copy)]
struct Span {
    last_offset: i64,
    position: i64,
    next: Option<(i64, i64)>,
    covers: i64,
}

/// A range of the file, and the last offset of the batch that it begins with.
#[derive(Clone, Copy)]
struct Range {
    position: i64,
    end: i64,
    first_last_offset: i64,
}

impl Range {
    fn size(&self) -> i64 {
        self.end.saturating_sub(self.position)
    }
}

/// The offset index of a segment, its entries checked, the checksums of the batches that it points
/// at, and the segment's bounds.
#[pyclass(frozen, module = "tierlog._core")]
pub struct SegmentIndex {
    entries: Input,
    checksums: Input,
    start_offset: i64,
    end_offset: i64,
    size_bytes: i64,
    /// Of the batch that was handed out last; 0 before the first one.
    batch_bytes: AtomicI64,
}

#[pymethods]
impl SegmentIndex {
    /// `checksums` is the section of [`tierlog_core::batch::checksums`], empty when it is unknown.
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
            batch_bytes: AtomicI64::new(0),
        })
    }

    /// Where a batch of `offset` may lie: (last offset, position) of the entry at or below it, the
    /// position of the next entry, and of the one after that. Behind the last one the segment
    /// ends, at most `reach_bytes` further.
    fn span(&self, offset: i64, reach_bytes: i64) -> (i64, i64, i64, i64) {
        let Span { last_offset, position, next, covers } = self.around(offset, reach_bytes);
        (last_offset, position, next.map_or(self.size_bytes, |(_, latest)| latest), covers)
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
    ) -> PyResult<Option<Records<'py>>> {
        let asked = asked(offset, last_offset, max_bytes, minimum_one)?;
        let found = self.read_asked(py, &file.get().0, reach_bytes, &asked, &mut 0)?;
        Ok(found.map(|Read { bytes, position, answer }| {
            let records = PyBytes::new(py, &bytes.as_bytes()[answer.start..answer.end]);
            (records, position + answer.start as i64, answer.first_offset, answer.next_offset)
        }))
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
        let origin = self.origin(position, first_last_offset, end);
        let found = if bytes.len() < LARGE_BYTES {
            answer(bytes, &origin, &asked)
        } else {
            py.detach(|| answer(bytes, &origin, &asked))
        };
        Ok(found.map(|Answer { start, end, first_offset, next_offset }| {
            (start, end, first_offset, next_offset)
        }))
    }

    /// The first batch of `data` that is not the one that the segment was copied with: (row,
    /// expected checksum, found checksum); `None` when all agree or nothing is known. `data` begins
    /// at byte `data_position` of the segment, its batches at byte `positions` of `data`.
    fn find_mismatch(
        &self,
        data: &Bound<'_, PyAny>,
        data_position: u64,
        positions: &Bound<'_, PyAny>,
    ) -> PyResult<Option<(usize, u32, u32)>> {
        let (data, positions) = (Input::new(data)?, column::<i64>(positions, "positions")?);
        let found = self.checksums().find_mismatch(data.bytes(), data_position, &positions);
        Ok(found.map(|Mismatch { row, expected, found }| (row, expected, found)))
    }
}

impl SegmentIndex {
    fn around(&self, offset: i64, reach_bytes: i64) -> Span {
        let entries = self.entries.bytes();
        let ((last_offset, position), following) =
            local_index::lookup_around(entries, self.start_offset, offset);
        let [next, after] = following.map(|found| found.map(|(last, at)| (last, i64::from(at))));
        let covers = match (next, after) {
            (None, _) => self.size_bytes,
            (_, Some((_, position))) => position,
            (Some((_, latest)), None) => latest.saturating_add(reach_bytes).min(self.size_bytes),
        };
        Span { last_offset, position: position.into(), next, covers }
    }

    fn checksums(&self) -> BatchChecksums<'_> {
        let (entries, checksums) = (self.entries.bytes(), self.checksums.bytes());
        BatchChecksums::new(entries, checksums).unwrap_or_default()
    }

    fn origin(&self, position: i64, first_last_offset: i64, end: i64) -> Origin<'_> {
        Origin {
            position: position.max(0) as u64,
            checksums: self.checksums(),
            start_offset: self.start_offset,
            end_offset: self.end_offset,
            first_last_offset,
            is_end: end == self.size_bytes,
        }
    }

    /// Reads no more than it takes if all batches here are of one size, else everything in which
    /// the answer may lie. Adds to `read_bytes` what it asks the file for.
    fn read_asked<'py>(
        &self,
        py: Python<'py>,
        file: &File,
        reach_bytes: i64,
        asked: &Asked,
        read_bytes: &mut i64,
    ) -> PyResult<Option<Read<'py>>> {
        let span = self.around(asked.offset, reach_bytes);
        if span.position <= 0 {
            return Ok(None);
        }
        let most = i64::try_from(asked.max_bytes).unwrap_or(i64::MAX);
        let latest = span.next.map_or(self.size_bytes, |(_, latest)| latest);
        let whole = Range {
            position: span.position,
            end: self.cut(span.covers.max(latest.saturating_add(most))),
            first_last_offset: span.last_offset,
        };
        let likely = self.likely(&span, asked.offset, most).filter(|one| one.size() < whole.size());
        for range in likely.into_iter().chain([whole]) {
            *read_bytes = read_bytes.saturating_add(range.size());
            if let Some(read) = self.read_range(py, file, &range, asked)? {
                self.note(&read.bytes.as_bytes()[read.answer.start..]);
                return Ok(Some(read));
            }
        }
        Ok(None)
    }

    /// Where the answer lies if all batches here are of one size, and of so many offsets. It begins
    /// where the index says that a batch does.
    fn likely(&self, span: &Span, offset: i64, most: i64) -> Option<Range> {
        let (next_last_offset, latest) = span.next?;
        let gap = latest.checked_sub(span.position).filter(|&gap| gap > 0)?;
        let offsets = next_last_offset.checked_sub(span.last_offset).filter(|&count| count > 0)?;
        let known = self.batch_bytes.load(Ordering::Relaxed);
        let batch_bytes = if known == 0 { gap } else { known.min(gap) };
        let before = match offset.checked_sub(span.last_offset)? {
            ..=0 => 0,
            above => 1 + (above - 1).checked_mul(gap)? / offsets.checked_mul(batch_bytes)?,
        };
        let begin = span.position.checked_add(before.checked_mul(batch_bytes)?)?.min(latest);
        let is_next = begin.saturating_add(batch_bytes / 2) >= latest;
        let (position, first_last_offset) =
            if is_next { (latest, next_last_offset) } else { (span.position, span.last_offset) };
        let end = self.cut(begin.max(position).saturating_add(batch_bytes.max(most)));
        Some(Range { position, end, first_last_offset })
    }

    fn cut(&self, end: i64) -> i64 {
        end.saturating_add(NEXT_BYTES).min(self.size_bytes)
    }

    /// Read into memory of its own, which nobody else has seen: what is handed out lies there.
    fn read_range<'py>(
        &self,
        py: Python<'py>,
        file: &File,
        range: &Range,
        asked: &Asked,
    ) -> PyResult<Option<Read<'py>>> {
        let (Ok(size), Ok(position)) =
            (usize::try_from(range.size()), u64::try_from(range.position))
        else {
            return Ok(None);
        };
        if size == 0 || size > MOST_BYTES {
            return Ok(None);
        }
        let origin = self.origin(range.position, range.first_last_offset, range.end);
        let (bytes, room) = new_bytes(py, size)?;
        let found = py.detach(|| answer(fill(room, file, position)?, &origin, asked));
        // Else it may lie before what was read.
        let is_first = |found: &Answer| found.start > 0 || found.first_offset <= asked.offset;
        Ok(found.filter(is_first).map(|answer| {
            let read = Read { bytes, position: range.position, answer };
            if size > COPY_FROM * (answer.end - answer.start) { read.cut(py) } else { read }
        }))
    }

    /// Remembers of which size a batch is.
    fn note(&self, batch: &[u8]) {
        if let Some(head) = batch.first_chunk::<LOG_OVERHEAD>() {
            let batch_bytes = LOG_OVERHEAD as i64 + i64::from(be_i32(head, 8));
            if batch_bytes != self.batch_bytes.load(Ordering::Relaxed) {
                self.batch_bytes.store(batch_bytes, Ordering::Relaxed);
            }
        }
    }
}

impl<'py> Read<'py> {
    /// The answer alone.
    fn cut(self, py: Python<'py>) -> Self {
        let Answer { start, end, .. } = self.answer;
        let bytes = PyBytes::new(py, &self.bytes.as_bytes()[start..end]);
        let answer = Answer { start: 0, end: end - start, ..self.answer };
        Self { bytes, position: self.position + start as i64, answer }
    }
}

/// New bytes, and the room in them.
type Room<'py, 'a> = (Bound<'py, PyBytes>, &'a mut [MaybeUninit<u8>]);

/// Bytes that nobody else has, and the room in them, which nobody has written to.
fn new_bytes<'py, 'a>(py: Python<'py>, size: usize) -> PyResult<Room<'py, 'a>> {
    // SAFETY: without a source the bytes are new; Python wants them written before anybody else
    // sees them, and the room is gone by then.
    unsafe {
        let bytes = ffi::PyBytes_FromStringAndSize(ptr::null(), size as ffi::Py_ssize_t);
        let bytes = Bound::from_owned_ptr_or_err(py, bytes)?.cast_into_unchecked::<PyBytes>();
        let start = ffi::PyBytes_AS_STRING(bytes.as_ptr()).cast_mut().cast();
        Ok((bytes, slice::from_raw_parts_mut(start, size)))
    }
}

/// What a file has from `position` on, if it fills the room.
fn fill<'a>(room: &'a mut [MaybeUninit<u8>], file: &File, position: u64) -> Option<&'a [u8]> {
    let mut filled = 0;
    while filled < room.len() {
        let rest = &mut room[filled..];
        let at = i64::try_from(position + filled as u64).ok()?;
        // SAFETY: the system writes to `rest` alone.
        let count =
            unsafe { libc::pread64(file.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len(), at) };
        match usize::try_from(count) {
            Ok(0) => return None,
            Ok(count) => filled += count,
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    // SAFETY: all of it was written.
    Some(unsafe { slice::from_raw_parts(room.as_ptr().cast(), filled) })
}

/// Where the batches of a read lie, for C: in the bytes that were read, and in the file.
#[repr(C)]
pub struct Place {
    start: usize,
    end: usize,
    position: i64,
    first_offset: i64,
    next_offset: i64,
    read_bytes: i64,
}

/// `SegmentIndex.read` for C: bytes, and in `place` where the batches are in them; None when there
/// is no such answer, null with an exception. `place.read_bytes` is what was asked of the file, in
/// every case.
///
/// # Safety
/// `index` and `file` are alive, `place` can be written, and the caller holds the interpreter lock.
pub unsafe extern "C" fn read(
    index: *mut ffi::PyObject,
    file: *mut ffi::PyObject,
    reach_bytes: i64,
    offset: i64,
    last_offset: i64,
    max_bytes: u64,
    minimum_one: c_int,
    place: *mut Place,
) -> *mut ffi::PyObject {
    // SAFETY: as the caller promises.
    let (py, index, file) = unsafe {
        let py = python();
        (py, Bound::from_borrowed_ptr(py, index), Bound::from_borrowed_ptr(py, file))
    };
    let (index, file) = match (index.cast_into::<SegmentIndex>(), file.cast_into::<ReadFile>()) {
        (Ok(index), Ok(file)) => (index, file),
        (Err(error), _) | (_, Err(error)) => {
            raise(py, error.into());
            return ptr::null_mut();
        }
    };
    let asked = Asked { offset, last_offset, max_bytes, minimum_one: minimum_one != 0 };
    let mut read_bytes = 0;
    let found = index.get().read_asked(py, &file.get().0, reach_bytes, &asked, &mut read_bytes);
    // SAFETY: as the caller promises.
    unsafe { (*place).read_bytes = read_bytes };
    match found {
        Ok(Some(Read { bytes, position, answer })) => {
            let Answer { start, end, first_offset, next_offset } = answer;
            let position = position + start as i64;
            // SAFETY: as the caller promises.
            unsafe {
                place.write(Place { start, end, position, first_offset, next_offset, read_bytes });
            }
            bytes.into_ptr()
        }
        Ok(None) => py.None().into_ptr(),
        Err(error) => {
            raise(py, error);
            ptr::null_mut()
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
