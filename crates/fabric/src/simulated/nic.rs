//! A simulated network card, and the cable between two of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::SimSide;
use crate::endpoint::{
    Access, Descriptor, Endpoint, Event, FabricError, Limits, Local, Message, Piece, Registration, Remote,
    SHORT_BYTES_MAX,
};
use crate::region::Region;

/// Operations that were begun, and whose end was not polled yet.
const OUTSTANDING_MAX: usize = 128;
/// Messages that a card receives before they are polled.
const RECEIVES_MAX: usize = 64;
/// Bytes of a message of [`Endpoint::send`].
const MESSAGE_BYTES_MAX: usize = 1 << 14;

/// What a card is to have done at the other end.
#[derive(Clone, Debug)]
pub enum PacketKind {
    /// Bytes of its own memory written, and the peer told of them.
    Write {
        /// Where they lie, until this is carried out.
        pieces: Vec<Piece>,
        /// Into which registration.
        key: u64,
        /// Where in it.
        at: usize,
        /// With what.
        notify: Option<u32>,
    },
    /// Bytes read into its own memory.
    Read {
        /// Of which registration.
        key: u64,
        /// Where in it.
        at: usize,
        /// Where they are to lie.
        into: Piece,
    },
    /// A word added to.
    Add {
        /// Of which registration.
        key: u64,
        /// Where in it.
        at: usize,
        /// What is added.
        add: u64,
    },
    /// A message received.
    Message(Vec<u8>),
}

/// One thing that a card has sent.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Whose.
    pub from: SimSide,
    /// The operation that ends with it; none: nobody waits for its end.
    pub op: Option<u64>,
    /// What it is.
    pub kind: PacketKind,
}

/// What comes back to the card that has begun an operation.
#[derive(Clone, Debug)]
pub struct Reply {
    /// To whom.
    pub to: SimSide,
    /// Which operation has ended.
    pub op: u64,
    /// What a word was before it was added to; else 0.
    pub word: u64,
    /// What was read, and where it is to lie.
    pub read: Option<(Piece, Vec<u8>)>,
}

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each read by itself")]
struct Port {
    registered: BTreeMap<u64, (Region, Access)>,
    last_key: u64,
    /// The next registration fails.
    refuses: bool,
    posted: VecDeque<Packet>,
    events: VecDeque<Event>,
    held: bool,
    /// Operations whose end was not polled yet.
    outstanding: usize,
    /// Messages and notifications that the peer has not polled.
    untaken: usize,
    /// There was no room for something; and there is some since.
    missed: bool,
    made: bool,
    parked: bool,
    gone: bool,
}

impl Port {
    fn region(&self, key: u64, needs: Access) -> Result<&Region, FabricError> {
        let found = self.registered.get(&key).filter(|(_, access)| access.has(needs));
        found.map(|(region, _)| region).ok_or_else(|| refused("it is not registered for that"))
    }

    fn is_ready(event: &Event, held: bool) -> bool {
        !held || matches!(event, Event::Done { .. })
    }

    fn has_ready(&self) -> bool {
        self.events.iter().any(|event| Self::is_ready(event, self.held))
    }
}

fn refused(why: &str) -> FabricError {
    FabricError::Refused(why.to_owned())
}

#[derive(Debug, Default)]
struct Inner {
    broker: Port,
    client: Port,
}

impl Inner {
    fn port(&mut self, side: SimSide) -> &mut Port {
        match side {
            SimSide::Broker => &mut self.broker,
            SimSide::Client => &mut self.client,
        }
    }

    fn begin(&mut self, side: SimSide, operation: bool, message: bool) -> Result<(), FabricError> {
        let port = self.port(side);
        if port.gone {
            return Err(FabricError::Gone);
        }
        if (operation && port.outstanding >= OUTSTANDING_MAX) || (message && port.untaken >= RECEIVES_MAX) {
            (port.missed, port.made) = (true, false);
            return Err(FabricError::Full("simulated work"));
        }
        port.outstanding = port.outstanding.saturating_add(usize::from(operation));
        port.untaken = port.untaken.saturating_add(usize::from(message));
        Ok(())
    }

    fn post(&mut self, from: SimSide, op: Option<u64>, kind: PacketKind) {
        self.port(from).posted.push_back(Packet { from, op, kind });
    }
}

