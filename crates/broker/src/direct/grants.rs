//! Links with their grants: who may write and read which partition through memory.

use std::collections::{BTreeMap, HashSet, VecDeque};

use foldhash::{HashMap, HashMapExt as _};
use headrace_fabric::MemorySource;
use headrace_fabric::shm::KEYS_MAX;
use headrace_log::Disk;
use headrace_wire::direct::WriteAck;
use headrace_wire::errors::ErrorCode;
use headrace_wire::uuid::Uuid;

use super::action::{LinkAction, LinkId, SLOTS_KEY};
use super::replicate::PushRing;
use super::ring::{Landed, Ring};
use super::shared::Shared;
use super::slots::{Reader, ReaderSlots};
use crate::context::Context;
use crate::context::call::{Call, ConnId};
use crate::store::Place;

/// Grants to write that have ended, and whose late writes are forgiven to one link. More of them than a ring of notes has
/// room for are not on their way.
const LAPSED_MAX: usize = 4096;

/// What a link goes over. A ring has members of one kind: what a card adds to an order word is not whole beside what a
/// processor does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fabric {
    Shm,
    /// RDMA.
    Verbs {
        /// Both cards can add to words.
        adds: bool,
    },
}

impl Fabric {
    pub(super) fn is_verbs(self) -> bool {
        matches!(self, Fabric::Verbs { .. })
    }

    /// Whether its clients can have a ring together.
    pub(super) fn shares(self) -> bool {
        self != Fabric::Verbs { adds: false }
    }
}

/// What is known of one link.
pub(super) struct Link {
    pub(super) conn: ConnId,
    pub(super) fabric: Fabric,
    pub(super) next_key: u64,
    /// Those that it has.
    pub(super) keys: usize,
    /// Segments that are exposed to it.
    pub(super) segments: usize,
    /// Grants that were ended, and may still be named by writes that were on their way.
    pub(super) lapsed: VecDeque<u16>,
    /// Where readers look; made with the first.
    pub(super) slots: Option<ReaderSlots>,
    /// Where a leader pushes to.
    pub(super) pushed: Option<Box<PushRing>>,
    pub(super) notified: bool,
}

impl Link {
    /// Whether it may have so many keys more, beside that of its slots.
    pub(super) fn has_keys(&self, more: usize) -> bool {
        self.keys + more < KEYS_MAX
    }

    pub(super) fn key(&mut self) -> u64 {
        self.keys += 1;
        self.next_key += 1;
        self.next_key
    }
}

/// What a grant is for.
pub(super) enum Granted {
    /// To write into a ring of its own.
    Own {
        key: u64,
        ring: Ring,
    },
    /// To write into the partition's shared ring.
    Member {
        key: u64,
        freed_key: u64,
    },
    Fetch(Reader),
    /// To push batches into the copy of a partition, through the link's ring.
    Copy,
}

/// A right of one link to one partition.
pub(super) struct Grant {
    pub(super) link: LinkId,
    pub(super) place: Place,
    pub(super) granted: Granted,
}

impl Grant {
    /// Whether memory of it is called so.
    pub(super) fn has_key(&self, name: u64) -> bool {
        match &self.granted {
            Granted::Own { key, .. } => *key == name,
            Granted::Member { key, freed_key } => *key == name || *freed_key == name,
            Granted::Fetch(reader) => reader.key == name,
            Granted::Copy => false,
        }
    }
}

/// A request for a link over verbs, whose two ends are being connected.
pub(super) struct Joining {
    pub(super) conn: ConnId,
    pub(super) call: Call,
    /// What the broker's end says of itself.
    pub(super) hello: Vec<u8>,
}

