//! `decode_records`, which returns records as columns, and the conversion of views to `bytes`.

use pyo3::exceptions::{PyIndexError, PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PySlice};
use tierlog_core::error::{Error, ErrorKind, Result};
use tierlog_core::memory::hints::prefer_large_pages;
use tierlog_core::memory::vector_pool::VectorPool;
use tierlog_core::records::binary::{binary_data, binary_offsets};
use tierlog_core::records::columns::{self as record_columns, BinaryParts, with_view};
use tierlog_core::records::text::Strings;
use tierlog_core::records::{self, DecodeOptions, MAX_BUFFER_BYTES};
use tierlog_core::segment::Scan;
use tierlog_core::source::{LEAD_BYTES, SegmentFile, lead};

use crate::buffer::{Column, Input, Values};
use crate::memory;
use crate::segment::{Batches, Source};

/// A column of byte strings in Arrow's binary view layout.
#[pyclass(frozen, module = "tierlog._core")]
pub struct Views {
    views: Py<Column>,
    validity: Option<Py<Column>>,
    null_count: usize,
    rows: usize,
}

#[pymethods]
impl Views {
    fn __len__(&self) -> usize {
        self.rows
    }

    /// Returns the views, 16 bytes per row.
    #[getter]
    fn views(&self, py: Python<'_>) -> Py<Column> {
        self.views.clone_ref(py)
    }

    /// Returns the bitmap, which has one bit per row, lowest bit first. Returns None if no row is
    /// null.
    #[getter]
    fn validity(&self, py: Python<'_>) -> Option<Py<Column>> {
        self.validity.as_ref().map(|column| column.clone_ref(py))
    }

    /// Returns the number of nulls.
    #[getter]
    fn null_count(&self) -> usize {
        self.null_count
    }

    /// Returns rows `start` to `end` as a list of bytes or None.
    fn to_list<'py>(
        &self,
        py: Python<'py>,
        buffers: &Bound<'py, PyList>,
        start: usize,
        end: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let views = self.views.get().views().get(start..end).ok_or_else(|| outside(end))?;
        let validity = self.validity.as_ref().map(|column| column.get().bytes());
        let inputs: Vec<Input> =
            buffers.iter().map(|buffer| Input::shared(&buffer)).collect::<PyResult<_>>()?;
        let slices: Vec<&[u8]> = inputs.iter().map(Input::bytes).collect();
        let mut items = Vec::with_capacity(views.len());
        for (row, &view) in (start..end).zip(views) {
            items.push(match is_null(validity, row) {
                true => None,
                false => Some(
                    with_view(view, &slices, |bytes| PyBytes::new(py, bytes))
                        .ok_or_else(beyond_its_buffer)?,
                ),
            });
        }
        PyList::new(py, items)
    }

    /// Returns rows `start` to `end` as offsets and consecutive bytes; a null has no bytes.
    fn to_binary(
        &self,
        py: Python<'_>,
        buffers: &Bound<'_, PyList>,
        start: usize,
        end: usize,
    ) -> PyResult<(Column, Column)> {
        let views = self.views.get().views().get(start..end).ok_or_else(|| outside(end))?;
        let inputs: Vec<Input> =
            buffers.iter().map(|buffer| Input::shared(&buffer)).collect::<PyResult<_>>()?;
        let slices: Vec<&[u8]> = inputs.iter().map(Input::bytes).collect();
        let offsets = binary_offsets(views).ok_or_else(|| {
            PyOverflowError::new_err("expected at most 2^31 - 1 bytes in one column, found more")
        })?;
        let size = offsets.last().map_or(0, |&end| end as usize);
        let data = py.detach(|| {
            let mut pool = memory::take_columns();
            let data = binary_data(views, &slices, size, &mut pool);
            memory::give_columns(pool);
            data
        });
        let data = data.ok_or_else(beyond_its_buffer)?;
        Ok((Column::i32(offsets), Column::new(Values::U8(data))))
    }

    /// Returns row `row` as bytes or None.
    fn item<'py>(
        &self,
        py: Python<'py>,
        buffers: &Bound<'py, PyList>,
        row: usize,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let view = *self.views.get().views().get(row).ok_or_else(|| outside(row))?;
        if is_null(self.validity.as_ref().map(|column| column.get().bytes()), row) {
            return Ok(None);
        }
        let bytes = match record_columns::buffer_of(view) {
            None => with_view(view, &[], |bytes| PyBytes::new(py, bytes)),
            Some(index) => {
                let input = Input::shared(&buffers.get_item(index)?)?;
                let mut slices = vec![&[][..]; index];
                slices.push(input.bytes());
                with_view(view, &slices, |bytes| PyBytes::new(py, bytes))
            }
        };
        bytes.map(Some).ok_or_else(beyond_its_buffer)
    }
}

