//! The codecs of record batches.

pub mod compression;
pub(crate) mod gzip;
pub(crate) mod lz4_frame;
pub mod output;
pub(crate) mod snappy;
