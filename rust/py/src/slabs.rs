//! Large reads into memory that is handed on, and the one place where it is kept meanwhile.

use std::mem;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tierlog_core::error::Result;
use tierlog_core::memory::slabs::{Found, Slab, Slabs, new_slab};

use crate::buffer::{Column, Input, Values, duplicate};
use crate::error::to_python;

/// What may lie idle: what one quick sequential reader has fetched ahead.
const LIMIT_BYTES: usize = 128 << 20;

static SLABS: Mutex<Slabs> = Mutex::new(Slabs::new(LIMIT_BYTES));

fn slabs() -> MutexGuard<'static, Slabs> {
    SLABS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(size: usize) -> Result<Slab> {
    let found = slabs().take(size);
    match found {
        Found::Slab(slab) => Ok(slab),
        Found::Gone(gone) => new_slab(size, gone),
    }
}

/// Of a column that nobody can see any more.
pub fn give_back(slab: Slab) {
    let gone = slabs().give(slab);
    drop(gone);
}

/// Gives idle memory back to the system; how many bytes that were.
pub fn release() -> usize {
    let all = mem::replace(&mut *slabs(), Slabs::new(LIMIT_BYTES));
    all.idle_bytes()
}

/// Up to `size_bytes` of an open file, from `position` on.
#[pyfunction]
pub fn read_slab(
    py: Python<'_>,
    descriptor: RawFd,
    position: u64,
    size_bytes: usize,
) -> PyResult<Column> {
    let file = duplicate(descriptor)?;
    let read = py.detach(|| {
        let mut slab = take(size_bytes)?;
        slab.read_at(&file, position)?;
        Ok(slab)
    });
    read.map(column).map_err(|error| to_python(py, error, None))
}

/// All pieces, one after the other: at most `size_bytes`, else ValueError.
#[pyfunction]
pub fn join_slab(py: Python<'_>, pieces: &Bound<'_, PyAny>, size_bytes: usize) -> PyResult<Column> {
    let taken = py.detach(|| take(size_bytes));
    let mut slab = taken.map_err(|error| to_python(py, error, None))?;
    for piece in pieces.try_iter()? {
        let input = Input::new(&piece?)?;
        if !py.detach(|| slab.push(input.bytes())) {
            let message = format!("expected at most {size_bytes} bytes, found more");
            return Err(PyValueError::new_err(message));
        }
    }
    Ok(column(slab))
}

fn column(slab: Slab) -> Column {
    Column::new(Values::Slab(slab))
}
