//! What one leader pushes to one follower: a link is made, copies are asked for that have all there is, and what is appended
//! from then on is written into the follower's ring (KafkaDirect 4.3.2).
//!
//! Nothing waits here but offsets: what is pushed is read from the log when the follower has room and credit. Whatever goes
//! wrong ends the push of a partition, or of all: the follower fetches then, until it has all there is again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use headrace_cluster::model::Registration;
use headrace_wire::direct::{WriteAck, Written};
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame;
use headrace_wire::messages::grant_replicate_request::{ReplicatePartition, ReplicateTopic};
use headrace_wire::messages::{DirectConnectRequest, DirectReleaseRequest, GrantReplicateRequest, Request};
use headrace_wire::primitive::Encoded;

use super::action::{PushAction, PushWrite};
use crate::config::BrokerConfig;
use crate::context::cluster::Endpoint;
use crate::store::Place;

/// What followers know leaders by.
const CLIENT_ID: &str = "headrace-leader";
/// After a failure a follower is asked again after so long, and each time after twice as long, up to the second figure.
const RETRY_MS: u64 = 1000;
const RETRY_MAX_MS: u64 = 60_000;
/// An answer takes so long at most, and so does making a link, and the memory of a ring.
const ANSWER_MS: u64 = 10_000;
/// Most partitions of one request.
const PLACES_MAX: usize = 1000;
/// Writes under way at once, however many the follower offers.
const CREDITS_MAX: usize = 256;
/// Bytes of a follower's ring: a larger one is not used.
pub const PUSH_RING_BYTES_MAX: usize = 16 << 20;
/// A high watermark that goes along with no records is pushed so much later.
const WATERMARK_MS: u64 = 50;

/// How far the link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It is made at this time.
    Closed(u64),
    Connecting,
    /// Connected, and to ask for a link.
    Connected,
    /// The driver makes this broker's end of one over RDMA; until this time.
    Making(u64),
    /// The follower has said where, and the driver makes it; until this time.
    Linking(u64),
    Linked,
    /// It cannot be: the follower wants none, or is on another host, and there is no RDMA.
    Never,
}

/// What a link goes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fabric {
    Shm,
    Verbs,
}

impl Fabric {
    /// What is tried, in turn.
    pub(super) fn to_try(config: &BrokerConfig) -> &'static [Fabric] {
        let has_verbs = config.headrace_direct_verbs;
        match config.headrace_direct_replication.as_str() {
            _ if !config.headrace_direct => &[],
            "auto" if has_verbs => &[Fabric::Shm, Fabric::Verbs],
            "auto" | "shm" => &[Fabric::Shm],
            "verbs" if has_verbs => &[Fabric::Verbs],
            _ => &[],
        }
    }
}

/// What a follower was asked.
#[derive(Debug)]
enum Asked {
    Link,
    Grants(BTreeMap<Place, i32>),
    Release,
}

#[derive(Debug)]
struct InFlight {
    correlation_id: i32,
    asked: Asked,
    deadline: u64,
}

/// The follower's ring, as the leader writes it.
#[derive(Debug)]
struct Ring {
    key: u64,
    bytes: u64,
    credits: usize,
    /// Its memory comes until then.
    until: u64,
    /// Bytes written since it was new, and those of them that the follower has taken.
    written: u64,
    taken: u64,
    next_order: u16,
}

/// A copy that is pushed into.
#[derive(Debug)]
pub(super) struct Pushing {
    id: u16,
    pub(super) epoch: i32,
    /// What comes next.
    pub(super) next: i64,
    /// It waits in `ready`.
    is_ready: bool,
    /// The high watermark that the follower knows, and whether it is to be pushed without records.
    pub(super) said: i64,
    pub(super) says: bool,
}

/// A write that is not answered.
#[derive(Debug)]
struct Sent {
    place: Place,
    written: Written,
    bytes: u64,
    end: i64,
}

/// A copy that may be pushed into, as the follower says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Granted {
    pub(super) place: Place,
    pub(super) epoch: i32,
    pub(super) id: u16,
    pub(super) end: i64,
    pub(super) last_epoch: i32,
}

/// What is to be done about the connection to a follower.
#[derive(Debug)]
pub(super) enum Wish {
    Connect(Endpoint),
    MakeEndpoint,
    Send(Encoded),
    Close,
}

