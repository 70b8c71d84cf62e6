//! A landing ring, as the broker reads it.

use bytes::{Bytes, BytesMut};
use headrace_fabric::Region;
use headrace_wire::records::BatchHeader;

/// Memory that batches are copied into out of rings: used again once nobody has the batch any more.
#[derive(Default)]
pub(super) struct Landed(Bytes);

impl Landed {
    fn room(&mut self, bytes: usize) -> BytesMut {
        let mut room = std::mem::take(&mut self.0).try_into_mut().unwrap_or_default();
        room.resize(bytes, 0);
        room
    }
}

/// A ring and how far the broker has read it.
pub(super) struct Ring {
    region: Region,
    /// Bytes taken since the ring was new.
    pub(super) position: u64,
    pub(super) next_order: u16,
}

impl Ring {
    pub(super) fn new(region: Region) -> Ring {
        Ring { region, position: 0, next_order: 0 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.region.len() as u64
    }

    /// Whether there can be a batch of so many bytes.
    pub(super) fn fits(&self, bytes: u32) -> bool {
        u64::from(bytes) <= self.bytes() && bytes as usize >= BatchHeader::LEN
    }

    /// Copies what lies next in the ring out of it.
    pub(super) fn take(&mut self, bytes: u32, landed: &mut Landed) -> Option<Bytes> {
        let ring = self.bytes();
        let mut into = landed.room(bytes as usize);
        let at = usize::try_from(self.position % ring).unwrap_or(0);
        let (first, rest) = into.split_at_mut((self.region.len() - at).min(bytes as usize));
        let read = self.region.read(at, first).and_then(|()| self.region.read(0, rest));
        self.position = self.position.wrapping_add(u64::from(bytes));
        self.next_order = self.next_order.wrapping_add(1);
        landed.0 = into.freeze();
        read.is_ok().then(|| landed.0.clone())
    }
}
