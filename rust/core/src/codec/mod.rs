//! The codecs of record batches.

pub(crate) mod compress;
pub mod compression;
pub(crate) mod gzip;
pub(crate) mod lz4_frame;
pub mod output;
pub(crate) mod snappy;
