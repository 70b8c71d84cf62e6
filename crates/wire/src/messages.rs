//! Requests, responses and the messages inside records, generated from `messages/*.msg`.
//!
//! A message has one struct for all its versions. Fields that a version lacks are left out when it is written, if
//! they hold their default or are ignorable, and hold their default after reading.
//!
//! Defaults are those of Kafka's schemas. Mind that a field that may be null is null by default only if its schema
//! says so: `InitProducerIdRequest::default()` has an empty transactional id, `MetadataRequest::default()` asks for
//! no topics.

use crate::primitive::{DecodeError, EncodeError, Encoded, Reader, Writer};

/// What generated code uses.
mod prelude {
    pub(super) use super::{Message, Request, VersionRange};
    pub(super) use crate::primitive::{
        DecodeError, DecodeProblem, EncodeError, Form, Reader, Records, Writer,
    };
    #[cfg(feature = "testing")]
    pub(super) use crate::testing::{Arbitrary, Case, Filler};
    pub(super) use crate::uuid::Uuid;
    pub(super) use bytes::Bytes;
}

#[allow(unused_imports, reason = "a message may use none of a type")]
#[allow(unused_variables, reason = "a struct may be the same in all versions")]
#[allow(unused_mut, clippy::field_reassign_with_default, reason = "fields are read one after the other")]
#[allow(clippy::pedantic, clippy::derivable_impls, reason = "the generator favours regular code")]
#[allow(
    clippy::match_single_binding,
    clippy::collapsible_else_if,
    reason = "the generator favours regular code"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}

pub use generated::*;

/// Versions of a message, both ends included.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// The oldest.
    pub min: i16,
    /// The newest.
    pub max: i16,
}

impl VersionRange {
    /// Whether `version` is one of them.
    #[must_use]
    pub const fn contains(self, version: i16) -> bool {
        self.min <= version && version <= self.max
    }

    /// The newest version in both ranges.
    #[must_use]
    pub fn newest_common(self, other: Self) -> Option<i16> {
        let newest = self.max.min(other.max);
        (newest >= self.min.max(other.min)).then_some(newest)
    }
}

/// What requests, responses and messages inside records have in common.
pub trait Message: Clone + std::fmt::Debug + Default + PartialEq + Sized {
    /// Kafka's name, such as `FetchRequest`.
    const NAME: &'static str;
    /// The versions known here.
    const VERSIONS: VersionRange;
    /// The first flexible version (KIP-482), if one of [`Message::VERSIONS`] is.
    const FIRST_FLEXIBLE: Option<i16>;

    /// Writes the fields of a version.
    fn encode(&self, version: i16, writer: &mut Writer) -> Result<(), EncodeError>;

    /// Reads the fields of a version; the others hold their defaults. Bytes behind the message are left unread, as
    /// in Kafka.
    fn decode(version: i16, reader: &mut Reader) -> Result<Self, DecodeError>;

    /// The message alone, without header and frame size.
    fn to_encoded(&self, version: i16) -> Result<Encoded, EncodeError> {
        let mut writer = Writer::new();
        self.encode(version, &mut writer)?;
        Ok(writer.finish())
    }
}

/// A request, and what answers it.
pub trait Request: Message {
    /// Its kind.
    const KEY: ApiKey;
    /// Its response, which has the same versions.
    type Response: Message + Send + 'static;
}

impl ApiKey {
    /// The kind of a key, if it is known here.
    #[must_use]
    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.binary_search_by_key(&code, |key| key.code()).ok().and_then(|i| Self::ALL.get(i)).copied()
    }

    /// The key in a request header.
    #[must_use]
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// Whether `version` is flexible (KIP-482).
    #[must_use]
    pub const fn flexible(self, version: i16) -> bool {
        match self.first_flexible() {
            Some(first) => version >= first,
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_know_their_requests() {
        for key in ApiKey::ALL {
            assert_eq!(ApiKey::from_code(key.code()), Some(*key));
            assert_eq!(format!("{key:?}"), key.name());
        }
        assert_eq!(ApiKey::from_code(-1), None);
        assert_eq!(ApiKey::from_code(9999), None);
        assert_eq!(ApiKey::Fetch.code(), 1);
        assert_eq!(ApiKey::Fetch.versions(), VersionRange { min: 4, max: 18 });
        assert!(!ApiKey::Fetch.flexible(11) && ApiKey::Fetch.flexible(12));
        assert!(!ApiKey::SaslHandshake.flexible(1));
    }

    #[test]
    fn newest_common_version() {
        let ours = VersionRange { min: 4, max: 18 };
        assert_eq!(ours.newest_common(VersionRange { min: 0, max: 13 }), Some(13));
        assert_eq!(ours.newest_common(VersionRange { min: 18, max: 30 }), Some(18));
        assert_eq!(ours.newest_common(VersionRange { min: 0, max: 3 }), None);
        assert_eq!(ours.newest_common(VersionRange { min: 19, max: 30 }), None);
    }

    #[test]
    fn defaults_are_the_schema_s() {
        let fetch = FetchRequest::default();
        assert_eq!((fetch.replica_id, fetch.max_bytes, fetch.session_epoch), (-1, i32::MAX, -1));
        assert_eq!(MetadataRequest::default().topics, Some(Vec::new()));
        assert!(MetadataRequest::default().allow_auto_topic_creation);
        assert_eq!(metadata_response::MetadataResponseBroker::default().rack, None);
    }
}