/// What comes next for a copy.
pub(super) enum Next {
    /// Nothing at the moment.
    Nothing,
    /// These bytes, one piece behind the other, up to an offset; with this high watermark.
    Push { pieces: Vec<Bytes>, end: i64, high_watermark: i64 },
    /// So many bytes, for which there is no room at the moment.
    Full(u64),
    /// It is pushed into no more.
    End,
}

/// All that is pushed to one follower.
#[derive(Debug)]
pub(super) struct Pusher {
    /// Under which registration it follows: with another it is another process.
    pub(super) follower: Registration,
    at: Endpoint,
    /// What is tried, the first of them now.
    fabrics: &'static [Fabric],
    /// What this broker's end of a link over RDMA says of itself, once it is made.
    hello: Option<Vec<u8>>,
    state: State,
    /// How often no link has come about, or one has ended over which the follower took nothing.
    failures: u32,
    last_correlation_id: i32,
    in_flight: Option<InFlight>,
    /// Copies that have all there is, and are to be asked for.
    wanted: BTreeSet<Place>,
    /// Grants that are of no use.
    released: Vec<u16>,
    ring: Option<Ring>,
    /// Memory that has come over the link.
    exposed: BTreeMap<u64, u64>,
    copies: BTreeMap<Place, Pushing>,
    /// Copies for which there is something.
    ready: VecDeque<Place>,
    sent: VecDeque<Sent>,
    /// Copies whose follower does not know the high watermark, and when it is to.
    owed: BTreeSet<Place>,
    owed_due: Option<u64>,
}

impl Pusher {
    pub(super) fn new(follower: Registration, at: Endpoint, fabrics: &'static [Fabric]) -> Self {
        Self {
            follower,
            at,
            fabrics,
            hello: None,
            state: State::Closed(0),
            failures: 0,
            last_correlation_id: 0,
            in_flight: None,
            wanted: BTreeSet::new(),
            released: Vec::new(),
            ring: None,
            exposed: BTreeMap::new(),
            copies: BTreeMap::new(),
            ready: VecDeque::new(),
            sent: VecDeque::new(),
            owed: BTreeSet::new(),
            owed_due: None,
        }
    }

    /// Copies that are pushed into.
    pub(super) fn pushed(&self) -> u64 {
        self.copies.len() as u64
    }

    /// The follower has all of a partition, and asks for more: it is to be pushed from now on.
    pub(super) fn want(&mut self, place: Place) {
        let is_asked = self
            .in_flight
            .as_ref()
            .is_some_and(|one| matches!(&one.asked, Asked::Grants(places) if places.contains_key(&place)));
        if self.state != State::Never && !is_asked {
            // Who asks for records is not pushed any, whatever this side believes.
            self.drop_copy(place);
            self.wanted.insert(place);
        }
    }

    /// A partition is led by somebody else.
    pub(super) fn forget(&mut self, place: Place) {
        self.wanted.remove(&place);
        self.owed.remove(&place);
        if let Some(copy) = self.drop_copy(place) {
            self.released.push(copy.id);
        }
    }

    /// A copy is pushed into no more, and has no turn.
    fn drop_copy(&mut self, place: Place) -> Option<Pushing> {
        let copy = self.copies.remove(&place)?;
        if copy.is_ready {
            self.ready.retain(|one| *one != place);
        }
        Some(copy)
    }

    // ---- the connection and the link

    pub(super) fn opened(&mut self) {
        self.state = State::Connected;
    }

    /// The connection or the link has ended: nothing is pushed until there is another.
    pub(super) fn closed(&mut self, now_ms: u64) {
        let wait_ms = RETRY_MS.saturating_mul(1 << self.failures.min(16)).min(RETRY_MAX_MS);
        self.failures = self.failures.saturating_add(1);
        self.reset(State::Closed(now_ms.saturating_add(wait_ms)));
    }

    /// There will be no link of this kind to this follower.
    pub(super) fn give_up(&mut self, now_ms: u64) {
        self.fabrics = self.fabrics.get(1..).unwrap_or_default();
        if !self.fabrics.is_empty() {
            return self.reset(State::Closed(now_ms));
        }
        self.reset(State::Never);
        self.wanted.clear();
    }

