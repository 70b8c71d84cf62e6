//! A producer with its callers, and the ledger of what it was given and what it said.

mod append;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use headrace_client::engine::Engine;
use headrace_client::error::Error;
use headrace_client::options::ProducerConfig;
use headrace_client::producer::{
    self, Appended, Appender, BatchAck, BatchId, Grant, ProducerCommand, ProducerEngine, ProducerEvent,
};
use headrace_pool::PoolError;
use headrace_wire::time::Now;

use self::append::Job;
use crate::client::Wires;
use crate::plan::{Place, ProducerPlan, Step, TOPICS};

/// What a flush or an append may take beyond its limit: the lateness of threads and timers, several times over.
const SLACK_MS: u64 = 1000;

/// What became of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// Confirmed: where, and offset, -1 when nobody told.
    Acked(Place, i64),
    /// Taken, then failed.
    Failed(String),
    /// Not taken.
    Refused(String),
}

#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) topic: usize,
    pub(crate) partition: Option<i32>,
    pub(crate) must_arrive: bool,
    pub(crate) placed: Option<(BatchId, u32)>,
    pub(crate) end: Option<End>,
    /// Since when it waits for its topic.
    parked_ms: Option<u64>,
    /// When it was taken, and when it was answered.
    pub(crate) taken_ms: u64,
    pub(crate) ended_ms: u64,
    with_key: bool,
    bytes: usize,
}

/// What a parked record's sender was told.
type Reply = (usize, Result<Appended, Error>);

impl Record {
    fn new(
        (topic, partition): (usize, Option<i32>),
        must_arrive: bool,
        with_key: bool,
        bytes: usize,
    ) -> Self {
        let (placed, end, parked_ms, taken_ms, ended_ms) = (None, None, None, 0, 0);
        Self { topic, partition, must_arrive, placed, end, parked_ms, taken_ms, ended_ms, with_key, bytes }
    }

    pub(crate) fn place(&self, partition: i32) -> Place {
        Place { topic: self.topic, partition }
    }
}

struct Operation {
    caller: usize,
    closes: bool,
    /// Records that were taken before and not answered.
    records: Vec<usize>,
    since_ms: u64,
    limit_ms: u64,
}

enum State {
    Ready,
    Sleeping { until: u64 },
    Memory { place: producer::Place, bell: Arc<Bell>, looked: bool },
    Metadata { seen: u64 },
    Operation { op: u64 },
    Done,
}

struct Caller {
    steps: VecDeque<Step>,
    state: State,
    /// What is to be appended, and the end of all waiting for it.
    job: Option<Job>,
    deadline: Option<u64>,
    grant: Option<Grant>,
}

/// Tells the simulation that a caller's wait for memory is over.
#[derive(Debug)]
pub(crate) struct Bell {
    caller: usize,
    rung: AtomicBool,
    woken: Arc<Mutex<Vec<usize>>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::Relaxed);
        held(&self.woken).push(self.caller);
    }
}

pub(crate) struct Producer {
    pub(crate) plan: ProducerPlan,
    pub(crate) engine: ProducerEngine,
    pub(crate) wires: Wires,
    pub(crate) records: Vec<Record>,
    /// It was closed, and said so.
    pub(crate) closed: bool,
    /// It is gone at one blow.
    pub(crate) gone: bool,
    /// Rows of Arrow batches that were appended.
    pub(crate) rows_taken: usize,
    number: u32,
    appender: Appender,
    commands: Arc<Mutex<VecDeque<ProducerCommand>>>,
    woken: Arc<Mutex<Vec<usize>>>,
    callers: Vec<Caller>,
    batches: BTreeMap<BatchId, Vec<usize>>,
    /// What was notified of parked records and not looked at.
    reported: Arc<Mutex<Vec<Reply>>>,
    /// The last batch of each partition that has ended.
    last_ended: BTreeMap<Place, BatchId>,
    operations: BTreeMap<u64, Operation>,
    next_op: u64,
    /// Counts what callers without metadata wait for.
    decided: u64,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Producer and number of the record that has this value.
pub(crate) fn name_of(value: &[u8]) -> Option<(usize, usize)> {
    let (producer, rest) = value.split_first_chunk::<4>()?;
    let (record, _) = rest.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*producer) as usize, u32::from_be_bytes(*record) as usize))
}

