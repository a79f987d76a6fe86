//! LZ4 frames as Kafka restricts them: independent blocks, no dictionary.
//!
//! ```text
//! 0 magic u32 LE   4 FLG u8   5 BD u8   6 content size u64 LE, only with FLG bit 3
//! then HC u8 = second byte of xxh32(FLG..HC), then blocks, an end mark of four zero bytes, and
//! the xxh32 of the content with FLG bit 2
//! block: u32 LE size, high bit set = stored as it is; bytes; xxh32 u32 LE with FLG bit 4
//! ```
//! Kafka's producers of message format 0 included the magic in the header checksum (HC), so HC is
//! not checked for that format.

use lz4_flex::block::DecompressError;
use twox_hash::XxHash32;

use crate::codec::output::{Output, bad, too_large};
use crate::error::Result;

const MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
const VERSION_MASK: u8 = 0xc0;
const VERSION: u8 = 0x40;
const INDEPENDENT: u8 = 0x20;
const BLOCK_CHECKSUM: u8 = 0x10;
const CONTENT_SIZE: u8 = 0x08;
const CONTENT_CHECKSUM: u8 = 0x04;
const RESERVED: u8 = 0x03;
const STORED: u32 = 0x8000_0000;
/// Largest ratio of an LZ4 block: a length byte of 255 stands for 255 bytes.
const MAX_RATIO: usize = 255;

struct Frame {
    max_block: usize,
    block_checksum: bool,
    content_checksum: bool,
    /// Position of the first block.
    blocks: usize,
}

/// Appends the content of one frame. `strict` checks the checksum of the frame header. Like Kafka's
/// reader, this does not compare the content checksum and ignores bytes after the frame, because
/// the batch checksum covers both.
pub(crate) fn decompress(payload: &[u8], strict: bool, output: &mut Output) -> Result<()> {
    let frame = header(payload, strict)?;
    let mut at = frame.blocks;
    loop {
        let size = read_u32(payload, at, "an LZ4 block size")?;
        if size == 0 {
            at += 4;
            break;
        }
        at = block(payload, at + 4, size, &frame, output)?;
    }
    if frame.content_checksum {
        read_u32(payload, at, "an LZ4 content checksum")?;
    }
    Ok(())
}

fn header(payload: &[u8], strict: bool) -> Result<Frame> {
    let Some(&[a, b, c, d, flags, descriptor]) = payload.first_chunk() else {
        return Err(bad(0, "an LZ4 frame header", "end of data"));
    };
    if [a, b, c, d] != MAGIC {
        let found = format!("{:02x?}", [a, b, c, d]);
        return Err(bad(0, "LZ4 frame magic 04224d18", found));
    }
    let wrong_flags = |expected| bad(4, expected, format!("flags {flags:#04x}"));
    if flags & VERSION_MASK != VERSION || flags & RESERVED != 0 {
        return Err(wrong_flags("LZ4 frame version 1 without reserved bits or dictionary"));
    }
    if flags & INDEPENDENT == 0 {
        return Err(wrong_flags("independent LZ4 blocks"));
    }
    let code = usize::from(descriptor >> 4);
    if descriptor & 0x8f != 0 || !(4..=7).contains(&code) {
        return Err(bad(5, "an LZ4 block size code 4 to 7", format!("{descriptor:#04x}")));
    }
    let end = 6 + if flags & CONTENT_SIZE == 0 { 0 } else { 8 };
    let Some(&stored) = payload.get(end) else {
        return Err(bad(payload.len(), "an LZ4 frame header", "end of data"));
    };
    let computed = (XxHash32::oneshot(0, &payload[4..end]) >> 8) as u8;
    if strict && stored != computed {
        let expected = format!("LZ4 header checksum {computed:#04x}");
        return Err(bad(end, &expected, format!("{stored:#04x}")));
    }
    Ok(Frame {
        max_block: 1 << (8 + 2 * code),
        block_checksum: flags & BLOCK_CHECKSUM != 0,
        content_checksum: flags & CONTENT_CHECKSUM != 0,
        blocks: end + 1,
    })
}

/// Appends the block whose data starts at `at` and returns the position of the next block.
fn block(
    payload: &[u8],
    at: usize,
    size: u32,
    frame: &Frame,
    output: &mut Output,
) -> Result<usize> {
    let length = (size & !STORED) as usize;
    let data = payload[at..].get(..length).filter(|_| (1..=frame.max_block).contains(&length));
    let Some(data) = data else {
        let found = format!("{length} with {} bytes left", payload.len() - at);
        return Err(bad(at - 4, "an LZ4 block within frame and block size", found));
    };
    let mut next = at + length;
    if frame.block_checksum {
        let stored = read_u32(payload, next, "an LZ4 block checksum")?;
        let computed = XxHash32::oneshot(0, data);
        if stored != computed {
            return Err(bad(next, "xxh32 of the LZ4 block", format!("{computed:#010x} computed")));
        }
        next += 4;
    }
    let most = frame.max_block.min(length.saturating_mul(MAX_RATIO));
    let left = output.left();
    let room = output.free_space(most);
    let count = if size & STORED != 0 {
        let Some(target) = room.get_mut(..length) else {
            return Err(too_large(output));
        };
        target.copy_from_slice(data);
        length
    } else {
        let room_size = room.len().min(most);
        match lz4_flex::block::decompress_into(data, &mut room[..room_size]) {
            Ok(count) => count,
            Err(DecompressError::OutputTooSmall { .. }) if left < most => {
                return Err(too_large(output));
            }
            Err(error) => return Err(bad(at, "an LZ4 block", error.to_string())),
        }
    };
    output.advance(count);
    Ok(next)
}

fn read_u32(payload: &[u8], at: usize, what: &str) -> Result<u32> {
    match payload.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(bytes) => Ok(u32::from_le_bytes(*bytes)),
        None => Err(bad(at.min(payload.len()), what, "end of data")),
    }
}
