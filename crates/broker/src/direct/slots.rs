//! Slots: words of memory that tell a reader how far a segment is committed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use headrace_fabric::{Memory, MemorySource, Region};
use headrace_log::Extent;
use headrace_wire::direct::{SLOT_BYTES, Slot};

/// Slots that one link may have: as many partitions can its client read at a time. A link can have no more keys than
/// [`KEYS_MAX`](headrace_fabric::shm::KEYS_MAX), and those of slots and of landing rings are among them.
pub(super) const SLOTS_MAX: usize = 4000;

/// The slots of one link.
pub(super) struct ReaderSlots {
    pub(super) memory: Arc<Memory>,
    region: Region,
    free: Vec<u32>,
}

impl ReaderSlots {
    pub(super) fn new(source: &mut dyn MemorySource) -> Option<ReaderSlots> {
        let memory = source.sealed("headrace-slots", SLOTS_MAX * SLOT_BYTES).ok()?;
        let free = (0..u32::try_from(SLOTS_MAX).unwrap_or(0)).rev().collect();
        Some(ReaderSlots { region: Region::whole(memory.clone()), memory, free })
    }

    /// A slot that nobody has.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// The slot is free again; it says that it is nobody's.
    fn give_back(&mut self, slot: u32) {
        self.publish(slot, Slot { sealed: true, ..Slot::default() });
        self.free.push(slot);
    }

    /// What a slot says first is written last.
    pub(super) fn publish(&self, slot: u32, said: Slot) {
        let at = slot as usize * SLOT_BYTES;
        for (word, value) in said.to_words().into_iter().enumerate().rev() {
            // The memory is the broker's own, and has as many slots as were given out.
            if let Ok(word) = self.region.word(at + word * 8) {
                word.store(value, Ordering::Release);
            }
        }
    }
}

/// One client's reading of one segment.
pub(super) struct Reader {
    pub(super) key: u64,
    pub(super) base_offset: i64,
    /// `None` for a segment that was sealed when it was granted.
    pub(super) slot: Option<u32>,
    /// What its slot said last.
    pub(super) published: Extent,
    /// Bytes that its client has room for: what the segment could have when it was granted.
    pub(super) most: u64,
    /// Bytes of its file that are kept in memory for its client, over verbs.
    pub(super) window: u64,
    /// How many of them were not committed when they were exposed.
    pub(super) ahead: u64,
}

impl Reader {
    /// Its slot is free again.
    pub(super) fn end(&self, slots: Option<&mut ReaderSlots>) {
        if let Some((slot, slots)) = self.slot.zip(slots) {
            slots.give_back(slot);
        }
    }
}
