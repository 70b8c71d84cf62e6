//! The producer as callers use it: rows go straight into the shared accumulator, results come back on a thread of
//! their own.

mod audience;
mod dispatch;
mod parking;
mod post;
mod transactions;

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use headrace_client::error::{Error, Result};
use headrace_client::options::ProducerConfig;
use headrace_client::producer::{
    Accumulator, AppendError, Appender, Grant, ProducerCommand, ProducerEngine, RecordRef, RowSpan,
};
use headrace_columns::encode::Rows;
use headrace_pool::{BlockingWait, PoolError, PoolMetrics};

use self::audience::Audience;
use self::dispatch::Dispatch;
pub use self::dispatch::{RowsOnWay, RowsTicket};
use self::post::Post;
use super::attempt::{Attempt, Hold, Parked};
use super::delivery::{Delivery, lock};
use super::driver::{Handle, Hooks, SocketOptions};
use super::ops::{CallError, Check, Ops, Signal, deadline_in};
use crate::clock::Clock;
use crate::fork::Thread;

/// Longest wait of a call for the brokers to catch up, before each mebibyte: one that has no room waits for that.
const PACE_MAX: Duration = Duration::from_millis(100);

/// The way to the delivery thread, and the thread; it ends when the last sender is gone.
type Deliveries<R> = (Sender<Vec<Delivery<R>>>, Thread);

/// A producer with its threads.
pub struct ProducerClient<R: Send + 'static> {
    appender: Appender,
    handle: Arc<Handle<ProducerCommand>>,
    ops: Arc<Ops<()>>,
    /// Topics became known, or can be no more.
    decided: Arc<Signal>,
    /// Callers with many rows may go on.
    caught_up: Arc<Signal>,
    parked: Arc<Parked<R>>,
    dispatch: Arc<Mutex<Dispatch<R>>>,
    post: Arc<Post<R>>,
    deliveries: Mutex<Option<Deliveries<R>>>,
    /// Batches may go through memory.
    direct: bool,
    clock: Clock,
    max_block: Duration,
}

/// The callers' side of the accumulator, which knows how to have the engine look.
fn appender(handle: &Arc<Handle<ProducerCommand>>, accumulator: Arc<Mutex<Accumulator>>) -> Appender {
    let to_engine = |tell: fn(&Handle<ProducerCommand>, ProducerCommand)| {
        let handle = Arc::downgrade(handle);
        Arc::new(move || {
            if let Some(handle) = handle.upgrade() {
                tell(&handle, ProducerCommand::Wake);
            }
        })
    };
    Appender::new(accumulator, to_engine(Handle::drive), to_engine(Handle::send))
}

