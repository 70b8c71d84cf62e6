//! A producer with its callers, and the ledger of what it was given and what it said.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use headrace_client::engine::{ConnId, Engine};
use headrace_client::error::Error;
use headrace_client::options::ProducerConfig;
use headrace_client::producer::{
    self, AppendError, Appended, Appender, BatchAck, BatchId, Grant, Place, ProducerCommand, ProducerEngine,
    ProducerEvent, RecordRef,
};
use headrace_pool::PoolError;
use headrace_wire::time::Now;

use crate::plan::{ProducerPlan, Step};
use crate::server::TOPIC;

/// What a flush or an append may take beyond its limit: the lateness of threads and timers, several times over.
const SLACK_MS: u64 = 1000;
/// Producer and number of a record, at the start of its value.
const NAME_BYTES: usize = 8;
/// Of so many records, all but one are parked while their topic is unknown; the caller of the one waits.
const PARKED_IN: usize = 4;

/// What became of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// Confirmed: partition, and offset, -1 when nobody told.
    Acked(i32, i64),
    /// Taken, then failed.
    Failed(String),
    /// Not taken.
    Refused(String),
}

#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) partition: Option<i32>,
    pub(crate) must_arrive: bool,
    pub(crate) placed: Option<(BatchId, u32)>,
    pub(crate) end: Option<End>,
    /// Since when it waits for its topic.
    parked_ms: Option<u64>,
    with_key: bool,
    bytes: usize,
}

/// What a parked record's sender was told.
type Told = (usize, Result<Appended, Error>);

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
    Memory { place: Place, bell: Arc<Bell>, looked: bool },
    Metadata { seen: u64 },
    Operation { op: u64 },
    Done,
}

