//! Links: produce and fetch through memory that the broker lends to clients of its own user (docs/one-sided.md).
//!
//! A link belongs to the connection on which its client asked for it, and ends with it. Grants are asked for over the
//! connection, so that they are authorized as Produce and Fetch are; what a client writes is told over the link. Memory that
//! a client may write is read once, into memory of the broker's own, and checked there.

mod fetch;
mod produce;
mod shared;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use headrace_fabric::shm::KEYS_MAX;
use headrace_fabric::{Memory, MemorySource, Note, Region};
use headrace_log::Disk;
use headrace_wire::direct::{SLOT_BYTES, Written};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{
    DirectConnectRequest, DirectConnectResponse, DirectReleaseRequest, DirectReleaseResponse,
};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use crate::broker::Broker;
use crate::call::{Call, ConnId, Outcome, Parked, Wait};

use fetch::Reader;
pub use fetch::Refusal;
use produce::{Ring, Sides};

/// Names a link; the driver chooses it and never uses it twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u64);

/// Slots that one link may have: as many partitions can its client read at a time. A link can have no more keys than
/// [`KEYS_MAX`](headrace_fabric::shm::KEYS_MAX), and those of slots and of landing rings are among them.
const SLOTS_MAX: usize = 4000;
/// Grants to write that have ended, and whose late writes are forgiven to one link. More of them than a ring of notes has
/// room for are not on their way.
const LAPSED_MAX: usize = 4096;
/// How long a client may take to come with the token that it was given: until then it counts as a link.
const TOKEN_MS: u64 = 10_000;
/// The key of the memory of slots.
pub const SLOTS_KEY: u64 = 1;

/// What the driver is to do with a link.
#[derive(Debug)]
pub enum LinkAction<F> {
    /// Give the client memory that it may write.
    Lend {
        /// Over which link.
        link: LinkId,
        /// What the memory is called from now on.
        key: u64,
        /// The memory.
        memory: Arc<Memory>,
        /// Others have it as well: its order word is to be added to.
        shared: bool,
    },
    /// Give the client memory that it may read.
    Show {
        /// Over which link.
        link: LinkId,
        /// What the memory is called from now on.
        key: u64,
        /// The memory.
        memory: Arc<Memory>,
    },
    /// Give the client a file that it may read.
    ShowFile {
        /// Over which link.
        link: LinkId,
        /// What its memory is called from now on.
        key: u64,
        /// The file, which grows.
        file: F,
        /// How much of it is to be mapped, although there may be less yet.
        bytes: u64,
    },
    /// What was lent under this key is void.
    End {
        /// Over which link.
        link: LinkId,
        /// What it was called.
        key: u64,
    },
    /// Tell the client something.
    Tell {
        /// Over which link.
        link: LinkId,
        /// What.
        note: Note,
    },
    /// Slots have changed: wake the client if it sleeps.
    Nudge {
        /// Over which link.
        link: LinkId,
    },
    /// Connect an end that was [offered](Broker::offer_link) to the client's, which may take a second, and say what came of
    /// it: [`Broker::handle_joined`].
    Join {
        /// What it is called.
        link: LinkId,
        /// What the client's end says of itself.
        hello: Vec<u8>,
    },
    /// The same with an end that carries all that comes and goes on a connection from then on
    /// (`headrace.datapath=two-sided`): what is answered before the client has sent anything there still goes over the
    /// connection itself. It ends with the connection, and the connection with it.
    Carry {
        /// What the end is called.
        link: LinkId,
        /// Whose bytes it carries.
        conn: ConnId,
        /// What the client's end says of itself.
        hello: Vec<u8>,
    },
    /// End a link.
    Close {
        /// Which one.
        link: LinkId,
        /// Why; for the log.
        why: String,
    },
}

/// A partition of a topic.
pub(crate) type Place = (Uuid, i32);

/// What a link goes over. A ring has members of one kind: what a card adds to an order word is not whole beside what a
/// processor does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fabric {
    Shm,
    /// RDMA.
    Verbs {
        /// Both cards can add to words.
        adds: bool,
    },
}

impl Fabric {
    fn is_verbs(self) -> bool {
        matches!(self, Fabric::Verbs { .. })
    }

