//! Record batches: headers, columns of them, and the message sets before them.

pub mod answer;
pub mod checksums;
pub mod columns;
pub mod header;
pub mod legacy;
pub mod runs;
