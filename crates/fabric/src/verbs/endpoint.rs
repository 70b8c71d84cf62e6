//! [`Endpoint`] over a [`QueuePair`].
//!
//! Operations are the card's. What the peer is told is a write's immediate word, or a message:
//! ```text
//! 0   kind: 1 message, 2 room, 3 nudge
//! 4   how much that we sent it has taken so far, modulo 2^32, little-endian
//! 8   the message's bytes
//! ```
//! A descriptor is address, length, key and access, little-endian.
//!
//! # Room
//! A card ends the connection where a word or a message comes and nothing was posted to receive it. So each side says once
//! how many receives it has posted, and then, in each message, how many it has taken and posted again; the other never has
//! more under way. Who has taken half of them without saying anything says it in a message of its own, for which some
//! receives are kept back: between two of these the other can send as much as it then knew to have room for, so that two at
//! most are on their way.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::device::{Atomics, Device, Domain};
use super::memory::{Grants, Piece as OwnPiece, Place, Registration as Registered};
use super::queue::{
    Address, Completion, Completions, Done, Failure, Opening, PIECES_MAX as OWN_PIECES_MAX, Patience,
    QueuePair, Shape, Work,
};
use super::{Result as VerbsResult, VerbsError};
use crate::endpoint::{
    Access, Descriptor, Endpoint, Event, FabricError, Limits, Local, Message, PIECES_MAX, Piece,
    Registration, Remote, SHORT_BYTES_MAX, Waitable,
};
use crate::memory::Memory;
use crate::region::Region;

/// Receives that are kept back for messages of room; two can be needed.
const KEPT_BACK: u32 = 4;
/// Messages that are on their way, beside the operations.
const MESSAGES: u32 = 32;
/// What a peer may say that it has posted.
const RECEIVES_MAX: u32 = 1 << 16;
/// Before the bytes of a message.
const HEAD: usize = 8;
/// A short message.
const SLOT: usize = HEAD + SHORT_BYTES_MAX;
/// Buffers lie at multiples of this.
const LINE: usize = 64;
const COMPLETIONS_AT_ONCE: usize = 32;
/// Completions are taken so often in a row: a peer must not keep us at it.
const ROUNDS: usize = 8;
/// In the number of what was posted to receive.
const RECEIVE: u64 = 1 << 63;

const MESSAGE: u8 = 1;
const ROOM: u8 = 2;
const NUDGE: u8 = 3;

/// How much an endpoint holds. It locks `receives × (message_bytes + 8)` bytes of memory.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Operations that were begun, and whose end was not polled yet.
    pub outstanding: u32,
    /// Messages and notifications that may come before we poll.
    pub receives: u32,
    /// Bytes of a message of the peer's, at most.
    pub message_bytes: u32,
    /// How long the peer may be silent.
    pub patience: Patience,
}

impl Default for Options {
    /// A mebibyte of memory.
    fn default() -> Options {
        Options { outstanding: 128, receives: 64, message_bytes: 1 << 14, patience: Patience::default() }
    }
}

/// An endpoint that does not know its peer yet.
#[derive(Debug)]
pub struct Joining {
    opening: Opening,
    parts: Parts,
}

/// What an endpoint is made of, beside its queue pair.
#[derive(Debug)]
struct Parts {
    /// First the buffers to receive into, then a slot for each place in the queue of work.
    buffers: Registered,
    buffer_bytes: usize,
    options: Options,
    completions: Arc<Completions>,
    domain: Arc<Domain>,
}

impl Options {
    /// Work that is under way.
    fn work(&self) -> u32 {
        self.outstanding.saturating_add(MESSAGES).saturating_add(KEPT_BACK)
    }
}

impl Joining {
    /// Bytes of what the two say to each other.
    pub const HELLO_BYTES: usize = Address::LEN + 8;

