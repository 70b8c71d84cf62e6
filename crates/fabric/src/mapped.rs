//! What a link does whose memory both processes have mapped: shared memory, and the simulated kind.
//!
//! Beside [`Endpoint`](crate::Endpoint) since neither costs what the other needs: here a write is a copy and a read is a look,
//! and a note is four words in a ring.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::memory::{Memory, Rights};
use crate::ring::{Note, NotesError};
use crate::shm::{Control, LinkError};

/// One side of such a link.
///
/// # Who parks
/// Nothing here waits. Whoever has polled in vain for long enough calls [`MappedLink::park`]; if that says that there is
/// nothing, it looks once more at whatever else the peer may have written (slots), sleeps until it is notified, and calls
/// [`MappedLink::unpark`].
pub trait MappedLink: Send {
    /// Exposes memory by a key of our choice.
    ///
    /// # Errors
    /// [`LinkError::Misuse`] for a key that is in use, and memory that may not be exposed so; [`LinkError::Full`];
    /// [`LinkError::Gone`].
    fn expose(&mut self, key: u64, memory: &Arc<Memory>, rights: Rights) -> Result<(), LinkError>;

    /// Exposes a file that we append to, opened to be read only, to be mapped for `len` bytes, also those that it does not
    /// have yet.
    ///
    /// # Errors
    /// As [`MappedLink::expose`].
    fn expose_file(&mut self, key: u64, file: BorrowedFd<'_>, len: usize) -> Result<(), LinkError>;

    /// What was exposed by this key is void. The peer may have it mapped all the same: what it may write is abandoned, not
    /// used again.
    ///
    /// # Errors
    /// [`LinkError::Misuse`] for a key of nothing; [`LinkError::Gone`].
    fn revoke(&mut self, key: u64) -> Result<(), LinkError>;

    /// What the peer exposes or revokes next; none: not now.
    ///
    /// # Errors
    /// [`LinkError::Gone`] where it has ended; others where it says what cannot be.
    fn control(&mut self) -> Result<Option<Control>, LinkError>;

    /// Sends a note, and notifies the peer if it is parked.
    ///
    /// # Errors
    /// [`NotesError`]. After [`NotesError::Full`] parking ends also when there is room.
    fn send(&mut self, note: Note) -> Result<(), NotesError>;

    /// Sends a note, and notifies nobody: that is left to [`MappedLink::notify_if_parked`].
    ///
    /// # Errors
    /// As [`MappedLink::send`].
    fn post(&mut self, note: Note) -> Result<(), NotesError>;

    /// The next note; none: not now. Those that were sent before the peer went are still there.
    ///
    /// # Errors
    /// [`LinkError::Notes`].
    fn take(&mut self) -> Result<Option<Note>, LinkError>;

    /// Whether there is a note.
    ///
    /// # Errors
    /// [`NotesError::Peer`].
    fn has_notes(&mut self) -> Result<bool, NotesError>;

    /// Notifies the peer if it is parked, after something was published to it.
    fn notify_if_parked(&self);

    /// Says that we park. False: there are notes, or there is room that was missing.
    ///
    /// # Errors
    /// [`LinkError::Notes`].
    fn park(&mut self) -> Result<bool, LinkError>;

    /// Says that we do not need to be notified.
    fn unpark(&mut self);
}

impl MappedLink for crate::shm::Link {
    fn expose(&mut self, key: u64, memory: &Arc<Memory>, rights: Rights) -> Result<(), LinkError> {
        self.expose(key, memory, rights)
    }

    fn expose_file(&mut self, key: u64, file: BorrowedFd<'_>, len: usize) -> Result<(), LinkError> {
        self.expose_file(key, file, len)
    }

    fn revoke(&mut self, key: u64) -> Result<(), LinkError> {
        self.end(key)
    }

    fn control(&mut self) -> Result<Option<Control>, LinkError> {
        self.control()
    }

    #[inline]
    fn send(&mut self, note: Note) -> Result<(), NotesError> {
        self.send(note)
    }

    #[inline]
    fn post(&mut self, note: Note) -> Result<(), NotesError> {
        self.post(note)
    }

    #[inline]
    fn take(&mut self) -> Result<Option<Note>, LinkError> {
        self.take()
    }

    #[inline]
    fn has_notes(&mut self) -> Result<bool, NotesError> {
        self.has_notes()
    }

    fn notify_if_parked(&self) {
        self.ring_if_asleep();
    }

    fn park(&mut self) -> Result<bool, LinkError> {
        self.park()
    }

    fn unpark(&mut self) {
        self.wake();
    }
}
