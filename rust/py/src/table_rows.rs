//! `read_rows`: rows of a table straight out of a segment file, in the buffers that Arrow wants.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tierlog_core::records::binary::BinaryRows;
use tierlog_core::records::table_rows::{self, Wanted};

use crate::buffer::{Column, Values};
use crate::memory;
use crate::row_columns::columns;
use crate::segment::Source;

/// Rows in columns.
#[pyclass(frozen, get_all, module = "tierlog._core")]
pub struct TableRows {
    /// i64.
    offset: Py<Column>,
    /// As `row_columns` has them.
    columns: Py<PyTuple>,
    /// None when nobody wanted them.
    keys: Option<Py<PyTuple>>,
    /// None when nobody wanted them.
    values: Option<Py<PyTuple>>,
    /// Where the first batch begins that was not read.
    stop_position: u64,
    /// The lowest offset that it may have.
    next_offset: i64,
    /// It is not the usual, or the file ends there.
    is_last: bool,
}

/// Rows of the usual batches of an open file from `position` on: those with offsets from
/// `start_offset` to, not including, `end_offset`. A batch whose offsets are not between
/// `next_offset` and `limit` is not the usual.
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
        let mut spare = memory::take_columns();
        let read = table_rows::read_rows(file, &wanted, &mut spare);
        memory::give_columns(spare);
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

/// Offsets, bytes and, when something is null, validity.
fn binary(py: Python<'_>, rows: BinaryRows) -> PyResult<Py<PyTuple>> {
    let bytes = |bytes| Column::new(Values::U8(bytes));
    let validity = (!rows.validity.is_empty()).then(|| bytes(rows.validity));
    Ok((Column::i32(rows.offsets), bytes(rows.data), validity).into_pyobject(py)?.unbind())
}
