//! The remoteLogIndex: columns to bytes and back.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use tierlog_core::batch_runs::BatchRuns;
use tierlog_core::error::{Error, ErrorKind, Result};
use tierlog_core::remote_index::{self, Entry, NewEntries, decode, encode_into, encoded_size};

use crate::buffer::{Column, Input, Values};
use crate::error::to_python;

/// A copy of a column, so that nobody changes it while the interpreter lock is released.
pub fn column<T: Element>(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<T>> {
    let view = PyBuffer::<T>::get(object)
        .map_err(|error| PyTypeError::new_err(format!("{name}: {error}")))?;
    if view.dimensions() != 1 {
        return Err(PyValueError::new_err(format!("{name}: expected one dimension")));
    }
    view.to_vec(object.py())
}

/// The parts of a buffer that each row points at.
fn parts<'a>(data: &'a [u8], start: &[i64], length: &[i64]) -> Result<Vec<&'a [u8]>> {
    let refuse = |row: usize, expected: String, found: String| {
        Error::new(ErrorKind::InvalidArgument, row as u64, expected, found)
    };
    if start.len() != length.len() {
        let expected = format!("{} rdi lengths, one per start", start.len());
        return Err(refuse(0, expected, length.len().to_string()));
    }
    let mut rdis = Vec::with_capacity(start.len());
    for (row, (&start, &length)) in start.iter().zip(length).enumerate() {
        let part = usize::try_from(start).ok().and_then(|start| data.get(start..));
        match part.zip(usize::try_from(length).ok()).and_then(|(part, length)| part.get(..length)) {
            Some(rdi) => rdis.push(rdi),
            None => {
                let expected = format!("an rdi within {} bytes", data.len());
                return Err(refuse(row, expected, format!("{length} bytes at {start}")));
            }
        }
    }
    Ok(rdis)
}

/// The items of a list or tuple as a tuple, which nobody can change.
fn frozen<'py>(rdi: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    if let Ok(list) = rdi.cast::<PyList>() {
        return Ok(list.to_tuple());
    }
    rdi.cast::<PyTuple>().cloned().map_err(|_| {
        PyTypeError::new_err(
            "rdi: expected a list or tuple of bytes, or a buffer with start and length",
        )
    })
}

fn bytes_of<'a>(items: &'a Bound<'_, PyTuple>) -> PyResult<Vec<&'a [u8]>> {
    let mut rdis = Vec::with_capacity(items.len());
    for (row, item) in items.as_slice().iter().enumerate() {
        match item.cast::<PyBytes>() {
            Ok(bytes) => rdis.push(bytes.as_bytes()),
            Err(_) => {
                let found = item.get_type().name()?;
                return Err(PyTypeError::new_err(format!(
                    "rdi: row {row}: expected bytes, found {found}"
                )));
            }
        }
    }
    Ok(rdis)
}

/// The five number columns of new entries.
struct Numbers([Vec<i64>; 5]);

impl Numbers {
    fn entries(&self) -> NewEntries<'_> {
        let [first_offset, last_offset, first_timestamp_ms, last_timestamp_ms, data_length] =
            &self.0;
        NewEntries { first_offset, last_offset, first_timestamp_ms, last_timestamp_ms, data_length }
    }

    fn encode<'py>(&self, py: Python<'py>, rdis: &[&[u8]]) -> PyResult<Bound<'py, PyBytes>> {
        let entries = self.entries();
        let size = py.detach(|| encoded_size(&entries, rdis));
        let size = size.map_err(|error| to_python(py, error, None))?;
        PyBytes::new_with(py, size, |out| {
            py.detach(|| encode_into(&entries, rdis, out))
                .map_err(|error| to_python(py, error, None))
        })
    }
}