impl<R: Send + 'static> ProducerClient<R> {
    /// Starts the producer's threads. `deliver` runs on one of them and may block without holding up the network.
    pub fn start(
        config: ProducerConfig,
        deliver: impl FnMut(Vec<Delivery<R>>) + Send + 'static,
    ) -> Result<Self> {
        let failed = |e: io::Error| Error::Usage(format!("cannot start the producer's thread: {e}"));
        let clock = Clock::start();
        let max_block = Duration::from_millis(config.max_block_ms);
        let direct = config.datapath.is_one_sided();
        let sockets =
            SocketOptions::of(&config.common)?.spinning(config.poll_spin_us, config.verbs_device.clone());
        let (engine, accumulator) = ProducerEngine::new(config, super::seed(clock))?;
        let ops = Arc::new(Ops::default());
        let decided = Arc::new(Signal::default());
        let caught_up = Arc::new(Signal::default());
        let dispatch = Arc::new(Mutex::new(Dispatch::default()));
        let (to_deliver, inbox) = channel::<Vec<Delivery<R>>>();
        let parked = Arc::new(Parked::new(to_deliver.clone()));
        let (post, thread) = Post::start(to_deliver.clone(), inbox, deliver).map_err(failed)?;
        let audience = Arc::new(Audience {
            ops: ops.clone(),
            decided: decided.clone(),
            caught_up: caught_up.clone(),
            dispatch: dispatch.clone(),
            parked: parked.clone(),
            post: post.clone(),
        });
        let [to_audience, told_audience, patient_audience] = [(); 3].map(|()| audience.clone());
        let on_event = move |event| to_audience.hear(event);
        let (left, to_left) = (accumulator.clone(), to_deliver.clone());
        let hooks = Hooks {
            after_events: Box::new(move |by_caller| told_audience.post.let_go(by_caller)),
            patient: Box::new(move || patient_audience.is_patient()),
            on_exit: Box::new(move || audience.leave(&left, &to_left)),
        };
        let handle =
            Handle::start("headrace-produce", engine, clock, sockets, on_event, hooks).map_err(failed)?;
        let handle = Arc::new(handle);
        let appender = appender(&handle, accumulator);
        let deliveries = Mutex::new(Some((to_deliver, Thread::new(thread))));
        Ok(Self {
            appender,
            handle,
            ops,
            decided,
            caught_up,
            parked,
            dispatch,
            post,
            deliveries,
            direct,
            clock,
            max_block,
        })
    }

    /// Why brokers cannot be reached at present; empty when all can.
    pub fn failing(&self) -> String {
        self.handle.failing()
    }

    /// Whether records that nobody waits for ([`Self::begin_wait`]) may be notified of some milliseconds late, or by a caller's thread
    /// that comes by: where `deliver` needs a lock that callers need as well. Has an effect where batches may go through
    /// memory, where waking a thread takes longer than a record.
    pub fn be_patient(&self, patient: bool) {
        if self.direct && !self.handle.is_forked() {
            self.post.be_patient(patient);
        }
    }

    /// Tells of what has ended, on this thread unless another is at it.
    pub fn deliver_now(&self) {
        if !self.handle.is_forked() {
            self.handle.look();
            self.post.let_go(true);
        }
    }

    /// Before a caller sleeps until its recipient is told, and then [`Self::end_wait`]: looks for a while at what has come,
    /// and tells of it on this thread.
    pub fn begin_wait(&self) {
        if !self.handle.is_forked() {
            self.post.count_waiting(true);
            self.post.let_go(true);
            self.handle.spin(|| self.post.is_empty());
        }
    }

    /// The caller's recipient was told, or it waits no more.
    pub fn end_wait(&self) {
        if !self.handle.is_forked() {
            self.post.count_waiting(false);
        }
    }

    /// Queues one record; waits up to `max.block.ms` for memory. One of a topic that is not known yet is parked, and its
    /// recipient told if the topic does not become known in that time.
    pub fn send(&self, record: &RecordRef<'_>, recipient: R, check: Check<'_>) -> Result<(), CallError> {
        let mut recipient = Some(recipient);
        self.blocking(check, |client, grant| client.append_record(record, &mut recipient, grant))
    }

    /// Queues one record if there is room for it; `false` if not: [`Self::park`], then try again with the same attempt.
    pub fn try_send(
        &self,
        record: &RecordRef<'_>,
        recipient: R,
        attempt: &mut Attempt<R>,
    ) -> Result<bool, Error> {
        let mut recipient = Some(recipient);
        let append = |client: &Self, grant| client.append_record(record, &mut recipient, grant);
        Ok(self.try_append(attempt, append)?.is_some())
    }

    /// The partition that a record would go to now; `None` while that is not known.
    pub fn place_of(&self, record: &RecordRef<'_>) -> Result<Option<u32>> {
        self.handle.alive()?;
        Ok(self.appender.place_of(record))
    }

    /// A caller's handle for rows that come in several batches; ends with [`Self::finish_rows`]. With `results` the
    /// recipient is notified of each row ([`Delivery::Results`]), and rows that cannot be sent are told there too.
    pub fn begin_rows(&self, recipient: R, results: bool) -> RowsTicket<R> {
        RowsTicket::new(recipient, results)
    }

    /// Queues all rows; waits up to `max.block.ms` whenever there is no memory. With results, only an interruption is an
    /// error.
    pub fn send_rows(
        &self,
        topic: Option<&str>,
        rows: &Rows,
        ticket: &RowsTicket<R>,
        check: Check<'_>,
    ) -> Result<(), CallError> {
        let Some(mut on_way) = ticket.start(rows) else { return Ok(()) };
        while on_way.from < rows.len() {
            self.keep_pace(check)?;
            let mut taken = 0;
            let sent = self.blocking(check, |client, grant| {
                taken = client.append_turn(topic, rows, &on_way, ticket, grant)?;
                Ok(())
            });
            match sent {
                Err(CallError::Failed(error)) if ticket.is_traced() => {
                    ticket.stop(&on_way, rows, &error);
                    break;
                }
                sent => sent?,
            }
            on_way.from += taken;
        }
        Ok(())
    }

    /// Waits while enough is ready for the brokers, at most [`PACE_MAX`].
    fn keep_pace(&self, check: Check<'_>) -> Result<(), CallError> {
        let until = deadline_in(Some(PACE_MAX));
        loop {
            let seen = self.caught_up.seen();
            if !self.appender.lock().runs_ahead(self.clock.now())
                || !self.caught_up.wait(seen, until, &mut *check)?
            {
                return Ok(());
            }
        }
    }

    /// Queues more of the rows, about a mebibyte, if there is room; whether all are queued now. If not, [`Self::park`],
    /// which may find nothing to wait for, then try again with the same attempt.
    pub fn try_rows(
        &self,
        topic: Option<&str>,
        rows: &Rows,
        on_way: &mut RowsOnWay,
        ticket: &RowsTicket<R>,
        attempt: &mut Attempt<R>,
    ) -> Result<bool, Error> {
        let append = |client: &Self, grant| client.append_turn(topic, rows, on_way, ticket, grant);
        match self.try_append(attempt, append) {
            Ok(taken) => on_way.from += taken.unwrap_or_default(),
            Err(error) if ticket.is_traced() => {
                ticket.stop(on_way, rows, &error);
                on_way.from = rows.len();
            }
            Err(error) => return Err(error),
        }
        Ok(on_way.from >= rows.len())
    }

    /// All rows are queued: the ticket's recipient is told as soon as all are acknowledged. An error when nobody can be
    /// told any more.
    pub fn finish_rows(&self, ticket: &RowsTicket<R>) -> Result<(), Error> {
        ticket.finish().map_or(Ok(()), |done| self.deliver(done))
    }

    /// Waits until all records queued before are acknowledged or have failed. What has failed is told to its recipient,
    /// and [`Self::take_failure`] says whether anything has; [`Self::settle`] waits until it was told.
    pub fn flush(&self, timeout: Option<Duration>, check: Check<'_>) -> Result<(), CallError> {
        self.handle.alive()?;
        let op = self.ops.begin();
        self.appender.seal_all();
        self.handle.drive(ProducerCommand::Flush { op });
        self.handle.spin(|| self.ops.is_open(op));
        let flushed = self.ops.wait(op, "flushing the producer", deadline_in(timeout), check);
        flushed.map_err(|late| self.handle.explain(late))?;
        // What a patient post holds still.
        self.post.let_go(true);
        Ok(())
    }

    /// `recipient` is told ([`Delivery::Done`]) behind all that has ended before. Nobody may wait for that within a
    /// delivery.
    pub fn settle(&self, recipient: R) -> Result<(), Error> {
        self.handle.alive()?;
        self.deliver(Delivery::Done(recipient, Ok(())))
    }

    /// Sends everything that was queued before; `recipient` is told when all of it has ended, well or not: see
    /// [`Self::take_failure`].
    pub fn begin_flush(&self, recipient: R) -> Result<(), Error> {
        self.handle.alive()?;
        let op = self.ops.number();
        if !self.parked.add(op, recipient, false) {
            return Err(Error::Closed);
        }
        self.handle.send(ProducerCommand::Flush { op });
        Ok(())
    }

    /// The first failure since the last call, or since the last end of a transaction.
    pub fn take_failure(&self) -> Option<Error> {
        lock(&self.dispatch).failed.take()
    }

    fn timeout_ms(&self, timeout: Option<Duration>) -> u64 {
        u64::try_from(timeout.unwrap_or(self.max_block).as_millis()).unwrap_or(u64::MAX)
    }

    /// Flushes for at most `timeout`, fails what is left, ends the threads. A second call does nothing. Recipients are
    /// told of all failures before it returns, unless it is called within a delivery.
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
            // A callback may close the producer from that very thread.
            thread.join();
        }
        match outcome {
            // The recipients of what was left were told.
            Err(CallError::Failed(_)) if lock(&self.dispatch).failed.is_some() => Ok(()),
            outcome => outcome,
        }
    }

    /// `buffer.memory`, and how much of it is free, bytes.
    pub fn buffer_bytes(&self) -> Result<(u64, u64)> {
        let accumulator = self.accumulator()?;
        let pool = accumulator.pool();
        Ok((pool.config().buffer_bytes, pool.available()))
    }

    /// The metrics of the memory for batches. Who waits for a broker's share is counted among the waiting threads.
    pub fn metrics(&self) -> Result<PoolMetrics> {
        let accumulator = self.accumulator()?;
        let waiting_threads = accumulator.callers_waiting();
        Ok(PoolMetrics { waiting_threads, ..accumulator.pool().metrics(self.clock.elapsed()) })
    }

    /// Bytes of memory that batches for each broker hold, by its node id; `None`: for partitions without a leader.
    pub fn broker_bytes(&self) -> Result<BTreeMap<Option<i32>, u64>> {
        Ok(self.accumulator()?.broker_bytes())
    }

    /// Bytes of batches that were written into brokers' memory instead of being sent.
    pub fn direct_bytes(&self) -> Result<u64> {
        Ok(self.accumulator()?.direct_bytes())
    }

    /// In a forked child its lock may be held for ever, by a thread that is the parent's.
    fn accumulator(&self) -> Result<MutexGuard<'_, Accumulator>> {
        if self.handle.is_forked() { Err(Error::Forked) } else { Ok(self.appender.lock()) }
    }

    /// Sees to it that `recipient` is told ([`Delivery::Done`]) when it is worth trying again, and says how long to wait
    /// for that at most; then call this again. `None`: try now. A wait that has ended badly is the next try's error.
    pub fn park(&self, attempt: &mut Attempt<R>, recipient: R) -> Option<Duration> {
        attempt.leave();
        if !matches!(attempt.hold, Hold::Place(_) | Hold::Metadata { .. }) {
            return None;
        }
        let now = self.clock.elapsed();
        let deadline = attempt.deadline.unwrap_or(now);
        let left = deadline.saturating_sub(now);
        let blocked_ms = self.blocked_ms();
        let number = self.ops.number();
        // In before the last look, or what happens in between is told to nobody.
        let for_topics = matches!(attempt.hold, Hold::Metadata { .. });
        if !self.parked.add(number, recipient, for_topics) {
            return None;
        }
        attempt.parked = Some((Arc::downgrade(&self.parked), number));
        attempt.hold = match std::mem::take(&mut attempt.hold) {
            Hold::Place(mut place) => {
                match place.poll(now, Some(deadline), &self.parked.waker(number)) {
                    Poll::Pending => {
                        attempt.hold = Hold::Place(place);
                        return Some(left);
                    }
                    Poll::Ready(Ok(grant)) => Hold::Granted(grant),
                    // The next try says why.
                    Poll::Ready(Err(PoolError::Closed)) => Hold::Nothing,
                    Poll::Ready(Err(_)) => Hold::Failed(place.scarce().timed_out(blocked_ms)),
                }
            }
            Hold::Metadata { seen } if self.decided.seen() == seen && !left.is_zero() => {
                attempt.hold = Hold::Metadata { seen };
                return Some(left);
            }
            // The next try says what the brokers said last.
            Hold::Metadata { .. } => Hold::Nothing,
            other => other,
        };
        attempt.leave();
        None
    }

    /// One try; `None` when there is no room, and `attempt` knows what to wait for.
    fn try_append<T>(
        &self,
        attempt: &mut Attempt<R>,
        append: impl FnOnce(&Self, Option<Grant>) -> Result<T, AppendError>,
    ) -> Result<Option<T>, Error> {
        self.handle.alive()?;
        attempt.leave();
        let grant = match std::mem::take(&mut attempt.hold) {
            Hold::Failed(error) => return Err(error),
            Hold::Granted(grant) => Some(grant),
            _ => None,
        };
        let seen = self.decided.seen();
        match append(self, grant) {
            Ok(done) => {
                attempt.deadline = None;
                return Ok(Some(done));
            }
            Err(AppendError::Full(place)) => attempt.hold = Hold::Place(place),
            Err(AppendError::NeedMetadata { .. })
                if attempt.deadline.is_none_or(|deadline| deadline > self.clock.elapsed()) =>
            {
                attempt.hold = Hold::Metadata { seen };
            }
            Err(refused) => return Err(refused.into_error(self.blocked_ms())),
        }
        let left = self.max_block.saturating_sub(attempt.waited);
        attempt.deadline.get_or_insert_with(|| self.clock.elapsed().saturating_add(left));
        Ok(None)
    }

    /// Appends as many rows as fit into one turn, and says how many.
    fn append_turn(
        &self,
        topic: Option<&str>,
        rows: &Rows,
        on_way: &RowsOnWay,
        ticket: &RowsTicket<R>,
        grant: Option<Grant>,
    ) -> Result<usize, AppendError> {
        let now = self.clock.now();
        let rest = on_way.from..rows.len();
        if !ticket.is_traced() {
            let placed =
                |batch, count| lock(&self.dispatch).rows(batch, u64::from(count), &[], on_way, ticket);
            return self.appender.append_rows(now, topic, rows, rest, grant, placed);
        }
        let placed = |spans: &[RowSpan]| {
            ticket.sent(on_way, spans, |row| rows.timestamp_ms(row).unwrap_or(now.wall_ms));
            for spans in spans.chunk_by(|one, next| one.batch == next.batch) {
                let count = spans.iter().map(|span| u64::from(span.count)).sum();
                if let Some(RowSpan { batch, .. }) = spans.first() {
                    lock(&self.dispatch).rows(*batch, count, spans, on_way, ticket);
                }
            }
        };
        match self.appender.append_rows_traced(now, topic, rows, rest, grant, placed) {
            // These are about the first row alone; the others may go.
            Err(
                refused @ (AppendError::TooLarge { .. }
                | AppendError::PartitionOutOfRange { .. }
                | AppendError::Topic(_)),
            ) => {
                ticket.first_failed(on_way, &refused.into_error(self.blocked_ms()));
                Ok(1)
            }
            taken => taken,
        }
    }

    fn blocked_ms(&self) -> u64 {
        u64::try_from(self.max_block.as_millis()).unwrap_or(u64::MAX)
    }

    /// Runs an append until it succeeds, waiting where that may help; one deadline for all waits.
    fn blocking(
        &self,
        check: Check<'_>,
        mut append: impl FnMut(&Self, Option<Grant>) -> Result<(), AppendError>,
    ) -> Result<(), CallError> {
        let blocked_ms = self.blocked_ms();
        let mut deadline = None;
        let mut grant = None;
        loop {
            self.handle.alive()?;
            let seen = self.decided.seen();
            let Err(refused) = append(self, grant.take()) else { return Ok(()) };
            let until = *deadline.get_or_insert_with(|| self.clock.elapsed().saturating_add(self.max_block));
            match refused {
                AppendError::Full(place) => {
                    let (scarce, now) = (place.scarce(), || self.clock.elapsed());
                    let mut wait = BlockingWait { now: &now, deadline: Some(until), check: &mut *check };
                    grant = match place.block(&mut wait) {
                        Ok(grant) => Some(grant),
                        Err(PoolError::Interrupted) => return Err(CallError::Interrupted),
                        // The next try says why.
                        Err(PoolError::Closed) => None,
                        Err(_) => {
                            let late = CallError::Failed(scarce.timed_out(blocked_ms));
                            return Err(self.handle.explain(late));
                        }
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

    fn deliver(&self, delivery: Delivery<R>) -> Result<(), Error> {
        let deliveries = self.deliveries.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((sender, _)) = deliveries.as_ref() else { return Err(Error::Closed) };
        sender.send(vec![delivery]).map_err(|_| Error::Closed)
    }
}
