//! [`Endpoint`] over a [`Link`].
//!
//! Operations are done at once, by our own processor, in the peer's mapped memory; what the peer is told goes as notes:
//! ```text
//! word 0, low 8 bits   0..        word 1           word 2
//! 1: written           imm << 32  bytes
//! 2: short message     bytes << 8 its bytes, three words of them; the others in a note of their own
//! 3: long message                 position         bytes
//! ```
//! Long messages lie in the receiver's inbox: memory that it has exposed, with a word of what it has taken so far, and then a
//! ring of bytes. Descriptors are key, start, length and access.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use super::link::{Control, Link};
use super::{KEYS_MAX, LinkError};
use crate::committed::Committed;
use crate::endpoint::{
    Access, Descriptor, Endpoint, Event, FabricError, Limits, Local, Message, PIECES_MAX, Piece,
    Registration, Remote, SHORT_BYTES_MAX, Waitable,
};
use crate::memory::{Memory, Rights};
use crate::region::Region;
use crate::ring::{Note, NotesError};

/// Ended operations that were not polled.
const OUTSTANDING_MAX: usize = 1 << 10;
/// Bytes of messages that the receiver has not taken yet.
const INBOX_BYTES: usize = 1 << 18;
const MESSAGE_BYTES_MAX: usize = INBOX_BYTES / 4;
/// The key of an inbox; those of registrations follow.
const INBOX_KEY: u64 = 0;
/// Where the bytes of an inbox start; the word of what was taken is at 0.
const INBOX_START: usize = 64;
/// The socket is looked at once in so many polls: it costs a system call.
const POLLS_BETWEEN_LOOKS: u32 = 1 << 8;

const WRITTEN: u64 = 1;
const SHORT: u64 = 2;
const LONG: u64 = 3;
/// Bytes of a short message that go with its first note.
const FIRST_BYTES: usize = 24;

/// One side of a link, with the trait of all fabrics.
#[derive(Debug)]
pub struct LinkEndpoint {
    link: Link,
    registered: BTreeMap<u64, Region>,
    /// The key of the next registration: none is used twice.
    next: u64,
    /// What the peer lets us reach.
    reached: BTreeMap<u64, Region>,
    files: BTreeMap<u64, Committed>,
    /// The greatest key that the peer has exposed.
    seen: Option<u64>,
    done: VecDeque<(u64, u64)>,
    inbox: Inbox,
    outbox: Option<Outbox>,
    /// A message of so many bytes had no room there.
    wants_bytes: Option<usize>,
    /// A short message whose second note has not come.
    first: Option<(usize, [u8; SHORT_BYTES_MAX])>,
    polls: u32,
    gone: bool,
}

/// Long messages to us.
#[derive(Debug)]
struct Inbox {
    region: Region,
    taken: u64,
}

/// Long messages to the peer: its inbox.
#[derive(Debug)]
struct Outbox {
    region: Region,
    sent: u64,
}

impl From<LinkError> for FabricError {
    fn from(error: LinkError) -> FabricError {
        match error {
            LinkError::Gone => FabricError::Gone,
            LinkError::Full(what) => FabricError::Full(what),
            LinkError::Peer(what) => FabricError::Peer(what.to_owned()),
            LinkError::Notes(error) => error.into(),
            LinkError::Misuse(_) => FabricError::Misuse(error.to_string()),
            other => FabricError::Provider(Box::new(other)),
        }
    }
}

impl From<NotesError> for FabricError {
    fn from(error: NotesError) -> FabricError {
        match error {
            NotesError::Full => FabricError::Full("more notes"),
            NotesError::Peer { .. } => FabricError::Peer(format!("lies: {error}")),
        }
    }
}

/// Where a position of a ring of bytes lies, and how many bytes follow before its end.
fn place(position: u64) -> (usize, usize) {
    let mask = u64::try_from(INBOX_BYTES).unwrap_or(1).wrapping_sub(1);
    let at = usize::try_from(position & mask).unwrap_or(0);
    (INBOX_START.saturating_add(at), INBOX_BYTES.saturating_sub(at))
}

fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

