//! Log compaction: keeps the last record of each key (Kafka's `Cleaner`).
//!
//! A round has two passes. [`key_offsets::KeyOffsets`] learns the last offset of each key of the
//! dirty section; [`cleaner::Cleaner`] then copies the segments up to the end of that section and
//! leaves out records that a later record of their key replaced, tombstones and transaction markers
//! whose time is over, and records of aborted transactions. Both passes read a segment batch by
//! batch, so memory is bounded by the map and by the largest batch.

mod batches;
pub mod cleaner;
pub mod key_offsets;
mod raw_record;
pub mod transactions;
