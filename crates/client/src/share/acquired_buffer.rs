//! What callers and engine of a share consumer have in common, under one lock: rows that were acquired and not handed out,
//! and what is held of each partition ([`AckTracker`]).
//!
//! Callers take rows and say what became of them; the engine fills, sends and ends. What the scheduler has to hear of any of
//! it is collected, and taken by the engine ([`AcquiredBuffer::changes`]) under the same lock as it decides and begins a request
//! ([`AcquiredBuffer::begin`]): in between nothing may become due that the scheduler does not know of.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_buffer::ScalarBuffer;
use headrace_columns::decode::AcquiredRange;
use headrace_wire::errors::ErrorCode;

use super::ack_tracker::{Ack, AckRun, AckTracker, CommitId, Effects, Mark, NodeEffects, Origin, Verdict};
use super::commits::{CommitResults, Commits, in_records};
use super::scheduler::{Decision, Demand, LOG_MAX};
use crate::error::{Error, Result};
use crate::options::AcknowledgementMode;
use crate::partition::TopicPartition;

/// A poll that has ended without rows counts as one that waits for so long, in milliseconds: callers that look again and
/// again get rows too.
pub(crate) const POLL_LINGER_MS: u64 = 500;
/// After a poll that gave rows the next ones are fetched for so long, in milliseconds.
pub(crate) const AHEAD_MS: u64 = 1000;
/// Ends of locks are looked at in steps of this, in milliseconds: never too early, and not for each answer by itself.
const DEADLINE_STEP_MS: u64 = 64;
/// A lock is taken to be this long, in milliseconds, while no broker has told: none allows more.
pub(crate) const LOCK_MS_MAX: u64 = 60_000;

/// The buffer as engine and callers share it.
pub type SharedAcquiredBuffer = Arc<Mutex<AcquiredBuffer>>;

/// Locks the buffer. A panic of another thread while it held the lock leaves nothing half done that matters here.
pub fn lock(buffer: &SharedAcquiredBuffer) -> MutexGuard<'_, AcquiredBuffer> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Rows that were handed out.
#[derive(Clone, Debug)]
pub struct ShareRows {
    /// Their partition.
    pub partition: TopicPartition,
    /// The chunk that they are a slice of. A caller that imports chunks elsewhere does so once for each `chunk_id`.
    pub chunk: RecordBatch,
    /// Names the chunk; grows from chunk to chunk.
    pub chunk_id: u64,
    /// The first row of the slice.
    pub start: usize,
    /// Rows in the slice, at least 1.
    pub len: usize,
    /// They were the last ones: the engine is to be woken, so that the next ones come.
    pub wake: bool,
}

/// Counters since the consumer was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareMetrics {
    /// Rows that were handed out.
    pub records_consumed: u64,
    /// Offsets that were acquired, gaps included.
    pub records_acquired: u64,
    /// Offsets whose acknowledgement a broker has confirmed.
    pub records_acknowledged: u64,
    /// Records whose lock was over while they were with the caller.
    pub records_lock_expired: u64,
    /// Records that brokers gave beyond what they were asked for with `record_limit`: 0 with brokers that do as they are
    /// told.
    pub records_excess: u64,
}

/// What an answer brought of one partition.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    /// Rows in the order of their offsets.
    pub(crate) chunks: Vec<RecordBatch>,
    /// All that was acquired.
    pub(crate) ranges: Vec<AcquiredRange>,
    /// Offsets of it that are given back at once: gaps, and what cannot be read.
    pub(crate) others: Vec<(i64, i64, Ack)>,
    /// What a poll is told after the rows.
    pub(crate) errors: Vec<Error>,
}

/// What is waiting for a poll.
#[derive(Debug)]
enum Item {
    Rows(Rows),
    Failed(Error),
}

#[derive(Debug)]
struct Rows {
    /// As the tracker knows them.
    id: u64,
    partition: TopicPartition,
    chunk: RecordBatch,
    chunk_id: u64,
    offsets: ScalarBuffer<i64>,
    start: usize,
    /// Half of the lock is over: others are to have them.
    release_ms: u64,
}

