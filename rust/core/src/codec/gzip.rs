//! gzip as in RFC 1952. This module reads header and trailer, and a library inflates the deflate
//! stream between them. So the content is verified with the faster CRC-32 of this crate.

use flate2::{Decompress, FlushDecompress, Status};

use crate::checksum;
use crate::codec::output::{FIRST_ROOM, Output, bad, too_large};
use crate::error::Result;

const MAGIC: [u8; 3] = [0x1f, 0x8b, 8];
const HEADER_SIZE: usize = 10;
const TRAILER_SIZE: usize = 8;

/// The size in the trailer is a hint for the output, but only up to this multiple of the compressed
/// size.
const HINT_RATIO: usize = 16;

/// Smallest gzip member: a header and a trailer.
const MIN_MEMBER_SIZE: usize = HEADER_SIZE + TRAILER_SIZE;

/// Appends the content of all members. Members may follow each other directly. Like Java, this
/// ignores bytes after the last member that are not a gzip header.
pub(crate) fn decompress(
    inflate: &mut Decompress,
    payload: &[u8],
    output: &mut Output,
) -> Result<()> {
    let mut at = 0;
    loop {
        at = body_start(payload, at)?;
        inflate.reset(false);
        let before = output.bytes().len();
        at += inflate_member(inflate, payload, at, output)?;
        let Some(trailer) = payload[at..].first_chunk::<TRAILER_SIZE>() else {
            return Err(bad(payload.len(), "gzip CRC-32 and size", "end of data"));
        };
        let [a, b, c, d, size @ ..] = *trailer;
        let member = &output.bytes()[before..];
        let crc = checksum::crc32(member);
        if crc != u32::from_le_bytes([a, b, c, d]) {
            return Err(bad(at, "gzip CRC-32 of the content", format!("{crc:#010x} computed")));
        }
        if member.len() as u32 != u32::from_le_bytes(size) {
            return Err(bad(at + 4, "gzip size of the content", member.len().to_string()));
        }
        at += TRAILER_SIZE;
        if payload.len() - at < MIN_MEMBER_SIZE || body_start(payload, at).is_err() {
            return Ok(());
        }
    }
}

/// Returns the position of the deflate stream of the gzip member at `at`.
fn body_start(payload: &[u8], at: usize) -> Result<usize> {
    const HEADER_CRC: u8 = 2;
    const EXTRA: u8 = 4;
    const NAME: u8 = 8;
    const COMMENT: u8 = 16;
    let member = &payload[at..];
    let cut = || bad(payload.len(), "a gzip header", "end of data");
    let header = member.first_chunk::<HEADER_SIZE>().ok_or_else(cut)?;
    if header[..3] != MAGIC {
        return Err(bad(at, "gzip magic 1f8b08", format!("{:02x?}", &header[..3])));
    }
    let flags = header[3];
    if flags >= 32 {
        return Err(bad(at + 3, "gzip flags below 32", flags.to_string()));
    }
    let mut rest = &member[HEADER_SIZE..];
    if flags & EXTRA != 0 {
        let (size, after) = rest.split_first_chunk().ok_or_else(cut)?;
        rest = after.get(usize::from(u16::from_le_bytes(*size))..).ok_or_else(cut)?;
    }
    for text in [NAME, COMMENT] {
        if flags & text != 0 {
            let end = rest.iter().position(|&byte| byte == 0).ok_or_else(cut)?;
            rest = &rest[end + 1..];
        }
    }
    if flags & HEADER_CRC != 0 {
        rest = rest.get(2..).ok_or_else(cut)?;
    }
    Ok(payload.len() - rest.len())
}

/// Inflates the deflate stream at `at` and returns the number of bytes it consumed.
fn inflate_member(
    inflate: &mut Decompress,
    payload: &[u8],
    at: usize,
    output: &mut Output,
) -> Result<usize> {
    let input = &payload[at..];
    // The size in the trailer is only a hint. If it is wrong, the output grows more often.
    let hint = input.last_chunk().map_or(0, |size| u32::from_le_bytes(*size) as usize);
    let mut wanted = hint.min(input.len().saturating_mul(HINT_RATIO)).max(FIRST_ROOM / 8);
    let mut taken = 0;
    loop {
        let room = output.free_space(wanted);
        let (room_size, out_before) = (room.len(), inflate.total_out());
        let status = inflate
            .decompress(&input[taken..], room, FlushDecompress::Finish)
            .map_err(|error| bad(at + taken, "a deflate stream", error.to_string()))?;
        taken = inflate.total_in() as usize;
        let produced = (inflate.total_out() - out_before) as usize;
        output.advance(produced);
        if status == Status::StreamEnd {
            return Ok(taken);
        }
        if produced < room_size {
            return Err(bad(payload.len(), "the end of a deflate stream", "end of data"));
        }
        if output.left() == 0 && produced == 0 {
            return Err(too_large(output));
        }
        wanted = output.bytes().len().max(FIRST_ROOM);
    }
}
