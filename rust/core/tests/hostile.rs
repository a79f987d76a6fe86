//! Hostile bytes for the index formats: every flip and cut of golden entries, and arbitrary bytes.
//! The decoders never panic, accept nothing invalid, and use memory in proportion to the input.

#[path = "../src/vectors.rs"]
mod vectors;

use proptest::collection::vec;
use proptest::prelude::*;
use tierlog_core::batch::header::{BatchHeader, HEADER_SIZE};
use tierlog_core::batch::runs::BatchRuns;
use tierlog_core::checksum::{crc32, crc32c};
use tierlog_core::error::{Error, ErrorKind};
use tierlog_core::index::local::{
    Tail, collect_aborted, lookup_offset, lookup_time, lookup_upper_bound, parse_offset_index,
    parse_time_index, parse_transaction_index,
};
use tierlog_core::index::producer_state::{ProducerState, parse_snapshot};
use tierlog_core::index::remote::{
    self as remote_index, Entry, MAX_RDI_SIZE, NewEntry, RemoteLogIndex, decode, encode,
    lookup_timestamp,
};
use tierlog_core::segment::rebuild::Rebuilder;
use vectors::vector;

/// Returns both golden entries: 49 and 46 bytes.
fn golden() -> Vec<u8> {
    [vector("remote_index_entry_rdi"), vector("remote_index_entry_empty_rdi")].concat()
}

/// Returns an entry with the values in the order of the format.
fn entry(values: [i64; 5], rdi: &[u8]) -> NewEntry<'_> {
    let [first_offset, last_offset, first_timestamp_ms, last_timestamp_ms, data_length] = values;
    NewEntry { first_offset, last_offset, first_timestamp_ms, last_timestamp_ms, data_length, rdi }
}

fn with_trailer(mut data: Vec<u8>, position: i64) -> Vec<u8> {
    data.extend_from_slice(&position.to_be_bytes());
    data
}

/// Writes the right checksum to the entry at `position`.
fn repair(data: &mut [u8], position: usize, size: usize) {
    let crc = crc32(&data[position + 8..position + size]);
    data[position + 4..position + 8].copy_from_slice(&crc.to_be_bytes());
}

/// Returns kind and position of an error, or `Io` when there was no error. No decoder returns an
/// error of kind `Io`.
fn failure(result: Result<RemoteLogIndex, Error>) -> (ErrorKind, u64) {
    result.err().map_or((ErrorKind::Io, 0), |error| (error.kind, error.position))
}

#[test]
fn golden_entries_decode_and_encode_to_the_same_bytes() {
    let data = golden();
    let found = decode(&data, false).unwrap();
    assert_eq!(
        (found.first_offset.as_slice(), found.last_offset.as_slice()),
        (&[100, 150][..], &[149, 300][..])
    );
    assert_eq!(found.first_timestamp_ms, [1000, 2001]);
    assert_eq!(found.last_timestamp_ms, [2000, 2500]);
    assert_eq!(
        (found.data_length.as_slice(), found.position.as_slice()),
        (&[4096, 512][..], &[0, 49][..])
    );
    assert_eq!(Entry::read(&data, 0).unwrap().rdi, b"k:0");
    let rows = [([100, 149, 1000, 2000, 4096], &b"k:0"[..]), ([150, 300, 2001, 2500, 512], b"")];
    assert_eq!(encode(&rows.map(|(values, rdi)| entry(values, rdi))).unwrap(), data);
}

#[test]
fn every_flip_of_a_golden_entry_is_found_and_located() {
    let data = golden();
    for bit in 0..data.len() * 8 {
        let mut flipped = data.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let position = if bit / 8 < 49 { 0 } else { 49 };
        let (kind, at) = failure(decode(&flipped, false));
        assert_eq!(at, position, "bit {bit}");
        let expected = match bit / 8 - position as usize {
            0..2 => ErrorKind::UnknownMagic,
            2..4 | 44..46 => ErrorKind::BadLength,
            _ => ErrorKind::BadCrc,
        };
        assert_eq!(kind, expected, "bit {bit}");
        // A bad entry in the middle is an error also with `recover`.
        if position == 0 {
            assert_eq!(failure(decode(&flipped, true)), (kind, 0));
        }
    }
}

