//! Compresses records of a batch that was rewritten, in the form that Kafka's clients read
//! (formats section 4) and at Kafka's default levels.

use std::io::{self, Write};

use flate2::write::GzEncoder;
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};

use crate::batch::header::Codec;
use crate::error::{Error, Result};

/// Kafka's default level of zstd.
const ZSTD_LEVEL: i32 = 3;
/// Bytes per block of a snappy stream, as the Java library writes it.
const SNAPPY_BLOCK_BYTES: usize = 32 << 10;
const SNAPPY_HEADER: [u8; 16] = *b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";

/// Appends the compressed `data` to `output`.
pub(crate) fn compress(codec: Codec, data: &[u8], output: &mut Vec<u8>) -> Result<()> {
    match codec {
        Codec::None => {
            output.extend_from_slice(data);
            Ok(())
        }
        Codec::Gzip => gzip(data, output),
        Codec::Snappy => snappy(data, output),
        Codec::Lz4 => lz4(data, output),
        Codec::Zstd => zstd(data, output),
    }
    .map_err(|error| Error::io(0, error))
}

fn gzip(data: &[u8], output: &mut Vec<u8>) -> io::Result<()> {
    let mut encoder = GzEncoder::new(output, flate2::Compression::default());
    encoder.write_all(data)?;
    encoder.finish().map(|_| ())
}

fn snappy(data: &[u8], output: &mut Vec<u8>) -> io::Result<()> {
    let mut encoder = snap::raw::Encoder::new();
    output.extend_from_slice(&SNAPPY_HEADER);
    for block in data.chunks(SNAPPY_BLOCK_BYTES) {
        let packed = encoder.compress_vec(block).map_err(io::Error::other)?;
        output.extend_from_slice(&(packed.len() as u32).to_be_bytes());
        output.extend_from_slice(&packed);
    }
    Ok(())
}

fn lz4(data: &[u8], output: &mut Vec<u8>) -> io::Result<()> {
    let info = FrameInfo::new().block_size(BlockSize::Max64KB).block_mode(BlockMode::Independent);
    let mut encoder = FrameEncoder::with_frame_info(info, output);
    encoder.write_all(data)?;
    encoder.finish().map(|_| ()).map_err(io::Error::other)
}

fn zstd(data: &[u8], output: &mut Vec<u8>) -> io::Result<()> {
    output.extend_from_slice(&zstd::bulk::compress(data, ZSTD_LEVEL)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::compression::Decompressor;
    use crate::codec::output::Output;

    #[test]
    fn every_codec_is_read_back() {
        let data: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8 ^ (i / 999) as u8).collect();
        for codec in [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
            for size in [0, 1, 40_000, data.len()] {
                let mut packed = Vec::new();
                compress(codec, &data[..size], &mut packed).unwrap();
                let mut output = Output::default();
                let mut decompressor = Decompressor::new();
                decompressor.decompress(codec, 2, &packed, size, &mut output).unwrap();
                assert!(output.bytes() == &data[..size], "{codec:?} {size}");
                assert!(codec == Codec::None || size < 40_000 || packed.len() < size);
            }
        }
    }
}
