//! Segments scanned in ranges by several workers, and the fold of their results.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tierlog_core::batch::columns::BatchColumns;
use tierlog_core::segment::pieces::{
    self, find_piece as find, outline_again as outline, scan_piece as scan,
};
use tierlog_core::segment::rebuild::{RebuildVisitor, Rebuilder};
use tierlog_core::segment::resync::Bounds;
use tierlog_core::segment::{Scan, ScanOptions, Stop, StopReason};
use tierlog_core::source::SegmentFile;

use crate::buffer::duplicate;
use crate::error::to_python;
use crate::index::{Rebuilt, producers_before};
use crate::segment::Batches;

/// State of a range, for other processes.
type State = (
    (u64, u64, u64),
    (&'static str, String, String),
    Option<u32>,
    Option<(i64, i64)>,
    Option<Py<PyBytes>>,
);
/// The batches that begin in a range of a segment.
#[pyclass(frozen, module = "tierlog._core")]
pub struct Piece(pieces::Piece);

#[pymethods]
impl Piece {
    #[new]
    fn new(
        positions: (u64, u64, u64),
        stop: (String, String, String),
        crc32c: Option<u32>,
        offsets: Option<(i64, i64)>,
        outline: Option<Vec<u8>>,
    ) -> PyResult<Self> {
        let ((start, end, batches), (reason, expected, found)) = (positions, stop);
        let Some(reason) = StopReason::named(&reason) else {
            return Err(PyValueError::new_err(format!("expected a stop reason, found '{reason}'")));
        };
        let stop = Stop { reason, position: end, expected, found };
        Ok(Self(pieces::Piece { start, stop, crc32c, offsets, batches, outline }))
    }

    fn __getnewargs__(&self, py: Python<'_>) -> State {
        let Self(piece) = self;
        let (stop, outline) = (&piece.stop, piece.outline.as_deref());
        (
            (piece.start, stop.position, piece.batches),
            (stop.reason.name(), stop.expected.clone(), stop.found.clone()),
            piece.crc32c,
            piece.offsets,
            outline.map(|bytes| PyBytes::new(py, bytes).unbind()),
        )
    }

    /// Returns the position of its first batch.
    #[getter]
    fn start_position(&self) -> u64 {
        self.0.start
    }

    /// Returns the position after its last batch.
    #[getter]
    fn end_position(&self) -> u64 {
        self.0.stop.position
    }

    /// Returns the reason why it ends there.
    #[getter]
    fn stop_reason(&self) -> &'static str {
        self.0.stop.reason.name()
    }

    /// Returns the number of batches.
    #[getter]
    fn batches(&self) -> u64 {
        self.0.batches
    }

    /// Returns the size of its outline; None when the outline was too large to keep.
    #[getter]
    fn outline_bytes(&self) -> Option<usize> {
        self.0.outline.as_ref().map(Vec::len)
    }
}

fn opened(source: &Bound<'_, PyAny>) -> PyResult<SegmentFile> {
    let file = duplicate(source.call_method0("fileno")?.extract()?)?;
    SegmentFile::from_file(file).map_err(|error| to_python(source.py(), error, None))
}

/// Scans the range [start, until) of an open file from its first batch on; None when no batch seems
/// to begin there.
#[pyfunction]
#[pyo3(signature = (source, start, until, base_offset, next_base_offset, max_outline_bytes))]
fn find_piece(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    start: u64,
    until: u64,
    base_offset: i64,
    next_base_offset: Option<i64>,
    max_outline_bytes: usize,
) -> PyResult<Option<Piece>> {
    let file = opened(source)?;
    let next_base_offset = next_base_offset.unwrap_or(i64::MAX);
    let bounds = Bounds { base_offset, next_base_offset, end: file.size_bytes() };
    py.detach(|| find(&file, start, until, &bounds, max_outline_bytes))
        .map(|found| found.map(Piece))
        .map_err(|error| to_python(py, error, None))
}

/// Scans the range that begins at `start` of an open file, where a batch begins.
#[pyfunction]
#[pyo3(signature = (source, start, until, after_offset, max_outline_bytes))]
fn scan_piece(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    start: u64,
    until: u64,
    after_offset: i64,
    max_outline_bytes: usize,
) -> PyResult<Piece> {
    let file = opened(source)?;
    let options = ScanOptions {
        start,
        until: Some(until),
        after_offset,
        hash_bytes: true,
        ..ScanOptions::default()
    };
    py.detach(|| scan(&file, &options, max_outline_bytes))
        .map(Piece)
        .map_err(|error| to_python(py, error, None))
}