/// All links with their grants.
pub(crate) struct Direct<D: Disk> {
    /// Where rings and slots are made.
    pub(super) memory: Box<dyn MemorySource>,
    /// Where links are made; `None` where there are to be none.
    pub(super) address: Option<String>,
    /// An end of a link over verbs that the driver has ready, and what it says of itself; or why there is none.
    pub(super) offered: Result<Option<(LinkId, Vec<u8>)>, String>,
    /// One was offered before: that there is none is for now.
    pub(super) has_offered: bool,
    /// Somebody has asked for one in vain.
    pub(super) wants_offer: bool,
    /// Connections that may make a link until a time, by what they are known by there.
    pub(super) tokens: HashMap<[u8; 16], (ConnId, u64)>,
    pub(super) joining: HashMap<LinkId, Joining>,
    pub(super) links: HashMap<LinkId, Link>,
    pub(super) of_conn: HashMap<ConnId, LinkId>,
    /// Connections whose bytes go over verbs.
    pub(super) carried: HashSet<ConnId>,
    pub(super) grants: BTreeMap<u16, Grant>,
    pub(super) last_id: u16,
    /// Numbers in the links' `lapsed`: each is in one of them.
    pub(super) lapsed: HashSet<u16>,
    /// Who writes where.
    pub(super) sides: Sides,
    /// When shared rings are looked at for writes that do not come.
    pub(super) holes_due: Option<u64>,
    pub(super) readers: HashMap<Place, Vec<u16>>,
    /// Answers that wait for an offset to be committed, of each partition in their order.
    pub(super) uncommitted: HashMap<Place, VecDeque<(WriteAck, i64)>>,
    /// Copies that are pushed into, by the grant.
    pub(super) copies: HashMap<Place, u16>,
    /// Copies that are pushed into no more, of which the replication has not learnt.
    pub(super) ended_copies: VecDeque<Place>,
    /// Bytes of memory that are exposed.
    pub(super) exposed_bytes: u64,
    pub(super) actions: VecDeque<LinkAction<D::File>>,
    /// A batch on its way from a ring to the log.
    pub(super) landed: Landed,
}

/// Who writes a partition through memory.
pub(super) enum Side {
    /// One grant, with a ring of its own.
    Own {
        id: u16,
        /// Its producer has asked for nobody to write beside it, or can write beside nobody.
        alone: bool,
        verbs: bool,
    },
    /// All those that reserve their places by fetch-and-add on one order word.
    Shared(Box<Shared>),
}

impl Side {
    pub(super) fn is_verbs(&self) -> bool {
        match self {
            Side::Own { verbs, .. } => *verbs,
            Side::Shared(shared) => shared.verbs,
        }
    }
}

/// Who writes which partitions.
pub(super) type Sides = HashMap<Place, Side>;

impl<D: Disk> Direct<D> {
    pub(crate) fn new(memory: Box<dyn MemorySource>) -> Self {
        Self {
            memory,
            address: None,
            offered: Ok(None),
            has_offered: false,
            wants_offer: false,
            tokens: HashMap::new(),
            joining: HashMap::new(),
            links: HashMap::new(),
            of_conn: HashMap::new(),
            carried: HashSet::new(),
            grants: BTreeMap::new(),
            last_id: 0,
            lapsed: HashSet::new(),
            sides: Sides::new(),
            holes_due: None,
            readers: HashMap::new(),
            uncommitted: HashMap::new(),
            copies: HashMap::new(),
            ended_copies: VecDeque::new(),
            exposed_bytes: 0,
            actions: VecDeque::new(),
            landed: Landed::default(),
        }
    }

