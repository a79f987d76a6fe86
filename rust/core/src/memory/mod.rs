//! Memory that is handed on from one read to the next.

pub mod hints;
pub mod slabs;
pub mod spare;
