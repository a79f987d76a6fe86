//! Memory that one read reuses from an earlier one.

pub mod hints;
pub mod slabs;
pub mod spare;
