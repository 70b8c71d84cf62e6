//! One side of a case.

use std::collections::VecDeque;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Connector, Failure, Role, Stream};
use crate::endpoint::{
    Access, Descriptor, Endpoint, Event, FabricError, Local, Message, Piece, Registration, Remote, Waitable,
};
use crate::region::Region;

/// What one side does in a case.
pub(super) type Turn = fn(&mut Side<'_, '_>) -> Result<(), Failure>;

/// Seconds after which nothing will come any more.
const PATIENCE_S: i64 = 20;
const FRAME_BYTES_MAX: usize = 1 << 20;
const EVENTS_AT_ONCE: usize = 16;

const DATA: u8 = 0;
const ENDED: u8 = 1;
const FAILED: u8 = 2;

/// Fails the case, unless.
macro_rules! ensure {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err($crate::conformance::Failure(format!($($why)+)));
        }
    };
}
pub(super) use ensure;

/// Messages to the other side of a case, by its stream.
pub struct Channel<'s> {
    stream: &'s mut dyn Stream,
    /// How the other side's case ended, if it has.
    theirs: Option<Result<(), Failure>>,
}

impl<'s> Channel<'s> {
    pub(super) fn new(stream: &'s mut dyn Stream) -> Self {
        Channel { stream, theirs: None }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn put(&mut self, message: &[u8]) -> Result<(), Failure> {
        self.frame(DATA, message)
    }

    /// The next message.
    ///
    /// # Errors
    /// [`Failure`], also where the other side has given up.
    pub fn get(&mut self) -> Result<Vec<u8>, Failure> {
        if self.theirs.is_some() {
            return Err(Failure("the other side has ended".to_owned()));
        }
        match self.next()? {
            (DATA, message) => Ok(message),
            (ENDED, _) => {
                self.theirs = Some(Ok(()));
                Err(Failure("the other side has ended".to_owned()))
            }
            (_, why) => {
                let why = Failure(format!("the other side: {}", String::from_utf8_lossy(&why)));
                self.theirs = Some(Err(why.clone()));
                Err(why)
            }
        }
    }

    /// Ends a case on both sides, and tells what came of it on both.
    pub(super) fn end(&mut self, ours: Result<(), Failure>) -> Result<Result<(), Failure>, Failure> {
        match &ours {
            Ok(()) => self.frame(ENDED, b"")?,
            Err(why) => self.frame(FAILED, why.0.as_bytes())?,
        }
        while self.theirs.is_none() {
            // What was sent before the end is of no use any more.
            let _ = self.get();
        }
        Ok(ours.and(self.theirs.take().unwrap_or(Ok(()))))
    }

    fn frame(&mut self, tag: u8, message: &[u8]) -> Result<(), Failure> {
        let len = u32::try_from(message.len()).map_err(|_| Failure("a long message".to_owned()))?;
        let frame = [&[tag][..], &len.to_le_bytes(), message].concat();
        self.stream.write_all(&frame)?;
        Ok(self.stream.flush()?)
    }

    fn next(&mut self) -> Result<(u8, Vec<u8>), Failure> {
        let (mut tag, mut len) = ([0], [0; 4]);
        let read = self.stream.read_exact(&mut tag).and_then(|()| self.stream.read_exact(&mut len));
        if let Err(error) = read {
            self.theirs = Some(Err(Failure(format!("the other side is lost: {error}"))));
            return Err(error.into());
        }
        let len = usize::try_from(u32::from_le_bytes(len)).ok().filter(|len| *len <= FRAME_BYTES_MAX);
        let mut message = vec![0; len.ok_or_else(|| Failure("a long message comes".to_owned()))?];
        self.stream.read_exact(&mut message)?;
        Ok((u8::from_le_bytes(tag), message))
    }
}

/// One side of a case: its end of a connection, and patience.
pub(super) struct Side<'c, 's> {
    role: Role,
    connector: &'c mut dyn Connector,
    channel: &'c mut Channel<'s>,
    endpoint: Option<Box<dyn Waitable>>,
    /// Polled, but not asked for yet.
    events: VecDeque<Event>,
    ops: u64,
}

impl<'c, 's> Side<'c, 's> {
    pub(super) fn new(
        role: Role,
        connector: &'c mut dyn Connector,
        channel: &'c mut Channel<'s>,
    ) -> Side<'c, 's> {
        Side { role, connector, channel, endpoint: None, events: VecDeque::new(), ops: 0 }
    }