/// Scans the same range with its outline, however large; compares no checksum again.
#[pyfunction]
fn outline_again(py: Python<'_>, source: &Bound<'_, PyAny>, piece: &Piece) -> PyResult<Piece> {
    let file = opened(source)?;
    py.detach(|| outline(&file, &piece.0)).map(Piece).map_err(|error| to_python(py, error, None))
}

/// A segment put together from the results of its ranges.
#[pyclass(module = "tierlog._core")]
pub struct SegmentFold(Option<pieces::SegmentFold>);

impl SegmentFold {
    fn fold(&self) -> PyResult<&pieces::SegmentFold> {
        self.0.as_ref().ok_or_else(|| PyValueError::new_err("this fold was finished"))
    }
}

#[pymethods]
impl SegmentFold {
    #[new]
    #[pyo3(signature = (index_interval_bytes, base_offset, producer_snapshot, max_table_rows))]
    fn new(
        py: Python<'_>,
        index_interval_bytes: u64,
        base_offset: i64,
        producer_snapshot: Option<&Bound<'_, PyAny>>,
        max_table_rows: usize,
    ) -> PyResult<Self> {
        let producers = producers_before(py, producer_snapshot, None)?;
        let rebuilder = Rebuilder::new(Some(base_offset), index_interval_bytes, producers);
        let visitor = RebuildVisitor::new(rebuilder, max_table_rows);
        Ok(Self(Some(pieces::SegmentFold::new(visitor))))
    }

    /// Returns the position at which the next range must begin.
    #[getter]
    fn position(&self) -> PyResult<u64> {
        Ok(self.fold()?.position())
    }

    /// Returns the last offset so far, -1 before any batch.
    #[getter]
    fn last_offset(&self) -> PyResult<i64> {
        Ok(self.fold()?.last_offset())
    }

    /// Returns true when the batches ended before the file did.
    #[getter]
    fn is_stopped(&self) -> PyResult<bool> {
        Ok(self.fold()?.is_stopped())
    }

    /// Returns true when the range begins exactly where the ones before it end.
    fn fits(&self, piece: &Piece) -> PyResult<bool> {
        Ok(self.fold()?.fits(&piece.0))
    }

    /// Adds a range that fits.
    fn take(&mut self, py: Python<'_>, piece: &Piece) -> PyResult<()> {
        let Some(fold) = self.0.as_mut() else { return self.fold().map(drop) };
        py.detach(|| fold.take(&piece.0)).map_err(|error| to_python(py, error, None))
    }

    /// Returns the result that a rebuild of the whole segment would have.
    fn finish(&mut self, py: Python<'_>) -> PyResult<Rebuilt> {
        self.fold()?;
        let Some(folded) = self.0.take().map(|fold| py.detach(|| fold.finish(None))) else {
            return Err(PyValueError::new_err("this fold was finished"));
        };
        let done = folded.map_err(|error| to_python(py, error, None))?;
        Rebuilt::new(py, &done.rebuilt, done.batches, done.batches_complete, done.scan)
    }
}

/// The rows of ranges as tables of about a given number of segment bytes.
#[pyclass(module = "tierlog._core")]
pub struct PartTables(pieces::PartTables);

#[pymethods]
impl PartTables {
    #[new]
    fn new(part_bytes: u64) -> Self {
        Self(pieces::PartTables::new(part_bytes))
    }

    /// Adds the rows of `piece` and returns the tables that are then complete.
    fn take(&mut self, py: Python<'_>, piece: &Piece) -> PyResult<Vec<Batches>> {
        py.detach(|| self.0.take(&piece.0))
            .map_err(|error| to_python(py, error, None))?
            .into_iter()
            .map(|part| table(py, part))
            .collect()
    }

    /// Returns the last table, which may be empty.
    fn finish(&mut self, py: Python<'_>) -> PyResult<Batches> {
        table(py, self.0.finish())
    }
}

fn table(py: Python<'_>, part: BatchColumns) -> PyResult<Batches> {
    let last = part.position.last().zip(part.size_bytes.last());
    let end = last.map_or(0, |(position, size)| position.saturating_add((*size).into()));
    let stop = Stop {
        reason: StopReason::End,
        position: u64::try_from(end).unwrap_or(0),
        expected: String::new(),
        found: String::new(),
    };
    Batches::new(py, part, Scan { stop, range_crc32c: None })
}

/// Adds the functions and classes of this file to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Piece>()?;
    module.add_class::<SegmentFold>()?;
    module.add_class::<PartTables>()?;
    module.add_function(wrap_pyfunction!(find_piece, module)?)?;
    module.add_function(wrap_pyfunction!(scan_piece, module)?)?;
    module.add_function(wrap_pyfunction!(outline_again, module)?)
}
