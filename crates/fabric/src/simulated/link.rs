//! A simulated link over memory that both ends have.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::SimSide;
use crate::committed::Committed;
use crate::mapped::MappedLink;
use crate::memory::{Memory, Rights};
use crate::ring::{Note, NotesError};
use crate::shm::{Control, LinkError};

/// What one end sends the other over its socket.
#[derive(Debug)]
pub enum SimControl {
    /// It exposes memory.
    Exposed(u64, Arc<Memory>),
    /// It exposes a file, of which so many bytes are to be mapped.
    File(u64, OwnedFd, usize),
    /// What was exposed by this key is void.
    Revoked(u64),
}

/// What is on its way from one end to the other.
#[derive(Debug)]
pub enum ToPeer {
    /// A note in the ring.
    Note(Note),
    /// A message over the socket.
    Control(SimControl),
    /// The peer was seen to be parked, and is notified.
    Notify,
}

#[derive(Debug, Default)]
struct Port {
    /// What this end has sent, and nobody has carried yet.
    sent: VecDeque<ToPeer>,
    /// Notes that this end has sent and the other has not taken.
    untaken: usize,
    notes: VecDeque<Note>,
    control: VecDeque<SimControl>,
    parked: bool,
    wants_room: bool,
    gone: bool,
}

#[derive(Debug)]
struct Inner {
    broker: Port,
    client: Port,
    capacity: usize,
}

impl Inner {
    fn port(&mut self, side: SimSide) -> &mut Port {
        match side {
            SimSide::Broker => &mut self.broker,
            SimSide::Client => &mut self.client,
        }
    }

    fn notify_if_parked(&mut self, from: SimSide) {
        if self.port(from.other()).parked {
            self.port(from).sent.push_back(ToPeer::Notify);
        }
    }

    fn post(&mut self, from: SimSide, note: Note) -> Result<(), NotesError> {
        let capacity = self.capacity;
        let port = self.port(from);
        if port.untaken >= capacity {
            port.wants_room = true;
            return Err(NotesError::Full);
        }
        port.untaken = port.untaken.saturating_add(1);
        port.sent.push_back(ToPeer::Note(note));
        Ok(())
    }
}

/// What is between the two ends, for whoever plays the network.
#[derive(Clone, Debug)]
pub struct Wire(Arc<Mutex<Inner>>);

impl Wire {
    /// A wire, with rings of so many notes, and its two ends: the broker's and the client's.
    #[must_use]
    pub fn new(capacity: usize) -> (Wire, SimLink, SimLink) {
        let inner = Inner { broker: Port::default(), client: Port::default(), capacity };
        let wire = Wire(Arc::new(Mutex::new(inner)));
        let end = |side| SimLink { wire: wire.clone(), side };
        let (broker, client) = (end(SimSide::Broker), end(SimSide::Client));
        (wire, broker, client)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next thing that an end has sent.
    #[must_use]
    pub fn next(&self, from: SimSide) -> Option<ToPeer> {
        self.lock().port(from).sent.pop_front()
    }

    /// What was taken from [`Wire::next`], or is made up, has arrived at an end.
    pub fn arrive(&self, at: SimSide, what: ToPeer) {
        let mut inner = self.lock();
        let port = inner.port(at);
        match what {
            ToPeer::Note(note) => port.notes.push_back(note),
            ToPeer::Control(control) => port.control.push_back(control),
            ToPeer::Notify => {}
        }
    }

    /// An end has gone: the other one learns it from its next look at the socket.
    pub fn end(&self, side: SimSide) {
        self.lock().port(side.other()).gone = true;
    }

    /// Whether an end sleeps unless it is notified.
    #[must_use]
    pub fn is_parked(&self, side: SimSide) -> bool {
        self.lock().port(side).parked
    }

    /// All that was sent is carried and has arrived, until there is nothing more.
    pub fn run(&self) {
        for from in [SimSide::Broker, SimSide::Client] {
            while let Some(what) = self.next(from) {
                self.arrive(from.other(), what);
            }
        }
    }
}

/// One end.
#[derive(Debug)]
pub struct SimLink {
    wire: Wire,
    side: SimSide,
}

impl SimLink {
    fn control_out(&self, control: SimControl) {
        self.wire.lock().port(self.side).sent.push_back(ToPeer::Control(control));
    }
}

impl MappedLink for SimLink {
    fn expose(&mut self, key: u64, memory: &Arc<Memory>, _: Rights) -> Result<(), LinkError> {
        self.control_out(SimControl::Exposed(key, memory.clone()));
        Ok(())
    }

    fn expose_file(&mut self, key: u64, file: BorrowedFd<'_>, len: usize) -> Result<(), LinkError> {
        let file = file.try_clone_to_owned();
        let action = "keep what is exposed";
        let file = file.map_err(|source| LinkError::System { action, source })?;
        self.control_out(SimControl::File(key, file, len));
        Ok(())
    }

    fn revoke(&mut self, key: u64) -> Result<(), LinkError> {
        self.control_out(SimControl::Revoked(key));
        Ok(())
    }

    fn control(&mut self) -> Result<Option<Control>, LinkError> {
        let mut inner = self.wire.lock();
        let port = inner.port(self.side);
        Ok(match port.control.pop_front() {
            Some(SimControl::Exposed(key, memory)) => Some(Control::Exposed { key, memory }),
            Some(SimControl::File(key, file, len)) => {
                Some(Control::File { key, file: Committed::map(file, len)? })
            }
            Some(SimControl::Revoked(key)) => Some(Control::Ended { key }),
            None if port.gone => return Err(LinkError::Gone),
            None => None,
        })
    }

    fn send(&mut self, note: Note) -> Result<(), NotesError> {
        let mut inner = self.wire.lock();
        inner.post(self.side, note)?;
        inner.notify_if_parked(self.side);
        Ok(())
    }

    fn post(&mut self, note: Note) -> Result<(), NotesError> {
        self.wire.lock().post(self.side, note)
    }

    fn take(&mut self) -> Result<Option<Note>, LinkError> {
        let mut inner = self.wire.lock();
        let Some(note) = inner.port(self.side).notes.pop_front() else { return Ok(None) };
        let theirs = inner.port(self.side.other());
        theirs.untaken = theirs.untaken.saturating_sub(1);
        // As in the ring: who waits for room is notified once all is taken.
        if theirs.untaken == 0 && std::mem::take(&mut theirs.wants_room) {
            inner.notify_if_parked(self.side);
        }
        Ok(Some(note))
    }

    fn has_notes(&mut self) -> Result<bool, NotesError> {
        Ok(!self.wire.lock().port(self.side).notes.is_empty())
    }

    fn notify_if_parked(&self) {
        self.wire.lock().notify_if_parked(self.side);
    }

    /// What is on its way was published before we are seen to be parked: nobody notifies for it, and we do not park.
    fn park(&mut self) -> Result<bool, LinkError> {
        let mut inner = self.wire.lock();
        let (capacity, on_its_way) = (inner.capacity, inner.port(self.side.other()).untaken);
        let port = inner.port(self.side);
        let room = port.wants_room && port.untaken < capacity;
        port.parked = on_its_way == 0 && !room && port.control.is_empty() && !port.gone;
        if room {
            port.wants_room = false;
        }
        Ok(port.parked)
    }

    fn unpark(&mut self) {
        self.wire.lock().port(self.side).parked = false;
    }
}
