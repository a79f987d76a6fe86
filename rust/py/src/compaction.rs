//! Log compaction: the table of keys, and the copy of a segment without what compaction removes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tierlog_core::compaction::cleaner::{Cleaner, CleanerOptions, LastRecord};
use tierlog_core::compaction::key_offsets;
use tierlog_core::compaction::transactions::Transactions;
use tierlog_core::error::Error;
use tierlog_core::index::local::AbortedTransaction;
use tierlog_core::source::SegmentFile;

use crate::error::to_python;

/// An aborted transaction: producer id, first offset, last offset, last stable offset.
type Aborted = (i64, i64, i64, i64);

fn transactions(aborted: Vec<Aborted>) -> Transactions {
    let entry = |(producer_id, first_offset, last_offset, last_stable_offset)| AbortedTransaction {
        producer_id,
        first_offset,
        last_offset,
        last_stable_offset,
    };
    Transactions::new(aborted.into_iter().map(entry).collect())
}

fn named(py: Python<'_>, error: Error, path: &Path) -> PyErr {
    to_python(py, error, Some(&path.to_string_lossy()))
}

/// The last offset of each key of a log's dirty section.
#[pyclass(module = "tierlog._core")]
pub struct KeyOffsets {
    table: key_offsets::KeyOffsets,
    transactions: Transactions,
}

#[pymethods]
impl KeyOffsets {
    /// Creates a table of at most `budget_bytes`, no larger than `expected_keys` need. `aborted`
    /// are the aborted transactions that end in the dirty section or after it.
    #[new]
    fn new(
        py: Python<'_>,
        budget_bytes: usize,
        expected_keys: usize,
        max_decompressed_bytes: usize,
        aborted: Vec<Aborted>,
    ) -> Self {
        let make =
            || key_offsets::KeyOffsets::new(budget_bytes, expected_keys, max_decompressed_bytes);
        Self { table: py.detach(make), transactions: transactions(aborted) }
    }

    /// Takes in the records of a segment from `first_offset` on; the next segment starts at
    /// `next_base_offset`. Returns true when the table is full before the end.
    fn add_segment(
        &mut self,
        py: Python<'_>,
        path: PathBuf,
        first_offset: i64,
        next_base_offset: i64,
    ) -> PyResult<bool> {
        let (table, transactions) = (&mut self.table, &mut self.transactions);
        let added = py.detach(|| {
            let file = SegmentFile::open(&path)?;
            let is_full = table.add_segment(&file, first_offset, transactions)?;
            if !is_full {
                table.raise_latest_offset(next_base_offset.saturating_sub(1));
            }
            Ok(is_full)
        });
        added.map_err(|error| named(py, error, &path))
    }

    fn __len__(&self) -> usize {
        self.table.len()
    }

    /// The offset up to which every record was taken in, -1 at first.
    #[getter]
    fn latest_offset(&self) -> i64 {
        self.table.latest_offset()
    }
}

/// Copies the segments of one round of compaction, in order.
#[pyclass(module = "tierlog._core")]
pub struct LogCleaner {
    cleaner: Cleaner,
}

#[pymethods]
impl LogCleaner {
    /// `end_offset` is the first that the round leaves alone, `aborted` all aborted transactions of
    /// the log, `last_records` the last data offset (None without one) and the epoch of each
    /// producer that has not expired.
    #[new]
    fn new(
        now_ms: i64,
        delete_retention_ms: i64,
        end_offset: i64,
        max_decompressed_bytes: usize,
        aborted: Vec<Aborted>,
        last_records: HashMap<i64, (Option<i64>, i16)>,
    ) -> Self {
        let options =
            CleanerOptions { now_ms, delete_retention_ms, end_offset, max_decompressed_bytes };
        let producers = last_records
            .into_iter()
            .map(|(id, (data_offset, epoch))| (id, LastRecord { data_offset, epoch }))
            .collect();
        Self { cleaner: Cleaner::new(options, transactions(aborted), producers) }
    }

    /// Returns what stays of about `step_bytes` of a segment from `position` on, and the position
    /// of the next batch.
    fn copy<'py>(
        &mut self,
        py: Python<'py>,
        path: PathBuf,
        position: u64,
        step_bytes: u64,
        keys: PyRef<'_, KeyOffsets>,
    ) -> PyResult<(Bound<'py, PyBytes>, u64)> {
        let (cleaner, table) = (&mut self.cleaner, &keys.table);
        let mut output = Vec::new();
        let copied = py.detach(|| {
            let file = SegmentFile::open(&path)?;
            cleaner.copy(&file, position, step_bytes, table, &mut output)
        });
        let next = copied.map_err(|error| named(py, error, &path))?;
        Ok((PyBytes::new(py, &output), next))
    }

    /// Returns the entries of the transaction index for what was copied since the last call.
    fn take_transaction_index<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let entries: Vec<u8> =
            self.cleaner.take_aborts().iter().flat_map(AbortedTransaction::to_bytes).collect();
        PyBytes::new(py, &entries)
    }
}

/// Adds the classes of this file to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<KeyOffsets>()?;
    module.add_class::<LogCleaner>()
}