/// The cable between two cards, for whoever plays the network.
#[derive(Clone, Debug, Default)]
pub struct Cable(Arc<Mutex<Inner>>);

impl Cable {
    /// A cable, and the two cards: the broker's and the client's.
    #[must_use]
    pub fn new() -> (Cable, SimNic, SimNic) {
        let cable = Cable::default();
        let nic = |side| SimNic { cable: cable.clone(), side };
        let (broker, client) = (nic(SimSide::Broker), nic(SimSide::Client));
        (cable, broker, client)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next thing that a card has sent.
    #[must_use]
    pub fn next(&self, from: SimSide) -> Option<Packet> {
        self.lock().port(from).posted.pop_front()
    }

    /// Carries out a packet at the other end; what comes back, if anything does.
    ///
    /// # Errors
    /// [`FabricError::Refused`] where that end does not let it be done, as a card does: both ends are gone then.
    pub fn deliver(&self, packet: Packet) -> Result<Option<Reply>, FabricError> {
        let done = Self::carry_out(&mut self.lock(), packet);
        if done.is_err() {
            self.cut(SimSide::Broker);
            self.cut(SimSide::Client);
        }
        done
    }

    fn carry_out(inner: &mut Inner, packet: Packet) -> Result<Option<Reply>, FabricError> {
        let Packet { from, op, kind } = packet;
        let at_peer = from.other();
        let (mut word, mut read) = (0, None);
        match kind {
            PacketKind::Write { pieces, key, at, notify } => {
                let mut bytes = Vec::new();
                for piece in pieces {
                    let own = inner.port(from).region(piece.local.0, Access::NONE)?;
                    let mut part = vec![0; piece.len];
                    own.read(piece.at, &mut part)?;
                    bytes.extend_from_slice(&part);
                }
                let port = inner.port(at_peer);
                let region = port.region(key, Access::WRITE)?;
                region.write(at, &bytes).map_err(|error| refused(&error.to_string()))?;
                if let Some(imm) = notify {
                    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                    port.events.push_back(Event::Notified { imm, len });
                }
            }
            PacketKind::Read { key, at, into } => {
                let region = inner.port(at_peer).region(key, Access::READ)?;
                let mut bytes = vec![0; into.len];
                region.read(at, &mut bytes).map_err(|error| refused(&error.to_string()))?;
                read = Some((into, bytes));
            }
            PacketKind::Add { key, at, add } => {
                let region = inner.port(at_peer).region(key, Access::ADD)?;
                let target = region.word(at).map_err(|error| refused(&error.to_string()))?;
                word = target.fetch_add(add, Ordering::AcqRel);
            }
            PacketKind::Message(bytes) => {
                inner.port(at_peer).events.push_back(Event::Message(Message::short(&bytes)));
            }
        }
        Ok(op.map(|op| Reply { to: from, op, word, read }))
    }

    /// An operation has ended, and its card learns of it.
    ///
    /// # Errors
    /// [`FabricError::Refused`] where the memory that was to be filled is not registered any more: a card overwrites what it
    /// is none of its business, or ends its connection.
    pub fn complete(&self, reply: Reply) -> Result<(), FabricError> {
        let mut inner = self.lock();
        let port = inner.port(reply.to);
        if let Some((into, bytes)) = reply.read {
            port.region(into.local.0, Access::NONE)?.write(into.at, &bytes)?;
        }
        port.events.push_back(Event::Done { op: reply.op, result: Ok(reply.word) });
        Ok(())
    }

    /// An event that no honest peer has caused.
    pub fn forge(&self, at: SimSide, event: Event) {
        let mut inner = self.lock();
        if matches!(event, Event::Message(_) | Event::Notified { .. }) {
            let theirs = inner.port(at.other());
            theirs.untaken = theirs.untaken.saturating_add(1);
        }
        inner.port(at).events.push_back(event);
    }

    /// A card sees that its connection has ended.
    pub fn cut(&self, side: SimSide) {
        self.lock().port(side).gone = true;
    }

    /// The next registration of this end fails.
    pub fn refuse_registration(&self, side: SimSide) {
        self.lock().port(side).refuses = true;
    }

    /// Whether an end sleeps until something comes, or has gone.
    #[must_use]
    pub fn is_parked(&self, side: SimSide) -> bool {
        self.lock().port(side).parked
    }

    /// A region that an end has registered, by the key of its descriptor.
    #[must_use]
    pub fn registered(&self, side: SimSide, key: u64) -> Option<Region> {
        self.lock().port(side).registered.get(&key).map(|(region, _)| region.clone())
    }

    /// How many regions an end has registered.
    #[must_use]
    pub fn registrations(&self, side: SimSide) -> usize {
        self.lock().port(side).registered.len()
    }

    /// All that was sent is done at once, until there is nothing more.
    ///
    /// # Errors
    /// As [`Cable::deliver`].
    pub fn run(&self) -> Result<(), FabricError> {
        for from in [SimSide::Broker, SimSide::Client] {
            while let Some(packet) = self.next(from) {
                if let Some(reply) = self.deliver(packet)? {
                    self.complete(reply)?;
                }
            }
        }
        Ok(())
    }
}

/// One end.
#[derive(Debug)]
pub struct SimNic {
    cable: Cable,
    side: SimSide,
}

impl SimNic {
    /// As [`VerbsEndpoint::hold`](crate::verbs::VerbsEndpoint::hold).
    pub fn hold(&mut self, hold: bool) {
        self.cable.lock().port(self.side).held = hold;
    }

