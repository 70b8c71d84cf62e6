//! A client's end of a link over verbs.
//!
//! A batch is copied into a mirror of its ring, which the card reads, and written from there to the same place in the ring:
//! what the broker has not answered is overwritten in neither. Slots are read into a copy that the engine looks at, one read at
//! a time. A file is read through a window of it that the broker has registered; the next window is asked for when nothing
//! is read through the last one any more, since that one is void then.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use headrace_client::io::{DirectWrite, LinkEvent, LinkRequest};
use headrace_fabric::verbs::VerbsEndpoint;
use headrace_fabric::{
    Access, Descriptor, Endpoint, Event, FabricError, Local, Memory, PIECES_MAX, Piece, Region, Remote,
    Waitable,
};
use headrace_wire::link_message::{LinkMessage, RegionDescriptor};

/// What is read of a file by one operation.
const CHUNK_BYTES: usize = 256 << 10;
/// So many of them at once.
const CHUNKS: usize = 4;
/// Slots are read again no sooner than after this.
const SLOTS_EVERY: Duration = Duration::from_micros(20);
/// Taken from the card at once.
const EVENTS: usize = 64;
/// What waits for room, before the broker counts as dead.
const UNSENT_MAX: usize = 1 << 16;
/// Bytes of all that a broker has lent, at most: as much is locked here.
const LENT_BYTES_MAX: usize = 1 << 30;

/// Memory that the broker has lent, with what is written to it from, or read of it into.
struct Lent {
    remote: Remote,
    region: Region,
    local: Local,
    /// Slots: what the engine looks at, in which none is seen half written.
    shown: Option<Region>,
    /// They are being read, once.
    refreshing: bool,
}

/// How slots are kept up to date.
#[derive(Default)]
struct Watched {
    key: u64,
    bytes: usize,
    /// A read is under way.
    reading: bool,
    /// They have changed since it began.
    again: bool,
    last: Option<Instant>,
}

/// The part of a file that can be read.
#[derive(Default)]
struct File {
    window: Option<(u64, Remote)>,
    /// Another one was asked for.
    asked: bool,
    /// Operations under way.
    reading: usize,
}

/// Bytes that are being read.
struct Reading {
    number: u64,
    key: u64,
    at: u64,
    len: usize,
    begun: usize,
    bytes: Vec<u8>,
}

/// What an operation is for; they end in the order in which they began.
enum Op {
    Write,
    Draw { key: u64 },
    Refresh { key: u64, bytes: usize },
    Slots,
    Chunk { reading: u64, key: u64, slot: usize, len: usize },
}

/// What waits for room, in order.
enum Unsent {
    Message(LinkMessage),
    Write { key: u64, at: usize, len: usize, notify: Option<u32> },
    Draw { key: u64, at: usize, add: u64 },
}

impl Unsent {
    /// Whether it is for memory of that name.
    fn is_for(&self, name: u64) -> bool {
        match self {
            Unsent::Message(_) => false,
            Unsent::Write { key, .. } | Unsent::Draw { key, .. } => *key == name,
        }
    }
}

/// What nothing is begun with any more.
enum Retired {
    /// Memory of ours.
    Own(Local),
    /// The broker's, which is told so. A card that has lost the answer to a read asks for it again, so that it is not told
    /// before all have ended.
    Lent { key: u64 },
}

/// See the module.
pub(super) struct VerbsLink {
    endpoint: VerbsEndpoint,
    taken: Vec<Event>,
    came: VecDeque<LinkEvent>,
    ops: VecDeque<Op>,
    /// Operations that have ended.
    done: u64,
    unsent: VecDeque<Unsent>,
    /// What is given back once so many operations have ended.
    retired: VecDeque<(u64, Retired)>,
    lent: HashMap<u64, Lent>,
    watched: Watched,
    files: HashMap<u64, File>,
    readings: VecDeque<Reading>,
    numbers: u64,
    /// Where chunks land, made with the first read; and which places are free.
    landing: Option<(Region, Local)>,
    free: Vec<usize>,
    /// The broker knows that we sleep, and nudges.
    sleeps: bool,
}

fn descriptor(region: &RegionDescriptor) -> Result<Descriptor, FabricError> {
    Descriptor::new(region).ok_or_else(|| lie("sends a descriptor that is too long"))
}

fn lie(what: &str) -> FabricError {
    FabricError::Peer(what.to_owned())
}