    /// On a device. `random` is where packets are counted from: those of an earlier connection must not fit in.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn new(device: &Arc<Device>, options: Options, random: u32) -> VerbsResult<Joining> {
        let receives = options.receives.clamp(KEPT_BACK.saturating_add(2), RECEIVES_MAX);
        let options = Options { receives, ..options };
        let domain = device.domain()?;
        let completions = Completions::new(device, options.work().saturating_add(receives))?;
        let buffer_bytes = usize::try_from(options.message_bytes).unwrap_or(usize::MAX);
        let buffer_bytes = buffer_bytes.max(SHORT_BYTES_MAX).saturating_add(HEAD).next_multiple_of(LINE);
        let slots = usize::try_from(options.work()).unwrap_or(usize::MAX).saturating_mul(SLOT);
        let all = usize::try_from(receives).unwrap_or(usize::MAX).saturating_mul(buffer_bytes);
        let memory = Memory::sealed("headrace-verbs", all.saturating_add(slots))?;
        let shape = Shape {
            work: options.work(),
            receives,
            pieces: u32::try_from(OWN_PIECES_MAX).unwrap_or(u32::MAX).min(device.limits().pieces),
            grants: Grants { reads: true, writes: true, adds: true },
        };
        let opening = Opening::new(&domain, &completions, shape, random)?;
        let buffers = domain.register(&Region::whole(memory), Grants::default())?;
        let parts = Parts { buffers, buffer_bytes, options, completions, domain };
        for number in 0..receives {
            let (id, buffer) = parts.buffer(number.into());
            opening.receive(id, Some(buffer))?;
        }
        Ok(Joining { opening, parts })
    }

    /// What the peer is told.
    #[must_use]
    pub fn hello(&self) -> [u8; Self::HELLO_BYTES] {
        let Options { receives, message_bytes, .. } = self.parts.options;
        let address = self.opening.address().to_bytes();
        let numbers = [receives.to_le_bytes(), message_bytes.to_le_bytes()];
        let mut hello = [0; Self::HELLO_BYTES];
        for (byte, value) in hello.iter_mut().zip(address.iter().chain(numbers.iter().flatten())) {
            *byte = *value;
        }
        hello
    }

    /// Connects to the peer that has said this. Who is told second begins: the first one is not to do anything before it
    /// has heard of the second.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn join(self, hello: &[u8]) -> VerbsResult<VerbsEndpoint> {
        let length = || VerbsError::Peer("is of another length");
        let (address, rest) = hello.split_at_checked(Address::LEN).ok_or_else(length)?;
        let (receives, message_bytes) = rest.split_first_chunk::<4>().ok_or_else(length)?;
        let message_bytes = <[u8; 4]>::try_from(message_bytes).map_err(|_| length())?;
        let address = Address::from_bytes(address)?;
        let receives = u32::from_le_bytes(*receives);
        if receives <= KEPT_BACK || receives > RECEIVES_MAX {
            return Err(VerbsError::Peer("says that it receives none, or too many"));
        }
        let adds = address.adds && self.parts.domain.device().atomics() != Atomics::None;
        let pair = self.opening.connect(&address, self.parts.options.patience)?;
        Ok(VerbsEndpoint {
            pair,
            registered: BTreeMap::new(),
            parts: self.parts,
            next: 0,
            under_way: VecDeque::new(),
            posted: 0,
            ready: VecDeque::new(),
            unpolled: 0,
            room: Room {
                of_peer: receives.saturating_sub(KEPT_BACK),
                sent: 0,
                taken_by_peer: 0,
                taken: 0,
                reported: 0,
            },
            message_bytes: u32::from_le_bytes(message_bytes),
            adds,
            ended: None,
            held: false,
            missed: false,
            made: false,
            taken: Vec::new(),
        })
    }
}

impl Parts {
    /// The buffer of that number, and what a receive into it is called.
    fn buffer(&self, number: u64) -> (u64, OwnPiece<'_>) {
        let at = usize::try_from(number).unwrap_or(usize::MAX).saturating_mul(self.buffer_bytes);
        (RECEIVE | number, self.buffers.piece(at, self.buffer_bytes))
    }

    /// Where the slot of the work of that number is: free, since there are as many as there is work under way.
    fn slot(&self, posted: u64) -> usize {
        let receives = usize::try_from(self.options.receives).unwrap_or(usize::MAX);
        let slot = posted.checked_rem(self.options.work().into()).unwrap_or(0);
        let slot = usize::try_from(slot).unwrap_or(usize::MAX).saturating_mul(SLOT);
        receives.saturating_mul(self.buffer_bytes).saturating_add(slot)
    }
}

/// Who may send how much; all modulo 2^32.
#[derive(Debug)]
struct Room {
    /// What the peer may not have taken yet.
    of_peer: u32,
    sent: u32,
    taken_by_peer: u32,
    /// By us, and how much of it the peer knows.
    taken: u32,
    reported: u32,
}

impl Room {
    fn is_there(&self) -> bool {
        self.sent.wrapping_sub(self.taken_by_peer) < self.of_peer
    }

