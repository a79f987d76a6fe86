//! `tierlog._core`: the Python binding of tierlog-core. Its functions take buffers and numbers,
//! release the interpreter lock, call the core, and return columns that numpy wraps without a copy.
#![deny(unsafe_code)]

mod append;
mod buffer;
mod cache;
mod capsule;
mod compaction;
mod durable;
mod error;
mod index;
mod key;
mod large_reads;
mod load;
mod memory;
mod object;
mod pointers;
mod quota;
mod record_text;
mod records;
mod remote_index;
mod row_checksums;
mod row_columns;
mod segment;
mod segment_index;
mod table_rows;

use pyo3::prelude::*;

use crate::buffer::{Column, Input};

/// Returns the CRC-32C of `data`, continued from `seed`, which is the checksum of the bytes before
/// `data`.
#[pyfunction]
#[pyo3(signature = (data, seed = 0))]
fn crc32c(py: Python<'_>, data: &Bound<'_, PyAny>, seed: u32) -> PyResult<u32> {
    let input = Input::shared(data)?;
    Ok(py.detach(|| {
        let mut running = tierlog_core::checksum::Running::crc32c_from(seed);
        running.update(input.bytes());
        running.value()
    }))
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Column>()?;
    module.add_function(wrap_pyfunction!(crc32c, module)?)?;
    module.add_class::<segment::Batches>()?;
    module.add_class::<segment::BatchSummary>()?;
    module.add_function(wrap_pyfunction!(durable::sync_files, module)?)?;
    module.add_function(wrap_pyfunction!(segment::scan_segment, module)?)?;
    module.add_function(wrap_pyfunction!(segment::find_batch, module)?)?;
    module.add_class::<segment_index::ReadFile>()?;
    module.add_class::<segment_index::SegmentIndex>()?;
    module.add_function(wrap_pyfunction!(segment_index::batch_start, module)?)?;
    module.add_class::<record_text::TextTemplate>()?;
    module.add_class::<records::Records>()?;
    module.add_class::<records::Views>()?;
    module.add_function(wrap_pyfunction!(records::decode_records, module)?)?;
    module.add_function(wrap_pyfunction!(records::check_records, module)?)?;
    module.add_function(wrap_pyfunction!(row_checksums::row_checksum, module)?)?;
    module.add_function(wrap_pyfunction!(row_checksums::first_bad_row, module)?)?;
    module.add_function(wrap_pyfunction!(row_columns::row_columns, module)?)?;
    module.add_class::<table_rows::TableRows>()?;
    module.add_function(wrap_pyfunction!(table_rows::read_rows, module)?)?;
    module.add_function(wrap_pyfunction!(large_reads::read_pooled, module)?)?;
    module.add_function(wrap_pyfunction!(large_reads::join_pooled, module)?)?;
    module.add_function(wrap_pyfunction!(memory::release_pooled_memory, module)?)?;
    append::register(module)?;
    compaction::register(module)?;
    remote_index::register(module)?;
    index::register(module)?;
    capsule::register(module)
}
