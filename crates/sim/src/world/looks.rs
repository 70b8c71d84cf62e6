//! Links at their clients: what comes to them, and when a client's thread looks at what has come.
//!
//! Nobody looks at what has come unless its side polls, or was notified by the shipped code, or a card wakes it.

use headrace_client::io::{self, Input};
use headrace_fabric::FabricError;
use headrace_fabric::simulated::{SimSide, ToPeer};
use headrace_link::LinkFault;
use headrace_link::parking::BeforeSleep;
use headrace_wire::direct::WriteAck;

use super::state::{Event, World};
use crate::client::Who;
use crate::links::{self, Control, Line};

/// Of threads that have looked: how many look again soon, and how soon.
const LOOKS_ON: u64 = 40;
const LOOKS_ON_MS: u64 = 5;
/// Of threads that have found something: how often nobody waits for it.
const PATIENT: u64 = 30;

impl World {
    /// What has come to a client is there.
    pub(super) fn comes_to_client(&mut self, name: u64) -> Result<(), String> {
        let now_ms = self.now.mono_ms;
        let mut looks = false;
        while let Some(link) = self.links.get_mut(&name).filter(|link| link.client) {
            let Some(what) = links::take(&mut link.to_client, now_ms) else { break };
            let Line::Shm(wire) = &link.line else { break };
            if matches!(what, ToPeer::Notify) {
                looks = true;
                // What was published before somebody was notified is seen by whom that wakes.
                if let Some(slots) = &mut link.slots {
                    slots.arrive(u64::MAX)?;
                }
            }
            looks |= !wire.is_parked(SimSide::Client);
            wire.arrive(SimSide::Client, what);
        }
        while let Some(link) = self.links.get_mut(&name).filter(|link| link.client) {
            let Line::Verbs(cable) = &link.line else { break };
            let (packet, reply) = (link.packets_to_client.front(), link.replies.front());
            let first = packet.map(|(due, _)| *due).into_iter().chain(reply.map(|(due, _)| *due)).min();
            if first.is_none_or(|due| due > now_ms) {
                break;
            }
            looks = true;
            if let Some(reply) = links::take(&mut link.replies, now_ms) {
                cable.complete(reply).map_err(|why| format!("link {name}: {why}"))?;
            } else if let Some(packet) = links::take(&mut link.packets_to_client, now_ms) {
                cable.deliver(packet).map_err(|why| format!("link {name}: {why}"))?;
            }
        }
        if looks { self.client_looks(name) } else { Ok(()) }
    }

    /// A client's thread looks at a link, and then at the memory that it has.
    pub(super) fn client_looks(&mut self, name: u64) -> Result<(), String> {
        let Some(who) = self.poll_client(name)? else { return Ok(()) };
        self.look_at_memory(who)?;
        self.rest(who)
    }

    /// Hands a client's engine what has come over a link; whose it is, if it lives.
    fn poll_client(&mut self, name: u64) -> Result<Option<Who>, String> {
        let now_us = self.now.mono_ms * 1000;
        let Some(link) = self.links.get_mut(&name).filter(|link| link.client) else { return Ok(None) };
        let (who, id) = (link.who, link.id);
        let Some(end) = &mut link.client_end else { return Ok(Some(who)) };
        let mut events = Vec::new();
        end.unpark();
        let polled = end.poll_control(|event| events.push(event));
        let polled = polled.and_then(|()| end.poll(|| now_us, |event| events.push(event)));
        for event in events {
            self.hears(who, name, &event);
            self.link(who, id, event);
            self.settle(who)?;
        }
        self.carry(name)?;
        let Err(fault) = polled else { return Ok(Some(who)) };
        let lied = self.links.get(&name).is_none_or(|link| link.lied);
        let gone = matches!(fault, LinkFault::Remote(FabricError::Gone));
        if !lied && !gone {
            return Err(format!("{who:?} ends link {name}, over which nobody has lied: {fault}"));
        }
        self.lose_link(name, &fault.to_string());
        self.settle(who)?;
        Ok(Some(who))
    }

    fn hears(&mut self, who: Who, name: u64, event: &io::LinkEvent) {
        match event {
            io::LinkEvent::Read { .. } => self.outcome.exposed.reads += 1,
            io::LinkEvent::FetchAdded { .. } => self.outcome.exposed.drawn += 1,
            _ => {}
        }
        self.tell(|| match event {
            io::LinkEvent::Note(note) => {
                format!("{who:?} is told over link {name}: {:?}", WriteAck::from_note(*note))
            }
            io::LinkEvent::Read { key, at, bytes } => {
                format!("{who:?} has {} bytes of file {key} from {at} on", bytes.len())
            }
            other => format!("{who:?} hears over link {name}: {other:?}"),
        });
    }

