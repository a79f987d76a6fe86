//! Decompresses the four codecs of record batches into memory with a hard limit.
//!
//! No allocation trusts a size that a stream announces. The output grows geometrically with the
//! bytes that the decoder really produces, up to the caller's limit. Decoder state is kept between
//! batches.

use flate2::Decompress;
use zstd::zstd_safe::{self, DCtx, zstd_sys::ZSTD_ErrorCode};

use crate::batch::header::Codec;
use crate::codec::output::{FIRST_ROOM, Output, bad, too_large};
use crate::codec::{gzip, lz4_frame, snappy};
use crate::error::{Error, ErrorKind, Result};

/// First output size as a multiple of the compressed size. Most streams need less.
pub(crate) const USUAL_RATIO: usize = 4;

/// Decoders that are created once and reused for many batches.
#[derive(Default)]
pub struct Decompressor {
    inflate: Option<Decompress>,
    zstd: Option<DCtx<'static>>,
    scratch: Output,
}

impl Decompressor {
    /// Creates a decompressor without decoders. The decoder of a codec is created when it is first
    /// used.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns scratch memory for content that is read only once.
    pub(crate) fn scratch(&mut self) -> &mut Output {
        &mut self.scratch
    }

    /// Appends the decompressed `payload`, at most `max_bytes`, to `output`. Error positions count
    /// from the first byte of `payload`. `magic` is the version of the batch: in version 0 the
    /// header checksum of an LZ4 frame is wrong by design and is not checked.
    pub fn decompress(
        &mut self,
        codec: Codec,
        magic: i8,
        payload: &[u8],
        max_bytes: usize,
        output: &mut Output,
    ) -> Result<()> {
        output.begin(max_bytes);
        match codec {
            Codec::None => copy(payload, output),
            Codec::Gzip => {
                let inflate = self.inflate.get_or_insert_with(|| Decompress::new(false));
                gzip::decompress(inflate, payload, output)
            }
            Codec::Snappy => snappy::decompress(payload, output),
            Codec::Lz4 => lz4_frame::decompress(payload, magic > 0, output),
            Codec::Zstd => self.zstd(payload, output),
        }
    }

    /// Decompresses a frame in one pass. The decoder uses the output as its window, so a frame that
    /// announces a huge window needs no more memory. When the output is too small, it grows
    /// fourfold and the frame is decompressed again. The earlier passes take at most a third of the
    /// time of the last pass.
    fn zstd(&mut self, payload: &[u8], output: &mut Output) -> Result<()> {
        const TOO_SMALL: usize =
            (ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as usize).wrapping_neg();
        let context = match &mut self.zstd {
            Some(context) => context,
            empty => empty.insert(DCtx::try_create().ok_or_else(|| {
                Error::new(
                    ErrorKind::TooLarge,
                    0,
                    "memory for a zstd decoder",
                    "the allocation failed",
                )
            })?),
        };
        let mut wanted = payload.len().saturating_mul(USUAL_RATIO).max(FIRST_ROOM);
        loop {
            let room = output.free_space(wanted);
            let room_size = room.len();
            match context.decompress(room, payload) {
                Ok(count) => {
                    output.advance(count);
                    return Ok(());
                }
                Err(TOO_SMALL) if room_size < output.left() => wanted = room_size.saturating_mul(4),
                Err(TOO_SMALL) => return Err(too_large(output)),
                Err(code) => return Err(bad(0, "a zstd frame", zstd_safe::get_error_name(code))),
            }
        }
    }
}