#[test]
fn every_cut_of_golden_entries_is_a_torn_tail() {
    let data = with_trailer(golden(), 49);
    for cut in 0..data.len() {
        let whole = decode(&data[..cut], false);
        let entries = usize::from(cut >= 49) + usize::from(cut >= 95);
        let valid_length = [0, 49, 95][entries];
        if cut == valid_length {
            assert_eq!(whole.unwrap().len(), entries);
            continue;
        }
        assert_eq!(failure(whole), (ErrorKind::Truncated, valid_length as u64), "cut {cut}");
        let found = decode(&data[..cut], true).unwrap();
        assert_eq!(
            (found.len(), found.valid_length, found.has_trailer),
            (entries, valid_length, false)
        );
        assert_eq!(found.torn.map(|error| error.kind), Some(ErrorKind::Truncated));
    }
}

#[test]
fn the_trailer_must_name_the_last_entry() {
    let found = decode(&with_trailer(golden(), 49), false).unwrap();
    assert_eq!((found.len(), found.valid_length, found.has_trailer), (2, 95, true));
    for position in [0, 48, 50, -1, i64::MIN] {
        let data = with_trailer(golden(), position);
        assert_eq!(failure(decode(&data, false)), (ErrorKind::Truncated, 95));
    }
    // Without an entry the trailer has no valid value.
    assert_eq!(failure(decode(&[0; 8], false)), (ErrorKind::Truncated, 0));
}

#[test]
fn append_that_never_reached_the_disk_is_torn() {
    let mut data = golden();
    data.extend([0; 94]);
    assert_eq!(failure(decode(&data, false)), (ErrorKind::BadLength, 95));
    let found = decode(&data, true).unwrap();
    assert_eq!((found.len(), found.valid_length), (2, 95));
    // Only a part of the last entry reached the disk, with and without its trailer.
    let mut data = golden();
    data[90] ^= 0xff;
    for data in [data.clone(), with_trailer(data, 49)] {
        assert_eq!(failure(decode(&data, false)), (ErrorKind::BadCrc, 49));
        let found = decode(&data, true).unwrap();
        assert_eq!((found.len(), found.torn.map(|error| error.kind)), (1, Some(ErrorKind::BadCrc)));
    }
}

#[test]
fn impossible_values_with_a_right_checksum_are_refused() {
    let i64_max = i64::MAX.to_be_bytes();
    let cases: [(usize, &[u8], ErrorKind); 10] = [
        (0, &[0, 1], ErrorKind::UnknownMagic),
        (0, &[0xff, 0xff], ErrorKind::UnknownMagic),
        (2, &[0, 45], ErrorKind::BadLength),
        (2, &[0xff, 0xff], ErrorKind::BadLength),
        (44, &[0xff, 0xff], ErrorKind::BadLength),
        (44, &[0x7f, 0xff], ErrorKind::BadLength),
        (8, &i64_max, ErrorKind::BadRecord),
        (8, &[0xff], ErrorKind::BadRecord),
        (40, &[0, 0, 0, 0], ErrorKind::BadRecord),
        (40, &[0x80, 0, 0, 0], ErrorKind::BadRecord),
    ];
    for (at, bytes, kind) in cases {
        let mut data = golden();
        data[at..at + bytes.len()].copy_from_slice(bytes);
        repair(&mut data, 0, 49);
        assert_eq!(failure(decode(&data, false)), (kind, 0), "{bytes:?} at {at}");
        assert_eq!(failure(decode(&data, true)), (kind, 0));
    }
    // These lengths agree with each other, but not with the format or the file.
    let mut data = golden();
    data[2..4].copy_from_slice(&45i16.to_be_bytes());
    data[44..46].copy_from_slice(&(-1i16).to_be_bytes());
    assert_eq!(failure(decode(&data, false)), (ErrorKind::BadLength, 0));
    let mut data = golden();
    data[2..4].copy_from_slice(&i16::MAX.to_be_bytes());
    data[44..46].copy_from_slice(&(i16::MAX - 46).to_be_bytes());
    assert_eq!(failure(decode(&data, false)), (ErrorKind::Truncated, 0));
    // The last offset of the second entry is not above the first.
    let mut data = golden();
    data[49 + 8..49 + 16].copy_from_slice(&149i64.to_be_bytes());
    data[49 + 16..49 + 24].copy_from_slice(&149i64.to_be_bytes());
    repair(&mut data, 49, 46);
    assert_eq!(failure(decode(&data, true)), (ErrorKind::OffsetOrder, 49));
}