    fn reset(&mut self, state: State) {
        *self = Self {
            state,
            failures: self.failures,
            wanted: std::mem::take(&mut self.wanted),
            last_correlation_id: self.last_correlation_id,
            ..Self::new(self.follower, self.at.clone(), self.fabrics)
        };
    }

    /// This broker's end of a link over RDMA is made, or why it is not.
    pub(super) fn made(&mut self, hello: Result<Vec<u8>, String>) -> Result<(), String> {
        if matches!(self.state, State::Making(_)) {
            self.hello = Some(hello?);
            self.state = State::Connected;
        }
        Ok(())
    }

    /// The link stands; what it goes over, if it was waited for.
    pub(super) fn linked(&mut self) -> Option<Fabric> {
        if !matches!(self.state, State::Linking(_)) {
            return None;
        }
        self.state = State::Linked;
        self.fabrics.first().copied()
    }

    /// The follower has given memory of so many bytes.
    pub(super) fn exposed(&mut self, key: u64, bytes: u64) {
        self.exposed.insert(key, bytes);
    }

    /// Whether the follower's ring can be written: it is known, and its memory has come.
    fn has_ring(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| self.exposed.get(&ring.key) == Some(&ring.bytes))
    }

    /// Until when the memory of a ring that is known is waited for.
    fn ring_due(&self) -> Option<u64> {
        self.ring.as_ref().filter(|_| !self.has_ring()).map(|ring| ring.until)
    }

    /// When there is something to be done, if nothing else happens.
    pub(super) fn due(&self) -> Option<u64> {
        let in_flight = self.in_flight.as_ref().map(|one| one.deadline);
        match self.state {
            State::Closed(at) => (!self.wanted.is_empty()).then_some(at),
            State::Making(until) | State::Linking(until) => Some(until),
            // To be asked at once, but for what was asked before.
            State::Linked if self.in_flight.is_none() && !self.released.is_empty() => Some(0),
            State::Linked => in_flight.into_iter().chain(self.owed_due).chain(self.ring_due()).min(),
            State::Connecting | State::Connected | State::Never => in_flight,
        }
    }

    /// What is to be done next; `look` says in which epoch a partition is led here, if it is.
    pub(super) fn next(
        &mut self,
        own: Registration,
        now_ms: u64,
        look: impl Fn(Place) -> Option<i32>,
    ) -> Option<Wish> {
        let is_late = self.in_flight.as_ref().is_some_and(|one| one.deadline <= now_ms)
            || self.ring_due().is_some_and(|until| until <= now_ms)
            || matches!(self.state, State::Making(until) | State::Linking(until) if until <= now_ms);
        if is_late {
            self.closed(now_ms);
            return Some(Wish::Close);
        }
        match self.state {
            State::Closed(at) if at <= now_ms && !self.wanted.is_empty() => {
                self.state = State::Connecting;
                Some(Wish::Connect(self.at.clone()))
            }
            State::Connected if self.in_flight.is_none() => self.ask_for_link(now_ms),
            State::Linked if self.in_flight.is_none() => self.ask(own, now_ms, look),
            _ => None,
        }
    }

    fn ask_for_link(&mut self, now_ms: u64) -> Option<Wish> {
        let request = match (self.fabrics.first()?, self.hello.take()) {
            (Fabric::Shm, _) => {
                DirectConnectRequest { fabric: "shm".into(), ..DirectConnectRequest::default() }
            }
            (Fabric::Verbs, Some(hello)) => {
                DirectConnectRequest { fabric: "verbs".into(), hello: hello.into() }
            }
            (Fabric::Verbs, None) => {
                self.state = State::Making(now_ms.saturating_add(ANSWER_MS));
                return Some(Wish::MakeEndpoint);
            }
        };
        self.send(&request, Asked::Link, now_ms)
    }

    fn ask(&mut self, own: Registration, now_ms: u64, look: impl Fn(Place) -> Option<i32>) -> Option<Wish> {
        if !self.released.is_empty() {
            let ids = std::mem::take(&mut self.released).into_iter().map(i32::from).collect();
            return self.send(&DirectReleaseRequest { ids }, Asked::Release, now_ms);
        }
        let mut asked = BTreeMap::new();
        let has_ring = self.has_ring();
        if self.wanted.is_empty() || (self.ring.is_some() && !has_ring) {
            return None;
        }
        // Without a ring that one alone is asked for: whoever grants a copy no longer fetches it.
        while has_ring
            && asked.len() < PLACES_MAX
            && let Some(place) = self.wanted.pop_first()
        {
            if let Some(epoch) = look(place) {
                asked.insert(place, epoch);
            }
        }
        if has_ring && asked.is_empty() {
            return None;
        }
        let mut request = GrantReplicateRequest {
            leader_id: own.0,
            leader_broker_epoch: own.1,
            ..GrantReplicateRequest::default()
        };
        for ((topic_id, partition), leader_epoch) in &asked {
            if request.topics.last().is_none_or(|topic| topic.topic_id != *topic_id) {
                request.topics.push(ReplicateTopic { topic_id: *topic_id, partitions: Vec::new() });
            }
            let one = ReplicatePartition { partition: *partition, leader_epoch: *leader_epoch };
            request.topics.last_mut()?.partitions.push(one);
        }
        self.send(&request, Asked::Grants(asked), now_ms)
    }

    fn send<R: Request>(&mut self, request: &R, asked: Asked, now_ms: u64) -> Option<Wish> {
        self.last_correlation_id = self.last_correlation_id.wrapping_add(1);
        let correlation_id = self.last_correlation_id;
        let frame = frame::encode_request(0, correlation_id, Some(CLIENT_ID), request).ok()?;
        let deadline = now_ms.saturating_add(ANSWER_MS);
        self.in_flight = Some(InFlight { correlation_id, asked, deadline });
        Some(Wish::Send(frame))
    }

    /// The follower has answered: copies that it grants, and what the driver is to do.
    ///
    /// # Errors
    /// Why there is nothing to be had from it at the moment: the connection is to be closed. Nothing where it never will be.
    pub(super) fn answered(
        &mut self,
        answer: Bytes,
        now_ms: u64,
    ) -> Result<(Vec<Granted>, Option<PushAction>), Option<String>> {
        let Some(InFlight { correlation_id, asked, .. }) = self.in_flight.take() else {
            return Err(Some("it has answered what was not asked".to_owned()));
        };
        match asked {
            Asked::Link => {
                let answer = decode::<DirectConnectRequest>(correlation_id, answer)?;
                match ErrorCode::new(answer.error_code) {
                    ErrorCode::NONE => {}
                    ErrorCode::INVALID_CONFIG | ErrorCode::INVALID_REQUEST => return Err(None),
                    error => return Err(Some(refused(error, answer.error_message))),
                }
                self.state = State::Linking(now_ms.saturating_add(ANSWER_MS));
                let node = self.follower.0;
                let action = match self.fabrics.first() {
                    Some(Fabric::Verbs) => PushAction::Join { node, hello: answer.hello },
                    _ => PushAction::Connect { node, address: answer.address, token: answer.token.0 },
                };
                Ok((Vec::new(), Some(action)))
            }
            Asked::Release => {
                decode::<DirectReleaseRequest>(correlation_id, answer)?;
                Ok((Vec::new(), None))
            }
            Asked::Grants(places) => {
                let answer = decode::<GrantReplicateRequest>(correlation_id, answer)?;
                match ErrorCode::new(answer.error_code) {
                    ErrorCode::NONE => {}
                    ErrorCode::INVALID_CONFIG => return Err(None),
                    error => return Err(Some(refused(error, answer.error_message))),
                }
                let (key, bytes) = (answer.key.cast_unsigned(), answer.ring_bytes.cast_unsigned());
                // As much as the follower's ring has room for is read into memory at once.
                let credits = usize::try_from(answer.credits).unwrap_or(0).clamp(1, CREDITS_MAX);
                if bytes > PUSH_RING_BYTES_MAX as u64 {
                    return Err(Some(format!("a ring of {bytes} bytes, {PUSH_RING_BYTES_MAX} are used")));
                }
                match &self.ring {
                    Some(ring) if (ring.key, ring.bytes) == (key, bytes) => {}
                    Some(_) => return Err(Some("it names another ring".to_owned())),
                    None => {
                        let (written, taken, next_order) = (0, 0, 0);
                        let until = now_ms.saturating_add(ANSWER_MS);
                        self.ring = Some(Ring { key, bytes, credits, until, written, taken, next_order });
                    }
                }
                let mut granted = Vec::new();
                for topic in answer.topics {
                    for one in topic.partitions {
                        let place = (topic.topic_id, one.partition);
                        let epoch = places.get(&place).copied();
                        if let Some(epoch) = epoch.filter(|_| one.error_code == 0) {
                            let (id, end, last_epoch) = (one.id, one.end_offset, one.last_epoch);
                            granted.push(Granted { place, epoch, id, end, last_epoch });
                        }
                    }
                }
                Ok((granted, None))
            }
        }
    }

    /// A copy that was granted is pushed into; `agrees`: its log is how this one's begins.
    pub(super) fn begin(&mut self, granted: Granted, agrees: bool) {
        let Granted { place, epoch, id, end, .. } = granted;
        if !agrees {
            return self.released.push(id);
        }
        // A follower may grant one twice.
        self.drop_copy(place);
        let copy = Pushing { id, epoch, next: end, is_ready: true, said: -1, says: true };
        self.copies.insert(place, copy);
        self.ready.push_back(place);
    }

    // ---- what is pushed

    /// Records were appended to a partition.
    pub(super) fn appended(&mut self, place: Place) {
        if let Some(copy) = self.copies.get_mut(&place)
            && !std::mem::replace(&mut copy.is_ready, true)
        {
            self.ready.push_back(place);
        }
    }

    /// The high watermark of a partition has moved.
    pub(super) fn committed(&mut self, place: Place, now_ms: u64) {
        if self.copies.contains_key(&place) {
            self.owed.insert(place);
            self.owed_due.get_or_insert(now_ms.saturating_add(WATERMARK_MS));
        }
    }

    /// Has high watermarks be pushed that went along with nothing.
    pub(super) fn handle_timeout(&mut self, now_ms: u64) {
        if self.owed_due.is_none_or(|at| at > now_ms) {
            return;
        }
        self.owed_due = None;
        for place in std::mem::take(&mut self.owed) {
            if let Some(copy) = self.copies.get_mut(&place) {
                copy.says = true;
            }
            self.appended(place);
        }
    }

    /// Pushes what there is, as far as the follower has room; `next` says what comes next for a copy, in so many bytes at most.
    pub(super) fn push(
        &mut self,
        mut next: impl FnMut(Place, &Pushing, u64) -> Next,
        out: &mut VecDeque<PushAction>,
    ) {
        if !self.has_ring() {
            return;
        }
        let Some(ring) = &mut self.ring else { return };
        while let Some(place) = self.ready.front().copied() {
            if self.sent.len() >= ring.credits {
                return;
            }
            let Some(copy) = self.copies.get_mut(&place) else {
                self.ready.pop_front();
                continue;
            };
            let room = ring.bytes.saturating_sub(ring.written.wrapping_sub(ring.taken));
            let (pieces, end, high_watermark) = match next(place, copy, room) {
                Next::Push { pieces, end, high_watermark } => (pieces, end, high_watermark),
                Next::Full(bytes) if bytes <= ring.bytes => return,
                Next::Nothing => {
                    self.ready.pop_front();
                    copy.is_ready = false;
                    continue;
                }
                // Also a batch that no ring has room for: it is fetched.
                Next::End | Next::Full(_) => {
                    self.released.push(copy.id);
                    self.copies.remove(&place);
                    continue;
                }
            };
            let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
            let written = Written { id: copy.id, order: ring.next_order };
            let write = ring.write(pieces, bytes, written);
            out.push_back(PushAction::Write { node: self.follower.0, write });
            (copy.next, copy.said, copy.says) = (end, high_watermark, false);
            self.sent.push_back(Sent { place, written, bytes, end });
            // Others have their turn.
            self.ready.rotate_left(1);
        }
    }

    /// The follower has taken what was pushed first: up to where its copy reaches now, and of which partition. Nothing where it
    /// has not.
    ///
    /// # Errors
    /// It says what cannot be.
    pub(super) fn acknowledged(&mut self, note: [u64; 4]) -> Result<Option<(Place, i32, i64)>, String> {
        let ack = WriteAck::from_note(note);
        let (Some(sent), Some(ring)) = (self.sent.pop_front(), &mut self.ring) else {
            return Err("it answers what was not pushed".to_owned());
        };
        if ack.written != sent.written {
            return Err(format!("it answers {:?} where {:?} is next", ack.written, sent.written));
        }
        ring.taken = ring.taken.wrapping_add(sent.bytes);
        let copy = self.copies.get(&sent.place).filter(|copy| copy.id == sent.written.id);
        let Some(copy) = copy else { return Ok(None) };
        if ack.error_code != 0 {
            // It asks for what it has from here on.
            self.drop_copy(sent.place);
            return Ok(None);
        }
        if ack.base_offset != sent.end {
            return Err(format!("its copy ends at {} and not at {}", ack.base_offset, sent.end));
        }
        self.failures = 0;
        Ok(Some((sent.place, copy.epoch, sent.end)))
    }
}

