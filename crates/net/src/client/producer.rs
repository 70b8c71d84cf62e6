//! The producer as callers use it: rows go straight into the shared accumulator, results come back on a thread of
//! their own.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use headrace_client::error::{Error, Result};
use headrace_client::options::ProducerConfig;
use headrace_client::partition::CommitOffset;
use headrace_client::producer::{
    AppendError, Appender, BatchAck, BatchId, GroupMetadata, ProducerCommand, ProducerEngine, ProducerEvent,
    RecordRef,
};
use headrace_columns::encode::Rows;
use headrace_pool::{BlockingWait, Lease, PoolError};

use super::driver::{Handle, SocketOptions};
use super::ops::{CallError, Check, Ops, Signal, deadline_in};
use crate::clock::Clock;

/// Where one record went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordMetadata {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// The offset; -1 with `acks=0`.
    pub offset: i64,
    /// Unix milliseconds, as written.
    pub timestamp: i64,
}

/// What is told to whoever waits for a delivery; `R` is the caller's own handle.
#[derive(Debug)]
pub enum Delivery<R> {
    /// One record.
    Record(R, Result<RecordMetadata>),
    /// All rows of one `send_rows`: how many, or the first row's error.
    Rows(R, Result<u64>),
}

struct Tally<R> {
    recipient: Option<R>,
    rows: u64,
    outstanding: u64,
    /// All rows are appended, so `outstanding` only falls.
    complete: bool,
    error: Option<Error>,
}

type SharedTally<R> = Arc<Mutex<Tally<R>>>;

enum Entry<R> {
    Record { index: u32, timestamp: i64, recipient: R },
    Rows { rows: u64, tally: SharedTally<R> },
}

struct Dispatch<R> {
    batches: HashMap<BatchId, Vec<Entry<R>>>,
    /// The first delivery error since the last flush.
    failed: Option<Error>,
}

/// The way to the delivery thread, and the thread; it ends when the last sender is gone.
type Deliveries<R> = (Sender<Vec<Delivery<R>>>, JoinHandle<()>);

/// A producer with its threads.
pub struct ProducerClient<R: Send + 'static> {
    appender: Appender,
    handle: Arc<Handle<ProducerCommand>>,
    ops: Arc<Ops<()>>,
    /// Topics became known, or can be no more.
    decided: Arc<Signal>,
    dispatch: Arc<Mutex<Dispatch<R>>>,
    deliveries: Mutex<Option<Deliveries<R>>>,
    clock: Clock,
    max_block: Duration,
}