/// Encodes columns of i64. `rdi` is a list or tuple of bytes; or, with `rdi_start` and
/// `rdi_length` (i64), the buffer that they point into.
#[pyfunction]
#[pyo3(signature = (
    first_offset, last_offset, first_timestamp_ms, last_timestamp_ms, data_length, rdi,
    rdi_start = None, rdi_length = None,
))]
#[expect(clippy::too_many_arguments, reason = "the columns of the format")]
fn encode_remote_log_index<'py>(
    py: Python<'py>,
    first_offset: &Bound<'py, PyAny>,
    last_offset: &Bound<'py, PyAny>,
    first_timestamp_ms: &Bound<'py, PyAny>,
    last_timestamp_ms: &Bound<'py, PyAny>,
    data_length: &Bound<'py, PyAny>,
    rdi: &Bound<'py, PyAny>,
    rdi_start: Option<&Bound<'py, PyAny>>,
    rdi_length: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let numbers = Numbers([
        column(first_offset, "first_offset")?,
        column(last_offset, "last_offset")?,
        column(first_timestamp_ms, "first_timestamp_ms")?,
        column(last_timestamp_ms, "last_timestamp_ms")?,
        column(data_length, "data_length")?,
    ]);
    match (rdi_start, rdi_length) {
        (Some(start), Some(length)) => {
            let data = Input::new(rdi)?;
            let (start, length) = (column(start, "rdi_start")?, column(length, "rdi_length")?);
            let rdis = py.detach(|| parts(data.bytes(), &start, &length));
            numbers.encode(py, &rdis.map_err(|error| to_python(py, error, None))?)
        }
        (None, None) => {
            let items = frozen(rdi)?;
            numbers.encode(py, &bytes_of(&items)?)
        }
        _ => Err(PyTypeError::new_err("rdi_start and rdi_length belong together")),
    }
}

/// The remoteLogIndex of a segment from its batch columns, one entry per run of at least
/// `group_bytes`, with the rdi `<key>:<byte position>`.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the columns of a scan")]
fn encode_batch_runs<'py>(
    py: Python<'py>,
    position: &Bound<'py, PyAny>,
    size_bytes: &Bound<'py, PyAny>,
    base_offset: &Bound<'py, PyAny>,
    last_offset: &Bound<'py, PyAny>,
    base_timestamp_ms: &Bound<'py, PyAny>,
    max_timestamp_ms: &Bound<'py, PyAny>,
    key: &str,
    group_bytes: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let size_bytes: Vec<i32> = column(size_bytes, "size_bytes")?;
    let longs: [Vec<i64>; 5] = [
        column(position, "position")?,
        column(base_offset, "base_offset")?,
        column(last_offset, "last_offset")?,
        column(base_timestamp_ms, "base_timestamp_ms")?,
        column(max_timestamp_ms, "max_timestamp_ms")?,
    ];
    let [position, base_offset, last_offset, base_timestamp_ms, max_timestamp_ms] = &longs;
    let runs = BatchRuns {
        position,
        size_bytes: &size_bytes,
        base_offset,
        last_offset,
        base_timestamp_ms,
        max_timestamp_ms,
    };
    match py.detach(|| runs.encode(key, group_bytes)) {
        Ok(data) => Ok(PyBytes::new(py, &data)),
        Err(error) => Err(to_python(py, error, None)),
    }
}

