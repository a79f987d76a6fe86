//! Two pools of memory that Python has released, one for later columns and one for later large
//! reads. Each pool keeps at most `LIMIT_BYTES`, until [`release_pooled_memory`] is called.

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use tierlog_core::error::Result;
use tierlog_core::memory::buffer_pool::{BufferPool, PooledBuffer, Taken, map_buffer};
use tierlog_core::memory::vector_pool::{Item, MIN_BYTES, VectorPool};

/// This is enough for the columns of 256 MiB of small records, or for the read-ahead of one fast
/// sequential reader.
const LIMIT_BYTES: usize = 128 << 20;

static COLUMNS: Mutex<VectorPool> = Mutex::new(VectorPool::new(LIMIT_BYTES));
static BUFFERS: Mutex<BufferPool> = Mutex::new(BufferPool::new(LIMIT_BYTES));

fn columns() -> MutexGuard<'static, VectorPool> {
    COLUMNS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn buffers() -> MutexGuard<'static, BufferPool> {
    BUFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes all pooled columns. Other threads find none until [`give_columns`] returns them.
pub fn take_columns() -> VectorPool {
    mem::replace(&mut *columns(), VectorPool::new(LIMIT_BYTES))
}

/// Gives back to the pool the columns that [`take_columns`] returned and the caller did not use.
pub fn give_columns(unused: VectorPool) {
    columns().give_all(unused);
}

/// Puts the memory of a column into the pool if it is large.
pub fn give_column<T: Item>(column: Vec<T>) {
    if column.capacity() * size_of::<T>() >= MIN_BYTES {
        columns().give(column);
    }
}

/// Returns memory for a read of `size` bytes.
pub fn take_buffer(size: usize) -> Result<PooledBuffer> {
    // The lock is released before the system maps or unmaps memory.
    let found = buffers().take(size);
    match found {
        Taken::Reused(buffer) => Ok(buffer),
        Taken::Evicted(evicted) => map_buffer(size, evicted),
    }
}

/// Puts the memory of a large read into the pool after Python has released it.
pub fn give_buffer(buffer: PooledBuffer) {
    let evicted = buffers().give(buffer);
    drop(evicted);
}

/// Releases all pooled memory to the system and returns its size in bytes.
#[pyfunction]
pub fn release_pooled_memory() -> usize {
    let idle = mem::replace(&mut *buffers(), BufferPool::new(LIMIT_BYTES));
    take_columns().size_bytes() + idle.idle_bytes()
}
