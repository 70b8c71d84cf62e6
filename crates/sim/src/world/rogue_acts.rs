//! What rogues do by themselves: they ask for memory as others do, and lie over their links.

use headrace_broker::LinkId;
use headrace_fabric::simulated::{SimSide, ToPeer, Wire};
use headrace_fabric::{Event as FabricEvent, Message};
use headrace_wire::direct::SHARED;
use headrace_wire::link_message::LinkMessage;
use headrace_wire::messages::{
    DirectConnectRequest, DirectReleaseRequest, GrantFetchRequest, GrantProduceRequest,
};

use super::rogues::FIRST_END;
use super::state::{Event, World};
use crate::links::{Line, SimBrokerEnd};
use crate::rogue::Ring;

/// Their connections are counted from here.
const FIRST_CONN: u64 = 1 << 59;
const VERSION: i16 = 0;

impl World {
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
                (Err(fault), Some(link)) => {
                    self.rogue_is_dropped(link, &fault.to_string());
                    return self.after_broker();
                }
                _ => break,
            }
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
