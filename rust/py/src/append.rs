//! Functions for appends to a log: they write the values that a broker assigns into batches, and
//! build the indexes of the segment that receives the batches.

use std::mem;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tierlog_core::batch::columns::BatchColumns;
use tierlog_core::error::Result;
use tierlog_core::index::producer_state::Expiry;
use tierlog_core::records::DecodeOptions;
use tierlog_core::records::appended::{self, NewBatch};
use tierlog_core::segment::ScanOptions;
use tierlog_core::segment::append::{Assigned, assign};
use tierlog_core::segment::rebuild::{Appended, RebuildVisitor, Rebuilder};

use crate::buffer::{Input, new_bytes};
use crate::error::to_python;
use crate::index::producers_before;
use crate::segment::{Batches, Source};

/// One batch as Python sees it: magic, attributes, bytes, records, offsets, producer id, producer
/// epoch, first sequence, whether the offset deltas are 0, 1, 2 ..., smallest and largest
/// timestamp, records without a key. A batch without records has timestamps of None.
type Row = (i8, i16, i32, i32, i64, i64, i16, i32, bool, Option<i64>, Option<i64>, usize);

fn row(batch: NewBatch) -> Row {
    (
        batch.magic,
        batch.attributes,
        batch.size_bytes,
        batch.record_count,
        batch.offset_count,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.is_dense,
        batch.timestamps_ms.map(|bounds| bounds.0),
        batch.timestamps_ms.map(|bounds| bounds.1),
        batch.null_keys,
    )
}

/// Decodes and checks batches that are to be appended, and returns a row for each, why the decode
/// ended, at which byte, and what was found there. See [`appended::check_new_batches`].
#[pyfunction]
fn check_new_batches(
    py: Python<'_>,
    batches: &Bound<'_, PyAny>,
    include_control: bool,
    max_decompressed_bytes: usize,
    budget_bytes: usize,
) -> PyResult<(Vec<Row>, &'static str, u64, String)> {
    let input = Input::new(batches)?;
    let options =
        DecodeOptions { verify_crc: true, include_control, max_decompressed_bytes, budget_bytes };
    let checked = py.detach(|| appended::check_new_batches(input.bytes(), &options));
    let (rows, stop) = checked.map_err(|error| to_python(py, error, None))?;
    let rows = rows.into_iter().map(row).collect();
    Ok((rows, stop.reason.name(), stop.position, stop.found))
}

/// Returns a copy of validated batches with the values that a broker assigns: offsets, the leader
/// epoch, and the largest timestamp of each batch. With `log_append_time`, the timestamps are
/// append times.
#[pyfunction]
fn assign_offsets<'py>(
    py: Python<'py>,
    batches: &Bound<'py, PyAny>,
    base_offset: i64,
    leader_epoch: i32,
    max_timestamps_ms: Vec<i64>,
    log_append_time: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let input = Input::new(batches)?;
    let assigned = Assigned {
        base_offset,
        leader_epoch,
        max_timestamps_ms: &max_timestamps_ms,
        log_append_time,
    };
    let mut outcome = Ok(base_offset);
    let copy = new_bytes(
        py,
        input.bytes().len(),
        |place| {
            place.push(input.bytes());
            Ok(())
        },
        |copy| outcome = assign(copy, &assigned),
    )?;
    outcome.map_err(|error| to_python(py, error, None))?;
    Ok(copy)
}

/// Builds the indexes and the producer state of a segment while batches are appended to it.
#[pyclass(module = "tierlog._core")]
pub struct SegmentIndexer {
    visitor: RebuildVisitor,
    interval_bytes: u64,
    /// Number of bytes of each index that `take_entries` has returned.
    taken: [usize; 3],
}

#[pymethods]
impl SegmentIndexer {
    /// Starts a segment at `base_offset` with the producer state of a snapshot.
    #[new]
    fn new(
        py: Python<'_>,
        base_offset: i64,
        index_interval_bytes: u64,
        producer_snapshot: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let producers = producers_before(py, producer_snapshot, None)?;
        let rebuilder = Rebuilder::new(Some(base_offset), index_interval_bytes, producers);
        let visitor = RebuildVisitor::new(rebuilder, usize::MAX);
        Ok(Self { visitor, interval_bytes: index_interval_bytes, taken: [0; 3] })
    }

    /// Adds the batches of a source. The first byte of the source is at `position` of the segment.
    fn push(
        &mut self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        position: u64,
        verify_crc: bool,
    ) -> PyResult<Batches> {
        let source = Source::new(source, false)?;
        let options = ScanOptions { verify_crc, ..ScanOptions::default() };
        let mut appended = Appended { visitor: &mut self.visitor, start: position };
        match py.detach(|| source.scan(&options, &mut appended)) {
            Ok(scan) => Batches::new(py, mem::take(&mut self.visitor.batches), scan),
            Err(error) => {
                self.visitor.batches = BatchColumns::default();
                Err(source.error(py, error))
            }
        }
    }

    /// Returns the entries of the offset, time and transaction index that were added since the last
    /// call.
    fn take_entries<'py>(&mut self, py: Python<'py>) -> [Bound<'py, PyBytes>; 3] {
        let entries = self.visitor.rebuilder.entries();
        let taken = mem::replace(&mut self.taken, entries.map(<[u8]>::len));
        [0, 1, 2].map(|index| PyBytes::new(py, &entries[index][taken[index]..]))
    }

    /// Ends the segment and starts the next segment. Returns the last entries of the time index,
    /// and the producer snapshot at the end of the segment. The snapshot leaves out producers that
    /// wrote nothing for `expiration_ms`.
    fn roll<'py>(
        &mut self,
        py: Python<'py>,
        now_ms: i64,
        expiration_ms: i64,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let expiry = Some(Expiry { now_ms, expiration_ms });
        let next = Rebuilder::new(None, self.interval_bytes, Default::default());
        let rebuilder = mem::replace(&mut self.visitor.rebuilder, next);
        let work = || -> Result<_> {
            let (rebuilt, producers) = rebuilder.finish(expiry)?;
            let next = Rebuilder::new(Some(rebuilt.end_offset), self.interval_bytes, producers);
            Ok((rebuilt, next))
        };
        let (rebuilt, next) = py.detach(work).map_err(|error| to_python(py, error, None))?;
        self.visitor.rebuilder = next;
        let taken = mem::take(&mut self.taken);
        let last_entries = rebuilt.time_index.get(taken[1]..).unwrap_or_default();
        Ok((PyBytes::new(py, last_entries), PyBytes::new(py, &rebuilt.producer_snapshot)))
    }

    /// Returns the producer snapshot after the last batch.
    fn producer_snapshot<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.visitor.rebuilder.producers().to_snapshot())
    }

    /// Offset after the last batch, or the base offset of an empty segment.
    #[getter]
    fn end_offset(&self) -> i64 {
        self.visitor.rebuilder.end_offset()
    }

    /// First offset of the oldest open transaction, or None if no transaction is open.
    #[getter]
    fn first_open_transaction_offset(&self) -> Option<i64> {
        self.visitor.rebuilder.producers().first_open_offset()
    }

    /// Largest timestamp of any batch, or -1 if there is none.
    #[getter]
    fn max_timestamp_ms(&self) -> i64 {
        self.visitor.rebuilder.max_timestamp_ms()
    }
}

/// Adds the functions and classes of this file to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SegmentIndexer>()?;
    module.add_function(wrap_pyfunction!(check_new_batches, module)?)?;
    module.add_function(wrap_pyfunction!(assign_offsets, module)?)
}
