//! Kafka's index files: conversion of bytes to columns, look-ups, and the rebuild from a segment.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tierlog_core::batch::columns::BatchColumns;
use tierlog_core::error::{Error, Result};
use tierlog_core::index::local::{
    self as local_index, AbortedTransaction, OffsetIndexWriter, Tail, TimeIndexWriter,
};
use tierlog_core::index::producer_state::{Expiry, ProducerEntry, ProducerState, parse_snapshot};
use tierlog_core::segment::rebuild::{self, RebuildVisitor, Rebuilder};
use tierlog_core::segment::{Scan, ScanOptions};
use tierlog_core::source::CopyTarget;

use crate::buffer::{Column, Input, Values, duplicate};
use crate::error::to_python;
use crate::remote_index::column;
use crate::segment::{Batches, Source};

/// Columns by name.
type Named = Vec<(&'static str, Py<Column>)>;
/// Producer id, first offset, last offset and last stable offset.
type AbortedFields = (i64, i64, i64, i64);
/// Two columns and the size of their entries.
type Pair = (Py<Column>, Py<Column>, usize);

fn named<const N: usize>(py: Python<'_>, values: [(&'static str, Values); N]) -> PyResult<Named> {
    let mut columns = Vec::with_capacity(N);
    for (name, values) in values {
        columns.push((name, Py::new(py, Column::new(values))?));
    }
    Ok(columns)
}

fn tail_of(name: &str) -> PyResult<Tail> {
    Ok(match name {
        "empty" => Tail::Empty,
        "zeros" => Tail::Zeros,
        "anything" => Tail::Anything,
        _ => {
            let expected = "expected tail 'empty', 'zeros' or 'anything'";
            return Err(PyValueError::new_err(format!("{expected}, found '{name}'")));
        }
    })
}

type Parser = fn(&[u8], i64, Tail) -> Result<local_index::IndexEntries>;

fn parse(
    py: Python<'_>,
    parser: Parser,
    data: &Bound<'_, PyAny>,
    base_offset: i64,
    tail: &str,
) -> PyResult<Pair> {
    let (input, tail) = (Input::new(data)?, tail_of(tail)?);
    let found = py
        .detach(|| parser(input.bytes(), base_offset, tail))
        .map_err(|error| to_python(py, error, None))?;
    let (key, value) = (Column::i64(found.key), Column::i64(found.value));
    Ok((Py::new(py, key)?, Py::new(py, value)?, found.valid_length))
}

/// Parses a `.index` and returns (offset, position, bytes used). `tail` says which bytes may follow
/// the entries.
#[pyfunction]
#[pyo3(signature = (data, base_offset, tail = "zeros"))]
fn parse_offset_index(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    base_offset: i64,
    tail: &str,
) -> PyResult<Pair> {
    parse(py, local_index::parse_offset_index, data, base_offset, tail)
}

/// Parses a `.timeindex` and returns (timestamp, offset, bytes used).
#[pyfunction]
#[pyo3(signature = (data, base_offset, tail = "zeros"))]
fn parse_time_index(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    base_offset: i64,
    tail: &str,
) -> PyResult<Pair> {
    parse(py, local_index::parse_time_index, data, base_offset, tail)
}

fn aborted(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    base_offset: i64,
) -> PyResult<Vec<AbortedTransaction>> {
    let input = Input::new(data)?;
    py.detach(|| local_index::parse_transaction_index(input.bytes(), base_offset))
        .map_err(|error| to_python(py, error, None))
}

/// Parses a `.txnindex` into columns.
#[pyfunction]
fn parse_transaction_index(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    base_offset: i64,
) -> PyResult<Named> {
    let found = aborted(py, data, base_offset)?;
    let column =
        |field: fn(&AbortedTransaction) -> i64| Values::I64(found.iter().map(field).collect());
    named(
        py,
        [
            ("producer_id", column(|entry| entry.producer_id)),
            ("first_offset", column(|entry| entry.first_offset)),
            ("last_offset", column(|entry| entry.last_offset)),
            ("last_stable_offset", column(|entry| entry.last_stable_offset)),
        ],
    )
}

