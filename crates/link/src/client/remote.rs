//! Over memory that is reached by operations.
//!
//! A batch is copied into a mirror of its ring, which the card reads, and written from there to the same place in the ring:
//! what the broker has not answered is overwritten in neither. Slots are read into a copy that the engine looks at, one read
//! at a time. A file is read through a window of it that the broker has registered; the next window is asked for when nothing
//! is read through the last one any more, since that one is void then.

use std::collections::{HashMap, VecDeque};

use headrace_client::io::{DirectWrite, LinkEvent, LinkRequest};
use headrace_fabric::{
    Access, Descriptor, Endpoint, Event, FabricError, Local, MemorySource, Piece, Region, Remote,
};
use headrace_wire::link_message::{LinkMessage, RegionDescriptor};

use super::RemoteLimits;
use crate::fault::lie;

/// Slots are read again no sooner than after this.
const SLOTS_EVERY_US: u64 = 20;
/// Taken from the card at once.
const EVENTS: usize = 64;
/// Events handed on before the other links get their turn.
const EVENTS_PER_TURN: usize = 256;
/// What waits for room, before the broker counts as dead.
const UNSENT_MAX: usize = 1 << 16;

/// Memory that the broker has exposed, with what is written to it from, or read of it into.
#[derive(Debug)]
struct Exposed {
    remote: Remote,
    region: Region,
    local: Local,
    /// Slots: what the engine looks at.
    seen: Option<Region>,
    /// They are being read, once.
    refreshing: bool,
}

/// How slots are kept up to date.
#[derive(Debug, Default)]
struct Watched {
    key: u64,
    bytes: usize,
    /// A read is under way.
    reading: bool,
    /// They have changed since it began.
    again: bool,
    /// When it did, in microseconds.
    last_us: Option<u64>,
}

/// The part of a file that can be read.
#[derive(Debug, Default)]
struct File {
    window: Option<(u64, Remote)>,
    /// Another one was asked for.
    asked: bool,
    /// Operations under way.
    reading: usize,
}

/// Bytes that are being read.
#[derive(Debug)]
struct Reading {
    number: u64,
    key: u64,
    at: u64,
    len: usize,
    begun: usize,
    bytes: Vec<u8>,
}

/// What an operation is for; they end in the order in which they began.
#[derive(Debug)]
enum Op {
    Write,
    FetchAdd { key: u64 },
    Refresh { key: u64, bytes: usize },
    Slots,
    Chunk { reading: u64, key: u64, slot: usize, len: usize },
}

/// What waits for room, in order. What is for memory that has been revoked meanwhile is dropped when its turn comes:
/// a broker gives each memory of a link a key of its own.
#[derive(Debug)]
enum Unsent {
    Message(LinkMessage),
    Write { key: u64, at: usize, len: usize, notify: Option<u32> },
    FetchAdd { key: u64, at: usize, add: u64 },
}

/// What nothing is begun with any more.
#[derive(Debug)]
enum Retired {
    /// Memory of ours.
    Own(Local),
    /// The broker's, which is told so. A card that has lost the answer to a read asks for it again, so that it is not told
    /// before all have ended.
    Exposed { key: u64 },
}

/// See the module.
pub(super) struct RemoteClient<E> {
    endpoint: E,
    memory: Box<dyn MemorySource>,
    limits: RemoteLimits,
    polled: Vec<Event>,
    events: VecDeque<LinkEvent>,
    ops: VecDeque<Op>,
    /// Operations that have ended.
    ended: u64,
    unsent: VecDeque<Unsent>,
    /// What is given back once so many operations have ended.
    retired: VecDeque<(u64, Retired)>,
    exposed: HashMap<u64, Exposed>,
    watched: Watched,
    files: HashMap<u64, File>,
    readings: VecDeque<Reading>,
    last_reading: u64,
    /// Where chunks land, made with the first read; and which places are free.
    landing: Option<(Region, Local)>,
    free: Vec<usize>,
    /// The broker knows that we park, and notifies.
    parked: bool,
}

fn descriptor(region: &RegionDescriptor) -> Result<Descriptor, FabricError> {
    Descriptor::new(region).ok_or_else(|| lie("sends a descriptor that is too long"))
}

