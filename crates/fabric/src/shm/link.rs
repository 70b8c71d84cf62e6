//! A link, as each of its sides has it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::message::{MESSAGE_BYTES, Message};
use super::{KEYS_MAX, LENT_BYTES_MAX, LinkError, QUEUE_MAX, failed, socket};
use crate::committed::Committed;
use crate::memory::{Memory, Rights};
use crate::ring::{Note, NotesError, Receiver, Sender, SharedWords};

/// Which side of a link this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Broker,
    Client,
}

/// What the other side tells over the socket.
#[derive(Debug)]
pub enum Control {
    /// It exposes memory.
    Exposed {
        /// What it calls it.
        key: u64,
        /// The memory, with the rights that it was exposed with.
        memory: Arc<Memory>,
    },
    /// The broker exposes a file that it appends to.
    File {
        /// What it calls it.
        key: u64,
        /// The file, at position 0.
        file: Committed,
    },
    /// What it has exposed by this key is not to be used any more.
    Ended {
        /// What it has called it.
        key: u64,
    },
}

/// One side of a link. Both are alike, except that the broker exposes files, and takes only memory whose size nobody can
/// change.
///
/// After an error that is neither [`LinkError::Full`], [`LinkError::Misuse`] nor [`NotesError::Full`] it is to be dropped.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
    sender: Sender<SharedWords>,
    receiver: Receiver<SharedWords>,
    our_bell: OwnedFd,
    their_bell: OwnedFd,
    side: Side,
    /// What we have exposed.
    ours: BTreeMap<u64, Rights>,
    /// Keys of what the other side has exposed.
    theirs: BTreeSet<u64>,
    /// What the socket did not take yet.
    queue: VecDeque<(Message, Option<OwnedFd>)>,
    /// Notes that there was no room for.
    wants_room: u64,
}

impl Drop for Link {
    /// To close the socket would not do: a child of this process that was forked meanwhile has it open too, and the other
    /// side would not see the end.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

impl Link {
    pub(super) fn new(
        socket: OwnedFd,
        sender: Sender<SharedWords>,
        receiver: Receiver<SharedWords>,
        [our_bell, their_bell]: [OwnedFd; 2],
        side: Side,
    ) -> Link {
        let (ours, theirs, queue) = (BTreeMap::new(), BTreeSet::new(), VecDeque::new());
        Link { socket, sender, receiver, our_bell, their_bell, side, ours, theirs, queue, wants_room: 0 }
    }

    /// Readable when there may be something to take from [`Link::control`], also when the other side has gone.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Readable when the other side has rung, until [`Link::drain_bell`].
    #[must_use]
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.our_bell.as_fd()
    }

    /// Forgets that the other side has rung. What it rang for is looked for after this.
    pub fn drain_bell(&self) {
        // One read takes all; that there is nothing is no error.
        let _ = rustix::io::read(&self.our_bell, &mut [0; 8]);
    }

    /// Lends memory by a key of our choice.
    ///
    /// # Errors
    /// [`LinkError::Misuse`] for a key that is in use, and memory that may not be exposed so: to be written it must be ours and
    /// [sealed](Memory::sealed); [`LinkError::Full`]; [`LinkError::Gone`].
    pub fn expose(&mut self, key: u64, memory: &Memory, rights: Rights) -> Result<(), LinkError> {
        if rights == Rights::Write && !(memory.rights() == Rights::Write && memory.is_sealed()) {
            return Err(LinkError::Misuse("exposes to be written what is sealed"));
        }
        if self.side == Side::Client && !memory.is_sealed() {
            return Err(LinkError::Misuse("exposes to a broker what is sealed"));
        }
        let len = self.check_new_key(key, memory.len())?;
        let message = Message::Expose { key, len, rights };
        match memory.file() {
            Some(file) if rights == Rights::Write => self.tell(message, Some(file))?,
            _ => self.tell(message, Some(memory.readers_file()?.as_fd()))?,
        }
        self.ours.insert(key, rights);
        Ok(())
    }

    /// Lends a file that we append to, opened to be read only, to be mapped for `len` bytes, also those that it does not
    /// have yet. See [`Committed`] for what is promised by this.
    ///
    /// # Errors
    /// As [`Link::expose`]; a client exposes none.
    pub fn expose_file(&mut self, key: u64, file: BorrowedFd<'_>, len: usize) -> Result<(), LinkError> {
        if self.side == Side::Client {
            return Err(LinkError::Misuse("exposes files to clients alone"));
        }
        let len = self.check_new_key(key, len)?;
        self.tell(Message::LendFile { key, len }, Some(file))?;
        self.ours.insert(key, Rights::Read);
        Ok(())
    }

