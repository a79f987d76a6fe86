//! `read_rows`: decodes table rows directly from a segment file into Arrow buffers.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tierlog_core::records::binary::BinaryRows;
use tierlog_core::records::table_rows::{self, Wanted};

use crate::buffer::{Column, Values};
use crate::memory;
use crate::row_columns::columns;
use crate::segment::Source;

/// Table rows as columns.
#[pyclass(frozen, get_all, module = "tierlog._core")]
pub struct TableRows {
    /// Offset of each row, i64.
    offset: Py<Column>,
    /// The columns that `row_columns` returns.
    columns: Py<PyTuple>,
    /// Keys; None when they were not requested.
    keys: Option<Py<PyTuple>>,
    /// Values; None when they were not requested.
    values: Option<Py<PyTuple>>,
    /// Position of the first batch that was not read.
    stop_position: u64,
    /// Smallest offset that the batch at `stop_position` may have.
    next_offset: i64,
    /// True when the slow path has to continue at `stop_position`, or when the file ends there.
    is_last: bool,
}

/// Returns the rows of an open file from `position` on whose offsets are in the range `offsets`.
/// Stops at a batch that the fast path does not cover, or whose offsets are not in the range
/// `batch_offsets`.
#[pyfunction]
#[pyo3(signature = (source, position, size_bytes, rows, offsets, batch_offsets, keys, values))]
#[expect(clippy::too_many_arguments, reason = "by name in Python")]
pub fn read_rows(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    position: u64,
    size_bytes: usize,
    rows: usize,
    offsets: (i64, i64),
    batch_offsets: (i64, i64),
    keys: bool,
    values: bool,
) -> PyResult<TableRows> {
    let opened = Source::new(source, false)?;
    let Source::File(file) = &opened else {
        return Err(PyTypeError::new_err("expected an open file"));
    };
    let wanted = Wanted {
        position,
        size_bytes,
        rows,
        offsets: offsets.0..offsets.1,
        batch_offsets: batch_offsets.0..batch_offsets.1,
        keys,
        values,
    };
    let read = py.detach(|| {
        let mut pool = memory::take_columns();
        let read = table_rows::read_rows(file, &wanted, &mut pool);
        memory::give_columns(pool);
        read
    });
    let found = read.map_err(|error| opened.error(py, error))?;
    Ok(TableRows {
        offset: Py::new(py, Column::i64(found.offset))?,
        columns: columns(found.columns).into_pyobject(py)?.unbind(),
        keys: if keys { Some(binary(py, found.keys)?) } else { None },
        values: if values { Some(binary(py, found.values)?) } else { None },
        stop_position: found.stop_position,
        next_offset: found.next_offset,
        is_last: found.is_last,
    })
}

/// Returns offsets, bytes and validity. Validity is None if no row is null.
fn binary(py: Python<'_>, rows: BinaryRows) -> PyResult<Py<PyTuple>> {
    let bytes = |bytes| Column::new(Values::U8(bytes));
    let validity = (!rows.validity.is_empty()).then(|| bytes(rows.validity));
    Ok((Column::i32(rows.offsets), bytes(rows.data), validity).into_pyobject(py)?.unbind())
}