impl Producer {
    pub(crate) fn new(number: u32, plan: ProducerPlan, seed: u64) -> Result<Self, String> {
        let options = plan.options.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        let config = ProducerConfig::from_pairs(options).map_err(|why| why.to_string())?;
        let (engine, accumulator) = ProducerEngine::new(config, seed).map_err(|why| why.to_string())?;
        let commands = Arc::new(Mutex::new(VecDeque::new()));
        let wake = {
            let commands = commands.clone();
            Arc::new(move || held(&commands).push_back(ProducerCommand::Wake))
        };
        let callers = plan.callers.iter().map(|steps| Caller {
            steps: steps.iter().copied().collect(),
            state: State::Ready,
            job: None,
            deadline: None,
            grant: None,
        });
        Ok(Self {
            engine,
            wires: Wires::default(),
            records: Vec::new(),
            closed: false,
            gone: false,
            rows_taken: 0,
            number,
            appender: Appender::new(accumulator, wake.clone(), wake),
            commands,
            woken: Arc::new(Mutex::new(Vec::new())),
            callers: callers.collect(),
            batches: BTreeMap::new(),
            reported: Arc::new(Mutex::new(Vec::new())),
            last_ended: BTreeMap::new(),
            operations: BTreeMap::new(),
            next_op: 0,
            decided: 0,
            plan,
        })
    }

    pub(crate) fn caller_count(&self) -> usize {
        self.callers.len()
    }

    pub(crate) fn take_commands(&self) -> VecDeque<ProducerCommand> {
        std::mem::take(&mut *held(&self.commands))
    }

    pub(crate) fn has_commands(&self) -> bool {
        !held(&self.commands).is_empty()
    }

    /// Callers whose wait for memory is over.
    pub(crate) fn take_woken(&self) -> Vec<usize> {
        std::mem::take(&mut *held(&self.woken))
    }

    // ---- callers

    /// Lets a caller do what it can do now. When it wants to be called again, unless it is woken before.
    pub(crate) fn step(&mut self, number: usize, now: Now) -> Result<Option<u64>, String> {
        let now_ms = now.mono_ms;
        loop {
            let deadline = self.callers[number].deadline.unwrap_or(u64::MAX);
            match &mut self.callers[number].state {
                State::Done => return Ok(None),
                State::Sleeping { until } if *until > now_ms => return Ok(Some(*until)),
                State::Operation { op } if self.operations.contains_key(op) => return Ok(None),
                State::Metadata { seen } if *seen == self.decided => {
                    if now_ms < deadline {
                        return Ok(Some(deadline));
                    }
                    self.refuse(number, now, "no metadata in time")?;
                }
                State::Memory { place, bell, looked } => {
                    let waker = Waker::from(bell.clone());
                    let (at, until) = (Duration::from_millis(now_ms), Duration::from_millis(deadline));
                    match place.poll(at, Some(until), &waker) {
                        Poll::Pending => {
                            *looked = true;
                            return Ok(Some(deadline));
                        }
                        Poll::Ready(Ok(_)) if *looked && !bell.rung.load(Ordering::Relaxed) => {
                            return Err(format!("caller {number} was given memory and not woken"));
                        }
                        Poll::Ready(Ok(grant)) => self.callers[number].grant = Some(grant),
                        Poll::Ready(Err(PoolError::Closed)) => {}
                        Poll::Ready(Err(why)) => self.refuse(number, now, &why.to_string())?,
                    }
                }
                State::Ready | State::Sleeping { .. } | State::Operation { .. } | State::Metadata { .. } => {}
            }
            self.callers[number].state = State::Ready;
            if self.callers[number].job.is_some() {
                self.append(number, now)?;
            } else if let Some(step) = self.callers[number].steps.pop_front() {
                self.begin(number, step, now)?;
            } else {
                self.callers[number].state = State::Done;
            }
        }
    }