impl<R: Send + 'static> ProducerClient<R> {
    /// Starts the producer's threads. `deliver` runs on one of them and may block without holding up the network.
    pub fn start(
        config: ProducerConfig,
        mut deliver: impl FnMut(Vec<Delivery<R>>) + Send + 'static,
    ) -> Result<Self> {
        let failed = |e: io::Error| Error::Usage(format!("cannot start the producer's thread: {e}"));
        let clock = Clock::start();
        let max_block = Duration::from_millis(config.max_block_ms);
        let sockets = SocketOptions::of(&config.common);
        let (engine, accumulator) = ProducerEngine::new(config, super::seed(clock))?;
        let ops = Arc::new(Ops::default());
        let decided = Arc::new(Signal::default());
        let dispatch = Arc::new(Mutex::new(Dispatch { batches: HashMap::new(), failed: None }));
        let (to_deliver, inbox) = channel::<Vec<Delivery<R>>>();
        let thread = Builder::new()
            .name("headrace-deliver".into())
            .spawn(move || inbox.into_iter().for_each(&mut deliver))
            .map_err(failed)?;

        let on_event = {
            let (ops, decided, dispatch, to_deliver) =
                (ops.clone(), decided.clone(), dispatch.clone(), to_deliver.clone());
            move |event| match event {
                ProducerEvent::BatchDone { batch, result, .. } => {
                    let delivered = lock(&dispatch).batch_done(batch, &result);
                    if !delivered.is_empty() {
                        let _ = to_deliver.send(delivered);
                    }
                }
                ProducerEvent::TopicsDecided => decided.notify(),
                ProducerEvent::Done { op, result } => ops.complete(op, result),
            }
        };
        let on_exit = {
            let pool = lock(&accumulator).pool().clone();
            let (ops, decided, dispatch, to_deliver) =
                (ops.clone(), decided.clone(), dispatch.clone(), to_deliver.clone());
            move || {
                // Whatever is still undelivered can no longer be: say so instead of leaving futures open for ever.
                let lost = lock(&dispatch).fail_all(&Error::Closed);
                if !lost.is_empty() {
                    let _ = to_deliver.send(lost);
                }
                ops.end();
                decided.notify();
                pool.close();
            }
        };
        let handle =
            Handle::start("headrace-produce", engine, clock, sockets, on_event, on_exit).map_err(failed)?;
        let handle = Arc::new(handle);
        let wake = {
            let handle = Arc::downgrade(&handle);
            Arc::new(move || {
                if let Some(handle) = handle.upgrade() {
                    handle.send(ProducerCommand::Wake);
                }
            })
        };
        let appender = Appender::new(accumulator, wake);
        let deliveries = Mutex::new(Some((to_deliver, thread)));
        Ok(Self { appender, handle, ops, decided, dispatch, deliveries, clock, max_block })
    }

    /// Queues one record; waits up to `max.block.ms` for memory or metadata.
    pub fn send(&self, record: &RecordRef<'_>, recipient: R, check: Check<'_>) -> Result<(), CallError> {
        let mut recipient = Some(recipient);
        self.blocking(check, |client, lease| {
            let now = client.clock.now();
            let timestamp = record.timestamp_ms.unwrap_or(now.wall_ms);
            let placed = |batch, index| {
                if let Some(recipient) = recipient.take() {
                    let entry = Entry::Record { index, timestamp, recipient };
                    lock(&client.dispatch).batches.entry(batch).or_default().push(entry);
                }
            };
            client.appender.append_record(now, record, lease, placed).map(drop)
        })
    }

    /// A caller's handle for rows that come in several batches; ends with [`Self::finish_rows`].
    pub fn begin_rows(&self, recipient: R) -> RowsTicket<R> {
        let tally =
            Tally { recipient: Some(recipient), rows: 0, outstanding: 0, complete: false, error: None };
        RowsTicket(Arc::new(Mutex::new(tally)))
    }

    /// Queues all rows; waits up to `max.block.ms` whenever there is no memory.
    pub fn send_rows(
        &self,
        topic: Option<&str>,
        rows: &Rows,
        ticket: &RowsTicket<R>,
        check: Check<'_>,
    ) -> Result<(), CallError> {
        let mut from = 0;
        while from < rows.len() {
            let mut taken: Range<usize> = from..from;
            self.blocking(check, |client, lease| {
                let now = client.clock.now();
                let placed = |batch, count: u32| {
                    let count = u64::from(count);
                    let mut tally = lock(&ticket.0);
                    tally.outstanding += count;
                    tally.rows += count;
                    drop(tally);
                    let mut dispatch = lock(&client.dispatch);
                    let entries = dispatch.batches.entry(batch).or_default();
                    match entries.last_mut() {
                        Some(Entry::Rows { rows, tally }) if Arc::ptr_eq(tally, &ticket.0) => *rows += count,
                        _ => entries.push(Entry::Rows { rows: count, tally: ticket.0.clone() }),
                    }
                };
                let rest = from..rows.len();
                taken.end = from + client.appender.append_rows(now, topic, rows, rest, lease, placed)?;
                Ok(())
            })?;
            from = taken.end;
        }
        Ok(())
    }

    /// All rows are queued: the ticket's recipient is told as soon as all are acknowledged.
    pub fn finish_rows(&self, ticket: &RowsTicket<R>) {
        let mut tally = lock(&ticket.0);
        tally.complete = true;
        let done = tally.delivery();
        drop(tally);
        self.deliver(done);
    }

    /// Waits until all records queued before are acknowledged or have failed; the first failure since the last flush
    /// is the error.
    pub fn flush(&self, timeout: Option<Duration>, check: Check<'_>) -> Result<(), CallError> {
        self.handle.alive()?;
        let op = self.ops.begin();
        self.appender.seal_all();
        self.handle.send(ProducerCommand::Flush { op });
        self.ops.wait(op, "flushing the producer", deadline_in(timeout), check)?;
        match lock(&self.dispatch).failed.take() {
            Some(error) => Err(CallError::Failed(error)),
            None => Ok(()),
        }
    }

    /// Gets the id and epoch of `transactional.id`, for at most `timeout` (`None`: `max.block.ms`). Fences an older
    /// producer of that id and aborts what it left open.
    pub fn init_transactions(&self, timeout: Option<Duration>, check: Check<'_>) -> Result<(), CallError> {
        let timeout_ms = self.timeout_ms(timeout);
        self.transact("initializing transactions", check, |op| ProducerCommand::InitTransactions {
            op,
            timeout_ms,
        })
    }

    /// Opens a transaction: what is sent from now on belongs to it.
    pub fn begin_transaction(&self, check: Check<'_>) -> Result<(), CallError> {
        self.transact("beginning a transaction", check, |op| ProducerCommand::BeginTransaction { op })
    }

    /// Commits a group's offsets as a part of the open transaction.
    pub fn send_offsets_to_transaction(
        &self,
        offsets: Vec<CommitOffset>,
        group: GroupMetadata,
        timeout: Option<Duration>,
        check: Check<'_>,
    ) -> Result<(), CallError> {
        let timeout_ms = self.timeout_ms(timeout);
        self.transact("committing offsets in the transaction", check, |op| ProducerCommand::SendOffsets {
            op,
            offsets,
            group,
            timeout_ms,
        })
    }

    /// Commits the open transaction once all of its records are written, or aborts it; waits for at most `timeout`
    /// (`None`: `max.block.ms`). After a time-out the same call waits for the same end.
    pub fn end_transaction(
        &self,
        commit: bool,
        timeout: Option<Duration>,
        check: Check<'_>,
    ) -> Result<(), CallError> {
        let timeout_ms = self.timeout_ms(timeout);
        self.handle.alive()?;
        if commit {
            self.appender.seal_all();
        }
        self.transact("ending the transaction", check, |op| ProducerCommand::EndTransaction {
            op,
            commit,
            timeout_ms,
        })?;
        // What failed was the transaction's, and it has ended as its caller wished.
        lock(&self.dispatch).failed = None;
        Ok(())
    }

    fn transact(
        &self,
        what: &str,
        check: Check<'_>,
        command: impl FnOnce(u64) -> ProducerCommand,
    ) -> Result<(), CallError> {
        self.handle.alive()?;
        let op = self.ops.begin();
        self.handle.send(command(op));
        // The engine keeps the time.
        self.ops.wait(op, what, None, check)
    }

    fn timeout_ms(&self, timeout: Option<Duration>) -> u64 {
        u64::try_from(timeout.unwrap_or(self.max_block).as_millis()).unwrap_or(u64::MAX)
    }

    /// Flushes for at most `timeout`, fails what is left, ends the threads. A second call does nothing.
    pub fn close(&self, timeout: Duration, check: Check<'_>) -> Result<(), CallError> {
        if self.handle.is_forked() {
            return Ok(());
        }
        let mut outcome = Ok(());
        if !self.handle.is_stopped() {
            let op = self.ops.begin();
            self.appender.seal_all();
            let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
            self.handle.send(ProducerCommand::Close { op, timeout_ms });
            let deadline = deadline_in(Some(timeout.saturating_add(Duration::from_secs(2))));
            outcome = self.ops.wait(op, "closing the producer", deadline, check);
        }
        self.handle.stop();
        let deliveries = self.deliveries.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((sender, thread)) = deliveries {
            drop(sender);
            // The event closure's sender went with the engine's thread, so the inbox ends once it is empty.
            // A callback may close the producer from that very thread, which then ends on its own.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
        // Taken in any case: what this call has told is not told again by the next.
        let failed = lock(&self.dispatch).failed.take();
        outcome.and(failed.map_or(Ok(()), |error| Err(CallError::Failed(error))))
    }

    /// `buffer.memory`, and how much of it is free, bytes.
    #[must_use]
    pub fn buffer_bytes(&self) -> (u64, u64) {
        let pool = self.appender.pool();
        (pool.config().buffer_bytes, pool.available())
    }

    /// Runs an append until it succeeds, waiting where that may help; one deadline for all waits.
    fn blocking(
        &self,
        check: Check<'_>,
        mut append: impl FnMut(&Self, Option<Lease>) -> Result<(), AppendError>,
    ) -> Result<(), CallError> {
        let blocked_ms = u64::try_from(self.max_block.as_millis()).unwrap_or(u64::MAX);
        let mut deadline = None;
        let mut lease = None;
        loop {
            self.handle.alive()?;
            let seen = self.decided.seen();
            let Err(refused) = append(self, lease.take()) else { return Ok(()) };
            let until = *deadline.get_or_insert_with(|| self.clock.elapsed().saturating_add(self.max_block));
            match refused {
                AppendError::Full(place) => {
                    let now = || self.clock.elapsed();
                    let mut wait = BlockingWait { now: &now, deadline: Some(until), check: &mut *check };
                    lease = match place.block(&mut wait) {
                        Ok(lease) => Some(lease),
                        Err(PoolError::Interrupted) => return Err(CallError::Interrupted),
                        // The next try says why.
                        Err(PoolError::Closed) => None,
                        Err(_) => return Err(CallError::Failed(AppendError::out_of_memory(blocked_ms))),
                    };
                }
                AppendError::NeedMetadata { .. } => {
                    let left = until.saturating_sub(self.clock.elapsed());
                    if !self.decided.wait(seen, deadline_in(Some(left)), check)? {
                        return Err(CallError::Failed(refused.into_error(blocked_ms)));
                    }
                }
                _ => return Err(CallError::Failed(refused.into_error(blocked_ms))),
            }
        }
    }

    fn deliver(&self, delivery: Option<Delivery<R>>) {
        let deliveries = self.deliveries.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(delivery), Some((sender, _))) = (delivery, deliveries.as_ref()) {
            let _ = sender.send(vec![delivery]);
        }
    }
}

