#![no_main]
//! See `tierlog_fuzz::targets`.
tierlog_fuzz::fuzz!(TEXT);
