//! Kafka's variable-length integers: LEB128, with zig-zag encoding for signed values. A value of 32
//! bits takes at most 5 bytes, and a value of 64 bits at most 10.

/// Decodes an unsigned value of at most `limit_bits` bits and returns it with its size. Returns
/// `None` when the data ends within the value or the encoding is too long.
#[inline]
fn read_unsigned(data: &[u8], limit_bits: u32) -> Option<(u64, usize)> {
    let max_bytes = limit_bits.div_ceil(7) as usize;
    let mut value = 0u64;
    for (index, &byte) in data.iter().take(max_bytes).enumerate() {
        let shift = 7 * index as u32;
        let part = u64::from(byte & 0x7f);
        // The last byte may contain only the bits that are left.
        if limit_bits - shift < 7 && part >> (limit_bits - shift) != 0 {
            return None;
        }
        value |= part << shift;
        if byte < 0x80 {
            return Some((value, index + 1));
        }
    }
    None
}

/// Decodes a zig-zag `varint` (32 bits) and returns it with its size.
#[inline]
pub fn read_varint(data: &[u8]) -> Option<(i32, usize)> {
    if let Some(&byte) = data.first()
        && byte < 0x80
    {
        let raw = i32::from(byte);
        return Some(((raw >> 1) ^ -(raw & 1), 1));
    }
    let (raw, size) = read_unsigned(data, 32)?;
    let raw = raw as u32;
    Some((((raw >> 1) as i32) ^ -((raw & 1) as i32), size))
}

/// Decodes a zig-zag `varlong` (64 bits) and returns it with its size.
#[inline]
pub fn read_varlong(data: &[u8]) -> Option<(i64, usize)> {
    if let Some(&byte) = data.first()
        && byte < 0x80
    {
        let raw = i64::from(byte);
        return Some(((raw >> 1) ^ -(raw & 1), 1));
    }
    let (raw, size) = read_unsigned(data, 64)?;
    Some((((raw >> 1) as i64) ^ -((raw & 1) as i64), size))
}

/// Appends a zig-zag `varlong`.
#[inline]
pub fn write_varlong(value: i64, out: &mut Vec<u8>) {
    let mut left = ((value << 1) ^ (value >> 63)) as u64;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zig_zag_values() {
        for (bytes, value) in [
            (&[0x00][..], 0),
            (&[0x01], -1),
            (&[0x02], 1),
            (&[0xfe, 0xff, 0xff, 0xff, 0x0f], i32::MAX),
            (&[0xff, 0xff, 0xff, 0xff, 0x0f], i32::MIN),
        ] {
            assert_eq!(read_varint(bytes), Some((value, bytes.len())));
        }
        let min = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(read_varlong(&min), Some((i64::MIN, 10)));
    }

    #[test]
    fn written_values_are_read_back() {
        let around = (0..63).flat_map(|bit| [1i64 << bit, (1i64 << bit) - 1, -(1i64 << bit)]);
        for value in around.chain([i64::MIN, i64::MAX]) {
            let mut bytes = Vec::new();
            write_varlong(value, &mut bytes);
            assert_eq!(read_varlong(&bytes), Some((value, bytes.len())));
        }
    }

    #[test]
    fn values_that_are_too_long_or_truncated_are_refused() {
        assert_eq!(read_varint(&[]), None);
        assert_eq!(read_varint(&[0x80]), None);
        assert_eq!(read_varint(&[0xff, 0xff, 0xff, 0xff, 0x1f]), None);
        assert_eq!(read_varint(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x00]), None);
        assert_eq!(read_varlong(&[0xff; 10]), None);
    }
}
