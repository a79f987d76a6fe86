//! The memory of columns that Python has let go of, kept for the next decode: at most
//! `LIMIT_BYTES`, and until [`release_spare_memory`] is called.

use std::mem;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tierlog_core::spare::{MIN_BYTES, Spare};

use crate::buffer::Values;

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
pub fn keep(values: &mut Values) {
    let size_bytes = match values {
        Values::I64(column) => column.capacity() * size_of::<i64>(),
        Values::View(column) => column.capacity() * size_of::<u128>(),
        Values::U8(column) => column.capacity(),
        Values::I32(_) | Values::I16(_) | Values::I8(_) => 0,
    };
    if size_bytes < MIN_BYTES {
        return;
    }
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    match values {
        Values::I64(column) => spare.give(mem::take(column)),
        Values::View(column) => spare.give(mem::take(column)),
        Values::U8(column) => spare.give(mem::take(column)),
        Values::I32(_) | Values::I16(_) | Values::I8(_) => {}
    }
}

/// Gives the kept memory back to the system; how many bytes that were.
#[pyfunction]
pub fn release_spare_memory() -> usize {
    take().size_bytes()
}
