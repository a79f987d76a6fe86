//! Memory that one read reuses from an earlier one.

pub mod buffer_pool;
pub mod hints;
pub mod vector_pool;
