//! A connection's bytes as messages over a link (`headrace.datapath=two-sided`): Kafka's requests and answers as they are,
//! sent and received, and nothing read or written one-sidedly.
//!
//! Both sides copy: what is sent into memory that is registered, what has come out of it. A message holds as much of what
//! waits as fits, so that a large frame takes several, and small ones that wait go together. What the peer has no room for
//! waits, as at a socket that is full; what is not wanted yet is left where it is, until the peer has no room.

use std::collections::VecDeque;
use std::io;

use headrace_fabric::simulated::SimNic;
use headrace_fabric::verbs::{Options, VerbsEndpoint};
use headrace_fabric::{Access, Endpoint, Event, FabricError, Local, MemorySource, Message, Piece, Region};

use crate::fault::lie;

/// Messages that are being sent: as many as a peer receives before it takes any.
const SLOTS: usize = 64;
/// Taken from the card at once, and kept here at most.
const EVENTS: usize = 16;

/// An endpoint that leaves messages where they are while they are not wanted, which is back-pressure.
pub trait Holding: Endpoint {
    /// From now on what the peer has sent is left where it is, or is not any more. The ends of our own operations are polled
    /// all the same.
    fn hold(&mut self, hold: bool);

    /// As [`Endpoint::park`] of a thread that does not sleep: whether nothing is to be polled, and there is no room that was
    /// missing.
    ///
    /// # Errors
    /// [`FabricError`].
    fn is_quiet(&mut self) -> Result<bool, FabricError>;
}

impl Holding for VerbsEndpoint {
    fn hold(&mut self, hold: bool) {
        self.hold(hold);
    }

    fn is_quiet(&mut self) -> Result<bool, FabricError> {
        self.is_quiet()
    }
}

impl Holding for SimNic {
    fn hold(&mut self, hold: bool) {
        self.hold(hold);
    }

    fn is_quiet(&mut self) -> Result<bool, FabricError> {
        Ok(self.is_quiet())
    }
}

/// Bytes that wait to be sent.
pub trait Outgoing {
    /// Whether there are none.
    fn is_empty(&self) -> bool;

    /// Moves the first of them into `into`, until that is full or nothing is left: how many.
    ///
    /// # Errors
    /// The system's, of bytes that lie in a file.
    fn fill(&mut self, into: &mut [u8]) -> io::Result<usize>;
}

/// How sending ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushed {
    /// All is on its way.
    All,
    /// There is no room: again when there is.
    Blocked,
    /// Enough for one turn; there may be room at once.
    Yielded,
}

/// Whether a thread may sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// It may.
    Sleep,
    /// There is something to receive, or room to send.
    Work,
    /// There may be soon: it gives the processor to others, and comes again.
    Yield,
}

/// One side of such a link.
#[derive(Debug)]
pub struct Carrier<E> {
    endpoint: E,
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
    /// When something came last, in microseconds; none: never.
    heard_us: Option<u64>,
}

fn failed(error: FabricError) -> io::Error {
    io::Error::other(error)
}

