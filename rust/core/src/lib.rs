//! Kafka's on-disk formats for tiered storage: record batches, segments, local indexes and
//! the remoteLogIndex, read and written without Python, clocks or sockets.
//!
//! Bytes are hostile here: every length is compared with what is left before it is used, every
//! refusal is an [`error::Error`] with kind, position, expected and found, and nothing panics.

#![deny(unsafe_code)]

pub mod batch_answer;
pub mod batch_checksums;
pub mod batch_columns;
pub mod batch_runs;
pub mod cache;
pub mod checksum;
pub mod compression;
#[cfg(target_arch = "x86_64")]
mod crc32_short;
pub mod durable;
pub mod error;
mod gzip;
pub mod legacy;
pub mod local_index;
mod lz4_frame;
pub mod memory;
pub mod offset_search;
pub mod outline;
pub mod pieces;
pub mod producer_state;
pub mod quota;
pub mod rebuild;
pub mod record_batch;
pub mod record_binary;
mod record_careful;
pub mod record_columns;
mod record_quick;
mod record_rows;
pub mod record_text;
pub mod records;
pub mod remote_index;
pub mod resync;
pub mod row_columns;
pub mod segment;
pub mod slabs;
mod snappy;
pub mod source;
pub mod spare;
mod sync;
pub mod table_rows;
pub mod varint;

#[cfg(test)]
mod vectors;
