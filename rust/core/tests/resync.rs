//! The search finds the next sound batch, and rejects batches inside records.

#![expect(clippy::expect_used, reason = "a test that cannot go on has failed")]

use tierlog_core::checksum::crc32c;
use tierlog_core::segment::resync::{Bounds, find_batch};

/// A v2 batch of ten offsets whose records are `body`.
fn batch(base_offset: i64, body: &[u8]) -> Vec<u8> {
    let mut tail = vec![0, 0, 0, 0, 0, 9];
    for timestamp in [1000 + base_offset, 2000, -1] {
        tail.extend_from_slice(&timestamp.to_be_bytes());
    }
    tail.extend_from_slice(&[0xff; 6]);
    tail.extend_from_slice(&10i32.to_be_bytes());
    tail.extend_from_slice(body);
    let mut bytes = base_offset.to_be_bytes().to_vec();
    bytes.extend_from_slice(&(tail.len() as i32 + 9).to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0, 7, 2]);
    bytes.extend_from_slice(&crc32c(&tail).to_be_bytes());
    bytes.extend_from_slice(&tail);
    bytes
}

fn segment(bodies: &[&[u8]]) -> Vec<u8> {
    let numbered = bodies.iter().enumerate();
    numbered.flat_map(|(number, body)| batch(10 * number as i64, body)).collect()
}

fn found(bytes: &[u8], start: u64) -> Option<u64> {
    let bounds = Bounds { offset: 0, next_base_offset: i64::MAX };
    find_batch(bytes, start, &bounds).expect("readable")
}

#[test]
fn next_batch_is_found_from_every_byte() {
    let bytes = segment(&[&[1; 40], &[], &[3; 300], &[4; 5]]);
    let starts = [0, 101, 162, 523];
    for from in 0..=523 {
        assert_eq!(found(&bytes, from), starts.into_iter().find(|&start| start >= from), "{from}");
    }
    assert_eq!(found(&bytes, 524), None);
}

#[test]
fn embedded_batch_is_replaced_by_a_later_one() {
    let inner = batch(30, &[9; 40]);
    let bytes = segment(&[&[1; 40], &inner, &[3; 70], &[4; 5]]);
    assert_eq!(found(&bytes, 110), Some(101 + 61 + inner.len() as u64));
}

#[test]
fn batches_between_two_damaged_ones_are_found() {
    let mut bytes = segment(&[&[1; 40], &[2; 20], &[3; 60], &[4; 5], &[5; 7]]);
    bytes[101 + 81 + 121 + 16] ^= 0x40;
    assert_eq!(found(&bytes, 1), Some(101));
}

#[test]
fn false_headers_stay_within_their_budget() {
    // Each of many headers claims half of the file as its batch. None of them has the right
    // checksum.
    let mut header = batch(0, &[])[..61].to_vec();
    header[8..12].copy_from_slice(&(2i32 << 20).to_be_bytes());
    let bytes = header.repeat(4 << 20 >> 6);
    assert_eq!(found(&bytes, 1), None);
}
