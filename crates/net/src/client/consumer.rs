//! The consumer as callers use it: rows straight from the shared cache, everything else through the engine.

mod awaiting;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use headrace_client::consumer::{
    Assignment, CommitOffset, ConsumerCommand, ConsumerEngine, ConsumerEvent, ConsumerMetrics,
    ConsumerOutcome, FetchCache, GroupMetadata, OffsetAt, PartitionName, Rows, SharedCache, StartAt, Taken,
    TopicPartition, lock,
};
use headrace_client::error::{Error, Result};
use headrace_client::options::ConsumerConfig;
use headrace_wire::targets;

use super::driver::{Handle, Hooks, SocketOptions};
use super::notices::{Notice, Notices};
use super::ops::{CallError, Check, Deadline, Ops, Signal, deadline_in};
use super::parking::Parked;
use super::polling::{Polling, Troubles};
use crate::clock::Clock;

/// Partitions of one pause that are logged.
const LOGGED_MAX: usize = 20;

/// A consumer with its thread.
pub struct ConsumerClient {
    cache: SharedCache,
    empty: RecordBatch,
    handle: Handle<ConsumerCommand>,
    ops: Arc<Ops<ConsumerOutcome>>,
    ready: Arc<Signal>,
    parked: Arc<Parked<ConsumerOutcome>>,
    notices: Arc<Notices>,
    polling: AtomicBool,
    /// Somebody sleeps until something comes, or is about to.
    expecting: Arc<AtomicBool>,
    troubles: Troubles,
    clock: Clock,
    api_timeout: Duration,
    max_poll_records: usize,
}

impl ConsumerClient {
    /// Starts the consumer's thread; it connects when there is something to read.
    pub fn start(config: ConsumerConfig) -> Result<Self> {
        let clock = Clock::start();
        let api_timeout = Duration::from_millis(config.common.default_api_timeout_ms);
        let max_poll_records = usize::try_from(config.max_poll_records).unwrap_or(usize::MAX);
        let sockets =
            SocketOptions::of(&config.common)?.spinning(config.poll_spin_us, config.verbs_device.clone());
        let engine = ConsumerEngine::new(config, super::seed(clock));
        let (cache, empty) = (engine.cache(), engine.empty_batch());
        let ops = Arc::new(Ops::default());
        let ready = Arc::new(Signal::default());
        let parked = Arc::new(Parked::default());
        let notices = Arc::new(Notices::default());
        let (to_ops, to_ready, to_parked) = (ops.clone(), ready.clone(), parked.clone());
        let (exit_ops, exit_ready, exit_parked) = (ops.clone(), ready.clone(), parked.clone());
        let (to_notices, exit_notices) = (notices.clone(), notices.clone());
        let troubles = Troubles::default();
        let to_troubles = troubles.clone();
        let expecting = Arc::new(AtomicBool::new(false));
        let (told_expecting, still_expecting) = (expecting.clone(), expecting.clone());
        let on_event = move |event| match event {
            ConsumerEvent::Done { op, result } => {
                if to_notices.commit_ended(op, result.as_ref().map(|_| ()).map_err(Clone::clone)) {
                    to_ready.notify();
                } else if let Some(result) = to_parked.tell(op, result) {
                    to_ops.complete(op, result);
                }
            }
            ConsumerEvent::CallListener { notice, news, partitions } => {
                to_notices.rebalance(notice, news, partitions);
                told_expecting.store(false, Ordering::SeqCst);
                to_ready.notify();
                to_parked.ring();
            }
            ConsumerEvent::Trouble { what, error } => to_troubles.push(what, &error),
            _ => {
                told_expecting.store(false, Ordering::SeqCst);
                to_ready.notify();
                to_parked.ring();
            }
        };
        let on_exit = move || {
            exit_ops.end();
            exit_notices.end();
            exit_ready.notify();
            exit_parked.end();
        };
        let patient = Box::new(move || !still_expecting.load(Ordering::SeqCst));
        let hooks = Hooks { patient, ..Hooks::new(on_exit) };
        let handle = Handle::start("headrace-consume", engine, clock, sockets, on_event, hooks)
            .map_err(|e| Error::Usage(format!("cannot start the consumer's thread: {e}")))?;
        let polling = AtomicBool::new(false);
        Ok(Self {
            cache,
            empty,
            handle,
            ops,
            ready,
            parked,
            notices,
            polling,
            expecting,
            troubles,
            clock,
            api_timeout,
            max_poll_records,
        })
    }

