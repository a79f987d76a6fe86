//! Segments scanned in pieces: what a worker finds in a range, and the fold of what many found.

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

/// All that a piece is, for other processes.
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

    /// Where its first batch begins.
    #[getter]
    fn start_position(&self) -> u64 {
        self.0.start
    }

    /// Where its last batch ends.
    #[getter]
    fn end_position(&self) -> u64 {
        self.0.stop.position
    }

    /// Why it ends there.
    #[getter]
    fn stop_reason(&self) -> &'static str {
        self.0.stop.reason.name()
    }

    /// How many batches.
    #[getter]
    fn batches(&self) -> u64 {
        self.0.batches
    }

    /// Bytes of its outline; None where that would have been too large.
    #[getter]
    fn outline_bytes(&self) -> Option<usize> {
        self.0.outline.as_ref().map(Vec::len)
    }
}

fn opened(source: &Bound<'_, PyAny>) -> PyResult<SegmentFile> {
    let file = duplicate(source.call_method0("fileno")?.extract()?)?;
    SegmentFile::from_file(file).map_err(|error| to_python(source.py(), error, None))
}

/// The piece that begins in [start, until) of an open file; None where no batch seems to.
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

/// The piece that begins at `start` of an open file, where a batch does.
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

/// The same piece with its outline, however large; no checksum is compared again.
#[pyfunction]
fn outline_again(py: Python<'_>, source: &Bound<'_, PyAny>, piece: &Piece) -> PyResult<Piece> {
    let file = opened(source)?;
    py.detach(|| outline(&file, &piece.0)).map(Piece).map_err(|error| to_python(py, error, None))
}

/// A segment put together from its pieces.
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

    /// Where the next piece must begin.
    #[getter]
    fn position(&self) -> PyResult<u64> {
        Ok(self.fold()?.position())
    }

    /// The last offset so far, -1 before any batch.
    #[getter]
    fn last_offset(&self) -> PyResult<i64> {
        Ok(self.fold()?.last_offset())
    }

    /// Whether the batches have ended before the file did.
    #[getter]
    fn is_stopped(&self) -> PyResult<bool> {
        Ok(self.fold()?.is_stopped())
    }

    /// Whether the piece goes on exactly where the ones before it end.
    fn fits(&self, piece: &Piece) -> PyResult<bool> {
        Ok(self.fold()?.fits(&piece.0))
    }

    /// Takes a piece that fits.
    fn take(&mut self, py: Python<'_>, piece: &Piece) -> PyResult<()> {
        let Some(fold) = self.0.as_mut() else { return self.fold().map(drop) };
        py.detach(|| fold.take(&piece.0)).map_err(|error| to_python(py, error, None))
    }

    /// What a rebuild of the whole would have come to.
    fn finish(&mut self, py: Python<'_>) -> PyResult<Rebuilt> {
        self.fold()?;
        let Some(folded) = self.0.take().map(|fold| py.detach(|| fold.finish(None))) else {
            return Err(PyValueError::new_err("this fold was finished"));
        };
        let done = folded.map_err(|error| to_python(py, error, None))?;
        Rebuilt::new(py, &done.rebuilt, done.batches, done.batches_complete, done.scan)
    }
}

/// The rows of pieces as tables of about so many bytes of the segment.
#[pyclass(module = "tierlog._core")]
pub struct PartTables(pieces::PartTables);

#[pymethods]
impl PartTables {
    #[new]
    fn new(part_bytes: u64) -> Self {
        Self(pieces::PartTables::new(part_bytes))
    }

    /// The tables that are whole once the rows of `piece` were added.
    fn take(&mut self, py: Python<'_>, piece: &Piece) -> PyResult<Vec<Batches>> {
        py.detach(|| self.0.take(&piece.0))
            .map_err(|error| to_python(py, error, None))?
            .into_iter()
            .map(|part| table(py, part))
            .collect()
    }

    /// The last table, which may be empty.
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

/// Puts what Python calls into the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Piece>()?;
    module.add_class::<SegmentFold>()?;
    module.add_class::<PartTables>()?;
    module.add_function(wrap_pyfunction!(find_piece, module)?)?;
    module.add_function(wrap_pyfunction!(scan_piece, module)?)?;
    module.add_function(wrap_pyfunction!(outline_again, module)?)
}