    /// What the peer says that it has taken.
    fn reported(&mut self, taken: u32) -> Result<bool, &'static str> {
        let (before, after) = (self.sent.wrapping_sub(self.taken_by_peer), self.sent.wrapping_sub(taken));
        if after > before {
            return Err("says that it has taken what was not sent");
        }
        self.taken_by_peer = taken;
        Ok(after < before)
    }
}

/// Work that was posted.
#[derive(Clone, Copy, Debug)]
enum UnderWay {
    /// The caller's.
    Operation(u64),
    /// The same; the word comes into its slot.
    Add(u64, usize),
    /// A message of ours.
    Message,
}

/// What is to be polled.
#[derive(Debug)]
enum Ready {
    Done { op: u64, result: Result<u64, FabricError> },
    Notified { imm: u32, len: u32, buffer: u64 },
    Message { len: usize, buffer: u64 },
}

impl Ready {
    /// Whether it is of an operation of ours.
    fn is_ours(&self) -> bool {
        matches!(self, Ready::Done { .. })
    }
}

/// One side of a connection of two cards. A peer that dies is found by what is written to it; one that is only waited for is
/// found by the TCP connection that this one belongs to.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent fact")]
pub struct VerbsEndpoint {
    // Dropped in this order: nothing is registered longer than it can be reached.
    pair: QueuePair,
    registered: BTreeMap<u64, Registered>,
    parts: Parts,
    /// The number of the next registration: none is used twice.
    next: u64,
    under_way: VecDeque<UnderWay>,
    /// Work so far.
    posted: u64,
    ready: VecDeque<Ready>,
    /// The caller's operations whose end was not polled.
    unpolled: u32,
    room: Room,
    /// Of a message, at most: the peer's.
    message_bytes: u32,
    adds: bool,
    ended: Option<Ended>,
    /// What the peer has sent is left where it is.
    held: bool,
    /// Something had no room; and some was made since.
    missed: bool,
    made: bool,
    taken: Vec<Completion>,
}

#[derive(Clone, Copy, Debug)]
enum Ended {
    Gone,
    Peer(&'static str),
}

impl From<Ended> for FabricError {
    fn from(ended: Ended) -> FabricError {
        match ended {
            Ended::Gone => FabricError::Gone,
            Ended::Peer(what) => FabricError::Peer(what.to_owned()),
        }
    }
}

impl From<VerbsError> for FabricError {
    fn from(error: VerbsError) -> FabricError {
        match error {
            VerbsError::Bounds(_) | VerbsError::OtherDomain | VerbsError::NoWord => {
                FabricError::Misuse(error.to_string())
            }
            VerbsError::Peer(what) => FabricError::Peer(what.to_owned()),
            other => FabricError::Provider(Box::new(other)),
        }
    }
}

impl From<Failure> for FabricError {
    fn from(failure: Failure) -> FabricError {
        match failure {
            Failure::Access | Failure::Request => FabricError::Refused(failure.to_string()),
            Failure::Silent | Failure::Flushed => FabricError::Gone,
            Failure::NotReceiving => FabricError::Peer("receives less than it has said".to_owned()),
            Failure::Peer => FabricError::Peer("has a device that has failed".to_owned()),
            Failure::Local => FabricError::Misuse(failure.to_string()),
            Failure::Other(_) => FabricError::Provider(Box::new(failure)),
        }
    }
}

impl VerbsEndpoint {
    /// From now on what the peer has sent is left where it is, or is not any more. Meanwhile only the ends of operations of
    /// ours are polled, and keep from sleeping; the peer finds no room once it has sent as much as we receive.
    pub fn hold(&mut self, hold: bool) {
        self.held = hold;
    }

    /// As [`Endpoint::park`] of a thread that does not sleep: whether nothing is to be polled, and there is no room that was
    /// missing. Nothing wakes for what comes later.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn is_quiet(&mut self) -> Result<bool, FabricError> {
        self.pump()?;
        let room = self.missed && self.made;
        self.missed &= !room;
        Ok(!self.has_ready() && self.ended.is_none() && !room)
    }

    /// The next that is to be polled.
    fn next_ready(&mut self) -> Option<Ready> {
        if !self.held {
            return self.ready.pop_front();
        }
        let at = self.ready.iter().position(Ready::is_ours)?;
        self.ready.remove(at)
    }