/// Rows of one call on their way, see [`ProducerClient::begin_rows`].
pub struct RowsTicket<R>(SharedTally<R>);

impl<R> Tally<R> {
    /// What to tell the recipient, once there is nothing more to wait for.
    fn delivery(&mut self) -> Option<Delivery<R>> {
        if !self.complete || self.outstanding > 0 {
            return None;
        }
        let recipient = self.recipient.take()?;
        Some(Delivery::Rows(recipient, self.error.take().map_or(Ok(self.rows), Err)))
    }
}

impl<R> Dispatch<R> {
    fn batch_done(&mut self, batch: BatchId, result: &Result<BatchAck>) -> Vec<Delivery<R>> {
        if let Err(error) = result {
            self.failed.get_or_insert_with(|| error.clone());
        }
        let mut delivered = Vec::new();
        for entry in self.batches.remove(&batch).unwrap_or_default() {
            match entry {
                Entry::Record { index, timestamp, recipient } => {
                    let metadata = result.as_ref().map_err(Clone::clone).map(|ack| RecordMetadata {
                        topic: ack.topic.clone(),
                        partition: ack.partition,
                        offset: if ack.base_offset < 0 { -1 } else { ack.base_offset + i64::from(index) },
                        timestamp: if ack.log_append_time < 0 { timestamp } else { ack.log_append_time },
                    });
                    delivered.push(Delivery::Record(recipient, metadata));
                }
                Entry::Rows { rows, tally } => {
                    let mut tally = lock(&tally);
                    tally.outstanding = tally.outstanding.saturating_sub(rows);
                    if let Err(error) = result {
                        tally.error.get_or_insert_with(|| error.clone());
                    }
                    delivered.extend(tally.delivery());
                }
            }
        }
        delivered
    }

    fn fail_all(&mut self, error: &Error) -> Vec<Delivery<R>> {
        let batches: Vec<BatchId> = self.batches.keys().copied().collect();
        batches.into_iter().flat_map(|batch| self.batch_done(batch, &Err(error.clone()))).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
