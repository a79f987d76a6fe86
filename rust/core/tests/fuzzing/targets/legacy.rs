//! Checks messages of magic 0 and 1, and sets of messages.

use std::cell::RefCell;

use tierlog_core::batch::legacy::{Message, describe, verify_crc};
use tierlog_core::codec::compression::Decompressor;
use tierlog_core::error::ErrorKind;
use tierlog_core::records::{DecodeOptions, decode_records};

use super::records::{LIMIT_BYTES, check_columns, check_records, options};

thread_local! {
    static DECOMPRESSOR: RefCell<Decompressor> = RefCell::default();
}

/// Checks the description of the first message, and a decode with and without checksums.
pub fn check_legacy(data: &[u8]) {
    let message = Message::parse(data);
    let described = |check_crc| {
        DECOMPRESSOR.with_borrow_mut(|decoders| describe(data, check_crc, decoders, LIMIT_BYTES))
    };
    let (checked, trusting) = (described(true), described(false));
    match (&checked, &trusting) {
        (Ok(header), Ok(other)) => assert_eq!(header, other),
        (Ok(_), Err(error)) => panic!("{error}"),
        (Err(error), Ok(_)) => assert_eq!(error.kind, ErrorKind::BadCrc),
        (Err(_), Err(_)) => {}
    }
    if let Ok(header) = &trusting {
        let Ok(message) = message else { panic!("described, but not parsed") };
        assert_eq!(header.size_bytes(), message.size_bytes as u64);
        assert!(message.size_bytes <= data.len() && header.base_offset <= header.last_offset());
        let fields = [&message.key, &message.value];
        assert!(fields.into_iter().flatten().all(|field| field.end <= message.size_bytes));
        assert_eq!(checked.is_ok(), checked.is_ok() && verify_crc(data).is_ok());
    }
    if let Ok(records) = decode_records(data, 0, &DecodeOptions { verify_crc: false, ..options() })
    {
        check_columns(data, &records);
    }
    check_records(data);
}
