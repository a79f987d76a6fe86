//! Repairs the checksums and lengths of a mutated input, so that it passes the first checks of a
//! decoder. Each repair is sometimes left out, so that these checks are tested, too.

use tierlog_core::batch::header::{
    BatchHeader, CRC_START, Codec, HEADER_SIZE, LOG_OVERHEAD, MAGIC_END,
};
use tierlog_core::checksum::{crc32, crc32c};
use tierlog_core::codec::compression::Decompressor;
use tierlog_core::codec::output::Output;
use tierlog_core::varint::{read_varint, read_varlong};

use crate::targets::SETTINGS_BYTES;

/// Mutates the given number of bytes at the start of a buffer, and returns the new number of bytes.
pub type Mutate<'a> = &'a mut dyn FnMut(&mut [u8], usize) -> usize;

/// Repairs the first `size` bytes of a buffer and returns their new number, which is at most the
/// size of the buffer.
pub type Repair = fn(&mut [u8], usize, &mut Chance, Mutate<'_>) -> usize;

/// One in this many repairs is left out.
const LEFT_OUT: u32 = 12;
/// In one of this many inputs, decompressed bytes are mutated.
const OPENED: u32 = 4;
/// Largest number of decompressed bytes that are mutated.
const PLAIN_BYTES: usize = 4096;
const LEGACY_CRC_AT: usize = 12;
/// Smallest size of a message: its fields before the key, and two lengths.
const MESSAGE_BYTES: usize = 26;

/// A small generator of random numbers.
pub struct Chance(u32);

impl Chance {
    /// Starts from a seed.
    pub fn new(seed: u32) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9) | 1)
    }

    /// Returns true once in `count` calls.
    pub fn is_one_in(&mut self, count: u32) -> bool {
        self.draw(count) == 0
    }

    fn draw(&mut self, count: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        (self.0 >> 8) % count
    }

    fn repairs(&mut self) -> bool {
        !self.is_one_in(LEFT_OUT)
    }
}

/// Mutates an input without checksums.
pub fn nothing(data: &mut [u8], size: usize, _chance: &mut Chance, mutate: Mutate<'_>) -> usize {
    mutate(data, size)
}

/// Mutates and repairs a segment. Sometimes it mutates the records inside a compressed batch, but
/// in most cases the stored bytes.
pub fn segment(data: &mut [u8], size: usize, chance: &mut Chance, mutate: Mutate<'_>) -> usize {
    let size = match chance.is_one_in(OPENED) {
        true => mutate_opened(data, size, chance, mutate),
        false => None,
    }
    .unwrap_or_else(|| mutate(data, size));
    repair_batches(&mut data[..size], chance);
    size
}

/// Mutates and repairs a segment that follows the settings of a read.
pub fn behind_settings(
    data: &mut [u8],
    size: usize,
    chance: &mut Chance,
    mutate: Mutate<'_>,
) -> usize {
    if size <= SETTINGS_BYTES || chance.is_one_in(OPENED) {
        let size = mutate(data, size);
        repair_batches(data[..size].get_mut(SETTINGS_BYTES..).unwrap_or_default(), chance);
        return size;
    }
    let (_, rest) = data.split_at_mut(SETTINGS_BYTES);
    SETTINGS_BYTES + segment(rest, size - SETTINGS_BYTES, chance, mutate)
}

/// Repairs lengths, offsets and checksums of the batches of a segment.
fn repair_batches(mut rest: &mut [u8], chance: &mut Chance) {
    let mut before = -1;
    while rest.len() >= MESSAGE_BYTES {
        let least = if rest[MAGIC_END - 1] == 2 { HEADER_SIZE } else { MESSAGE_BYTES };
        let mut size = LOG_OVERHEAD.saturating_add(number(rest, 8) as usize);
        if !(least..=rest.len()).contains(&size) {
            if rest.len() < least || !chance.repairs() {
                return;
            }
            size = rest.len();
            put(rest, 8, (size - LOG_OVERHEAD) as i32);
        }
        let (batch, after) = std::mem::take(&mut rest).split_at_mut(size);
        before = match batch[MAGIC_END - 1] {
            2 => repair_batch(batch, before, chance),
            0 | 1 => repair_message(batch, before, chance),
            _ => return,
        };
        rest = after;
    }
}

/// Repairs a batch of magic 2 and returns its last offset.
fn repair_batch(batch: &mut [u8], before: i64, chance: &mut Chance) -> i64 {
    repair_offset(batch, before, chance);
    let header = BatchHeader::parse(batch.first_chunk().unwrap_or(&[0; HEADER_SIZE]));
    if header.codec() == Some(Codec::None) && header.record_count != 0 && chance.repairs() {
        let (count, last_delta) = repair_records(&mut batch[HEADER_SIZE..], chance);
        put(batch, 57, count);
        put(batch, 23, header.last_offset_delta.max(last_delta).max(count.saturating_sub(1)));
    }
    if chance.repairs() {
        let crc = crc32c(&batch[CRC_START..]);
        put(batch, MAGIC_END, crc as i32);
    }
    BatchHeader::parse(batch.first_chunk().unwrap_or(&[0; HEADER_SIZE])).last_offset()
}

