//! What the two ends of a link over verbs tell each other, beside what is written and read one-sidedly.
//!
//! ```text
//! 0   kind
//! 1   numbers of 8 bytes, little-endian, as many as the kind has
//! ..  the descriptor of a region, where the kind has one
//! ```

use headrace_fabric::verbs::VerbsError;
use headrace_fabric::{Descriptor, FabricError, Note, SHORT_BYTES_MAX};

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The broker's answer to a write.
    Note(Note),
    /// A ring to be written to.
    Lent { key: u64, ring: Descriptor },
    /// Slots to be read.
    Shown { key: u64, slots: Descriptor },
    /// A part of a file to be read, from `at` on; the last one of that file is void.
    Window { key: u64, at: u64, bytes: Descriptor },
    /// What was granted by a key cannot be reached.
    Refused { key: u64, why: Why },
    /// What was lent by a key is void.
    Ended { key: u64 },
    /// The client does nothing any more with what was ended.
    Freed { key: u64 },
    /// The client has written a batch that goes around its ring: what it would else say with the write.
    Written { immediate: u32, bytes: u32 },
    /// The client wants to read a file from `at` on.
    More { key: u64, at: u64 },
    /// The client sleeps: it is to be nudged once slots have changed, or have since the last nudge.
    Sleeps,
    /// Slots have changed.
    Nudge,
}

/// Why memory cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Locked,
    File,
    Full,
    Other,
}

impl Why {
    /// What keeps a region from being registered.
    pub(crate) fn of(error: &FabricError) -> Why {
        match error {
            FabricError::Provider(error) => match error.downcast_ref() {
                Some(VerbsError::Locked { .. }) => Why::Locked,
                Some(VerbsError::File { .. }) => Why::File,
                _ => Why::Other,
            },
            _ => Why::Other,
        }
    }

    /// For whoever asked for it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Why::Locked => {
                "the broker may not lock so much memory for RDMA: raise its limit (ulimit -l, LimitMEMLOCK=)"
            }
            Why::File => "the kernel of the broker's machine lets no file of its log.dir be read over RDMA",
            Why::Full => "the broker's headrace.direct.memory.bytes is used up",
            Why::Other => "the broker cannot register the memory with its RDMA device",
        }
    }

    fn number(self) -> u64 {
        match self {
            Why::Locked => 1,
            Why::File => 2,
            Why::Full => 3,
            Why::Other => 4,
        }
    }
}

impl Told {
    /// As it travels.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, numbers, descriptor): (u8, &[u64], Option<&Descriptor>) = match self {
            Told::Note(note) => (1, note, None),
            Told::Lent { key, ring } => (2, &[*key], Some(ring)),
            Told::Shown { key, slots } => (3, &[*key], Some(slots)),
            Told::Window { key, at, bytes } => (4, &[*key, *at], Some(bytes)),
            Told::Refused { key, why } => (5, &[*key, why.number()], None),
            Told::Ended { key } => (6, &[*key], None),
            Told::Written { immediate, bytes } => (7, &[u64::from(*immediate), u64::from(*bytes)], None),
            Told::More { key, at } => (8, &[*key, *at], None),
            Told::Sleeps => (9, &[], None),
            Told::Nudge => (10, &[], None),
            Told::Freed { key } => (11, &[*key], None),
        };
        let mut bytes = Vec::with_capacity(SHORT_BYTES_MAX);
        bytes.push(kind);
        for number in numbers {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(descriptor.map(Descriptor::as_bytes).unwrap_or_default());
        bytes
    }

    /// What came; none: it means nothing.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Told> {
        let (kind, mut rest) = bytes.split_first()?;
        let mut number = || {
            let (number, after) = rest.split_first_chunk()?;
            rest = after;
            Some(u64::from_le_bytes(*number))
        };
        let told = match kind {
            1 => Told::Note([number()?, number()?, number()?, number()?]),
            2 => return Some(Told::Lent { key: number()?, ring: Descriptor::new(rest)? }),
            3 => return Some(Told::Shown { key: number()?, slots: Descriptor::new(rest)? }),
            4 => {
                return Some(Told::Window { key: number()?, at: number()?, bytes: Descriptor::new(rest)? });
            }
            5 => {
                let key = number()?;
                let why = match number()? {
                    1 => Why::Locked,
                    2 => Why::File,
                    3 => Why::Full,
                    _ => Why::Other,
                };
                Told::Refused { key, why }
            }
            6 => Told::Ended { key: number()? },
            7 => Told::Written {
                immediate: u32::try_from(number()?).ok()?,
                bytes: u32::try_from(number()?).ok()?,
            },
            8 => Told::More { key: number()?, at: number()? },
            9 => Told::Sleeps,
            10 => Told::Nudge,
            11 => Told::Freed { key: number()? },
            _ => return None,
        };
        rest.is_empty().then_some(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_comes_as_it_went() {
        let region = Descriptor::new(&[7; 21]).unwrap();
        let all = [
            Told::Note([1, u64::MAX, 3, 4]),
            Told::Lent { key: 5, ring: region.clone() },
            Told::Shown { key: 1, slots: region.clone() },
            Told::Window { key: 2, at: 1 << 40, bytes: region },
            Told::Refused { key: 3, why: Why::Locked },
            Told::Refused { key: 3, why: Why::File },
            Told::Refused { key: 3, why: Why::Full },
            Told::Refused { key: 3, why: Why::Other },
            Told::Ended { key: u64::MAX },
            Told::Written { immediate: u32::MAX, bytes: 9 },
            Told::More { key: 8, at: 9 },
            Told::Sleeps,
            Told::Nudge,
            Told::Freed { key: 12 },
        ];
        for told in all {
            let bytes = told.encode();
            assert!(bytes.len() <= SHORT_BYTES_MAX, "{told:?}");
            assert_eq!(Told::decode(&[&bytes[..], &[0; 60]].concat()), None, "more than it has");
            assert_eq!(Told::decode(&bytes[..bytes.len().min(8)]).filter(|_| bytes.len() > 8), None, "less");
            assert_eq!(Told::decode(&bytes), Some(told));
        }
    }
}
