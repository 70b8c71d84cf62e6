//! What a consumer's caller does: one thread that polls, works, pauses, seeks, commits, and at last closes.

use std::collections::BTreeSet;

use headrace_client::consumer::{
    Assignment, CommitOffset, ConsumerCommand, FetchCache, StartAt, Taken, TopicPartition, lock,
};
use headrace_client::error::Error;
use headrace_wire::errors::ErrorCode;
use headrace_wire::time::Now;

use super::{Asked, Consumer, Done, Ledger, Part, State, may_pass, named};
use crate::plan::Place;

/// How long a caller rests after an error, and how long decoding takes, at most.
const RETRY_MS_MAX: u64 = 30;
const DECODE_MS_MAX: u64 = 3;
/// A poll that waits begins anew so often, so that nobody takes its caller for dead.
const SLICE_MS: u64 = 250;
const CLOSE_MS: u64 = 5000;
pub(super) const COMMIT_MS: u64 = 2000;

impl Consumer {
    /// The first command.
    pub(super) fn begin(&mut self) {
        let op = self.op(Asked::Nothing);
        self.state = State::Calling { op };
        if self.plan.in_group {
            self.subscribed = true;
            if self.plan.habits.listens && !self.listener.is_set {
                self.listener.is_set = true;
                self.commands.push_back(ConsumerCommand::Listen(true));
            }
            let topics = self.topics.iter().map(|topic| crate::plan::TOPICS[*topic].to_owned());
            self.commands.push_back(ConsumerCommand::Subscribe { op, topics: topics.collect() });
            return;
        }
        let start = Some(StartAt::Earliest);
        let assignment = |place: &Place| Assignment { partition: named(*place), start, stop: None };
        let partitions = self.plan.places.iter().map(assignment).collect();
        for place in &self.plan.places {
            self.parts.insert(*place, Part::at(Some(0)));
        }
        self.commands.push_back(ConsumerCommand::Assign { op, partitions });
    }

    /// Lets the caller do what it can do now. When it wants to be called again, unless it is rung before.
    pub(crate) fn step(&mut self, now: Now, ledger: &mut Ledger) -> Result<Option<u64>, String> {
        let now_ms = now.mono_ms;
        loop {
            let rung = std::mem::take(&mut self.rung);
            match &self.state {
                State::Closing | State::Closed => return Ok(None),
                State::Resting { until } | State::Decoding { until, .. } | State::Working { until, .. }
                    if *until > now_ms =>
                {
                    return Ok(Some(*until));
                }
                State::Waiting { slice, .. } if *slice > now_ms && !rung && !self.closing => {
                    return Ok(Some(*slice));
                }
                State::Calling { op } if self.ops.contains_key(op) => return Ok(None),
                State::Telling(telling) if telling.op.is_some_and(|op| self.ops.contains_key(&op)) => {
                    return Ok(None);
                }
                State::Telling(telling) if telling.until > now_ms => return Ok(Some(telling.until)),
                _ => {}
            }
            match std::mem::replace(&mut self.state, State::Resting { until: now_ms }) {
                State::Waiting { until, .. } if until > now_ms && !self.closing => {
                    self.poll(now, until, ledger)?;
                }
                State::Decoding { job, .. } => {
                    let decoded = job.run();
                    if lock(&self.cache).put_back(decoded) {
                        self.commands.push_back(ConsumerCommand::Wake);
                    }
                    self.take(now, now_ms, ledger)?;
                }
                State::Telling(telling) => self.reported(*telling),
                State::Working { done, .. } => {
                    self.processed(&done, ledger);
                    let gap_ms = if self.steady { 0 } else { self.plan.habits.gap_ms_max };
                    self.state = State::Resting { until: now_ms + self.rng.between(0, gap_ms) };
                    self.after_work(&done);
                }
                _ if self.closing => {
                    self.state = State::Closing;
                    let limit_ms = CLOSE_MS;
                    let op = self.op(Asked::Close { since_ms: now_ms, limit_ms });
                    self.commands.push_back(ConsumerCommand::Close {
                        op,
                        finished: true,
                        timeout_ms: limit_ms,
                    });
                    return Ok(None);
                }
                _ => {
                    self.whims(ledger)?;
                    if !matches!(self.state, State::Calling { .. }) {
                        let until = now_ms + self.plan.habits.poll_ms;
                        self.poll(now, until, ledger)?;
                    }
                }
            }
            self.note_held();
        }
    }