impl<E: Endpoint> RemoteClient<E> {
    pub(super) fn new(endpoint: E, memory: Box<dyn MemorySource>, limits: RemoteLimits) -> Self {
        Self {
            endpoint,
            memory,
            limits,
            polled: Vec::new(),
            events: VecDeque::new(),
            ops: VecDeque::new(),
            ended: 0,
            unsent: VecDeque::new(),
            retired: VecDeque::new(),
            exposed: HashMap::new(),
            watched: Watched::default(),
            files: HashMap::new(),
            readings: VecDeque::new(),
            last_reading: 0,
            landing: None,
            free: (0..limits.chunks).collect(),
            parked: false,
        }
    }

    pub(super) fn endpoint(&self) -> &E {
        &self.endpoint
    }

    /// Hands on what has come.
    pub(super) fn poll(
        &mut self,
        now_us: &dyn Fn() -> u64,
        each: &mut impl FnMut(LinkEvent),
    ) -> Result<(), FabricError> {
        for _ in 0..EVENTS_PER_TURN {
            if self.events.is_empty() {
                self.pump(now_us)?;
            }
            let Some(event) = self.events.pop_front() else { break };
            each(event);
        }
        Ok(())
    }

    /// Takes what the card has, and begins what can be.
    fn pump(&mut self, now_us: &dyn Fn() -> u64) -> Result<(), FabricError> {
        self.endpoint.poll(&mut self.polled, EVENTS)?;
        let mut polled = std::mem::take(&mut self.polled);
        for event in polled.drain(..) {
            match event {
                Event::Done { result, .. } => {
                    self.end_oldest(result?)?;
                }
                Event::Message(message) => {
                    let none = || lie("sends a message that means nothing");
                    self.hear(LinkMessage::decode(&message).ok_or_else(none)?)?;
                }
                Event::Notified { .. } => return Err(lie("writes to a client")),
            }
        }
        self.polled = polled;
        self.send()?;
        self.read_slots(now_us)?;
        self.read_files()
    }

    fn hear(&mut self, message: LinkMessage) -> Result<(), FabricError> {
        match message {
            LinkMessage::Ack(note) => self.events.push_back(LinkEvent::Note(note)),
            LinkMessage::Ring { key, region } => self.expose(key, &region, false)?,
            LinkMessage::Slots { key, region } => self.expose(key, &region, true)?,
            LinkMessage::Window { key, at, region } => {
                let none = || lie("exposes a part of a file that was not asked for");
                let remote = self.endpoint.reach(&descriptor(&region)?)?.ok_or_else(none)?;
                let file = self.files.get_mut(&key).filter(|file| file.asked).ok_or_else(none)?;
                file.asked = false;
                file.window = Some((at, remote));
                let chunk = self.limits.chunk_bytes;
                let waits = self.readings.iter().find(|reading| reading.key == key);
                if waits.is_some_and(|reading| part(reading, at, &remote, chunk).is_none()) {
                    return Err(none());
                }
            }
            LinkMessage::Unreachable { key, reason } => {
                self.forget(key)?;
                self.events.push_back(LinkEvent::Unreachable { key, why: reason.text().to_owned() });
            }
            LinkMessage::Revoked { key } => {
                self.forget(key)?;
                self.retire(Retired::Exposed { key });
                self.give_back()?;
                self.events.push_back(LinkEvent::Revoked { key });
            }
            LinkMessage::Notify => {
                self.parked = false;
                self.watched.again = true;
                self.watched.last_us = None;
            }
            LinkMessage::Written { .. }
            | LinkMessage::WantWindow { .. }
            | LinkMessage::Parked
            | LinkMessage::Released { .. } => {
                return Err(lie("says what no broker says"));
            }
        }
        Ok(())
    }

    /// What was exposed by a key is void.
    fn forget(&mut self, key: u64) -> Result<(), FabricError> {
        self.files.remove(&key);
        self.readings.retain(|reading| reading.key != key);
        if let Some(exposed) = self.exposed.remove(&key) {
            self.retire(Retired::Own(exposed.local));
        }
        self.give_back()
    }