/// A verified remoteLogIndex as columns.
#[pyclass(frozen, module = "tierlog._core")]
pub struct RemoteLogIndex {
    columns: Vec<(&'static str, Py<Column>)>,
    rows: usize,
    /// Bytes of all entries.
    #[pyo3(get)]
    valid_length: usize,
    /// A trailer follows them.
    #[pyo3(get)]
    has_trailer: bool,
    /// Why the bytes after them were left out: (reason, expected, found) of a torn append.
    #[pyo3(get)]
    torn: Option<(&'static str, String, String)>,
}

#[pymethods]
impl RemoteLogIndex {
    fn __len__(&self) -> usize {
        self.rows
    }

    /// The columns by name: i64, `data_length` i32.
    fn columns(&self, py: Python<'_>) -> Vec<(&'static str, Py<Column>)> {
        self.columns.iter().map(|(name, column)| (*name, column.clone_ref(py))).collect()
    }

    /// The row of the first entry whose last offset reaches `target_offset`; -1 past the end.
    fn lookup_offset(&self, target_offset: i64) -> i64 {
        let row = remote_index::lookup_offset(self.values("last_offset"), target_offset);
        row.map_or(-1, |row| row as i64)
    }

    /// The row of the first entry whose last timestamp reaches `target_ms`; -1 when none does.
    fn lookup_timestamp(&self, target_ms: i64) -> i64 {
        let row = remote_index::lookup_timestamp(self.values("last_timestamp_ms"), target_ms);
        row.map_or(-1, |row| row as i64)
    }
}

impl RemoteLogIndex {
    fn values(&self, name: &str) -> &[i64] {
        let column = self.columns.iter().find(|(column, _)| *column == name);
        column.map_or(&[], |(_, column)| column.get().i64_values())
    }
}

/// Reads and verifies a whole remoteLogIndex. With `recover`, a torn append at its end is
/// reported instead of refused.
#[pyfunction]
#[pyo3(signature = (data, recover = false))]
fn decode_remote_log_index(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    recover: bool,
) -> PyResult<RemoteLogIndex> {
    let input = Input::new(data)?;
    let found =
        py.detach(|| decode(input.bytes(), recover)).map_err(|error| to_python(py, error, None))?;
    let rows = found.len();
    let values = [
        ("position", Values::I64(found.position)),
        ("first_offset", Values::I64(found.first_offset)),
        ("last_offset", Values::I64(found.last_offset)),
        ("first_timestamp_ms", Values::I64(found.first_timestamp_ms)),
        ("last_timestamp_ms", Values::I64(found.last_timestamp_ms)),
        ("data_length", Values::I32(found.data_length)),
    ];
    let mut columns = Vec::with_capacity(values.len());
    for (name, values) in values {
        columns.push((name, Py::new(py, Column::new(values))?));
    }
    Ok(RemoteLogIndex {
        columns,
        rows,
        valid_length: found.valid_length,
        has_trailer: found.has_trailer,
        torn: found.torn.map(|error| (error.kind.name(), error.expected, error.found)),
    })
}

/// What a verified entry says: position, first and last offset, first and last timestamp,
/// data length, rdi.
type EntryFields<'py> = (usize, i64, i64, i64, i64, i32, Bound<'py, PyBytes>);

fn fields<'py>(py: Python<'py>, entry: &Entry<'_>) -> EntryFields<'py> {
    (
        entry.position,
        entry.first_offset,
        entry.last_offset,
        entry.first_timestamp_ms,
        entry.last_timestamp_ms,
        entry.data_length,
        PyBytes::new(py, entry.rdi),
    )
}

/// The entry at `position`, verified.
#[pyfunction]
fn read_remote_entry<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    position: usize,
) -> PyResult<EntryFields<'py>> {
    let input = Input::new(data)?;
    let entry = Entry::read(input.bytes(), position).map_err(|error| to_python(py, error, None))?;
    Ok(fields(py, &entry))
}

/// The entry of `target_offset` in undecoded files, by way of the remoteOffsetIndex; None past
/// the end.
#[pyfunction]
fn find_remote_offset<'py>(
    py: Python<'py>,
    log_index: &Bound<'py, PyAny>,
    offset_index: &Bound<'py, PyAny>,
    base_offset: i64,
    target_offset: i64,
) -> PyResult<Option<EntryFields<'py>>> {
    let (log_index, offset_index) = (Input::new(log_index)?, Input::new(offset_index)?);
    let entry =
        remote_index::find(log_index.bytes(), offset_index.bytes(), base_offset, target_offset)
            .map_err(|error| to_python(py, error, None))?;
    Ok(entry.map(|entry| fields(py, &entry)))
}

/// Puts what Python calls into the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RemoteLogIndex>()?;
    module.add_function(wrap_pyfunction!(encode_remote_log_index, module)?)?;
    module.add_function(wrap_pyfunction!(encode_batch_runs, module)?)?;
    module.add_function(wrap_pyfunction!(decode_remote_log_index, module)?)?;
    module.add_function(wrap_pyfunction!(read_remote_entry, module)?)?;
    module.add_function(wrap_pyfunction!(find_remote_offset, module)?)
}
