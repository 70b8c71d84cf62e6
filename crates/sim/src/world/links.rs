//! Links: how they come to be, what travels over them, and how they end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use headrace_broker::{LinkAction, SLOTS_KEY};
use headrace_client::io::{self, DirectWrite, Input, LinkId};
use headrace_fabric::{Memory, Note, Region};
use headrace_log::MemoryFile;
use headrace_wire::direct::{Drawn, SLOT_BYTES, WriteAck, Written};
use headrace_wire::errors::ErrorCode;

use super::{Event, World};
use crate::card::Asked;
use crate::client::Who;
use crate::links::{self, Control, Draw, Link, Mirror, Slots, Words};
use crate::plan::{DirectPlan, Place};
use crate::rng::Rng;

/// Of nudges: how often a client looks before it is woken.
const EARLY: u64 = 30;
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
    /// Notes have come.
    ToClient,
    ToBroker,
    /// The broker learns that it has ended.
    End,
    /// It ends by itself.
    Fault,
    /// The broker's card adds to order words, and tells what they were.
    Draws,
    Drew,
    /// The broker's side does what a reader over RDMA has asked, and that one learns what came of it.
    Asks,
    Done,
}

/// What came of memory that the broker lent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lent {
    /// Links that stood.
    pub links: usize,
    /// Those that ended while their client lived.
    pub ended: usize,
    /// Rings that were lent.
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
    /// Turns in shared rings that liars were given.
    pub taken_by_liars: usize,
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
    /// See [`Lent::windows`].
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
    fn lending(&self) -> Result<&DirectPlan, String> {
        let plan = self.plan.direct.as_ref();
        plan.ok_or_else(|| "memory is lent where headrace.datapath is tcp".to_owned())
    }

    /// When a note is seen that is sent now.
    pub(super) fn note_due(&mut self) -> u64 {
        let (max, burst) = match &self.plan.direct {
            Some(plan) if !self.healed => (plan.note_ms_max, plan.burst_ms.max(1)),
            _ => (CALM_MS, 1),
        };
        (self.now.mono_ms + self.rng.between(0, max)).next_multiple_of(burst)
    }

    fn control_due(&mut self) -> u64 {
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
            LinkEvent::ToClient => self.notes_to_client(link),
            LinkEvent::ToBroker => self.notes_to_broker(link),
            LinkEvent::End => self.link_end(link),
            LinkEvent::Fault => self.link_fault(link),
            LinkEvent::Draws => self.draws(link),
            LinkEvent::Drew => self.drew(link),
            LinkEvent::Asks => self.card_does(link),
            LinkEvent::Done => self.card_tells(link),
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
        let (unmade, far) = self.lending().map(|plan| (plan.unmade, plan.is_far(who)))?;
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
        let unmade = self.lending()?.unmade;
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
        self.tell(|| format!("end {key} is joined to link {offered}"));
        self.links.insert(offered, link);
        self.wires(who).links.insert(id, offered);
        self.outcome.lent.links += 1;
        let (ends, max) = self.lending().map(|plan| (plan.ends, plan.link_ms_max))?;
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

    /// A producer asks for a turn.
    pub(super) fn draw(
        &mut self,
        who: Who,
        link: LinkId,
        (key, at, add): (u64, usize, u64),
    ) -> Result<(), String> {
        let Some(&name) = self.wires(who).links.get(&link) else { return Ok(()) };
        let due = self.note_due();
        let Some(link) = self.links.get_mut(&name) else { return Ok(()) };
        let Some(region) = link.lent.get(&key).cloned() else {
            return Err(format!("{who:?} asks for a turn in memory that it has not: {key}"));
        };
        let due = links::put(&mut link.draws, due, Draw { key, region, at, add });
        self.at(due, Event::Link(name, LinkEvent::Draws));
        Ok(())
    }

    /// The broker's card adds, also for those who have gone since.
    fn draws(&mut self, name: u64) -> Result<(), String> {
        let now = self.now;
        while let Some(link) = self.links.get_mut(&name) {
            let Some(Draw { key, region, at, add }) = links::take(&mut link.draws, now.mono_ms) else {
                break;
            };
            let word = region.word(at).map_err(|why| why.to_string())?.fetch_add(add, Ordering::AcqRel);
            let due = self.note_due();
            self.tell(|| format!("link {name} draws {:?}", Drawn::from_word(word)));
            let Some(link) = self.links.get_mut(&name) else { break };
            let due = links::put(&mut link.drew, due, (key, word));
            self.at(due, Event::Link(name, LinkEvent::Drew));
        }
        Ok(())
    }

    /// A producer is told its turns.
    fn drew(&mut self, name: u64) -> Result<(), String> {
        let now = self.now;
        while let Some(link) = self.links.get_mut(&name).filter(|link| link.client) {
            let (who, id) = (link.who, link.id);
            let Some((key, word)) = links::take(&mut link.drew, now.mono_ms) else { break };
            self.outcome.lent.drawn += 1;
            self.link(who, id, io::LinkEvent::FetchAdded { key, word });
            self.look(who)?;
        }
        Ok(())
    }

    pub(super) fn write_direct(&mut self, who: Who, link: LinkId, write: &DirectWrite) -> Result<(), String> {
        let breaks = self.lending()?.breaks;
        let Some(&key) = self.wires(who).links.get(&link) else { return Ok(()) };
        let Some(region) = self.links.get(&key).and_then(|link| link.lent.get(&write.key)).cloned() else {
            return Err(format!("{who:?} writes into memory that it has not: {}", write.key));
        };
        let breaks = !self.healed && self.rng.chance(breaks);
        // As many pieces, and the word that they are there.
        let done = if breaks { self.rng.index(write.pieces.len() + 2) } else { usize::MAX };
        for (at, piece) in write.pieces.iter().take(done) {
            let at = usize::try_from(*at).unwrap_or(usize::MAX);
            region.write(at, piece).map_err(|why| format!("{who:?} writes where it has nothing: {why}"))?;
        }
        let told = done > write.pieces.len();
        if told {
            self.outcome.lent.writes += 1;
            let (immediate, bytes) = write.notify;
            let due = self.note_due();
            if let Some(link) = self.links.get_mut(&key) {
                let note = [u64::from(immediate), u64::from(bytes), 0, 0];
                let due = links::put(&mut link.to_broker, due, note);
                self.at(due, Event::Link(key, LinkEvent::ToBroker));
            }
        }
        self.digest(key ^ u64::from(write.notify.0) << 20);
        if breaks {
            self.outcome.lent.broken += usize::from(!told);
            self.tell(|| {
                let pieces = write.pieces.len();
                format!("link {key} breaks after {} of {pieces} pieces, told: {told}", done.min(pieces))
            });
            self.lose_link(key, "it broke over a write");
        } else {
            self.tell(|| {
                format!(
                    "{who:?} writes {} bytes over link {key}: {:?}",
                    write.notify.1,
                    Written::from_immediate(write.notify.0)
                )
            });
        }
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
        self.outcome.lent.given_up += 1;
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
        self.outcome.lent.ended += 1;
        self.end_link_at_client(key);
        self.link(who, id, io::LinkEvent::Closed { reason: why.to_owned(), lasting: false });
    }

    /// Nobody is at the client's end any more, of which the broker learns.
    pub(super) fn end_link_at_client(&mut self, key: u64) {
        let due = self.control_due();
        let Some(link) = self.links.get_mut(&key) else { return };
        link.client = false;
        link.lent.clear();
        self.at(due, Event::Link(key, LinkEvent::End));
    }

    // ---- what comes

    /// A client that makes a link has come to the broker.
    fn linking(&mut self, key: u64) -> Result<(), String> {
        let (ends, max) = self.lending().map(|plan| (plan.ends, plan.link_ms_max))?;
        let Some(link) = self.links.get_mut(&key).filter(|link| link.client) else { return Ok(()) };
        if !self.server.link(key, &link.address, link.token) {
            self.tell(|| format!("link {key} is refused"));
            self.tell_link(key, Control::Gone("the broker does not know it"));
            return Ok(());
        }
        link.broker = true;
        self.tell(|| format!("link {key} stands"));
        self.outcome.lent.links += 1;
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

    /// A link has ended at the broker. Over RDMA nobody tells its client so but the end of its connection.
    fn tell_end(&mut self, key: u64, why: &'static str) {
        if self.links.get(&key).is_some_and(|link| !link.verbs) {
            self.tell_link(key, Control::Gone(why));
        }
    }

    /// The broker learns that a link has ended.
    fn link_end(&mut self, key: u64) -> Result<(), String> {
        let Some(link) = self.links.get_mut(&key) else { return Ok(()) };
        let known = std::mem::take(&mut link.broker);
        if !link.client {
            self.links.remove(&key);
        }
        if !known {
            return Ok(());
        }
        self.lends.retain(|(of, _), _| *of != key);
        self.server.unlink(key);
        self.after_broker()
    }

    /// The broker is gone, and all its links with it.
    pub(super) fn end_links(&mut self) {
        for key in self.links.keys().copied().collect::<Vec<_>>() {
            if let Some(link) = self.links.get_mut(&key) {
                link.broker = false;
            }
            self.tell_end(key, "its broker is gone");
        }
        self.joining.clear();
        self.lends.clear();
    }

    /// A client takes what has come over a link's socket.
    fn link_control(&mut self, key: u64) -> Result<(), String> {
        let now = self.now;
        while let Some(link) = self.links.get_mut(&key).filter(|link| link.client) {
            let (who, id) = (link.who, link.id);
            let Some(control) = links::take(&mut link.control, now.mono_ms) else { break };
            match control {
                Control::Linked => {
                    link.linked = true;
                    self.link(who, id, io::LinkEvent::Connected);
                }
                Control::Lent(name, memory) => {
                    link.lent.insert(name, Region::whole(memory.clone()));
                    self.link(who, id, io::LinkEvent::Exposed { key: name, memory });
                }
                Control::File(name, file, bytes) => {
                    let file = links::map(file, bytes)?;
                    self.link(who, id, io::LinkEvent::FileExposed { key: name, file });
                }
                Control::Ended(name) => {
                    link.lent.remove(&name);
                    let verbs = link.verbs;
                    link.card.forget(name);
                    if verbs {
                        self.card_sends(key, Asked::Freed { key: name });
                    }
                    self.link(who, id, io::LinkEvent::Revoked { key: name });
                }
                Control::Refused(name) => {
                    link.card.forget(name);
                    let why = "it cannot be registered".to_owned();
                    self.link(who, id, io::LinkEvent::Unreachable { key: name, why });
                }
                Control::Window(name, part) => link.card.shows(name, part),
                Control::Nudge => link.card.nudged(),
                Control::Gone(why) => {
                    self.tell(|| format!("{who:?} learns that link {key} has ended: {why}"));
                    self.lose_link(key, why);
                }
            }
            self.settle(who)?;
            self.card_asks(key);
        }
        Ok(())
    }

    /// A client takes the notes that are there, and looks.
    fn notes_to_client(&mut self, key: u64) -> Result<(), String> {
        let now = self.now;
        let Some(link) = self.links.get_mut(&key).filter(|link| link.client) else { return Ok(()) };
        let (who, id) = (link.who, link.id);
        let mut notes = Vec::new();
        while let Some(note) = links::take(&mut link.to_client, now.mono_ms) {
            notes.push(note);
        }
        for note in notes {
            self.tell(|| format!("{who:?} is told over link {key}: {:?}", WriteAck::from_note(note)));
            self.link(who, id, io::LinkEvent::Note(note));
        }
        self.look(who)
    }

    pub(super) fn look(&mut self, who: Who) -> Result<(), String> {
        if !self.lives(who) {
            return Ok(());
        }
        let now = self.now;
        for key in self.wires(who).links.values().copied().collect::<Vec<_>>() {
            if let Some(slots) = self.links.get_mut(&key).and_then(|link| link.slots.as_mut()) {
                slots.arrive(now.mono_ms)?;
            }
        }
        self.input(who, Input::PollMemory);
        self.settle(who)
    }

    /// The broker takes the notes that are there.
    fn notes_to_broker(&mut self, key: u64) -> Result<(), String> {
        let now = self.now;
        while let Some(link) = self.links.get_mut(&key) {
            let Some(note) = links::take(&mut link.to_broker, now.mono_ms) else { break };
            if link.broker {
                self.server.note(now, key, note);
            }
        }
        self.after_broker()
    }

    // ---- what the broker wants done

    pub(super) fn lend(&mut self) -> Result<(), String> {
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
                self.server.nudged(*link);
                nudged.insert(link.0);
            }
            if let LinkAction::Show { link, .. } | LinkAction::ShowFile { link, .. } = &action {
                shown.insert(link.0);
            }
            self.lend_one(action)?;
        }
        self.check_lent()?;
        for key in self.links.keys().copied().collect::<Vec<_>>() {
            self.send_slots(key, nudged.contains(&key), shown.contains(&key))?;
        }
        Ok(())
    }

    fn lend_one(&mut self, action: LinkAction<MemoryFile>) -> Result<(), String> {
        let (withheld, unregistered) = self.lending().map(|plan| (plan.withheld, plan.unregistered))?;
        let withholds = self.rng.chance(withheld);
        match action {
            LinkAction::Lend { link, key, memory, .. } => {
                self.lends.insert((link.0, key), Some(memory.clone()));
                if self.rogue_is_lent(link.0, key, &memory) {
                    return Ok(());
                }
                self.outcome.lent.rings += 1;
                self.hand(link.0, Control::Lent(key, memory), withholds);
            }
            // How far a shared ring was read.
            LinkAction::Show { link, key, memory } if key != SLOTS_KEY => {
                self.outcome.lent.shared += 1;
                self.hand(link.0, Control::Lent(key, memory), withholds);
            }
            LinkAction::Show { link, key, memory } => {
                let Some(owner) = self.links.get_mut(&link.0) else { return Ok(()) };
                let (slots, copy) = Slots::new(memory)?;
                owner.slots = Some(slots);
                self.hand(link.0, Control::Lent(key, copy), withholds);
            }
            LinkAction::ShowFile { link, key, file, bytes } => {
                self.lends.insert((link.0, key), None);
                let Some(owner) = self.links.get_mut(&link.0) else { return Ok(()) };
                let bytes = usize::try_from(bytes).unwrap_or(0);
                if bytes == 0 {
                    return Err("the broker shows a file of which there is nothing to be mapped".to_owned());
                }
                if owner.verbs {
                    self.outcome.lent.files += 1;
                    if self.rng.chance(unregistered) {
                        self.outcome.lent.refused += 1;
                        self.tell_link(link.0, Control::Refused(key));
                        self.server.not_lent(link.0, key);
                    } else {
                        owner.card.show(key, file);
                    }
                    return Ok(());
                }
                let (mirror, reader) = Mirror::new(file).map_err(|why| why.to_string())?;
                owner.mirrors.insert(key, mirror);
                self.outcome.lent.files += 1;
                self.hand(link.0, Control::File(key, reader, bytes), withholds);
            }
            LinkAction::End { link, key } => {
                self.lends.remove(&(link.0, key));
                if let Some(owner) = self.links.get_mut(&link.0) {
                    owner.mirrors.remove(&key);
                    if let Some(shown) = owner.card.shown.get_mut(&key) {
                        shown.ended = true;
                    }
                }
                self.tell_link(link.0, Control::Ended(key));
            }
            LinkAction::Tell { link, note } => self.tell_note(link.0, note)?,
            LinkAction::Nudge { .. } => {}
            LinkAction::Join { link, hello } => self.joins(link.0, &hello)?,
            LinkAction::Carry { .. } => return Err("the broker carries a connection over verbs".to_owned()),
            LinkAction::Close { link, why } => {
                self.lends.retain(|(of, _), _| *of != link.0);
                if self.rogue_is_closed(link.0) {
                    self.outcome.lent.closed += 1;
                    return Ok(());
                }
                let Some(owner) = self.links.get_mut(&link.0) else { return Ok(()) };
                owner.broker = false;
                let left = !owner.client;
                self.tell(|| format!("the broker closes link {}: {why}", link.0));
                if !left && why != "its connection has ended" {
                    return Err(format!("the broker ends the link of an honest client: {why}"));
                }
                self.tell_end(link.0, "the broker has ended it");
            }
        }
        Ok(())
    }

    /// Hands memory to a client, or not; and perhaps something that it was not granted, or less.
    fn hand(&mut self, key: u64, control: Control, withholds: bool) {
        let name = match &control {
            Control::Lent(name, _) | Control::File(name, ..) => *name,
            _ => 0,
        };
        if withholds {
            self.outcome.lent.withheld += 1;
            self.tell(|| format!("memory {name} of link {key} never comes"));
            return;
        }
        self.tell_link(key, control);
        if self.lies() {
            self.lied(key, "of memory");
            if self.rng.chance(50) {
                self.tell_link(key, Control::Ended(name));
            } else if let Ok(memory) = Memory::sealed("sim-lie", 4096) {
                self.tell_link(key, Control::Lent(name + 1000, memory));
            }
        }
    }

    pub(super) fn lied(&mut self, key: u64, of: &str) {
        self.outcome.lent.lies += 1;
        self.tell(|| format!("link {key} lies {of}"));
        if let Some(link) = self.links.get_mut(&key) {
            link.lied = true;
        }
    }

    fn tell_note(&mut self, key: u64, note: Note) -> Result<(), String> {
        let mut ack = WriteAck::from_note(note);
        let spoilt = [ErrorCode::CORRUPT_MESSAGE, ErrorCode::INVALID_RECORD];
        if !self.links.contains_key(&key) {
            // A liar's own.
            return Ok(());
        }
        if spoilt.contains(&ErrorCode::from(ack.error_code)) && !self.rogues_share() {
            return Err(format!(
                "the broker has read something else than was written over link {key}: {ack:?}"
            ));
        }
        self.outcome.lent.taken += usize::from(ack.error_code == 0);
        let (mut doubled, mut swapped) = (false, false);
        if self.lies() {
            self.lied(key, "of a write");
            match self.rng.between(0, 3) {
                0 => ack.written.id ^= 0x8000,
                1 => ack.written.order = ack.written.order.wrapping_add(1),
                2 => doubled = true,
                _ => swapped = true,
            }
        }
        for _ in 0..=usize::from(doubled) {
            let due = self.note_due();
            let Some(link) = self.links.get_mut(&key) else { return Ok(()) };
            let due = links::put(&mut link.to_client, due, ack.to_note());
            if let [.., (_, before), (_, last)] = link.to_client.make_contiguous()
                && swapped
            {
                std::mem::swap(before, last);
            }
            self.at(due, Event::Link(key, LinkEvent::ToClient));
        }
        Ok(())
    }

    /// What has changed in a link's slots is on its way to their reader, who is woken.
    fn send_slots(&mut self, key: u64, nudged: bool, shown: bool) -> Result<(), String> {
        let Some(link) = self.links.get_mut(&key) else { return Ok(()) };
        let (who, verbs) = (link.who, link.verbs);
        let Some(slots) = &mut link.slots else { return Ok(()) };
        let changed = slots.changed()?;
        if changed.is_empty() && !nudged {
            return Ok(());
        }
        if link.broker && !nudged && changed.iter().any(|(_, [.., id])| *id != 0) {
            return Err(format!("slots of link {key} have changed, and nobody is woken"));
        }
        self.outcome.lent.slots += changed.len();
        if verbs {
            if nudged && link.card.nudge() {
                self.tell_link(key, Control::Nudge);
            }
            return Ok(());
        }
        let mut last = self.now.mono_ms;
        for (slot, words) in changed {
            // What was written before something was said is there when that is heard.
            let dues = if shown { [self.now.mono_ms; 4] } else { [(); 4].map(|()| self.note_due()) };
            let mut dues = dues.into_iter();
            let lies = !shown && self.lies();
            let lie = lies.then(|| (lie_of_slot(&mut self.rng, slot, &words), self.note_due()));
            let Some(slots) = self.links.get_mut(&key).and_then(|link| link.slots.as_mut()) else { break };
            if shown {
                slots.arrive(u64::MAX)?;
            }
            last = slots.send(slot, words, || dues.next().unwrap_or(0)).max(last);
            if let Some(((at, word), due)) = lie {
                last = slots.lie(due, at, word).max(last);
                self.lied(key, "of a slot");
            }
            if let Some(slots) = self.links.get_mut(&key).and_then(|link| link.slots.as_mut())
                && shown
            {
                slots.arrive(self.now.mono_ms)?;
            }
        }
        if nudged {
            if self.rng.chance(EARLY) {
                let early = self.rng.between(self.now.mono_ms, last);
                self.at(early, Event::Look(who));
            }
            self.at(last, Event::Look(who));
        }
        Ok(())
    }

    /// What clients can make the broker lend has a limit.
    fn check_lent(&self) -> Result<(), String> {
        let setting = |name: &str| self.server.setting(name).and_then(|text| text.parse::<u64>().ok());
        // Those who share a ring have one between them, with a line more for its order word.
        let rings: BTreeMap<_, _> =
            self.lends.values().flatten().map(|memory| (Arc::as_ptr(memory), memory.len() as u64)).collect();
        let rings = rings.values().sum::<u64>().saturating_sub(64 * rings.len() as u64);
        let bytes = rings
            + self.links.values().filter(|link| link.broker).map(|link| link.card.registered()).sum::<u64>();
        if setting("headrace.direct.memory.bytes").is_some_and(|max| bytes > max) {
            return Err(format!("{bytes} bytes are lent, which is more than may be"));
        }
        let grants = self.lends.len() as u64;
        if setting("headrace.direct.grants.max").is_some_and(|max| grants > max) {
            return Err(format!("there are {grants} grants, which is more than may be"));
        }
        Ok(())
    }

    /// All have gone, and have given back what they had.
    pub(crate) fn check_given_back(&self) -> Result<(), String> {
        let links: Vec<u64> =
            self.links.iter().filter(|(_, link)| link.broker).map(|(key, _)| *key).collect();
        if self.lends.is_empty() && links.is_empty() {
            return Ok(());
        }
        let lends: Vec<_> = self.lends.keys().collect();
        Err(format!("all have gone, and there are links {links:?}, and lent (link and key): {lends:?}"))
    }

    // ---- producers that die

    pub(super) fn plan_direct(&mut self) {
        let Some(plan) = self.plan.direct.clone() else { return };
        for (producer, at, told) in plan.deaths {
            self.at(at, Event::ProducerGoes(producer, told));
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
        self.outcome.lent.records_deleted += 1;
        self.server.delete_records(place, before, self.now)?;
        self.ledger.deleted.insert(place, before);
        self.after_broker()
    }

    pub(super) fn producer_goes(&mut self, number: usize, told: bool) -> Result<(), String> {
        if self.healed || self.producers[number].closed {
            return Ok(());
        }
        self.tell(|| format!("producer {number} is gone at one blow"));
        self.outcome.lent.deaths += 1;
        self.producers[number].gone = true;
        self.vanish(Who::Producer(number), told);
        self.after_broker()
    }

    pub(super) fn delete(&mut self, topic: usize) -> Result<(), String> {
        if !self.server.is_up() {
            self.at(self.now.mono_ms + 50, Event::Delete(topic));
            return Ok(());
        }
        self.tell(|| format!("topic {topic} is deleted"));
        self.outcome.lent.deleted += 1;
        self.server.delete_topic(topic, self.now)?;
        self.after_broker()
    }
}
