//! The two checksums of the formats: CRC-32C for record batches v2, producer snapshots and sections
//! of `.indexes` objects, and CRC-32 as in zlib for legacy messages and remoteLogIndex entries.

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// Returns the CRC-32C of `data`.
#[inline]
pub fn crc32c(data: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, data) as u32
}

/// Returns the CRC-32 (zlib) of `data`. Index entries and legacy messages are short, and for short
/// data `crc_fast` takes several times as long.
#[inline]
pub fn crc32(data: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(crc) = crate::crc32_short::crc32_short(data) {
        return crc;
    }
    crc32fast::hash(data)
}

/// The polynomial of CRC-32C without its highest term, reflected: bit 31 is x^0.
const CRC32C: u32 = 0x82f6_3b78;

/// Returns the product of two polynomials modulo the polynomial of CRC-32C. All three are
/// reflected.
const fn times(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut power = 32;
    while power > 0 {
        power -= 1;
        product ^= b & 0u32.wrapping_sub((a >> power) & 1);
        b = (b >> 1) ^ (CRC32C & 0u32.wrapping_sub(b & 1));
    }
    product
}

/// `ZEROS[k][byte]` is the factor that appends `byte * 256^k` zero bytes to a CRC-32C: x^(8 * byte
/// * 256^k).
static ZEROS: [[u32; 256]; 8] = {
    let mut table = [[1 << 31; 256]; 8];
    let mut one = 1 << 23;
    let mut place = 0;
    while place < 8 {
        let mut byte = 1;
        while byte < 256 {
            table[place][byte] = times(table[place][byte - 1], one);
            byte += 1;
        }
        one = times(table[place][255], one);
        place += 1;
    }
    table
};

/// Returns the CRC-32C of two consecutive byte strings from the CRC-32C of each. When the second
/// string is below 16 MiB, it takes about 0.1 us, while `crc_fast` takes microseconds.
#[inline]
pub fn join_crc32c(first: u32, second: u32, second_bytes: u64) -> u32 {
    let moved = second_bytes.to_le_bytes().iter().zip(&ZEROS).fold(first, |crc, (&byte, zeros)| {
        if byte == 0 { crc } else { times(zeros[usize::from(byte)], crc) }
    });
    moved ^ second
}

/// A checksum that is updated with consecutive parts of the data.
#[derive(Debug)]
pub struct Running(Digest);

impl Running {
    /// Starts a CRC-32C.
    pub fn crc32c() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Continues from the value of an earlier CRC-32C.
    pub fn crc32c_from(value: u32) -> Self {
        Self(Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(value ^ u32::MAX)))
    }

    /// Adds the next bytes.
    #[inline]
    pub fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    /// Returns the checksum of all bytes so far.
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_values() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn joined_checksum_equals_the_whole_at_every_length() {
        let data: Vec<u8> =
            (0..70_000u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
        for cut in [0, 1, 21, 255, 256, 257, 4096, 65_535, 65_536, 65_537, 70_000] {
            let (first, second) = data.split_at(data.len() - cut);
            assert_eq!(join_crc32c(crc32c(first), crc32c(second), cut as u64), crc32c(&data));
        }
        // Long second parts: joining is associative.
        let (a, b, c) = (0x1234_5678, 0x9abc_def0, 0x0fed_cba9);
        let (short, long) = (12_345, (7 << 32) + 99);
        let left = join_crc32c(join_crc32c(a, b, long), c, short);
        assert_eq!(left, join_crc32c(a, join_crc32c(b, c, short), long + short));
    }

    #[test]
    fn parts_equal_the_whole() {
        let mut running = Running::crc32c();
        running.update(b"1234");
        let middle = running.value();
        running.update(b"56789");
        assert_eq!(running.value(), 0xe306_9283);
        let mut resumed = Running::crc32c_from(middle);
        resumed.update(b"56789");
        assert_eq!(resumed.value(), 0xe306_9283);
    }
}
