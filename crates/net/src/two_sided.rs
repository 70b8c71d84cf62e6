//! A connection's bytes as messages over a link (`headrace.datapath=two-sided`): Kafka's requests and answers as they are,
//! sent and received, and nothing read or written one-sidedly.
//!
//! Both sides copy: what is sent into memory that is registered, what has come out of it. A message holds as much of what
//! waits as fits, so that a large frame takes several, and small ones that wait go together. What the peer has no room for
//! waits, as at a socket that is full; what is not wanted yet is left where it is, until the peer has no room.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use headrace_fabric::verbs::{Options, VerbsEndpoint};
use headrace_fabric::{
    Access, Endpoint, Event, FabricError, Local, Memory, Message, Piece, Region, Waitable,
};

use crate::outbox::{Flushed, Outbox};

/// Messages that are being sent: as many as a peer receives before it takes any.
const SLOTS: usize = 64;
/// Taken from the card at once, and kept here at most.
const EVENTS: usize = 16;

/// One side of such a link.
#[derive(Debug)]
pub(crate) struct Carrier {
    endpoint: VerbsEndpoint,
    /// What is sent lies here until the card has sent it.
    slots: Region,
    local: Local,
    slot_bytes: usize,
    /// Messages that were begun, and that have ended.
    begun: u64,
    ended: u64,
    /// Bytes of a message in the next slot that had no room.
    unsent: usize,
    /// A message on its way into its slot.
    made: Vec<u8>,
    taken: Vec<Event>,
    came: VecDeque<Message>,
    /// What was taken of the first of them.
    start: usize,
    /// Nothing is to be received.
    held: bool,
    /// When something came last; none: never.
    heard: Option<Instant>,
}

fn failed(error: FabricError) -> io::Error {
    io::Error::other(error)
}

fn lie(what: &str) -> io::Error {
    failed(FabricError::Peer(what.to_owned()))
}

impl Carrier {
    pub(crate) fn new(mut endpoint: VerbsEndpoint) -> Result<Self, FabricError> {
        let ours = usize::try_from(Options::default().message_bytes).unwrap_or(usize::MAX);
        let slot_bytes = endpoint.limits().message_bytes.min(ours);
        if slot_bytes == 0 {
            return Err(FabricError::Peer("receives no messages".to_owned()));
        }
        let memory = Memory::sealed("headrace-frames", SLOTS * slot_bytes);
        let slots = Region::whole(memory.map_err(|error| FabricError::Misuse(error.to_string()))?);
        let local = endpoint.register(&slots, Access::NONE)?.local;
        Ok(Self {
            endpoint,
            slots,
            local,
            slot_bytes,
            begun: 0,
            ended: 0,
            unsent: 0,
            made: vec![0; slot_bytes],
            taken: Vec::new(),
            came: VecDeque::new(),
            start: 0,
            held: false,
            heard: None,
        })
    }

    pub(crate) fn waker(&self) -> BorrowedFd<'_> {
        self.endpoint.wakers().0
    }

    /// Whether anything has come. A client speaks here only when all that was answered over TCP has come to it.
    pub(crate) fn has_heard(&self) -> bool {
        self.heard.is_some()
    }

    /// Whether what comes is left where it is. It still is received when asked for.
    pub(crate) fn hold(&mut self, hold: bool) {
        self.held = hold;
    }

    /// Appends what has come, as far as there is capacity, of which there must be some; as a socket, `WouldBlock` where
    /// nothing has.
    pub(crate) fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        let mut taken = 0;
        if self.came.is_empty() {
            self.pump(false)?;
        }
        while let Some(message) = self.came.front() {
            let rest = message.get(self.start..).unwrap_or_default();
            let step = rest.len().min(into.capacity() - into.len());
            into.extend_from_slice(rest.get(..step).unwrap_or_default());
            taken += step;
            self.start += step;
            if step < rest.len() {
                break;
            }
            self.came.pop_front();
            self.start = 0;
        }
        if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    /// Sends until there is no room, `budget` bytes are sent, or nothing is left.
    pub(crate) fn flush(&mut self, outbox: &mut Outbox, budget: u64) -> io::Result<Flushed> {
        let mut sent = 0;
        loop {
            let at = usize::try_from(self.begun % SLOTS as u64).unwrap_or(0) * self.slot_bytes;
            if self.unsent == 0 {
                if outbox.is_empty() {
                    return Ok(Flushed::All);
                }
                if sent >= budget {
                    return Ok(Flushed::Yielded);
                }
                if self.begun - self.ended >= SLOTS as u64 {
                    self.pump(true)?;
                    if self.begun - self.ended >= SLOTS as u64 {
                        return Ok(Flushed::Blocked);
                    }
                }
                self.unsent = outbox.fill(&mut self.made)?;
                let made = self.made.get(..self.unsent).unwrap_or_default();
                self.slots.write(at, made).map_err(io::Error::other)?;
            }
            match self.endpoint.send(0, &[Piece { local: self.local, at, len: self.unsent }]) {
                Ok(()) => {
                    self.begun += 1;
                    sent += self.unsent as u64;
                    self.unsent = 0;
                }
                Err(FabricError::Full(_)) => return Ok(Flushed::Blocked),
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Whether a message waits for room.
    pub(crate) fn is_sending(&self) -> bool {
        self.unsent > 0
    }

    /// Takes from the card what has ended, and what has come unless that is held.
    fn pump(&mut self, hold: bool) -> io::Result<()> {
        self.endpoint.hold(hold);
        self.endpoint.poll(&mut self.taken, EVENTS).map_err(failed)?;
        for event in self.taken.drain(..) {
            match event {
                Event::Done { result, .. } => {
                    result.map_err(failed)?;
                    self.ended += 1;
                }
                Event::Message(message) if message.is_empty() => {
                    return Err(lie("sends nothing, as a message"));
                }
                Event::Message(message) => {
                    self.came.push_back(message);
                    self.heard = Some(Instant::now());
                }
                Event::Notified { .. } => return Err(lie("writes where frames are sent")),
            }
        }
        Ok(())
    }

    /// Before the thread sleeps: whether it may. Else there is something to receive or room to send, or there may be soon:
    /// something has come within `spin`, and the processor was given to others.
    pub(crate) fn doze(&mut self, spin: Duration) -> io::Result<bool> {
        if self.heard.is_some_and(|heard| heard.elapsed() < spin) {
            std::thread::yield_now();
            return Ok(false);
        }
        self.settle()?;
        Ok((self.held || self.came.is_empty()) && self.endpoint.doze().map_err(failed)?)
    }

    /// Of a thread that goes on: whether there is nothing to receive, and no more room to send than there was.
    pub(crate) fn is_quiet(&mut self) -> io::Result<bool> {
        self.settle()?;
        Ok((self.held || self.came.is_empty()) && self.endpoint.is_quiet().map_err(failed)?)
    }

    /// Takes what is no news to anybody.
    fn settle(&mut self) -> io::Result<()> {
        let blocked = self.unsent > 0 || self.begun - self.ended >= SLOTS as u64;
        if !blocked && self.begun > self.ended {
            self.pump(true)?;
        }
        self.endpoint.hold(self.held);
        Ok(())
    }

    /// The thread is awake.
    pub(crate) fn wake(&mut self) {
        // One that has failed says so when it is asked.
        let _ = self.endpoint.wake();
    }
}
