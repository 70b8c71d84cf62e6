//! Topic, directory and process ids in Kafka's text form.

use std::fmt;
use std::str::FromStr;

/// Letters of url-safe base64 (RFC 4648, section 5).
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Letters that 16 bytes take: 21 of 6 bits and one of 2.
const TEXT_LEN: usize = 22;

/// A 128-bit id. Its text form is Kafka's: url-safe base64 without padding, 22 letters.
///
/// ```
/// use headrace_wire::uuid::Uuid;
/// let id: Uuid = "AAAAAAAAAAAAAAAAAAAAAQ".parse()?;
/// assert_eq!(id.0[15], 1);
/// assert_eq!(id.to_string(), "AAAAAAAAAAAAAAAAAAAAAQ");
/// # Ok::<(), headrace_wire::uuid::UuidError>(())
/// ```
#[derive(Copy, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

/// The text is not 22 letters of url-safe base64 that stand for 16 bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an id: 22 letters of url-safe base64 are expected")]
pub struct UuidError;

impl Uuid {
    /// All zeros: "no id" in every message.
    pub const ZERO: Self = Self([0; 16]);

    /// Whether this is [`Uuid::ZERO`].
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The 128 bits stand left-aligned in 132, six of them to a letter.
        let bits = u128::from_be_bytes(self.0);
        for place in 0..TEXT_LEN {
            let low = TEXT_LEN - 1 - place;
            let six = if low == 0 { (bits << 4) & 0x30 } else { (bits >> (6 * low - 4)) & 0x3F };
            let letter = usize::try_from(six).ok().and_then(|i| ALPHABET.get(i)).ok_or(fmt::Error)?;
            write!(f, "{}", char::from(*letter))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uuid({self})")
    }
}

impl FromStr for Uuid {
    type Err = UuidError;

    fn from_str(text: &str) -> Result<Self, UuidError> {
        let (last, head) = text.as_bytes().split_last().ok_or(UuidError)?;
        if text.len() != TEXT_LEN {
            return Err(UuidError);
        }
        let mut bits = 0_u128;
        for letter in head {
            bits = (bits << 6) | u128::from(six_bits(*letter)?);
        }
        let tail = six_bits(*last)?;
        // Only two bits of the last letter belong to the id; the others must not carry anything.
        if tail & 0x0F != 0 {
            return Err(UuidError);
        }
        Ok(Self(((bits << 2) | u128::from(tail >> 4)).to_be_bytes()))
    }
}

fn six_bits(letter: u8) -> Result<u8, UuidError> {
    match letter {
        b'A'..=b'Z' => Ok(letter - b'A'),
        b'a'..=b'z' => Ok(letter - b'a' + 26),
        b'0'..=b'9' => Ok(letter - b'0' + 52),
        b'-' => Ok(62),
        b'_' => Ok(63),
        _ => Err(UuidError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_agrees_with_kafka() {
        // org.apache.kafka.common.Uuid.METADATA_TOPIC_ID and a value printed by Uuid.toString.
        assert_eq!(Uuid::ZERO.to_string(), "AAAAAAAAAAAAAAAAAAAAAA");
        let counting = Uuid(std::array::from_fn(|i| u8::try_from(i * 17).unwrap()));
        assert_eq!(counting.to_string(), "ABEiM0RVZneImaq7zN3u_w");
        assert_eq!("ABEiM0RVZneImaq7zN3u_w".parse(), Ok(counting));
    }

    #[test]
    fn refuses_what_is_no_id() {
        for text in [
            "",
            "A",
            "AAAAAAAAAAAAAAAAAAAAA",
            "AAAAAAAAAAAAAAAAAAAAAAA",
            "AAAAAAAAAAAAAAAAAAAAA+",
            "AAAAAAAAAAAAAAAAAAAAAB",
        ] {
            assert_eq!(text.parse::<Uuid>(), Err(UuidError), "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_round_trip(bytes: [u8; 16]) {
            let id = Uuid(bytes);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
        }
    }
}