impl LinkEndpoint {
    /// Of a link that exposes nothing yet.
    ///
    /// # Errors
    /// [`FabricError`], where there is no memory for an inbox.
    pub fn new(mut link: Link) -> Result<LinkEndpoint, FabricError> {
        let memory = Memory::sealed("headrace-inbox", INBOX_START.saturating_add(INBOX_BYTES))
            .map_err(LinkError::from)?;
        link.expose(INBOX_KEY, &memory, Rights::Write)?;
        Ok(LinkEndpoint {
            link,
            registered: BTreeMap::new(),
            next: INBOX_KEY.saturating_add(1),
            reached: BTreeMap::new(),
            files: BTreeMap::new(),
            seen: None,
            done: VecDeque::new(),
            inbox: Inbox { region: Region::whole(memory), taken: 0 },
            outbox: None,
            wants_bytes: None,
            first: None,
            polls: 0,
            gone: false,
        })
    }

    /// Lends a file that we append to; see [`Link::expose_file`]. It is not for operations: the peer has it by
    /// [`LinkEndpoint::file`].
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn expose_file(&mut self, file: BorrowedFd<'_>, len: usize) -> Result<u64, FabricError> {
        let key = self.next;
        self.link.expose_file(key, file, len)?;
        self.next = key.saturating_add(1);
        Ok(key)
    }

    /// Ends what was exposed by [`LinkEndpoint::expose_file`].
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn end_file(&mut self, key: u64) -> Result<(), FabricError> {
        Ok(self.link.end(key)?)
    }