    fn has_ready(&self) -> bool {
        if self.held { self.ready.iter().any(Ready::is_ours) } else { !self.ready.is_empty() }
    }

    /// Before work: what must be there for it.
    fn begin(&mut self, operation: bool, message: bool) -> Result<(), FabricError> {
        if !self.has_room(operation, message) {
            self.pump()?;
        }
        if let Some(ended) = self.ended {
            return Err(ended.into());
        }
        if self.has_room(operation, message) {
            return Ok(());
        }
        self.missed = true;
        self.made = false;
        Err(FabricError::Full(if message { "messages that the peer has not taken" } else { "operations" }))
    }

    fn has_room(&self, operation: bool, message: bool) -> bool {
        let most = self.parts.options.work().saturating_sub(KEPT_BACK);
        let under_way = u32::try_from(self.under_way.len()).unwrap_or(u32::MAX);
        under_way < most
            && (!operation || self.unpolled < self.parts.options.outstanding)
            && (!message || self.room.is_there())
    }

    /// Pieces of an operation, beside the one of our own.
    fn pieces_max(&self) -> usize {
        let card = self.parts.domain.device().limits().pieces.saturating_sub(1);
        usize::try_from(card).unwrap_or(usize::MAX).min(PIECES_MAX)
    }

    /// Bytes of pieces that are all there.
    fn check(&self, pieces: &[Piece]) -> Result<usize, FabricError> {
        if pieces.len() > self.pieces_max() {
            let most = self.pieces_max();
            return Err(FabricError::Misuse(format!(
                "an operation has more pieces than there can be: {most}"
            )));
        }
        let mut len: usize = 0;
        for piece in pieces {
            let unknown = || FabricError::Misuse("a region of an operation is not registered".to_owned());
            let registered = self.registered.get(&piece.local.0).ok_or_else(unknown)?;
            registered.region().check(piece.at, piece.len)?;
            len = len.saturating_add(piece.len);
        }
        let most = self.parts.domain.device().limits().message;
        if u32::try_from(len).is_ok_and(|len| len <= most) {
            Ok(len)
        } else {
            Err(FabricError::Misuse(format!("an operation has {len} bytes, and the device takes {most}")))
        }
    }

    /// Posts an operation on pieces that were checked, after those of our own.
    fn post(&mut self, op: u64, work: Work, own: Option<usize>, pieces: &[Piece]) -> Result<(), FabricError> {
        let head = self.parts.buffers.piece(own.unwrap_or(0), HEAD);
        let found = pieces
            .iter()
            .filter(|piece| piece.len > 0)
            .filter_map(|piece| Some(self.registered.get(&piece.local.0)?.piece(piece.at, piece.len)));
        let mut list = [head; OWN_PIECES_MAX];
        let mut count: usize = 0;
        for (into, piece) in list.iter_mut().zip(own.map(|_| head).into_iter().chain(found)) {
            *into = piece;
            count = count.saturating_add(1);
        }
        self.pair.post(self.posted, work, list.get(..count).unwrap_or_default())?;
        self.posted(UnderWay::Operation(op));
        Ok(())
    }

    fn target(remote: Remote, at: usize, len: usize, needs: Access) -> Result<Place, FabricError> {
        let refused = |why: &str| FabricError::Refused(why.to_owned());
        if !remote.access.has(needs) {
            return Err(refused("it is for something else"));
        }
        at.checked_add(len).filter(|end| *end <= remote.len).ok_or_else(|| refused("it ends before"))?;
        let address = u64::try_from(at).ok().and_then(|at| remote.start.checked_add(at));
        let address = address.ok_or_else(|| refused("it has no such place"))?;
        let key = u32::try_from(remote.key).map_err(|_| refused("it has no such key"))?;
        Ok(Place { address, key })
    }

    fn posted(&mut self, work: UnderWay) {
        self.under_way.push_back(work);
        self.posted = self.posted.wrapping_add(1);
        if !matches!(work, UnderWay::Message) {
            self.unpolled = self.unpolled.saturating_add(1);
        }
    }

    /// The head of a message, in the slot of the next work.
    fn head(&self, kind: u8) -> Result<usize, FabricError> {
        let slot = self.parts.slot(self.posted);
        let [a, b, c, d] = self.room.taken.to_le_bytes();
        self.parts.buffers.region().write(slot, &[kind, 0, 0, 0, a, b, c, d])?;
        Ok(slot)
    }

