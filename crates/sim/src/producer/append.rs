//! Callers that append: single records, and the rows of Arrow batches.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow_array::{ArrayRef, BinaryArray, Int32Array, RecordBatch, StringArray};
use headrace_client::producer::{AppendError, Appended, OnAppended, RecordRef, RowSpan};
use headrace_columns::encode::Rows;
use headrace_wire::time::Now;

use super::{Bell, End, Producer, Record, SLACK_MS, State, held};
use crate::plan::{RowsPlan, TOPICS};
use crate::rng::Rng;

/// Producer and number of a record, at the start of its value.
const NAME_BYTES: usize = 8;

/// Of so many records, all but one are parked while their topic is unknown; the caller of the one waits.
const PARKED_IN: usize = 4;

/// What a caller has begun to append.
#[derive(Debug)]
pub(super) enum Job {
    /// The number of a record.
    Record(usize),
    /// Records from `first` on, as rows; those before `next` are appended.
    Rows { topic: Option<usize>, rows: Box<Rows>, first: usize, next: usize },
}

impl Job {
    /// The records that are not appended.
    fn left(&self) -> Range<usize> {
        match self {
            Self::Record(at) => *at..*at + 1,
            Self::Rows { rows, first, next, .. } => first + next..first + rows.len(),
        }
    }
}

impl Producer {
    fn value(&self, at: usize) -> Vec<u8> {
        let mut value = vec![b'.'; NAME_BYTES + self.records[at].bytes];
        value[..4].copy_from_slice(&self.number.to_be_bytes());
        value[4..NAME_BYTES].copy_from_slice(&u32::try_from(at).unwrap_or(u32::MAX).to_be_bytes());
        value
    }

    /// Makes the rows that a plan stands for.
    pub(super) fn draw_rows(&mut self, plan: &RowsPlan) -> Result<Job, String> {
        let (mut rng, first) = (Rng::new(plan.seed), self.records.len());
        for _ in 0..plan.rows {
            let place = plan.shape.place(&mut rng);
            let at = (plan.topic.unwrap_or(place.topic), rng.chance(plan.named).then_some(place.partition));
            let bytes = usize::try_from(rng.skewed(plan.bytes_max)).unwrap_or(0);
            self.records.push(Record::new(at, plan.must_arrive, rng.chance(plan.keyed), bytes));
        }
        let records = &self.records[first..];
        let values: Vec<Vec<u8>> = (first..self.records.len()).map(|at| self.value(at)).collect();
        let keys = values.iter().zip(records).map(|(v, record)| record.with_key.then(|| &v[4..NAME_BYTES]));
        let mut columns: Vec<(&str, ArrayRef, bool)> =
            vec![("value", Arc::new(BinaryArray::from_iter_values(&values)), true)];
        if plan.keyed > 0 {
            columns.push(("key", Arc::new(keys.collect::<BinaryArray>()), true));
        }
        if plan.named > 0 {
            let partitions: Int32Array = records.iter().map(|record| record.partition).collect();
            columns.push(("partition", Arc::new(partitions), true));
        }
        if plan.topic.is_none() {
            let topics = records.iter().map(|record| TOPICS[record.topic]);
            columns.push(("topic", Arc::new(StringArray::from_iter_values(topics)), true));
        }
        let batch = RecordBatch::try_from_iter_with_nullable(columns).map_err(|why| why.to_string())?;
        let rows = Box::new(Rows::new(&batch).map_err(|why| why.to_string())?);
        Ok(Job::Rows { topic: plan.topic, rows, first, next: 0 })
    }

