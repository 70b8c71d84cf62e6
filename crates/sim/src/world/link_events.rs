//! Links at the broker: how they come to stand, what comes to it, and how they break.

use headrace_fabric::SystemMemory;
use headrace_fabric::simulated::{Cable, Packet, PacketKind, SimSide, ToPeer, Wire};
use headrace_link::client::RemoteLimits;
use headrace_wire::direct::{SLOT_BYTES, SLOT_WORDS};
use headrace_wire::link_message::LinkMessage;

use super::lines::lie_of_slot;
use super::state::{Event, LinkEvent, World};
use crate::links::{self, Control, Line, SimBrokerEnd, SimClientEnd};

/// A card that hears nothing any more gives up by so long after.
const DEAF_MS_MAX: u64 = 4000;
/// Of parts of a file that are asked for: how many reach no further than a few KiB, as if the file did not.
const SHORT: u64 = 60;
const SHORT_BYTES_MAX: u64 = 8 << 10;
/// Of broker's threads that have looked at a link: how many park.
const PARKS: u64 = 50;

impl World {
    pub(super) fn handle_link(&mut self, link: u64, event: LinkEvent) -> Result<(), String> {
        match event {
            LinkEvent::Comes => self.linking(link),
            LinkEvent::Joined => self.joined(link),
            LinkEvent::Control => self.link_control(link),
            LinkEvent::ToClient => self.comes_to_client(link),
            LinkEvent::ToBroker => self.comes_to_broker(link),
            LinkEvent::Deaf => self.link_deaf(link),
            LinkEvent::End => self.link_end(link),
            LinkEvent::Fault => self.link_fault(link),
        }
    }

    /// A client that makes a link has come to the broker.
    fn linking(&mut self, key: u64) -> Result<(), String> {
        let (ends, max) = self.exposing().map(|plan| (plan.ends, plan.link_ms_max))?;
        let Some(link) = self.links.get_mut(&key).filter(|link| link.client) else { return Ok(()) };
        if !self.server.link(key, &link.address, link.token) {
            self.tell(|| format!("link {key} is refused"));
            self.tell_link(key, Control::Gone("the broker does not know it"));
            return Ok(());
        }
        link.broker = true;
        let (wire, broker, client) = Wire::new(self.rng.pick(&[4, 2048, 2048]));
        link.line = Line::Shm(wire);
        link.broker_end = Some(SimBrokerEnd::mapped(headrace_broker::LinkId(key), broker));
        link.client_end = Some(SimClientEnd::mapped(client));
        self.tell(|| format!("link {key} stands"));
        self.outcome.exposed.links += 1;
        self.tell_link(key, Control::Linked);
        if !self.healed && self.rng.chance(ends) {
            let at = self.now.mono_ms + self.rng.between(0, max);
            self.at(at, Event::Link(key, LinkEvent::Fault));
        }
        Ok(())
    }

    /// It has, or cannot; the link has its name from now on.
    fn joined(&mut self, offered: u64) -> Result<(), String> {
        let Some(key) = self.joining.remove(&offered) else { return Ok(()) };
        let unmade = self.exposing()?.unmade;
        let fails = !self.healed && self.rng.chance(unmade);
        let adds = self.rng.chance(90);
        let made = if fails { Err("nobody answers there".to_owned()) } else { Ok(adds) };
        let now = self.now;
        if !self.server.joined(now, offered, made) {
            self.tell(|| format!("end {key} is not joined to link {offered}"));
            return self.after_broker();
        }
        if !self.rogue_joins(key, offered) {
            self.stands(key, offered)?;
        }
        self.after_broker()
    }