fn encode_one(offsets: (i64, i64), data_length: i64, rdi: &[u8]) -> Result<Vec<u8>, Error> {
    encode(&[entry([offsets.0, offsets.1, i64::MIN, -1, data_length], rdi)])
}

#[test]
fn the_encoder_refuses_what_does_not_fit() {
    let longest = vec![b'x'; MAX_RDI_SIZE];
    let data = encode_one((0, i64::MAX), i32::MAX.into(), &longest).unwrap();
    assert_eq!((data.len(), &data[2..4]), (32_767, &[0x7f, 0xff][..]));
    let found = decode(&data, false).unwrap();
    assert_eq!((found.first_timestamp_ms[0], found.last_timestamp_ms[0]), (i64::MIN, -1));
    for refused in [
        encode_one((0, 0), 1, &[b'x'; MAX_RDI_SIZE + 1]),
        encode_one((0, 0), 1, &[b'x'; 65_536 + 3]),
        encode_one((0, 0), 0, b""),
        encode_one((0, 0), -1, b""),
        encode_one((0, 0), 1 << 31, b""),
        encode_one((0, 0), 1 << 32 | 1, b""),
        encode_one((-1, 0), 1, b""),
        encode_one((1, 0), 1, b""),
    ] {
        assert_eq!(refused.map_err(|error| error.kind), Err(ErrorKind::InvalidArgument));
    }
    let rows = [5, 6, 6].map(|offset| entry([offset, offset, 0, 0, 1], b""));
    let error = encode(&rows).unwrap_err();
    assert_eq!((error.kind, error.position), (ErrorKind::InvalidArgument, 2));
    assert!(encode(&[]).unwrap().is_empty());
}

#[test]
fn groups_never_split_a_batch() {
    let runs = BatchRuns {
        position: &[0, 100, 250, 300, 700],
        size_bytes: &[100, 150, 50, 400, 10],
        base_offset: &[0, 10, 20, 30, 40],
        last_offset: &[9, 19, 29, 39, 49],
        base_timestamp_ms: &[1000, 900, 1200, 1300, 1400],
        max_timestamp_ms: &[5000, 1000, 1200, 1300, 1400],
    };
    let data = runs.encode("a:b", 250).unwrap();
    let found = decode(&data, false).unwrap();
    assert_eq!(found.data_length, [250, 450, 10]);
    assert_eq!((found.first_offset, found.last_offset), (vec![0, 20, 40], vec![19, 39, 49]));
    assert_eq!(found.first_timestamp_ms, [1000, 1200, 1400]);
    assert_eq!(found.last_timestamp_ms, [5000, 1300, 1400]);
    assert_eq!(Entry::read(&data, found.position[1] as usize).unwrap().rdi, b"a:b:250");
    let gap = BatchRuns { position: &[0, 100, 250, 301, 700], ..runs };
    assert_eq!(gap.encode("k", 1).unwrap_err().position, 3);
    assert!(BatchRuns { size_bytes: &[100, 150, 0, 400, 10], ..runs }.encode("k", 1).is_err());
    // Two batches that together have more than 2^31 bytes become two entries for any group size.
    let large = BatchRuns {
        position: &[0, 2_000_000_000],
        size_bytes: &[2_000_000_000; 2],
        base_offset: &[0, 1],
        last_offset: &[0, 1],
        base_timestamp_ms: &[0; 2],
        max_timestamp_ms: &[0; 2],
    };
    assert_eq!(decode(&large.encode("k", u64::MAX).unwrap(), false).unwrap().len(), 2);
}

#[test]
fn golden_index_vectors() {
    let found = parse_offset_index(&vector("offset_index"), 100, Tail::Zeros).unwrap();
    assert_eq!((found.key, found.value), (vec![103, 150, 300], vec![0, 4200, 9000]));
    let found = parse_time_index(&vector("time_index"), 100, Tail::Zeros).unwrap();
    assert_eq!((found.key, found.value), (vec![1005, 2000], vec![103, 300]));
    let data = vector("transaction_index");
    let found = parse_transaction_index(&data, 100).unwrap();
    assert_eq!(found.iter().flat_map(|entry| entry.to_bytes()).collect::<Vec<_>>(), data);
    let data = vector("producer_snapshot");
    let state = ProducerState::from_snapshot(&data, None).unwrap();
    assert_eq!((state.to_snapshot(), state.first_open_offset()), (data, Some(101)));
}