    /// Sends a message of our own memory. There is room for it.
    fn send_own(&mut self, kind: u8, bytes: &[u8]) -> Result<(), FabricError> {
        let slot = self.head(kind)?;
        self.parts.buffers.region().write(slot.saturating_add(HEAD), bytes)?;
        let piece = self.parts.buffers.piece(slot, HEAD.saturating_add(bytes.len()));
        self.pair.post(self.posted, Work::Send, &[piece])?;
        self.posted(UnderWay::Message);
        self.room.reported = self.room.taken;
        Ok(())
    }

    /// Takes what the card has completed; nothing of it is polled yet.
    fn pump(&mut self) -> Result<(), FabricError> {
        for _ in 0..ROUNDS {
            let mut taken = std::mem::take(&mut self.taken);
            taken.clear();
            let count = self.parts.completions.poll(&mut taken, COMPLETIONS_AT_ONCE);
            for completion in &taken {
                self.completed(completion)?;
            }
            self.taken = taken;
            if count? < COMPLETIONS_AT_ONCE {
                break;
            }
        }
        self.tell_room()
    }

    fn completed(&mut self, completion: &Completion) -> Result<(), FabricError> {
        let Completion { id, done, .. } = *completion;
        if id & RECEIVE != 0 {
            let buffer = id & !RECEIVE;
            match done {
                Ok(Done::Notified { word, bytes }) => {
                    self.ready.push_back(Ready::Notified { imm: word, len: bytes, buffer });
                }
                Ok(Done::Received { bytes }) => {
                    if let Err(what) = self.received(buffer, bytes)? {
                        self.ended = Some(Ended::Peer(what));
                        self.pair.end()?;
                    }
                }
                Ok(Done::Work) => {}
                Err(_) => self.end(),
            }
            return Ok(());
        }
        self.made = true;
        let Some(work) = self.under_way.pop_front() else { return Ok(()) };
        let result = done.map_err(FabricError::from);
        if result.is_err() {
            self.end();
        }
        let (op, value) = match work {
            UnderWay::Operation(op) => (op, 0),
            UnderWay::Add(op, slot) => (op, self.parts.buffers.region().load(slot)?),
            UnderWay::Message => return Ok(()),
        };
        self.ready.push_back(Ready::Done { op, result: result.map(|_| value) });
        Ok(())
    }

    fn end(&mut self) {
        self.ended.get_or_insert(Ended::Gone);
    }

    /// A message has come. The error is what is wrong with it.
    fn received(&mut self, buffer: u64, bytes: u32) -> Result<Result<(), &'static str>, FabricError> {
        let (_, piece) = self.parts.buffer(buffer);
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= piece.len());
        let Some(len) = bytes.and_then(|bytes| bytes.checked_sub(HEAD)) else {
            return Ok(Err("sends a message that is too short"));
        };
        let mut head = [0; HEAD];
        self.parts.buffers.region().read(piece.start(), &mut head)?;
        let [kind, _, _, _, a, b, c, d] = head;
        match self.room.reported(u32::from_le_bytes([a, b, c, d])) {
            Ok(made) => self.made |= made,
            Err(what) => return Ok(Err(what)),
        }
        match kind {
            MESSAGE => self.ready.push_back(Ready::Message { len, buffer }),
            ROOM => self.receive_again(buffer)?,
            NUDGE => self.take(buffer)?,
            _ => return Ok(Err("sends a message that means nothing")),
        }
        Ok(Ok(()))
    }

    /// What came by this receive is done with.
    fn take(&mut self, buffer: u64) -> Result<(), FabricError> {
        self.room.taken = self.room.taken.wrapping_add(1);
        self.receive_again(buffer)
    }

    fn receive_again(&self, buffer: u64) -> Result<(), FabricError> {
        let (id, piece) = self.parts.buffer(buffer);
        match self.pair.receive(id, Some(piece)) {
            // Of a pair that has ended some devices take none.
            Err(_) if self.ended.is_some() => Ok(()),
            other => Ok(other?),
        }
    }

    /// Says what we have taken, if it was not said for long.
    fn tell_room(&mut self) -> Result<(), FabricError> {
        let owed = self.room.taken.wrapping_sub(self.room.reported);
        let under_way = u32::try_from(self.under_way.len()).unwrap_or(u32::MAX);
        let most = self.parts.options.receives.saturating_sub(KEPT_BACK);
        if owed >= (most / 2).max(1) && under_way < self.parts.options.work() && self.ended.is_none() {
            self.send_own(ROOM, &[])?;
        }
        Ok(())
    }

    fn event(&mut self, ready: Ready) -> Result<Event, FabricError> {
        match ready {
            Ready::Done { op, result } => {
                self.unpolled = self.unpolled.saturating_sub(1);
                self.made = true;
                Ok(Event::Done { op, result })
            }
            Ready::Notified { imm, len, buffer } => {
                self.take(buffer)?;
                Ok(Event::Notified { imm, len })
            }
            Ready::Message { len, buffer } => {
                let at = self.parts.buffer(buffer).1.start().saturating_add(HEAD);
                let mut short = [0; SHORT_BYTES_MAX];
                let message = if let Some(short) = short.get_mut(..len) {
                    self.parts.buffers.region().read(at, short)?;
                    Message::short(short)
                } else {
                    let mut long = vec![0; len];
                    self.parts.buffers.region().read(at, &mut long)?;
                    Message::long(long)
                };
                self.take(buffer)?;
                Ok(Event::Message(message))
            }
        }
    }
}

