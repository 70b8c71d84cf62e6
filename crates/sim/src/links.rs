//! Links over memory that the broker exposes: their two ends, as they are shipped (`crates/link`), and what is on its way
//! between them.
//!
//! What an end sends is given a time, and may be lost, doubled or another by then; what arrives is handed to the other end.
//! Over shared memory notes and the socket are each in order, and not to each other. A reader's slots are a copy of the
//! broker's, which follows word by word, the first of each last. A log's file is a real one that follows the disk in memory,
//! at times with bytes behind its end that nobody has committed. Over RDMA all is in one order in each direction; what is
//! read is what is there when the card reads it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headrace_client::io::LinkId;
use headrace_fabric::simulated::{Cable, Packet, Reply, SimLink, SimNic, ToPeer, Wire};
use headrace_fabric::{Memory, Region};
use headrace_link::broker::{BrokerEnd, LogFile, MappedFile};
use headrace_link::client::ClientEnd;
use headrace_log::MemoryFile;
use headrace_wire::direct::{SLOT_BYTES, SLOT_WORDS};
use headrace_wire::records::batch_size;

use crate::client::Who;
use crate::rng::Rng;

/// The simulation has no more partitions than that, and slots are given out from the first on.
const SLOTS: usize = 64;
/// So much of a batch tells its size.
const BATCH_START_BYTES: usize = 17;
/// Of reads of slots: how many find one that is being written.
const TORN_READS: u64 = 50;
/// Bytes behind the committed end of a file.
const TORN_BYTES_MAX: u64 = 200;
/// Files of this process so far, for their names.
static FILES: AtomicU64 = AtomicU64::new(0);

pub(crate) type Words = [u64; SLOT_WORDS];
/// The broker's end, as it is shipped.
pub(crate) type SimBrokerEnd = BrokerEnd<SimLink, SimNic, SimFile>;
/// A client's.
pub(crate) type SimClientEnd = ClientEnd<SimLink, SimNic>;