    fn stands(&mut self, key: u64, offered: u64) -> Result<(), String> {
        let Some(mut link) = self.links.remove(&key).filter(|link| link.client) else {
            self.server.unlink(offered);
            return Ok(());
        };
        let (who, id) = (link.who, link.id);
        link.broker = true;
        let (cable, broker, client) = Cable::new();
        link.line = Line::Verbs(cable);
        link.broker_end = Some(SimBrokerEnd::remote(headrace_broker::LinkId(offered), broker));
        let chunk_bytes = self.rng.pick(&[700, 5000, 256 << 10]);
        let limits = RemoteLimits { chunk_bytes, ..RemoteLimits::default() };
        link.client_end = Some(SimClientEnd::remote(client, Box::new(SystemMemory), limits));
        self.tell(|| format!("end {key} is joined to link {offered}"));
        self.links.insert(offered, link);
        self.wires(who).links.insert(id, offered);
        self.outcome.exposed.links += 1;
        let (ends, max) = self.exposing().map(|plan| (plan.ends, plan.link_ms_max))?;
        if !self.healed && self.rng.chance(ends) {
            let at = self.now.mono_ms + self.rng.between(0, max);
            self.at(at, Event::Link(offered, LinkEvent::Fault));
        }
        Ok(())
    }

    /// A link ends by itself, and the one side or the other learns of it first.
    fn link_fault(&mut self, key: u64) -> Result<(), String> {
        let Some(link) = self.links.get(&key).filter(|link| link.client && link.broker) else {
            return Ok(());
        };
        let who = link.who;
        if self.healed {
            return Ok(());
        }
        if self.rng.chance(50) {
            self.tell(|| format!("link {key} breaks at its client"));
            self.lose_link(key, "it broke");
            return self.settle(who);
        }
        self.tell(|| format!("link {key} breaks at its broker"));
        self.tell_end(key, "it broke");
        self.link_end(key)
    }

    /// What has come to the broker is there.
    fn comes_to_broker(&mut self, name: u64) -> Result<(), String> {
        let now_ms = self.now.mono_ms;
        let mut looks = false;
        while let Some(link) = self.links.get_mut(&name) {
            let Some(what) = links::take(&mut link.to_broker, now_ms) else { break };
            let Line::Shm(wire) = &link.line else { break };
            // One that is parked looks when it is notified.
            looks |= matches!(what, ToPeer::Notify) || !wire.is_parked(SimSide::Broker);
            wire.arrive(SimSide::Broker, what);
        }
        while let Some(link) = self.links.get_mut(&name).filter(|link| link.broker) {
            let Some((packet, since)) = links::take(&mut link.packets_to_broker, now_ms) else { break };
            looks = true;
            self.card_does(name, packet, since)?;
        }
        self.gives_up(name);
        if looks { self.broker_looks(name) } else { Ok(()) }
    }

    /// A client's card that has something under way to a broker that is not there any more hears nothing, and gives up.
    fn gives_up(&mut self, name: u64) {
        let Some(link) = self.links.get_mut(&name) else { return };
        if link.client && !link.broker && !link.deaf && !link.packets_to_broker.is_empty() {
            link.packets_to_broker.clear();
            link.deaf = true;
            let at = self.now.mono_ms + self.rng.between(0, DEAF_MS_MAX);
            self.at(at, Event::Link(name, LinkEvent::Deaf));
        }
    }

