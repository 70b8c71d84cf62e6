//! Links: how they come to be, what travels over them, and how they end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headrace_broker::{LinkAction, SLOTS_KEY};
use headrace_client::io::{self, DirectWrite, LinkId, LinkRequest};
use headrace_fabric::simulated::{Cable, PacketKind, SimSide, Wire};
use headrace_fabric::{Memory, SystemMemory};
use headrace_link::client::Chunks;
use headrace_log::MemoryFile;
use headrace_wire::direct::{SLOT_BYTES, Written};

use super::{Event, World};
use crate::client::Who;
use crate::links::{
    self, Control, Growing, Line, Link, Mirror, SimBrokerEnd, SimClientEnd, SimFile, Slots, Words,
};
use crate::plan::{DirectPlan, Place};
use crate::rng::Rng;

/// How long things take over a link when all is well.
const CALM_MS: u64 = 3;

/// What happens to a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkEvent {
    /// A client that makes it has come to the broker.
    Comes,
    /// The broker has connected its end of one over RDMA.
    Joined,
    /// Something has come over its socket.
    Control,
    /// Something has come otherwise.
    ToClient,
    ToBroker,
    /// The client's card has heard nothing for too long.
    Deaf,
    /// The broker learns that it has ended.
    End,
    /// It ends by itself.
    Fault,
}

