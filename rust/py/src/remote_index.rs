//! Encodes a remoteLogIndex from columns, and decodes it to columns.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use tierlog_core::batch::runs::BatchRuns;
use tierlog_core::index::remote::{
    self as remote_index, Entry, FIXED_SIZE, NewEntry, decode, rdi_length, seal,
};

use crate::buffer::{Column, Input, Longs, Place, Values, new_bytes};
use crate::error::to_python;

/// Copies a column, so that no thread changes it while the interpreter lock is released.
pub fn column<T: Element>(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<T>> {
    let view = PyBuffer::<T>::get(object)
        .map_err(|error| PyTypeError::new_err(format!("{name}: {error}")))?;
    if view.dimensions() != 1 {
        return Err(PyValueError::new_err(format!("{name}: expected one dimension")));
    }
    view.to_vec(object.py())
}

/// The rdis, one per row.
enum Rdis<'a, 'py> {
    /// Python bytes.
    Objects(&'a [Bound<'py, PyAny>]),
    /// Parts of one buffer.
    Parts { py: Python<'py>, data: &'a [u8], start: &'a Longs, length: &'a Longs },
}

impl Rdis<'_, '_> {
    /// Calls `each` with the rdis in order and returns their number.
    fn for_each(&self, mut each: impl FnMut(usize, &[u8]) -> PyResult<()>) -> PyResult<usize> {
        let mut rows = 0;
        match self {
            Self::Objects(items) => {
                for item in *items {
                    let Ok(bytes) = item.cast::<PyBytes>() else {
                        let found = item.get_type().name()?;
                        let message = format!("rdi: row {rows}: expected bytes, found {found}");
                        return Err(PyTypeError::new_err(message));
                    };
                    each(rows, bytes.as_bytes())?;
                    rows += 1;
                }
            }
            Self::Parts { py, data, start, length } => {
                while let Some((start, length)) = start.get(*py, rows).zip(length.get(*py, rows)) {
                    each(rows, part(data, rows, start, length)?)?;
                    rows += 1;
                }
            }
        }
        Ok(rows)
    }
}

/// Returns the items of a list or tuple as a tuple, which no other thread can change.
fn frozen<'py>(rdi: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    if let Ok(list) = rdi.cast::<PyList>() {
        return Ok(list.to_tuple());
    }
    rdi.cast::<PyTuple>().cloned().map_err(|_| {
        let expected = "a list or tuple of bytes, or a buffer with start and length";
        PyTypeError::new_err(format!("rdi: expected {expected}"))
    })
}

fn part(data: &[u8], row: usize, start: i64, length: i64) -> PyResult<&[u8]> {
    let rest = usize::try_from(start).ok().and_then(|start| data.get(start..));
    let found = rest.zip(usize::try_from(length).ok()).and_then(|(rest, size)| rest.get(..size));
    found.ok_or_else(|| {
        let expected = format!("expected an rdi within {} bytes", data.len());
        PyValueError::new_err(format!("row {row}: {expected}, found {length} bytes at {start}"))
    })
}

/// The five number columns of new entries, in the order of the format.
struct Numbers([Longs; 5]);

impl Numbers {
    fn rows(&self) -> PyResult<usize> {
        let [first, rest @ ..] = &self.0;
        if let Some(other) = rest.iter().find(|column| column.len() != first.len()) {
            let expected = format!("expected {} rows in each column", first.len());
            return Err(PyValueError::new_err(format!("{expected}, found {}", other.len())));
        }
        Ok(first.len())
    }

    #[inline]
    fn entry<'r>(&self, py: Python<'_>, row: usize, rdi: &'r [u8]) -> Option<NewEntry<'r>> {
        let [first_offset, last_offset, first_ms, last_ms, data_length] = &self.0;
        Some(NewEntry {
            first_offset: first_offset.get(py, row)?,
            last_offset: last_offset.get(py, row)?,
            first_timestamp_ms: first_ms.get(py, row)?,
            last_timestamp_ms: last_ms.get(py, row)?,
            data_length: data_length.get(py, row)?,
            rdi,
        })
    }

