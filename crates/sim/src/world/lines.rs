//! What is on its way between the two ends of a link: when it arrives, and whether at all.

use headrace_broker::SLOTS_KEY;
use headrace_fabric::simulated::{Packet, PacketKind, SimControl, SimSide, ToPeer};
use headrace_wire::direct::{SLOT_BYTES, WriteAck};
use headrace_wire::errors::ErrorCode;
use headrace_wire::link_message::LinkMessage;

use super::state::{Event, LinkEvent, World};
use crate::links::{self, Control, Line, Words};
use crate::rng::Rng;

/// How long things take over a link when all is well.
const CALM_MS: u64 = 3;

/// What becomes of an answer to a write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Comes,
    Doubled,
    Swapped,
}

/// Where a slot says what is not so, and what.
pub(super) fn lie_of_slot(rng: &mut Rng, slot: usize, words: &Words) -> (usize, u64) {
    let at = slot * SLOT_BYTES;
    match rng.between(0, 3) {
        0 => (at, words[0] ^ 1 << 63),
        1 => (at, 0),
        2 => (at, words[0] | 1 << 41),
        _ => (at, words[0] | 1),
    }
}

impl World {
    /// When a note is seen that is sent now.
    pub(super) fn note_due(&mut self) -> u64 {
        let (max, burst) = match &self.plan.direct {
            Some(plan) if !self.healed => (plan.note_ms_max, plan.burst_ms.max(1)),
            _ => (CALM_MS, 1),
        };
        (self.now.mono_ms + self.rng.between(0, max)).next_multiple_of(burst)
    }

    pub(super) fn control_due(&mut self) -> u64 {
        let max = match &self.plan.direct {
            Some(plan) if !self.healed => plan.control_ms_max,
            _ => CALM_MS,
        };
        self.now.mono_ms + self.rng.between(0, max)
    }

    pub(super) fn tell_link(&mut self, key: u64, control: Control) {
        let due = self.control_due();
        if let Some(link) = self.links.get_mut(&key) {
            let due = link.tell(due, control);
            self.at(due, Event::Link(key, LinkEvent::Control));
        }
    }

    pub(super) fn lies(&mut self) -> bool {
        let rate = self.plan.direct.as_ref().map_or(0, |plan| plan.lies);
        !self.healed && self.rng.chance(rate)
    }

    pub(super) fn lied(&mut self, key: u64, of: &str) {
        self.outcome.exposed.lies += 1;
        self.tell(|| format!("link {key} lies {of}"));
        if let Some(link) = self.links.get_mut(&key) {
            link.lied = true;
        }
    }

    /// Gives what the ends of a link have sent its times.
    pub(super) fn carry(&mut self, name: u64) -> Result<(), String> {
        match self.links.get(&name).map(|link| &link.line) {
            Some(Line::Shm(wire)) => {
                let wire = wire.clone();
                while let Some(what) = wire.next(SimSide::Client) {
                    let due = self.note_due();
                    let Some(link) = self.links.get_mut(&name) else { return Ok(()) };
                    let due = links::put(&mut link.to_broker, due, what);
                    self.at(due, Event::Link(name, LinkEvent::ToBroker));
                }
                while let Some(what) = wire.next(SimSide::Broker) {
                    match what {
                        ToPeer::Note(note) => self.carry_answer(name, note)?,
                        ToPeer::Control(control) => self.hand(name, control),
                        ToPeer::Notify => {
                            let due = self.note_due();
                            let Some(link) = self.links.get_mut(&name) else { return Ok(()) };
                            let due = links::put(&mut link.to_client, due, ToPeer::Notify);
                            self.at(due, Event::Link(name, LinkEvent::ToClient));
                        }
                    }
                }
            }
            Some(Line::Verbs(cable)) => {
                let cable = cable.clone();
                while let Some(packet) = cable.next(SimSide::Client) {
                    let due = self.note_due();
                    let Some(link) = self.links.get_mut(&name) else { return Ok(()) };
                    let since = link.slots.as_ref().map_or(0, links::Slots::changes);
                    let due = links::put(&mut link.packets_to_broker, due, (packet, since));
                    self.at(due, Event::Link(name, LinkEvent::ToBroker));
                }
                while let Some(packet) = cable.next(SimSide::Broker) {
                    self.carry_message(name, packet)?;
                }
            }
            Some(Line::None) | None => {}
        }
        Ok(())
    }