impl Ring {
    /// A write of so many bytes behind the last one, around the ring's end if need be.
    fn write(&mut self, pieces: Vec<Bytes>, bytes: u64, written: Written) -> PushWrite {
        let mut placed = Vec::with_capacity(pieces.len() + 1);
        for mut piece in pieces {
            let at = self.written % self.bytes;
            let left = usize::try_from(self.bytes - at).unwrap_or(usize::MAX);
            self.written = self.written.wrapping_add(piece.len() as u64);
            let rest = piece.split_off(left.min(piece.len()));
            placed.push((at, piece));
            if !rest.is_empty() {
                placed.push((0, rest));
            }
        }
        self.next_order = self.next_order.wrapping_add(1);
        let notify = (written.to_immediate(), u32::try_from(bytes).unwrap_or(u32::MAX));
        PushWrite { key: self.key, pieces: placed, notify }
    }
}

fn decode<R: Request>(correlation_id: i32, answer: Bytes) -> Result<R::Response, String> {
    match frame::decode_response::<R>(0, answer) {
        Ok((id, answer)) if id == correlation_id => Ok(answer),
        Ok(_) => Err("it has answered what was not asked".to_owned()),
        Err(error) => Err(format!("its answer cannot be read: {error}")),
    }
}

fn refused(error: ErrorCode, why: Option<String>) -> String {
    format!("it takes nothing through memory: {error}: {}", why.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use headrace_wire::uuid::Uuid;

    use super::*;

    #[test]
    fn a_copy_that_is_granted_again_and_again_has_one_turn() {
        let at = Endpoint { host: "f".to_owned(), port: 1, rack: None };
        let mut pusher = Pusher::new(Registration(2, 12), at, &[Fabric::Shm]);
        let place = (Uuid::ZERO, 0);
        for id in 0..100 {
            pusher.begin(Granted { place, epoch: 0, id, end: 0, last_epoch: -1 }, true);
            if id % 2 == 0 {
                pusher.want(place);
                assert_eq!(pusher.ready.len(), 0);
            }
        }
        assert_eq!(pusher.ready.len(), 1);
        pusher.forget(place);
        assert_eq!((pusher.ready.len(), pusher.released.len()), (0, 1));
    }

    #[test]
    fn a_follower_that_no_link_reaches_is_asked_less_and_less_often() {
        let at = Endpoint { host: "f".to_owned(), port: 1, rack: None };
        let mut pusher = Pusher::new(Registration(2, 12), at, &[Fabric::Shm]);
        pusher.want((Uuid::ZERO, 0));
        let mut now_ms = 0;
        let waits: Vec<u64> = (0..8)
            .map(|_| {
                let due = pusher.due().unwrap();
                let wait = due - now_ms;
                now_ms = due;
                let wish = pusher.next(Registration(1, 11), now_ms, |_| Some(0));
                assert!(matches!(wish, Some(Wish::Connect(_))));
                pusher.closed(now_ms);
                wait
            })
            .collect();
        assert_eq!(waits, [0, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000]);
        pusher.state = State::Linked;
        pusher.closed(now_ms);
        assert_eq!(
            pusher.due(),
            Some(now_ms + RETRY_MAX_MS),
            "there was a link, over which nothing was taken"
        );
    }
}
