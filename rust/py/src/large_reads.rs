//! Large reads into pooled buffers.

use std::os::fd::RawFd;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tierlog_core::memory::buffer_pool::PooledBuffer;

use crate::buffer::{Column, Input, Values, duplicate};
use crate::error::to_python;
use crate::memory::take_buffer;

/// Reads up to `size_bytes` of an open file from `position` on.
#[pyfunction]
pub fn read_pooled(
    py: Python<'_>,
    descriptor: RawFd,
    position: u64,
    size_bytes: usize,
) -> PyResult<Column> {
    let file = duplicate(descriptor)?;
    let read = py.detach(|| {
        let mut buffer = take_buffer(size_bytes)?;
        buffer.read_at(&file, position)?;
        Ok(buffer)
    });
    read.map(column).map_err(|error| to_python(py, error, None))
}

/// Joins all ranges into one buffer. Raises ValueError when they have more than `size_bytes`.
#[pyfunction]
pub fn join_pooled(
    py: Python<'_>,
    pieces: &Bound<'_, PyAny>,
    size_bytes: usize,
) -> PyResult<Column> {
    let taken = py.detach(|| take_buffer(size_bytes));
    let mut buffer = taken.map_err(|error| to_python(py, error, None))?;
    for piece in pieces.try_iter()? {
        let input = Input::new(&piece?)?;
        if !py.detach(|| buffer.push(input.bytes())) {
            let message = format!("expected at most {size_bytes} bytes, found more");
            return Err(PyValueError::new_err(message));
        }
    }
    Ok(column(buffer))
}

fn column(buffer: PooledBuffer) -> Column {
    Column::new(Values::Pooled(buffer))
}