    /// Whether its clients can have a ring together.
    fn shares(self) -> bool {
        self != Fabric::Verbs { adds: false }
    }
}

/// What is known of one link.
struct Link {
    conn: ConnId,
    fabric: Fabric,
    next_key: u64,
    /// Those that it has.
    keys: usize,
    /// Segments that are shown to it.
    shown: usize,
    /// Grants that were ended, and may still be named by writes that were on their way.
    lapsed: VecDeque<u16>,
    /// Where readers look; made with the first.
    slots: Option<Slots>,
    nudged: bool,
}

struct Slots {
    memory: Arc<Memory>,
    region: Region,
    free: Vec<u32>,
}

impl Link {
    /// Whether it may have so many keys more, beside that of its slots.
    fn has_keys(&self, more: usize) -> bool {
        self.keys + more < KEYS_MAX
    }

    fn key(&mut self) -> u64 {
        self.keys += 1;
        self.next_key += 1;
        self.next_key
    }
}

/// What a grant is for.
enum Granted {
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
}

/// A right of one link to one partition.
struct Grant {
    link: LinkId,
    place: Place,
    granted: Granted,
}

impl Grant {
    /// Whether memory of it is called so.
    fn has_key(&self, name: u64) -> bool {
        match &self.granted {
            Granted::Own { key, .. } => *key == name,
            Granted::Member { key, freed_key } => *key == name || *freed_key == name,
            Granted::Fetch(reader) => reader.key == name,
        }
    }
}

/// A request for a link over verbs, whose two ends are being connected.
struct Joining {
    conn: ConnId,
    /// Of the request.
    token: u64,
    /// What the broker's end says of itself.
    hello: Vec<u8>,
}

/// All links with their grants.
pub(crate) struct Direct<F> {
    /// Where rings and slots are made.
    memory: Box<dyn MemorySource>,
    /// Where links are made; `None` where there are to be none.
    address: Option<String>,
    /// An end of a link over verbs that the driver has ready, and what it says of itself; or why there is none.
    offered: Result<Option<(LinkId, Vec<u8>)>, String>,
    /// One was offered before: that there is none is for now.
    has_offered: bool,
    /// Somebody has asked for one in vain.
    wants_offer: bool,
    /// Connections that may make a link until a time, by what they are known by there.
    tokens: HashMap<[u8; 16], (ConnId, u64)>,
    joining: HashMap<LinkId, Joining>,
    links: HashMap<LinkId, Link>,
    of_conn: HashMap<ConnId, LinkId>,
    /// Connections whose bytes go over verbs.
    carried: HashSet<ConnId>,
    grants: BTreeMap<u16, Grant>,
    last_id: u16,
    /// Numbers in the links' `lapsed`: each is in one of them.
    lapsed: HashSet<u16>,
    /// Who writes where.
    sides: Sides,
    /// When shared rings are looked at for writes that do not come.
    holes_due: Option<u64>,
    readers: HashMap<Place, Vec<u16>>,
    /// Bytes that are lent to be written.
    lent_bytes: u64,
    actions: VecDeque<LinkAction<F>>,
    /// A batch on its way from a ring to the log.
    landed: Vec<u8>,
}

