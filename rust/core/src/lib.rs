//! Kafka's on-disk formats for tiered storage: record batches, segments, local indexes and
//! the remoteLogIndex, read and written without Python, clocks or sockets.
//!
//! Input bytes are untrusted: every length is compared with the bytes left before it is used, every
//! refusal is an [`error::Error`] with kind, position, expected and found, and nothing panics.

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