impl VerbsLink {
    pub(super) fn new(endpoint: VerbsEndpoint) -> Self {
        Self {
            endpoint,
            taken: Vec::new(),
            came: VecDeque::new(),
            ops: VecDeque::new(),
            done: 0,
            unsent: VecDeque::new(),
            retired: VecDeque::new(),
            lent: HashMap::new(),
            watched: Watched::default(),
            files: HashMap::new(),
            readings: VecDeque::new(),
            numbers: 0,
            landing: None,
            free: (0..CHUNKS).collect(),
            sleeps: false,
        }
    }

    pub(super) fn waker(&self) -> BorrowedFd<'_> {
        self.endpoint.wakers().0
    }

    /// The next thing that came; none: not now.
    pub(super) fn take(&mut self) -> Result<Option<LinkEvent>, FabricError> {
        if self.came.is_empty() {
            self.pump()?;
        }
        Ok(self.came.pop_front())
    }

    /// Takes what the card has, and begins what can be.
    fn pump(&mut self) -> Result<(), FabricError> {
        self.endpoint.poll(&mut self.taken, EVENTS)?;
        let mut taken = std::mem::take(&mut self.taken);
        for event in taken.drain(..) {
            match event {
                Event::Done { result, .. } => {
                    let word = result?;
                    self.done(word)?;
                }
                Event::Message(message) => {
                    let told = LinkMessage::decode(&message)
                        .ok_or_else(|| lie("sends a message that means nothing"))?;
                    self.told(told)?;
                }
                Event::Notified { .. } => return Err(lie("writes to a client")),
            }
        }
        self.taken = taken;
        self.send()?;
        self.read_slots()?;
        self.read_files()
    }

    fn told(&mut self, told: LinkMessage) -> Result<(), FabricError> {
        match told {
            LinkMessage::Ack(note) => self.came.push_back(LinkEvent::Note(note)),
            LinkMessage::Ring { key, region } => self.lend(key, &region, false)?,
            LinkMessage::Slots { key, region } => self.lend(key, &region, true)?,
            LinkMessage::Window { key, at, region } => {
                let none = || lie("shows a part of a file that was not asked for");
                let remote = self.endpoint.reach(&descriptor(&region)?)?.ok_or_else(none)?;
                let file = self.files.get_mut(&key).filter(|file| file.asked).ok_or_else(none)?;
                file.asked = false;
                file.window = Some((at, remote));
                let waits = self.readings.iter().find(|reading| reading.key == key);
                if waits.is_some_and(|reading| part(reading, at, &remote).is_none()) {
                    return Err(none());
                }
            }
            LinkMessage::Unreachable { key, reason } => {
                self.forget(key)?;
                self.came.push_back(LinkEvent::Unreachable { key, why: reason.text().to_owned() });
            }
            LinkMessage::Revoked { key } => {
                self.forget(key)?;
                self.retire(Retired::Lent { key });
                self.give_back()?;
                self.came.push_back(LinkEvent::Revoked { key });
            }
            LinkMessage::Notify => {
                self.sleeps = false;
                self.watched.again = true;
                self.watched.last = None;
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

    /// What was lent by a key is void.
    fn forget(&mut self, key: u64) -> Result<(), FabricError> {
        self.files.remove(&key);
        self.readings.retain(|reading| reading.key != key);
        self.unsent.retain(|unsent| !unsent.is_for(key));
        if let Some(lent) = self.lent.remove(&key) {
            self.retire(Retired::Own(lent.local));
        }
        self.give_back()
    }

    fn retire(&mut self, what: Retired) {
        let under_way = u64::try_from(self.ops.len()).unwrap_or(0);
        self.retired.push_back((self.done.saturating_add(under_way), what));
    }

    fn give_back(&mut self) -> Result<(), FabricError> {
        while self.retired.front().is_some_and(|(after, _)| *after <= self.done) {
            match self.retired.pop_front() {
                Some((_, Retired::Own(local))) => drop(self.endpoint.revoke(local)?),
                Some((_, Retired::Lent { key })) => {
                    self.unsent.push_back(Unsent::Message(LinkMessage::Released { key }));
                }
                None => {}
            }
        }
        Ok(())
    }

    fn lend(&mut self, key: u64, region: &RegionDescriptor, slots: bool) -> Result<(), FabricError> {
        let none = || lie("lends what cannot be reached");
        let remote = self.endpoint.reach(&descriptor(region)?)?.ok_or_else(none)?;
        let before: usize = self.lent.values().map(|lent| lent.remote.len).sum();
        let all = before.saturating_add(remote.len);
        if remote.len == 0 || all > LENT_BYTES_MAX || self.lent.contains_key(&key) {
            return Err(none());
        }
        let make =
            |name| Memory::sealed(name, remote.len).map_err(|error| FabricError::Misuse(error.to_string()));
        let memory = make("headrace-mirror")?;
        let region = Region::whole(memory.clone());
        let local = self.endpoint.register(&region, Access::NONE)?.local;
        let shown = if slots { Some(make("headrace-slots")?) } else { None };
        let seen = shown.clone().unwrap_or(memory);
        let shown = shown.map(Region::whole);
        self.lent.insert(key, Lent { remote, region, local, shown, refreshing: false });
        self.came.push_back(LinkEvent::Exposed { key, memory: seen });
        Ok(())
    }

    /// The oldest operation has ended: with this word, if it was an addition.
    fn done(&mut self, word: u64) -> Result<(), FabricError> {
        self.done += 1;
        match self.ops.pop_front() {
            None | Some(Op::Write) => {}
            Some(Op::Draw { key }) => self.came.push_back(LinkEvent::FetchAdded { key, word }),
            Some(Op::Refresh { key, bytes }) => {
                if let Some(Lent { region, shown: Some(shown), refreshing, .. }) = self.lent.get_mut(&key) {
                    *refreshing = false;
                    shown.copy_from(0, region, 0, bytes.min(region.len()))?;
                }
            }
            Some(Op::Slots) => {
                self.watched.reading = false;
                if let Some(Lent { region, shown: Some(shown), .. }) = self.lent.get(&self.watched.key) {
                    shown.copy_from(0, region, 0, self.watched.bytes.min(region.len()))?;
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
                    landing.read(slot * CHUNK_BYTES, into)?;
                }
                if reading.bytes.len() == reading.len
                    && let Some(Reading { key, at, bytes, .. }) = self.readings.remove(at)
                {
                    self.came.push_back(LinkEvent::Read { key, at, bytes: bytes.into() });
                }
            }
        }
        self.give_back()
    }

    /// What the engine asks for while the link stands.
    pub(super) fn request(&mut self, request: LinkRequest) -> Result<(), FabricError> {
        match request {
            LinkRequest::Write(write) => self.write(&write),
            LinkRequest::FetchAdd { key, at, add } => self.fetch_add(key, at, add),
            LinkRequest::Read { key, at, len } => self.read(key, at, len),
            LinkRequest::Watch { key, bytes } => self.watch(key, bytes),
            LinkRequest::Refresh { key, bytes } => self.refresh(key, bytes),
            LinkRequest::Connect { .. }
            | LinkRequest::MakeEndpoint
            | LinkRequest::Join(_)
            | LinkRequest::Close => Ok(()),
        }
    }

    // ---- writing

    fn write(&mut self, write: &DirectWrite) -> Result<(), FabricError> {
        let Some(lent) = self.lent.get(&write.key) else { return Ok(()) };
        // The ring goes around once at most in a batch: two runs.
        let mut runs: Vec<(usize, usize)> = Vec::with_capacity(2);
        for (at, piece) in &write.pieces {
            let at = usize::try_from(*at).unwrap_or(usize::MAX);
            lent.region.write(at, piece)?;
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

    /// Adds to a word of what was lent by a key.
    fn fetch_add(&mut self, key: u64, at: usize, add: u64) -> Result<(), FabricError> {
        self.unsent.push_back(Unsent::Draw { key, at, add });
        self.send()
    }

    /// Reads the first bytes of what was lent by a key, if they are not being read.
    fn refresh(&mut self, key: u64, bytes: usize) -> Result<(), FabricError> {
        let Some(lent) = self.lent.get_mut(&key).filter(|lent| !lent.refreshing) else { return Ok(()) };
        let into = Piece { local: lent.local, at: 0, len: bytes.min(lent.region.len()) };
        match self.endpoint.read(0, lent.remote, 0, into) {
            Ok(()) => {
                lent.refreshing = true;
                self.ops.push_back(Op::Refresh { key, bytes });
                Ok(())
            }
            Err(FabricError::Full(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn tell(&mut self, told: LinkMessage) -> Result<(), FabricError> {
        self.unsent.push_back(Unsent::Message(told));
        self.send()
    }

    /// Sends what there is room for.
    fn send(&mut self) -> Result<(), FabricError> {
        while let Some(unsent) = self.unsent.front() {
            let sent = match unsent {
                Unsent::Message(told) => self.endpoint.tell(&told.encode()),
                Unsent::Write { key, at, len, notify } => match self.lent.get(key) {
                    None => Ok(()),
                    Some(lent) => {
                        let pieces = [Piece { local: lent.local, at: *at, len: *len }];
                        debug_assert!(pieces.len() <= PIECES_MAX);
                        let written = self.endpoint.write(0, &pieces, lent.remote, *at, *notify);
                        if written.is_ok() {
                            self.ops.push_back(Op::Write);
                        }
                        written
                    }
                },
                Unsent::Draw { key, at, add } => match self.lent.get(key) {
                    None => Ok(()),
                    Some(lent) => {
                        let drawn = self.endpoint.fetch_add(0, lent.remote, *at, *add);
                        if drawn.is_ok() {
                            self.ops.push_back(Op::Draw { key: *key });
                        }
                        drawn
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

    /// The first bytes of what was lent by a key are kept up to date.
    fn watch(&mut self, key: u64, bytes: usize) -> Result<(), FabricError> {
        self.watched.key = key;
        self.watched.bytes = self.watched.bytes.max(bytes);
        (self.watched.again, self.watched.last) = (true, None);
        self.read_slots()
    }

    fn read_slots(&mut self) -> Result<(), FabricError> {
        let watched = &mut self.watched;
        let waits = watched.last.is_some_and(|last| last.elapsed() < SLOTS_EVERY);
        // Asleep, it is told.
        let wanted = watched.again || !self.sleeps;
        if watched.bytes == 0 || watched.reading || waits || !wanted {
            return Ok(());
        }
        let Some(lent) = self.lent.get(&watched.key) else { return Ok(()) };
        let into = Piece { local: lent.local, at: 0, len: watched.bytes.min(lent.region.len()) };
        match self.endpoint.read(0, lent.remote, 0, into) {
            Ok(()) => {
                self.ops.push_back(Op::Slots);
                watched.last = Some(Instant::now());
                (watched.reading, watched.again) = (true, false);
                Ok(())
            }
            Err(FabricError::Full(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, key: u64, at: u64, len: usize) -> Result<(), FabricError> {
        self.numbers += 1;
        let bytes = Vec::with_capacity(len);
        self.readings.push_back(Reading { number: self.numbers, key, at, len, begun: 0, bytes });
        self.files.entry(key).or_default();
        self.read_files()
    }

    fn read_files(&mut self) -> Result<(), FabricError> {
        if self.readings.is_empty() {
            return Ok(());
        }
        if self.landing.is_none() {
            let memory = Memory::sealed("headrace-landing", CHUNKS * CHUNK_BYTES);
            let region = Region::whole(memory.map_err(|error| FabricError::Misuse(error.to_string()))?);
            let local = self.endpoint.register(&region, Access::NONE)?.local;
            self.landing = Some((region, local));
        }
        let Some((_, local)) = self.landing else { return Ok(()) };
        let mut asks = Vec::new();
        for reading in &mut self.readings {
            let Some(file) = self.files.get_mut(&reading.key) else { continue };
            while reading.begun < reading.len {
                let window = file.window.and_then(|(at, remote)| Some((remote, part(reading, at, &remote)?)));
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
                let into = Piece { local, at: slot * CHUNK_BYTES, len };
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
        asks.into_iter().try_for_each(|told| self.tell(told))
    }

    // ---- sleeping

    /// Says that we go to sleep; whether there is nothing to be done first.
    pub(super) fn doze(&mut self) -> Result<bool, FabricError> {
        if self.watched.bytes > 0 && !std::mem::replace(&mut self.sleeps, true) {
            self.tell(LinkMessage::Parked)?;
        }
        Ok(self.came.is_empty() && self.endpoint.doze()?)
    }

    /// We are awake. The broker goes on to believe that we sleep, until it has nudged us.
    pub(super) fn wake(&mut self) -> Result<(), FabricError> {
        self.endpoint.wake()
    }
}

/// What of a reading comes next and lies in a window: where in it, and how much.
fn part(reading: &Reading, at: u64, window: &Remote) -> Option<(usize, usize)> {
    let next = reading.at.checked_add(u64::try_from(reading.begun).ok()?)?;
    let from = usize::try_from(next.checked_sub(at)?).ok()?;
    let there = window.len.checked_sub(from).filter(|there| *there > 0)?;
    Some((from, there.min(CHUNK_BYTES).min(reading.len - reading.begun)))
}