    fn poll(&mut self, now: Now, until: u64, ledger: &mut Ledger) -> Result<(), String> {
        if lock(&self.cache).begin_poll(now.mono_ms) {
            self.commands.push_back(ConsumerCommand::Wake);
        }
        if self.begin_telling(now, until, ledger) { Ok(()) } else { self.take(now, until, ledger) }
    }

    /// Takes what is there. `until`: how long it waits if there is nothing.
    fn take(&mut self, now: Now, until: u64, ledger: &mut Ledger) -> Result<(), String> {
        let max = self.plan.habits.rows_max;
        let mut done: Vec<Done> = Vec::new();
        loop {
            let taken = if done.is_empty() {
                lock(&self.cache).take(max)
            } else if self.plan.habits.takes_more {
                let is_new = |partition: &_| done.iter().all(|rows| named(rows.place) != *partition);
                lock(&self.cache).take_more(max, is_new)
            } else {
                None
            };
            if matches!(taken, Some(Taken::Failed(_))) {
                self.commands.push_back(ConsumerCommand::Wake);
            }
            match taken {
                Some(Taken::Rows(rows)) => {
                    if rows.wake {
                        self.commands.push_back(ConsumerCommand::Wake);
                    }
                    done.push(self.take_in(&rows, ledger)?);
                }
                // With rows in hand the time that decoding takes is part of the work.
                Some(Taken::Decode(job)) if !done.is_empty() => {
                    if lock(&self.cache).put_back(job.run()) {
                        self.commands.push_back(ConsumerCommand::Wake);
                    }
                }
                Some(Taken::Decode(job)) => {
                    let until = now.mono_ms + self.rng.between(0, DECODE_MS_MAX);
                    self.state = State::Decoding { until, job: Box::new(job) };
                    return Ok(());
                }
                Some(Taken::Failed(why)) if self.plan.resets_itself && !why.retriable() => {
                    self.deal_with(&why, ledger)?;
                }
                Some(Taken::Failed(why)) if may_pass(&why) => {
                    let until = now.mono_ms + self.rng.between(1, RETRY_MS_MAX);
                    self.state = State::Resting { until };
                    return Ok(());
                }
                Some(Taken::Failed(why)) => return Err(format!("a poll says: {why}")),
                None => break,
            }
        }
        self.state = if done.is_empty() {
            let until = until.max(now.mono_ms + 1);
            State::Waiting { until, slice: until.min(now.mono_ms + SLICE_MS) }
        } else {
            State::Working { until: now.mono_ms + self.work_ms(), done }
        };
        Ok(())
    }