    /// An answer to a write is on its way over shared memory.
    fn carry_answer(&mut self, name: u64, note: [u64; 4]) -> Result<(), String> {
        let (ack, fate) = self.fate_of_answer(name, note)?;
        for _ in 0..=usize::from(fate == Fate::Doubled) {
            let due = self.note_due();
            let Some(link) = self.links.get_mut(&name) else { return Ok(()) };
            let due = links::put(&mut link.to_client, due, ToPeer::Note(ack.to_note()));
            if let [.., (_, before), (_, last)] = link.to_client.make_contiguous()
                && fate == Fate::Swapped
            {
                std::mem::swap(before, last);
            }
            self.at(due, Event::Link(name, LinkEvent::ToClient));
        }
        Ok(())
    }

    /// What an answer says by the time that it comes.
    fn fate_of_answer(&mut self, name: u64, note: [u64; 4]) -> Result<(WriteAck, Fate), String> {
        let mut ack = WriteAck::from_note(note);
        let spoilt = [ErrorCode::CORRUPT_MESSAGE, ErrorCode::INVALID_RECORD];
        if spoilt.contains(&ErrorCode::from(ack.error_code)) && !self.rogues_share() {
            return Err(format!(
                "the broker has read something else than was written over link {name}: {ack:?}"
            ));
        }
        self.outcome.exposed.taken += usize::from(ack.error_code == 0);
        let mut fate = Fate::Comes;
        if self.lies() {
            self.lied(name, "of a write");
            match self.rng.between(0, 3) {
                0 => ack.written.id ^= 0x8000,
                1 => ack.written.order = ack.written.order.wrapping_add(1),
                2 => fate = Fate::Doubled,
                _ => fate = Fate::Swapped,
            }
        }
        Ok((ack, fate))
    }

    /// Whether what honest producers write may be spoilt by others.
    fn rogues_share(&self) -> bool {
        self.plan.direct.as_ref().is_some_and(|plan| plan.rogues.iter().any(|rogue| rogue.shares))
    }

    /// A message of the broker's is on its way over RDMA, where all comes in order.
    fn carry_message(&mut self, name: u64, packet: Packet) -> Result<(), String> {
        let PacketKind::Message(bytes) = &packet.kind else {
            return Err(format!("the broker does more than to send messages over link {name}"));
        };
        let message = LinkMessage::decode(bytes).ok_or("the broker says what means nothing")?;
        let packet_of = |message: &LinkMessage| {
            let kind = PacketKind::Message(message.encode().to_vec());
            Packet { from: SimSide::Broker, op: None, kind }
        };
        let (mut packets, mut due) = (Vec::new(), self.note_due());
        let mut fate = Fate::Comes;
        match &message {
            LinkMessage::Ack(note) => {
                let (ack, of) = self.fate_of_answer(name, *note)?;
                fate = of;
                packets.push(packet_of(&LinkMessage::Ack(ack.to_note())));
                if fate == Fate::Doubled {
                    packets.push(packet_of(&LinkMessage::Ack(ack.to_note())));
                }
            }
            LinkMessage::Ring { key, region } | LinkMessage::Slots { key, region } => {
                due = self.control_due();
                if *key == SLOTS_KEY
                    && let Some(link) = self.links.get_mut(&name)
                {
                    link.slots_region = registration(region);
                }
                if self.withholds() {
                    self.outcome.exposed.withheld += 1;
                    self.tell(|| format!("memory {key} of link {name} never comes"));
                    return Ok(());
                }
                packets.push(packet);
                if self.lies() {
                    self.lied(name, "of memory");
                    packets.push(packet_of(&if self.rng.chance(50) {
                        LinkMessage::Revoked { key: *key }
                    } else {
                        LinkMessage::Ring { key: key + 1000, region: region.clone() }
                    }));
                }
            }
            LinkMessage::Window { key, at, region } => {
                self.outcome.exposed.windows += 1;
                let number = registration(region).ok_or("a window has a descriptor that is none")?;
                if let Some(link) = self.links.get_mut(&name) {
                    link.windows.insert(number, (*key, *at));
                }
                packets.push(packet);
            }
            LinkMessage::Unreachable { .. } => {
                self.outcome.exposed.refused += 1;
                packets.push(packet);
            }
            LinkMessage::Revoked { .. } | LinkMessage::Notify => {
                due = self.control_due();
                packets.push(packet);
            }
            other => return Err(format!("the broker says {other:?} over link {name}")),
        }
        self.tell(|| format!("the broker says over link {name}: {message:?}"));
        for packet in packets {
            let Some(link) = self.links.get_mut(&name).filter(|link| !link.deaf) else { return Ok(()) };
            due = links::put(&mut link.packets_to_client, due, packet);
            if let [.., (_, before), (_, last)] = link.packets_to_client.make_contiguous()
                && fate == Fate::Swapped
            {
                std::mem::swap(before, last);
            }
            self.at(due, Event::Link(name, LinkEvent::ToClient));
        }
        Ok(())
    }

