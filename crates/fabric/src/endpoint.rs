//! What every fabric does: one trait over shared memory and RDMA.
//!
//! An [`Endpoint`] is one side of a connection. It lets its peer reach regions of its memory, by [`Descriptor`]s that travel
//! in the peers' own messages (a grant), and it writes, reads and adds to regions that the peer lets it reach. Operations
//! have a number of the caller's and end as [`Event::Done`]; they are not waited for, and end in the order in which they
//! were begun. What the peer's operations bring comes as events too, in the order in which the peer began them, and each
//! after all bytes that were written before it.
//!
//! Local memory, too, is reached by registered regions: a card knows no other.
//!
//! # Who sleeps
//! [`Endpoint::poll`] never waits. Who has polled to no end for long enough calls [`Endpoint::park`]; if that says that
//! there is nothing, looks once more at whatever else the peer may have written (slots), waits until one of
//! [`Waitable::wakers`] is readable, and calls [`Endpoint::wake`].

use std::fmt;
use std::ops::{BitOr, Deref};
use std::os::fd::BorrowedFd;

use crate::region::{OutOfBounds, Region};
use crate::verbs::VerbsError;

/// Bytes of a [`Descriptor`], at most.
pub const DESCRIPTOR_BYTES_MAX: usize = 64;
/// Bytes of a message that [`Endpoint::tell`] takes, at most.
pub const SHORT_BYTES_MAX: usize = 56;
/// Pieces of one operation, at most; some cards take fewer: [`Limits::pieces`].
pub const PIECES_MAX: usize = 16;

/// What a peer may do with a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(u8);

impl Access {
    /// Nothing: the region is for our own operations.
    pub const NONE: Access = Access(0);
    /// It may read.
    pub const READ: Access = Access(1);
    /// It may write.
    pub const WRITE: Access = Access(2);
    /// It may fetch and add.
    pub const ADD: Access = Access(4);

    /// Whether it may do all that `other` may.
    #[must_use]
    pub const fn has(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// For descriptors.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// From a descriptor; none: bits that mean nothing.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Access> {
        if bits < 8 { Some(Access(bits)) } else { None }
    }
}

impl BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// What a peer needs to reach a region: bytes of the provider's, to be sent to the peer by whatever way.
#[derive(Clone, PartialEq, Eq)]
pub struct Descriptor(Vec<u8>);

impl Descriptor {
    /// As a peer has sent it; none: too long.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Descriptor> {
        (bytes.len() <= DESCRIPTOR_BYTES_MAX).then(|| Descriptor(bytes.to_vec()))
    }

    /// To be sent to a peer.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Descriptor {
    /// Without the bytes: they are a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptor").field("bytes", &self.0.len()).finish_non_exhaustive()
    }
}

/// A region of our own that an endpoint knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Local(pub u64);

/// A region that is registered: for our own operations, and for the peer's as far as it has access.
#[derive(Clone, Debug)]
pub struct Registration {
    /// What our operations call it.
    pub local: Local,
    /// What the peer is told.
    pub descriptor: Descriptor,
}

/// A peer's region. What the numbers mean is the provider's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Which memory.
    pub key: u64,
    /// Where it starts.
    pub start: u64,
    /// Its bytes.
    pub len: usize,
    /// What we may do with it.
    pub access: Access,
}

/// A part of a region of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which region.
    pub local: Local,
    /// Its first byte.
    pub at: usize,
    /// Its bytes.
    pub len: usize,
}

/// What a provider can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Operations that were begun, and whose end was not polled yet.
    pub outstanding: usize,
    /// Pieces of one operation: [`PIECES_MAX`] or fewer.
    pub pieces: usize,
    /// Bytes of a message of [`Endpoint::send`].
    pub message_bytes: usize,
    /// Whether [`Endpoint::fetch_add`] is to be had: some cards have none.
    pub adds: bool,
}

/// What a peer has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message(Kept);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kept {
    Short([u8; SHORT_BYTES_MAX], usize),
    Long(Vec<u8>),
}

impl Message {
    /// Copies a short one, without memory of its own.
    #[must_use]
    pub fn short(bytes: &[u8]) -> Message {
        let mut kept = [0; SHORT_BYTES_MAX];
        match kept.get_mut(..bytes.len()) {
            Some(short) => {
                short.copy_from_slice(bytes);
                Message(Kept::Short(kept, bytes.len()))
            }
            None => Message::long(bytes.to_vec()),
        }
    }

    /// Keeps a long one.
    #[must_use]
    pub fn long(bytes: Vec<u8>) -> Message {
        Message(Kept::Long(bytes))
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kept::Short(bytes, len) => bytes.get(..*len).unwrap_or(bytes),
            Kept::Long(bytes) => bytes,
        }
    }
}

/// What came of an operation of ours, or came from the peer.
#[derive(Debug)]
pub enum Event {
    /// An operation has ended.
    Done {
        /// The caller's number.
        op: u64,
        /// The word before it was added to; 0 of other operations. After an error the connection may be at an end.
        result: Result<u64, FabricError>,
    },
    /// The peer has written, with a notification; the bytes are there.
    Notified {
        /// What the peer says of it.
        imm: u32,
        /// How many bytes it says it has written.
        len: u32,
    },
    /// The peer has sent a message.
    Message(Message),
}