fn repair_offset(batch: &mut [u8], before: i64, chance: &mut Chance) {
    let offset = i64::from_be_bytes(*batch.first_chunk().unwrap_or(&[0; 8]));
    if offset <= before && chance.repairs() {
        batch[..8].copy_from_slice(&before.saturating_add(1).to_be_bytes());
    }
}

/// Makes the last record end at the end of the payload. Returns the number of records and the
/// largest offset delta.
fn repair_records(payload: &mut [u8], chance: &mut Chance) -> (i32, i32) {
    let (mut at, mut count, mut last_delta) = (0, 0, 0);
    while at < payload.len() {
        let rest = &mut payload[at..];
        let left = rest.len() - 1;
        let (mut length, mut head) = read_varint(rest).unwrap_or((-1, 1));
        if length < 0 || head + length as usize > rest.len() {
            if left >= 64 || !chance.repairs() {
                break;
            }
            rest[0] = (left * 2) as u8;
            (length, head) = (left as i32, 1);
        }
        let fields = rest.get(head + 1..).unwrap_or_default();
        let after = read_varlong(fields).and_then(|(_, size)| fields.get(size..));
        let delta = after.and_then(read_varint).map_or(0, |(delta, _)| delta);
        last_delta = delta.max(last_delta);
        count += 1;
        at += head + length as usize;
    }
    (count, last_delta)
}

/// Repairs a message of magic 0 or 1 and returns its offset.
fn repair_message(message: &mut [u8], before: i64, chance: &mut Chance) -> i64 {
    repair_offset(message, before, chance);
    let key_at = if message[MAGIC_END - 1] == 0 { 18 } else { 26 };
    if message.len() >= key_at + 8 && chance.repairs() {
        let key_size = number(message, key_at);
        let value_at = (key_at + 4).saturating_add(key_size.max(0) as usize);
        if value_at + 4 <= message.len() {
            let value_size = message.len() - value_at - 4;
            if value_size > 0 || number(message, value_at) != -1 {
                put(message, value_at, value_size as i32);
            }
        }
    }
    if chance.repairs() {
        let crc = crc32(&message[MAGIC_END - 1..]);
        put(message, LEGACY_CRC_AT, crc as i32);
    }
    i64::from_be_bytes(*message.first_chunk().unwrap_or(&[0; 8]))
}

/// Mutates the decompressed content of one compressed batch of a segment. The bytes are stored
/// again without compression, in the frame of the same codec. Returns the new size of the segment.
fn mutate_opened(
    data: &mut [u8],
    size: usize,
    chance: &mut Chance,
    mutate: Mutate<'_>,
) -> Option<usize> {
    let (at, batch_size) = pick_batch(&data[..size], chance)?;
    let batch = &data[at..at + batch_size];
    let magic = batch[MAGIC_END - 1];
    let (start, attributes) = match magic {
        2 => (HEADER_SIZE, batch.get(22)?),
        _ => {
            let key_at = if magic == 0 { 18 } else { 26 };
            let key_size = batch.get(key_at..key_at + 4).map(|_| number(batch, key_at))?;
            (key_at + 8 + key_size.max(0) as usize, batch.get(17)?)
        }
    };
    let codec = Codec::of(i16::from(*attributes)).filter(|&codec| codec != Codec::None)?;
    let mut output = Output::default();
    let stored = batch.get(start..)?;
    Decompressor::new().decompress(codec, magic as i8, stored, PLAIN_BYTES, &mut output).ok()?;
    let mut plain = output.bytes().to_vec();
    let plain_size = plain.len();
    plain.resize(plain_size + 64, 0);
    let plain_size = mutate(&mut plain, plain_size);
    plain.truncate(plain_size);
    let mut records = None;
    match magic {
        2 if chance.repairs() => records = Some(repair_records(&mut plain, chance)),
        2 => {}
        _ => repair_batches(&mut plain, chance),
    }
    let stored = store(codec, &plain, chance);
    let end = at + start + stored.len();
    let rest = data[at + batch_size..size].to_vec();
    data.get_mut(at + start..end)?.copy_from_slice(&stored);
    data.get_mut(end..end + rest.len())?.copy_from_slice(&rest);
    let batch = &mut data[at..end];
    put(batch, 8, (end - at - LOG_OVERHEAD) as i32);
    if let Some((count, last_delta)) = records {
        put(batch, 57, count);
        put(batch, 23, last_delta.max(count.saturating_sub(1)));
    }
    Some(end + rest.len())
}