    /// Memory over a socket is handed to a client, or not; and perhaps something that it was not granted, or less.
    fn hand(&mut self, name: u64, control: SimControl) {
        let (key, memory) = match &control {
            SimControl::Exposed(key, memory) => (*key, Some(memory.clone())),
            SimControl::File(key, ..) => (*key, None),
            SimControl::Revoked(_) => {
                return self.tell_link(name, Control::Peer(ToPeer::Control(control)));
            }
        };
        if self.withholds() {
            self.outcome.exposed.withheld += 1;
            self.tell(|| format!("memory {key} of link {name} never comes"));
            return;
        }
        self.tell_link(name, Control::Peer(ToPeer::Control(control)));
        if self.lies() {
            self.lied(name, "of memory");
            let lie = match memory.filter(|_| self.rng.chance(50)) {
                Some(memory) => SimControl::Exposed(key + 1000, memory),
                None => SimControl::Revoked(key),
            };
            self.tell_link(name, Control::Peer(ToPeer::Control(lie)));
        }
    }

    fn withholds(&mut self) -> bool {
        let withheld = self.plan.direct.as_ref().map_or(0, |plan| plan.withheld);
        self.rng.chance(withheld)
    }

    /// What has changed in a link's slots is on its way to their reader.
    pub(super) fn send_slots(&mut self, name: u64, nudged: bool, shown: bool) -> Result<(), String> {
        let Some(link) = self.links.get_mut(&name) else { return Ok(()) };
        let verbs = link.verbs;
        let Some(slots) = &mut link.slots else { return Ok(()) };
        let changed: Vec<(usize, Words)> = slots.changed()?;
        if changed.is_empty() {
            return Ok(());
        }
        if link.broker && !nudged && changed.iter().any(|(_, [.., id])| *id != 0) {
            return Err(format!("slots of link {name} have changed, and nobody is notified"));
        }
        self.outcome.exposed.slots += changed.len();
        if verbs {
            return Ok(());
        }
        for (slot, words) in changed {
            // What was written before something was said is there when that is heard.
            let dues = if shown { [self.now.mono_ms; 4] } else { [(); 4].map(|()| self.note_due()) };
            let mut dues = dues.into_iter();
            let lies = !shown && self.lies();
            let lie = lies.then(|| (lie_of_slot(&mut self.rng, slot, &words), self.note_due()));
            let now_ms = self.now.mono_ms;
            let Some(slots) = self.links.get_mut(&name).and_then(|link| link.slots.as_mut()) else { break };
            if shown {
                slots.arrive(u64::MAX)?;
            }
            slots.send(slot, words, || dues.next().unwrap_or(0));
            if let Some(((at, word), due)) = lie {
                slots.lie(due, at, word);
            }
            if shown {
                slots.arrive(now_ms)?;
            }
            if lies {
                self.lied(name, "of a slot");
            }
        }
        Ok(())
    }
}

/// The key of the broker's card in a descriptor.
fn registration(region: &[u8]) -> Option<u64> {
    region.first_chunk().map(|key| u64::from_le_bytes(*key))
}