    /// Tells that what was exposed by this key is not to be used any more. The other side may have it mapped all the same: what
    /// it may write is abandoned, not used again.
    ///
    /// # Errors
    /// [`LinkError::Misuse`] for a key of nothing; [`LinkError::Full`]; [`LinkError::Gone`].
    pub fn end(&mut self, key: u64) -> Result<(), LinkError> {
        if !self.ours.contains_key(&key) {
            return Err(LinkError::Misuse("ends what it has exposed"));
        }
        self.tell(Message::End { key }, None)?;
        self.ours.remove(&key);
        Ok(())
    }

    /// What the other side may do with what was exposed by this key.
    pub(super) fn exposes(&self, key: u64) -> Option<Rights> {
        self.ours.get(&key).copied()
    }

    /// Says that we wait for the other side to take what was sent. It rings when it has; what it has taken until now is
    /// looked at after this.
    pub(super) fn wait_for_room(&mut self) {
        self.sender.wait_for_room();
    }

    /// Whether something waits for the socket to take it: then [`Link::flush`] when it is writable.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Sends what waits, as far as the socket takes it.
    ///
    /// # Errors
    /// [`LinkError::Gone`], [`LinkError::System`].
    pub fn flush(&mut self) -> Result<(), LinkError> {
        while let Some((message, file)) = self.queue.front() {
            let file = file.as_ref().map(AsFd::as_fd);
            if !socket::send(self.socket.as_fd(), &message.encode(), file.as_slice())? {
                break;
            }
            self.queue.pop_front();
        }
        Ok(())
    }

    /// The next thing that the other side tells; none: not now.
    ///
    /// # Errors
    /// [`LinkError::Gone`] where it has ended; [`LinkError::Peer`] and [`LinkError::Memory`] where it lies.
    pub fn control(&mut self) -> Result<Option<Control>, LinkError> {
        let mut packet = [0; MESSAGE_BYTES];
        let Some((packet, files)) = socket::receive(self.socket.as_fd(), &mut packet)? else {
            return Ok(None);
        };
        let message = Message::decode(packet).ok_or(LinkError::Peer("sends what is no message of a link"))?;
        let file = one_at_most(files)?;
        let reported = match (message, file) {
            (Message::Expose { key, len, rights }, Some(file)) => {
                let len = self.check_their_key(key, len)?;
                if self.side == Side::Broker && !crate::memory::is_sealed(file.as_fd()) {
                    return Err(LinkError::Peer("exposes memory that it could cut"));
                }
                Control::Exposed { key, memory: Memory::from_peer(file, len, rights)? }
            }
            (Message::LendFile { key, len }, Some(file)) if self.side == Side::Client => {
                let len = self.check_their_key(key, len)?;
                Control::File { key, file: Committed::map(file, len)? }
            }
            (Message::End { key }, None) => {
                if !self.theirs.remove(&key) {
                    return Err(LinkError::Peer("ends what it has not exposed"));
                }
                return Ok(Some(Control::Ended { key }));
            }
            _ => return Err(LinkError::Peer("sends what it should not")),
        };
        let (Control::Exposed { key, .. } | Control::File { key, .. } | Control::Ended { key }) = &reported;
        self.theirs.insert(*key);
        Ok(Some(reported))
    }

    /// Sends a note, and wakes the other side if it sleeps.
    ///
    /// # Errors
    /// [`NotesError`]: full, or the other side lies. After full, a sleep ends also when there is room.
    pub fn send(&mut self, note: Note) -> Result<(), NotesError> {
        let sent = self.sender.send(note);
        self.wants_room = u64::from(sent == Err(NotesError::Full));
        if sent? {
            self.ring();
        }
        Ok(())
    }

    /// Sends a note as [`Link::send`] does, and wakes nobody: that is left to [`Link::ring_if_asleep`].
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn post(&mut self, note: Note) -> Result<(), NotesError> {
        let sent = self.sender.post(note);
        self.wants_room = u64::from(sent == Err(NotesError::Full));
        sent
    }

