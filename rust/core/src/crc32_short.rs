//! Computes the CRC-32 (zlib) of at most 256 bytes. For data this short, general implementations
//! spend most of their time on setup.
//!
//! Leading zeros do not change a CRC that starts from zero. So zeros are put before the data to
//! make a whole number of 64-byte blocks, and the first four data bytes are inverted. Carry-less
//! multiplication folds 512 bits at a time and then folds four lanes into one. Barrett's reduction
//! then gives the remainder ("Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel,
//! 2009). Below 256 bytes this takes a third to a half of the time of `crc32fast`.
#![expect(unsafe_code, reason = "vector loads, and calls that need a CPU feature")]

use std::arch::x86_64::*;

/// The first four bytes are inverted, so `data` must have them.
const MIN_SIZE: usize = 4;
/// Beyond this size `crc32fast` is as fast.
const MAX_SIZE: usize = 256;

/// Returns the CRC-32 of `data`, or `None` when the CPU lacks a feature or the size of `data` is
/// not supported.
#[inline]
pub fn crc32_short(data: &[u8]) -> Option<u32> {
    let fits = (MIN_SIZE..=MAX_SIZE).contains(&data.len());
    let can = is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("pclmulqdq");
    // SAFETY: the CPU has every feature that the function asks for.
    (fits && can).then(|| unsafe { crc32(data) })
}

/// Returns x^n modulo the polynomial, in the reflected form for carry-less multiplication.
const fn power(n: u32) -> i64 {
    let mut value: u32 = 1;
    let mut step = 0;
    while step < n {
        value = (value << 1) ^ if value >> 31 != 0 { 0x04c1_1db7 } else { 0 };
        step += 1;
    }
    (value.reverse_bits() as i64) << 1
}

/// Returns the factors that shift the two halves of a lane by `bits`.
const fn shift(bits: u32) -> [i64; 2] {
    [power(bits + 32), power(bits - 32)]
}

/// Shift by one block.
const BLOCK: [i64; 2] = shift(512);
/// Shifts by three lanes, two lanes and one lane.
const LANES: [[i64; 2]; 3] = [shift(384), shift(256), shift(128)];
/// Reduces 96 bits to 64.
const X64: i64 = power(64);
/// The polynomial, and 2^64 divided by it, reflected.
const BARRETT: [i64; 2] = [0x1_db71_0641, 0x1_f701_1641];

#[target_feature(enable = "avx512bw,avx512vbmi2,vpclmulqdq,pclmulqdq")]
fn crc32(data: &[u8]) -> u32 {
    let head = (data.len() - 1) % 64 + 1;
    let (first, rest) = data.split_at(head);
    let mask: __mmask64 = u64::MAX >> (64 - head);
    // SAFETY: the mask limits the load to the `head` bytes of `first`.
    let bytes = unsafe { _mm512_maskz_loadu_epi8(mask, first.as_ptr().cast()) };
    let ones = _mm512_zextsi128_si512(_mm_cvtsi32_si128(-1));
    let inverted = _mm512_xor_si512(bytes, _mm512_maskz_mov_epi8(mask, ones));
    let mut sum = _mm512_maskz_expand_epi8(u64::MAX << (64 - head), inverted);
    // When the first block has fewer than four bytes, the inversion continues in the second block.
    let left_over = u64::from(u32::MAX).checked_shr(8 * head as u32).unwrap_or(0);
    let mut spill = _mm512_zextsi128_si512(_mm_cvtsi64_si128(left_over as i64));
    let block = _mm512_broadcast_i32x4(_mm_set_epi64x(BLOCK[1], BLOCK[0]));
    for chunk in rest.as_chunks::<64>().0 {
        // SAFETY: the load reads the 64 bytes of `chunk`.
        let next = unsafe { _mm512_loadu_si512(chunk.as_ptr().cast()) };
        sum = _mm512_xor_si512(fold(sum, block), _mm512_xor_si512(next, spill));
        spill = _mm512_setzero_si512();
    }
    reduce(one_lane(sum))
}

#[inline]
#[target_feature(enable = "avx512bw,vpclmulqdq")]
fn fold(lanes: __m512i, by: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128(lanes, by, 0x00);
    _mm512_xor_si512(low, _mm512_clmulepi64_epi128(lanes, by, 0x11))
}

/// Folds four lanes into the last one.
#[inline]
#[target_feature(enable = "avx512bw,vpclmulqdq")]
fn one_lane(lanes: __m512i) -> __m128i {
    let [a, b, c] = LANES;
    let by = _mm512_set_epi64(0, 0, c[1], c[0], b[1], b[0], a[1], a[0]);
    let last = _mm512_maskz_mov_epi64(0b1100_0000, lanes);
    let sum = _mm512_xor_si512(fold(lanes, by), last);
    let sum = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    _mm_xor_si128(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1))
}

/// Reduces 128 bits to 96, then to 64, then to the remainder.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn reduce(sum: __m128i) -> u32 {
    let low = _mm_set_epi32(0, 0, 0, -1);
    let by = _mm_set_epi64x(LANES[2][1], X64);
    let sum = _mm_xor_si128(_mm_clmulepi64_si128(sum, by, 0x10), _mm_srli_si128(sum, 8));
    let next = _mm_clmulepi64_si128(_mm_and_si128(sum, low), by, 0x00);
    let sum = _mm_xor_si128(next, _mm_srli_si128(sum, 4));
    let by = _mm_set_epi64x(BARRETT[1], BARRETT[0]);
    let quotient = _mm_clmulepi64_si128(_mm_and_si128(sum, low), by, 0x10);
    let product = _mm_clmulepi64_si128(_mm_and_si128(quotient, low), by, 0x00);
    !(_mm_extract_epi32(_mm_xor_si128(sum, product), 1) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_crc32fast_at_every_length() {
        let data: Vec<u8> =
            (0..2 * MAX_SIZE as u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
        let able = crc32_short(&data[..MIN_SIZE]).is_some();
        for size in 0..MAX_SIZE + 2 {
            let part = &data[size / 2..size / 2 + size];
            let expected =
                (able && (MIN_SIZE..=MAX_SIZE).contains(&size)).then(|| crc32fast::hash(part));
            assert_eq!(crc32_short(part), expected, "{size} bytes");
        }
    }
}
