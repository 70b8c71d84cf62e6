//! What is said over a link: the numbers that go along with one-sided writes, the broker's answers to them, and the slots
//! that readers look at (docs/one-sided.md).

/// Keys of requests from here on are headrace's own.
pub const FIRST_PRIVATE_KEY: i16 = 16384;

/// Words of a slot: [`Slot`].
pub const SLOT_WORDS: usize = 3;
/// Bytes of a slot: two lie in a cache line.
pub const SLOT_BYTES: usize = 32;
/// Where the first word of a slot says whose it is; below that, how much is committed.
const SLOT_ID_SHIFT: u32 = 48;

/// The mode of a grant in which nobody else writes over a link.
pub const EXCLUSIVE: i8 = 0;
/// The mode of a grant in which each write reserves its order and its place by a fetch-and-add on the order word.
pub const SHARED: i8 = 1;

/// The order word of a shared landing ring: how many writes have reserved space, modulo 65,536, and how many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// Which write is next.
    pub order: u16,
    /// Bytes of all writes before it, since the ring was new.
    pub position: u64,
}

impl Reservation {
    /// Positions end here; a ring is given up long before.
    pub const POSITIONS: u64 = 1 << 48;

    /// From the word.
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        let [a, b, ..] = word.to_be_bytes();
        Self { order: u16::from_be_bytes([a, b]), position: word % Self::POSITIONS }
    }

    /// The word.
    #[must_use]
    pub fn to_word(self) -> u64 {
        (u64::from(self.order) << 48) | (self.position % Self::POSITIONS)
    }

    /// What a write of so many bytes adds to the word.
    #[must_use]
    pub fn add(bytes: usize) -> u64 {
        (1 << 48) | (bytes as u64 % Self::POSITIONS)
    }
}

/// What a write says of itself, in 32 bits: which grant, and which of its writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// [`GrantProduceResponse::id`](crate::messages::GrantProduceResponse).
    pub id: u16,
    /// Exclusive grants: counts the writes, modulo 65,536. Shared ones: the order that was reserved.
    pub order: u16,
}

impl Written {
    /// As it travels.
    #[must_use]
    pub fn to_immediate(self) -> u32 {
        u32::from(self.id) << 16 | u32::from(self.order)
    }

    /// What came.
    #[must_use]
    pub fn from_immediate(said: u32) -> Self {
        let [a, b, c, d] = said.to_be_bytes();
        Self { id: u16::from_be_bytes([a, b]), order: u16::from_be_bytes([c, d]) }
    }
}

/// The broker's answer to a write, also to what a leader has pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteAck {
    /// What it answers.
    pub written: Written,
    /// Kafka's code; 0: the batch is in the log.
    pub error_code: i16,
    /// The offset of the batch's first record, or of what was pushed the end of the copy; -1 with an error.
    pub base_offset: i64,
    /// The broker's time, where the topic stamps records; -1 else.
    pub log_append_time: i64,
    /// First offset of the log.
    pub log_start_offset: i64,
}

impl WriteAck {
    /// As it travels.
    #[must_use]
    pub fn to_note(self) -> [u64; 4] {
        let head = u64::from(self.written.to_immediate()) << 32 | u64::from(self.error_code.cast_unsigned());
        [
            head,
            self.base_offset.cast_unsigned(),
            self.log_append_time.cast_unsigned(),
            self.log_start_offset.cast_unsigned(),
        ]
    }

    /// What came.
    #[must_use]
    pub fn from_note([head, base_offset, log_append_time, log_start_offset]: [u64; 4]) -> Self {
        let low = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default();
        let [.., high_byte, low_byte] = head.to_be_bytes();
        Self {
            written: Written::from_immediate(low(head >> 32)),
            error_code: i16::from_be_bytes([high_byte, low_byte]),
            base_offset: base_offset.cast_signed(),
            log_append_time: log_append_time.cast_signed(),
            log_start_offset: log_start_offset.cast_signed(),
        }
    }
}

/// What a leader says ahead of the batches that it pushes into a follower's ring; there may be none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pushed {
    /// In which it leads.
    pub leader_epoch: i32,
    /// The offset after the last committed record.
    pub high_watermark: i64,
    /// First offset of the leader's log.
    pub log_start_offset: i64,
}