/// What came of memory that the broker exposed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exposed {
    /// Links that stood.
    pub links: usize,
    /// Those that ended while their client lived.
    pub ended: usize,
    /// Rings that were exposed.
    pub rings: usize,
    /// Segments that were shown.
    pub files: usize,
    /// Memory that never came.
    pub withheld: usize,
    /// Batches that were written and told.
    pub writes: usize,
    /// Those that were never told, or not even written to their end.
    pub broken: usize,
    /// Those of all that the broker took.
    pub taken: usize,
    /// Times that a reader's slot changed.
    pub slots: usize,
    /// What clients were told that is not so.
    pub lies: usize,
    /// Rings that producers had to share.
    pub shared: usize,
    /// Turns that producers over RDMA were given.
    pub drawn: usize,
    /// Turns in shared rings that Byzantine peers were given.
    pub taken_by_byzantine: usize,
    /// Links that a client ended over that.
    pub given_up: usize,
    /// Links that the broker ended since their client lied.
    pub closed: usize,
    /// Producers that were gone at one blow.
    pub deaths: usize,
    /// Topics that were deleted.
    pub deleted: usize,
    /// Times that records were deleted.
    pub records_deleted: usize,
    /// Bytes of segments that consumers read in memory.
    pub read: usize,
    /// Parts of files that were shown to readers over RDMA, and refused.
    pub windows: usize,
    /// See [`Exposed::windows`].
    pub refused: usize,
    /// What engines have read of them, one after the other.
    pub reads: usize,
    /// Reads after which nothing came any more.
    pub failed: usize,
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
    fn exposing(&self) -> Result<&DirectPlan, String> {
        let plan = self.plan.direct.as_ref();
        plan.ok_or_else(|| "memory is exposed where headrace.datapath is tcp".to_owned())
    }

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

    // ---- what a client wants done

    pub(super) fn begin_link(
        &mut self,
        who: Who,
        id: LinkId,
        address: String,
        token: [u8; 16],
    ) -> Result<(), String> {
        let (unmade, far) = self.exposing().map(|plan| (plan.unmade, plan.is_far(who)))?;
        if far {
            let reason = "it is on another host".to_owned();
            self.link(who, id, io::LinkEvent::Closed { reason, lasting: true });
            return Ok(());
        }
        self.last_link += 1;
        let key = self.last_link;
        self.tell(|| format!("{who:?} makes link {key}"));
        self.links.insert(key, Link::new(who, id, token, address));
        self.wires(who).links.insert(id, key);
        if !self.healed && self.rng.chance(unmade) {
            self.tell_link(key, Control::Gone("it cannot be made"));
        } else {
            let at = self.control_due() + 1;
            self.at(at, Event::Link(key, LinkEvent::Comes));
        }
        Ok(())
    }

    /// A client wants a link over RDMA.
    pub(super) fn begin_verbs(&mut self, who: Who, id: LinkId) {
        if !self.plan.direct.as_ref().is_some_and(|plan| plan.card) {
            let why = "there is no device".to_owned();
            return self.link(who, id, io::LinkEvent::EndpointReady(Err(why)));
        }
        self.last_link += 1;
        let key = self.last_link;
        self.tell(|| format!("{who:?} makes end {key} of a link over RDMA"));
        let mut link = Link::new(who, id, [0; 16], String::new());
        link.verbs = true;
        link.since = self.wires(who).conns_ended;
        self.links.insert(key, link);
        self.wires(who).links.insert(id, key);
        self.link(who, id, io::LinkEvent::EndpointReady(Ok(key.to_le_bytes().to_vec())));
    }

    /// The broker connects an end of its own to a client's, which takes its time.
    fn joins(&mut self, offered: u64, hello: &[u8]) -> Result<(), String> {
        self.server.offer();
        let key = u64::from_le_bytes(hello.try_into().map_err(|_| "an end says what none says")?);
        self.joining.insert(offered, key);
        let at = self.control_due();
        self.at(at, Event::Link(offered, LinkEvent::Joined));
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
        let chunks = Chunks { bytes: self.rng.pick(&[700, 5000, 256 << 10]), count: 4 };
        link.client_end = Some(SimClientEnd::remote(client, Box::new(SystemMemory), chunks));
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

    pub(super) fn connect_verbs(&mut self, who: Who, id: LinkId, hello: &[u8]) {
        let key = hello.try_into().map_or(0, u64::from_le_bytes);
        if self.wires(who).links.get(&id) == Some(&key) {
            self.tell_link(key, Control::Linked);
        } else {
            let reason = "its other end has gone".to_owned();
            self.link(who, id, io::LinkEvent::Closed { reason, lasting: false });
        }
    }

    /// What an engine asks of a link that stands.
    pub(super) fn link_request(&mut self, who: Who, id: LinkId, request: LinkRequest) -> Result<(), String> {
        let Some(&name) = self.wires(who).links.get(&id) else { return Ok(()) };
        if let LinkRequest::Write(write) = request {
            return self.write_direct(who, name, write);
        }
        self.tell(|| format!("{who:?} asks over link {name}: {request:?}"));
        self.end_does(name, request)
    }

    fn end_does(&mut self, name: u64, request: LinkRequest) -> Result<(), String> {
        let now_us = self.now.mono_ms * 1000;
        let Some(link) = self.links.get_mut(&name) else { return Ok(()) };
        let Some(end) = &mut link.client_end else { return Ok(()) };
        match end.request(request, || now_us) {
            Ok(()) => self.carry(name),
            Err(fault) if link.lied => {
                self.lose_link(name, &fault.to_string());
                Ok(())
            }
            Err(fault) => Err(format!("an engine asks over link {name} for what cannot be: {fault}")),
        }
    }

    fn write_direct(&mut self, who: Who, name: u64, write: DirectWrite) -> Result<(), String> {
        let breaks = self.exposing()?.breaks;
        let breaks = !self.healed && self.rng.chance(breaks);
        self.digest(name ^ u64::from(write.notify.0) << 20);
        self.tell(|| {
            let written = Written::from_immediate(write.notify.0);
            format!("{who:?} writes {} bytes over link {name}, breaks: {breaks}: {written:?}", write.notify.1)
        });
        self.end_does(name, LinkRequest::Write(write))?;
        if !breaks {
            self.outcome.exposed.writes += 1;
            return Ok(());
        }
        // The client dies in the middle: of what it has sent last a part is not there, or is and was not told.
        let lost = self.rng.between(0, 2);
        let Some(link) = self.links.get_mut(&name) else { return Ok(()) };
        let reported = match (&mut link.packets_to_broker, &mut link.to_broker) {
            (packets, _) if !packets.is_empty() && lost > 0 => {
                if let Some((due, (mut packet, since))) = packets.pop_back()
                    && let PacketKind::Write { pieces, notify, .. } = &mut packet.kind
                    && lost == 1
                {
                    *notify = None;
                    packet.op = None;
                    for piece in pieces.iter_mut() {
                        piece.len = self.rng.index(piece.len + 1);
                    }
                    packets.push_back((due, (packet, since)));
                }
                false
            }
            (_, notes) if !notes.is_empty() && lost > 0 => {
                notes.pop_back();
                false
            }
            _ => true,
        };
        self.outcome.exposed.writes += usize::from(reported);
        self.outcome.exposed.broken += usize::from(!reported);
        self.lose_link(name, "it broke over a write");
        Ok(())
    }

    /// A client ends a link since its broker says what cannot be.
    pub(super) fn unlink(&mut self, who: Who, id: LinkId) -> Result<(), String> {
        let Some(key) = self.wires(who).links.remove(&id) else { return Ok(()) };
        self.tell(|| format!("{who:?} ends link {key}"));
        // One over RDMA ends with its connection, which is about to be closed or was; or before it was a link.
        if let Some(link) = self.links.get(&key).filter(|link| link.verbs && !link.lied) {
            if link.linked {
                self.ended_early.push((who, key, link.since));
            }
            self.end_link_at_client(key);
            return Ok(());
        }
        if !self.links.get(&key).is_some_and(|link| link.lied) {
            return Err(format!("{who:?} ends link {key}, over which nobody has lied"));
        }
        self.outcome.exposed.given_up += 1;
        self.end_link_at_client(key);
        Ok(())
    }

    /// A client has done what it wants: links over RDMA that it has ended have ended with a connection.
    pub(super) fn check_ended(&mut self, who: Who) -> Result<(), String> {
        let ended = self.wires(who).conns_ended;
        for (by, key, since) in std::mem::take(&mut self.ended_early) {
            if by == who && since == ended {
                return Err(format!("{who:?} ends link {key}, over which nobody has lied"));
            }
        }
        Ok(())
    }

    /// A client learns by itself that a link has ended.
    pub(super) fn lose_link(&mut self, key: u64, why: &str) {
        let Some(link) = self.links.get(&key).filter(|link| link.client) else { return };
        let (who, id) = (link.who, link.id);
        self.wires(who).links.remove(&id);
        self.outcome.exposed.ended += 1;
        self.end_link_at_client(key);
        self.link(who, id, io::LinkEvent::Closed { reason: why.to_owned(), lasting: false });
    }

    /// Nobody is at the client's end any more, of which the broker learns.
    pub(super) fn end_link_at_client(&mut self, key: u64) {
        let due = self.control_due();
        let Some(link) = self.links.get_mut(&key) else { return };
        link.client = false;
        link.client_end = None;
        self.at(due, Event::Link(key, LinkEvent::End));
    }

    // ---- what comes

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

    /// A client's card gives up.
    fn link_deaf(&mut self, name: u64) -> Result<(), String> {
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

    /// A link has ended at the broker. Over RDMA nobody tells its client so but the end of its connection.
    pub(super) fn tell_end(&mut self, key: u64, why: &'static str) {
        if self.links.get(&key).is_some_and(|link| !link.verbs) {
            self.tell_link(key, Control::Gone(why));
        }
    }

    /// The broker learns that a link has ended.
    pub(super) fn link_end(&mut self, key: u64) -> Result<(), String> {
        let Some(link) = self.links.get_mut(&key) else { return Ok(()) };
        let known = std::mem::take(&mut link.broker);
        link.broker_end = None;
        if !link.client {
            self.links.remove(&key);
        }
        if !known {
            return Ok(());
        }
        self.exposes.retain(|(of, _), _| *of != key);
        self.server.unlink(key);
        self.after_broker()
    }

    /// The broker is gone, and all its links with it.
    pub(super) fn end_links(&mut self) {
        for key in self.links.keys().copied().collect::<Vec<_>>() {
            if let Some(link) = self.links.get_mut(&key) {
                link.broker = false;
                link.broker_end = None;
            }
            self.tell_end(key, "its broker is gone");
        }
        self.joining.clear();
        self.exposes.clear();
    }

    /// A client takes what has come over a link's socket.
    fn link_control(&mut self, key: u64) -> Result<(), String> {
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

    // ---- what the broker wants done

    pub(super) fn expose(&mut self) -> Result<(), String> {
        if self.plan.direct.is_none() {
            return Ok(());
        }
        for mirror in self.links.values_mut().flat_map(|link| link.mirrors.values_mut()) {
            let torn = self.plan.direct.as_ref().map_or(0, |plan| plan.torn);
            let grown = mirror.follow().map_err(|why| why.to_string())?;
            if grown && self.rng.chance(torn) {
                mirror.tear(&mut self.rng).map_err(|why| why.to_string())?;
            }
        }
        let (mut nudged, mut shown) = (BTreeSet::new(), BTreeSet::new());
        while let Some(action) = self.server.poll_link_action() {
            if let LinkAction::Nudge { link } = &action {
                nudged.insert(link.0);
            }
            if let LinkAction::ExposeToRead { link, .. } | LinkAction::ExposeFile { link, .. } = &action {
                shown.insert(link.0);
            }
            self.act_on(action)?;
        }
        self.check_exposed()?;
        for key in self.links.keys().copied().collect::<Vec<_>>() {
            if let Some(end) = self.links.get_mut(&key).and_then(|link| link.broker_end.as_mut()) {
                end.notify_owed();
            }
            self.carry(key)?;
            self.send_slots(key, nudged.contains(&key), shown.contains(&key))?;
            self.carry(key)?;
        }
        Ok(())
    }

    fn act_on(&mut self, action: LinkAction<MemoryFile>) -> Result<(), String> {
        match action {
            LinkAction::ExposeToWrite { link, key, memory, shared } => {
                self.note_exposed(link.0, key, Some(memory.clone()));
                if self.rogue_is_exposed(link.0, key, &memory) {
                    return self
                        .rogue_act_on(link.0, LinkAction::ExposeToWrite { link, key, memory, shared });
                }
                self.outcome.exposed.rings += 1;
                self.act_over(link.0, LinkAction::ExposeToWrite { link, key, memory, shared })
            }
            LinkAction::ExposeToRead { link, key, memory } => {
                if let Some(owner) = self.links.get_mut(&link.0) {
                    if key == SLOTS_KEY {
                        let (slots, copy) = Slots::new(memory.clone())?;
                        owner.slots = Some(slots);
                        // Over shared memory its reader sees a copy that follows.
                        let memory = if owner.verbs { memory } else { copy };
                        return self.act_over(link.0, LinkAction::ExposeToRead { link, key, memory });
                    }
                    // How far a shared ring was read.
                    self.outcome.exposed.shared += 1;
                }
                self.act_over(link.0, LinkAction::ExposeToRead { link, key, memory })
            }
            LinkAction::ExposeFile { link, key, file, bytes } => self.expose_file(link, key, file, bytes),
            LinkAction::End { link, key } => {
                self.exposes.remove(&(link.0, key));
                if let Some(owner) = self.links.get_mut(&link.0) {
                    owner.mirrors.remove(&key);
                }
                self.server.forget_window(link.0, key);
                self.act_over(link.0, LinkAction::End { link, key })
            }
            LinkAction::Acknowledge { link, note } => {
                self.act_over(link.0, LinkAction::Acknowledge { link, note })
            }
            LinkAction::Nudge { link } => self.act_over(link.0, LinkAction::Nudge { link }),
            LinkAction::Join { link, hello } => self.joins(link.0, &hello),
            LinkAction::Carry { .. } => Err("the broker carries a connection over verbs".to_owned()),
            LinkAction::Close { link, why } => {
                self.exposes.retain(|(of, _), _| *of != link.0);
                self.server.forget_windows(link.0);
                if self.rogue_is_closed(link.0) {
                    self.outcome.exposed.closed += 1;
                    return Ok(());
                }
                let Some(owner) = self.links.get_mut(&link.0) else { return Ok(()) };
                owner.broker = false;
                owner.broker_end = None;
                let left = !owner.client;
                self.tell(|| format!("the broker closes link {}: {why}", link.0));
                if !left && why != "its connection has ended" {
                    return Err(format!("the broker ends the link of an honest client: {why}"));
                }
                self.tell_end(link.0, "the broker has ended it");
                Ok(())
            }
        }
    }

    fn expose_file(
        &mut self,
        link: headrace_broker::LinkId,
        key: u64,
        file: MemoryFile,
        bytes: u64,
    ) -> Result<(), String> {
        self.note_exposed(link.0, key, None);
        if bytes == 0 {
            return Err("the broker exposes a file of which there is nothing to be mapped".to_owned());
        }
        let unregistered = self.exposing()?.unregistered;
        let unmapped = self.rng.chance(unregistered);
        let Some(owner) = self.links.get_mut(&link.0) else {
            let file = SimFile::new(file, None, true);
            return self.rogue_act_on(link.0, LinkAction::ExposeFile { link, key, file, bytes });
        };
        self.outcome.exposed.files += 1;
        let file = if owner.verbs {
            let exposed = SimFile::new(file.clone(), None, unmapped);
            owner.files.insert(key, (exposed.clone(), Growing::new(file)));
            exposed
        } else {
            let (mirror, reader) = Mirror::new(file.clone()).map_err(|why| why.to_string())?;
            owner.mirrors.insert(key, mirror);
            SimFile::new(file, Some(reader), false)
        };
        self.act_over(link.0, LinkAction::ExposeFile { link, key, file, bytes })
    }

    /// Something is exposed, unless its link has ended meanwhile.
    fn note_exposed(&mut self, link: u64, key: u64, memory: Option<Arc<Memory>>) {
        if self.links.get(&link).is_some_and(|link| link.broker) || self.is_rogues(link) {
            self.exposes.insert((link, key), memory);
        }
    }

    /// The broker's end of a link does what the broker wants.
    fn act_over(&mut self, name: u64, action: LinkAction<SimFile>) -> Result<(), String> {
        let Some(end) = self.links.get_mut(&name).and_then(|link| link.broker_end.as_mut()) else {
            return self.rogue_act_on(name, action);
        };
        match end.act(action, &mut self.server) {
            Ok(()) => Ok(()),
            Err(fault) => self.broker_drops(name, &fault),
        }
    }

    pub(super) fn lied(&mut self, key: u64, of: &str) {
        self.outcome.exposed.lies += 1;
        self.tell(|| format!("link {key} lies {of}"));
        if let Some(link) = self.links.get_mut(&key) {
            link.lied = true;
        }
    }

    /// What clients can make the broker expose has a limit.
    fn check_exposed(&self) -> Result<(), String> {
        let setting = |name: &str| self.server.setting(name).and_then(|text| text.parse::<u64>().ok());
        // Those who share a ring have one between them, with a line more for its order word.
        let rings: BTreeMap<_, _> = self
            .exposes
            .values()
            .flatten()
            .map(|memory| (Arc::as_ptr(memory), memory.len() as u64))
            .collect();
        let rings = rings.values().sum::<u64>().saturating_sub(64 * rings.len() as u64);
        let bytes = rings + self.server.window_bytes();
        if setting("headrace.direct.memory.bytes").is_some_and(|max| bytes > max) {
            return Err(format!("{bytes} bytes are exposed, which is more than may be"));
        }
        let grants = self.exposes.len() as u64;
        if setting("headrace.direct.grants.max").is_some_and(|max| grants > max) {
            return Err(format!("there are {grants} grants, which is more than may be"));
        }
        Ok(())
    }

    /// All have gone, and have given back what they had.
    pub(crate) fn check_given_back(&self) -> Result<(), String> {
        let links: Vec<u64> =
            self.links.iter().filter(|(_, link)| link.broker).map(|(key, _)| *key).collect();
        if self.exposes.is_empty() && links.is_empty() {
            return Ok(());
        }
        let exposes: Vec<_> = self.exposes.keys().collect();
        Err(format!("all have gone, and there are links {links:?}, and exposed (link and key): {exposes:?}"))
    }

    // ---- producers that die

    pub(super) fn plan_direct(&mut self) {
        let Some(plan) = self.plan.direct.clone() else { return };
        for (producer, at, reported) in plan.deaths {
            self.at(at, Event::ProducerGoes(producer, reported));
        }
        if let Some((topic, at)) = plan.doomed {
            self.at(at, Event::Delete(topic));
        }
        for (at, place, percent) in plan.deletes {
            self.at(at, Event::DeleteRecords(place, percent));
        }
        self.plan_rogues();
    }

    /// What is deleted of a segment that somebody reads in memory may still be read there.
    pub(super) fn delete_records(&mut self, place: Place, percent: i64) -> Result<(), String> {
        let end = self.server.end_of(place, self.now)?;
        let before = self.ledger.deleted(place).max(end * percent / 100);
        if end == 0 || before == 0 || !self.server.is_up() {
            return Ok(());
        }
        self.tell(|| format!("records of {place:?} before {before} of {end} are deleted"));
        self.outcome.exposed.records_deleted += 1;
        self.server.delete_records(place, before, self.now)?;
        self.ledger.deleted.insert(place, before);
        self.after_broker()
    }

    pub(super) fn producer_goes(&mut self, number: usize, reported: bool) -> Result<(), String> {
        if self.healed || self.producers[number].closed {
            return Ok(());
        }
        self.tell(|| format!("producer {number} is gone at one blow"));
        self.outcome.exposed.deaths += 1;
        self.producers[number].gone = true;
        self.vanish(Who::Producer(number), reported);
        self.after_broker()
    }

    pub(super) fn delete(&mut self, topic: usize) -> Result<(), String> {
        if !self.server.is_up() {
            self.at(self.now.mono_ms + 50, Event::Delete(topic));
            return Ok(());
        }
        self.tell(|| format!("topic {topic} is deleted"));
        self.outcome.exposed.deleted += 1;
        self.server.delete_topic(topic, self.now)?;
        self.after_broker()
    }
}
