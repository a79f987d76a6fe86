//! The fuzz targets. Each target takes arbitrary bytes and asserts properties of the results.
//!
//! `make fuzz` calls them with inputs of libFuzzer. `cargo test` calls them with the inputs in
//! `corpus`.

mod codecs;
mod files;
mod indexes;
mod legacy;
mod reads;
mod rebuild;
mod records;
mod remote_index;
mod scan;
mod text;

use crate::repair::{self, Repair};
pub use reads::SETTINGS_BYTES;

/// A fuzz target.
pub struct Target {
    /// The name of its binary and its corpus.
    pub name: &'static str,
    /// Checks one input.
    pub check: fn(&[u8]),
    /// Repairs the checksums of an input.
    pub repair: Repair,
}

/// Scans.
pub const SCAN: Target = Target { name: "scan", check: scan::check_scan, repair: repair::segment };
/// Decoded records.
pub const RECORDS: Target =
    Target { name: "records", check: records::check_records, repair: repair::segment };
/// Records as text.
pub const TEXT: Target = Target { name: "text", check: text::check_text, repair: repair::segment };
/// Rows and scans of files.
pub const TABLE_ROWS: Target =
    Target { name: "table_rows", check: files::check_table_rows, repair: repair::segment };
/// Messages of magic 0 and 1.
pub const LEGACY: Target =
    Target { name: "legacy", check: legacy::check_legacy, repair: repair::segment };
/// Decompression.
pub const CODECS: Target =
    Target { name: "codecs", check: codecs::check_codecs, repair: repair::nothing };
/// The remoteLogIndex.
pub const REMOTE_INDEX: Target = Target {
    name: "remote_index",
    check: remote_index::check_entries,
    repair: repair::remote_index,
};
/// A segment's own indexes.
pub const INDEXES: Target =
    Target { name: "indexes", check: indexes::check_indexes, repair: repair::nothing };
/// Producer snapshots.
pub const SNAPSHOT: Target =
    Target { name: "snapshot", check: indexes::check_snapshot, repair: repair::snapshot };
/// Rebuilt indexes.
pub const REBUILD: Target =
    Target { name: "rebuild", check: rebuild::check_rebuild, repair: repair::segment };
/// Reads by an index.
pub const SEGMENT_READ: Target =
    Target { name: "segment_read", check: reads::check_read, repair: repair::behind_settings };
/// Searches for sound batches.
pub const RESYNC: Target =
    Target { name: "resync", check: files::check_resync, repair: repair::segment };
/// Every target.
pub const TARGETS: [Target; 12] = [
    SCAN,
    RECORDS,
    TEXT,
    TABLE_ROWS,
    LEGACY,
    CODECS,
    REMOTE_INDEX,
    INDEXES,
    SNAPSHOT,
    REBUILD,
    SEGMENT_READ,
    RESYNC,
];
