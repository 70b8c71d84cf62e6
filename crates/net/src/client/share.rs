//! The share consumer as callers use it: rows straight from the buffer, everything else through the engine.

mod awaiting;
mod commits;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use arrow_array::RecordBatch;
use headrace_client::error::{Error, Result};
use headrace_client::options::ShareConfig;
use headrace_client::partition::TopicPartition;
use headrace_client::share::{
    CommitResults, Mark, ShareCommand, ShareEngine, ShareEvent, ShareMetrics, ShareOutcome, ShareRows,
    SharedAcquiredBuffer, lock,
};

pub use self::commits::CommitEnd;
use self::commits::CommitEnds;
use super::driver::{Handle, Hooks, SocketOptions};
use super::ops::{CallError, Check, Deadline, Ops, Signal, deadline_in};
use super::parking::Parked;
use super::polling::{Polling, Troubles};
use crate::clock::Clock;

/// A share consumer with its thread.
pub struct ShareClient {
    buffer: SharedAcquiredBuffer,
    empty: RecordBatch,
    handle: Handle<ShareCommand>,
    ops: Arc<Ops<ShareOutcome>>,
    ready: Arc<Signal>,
    parked: Arc<Parked<ShareOutcome>>,
    ends: Arc<CommitEnds>,
    polling: AtomicBool,
    troubles: Troubles,
    clock: Clock,
    api_timeout: Duration,
    max_poll_records: usize,
}

impl ShareClient {
    /// Starts the consumer's thread; it connects when there is something to read.
    pub fn start(config: &ShareConfig) -> Result<Self> {
        let clock = Clock::start();
        let api_timeout = Duration::from_millis(config.common.default_api_timeout_ms);
        let max_poll_records = usize::try_from(config.max_poll_records).unwrap_or(usize::MAX);
        let sockets = SocketOptions::of(&config.common)?;
        let engine = ShareEngine::new(config, super::seed(clock));
        let (buffer, empty) = (engine.buffer(), engine.empty_batch());
        let (ops, ready, troubles) =
            (Arc::new(Ops::default()), Arc::new(Signal::default()), Troubles::default());
        let (parked, ends) = (Arc::new(Parked::default()), Arc::new(CommitEnds::default()));
        let (to_ops, to_ready, to_troubles) = (ops.clone(), ready.clone(), troubles.clone());
        let (exit_ops, exit_ready) = (ops.clone(), ready.clone());
        let (to_parked, exit_parked) = (parked.clone(), parked.clone());
        let (to_ends, exit_ends) = (ends.clone(), ends.clone());
        let on_event = move |event| match event {
            ShareEvent::Done { op, result } => {
                let rest = to_ends.ended(op, result).and_then(|result| to_parked.tell(op, result));
                if let Some(result) = rest {
                    to_ops.complete(op, result);
                }
            }
            ShareEvent::Trouble { what, error } => to_troubles.push(what, &error),
            ShareEvent::Ready | ShareEvent::Assigned(_) => {
                to_ready.notify();
                to_parked.ring();
            }
        };
        let on_exit = move || {
            exit_ops.end();
            exit_ends.end();
            exit_parked.end();
            exit_ready.notify();
        };
        let handle = Handle::start("headrace-share", engine, clock, sockets, on_event, Hooks::new(on_exit))
            .map_err(|e| Error::Usage(format!("cannot start the share consumer's thread: {e}")))?;
        let polling = AtomicBool::new(false);
        Ok(Self {
            buffer,
            empty,
            handle,
            ops,
            ready,
            parked,
            ends,
            polling,
            troubles,
            clock,
            api_timeout,
            max_poll_records,
        })
    }

    /// A batch of no rows with the schema of all batches.
    #[must_use]
    pub fn empty(&self) -> &RecordBatch {
        &self.empty
    }