    /// A fresh connection.
    pub(super) fn connect(&mut self) -> Result<(), Failure> {
        self.leave();
        self.endpoint = Some(self.connector.connect(self.role, self.channel)?);
        // Neither leaves before the other has come.
        self.meet("connected")
    }

    /// Ends the connection.
    pub(super) fn leave(&mut self) {
        self.endpoint = None;
        self.events.clear();
    }

    pub(super) fn endpoint(&mut self) -> Result<&mut dyn Waitable, Failure> {
        match &mut self.endpoint {
            Some(endpoint) => Ok(endpoint.as_mut()),
            None => Err(Failure("there is no connection".to_owned())),
        }
    }

    pub(super) fn region(&mut self, len: usize) -> Result<Region, Failure> {
        Ok(Region::whole(self.connector.memory(len)?))
    }

    /// Memory of our own, for our operations.
    pub(super) fn own(&mut self, len: usize) -> Result<(Region, Local), Failure> {
        let region = self.region(len)?;
        let local = self.endpoint()?.register(&region, Access::NONE)?.local;
        Ok((region, local))
    }

    /// Memory that the other side may reach, and is notified of.
    pub(super) fn share(&mut self, len: usize, access: Access) -> Result<(Region, Local), Failure> {
        let region = self.region(len)?;
        let local = self.share_region(&region, access)?;
        Ok((region, local))
    }

    pub(super) fn share_region(&mut self, region: &Region, access: Access) -> Result<Local, Failure> {
        let Registration { local, descriptor } = self.endpoint()?.register(region, access)?;
        self.put(descriptor.as_bytes())?;
        Ok(local)
    }

    /// What the other side has shared.
    pub(super) fn reach(&mut self) -> Result<Remote, Failure> {
        let reported = self.get()?;
        let descriptor = Descriptor::new(&reported).ok_or_else(|| Failure("a long descriptor".to_owned()))?;
        loop {
            if let Some(remote) = self.endpoint()?.reach(&descriptor)? {
                return Ok(remote);
            }
            self.pump()?;
        }
    }

    pub(super) fn put(&mut self, message: &[u8]) -> Result<(), Failure> {
        self.channel.put(message)
    }

    pub(super) fn get(&mut self) -> Result<Vec<u8>, Failure> {
        self.channel.get()
    }

    /// Both sides have come to this.
    pub(super) fn meet(&mut self, name: &str) -> Result<(), Failure> {
        self.put(name.as_bytes())?;
        let theirs = self.get()?;
        ensure!(theirs == name.as_bytes(), "at {name} the other is at {}", String::from_utf8_lossy(&theirs));
        Ok(())
    }

    /// Does something, again and again while there is no room for it.
    pub(super) fn insist(
        &mut self,
        mut act: impl FnMut(&mut dyn Endpoint) -> Result<(), FabricError>,
    ) -> Result<(), Failure> {
        loop {
            match act(self.endpoint()?) {
                Err(FabricError::Full(_)) => self.pump()?,
                other => return Ok(other?),
            }
        }
    }

    /// The number of an operation.
    pub(super) fn op(&mut self) -> u64 {
        self.ops = self.ops.wrapping_add(1);
        self.ops
    }

    /// Writes, and waits for the end of it.
    pub(super) fn write(
        &mut self,
        pieces: &[Piece],
        to: Remote,
        at: usize,
        notify: Option<u32>,
    ) -> Result<(), Failure> {
        let op = self.op();
        self.insist(|endpoint| endpoint.write(op, pieces, to, at, notify))?;
        self.done(op).map(|_| ())
    }

