//! Reads the first fields of a batch. The rest of the batch may be missing.

use crate::batch::header::{LOG_OVERHEAD, MAGIC_END, be_i32, be_i64};

const BASE_OFFSET_END: usize = 8;
const BASE_TIMESTAMP_START: usize = 27;
const BASE_TIMESTAMP_END: usize = BASE_TIMESTAMP_START + 8;

/// The first fields of a batch. A field is `None` when the data ends before the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchStart {
    /// The base offset. For a legacy wrapper message, this is the offset of its last record.
    pub base_offset: Option<i64>,
    /// The size that the batch claims, or `None` if the data ends before the magic byte.
    pub size_bytes: Option<i64>,
    /// The magic byte.
    pub magic: Option<u8>,
    /// The base timestamp, if the magic byte is 2.
    pub base_timestamp_ms: Option<i64>,
}

/// Reads the first fields of the batch at the start of `data` without checking them.
#[must_use]
pub fn peek(data: &[u8]) -> BatchStart {
    let has = |end: usize| data.len() >= end;
    let magic = data.get(MAGIC_END - 1).copied();
    BatchStart {
        base_offset: has(BASE_OFFSET_END).then(|| be_i64(data, 0)),
        size_bytes: magic.map(|_| LOG_OVERHEAD as i64 + i64::from(be_i32(data, BASE_OFFSET_END))),
        magic,
        base_timestamp_ms: (magic == Some(2) && has(BASE_TIMESTAMP_END))
            .then(|| be_i64(data, BASE_TIMESTAMP_START)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_known_when_the_data_reaches_them() {
        let mut data = [0; BASE_TIMESTAMP_END];
        data[..8].copy_from_slice(&(-7_i64).to_be_bytes());
        data[8..12].copy_from_slice(&90_i32.to_be_bytes());
        data[16] = 2;
        data[27..].copy_from_slice(&1_700_i64.to_be_bytes());
        let whole = BatchStart {
            base_offset: Some(-7),
            size_bytes: Some(102),
            magic: Some(2),
            base_timestamp_ms: Some(1_700),
        };
        let none = BatchStart {
            base_offset: None,
            size_bytes: None,
            magic: None,
            base_timestamp_ms: None,
        };
        assert_eq!(peek(&data), whole);
        assert_eq!(peek(&data[..34]), BatchStart { base_timestamp_ms: None, ..whole });
        assert_eq!(peek(&data[..16]), BatchStart { base_offset: Some(-7), ..none });
        assert_eq!(peek(&data[..7]), none);
        data[16] = 1;
        let legacy = BatchStart { magic: Some(1), base_timestamp_ms: None, ..whole };
        assert_eq!(peek(&data), legacy);
    }
}