    fn begin(&mut self, number: usize, step: Step, now: Now) -> Result<(), String> {
        match step {
            Step::Sleep { ms } => self.callers[number].state = State::Sleeping { until: now.mono_ms + ms },
            Step::Until { ms } => self.callers[number].state = State::Sleeping { until: ms },
            Step::Send { topic, partition, with_key, bytes, must_arrive } => {
                self.callers[number].job = Some(Job::Record(self.records.len()));
                self.records.push(Record::new((topic, partition), must_arrive, with_key, bytes));
            }
            Step::SendRows(plan) => {
                let job = self.draw_rows(&plan)?;
                self.callers[number].job = Some(job);
            }
            // A closed producer says so at once.
            Step::Flush | Step::Close { .. } if self.closed => {}
            Step::Flush => {
                let limit_ms = self.plan.delivery_timeout_ms;
                let op = self.operation(number, false, limit_ms, now);
                held(&self.commands).push_back(ProducerCommand::Flush { op });
            }
            Step::Close { timeout_ms } => {
                let op = self.operation(number, true, timeout_ms, now);
                held(&self.commands).push_back(ProducerCommand::Close { op, timeout_ms });
            }
        }
        Ok(())
    }

    fn operation(&mut self, caller: usize, closes: bool, limit_ms: u64, now: Now) -> u64 {
        self.appender.seal_all();
        let op = self.next_op;
        self.next_op += 1;
        let taken = |record: &Record| record.placed.is_some() || record.parked_ms.is_some();
        let open = |at: &usize| taken(&self.records[*at]) && self.records[*at].end.is_none();
        let records = (0..self.records.len()).filter(open).collect();
        let since_ms = now.mono_ms;
        self.operations.insert(op, Operation { caller, closes, records, since_ms, limit_ms });
        self.callers[caller].state = State::Operation { op };
        op
    }

    // ---- what the engine tells

    /// Takes an event in; the callers that it concerns.
    pub(crate) fn on_event(&mut self, now: Now, event: ProducerEvent) -> Result<Vec<usize>, String> {
        match event {
            ProducerEvent::BatchDone { batch, records, result } => {
                self.batch_done(now, batch, records, &result)?;
                Ok(Vec::new())
            }
            ProducerEvent::BatchSplit { batch, kept, rest } => {
                self.batch_split(batch, kept, rest)?;
                Ok(Vec::new())
            }
            ProducerEvent::CaughtUp => Ok(Vec::new()),
            ProducerEvent::TopicsDecided => {
                self.decided += 1;
                Ok((0..self.callers.len()).collect())
            }
            ProducerEvent::Done { op, result } => self.done(now, op, &result),
        }
    }

    fn batch_split(&mut self, batch: BatchId, kept: u32, rest: BatchId) -> Result<(), String> {
        let members = self.batches.get_mut(&batch).filter(|members| members.len() > kept as usize);
        let Some(members) = members.filter(|_| kept > 0) else {
            return Err(format!("{batch:?} was split behind {kept} records and had not more"));
        };
        let moved = members.split_off(kept as usize);
        for (index, at) in (0..).zip(&moved) {
            self.records[*at].placed = Some((rest, index));
        }
        self.batches.insert(rest, moved);
        Ok(())
    }

