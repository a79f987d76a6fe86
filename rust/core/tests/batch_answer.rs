//! Answers to reads equal the rows of a scan, and unusual input gets no answer.

#![expect(clippy::expect_used, reason = "a test that cannot go on has failed")]

mod build;

use build::raw_batch;
use proptest::prelude::*;
use tierlog_core::batch::answer::{Answer, Asked, Origin, answer};
use tierlog_core::batch::checksums::{BatchChecksums, checksum_of};

const START_OFFSET: i64 = 1000;

/// Contiguous batches: start, end, first offset and last offset of each.
type Rows = Vec<(usize, usize, i64, i64)>;

/// Returns batches with these numbers of offsets and record bytes.
fn segment(batches: &[(i32, usize)]) -> (Vec<u8>, Rows) {
    let (mut bytes, mut rows, mut offset) = (Vec::new(), Rows::new(), START_OFFSET);
    for &(offsets, size) in batches {
        let at = bytes.len();
        bytes.extend(raw_batch(offset, 0, offsets - 1, offsets, &vec![7; size]));
        let next = offset + i64::from(offsets);
        rows.push((at, bytes.len(), offset, next - 1));
        offset = next;
    }
    (bytes, rows)
}

fn origin(rows: &Rows, is_end: bool) -> Origin<'static> {
    let &(_, _, _, last_offset) = rows.first().expect("a batch");
    let &(_, _, _, end_offset) = rows.last().expect("a batch");
    let (position, checksums) = (0, BatchChecksums::default());
    Origin {
        position,
        checksums,
        start_offset: START_OFFSET,
        end_offset,
        first_last_offset: last_offset,
        is_end,
    }
}

/// Returns the answer that the rows imply.
fn expected(rows: &Rows, asked: &Asked) -> Option<Answer> {
    let mut found: Option<Answer> = None;
    for &(start, end, first_offset, last_offset) in rows {
        if last_offset < asked.offset {
            continue;
        }
        let (start, first_offset) =
            found.map_or((start, first_offset), |a| (a.start, a.first_offset));
        let fits =
            (end - start) as u64 <= asked.max_bytes || (found.is_none() && asked.minimum_one);
        if !fits || last_offset > asked.last_offset {
            break;
        }
        found = Some(Answer { start, end, first_offset, next_offset: last_offset + 1 });
    }
    found
}

fn asked(offset: i64, max_bytes: u64) -> Asked {
    Asked { offset, last_offset: i64::MAX, max_bytes, minimum_one: true }
}

#[test]
fn truncated_bytes_have_no_answer() {
    let (bytes, rows) = segment(&[(3, 50), (2, 60), (4, 70)]);
    let whole = origin(&rows, true);
    let all = asked(START_OFFSET, 10_000);
    assert_eq!(answer(&bytes, &whole, &all), expected(&rows, &all));
    // More bytes may follow, and the next batch may fit.
    assert_eq!(answer(&bytes, &origin(&rows, false), &all), None);
    for cut in 1..bytes.len() {
        assert_eq!(
            answer(&bytes[..cut], &whole, &all).map(|a| a.end),
            rows.iter().map(|r| r.1).find(|&end| end == cut)
        );
    }
    assert_eq!(answer(&[], &whole, &all), None);
    assert_eq!(answer(&bytes, &whole, &asked(START_OFFSET + 9, 10_000)), None);
}

#[test]
fn next_batch_confirms_the_last_one() {
    let (bytes, rows) = segment(&[(3, 50), (2, 60), (4, 70)]);
    let (_, second, _, _) = rows[0];
    let one = asked(START_OFFSET, 1);
    let known = origin(&rows, false);
    assert_eq!(answer(&bytes[..second + 17], &known, &one), expected(&rows, &one));
    assert_eq!(answer(&bytes[..second + 16], &known, &one), None);
    let mut lower = bytes.clone();
    lower[second + 7] -= 1;
    assert_eq!(answer(&lower, &known, &one), None);
}