impl<F> Direct<F> {
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
            lent_bytes: 0,
            actions: VecDeque::new(),
            landed: Vec::new(),
        }
    }

    /// When to look for writes that do not come.
    pub(crate) fn holes_due(&self) -> Option<u64> {
        self.holes_due
    }

    /// A number that no grant has, nor had one that a client may still believe in.
    fn new_id(&mut self, limit: usize) -> Option<u16> {
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
    fn has_lapsed(&self, link: LinkId, id: u16) -> bool {
        self.lapsed.contains(&id) && self.links.get(&link).is_some_and(|link| link.lapsed.contains(&id))
    }

    /// All numbers are in use: the link that has most of those that have ended loses its older half. One that still names
    /// such a number is closed.
    fn forget_lapsed(&mut self) {
        let most = self.links.iter_mut().max_by_key(|(id, link)| (link.lapsed.len(), **id));
        if let Some((_, link)) = most {
            for id in link.lapsed.drain(..link.lapsed.len().div_ceil(2)) {
                self.lapsed.remove(&id);
            }
        }
    }

    fn add_link(&mut self, conn: ConnId, id: LinkId, fabric: Fabric) {
        let link = Link {
            conn,
            fabric,
            next_key: SLOTS_KEY,
            keys: 0,
            shown: 0,
            lapsed: VecDeque::new(),
            slots: None,
            nudged: false,
        };
        self.links.insert(id, link);
        self.of_conn.insert(conn, id);
    }

    /// Has an end over verbs connected to a client's: a link, or what carries the connection itself.
    fn join(&mut self, call: &Call, (link, ours): (LinkId, Vec<u8>), hello: Vec<u8>, carries: bool) {
        let conn = call.conn;
        self.joining.insert(link, Joining { conn, token: call.token, hello: ours });
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
    fn end_grant(&mut self, id: u16) {
        let Some(grant) = self.grants.remove(&id) else { return };
        let keys = match grant.granted {
            Granted::Own { key, ring } => {
                self.end_writing(id, grant.link, grant.place);
                self.lent_bytes = self.lent_bytes.saturating_sub(ring.bytes());
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
                    link.shown = link.shown.saturating_sub(1);
                    reader.give_back(link);
                }
                self.lent_bytes = self.lent_bytes.saturating_sub(reader.window);
                [Some(reader.key), None]
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
    fn end_writing(&mut self, id: u16, link: LinkId, place: Place) {
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

    fn end_link(&mut self, id: LinkId) {
        let ids: Vec<u16> = self.grants.iter().filter(|(_, g)| g.link == id).map(|(id, _)| *id).collect();
        let Some(link) = self.links.remove(&id) else { return };
        self.of_conn.remove(&link.conn);
        for id in &link.lapsed {
            self.lapsed.remove(id);
        }
        for id in ids {
            self.end_grant(id);
        }
    }

    /// The connection of a link whose client does not see that it ends.
    fn conn_of_untold(&self, link: LinkId) -> Option<ConnId> {
        self.links.get(&link).filter(|link| link.fabric.is_verbs()).map(|link| link.conn)
    }

    /// Ends a link by the broker's will.
    fn close(&mut self, link: LinkId, why: String) {
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
}

impl<D: Disk> Broker<D> {
    /// Where clients can make links, once the driver listens there.
    pub fn set_link_address(&mut self, address: String) {
        self.direct.address = Some(address);
    }

    /// Whether a link belongs to a connection, or carries it.
    #[must_use]
    pub fn has_link(&self, conn: ConnId) -> bool {
        self.is_lent_memory(conn) || self.direct.carried.contains(&conn)
    }

    /// Whether memory is lent to a connection's client, which is then not idle however little comes over it. One that is
    /// carried is as idle as one over TCP: all that comes is seen.
    #[must_use]
    pub fn is_lent_memory(&self, conn: ConnId) -> bool {
        self.direct.of_conn.contains_key(&conn)
    }

    /// A client has made a link and said what it is known by: whether it may.
    pub fn handle_link(&mut self, link: LinkId, token: [u8; 16]) -> bool {
        let Some((conn, until)) = self.direct.tokens.remove(&token) else { return false };
        if until <= self.now.mono_ms {
            return false;
        }
        if !self.connections.contains_key(&conn) || self.direct.of_conn.contains_key(&conn) {
            return false;
        }
        self.direct.add_link(conn, link, Fabric::Shm);
        true
    }

    /// The driver has an end of a link over verbs ready, for the next client that asks for one; or says why it has none.
    pub fn offer_link(&mut self, offer: Result<(LinkId, Vec<u8>), String>) {
        self.direct.has_offered |= offer.is_ok();
        self.direct.offered = offer.map(Some);
    }

    /// Whether an end over verbs is to be tried for once more, as somebody has asked for one and the last try failed.
    pub fn wants_offer(&mut self) -> bool {
        std::mem::take(&mut self.direct.wants_offer)
    }

    /// The two ends of a link over verbs are connected, or cannot be: its client is answered. `Ok(adds)`: whether both cards
    /// can add to words; else the client writes alone. `false`: the client has gone meanwhile, and the ends are to be given
    /// up.
    pub fn handle_joined(&mut self, now: Now, link: LinkId, made: Result<bool, String>) -> bool {
        self.now = now;
        let Some(Joining { conn, token, hello }) = self.direct.joining.remove(&link) else { return false };
        let Some(Parked { call, .. }) = self.parked.remove(&token) else { return false };
        let stands = made.is_ok();
        let answer = match made {
            Ok(adds) => {
                if let Some(link) = self.direct.links.get_mut(&link) {
                    link.fabric = Fabric::Verbs { adds };
                }
                DirectConnectResponse { hello: hello.into(), ..DirectConnectResponse::default() }
            }
            Err(why) => {
                self.direct.carried.remove(&conn);
                self.direct.end_link(link);
                let why = format!("the two ends of a link over RDMA cannot be connected: {why}");
                refusal(ErrorCode::THROTTLING_QUOTA_EXCEEDED, why)
            }
        };
        self.reply::<DirectConnectRequest>(&call, &answer);
        stands
    }

    /// What was to be lent by a key cannot be; its grant ends.
    pub fn handle_not_lent(&mut self, link: LinkId, key: u64) {
        let is = |grant: &Grant| grant.link == link && grant.has_key(key);
        if let Some(id) = self.direct.grants.iter().find(|(_, grant)| is(grant)).map(|(id, _)| *id) {
            self.direct.end_grant(id);
        }
    }

    /// A link has ended. Over verbs its client is told so by the end of its connection: nobody else tells it.
    pub fn handle_unlinked(&mut self, link: LinkId) {
        let untold = self.direct.conn_of_untold(link);
        self.direct.end_link(link);
        if let Some(conn) = untold {
            self.close_connection(conn, "its link over RDMA has ended".to_owned());
        }
    }

    /// A client says what cannot be.
    fn close_liar(&mut self, link: LinkId, why: String) {
        let untold = self.direct.conn_of_untold(link);
        self.direct.close(link, why.clone());
        if let Some(conn) = untold {
            self.close_connection(conn, why);
        }
    }

    /// The next thing to do with a link.
    pub fn poll_link_action(&mut self) -> Option<LinkAction<D::File>> {
        self.direct.actions.pop_front()
    }

    /// A client's connection is gone, and with it its link.
    pub(crate) fn end_links_of(&mut self, conn: ConnId) {
        self.direct.tokens.retain(|_, (of, _)| *of != conn);
        self.direct.joining.retain(|_, joining| joining.conn != conn);
        self.direct.carried.remove(&conn);
        if let Some(link) = self.direct.of_conn.get(&conn).copied() {
            self.direct.close(link, "its connection has ended".to_owned());
        }
    }

    /// Answers where a link can be made.
    ///
    /// Most work: tokens that have run out looked for among those of `headrace.direct.links.max` clients, and the grants of
    /// the link that the client had ended.
    pub(crate) fn direct_connect(
        &mut self,
        call: &Call,
        request: DirectConnectRequest,
    ) -> Outcome<DirectConnectResponse> {
        let refuse = |code: ErrorCode, why: String| Outcome::Reply(refusal(code, why));
        let verbs = match request.fabric.as_str() {
            "shm" => false,
            "verbs" | "two-sided" => true,
            other => return refuse(ErrorCode::INVALID_REQUEST, format!("there is no fabric {other:?}")),
        };
        let carries = request.fabric == "two-sided";
        if self.direct.carried.contains(&call.conn) {
            return refuse(ErrorCode::INVALID_REQUEST, "the connection goes over RDMA already".to_owned());
        }
        let limit = usize::try_from(self.config.headrace_direct_links_max).unwrap_or(0);
        // Whoever asks again has lost the one it had, of which we may learn only later.
        if let Some(link) = self.direct.of_conn.get(&call.conn).copied() {
            self.direct.close(link, "its client makes another".to_owned());
        }
        let now_ms = self.now.mono_ms;
        self.direct.tokens.retain(|_, (of, until)| *of != call.conn && *until > now_ms);
        let links = self.direct.links.len() + self.direct.tokens.len() + self.direct.carried.len();
        let is_full = links >= limit;
        let too_many = || {
            let why =
                format!("{limit} clients share the broker's memory already (headrace.direct.links.max)");
            refuse(full(limit > 0), why)
        };
        if verbs {
            if !self.config.headrace_direct || !self.config.headrace_direct_verbs {
                let why = "the broker does not use RDMA: its headrace.direct.verbs is false";
                return refuse(ErrorCode::INVALID_CONFIG, why.to_owned());
            }
            if is_full {
                return too_many();
            }
            return match std::mem::replace(&mut self.direct.offered, Ok(None)) {
                Ok(Some(ours)) => {
                    self.direct.join(call, ours, request.hello.to_vec(), carries);
                    self.parked.insert(call.token, Parked { call: call.clone(), wait: Wait::Link });
                    Outcome::Parked
                }
                Ok(None) => {
                    let why = "the broker is making an end for another client: ask again";
                    refuse(ErrorCode::THROTTLING_QUOTA_EXCEEDED, why.to_owned())
                }
                Err(why) => {
                    let code = full(self.direct.has_offered);
                    let answer = refuse(code, format!("the broker cannot use RDMA: {why}"));
                    self.direct.offered = Err(why);
                    self.direct.wants_offer = true;
                    answer
                }
            };
        }
        let Some(address) = self.direct.address.clone().filter(|_| self.config.headrace_direct) else {
            let why = "the broker shares no memory: its headrace.direct is false";
            return refuse(ErrorCode::INVALID_CONFIG, why.to_owned());
        };
        if is_full {
            return too_many();
        }
        let token = self.random.uuid();
        self.direct.tokens.insert(token.0, (call.conn, now_ms.saturating_add(TOKEN_MS)));
        Outcome::Reply(DirectConnectResponse { address, token, ..DirectConnectResponse::default() })
    }

    /// Takes grants back.
    ///
    /// Most work: a look-up for each of the two million ids that the request has bytes for, and all grants of one link ended.
    pub(crate) fn direct_release(
        &mut self,
        call: &Call,
        request: DirectReleaseRequest,
    ) -> Outcome<DirectReleaseResponse> {
        let link = self.direct.of_conn.get(&call.conn).copied();
        for id in request.ids.into_iter().filter_map(|id| u16::try_from(id).ok()) {
            if self.direct.grants.get(&id).is_some_and(|grant| Some(grant.link) == link) {
                self.direct.end_grant(id);
            }
        }
        Outcome::Reply(DirectReleaseResponse::default())
    }
}

/// The link of the connection that asks, or what it is told without one: its client may not have learnt yet that it has
/// ended, and is to try again.
fn link_of<F>(direct: &Direct<F>, call: &Call) -> Result<LinkId, (ErrorCode, String)> {
    direct.of_conn.get(&call.conn).copied().ok_or_else(|| {
        (ErrorCode::NETWORK_EXCEPTION, "the connection has no link: DirectConnect makes one".to_owned())
    })
}

fn refusal(code: ErrorCode, why: String) -> DirectConnectResponse {
    DirectConnectResponse {
        error_code: code.code(),
        error_message: Some(why),
        ..DirectConnectResponse::default()
    }
}

/// What is told where there is no room: whether there can be some later, or the settings allow none.
fn full(later: bool) -> ErrorCode {
    if later { ErrorCode::THROTTLING_QUOTA_EXCEEDED } else { ErrorCode::INVALID_CONFIG }
}

/// What a write says of itself, and of how many bytes.
fn parse_note([immediate, bytes, ..]: Note) -> Option<(Written, u32)> {
    Some((Written::from_immediate(u32::try_from(immediate).ok()?), u32::try_from(bytes).ok()?))
}

impl Slots {
    fn new(source: &mut dyn MemorySource) -> Option<Slots> {
        let memory = source.sealed("headrace-slots", SLOTS_MAX * SLOT_BYTES).ok()?;
        let free = (0..u32::try_from(SLOTS_MAX).unwrap_or(0)).rev().collect();
        Some(Slots { region: Region::whole(memory.clone()), memory, free })
    }
}

#[cfg(test)]
mod tests {
    use headrace_fabric::SystemMemory;

    use super::*;

    #[test]
    fn numbers_of_grants_do_not_run_out() {
        let mut direct = Direct::<()>::new(Box::new(SystemMemory));
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
