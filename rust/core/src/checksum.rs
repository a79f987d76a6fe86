//! The two checksums of the formats: CRC-32C (record batches v2, producer snapshots, our object
//! sections) and CRC-32 as zlib computes it (legacy messages, remoteLogIndex entries).

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// CRC-32C of a whole buffer.
#[inline]
pub fn crc32c(data: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, data) as u32
}

/// CRC-32 (zlib) of a whole buffer. Index entries and legacy messages are short, where `crc_fast`
/// takes several times as long.
#[inline]
pub fn crc32(data: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(crc) = crate::crc32_short::crc32_short(data) {
        return crc;
    }
    crc32fast::hash(data)
}

/// A checksum fed piece by piece.
#[derive(Debug)]
pub struct Running(Digest);

impl Running {
    /// Starts a CRC-32C.
    pub fn crc32c() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Starts a CRC-32.
    pub fn crc32() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32IsoHdlc))
    }

    /// Goes on from the value of an earlier CRC-32C.
    pub fn crc32c_from(value: u32) -> Self {
        Self(Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(value ^ u32::MAX)))
    }

    /// Goes on from the value of an earlier CRC-32.
    pub fn crc32_from(value: u32) -> Self {
        Self(Digest::new_with_init_state(CrcAlgorithm::Crc32IsoHdlc, u64::from(value ^ u32::MAX)))
    }

    /// Adds the next bytes.
    #[inline]
    pub fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    /// The value so far.
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
    fn pieces_equal_the_whole() {
        let mut running = Running::crc32c();
        running.update(b"1234");
        let middle = running.value();
        running.update(b"56789");
        assert_eq!(running.value(), 0xe306_9283);
        let mut resumed = Running::crc32c_from(middle);
        resumed.update(b"56789");
        assert_eq!(resumed.value(), 0xe306_9283);
        let mut zlib = Running::crc32_from(crc32(b"12345"));
        zlib.update(b"6789");
        assert_eq!(zlib.value(), 0xcbf4_3926);
    }
}
