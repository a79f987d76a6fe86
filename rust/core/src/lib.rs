//! Reads and writes Kafka's on-disk formats for tiered storage: record batches, segments, local
//! indexes and the remoteLogIndex. This crate uses no Python, no clock and no socket.
//!
//! Input bytes are untrusted. Every length is compared with the number of bytes left before it is
//! used. Invalid input gives an [`error::Error`] with the kind, the position, the expected and the
//! found value. Nothing panics.

#![deny(unsafe_code)]

pub mod batch;
pub mod cache;
pub mod checksum;
pub mod codec;
pub mod compaction;
#[cfg(target_arch = "x86_64")]
mod crc32_short;
pub mod durable;
pub mod error;
pub mod index;
pub mod memory;
pub mod quota;
pub mod records;
pub mod segment;
pub mod source;
mod sync;
pub mod varint;

#[cfg(test)]
mod vectors;