#[test]
fn every_flip_and_cut_of_a_snapshot_is_found() {
    let data = vector("producer_snapshot");
    for bit in 0..data.len() * 8 {
        let mut flipped = data.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let kind = parse_snapshot(&flipped).map_err(|error| error.kind).unwrap_err();
        let expected = if bit < 16 { ErrorKind::UnknownMagic } else { ErrorKind::BadCrc };
        assert_eq!(kind, expected, "bit {bit}");
    }
    for cut in 0..data.len() {
        assert!(parse_snapshot(&data[..cut]).is_err(), "cut {cut}");
    }
    let mut data = data;
    data[9] = 1;
    let crc = crc32c(&data[6..]);
    data[2..6].copy_from_slice(&crc.to_be_bytes());
    assert_eq!(parse_snapshot(&data).unwrap_err().kind, ErrorKind::BadLength);
}

/// Values of one valid row.
fn rows() -> impl Strategy<Value = Vec<(i64, i64, i64, i64, i32, Vec<u8>)>> {
    let row =
        (0..1000i64, 0..1000i64, any::<i64>(), any::<i64>(), 1..=i32::MAX, vec(any::<u8>(), 0..40));
    vec(row, 0..80)
}

/// Turns steps into ascending rows.
fn ascending(rows: Vec<(i64, i64, i64, i64, i32, Vec<u8>)>) -> (Vec<[i64; 5]>, Vec<Vec<u8>>) {
    let mut next = 0;
    rows.into_iter()
        .map(|(gap, length, first_ms, last_ms, data_length, rdi)| {
            let first = next + gap;
            next = first + length + 1;
            ([first, first + length, first_ms, last_ms, data_length.into()], rdi)
        })
        .unzip()
}