    /// Appends as much as can be of what a caller has begun.
    pub(super) fn append(&mut self, number: usize, now: Now) -> Result<(), String> {
        let Some(mut job) = self.callers[number].job.take() else { return Ok(()) };
        let seen = self.decided;
        let (before, grant) = (job.left(), self.callers[number].grant.take());
        let mut spans = Vec::new();
        let parked = Cell::new(false);
        let result = match &mut job {
            Job::Record(at) => {
                let (value, record) = (self.value(*at), &self.records[*at]);
                let asked = RecordRef {
                    topic: TOPICS[record.topic],
                    partition: record.partition,
                    key: record.with_key.then(|| &value[4..NAME_BYTES]),
                    value: Some(&value),
                    ..RecordRef::default()
                };
                let placed = |batch, index| spans.push(RowSpan { batch, row: 0, index, count: 1 });
                let (at, ears) = (*at, self.reported.clone());
                let reported = || -> OnAppended {
                    parked.set(true);
                    Box::new(move |outcome| held(&ears).push((at, outcome)))
                };
                if at % PARKED_IN == 0 {
                    self.appender.append_record(now, &asked, grant, placed).map(|_| 1)
                } else {
                    let taken = self.appender.append_or_park(now, &asked, grant, placed, reported);
                    taken.map(|()| usize::from(!parked.get()))
                }
            }
            Job::Rows { topic, rows, next, .. } => {
                let placed = |reported: &[RowSpan]| {
                    spans.extend(reported.iter().map(|span| RowSpan { row: span.row - *next, ..*span }));
                };
                let topic = topic.map(|topic| TOPICS[topic]);
                self.appender.append_rows_traced(now, topic, rows, *next..rows.len(), grant, placed)
            }
        };
        // Those that were parked before it stand before it.
        self.hear(now)?;
        self.place(now, before.start, &spans)?;
        if parked.get() {
            self.records[before.start].parked_ms = Some(now.mono_ms);
        }
        let reported: usize = spans.iter().map(|span| span.count as usize).sum();
        if reported != *result.as_ref().unwrap_or(&0) {
            return Err(format!(
                "of records {before:?} {reported} were placed, and the call says {result:?}"
            ));
        }
        let until = self.callers[number].deadline.unwrap_or(now.mono_ms + self.plan.max_block_ms);
        let error = match result {
            Ok(taken) => {
                // What went in has ended the wait for it.
                self.callers[number].deadline = None;
                if let Job::Rows { next, .. } = &mut job {
                    *next += taken;
                    self.rows_taken += taken;
                    if !job.left().is_empty() {
                        self.callers[number].job = Some(job);
                    }
                }
                return Ok(());
            }
            Err(error) => error,
        };
        let caller = &mut self.callers[number];
        (caller.deadline, caller.job) = (Some(until), Some(job));
        match error {
            AppendError::Full(place) => {
                let (rung, woken) = (AtomicBool::new(false), self.woken.clone());
                let bell = Arc::new(Bell { caller: number, rung, woken });
                caller.state = State::Memory { place, bell, looked: false };
            }
            AppendError::NeedMetadata { .. } if until > now.mono_ms => {
                caller.state = State::Metadata { seen };
            }
            other => self.refuse(number, now, &other.into_error(self.plan.max_block_ms).to_string())?,
        }
        Ok(())
    }

    /// Notes where records from `from` on went, which must be behind all that their batches had.
    fn place(&mut self, now: Now, from: usize, spans: &[RowSpan]) -> Result<(), String> {
        for span in spans {
            for (at, index) in (from + span.row..).zip(span.index..span.index + span.count) {
                let members = self.batches.entry(span.batch).or_default();
                if members.len() != index as usize {
                    return Err(format!("record {at} has place {span:?} after {} others", members.len()));
                }
                members.push(at);
                let record = &mut self.records[at];
                record.taken_ms = now.mono_ms;
                if let Some(before) = record.placed.replace((span.batch, index)) {
                    return Err(format!("record {at} was placed twice, first at {before:?}"));
                }
            }
        }
        Ok(())
    }

    /// Takes in what was notified of parked records.
    pub(crate) fn hear(&mut self, now: Now) -> Result<(), String> {
        let reported = std::mem::take(&mut *held(&self.reported));
        for (at, outcome) in reported {
            let record = &mut self.records[at];
            let late = now.mono_ms.saturating_sub(record.parked_ms.unwrap_or(u64::MAX));
            if record.placed.is_some() || record.end.is_some() || late > self.plan.max_block_ms + SLACK_MS {
                return Err(format!("record {at} was parked for {late} ms and told {outcome:?}: {record:?}"));
            }
            match outcome {
                Ok(Appended { batch, index }) => {
                    self.place(now, at, &[RowSpan { batch, row: 0, index, count: 1 }])?;
                }
                Err(why) => {
                    record.end = Some(End::Failed(why.to_string()));
                    record.ended_ms = now.mono_ms;
                }
            }
        }
        Ok(())
    }

    /// What the caller still has is not taken.
    pub(super) fn refuse(&mut self, number: usize, now: Now, why: &str) -> Result<(), String> {
        let caller = &mut self.callers[number];
        let (job, deadline) = (caller.job.take(), caller.deadline.take());
        caller.grant = None;
        let late = now.mono_ms.saturating_sub(deadline.unwrap_or(u64::MAX));
        if late > SLACK_MS {
            return Err(format!("an append took {late} ms longer than max.block.ms"));
        }
        for at in job.map_or(0..0, |job| job.left()) {
            self.records[at].end = Some(End::Refused(why.to_owned()));
        }
        Ok(())
    }
}
