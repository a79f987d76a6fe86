//! Builds record batches for tests and benches. The code is simple and slow.
#![allow(clippy::unwrap_used, dead_code, missing_docs)]

use std::io::Write;

use tierlog_core::checksum::crc32c;

/// One record: timestamp, key, value, headers.
#[derive(Clone, Debug, Default)]
pub struct Record {
    pub timestamp_delta: i64,
    pub offset_delta: i32,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

pub fn put_varlong(out: &mut Vec<u8>, value: i64) {
    let mut raw = (value << 1 ^ value >> 63) as u64;
    while raw >= 0x80 {
        out.push(raw as u8 | 0x80);
        raw >>= 7;
    }
    out.push(raw as u8);
}

fn put_field(out: &mut Vec<u8>, field: Option<&[u8]>) {
    put_varlong(out, field.map_or(-1, |bytes| bytes.len() as i64));
    out.extend(field.unwrap_or_default());
}

/// Returns the records as the payload of a v2 batch before compression.
pub fn payload(records: &[Record]) -> Vec<u8> {
    let mut out = Vec::new();
    for record in records {
        let mut body = vec![0];
        put_varlong(&mut body, record.timestamp_delta);
        put_varlong(&mut body, record.offset_delta.into());
        put_field(&mut body, record.key.as_deref());
        put_field(&mut body, record.value.as_deref());
        put_varlong(&mut body, record.headers.len() as i64);
        for (key, value) in &record.headers {
            put_field(&mut body, Some(key));
            put_field(&mut body, value.as_deref());
        }
        put_varlong(&mut out, body.len() as i64);
        out.extend(body);
    }
    out
}

/// Compresses a payload like Kafka's Java producer (`codec` as in attributes).
pub fn compress(codec: i16, plain: &[u8]) -> Vec<u8> {
    match codec {
        0 => plain.to_vec(),
        1 => {
            let level = flate2::Compression::default();
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
        2 => {
            let mut stream = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
            for block in plain.chunks(32 << 10) {
                let packed = snap::raw::Encoder::new().compress_vec(block).unwrap();
                stream.extend((packed.len() as u32).to_be_bytes());
                stream.extend(packed);
            }
            stream
        }
        3 => {
            let info =
                lz4_flex::frame::FrameInfo::new().block_size(lz4_flex::frame::BlockSize::Max64KB);
            let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
        _ => zstd::encode_all(plain, 3).unwrap(),
    }
}

/// Returns a v2 batch with a valid CRC; `attributes` hold the codec and flags.
pub fn batch(base_offset: i64, attributes: i16, records: &[Record]) -> Vec<u8> {
    let packed = compress(attributes & 7, &payload(records));
    let last_delta = records.last().map_or(0, |record| record.offset_delta);
    raw_batch(base_offset, attributes, last_delta, records.len() as i32, &packed)
}

pub const BASE_TIMESTAMP_MS: i64 = 1_700_000_000_000;

/// Returns a v2 batch with any payload.
pub fn raw_batch(
    base_offset: i64,
    attributes: i16,
    last_delta: i32,
    count: i32,
    payload: &[u8],
) -> Vec<u8> {
    let mut tail = attributes.to_be_bytes().to_vec();
    tail.extend(last_delta.to_be_bytes());
    tail.extend(BASE_TIMESTAMP_MS.to_be_bytes());
    tail.extend((BASE_TIMESTAMP_MS + 1_000_000).to_be_bytes());
    tail.extend((-1i64).to_be_bytes());
    tail.extend((-1i16).to_be_bytes());
    tail.extend((-1i32).to_be_bytes());
    tail.extend(count.to_be_bytes());
    tail.extend(payload);
    let mut whole = base_offset.to_be_bytes().to_vec();
    whole.extend((tail.len() as i32 + 9).to_be_bytes());
    whole.extend(3i32.to_be_bytes());
    whole.push(2);
    whole.extend(crc32c(&tail).to_be_bytes());
    whole.extend(tail);
    whole
}

/// Returns a text that differs for each seed. The text has repeats, so that codecs can compress it.
pub fn text(seed: u64, size: usize) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "order",
        "price",
        "amount",
        "status",
        "customer",
        "true",
        "null",
        "2024-05-01",
        "EUR",
        "shipped",
        "city",
        "street",
        "\":\"",
        "\",\"",
        "0.125",
        "identifier",
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(size + 16);
    while out.len() < size {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = WORDS[(state >> 60) as usize];
        out.extend(word.as_bytes());
        if state >> 56 & 3 == 0 {
            out.extend(format!("{:05}", state >> 32 & 0xffff).as_bytes());
        }
    }
    out.truncate(size);
    out
}

/// Returns a segment of about `total_bytes` before compression. Its batches have about
/// `batch_bytes`, and its records have `record_bytes` in key and value. Records have keys if
/// `keyed` is true.
pub fn segment(
    codec: i16,
    record_bytes: usize,
    batch_bytes: usize,
    total_bytes: usize,
    keyed: bool,
) -> Vec<u8> {
    let per_batch = (batch_bytes / (record_bytes + 10)).max(1);
    let mut out = Vec::new();
    let mut offset = 0i64;
    let mut plain = 0;
    while plain < total_bytes {
        let records: Vec<Record> = (0..per_batch)
            .map(|index| {
                let seed = offset as u64 + index as u64;
                let key = keyed.then(|| format!("key-{:04}", seed % 5000).into_bytes());
                let value = text(seed, record_bytes - key.as_ref().map_or(0, Vec::len));
                Record {
                    timestamp_delta: index as i64 / 4,
                    offset_delta: index as i32,
                    key,
                    value: Some(value),
                    headers: Vec::new(),
                }
            })
            .collect();
        plain += per_batch * (record_bytes + 10);
        out.extend(batch(offset, codec, &records));
        offset += per_batch as i64;
    }
    out
}

/// Returns the number of records of [`segment`].
pub fn rows(record_bytes: usize, batch_bytes: usize, total_bytes: usize) -> usize {
    let per_batch = (batch_bytes / (record_bytes + 10)).max(1);
    total_bytes.div_ceil(per_batch * (record_bytes + 10)) * per_batch
}