    /// As [`VerbsEndpoint::is_quiet`](crate::verbs::VerbsEndpoint::is_quiet).
    #[must_use]
    pub fn is_quiet(&mut self) -> bool {
        let mut inner = self.cable.lock();
        let port = inner.port(self.side);
        let room = port.missed && port.made;
        port.missed &= !room;
        !port.has_ready() && !port.gone && !room
    }

    fn check(remote: Remote, at: usize, len: usize, needs: Access) -> Result<usize, FabricError> {
        if !remote.access.has(needs) {
            return Err(refused("it is for something else"));
        }
        at.checked_add(len).filter(|end| *end <= remote.len).ok_or_else(|| refused("it ends before"))?;
        let start = usize::try_from(remote.start).map_err(|_| refused("it has no such place"))?;
        start.checked_add(at).ok_or_else(|| refused("it has no such place"))
    }

    fn gather(&self, pieces: &[Piece]) -> Result<(Vec<u8>, usize), FabricError> {
        let mut inner = self.cable.lock();
        let mut bytes = Vec::new();
        for piece in pieces {
            let own = inner.port(self.side).region(piece.local.0, Access::NONE);
            let own = own.map_err(|_| FabricError::Misuse("a piece is not registered".to_owned()))?;
            let mut part = vec![0; piece.len];
            own.read(piece.at, &mut part)?;
            bytes.extend_from_slice(&part);
        }
        let len = bytes.len();
        Ok((bytes, len))
    }
}

impl Endpoint for SimNic {
    fn limits(&self) -> Limits {
        Limits { outstanding: OUTSTANDING_MAX, pieces: 1, message_bytes: MESSAGE_BYTES_MAX, adds: true }
    }

    fn register(&mut self, region: &Region, access: Access) -> Result<Registration, FabricError> {
        let mut inner = self.cable.lock();
        let port = inner.port(self.side);
        if std::mem::take(&mut port.refuses) {
            return Err(FabricError::Provider("a simulated card has no room".into()));
        }
        port.last_key = port.last_key.saturating_add(1);
        let key = port.last_key;
        port.registered.insert(key, (region.clone(), access));
        let len = u64::try_from(region.len()).unwrap_or(u64::MAX);
        let descriptor = [&key.to_le_bytes()[..], &len.to_le_bytes(), &[access.bits()]].concat();
        let descriptor = Descriptor::new(&descriptor);
        let descriptor = descriptor.ok_or_else(|| FabricError::Misuse("a descriptor is long".to_owned()))?;
        Ok(Registration { local: Local(key), descriptor })
    }

    fn revoke(&mut self, local: Local) -> Result<Option<Region>, FabricError> {
        let taken = self.cable.lock().port(self.side).registered.remove(&local.0);
        let unknown = || FabricError::Misuse("a region is not registered".to_owned());
        taken.map(|(region, _)| Some(region)).ok_or_else(unknown)
    }