#[derive(Debug, Default)]
struct Part {
    tracker: AckTracker,
    /// In whose share session it is, or will be.
    node: Option<i32>,
}

/// A matter for the log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trouble {
    pub(crate) what: &'static str,
    pub(crate) error: Error,
}

const NOT_ACKNOWLEDGED: &str = "records were not acknowledged and may be delivered again";
const LOCK_EXPIRED: &str = "records were held longer than their lock and go to other consumers";

/// See the module's documentation.
#[derive(Debug)]
pub struct AcquiredBuffer {
    explicit: bool,
    parts: BTreeMap<TopicPartition, Part>,
    items: VecDeque<Item>,
    /// Partitions of which rows are, or were, with the caller since the last poll.
    touched: BTreeSet<TopicPartition>,
    /// Partitions of which something is due, by node. Some may have nothing any more.
    due: BTreeMap<i32, BTreeSet<TopicPartition>>,
    /// When locks are over. Some may have nothing any more.
    deadlines: BTreeSet<(u64, TopicPartition)>,
    changes: BTreeMap<i32, NodeEffects>,
    commits: Commits,
    troubles: Vec<Trouble>,
    /// What every poll without rows is told.
    broken: Option<Error>,
    /// Whether brokers renew locks; `None` while it is not known.
    renews: Option<bool>,
    lock_ms: Option<u64>,
    next_id: u64,
    /// Polls that wait.
    waiting: usize,
    /// The last poll that ended without rows, and the last that gave some.
    empty_ms: Option<u64>,
    rows_ms: Option<u64>,
    polled_ms: Option<u64>,
    /// Polls that have begun.
    polls: u64,
    /// What the scheduler has decided last.
    decisions: VecDeque<Decision>,
    /// Decisions so far.
    decided: u64,
    metrics: ShareMetrics,
}

impl AcquiredBuffer {
    /// An empty one.
    #[must_use]
    pub fn new(mode: AcknowledgementMode) -> AcquiredBuffer {
        AcquiredBuffer {
            explicit: mode == AcknowledgementMode::Explicit,
            parts: BTreeMap::new(),
            items: VecDeque::new(),
            touched: BTreeSet::new(),
            due: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            changes: BTreeMap::new(),
            commits: Commits::default(),
            troubles: Vec::new(),
            broken: None,
            renews: None,
            lock_ms: None,
            next_id: 0,
            waiting: 0,
            empty_ms: None,
            rows_ms: None,
            polled_ms: None,
            polls: 0,
            decisions: VecDeque::new(),
            decided: 0,
            metrics: ShareMetrics::default(),
        }
    }

    // ---- callers

    /// A poll begins: what the one before gave is accepted, or sent as it was marked. True: wake the engine.
    ///
    /// # Errors
    /// With explicit acknowledgement, when rows of the last poll are not marked.
    pub fn begin_poll(&mut self, now_ms: u64) -> Result<bool> {
        let unmarked = self.explicit.then(|| self.touched.iter().find(|tp| self.has_handed(tp))).flatten();
        if let Some(partition) = unmarked {
            return Err(Error::Usage(format!(
                "rows of {partition} have not been acknowledged: with share.acknowledgement.mode=explicit each row of a poll is \
                 accepted, released, rejected or renewed before the next poll"
            )));
        }
        self.polled_ms = Some(now_ms);
        self.polls += 1;
        Ok(self.give_back(None))
    }

    fn has_handed(&self, partition: &TopicPartition) -> bool {
        self.parts.get(partition).is_some_and(|part| part.tracker.has_handed())
    }

