//! The memory of columns that Python has let go of, kept for the next decode: at most
//! `LIMIT_BYTES`, and until [`release_spare_memory`] is called.

use std::mem;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tierlog_core::memory::spare::{Item, MIN_BYTES, Spare};

use crate::buffer::Values;
use crate::slabs;

/// Enough for the columns of a quarter of a gigabyte of small records.
const LIMIT_BYTES: usize = 128 << 20;

static SPARE: Mutex<Spare> = Mutex::new(Spare::new(LIMIT_BYTES));

/// Takes everything that is kept; other threads find nothing until it is given back.
pub fn take() -> Spare {
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    mem::replace(&mut *spare, Spare::new(LIMIT_BYTES))
}

/// Keeps what was taken and not used.
pub fn give_back(unused: Spare) {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner).give_all(unused);
}

/// Keeps the memory of a column if it is large.
pub fn keep(values: Values) {
    match values {
        Values::I64(column) => keep_large(column),
        Values::View(column) => keep_large(column),
        Values::U8(column) => keep_large(column),
        Values::Slab(slab) => slabs::give_back(slab),
        Values::I32(_) | Values::I16(_) | Values::I8(_) => {}
    }
}

fn keep_large<T: Item>(column: Vec<T>) {
    if column.capacity() * size_of::<T>() >= MIN_BYTES {
        SPARE.lock().unwrap_or_else(PoisonError::into_inner).give(column);
    }
}

/// Gives the kept memory back to the system, that of reads, too; how many bytes that were.
#[pyfunction]
pub fn release_spare_memory() -> usize {
    take().size_bytes() + slabs::release()
}