    fn reach(&mut self, descriptor: &Descriptor) -> Result<Option<Remote>, FabricError> {
        let lies = || FabricError::Peer("sends a descriptor that means nothing".to_owned());
        let bytes: [u8; 17] = descriptor.as_bytes().try_into().map_err(|_| lies())?;
        let [words @ .., access] = bytes;
        let ([key, len], []) = words.as_chunks::<8>() else { return Err(lies()) };
        let access = Access::from_bits(access).ok_or_else(lies)?;
        let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| lies())?;
        Ok(Some(Remote { key: u64::from_le_bytes(*key), start: 0, len, access }))
    }

    fn release(&mut self, _: Remote) {}

    fn write(
        &mut self,
        op: u64,
        pieces: &[Piece],
        to: Remote,
        at: usize,
        notify: Option<u32>,
    ) -> Result<(), FabricError> {
        let (_, len) = self.gather(pieces)?;
        let at = Self::check(to, at, len, Access::WRITE)?;
        let mut inner = self.cable.lock();
        inner.begin(self.side, true, notify.is_some())?;
        let kind = PacketKind::Write { pieces: pieces.to_vec(), key: to.key, at, notify };
        inner.post(self.side, Some(op), kind);
        Ok(())
    }

    fn read(&mut self, op: u64, from: Remote, at: usize, into: Piece) -> Result<(), FabricError> {
        self.gather(&[into])?;
        let at = Self::check(from, at, into.len, Access::READ)?;
        let mut inner = self.cable.lock();
        inner.begin(self.side, true, false)?;
        inner.post(self.side, Some(op), PacketKind::Read { key: from.key, at, into });
        Ok(())
    }

    fn fetch_add(&mut self, op: u64, to: Remote, at: usize, add: u64) -> Result<(), FabricError> {
        let at = Self::check(to, at, size_of::<u64>(), Access::ADD)?;
        let mut inner = self.cable.lock();
        inner.begin(self.side, true, false)?;
        inner.post(self.side, Some(op), PacketKind::Add { key: to.key, at, add });
        Ok(())
    }

    fn tell(&mut self, message: &[u8]) -> Result<(), FabricError> {
        if message.len() > SHORT_BYTES_MAX {
            return Err(FabricError::Misuse("a short message is so short (SHORT_BYTES_MAX)".to_owned()));
        }
        let mut inner = self.cable.lock();
        inner.begin(self.side, false, true)?;
        inner.post(self.side, None, PacketKind::Message(message.to_vec()));
        Ok(())
    }

    fn send(&mut self, op: u64, pieces: &[Piece]) -> Result<(), FabricError> {
        let (bytes, len) = self.gather(pieces)?;
        if len > MESSAGE_BYTES_MAX {
            return Err(FabricError::Misuse("a message has a limit (Limits::message_bytes)".to_owned()));
        }
        let mut inner = self.cable.lock();
        inner.begin(self.side, true, true)?;
        inner.post(self.side, Some(op), PacketKind::Message(bytes));
        Ok(())
    }

    fn nudge(&mut self) -> Result<(), FabricError> {
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<Event>, max: usize) -> Result<(), FabricError> {
        let mut inner = self.cable.lock();
        let mut polled: usize = 0;
        while polled < max {
            let port = inner.port(self.side);
            let held = port.held;
            let at = port.events.iter().position(|event| Port::is_ready(event, held));
            let Some(event) = at.and_then(|at| port.events.remove(at)) else { break };
            let of = if matches!(event, Event::Done { .. }) {
                port.outstanding = port.outstanding.saturating_sub(1);
                port
            } else {
                let theirs = inner.port(self.side.other());
                theirs.untaken = theirs.untaken.saturating_sub(1);
                theirs
            };
            of.made = true;
            events.push(event);
            polled = polled.saturating_add(1);
        }
        let gone = polled == 0 && max > 0 && inner.port(self.side).gone;
        if gone { Err(FabricError::Gone) } else { Ok(()) }
    }

    fn park(&mut self) -> Result<bool, FabricError> {
        let quiet = self.is_quiet();
        self.cable.lock().port(self.side).parked = quiet;
        Ok(quiet)
    }

    fn wake(&mut self) -> Result<(), FabricError> {
        self.cable.lock().port(self.side).parked = false;
        Ok(())
    }
}
