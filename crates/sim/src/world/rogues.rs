//! Clients that ask for memory as others do, and lie over their links.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use headrace_broker::{LinkAction, LinkId};
use headrace_fabric::simulated::{Cable, SimSide, ToPeer, Wire};
use headrace_fabric::{Event as FabricEvent, Memory, Message, Region};
use headrace_wire::direct::{Reservation, SHARED, Written};
use headrace_wire::link_message::LinkMessage;
use headrace_wire::messages::{
    DirectConnectRequest, DirectReleaseRequest, GrantFetchRequest, GrantProduceRequest,
};

use super::{Event, World};
use crate::links::{Line, SimBrokerEnd, SimFile};
use crate::rng::Rng;

/// What their ends of links over RDMA say of themselves is counted from here.
const FIRST_END: u64 = 1 << 58;
/// Their connections are counted from here.
const FIRST_CONN: u64 = 1 << 59;
const VERSION: i16 = 0;
/// Bytes of a batch's header: less is never read.
const HEADER_BYTES: u64 = 61;

/// A ring that was exposed to it.
#[derive(Debug)]
struct Ring {
    id: u16,
    bytes: u64,
    /// How many writes it has told of that may have been.
    next: u16,
    /// Of a ring that others write: what it is called, where its order word is, and the turns that it has drawn.
    shared: Option<(u64, usize)>,
    turns: Vec<(u16, u64)>,
}

/// One of them.
#[derive(Default)]
pub(super) struct Rogue {
    conn: Option<u64>,
    /// It has asked for a link over RDMA, and none stands yet.
    asked: bool,
    link: Option<u64>,
    /// The broker's end of it, as it is shipped, and what goes there.
    end: Option<SimBrokerEnd>,
    line: Line,
    exposed: BTreeMap<u64, Region>,
    rings: Vec<Ring>,
    acts: u64,
}

impl World {
    pub(super) fn plan_rogues(&mut self) {
        let plans = self.plan.direct.as_ref().map(|plan| plan.rogues.clone()).unwrap_or_default();
        for (number, plan) in plans.into_iter().enumerate() {
            self.rogues.push(Rogue { acts: plan.acts, ..Rogue::default() });
            self.at(plan.at_ms, Event::Rogue(number));
        }
    }

    fn rogue_of(&mut self, link: u64) -> Option<&mut Rogue> {
        self.rogues.iter_mut().find(|rogue| rogue.link == Some(link))
    }

    /// Whether a link is a rogue's.
    pub(super) fn is_rogues(&self, link: u64) -> bool {
        self.rogues.iter().any(|rogue| rogue.link == Some(link))
    }

    /// Whether what honest producers write may be spoilt by others.
    pub(super) fn rogues_share(&self) -> bool {
        self.plan.direct.as_ref().is_some_and(|plan| plan.rogues.iter().any(|rogue| rogue.shares))
    }

    /// The broker has connected an end of its own to a rogue's; whether it is one's.
    pub(super) fn rogue_joins(&mut self, end: u64, offered: u64) -> bool {
        let Some(number) = end.checked_sub(FIRST_END).and_then(|number| usize::try_from(number).ok()) else {
            return false;
        };
        self.tell(|| format!("rogue {number} is joined to link {offered}"));
        match self.rogues.get_mut(number).filter(|rogue| rogue.conn.is_some()) {
            Some(rogue) => {
                (rogue.link, rogue.asked) = (Some(offered), false);
                let (cable, broker, _) = Cable::new();
                rogue.end = Some(SimBrokerEnd::remote(LinkId(offered), broker));
                rogue.line = Line::Verbs(cable);
            }
            None => self.server.unlink(offered),
        }
        true
    }

    pub(super) fn rogue_is_exposed(&mut self, link: u64, key: u64, memory: &Arc<Memory>) -> bool {
        let rogue = self.rogue_of(link);
        rogue.map(|rogue| rogue.exposed.insert(key, Region::whole(memory.clone()))).is_some()
    }

    /// What it had of the broker's memory it still has, as a process would.
    pub(super) fn rogue_is_closed(&mut self, link: u64) -> bool {
        let rogue = self.rogue_of(link);
        rogue.map(|rogue| (rogue.link, rogue.end, rogue.rings) = (None, None, Vec::new())).is_some()
    }

    /// The broker's end of a rogue's link does what the broker wants.
    pub(super) fn rogue_act_on(&mut self, link: u64, action: LinkAction<SimFile>) -> Result<(), String> {
        let Some(rogue) = self.rogues.iter_mut().find(|rogue| rogue.link == Some(link)) else {
            return Ok(());
        };
        let Some(end) = &mut rogue.end else { return Ok(()) };
        if let Err(fault) = end.act(action, &mut self.server) {
            return self.rogue_is_dropped(link, &fault.to_string());
        }
        // It hears nothing of what it is told.
        match &rogue.line {
            Line::Shm(wire) => while wire.next(SimSide::Broker).is_some() {},
            Line::Verbs(cable) => while cable.next(SimSide::Broker).is_some() {},
            Line::None => {}
        }
        Ok(())
    }

