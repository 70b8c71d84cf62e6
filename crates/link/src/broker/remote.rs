//! Over memory that is reached by operations.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use headrace_broker::{LinkAction, LinkId, Refusal};
use headrace_fabric::{
    Access, Descriptor, Endpoint, Event, FabricError, Local, Memory, Note, Obstacle, Region,
};
use headrace_wire::link_message::{LinkMessage, RegionDescriptor, UnreachableReason};
use headrace_wire::time::Now;

use super::{LinkOwner, LogFile, MappedFile};
use crate::fault::lie;

/// Messages that wait for room, before the client counts as dead.
const UNSENT_MAX: usize = 1 << 16;
/// What a client was told is void, and has not released: a card that is stopped amid an operation ends the connection. It is
/// told of no more at once.
const REVOKED_MAX: usize = 256;
/// What it is to be notified of after that, before it counts as one that keeps what was revoked.
const UNTOLD_MAX: usize = 1024;
/// Taken from the card at once.
const EVENTS: usize = 64;
/// Things taken before the other links get their turn, a note as the last.
const EVENTS_PER_TURN: usize = 64;

/// What a client has done.
enum Done {
    /// It has written a batch, or says so.
    Written(Note),
    /// It wants to read a file from `at` on.
    WantWindow { key: u64, at: u64 },
    /// What is not the broker's affair.
    Other,
}

/// A file that is exposed to a client: the part that is registered, if one is.
#[derive(Debug)]
struct Exposed<F> {
    file: F,
    local: Option<Local>,
}

#[derive(Debug)]
pub(super) struct RemoteEnd<E, F> {
    endpoint: E,
    events: VecDeque<Event>,
    polled: Vec<Event>,
    exposed: HashMap<u64, Local>,
    files: HashMap<u64, Exposed<F>>,
    /// What the client was told is void, and is to release.
    revoked: HashMap<u64, Option<Local>>,
    /// What it is to be notified of next.
    untold: VecDeque<(u64, Option<Local>)>,
    unsent: VecDeque<LinkMessage>,
    /// The client is to be notified.
    parked: bool,
    /// Slots have changed since it was.
    stale: bool,
}

/// A descriptor as it goes in a message.
fn sent(descriptor: &Descriptor) -> Result<RegionDescriptor, FabricError> {
    let long = || FabricError::Misuse("a descriptor is longer than a message takes".to_owned());
    RegionDescriptor::new(descriptor.as_bytes()).ok_or_else(long)
}

/// What keeps a region from being registered.
fn reason(error: &FabricError) -> UnreachableReason {
    match error.obstacle() {
        Obstacle::MemoryLock => UnreachableReason::MemoryLock,
        Obstacle::FileSystem => UnreachableReason::FileSystem,
        Obstacle::Other => UnreachableReason::Other,
    }
}

impl<E: Endpoint, F: MappedFile> RemoteEnd<E, F> {
    pub(super) fn new(endpoint: E) -> Self {
        Self {
            endpoint,
            events: VecDeque::new(),
            polled: Vec::new(),
            exposed: HashMap::new(),
            files: HashMap::new(),
            revoked: HashMap::new(),
            untold: VecDeque::new(),
            unsent: VecDeque::new(),
            parked: false,
            stale: false,
        }
    }

    pub(super) fn poll(
        &mut self,
        now: Now,
        id: LinkId,
        owner: &mut impl LinkOwner,
    ) -> Result<bool, FabricError> {
        let mut any = false;
        for _ in 0..EVENTS_PER_TURN {
            let Some(done) = self.next()? else { break };
            any = true;
            match done {
                Done::Written(note) => {
                    owner.written(now, id, note);
                    break;
                }
                Done::WantWindow { key, at } => {
                    if self.move_window(id, (key, at), owner)? {
                        // Pages were mapped and locked: others have their turn.
                        break;
                    }
                }
                Done::Other => {}
            }
        }
        self.send_unsent()?;
        Ok(any)
    }