    /// A file that the broker has exposed; none: not yet, or no longer.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn file(&mut self, key: u64) -> Result<Option<Committed>, FabricError> {
        if !self.files.contains_key(&key) {
            self.look()?;
        }
        Ok(self.files.get(&key).cloned())
    }

    /// Looks at the socket.
    fn look(&mut self) -> Result<(), FabricError> {
        self.polls = 0;
        loop {
            let reported = match self.link.control() {
                Ok(Some(reported)) => reported,
                Ok(None) => break,
                Err(LinkError::Gone) => {
                    self.gone = true;
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            };
            let key = match reported {
                Control::Exposed { key: INBOX_KEY, memory } => {
                    let region = Region::whole(memory);
                    region.word(INBOX_START.saturating_add(INBOX_BYTES).saturating_sub(8)).map_err(|_| {
                        FabricError::Peer(
                            "exposes an inbox that is too small or not to be written".to_owned(),
                        )
                    })?;
                    self.outbox = Some(Outbox { region, sent: 0 });
                    INBOX_KEY
                }
                Control::Exposed { key, memory } => {
                    self.reached.insert(key, Region::whole(memory));
                    key
                }
                Control::File { key, file } => {
                    self.files.insert(key, file);
                    key
                }
                Control::Ended { key } => {
                    self.reached.remove(&key);
                    self.files.remove(&key);
                    continue;
                }
            };
            if self.seen.is_some_and(|seen| key <= seen) {
                return Err(FabricError::Peer("exposes twice by one key".to_owned()));
            }
            self.seen = Some(key);
        }
        match self.link.flush() {
            Err(LinkError::Gone) => self.gone = true,
            other => other?,
        }
        Ok(())
    }

    /// Before an operation.
    fn begin(&self) -> Result<(), FabricError> {
        if self.gone {
            return Err(FabricError::Gone);
        }
        if self.done.len() >= OUTSTANDING_MAX {
            return Err(FabricError::Full("more operations before a poll"));
        }
        Ok(())
    }

    /// Bytes of pieces that are all there.
    fn check_pieces(&self, pieces: &[Piece]) -> Result<usize, FabricError> {
        if pieces.len() > PIECES_MAX {
            return Err(FabricError::Misuse("an operation has so many pieces (PIECES_MAX)".to_owned()));
        }
        let mut len: usize = 0;
        for piece in pieces {
            self.local(piece.local)?.check(piece.at, piece.len)?;
            len = len.saturating_add(piece.len);
        }
        Ok(len)
    }

    fn local(&self, local: Local) -> Result<&Region, FabricError> {
        let region = self.registered.get(&local.0);
        region.ok_or_else(|| FabricError::Misuse("a region of an operation is not registered".to_owned()))
    }

    /// The peer's memory, and where in it an operation starts that the peer lets us do.
    fn target(
        &self,
        remote: Remote,
        at: usize,
        len: usize,
        needs: Access,
    ) -> Result<(&Region, usize), FabricError> {
        let refused = |why: &str| FabricError::Refused(why.to_owned());
        let region = self.reached.get(&remote.key).ok_or_else(|| refused("it was revoked"))?;
        if !remote.access.has(needs) {
            return Err(refused("it is for something else"));
        }
        at.checked_add(len).filter(|end| *end <= remote.len).ok_or_else(|| refused("it ends before"))?;
        let start = usize::try_from(remote.start).ok().and_then(|start| start.checked_add(at));
        let start = start.ok_or_else(|| refused("it has no such place"))?;
        Ok((region, start))
    }

    /// Copies pieces that were checked to follow each other in a region.
    fn gather(&self, pieces: &[Piece], into: &Region, at: usize) -> Result<(), FabricError> {
        let mut at = at;
        for piece in pieces {
            let from = self.local(piece.local)?;
            into.copy_from(at, from, piece.at, piece.len)
                .map_err(|error| FabricError::Refused(error.to_string()))?;
            at = at.saturating_add(piece.len);
        }
        Ok(())
    }

    /// Copies pieces to the peer's inbox, which has room for them.
    fn put(&self, pieces: &[Piece], sent: u64) -> Result<(), FabricError> {
        let Some(outbox) = &self.outbox else { return Ok(()) };
        let mut position = sent;
        for piece in pieces {
            let (at, before_end) = place(position);
            let (first, from) = (piece.len.min(before_end), self.local(piece.local)?);
            outbox.region.copy_from(at, from, piece.at, first)?;
            let rest = piece.len.saturating_sub(first);
            outbox.region.copy_from(INBOX_START, from, piece.at.saturating_add(first), rest)?;
            position = position.wrapping_add(wide(piece.len));
        }
        Ok(())
    }

    fn first_note(len: usize, bytes: &[u8; SHORT_BYTES_MAX]) -> (Note, Note) {
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut word = || words.next().unwrap_or(0);
        let first = [SHORT | (wide(len) << 8), word(), word(), word()];
        (first, [word(), word(), word(), word()])
    }

    fn note(&mut self, note: Note) -> Result<Option<Event>, FabricError> {
        let lies = || FabricError::Peer("sends a note that means nothing".to_owned());
        if let Some((len, mut bytes)) = self.first.take() {
            for (into, word) in bytes.as_chunks_mut::<8>().0.iter_mut().skip(FIRST_BYTES / 8).zip(note) {
                *into = word.to_le_bytes();
            }
            return Ok(bytes.get(..len).map(|bytes| Event::Message(Message::short(bytes))));
        }
        let [head, words @ ..] = note;
        match head & 0xff {
            WRITTEN => {
                let imm = u32::try_from(head >> 32).map_err(|_| lies())?;
                let len = u32::try_from(words[0]).map_err(|_| lies())?;
                Ok(Some(Event::Notified { imm, len }))
            }
            SHORT => {
                let len = usize::try_from(head >> 8).ok().filter(|len| *len <= SHORT_BYTES_MAX);
                let len = len.ok_or_else(lies)?;
                let mut bytes = [0; SHORT_BYTES_MAX];
                for (into, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                    *into = word.to_le_bytes();
                }
                if len > FIRST_BYTES {
                    self.first = Some((len, bytes));
                    return Ok(None);
                }
                Ok(bytes.get(..len).map(|bytes| Event::Message(Message::short(bytes))))
            }
            LONG => {
                let len = usize::try_from(words[1]).ok().filter(|len| *len <= MESSAGE_BYTES_MAX);
                let len = len.filter(|_| words[0] == self.inbox.taken).ok_or_else(lies)?;
                Ok(Some(Event::Message(Message::long(self.inbox.take(len)?))))
            }
            _ => Err(lies()),
        }
    }
}

impl Inbox {
    fn take(&mut self, len: usize) -> Result<Vec<u8>, FabricError> {
        let (at, before_end) = place(self.taken);
        let mut bytes = vec![0; len];
        let (first, second) = bytes.split_at_mut(len.min(before_end));
        self.region.read(at, first)?;
        self.region.read(INBOX_START, second)?;
        self.taken = self.taken.wrapping_add(wide(len));
        // Released: the bytes were read before the peer may write over them.
        self.region.word(0)?.store(self.taken, Ordering::Release);
        Ok(bytes)
    }
}

