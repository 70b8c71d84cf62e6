//! The broker's end of a link over verbs.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use headrace_fabric::verbs::VerbsEndpoint;
use headrace_fabric::{
    Access, Descriptor, Endpoint, Event, FabricError, Local, Memory, Note, Obstacle, Region, Rights, Waitable,
};
use headrace_wire::link_message::{LinkMessage, RegionDescriptor, UnreachableReason};

/// Messages that wait for room, before the client counts as dead.
const WAITING_MAX: usize = 1 << 16;
/// What a client was told is void, and it has not said that it is done with: a card that is stopped amid an operation
/// ends the connection. It is told of no more at once.
const ENDED_MAX: usize = 256;
/// What it is to be told of after that, before it counts as one that keeps what was ended.
const UNTOLD_MAX: usize = 1024;
/// Taken from the card at once.
const EVENTS: usize = 64;

/// What a client has done.
pub(super) enum Came {
    /// It has written a batch, or says so.
    Note(Note),
    /// It wants to read a file from `at` on.
    Window { key: u64, at: u64 },
    /// What is not the broker's affair.
    Other,
}

/// A file that is shown to a client: the part that is registered, if one is.
struct Shown {
    memory: Region,
    file: Arc<File>,
    local: Option<Local>,
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

/// See the module.
pub(super) struct VerbsEnd {
    endpoint: VerbsEndpoint,
    came: VecDeque<Event>,
    taken: Vec<Event>,
    lent: HashMap<u64, Local>,
    files: HashMap<u64, Shown>,
    /// What it was told is void, and is to be done with.
    ended: HashMap<u64, Option<Local>>,
    /// What it is to be told of next.
    untold: VecDeque<(u64, Option<Local>)>,
    unsent: VecDeque<LinkMessage>,
    /// The client is to be nudged.
    asleep: bool,
    /// Slots have changed since it was.
    stale: bool,
}

impl VerbsEnd {
    pub(super) fn new(endpoint: VerbsEndpoint) -> Self {
        Self {
            endpoint,
            came: VecDeque::new(),
            taken: Vec::new(),
            lent: HashMap::new(),
            files: HashMap::new(),
            ended: HashMap::new(),
            untold: VecDeque::new(),
            unsent: VecDeque::new(),
            asleep: false,
            stale: false,
        }
    }

    pub(super) fn waker(&self) -> BorrowedFd<'_> {
        self.endpoint.wakers().0
    }

    /// Whether the client can add to words.
    pub(super) fn adds(&self) -> bool {
        self.endpoint.limits().adds
    }

    /// What came next; none: not now.
    pub(super) fn take(&mut self) -> Result<Option<Came>, FabricError> {
        if self.came.is_empty() {
            self.endpoint.poll(&mut self.taken, EVENTS)?;
            self.came.extend(self.taken.drain(..));
        }
        let Some(event) = self.came.pop_front() else { return Ok(None) };
        let message = match event {
            Event::Notified { imm, len } => {
                return Ok(Some(Came::Note([u64::from(imm), u64::from(len), 0, 0])));
            }
            Event::Done { result, .. } => return result.map(|_| Some(Came::Other)),
            Event::Message(message) => message,
        };
        match LinkMessage::decode(&message) {
            Some(LinkMessage::Written { immediate, bytes }) => {
                Ok(Some(Came::Note([u64::from(immediate), u64::from(bytes), 0, 0])))
            }
            Some(LinkMessage::WantWindow { key, at }) => Ok(Some(Came::Window { key, at })),
            Some(LinkMessage::Parked) => {
                self.asleep = true;
                if self.stale {
                    self.nudge()?;
                }
                Ok(Some(Came::Other))
            }
            Some(LinkMessage::Released { key }) => {
                let none = || FabricError::Peer("is done with what was not ended".to_owned());
                if let Some(local) = self.ended.remove(&key).ok_or_else(none)? {
                    self.endpoint.revoke(local)?;
                }
                self.tell_ends()?;
                Ok(Some(Came::Other))
            }
            _ => Err(FabricError::Peer("says what no client says".to_owned())),
        }
    }

