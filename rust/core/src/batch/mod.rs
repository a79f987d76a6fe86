//! Record batches: their headers, their columns, and the older message sets of magic 0 and 1.

pub mod answer;
pub mod checksums;
pub mod columns;
pub mod header;
pub mod legacy;
pub mod runs;