    /// Takes records of these topics; none ends the subscription.
    pub fn subscribe(&self, topics: Vec<String>, check: Check<'_>) -> Result<(), CallError> {
        self.handle.alive()?;
        let op = self.ops.begin();
        self.handle.send(ShareCommand::Subscribe { op, topics });
        self.ops.wait(op, "subscribing", deadline_in(Some(self.api_timeout)), check).map(drop)
    }

    /// The partitions that are given at present; others may have the same.
    pub fn assignment(&self) -> Result<Vec<TopicPartition>> {
        // In a forked child the parent's thread may have held the lock, and would for ever.
        if self.handle.is_forked() { Err(Error::Forked) } else { Ok(lock(&self.buffer).assignment()) }
    }

    /// The next rows of one partition, at most `max_records` (0: `max.poll.records`); `None` when the deadline has passed.
    /// With implicit acknowledgement this accepts the rows of the poll before, else it sends what was marked of them.
    ///
    /// # Errors
    /// With explicit acknowledgement, while rows of the last poll are not marked; whatever the group or a broker refuses.
    pub fn poll(
        &self,
        max_records: usize,
        deadline: Deadline,
        check: Check<'_>,
    ) -> Result<Option<ShareRows>, CallError> {
        let _polling = Polling::begin(&self.polling, self.handle.is_forked())?;
        self.handle.alive()?;
        let max_records = self.rows_max(max_records);
        let wakes = lock(&self.buffer).begin_poll(self.now_ms())?;
        if let Some(rows) = self.take(max_records)? {
            if wakes && !rows.wake {
                self.handle.send(ShareCommand::Wake);
            }
            return Ok(Some(rows));
        }
        let mut waiting = Waiting::begin(self, wakes);
        loop {
            let seen = self.ready.seen();
            self.handle.alive()?;
            if let Some(rows) = self.take(max_records)? {
                waiting.rows = true;
                return Ok(Some(rows));
            }
            if !self.ready.wait(seen, deadline, check)? {
                return Ok(None);
            }
        }
    }

    /// As [`ShareClient::poll`], and whatever else is ready; the limit is for all batches together. Rows of one partition
    /// may come in several batches.
    pub fn poll_all(
        &self,
        max_records: usize,
        deadline: Deadline,
        check: Check<'_>,
    ) -> Result<Vec<ShareRows>, CallError> {
        let first = self.poll(max_records, deadline, check)?;
        Ok(self.take_rest(first, self.rows_max(max_records)))
    }

    fn take(&self, max_records: usize) -> Result<Option<ShareRows>> {
        let taken = lock(&self.buffer).take(self.now_ms(), max_records).transpose()?;
        if taken.as_ref().is_some_and(|rows| rows.wake) {
            self.handle.send(ShareCommand::Wake);
        }
        Ok(taken)
    }

    /// What is ready beside the first rows. An error waits for the next poll: these rows are taken.
    fn take_rest(&self, first: Option<ShareRows>, max_records: usize) -> Vec<ShareRows> {
        let mut left = max_records;
        let mut next = first;
        let mut all = Vec::new();
        while let Some(rows) = next {
            left = left.saturating_sub(rows.len);
            all.push(rows);
            let more = if left > 0 { lock(&self.buffer).take_ready(self.now_ms(), left) } else { None };
            if more.as_ref().is_some_and(|rows| rows.wake) {
                self.handle.send(ShareCommand::Wake);
            }
            next = more;
        }
        all
    }

    /// Marks rows, all or none of them; it is sent with the next poll or commit.
    ///
    /// # Errors
    /// Where rows are not held (any more), and with implicit acknowledgement.
    pub fn acknowledge(&self, marks: &[(TopicPartition, Vec<Mark>)]) -> Result<()> {
        self.handle.alive()?;
        lock(&self.buffer).acknowledge(marks)
    }