    /// Tells what there was no room for.
    pub(super) fn send_waiting(&mut self) -> Result<(), FabricError> {
        while let Some(told) = self.unsent.front() {
            match self.endpoint.tell(&told.encode()) {
                Ok(()) => self.unsent.pop_front(),
                Err(FabricError::Full(_)) if self.unsent.len() < WAITING_MAX => return Ok(()),
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    fn tell(&mut self, message: LinkMessage) -> Result<(), FabricError> {
        self.unsent.push_back(message);
        self.send_waiting()
    }

    pub(super) fn send(&mut self, note: Note) -> Result<(), FabricError> {
        self.tell(LinkMessage::Ack(note))
    }

    /// Lends a ring; whether the client can have it. One that is shared has its order word behind it: who may write the ring
    /// can spoil it for its members anyway, so that the word needs no registration of its own.
    pub(super) fn lend(&mut self, key: u64, memory: Arc<Memory>, shared: bool) -> Result<bool, FabricError> {
        let access = if shared { Access::WRITE | Access::ADD } else { Access::WRITE };
        self.register(key, memory, access, |key, region| LinkMessage::Ring { key, region })
    }

    /// Shows slots; whether the client can have them.
    pub(super) fn show(&mut self, key: u64, memory: Arc<Memory>) -> Result<bool, FabricError> {
        self.register(key, memory, Access::READ, |key, region| LinkMessage::Slots { key, region })
    }

    fn register(
        &mut self,
        key: u64,
        memory: Arc<Memory>,
        access: Access,
        message: impl FnOnce(u64, RegionDescriptor) -> LinkMessage,
    ) -> Result<bool, FabricError> {
        match self.endpoint.register(&Region::whole(memory), access) {
            Ok(made) => {
                self.lent.insert(key, made.local);
                self.tell(message(key, sent(&made.descriptor)?))?;
                Ok(true)
            }
            Err(error) => {
                self.refuse(key, reason(&error))?;
                Ok(false)
            }
        }
    }

    /// A client may ask for parts of a file.
    pub(super) fn show_file(&mut self, key: u64, file: Arc<File>, bytes: u64) -> Result<bool, FabricError> {
        let len = usize::try_from(bytes.max(file.metadata().map_or(0, |found| found.len())));
        let mapped = file.try_clone().ok().zip(len.ok()).and_then(|(file, len)| {
            let file = OwnedFd::from(file);
            // Older kernels register nothing that we may not write.
            let own = Memory::ahead(&file, len, Rights::Write);
            own.or_else(|_| Memory::ahead(&file, len, Rights::Read)).ok()
        });
        let Some(memory) = mapped else {
            self.refuse(key, UnreachableReason::Other)?;
            return Ok(false);
        };
        self.files.insert(key, Shown { memory: Region::whole(memory), file, local: None });
        Ok(true)
    }

    /// Lends a part of a file instead of the last one, as far as the file reaches; whether the client can have it.
    pub(super) fn show_window(&mut self, key: u64, part: Range<u64>) -> Result<bool, FabricError> {
        let Some(shown) = self.files.get_mut(&key) else { return Ok(true) };
        if let Some(local) = shown.local.take() {
            self.endpoint.revoke(local)?;
        }
        let size = shown.file.metadata().map_or(0, |found| found.len());
        let bytes = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        let (from, to) = (bytes(part.start), bytes(part.end.min(size)).min(shown.memory.len()));
        // A client that asks for what is not there.
        let none = || FabricError::Peer("asks for bytes that a file has not".to_owned());
        let len = to.checked_sub(from).filter(|len| *len > 0).ok_or_else(none)?;
        let region = shown.memory.part(from, len)?;
        match self.endpoint.register(&region, Access::READ) {
            Ok(made) => {
                shown.local = Some(made.local);
                self.tell(LinkMessage::Window { key, at: part.start, region: sent(&made.descriptor)? })?;
                Ok(true)
            }
            Err(error) => {
                self.refuse(key, reason(&error))?;
                Ok(false)
            }
        }
    }

    pub(super) fn refuse(&mut self, key: u64, reason: UnreachableReason) -> Result<(), FabricError> {
        self.tell(LinkMessage::Unreachable { key, reason })
    }

    /// What was lent by a key is void, and given up once the client is done with it. What it writes there meanwhile nobody
    /// looks at.
    pub(super) fn end(&mut self, key: u64) -> Result<(), FabricError> {
        let local = self.lent.remove(&key).or_else(|| self.files.remove(&key).and_then(|shown| shown.local));
        self.untold.push_back((key, local));
        if self.untold.len() > UNTOLD_MAX {
            return Err(FabricError::Peer("keeps what was ended".to_owned()));
        }
        self.tell_ends()
    }

    fn tell_ends(&mut self) -> Result<(), FabricError> {
        while self.ended.len() < ENDED_MAX
            && let Some((key, local)) = self.untold.pop_front()
        {
            self.ended.insert(key, local);
            self.tell(LinkMessage::Revoked { key })?;
        }
        Ok(())
    }

    /// Slots have changed: a client that looks sees it, one that sleeps is told.
    pub(super) fn nudge(&mut self) -> Result<(), FabricError> {
        if !self.asleep {
            self.stale = true;
            return Ok(());
        }
        (self.asleep, self.stale) = (false, false);
        self.tell(LinkMessage::Notify)
    }

    pub(super) fn doze(&mut self) -> Result<bool, FabricError> {
        Ok(self.came.is_empty() && self.endpoint.doze()?)
    }

    pub(super) fn wake(&mut self) -> Result<(), FabricError> {
        self.endpoint.wake()
    }
}
