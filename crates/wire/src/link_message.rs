//! What the two ends of a link say to each other, beside what is written and read one-sidedly (docs/one-sided.md).
//!
//! ```text
//! 0   kind
//! 1   numbers of 8 bytes, little-endian, as many as the kind has
//! ..  the descriptor of a region, where the kind has one
//! ```
//! A message fits what a fabric sends without memory of its own, so that it is never cut.

use std::fmt;
use std::ops::Deref;

/// Bytes of a message, at most.
pub const LINK_MESSAGE_BYTES_MAX: usize = 56;
/// Bytes of a descriptor, at most: what the kind and two numbers leave.
const DESCRIPTOR_BYTES_MAX: usize = LINK_MESSAGE_BYTES_MAX - 1 - 2 * 8;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkMessage {
    /// From the broker: the answer to a write, [`WriteAck`](crate::direct::WriteAck).
    Ack([u64; 4]),
    /// From the broker: it exposes a ring, to be written.
    Ring {
        /// Names it from now on.
        key: u64,
        /// How it is reached.
        region: RegionDescriptor,
    },
    /// From the broker: it exposes memory, to be read: slots, or how far a shared ring was read.
    Slots {
        /// Names it from now on.
        key: u64,
        /// How it is reached.
        region: RegionDescriptor,
    },
    /// From the broker: it exposes a part of a file, to be read. The last part of that file is void.
    Window {
        /// Which file.
        key: u64,
        /// Where in the file the part begins.
        at: u64,
        /// How it is reached.
        region: RegionDescriptor,
    },
    /// From the broker: what was granted by this key cannot be reached.
    Unreachable {
        /// Which grant's.
        key: u64,
        /// Why.
        reason: UnreachableReason,
    },
    /// From the broker: what was exposed by this key is void.
    Revoked {
        /// Which memory.
        key: u64,
    },
    /// From the client: none of its operations reaches what was revoked any more.
    Released {
        /// Which memory.
        key: u64,
    },
    /// From the client: it has written a batch that goes around the end of its ring, in two writes. What one write tells with
    /// its immediate data.
    Written {
        /// [`Written`](crate::direct::Written).
        immediate: u32,
        /// Bytes of the batch.
        bytes: u32,
    },
    /// From the client: it wants to read a file from here on.
    WantWindow {
        /// Which file.
        key: u64,
        /// The first byte.
        at: u64,
    },
    /// From the client: it parks. It is to be notified once slots change, or have since it was notified last.
    Parked,
    /// From the broker: slots have changed.
    Notify,
}

/// Why the broker cannot expose what it has granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreachableReason {
    /// It may lock no more memory.
    MemoryLock,
    /// The kernel lets no file of that file system be reached.
    FileSystem,
    /// Its quota for exposed memory is used up.
    Quota,
    /// Something else.
    Other,
}

impl UnreachableReason {
    /// For whoever has asked for the memory.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            UnreachableReason::MemoryLock => {
                "the broker may not lock so much memory for RDMA: raise its limit (ulimit -l, LimitMEMLOCK=)"
            }
            UnreachableReason::FileSystem => {
                "the kernel of the broker's machine lets no file of its log.dir be read over RDMA"
            }
            UnreachableReason::Quota => "the broker's headrace.direct.memory.bytes is used up",
            UnreachableReason::Other => "the broker cannot register the memory with its RDMA device",
        }
    }

    fn number(self) -> u64 {
        match self {
            UnreachableReason::MemoryLock => 1,
            UnreachableReason::FileSystem => 2,
            UnreachableReason::Quota => 3,
            UnreachableReason::Other => 4,
        }
    }
}

/// Bytes of a fabric's own that say how a region is reached: whoever has them may reach it.
#[derive(Clone, PartialEq, Eq)]
pub struct RegionDescriptor {
    bytes: [u8; DESCRIPTOR_BYTES_MAX],
    len: usize,
}

impl RegionDescriptor {
    /// `None`: too long for a message.
    #[must_use]
    pub fn new(descriptor: &[u8]) -> Option<Self> {
        let mut bytes = [0; DESCRIPTOR_BYTES_MAX];
        bytes.get_mut(..descriptor.len())?.copy_from_slice(descriptor);
        Some(Self { bytes, len: descriptor.len() })
    }
}

impl Deref for RegionDescriptor {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl fmt::Debug for RegionDescriptor {
    /// Without the bytes: they are a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionDescriptor").field("len", &self.len).finish_non_exhaustive()
    }
}

/// A message as it travels.
#[derive(Clone, Debug)]
pub struct EncodedLinkMessage {
    bytes: [u8; LINK_MESSAGE_BYTES_MAX],
    len: usize,
}

impl EncodedLinkMessage {
    fn put(&mut self, more: &[u8]) {
        let end = self.len.saturating_add(more.len());
        // No message has more than fits: its descriptor was checked when it was made.
        if let Some(into) = self.bytes.get_mut(self.len..end) {
            into.copy_from_slice(more);
            self.len = end;
        }
    }
}