    fn retire(&mut self, what: Retired) {
        let under_way = u64::try_from(self.ops.len()).unwrap_or(0);
        self.retired.push_back((self.ended.saturating_add(under_way), what));
    }

    fn give_back(&mut self) -> Result<(), FabricError> {
        while self.retired.front().is_some_and(|(after, _)| *after <= self.ended) {
            match self.retired.pop_front() {
                Some((_, Retired::Own(local))) => drop(self.endpoint.revoke(local)?),
                Some((_, Retired::Exposed { key })) => {
                    self.unsent.push_back(Unsent::Message(LinkMessage::Released { key }));
                }
                None => {}
            }
        }
        Ok(())
    }

    fn expose(&mut self, key: u64, region: &RegionDescriptor, slots: bool) -> Result<(), FabricError> {
        let none = || lie("exposes what cannot be reached");
        let remote = self.endpoint.reach(&descriptor(region)?)?.ok_or_else(none)?;
        let before: usize = self.exposed.values().map(|exposed| exposed.remote.len).sum();
        let all = before.saturating_add(remote.len);
        if remote.len == 0 || all > self.limits.exposed_bytes || self.exposed.contains_key(&key) {
            return Err(none());
        }
        let mut make = |name| {
            let made = self.memory.sealed(name, remote.len);
            made.map_err(|error| FabricError::Misuse(error.to_string()))
        };
        let mirror = make("headrace-mirror")?;
        // A read lands while the engine looks: what it looks at is filled when the read has ended.
        let seen = if slots { Some(make("headrace-slots")?) } else { None };
        let region = Region::whole(mirror.clone());
        let local = self.endpoint.register(&region, Access::NONE)?.local;
        let memory = seen.clone().unwrap_or(mirror);
        let seen = seen.map(Region::whole);
        self.exposed.insert(key, Exposed { remote, region, local, seen, refreshing: false });
        self.events.push_back(LinkEvent::Exposed { key, memory });
        Ok(())
    }

    /// The oldest operation has ended: with this word, if it was an addition.
    fn end_oldest(&mut self, word: u64) -> Result<(), FabricError> {
        self.ended += 1;
        match self.ops.pop_front() {
            None | Some(Op::Write) => {}
            Some(Op::FetchAdd { key }) => self.events.push_back(LinkEvent::FetchAdded { key, word }),
            Some(Op::Refresh { key, bytes }) => {
                if let Some(Exposed { region, seen: Some(seen), refreshing, .. }) = self.exposed.get_mut(&key)
                {
                    *refreshing = false;
                    seen.copy_from(0, region, 0, bytes.min(region.len()))?;
                }
            }
            Some(Op::Slots) => {
                self.watched.reading = false;
                if let Some(Exposed { region, seen: Some(seen), .. }) = self.exposed.get(&self.watched.key) {
                    seen.copy_from(0, region, 0, self.watched.bytes.min(region.len()))?;
                }
            }
            Some(Op::Chunk { reading: number, key, slot, len }) => {
                self.free.push(slot);
                if let Some(file) = self.files.get_mut(&key) {
                    file.reading = file.reading.saturating_sub(1);
                }
                let at = self.readings.iter().position(|reading| reading.number == number);
                let Some((at, (landing, _))) = at.zip(self.landing.as_ref()) else { return self.give_back() };
                let Some(reading) = self.readings.get_mut(at) else { return self.give_back() };
                let before = reading.bytes.len();
                reading.bytes.resize(before + len, 0);
                if let Some(into) = reading.bytes.get_mut(before..) {
                    landing.read(slot * self.limits.chunk_bytes, into)?;
                }
                if reading.bytes.len() == reading.len
                    && let Some(Reading { key, at, bytes, .. }) = self.readings.remove(at)
                {
                    self.events.push_back(LinkEvent::Read { key, at, bytes: bytes.into() });
                }
            }
        }
        self.give_back()
    }