/// Returns the aborted transactions of the range [from, upper bound) as (producer id, first offset,
/// last offset, last stable offset), and whether the list is complete.
#[pyfunction]
fn collect_aborted(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    base_offset: i64,
    from_offset: i64,
    upper_bound_offset: i64,
) -> PyResult<(Vec<AbortedFields>, bool)> {
    let entries = aborted(py, data, base_offset)?;
    let (found, complete) = local_index::collect_aborted(&entries, from_offset, upper_bound_offset);
    let fields = |entry: AbortedTransaction| {
        (entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
    };
    Ok((found.into_iter().map(fields).collect(), complete))
}

/// Parses a producer `.snapshot` into columns, in which -1 means unknown.
#[pyfunction]
fn parse_producer_snapshot(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Named> {
    let input = Input::new(data)?;
    let found =
        py.detach(|| parse_snapshot(input.bytes())).map_err(|error| to_python(py, error, None))?;
    let long = |field: fn(&ProducerEntry) -> i64| Values::I64(found.iter().map(field).collect());
    let int = |field: fn(&ProducerEntry) -> i32| Values::I32(found.iter().map(field).collect());
    named(
        py,
        [
            ("producer_id", long(|entry| entry.producer_id)),
            (
                "producer_epoch",
                Values::I16(found.iter().map(|entry| entry.producer_epoch).collect()),
            ),
            ("last_sequence", int(|entry| entry.last_batch.map_or(-1, |last| last.last_sequence))),
            ("last_offset", long(|entry| entry.last_batch.map_or(-1, |last| last.last_offset))),
            ("offset_delta", int(|entry| entry.last_batch.map_or(0, |last| last.offset_delta))),
            ("timestamp_ms", long(|entry| entry.timestamp_ms)),
            ("coordinator_epoch", int(|entry| entry.coordinator_epoch)),
            (
                "current_txn_first_offset",
                long(|entry| entry.current_txn_first_offset.unwrap_or(-1)),
            ),
        ],
    )
}

/// Returns the last entry at or below an offset as (offset, position), or (base, 0) if there is no
/// such entry.
#[pyfunction]
fn lookup_offset_index(
    data: &Bound<'_, PyAny>,
    base_offset: i64,
    target_offset: i64,
) -> PyResult<(i64, i32)> {
    let input = Input::new(data)?;
    Ok(local_index::lookup_offset(input.bytes(), base_offset, target_offset))
}

/// Returns the first entry at or past a position as (offset, position), or None if there is no such
/// entry.
#[pyfunction]
fn lookup_upper_bound(
    data: &Bound<'_, PyAny>,
    base_offset: i64,
    end_position: i64,
) -> PyResult<Option<(i64, i32)>> {
    let input = Input::new(data)?;
    Ok(local_index::lookup_upper_bound(input.bytes(), base_offset, end_position))
}

/// Returns the last entry at or below a timestamp as (timestamp, offset), or (-1, base) if there is
/// no such entry.
#[pyfunction]
fn lookup_time_index(
    data: &Bound<'_, PyAny>,
    base_offset: i64,
    target_ms: i64,
) -> PyResult<(i64, i64)> {
    let input = Input::new(data)?;
    Ok(local_index::lookup_time(input.bytes(), base_offset, target_ms))
}

fn encoded<'py>(py: Python<'py>, bytes: Result<Vec<u8>>) -> PyResult<Bound<'py, PyBytes>> {
    bytes.map(|bytes| PyBytes::new(py, &bytes)).map_err(|error| to_python(py, error, None))
}

/// Encodes (offset, position) columns as a `.index` or remoteOffsetIndex.
#[pyfunction]
fn encode_offset_index<'py>(
    py: Python<'py>,
    offset: &Bound<'py, PyAny>,
    position: &Bound<'py, PyAny>,
    base_offset: i64,
) -> PyResult<Bound<'py, PyBytes>> {
    let (offset, position) = (column::<i64>(offset, "offset")?, column(position, "position")?);
    let entries = pairs(&offset, &position)?;
    let write = || {
        let mut writer = OffsetIndexWriter::new(base_offset);
        for (row, (offset, position)) in entries.enumerate() {
            writer.append(offset, u64::try_from(position).unwrap_or(u64::MAX), row as u64)?;
        }
        Ok(writer.into_bytes())
    };
    encoded(py, py.detach(write))
}