impl Pushed {
    /// Bytes of it.
    pub const LEN: usize = 20;

    /// As it lies in memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let (epoch, rest) = bytes.split_at_mut(4);
        let (high_watermark, log_start_offset) = rest.split_at_mut(8);
        epoch.copy_from_slice(&self.leader_epoch.to_be_bytes());
        high_watermark.copy_from_slice(&self.high_watermark.to_be_bytes());
        log_start_offset.copy_from_slice(&self.log_start_offset.to_be_bytes());
        bytes
    }

    /// What lies in memory, and the batches behind it.
    #[must_use]
    pub fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (epoch, rest) = bytes.split_first_chunk()?;
        let (high_watermark, rest) = rest.split_first_chunk()?;
        let (log_start_offset, batches) = rest.split_first_chunk()?;
        let pushed = Self {
            leader_epoch: i32::from_be_bytes(*epoch),
            high_watermark: i64::from_be_bytes(*high_watermark),
            log_start_offset: i64::from_be_bytes(*log_start_offset),
        };
        Some((pushed, batches))
    }
}

/// What a reader's slot says of its segment. The first word is written last and read first, and differs between
/// grants that have the slot one after the other: whoever looks at it alone misses nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    /// Bytes of the segment that are committed.
    pub committed: u64,
    /// Nothing will be added to the segment: what comes next is in another one.
    pub sealed: bool,
    /// The partition's high watermark: the offset after the last committed record.
    pub high_watermark: i64,
    /// The partition's last stable offset.
    pub last_stable_offset: i64,
    /// The grant that the slot is of; 0: of none.
    pub id: u16,
}

impl Slot {
    /// As it lies in memory.
    #[must_use]
    pub fn to_words(self) -> [u64; SLOT_WORDS] {
        [
            u64::from(self.id) << SLOT_ID_SHIFT | self.committed << 1 | u64::from(self.sealed),
            self.high_watermark.cast_unsigned(),
            self.last_stable_offset.cast_unsigned(),
        ]
    }

    /// What lies in memory.
    #[must_use]
    pub fn from_words([first, high_watermark, last_stable_offset]: [u64; SLOT_WORDS]) -> Self {
        Self {
            committed: (first & ((1 << SLOT_ID_SHIFT) - 1)) >> 1,
            sealed: first & 1 == 1,
            high_watermark: high_watermark.cast_signed(),
            last_stable_offset: last_stable_offset.cast_signed(),
            id: u16::try_from(first >> SLOT_ID_SHIFT).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_comes_back() {
        let written = Written { id: 0xABCD, order: 0x1234 };
        assert_eq!(written.to_immediate(), 0xABCD_1234);
        assert_eq!(Written::from_immediate(0xABCD_1234), written);
        let drawn = Reservation { order: u16::MAX, position: (1 << 47) + 3 };
        assert_eq!(Reservation::from_word(drawn.to_word()), drawn);
        let next = drawn.to_word().wrapping_add(Reservation::add(70));
        assert_eq!(Reservation::from_word(next), Reservation { order: 0, position: (1 << 47) + 73 });
        for error_code in [0, -1, 45] {
            let ack = WriteAck {
                written,
                error_code,
                base_offset: -1,
                log_append_time: 7,
                log_start_offset: 1 << 40,
            };
            assert_eq!(WriteAck::from_note(ack.to_note()), ack);
        }
        let pushed = Pushed { leader_epoch: 7, high_watermark: 1 << 40, log_start_offset: -1 };
        let bytes = [&pushed.to_bytes()[..], b"batches"].concat();
        assert_eq!(Pushed::split(&bytes), Some((pushed, &b"batches"[..])));
        assert_eq!(Pushed::split(&bytes[..Pushed::LEN - 1]), None);
        for sealed in [false, true] {
            let slot =
                Slot { committed: (1 << 31) + 5, sealed, high_watermark: 9, last_stable_offset: -1, id: 3 };
            assert_eq!(Slot::from_words(slot.to_words()), slot);
            let next = Slot { id: u16::MAX, ..slot };
            assert_eq!(Slot::from_words(next.to_words()), next);
            assert_ne!(next.to_words()[0], slot.to_words()[0], "the next grant's is seen to be another");
        }
    }
}