/// Returns position and size of a batch.
fn pick_batch(data: &[u8], chance: &mut Chance) -> Option<(usize, usize)> {
    let mut found = None;
    let mut at = 0;
    while data.len() - at >= MESSAGE_BYTES {
        let size = LOG_OVERHEAD.checked_add(number(&data[at..], 8) as usize)?;
        if size < MESSAGE_BYTES || size > data.len() - at || data[at + MAGIC_END - 1] > 2 {
            break;
        }
        if found.is_none() || chance.is_one_in(2) {
            found = Some((at, size));
        }
        at += size;
    }
    found.filter(|(at, size)| data[at + MAGIC_END - 1] < 2 || *size >= HEADER_SIZE)
}

/// Returns `plain` in the frame of a codec, not compressed.
fn store(codec: Codec, plain: &[u8], chance: &mut Chance) -> Vec<u8> {
    let size = plain.len() as u32;
    let part = |parts: &[&[u8]]| parts.concat();
    match codec {
        Codec::None => plain.to_vec(),
        Codec::Gzip => part(&[
            &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 1],
            &(size as u16).to_le_bytes(),
            &(!(size as u16)).to_le_bytes(),
            plain,
            &crc32(plain).to_le_bytes(),
            &size.to_le_bytes(),
        ]),
        Codec::Snappy => {
            let literal = match plain.len() {
                0 => vec![0],
                1..=60 => vec![size as u8, (size as u8 - 1) << 2],
                _ => {
                    let [low, high, ..] = (size - 1).to_le_bytes();
                    vec![size as u8 | 0x80, (size >> 7) as u8, 61 << 2, low, high]
                }
            };
            let block = part(&[&literal, plain]);
            if chance.is_one_in(2) {
                return block;
            }
            let header = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";
            part(&[header, &(block.len() as u32).to_be_bytes(), &block])
        }
        Codec::Lz4 => part(&[
            &[0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82],
            &(size | 0x8000_0000).to_le_bytes(),
            plain,
            &[0; 4],
        ]),
        Codec::Zstd => {
            let block = (size << 3 | 1).to_le_bytes();
            part(&[&[0x28, 0xb5, 0x2f, 0xfd, 0, 0x50], &block[..3], plain])
        }
    }
}

/// Mutates and repairs a remoteLogIndex.
pub fn remote_index(
    data: &mut [u8],
    size: usize,
    chance: &mut Chance,
    mutate: Mutate<'_>,
) -> usize {
    const FIXED: usize = 46;
    let size = mutate(data, size);
    let data = &mut data[..size];
    let (mut at, mut before, mut last) = (0, -1, 0);
    while size - at >= FIXED {
        let left = size - at - FIXED;
        let entry = &mut data[at..];
        let mut rdi_size = usize::from(u16::from_be_bytes([entry[44], entry[45]]));
        if rdi_size > left && chance.repairs() {
            // Leave room for a trailer in half of the cases.
            rdi_size = if chance.is_one_in(2) { left } else { left.saturating_sub(8) };
        }
        let rdi_size = rdi_size.min(left);
        let entry = &mut entry[..FIXED + rdi_size];
        if chance.repairs() {
            entry[44..46].copy_from_slice(&(rdi_size as u16).to_be_bytes());
            entry[..2].fill(0);
            entry[2..4].copy_from_slice(&((FIXED + rdi_size) as u16).to_be_bytes());
        }
        let field = |at: usize| i64::from_be_bytes(*entry[at..].first_chunk().unwrap_or(&[0; 8]));
        let (mut first_offset, mut last_offset) = (field(8), field(16));
        if (first_offset < 0 || last_offset < first_offset || last_offset <= before)
            && chance.repairs()
        {
            first_offset = before.saturating_add(1);
            last_offset = first_offset.saturating_add(last_offset & 0xff);
            entry[8..16].copy_from_slice(&first_offset.to_be_bytes());
            entry[16..24].copy_from_slice(&last_offset.to_be_bytes());
        }
        before = last_offset;
        if number(entry, 40) <= 0 && chance.repairs() {
            put(entry, 40, 1 + (number(entry, 40) & 0xff));
        }
        if chance.repairs() {
            let crc = crc32(&entry[8..]);
            put(entry, 4, crc as i32);
        }
        last = at;
        at += entry.len();
    }
    if size - at == 8 && chance.repairs() {
        data[at..].copy_from_slice(&(last as u64).to_be_bytes());
    }
    size
}

/// Mutates and repairs a producer snapshot.
pub fn snapshot(data: &mut [u8], size: usize, chance: &mut Chance, mutate: Mutate<'_>) -> usize {
    const HEADER: usize = 10;
    const ENTRY: usize = 46;
    let mut size = mutate(data, size);
    if size < HEADER {
        return size;
    }
    let entries = (size - HEADER) / ENTRY;
    if chance.repairs() {
        size = HEADER + entries * ENTRY;
        data[..2].copy_from_slice(&[0, 1]);
        put(data, 6, entries as i32);
    }
    if chance.repairs() {
        let crc = crc32c(&data[6..size]);
        put(data, 2, crc as i32);
    }
    size
}

fn number(data: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(*data[at..].first_chunk().unwrap_or(&[0; 4]))
}

fn put(data: &mut [u8], at: usize, value: i32) {
    data[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
