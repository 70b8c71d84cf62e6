//! The broker's end of a link: carries out what the broker wants done over it, and hands on what its client does.
//!
//! [`BrokerEnd`] owns what this client is exposed to, what it waits to be told, and whether it is to be notified. The broker
//! owns grants and quotas, and is asked through [`LinkOwner`]. [`Ends`] are all that a thread has, also those that are not
//! linked yet.

mod ends;
mod mapped;
mod remote;
#[cfg(test)]
mod testing;

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use headrace_broker::{Broker, LinkAction, LinkId, Refusal};
use headrace_fabric::{Endpoint, MappedLink, Note, Region};
use headrace_log::Disk;
use headrace_wire::time::Now;

pub use self::ends::{Ends, Join, number_of, place_of};
use self::mapped::MappedEnd;
use self::remote::RemoteEnd;
use crate::LinkFault;

/// What the ends of links need of the broker behind them.
pub trait LinkOwner {
    /// A client has written a batch, or says so.
    fn written(&mut self, now: Now, link: LinkId, note: Note);
    /// A client wants to read a file from `at` on: which part it is to have.
    ///
    /// # Errors
    /// [`Refusal`]: it has lost the file, or gets no more of it.
    fn window(&mut self, link: LinkId, key: u64, at: u64) -> Result<Range<u64>, Refusal>;
    /// What was to be exposed by this key cannot be: its grant is to end.
    fn not_exposed(&mut self, link: LinkId, key: u64);
    /// What slots say has been seen to: the next change is to be notified of again.
    fn notified(&mut self, link: LinkId);
}

impl<D: Disk> LinkOwner for Broker<D> {
    #[inline]
    fn written(&mut self, now: Now, link: LinkId, note: Note) {
        self.handle_note(now, link, note);
    }

    fn window(&mut self, link: LinkId, key: u64, at: u64) -> Result<Range<u64>, Refusal> {
        self.handle_window(link, key, at)
    }

    fn not_exposed(&mut self, link: LinkId, key: u64) {
        self.handle_not_exposed(link, key);
    }

    fn notified(&mut self, link: LinkId) {
        self.handle_nudged(link);
    }
}

/// A log's file, as far as a link needs it.
pub trait LogFile {
    /// It in memory.
    type Mapped: MappedFile;
    /// Its first `bytes`, also those that it does not have yet, or all that it has, to be read by a card.
    fn map(&self, bytes: u64) -> Option<Self::Mapped>;
    /// Another descriptor of it, which can only be read.
    ///
    /// # Errors
    /// The system's.
    fn open_read_only(&self) -> io::Result<OwnedFd>;
}

/// A log's file in memory: it grows, and keeps what it is a map of.
pub trait MappedFile: fmt::Debug {
    /// The memory, also where the file does not reach yet.
    fn region(&self) -> &Region;
    /// Bytes that the file has now.
    fn bytes(&self) -> u64;
}

/// See the module.
#[derive(Debug)]
pub struct BrokerEnd<M, E, F: LogFile> {
    id: LinkId,
    over: Over<M, E, F>,
}

/// Two variants, and no trait object: a note over shared memory costs less than a call that cannot be inlined.
#[derive(Debug)]
enum Over<M, E, F: LogFile> {
    Mapped(MappedEnd<M>),
    Remote(Box<RemoteEnd<E, F::Mapped>>),
}

impl<M: MappedLink, E: Endpoint, F: LogFile> BrokerEnd<M, E, F> {
    /// Of a link whose memory both sides see.
    pub fn mapped(id: LinkId, link: M) -> Self {
        Self { id, over: Over::Mapped(MappedEnd::new(link)) }
    }

    /// Of a link whose memory is reached by operations.
    pub fn remote(id: LinkId, endpoint: E) -> Self {
        Self { id, over: Over::Remote(Box::new(RemoteEnd::new(endpoint))) }
    }

    /// What the broker calls it.
    #[must_use]
    pub fn id(&self) -> LinkId {
        self.id
    }

    /// What it goes over, for whoever waits for it.
    pub fn mapped_link(&mut self) -> Option<&mut M> {
        match &mut self.over {
            Over::Mapped(end) => Some(&mut end.link),
            Over::Remote(_) => None,
        }
    }

    /// Takes what the client has done: one note at most, so that it is answered before the next is taken. Whether there was
    /// anything.
    ///
    /// # Errors
    /// The link has ended, or its client says what cannot be: it is to be dropped.
    #[inline]
    pub fn poll(&mut self, now: Now, owner: &mut impl LinkOwner) -> Result<bool, LinkFault> {
        match &mut self.over {
            Over::Mapped(end) => Ok(end.poll(now, self.id, owner)?),
            Over::Remote(end) => Ok(end.poll(now, self.id, owner)?),
        }
    }

    /// Hears what the client says beside its memory; to be called when there may be something.
    ///
    /// # Errors
    /// As [`BrokerEnd::poll`].
    pub fn poll_control(&mut self) -> Result<(), LinkFault> {
        match &mut self.over {
            Over::Mapped(end) => Ok(end.poll_control()?),
            Over::Remote(_) => Ok(()),
        }
    }

    /// Does what the broker wants done: what it exposes, revokes, answers, and that slots have changed. Links are made and
    /// ended elsewhere.
    ///
    /// # Errors
    /// As [`BrokerEnd::poll`].
    #[inline]
    pub fn act(&mut self, action: LinkAction<F>, owner: &mut impl LinkOwner) -> Result<(), LinkFault> {
        match &mut self.over {
            Over::Mapped(end) => Ok(end.act(self.id, action, owner)?),
            Over::Remote(end) => Ok(end.act(self.id, action, owner)?),
        }
    }

    /// Notifies a client that is parked and was told something. To be called when nothing more is to be done for it, and
    /// before [`BrokerEnd::park`].
    pub fn notify_owed(&mut self) {
        if let Over::Mapped(end) = &mut self.over {
            end.notify_owed();
        }
    }

    /// Before the thread sleeps: whether it may. The client notifies from now on.
    ///
    /// # Errors
    /// As [`BrokerEnd::poll`].
    pub fn park(&mut self) -> Result<bool, LinkFault> {
        match &mut self.over {
            Over::Mapped(end) => Ok(end.link.park()?),
            Over::Remote(end) => Ok(end.park()?),
        }
    }

    /// The thread is awake: nobody need notify it.
    pub fn unpark(&mut self) {
        match &mut self.over {
            Over::Mapped(end) => end.link.unpark(),
            Over::Remote(end) => end.unpark(),
        }
    }
}