    /// The broker's end of a rogue's link has seen that it lies.
    fn rogue_is_dropped(&mut self, link: u64, why: &str) -> Result<(), String> {
        self.tell(|| format!("the broker gives link {link} of a rogue up: {why}"));
        self.outcome.exposed.closed += 1;
        self.rogue_is_closed(link);
        self.exposes.retain(|(of, _), _| *of != link);
        self.server.unlink(link);
        self.after_broker()
    }

    /// A rogue says something over its link.
    fn rogue_says(&mut self, number: usize, note: [u64; 4]) -> Result<(), String> {
        let [immediate, bytes, ..] = note;
        match &self.rogues[number].line {
            Line::Shm(wire) => wire.arrive(SimSide::Broker, ToPeer::Note(note)),
            Line::Verbs(cable) => {
                let event = match (u32::try_from(immediate), u32::try_from(bytes)) {
                    (Ok(imm), Ok(len)) if self.rng.chance(80) => FabricEvent::Notified { imm, len },
                    (Ok(immediate), Ok(bytes)) => {
                        let message = LinkMessage::Written { immediate, bytes };
                        FabricEvent::Message(Message::short(&message.encode()))
                    }
                    _ => FabricEvent::Message(Message::short(note.map(u64::to_le_bytes).as_flattened())),
                };
                cable.forge(SimSide::Broker, event);
            }
            Line::None => {}
        }
        self.rogue_is_heard(number)
    }

    /// A rogue over RDMA says what clients say, or what none does.
    fn rogue_babbles(&mut self, number: usize) -> Result<(), String> {
        let (key, at) = (self.rng.skewed(40), self.rng.pick(&[0, 1, 1 << 16, 1 << 40, u64::MAX]));
        let message = match self.rng.between(0, 5) {
            0 | 1 => LinkMessage::Parked,
            2 => LinkMessage::WantWindow { key, at },
            3 => LinkMessage::Released { key },
            4 => LinkMessage::Notify,
            _ => LinkMessage::Revoked { key },
        };
        if let Line::Verbs(cable) = &self.rogues[number].line {
            let mut bytes = message.encode().to_vec();
            if self.rng.chance(10) {
                bytes.pop();
            }
            cable.forge(SimSide::Broker, FabricEvent::Message(Message::short(&bytes)));
        }
        self.rogue_is_heard(number)
    }

    /// The broker's thread looks at a rogue's link.
    fn rogue_is_heard(&mut self, number: usize) -> Result<(), String> {
        let now = self.now;
        while let Some(end) = &mut self.rogues[number].end {
            let polled = end.poll(now, &mut self.server);
            end.notify_owed();
            match (polled, self.rogues[number].link) {
                (Ok(true), _) => self.after_broker()?,
                (Err(fault), Some(link)) => return self.rogue_is_dropped(link, &fault.to_string()),
                _ => break,
            }
        }
        Ok(())
    }

    /// The broker has closed its connection, as where it has lied over RDMA.
    pub(super) fn rogue_is_hung_up(&mut self, conn: u64) {
        if let Some(rogue) = self.rogues.iter_mut().find(|rogue| rogue.conn == Some(conn)) {
            (rogue.conn, rogue.asked) = (None, false);
        }
    }

    /// The broker is gone.
    pub(super) fn forget_rogues(&mut self) {
        for rogue in &mut self.rogues {
            (rogue.conn, rogue.asked, rogue.link, rogue.rings) = (None, false, None, Vec::new());
            rogue.end = None;
        }
    }

    pub(super) fn rogue_acts(&mut self, number: usize) -> Result<(), String> {
        let plan = self.plan.direct.as_ref().map(|plan| plan.rogues[number]);
        let Some(plan) = plan else { return Ok(()) };
        self.rogues[number].acts = self.rogues[number].acts.saturating_sub(1);
        let leaves = self.healed || self.rogues[number].acts == 0;
        if leaves {
            self.rogues[number].end = None;
            if let Some(link) = self.rogues[number].link.take() {
                self.exposes.retain(|(of, _), _| *of != link);
                self.server.unlink(link);
            }
            if let Some(conn) = self.rogues[number].conn.take() {
                self.server.hang_up_own(conn, self.now);
            }
            return self.after_broker();
        }
        if self.server.is_up() {
            self.rogue_act(number)?;
        }
        let again = self.now.mono_ms + self.rng.between(0, plan.every_ms);
        self.at(again.min(self.plan.heal_ms), Event::Rogue(number));
        self.after_broker()
    }