    /// An error about where a log is to be read on, which is the caller's affair.
    fn deal_with(&mut self, why: &Error, ledger: &mut Ledger) -> Result<(), String> {
        let place = why.place();
        let partition = place.topic.zip(place.partition);
        let partition = partition.map(|(topic, partition)| TopicPartition::new(&*topic, partition));
        match (why, partition) {
            (Error::Truncated { offset, end, .. }, Some(partition)) => {
                self.truncated(&partition, (*offset, *end), ledger)
            }
            (_, Some(partition)) if why.code() == Some(ErrorCode::OFFSET_OUT_OF_RANGE) => {
                self.out_of_range(&partition, ledger)
            }
            _ => Err(format!("a poll says: {why}")),
        }
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

    /// Commits, now and then, what it has just done, or all that it was given.
    fn after_work(&mut self, done: &[Done]) {
        if !self.plan.in_group || !self.rng.chance(self.plan.habits.commit) {
            return;
        }
        let commit = |rows: &Done| CommitOffset {
            partition: named(rows.place),
            offset: rows.next,
            leader_epoch: rows.epoch,
            metadata: String::new(),
        };
        let offsets: Option<Vec<_>> = self.rng.chance(50).then(|| done.iter().map(commit).collect());
        let op = self.op(Asked::Nothing);
        if self.rng.chance(50) {
            self.state = State::Calling { op };
        }
        let timeout_ms = COMMIT_MS;
        self.commands.push_back(if let Some(offsets) = offsets {
            ConsumerCommand::Commit { op, offsets, timeout_ms }
        } else {
            let positions = lock(&self.cache).positions();
            ConsumerCommand::CommitPositions { op, positions, timeout_ms }
        });
    }

    /// Pauses, resumes, seeks, leaves and comes back.
    fn whims(&mut self, ledger: &mut Ledger) -> Result<(), String> {
        let habits = self.plan.habits.clone();
        if self.plan.in_group && !self.subscribed {
            self.begin();
            return Ok(());
        }
        if !self.steady && self.plan.in_group && self.rng.chance(habits.unsubscribe) {
            self.subscribed = false;
            let op = self.op(Asked::Unsubscribe);
            self.state = State::Calling { op };
            self.commands.push_back(ConsumerCommand::Unsubscribe { op });
            return Ok(());
        }
        if self.plan.in_group && self.resubscribes(ledger) {
            self.begin();
            return Ok(());
        }
        for place in self.parts.keys().copied().collect::<Vec<_>>() {
            let paused = self.parts.get(&place).is_some_and(|part| part.paused);
            if paused && (self.steady || self.rng.chance(habits.resume)) {
                self.set_paused(place, false)?;
            } else if !paused && !self.steady && self.rng.chance(habits.pause) {
                self.set_paused(place, true)?;
            }
            if !self.steady && self.rng.chance(habits.seek) {
                self.seek(place, ledger)?;
            }
        }
        if self.plan.in_group && !self.steady && self.rng.chance(habits.commit / 4) {
            let partitions = self.parts.keys().map(|place| named(*place)).collect();
            let op = self.op(Asked::Committed);
            self.commands.push_back(ConsumerCommand::Committed { op, partitions, timeout_ms: COMMIT_MS });
        }
        Ok(())
    }

    fn change(&mut self, change: impl FnOnce(&mut FetchCache) -> Result<bool, Error>) -> Result<(), String> {
        if change(&mut lock(&self.cache)).map_err(|why| why.to_string())? {
            self.commands.push_back(ConsumerCommand::Wake);
        }
        Ok(())
    }

    fn set_paused(&mut self, place: Place, paused: bool) -> Result<(), String> {
        self.change(|cache| cache.set_paused(&[named(place)], paused))?;
        let held = lock(&self.cache).held_to(&named(place));
        if let Some(part) = self.parts.get_mut(&place) {
            part.paused = paused;
            if paused {
                part.paused_at = held.unwrap_or(0);
            }
        }
        Ok(())
    }

    /// Goes back, to where the group stands, or to the start: nothing is left out.
    fn seek(&mut self, place: Place, ledger: &mut Ledger) -> Result<(), String> {
        let Some(next) = self.parts.get(&place).and_then(|part| part.next) else { return Ok(()) };
        let back = i64::try_from(self.rng.index(usize::try_from(next).unwrap_or(0) + 1)).unwrap_or(0);
        let (to, next) = match self.rng.between(0, 3) {
            0 => (StartAt::Earliest, Some(0)),
            1 if self.plan.in_group => (StartAt::Committed, None),
            // By an offset alone nobody finds out that the log was cut before it: a group would leave records out.
            _ if self.plan.in_group && self.plan.logs_are_cut => (StartAt::Offset(0), Some(0)),
            _ => (StartAt::Offset(back), Some(back)),
        };
        ledger.tally.seeks += 1;
        self.go_to(place, to, next)
    }

    pub(super) fn go_to(&mut self, place: Place, to: StartAt, next: Option<i64>) -> Result<(), String> {
        self.change(|cache| cache.seek(&[(named(place), to)]).map(|()| true))?;
        if let Some(part) = self.parts.get_mut(&place) {
            *part = Part { paused: part.paused, ..Part::at(next) };
        }
        Ok(())
    }

    /// Now and then it wants other topics; in the end all.
    fn resubscribes(&mut self, ledger: &mut Ledger) -> bool {
        let all: BTreeSet<usize> = self.plan.topics.iter().copied().collect();
        let topics = if self.steady {
            all
        } else if self.rng.chance(self.plan.habits.resubscribe) {
            let some: BTreeSet<usize> = all.into_iter().filter(|_| self.rng.chance(60)).collect();
            if some.is_empty() { self.topics.clone() } else { some }
        } else {
            return false;
        };
        let changes = topics != self.topics;
        ledger.tally.resubscribed += usize::from(changes);
        self.topics = topics;
        changes
    }
}
