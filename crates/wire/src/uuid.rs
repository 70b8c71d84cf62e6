//! Topic, directory and process ids in Kafka's text form.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

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
        let mut text = [0; TEXT_LEN];
        URL_SAFE_NO_PAD.encode_slice(self.0, &mut text).map_err(|_| fmt::Error)?;
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
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
        if text.len() != TEXT_LEN {
            return Err(UuidError);
        }
        let mut id = [0; 16];
        // It refuses a last letter whose bits reach beyond the id.
        URL_SAFE_NO_PAD.decode_slice(text, &mut id).map_err(|_| UuidError)?;
        Ok(Self(id))
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