fn is_null(validity: Option<&[u8]>, row: usize) -> bool {
    validity.is_some_and(|bits| bits.get(row / 8).is_none_or(|byte| byte >> (row % 8) & 1 == 0))
}

fn outside(row: usize) -> PyErr {
    PyIndexError::new_err(format!("row {row} is beyond the end of the column"))
}

fn beyond_its_buffer() -> PyErr {
    PyValueError::new_err("a view points outside its data buffer, because the buffers were changed")
}

impl Views {
    /// Returns the views and the bitmap.
    pub fn strings(&self) -> Strings<'_> {
        Strings {
            views: self.views.get().views(),
            validity: self.validity.as_ref().map(|column| column.get().bytes()),
        }
    }

    fn new(py: Python<'_>, parts: BinaryParts) -> PyResult<Self> {
        let column = |values| Py::new(py, Column::new(values));
        Ok(Self {
            rows: parts.views.len(),
            null_count: parts.null_count,
            views: column(Values::View(parts.views))?,
            validity: parts.validity.map(|bits| column(Values::U8(bits))).transpose()?,
        })
    }
}

/// The columns of a decode.
#[pyclass(frozen, get_all, module = "tierlog._core")]
pub struct Records {
    offset: Py<Column>,
    timestamp_ms: Py<Column>,
    keys: Py<Views>,
    values: Py<Views>,
    /// None when no record has headers.
    header_list_offsets: Option<Py<Column>>,
    header_keys: Py<Views>,
    header_values: Py<Views>,
    batches: Py<Batches>,
    batch_starts: Py<Column>,
    /// Data buffers of the views. The first is the range of the source; the others hold
    /// decompressed batches.
    data_buffers: Py<PyList>,
}

impl Records {
    fn new(
        py: Python<'_>,
        decoded: record_columns::Records,
        source: Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let column = |values| Py::new(py, Column::new(values));
        let views = |parts| Py::new(py, Views::new(py, parts)?);
        let buffers = PyList::new(py, [source])?;
        for opened in decoded.opened {
            buffers.append(column(Values::U8(opened))?)?;
        }
        let scan = Scan { stop: decoded.stop, range_crc32c: None };
        let list_offsets = decoded.headers.list_offsets;
        Ok(Self {
            offset: column(Values::I64(decoded.offset))?,
            timestamp_ms: column(Values::I64(decoded.timestamp_ms))?,
            keys: views(decoded.keys)?,
            values: views(decoded.values)?,
            header_list_offsets: list_offsets.map(|ends| column(Values::I32(ends))).transpose()?,
            header_keys: views(decoded.headers.keys)?,
            header_values: views(decoded.headers.values)?,
            batches: Py::new(py, Batches::new(py, decoded.batches, scan)?)?,
            batch_starts: column(Values::I64(decoded.batch_starts))?,
            data_buffers: buffers.unbind(),
        })
    }
}

/// The range to decode.
enum Range<'a> {
    /// The bytes from `start` to `end` of a buffer that Python keeps alive.
    Held { bytes: &'a [u8], start: usize, end: usize },
    /// A private copy that starts at byte `start` of the source; the first `lead` bytes are unused.
    Owned { bytes: Vec<u8>, lead: usize, start: u64 },
}

impl<'a> Range<'a> {
    fn load(
        source: &'a Source,
        start: u64,
        end: Option<u64>,
        pool: &mut VectorPool,
    ) -> Result<Self> {
        let end = end.unwrap_or(u64::MAX);
        match source {
            Source::Bytes(input) => {
                let bytes = input.bytes();
                let end = end.min(bytes.len() as u64);
                let (start, end) = (start.min(end) as usize, end as usize);
                match input {
                    Input::View(_) => Ok(Self::Held { bytes, start, end }),
                    Input::Copy(_) => {
                        let bytes = bytes[start..end].to_vec();
                        Ok(Self::Owned { bytes, lead: 0, start: start as u64 })
                    }
                }
            }
            Source::File(file) => Self::read(file, start, end, pool),
            Source::Path { path, .. } => Self::read(&SegmentFile::open(path)?, start, end, pool),
        }
    }