#[test]
fn bytes_that_contradict_the_index_have_no_answer() {
    let (bytes, rows) = segment(&[(3, 50), (2, 60), (4, 70)]);
    let all = asked(START_OFFSET, 10_000);
    let right = origin(&rows, true);
    for wrong in [
        Origin { first_last_offset: START_OFFSET, ..right },
        Origin { start_offset: START_OFFSET + 1, ..right },
        Origin { end_offset: right.end_offset - 1, ..right },
        Origin { start_offset: i64::MIN, ..right },
    ] {
        assert_eq!(answer(&bytes, &wrong, &all), None);
    }
    let mut old = bytes.clone();
    old[16] = 1;
    assert_eq!(answer(&old, &right, &all), None);
}

fn batches() -> impl Strategy<Value = Vec<(i32, usize)>> {
    proptest::collection::vec((1..5, 0usize..400), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn answers_equal_those_of_the_scanner(
        batches in batches(),
        offset in 0i64..40,
        last_offset in 0i64..60,
        max_bytes in 0u64..3000,
        minimum_one in any::<bool>(),
    ) {
        let (bytes, rows) = segment(&batches);
        let asked = Asked {
            offset: START_OFFSET + offset,
            last_offset: START_OFFSET + last_offset,
            max_bytes,
            minimum_one,
        };
        prop_assert_eq!(answer(&bytes, &origin(&rows, true), &asked), expected(&rows, &asked));
    }

    #[test]
    fn damage_is_never_returned(
        batches in batches(),
        offset in 0i64..40,
        max_bytes in 0u64..3000,
        at in any::<prop::sample::Index>(),
        mask in 1u8..,
    ) {
        let (mut bytes, rows) = segment(&batches);
        let at = at.index(bytes.len());
        bytes[at] ^= mask;
        let asked = asked(START_OFFSET + offset, max_bytes);
        let (found, sound) = (answer(&bytes, &origin(&rows, true), &asked), expected(&rows, &asked));
        if let Some(found) = found {
            let sound = sound.expect("an answer where there is one");
            prop_assert_eq!((found.start, found.first_offset), (sound.start, sound.first_offset));
            prop_assert!(found.end <= sound.end);
            prop_assert!(rows.iter().any(|row| (row.1, row.3 + 1) == (found.end, found.next_offset)));
            // In returned bytes only the leader epoch is not covered by a checksum.
            let row = rows.iter().find(|row| row.0 <= at && at < row.1).expect("a batch");
            let in_answer = found.start <= row.0 && row.1 <= found.end;
            prop_assert!(!in_answer || (12..16).contains(&(at - row.0)));
        }
    }
}

#[test]
fn batch_of_another_segment_has_no_answer() {
    let (bytes, rows) = segment(&[(3, 50), (2, 60), (4, 70)]);
    let of = |row: usize| checksum_of(&bytes[rows[row].0..]).expect("a batch").to_be_bytes();
    let entry = |row: usize| [1_i32.to_be_bytes(), (rows[row].0 as i32).to_be_bytes()].concat();
    let entries = [entry(1), entry(2)].concat();
    for wrong in 0..4 {
        let mut section = [of(0), of(1), of(2)].concat();
        if let Some(byte) = section.get_mut(4 * wrong) {
            *byte ^= 1;
        }
        let checksums = BatchChecksums::new(&entries, &section).expect("a whole section");
        let whole = Origin { checksums, ..origin(&rows, true) };
        assert_eq!(answer(&bytes, &whole, &asked(1000, u64::MAX)).is_some(), wrong == 3);
        let rest = rows[1..].to_vec();
        let later = Origin { position: rows[1].0 as u64, checksums, ..origin(&rest, true) };
        let found = answer(&bytes[rows[1].0..], &later, &asked(1003, u64::MAX));
        assert_eq!(found.is_some(), wrong == 0 || wrong == 3);
    }
}