    /// When to look for writes that do not come.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.holes_due
    }

    /// A number that no grant has, nor had one that a client may still believe in.
    pub(super) fn new_id(&mut self, limit: usize) -> Option<u16> {
        // 0 is that of no grant.
        if self.grants.len() >= limit.min(u16::MAX.into()) {
            return None;
        }
        if self.grants.len() + self.lapsed.len() >= u16::MAX.into() {
            self.forget_lapsed();
        }
        for _ in 0..=u16::MAX {
            self.last_id = self.last_id.wrapping_add(1);
            let id = self.last_id;
            if id != 0 && !self.grants.contains_key(&id) && !self.lapsed.contains(&id) {
                return Some(id);
            }
        }
        None
    }

    /// Whether a grant to write of a link has ended that its client may still believe in.
    pub(super) fn has_lapsed(&self, link: LinkId, id: u16) -> bool {
        self.lapsed.contains(&id) && self.links.get(&link).is_some_and(|link| link.lapsed.contains(&id))
    }

    /// All numbers are in use: the link that has most of those that have ended loses its older half. One that still names
    /// such a number is closed.
    pub(super) fn forget_lapsed(&mut self) {
        let most = self.links.iter_mut().max_by_key(|(id, link)| (link.lapsed.len(), **id));
        if let Some((_, link)) = most {
            for id in link.lapsed.drain(..link.lapsed.len().div_ceil(2)) {
                self.lapsed.remove(&id);
            }
        }
    }

    pub(super) fn add_link(&mut self, conn: ConnId, id: LinkId, fabric: Fabric) {
        let link = Link {
            conn,
            fabric,
            next_key: SLOTS_KEY,
            keys: 0,
            segments: 0,
            lapsed: VecDeque::new(),
            slots: None,
            pushed: None,
            notified: false,
        };
        self.links.insert(id, link);
        self.of_conn.insert(conn, id);
    }

    /// Has an end over verbs connected to a client's: a link, or what carries the connection itself.
    pub(super) fn join(
        &mut self,
        call: &Call,
        (link, ours): (LinkId, Vec<u8>),
        hello: Vec<u8>,
        carries: bool,
    ) {
        let conn = call.conn;
        self.joining.insert(link, Joining { conn, call: call.clone(), hello: ours });
        let action = if carries {
            self.carried.insert(conn);
            LinkAction::Carry { link, conn, hello }
        } else {
            self.add_link(conn, link, Fabric::Verbs { adds: false });
            LinkAction::Join { link, hello }
        };
        self.actions.push_back(action);
    }

    /// Takes a grant away. Its memory is no longer looked at, whoever still writes there.
    pub(super) fn end_grant(&mut self, id: u16) {
        let Some(grant) = self.grants.remove(&id) else { return };
        if let Some(waiting) = self.uncommitted.get_mut(&grant.place) {
            waiting.retain(|(ack, _)| ack.written.id != id);
        }
        let keys = match grant.granted {
            Granted::Own { key, ring } => {
                self.end_writing(id, grant.link, grant.place);
                self.exposed_bytes = self.exposed_bytes.saturating_sub(ring.bytes());
                [Some(key), None]
            }
            Granted::Member { key, freed_key } => {
                self.end_writing(id, grant.link, grant.place);
                [Some(key), Some(freed_key)]
            }
            Granted::Fetch(reader) => {
                if let Some(readers) = self.readers.get_mut(&grant.place) {
                    readers.retain(|reader| *reader != id);
                    if readers.is_empty() {
                        self.readers.remove(&grant.place);
                    }
                }
                if let Some(link) = self.links.get_mut(&grant.link) {
                    link.segments = link.segments.saturating_sub(1);
                    reader.end(link.slots.as_mut());
                }
                self.exposed_bytes = self.exposed_bytes.saturating_sub(reader.window);
                [Some(reader.key), None]
            }
            Granted::Copy => {
                self.end_writing(id, grant.link, grant.place);
                self.copies.remove(&grant.place);
                self.ended_copies.push_back(grant.place);
                [None, None]
            }
        };
        if let Some(link) = self.links.get_mut(&grant.link) {
            for key in keys.into_iter().flatten() {
                link.keys = link.keys.saturating_sub(1);
                self.actions.push_back(LinkAction::End { link: grant.link, key });
            }
        }
    }

    /// Of a grant to write: its number may still be named by writes that are on their way.
    pub(super) fn end_writing(&mut self, id: u16, link: LinkId, place: Place) {
        if let Some(link) = self.links.get_mut(&link) {
            if link.lapsed.len() >= LAPSED_MAX
                && let Some(oldest) = link.lapsed.pop_front()
            {
                self.lapsed.remove(&oldest);
            }
            link.lapsed.push_back(id);
            self.lapsed.insert(id);
        }
        self.leave_side(id, place);
    }

    pub(super) fn end_link(&mut self, id: LinkId) {
        let ids: Vec<u16> = self.grants.iter().filter(|(_, g)| g.link == id).map(|(id, _)| *id).collect();
        let Some(link) = self.links.remove(&id) else { return };
        self.of_conn.remove(&link.conn);
        let ring = link.pushed.as_ref().map_or(0, |pushed| pushed.bytes());
        self.exposed_bytes = self.exposed_bytes.saturating_sub(ring);
        for id in &link.lapsed {
            self.lapsed.remove(id);
        }
        for id in ids {
            self.end_grant(id);
        }
    }

    /// The connection of a link whose client does not see that it ends.
    pub(super) fn conn_to_close(&self, link: LinkId) -> Option<ConnId> {
        self.links.get(&link).filter(|link| link.fabric.is_verbs()).map(|link| link.conn)
    }

    /// Ends a link by the broker's will.
    pub(super) fn close(&mut self, link: LinkId, why: String) {
        self.end_link(link);
        self.actions.push_back(LinkAction::Close { link, why });
    }

    /// Ends what clients have of a topic that goes.
    pub(crate) fn end_topic(&mut self, topic: Uuid) {
        let of_topic = self.grants.iter().filter(|(_, grant)| grant.place.0 == topic);
        let ids: Vec<u16> = of_topic.map(|(id, _)| *id).collect();
        for id in ids {
            self.end_grant(id);
        }
    }

    /// A link asks again for what it has: it has not heard of it.
    pub(super) fn end_own(&mut self, link: LinkId, place: Place) {
        let own = |id: &u16| self.grants.get(id).is_some_and(|grant| grant.link == link);
        let id = match self.sides.get(&place) {
            Some(Side::Own { id, .. }) => Some(*id).filter(own),
            Some(Side::Shared(shared)) => shared.members.iter().copied().find(own),
            None => None,
        };
        if let Some(id) = id {
            self.end_grant(id);
        }
    }

    /// A grant to write is gone: so is its ring, when it was the last in it.
    pub(super) fn leave_side(&mut self, id: u16, place: Place) {
        let ring = match self.sides.get_mut(&place) {
            Some(Side::Own { id: own, .. }) if *own == id => None,
            Some(Side::Shared(shared)) => {
                shared.members.remove(&id);
                if !shared.members.is_empty() {
                    return;
                }
                Some(shared.bytes())
            }
            _ => return,
        };
        self.sides.remove(&place);
        // The bytes of a ring of its own go with the grant.
        self.exposed_bytes = self.exposed_bytes.saturating_sub(ring.unwrap_or(0));
    }

    /// Takes a partition's ring from whoever has it.
    pub(super) fn end_side(&mut self, place: Place) {
        match self.sides.get(&place) {
            Some(Side::Own { id, .. }) => self.end_grant(*id),
            _ => self.revoke(place),
        }
    }

    /// Takes a shared ring from all its members: what they have written there and not heard of, they write again.
    pub(super) fn revoke(&mut self, place: Place) {
        if let Some(Side::Shared(shared)) = self.sides.get(&place) {
            for id in shared.members.clone() {
                self.end_grant(id);
            }
        }
    }

    /// A client says what cannot be: its link ends.
    pub(super) fn close_byzantine(&mut self, context: &mut Context<D>, link: LinkId, why: String) {
        let conn = self.conn_to_close(link);
        self.close(link, why.clone());
        if let Some(conn) = conn {
            context.close_connection(conn, why);
        }
    }
}

