//! A client that asks for memory as others do, and lies over its link.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use headrace_fabric::Region;
use headrace_wire::direct::{Reservation, Written};

use crate::links::{Line, SimBrokerEnd};
use crate::rng::Rng;

/// Bytes of a batch's header: less is never read.
const HEADER_BYTES: u64 = 61;

/// A ring that was exposed to it.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) id: u16,
    pub(crate) bytes: u64,
    /// How many writes it has told of that may have been.
    pub(crate) next: u16,
    /// Of a ring that others write: what it is called, where its order word is, and the turns that it has drawn.
    pub(crate) shared: Option<(u64, usize)>,
    pub(crate) turns: Vec<(u16, u64)>,
}

/// A rogue, with its connection and its link.
#[derive(Default)]
pub(crate) struct Rogue {
    pub(crate) conn: Option<u64>,
    /// It has asked for a link over RDMA, and none stands yet.
    pub(crate) asked: bool,
    pub(crate) link: Option<u64>,
    /// The broker's end of it, as it is shipped, and what goes there.
    pub(crate) end: Option<SimBrokerEnd>,
    pub(crate) line: Line,
    pub(crate) exposed: BTreeMap<u64, Region>,
    pub(crate) rings: Vec<Ring>,
    pub(crate) acts: u64,
}

impl Rogue {
    /// Draws a turn in a ring that others write as well, and tells of this one or another, once or again, with its length or
    /// another; what lies there is anything.
    pub(crate) fn turn(&mut self, rng: &mut Rng) -> Result<Option<[u64; 4]>, String> {
        let Some(ring) = self.rings.last_mut() else { return Ok(None) };
        let Some((key, at)) = ring.shared else { return Ok(None) };
        let Some(region) = self.exposed.get(&key) else { return Ok(None) };
        if ring.turns.is_empty() || rng.chance(60) {
            let bytes = rng.between(HEADER_BYTES, 3000);
            let word = region.word(at).map_err(|why| why.to_string())?;
            let add = Reservation::add(usize::try_from(bytes).unwrap_or(0));
            ring.turns.push((Reservation::from_word(word.fetch_add(add, Ordering::AcqRel)).order, bytes));
        }
        let turn = rng.index(ring.turns.len());
        let (order, bytes) = ring.turns[turn];
        if rng.chance(80) {
            ring.turns.remove(turn);
        }
        let bytes = if rng.chance(80) { bytes } else { rng.between(0, 4000) };
        Ok(Some([u64::from(Written { id: ring.id, order }.to_immediate()), bytes, 0, 0]))
    }

    /// Something about a write: mostly what cannot be.
    pub(crate) fn note(&mut self, rng: &mut Rng) -> [u64; 4] {
        let say = |id, order, bytes| [u64::from(Written { id, order }.to_immediate()), bytes, 0, 0];
        let others = u16::try_from(rng.skewed(40)).unwrap_or(0);
        let count = self.rings.len();
        let Some(ring) = self.rings.get_mut(rng.index(count)) else { return say(others, 0, 100) };
        match rng.between(0, 9) {
            0 => say(others, ring.next, 100),
            1 => say(ring.id, ring.next.wrapping_add(1), 100),
            2 => say(ring.id, ring.next, ring.bytes + 1),
            3 => say(ring.id, ring.next, rng.index(61) as u64),
            4 => [rng.next(), rng.next(), 0, 0],
            _ => {
                let order = ring.next;
                ring.next = order.wrapping_add(1);
                say(ring.id, order, rng.between(HEADER_BYTES, ring.bytes.min(3000)))
            }
        }
    }
}