    /// Encodes the entries. Each value is read once and copied from its column into its entry. The
    /// checksums are then computed without the interpreter lock.
    fn encode<'py>(&self, py: Python<'py>, rdis: &Rdis<'_, '_>) -> PyResult<Bound<'py, PyBytes>> {
        let rows = self.rows()?;
        let mut size = 0;
        let found = rdis.for_each(|row, rdi| {
            let length = rdi_length(row, rdi).map_err(|error| to_python(py, error, None))?;
            size += FIXED_SIZE + length as usize;
            Ok(())
        })?;
        if found != rows {
            let message = format!("expected {rows} rdis, one per row, found {found}");
            return Err(PyValueError::new_err(message));
        }
        let mut before = -1;
        let fill = |place: &mut Place| {
            rdis.for_each(|row, rdi| {
                let Some(entry) = self.entry(py, row, rdi) else {
                    return Err(PyValueError::new_err(format!(
                        "row {row}: expected a value in every column, found only an rdi"
                    )));
                };
                entry
                    .put_fixed(row, before, |bytes| place.push(bytes))
                    .map_err(|error| to_python(py, error, None))?;
                place.push(rdi);
                before = entry.last_offset;
                Ok(())
            })?;
            Ok(())
        };
        new_bytes(py, size, fill, seal)
    }
}

/// Encodes columns of i64. `rdi` is a list or tuple of bytes, or a buffer into which the i64
/// columns `rdi_start` and `rdi_length` point.
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
        Longs::new(first_offset, "first_offset")?,
        Longs::new(last_offset, "last_offset")?,
        Longs::new(first_timestamp_ms, "first_timestamp_ms")?,
        Longs::new(last_timestamp_ms, "last_timestamp_ms")?,
        Longs::new(data_length, "data_length")?,
    ]);
    match (rdi_start, rdi_length) {
        (Some(start), Some(length)) => {
            let data = Input::new(rdi)?;
            let (start, length) =
                (Longs::new(start, "rdi_start")?, Longs::new(length, "rdi_length")?);
            let (start, length) = (&start, &length);
            numbers.encode(py, &Rdis::Parts { py, data: data.bytes(), start, length })
        }
        (None, None) => numbers.encode(py, &Rdis::Objects(frozen(rdi)?.as_slice())),
        _ => Err(PyTypeError::new_err(
            "expected both rdi_start and rdi_length, found only one of them",
        )),
    }
}

/// Encodes the remoteLogIndex of a segment from its batch columns. It has one entry for each range
/// of at least `group_bytes`, with the rdi `<key>:<byte position>`.
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
    /// Size of all entries together.
    #[pyo3(get)]
    valid_length: usize,
    /// True when a trailer follows the entries.
    #[pyo3(get)]
    has_trailer: bool,
    /// (reason, expected, found) of a torn append after the entries, or None if there is none.
    #[pyo3(get)]
    torn: Option<(&'static str, String, String)>,
}

#[pymethods]
impl RemoteLogIndex {
    fn __len__(&self) -> usize {
        self.rows
    }

    /// Returns the columns by name. `data_length` is a column of i32; all others are columns of
    /// i64.
    fn columns(&self, py: Python<'_>) -> Vec<(&'static str, Py<Column>)> {
        self.columns.iter().map(|(name, column)| (*name, column.clone_ref(py))).collect()
    }

    /// Returns the row of the first entry whose last offset is at least `target_offset`, or -1 if
    /// there is no such entry.
    fn lookup_offset(&self, target_offset: i64) -> i64 {
        let row = remote_index::lookup_offset(self.values("last_offset"), target_offset);
        row.map_or(-1, |row| row as i64)
    }

    /// Returns the row of the first entry whose last timestamp is at least `target_ms`, or -1 if
    /// there is no such entry.
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

/// Reads and verifies a whole remoteLogIndex. A torn append at the end is an error. With `recover`,
/// the result reports the torn append instead.
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

/// Fields of a verified entry: position, first and last offset, first and last timestamp, data
/// length, rdi.
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

/// Returns the verified entry at `position`.
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

/// Adds the functions and classes of this file to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RemoteLogIndex>()?;
    module.add_function(wrap_pyfunction!(encode_remote_log_index, module)?)?;
    module.add_function(wrap_pyfunction!(encode_batch_runs, module)?)?;
    module.add_function(wrap_pyfunction!(decode_remote_log_index, module)?)?;
    module.add_function(wrap_pyfunction!(read_remote_entry, module)?)
}
