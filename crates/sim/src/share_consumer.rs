//! A share consumer with its caller: one thread that polls, works, says what became of each record, commits, and at last
//! closes.

use std::collections::{BTreeMap, VecDeque};

use arrow_array::{Array, BinaryArray, Int16Array, Int64Array};
use headrace_client::error::Error;
use headrace_client::options::ShareConfig;
use headrace_client::partition::TopicPartition;
use headrace_client::share::{
    Ack, Mark, ShareCommand, ShareEngine, ShareEvent, ShareOutcome, ShareRows, SharedAcquiredBuffer, lock,
};
use headrace_wire::errors::ErrorCode;
use headrace_wire::time::Now;

use crate::client::Wires;
use crate::plan::{Place, ShareConsumerPlan, TOPICS};
use crate::producer::name_of;
use crate::rng::Rng;

/// What a close may take: one of these.
const CLOSE_MS: &[u64] = &[100, 1000, 5000];
const COMMIT_MS: u64 = 2000;
/// What a close may take beyond its limit: the lateness of threads and timers, several times over.
const SLACK_MS: u64 = 1000;
/// How long a caller rests after an error, at most.
const RETRY_MS_MAX: u64 = 30;
/// How long a steady caller waits with a poll.
const STEADY_POLL_MS: u64 = 3000;

/// A record that a caller was given: producer and number are what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) place: Place,
    pub(crate) offset: i64,
    pub(crate) count: i16,
    pub(crate) name: (usize, usize),
}

/// What a caller was told, to be held against what brokers have.
#[derive(Debug)]
pub(crate) enum Claim {
    Given(Given),
    /// The caller wants it accepted, by a mark or by the next poll.
    Wanted(Place, i64),
    /// A commit says that these were accepted.
    Accepted(Place, Vec<i64>),
}

#[derive(Debug)]
enum Asked {
    Nothing,
    /// Offsets that it accepts.
    Commit(BTreeMap<Place, Vec<i64>>),
    Close {
        since_ms: u64,
        limit_ms: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Resting {
        until: u64,
    },
    Waiting {
        until: u64,
    },
    Working {
        until: u64,
    },
    /// Until this operation has ended.
    Calling {
        op: u64,
    },
    Closing,
    Closed,
}

#[expect(clippy::struct_excessive_bools, reason = "independent facts, each read by itself")]
pub(crate) struct SimShareConsumer {
    pub(crate) plan: ShareConsumerPlan,
    /// Its place in the plan.
    pub(crate) slot: usize,
    pub(crate) engine: ShareEngine,
    pub(crate) wires: Wires,
    /// It is gone at one blow.
    pub(crate) gone: bool,
    buffer: SharedAcquiredBuffer,
    rng: Rng,
    commands: VecDeque<ShareCommand>,
    state: State,
    closing: bool,
    steady: bool,
    subscribed: bool,
    topics: usize,
    /// Peers may have lied to it.
    lied_to: bool,
    /// What is with the caller, and not marked for good.
    rows: Vec<Given>,
    /// What was marked as accepted, and not sent.
    marked: BTreeMap<Place, Vec<i64>>,
    ops: BTreeMap<u64, Asked>,
    last_op: u64,
    /// When a connection last ended while it did not know how long locks last: it reckons with the longest there is.
    unsure_ms: Option<u64>,
    claims: Vec<Claim>,
}

fn named(place: Place) -> TopicPartition {
    TopicPartition::new(TOPICS[place.topic], place.partition)
}

fn place_of(partition: &TopicPartition) -> Result<Place, String> {
    let topic = TOPICS.iter().position(|known| **known == *partition.topic);
    let topic = topic.ok_or_else(|| format!("it was given {partition}, of no topic of ours"))?;
    Ok(Place { topic, partition: partition.partition })
}

impl SimShareConsumer {
    pub(crate) fn new(
        (slot, topics, lied_to): (usize, usize, bool),
        plan: ShareConsumerPlan,
        seed: u64,
    ) -> Result<Self, String> {
        let options = plan.options.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        let config = ShareConfig::from_pairs(options).map_err(|why| why.to_string())?;
        let engine = ShareEngine::new(&config, seed);
        Ok(Self {
            plan,
            slot,
            wires: Wires::default(),
            gone: false,
            buffer: engine.buffer(),
            engine,
            rng: Rng::new(seed),
            commands: VecDeque::new(),
            state: State::Resting { until: 0 },
            closing: false,
            steady: false,
            subscribed: false,
            topics,
            lied_to,
            rows: Vec::new(),
            marked: BTreeMap::new(),
            ops: BTreeMap::new(),
            last_op: 0,
            unsure_ms: None,
            claims: Vec::new(),
        })
    }