impl<E: Holding> Carrier<E> {
    /// Over an endpoint that is connected, with memory for what is sent.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn new(mut endpoint: E, source: &mut dyn MemorySource) -> Result<Self, FabricError> {
        let ours = usize::try_from(Options::default().message_bytes).unwrap_or(usize::MAX);
        let slot_bytes = endpoint.limits().message_bytes.min(ours);
        if slot_bytes == 0 {
            return Err(FabricError::Peer("receives no messages".to_owned()));
        }
        let memory = source.sealed("headrace-frames", SLOTS * slot_bytes);
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
            heard_us: None,
        })
    }

    /// What it goes over, for whoever waits for it.
    pub fn endpoint(&self) -> &E {
        &self.endpoint
    }

    /// Whether anything has come. A client speaks here only when all that was answered over TCP has come to it.
    #[must_use]
    pub fn has_heard(&self) -> bool {
        self.heard_us.is_some()
    }

    /// Whether what comes is left where it is. It still is received when asked for.
    pub fn hold(&mut self, hold: bool) {
        self.held = hold;
    }

    /// Appends what has come, as far as there is capacity, of which there must be some; as a socket, `WouldBlock` where
    /// nothing has.
    ///
    /// # Errors
    /// The link has failed, or its peer says what cannot be.
    pub fn receive(&mut self, into: &mut Vec<u8>, now_us: impl Fn() -> u64) -> io::Result<usize> {
        let mut taken = 0;
        if self.came.is_empty() {
            self.pump(false, &now_us)?;
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
    ///
    /// # Errors
    /// As [`Carrier::receive`], and those of what is sent.
    pub fn flush(&mut self, outbox: &mut impl Outgoing, budget: u64) -> io::Result<Flushed> {
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
                    self.pump(true, &|| 0)?;
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
    #[must_use]
    pub fn is_sending(&self) -> bool {
        self.unsent > 0
    }

    /// Takes from the card what has ended, and what has come unless that is held.
    fn pump(&mut self, hold: bool, now_us: &dyn Fn() -> u64) -> io::Result<()> {
        self.endpoint.hold(hold);
        self.endpoint.poll(&mut self.taken, EVENTS).map_err(failed)?;
        for event in self.taken.drain(..) {
            match event {
                Event::Done { result, .. } => {
                    result.map_err(failed)?;
                    self.ended += 1;
                }
                Event::Message(message) if message.is_empty() => {
                    return Err(failed(lie("sends nothing, as a message")));
                }
                Event::Message(message) => {
                    self.came.push_back(message);
                    self.heard_us = Some(now_us());
                }
                Event::Notified { .. } => {
                    return Err(failed(lie("writes where frames are sent")));
                }
            }
        }
        Ok(())
    }

    /// Before the thread sleeps: whether it may. It polls for `spin_us` since something came.
    ///
    /// # Errors
    /// As [`Carrier::receive`].
    pub fn park(&mut self, now_us: u64, spin_us: u64) -> io::Result<Rest> {
        if self.heard_us.is_some_and(|heard| now_us.saturating_sub(heard) < spin_us) {
            return Ok(Rest::Yield);
        }
        self.settle()?;
        let sleeps = (self.held || self.came.is_empty()) && self.endpoint.park().map_err(failed)?;
        Ok(if sleeps { Rest::Sleep } else { Rest::Work })
    }

    /// Of a thread that goes on: whether there is nothing to receive, and no more room to send than there was.
    ///
    /// # Errors
    /// As [`Carrier::receive`].
    pub fn is_quiet(&mut self) -> io::Result<bool> {
        self.settle()?;
        Ok((self.held || self.came.is_empty()) && self.endpoint.is_quiet().map_err(failed)?)
    }

    /// Takes what is no news to anybody.
    fn settle(&mut self) -> io::Result<()> {
        // While all slots are in use, that one is free again is news. Where the peer has no room, it is not: whoever took it
        // for that would look again and again, and sleep no more.
        let blocked = self.begun - self.ended >= SLOTS as u64;
        if !blocked && self.begun > self.ended {
            self.pump(true, &|| 0)?;
        }
        self.endpoint.hold(self.held);
        Ok(())
    }

    /// The thread is awake.
    pub fn unpark(&mut self) {
        // One that has failed says so when it is asked.
        let _ = self.endpoint.wake();
    }
}

#[cfg(test)]
mod tests {
    use headrace_fabric::SystemMemory;
    use headrace_fabric::simulated::{Cable, SimSide};

    use super::*;

    #[derive(Default)]
    struct Bytes(VecDeque<u8>);

    impl Outgoing for Bytes {
        fn is_empty(&self) -> bool {
            self.0.is_empty()
        }

        fn fill(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let len = self.0.len().min(into.len());
            for (into, byte) in into.iter_mut().zip(self.0.drain(..len)) {
                *into = byte;
            }
            Ok(len)
        }
    }

    fn pair() -> (Cable, Carrier<SimNic>, Carrier<SimNic>) {
        let (cable, broker, client) = Cable::new();
        let carrier = |nic| Carrier::new(nic, &mut SystemMemory).unwrap();
        (cable, carrier(broker), carrier(client))
    }

    fn out(bytes: usize) -> Bytes {
        Bytes((0..bytes).map(|at| u8::try_from(at % 251).unwrap()).collect())
    }

    #[test]
    fn bytes_come_in_order_however_they_are_cut() {
        let (cable, mut broker, mut client) = pair();
        let (mut outgoing, mut into) = (out(3_000_000), Vec::with_capacity(100_000));
        let mut came = Vec::new();
        let mut blocked = 0;
        loop {
            let flushed = client.flush(&mut outgoing, u64::MAX).unwrap();
            cable.run().unwrap();
            blocked += usize::from(flushed == Flushed::Blocked);
            while broker.receive(&mut into, || 5).is_ok() {
                came.append(&mut into);
                into.reserve(70_001);
            }
            if flushed == Flushed::All {
                break;
            }
        }
        assert_eq!(came, Vec::from(out(3_000_000).0));
        assert!(blocked > 0 && !client.is_sending() && broker.has_heard() && !client.has_heard());
        let empty = broker.receive(&mut into, || 5).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn what_is_not_wanted_stays_with_its_sender() {
        let (cable, mut broker, mut client) = pair();
        broker.hold(true);
        let mut outgoing = out(3_000_000);
        for _ in 0..3 {
            assert_eq!(client.flush(&mut outgoing, u64::MAX).unwrap(), Flushed::Blocked);
            cable.run().unwrap();
            assert_eq!(broker.park(9, 0).unwrap(), Rest::Sleep, "nothing of it keeps it awake");
        }
        let left = outgoing.0.len();
        assert!(left > 1_000_000, "{left}");
        // Sends have ended, which makes no room: it sees that once, and does not go on to look.
        let mut looked = 0;
        while client.park(9, 0).unwrap() != Rest::Sleep {
            assert_eq!(client.flush(&mut outgoing, u64::MAX).unwrap(), Flushed::Blocked);
            looked += 1;
            assert!(looked < 4);
        }
        broker.hold(false);
        assert_eq!(broker.park(9, 0).unwrap(), Rest::Work);
        let mut into = Vec::with_capacity(1 << 20);
        broker.receive(&mut into, || 9).unwrap();
        assert_eq!(client.park(9, 0).unwrap(), Rest::Work, "there is room again");
        client.flush(&mut outgoing, u64::MAX).unwrap();
        assert!(outgoing.0.len() < left);
    }

    #[test]
    fn who_has_heard_something_comes_again_before_it_sleeps() {
        let (cable, mut broker, mut client) = pair();
        client.flush(&mut out(10), u64::MAX).unwrap();
        cable.run().unwrap();
        broker.receive(&mut Vec::with_capacity(10), || 1000).unwrap();
        assert_eq!(broker.park(1049, 50).unwrap(), Rest::Yield);
        assert_eq!(broker.park(1050, 50).unwrap(), Rest::Sleep);
        assert!(broker.is_quiet().unwrap());
        client.flush(&mut out(1), u64::MAX).unwrap();
        cable.run().unwrap();
        assert!(!broker.is_quiet().unwrap());
    }

    #[test]
    fn a_turn_has_its_budget() {
        let (_, _, mut client) = pair();
        let mut outgoing = out(100_000);
        assert_eq!(client.flush(&mut outgoing, 20_000).unwrap(), Flushed::Yielded);
        assert_eq!(outgoing.0.len(), 100_000 - 2 * (1 << 14));
    }

    #[test]
    fn what_is_no_frame_ends_the_link() {
        for event in [
            Event::Message(Message::short(b"")),
            Event::Notified { imm: 1, len: 1 },
            Event::Done { op: 0, result: Err(FabricError::Gone) },
        ] {
            let (cable, mut broker, _) = pair();
            cable.forge(SimSide::Broker, event);
            let why = broker.receive(&mut Vec::with_capacity(10), || 0).unwrap_err();
            assert_ne!(why.kind(), io::ErrorKind::WouldBlock);
        }
    }
}