    /// What is with the caller, or what was marked of it, is to be sent. True when there is something.
    fn give_back(&mut self, commit: Option<CommitId>) -> bool {
        let mut any = false;
        for partition in std::mem::take(&mut self.touched) {
            let Some(part) = self.parts.get_mut(&partition) else { continue };
            let mut effects = Effects::default();
            let records = part.tracker.marked_to_due(commit, &mut effects);
            if part.tracker.has_handed() {
                self.touched.insert(partition.clone());
            }
            if let Some(commit) = commit.filter(|_| records > 0) {
                self.commits.expect(commit, &partition, records);
            }
            any |= records > 0;
            self.absorb(&partition, effects);
        }
        any
    }

    /// Rows of one partition, at most `max` (and at least one); an error in its place. `None`: there is nothing.
    pub fn take(&mut self, now_ms: u64, max: usize) -> Option<Result<ShareRows>> {
        let Some(item) = self.items.pop_front() else {
            return self.broken.clone().map(Err);
        };
        let mut rows = match item {
            Item::Failed(error) => return Some(Err(error)),
            Item::Rows(rows) => rows,
        };
        let left = rows.offsets.len() - rows.start;
        let (start, len) = (rows.start, left.min(max.max(1)));
        if let (Some(part), Some(first), Some(last)) =
            (self.parts.get_mut(&rows.partition), rows.offsets.get(start), rows.offsets.get(start + len - 1))
        {
            let mark = (!self.explicit).then_some(Ack::Accept);
            part.tracker.hand_out(rows.id, *first, *last, mark);
            self.touched.insert(rows.partition.clone());
        }
        let (partition, chunk, chunk_id) = (rows.partition.clone(), rows.chunk.clone(), rows.chunk_id);
        if len < left {
            rows.start += len;
            self.items.push_front(Item::Rows(rows));
        }
        self.rows_ms = Some(now_ms);
        // Who works on rows waits for none, whatever was before.
        self.empty_ms = None;
        self.metrics.records_consumed += len as u64;
        Some(Ok(ShareRows { partition, chunk, chunk_id, start, len, wake: self.items.is_empty() }))
    }

    /// As [`AcquiredBuffer::take`], where rows are next.
    pub fn take_ready(&mut self, now_ms: u64, max: usize) -> Option<ShareRows> {
        if !matches!(self.items.front(), Some(Item::Rows(_))) {
            return None;
        }
        self.take(now_ms, max).and_then(Result::ok)
    }

    /// Whether a take would give something.
    #[must_use]
    pub fn has_any(&self) -> bool {
        !self.items.is_empty() || self.broken.is_some()
    }

    /// A poll waits from now on, or does not any more: `rows` tells whether it got any. True: wake the engine.
    pub fn wait(&mut self, now_ms: u64, waits: bool, rows: bool) -> bool {
        if waits {
            self.waiting += 1;
            return self.waiting == 1;
        }
        self.waiting = self.waiting.saturating_sub(1);
        if !rows {
            self.empty_ms = Some(now_ms);
        }
        false
    }

    /// A poll that did not wait has found nothing. True: wake the engine.
    pub fn looked(&mut self, now_ms: u64) -> bool {
        let before = self.demand(now_ms);
        self.empty_ms = Some(now_ms);
        before != Demand::Waiting
    }