    pub(crate) fn take_commands(&mut self) -> VecDeque<ShareCommand> {
        std::mem::take(&mut self.commands)
    }

    pub(crate) fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    pub(crate) fn take_claims(&mut self) -> Vec<Claim> {
        std::mem::take(&mut self.claims)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Whether it goes on for as long as nobody ends it.
    pub(crate) fn stays(&self) -> bool {
        !self.gone && !self.closing && !self.is_closed()
    }

    /// Closes as soon as what it works on is done.
    pub(crate) fn close(&mut self) {
        self.closing = true;
    }

    /// Takes and accepts all that it can have from now on, without a pause.
    pub(crate) fn be_steady(&mut self) {
        self.steady = true;
        if let State::Working { until } | State::Resting { until } = &mut self.state {
            *until = 0;
        }
    }

    /// A connection of it has ended, and what was asked on it may be lost.
    pub(crate) fn note_loss(&mut self, now: Now) {
        if lock(&self.buffer).lock_timeout_ms().is_none() {
            self.unsure_ms = Some(now.mono_ms);
        }
    }

    /// When it last lost anything without knowing how long that is locked.
    pub(crate) fn unsure_ms(&self) -> Option<u64> {
        self.unsure_ms
    }

    pub(crate) fn decisions(&self) -> Vec<String> {
        lock(&self.buffer).decisions(0).1
    }

    fn op(&mut self, asked: Asked) -> u64 {
        self.last_op += 1;
        self.ops.insert(self.last_op, asked);
        self.last_op
    }

    // ---- what the engine tells

    /// True when the caller is to look again.
    pub(crate) fn on_event(&mut self, now: Now, event: ShareEvent) -> Result<bool, String> {
        let ShareEvent::Done { op, result } = event else { return Ok(matches!(event, ShareEvent::Ready)) };
        let asked = self.ops.remove(&op).ok_or_else(|| format!("operation {op} ended that was not begun"))?;
        match (asked, result) {
            (Asked::Close { since_ms, limit_ms }, result) => {
                let took = now.mono_ms - since_ms;
                if took > limit_ms + SLACK_MS {
                    return Err(format!("close took {took} ms where {limit_ms} are the limit"));
                }
                result.map_err(|why| format!("close failed: {why}"))?;
                self.state = State::Closed;
            }
            (Asked::Commit(accepted), Ok(ShareOutcome::Committed(results))) => {
                for (partition, error) in results {
                    let place = place_of(&partition)?;
                    if error.is_none()
                        && let Some(offsets) = accepted.get(&place)
                    {
                        self.claims.push(Claim::Accepted(place, offsets.clone()));
                    }
                }
            }
            (_, Err(why)) if !matches!(why, Error::Closed) => {
                return Err(format!("an operation failed: {why}"));
            }
            _ => {}
        }
        Ok(true)
    }

    // ---- what the caller does

    /// Lets the caller do what it can do now. When it wants to be called again, unless it is rung before.
    pub(crate) fn step(&mut self, now: Now) -> Result<Option<u64>, String> {
        let now_ms = now.mono_ms;
        loop {
            match self.state {
                State::Closing | State::Closed => return Ok(None),
                State::Calling { op } if self.ops.contains_key(&op) => return Ok(None),
                State::Resting { until } | State::Working { until } if until > now_ms => {
                    return Ok(Some(until));
                }
                State::Waiting { until } => {
                    let any = lock(&self.buffer).has_any();
                    if !any && until > now_ms && !self.closing {
                        return Ok(Some(until));
                    }
                    lock(&self.buffer).wait(now_ms, false, any);
                    self.take(now_ms)?;
                }
                State::Working { .. } => self.after_work(now_ms)?,
                State::Calling { .. } if !self.rows.is_empty() && self.plan.explicit => {
                    self.state = State::Working { until: now_ms + self.work_ms() };
                }
                _ if self.closing => {
                    self.state = State::Closing;
                    let limit_ms = self.rng.pick(CLOSE_MS);
                    let op = self.op(Asked::Close { since_ms: now_ms, limit_ms });
                    let (finished, timeout_ms) = (true, limit_ms);
                    self.commands.push_back(ShareCommand::Close { op, finished, timeout_ms });
                    return Ok(None);
                }
                _ if !self.subscribed => self.subscribe(true),
                _ if !self.steady && self.rng.chance(self.plan.habits.unsubscribe) => self.subscribe(false),
                _ => self.poll(now_ms)?,
            }
        }
    }

    fn subscribe(&mut self, subscribed: bool) {
        self.subscribed = subscribed;
        let count = if subscribed { self.topics } else { 0 };
        let topics = TOPICS[..count].iter().map(|topic| (*topic).to_owned()).collect();
        let op = self.op(Asked::Nothing);
        self.state = State::Calling { op };
        self.commands.push_back(ShareCommand::Subscribe { op, topics });
    }

    fn wake_if(&mut self, wakes: bool) {
        if wakes {
            self.commands.push_back(ShareCommand::Wake);
        }
    }

    fn poll(&mut self, now_ms: u64) -> Result<(), String> {
        self.rows.clear();
        self.marked.clear();
        let begun = lock(&self.buffer).begin_poll(now_ms).map_err(|why| format!("a poll says: {why}"))?;
        self.wake_if(begun);
        if lock(&self.buffer).has_any() {
            return self.take(now_ms);
        }
        let poll_ms = if self.steady { STEADY_POLL_MS } else { self.plan.habits.poll_ms };
        if poll_ms == 0 {
            let looked = lock(&self.buffer).looked(now_ms);
            self.wake_if(looked);
            self.state = State::Resting { until: now_ms + 1 + self.rng.between(0, RETRY_MS_MAX) };
            return Ok(());
        }
        let waits = lock(&self.buffer).wait(now_ms, true, false);
        self.wake_if(waits);
        self.state = State::Waiting { until: now_ms + poll_ms };
        Ok(())
    }

    fn work_ms(&mut self) -> u64 {
        let habits = &self.plan.habits;
        if self.steady {
            0
        } else if self.rng.chance(habits.slow) {
            habits.slow_ms
        } else {
            self.rng.between(0, habits.work_ms_max)
        }
    }

    fn take(&mut self, now_ms: u64) -> Result<(), String> {
        let mut partitions: Vec<TopicPartition> = Vec::new();
        while partitions.is_empty() || self.plan.habits.takes_more {
            let max = self.plan.habits.rows_max;
            let taken = if partitions.is_empty() {
                lock(&self.buffer).take(now_ms, max)
            } else {
                lock(&self.buffer).take_ready(now_ms, max).map(Ok)
            };
            match taken {
                None => break,
                Some(Err(why)) if may_pass(&why) || self.lied_to => {
                    let until = now_ms + self.rng.between(1, RETRY_MS_MAX);
                    self.state = State::Resting { until };
                    return Ok(());
                }
                Some(Err(why)) => return Err(format!("a poll says: {why}")),
                Some(Ok(rows)) => {
                    self.wake_if(rows.wake);
                    self.take_in(&rows)?;
                    partitions.push(rows.partition);
                }
            }
        }
        self.state = if partitions.is_empty() {
            State::Resting { until: now_ms }
        } else {
            State::Working { until: now_ms + self.work_ms() }
        };
        Ok(())
    }

    fn take_in(&mut self, rows: &ShareRows) -> Result<(), String> {
        let place = place_of(&rows.partition)?;
        let batch = rows.chunk.slice(rows.start, rows.len);
        let offsets = batch.column_by_name("offset").and_then(|c| c.as_any().downcast_ref::<Int64Array>());
        let counts =
            batch.column_by_name("delivery_count").and_then(|c| c.as_any().downcast_ref::<Int16Array>());
        let values = batch.column_by_name("value").and_then(|c| c.as_any().downcast_ref::<BinaryArray>());
        let (Some(offsets), Some(counts), Some(values)) = (offsets, counts, values) else {
            return Err("a batch lacks a column".to_owned());
        };
        for (at, value) in values.iter().enumerate() {
            let (offset, count) = (offsets.value(at), counts.value(at));
            let name = value.and_then(name_of);
            let name = name.ok_or_else(|| format!("{place:?}, offset {offset}: a value that nobody sent"))?;
            let given = Given { place, offset, count, name };
            self.rows.push(given);
            self.claims.push(Claim::Given(given));
            if !self.plan.explicit {
                self.claims.push(Claim::Wanted(place, offset));
            }
        }
        Ok(())
    }

    /// Says what became of what it was given, and commits that now and then.
    fn after_work(&mut self, now_ms: u64) -> Result<(), String> {
        let habits = self.plan.habits.clone();
        let whims = !self.steady && !self.closing;
        let renews = self.plan.explicit && whims && self.rng.chance(habits.renew);
        if self.plan.explicit {
            self.mark(renews)?;
        }
        if !renews && !self.rng.chance(habits.commit) {
            let gap_ms = if self.steady { 0 } else { habits.gap_ms_max };
            self.state = State::Resting { until: now_ms + self.rng.between(0, gap_ms) };
            return Ok(());
        }
        if !self.plan.explicit {
            for row in std::mem::take(&mut self.rows) {
                self.marked.entry(row.place).or_default().push(row.offset);
            }
        }
        let accepted = std::mem::take(&mut self.marked);
        let op = self.op(Asked::Commit(accepted));
        lock(&self.buffer).commit(now_ms, op, COMMIT_MS);
        self.wake_if(true);
        self.state = State::Calling { op };
        Ok(())
    }

    /// Marks all that it has. It keeps what is renewed.
    fn mark(&mut self, renews: bool) -> Result<(), String> {
        let habits = &self.plan.habits;
        let mut marks = Vec::new();
        for row in std::mem::take(&mut self.rows) {
            let drawn = if self.steady { 100 } else { self.rng.between(0, 99) };
            let ack = match drawn {
                _ if renews => Ack::Renew,
                drawn if drawn < habits.release => Ack::Release,
                drawn if drawn < habits.release + habits.reject => Ack::Reject,
                _ => Ack::Accept,
            };
            marks.push((row, ack));
        }
        for (row, ack) in marks {
            let mark = Mark { first: row.offset, last: row.offset, delivery_count: row.count, ack };
            // For some it may be too late.
            match lock(&self.buffer).acknowledge(&[(named(row.place), vec![mark])]) {
                Ok(()) if renews => self.rows.push(row),
                Ok(()) if ack == Ack::Accept => {
                    self.claims.push(Claim::Wanted(row.place, row.offset));
                    self.marked.entry(row.place).or_default().push(row.offset);
                }
                Ok(()) => {}
                Err(why) if why.code() == Some(ErrorCode::INVALID_RECORD_STATE) => {}
                Err(why) => return Err(format!("a row cannot be marked: {why}")),
            }
        }
        Ok(())
    }
}

/// Whether an error is no more than faults explain.
fn may_pass(error: &Error) -> bool {
    error.retriable() || matches!(error, Error::Closed)
}