    /// What the client has done next; none: not now.
    fn next(&mut self) -> Result<Option<Done>, FabricError> {
        if self.events.is_empty() {
            self.endpoint.poll(&mut self.polled, EVENTS)?;
            self.events.extend(self.polled.drain(..));
        }
        let Some(event) = self.events.pop_front() else { return Ok(None) };
        let message = match event {
            Event::Notified { imm, len } => {
                return Ok(Some(Done::Written([u64::from(imm), u64::from(len), 0, 0])));
            }
            Event::Done { result, .. } => return result.map(|_| Some(Done::Other)),
            Event::Message(message) => message,
        };
        match LinkMessage::decode(&message) {
            Some(LinkMessage::Written { immediate, bytes }) => {
                Ok(Some(Done::Written([u64::from(immediate), u64::from(bytes), 0, 0])))
            }
            Some(LinkMessage::WantWindow { key, at }) => Ok(Some(Done::WantWindow { key, at })),
            Some(LinkMessage::Parked) => {
                self.parked = true;
                // What has changed since it was notified last it has perhaps not seen.
                if self.stale {
                    self.notify()?;
                }
                Ok(Some(Done::Other))
            }
            Some(LinkMessage::Released { key }) => {
                let none = || lie("releases what was not revoked");
                if let Some(local) = self.revoked.remove(&key).ok_or_else(none)? {
                    self.endpoint.revoke(local)?;
                }
                self.tell_revoked()?;
                Ok(Some(Done::Other))
            }
            _ => Err(lie("says what no client says")),
        }
    }

    /// A client wants another part of a file. Whether it has one now, which takes time.
    fn move_window(
        &mut self,
        id: LinkId,
        (key, at): (u64, u64),
        owner: &mut impl LinkOwner,
    ) -> Result<bool, FabricError> {
        let reason = match owner.window(id, key, at) {
            Ok(part) => {
                if self.expose_window(key, part)? {
                    return Ok(true);
                }
                None
            }
            // It is about to hear of it.
            Err(Refusal::Ended) => return Ok(false),
            Err(Refusal::Full) => Some(UnreachableReason::Quota),
            Err(Refusal::Disk(_)) => Some(UnreachableReason::Other),
        };
        if let Some(reason) = reason {
            self.say(LinkMessage::Unreachable { key, reason })?;
        }
        owner.not_exposed(id, key);
        Ok(false)
    }

    pub(super) fn act<L: LogFile<Mapped = F>>(
        &mut self,
        id: LinkId,
        action: LinkAction<L>,
        owner: &mut impl LinkOwner,
    ) -> Result<(), FabricError> {
        let exposed = match action {
            LinkAction::Acknowledge { note, .. } => return self.say(LinkMessage::Ack(note)),
            LinkAction::Nudge { .. } => {
                owner.notified(id);
                return self.notify();
            }
            LinkAction::End { key, .. } => return self.revoke(key),
            // A shared ring has its order word behind it: who may write the ring can spoil it for its members anyway, so that
            // the word needs no registration of its own.
            LinkAction::ExposeToWrite { key, memory, shared, .. } => {
                let access = if shared { Access::WRITE | Access::ADD } else { Access::WRITE };
                (key, self.expose(key, memory, access, |key, region| LinkMessage::Ring { key, region })?)
            }
            LinkAction::ExposeToRead { key, memory, .. } => {
                let message = |key, region| LinkMessage::Slots { key, region };
                (key, self.expose(key, memory, Access::READ, message)?)
            }
            LinkAction::ExposeFile { key, file, bytes, .. } => (key, self.expose_file(key, file.map(bytes))?),
            LinkAction::Close { .. } => return Err(FabricError::Gone),
            LinkAction::Join { .. } | LinkAction::Carry { .. } => {
                return Err(FabricError::Misuse("a link is made once".to_owned()));
            }
        };
        if let (key, false) = exposed {
            owner.not_exposed(id, key);
        }
        Ok(())
    }