    fn batch_done(
        &mut self,
        now: Now,
        batch: BatchId,
        records: u32,
        result: &Result<BatchAck, Error>,
    ) -> Result<(), String> {
        let Some(members) = self.batches.remove(&batch) else {
            return Err(format!("{batch:?} ended that had no record, or had ended: {result:?}"));
        };
        if members.len() != records as usize {
            return Err(format!("{batch:?} ended with {records} records and was given {}", members.len()));
        }
        for (index, at) in members.into_iter().enumerate() {
            let record = &mut self.records[at];
            let end = match result {
                Ok(ack) => {
                    let index = i64::try_from(index).unwrap_or(0);
                    let offset = if ack.base_offset < 0 { -1 } else { ack.base_offset + index };
                    let place = record.place(ack.partition);
                    let own = record.partition.is_none_or(|partition| partition == ack.partition);
                    if !own || *TOPICS[place.topic] != *ack.topic {
                        let (topic, partition) = (&ack.topic, ack.partition);
                        return Err(format!(
                            "record {at} went to {topic}, partition {partition}: not its own"
                        ));
                    }
                    End::Acked(place, offset)
                }
                Err(why) => End::Failed(why.to_string()),
            };
            let place = match end {
                End::Acked(place, _) => Some(place),
                _ => record.partition.map(|partition| record.place(partition)),
            };
            record.ended_ms = now.mono_ms;
            if let Some(before) = record.end.replace(end) {
                return Err(format!("record {at} was answered twice, first with {before:?}"));
            }
            if let Some(before) = place.and_then(|place| self.last_ended.insert(place, batch))
                && before > batch
            {
                return Err(format!("{batch:?} ended after {before:?} of the same partition"));
            }
        }
        Ok(())
    }

    fn done(&mut self, now: Now, op: u64, result: &Result<(), Error>) -> Result<Vec<usize>, String> {
        let Some(operation) = self.operations.remove(&op) else {
            return Err(format!("operation {op} ended that was not begun, or had ended"));
        };
        let what = if operation.closes { "close" } else { "flush" };
        if let Some(at) = operation.records.iter().find(|at| self.records[**at].end.is_none()) {
            return Err(format!("{what} ended before record {at} was answered"));
        }
        let took = now.mono_ms - operation.since_ms;
        if took > operation.limit_ms.saturating_add(SLACK_MS) {
            return Err(format!("{what} took {took} ms where {} are the limit", operation.limit_ms));
        }
        match result {
            Ok(()) => {}
            Err(Error::Timeout { .. }) if operation.closes => {}
            Err(why) => return Err(format!("{what} failed: {why}")),
        }
        if !operation.closes {
            return Ok(vec![operation.caller]);
        }
        if !self.batches.is_empty() {
            return Err(format!("close ended before {} batches did", self.batches.len()));
        }
        self.closed = true;
        self.decided += 1;
        Ok((0..self.callers.len()).collect())
    }

    /// What must hold of a producer when nothing happens any more.
    pub(crate) fn check_rest(&self) -> Result<(), String> {
        if self.gone {
            return Ok(());
        }
        if let Some(caller) = self.callers.iter().position(|caller| !matches!(caller.state, State::Done)) {
            return Err(format!("caller {caller} waits for ever"));
        }
        if !self.closed || !self.operations.is_empty() {
            return Err("it is not closed".to_owned());
        }
        if let Some(at) = self.records.iter().position(|record| record.end.is_none()) {
            return Err(format!("record {at} was never answered"));
        }
        if let Some(at) = self.engine.poll_timeout() {
            return Err(format!("it is closed and wants to be woken at {at} ms"));
        }
        let accumulator = self.appender.lock();
        let (pool, outstanding) = (accumulator.pool(), accumulator.batches_outstanding());
        let (free, total) = (pool.available(), pool.config().buffer_bytes);
        if free != total || outstanding != 0 || pool.waiting() != 0 {
            return Err(format!(
                "{free} of {total} bytes are free, {outstanding} batches are not done, {} callers wait for memory",
                pool.waiting()
            ));
        }
        Ok(())
    }
}
