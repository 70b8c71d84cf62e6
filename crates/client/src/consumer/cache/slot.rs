//! What the cache holds of one partition.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::RecordBatch;

use crate::consumer::decode::{Chunk, RawBatch};
use crate::consumer::ticket::{PartId, Ticket};
use crate::consumer::types::{CommitOffset, StartAt, TopicPartition};
use crate::error::Error;

/// What may lie here of a partition on demand before it is fetched no further: enough to go on with while the next Fetch
/// is on its way.
pub const AHEAD_BYTES: usize = 1 << 20;

/// How partitions begin that are added from now on. By default they are read at once, and as far as there is room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Paused until they are opened.
    pub gated: bool,
    /// Fetched only while at most [`AHEAD_BYTES`] of them lie here.
    pub on_demand: bool,
}

/// What a partition holds, in the order in which it is handed out.
#[derive(Debug)]
pub(super) enum Entry {
    Chunk(Chunk),
    Raw(RawBatch),
    /// No rows up to here.
    Advance {
        next: i64,
        leader_epoch: i32,
    },
    Failed {
        error: Error,
        sticky: bool,
        /// It was handed out, and is not until the engine says so (see `raise_again`).
        raised: bool,
    },
}

/// The chunk that is being handed out, from row `at` on.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) chunk: Chunk,
    /// What callers get of it, who may take it row by row.
    pub(super) shared: Arc<RecordBatch>,
    pub(super) id: u64,
    pub(super) at: usize,
}

impl Open {
    pub(super) fn new(chunk: Chunk, id: u64, at: usize) -> Self {
        let shared = Arc::new(chunk.batch.clone());
        Self { chunk, shared, id, at }
    }
}

/// A partition of the cache.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each read by itself")]
pub(super) struct Slot {
    pub(super) id: TopicPartition,
    pub(super) generation: u64,
    pub(super) start: StartAt,
    pub(super) position: Option<i64>,
    /// The leader epoch of what stands before the position, -1 when not known. Another would pass for a truncation, or
    /// hide one.
    pub(super) leader_epoch: i32,
    /// The position as of the caller's last poll: all before it has been processed. Where the position is moved while a
    /// caller has rows of before, it is the lesser of the two until it polls again, or `None` if either is not known.
    pub(super) processed: Option<i64>,
    pub(super) processed_epoch: i32,
    pub(super) touched: bool,
    pub(super) stop: Option<i64>,
    pub(super) paused: bool,
    /// Fetched only while little of it lies here.
    pub(super) on_demand: bool,
    /// The group takes it back: nothing more is handed out.
    pub(super) withheld: bool,
    pub(super) queued: bool,
    pub(super) decoding: bool,
    pub(super) starved: bool,
    /// The next record cannot be had: nothing is fetched until a seek.
    pub(super) failed: bool,
    /// When its error, which was handed out, is handed out again; 0: that is not decided.
    pub(super) raise_at: u64,
    /// What came at this offset was damaged, and is fetched a second time.
    pub(super) suspect: Option<i64>,
    pub(super) entries: VecDeque<Entry>,
    pub(super) open: Option<Open>,
    pub(super) bytes: usize,
    /// About the memory of the rows that nobody has decoded.
    pub(super) raw_bytes: usize,
    /// As of the last answer, -1 when not known.
    pub(super) high_watermark: i64,
}

impl Slot {
    pub(super) fn new(id: TopicPartition, generation: u64, start: StartAt, stop: Option<i64>) -> Slot {
        let position = start.offset();
        Slot {
            id,
            generation,
            start,
            position,
            leader_epoch: -1,
            processed: position,
            processed_epoch: -1,
            touched: false,
            stop,
            paused: false,
            on_demand: false,
            withheld: false,
            queued: false,
            decoding: false,
            starved: false,
            failed: false,
            raise_at: 0,
            suspect: None,
            entries: VecDeque::new(),
            open: None,
            bytes: 0,
            raw_bytes: 0,
            high_watermark: -1,
        }
    }