impl Endpoint for VerbsEndpoint {
    fn limits(&self) -> Limits {
        Limits {
            outstanding: usize::try_from(self.parts.options.outstanding).unwrap_or(usize::MAX),
            pieces: self.pieces_max(),
            message_bytes: usize::try_from(self.message_bytes).unwrap_or(usize::MAX),
            adds: self.adds,
        }
    }

    fn register(&mut self, region: &Region, access: Access) -> Result<Registration, FabricError> {
        let domain = &self.parts.domain;
        // Without atomic operations nobody can add, and nobody is let: `Limits::adds` says it.
        let adds = access.has(Access::ADD) && domain.device().atomics() != Atomics::None;
        let grants = Grants { reads: access.has(Access::READ), writes: access.has(Access::WRITE), adds };
        let registered = domain.register(region, grants)?;
        let remote = registered.remote();
        let descriptor = [
            &remote.address.to_le_bytes()[..],
            &remote.len.to_le_bytes(),
            &remote.key.to_le_bytes(),
            &[access.bits()],
        ];
        let descriptor = Descriptor::new(&descriptor.concat());
        let descriptor = descriptor.ok_or_else(|| FabricError::Misuse("a long descriptor".to_owned()))?;
        let local = Local(self.next);
        self.next = self.next.saturating_add(1);
        self.registered.insert(local.0, registered);
        Ok(Registration { local, descriptor })
    }

    /// The card refuses the peer from now on, and the peer that tries loses the connection. So does an operation of ours that
    /// is under way on it.
    fn revoke(&mut self, local: Local) -> Result<Option<Region>, FabricError> {
        let unknown = || FabricError::Misuse("a region that is to be revoked is not registered".to_owned());
        let registered = self.registered.remove(&local.0).ok_or_else(unknown)?;
        let region = registered.region().clone();
        registered.revoke()?;
        Ok(Some(region))
    }

    fn reach(&mut self, descriptor: &Descriptor) -> Result<Option<Remote>, FabricError> {
        let none = || FabricError::Peer("sends a descriptor that is none".to_owned());
        let (start, rest) = descriptor.as_bytes().split_first_chunk().ok_or_else(none)?;
        let (len, rest) = rest.split_first_chunk().ok_or_else(none)?;
        let (key, rest) = rest.split_first_chunk().ok_or_else(none)?;
        let [access] = <[u8; 1]>::try_from(rest).map_err(|_| none())?;
        let (start, len) = (u64::from_le_bytes(*start), u64::from_le_bytes(*len));
        start.checked_add(len).ok_or_else(none)?;
        Ok(Some(Remote {
            key: u32::from_le_bytes(*key).into(),
            start,
            len: usize::try_from(len).map_err(|_| none())?,
            access: Access::from_bits(access).ok_or_else(none)?,
        }))
    }

    fn release(&mut self, _remote: Remote) {}

    fn write(
        &mut self,
        op: u64,
        pieces: &[Piece],
        to: Remote,
        at: usize,
        notify: Option<u32>,
    ) -> Result<(), FabricError> {
        let len = self.check(pieces)?;
        let to = Self::target(to, at, len, Access::WRITE)?;
        self.begin(true, notify.is_some())?;
        self.post(op, Work::Write { to, notify }, None, pieces)?;
        if notify.is_some() {
            self.room.sent = self.room.sent.wrapping_add(1);
        }
        Ok(())
    }

