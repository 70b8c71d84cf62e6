//! What the two sides tell each other over the socket: each message is one packet.
//!
//! ```text
//! bytes  0   kind
//!        4   detail: rights of what is exposed; version of a welcome
//!        8   key
//!        16  length of what is exposed; notes of a ring
//! ```
//! Little-endian. Descriptors go with a packet: three with a welcome, one with what is exposed.

use crate::memory::Rights;

pub(super) const MESSAGE_BYTES: usize = 24;
/// Of the memory that a welcome brings.
const VERSION: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Welcome { notes: u32 },
    Expose { key: u64, len: u64, rights: Rights },
    LendFile { key: u64, len: u64 },
    End { key: u64 },
}

impl Message {
    pub(super) fn encode(self) -> [u8; MESSAGE_BYTES] {
        let (kind, detail, key, len): (u32, u32, u64, u64) = match self {
            Message::Welcome { notes } => (1, VERSION, 0, u64::from(notes)),
            Message::Expose { key, len, rights } => (2, u32::from(rights == Rights::Write), key, len),
            Message::LendFile { key, len } => (3, 0, key, len),
            Message::End { key } => (4, 0, key, 0),
        };
        let words = [u64::from(kind) | (u64::from(detail) << 32), key, len];
        let mut bytes = [0; MESSAGE_BYTES];
        for (into, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *into = word.to_le_bytes();
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Message> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().ok()?;
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let (head, key, len) = (words.next()?, words.next()?, words.next()?);
        let (kind, detail) = (head & u64::from(u32::MAX), head >> 32);
        match (kind, detail) {
            (1, version) if version == u64::from(VERSION) => {
                Some(Message::Welcome { notes: u32::try_from(len).ok()? })
            }
            (2, 0) => Some(Message::Expose { key, len, rights: Rights::Read }),
            (2, 1) => Some(Message::Expose { key, len, rights: Rights::Write }),
            (3, 0) => Some(Message::LendFile { key, len }),
            (4, 0) => Some(Message::End { key }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_come_back(key: u64, len: u64, notes: u32) {
            let (read, write) = (Rights::Read, Rights::Write);
            for message in [
                Message::Welcome { notes },
                Message::Expose { key, len, rights: read },
                Message::Expose { key, len, rights: write },
                Message::LendFile { key, len },
                Message::End { key },
            ] {
                let bytes = message.encode();
                prop_assert_eq!(Message::decode(&bytes), Some(message));
                prop_assert_eq!(Message::decode(&bytes[1..]), None);
            }
        }

        #[test]
        fn what_is_no_message_is_none(bytes: [u8; MESSAGE_BYTES]) {
            if let Some(message) = Message::decode(&bytes) {
                let again = message.encode();
                prop_assert_eq!(&again[..8], &bytes[..8]);
            }
        }
    }
}
