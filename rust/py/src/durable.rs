//! Syncs many files at once.

use std::fs::File;
use std::io;
use std::os::fd::RawFd;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tierlog_core::durable;
use tierlog_core::error::Error;

use crate::buffer::duplicate;
use crate::error::to_python;

/// Syncs several open files at a time. `files` maps names to descriptors. An OSError has the name
/// of the first file that failed. Each file is synced once, even after an error.
#[pyfunction]
pub fn sync_files(py: Python<'_>, files: &Bound<'_, PyDict>) -> PyResult<()> {
    let descriptors: Vec<RawFd> = files.values().extract()?;
    let held: Vec<File> = descriptors.into_iter().map(duplicate).collect::<io::Result<_>>()?;
    py.detach(|| durable::sync_all(&held)).map_err(|(index, error)| {
        let name: PyResult<String> = files.keys().get_item(index).and_then(|name| name.extract());
        name.map_or_else(|failure| failure, |name| to_python(py, Error::io(0, error), Some(&name)))
    })
}