/// What comes over a link's socket, or tells of the link itself.
pub(crate) enum Control {
    Linked,
    Peer(ToPeer),
    Gone(&'static str),
}

/// What is between the two ends.
#[derive(Default)]
pub(crate) enum Line {
    /// Nothing yet.
    #[default]
    None,
    Shm(Wire),
    Verbs(Cable),
}

/// Slots as their reader sees them.
pub(crate) struct Slots {
    /// The broker's.
    source: Region,
    /// The reader's, over shared memory.
    copy: Region,
    /// What was sent off last, and what before that.
    known: Vec<Words>,
    before: Vec<Words>,
    /// How many changes there were, by then.
    changed: Vec<u64>,
    changes: u64,
    /// Words on their way: when, where, what.
    queue: VecDeque<(u64, usize, u64)>,
}

/// A segment's file: it may be longer than what is committed of it.
pub(crate) struct Growing {
    pub(crate) source: MemoryFile,
    /// Whole batches from its start on. Nothing is written that is not committed in the same moment.
    pub(crate) committed: u64,
}

/// A file that follows one of the disk in memory.
pub(crate) struct Mirror {
    source: Growing,
    file: File,
}

/// A log's file as a broker's end has it.
#[derive(Clone, Debug)]
pub(crate) struct SimFile {
    source: MemoryFile,
    /// Over shared memory: what its reader maps.
    reader: Option<Arc<OwnedFd>>,
    /// It cannot be mapped.
    unmapped: bool,
    state: Arc<Mutex<FileState>>,
}

#[derive(Debug, Default)]
struct FileState {
    /// It in memory, for a card.
    region: Option<Region>,
    /// It reaches no further than this, for once.
    reach: Option<u64>,
}

/// The same in memory.
#[derive(Debug)]
pub(crate) struct SimMapped {
    file: SimFile,
    region: Region,
}

impl SimFile {
    pub(crate) fn new(source: MemoryFile, reader: Option<OwnedFd>, unmapped: bool) -> Self {
        Self { source, reader: reader.map(Arc::new), unmapped, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> u64 {
        self.source.bytes(0, usize::MAX).len() as u64
    }

    /// It seems to end there, to who looks next.
    pub(crate) fn reach(&self, end: u64) {
        self.state().reach = Some(end);
    }

    /// Bytes of it are about to be read by a card.
    pub(crate) fn follow(&self, at: u64, len: usize) -> Result<(), String> {
        let state = self.state();
        let Some(region) = &state.region else { return Ok(()) };
        let bytes = self.source.bytes(at, len);
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        region.write(at, &bytes).map_err(|why| why.to_string())
    }
}

impl MappedFile for SimMapped {
    fn region(&self) -> &Region {
        &self.region
    }

    fn bytes(&self) -> u64 {
        let reach = self.file.state().reach.take();
        let len = self.file.len();
        reach.map_or(len, |reach| reach.min(len))
    }
}

impl LogFile for SimFile {
    type Mapped = SimMapped;

    fn map(&self, bytes: u64) -> Option<SimMapped> {
        let len = usize::try_from(bytes.max(self.len())).ok().filter(|_| !self.unmapped)?;
        let region = Region::whole(Memory::sealed("sim-file", len).ok()?);
        self.state().region = Some(region.clone());
        Some(SimMapped { file: self.clone(), region })
    }

    fn open_read_only(&self) -> io::Result<OwnedFd> {
        let reader = self.reader.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        reader.as_fd().try_clone_to_owned()
    }
}

#[expect(clippy::struct_excessive_bools, reason = "independent facts, each read by itself")]
pub(crate) struct Link {
    pub(crate) who: Who,
    pub(crate) id: LinkId,
    /// What the broker gave for it.
    pub(crate) token: [u8; 16],
    /// It is one over RDMA.
    pub(crate) verbs: bool,
    /// How many connections of its client's had ended when it was begun.
    pub(crate) since: u64,
    /// Which start of the broker has given it.
    pub(crate) address: String,
    /// The client's engine uses it.
    pub(crate) client: bool,
    /// The broker knows it.
    pub(crate) broker: bool,
    /// Its client knows that it stands.
    pub(crate) linked: bool,
    /// Something else was told over it than what the broker said.
    pub(crate) lied: bool,
    /// The client's card hears nothing any more.
    pub(crate) deaf: bool,
    pub(crate) line: Line,
    pub(crate) client_end: Option<SimClientEnd>,
    pub(crate) broker_end: Option<SimBrokerEnd>,
    /// Over shared memory, on its way: notes, and that a side is notified.
    pub(crate) to_broker: VecDeque<(u64, ToPeer)>,
    pub(crate) to_client: VecDeque<(u64, ToPeer)>,
    pub(crate) control: VecDeque<(u64, Control)>,
    /// Over RDMA: packets, with how often slots had changed when they were sent, and what comes back.
    pub(crate) packets_to_broker: VecDeque<(u64, (Packet, u64))>,
    pub(crate) packets_to_client: VecDeque<(u64, Packet)>,
    pub(crate) replies: VecDeque<(u64, Reply)>,
    pub(crate) slots: Option<Slots>,
    /// By which key of the broker's card slots are read.
    pub(crate) slots_region: Option<u64>,
    pub(crate) mirrors: BTreeMap<u64, Mirror>,
    /// Files that a reader over RDMA may read, and how far they are committed.
    pub(crate) files: BTreeMap<u64, (SimFile, Growing)>,
    /// Parts of them, by the keys of the broker's card: of which file, and from where on.
    pub(crate) windows: BTreeMap<u64, (u64, u64)>,
    /// Control messages come in order.
    last_control: u64,
}

impl Link {
    pub(crate) fn new(who: Who, id: LinkId, token: [u8; 16], address: String) -> Self {
        Self {
            who,
            id,
            token,
            verbs: false,
            since: 0,
            address,
            client: true,
            broker: false,
            linked: false,
            lied: false,
            deaf: false,
            line: Line::None,
            client_end: None,
            broker_end: None,
            to_broker: VecDeque::new(),
            to_client: VecDeque::new(),
            control: VecDeque::new(),
            packets_to_broker: VecDeque::new(),
            packets_to_client: VecDeque::new(),
            replies: VecDeque::new(),
            slots: None,
            slots_region: None,
            mirrors: BTreeMap::new(),
            files: BTreeMap::new(),
            windows: BTreeMap::new(),
            last_control: 0,
        }
    }

    /// Something is to come over the socket; when.
    pub(crate) fn tell(&mut self, due: u64, control: Control) -> u64 {
        self.last_control = self.last_control.max(due);
        self.control.push_back((self.last_control, control));
        self.last_control
    }
}

/// Puts something behind what is there; when it comes.
pub(crate) fn put<T>(queue: &mut VecDeque<(u64, T)>, due: u64, note: T) -> u64 {
    let due = queue.back().map_or(due, |(last, _)| due.max(*last));
    queue.push_back((due, note));
    due
}

/// Takes the next thing whose time has come.
pub(crate) fn take<T>(queue: &mut VecDeque<(u64, T)>, now_ms: u64) -> Option<T> {
    if queue.front()?.0 > now_ms {
        return None;
    }
    queue.pop_front().map(|(_, what)| what)
}

impl Slots {
    /// The broker shows its slots; what its reader is shown instead.
    pub(crate) fn new(source: Arc<Memory>) -> Result<(Self, Arc<Memory>), String> {
        let memory = Memory::sealed("sim-slots", SLOTS * SLOT_BYTES).map_err(|why| why.to_string())?;
        let known = vec![[0; SLOT_WORDS]; SLOTS];
        let before = known.clone();
        let (source, copy, changed) = (Region::whole(source), Region::whole(memory.clone()), vec![0; SLOTS]);
        Ok((Self { source, copy, known, before, changed, changes: 0, queue: VecDeque::new() }, memory))
    }

    /// Slots that have changed: which, and what they say now.
    pub(crate) fn changed(&mut self) -> Result<Vec<(usize, Words)>, String> {
        let mut changed = Vec::new();
        for (slot, known) in self.known.iter_mut().enumerate() {
            let mut words = [0; SLOT_WORDS];
            for (at, word) in words.iter_mut().enumerate() {
                *word = self.source.load(slot * SLOT_BYTES + at * 8).map_err(|why| why.to_string())?;
            }
            if words != *known {
                self.changes += 1;
                (self.before[slot], self.changed[slot]) = (std::mem::replace(known, words), self.changes);
                changed.push((slot, words));
            }
        }
        Ok(changed)
    }

    /// How often any have changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// The first slots, as a read finds them that was asked for after so many changes. One may be written while it is read:
    /// then the words that are read first are older.
    pub(crate) fn read(&self, slots: usize, since: u64, rng: &mut Rng) -> Vec<Words> {
        let mut words: Vec<Words> = self.known.iter().take(slots).copied().collect();
        let (slot, old) = (rng.index(words.len()), rng.index(SLOT_WORDS));
        if self.changed[slot] > since
            && rng.chance(TORN_READS)
            && let Some(words) = words.get_mut(slot)
        {
            words[..old].copy_from_slice(&self.before[slot][..old]);
        }
        words
    }

    /// A slot's words are on their way, the first of them last, each at a time of its own.
    pub(crate) fn send(&mut self, slot: usize, words: Words, mut due: impl FnMut() -> u64) -> u64 {
        let mut last = self.queue.back().map_or(0, |(due, ..)| *due);
        for (at, word) in words.into_iter().enumerate().rev() {
            last = last.max(due());
            self.queue.push_back((last, slot * SLOT_BYTES + at * 8, word));
        }
        last
    }

    /// A word that is not so is on its way behind the others.
    pub(crate) fn lie(&mut self, due: u64, at: usize, word: u64) -> u64 {
        let due = self.queue.back().map_or(due, |(last, ..)| due.max(*last));
        self.queue.push_back((due, at, word));
        due
    }

    /// What is there by now is there.
    pub(crate) fn arrive(&mut self, now_ms: u64) -> Result<(), String> {
        while let Some((due, at, word)) = self.queue.front().copied() {
            if due > now_ms {
                break;
            }
            self.queue.pop_front();
            self.put(at, word)?;
        }
        Ok(())
    }

    /// A word as the reader sees it.
    pub(crate) fn put(&self, at: usize, word: u64) -> Result<(), String> {
        self.copy.word(at).map_err(|why| why.to_string())?.store(word, Ordering::Release);
        Ok(())
    }
}

impl Growing {
    pub(crate) fn new(source: MemoryFile) -> Self {
        Self { source, committed: 0 }
    }

    /// Whole batches that have been added: where they begin, and what they are.
    pub(crate) fn grown(&mut self) -> (u64, Vec<u8>) {
        let from = self.committed;
        while let Some(Ok(size)) = batch_size(&self.source.bytes(self.committed, BATCH_START_BYTES)) {
            self.committed += size as u64;
        }
        let len = usize::try_from(self.committed - from).unwrap_or(0);
        (from, self.source.bytes(from, len))
    }
}

impl Mirror {
    /// A file that follows `source`, and its reader's descriptor.
    pub(crate) fn new(source: MemoryFile) -> io::Result<(Self, OwnedFd)> {
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let name = format!("headrace-sim-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = OpenOptions::new().create_new(true).write(true).open(&path)?;
        let reader = File::open(&path);
        std::fs::remove_file(&path)?;
        let mut mirror = Self { source: Growing::new(source), file };
        mirror.follow()?;
        Ok((mirror, reader?.into()))
    }

    /// Takes over what has been added; whether that was anything.
    pub(crate) fn follow(&mut self) -> io::Result<bool> {
        let (from, more) = self.source.grown();
        self.file.write_all_at(&more, from)?;
        Ok(!more.is_empty())
    }

    /// Bytes are behind the end that are not committed, and never will be as they are.
    pub(crate) fn tear(&self, rng: &mut Rng) -> io::Result<()> {
        let len = usize::try_from(rng.between(1, TORN_BYTES_MAX)).unwrap_or(1);
        self.file.write_all_at(&rng.bytes(len), self.source.committed)
    }
}
