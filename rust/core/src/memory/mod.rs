//! Memory that a read reuses from earlier reads, and hints for faster memory access.

pub mod buffer_pool;
pub mod hints;
pub mod vector_pool;