    /// Why brokers cannot be reached at present; empty when all can.
    pub fn failing(&self) -> String {
        self.handle.failing()
    }

    /// What has been read, and what lies in the fetch cache.
    pub fn metrics(&self) -> Result<ConsumerMetrics> {
        if self.handle.is_forked() {
            return Err(Error::Forked);
        }
        Ok(lock(&self.cache).metrics(self.clock.mono_ms()))
    }

    /// A batch of no rows with the schema of all batches.
    #[must_use]
    pub fn empty(&self) -> &RecordBatch {
        &self.empty
    }

    /// What went wrong since the last call that no other call was notified of, such as an automatic commit; the last 100 at
    /// most.
    #[must_use]
    pub fn take_troubles(&self) -> Vec<String> {
        if self.handle.is_forked() {
            return Vec::new();
        }
        self.troubles.take()
    }

    /// Whether there is something for `take_troubles`.
    #[must_use]
    pub fn is_troubled(&self) -> bool {
        self.troubles.any()
    }

    /// The next rows of one partition, at most `max_records` (0: `max.poll.records`). `None` when the deadline
    /// has passed, when a bounded read is at its end, or when there is a notice to take first.
    pub fn poll(
        &self,
        max_records: usize,
        deadline: Deadline,
        check: Check<'_>,
    ) -> Result<Option<Rows>, CallError> {
        let _polling = Polling::begin(&self.polling, self.handle.is_forked())?;
        self.next(max_records, deadline, check)
    }

    /// What `poll` would give at once, if it waits for nobody, decodes nothing and has nothing else to tell.
    pub fn poll_at_hand(&self, max_records: usize) -> Option<Rows> {
        let _polling = Polling::begin(&self.polling, self.handle.is_forked()).ok()?;
        self.alive().ok()?;
        if self.notices.is_pending() {
            return None;
        }
        let mut cache = self.cache_at_hand()?;
        let waited_for = cache.begin_poll(self.clock.mono_ms());
        let rows = cache.take_decoded(self.rows_max(max_records));
        drop(cache);
        if waited_for || rows.as_ref().is_some_and(|rows| rows.wake) {
            self.handle.send(ConsumerCommand::Wake);
        }
        rows
    }

