//! Landing rings that several clients write into. Each write reserves its order and its place by fetch-and-add on the order
//! word, which lies behind the ring; the broker takes writes in that order, whoever notifies it of them first. The word is the
//! members' to add to: their processors', or over RDMA the broker's card's. The broker only reads it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use headrace_fabric::{Memory, MemorySource, OutOfBounds, Region};
use headrace_wire::direct::{Reservation, Written};
use headrace_wire::records::batch_size;

use super::ring::{Landed, Ring};

/// Writes under way that each member may have.
pub(super) const QUOTA: usize = 64;
/// Who may write one partition: orders that are open at once stay far from meaning two writes.
pub(super) const MEMBERS_MAX: usize = 8192 / QUOTA;
/// Bytes behind the ring: the order word, on a line of its own.
const TAIL: usize = 64;
/// Bytes of all writes after which a ring is given up: the order word has twice as many.
const POSITION_MAX: u64 = Reservation::POSITIONS / 2;

/// What is found where the next write should lie.
pub(super) enum Next {
    /// Nobody has notified the broker of it.
    None,
    /// A batch, copied out.
    Batch(Written, Bytes),
    /// Something else: who writes here has not kept to the order word. The ring can be believed no more.
    Nonsense,
}

/// A member says what cannot be.
pub(super) enum Violation {
    /// It is at fault; why.
    OfMember(String),
    /// It or another is at fault, and nothing says which: two name the same turn, or somebody may have written the order word.
    OfSomebody,
}

/// One ring and its members.
pub(super) struct Shared {
    ring: Ring,
    /// The ring and the order word, for those that join.
    pub(super) memory: Arc<Memory>,
    tail: Region,
    /// How far the ring was read, where members cannot write it.
    pub(super) freed_memory: Arc<Memory>,
    freed: Region,
    /// Its members come over RDMA: all of them.
    pub(super) verbs: bool,
    pub(super) members: BTreeSet<u16>,
    /// Writes whose turn has not come, by order.
    waiting: HashMap<u16, (Written, u32)>,
    /// How far the ring had been read when something was open at the last look for holes.
    open_at: Option<u64>,
}

impl Shared {
    /// A ring of so many bytes, or somewhat less; `None` where the machine has no memory.
    pub(super) fn new(source: &mut dyn MemorySource, bytes: u64, verbs: bool) -> Option<Shared> {
        let bytes = usize::try_from(bytes).ok()? / TAIL * TAIL;
        let memory = source.sealed("headrace-landing", bytes.checked_add(TAIL)?).ok()?;
        let whole = Region::whole(memory.clone());
        let (ring, tail) = (whole.part(0, bytes).ok()?, whole.part(bytes, TAIL).ok()?);
        let freed_memory = source.sealed("headrace-freed", TAIL).ok()?;
        let freed = Region::whole(freed_memory.clone());
        let (members, waiting) = (BTreeSet::new(), HashMap::new());
        Some(Shared {
            ring: Ring::new(ring),
            memory,
            tail,
            freed_memory,
            freed,
            verbs,
            members,
            waiting,
            open_at: None,
        })
    }

    /// Bytes of the ring; the order word lies behind them.
    pub(super) fn bytes(&self) -> u64 {
        self.ring.bytes()
    }

    /// A member says that it has written.
    pub(super) fn note(&mut self, written: Written, bytes: u32) -> Result<(), Violation> {
        let before = self.waiting.get(&written.order);
        if before.is_some_and(|(of, _)| of.id != written.id) {
            return Err(Violation::OfSomebody);
        }
        let ahead = usize::from(written.order.wrapping_sub(self.ring.next_order));
        // Members over RDMA may be of several users, and each can write the order word.
        if ahead >= MEMBERS_MAX * QUOTA && self.verbs {
            return Err(Violation::OfSomebody);
        }
        if !self.ring.fits(bytes) || ahead >= MEMBERS_MAX * QUOTA || before.is_some() {
            return Err(Violation::OfMember(format!(
                "it tells of a write of {bytes} bytes, number {}, in a shared ring of {} where {} is next",
                written.order,
                self.ring.bytes(),
                self.ring.next_order
            )));
        }
        self.waiting.insert(written.order, (written, bytes));
        Ok(())
    }

    /// Copies out the write whose turn it is.
    pub(super) fn next(&mut self, landed: &mut Landed) -> Next {
        let Some((written, bytes)) = self.waiting.remove(&self.ring.next_order) else { return Next::None };
        let taken = self.ring.take(bytes, landed).filter(|_| self.publish_freed().is_ok());
        let is_batch = |batch: &Bytes| matches!(batch_size(batch), Some(Ok(size)) if size == bytes as usize);
        match taken.filter(is_batch) {
            Some(batch) if self.ring.position < POSITION_MAX && self.agrees() => Next::Batch(written, batch),
            _ => Next::Nonsense,
        }
    }

    fn publish_freed(&self) -> Result<(), OutOfBounds> {
        self.freed.word(0)?.store(self.ring.position, Ordering::Release);
        Ok(())
    }

    fn reserved(&self) -> Reservation {
        Reservation::from_word(self.tail.load(0).unwrap_or_default())
    }

    /// Whether writes were as long as what was reserved for them, as far as that can be seen: once none is open.
    fn agrees(&self) -> bool {
        let reserved = self.reserved();
        reserved.order != self.ring.next_order || reserved.position == self.ring.position
    }

    /// Whether a write was open at the last look and still is, with nothing taken since.
    pub(super) fn has_hole(&mut self) -> bool {
        let open = self.reserved().order != self.ring.next_order || !self.waiting.is_empty();
        let at = open.then_some(self.ring.position);
        let stuck = at.is_some() && self.open_at == at;
        self.open_at = at;
        stuck
    }
}
