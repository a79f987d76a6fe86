//! Snappy as Kafka's clients write it.
//!
//! ```text
//! 0 82 'SNAPPY' 00   8 version i32   12 minimum compatible version i32
//! then, to the end of the data: block length i32, one raw snappy block
//! ```

use crate::batch::header::be_i32;
use crate::codec::output::{Output, bad, too_large};
use crate::error::Result;

const MAGIC: [u8; 8] = *b"\x82SNAPPY\0";
const HEADER_SIZE: usize = 16;
/// Largest ratio of a snappy stream: an element of three bytes decompresses to at most 64 bytes.
const MAX_RATIO: usize = 22;

/// Decompresses the xerial stream that Java writes, or one raw block, which other clients write.
pub(crate) fn decompress(payload: &[u8], output: &mut Output) -> Result<()> {
    if payload.len() < HEADER_SIZE || !payload.starts_with(&MAGIC) {
        return block(payload, 0, output);
    }
    let mut at = 0;
    while at < payload.len() {
        // Streams may follow each other directly: each starts with a header.
        if payload[at..].starts_with(&MAGIC) {
            header(payload, at)?;
            at += HEADER_SIZE;
            continue;
        }
        let rest = &payload[at..];
        if rest.len() < 4 {
            // Like the Java library, ignore bytes at the end that are too few for a block length.
            break;
        }
        let length = be_i32(rest, 0);
        let data = usize::try_from(length).ok().and_then(|length| rest[4..].get(..length));
        let Some(data) = data else {
            let found = format!("{length} with {} bytes left", rest.len() - 4);
            return Err(bad(at, "a snappy block within the payload", found));
        };
        block(data, at + 4, output)?;
        at += 4 + data.len();
    }
    Ok(())
}

fn header(payload: &[u8], at: usize) -> Result<()> {
    let Some(bytes) = payload[at..].get(..HEADER_SIZE) else {
        return Err(bad(at, "a snappy stream header of 16 bytes", "end of data"));
    };
    let version = be_i32(bytes, 8);
    if version < 1 {
        return Err(bad(at + 8, "snappy stream version >= 1", version.to_string()));
    }
    Ok(())
}

fn block(data: &[u8], position: usize, output: &mut Output) -> Result<()> {
    let refuse = |error: snap::Error| bad(position, "a snappy block", error.to_string());
    let size = snap::raw::decompress_len(data).map_err(refuse)?;
    if size > data.len().saturating_mul(MAX_RATIO) {
        let found = format!("{size} bytes announced by {}", data.len());
        return Err(bad(position, "a size that a snappy block can hold", found));
    }
    if size > output.left() {
        return Err(too_large(output));
    }
    let count =
        snap::raw::Decoder::new().decompress(data, output.free_space(size)).map_err(refuse)?;
    output.advance(count);
    Ok(())
}
