//! `scan_segment`: scans a source into columns.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyString;
use tierlog_core::batch::columns::{BatchColumns, Run, Summary};
use tierlog_core::error::{Error, ErrorKind, Result};
use tierlog_core::segment::resync::{self, Bounds};
use tierlog_core::segment::{Scan, ScanOptions, copy_file, scan_file, scan_slice};
use tierlog_core::source::{CopyTarget, SegmentFile};

use crate::buffer::{Column, Input, Values, duplicate};
use crate::error::to_python;

/// A source of segment bytes.
pub enum Source {
    /// A path to open, and whether the caller owns the file.
    Path { path: PathBuf, own_file: bool },
    /// A file that the caller has opened. The caller keeps its own descriptor.
    File(SegmentFile),
    /// A buffer with the bytes.
    Bytes(Input),
}

impl Source {
    /// Creates a source. A `str` or `os.PathLike` is a path, and an object with `fileno()` is an
    /// open file. Any other object must be a buffer.
    pub fn new(object: &Bound<'_, PyAny>, own_file: bool) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() || object.hasattr("__fspath__")? {
            return Ok(Self::Path { path: object.extract()?, own_file });
        }
        if object.hasattr("fileno")? {
            let file = duplicate(object.call_method0("fileno")?.extract()?)?;
            return SegmentFile::from_file(file)
                .map(Self::File)
                .map_err(|error| to_python(object.py(), error, None));
        }
        Ok(Self::Bytes(Input::new(object)?))
    }

    /// Returns the path as text, for errors.
    pub fn name(&self) -> Option<String> {
        match self {
            Self::Path { path, .. } => Some(path.to_string_lossy().into_owned()),
            Self::File(_) | Self::Bytes(_) => None,
        }
    }

    /// Scans the source.
    pub fn scan<V: tierlog_core::segment::Visitor>(
        &self,
        options: &ScanOptions,
        visitor: &mut V,
    ) -> Result<Scan> {
        match self {
            Self::Bytes(input) => scan_slice(input.bytes(), options, visitor),
            Self::File(file) => scan_file(file, options, visitor),
            Self::Path { path, own_file } => {
                let file = SegmentFile::open(path)?;
                if *own_file && file.size_bytes() > 0 {
                    scan_slice(&file.map()?, options, visitor)
                } else {
                    scan_file(&file, options, visitor)
                }
            }
        }
    }

    /// Scans an open file and writes the bytes it reads to `target`.
    pub fn copy<V: tierlog_core::segment::Visitor>(
        &self,
        options: &ScanOptions,
        visitor: &mut V,
        target: &mut CopyTarget,
    ) -> Result<Scan> {
        match self {
            Self::File(file) => copy_file(file, options, visitor, Some(target)),
            Self::Path { .. } | Self::Bytes(_) => Err(Error::new(
                ErrorKind::InvalidArgument,
                0,
                "an open file to copy from",
                "a path or bytes",
            )),
        }
    }

    /// Converts an error of the core and adds the name of this source.
    pub fn error(&self, py: Python<'_>, error: Error) -> PyErr {
        to_python(py, error, self.name().as_deref())
    }
}

/// Totals over all batches of a scan.
#[pyclass(frozen, get_all, module = "tierlog._core")]
pub struct BatchSummary {
    /// Records present.
    records: i64,
    /// Smallest base timestamp of any batch.
    first_timestamp_ms: Option<i64>,
    /// True when a batch belongs to a transaction.
    has_transactions: bool,
    /// Codecs of the data batches, a bit for each code. Control batches do not count.
    codecs: u8,
    /// Position after the last batch, or 0 if there are no batches.
    end_position: i64,
    /// (first offset, last offset, first leader epoch, last leader epoch) if the batches are
    /// contiguous, have magic 2 and their epochs never decrease; else None.
    run: Option<(i64, i64, i32, i32)>,
}

impl BatchSummary {
    fn new(found: &Summary) -> Self {
        let run = |run: Run| (run.first_offset, run.last_offset, run.first_epoch, run.last_epoch);
        Self {
            records: found.records,
            first_timestamp_ms: found.first_timestamp_ms,
            has_transactions: found.has_transactions,
            codecs: found.codecs,
            end_position: found.end_position,
            run: found.run.map(run),
        }
    }
}