impl Deref for EncodedLinkMessage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl LinkMessage {
    /// As it travels.
    #[must_use]
    pub fn encode(&self) -> EncodedLinkMessage {
        let (kind, numbers, region): (u8, &[u64], Option<&RegionDescriptor>) = match self {
            LinkMessage::Ack(note) => (1, note, None),
            LinkMessage::Ring { key, region } => (2, &[*key], Some(region)),
            LinkMessage::Slots { key, region } => (3, &[*key], Some(region)),
            LinkMessage::Window { key, at, region } => (4, &[*key, *at], Some(region)),
            LinkMessage::Unreachable { key, reason } => (5, &[*key, reason.number()], None),
            LinkMessage::Revoked { key } => (6, &[*key], None),
            LinkMessage::Written { immediate, bytes } => {
                (7, &[u64::from(*immediate), u64::from(*bytes)], None)
            }
            LinkMessage::WantWindow { key, at } => (8, &[*key, *at], None),
            LinkMessage::Parked => (9, &[], None),
            LinkMessage::Notify => (10, &[], None),
            LinkMessage::Released { key } => (11, &[*key], None),
        };
        let mut encoded = EncodedLinkMessage { bytes: [0; LINK_MESSAGE_BYTES_MAX], len: 0 };
        encoded.put(&[kind]);
        for number in numbers {
            encoded.put(&number.to_le_bytes());
        }
        encoded.put(region.map(Deref::deref).unwrap_or_default());
        encoded
    }

    /// What came; `None`: it means nothing.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<LinkMessage> {
        let (kind, mut rest) = bytes.split_first()?;
        let mut number = || {
            let (number, after) = rest.split_first_chunk()?;
            rest = after;
            Some(u64::from_le_bytes(*number))
        };
        let message = match kind {
            1 => LinkMessage::Ack([number()?, number()?, number()?, number()?]),
            2 => return Some(LinkMessage::Ring { key: number()?, region: RegionDescriptor::new(rest)? }),
            3 => return Some(LinkMessage::Slots { key: number()?, region: RegionDescriptor::new(rest)? }),
            4 => {
                let (key, at) = (number()?, number()?);
                return Some(LinkMessage::Window { key, at, region: RegionDescriptor::new(rest)? });
            }
            5 => {
                let key = number()?;
                let reason = match number()? {
                    1 => UnreachableReason::MemoryLock,
                    2 => UnreachableReason::FileSystem,
                    3 => UnreachableReason::Quota,
                    _ => UnreachableReason::Other,
                };
                LinkMessage::Unreachable { key, reason }
            }
            6 => LinkMessage::Revoked { key: number()? },
            7 => LinkMessage::Written {
                immediate: u32::try_from(number()?).ok()?,
                bytes: u32::try_from(number()?).ok()?,
            },
            8 => LinkMessage::WantWindow { key: number()?, at: number()? },
            9 => LinkMessage::Parked,
            10 => LinkMessage::Notify,
            11 => LinkMessage::Released { key: number()? },
            _ => return None,
        };
        rest.is_empty().then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_message_comes_as_it_went() {
        let region = RegionDescriptor::new(&[7; DESCRIPTOR_BYTES_MAX]).unwrap();
        assert_eq!(RegionDescriptor::new(&[7; DESCRIPTOR_BYTES_MAX + 1]), None);
        assert!(!format!("{region:?}").contains('7'), "a descriptor is a key");
        let all = [
            LinkMessage::Ack([1, u64::MAX, 3, 4]),
            LinkMessage::Ring { key: 5, region: region.clone() },
            LinkMessage::Slots { key: 1, region: region.clone() },
            LinkMessage::Window { key: 2, at: 1 << 40, region },
            LinkMessage::Unreachable { key: 3, reason: UnreachableReason::MemoryLock },
            LinkMessage::Unreachable { key: 3, reason: UnreachableReason::FileSystem },
            LinkMessage::Unreachable { key: 3, reason: UnreachableReason::Quota },
            LinkMessage::Unreachable { key: 3, reason: UnreachableReason::Other },
            LinkMessage::Revoked { key: u64::MAX },
            LinkMessage::Written { immediate: u32::MAX, bytes: 9 },
            LinkMessage::WantWindow { key: 8, at: 9 },
            LinkMessage::Parked,
            LinkMessage::Notify,
            LinkMessage::Released { key: 12 },
        ];
        for message in all {
            let bytes = message.encode();
            assert!(bytes.len() <= LINK_MESSAGE_BYTES_MAX, "{message:?}");
            assert_eq!(LinkMessage::decode(&[&bytes[..], &[0; 60]].concat()), None, "more than it has");
            let cut = LinkMessage::decode(&bytes[..bytes.len().min(8)]).filter(|_| bytes.len() > 8);
            assert_eq!(cut, None, "less");
            assert_eq!(LinkMessage::decode(&bytes), Some(message));
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(message) = LinkMessage::decode(&bytes) {
                // What is understood is understood alike when it is said again.
                prop_assert_eq!(LinkMessage::decode(&message.encode()), Some(message));
            }
        }
    }
}