/// The link of the connection that asks, or the error without one: its client may not have learnt yet that it has
/// ended, and is to try again.
pub(super) fn link_of<D: Disk>(direct: &Direct<D>, call: &Call) -> Result<LinkId, (ErrorCode, String)> {
    direct.of_conn.get(&call.conn).copied().ok_or_else(|| {
        (ErrorCode::NETWORK_EXCEPTION, "the connection has no link: DirectConnect makes one".to_owned())
    })
}

/// The error where there is no room: whether there can be some later, or the settings allow none.
pub(super) fn full(later: bool) -> ErrorCode {
    if later { ErrorCode::THROTTLING_QUOTA_EXCEEDED } else { ErrorCode::INVALID_CONFIG }
}

#[cfg(test)]
mod tests {
    use headrace_fabric::SystemMemory;
    use headrace_log::MemoryDisk;

    use super::*;

    #[test]
    fn numbers_of_grants_do_not_run_out() {
        let mut direct = Direct::<MemoryDisk>::new(Box::new(SystemMemory));
        let place = (Uuid::default(), 0);
        let links: Vec<LinkId> = (0..17).map(LinkId).collect();
        for link in &links {
            direct.add_link(ConnId(link.0), *link, Fabric::Shm);
        }
        for round in 0..2 * LAPSED_MAX {
            for link in &links {
                let id = direct.new_id(1).unwrap_or_else(|| panic!("none in round {round}"));
                assert!(id != 0 && !links.iter().any(|link| direct.has_lapsed(*link, id)));
                direct.end_writing(id, *link, place);
                assert!(direct.has_lapsed(*link, id));
            }
        }
        let all: usize = direct.links.values().map(|link| link.lapsed.len()).sum();
        assert_eq!(all, direct.lapsed.len());
        assert!(direct.links.values().all(|link| link.lapsed.len() <= LAPSED_MAX));
        for link in links {
            direct.end_link(link);
        }
        assert!(direct.lapsed.is_empty());
        assert!(direct.new_id(0).is_none());
    }
}
