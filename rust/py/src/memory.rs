//! Pools of the memory that Python has released, for later columns and large reads: at most
//! `LIMIT_BYTES` of each, until [`release_spare_memory`] is called.

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use tierlog_core::error::Result;
use tierlog_core::memory::slabs::{Found, Slab, Slabs, new_slab};
use tierlog_core::memory::spare::{Item, MIN_BYTES, Spare};

/// Memory for the columns of 256 MiB of small records, or for the read-ahead of one fast sequential
/// reader.
const LIMIT_BYTES: usize = 128 << 20;

static COLUMNS: Mutex<Spare> = Mutex::new(Spare::new(LIMIT_BYTES));
static SLABS: Mutex<Slabs> = Mutex::new(Slabs::new(LIMIT_BYTES));

fn columns() -> MutexGuard<'static, Spare> {
    COLUMNS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn slabs() -> MutexGuard<'static, Slabs> {
    SLABS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes all pooled columns; other threads find none until [`give_columns`].
pub fn take_columns() -> Spare {
    mem::replace(&mut *columns(), Spare::new(LIMIT_BYTES))
}

/// Returns the columns that [`take_columns`] returned and the caller did not use to the pool.
pub fn give_columns(unused: Spare) {
    columns().give_all(unused);
}

/// Puts the memory of a column into the pool if it is large.
pub fn give_column<T: Item>(column: Vec<T>) {
    if column.capacity() * size_of::<T>() >= MIN_BYTES {
        columns().give(column);
    }
}

/// Returns memory for a read of `size` bytes.
pub fn take_slab(size: usize) -> Result<Slab> {
    // The lock is released before the system maps or unmaps memory.
    let found = slabs().take(size);
    match found {
        Found::Slab(slab) => Ok(slab),
        Found::Gone(gone) => new_slab(size, gone),
    }
}

/// Puts the memory of a read that Python has released into the pool.
pub fn give_slab(slab: Slab) {
    let gone = slabs().give(slab);
    drop(gone);
}

/// Returns all pooled memory to the system, and its size in bytes as the result.
#[pyfunction]
pub fn release_spare_memory() -> usize {
    let idle_slabs = mem::replace(&mut *slabs(), Slabs::new(LIMIT_BYTES));
    take_columns().size_bytes() + idle_slabs.idle_bytes()
}