/// Encodes (timestamp, offset) columns as a `.timeindex` or remoteTimeIndex. Rows whose timestamp
/// does not exceed all earlier timestamps are left out.
#[pyfunction]
fn encode_time_index<'py>(
    py: Python<'py>,
    timestamp_ms: &Bound<'py, PyAny>,
    offset: &Bound<'py, PyAny>,
    base_offset: i64,
) -> PyResult<Bound<'py, PyBytes>> {
    let (timestamp_ms, offset) =
        (column::<i64>(timestamp_ms, "timestamp_ms")?, column(offset, "offset")?);
    let entries = pairs(&timestamp_ms, &offset)?;
    let write = || {
        let mut writer = TimeIndexWriter::new(base_offset);
        for (row, (timestamp_ms, offset)) in entries.enumerate() {
            writer.maybe_append(timestamp_ms, offset, row as u64)?;
        }
        Ok(writer.into_bytes())
    };
    encoded(py, py.detach(write))
}

fn pairs<'a>(
    first: &'a [i64],
    second: &'a [i64],
) -> PyResult<impl Iterator<Item = (i64, i64)> + Send + 'a> {
    if first.len() != second.len() {
        let found = format!("{} and {}", first.len(), second.len());
        return Err(PyValueError::new_err(format!(
            "expected columns of the same length, found {found}"
        )));
    }
    Ok(first.iter().copied().zip(second.iter().copied()))
}

/// Every index of a segment as bytes, and further results of the rebuild.
#[pyclass(frozen, get_all, module = "tierlog._core")]
pub struct Rebuilt {
    /// `.index`
    offset_index: Py<PyBytes>,
    /// The checksums of the batches that the offset index points at.
    batch_checksums: Py<PyBytes>,
    /// `.timeindex`
    time_index: Py<PyBytes>,
    /// `.txnindex`; empty if no transaction was aborted.
    transaction_index: Py<PyBytes>,
    /// `.snapshot` at the end offset.
    producer_snapshot: Py<PyBytes>,
    /// (epoch, start offset) of each batch at which the leader epoch rises.
    leader_epochs: Vec<(i32, i64)>,
    /// (leader epoch, bytes of its batches).
    bytes_per_epoch: Vec<(i32, u64)>,
    /// Offset after the last batch.
    end_offset: i64,
    /// First offset of the oldest open transaction, or the end offset if none is open.
    last_stable_offset: i64,
    /// First offset of the oldest open transaction, or None if none is open.
    first_open_transaction_offset: Option<i64>,
    /// Largest timestamp of any batch, or -1 if there is none.
    max_timestamp_ms: i64,
    /// Last offset of the first batch that has the largest timestamp.
    max_timestamp_offset: i64,
    /// Rows of the scan and the reason why it stopped.
    batches: Py<Batches>,
    /// True when the rows are complete. False when there were too many rows; then no rows are kept.
    batches_complete: bool,
}

/// Returns the producer state of a snapshot, or an empty state if there is no snapshot.
pub fn producers_before(
    py: Python<'_>,
    snapshot: Option<&Bound<'_, PyAny>>,
    expiry: Option<Expiry>,
) -> PyResult<ProducerState> {
    let Some(data) = snapshot else { return Ok(ProducerState::default()) };
    ProducerState::from_snapshot(Input::new(data)?.bytes(), expiry)
        .map_err(|error| to_python(py, error, Some("producer_snapshot")))
}

