//! Runs every fuzz target with the inputs that were kept from fuzzing.
#![allow(clippy::panic, missing_docs)]

mod repair;
mod targets;
#[path = "../../src/vectors.rs"]
mod vectors;

use std::fs;
use std::path::{Path, PathBuf};

use repair::{Chance, Repair};
use targets::{RECORDS, REMOTE_INDEX, SNAPSHOT, TARGETS, Target};
use tierlog_core::index::{producer_state, remote};
use tierlog_core::records::{DecodeOptions, decode_records};
use vectors::vector;

/// Returns the kept inputs of a target.
fn corpus(target: &Target) -> Vec<PathBuf> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzzing/corpus").join(target.name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

#[test]
fn every_kept_input_holds() {
    for target in &TARGETS {
        let paths = corpus(target);
        assert!(paths.len() >= 10, "{} has {} inputs", target.name, paths.len());
        for path in paths {
            let data = fs::read(&path).unwrap();
            println!("{} {}", target.name, path.display());
            (target.check)(&data);
        }
    }
}

/// Replaces `old` by `new` in a hundred copies of `data`. Returns how many of the repaired copies
/// `accepts`.
fn count_accepted(
    data: &[u8],
    (old, new): (&[u8], &[u8]),
    repair: Repair,
    accepts: impl Fn(&[u8]) -> bool,
) -> usize {
    let mut replace = |bytes: &mut [u8], size: usize| {
        if let Some(at) = bytes.windows(old.len()).rposition(|part| part == old) {
            bytes[at..at + new.len()].copy_from_slice(new);
        }
        size
    };
    let is_accepted = |seed: &u32| {
        let mut mutated = data.to_vec();
        mutated.resize(data.len() + 100, 0);
        let size = repair(&mut mutated, data.len(), &mut Chance::new(*seed), &mut replace);
        accepts(&mutated[..size])
    };
    (0..100).filter(is_accepted).count()
}

#[test]
fn repaired_batches_pass_the_gates() {
    for name in [
        "v2_none",
        "v2_gzip",
        "v2_snappy",
        "v2_lz4",
        "v2_zstd",
        "v1_none",
        "v1_gzip",
        "v1_snappy",
        "v1_lz4",
        "v0_none",
        "v0_gzip",
        "v0_snappy",
        "v0_lz4",
    ] {
        let accepted = count_accepted(&vector(name), (b"v2", b"w2"), RECORDS.repair, |data| {
            let options = DecodeOptions::default();
            let decoded = decode_records(data, 0, &options);
            decoded.is_ok_and(|records| {
                records.values.views.iter().any(|view| view.to_le_bytes()[4..6] == *b"w2")
            })
        });
        assert!(accepted > 10 && accepted < 100, "{name}: {accepted}");
    }
}

#[test]
fn repaired_index_files_pass_the_gates() {
    let entry = vector("remote_index_entry_rdi");
    let accepted = count_accepted(&entry, (b"k:0", b"k:9"), REMOTE_INDEX.repair, |data| {
        remote::decode(data, false).is_ok_and(|found| found.len() == 1)
    });
    assert!(accepted > 50 && accepted < 100, "{accepted}");
    let mut snapshot = vec![0; 10 + 46 + 5];
    snapshot[20] = 7;
    let accepted = count_accepted(&snapshot, (&[7], &[9]), SNAPSHOT.repair, |data| {
        producer_state::parse_snapshot(data).is_ok_and(|entries| entries.len() == 1)
    });
    assert!(accepted > 50 && accepted < 100, "{accepted}");
}