    /// The broker's card does what a client's has asked.
    fn card_does(&mut self, name: u64, packet: Packet, since: u64) -> Result<(), String> {
        let Some(link) = self.links.get_mut(&name) else { return Ok(()) };
        let honest = !link.lied;
        let Line::Verbs(cable) = &link.line else { return Ok(()) };
        let cable = cable.clone();
        let read = match &packet.kind {
            PacketKind::Read { key, at, into } => Some((*key, *at as u64, into.len)),
            _ => None,
        };
        if let Some((key, at, len)) = read
            && let Some(&(file, from)) = link.windows.get(&key)
            && let Some((source, growing)) = link.files.get_mut(&file)
        {
            let part = from + at..from + at + len as u64;
            source.follow(part.start, len)?;
            let _ = growing.grown();
            if honest && part.end > growing.committed {
                let committed = growing.committed;
                return Err(format!(
                    "a reader reads {part:?} of file {file}, of which {committed} bytes are committed"
                ));
            }
        }
        if let PacketKind::Message(bytes) = &packet.kind
            && let Some(LinkMessage::WantWindow { key, at }) = LinkMessage::decode(bytes)
            && self.rng.chance(SHORT)
        {
            let reach = at + self.rng.between(1, SHORT_BYTES_MAX);
            if let Some((file, _)) = self.links.get(&name).and_then(|link| link.files.get(&key)) {
                file.reach(reach);
            }
        }
        let story = format!("{:?}", packet.kind);
        self.tell(|| format!("link {name}: the broker's card does {story}"));
        let mut reply = match cable.deliver(packet) {
            Ok(Some(reply)) => reply,
            Ok(None) => return Ok(()),
            Err(why) if honest => return Err(format!("link {name}, {story}: {why}")),
            Err(_) => return self.client_looks(name),
        };
        if let Some((key, ..)) = read
            && let Some((_, bytes)) = &mut reply.read
            && self.links.get(&name).is_some_and(|link| link.slots_region == Some(key))
        {
            self.read_slots(name, bytes, since);
        }
        if self.links.get(&name).is_none_or(|link| link.deaf) {
            return Ok(());
        }
        let breaks = self.plan.direct.as_ref().map_or(0, |plan| plan.breaks);
        let fails = !self.healed && read.is_some() && self.rng.chance(breaks);
        let mut due = self.note_due();
        if fails {
            due += if self.rng.chance(50) { self.rng.between(0, DEAF_MS_MAX) } else { 0 };
            if let Some(link) = self.links.get_mut(&name) {
                link.deaf = true;
            }
            self.at(due, Event::Link(name, LinkEvent::Deaf));
            return Ok(());
        }
        let Some(link) = self.links.get_mut(&name) else { return Ok(()) };
        let due = links::put(&mut link.replies, due, reply);
        self.at(due, Event::Link(name, LinkEvent::ToClient));
        Ok(())
    }

    /// Slots as a card finds them: one may be written while it is read. And perhaps something that they do not say.
    fn read_slots(&mut self, name: u64, bytes: &mut [u8], since: u64) {
        let lies = self.lies();
        let Some(slots) = self.links.get(&name).and_then(|link| link.slots.as_ref()) else { return };
        let words = slots.read(bytes.len() / SLOT_BYTES, since, &mut self.rng);
        let mut put = |at: usize, word: u64| {
            if let Some(into) = bytes.get_mut(at..at + 8) {
                into.copy_from_slice(&word.to_le_bytes());
            }
        };
        for (slot, words) in words.iter().enumerate() {
            for (at, word) in words.iter().enumerate().take(SLOT_WORDS) {
                put(slot * SLOT_BYTES + at * 8, *word);
            }
        }
        let slot = self.rng.index(words.len());
        if lies && let Some(words) = words.get(slot) {
            let (at, word) = lie_of_slot(&mut self.rng, slot, words);
            put(at, word);
            self.lied(name, "of a slot");
        }
    }

    /// The broker's thread looks at a link.
    fn broker_looks(&mut self, name: u64) -> Result<(), String> {
        let now = self.now;
        loop {
            let Some(link) = self.links.get_mut(&name).filter(|link| link.broker) else { return Ok(()) };
            let Some(end) = &mut link.broker_end else { return Ok(()) };
            end.unpark();
            let came = end.poll(now, &mut self.server);
            match came {
                Ok(came) => {
                    self.after_broker()?;
                    if !came {
                        break;
                    }
                }
                Err(fault) => return self.broker_drops(name, &fault),
            }
        }
        if self.rng.chance(PARKS)
            && let Some(end) = self.links.get_mut(&name).and_then(|link| link.broker_end.as_mut())
        {
            end.notify_owed();
            // What is on its way is looked at when it comes.
            end.park().map_err(|fault| format!("link {name}: {fault}"))?;
        }
        self.carry(name)
    }
}