    fn rogue_act(&mut self, number: usize) -> Result<(), String> {
        let now = self.now;
        let Some(conn) = self.rogues[number].conn else {
            self.last_rogue_conn += 1;
            let conn = FIRST_CONN + self.last_rogue_conn;
            self.server.connect_own(conn, now);
            self.rogues[number].conn = Some(conn);
            return Ok(());
        };
        let plan = self.plan.direct.as_ref().map(|plan| plan.rogues[number]);
        let (verbs, shares) = plan.map_or((false, false), |plan| (plan.verbs, plan.shares));
        if self.rogues[number].asked {
            // It may have been refused as well.
            if self.rng.chance(30) {
                self.server.hang_up_own(conn, now);
                (self.rogues[number].conn, self.rogues[number].asked) = (None, false);
            }
            return Ok(());
        }
        let Some(link) = self.rogues[number].link else { return self.rogue_links(number, conn, verbs) };
        let places: Vec<_> = self.plan.places().collect();
        // Who writes beside others is to meet them.
        let place = if shares && self.rng.chance(70) { places[0] } else { self.rng.pick(&places) };
        let joined = self.rogues[number].rings.last().is_some_and(|ring| ring.shared.is_some());
        let what = if joined && self.rng.chance(70) { 9 } else { self.rng.between(0, 10) };
        self.tell(|| format!("rogue {number} does {what} over link {link}, {place:?}"));
        match what {
            0..3 => {
                let topic_id = self.server.topic_id(place.topic, now)?;
                let request = GrantProduceRequest {
                    topic_id,
                    partition: place.partition,
                    mode: self.rng.pick(if shares { &[1, 1, 1, 0, 7] } else { &[0, 0, 0, 0, 7] }),
                    ring_bytes: self.rng.pick(&[i64::MIN, 0, 70_000, 1 << 20, i64::MAX]),
                };
                let answer = self.server.ask(conn, VERSION, &request, now)?;
                if answer.error_code == 0 {
                    let bytes = u64::try_from(answer.ring_bytes).unwrap_or(0);
                    let order_at = usize::try_from(answer.order_at).ok().filter(|_| answer.mode == SHARED);
                    let shared = order_at.map(|at| (answer.key.cast_unsigned(), at));
                    let ring = Ring { id: answer.id, bytes, next: 0, shared, turns: Vec::new() };
                    self.rogues[number].rings.push(ring);
                }
            }
            3 => {
                let request = GrantFetchRequest {
                    topic_id: self.server.topic_id(place.topic, now)?,
                    partition: place.partition,
                    current_leader_epoch: self.rng.pick(&[-1, -1, 0, 5]),
                    offset: self.rng.pick(&[0, 0, -1, i64::MAX, i64::MIN, 3]),
                };
                self.server.ask(conn, VERSION, &request, now)?;
            }
            4 => {
                let ids = (0..3).map(|_| i32::try_from(self.rng.skewed(1 << 17)).unwrap_or(0)).collect();
                self.server.ask(conn, VERSION, &DirectReleaseRequest { ids }, now)?;
            }
            5 if self.rng.chance(20) => {
                self.server.hang_up_own(conn, now);
                (self.rogues[number].conn, self.rogues[number].rings) = (None, Vec::new());
            }
            5 | 6 => self.scribble(number)?,
            10 => self.rogue_babbles(number)?,
            _ => {
                let rogue = &mut self.rogues[number];
                let turn = if self.rng.chance(80) { rogue.turn(&mut self.rng)? } else { None };
                self.outcome.exposed.taken_by_byzantine += usize::from(turn.is_some());
                let note = turn.unwrap_or_else(|| self.rogues[number].note(&mut self.rng));
                self.rogue_says(number, note)?;
            }
        }
        Ok(())
    }

    fn rogue_links(&mut self, number: usize, conn: u64, verbs: bool) -> Result<(), String> {
        let now = self.now;
        let fabric = if verbs { "verbs" } else { "shm" }.to_owned();
        let hello = (FIRST_END + number as u64).to_le_bytes().to_vec().into();
        let request = DirectConnectRequest { fabric, hello };
        if verbs {
            // It stands once the broker has connected its end.
            self.rogues[number].asked = true;
            return self.server.post(conn, VERSION, &request, now);
        }
        let answer = self.server.ask(conn, VERSION, &request, now)?;
        self.last_link += 1;
        let key = self.last_link;
        if answer.error_code == 0 && self.server.link(key, &answer.address, answer.token.0) {
            let (wire, broker, _) = Wire::new(usize::MAX);
            let rogue = &mut self.rogues[number];
            rogue.link = Some(key);
            rogue.end = Some(SimBrokerEnd::mapped(LinkId(key), broker));
            rogue.line = Line::Shm(wire);
        } else {
            self.server.hang_up_own(conn, now);
            self.rogues[number].conn = None;
        }
        Ok(())
    }

    /// Writes anything anywhere into memory that it has, or had.
    fn scribble(&mut self, number: usize) -> Result<(), String> {
        let bytes = usize::try_from(self.rng.skewed(4000)).unwrap_or(0);
        let junk = self.rng.bytes(bytes);
        for region in self.rogues[number].exposed.values() {
            let at = if self.rng.chance(50) { 0 } else { self.rng.index(region.len() - bytes) };
            region.write(at, &junk).map_err(|why| why.to_string())?;
        }
        Ok(())
    }
}

impl Rogue {
    /// Draws a turn in a ring that others write as well, and tells of this one or another, once or again, with its length or
    /// another; what lies there is anything.
    fn turn(&mut self, rng: &mut Rng) -> Result<Option<[u64; 4]>, String> {
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
    fn note(&mut self, rng: &mut Rng) -> [u64; 4] {
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