    /// Marks rows. It is sent with the next poll or commit.
    ///
    /// # Errors
    /// With implicit acknowledgement, and for renewals that brokers do not know: nothing is marked. Where rows are not held
    /// (any more): all others are marked, so that who is late with some can go on.
    pub fn acknowledge(&mut self, marks: &[(TopicPartition, Vec<Mark>)]) -> Result<()> {
        if !self.explicit {
            let why = "rows are acknowledged by the next poll: share.acknowledgement.mode is implicit";
            return Err(Error::Usage(why.to_owned()));
        }
        let renews = |(_, marks): &(_, Vec<Mark>)| marks.iter().any(|mark| mark.ack == Ack::Renew);
        if self.renews == Some(false) && marks.iter().any(renews) {
            return Err(Error::broker(ErrorCode::UNSUPPORTED_VERSION, "renewing locks needs Kafka 4.2"));
        }
        let (mut first, mut records, mut partitions) = (None, 0_u64, 0);
        for (partition, marks) in marks {
            let refused = match self.parts.get_mut(partition) {
                None => AckTracker::default().mark(marks),
                Some(part) => {
                    self.touched.insert(partition.clone());
                    part.tracker.mark(marks)
                }
            };
            if let Some(refused) = refused {
                first.get_or_insert((partition, refused.first));
                records = records.saturating_add(refused.records);
                partitions += 1;
            }
        }
        let Some((partition, offset)) = first else { return Ok(()) };
        let others = if partitions > 1 { format!(" ({partitions} partitions)") } else { String::new() };
        let detail = format!(
            "{records} of the rows are not held (any more){others}, the first of them at offset {offset}: they were \
             acknowledged before, their lock is over, or they are of another delivery; all others were marked"
        );
        let code = ErrorCode::INVALID_RECORD_STATE;
        Err(Error::partition(code, &*partition.topic, partition.partition, detail))
    }

    /// Begins a commit of what is marked, or with implicit acknowledgement of what is with the caller. Wake the engine; it
    /// tells how the commit has ended, at the latest after `timeout_ms`.
    pub fn commit(&mut self, now_ms: u64, commit: u64, timeout_ms: u64) {
        self.commits.begin(commit, now_ms, timeout_ms);
        self.give_back(Some(commit));
    }

    /// How long brokers lock a record for a member, in milliseconds, as the last answer told.
    #[must_use]
    pub fn lock_timeout_ms(&self) -> Option<u64> {
        self.lock_ms
    }

    /// The partitions that are given at present.
    #[must_use]
    pub fn assignment(&self) -> Vec<TopicPartition> {
        self.parts.iter().filter(|(_, part)| part.node.is_some()).map(|(tp, _)| tp.clone()).collect()
    }

    /// Why brokers were asked, as sentences, the oldest first: those after the first `after`, as far as they are kept. Gives
    /// how many there were so far as well.
    #[must_use]
    pub fn decisions(&self, after: u64) -> (u64, Vec<String>) {
        let kept = self.decisions.len();
        let new = usize::try_from(self.decided.saturating_sub(after)).unwrap_or(usize::MAX).min(kept);
        (self.decided, self.decisions.iter().skip(kept - new).map(ToString::to_string).collect())
    }

    /// The counters.
    #[must_use]
    pub fn metrics(&self) -> ShareMetrics {
        self.metrics
    }

    // ---- the engine: what is wanted

    /// How much the caller wants records.
    pub(crate) fn demand(&self, now_ms: u64) -> Demand {
        let within = |since: Option<u64>, ms: u64| since.is_some_and(|at| now_ms < at.saturating_add(ms));
        if !self.items.is_empty() {
            Demand::None
        } else if self.waiting > 0 || within(self.empty_ms, POLL_LINGER_MS) {
            Demand::Waiting
        } else if within(self.rows_ms, AHEAD_MS) {
            Demand::Ahead
        } else {
            Demand::None
        }
    }

