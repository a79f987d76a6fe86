//! Checks that decompression stays within its limit.

use std::cell::RefCell;

use tierlog_core::batch::header::Codec;
use tierlog_core::codec::compression::Decompressor;
use tierlog_core::codec::output::Output;
use tierlog_core::error::{ErrorKind, Result};

const LIMIT_BYTES: usize = 64 << 10;

thread_local! {
    static DECODERS: RefCell<(Decompressor, Output)> = RefCell::default();
}

/// Decompresses all bytes but the first, which selects the codec and the version of the batch.
pub fn check_codecs(data: &[u8]) {
    let Some((&settings, payload)) = data.split_first() else { return };
    let Some(codec) = Codec::of(i16::from(settings & 7)) else { return };
    let magic = (settings >> 3) as i8 % 3;
    DECODERS.with_borrow_mut(|(decompressor, output)| {
        let mut open = |limit, output: &mut Output| -> Result<usize> {
            output.clear();
            let opened = decompressor.decompress(codec, magic, payload, limit, output);
            assert!(output.bytes().len() <= limit);
            opened.map(|()| output.bytes().len())
        };
        let size = match open(LIMIT_BYTES, output) {
            Ok(size) => size,
            Err(error) => {
                assert!(matches!(error.kind, ErrorKind::BadCompression | ErrorKind::TooLarge));
                assert!(error.position <= payload.len() as u64);
                return;
            }
        };
        if size == 0 {
            return;
        }
        // The limit is exact, and the output has no old bytes of reused memory.
        let bytes = output.bytes().to_vec();
        assert_eq!(open(size - 1, output).map_err(|error| error.kind), Err(ErrorKind::TooLarge));
        let mut fresh = Output::default();
        assert_eq!(open(size, &mut fresh).map_err(|error| error.kind), Ok(size));
        assert!(fresh.bytes() == bytes);
    });
}