/// Rebuilds the indexes of a whole segment, starting from the producer state of
/// `producer_snapshot`. With `now_ms`, producers that wrote nothing for `producer_id_expiration_ms`
/// are left out. With `copy_to`, `source` must be an open file, and every byte read from it is also
/// written to the file `copy_to`.
#[pyfunction]
#[pyo3(signature = (
    source, index_interval_bytes, base_offset, producer_snapshot, now_ms,
    producer_id_expiration_ms, hash_bytes, own_file, max_table_rows, copy_to=None,
))]
#[expect(clippy::too_many_arguments, reason = "settings of a rebuild")]
fn rebuild_indexes(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    index_interval_bytes: u64,
    base_offset: Option<i64>,
    producer_snapshot: Option<&Bound<'_, PyAny>>,
    now_ms: Option<i64>,
    producer_id_expiration_ms: i64,
    hash_bytes: bool,
    own_file: bool,
    max_table_rows: Option<usize>,
    copy_to: Option<&Bound<'_, PyAny>>,
) -> PyResult<Rebuilt> {
    let source = Source::new(source, own_file)?;
    let mut target = match copy_to {
        Some(file) => Some(CopyTarget::new(duplicate(file.call_method0("fileno")?.extract()?)?)),
        None => None,
    };
    let expiry = now_ms.map(|now_ms| Expiry { now_ms, expiration_ms: producer_id_expiration_ms });
    let producers = producers_before(py, producer_snapshot, expiry)?;
    let options = ScanOptions { hash_bytes, ..ScanOptions::default() };
    let rebuilder = Rebuilder::new(base_offset, index_interval_bytes, producers);
    let mut visitor = RebuildVisitor::new(rebuilder, max_table_rows.unwrap_or(usize::MAX));
    let work = || {
        let scan = match &mut target {
            Some(target) => source.copy(&options, &mut visitor, target)?,
            None => source.scan(&options, &mut visitor)?,
        };
        let (rebuilt, _producers) = visitor.rebuilder.finish(expiry)?;
        Ok((scan, visitor.batches, visitor.batches_complete, rebuilt))
    };
    let (scan, batches, batches_complete, rebuilt) = match py.detach(work) {
        Ok(done) => done,
        Err(error) => return Err(failed_copy(py, error, &source, target.as_ref(), copy_to)),
    };
    Rebuilt::new(py, &rebuilt, batches, batches_complete, scan)
}

impl Rebuilt {
    /// Converts the results of a segment to Python.
    pub fn new(
        py: Python<'_>,
        rebuilt: &rebuild::Rebuilt,
        batches: BatchColumns,
        batches_complete: bool,
        scan: Scan,
    ) -> PyResult<Self> {
        let bytes = |data: &[u8]| PyBytes::new(py, data).unbind();
        Ok(Self {
            offset_index: bytes(&rebuilt.offset_index),
            batch_checksums: bytes(&rebuilt.batch_checksums),
            time_index: bytes(&rebuilt.time_index),
            transaction_index: bytes(&rebuilt.transaction_index),
            producer_snapshot: bytes(&rebuilt.producer_snapshot),
            leader_epochs: rebuilt.leader_epochs.clone(),
            bytes_per_epoch: rebuilt.bytes_per_epoch.clone(),
            end_offset: rebuilt.end_offset,
            last_stable_offset: rebuilt.last_stable_offset,
            first_open_transaction_offset: rebuilt.first_open_transaction_offset,
            max_timestamp_ms: rebuilt.max_timestamp_ms,
            max_timestamp_offset: rebuilt.max_timestamp_offset,
            batches: Py::new(py, Batches::new(py, batches, scan)?)?,
            batches_complete,
        })
    }
}

/// Returns the error with the name of the file that failed: the source, or the file that is
/// written.
fn failed_copy(
    py: Python<'_>,
    error: Error,
    source: &Source,
    target: Option<&CopyTarget>,
    copy_to: Option<&Bound<'_, PyAny>>,
) -> PyErr {
    match copy_to.filter(|_| target.is_some_and(CopyTarget::failed)) {
        None => source.error(py, error),
        Some(file) => match file.getattr("name").and_then(|name| name.extract::<String>()) {
            Ok(name) => to_python(py, error, Some(&name)),
            Err(failure) => failure,
        },
    }
}

/// Adds the functions and classes of this file to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Rebuilt>()?;
    module.add_function(wrap_pyfunction!(parse_offset_index, module)?)?;
    module.add_function(wrap_pyfunction!(parse_time_index, module)?)?;
    module.add_function(wrap_pyfunction!(parse_transaction_index, module)?)?;
    module.add_function(wrap_pyfunction!(parse_producer_snapshot, module)?)?;
    module.add_function(wrap_pyfunction!(collect_aborted, module)?)?;
    module.add_function(wrap_pyfunction!(lookup_offset_index, module)?)?;
    module.add_function(wrap_pyfunction!(lookup_upper_bound, module)?)?;
    module.add_function(wrap_pyfunction!(lookup_time_index, module)?)?;
    module.add_function(wrap_pyfunction!(encode_offset_index, module)?)?;
    module.add_function(wrap_pyfunction!(encode_time_index, module)?)?;
    module.add_function(wrap_pyfunction!(rebuild_indexes, module)?)
}
