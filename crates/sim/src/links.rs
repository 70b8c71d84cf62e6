//! Links over memory that the broker lends: what is on its way over them, and what each side sees of the other's memory.
//!
//! The two channels of a link, notes and what is lent, are each in order, and not to each other. What a writer has written
//! is there at once, as memory is; what it tells of it comes later. A reader's slots are a copy of the broker's, which
//! follows word by word, the first of each last. A log's file is a real one that follows the disk in memory, at times with
//! bytes behind its end that nobody has committed.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headrace_client::io::LinkId;
use headrace_fabric::{Committed, Memory, Note, Region};
use headrace_log::MemoryFile;
use headrace_wire::direct::{SLOT_BYTES, SLOT_WORDS};
use headrace_wire::records::batch_size;

use crate::card::Card;
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

/// What comes over a link's socket.
pub(crate) enum Control {
    Linked,
    Lent(u64, Arc<Memory>),
    File(u64, OwnedFd, usize),
    Ended(u64),
    /// What was granted by this key cannot be reached.
    Refused(u64),
    /// A part of a file is there to be read.
    Window(u64, Range<u64>),
    /// Slots have changed.
    Nudge,
    Gone(&'static str),
}

/// Slots as their reader sees them.
pub(crate) struct Slots {
    /// The broker's.
    source: Region,
    /// The reader's.
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

/// An addition to a word of the broker's memory.
pub(crate) struct Draw {
    pub(crate) key: u64,
    pub(crate) region: Region,
    pub(crate) at: usize,
    pub(crate) add: u64,
}

#[expect(clippy::struct_excessive_bools, reason = "independent facts, each read by itself")]
pub(crate) struct Link {
    pub(crate) who: Who,
    pub(crate) id: LinkId,
    /// What the broker gave for it.
    pub(crate) token: [u8; 16],
    /// It is one over RDMA.
    pub(crate) verbs: bool,
    /// What a reader has over that.
    pub(crate) card: Card,
    /// How many connections of its client's had ended when it was begun.
    pub(crate) since: u64,
    /// Turns that are asked for: when the broker's card adds, where, and what.
    pub(crate) draws: VecDeque<(u64, Draw)>,
    /// Turns on their way back: of which memory, and the word.
    pub(crate) drew: VecDeque<(u64, (u64, u64))>,
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
    pub(crate) to_broker: VecDeque<(u64, Note)>,
    pub(crate) to_client: VecDeque<(u64, Note)>,
    pub(crate) control: VecDeque<(u64, Control)>,
    /// Memory that the client may write.
    pub(crate) lent: BTreeMap<u64, Region>,
    pub(crate) slots: Option<Slots>,
    pub(crate) mirrors: BTreeMap<u64, Mirror>,
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
            card: Card::default(),
            since: 0,
            draws: VecDeque::new(),
            drew: VecDeque::new(),
            address,
            client: true,
            broker: false,
            linked: false,
            lied: false,
            to_broker: VecDeque::new(),
            to_client: VecDeque::new(),
            control: VecDeque::new(),
            lent: BTreeMap::new(),
            slots: None,
            mirrors: BTreeMap::new(),
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

    /// What was read is shown.
    pub(crate) fn show(&self, words: &[Words]) -> Result<(), String> {
        for (slot, words) in words.iter().enumerate() {
            for (at, word) in words.iter().enumerate() {
                self.put(slot * SLOT_BYTES + at * 8, *word)?;
            }
        }
        Ok(())
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

    pub(crate) fn len(&self) -> u64 {
        self.source.bytes(0, usize::MAX).len() as u64
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

/// Maps what a reader was shown.
pub(crate) fn map(file: OwnedFd, bytes: usize) -> Result<Committed, String> {
    Committed::map(file, bytes).map_err(|why| why.to_string())
}