fn copy(payload: &[u8], output: &mut Output) -> Result<()> {
    let room = output.free_space(payload.len());
    let Some(target) = room.get_mut(..payload.len()) else {
        return Err(too_large(output));
    };
    target.copy_from_slice(payload);
    output.advance(payload.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::header::HEADER_SIZE;
    use crate::memory::vector_pool::VectorPool;
    use crate::vectors::vector;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn open(codec: Codec, payload: &[u8], max_bytes: usize) -> Result<Vec<u8>> {
        let mut output = Output::default();
        Decompressor::new().decompress(codec, 2, payload, max_bytes, &mut output)?;
        Ok(output.bytes().to_vec())
    }

    fn kind(result: Result<Vec<u8>>) -> Option<ErrorKind> {
        result.err().map(|error| error.kind)
    }

    fn text(size: usize) -> Vec<u8> {
        (0..size).map(|i| (i % 251) as u8 ^ (i / 1000) as u8).collect()
    }

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn xerial(data: &[u8], block_size: usize) -> Vec<u8> {
        let mut stream = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
        for block in data.chunks(block_size) {
            let packed = snap::raw::Encoder::new().compress_vec(block).unwrap();
            stream.extend((packed.len() as u32).to_be_bytes());
            stream.extend(packed);
        }
        stream
    }

    fn zstd_stream(data: &[u8]) -> Vec<u8> {
        zstd::encode_all(data, 3).unwrap()
    }

    fn lz4(data: &[u8], info: lz4_flex::frame::FrameInfo) -> Vec<u8> {
        let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn every_codec(data: &[u8]) -> Vec<(Codec, Vec<u8>)> {
        vec![
            (Codec::None, data.to_vec()),
            (Codec::Gzip, gzip(data)),
            (Codec::Snappy, xerial(data, 32 << 10)),
            (Codec::Lz4, lz4(data, lz4_flex::frame::FrameInfo::new())),
            (Codec::Zstd, zstd_stream(data)),
        ]
    }

    #[test]
    fn streams_written_by_kafka_are_decompressed() {
        let plain = vector("v2_none")[HEADER_SIZE..].to_vec();
        for (codec, name) in [
            (Codec::Gzip, "v2_gzip"),
            (Codec::Snappy, "v2_snappy"),
            (Codec::Lz4, "v2_lz4"),
            (Codec::Zstd, "v2_zstd"),
        ] {
            assert_eq!(open(codec, &vector(name)[HEADER_SIZE..], 1 << 20).unwrap(), plain);
        }
    }

    #[test]
    fn round_trip_reuses_the_decoders() {
        let mut decoders = Decompressor::new();
        let mut output = Output::default();
        let mut expected = Vec::new();
        output.plan(1 << 20, &mut VectorPool::default());
        for size in [1, 100, 16 << 10, 1 << 20, 3 << 20, 5] {
            let data = text(size);
            for (codec, payload) in every_codec(&data) {
                decoders.decompress(codec, 2, &payload, size, &mut output).unwrap();
                expected.extend_from_slice(&data);
                assert!(output.bytes() == data, "{codec:?} {size}");
                assert!(output.buffer()[output.start()..output.end()] == data);
            }
        }
        // Each stream lies in one buffer. The buffers together hold all streams in order.
        assert!(output.closed() > 3);
        assert!(output.into_buffers(&mut VectorPool::default()).concat() == expected);
    }

    #[test]
    fn limit_is_exact() {
        let data = text(300_000);
        for (codec, payload) in every_codec(&data) {
            assert_eq!(open(codec, &payload, 300_000).unwrap(), data, "{codec:?}");
            assert_eq!(
                kind(open(codec, &payload, 299_999)),
                Some(ErrorKind::TooLarge),
                "{codec:?}"
            );
            assert_eq!(kind(open(codec, &payload, 0)), Some(ErrorKind::TooLarge), "{codec:?}");
        }
    }

    #[test]
    fn truncated_streams_are_refused() {
        let data = text(50_000);
        for (codec, payload) in every_codec(&data).into_iter().skip(1) {
            for size in (1..payload.len()).step_by(97).chain([payload.len() - 1]) {
                // A xerial stream has no end mark, so a stream that is cut between two blocks is a
                // valid shorter stream.
                let opened = open(codec, &payload[..size], 1 << 20);
                let shorter =
                    codec == Codec::Snappy && opened.as_ref().is_ok_and(|o| o.len() < 50_000);
                assert!(
                    shorter || kind(opened) == Some(ErrorKind::BadCompression),
                    "{codec:?} {size}"
                );
            }
        }
    }

    #[test]
    fn bytes_after_the_stream_are_refused_where_kafka_refuses_them() {
        let data = text(5000);
        for (codec, mut payload) in every_codec(&data).into_iter().skip(1) {
            payload.extend(b"behind the end of the stream");
            let opened = open(codec, &payload, 1 << 20);
            if matches!(codec, Codec::Gzip | Codec::Lz4) {
                assert_eq!(opened.unwrap(), data, "{codec:?}");
            } else {
                assert_eq!(kind(opened), Some(ErrorKind::BadCompression), "{codec:?}");
            }
        }
    }

    #[test]
    fn gzip_members_and_headers() {
        let mut two = gzip(b"one ");
        two.extend(gzip(b"two"));
        assert_eq!(open(Codec::Gzip, &two, 100).unwrap(), b"one two");
        let mut encoder = flate2::GzBuilder::new()
            .filename("name")
            .comment("comment")
            .extra(vec![1, 2, 3])
            .write(Vec::new(), flate2::Compression::fast());
        encoder.write_all(b"content").unwrap();
        assert_eq!(open(Codec::Gzip, &encoder.finish().unwrap(), 100).unwrap(), b"content");
        let mut wrong = gzip(b"content");
        let crc_at = wrong.len() - 8;
        wrong[crc_at] ^= 1;
        assert_eq!(open(Codec::Gzip, &wrong, 100).unwrap_err().position, crc_at as u64);
    }

    #[test]
    fn snappy_variants() {
        let data = text(100_000);
        let raw = snap::raw::Encoder::new().compress_vec(&data).unwrap();
        assert_eq!(open(Codec::Snappy, &raw, 1 << 20).unwrap(), data);
        let mut twice = xerial(b"one ", 100);
        twice.extend(xerial(b"two", 100));
        assert_eq!(open(Codec::Snappy, &twice, 100).unwrap(), b"one two");
        assert_eq!(open(Codec::Snappy, &xerial(b"", 100), 100).unwrap(), b"");
        // Six bytes that announce 4 GiB.
        let lie = [0xff, 0xff, 0xff, 0xff, 0x0f, 0x00];
        assert_eq!(kind(open(Codec::Snappy, &lie, usize::MAX)), Some(ErrorKind::BadCompression));
    }

    #[test]
    fn lz4_variants() {
        use lz4_flex::frame::{BlockMode, BlockSize, FrameInfo};
        let data = text(200_000);
        let info = FrameInfo::new()
            .block_size(BlockSize::Max256KB)
            .block_checksums(true)
            .content_checksum(true)
            .content_size(Some(200_000));
        let frame = lz4(&data, info);
        assert_eq!(open(Codec::Lz4, &frame, 1 << 20).unwrap(), data);
        for at in [4, 5, 6, 14, frame.len() - 9, frame.len() / 2] {
            let mut wrong = frame.clone();
            wrong[at] ^= 0x10;
            assert_eq!(kind(open(Codec::Lz4, &wrong, 1 << 20)), Some(ErrorKind::BadCompression));
        }
        let linked = lz4(&data, FrameInfo::new().block_mode(BlockMode::Linked));
        assert_eq!(
            open(Codec::Lz4, &linked, 1 << 20).unwrap_err().expected,
            "independent LZ4 blocks"
        );
    }

    #[test]
    fn lz4_header_checksum_is_ignored_in_version_0_alone() {
        let mut frame = vector("v2_lz4")[HEADER_SIZE..].to_vec();
        assert_eq!(frame[6], 0x82);
        frame[6] = 0x1a;
        let mut output = Output::default();
        let mut decoders = Decompressor::new();
        assert!(decoders.decompress(Codec::Lz4, 1, &frame, 1 << 20, &mut output).is_err());
        assert!(decoders.decompress(Codec::Lz4, 0, &frame, 1 << 20, &mut output).is_ok());
    }

    #[test]
    fn decompression_bombs_stop_at_the_limit() {
        const LIMIT: usize = 4 << 20;
        let zeros = vec![0; 256 << 20];
        for (codec, payload) in every_codec(&zeros).into_iter().skip(1) {
            let mut output = Output::default();
            let error =
                Decompressor::new().decompress(codec, 2, &payload, LIMIT, &mut output).unwrap_err();
            assert_eq!(error.kind, ErrorKind::TooLarge, "{codec:?}");
            assert!(output.buffer().len() <= LIMIT, "{codec:?}");
        }
    }

    #[test]
    fn a_zstd_frame_may_announce_any_window_and_size() {
        // A single segment with a content size of 2^62 is refused without allocating that size.
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
        frame.extend((1u64 << 62).to_le_bytes());
        frame.extend([0x01, 0x00, 0x00]);
        assert_eq!(kind(open(Codec::Zstd, &frame, 1 << 20)), Some(ErrorKind::BadCompression));
        // This frame has a window of 3.75 TiB for one stored byte.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xff, 0x09, 0x00, 0x00, b'x'];
        assert!(open(Codec::Zstd, &frame, 1 << 20).is_err());
    }
}