    /// Whether a poll waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting > 0
    }

    /// How many polls have begun.
    pub(crate) fn polls(&self) -> u64 {
        self.polls
    }

    /// The scheduler has decided this.
    pub(crate) fn decided(&mut self, decision: Decision) {
        if self.decisions.len() == LOG_MAX {
            self.decisions.pop_front();
        }
        self.decisions.push_back(decision);
        self.decided += 1;
    }

    /// When somebody last polled; a poll that waits polls still.
    pub(crate) fn polled_ms(&self, now_ms: u64) -> Option<u64> {
        if self.waiting > 0 { Some(now_ms) } else { self.polled_ms }
    }

    /// When something changes by itself. Times that have passed mean nothing.
    pub(crate) fn timeouts(&self) -> impl Iterator<Item = u64> + '_ {
        let demand = [
            self.empty_ms.map(|at| at.saturating_add(POLL_LINGER_MS)),
            self.rows_ms.map(|at| at.saturating_add(AHEAD_MS)),
            self.release_ms(),
            self.deadlines.first().map(|(at, _)| *at),
            self.commits.deadline(),
        ];
        demand.into_iter().flatten()
    }

    fn release_ms(&self) -> Option<u64> {
        self.items.iter().find_map(|item| match item {
            Item::Rows(rows) => Some(rows.release_ms),
            Item::Failed(_) => None,
        })
    }

    // ---- the engine: partitions

    /// In whose sessions the partitions of the assignment are; others are in none.
    pub(crate) fn set_nodes(&mut self, nodes: impl IntoIterator<Item = (TopicPartition, i32)>) {
        for part in self.parts.values_mut() {
            part.node = None;
        }
        for (partition, node) in nodes {
            self.parts.entry(partition).or_default().node = Some(node);
        }
        self.parts.retain(|_, part| part.node.is_some() || !part.tracker.is_empty());
    }

    /// Whether something is due at a node that cannot go with a fetch: renewals, and of partitions that are not in its
    /// session.
    pub(crate) fn goes_alone(&self, node: i32) -> bool {
        let Some(due) = self.due.get(&node) else { return false };
        due.iter().filter_map(|partition| self.parts.get(partition)).any(|part| {
            let (any, renewals) = part.tracker.due_at(node);
            renewals || (any && part.node != Some(node))
        })
    }

    /// Nodes at which something may be due.
    pub(crate) fn due_nodes(&self) -> impl Iterator<Item = i32> + '_ {
        self.due.keys().copied()
    }

    // ---- the engine: requests

    /// What is due at a node goes into a request.
    pub(crate) fn begin(
        &mut self,
        node: i32,
        request: u64,
        renewals: bool,
    ) -> Vec<(TopicPartition, Vec<AckRun>)> {
        let mut all = Vec::new();
        for partition in self.due.remove(&node).unwrap_or_default() {
            let Some(part) = self.parts.get_mut(&partition) else { continue };
            let runs = part.tracker.begin(node, request, renewals);
            if part.tracker.due_at(node).0 {
                self.due.entry(node).or_default().insert(partition.clone());
            }
            if !runs.is_empty() {
                all.push((partition, runs));
            }
        }
        all
    }

    /// What became of the acknowledgements of a partition in a request. Gives those that are held still, in records: the
    /// scheduler is to hear of them before it hears of any [change](AcquiredBuffer::changes).
    pub(crate) fn end(
        &mut self,
        now_ms: u64,
        partition: &TopicPartition,
        request: u64,
        verdict: Verdict,
    ) -> u64 {
        let Some(part) = self.parts.get_mut(partition) else { return 0 };
        let mut effects = Effects::default();
        let before = part.tracker.sending(request);
        part.tracker.end(now_ms, request, verdict, &mut effects);
        if matches!(verdict, Verdict::Applied { .. }) {
            self.metrics.records_acknowledged += before;
        }
        let refused = effects.nodes.values_mut().map(|node| std::mem::take(&mut node.refused)).sum();
        self.absorb(partition, effects);
        self.remind(partition);
        refused
    }

    /// Takes what an answer brought.
    pub(crate) fn put(&mut self, partition: &TopicPartition, origin: Origin, delivery: Delivery) {
        self.next_id += 1;
        let id = self.next_id;
        let part = self.parts.entry(partition.clone()).or_default();
        let mut effects = Effects::default();
        part.tracker.acquire(&delivery.ranges, origin, id, &delivery.others, &mut effects);
        self.absorb(partition, effects);
        let acquired =
            delivery.ranges.iter().map(|range| range.last.saturating_sub(range.first).saturating_add(1));
        self.metrics.records_acquired += acquired.map(i64::unsigned_abs).sum::<u64>();
        self.remind(partition);
        for chunk in delivery.chunks {
            let offsets =
                chunk.column_by_name("offset").and_then(|column| column.as_primitive_opt::<Int64Type>());
            let Some(offsets) = offsets.map(|offsets| offsets.values().clone()).filter(|all| !all.is_empty())
            else {
                continue;
            };
            self.next_id += 1;
            self.items.push_back(Item::Rows(Rows {
                id,
                partition: partition.clone(),
                chunk,
                chunk_id: self.next_id,
                offsets,
                start: 0,
                release_ms: origin.received_ms.saturating_add(origin.lock_ms / 2),
            }));
        }
        self.items.extend(delivery.errors.into_iter().map(Item::Failed));
    }

    /// A poll is notified of this once.
    pub(crate) fn fail(&mut self, error: Error) {
        self.items.push_back(Item::Failed(error));
    }

    /// Every poll without rows is notified of this, until it is mended (`None`). True when that is news to callers.
    pub(crate) fn set_broken(&mut self, error: Option<Error>) -> bool {
        let news = error.is_some() && self.broken.is_none();
        self.broken = error;
        news
    }

    /// Whether brokers renew locks.
    pub(crate) fn set_renews(&mut self, renews: bool) {
        self.renews = Some(renews);
    }

    /// Records that brokers gave beyond what they were asked for.
    pub(crate) fn set_excess(&mut self, records: u64) {
        self.metrics.records_excess = records;
    }

    /// What an answer told of the time that records are locked for.
    pub(crate) fn set_lock_ms(&mut self, lock_ms: u64) {
        self.lock_ms = Some(lock_ms);
    }

    // ---- the engine: ends

    /// A share session is over.
    pub(crate) fn session_over(&mut self, session: u64) {
        self.each(|tracker, effects| tracker.session_over(session, effects));
    }

    /// A partition is led by another broker than this one.
    pub(crate) fn leader_moved(&mut self, partition: &TopicPartition, node: i32) {
        let Some(part) = self.parts.get_mut(partition) else { return };
        let mut effects = Effects::default();
        part.tracker.leader_moved(node, &mut effects);
        self.absorb(partition, effects);
    }

    /// The nodes that have given what is held of a partition.
    pub(crate) fn givers(&self, partition: &TopicPartition) -> BTreeSet<i32> {
        let spans = self.parts.get(partition).into_iter().flat_map(|part| part.tracker.spans());
        spans.map(|(_, span)| span.origin.node).collect()
    }

    /// Whether nothing is held of a node any more.
    pub(crate) fn holds_none_of(&self, node: i32) -> bool {
        self.parts.values().all(|part| part.tracker.spans().all(|(_, span)| span.origin.node != node))
    }

    /// Forgets locks that are over, and lets go of rows that nobody has taken for half of theirs.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        while self.release_ms().is_some_and(|at| at <= now_ms) {
            let at = self.items.iter().position(|item| matches!(item, Item::Rows(_)));
            let Some(Item::Rows(rows)) = at.and_then(|at| self.items.remove(at)) else { break };
            self.put_back(&rows);
        }
        while let Some((_, partition)) = self.deadlines.first().filter(|(at, _)| *at <= now_ms).cloned() {
            self.deadlines.pop_first();
            let Some(part) = self.parts.get_mut(&partition) else { continue };
            let mut effects = Effects::default();
            part.tracker.expire(now_ms, &mut effects);
            self.absorb(&partition, effects);
            self.remind(&partition);
        }
    }

    /// All that nobody has taken goes back.
    pub(crate) fn release_all(&mut self) {
        for item in std::mem::take(&mut self.items) {
            match item {
                Item::Rows(rows) => self.put_back(&rows),
                failed @ Item::Failed(_) => self.items.push_back(failed),
            }
        }
    }

    /// The consumer closes. What is with the caller is accepted, if it has finished with it; what was marked is sent.
    pub(crate) fn close(&mut self, finished: bool) {
        if self.explicit || finished {
            self.give_back(None);
        }
        self.items.clear();
    }

    fn put_back(&mut self, rows: &Rows) {
        let (Some(first), Some(last)) = (rows.offsets.get(rows.start), rows.offsets.last()) else { return };
        let Some(part) = self.parts.get_mut(&rows.partition) else { return };
        let mut effects = Effects::default();
        part.tracker.put_back(rows.id, *first, *last, &mut effects);
        self.absorb(&rows.partition, effects);
    }

    /// Looks at a partition again when its first lock is over.
    fn remind(&mut self, partition: &TopicPartition) {
        let Some(at_ms) = self.parts.get(partition).and_then(|part| part.tracker.next_end_ms()) else {
            return;
        };
        let at_ms = at_ms.div_ceil(DEADLINE_STEP_MS).saturating_mul(DEADLINE_STEP_MS);
        self.deadlines.insert((at_ms, partition.clone()));
    }

    fn each(&mut self, mut change: impl FnMut(&mut AckTracker, &mut Effects)) {
        let mut all = Vec::new();
        for (partition, part) in &mut self.parts {
            let mut effects = Effects::default();
            change(&mut part.tracker, &mut effects);
            if effects != Effects::default() {
                all.push((partition.clone(), effects));
            }
        }
        for (partition, effects) in all {
            self.absorb(&partition, effects);
        }
    }

    // ---- what follows

    /// Takes up what follows from a change of a partition.
    fn absorb(&mut self, partition: &TopicPartition, effects: Effects) {
        for (node, heard) in effects.nodes {
            if heard.give_back > 0 || heard.renew {
                self.due.entry(node).or_default().insert(partition.clone());
            }
            let all = self.changes.entry(node).or_default();
            all.refused += heard.refused;
            all.give_back += heard.give_back;
            all.urgent |= heard.urgent;
            all.renew |= heard.renew;
            all.freed += heard.freed;
            all.not_due += heard.not_due;
        }
        for settled in effects.settled {
            let waited = settled
                .commit
                .is_some_and(|commit| self.commits.settle(commit, partition, settled.records, settled.code));
            if let Some(code) = settled.code.filter(|_| !waited) {
                let detail = in_records(settled.records);
                let error = Error::partition(code, &*partition.topic, partition.partition, detail);
                self.troubles.push(Trouble { what: NOT_ACKNOWLEDGED, error });
            }
        }
        if effects.expired > 0 {
            self.metrics.records_lock_expired += effects.expired;
            let lock_ms = self.lock_ms.unwrap_or(LOCK_MS_MAX);
            let detail = format!(
                "{}, whose lock is {lock_ms} ms: poll more often, take fewer rows, or renew",
                in_records(effects.expired)
            );
            let code = ErrorCode::INVALID_RECORD_STATE;
            let error = Error::partition(code, &*partition.topic, partition.partition, detail);
            self.troubles.push(Trouble { what: LOCK_EXPIRED, error });
        }
        for id in effects.items {
            self.drop_item(id);
        }
    }

    /// Rows that were acquired together, and some of which are not held any more: none of them is handed out.
    fn drop_item(&mut self, id: u64) {
        let is_it = |item: &Item| matches!(item, Item::Rows(rows) if rows.id == id);
        while let Some(at) = self.items.iter().position(is_it) {
            if let Some(Item::Rows(rows)) = self.items.remove(at) {
                self.put_back(&rows);
            }
        }
    }

    /// What the scheduler has to hear, by node.
    pub(crate) fn changes(&mut self) -> BTreeMap<i32, NodeEffects> {
        std::mem::take(&mut self.changes)
    }

    /// The next commit that has ended.
    pub(crate) fn ended(&mut self, now_ms: u64) -> Option<(CommitId, CommitResults)> {
        self.commits.ended(now_ms)
    }

    /// No commit will be answered any more: those that are open.
    pub(crate) fn abandon_commits(&mut self) -> Vec<CommitId> {
        self.commits.abandon()
    }

    /// What is to be logged.
    pub(crate) fn troubles(&mut self) -> Vec<Trouble> {
        std::mem::take(&mut self.troubles)
    }
}

#[cfg(test)]
mod tests;
