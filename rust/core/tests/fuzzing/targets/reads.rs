//! Reads of a segment file by its own index.

use std::cell::RefCell;

use tierlog_core::batch::answer::Asked;
use tierlog_core::batch::checksums::BatchChecksums;
use tierlog_core::batch::columns::BatchColumns;
use tierlog_core::batch::header::{CRC_START, MAGIC_END};
use tierlog_core::index::producer_state::ProducerState;
use tierlog_core::segment::read::{BatchSize, SegmentIndex};

use super::files::with_file;
use super::rebuild::rebuild;
use super::scan::columns;

/// Number of bytes before the segment that hold the settings of the read.
pub const SETTINGS_BYTES: usize = 12;

thread_local! {
    static MEMORY: RefCell<Vec<u8>> = RefCell::default();
}

/// The settings of a read, from the first bytes of an input.
struct Settings {
    offset: u16,
    last_offset: u16,
    max_bytes: u16,
    reach_bytes: u16,
    interval_bytes: u8,
    flags: u8,
    flip_at: u8,
    flip_by: u8,
}

impl Settings {
    fn parse(bytes: &[u8; SETTINGS_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, interval_bytes, flags, flip_at, flip_by] = *bytes;
        Self {
            offset: u16::from_be_bytes([a, b]),
            last_offset: u16::from_be_bytes([c, d]),
            max_bytes: u16::from_be_bytes([e, f]),
            reach_bytes: u16::from_be_bytes([g, h]),
            interval_bytes,
            flags,
            flip_at,
            flip_by,
        }
    }
}

/// Reads from the segment that follows the settings. The result must equal the result of a walk
/// over all batches. If a byte of the file was changed, no returned byte that a checksum covers may
/// be wrong.
pub fn check_read(data: &[u8]) {
    let Some((settings, segment)) = data.split_first_chunk::<SETTINGS_BYTES>() else { return };
    let settings = Settings::parse(settings);
    let (batches, scan) = columns(segment);
    let segment = &segment[..scan.stop.position as usize];
    let Ok((rebuilt, _)) =
        rebuild(segment, settings.interval_bytes.into(), ProducerState::default())
    else {
        return;
    };
    let (Some(&start_offset), Some(&end_offset)) =
        (batches.base_offset.first(), batches.last_offset.last())
    else {
        return;
    };
    let sums: &[u8] = if settings.flags & 1 == 0 { &[] } else { &rebuilt.batch_checksums };
    let Some(checksums) = BatchChecksums::new(&rebuilt.offset_index, sums) else {
        panic!("checksums without their entries");
    };
    let index = SegmentIndex {
        entries: &rebuilt.offset_index,
        checksums,
        start_offset,
        end_offset,
        size_bytes: segment.len() as i64,
    };
    let last_offset = start_offset.saturating_add(settings.last_offset.into());
    let asked = Asked {
        offset: start_offset.saturating_add(settings.offset.into()),
        last_offset: if settings.flags & 2 == 0 { i64::MAX } else { last_offset },
        max_bytes: settings.max_bytes.into(),
        minimum_one: settings.flags & 4 == 0,
    };
    let mut stored = segment.to_vec();
    let flip_at = usize::from(settings.flip_at) * 3 % stored.len();
    stored[flip_at] ^= settings.flip_by;
    MEMORY.with_borrow_mut(|memory| {
        let found = with_file(&stored, |file| {
            let size = BatchSize::default();
            let mut read_bytes = 0;
            let reach = settings.reach_bytes.into();
            let found = index.read(file, reach, &asked, &size, memory, &mut read_bytes);
            assert!((0..=2 * segment.len() as i64).contains(&read_bytes));
            found
        });
        let Some(found) = found else { return };
        let (answer, at) = (found.answer, found.position as usize);
        let (start, end) = (at + answer.start, at + answer.end);
        let bytes = &memory[answer.start..answer.end];
        if settings.flip_by != 0 {
            return assert_checked_bytes(&batches, segment, start, bytes);
        }
        let expected = walk(&batches, &asked);
        assert_eq!(expected, Some((start, end, answer.first_offset, answer.next_offset)));
        assert!(bytes == &segment[start..end]);
    });
}

/// Returns the bytes and offsets that answer a read.
fn walk(batches: &BatchColumns, asked: &Asked) -> Option<(usize, usize, i64, i64)> {
    let first = batches.last_offset.iter().position(|&last| last >= asked.offset)?;
    let start = batches.position[first];
    let mut found = None;
    for row in first..batches.len() {
        let end = batches.position[row] + i64::from(batches.size_bytes[row]);
        let fits = (end - start) as u64 <= asked.max_bytes || (row == first && asked.minimum_one);
        if !fits || batches.last_offset[row] > asked.last_offset {
            break;
        }
        found = Some((end as usize, batches.last_offset[row] + 1));
    }
    found.map(|(end, next)| (start as usize, end, batches.base_offset[first], next))
}

/// Asserts that bytes differ only in fields that no checksum covers: base offset and leader epoch.
fn assert_checked_bytes(batches: &BatchColumns, segment: &[u8], start: usize, bytes: &[u8]) {
    for (at, &byte) in bytes.iter().enumerate() {
        let position = start + at;
        if segment[position] != byte {
            let row = batches.position.partition_point(|&begin| begin <= position as i64) - 1;
            let inside = position - batches.position[row] as usize;
            assert!(inside < 8 || (12..MAGIC_END - 1).contains(&inside), "byte {inside}");
            assert!(inside < CRC_START);
        }
    }
}