    /// Reads, and waits for the end of it.
    pub(super) fn read(&mut self, from: Remote, at: usize, into: Piece) -> Result<(), Failure> {
        let op = self.op();
        self.insist(|endpoint| endpoint.read(op, from, at, into))?;
        self.done(op).map(|_| ())
    }

    /// Adds, and waits for what it was before.
    pub(super) fn add(&mut self, to: Remote, at: usize, add: u64) -> Result<u64, Failure> {
        let op = self.op();
        self.insist(|endpoint| endpoint.fetch_add(op, to, at, add))?;
        self.done(op)
    }

    /// The end of an operation; what the other side brings meanwhile is kept.
    pub(super) fn done(&mut self, op: u64) -> Result<u64, Failure> {
        match self.end_of(op)? {
            Ok(value) => Ok(value),
            Err(error) => Err(Failure(format!("operation {op}: {error}"))),
        }
    }

    pub(super) fn end_of(&mut self, op: u64) -> Result<Result<u64, FabricError>, Failure> {
        loop {
            let found = self.events.iter().position(|event| matches!(event, Event::Done { .. }));
            if let Some(Event::Done { op: ended, result }) = found.and_then(|at| self.events.remove(at)) {
                ensure!(ended == op, "{ended} has ended before {op}");
                return Ok(result);
            }
            self.pump()?;
        }
    }

    /// Something that the other side brings; ends of operations are kept.
    pub(super) fn brought(&mut self) -> Result<Event, Failure> {
        loop {
            let found = self.events.iter().position(|event| !matches!(event, Event::Done { .. }));
            if let Some(event) = found.and_then(|at| self.events.remove(at)) {
                return Ok(event);
            }
            self.pump()?;
        }
    }

    pub(super) fn notified(&mut self) -> Result<(u32, u32), Failure> {
        match self.brought()? {
            Event::Notified { imm, len } => Ok((imm, len)),
            other => Err(Failure(format!("not a notification: {other:?}"))),
        }
    }

    pub(super) fn message(&mut self) -> Result<Message, Failure> {
        match self.brought()? {
            Event::Message(message) => Ok(message),
            other => Err(Failure(format!("no message: {other:?}"))),
        }
    }

    /// Nothing has come that was not asked for.
    pub(super) fn nothing_else(&mut self) -> Result<(), Failure> {
        self.poll()?;
        ensure!(self.events.is_empty(), "and then comes {:?}", self.events);
        Ok(())
    }

    fn poll(&mut self) -> Result<usize, Failure> {
        let mut events = Vec::new();
        self.endpoint()?.poll(&mut events, EVENTS_AT_ONCE)?;
        ensure!(events.len() <= EVENTS_AT_ONCE, "{} events come at once", events.len());
        let count = events.len();
        self.events.extend(events);
        Ok(count)
    }

    /// Polls; sleeps if there is nothing.
    pub(super) fn pump(&mut self) -> Result<(), Failure> {
        if self.poll()? == 0 && self.endpoint()?.park()? {
            self.sleep()?;
        }
        Ok(())
    }

    /// Sleeps, having dozed off.
    pub(super) fn sleep(&mut self) -> Result<(), Failure> {
        let endpoint = self.endpoint()?;
        let flags = if endpoint.wants_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let (first, second) = endpoint.wakers();
        let mut files = vec![PollFd::from_borrowed_fd(first, PollFlags::IN)];
        files.extend(second.map(|second| PollFd::from_borrowed_fd(second, flags)));
        let patience = Timespec { tv_sec: PATIENCE_S, tv_nsec: 0 };
        let woken = poll(&mut files, Some(&patience)).map_err(|errno| Failure(errno.to_string()))?;
        ensure!(woken > 0, "nothing comes");
        Ok(endpoint.wake()?)
    }
}