    /// What the engine asks for while the link stands.
    pub(super) fn request(
        &mut self,
        request: LinkRequest,
        now_us: &dyn Fn() -> u64,
    ) -> Result<(), FabricError> {
        match request {
            LinkRequest::Write(write) => self.write(&write),
            LinkRequest::FetchAdd { key, at, add } => self.fetch_add(key, at, add),
            LinkRequest::Read { key, at, len } => self.read(key, at, len),
            LinkRequest::Watch { key, bytes } => self.watch(key, bytes, now_us),
            LinkRequest::Refresh { key, bytes } => self.refresh(key, bytes),
            LinkRequest::Connect { .. }
            | LinkRequest::MakeEndpoint
            | LinkRequest::Join(_)
            | LinkRequest::Close => Ok(()),
        }
    }

    // ---- writing

    fn write(&mut self, write: &DirectWrite) -> Result<(), FabricError> {
        let Some(exposed) = self.exposed.get(&write.key) else { return Ok(()) };
        // The ring goes around once at most in a batch: two runs.
        let mut runs: Vec<(usize, usize)> = Vec::with_capacity(2);
        for (at, piece) in &write.pieces {
            let at = usize::try_from(*at).unwrap_or(usize::MAX);
            exposed.region.write(at, piece)?;
            match runs.last_mut() {
                Some((from, len)) if *from + *len == at => *len += piece.len(),
                _ => runs.push((at, piece.len())),
            }
        }
        let (immediate, bytes) = write.notify;
        let one = runs.len() == 1;
        for (at, len) in runs {
            let notify = one.then_some(immediate);
            self.unsent.push_back(Unsent::Write { key: write.key, at, len, notify });
        }
        if !one {
            self.unsent.push_back(Unsent::Message(LinkMessage::Written { immediate, bytes }));
        }
        self.send()
    }

    /// Adds to a word of what was exposed by a key.
    fn fetch_add(&mut self, key: u64, at: usize, add: u64) -> Result<(), FabricError> {
        self.unsent.push_back(Unsent::FetchAdd { key, at, add });
        self.send()
    }