    /// Whether so many notes, of a ring's capacity, can be sent now. Where not, a sleep ends also when there is room.
    ///
    /// # Errors
    /// [`NotesError::Peer`].
    pub fn has_room(&mut self, notes: u64) -> Result<bool, NotesError> {
        let has = self.sender.has_room(notes)?;
        self.wants_room = if has { 0 } else { notes };
        Ok(has)
    }

    /// The next note; none: not now. Notes that were sent before the other side went are still there.
    ///
    /// # Errors
    /// [`LinkError::Notes`] where the other side lies.
    pub fn take(&mut self) -> Result<Option<Note>, LinkError> {
        let note = self.receiver.take()?;
        if note.is_none() && self.receiver.sender_waits() {
            self.ring();
        }
        Ok(note)
    }

    /// Whether there is a note to take.
    ///
    /// # Errors
    /// [`NotesError::Peer`].
    pub fn has_notes(&mut self) -> Result<bool, NotesError> {
        self.receiver.has_notes()
    }

    /// Says that we go to sleep: to wait for [`Link::bell`] and [`Link::socket`]. False: there are notes, or there is room that
    /// was missing. What else the other side may have published is looked at after this, before the wait.
    ///
    /// # Errors
    /// [`LinkError::Notes`] where the other side lies.
    pub fn park(&mut self) -> Result<bool, LinkError> {
        if !self.receiver.park()? {
            return Ok(false);
        }
        if self.receiver.sender_waits() {
            self.ring();
        }
        if self.wants_room > 0 {
            self.sender.wait_for_room();
            if self.sender.has_room(self.wants_room)? {
                self.wants_room = 0;
                self.receiver.wake();
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Says that we are awake, and need not be rung for.
    pub fn wake(&mut self) {
        self.receiver.wake();
    }

    /// Wakes the other side if it sleeps, after something was published to it elsewhere than in a note.
    pub fn ring_if_asleep(&self) {
        if self.sender.receiver_sleeps() {
            self.ring();
        }
    }

    fn ring(&self) {
        // Any number wakes, of either byte order. It fails where the other side has been rung for without end, and not
        // looked: it has not forgotten that.
        let _ = rustix::io::write(&self.their_bell, &1_u64.to_le_bytes());
    }

    fn check_new_key(&self, key: u64, len: usize) -> Result<u64, LinkError> {
        if self.ours.contains_key(&key) {
            return Err(LinkError::Misuse("exposes by a key once"));
        }
        if self.ours.len() >= KEYS_MAX {
            return Err(LinkError::Full("so many keys (KEYS_MAX)"));
        }
        if len == 0 || len > LENT_BYTES_MAX {
            return Err(LinkError::Misuse("exposes some bytes, up to a limit (LENT_BYTES_MAX)"));
        }
        u64::try_from(len).map_err(|_| LinkError::Misuse("exposes what has a length"))
    }

    fn check_their_key(&self, key: u64, len: u64) -> Result<usize, LinkError> {
        if self.theirs.contains(&key) {
            return Err(LinkError::Peer("exposes twice by one key"));
        }
        if self.theirs.len() >= KEYS_MAX {
            return Err(LinkError::Peer("exposes more at once than it may"));
        }
        let len = usize::try_from(len).ok().filter(|len| (1..=LENT_BYTES_MAX).contains(len));
        len.ok_or(LinkError::Peer("exposes what is too long"))
    }

    /// In order: what waits goes first.
    fn tell(&mut self, message: Message, file: Option<BorrowedFd<'_>>) -> Result<(), LinkError> {
        self.flush()?;
        if self.queue.is_empty() && socket::send(self.socket.as_fd(), &message.encode(), file.as_slice())? {
            return Ok(());
        }
        // What comes without one ends a key of ours, of which there are only so many.
        if self.queue.len() >= QUEUE_MAX && file.is_some() {
            return Err(LinkError::Full("so many messages (QUEUE_MAX)"));
        }
        let file = file.map(|file| rustix::io::fcntl_dupfd_cloexec(file, 0)).transpose();
        self.queue.push_back((message, file.map_err(failed("keep what is exposed"))?));
        Ok(())
    }
}

fn one_at_most(files: Vec<OwnedFd>) -> Result<Option<OwnedFd>, LinkError> {
    let mut files = files.into_iter();
    match (files.next(), files.next()) {
        (file, None) => Ok(file),
        _ => Err(LinkError::Peer("sends more descriptors than it should")),
    }
}