/// Why an operation was not begun, or failed.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// Not now; nothing was done. There will be room after a poll of this side, or of the other: a sleep ends then.
    #[error("a connection has no room for {0} now")]
    Full(&'static str),
    /// The peer does not let us.
    #[error("the peer's memory cannot be reached: {0}")]
    Refused(String),
    /// The peer has ended, or the connection.
    #[error("the peer has gone")]
    Gone,
    /// The peer says what cannot be; the connection is to be dropped.
    #[error("the peer {0}")]
    Peer(String),
    /// We ask for what is never possible.
    #[error("{0}")]
    Misuse(String),
    /// The system, or the provider, fails.
    #[error(transparent)]
    Provider(Box<dyn std::error::Error + Send + Sync>),
}

/// What keeps memory from being registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The process may lock no more memory: the same today and tomorrow.
    MemoryLock,
    /// The kernel registers no pages of such a file: the same today and tomorrow.
    FileSystem,
    /// Something that may pass.
    Other,
}

impl FabricError {
    /// What kept [`Endpoint::register`] from it.
    #[must_use]
    pub fn obstacle(&self) -> Obstacle {
        let FabricError::Provider(error) = self else { return Obstacle::Other };
        match error.downcast_ref() {
            Some(VerbsError::Locked { .. }) => Obstacle::MemoryLock,
            Some(VerbsError::File { .. }) => Obstacle::FileSystem,
            _ => Obstacle::Other,
        }
    }
}

impl From<OutOfBounds> for FabricError {
    /// Of our own memory.
    fn from(error: OutOfBounds) -> FabricError {
        FabricError::Misuse(error.to_string())
    }
}

/// One side of a connection over a fabric. See the head of this module.
pub trait Endpoint: fmt::Debug + Send {
    /// What it can do.
    fn limits(&self) -> Limits;

    /// Makes a region known: to our operations, and to the peer as far as `access` goes. The rights may be of all memory that
    /// it is a part of: what is to be kept from the peer lies in other memory.
    ///
    /// # Errors
    /// [`FabricError`].
    fn register(&mut self, region: &Region, access: Access) -> Result<Registration, FabricError>;

    /// Takes a region back. After this no byte of the peer lands in memory that is in use: what comes back may be used again;
    /// where nothing comes back, the peer can go on writing, and the region's memory is to be given up for fresh memory.
    /// Notifications of the peer's that were on their way may still come.
    ///
    /// # Errors
    /// [`FabricError`].
    fn revoke(&mut self, local: Local) -> Result<Option<Region>, FabricError>;

    /// The peer's region of this descriptor; none: what it needs besides has not come yet, ask again after a poll.
    ///
    /// # Errors
    /// [`FabricError::Refused`] where it was revoked; [`FabricError::Peer`] where it is none.
    fn reach(&mut self, descriptor: &Descriptor) -> Result<Option<Remote>, FabricError>;

    /// Forgets a peer's region.
    fn release(&mut self, remote: Remote);

    /// The peer's region itself, where it can be reached without operations.
    fn mapped(&self, remote: Remote) -> Option<Region> {
        let _ = remote;
        None
    }

    /// Writes pieces, one after another, to a peer's region. With `notify` the peer is notified of it once all bytes are there.
    ///
    /// # Errors
    /// [`FabricError`]. What the peer refuses is told here or by the event.
    fn write(
        &mut self,
        op: u64,
        pieces: &[Piece],
        to: Remote,
        at: usize,
        notify: Option<u32>,
    ) -> Result<(), FabricError>;

    /// Reads bytes of a peer's region.
    ///
    /// # Errors
    /// As [`Endpoint::write`].
    fn read(&mut self, op: u64, from: Remote, at: usize, into: Piece) -> Result<(), FabricError>;

    /// Adds to a word of a peer's region, aligned to 8 bytes; the event tells what it was. Whether it is whole beside what the
    /// peer's own processor does to the word at the same moment is the provider's.
    ///
    /// # Errors
    /// As [`Endpoint::write`].
    fn fetch_add(&mut self, op: u64, to: Remote, at: usize, add: u64) -> Result<(), FabricError>;

    /// Sends a short message, copied here; it ends without an event.
    ///
    /// # Errors
    /// [`FabricError`]; [`FabricError::Misuse`] where it is longer than [`SHORT_BYTES_MAX`].
    fn tell(&mut self, message: &[u8]) -> Result<(), FabricError>;

    /// Sends pieces, one after another, as one message.
    ///
    /// # Errors
    /// [`FabricError`]; [`FabricError::Misuse`] where it is longer than [`Limits::message_bytes`].
    fn send(&mut self, op: u64, pieces: &[Piece]) -> Result<(), FabricError>;

    /// Wakes the peer if it sleeps: something was written that it looks at by itself.
    ///
    /// # Errors
    /// [`FabricError`].
    fn nudge(&mut self) -> Result<(), FabricError>;

    /// Adds events to `events`, up to so many.
    ///
    /// # Errors
    /// [`FabricError::Gone`] once there are no more events, and will be none; others where the connection is to be dropped.
    fn poll(&mut self, events: &mut Vec<Event>, max: usize) -> Result<(), FabricError>;

    /// Says that we go to sleep. False: there is something to poll, or room that was missing.
    ///
    /// # Errors
    /// [`FabricError`].
    fn park(&mut self) -> Result<bool, FabricError>;

    /// Says that we are awake. What woke us is polled after this.
    ///
    /// # Errors
    /// [`FabricError`].
    fn wake(&mut self) -> Result<(), FabricError>;
}

/// An endpoint of the operating system's, which a thread can wait for.
pub trait Waitable: Endpoint {
    /// What is waited for while we sleep, to be readable: one or two descriptors, always the same.
    fn wakers(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>);

    /// Whether the second of [`Waitable::wakers`] is waited for to be writable as well.
    fn wants_write(&self) -> bool {
        false
    }
}