proptest! {
    #[test]
    fn encoded_entries_are_decoded(rows in rows(), base in 0..1000i64) {
        let (values, rdi) = ascending(rows);
        let column = |at: usize| values.iter().map(|row| row[at]).collect::<Vec<_>>();
        let columns: Vec<Vec<i64>> = (0..5).map(column).collect();
        let entries: Vec<_> =
            values.iter().zip(&rdi).map(|(row, rdi)| entry(*row, rdi)).collect();
        let data = encode(&entries).unwrap();
        let found = decode(&data, false).unwrap();
        prop_assert_eq!(&found.first_offset, &columns[0]);
        prop_assert_eq!(&found.last_offset, &columns[1]);
        prop_assert_eq!(&found.first_timestamp_ms, &columns[2]);
        prop_assert_eq!(&found.last_timestamp_ms, &columns[3]);
        let lengths: Vec<i64> = found.data_length.iter().map(|&length| length.into()).collect();
        prop_assert_eq!(&lengths, &columns[4]);
        for (row, &position) in found.position.iter().enumerate() {
            prop_assert_eq!(Entry::read(&data, position as usize).unwrap().rdi, &rdi[row][..]);
        }
        if let Some(&last) = found.position.last() {
            let file = decode(&with_trailer(data, last), false).unwrap();
            prop_assert!(file.has_trailer);
            prop_assert_eq!((&file.position, &file.last_offset), (&found.position, &found.last_offset));
        }
        let least = columns[0].first().copied().unwrap_or(0).min(base);
        let index = found.offset_index(least).unwrap();
        let parsed = parse_offset_index(&index, least, Tail::Empty).unwrap();
        prop_assert_eq!((&parsed.key, &parsed.value), (&found.last_offset, &found.position));
        let times = parse_time_index(&found.time_index(least).unwrap(), least, Tail::Empty).unwrap();
        prop_assert!(times.key.is_sorted() && times.key.first().is_none_or(|&ms| ms >= 0));
        // Every look-up agrees with a linear search.
        for target in columns[1].iter().flat_map(|&offset| [offset - 1, offset, offset + 1]) {
            let row = columns[1].iter().position(|&offset| offset >= target);
            prop_assert_eq!(remote_index::lookup_offset(&found.last_offset, target), row);
        }
        for &target in &columns[3] {
            let row = columns[3].iter().position(|&ms| ms >= target);
            prop_assert_eq!(lookup_timestamp(&found.last_timestamp_ms, target), row);
        }
    }

    #[test]
    fn damaged_files_never_pass(rows in rows(), at in any::<prop::sample::Index>(), bits in 1..=255u8) {
        let (values, rdi) = ascending(rows);
        let entries: Vec<_> =
            values.iter().zip(&rdi).map(|(row, rdi)| entry(*row, rdi)).collect();
        let mut data = encode(&entries).unwrap();
        prop_assume!(!data.is_empty());
        let at = at.index(data.len());
        data[at] ^= bits;
        let error = decode(&data, false).map(|found| found.len()).unwrap_err();
        prop_assert!(error.position <= at as u64);
        if let Ok(found) = decode(&data, true) {
            prop_assert!(found.torn.is_some() && found.valid_length <= at);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(data in vec(any::<u8>(), 0..400), base in any::<i64>(), target in any::<i64>()) {
        for recover in [false, true] {
            if let Ok(found) = decode(&data, recover) {
                prop_assert!(found.valid_length <= data.len());
                let _ = found.offset_index(base);
                let _ = found.time_index(base);
            }
        }
        let _ = Entry::read(&data, target as usize);
        for tail in [Tail::Empty, Tail::Zeros, Tail::Anything] {
            let _ = parse_offset_index(&data, base, tail);
            let _ = parse_time_index(&data, base, tail);
        }
        lookup_offset(&data, base, target);
        lookup_upper_bound(&data, base, target);
        lookup_time(&data, base, target);
        if let Ok(found) = parse_transaction_index(&data, base) {
            let _ = collect_aborted(&found, base, target);
        }
        let _ = parse_snapshot(&data);
    }

    #[test]
    fn arbitrary_entries_with_good_checksums_never_panic(
        fixed in vec(any::<u8>(), 38..39), rdi in vec(any::<u8>(), 0..20), lengths in any::<Option<(i16, i16)>>(),
        base in any::<i64>(),
    ) {
        let size = 46 + rdi.len() as i16;
        let (length, rdi_length) = lengths.unwrap_or((size, size - 46));
        let mut data = [&[0, 0][..], &length.to_be_bytes(), &[0; 4], &fixed, &rdi].concat();
        data[44..46].copy_from_slice(&rdi_length.to_be_bytes());
        repair(&mut data, 0, size as usize);
        if let Ok(found) = decode(&data, false) {
            prop_assert_eq!(found.len(), 1);
            prop_assert!(found.first_offset[0] <= found.last_offset[0] && found.data_length[0] > 0);
            let _ = found.offset_index(base);
            let _ = found.time_index(base);
        }
    }

    #[test]
    fn arbitrary_snapshots_and_batches_never_panic(
        entries in vec(any::<u8>(), 0..46 * 70),
        headers in vec((vec(any::<u8>(), HEADER_SIZE), any::<i64>(), vec(any::<u8>(), 0..40)), 0..30),
        base in any::<i64>(),
    ) {
        let count = entries.len() / 46;
        let body = [&(count as i32).to_be_bytes()[..], &entries[..count * 46]].concat();
        let data = [&[0, 1][..], &crc32c(&body).to_be_bytes(), &body].concat();
        let state = ProducerState::from_snapshot(&data, None).unwrap();
        prop_assert!(state.producers().len() <= count);
        let mut rebuilder = Rebuilder::new(Some(base), 10, state);
        for (bytes, position, records) in headers {
            let mut header = BatchHeader::parse(bytes.first_chunk().unwrap());
            header.base_offset = base.saturating_add(position & 0xffff);
            header.last_offset_delta &= 0xffff;
            let position = position.unsigned_abs();
            if rebuilder.push(position, bytes[16] as i8, &header, Some(&records)).is_err() {
                break;
            }
        }
        if let Ok((rebuilt, _)) = rebuilder.finish(None) {
            prop_assert!(parse_snapshot(&rebuilt.producer_snapshot).is_ok());
        }
    }
}