struct Caller {
    steps: VecDeque<Step>,
    state: State,
    /// The record that is to be appended, and the end of all waiting for it.
    record: Option<usize>,
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
    /// The engine's thread is to run.
    pub(crate) turn_scheduled: bool,
    /// The timer that is set.
    pub(crate) armed: Option<u64>,
    pub(crate) conns: BTreeMap<ConnId, u64>,
    pub(crate) records: Vec<Record>,
    /// It was closed, and said so.
    pub(crate) closed: bool,
    number: u32,
    appender: Appender,
    commands: Arc<Mutex<VecDeque<ProducerCommand>>>,
    woken: Arc<Mutex<Vec<usize>>>,
    callers: Vec<Caller>,
    batches: BTreeMap<BatchId, Vec<usize>>,
    /// What was told of parked records and not looked at.
    told: Arc<Mutex<Vec<Told>>>,
    /// The last batch of each partition that has ended.
    last_ended: BTreeMap<i32, BatchId>,
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
            record: None,
            deadline: None,
            grant: None,
        });
        Ok(Self {
            engine,
            turn_scheduled: false,
            armed: None,
            conns: BTreeMap::new(),
            records: Vec::new(),
            closed: false,
            number,
            appender: Appender::new(accumulator, wake),
            commands,
            woken: Arc::new(Mutex::new(Vec::new())),
            callers: callers.collect(),
            batches: BTreeMap::new(),
            told: Arc::new(Mutex::new(Vec::new())),
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
                    self.refuse(number, now, "no metadata in time".to_owned())?;
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
                        Poll::Ready(Err(why)) => self.refuse(number, now, why.to_string())?,
                    }
                }
                State::Ready | State::Sleeping { .. } | State::Operation { .. } | State::Metadata { .. } => {}
            }
            self.callers[number].state = State::Ready;
            if self.callers[number].record.is_some() {
                self.append(number, now)?;
            } else if let Some(step) = self.callers[number].steps.pop_front() {
                self.begin(number, step, now);
            } else {
                self.callers[number].state = State::Done;
            }
        }
    }

    fn begin(&mut self, number: usize, step: Step, now: Now) {
        match step {
            Step::Sleep { ms } => self.callers[number].state = State::Sleeping { until: now.mono_ms + ms },
            Step::Until { ms } => self.callers[number].state = State::Sleeping { until: ms },
            Step::Send { partition, with_key, bytes, must_arrive } => {
                self.callers[number].record = Some(self.records.len());
                let (placed, end, parked_ms) = (None, None, None);
                self.records.push(Record { partition, must_arrive, placed, end, parked_ms, with_key, bytes });
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

    fn append(&mut self, number: usize, now: Now) -> Result<(), String> {
        let caller = &mut self.callers[number];
        let Some(at) = caller.record else { return Ok(()) };
        let record = &self.records[at];
        let mut value = vec![b'.'; NAME_BYTES + record.bytes];
        value[..4].copy_from_slice(&self.number.to_be_bytes());
        value[4..NAME_BYTES].copy_from_slice(&u32::try_from(at).unwrap_or(u32::MAX).to_be_bytes());
        let asked = RecordRef {
            topic: TOPIC,
            partition: record.partition,
            key: record.with_key.then(|| &value[4..NAME_BYTES]),
            value: Some(&value),
            ..RecordRef::default()
        };
        let seen = self.decided;
        let (mut placed, parked) = (None, Cell::new(false));
        let told = || -> producer::Told {
            parked.set(true);
            let told = self.told.clone();
            Box::new(move |outcome| held(&told).push((at, outcome)))
        };
        let grant = caller.grant.take();
        let put = |batch, index| placed = Some(Appended { batch, index });
        let result = if at % PARKED_IN == 0 {
            self.appender.append_record(now, &asked, grant, put).map(drop)
        } else {
            self.appender.append_or_park(now, &asked, grant, put, told)
        };
        let until = *caller.deadline.get_or_insert(now.mono_ms + self.plan.max_block_ms);
        let times = usize::from(placed.is_some()) + usize::from(parked.get());
        if times != usize::from(result.is_ok()) {
            return Err(format!("record {at} was placed {placed:?}, parked {parked:?} and told {result:?}"));
        }
        match result {
            Ok(()) => {
                (caller.record, caller.deadline) = (None, None);
                // Those that were parked before it stand before it.
                self.hear(now)?;
                match placed {
                    Some(appended) => self.placed(at, appended)?,
                    None => self.records[at].parked_ms = Some(now.mono_ms),
                }
            }
            Err(AppendError::Full(place)) => {
                let (rung, woken) = (AtomicBool::new(false), self.woken.clone());
                let bell = Arc::new(Bell { caller: number, rung, woken });
                caller.state = State::Memory { place, bell, looked: false };
            }
            Err(AppendError::NeedMetadata { .. }) if until > now.mono_ms => {
                caller.state = State::Metadata { seen };
            }
            Err(other) => self.refuse(number, now, other.into_error(self.plan.max_block_ms).to_string())?,
        }
        Ok(())
    }

    fn placed(&mut self, at: usize, appended: Appended) -> Result<(), String> {
        let members = self.batches.entry(appended.batch).or_default();
        if members.len() != appended.index as usize {
            return Err(format!("record {at} has place {appended:?} after {} others", members.len()));
        }
        members.push(at);
        self.records[at].placed = Some((appended.batch, appended.index));
        Ok(())
    }

    /// Takes in what was told of parked records.
    pub(crate) fn hear(&mut self, now: Now) -> Result<(), String> {
        let told = std::mem::take(&mut *held(&self.told));
        for (at, outcome) in told {
            let record = &mut self.records[at];
            let late = now.mono_ms.saturating_sub(record.parked_ms.unwrap_or(u64::MAX));
            if record.placed.is_some() || record.end.is_some() || late > self.plan.max_block_ms + SLACK_MS {
                return Err(format!("record {at} was parked for {late} ms and told {outcome:?}: {record:?}"));
            }
            match outcome {
                Ok(appended) => self.placed(at, appended)?,
                Err(why) => record.end = Some(End::Failed(why.to_string())),
            }
        }
        Ok(())
    }

    /// The caller's record is not taken.
    fn refuse(&mut self, number: usize, now: Now, why: String) -> Result<(), String> {
        let caller = &mut self.callers[number];
        let (record, deadline) = (caller.record.take(), caller.deadline.take());
        caller.grant = None;
        let late = now.mono_ms.saturating_sub(deadline.unwrap_or(u64::MAX));
        if late > SLACK_MS {
            return Err(format!("an append took {late} ms longer than max.block.ms"));
        }
        if let Some(at) = record {
            self.records[at].end = Some(End::Refused(why));
        }
        Ok(())
    }

    // ---- what the engine tells

    /// Takes an event in; the callers that it concerns.
    pub(crate) fn on_event(&mut self, now: Now, event: ProducerEvent) -> Result<Vec<usize>, String> {
        match event {
            ProducerEvent::BatchDone { batch, records, result } => {
                self.batch_done(batch, records, &result)?;
                Ok(Vec::new())
            }
            ProducerEvent::BatchSplit { batch, kept, rest } => {
                self.batch_split(batch, kept, rest)?;
                Ok(Vec::new())
            }
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
                    if record.partition.is_some_and(|partition| partition != ack.partition) {
                        return Err(format!(
                            "record {at} went to partition {} instead of its own",
                            ack.partition
                        ));
                    }
                    End::Acked(ack.partition, offset)
                }
                Err(why) => End::Failed(why.to_string()),
            };
            let partition = record.partition.or(match end {
                End::Acked(partition, _) => Some(partition),
                _ => None,
            });
            if let Some(before) = record.end.replace(end) {
                return Err(format!("record {at} was answered twice, first with {before:?}"));
            }
            if let Some(before) = partition.and_then(|partition| self.last_ended.insert(partition, batch))
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