impl Outbox {
    fn has_room(&self, len: usize) -> Result<bool, FabricError> {
        let under_way = self.sent.wrapping_sub(self.region.load(0)?);
        if under_way > wide(INBOX_BYTES) {
            return Err(FabricError::Peer("says that it has taken what was not sent".to_owned()));
        }
        Ok(under_way.saturating_add(wide(len)) <= wide(INBOX_BYTES))
    }
}

impl Endpoint for LinkEndpoint {
    fn limits(&self) -> Limits {
        Limits {
            outstanding: OUTSTANDING_MAX,
            pieces: PIECES_MAX,
            message_bytes: MESSAGE_BYTES_MAX,
            adds: true,
        }
    }

    fn register(&mut self, region: &Region, access: Access) -> Result<Registration, FabricError> {
        if self.registered.len() >= KEYS_MAX {
            return Err(FabricError::Full("more registrations"));
        }
        let key = self.next;
        let (memory, start) = region.memory();
        if access != Access::NONE {
            let writes = access.has(Access::WRITE) || access.has(Access::ADD);
            self.link.expose(key, memory, if writes { Rights::Write } else { Rights::Read })?;
        }
        self.next = key.saturating_add(1);
        self.registered.insert(key, region.clone());
        let words = [key, wide(start), wide(region.len()), u64::from(access.bits())];
        let descriptor = Descriptor::new(words.map(u64::to_le_bytes).as_flattened());
        let descriptor = descriptor.ok_or_else(|| FabricError::Misuse("a descriptor is long".to_owned()))?;
        Ok(Registration { local: Local(key), descriptor })
    }

    fn revoke(&mut self, local: Local) -> Result<Option<Region>, FabricError> {
        let region = self.local(local)?.clone();
        let exposed = self.link.exposes(local.0);
        if let Some(rights) = exposed {
            match self.link.end(local.0) {
                // It maps it no longer.
                Err(LinkError::Gone) => self.gone = true,
                other => other?,
            }
            self.registered.remove(&local.0);
            return Ok((rights == Rights::Read).then_some(region));
        }
        self.registered.remove(&local.0);
        Ok(Some(region))
    }

    fn reach(&mut self, descriptor: &Descriptor) -> Result<Option<Remote>, FabricError> {
        let lies = || FabricError::Peer("sends a descriptor that means nothing".to_owned());
        let (words, []) = descriptor.as_bytes().as_chunks::<8>() else { return Err(lies()) };
        let [key, start, len, access] =
            <[[u8; 8]; 4]>::try_from(words).map_err(|_| lies())?.map(u64::from_le_bytes);
        let access = u8::try_from(access).ok().and_then(Access::from_bits).ok_or_else(lies)?;
        if key == INBOX_KEY || access == Access::NONE {
            return Err(lies());
        }
        if !self.reached.contains_key(&key) {
            self.look()?;
        }
        let Some(memory) = self.reached.get(&key) else {
            return match self.seen {
                Some(seen) if seen >= key => Err(FabricError::Refused("it was revoked".to_owned())),
                _ if self.gone => Err(FabricError::Gone),
                _ => Ok(None),
            };
        };
        let start_at = usize::try_from(start).map_err(|_| lies())?;
        let len = usize::try_from(len).map_err(|_| lies())?;
        memory.check(start_at, len).map_err(|_| lies())?;
        Ok(Some(Remote { key, start, len, access }))
    }

    fn release(&mut self, remote: Remote) {
        self.reached.remove(&remote.key);
    }

    fn mapped(&self, remote: Remote) -> Option<Region> {
        let start = usize::try_from(remote.start).ok()?;
        self.reached.get(&remote.key)?.part(start, remote.len).ok()
    }

    fn write(
        &mut self,
        op: u64,
        pieces: &[Piece],
        to: Remote,
        at: usize,
        notify: Option<u32>,
    ) -> Result<(), FabricError> {
        self.begin()?;
        let len = self.check_pieces(pieces)?;
        if notify.is_some() && !self.link.has_room(1)? {
            return Err(FabricError::Full("more notes"));
        }
        let (target, at) = self.target(to, at, len, Access::WRITE)?;
        self.gather(pieces, target, at)?;
        if let Some(imm) = notify {
            self.link.send([WRITTEN | (u64::from(imm) << 32), wide(len), 0, 0])?;
        }
        self.done.push_back((op, 0));
        Ok(())
    }

