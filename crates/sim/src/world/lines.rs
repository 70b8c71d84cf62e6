//! What is on its way between the two ends of a link: when it arrives, whether at all, and who looks then.
//!
//! Nobody looks at what has come unless its side polls, or was notified by the shipped code, or a card wakes it.

use headrace_broker::SLOTS_KEY;
use headrace_client::io::{self, Input};
use headrace_fabric::FabricError;
use headrace_fabric::simulated::{Packet, PacketKind, SimControl, SimSide, ToPeer};
use headrace_link::LinkFault;
use headrace_link::parking::BeforeSleep;
use headrace_wire::direct::{SLOT_BYTES, SLOT_WORDS, WriteAck};
use headrace_wire::errors::ErrorCode;
use headrace_wire::link_message::LinkMessage;

use super::links::{LinkEvent, lie_of_slot};
use super::{Event, World};
use crate::client::Who;
use crate::links::{self, Control, Line, Words};

/// A card that hears nothing any more gives up by so long after.
const DEAF_MS_MAX: u64 = 4000;
/// Of parts of a file that are asked for: how many reach no further than a few KiB, as if the file did not.
const SHORT: u64 = 60;
const SHORT_BYTES_MAX: u64 = 8 << 10;
/// Of threads that have looked: how many look again soon, and how soon.
const LOOKS_ON: u64 = 40;
const LOOKS_ON_MS: u64 = 5;
/// Of threads that have found something: how often nobody waits for it.
const PATIENT: u64 = 30;
/// Of broker's threads that have looked at a link: how many park.
const PARKS: u64 = 50;

/// What becomes of an answer to a write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Comes,
    Doubled,
    Swapped,
}

impl World {
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

    // ---- at the broker

    /// What has come to the broker is there.
    pub(super) fn comes_to_broker(&mut self, name: u64) -> Result<(), String> {
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
    pub(super) fn broker_looks(&mut self, name: u64) -> Result<(), String> {
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

    /// The broker's end of a link has failed: it is given up.
    pub(super) fn broker_drops(&mut self, name: u64, fault: &LinkFault) -> Result<(), String> {
        self.tell(|| format!("the broker's end of link {name} fails: {fault}"));
        let Some(link) = self.links.get(&name) else { return Ok(()) };
        let gone = matches!(fault, LinkFault::Remote(FabricError::Gone));
        if link.client && !link.lied && !gone {
            return Err(format!("the broker ends link {name}, whose client is honest: {fault}"));
        }
        self.tell_end(name, "its broker has given it up");
        self.link_end(name)
    }

    // ---- at the client

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
    pub(super) fn rest(&mut self, who: Who) -> Result<(), String> {
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