    /// Says what there was no room for.
    fn send_unsent(&mut self) -> Result<(), FabricError> {
        while let Some(message) = self.unsent.front() {
            match self.endpoint.tell(&message.encode()) {
                Ok(()) => self.unsent.pop_front(),
                Err(FabricError::Full(_)) if self.unsent.len() < UNSENT_MAX => return Ok(()),
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    fn say(&mut self, message: LinkMessage) -> Result<(), FabricError> {
        self.unsent.push_back(message);
        self.send_unsent()
    }

    /// Exposes memory; whether the client can have it.
    fn expose(
        &mut self,
        key: u64,
        memory: Arc<Memory>,
        access: Access,
        message: impl FnOnce(u64, RegionDescriptor) -> LinkMessage,
    ) -> Result<bool, FabricError> {
        match self.endpoint.register(&Region::whole(memory), access) {
            Ok(made) => {
                self.exposed.insert(key, made.local);
                self.say(message(key, sent(&made.descriptor)?))?;
                Ok(true)
            }
            Err(error) => {
                self.say(LinkMessage::Unreachable { key, reason: reason(&error) })?;
                Ok(false)
            }
        }
    }

    /// A client may ask for parts of a file.
    fn expose_file(&mut self, key: u64, file: Option<F>) -> Result<bool, FabricError> {
        let Some(file) = file else {
            self.say(LinkMessage::Unreachable { key, reason: UnreachableReason::Other })?;
            return Ok(false);
        };
        self.files.insert(key, Exposed { file, local: None });
        Ok(true)
    }

    /// Exposes a part of a file instead of the last one, as far as the file reaches; whether the client can have it.
    fn expose_window(&mut self, key: u64, part: Range<u64>) -> Result<bool, FabricError> {
        let Some(exposed) = self.files.get_mut(&key) else { return Ok(true) };
        if let Some(local) = exposed.local.take() {
            self.endpoint.revoke(local)?;
        }
        let bytes = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        let (from, size) = (bytes(part.start), exposed.file.bytes());
        let to = bytes(part.end.min(size)).min(exposed.file.region().len());
        // A client that asks for what is not there.
        let none = || lie("asks for bytes that a file has not");
        let len = to.checked_sub(from).filter(|len| *len > 0).ok_or_else(none)?;
        let region = exposed.file.region().part(from, len)?;
        let message = match self.endpoint.register(&region, Access::READ) {
            Ok(made) => {
                exposed.local = Some(made.local);
                LinkMessage::Window { key, at: part.start, region: sent(&made.descriptor)? }
            }
            Err(error) => LinkMessage::Unreachable { key, reason: reason(&error) },
        };
        let exposed = matches!(message, LinkMessage::Window { .. });
        self.say(message)?;
        Ok(exposed)
    }

    /// What was exposed by a key is void, and given up once the client has released it. What it writes there meanwhile nobody
    /// looks at.
    fn revoke(&mut self, key: u64) -> Result<(), FabricError> {
        let file = |end: &mut Self| end.files.remove(&key).and_then(|exposed| exposed.local);
        let local = self.exposed.remove(&key).or_else(|| file(self));
        self.untold.push_back((key, local));
        if self.untold.len() > UNTOLD_MAX {
            return Err(lie("keeps what was revoked"));
        }
        self.tell_revoked()
    }

    fn tell_revoked(&mut self) -> Result<(), FabricError> {
        while self.revoked.len() < REVOKED_MAX
            && let Some((key, local)) = self.untold.pop_front()
        {
            self.revoked.insert(key, local);
            self.say(LinkMessage::Revoked { key })?;
        }
        Ok(())
    }

    /// Slots have changed: a client that polls sees it, one that is parked is notified.
    fn notify(&mut self) -> Result<(), FabricError> {
        if !self.parked {
            self.stale = true;
            return Ok(());
        }
        (self.parked, self.stale) = (false, false);
        self.say(LinkMessage::Notify)
    }

    pub(super) fn park(&mut self) -> Result<bool, FabricError> {
        Ok(self.events.is_empty() && self.endpoint.park()?)
    }

    pub(super) fn unpark(&mut self) {
        // One that has failed says so when it is polled.
        let _ = self.endpoint.wake();
    }
}

#[cfg(test)]
mod tests;