/// The columns of a scan and the reason why it stopped.
#[pyclass(frozen, module = "tierlog._core")]
pub struct Batches {
    columns: Vec<(&'static str, Py<Column>)>,
    rows: usize,
    summary: Summary,
    /// Name of the stop reason.
    #[pyo3(get)]
    stop_reason: &'static str,
    /// Position of the first byte that was not accepted.
    #[pyo3(get)]
    stop_position: u64,
    /// What a valid segment has at `stop_position`.
    #[pyo3(get)]
    stop_expected: String,
    /// What this segment has at `stop_position`.
    #[pyo3(get)]
    stop_found: String,
    /// CRC-32C of the range, if it was requested and the scan reached the end of the range.
    #[pyo3(get)]
    range_crc32c: Option<u32>,
}

#[pymethods]
impl Batches {
    fn __len__(&self) -> usize {
        self.rows
    }

    /// Returns totals over all batches.
    fn summary(&self) -> BatchSummary {
        BatchSummary::new(&self.summary)
    }

    /// Returns the columns by name.
    fn columns(&self, py: Python<'_>) -> Vec<(&'static str, Py<Column>)> {
        self.columns.iter().map(|(name, column)| (*name, column.clone_ref(py))).collect()
    }
}

impl Batches {
    /// Returns the number of batches.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the column with that name.
    pub fn values(&self, name: &str) -> Option<&Values> {
        self.columns.iter().find(|(one, _)| *one == name).map(|(_, column)| column.get().values())
    }

    /// Converts the columns of a scan to Python.
    pub fn new(py: Python<'_>, batches: BatchColumns, scan: Scan) -> PyResult<Self> {
        let (rows, summary) = (batches.len(), batches.summary());
        let values = [
            ("base_offset", Values::I64(batches.base_offset)),
            ("last_offset", Values::I64(batches.last_offset)),
            ("position", Values::I64(batches.position)),
            ("size_bytes", Values::I32(batches.size_bytes)),
            ("base_timestamp_ms", Values::I64(batches.base_timestamp_ms)),
            ("max_timestamp_ms", Values::I64(batches.max_timestamp_ms)),
            ("leader_epoch", Values::I32(batches.leader_epoch)),
            ("producer_id", Values::I64(batches.producer_id)),
            ("producer_epoch", Values::I16(batches.producer_epoch)),
            ("base_sequence", Values::I32(batches.base_sequence)),
            ("attributes", Values::I16(batches.attributes)),
            ("record_count", Values::I32(batches.record_count)),
            ("magic", Values::I8(batches.magic)),
        ];
        let mut columns = Vec::with_capacity(values.len());
        for (name, values) in values {
            columns.push((name, Py::new(py, Column::new(values))?));
        }
        Ok(Self {
            columns,
            rows,
            summary,
            stop_reason: scan.stop.reason.name(),
            stop_position: scan.stop.position,
            stop_expected: scan.stop.expected,
            stop_found: scan.stop.found,
            range_crc32c: scan.range_crc32c,
        })
    }
}

/// Scans `source` from byte `start` to `end`.
#[pyfunction]
#[pyo3(signature = (source, start, end, verify_crc, hash_bytes, own_file))]
pub fn scan_segment(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    start: u64,
    end: Option<u64>,
    verify_crc: bool,
    hash_bytes: bool,
    own_file: bool,
) -> PyResult<Batches> {
    let source = Source::new(source, own_file)?;
    let options = ScanOptions { start, end, verify_crc, hash_bytes };
    let mut batches = BatchColumns::default();
    match py.detach(|| source.scan(&options, &mut batches)) {
        Ok(scan) => Batches::new(py, batches, scan),
        Err(error) => Err(source.error(py, error)),
    }
}

/// Returns the position of the first sound batch at or after `start`, or `None` if there is none.
/// The last offset of the batch is at least `offset` and below `next_base_offset`.
#[pyfunction]
pub fn find_batch(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    start: u64,
    offset: i64,
    next_base_offset: Option<i64>,
) -> PyResult<Option<u64>> {
    let source = Source::new(source, false)?;
    let next_base_offset = next_base_offset.unwrap_or(i64::MAX);
    let bounds = Bounds { offset, next_base_offset };
    py.detach(|| match &source {
        Source::Bytes(input) => resync::find_batch(input.bytes(), start, &bounds),
        Source::File(file) => resync::find_batch(file, start, &bounds),
        Source::Path { path, .. } => resync::find_batch(&SegmentFile::open(path)?, start, &bounds),
    })
    .map_err(|error| source.error(py, error))
}
