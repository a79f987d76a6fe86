//! `row_columns`: the columns of table rows in addition to the records.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tierlog_core::records::row_columns::{BatchFields, RowColumns};

use crate::buffer::{Column, Longs, Values};
use crate::segment::Batches;

/// Times in microseconds, timestamp types, leader epochs, producer ids and epochs, base sequences.
pub type Columns = (Column, Column, Column, Column, Column, Column);

/// Returns six columns with one row for each value of `timestamp_ms`. Rows `starts[i]` to `starts[i
/// + 1]` belong to batch i. Raises ValueError if a row belongs to no batch.
#[pyfunction]
pub fn row_columns(
    py: Python<'_>,
    batches: &Batches,
    starts: &Bound<'_, PyAny>,
    timestamp_ms: &Bound<'_, PyAny>,
) -> PyResult<Columns> {
    let starts = Longs::new(starts, "starts")?.to_vec(py);
    let timestamp_ms = Longs::new(timestamp_ms, "timestamp_ms")?.to_vec(py);
    let found = fields(batches)
        .and_then(|fields| RowColumns::of(fields, &starts, &timestamp_ms))
        .ok_or_else(|| {
        PyValueError::new_err(format!(
            "expected starts of {} batches that give each of {} rows a batch, found {} starts",
            batches.rows(),
            timestamp_ms.len(),
            starts.len()
        ))
    })?;
    Ok(columns(found))
}

/// Returns the columns in the order of `Columns`.
pub fn columns(rows: RowColumns) -> Columns {
    (
        Column::i64(rows.timestamp_us),
        Column::i32(rows.timestamp_type),
        Column::i32(rows.leader_epoch),
        Column::i64(rows.producer_id),
        Column::new(Values::I16(rows.producer_epoch)),
        Column::i32(rows.base_sequence),
    )
}

/// Returns the timestamp type of each batch: -1 none, 0 create time, 1 log append time.
pub fn timestamp_types(batches: &Batches) -> Option<Vec<i32>> {
    fields(batches).map(|fields| fields.timestamp_types())
}

fn fields(batches: &Batches) -> Option<BatchFields<'_>> {
    let long = |name| match batches.values(name)? {
        Values::I64(column) => Some(column.as_slice()),
        _ => None,
    };
    let int = |name| match batches.values(name)? {
        Values::I32(column) => Some(column.as_slice()),
        _ => None,
    };
    let short = |name| match batches.values(name)? {
        Values::I16(column) => Some(column.as_slice()),
        _ => None,
    };
    let magic = match batches.values("magic")? {
        Values::I8(column) => column.as_slice(),
        _ => return None,
    };
    Some(BatchFields {
        magic,
        attributes: short("attributes")?,
        leader_epoch: int("leader_epoch")?,
        producer_id: long("producer_id")?,
        producer_epoch: short("producer_epoch")?,
        base_sequence: int("base_sequence")?,
    })
}