    /// Sends what is marked, or with implicit acknowledgement what was handed out, and waits for the answers.
    pub fn commit(&self, timeout: Option<Duration>, check: Check<'_>) -> Result<CommitResults, CallError> {
        self.handle.alive()?;
        let limit = timeout.unwrap_or(self.api_timeout);
        let op = self.ops.begin();
        lock(&self.buffer).commit(self.now_ms(), op, self.timeout_ms(timeout));
        self.handle.send(ShareCommand::Wake);
        // The engine keeps the time; ours is only a net beneath it.
        let deadline = deadline_in(Some(limit.saturating_add(Duration::from_secs(2))));
        match self.ops.wait(op, "acknowledging records", deadline, check)? {
            ShareOutcome::Committed(results) => Ok(results),
            other @ ShareOutcome::Ok => Err(CallError::Failed(Error::Usage(format!(
                "the engine answered with something else: {other:?}"
            )))),
        }
    }

    /// Sends what [`ShareClient::commit`] sends and does not wait; `take_ended` tells the end under the number that this gives.
    pub fn commit_async(&self) -> Result<u64> {
        self.handle.alive()?;
        let op = self.ops.number();
        self.ends.expect(op);
        lock(&self.buffer).commit(self.now_ms(), op, self.timeout_ms(None));
        self.handle.send(ShareCommand::Wake);
        Ok(op)
    }

    /// The next commit of [`ShareClient::commit_async`] that has ended.
    #[must_use]
    pub fn take_ended(&self) -> Option<CommitEnd> {
        if self.handle.is_forked() { None } else { self.ends.take() }
    }

    /// How long brokers lock a record, in milliseconds; `None` before the first answer.
    #[must_use]
    pub fn lock_timeout_ms(&self) -> Option<u64> {
        lock(&self.buffer).lock_timeout_ms()
    }

    /// What has been read and acknowledged.
    #[must_use]
    pub fn metrics(&self) -> ShareMetrics {
        lock(&self.buffer).metrics()
    }

    /// Why brokers were asked, as sentences, the oldest first: those after the first `after`, as far as they are kept. Gives
    /// how many there were so far as well.
    #[must_use]
    pub fn decisions(&self, after: u64) -> (u64, Vec<String>) {
        lock(&self.buffer).decisions(after)
    }

    /// What went wrong since the last call that no other call was notified of; the last 100 at most.
    #[must_use]
    pub fn take_troubles(&self) -> Vec<String> {
        if self.handle.is_forked() { Vec::new() } else { self.troubles.take() }
    }

    /// Whether there is something for `take_troubles`.
    #[must_use]
    pub fn is_troubled(&self) -> bool {
        self.troubles.any()
    }

    /// Settles what is held, leaves the group, ends the thread. `finished`: with implicit acknowledgement the rows of the
    /// last poll are accepted; else they are released. A second call does nothing.
    pub fn close(&self, timeout: Duration, finished: bool, check: Check<'_>) -> Result<(), CallError> {
        if self.handle.is_forked() || self.handle.is_stopped() {
            return Ok(());
        }
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let deadline = deadline_in(Some(timeout.saturating_add(Duration::from_secs(1))));
        let op = self.ops.begin();
        self.handle.send(ShareCommand::Close { op, finished, timeout_ms });
        let closed = self.ops.wait(op, "closing the share consumer", deadline, check).map(drop);
        self.handle.stop();
        self.parked.join();
        closed
    }

    fn timeout_ms(&self, timeout: Option<Duration>) -> u64 {
        u64::try_from(timeout.unwrap_or(self.api_timeout).as_millis()).unwrap_or(u64::MAX)
    }

    fn rows_max(&self, max_records: usize) -> usize {
        if max_records == 0 { self.max_poll_records } else { max_records }
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().mono_ms
    }
}

/// A poll that waits for rows: as long as it does, brokers are asked for them.
struct Waiting<'a> {
    client: &'a ShareClient,
    rows: bool,
}

impl<'a> Waiting<'a> {
    fn begin(client: &'a ShareClient, wakes: bool) -> Self {
        if lock(&client.buffer).wait(client.now_ms(), true, false) || wakes {
            client.handle.send(ShareCommand::Wake);
        }
        Self { client, rows: false }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.client.buffer).wait(self.client.now_ms(), false, self.rows);
    }
}
