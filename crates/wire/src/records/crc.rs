//! The CRC-32C of two runs of bytes from the checksum of each.
//!
//! A checksum is the remainder of a polynomial over GF(2): appending n bytes multiplies the first remainder by
//! x^(8n). The powers x^(2^k) are a table, so that is one multiplication for each bit of n: well below a
//! microsecond, where the general routine of the checksum library takes twenty.

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
    fn two_runs_give_the_checksum_of_the_whole() {
        let bytes: Vec<u8> =
            (0..70_000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        for split in [0, 1, 40, 4096, 65_535, bytes.len()] {
            let (first, second) = bytes.split_at(split);
            let combined = combine(crc32c::crc32c(first), crc32c::crc32c(second), second.len());
            assert_eq!(combined, crc32c::crc32c(&bytes), "split at {split}");
        }
    }

    #[test]
    fn the_largest_length_agrees_with_the_library() {
        let len = usize::MAX;
        assert_eq!(
            combine(0x1234_5678, 0x9abc_def0, len),
            crc32c::crc32c_combine(0x1234_5678, 0x9abc_def0, len)
        );
    }
}
