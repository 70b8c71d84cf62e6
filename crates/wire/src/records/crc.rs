//! CRC-32C: of bytes, of bytes in pieces, and of two runs of bytes from the checksum of each.
//!
//! A checksum is the remainder of a polynomial over GF(2): appending n bytes multiplies the first remainder by
//! x^(8n). The powers x^(2^k) are a table, so that is one multiplication for each bit of n: well below a
//! microsecond, where the general routine of the checksum library takes twenty.

use crc_fast::{CrcAlgorithm, Digest};

/// The Castagnoli polynomial with its bits reversed: the highest bit is x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// x^0.
const ONE: u32 = 1 << 31;
/// Bits of a length in bits: 64 for the length in bytes, and three.
const POWERS: usize = 67;
/// x^(2^k) for every k.
const X_TO_POWER_OF_TWO: [u32; POWERS] = powers();

const fn powers() -> [u32; POWERS] {
    let mut table = [ONE >> 1; POWERS];
    let mut k = 1;
    while k < POWERS {
        table[k] = multiply(table[k - 1], table[k - 1]);
        k += 1;
    }
    table
}

/// The product of two remainders.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = ONE;
    while bit != 0 {
        // Masks instead of branches: the bits are as good as random.
        product ^= b & (((a & bit) != 0) as u32).wrapping_neg();
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
        bit >>= 1;
    }
    product
}

/// The CRC-32C of bytes.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The CRC-32C of bytes whose beginning has the checksum `before`, and which go on with `more`.
#[must_use]
pub fn crc32c_append(before: u32, more: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!before));
    digest.update(more);
    let [.., a, b, c, d] = digest.finalize().to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// The checksum of a first run of bytes followed by a second of `second_len` bytes.
pub(super) fn combine(first: u32, second: u32, second_len: usize) -> u32 {
    let mut shifted = first;
    let mut len = second_len;
    // From x^(2^3) on: the length is in bytes.
    for power in X_TO_POWER_OF_TWO.iter().skip(3) {
        if len == 0 {
            break;
        }
        if len & 1 == 1 {
            shifted = multiply(*power, shifted);
        }
        len >>= 1;
    }
    shifted ^ second
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        // The check value of CRC-32/ISCSI, and RFC 3720, B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&[]), 0);
    }

    #[test]
    fn bytes_in_pieces_give_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..5_000_u32).map(|i| (i % 251) as u8).collect();
        for size in [1, 7, 64, 1000, bytes.len()] {
            let pieces = bytes.chunks(size).fold(0, crc32c_append);
            assert_eq!(pieces, crc32c(&bytes), "pieces of {size}");
        }
        assert_eq!(crc32c_append(0x1234_5678, &[]), 0x1234_5678);
    }

    #[test]
    fn two_runs_give_the_checksum_of_the_whole() {
        let bytes: Vec<u8> =
            (0..70_000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        for split in [0, 1, 40, 4096, 65_535, bytes.len()] {
            let (first, second) = bytes.split_at(split);
            let combined = combine(crc32c(first), crc32c(second), second.len());
            assert_eq!(combined, crc32c(&bytes), "split at {split}");
        }
    }

    #[test]
    fn the_largest_length_agrees_with_the_library() {
        let len = usize::MAX;
        let theirs =
            crc_fast::checksum_combine(CrcAlgorithm::Crc32Iscsi, 0x1234_5678, 0x9abc_def0, len as u64);
        assert_eq!(u64::from(combine(0x1234_5678, 0x9abc_def0, len)), theirs);
    }
}