    /// Begins again elsewhere, with nothing of what was fetched. It stays paused, and where it is in the line.
    pub(super) fn reset(&mut self, generation: u64, start: StartAt) {
        self.generation = generation;
        self.entries.clear();
        self.open = None;
        (self.bytes, self.raw_bytes) = (0, 0);
        self.decoding = false;
        self.starved = false;
        self.failed = false;
        (self.raise_at, self.suspect) = (0, None);
        self.start = start;
        self.position = start.offset();
        self.leader_epoch = -1;
        // Nobody knows yet how much was processed of what a caller still has; what came before it was.
        (self.processed, self.processed_epoch) = match (self.position, self.processed) {
            (Some(to), Some(done)) if self.touched && done <= to => (Some(done), self.processed_epoch),
            (to, done) if self.touched => (to.filter(|_| done.is_some()), -1),
            (to, _) => (to, -1),
        };
    }

    /// The next offset to be fetched and the leader epoch before it. Not to be asked while a job is out.
    pub(super) fn end(&self) -> (Option<i64>, i32) {
        let held = self.entries.iter().rev().find_map(|entry| match entry {
            Entry::Chunk(chunk) => Some((chunk.next_offset, chunk.leader_epoch)),
            Entry::Raw(raw) => Some((raw.next_offset(), raw.header.partition_leader_epoch)),
            &Entry::Advance { next, leader_epoch } => Some((next, leader_epoch)),
            Entry::Failed { .. } => None,
        });
        let open = self.open.as_ref().map(|open| (open.chunk.next_offset, open.chunk.leader_epoch));
        match held.or(open) {
            Some((next, leader_epoch)) => (Some(next), leader_epoch),
            None => (self.position, self.leader_epoch),
        }
    }

    /// Counts again what nobody has decoded.
    pub(super) fn count_raw(&mut self) {
        let raw = |entry: &Entry| if let Entry::Raw(raw) = entry { Some(raw.decoded_len()) } else { None };
        self.raw_bytes = self.entries.iter().filter_map(raw).sum();
    }

    /// What was handed out, or only what a later poll has shown to be processed, as a commit.
    pub(super) fn commit(&self, processed_only: bool) -> Option<CommitOffset> {
        let (offset, leader_epoch) = if processed_only {
            (self.processed?, self.processed_epoch)
        } else {
            (self.position?, self.leader_epoch)
        };
        Some(CommitOffset { partition: self.id.clone(), offset, leader_epoch, metadata: String::new() })
    }

    pub(super) fn is_finished(&self) -> bool {
        matches!((self.position, self.stop), (Some(position), Some(stop)) if position >= stop)
    }

    pub(super) fn has_work(&self) -> bool {
        let silent = matches!(self.entries.front(), Some(Entry::Failed { raised: true, .. }));
        let any = self.open.is_some() || !(self.entries.is_empty() || silent);
        !self.paused && !self.withheld && !self.decoding && any
    }

    /// Whether rows are held. Who takes the last of them wakes the engine; nobody does so for an error.
    pub(super) fn has_rows(&self) -> bool {
        let rows = |entry: &Entry| matches!(entry, Entry::Chunk(_) | Entry::Raw(_));
        self.open.is_some() || self.entries.iter().any(rows)
    }

    /// Its reader has fallen behind: no more is fetched for now.
    pub(super) fn is_ahead(&self) -> bool {
        self.on_demand && self.bytes > AHEAD_BYTES
    }

    /// The next take is an error.
    pub(super) fn fails_next(&self) -> bool {
        self.open.is_none() && matches!(self.entries.front(), Some(Entry::Failed { .. }))
    }

    /// Moves the position over what has no rows, as far as nothing stands before it.
    pub(super) fn settle(&mut self) {
        while self.open.is_none()
            && let Some(&Entry::Advance { next, leader_epoch }) = self.entries.front()
        {
            self.entries.pop_front();
            self.move_to(next, leader_epoch);
        }
    }

    pub(super) fn move_to(&mut self, next: i64, leader_epoch: i32) {
        if self.position.is_none_or(|position| position < next) {
            self.position = Some(next);
            self.leader_epoch = self.leader_epoch.max(leader_epoch);
        }
        if !self.touched {
            (self.processed, self.processed_epoch) = (self.position, self.leader_epoch);
        }
    }

    pub(super) fn ticket(&self, part: PartId) -> Ticket {
        Ticket { part, generation: self.generation }
    }

    /// Records between the position and the end of the log in the last response.
    pub(super) fn lag(&self) -> Option<u64> {
        let behind = self.high_watermark.saturating_sub(self.position?);
        (self.high_watermark >= 0).then(|| u64::try_from(behind).unwrap_or(0))
    }
}