    fn read(&mut self, op: u64, from: Remote, at: usize, into: Piece) -> Result<(), FabricError> {
        let len = self.check(&[into])?;
        let from = Self::target(from, at, len, Access::READ)?;
        self.begin(true, false)?;
        self.post(op, Work::Read { from }, None, &[into])
    }

    fn fetch_add(&mut self, op: u64, to: Remote, at: usize, add: u64) -> Result<(), FabricError> {
        if !self.adds {
            return Err(FabricError::Misuse("a device has no atomic operations".to_owned()));
        }
        let place = Self::target(to, at, size_of::<u64>(), Access::ADD)?;
        if !place.address.is_multiple_of(8) {
            return Err(FabricError::Misuse("a word that is to be added to is not aligned".to_owned()));
        }
        self.begin(true, false)?;
        let slot = self.parts.slot(self.posted);
        let into = self.parts.buffers.piece(slot, size_of::<u64>());
        self.pair.post(self.posted, Work::FetchAdd { at: place, add }, &[into])?;
        self.posted(UnderWay::Add(op, slot));
        Ok(())
    }

    fn tell(&mut self, message: &[u8]) -> Result<(), FabricError> {
        if message.len() > SHORT_BYTES_MAX {
            return Err(FabricError::Misuse("a short message is longer than SHORT_BYTES_MAX".to_owned()));
        }
        self.begin(false, true)?;
        self.send_own(MESSAGE, message)?;
        self.room.sent = self.room.sent.wrapping_add(1);
        Ok(())
    }

    fn send(&mut self, op: u64, pieces: &[Piece]) -> Result<(), FabricError> {
        if self.check(pieces)? > self.limits().message_bytes {
            return Err(FabricError::Misuse("a message is longer than the peer takes".to_owned()));
        }
        self.begin(true, true)?;
        let head = self.head(MESSAGE)?;
        self.post(op, Work::Send, Some(head), pieces)?;
        self.room.sent = self.room.sent.wrapping_add(1);
        self.room.reported = self.room.taken;
        Ok(())
    }

    /// A message: whether the peer sleeps is not seen from here.
    fn nudge(&mut self) -> Result<(), FabricError> {
        self.begin(false, true)?;
        self.send_own(NUDGE, &[])?;
        self.room.sent = self.room.sent.wrapping_add(1);
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<Event>, max: usize) -> Result<(), FabricError> {
        if self.held || self.ready.len() < max {
            self.pump()?;
        }
        let mut polled: usize = 0;
        while polled < max
            && let Some(ready) = self.next_ready()
        {
            polled = polled.saturating_add(1);
            let event = self.event(ready)?;
            events.push(event);
        }
        self.tell_room()?;
        match self.ended {
            // What is under way comes back.
            Some(ended) if polled == 0 && max > 0 && self.under_way.is_empty() => Err(ended.into()),
            _ => Ok(()),
        }
    }

    fn park(&mut self) -> Result<bool, FabricError> {
        self.parts.completions.arm()?;
        // What has come before wakes nobody.
        self.is_quiet()
    }

    fn wake(&mut self) -> Result<(), FabricError> {
        Ok(self.parts.completions.awake()?)
    }
}

impl Waitable for VerbsEndpoint {
    fn wakers(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        (self.parts.completions.as_fd(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room() -> Room {
        Room { of_peer: 4, sent: u32::MAX - 1, taken_by_peer: u32::MAX - 1, taken: 0, reported: 0 }
    }

    #[test]
    fn no_more_is_sent_than_the_peer_has_room_for() {
        let mut room = room();
        for _ in 0..4 {
            assert!(room.is_there());
            room.sent = room.sent.wrapping_add(1);
        }
        assert!(!room.is_there());
        assert_eq!(room.reported(u32::MAX - 1), Ok(false));
        assert_eq!(room.reported(1), Ok(true));
        assert!(room.is_there());
        assert_eq!(room.reported(2), Ok(true));
        assert_eq!(room.sent, room.taken_by_peer);
    }

    #[test]
    fn a_peer_that_has_taken_what_was_not_sent_lies() {
        let mut room = room();
        room.sent = 1;
        assert_eq!(room.reported(0), Ok(true));
        for taken in [2, u32::MAX, 1 << 31] {
            assert!(room.reported(taken).is_err(), "{taken}");
        }
    }
}