    /// Reads the first bytes of what was exposed by a key, if they are not being read.
    fn refresh(&mut self, key: u64, bytes: usize) -> Result<(), FabricError> {
        let Some(exposed) = self.exposed.get_mut(&key).filter(|exposed| !exposed.refreshing) else {
            return Ok(());
        };
        let into = Piece { local: exposed.local, at: 0, len: bytes.min(exposed.region.len()) };
        match self.endpoint.read(0, exposed.remote, 0, into) {
            Ok(()) => {
                exposed.refreshing = true;
                self.ops.push_back(Op::Refresh { key, bytes });
                Ok(())
            }
            Err(FabricError::Full(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn say(&mut self, message: LinkMessage) -> Result<(), FabricError> {
        self.unsent.push_back(Unsent::Message(message));
        self.send()
    }

    /// Sends what there is room for.
    fn send(&mut self) -> Result<(), FabricError> {
        while let Some(unsent) = self.unsent.front() {
            let sent = match unsent {
                Unsent::Message(message) => self.endpoint.tell(&message.encode()),
                Unsent::Write { key, at, len, notify } => match self.exposed.get(key) {
                    None => Ok(()),
                    Some(exposed) => {
                        let pieces = [Piece { local: exposed.local, at: *at, len: *len }];
                        let written = self.endpoint.write(0, &pieces, exposed.remote, *at, *notify);
                        if written.is_ok() {
                            self.ops.push_back(Op::Write);
                        }
                        written
                    }
                },
                Unsent::FetchAdd { key, at, add } => match self.exposed.get(key) {
                    None => Ok(()),
                    Some(exposed) => {
                        let added = self.endpoint.fetch_add(0, exposed.remote, *at, *add);
                        if added.is_ok() {
                            self.ops.push_back(Op::FetchAdd { key: *key });
                        }
                        added
                    }
                },
            };
            match sent {
                Ok(()) => drop(self.unsent.pop_front()),
                Err(FabricError::Full(_)) if self.unsent.len() < UNSENT_MAX => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    // ---- reading

    /// The first bytes of what was exposed by a key are kept up to date.
    fn watch(&mut self, key: u64, bytes: usize, now_us: &dyn Fn() -> u64) -> Result<(), FabricError> {
        self.watched.key = key;
        self.watched.bytes = self.watched.bytes.max(bytes);
        (self.watched.again, self.watched.last_us) = (true, None);
        self.read_slots(now_us)
    }

    fn read_slots(&mut self, now_us: &dyn Fn() -> u64) -> Result<(), FabricError> {
        let watched = &mut self.watched;
        // Once the broker knows that we park, it notifies.
        let wanted = watched.again || !self.parked;
        if watched.bytes == 0 || watched.reading || !wanted {
            return Ok(());
        }
        let now_us = now_us();
        if watched.last_us.is_some_and(|last| now_us.saturating_sub(last) < SLOTS_EVERY_US) {
            return Ok(());
        }
        let Some(exposed) = self.exposed.get(&watched.key) else { return Ok(()) };
        let into = Piece { local: exposed.local, at: 0, len: watched.bytes.min(exposed.region.len()) };
        match self.endpoint.read(0, exposed.remote, 0, into) {
            Ok(()) => {
                self.ops.push_back(Op::Slots);
                watched.last_us = Some(now_us);
                (watched.reading, watched.again) = (true, false);
                Ok(())
            }
            Err(FabricError::Full(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, key: u64, at: u64, len: usize) -> Result<(), FabricError> {
        self.last_reading += 1;
        let bytes = Vec::with_capacity(len);
        self.readings.push_back(Reading { number: self.last_reading, key, at, len, begun: 0, bytes });
        self.files.entry(key).or_default();
        self.read_files()
    }

    fn read_files(&mut self) -> Result<(), FabricError> {
        if self.readings.is_empty() {
            return Ok(());
        }
        let chunk = self.limits.chunk_bytes;
        if self.landing.is_none() {
            let memory = self.memory.sealed("headrace-landing", self.limits.chunks * chunk);
            let region = Region::whole(memory.map_err(|error| FabricError::Misuse(error.to_string()))?);
            let local = self.endpoint.register(&region, Access::NONE)?.local;
            self.landing = Some((region, local));
        }
        let Some((_, local)) = self.landing else { return Ok(()) };
        let mut asks = Vec::new();
        for reading in &mut self.readings {
            let Some(file) = self.files.get_mut(&reading.key) else { continue };
            while reading.begun < reading.len {
                let window =
                    file.window.and_then(|(at, remote)| Some((remote, part(reading, at, &remote, chunk)?)));
                let Some((remote, (from, len))) = window else {
                    if file.reading == 0 && !std::mem::replace(&mut file.asked, true) {
                        file.window = None;
                        asks.push(LinkMessage::WantWindow {
                            key: reading.key,
                            at: reading.at + reading.begun as u64,
                        });
                    }
                    break;
                };
                let Some(slot) = self.free.pop() else { break };
                let into = Piece { local, at: slot * chunk, len };
                match self.endpoint.read(0, remote, from, into) {
                    Ok(()) => {
                        file.reading += 1;
                        reading.begun += len;
                        let (reading, key) = (reading.number, reading.key);
                        self.ops.push_back(Op::Chunk { reading, key, slot, len });
                    }
                    Err(FabricError::Full(_)) => {
                        self.free.push(slot);
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        asks.into_iter().try_for_each(|message| self.say(message))
    }

    // ---- parking

    /// Says that we park; whether there is nothing to be done first.
    pub(super) fn park(&mut self) -> Result<bool, FabricError> {
        if self.watched.bytes > 0 && !std::mem::replace(&mut self.parked, true) {
            self.say(LinkMessage::Parked)?;
        }
        Ok(self.events.is_empty() && self.endpoint.park()?)
    }

    /// We are awake. The broker goes on to believe that we are parked, until it has notified us.
    pub(super) fn unpark(&mut self) {
        // One that has failed says so when it is polled.
        let _ = self.endpoint.wake();
    }
}

/// What of a reading comes next and lies in a window: where in it, and how much.
fn part(reading: &Reading, at: u64, window: &Remote, chunk: usize) -> Option<(usize, usize)> {
    let next = reading.at.checked_add(u64::try_from(reading.begun).ok()?)?;
    let from = usize::try_from(next.checked_sub(at)?).ok()?;
    let there = window.len.checked_sub(from).filter(|there| *there > 0)?;
    Some((from, there.min(chunk).min(reading.len - reading.begun)))
}

#[cfg(test)]
mod tests;