    fn read(file: &SegmentFile, start: u64, end: u64, pool: &mut VectorPool) -> Result<Self> {
        let end = end.min(file.size_bytes());
        let start = start.min(end);
        if end - start > MAX_BUFFER_BYTES as u64 {
            let expected = format!("a range of at most {MAX_BUFFER_BYTES} bytes");
            let found = (end - start).to_string();
            return Err(Error::new(ErrorKind::TooLarge, start, expected, found));
        }
        let size = (end - start) as usize;
        let room = size + LEAD_BYTES;
        let mut bytes = pool.take::<u8>(room).unwrap_or_else(|| {
            let fresh = vec![0; room];
            prefer_large_pages(&fresh);
            fresh
        });
        bytes.resize(room, 0);
        let lead = lead(&bytes, start);
        let filled = file.read_at(start, &mut bytes[lead..lead + size])?;
        bytes.truncate(lead + filled);
        Ok(Self::Owned { bytes, lead, start })
    }

    fn decode(
        &self,
        options: &DecodeOptions,
        pool: &mut VectorPool,
    ) -> Result<record_columns::Records> {
        let (bytes, start) = self.bytes();
        records::decode_records_into(bytes, start, options, pool)
    }

    fn check(&self, options: &DecodeOptions) -> Result<record_columns::Records> {
        let (bytes, start) = self.bytes();
        records::check_records(bytes, start, options)
    }

    /// Returns the bytes of the range and their position in the source.
    fn bytes(&self) -> (&[u8], u64) {
        match self {
            Self::Held { bytes, start, end } => (&bytes[*start..*end], *start as u64),
            Self::Owned { bytes, lead, start } => (&bytes[*lead..], *start),
        }
    }

    /// Returns data buffer 0 as a Python object.
    fn into_buffer<'py>(self, source: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            // An empty view can only be cast if its items are bytes.
            Self::Held { start, end, .. } if start == end => {
                Ok(PyBytes::new(source.py(), b"").into_any())
            }
            Self::Held { start, end, .. } => {
                let view = PyMemoryView::from(source)?.call_method1("cast", ("B",))?;
                view.get_item(PySlice::new(source.py(), start as isize, end as isize, 1))
            }
            Self::Owned { bytes, lead, .. } => {
                let end = bytes.len();
                let column = Bound::new(source.py(), Column::new(Values::U8(bytes)))?;
                let view = PyMemoryView::from(column.as_any())?;
                view.get_item(PySlice::new(source.py(), lead as isize, end as isize, 1))
            }
        }
    }
}

/// Decodes the batches of `source` from byte `start` to `end`, up to the memory budget.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keywords of the Python function")]
#[pyo3(signature = (source, start, end, verify_crc, include_control, max_decompressed_bytes, budget_bytes))]
pub fn decode_records(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    start: u64,
    end: Option<u64>,
    verify_crc: bool,
    include_control: bool,
    max_decompressed_bytes: usize,
    budget_bytes: Option<usize>,
) -> PyResult<Records> {
    let opened = Source::new(source, false)?;
    let options = DecodeOptions {
        verify_crc,
        include_control,
        max_decompressed_bytes,
        budget_bytes: budget_bytes.unwrap_or(usize::MAX),
    };
    let decoded = py.detach(|| {
        let mut pool = memory::take_columns();
        let decoded = Range::load(&opened, start, end, &mut pool).and_then(|range| {
            let decoded = range.decode(&options, &mut pool)?;
            Ok((range, decoded))
        });
        memory::give_columns(pool);
        decoded
    });
    match decoded {
        Ok((range, decoded)) => Records::new(py, decoded, range.into_buffer(source)?),
        Err(error) => Err(opened.error(py, error)),
    }
}

/// Checks the batches of `source` from byte `start` to `end` and all of their records.
#[pyfunction]
pub fn check_records(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    start: u64,
    end: Option<u64>,
    verify_crc: bool,
    max_decompressed_bytes: usize,
) -> PyResult<Batches> {
    let opened = Source::new(source, false)?;
    let options = DecodeOptions { verify_crc, max_decompressed_bytes, ..DecodeOptions::default() };
    let checked = py.detach(|| {
        let mut pool = memory::take_columns();
        let range = Range::load(&opened, start, end, &mut pool);
        memory::give_columns(pool);
        range.and_then(|range| {
            let checked = range.check(&options);
            if let Range::Owned { bytes, .. } = range {
                Values::U8(bytes).release();
            }
            checked
        })
    });
    match checked {
        Ok(checked) => {
            Batches::new(py, checked.batches, Scan { stop: checked.stop, range_crc32c: None })
        }
        Err(error) => Err(opened.error(py, error)),
    }
}