    fn read(&mut self, op: u64, from: Remote, at: usize, into: Piece) -> Result<(), FabricError> {
        self.begin()?;
        self.check_pieces(&[into])?;
        let (source, at) = self.target(from, at, into.len, Access::READ)?;
        self.local(into.local)?.copy_from(into.at, source, at, into.len)?;
        self.done.push_back((op, 0));
        Ok(())
    }

    fn fetch_add(&mut self, op: u64, to: Remote, at: usize, add: u64) -> Result<(), FabricError> {
        self.begin()?;
        let (target, at) = self.target(to, at, size_of::<u64>(), Access::ADD)?;
        let word = target.word(at).map_err(|error| FabricError::Refused(error.to_string()))?;
        let before = word.fetch_add(add, Ordering::AcqRel);
        self.done.push_back((op, before));
        Ok(())
    }

    fn tell(&mut self, message: &[u8]) -> Result<(), FabricError> {
        if self.gone {
            return Err(FabricError::Gone);
        }
        let mut bytes = [0; SHORT_BYTES_MAX];
        let into = bytes.get_mut(..message.len());
        let into = into
            .ok_or_else(|| FabricError::Misuse("a short message is so short (SHORT_BYTES_MAX)".to_owned()))?;
        into.copy_from_slice(message);
        let (first, second) = Self::first_note(message.len(), &bytes);
        if message.len() <= FIRST_BYTES {
            return Ok(self.link.send(first)?);
        }
        if !self.link.has_room(2)? {
            return Err(FabricError::Full("more notes"));
        }
        self.link.send(first)?;
        Ok(self.link.send(second)?)
    }

    fn send(&mut self, op: u64, pieces: &[Piece]) -> Result<(), FabricError> {
        self.begin()?;
        let len = self.check_pieces(pieces)?;
        if len > MESSAGE_BYTES_MAX {
            return Err(FabricError::Misuse("a message has a limit (Limits::message_bytes)".to_owned()));
        }
        if self.outbox.is_none() {
            self.look()?;
        }
        let outbox =
            self.outbox.as_ref().ok_or(FabricError::Full("a message before the peer's inbox is there"))?;
        let (fits, sent) = (outbox.has_room(len)?, outbox.sent);
        if !self.link.has_room(1)? {
            return Err(FabricError::Full("more notes"));
        }
        if !fits {
            self.wants_bytes = Some(len);
            return Err(FabricError::Full("more bytes of messages"));
        }
        self.wants_bytes = None;
        self.put(pieces, sent)?;
        if let Some(outbox) = &mut self.outbox {
            outbox.sent = sent.wrapping_add(wide(len));
        }
        self.link.send([LONG, sent, wide(len), 0])?;
        self.done.push_back((op, 0));
        Ok(())
    }

    fn nudge(&mut self) -> Result<(), FabricError> {
        self.link.ring_if_asleep();
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<Event>, max: usize) -> Result<(), FabricError> {
        self.polls = self.polls.saturating_add(1);
        if self.polls >= POLLS_BETWEEN_LOOKS {
            self.look()?;
        }
        let before = events.len();
        let mut room = max;
        while room > 0 {
            if let Some((op, value)) = self.done.pop_front() {
                events.push(Event::Done { op, result: Ok(value) });
                room = room.saturating_sub(1);
            } else if let Some(note) = self.link.take()? {
                let event = self.note(note)?;
                room = room.saturating_sub(usize::from(event.is_some()));
                events.extend(event);
            } else {
                break;
            }
        }
        if self.gone && events.len() == before && max > 0 { Err(FabricError::Gone) } else { Ok(()) }
    }

    fn park(&mut self) -> Result<bool, FabricError> {
        self.look()?;
        if !self.done.is_empty() || self.gone || !self.link.park()? {
            return Ok(false);
        }
        if let (Some(len), Some(outbox)) = (self.wants_bytes, &self.outbox) {
            self.link.wait_for_room();
            if outbox.has_room(len)? {
                self.wants_bytes = None;
                self.link.wake();
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn wake(&mut self) -> Result<(), FabricError> {
        self.link.wake();
        self.link.drain_bell();
        self.look()
    }
}

impl Waitable for LinkEndpoint {
    fn wakers(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        (self.link.bell(), Some(self.link.socket()))
    }

    fn wants_write(&self) -> bool {
        self.link.wants_write()
    }
}