    /// A client looks at all its links, as a thread that polls does.
    pub(super) fn look(&mut self, who: Who) -> Result<(), String> {
        self.wires(who).look_at = None;
        if !self.lives(who) {
            return Ok(());
        }
        for name in self.wires(who).links.values().copied().collect::<Vec<_>>() {
            self.poll_client(name)?;
        }
        self.look_at_memory(who)?;
        self.rest(who)
    }

    /// An engine looks at what it sees of brokers' memory by now.
    fn look_at_memory(&mut self, who: Who) -> Result<(), String> {
        if !self.lives(who) {
            return Ok(());
        }
        let now_ms = self.now.mono_ms;
        for name in self.wires(who).links.values().copied().collect::<Vec<_>>() {
            if let Some(slots) = self.links.get_mut(&name).and_then(|link| link.slots.as_mut()) {
                slots.arrive(now_ms)?;
            }
        }
        self.wires(who).parking.looked(true);
        self.input(who, Input::PollMemory);
        self.settle(who)
    }

    /// A client's thread has looked: it looks again soon, or parks its links as the shipped policy says.
    fn rest(&mut self, who: Who) -> Result<(), String> {
        if !self.lives(who) || self.wires(who).links.is_empty() || self.wires(who).look_at.is_some() {
            return Ok(());
        }
        if self.rng.chance(LOOKS_ON) {
            self.look_later(who);
            return Ok(());
        }
        let (now_ms, patient) = (self.now.mono_ms, self.rng.chance(PATIENT));
        let parking = &mut self.wires(who).parking;
        if parking.before_sleep(true, || now_ms, || patient) == BeforeSleep::Sleep {
            let until = self.wires(who).parking.linger_until().unwrap_or(now_ms);
            self.look_at(who, until);
            return Ok(());
        }
        let mut sleeps = true;
        for name in self.wires(who).links.values().copied().collect::<Vec<_>>() {
            let Some(link) = self.links.get_mut(&name) else { continue };
            if let Some(end) = &mut link.client_end {
                sleeps &= end.park().unwrap_or(false);
            }
            // Either the broker sees that the client is parked, or the client what was published before.
            if let Some(slots) = &mut link.slots {
                slots.arrive(u64::MAX)?;
            }
            self.carry(name)?;
        }
        self.input(who, Input::PollMemory);
        self.settle(who)?;
        if !sleeps {
            self.look_later(who);
        }
        Ok(())
    }

    fn look_later(&mut self, who: Who) {
        let at = self.now.mono_ms + self.rng.between(1, LOOKS_ON_MS);
        self.look_at(who, at);
    }

    fn look_at(&mut self, who: Who, at: u64) {
        self.wires(who).look_at = Some(at);
        self.at(at, Event::Look(who));
    }

    /// A client takes what has come over a link's socket.
    pub(super) fn link_control(&mut self, key: u64) -> Result<(), String> {
        let now_ms = self.now.mono_ms;
        while let Some(link) = self.links.get_mut(&key).filter(|link| link.client) {
            let (who, id) = (link.who, link.id);
            let Some(control) = links::take(&mut link.control, now_ms) else { break };
            match control {
                Control::Linked => {
                    link.linked = true;
                    self.link(who, id, io::LinkEvent::Connected);
                }
                Control::Peer(what) => {
                    if let Line::Shm(wire) = &link.line {
                        wire.arrive(SimSide::Client, what);
                    }
                }
                Control::Gone(why) => {
                    self.tell(|| format!("{who:?} learns that link {key} has ended: {why}"));
                    self.lose_link(key, why);
                }
            }
            self.settle(who)?;
            self.client_looks(key)?;
        }
        Ok(())
    }

    /// A client's card gives up.
    pub(super) fn link_deaf(&mut self, name: u64) -> Result<(), String> {
        let Some(link) = self.links.get(&name).filter(|link| link.client) else { return Ok(()) };
        let who = link.who;
        if let Line::Verbs(cable) = &link.line {
            cable.cut(SimSide::Client);
        }
        self.tell(|| format!("a read over link {name} fails"));
        self.outcome.exposed.failed += 1;
        self.client_looks(name)?;
        self.settle(who)
    }
}