    /// The cache. In a forked child the parent's thread may have held it, and would for ever.
    fn cache(&self) -> Result<MutexGuard<'_, FetchCache>> {
        if self.handle.is_forked() { Err(Error::Forked) } else { Ok(lock(&self.cache)) }
    }

    /// The cache, unless somebody else has it at this instant.
    fn cache_at_hand(&self) -> Option<MutexGuard<'_, FetchCache>> {
        match self.cache.try_lock() {
            Ok(cache) => Some(cache),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn next(
        &self,
        max_records: usize,
        deadline: Deadline,
        check: Check<'_>,
    ) -> Result<Option<Rows>, CallError> {
        loop {
            let seen = self.ready.seen();
            self.begin_poll()?;
            if self.notices.is_pending() {
                return Ok(None);
            }
            if let Some(rows) = self.take(|cache| cache.take(self.rows_max(max_records)))? {
                return Ok(Some(rows));
            }
            if let Some(found) = self.handle.look() {
                if found && let Some(rows) = self.take(|cache| cache.take(self.rows_max(max_records)))? {
                    return Ok(Some(rows));
                }
                let late = || deadline.is_some_and(|at| at <= Instant::now());
                if !late() {
                    self.expecting.store(true, Ordering::SeqCst);
                    self.handle.spin(|| self.ready.seen() == seen && !late());
                    // What came while it looked is there; else it sleeps.
                    if self.ready.seen() != seen {
                        continue;
                    }
                }
            }
            if self.is_finished() || !self.ready.wait(seen, deadline, check)? {
                return Ok(None);
            }
        }
    }

    /// Rows of every partition that has some, at most `max_records` in all (0: `max.poll.records`), one batch a partition.
    pub fn poll_all(
        &self,
        max_records: usize,
        deadline: Deadline,
        check: Check<'_>,
    ) -> Result<Vec<Rows>, CallError> {
        let _polling = Polling::begin(&self.polling, self.handle.is_forked())?;
        let first = self.next(max_records, deadline, check)?;
        Ok(self.take_rest(first, self.rows_max(max_records))?)
    }

    /// `first`, and rows of the other partitions, `left` at most in all.
    fn take_rest(&self, first: Option<Rows>, mut left: usize) -> Result<Vec<Rows>> {
        let mut found: Vec<Rows> = Vec::new();
        let Some(first) = first else { return Ok(found) };
        left -= first.len.min(left);
        found.push(first);
        while left > 0 {
            let is_new = |partition: &TopicPartition| found.iter().all(|rows| rows.partition != *partition);
            let Some(rows) = self.take(|cache| cache.take_more(left, is_new))? else { break };
            left -= rows.len.min(left);
            found.push(rows);
        }
        Ok(found)
    }

    /// All that was handed out before counts as processed, as with a poll.
    pub fn begin_poll(&self) -> Result<()> {
        self.alive()?;
        if lock(&self.cache).begin_poll(self.clock.mono_ms()) {
            self.handle.drive(ConsumerCommand::Wake);
        }
        Ok(())
    }

    fn rows_max(&self, max_records: usize) -> usize {
        if max_records == 0 { self.max_poll_records } else { max_records }
    }

    /// What `next` takes now, decoding what was kept compressed in this thread. A poll begins before it, not in it: that
    /// marks as processed what was handed out, so also the first batches of the same `poll_all`.
    fn take(&self, mut next: impl FnMut(&mut FetchCache) -> Option<Taken>) -> Result<Option<Rows>> {
        loop {
            let taken = next(&mut lock(&self.cache));
            match taken {
                None => return Ok(None),
                Some(Taken::Failed(error)) => {
                    // One that lasts is to be handed out again, and the engine keeps the time.
                    self.handle.drive(ConsumerCommand::Wake);
                    return Err(error);
                }
                Some(Taken::Rows(rows)) => {
                    if rows.wake {
                        self.handle.drive(ConsumerCommand::Wake);
                    }
                    return Ok(Some(rows));
                }
                Some(Taken::Decode(job)) => {
                    let decoded = job.run();
                    if lock(&self.cache).put_back(decoded) {
                        self.handle.drive(ConsumerCommand::Wake);
                    }
                    self.look_again();
                }
            }
        }
    }

    /// Whether every partition has a stop offset and has reached it.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        lock(&self.cache).is_finished()
    }

    /// Reads exactly these partitions.
    pub fn assign(&self, partitions: Vec<Assignment>, check: Check<'_>) -> Result<(), CallError> {
        self.call("assigning partitions", None, check, |op| ConsumerCommand::Assign { op, partitions })
            .map(drop)
    }

    /// Joins the group for these topics.
    pub fn subscribe(&self, topics: Vec<String>, check: Check<'_>) -> Result<(), CallError> {
        self.call("subscribing", None, check, |op| ConsumerCommand::Subscribe { op, topics }).map(drop)
    }

    /// Joins the group for the topics whose names match.
    pub fn subscribe_pattern(&self, pattern: String, check: Check<'_>) -> Result<(), CallError> {
        let command = |op| ConsumerCommand::SubscribePattern { op, pattern };
        self.call("subscribing", None, check, command).map(drop)
    }

    /// Leaves the group and reads nothing.
    pub fn unsubscribe(&self, check: Check<'_>) -> Result<(), CallError> {
        self.call("leaving the group", None, check, |op| ConsumerCommand::Unsubscribe { op }).map(drop)
    }

    /// The partitions read at present.
    pub fn assignment(&self) -> Result<Vec<TopicPartition>> {
        Ok(self.cache()?.assignment())
    }

    /// The partitions paused at present.
    pub fn paused(&self) -> Result<Vec<TopicPartition>> {
        Ok(self.cache()?.paused())
    }

    /// Goes on elsewhere in these partitions. Takes effect at once, without a hand-over to the engine's thread.
    pub fn seek(&self, targets: &[(TopicPartition, StartAt)]) -> Result<()> {
        self.alive()?;
        lock(&self.cache).seek(targets)?;
        self.handle.send(ConsumerCommand::Wake);
        Ok(())
    }

    /// Hands nothing out of these partitions, and keeps what was fetched. Takes effect at once.
    pub fn pause<P: PartitionName>(&self, partitions: &[P]) -> Result<()> {
        self.set_paused(self.cache()?, partitions, true)
    }

    /// The opposite of [`ConsumerClient::pause`].
    pub fn resume<P: PartitionName>(&self, partitions: &[P]) -> Result<()> {
        self.set_paused(self.cache()?, partitions, false)
    }

    /// One of both, if that waits for nobody, not even for the engine's hand on the cache.
    pub fn try_set_paused<P: PartitionName>(&self, partitions: &[P], paused: bool) -> Option<Result<()>> {
        Some(self.set_paused(self.cache_at_hand()?, partitions, paused))
    }

    fn set_paused<P: PartitionName>(
        &self,
        mut cache: MutexGuard<'_, FetchCache>,
        partitions: &[P],
        paused: bool,
    ) -> Result<()> {
        self.alive()?;
        let wake = cache.set_paused(partitions, paused)?;
        // Whoever is notified of it may look into the cache at once.
        drop(cache);
        if tracing::enabled!(target: targets::CONSUMER, tracing::Level::DEBUG) {
            let (client, client_id) = self.handle.name();
            let what = if paused { "paused" } else { "resumed" };
            for (topic, partition) in partitions.iter().map(PartitionName::name).take(LOGGED_MAX) {
                tracing::debug!(target: targets::CONSUMER, client, client_id, topic, partition, "{what}");
            }
        }
        if wake {
            self.handle.send(ConsumerCommand::Wake);
        }
        if !paused {
            self.look_again();
        }
        Ok(())
    }

    /// The next offset to be handed out; waits until it is known.
    pub fn position(
        &self,
        partition: TopicPartition,
        timeout: Option<Duration>,
        check: Check<'_>,
    ) -> Result<i64, CallError> {
        if let Some(position) = self.cache()?.position(&partition)? {
            return Ok(position);
        }
        let what = format!("finding the position of {partition}");
        let timeout_ms = self.timeout_ms(timeout);
        let command = |op| ConsumerCommand::Position { op, partition, timeout_ms };
        match self.call(&what, timeout, check, command)? {
            ConsumerOutcome::Position(position) => Ok(position),
            other => Err(unexpected(&other)),
        }
    }

    /// What the group has committed.
    pub fn committed(
        &self,
        partitions: Vec<TopicPartition>,
        timeout: Option<Duration>,
        check: Check<'_>,
    ) -> Result<Vec<(TopicPartition, Option<CommitOffset>)>, CallError> {
        let timeout_ms = self.timeout_ms(timeout);
        let command = |op| ConsumerCommand::Committed { op, partitions, timeout_ms };
        match self.call("fetching committed offsets", timeout, check, command)? {
            ConsumerOutcome::Committed(found) => Ok(found),
            other => Err(unexpected(&other)),
        }
    }

    /// Commits offsets, by default the position of every assigned partition.
    pub fn commit(
        &self,
        offsets: Option<Vec<CommitOffset>>,
        timeout: Option<Duration>,
        check: Check<'_>,
    ) -> Result<(), CallError> {
        let timeout_ms = self.timeout_ms(timeout);
        let command = |op| self.commit_command(op, offsets, timeout_ms);
        self.call("committing offsets", timeout, check, command).map(drop)
    }

    /// A commit of these offsets, by default of the positions as they are now: another poll may come before the engine
    /// looks, and its rows must not be in it.
    #[must_use]
    pub fn commit_command(
        &self,
        op: u64,
        offsets: Option<Vec<CommitOffset>>,
        timeout_ms: u64,
    ) -> ConsumerCommand {
        if let Some(offsets) = offsets {
            return ConsumerCommand::Commit { op, offsets, timeout_ms };
        }
        let positions = lock(&self.cache).positions();
        ConsumerCommand::CommitPositions { op, positions, timeout_ms }
    }

    /// Commits offsets, by default the position of every assigned partition, and does not wait: how it ended is a
    /// [`Notice`] with the number that this gives. Commits take effect, and their notices come, in the order of the calls.
    pub fn commit_async(&self, offsets: Option<Vec<CommitOffset>>) -> Result<u64> {
        self.alive()?;
        let op = self.ops.number();
        self.notices.await_commit(op);
        self.handle.send(self.commit_command(op, offsets, self.timeout_ms(None)));
        Ok(op)
    }

    /// Whether rebalances are to be told as [`Notice`]s. While it is on, whoever polls must take them.
    pub fn listen(&self, on: bool) -> Result<()> {
        self.alive()?;
        self.notices.listen(on);
        self.handle.send(ConsumerCommand::Listen(on));
        Ok(())
    }

    /// What the polling thread is to be told before it gets rows.
    #[must_use]
    pub fn take_notice(&self) -> Option<Notice> {
        if self.handle.is_forked() { None } else { self.notices.take() }
    }

    /// The next commit of [`commit_async`](Self::commit_async) that has ended, before other notices.
    #[must_use]
    pub fn take_committed(&self) -> Option<(u64, Result<()>)> {
        if self.handle.is_forked() { None } else { self.notices.take_committed() }
    }

    /// The listener was notified of a rebalance; the engine goes on.
    pub fn listener_called(&self, notice: u64) {
        self.handle.send(ConsumerCommand::ListenerCalled { notice });
    }

    /// What a listener has to give back because this consumer leaves its group; no notice comes of it.
    #[must_use]
    pub fn take_back(&self) -> Vec<TopicPartition> {
        self.assignment().map_or_else(|_| Vec::new(), |assigned| self.notices.take_back(assigned))
    }

    /// As whom this consumer commits: for a producer that commits its offsets in a transaction.
    pub fn group_metadata(&self, check: Check<'_>) -> Result<GroupMetadata, CallError> {
        match self.call("asking for the group's generation", None, check, |op| {
            ConsumerCommand::GroupMetadata { op }
        })? {
            ConsumerOutcome::Group(metadata) => Ok(metadata),
            other => Err(unexpected(&other)),
        }
    }

    /// Looks up offsets: a timestamp, -1 latest, -2 earliest, -3 the largest timestamp.
    pub fn list_offsets(
        &self,
        targets: Vec<(TopicPartition, i64)>,
        timeout: Option<Duration>,
        check: Check<'_>,
    ) -> Result<Vec<(TopicPartition, Option<OffsetAt>)>, CallError> {
        let timeout_ms = self.timeout_ms(timeout);
        let command = |op| ConsumerCommand::ListOffsets { op, targets, timeout_ms };
        match self.call("looking up offsets", timeout, check, command)? {
            ConsumerOutcome::Offsets(found) => Ok(found),
            other => Err(unexpected(&other)),
        }
    }

    /// Commits what auto commit owes, leaves the group, ends the thread. `finished`: all rows that were handed out have
    /// been processed; else those of the last poll come again. A second call does nothing.
    pub fn close(&self, timeout: Duration, finished: bool, check: Check<'_>) -> Result<(), CallError> {
        if self.handle.is_forked() || self.handle.is_stopped() {
            return Ok(());
        }
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let deadline = deadline_in(Some(timeout.saturating_add(Duration::from_secs(1))));
        let op = self.ops.begin();
        self.handle.send(ConsumerCommand::Close { op, finished, timeout_ms });
        let closed = self.ops.wait(op, "closing the consumer", deadline, check).map(drop);
        self.handle.stop();
        self.parked.join();
        closed
    }

    fn call(
        &self,
        what: &str,
        timeout: Option<Duration>,
        check: Check<'_>,
        command: impl FnOnce(u64) -> ConsumerCommand,
    ) -> Result<ConsumerOutcome, CallError> {
        self.alive()?;
        let op = self.ops.begin();
        self.handle.send(command(op));
        // The engine keeps the time; ours is only a net beneath it.
        let limit = timeout.unwrap_or(self.api_timeout).saturating_add(Duration::from_secs(2));
        self.ops.wait(op, what, deadline_in(Some(limit)), check)
    }

    /// Another caller may be waiting for rows that are there now.
    fn look_again(&self) {
        self.ready.notify();
        self.parked.ring();
    }

    fn timeout_ms(&self, timeout: Option<Duration>) -> u64 {
        u64::try_from(timeout.unwrap_or(self.api_timeout).as_millis()).unwrap_or(u64::MAX)
    }

    fn alive(&self) -> Result<()> {
        self.handle.alive()
    }
}

fn unexpected(outcome: &ConsumerOutcome) -> CallError {
    CallError::Failed(Error::Usage(format!("the engine answered with something else: {outcome:?}")))
}
