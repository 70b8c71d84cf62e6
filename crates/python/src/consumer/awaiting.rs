//! The consumer's calls that never wait, for asyncio. A `waiter` is completed (`set_result`, `set_exception`) on the
//! delivery thread.

use std::num::NonZeroUsize;
use std::sync::Arc;

use headrace_client::consumer::{Admission, Assignment, ConsumerCommand, ConsumerOutcome, PartId, StartAt};
use headrace_net::client::ConsumerClient;
use pyo3::prelude::*;

use super::{Taken, Tp, commit_of, commits, name, names, pair, rows_max};
use crate::chunks::Chunks;
use crate::telling;
use crate::wait::{detached, seconds};

/// A consumer's other face.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Awaiting {
    client: Arc<ConsumerClient>,
    chunks: Arc<Chunks>,
}

impl Awaiting {
    pub(super) fn new(client: Arc<ConsumerClient>, chunks: Arc<Chunks>) -> Self {
        Self { client, chunks }
    }
}

#[pymethods]
impl Awaiting {
    fn begin_subscribe(&self, py: Python<'_>, topics: Vec<String>, waiter: Py<PyAny>) -> PyResult<()> {
        self.begin(py, waiter, |op| ConsumerCommand::Subscribe { op, topics })
    }

    fn begin_subscribe_pattern(&self, py: Python<'_>, pattern: String, waiter: Py<PyAny>) -> PyResult<()> {
        self.begin(py, waiter, |op| ConsumerCommand::SubscribePattern { op, pattern })
    }

    /// An offset is where to begin; None is the group's, or as `auto.offset.reset` says.
    fn begin_assign(
        &self,
        py: Python<'_>,
        partitions: Vec<(Tp, Option<i64>)>,
        waiter: Py<PyAny>,
    ) -> PyResult<()> {
        let assignment = |(tp, offset): (Tp, Option<i64>)| Assignment {
            partition: name(tp),
            start: offset.map(StartAt::Offset),
            stop: None,
        };
        let partitions = partitions.into_iter().map(assignment).collect();
        self.begin(py, waiter, |op| ConsumerCommand::Assign { op, partitions })
    }

    fn begin_unsubscribe(&self, py: Python<'_>, waiter: Py<PyAny>) -> PyResult<()> {
        self.begin(py, waiter, |op| ConsumerCommand::Unsubscribe { op })
    }

    fn begin_position(
        &self,
        py: Python<'_>,
        partition: Tp,
        timeout: Option<f64>,
        waiter: Py<PyAny>,
    ) -> PyResult<()> {
        let (partition, timeout_ms) = (name(partition), self.client.limit_ms(seconds(timeout)));
        self.begin(py, waiter, |op| ConsumerCommand::Position { op, partition, timeout_ms })
    }

    fn begin_committed(
        &self,
        py: Python<'_>,
        partitions: Vec<Tp>,
        timeout: Option<f64>,
        waiter: Py<PyAny>,
    ) -> PyResult<()> {
        let (partitions, timeout_ms) = (names(partitions), self.client.limit_ms(seconds(timeout)));
        self.begin(py, waiter, |op| ConsumerCommand::Committed { op, partitions, timeout_ms })
    }

    fn begin_commit(
        &self,
        py: Python<'_>,
        offsets: Option<Vec<(Tp, i64)>>,
        timeout: Option<f64>,
        waiter: Py<PyAny>,
    ) -> PyResult<()> {
        let (offsets, timeout_ms) = (offsets.map(commits), self.client.limit_ms(seconds(timeout)));
        self.begin(py, waiter, |op| self.client.commit_command(op, offsets, timeout_ms))
    }

    /// Offsets of partitions by their numbers, with the leader epochs before them; an error when one of them is gone.
    fn begin_commit_parts(
        &self,
        py: Python<'_>,
        offsets: Vec<(u64, Tp, i64, i32)>,
        timeout: Option<f64>,
        waiter: Py<PyAny>,
    ) -> PyResult<()> {
        let of_part = |(part, tp, offset, leader_epoch): (u64, Tp, i64, i32)| {
            (PartId::of_number(part), commit_of(tp, offset, leader_epoch))
        };
        let (offsets, timeout_ms) =
            (offsets.into_iter().map(of_part).collect(), self.client.limit_ms(seconds(timeout)));
        self.begin(py, waiter, |op| ConsumerCommand::CommitParts { op, offsets, timeout_ms })
    }

    fn begin_group_metadata(&self, py: Python<'_>, waiter: Py<PyAny>) -> PyResult<()> {
        self.begin(py, waiter, |op| ConsumerCommand::GroupMetadata { op })
    }

    fn begin_list_offsets(
        &self,
        py: Python<'_>,
        partitions: Vec<Tp>,
        timestamp: i64,
        timeout: Option<f64>,
        waiter: Py<PyAny>,
    ) -> PyResult<()> {
        let targets = names(partitions).into_iter().map(|tp| (tp, timestamp)).collect();
        let timeout_ms = self.client.limit_ms(seconds(timeout));
        self.begin(py, waiter, |op| ConsumerCommand::ListOffsets { op, targets, timeout_ms })
    }

    /// `bell` is notified (`set_result(None)`) each time it is worth looking again after `arm`, and at the end.
    fn hang_bell(&self, py: Python<'_>, bell: Py<PyAny>) -> PyResult<()> {
        detached(py, |_| Ok(self.client.hang_bell(telling::bell(bell))?))
    }

    fn arm(&self) {
        self.client.arm();
    }

    /// Whether `try_poll`, or with a partition's number `take`, gives something now; None when that one is gone.
    #[pyo3(signature = (part=None))]
    fn has_rows(&self, py: Python<'_>, part: Option<u64>) -> PyResult<Option<bool>> {
        detached(py, |_| Ok(self.client.has_rows(part.map(PartId::of_number))?))
    }

    #[pyo3(signature = (max_records=None))]
    fn try_poll<'py>(
        &self,
        py: Python<'py>,
        max_records: Option<NonZeroUsize>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let limit = rows_max(max_records);
        let rows = match self.client.poll_at_hand(limit) {
            Some(rows) => Some(rows),
            None => detached(py, |_| self.client.try_poll(limit))?,
        };
        rows.map(|rows| self.chunks.batch(py, &rows)).transpose()
    }

    #[pyo3(signature = (max_records=None))]
    fn try_poll_all<'py>(
        &self,
        py: Python<'py>,
        max_records: Option<NonZeroUsize>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let found = detached(py, |_| self.client.try_poll_all(rows_max(max_records)))?;
        found.iter().map(|rows| self.chunks.batch(py, rows)).collect()
    }

    /// How partitions begin that are added from now on: paused until `open`, fetched as far as rows are taken.
    fn admit(&self, py: Python<'_>, gated: bool, on_demand: bool) -> PyResult<()> {
        detached(py, |_| Ok(self.client.admit(Admission { gated, on_demand })?))
    }

    /// Grows whenever `parts` may have changed.
    fn changes(&self, py: Python<'_>) -> PyResult<u64> {
        detached(py, |_| Ok(self.client.changes()?))
    }

    /// The partitions that are read, each with its number: one that goes and comes back has another.
    fn parts(&self, py: Python<'_>) -> PyResult<Vec<(u64, Tp)>> {
        let parts = detached(py, |_| Ok(self.client.parts()?))?;
        Ok(parts.iter().map(|(part, tp)| (part.number(), pair(tp))).collect())
    }

    /// The numbers of those that have something to take.
    fn parts_ready(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        let ready = detached(py, |_| Ok(self.client.parts_ready()?))?;
        Ok(ready.into_iter().map(PartId::number).collect())
    }

    /// Reads a gated partition, from `offset` if one is given; False when it is gone.
    fn open(&self, py: Python<'_>, part: u64, offset: Option<i64>) -> PyResult<bool> {
        let start = offset.map(StartAt::Offset);
        detached(py, |_| Ok(self.client.open(PartId::of_number(part), start)?))
    }

    /// Somebody is there, though nothing is taken. True while the group waits for `disown`.
    fn stay(&self, py: Python<'_>) -> PyResult<bool> {
        detached(py, |_| Ok(self.client.stay()?))
    }

    /// The numbers of those that the group waits for meanwhile.
    fn parts_going(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        let going = detached(py, |_| Ok(self.client.parts_going()?))?;
        Ok(going.into_iter().map(PartId::number).collect())
    }

    /// The group need not wait for what was handed out of these.
    fn disown(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |_| Ok(self.client.disown()?))
    }

    /// Raises an error of the whole consumer, once; `take` would as well, but it needs a partition.
    fn raise_error(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |_| Ok(self.client.take_error()?))
    }

    /// The next rows, of the partition with this number or of any; never marks what was taken before as processed.
    fn take(
        &self,
        py: Python<'_>,
        part: Option<u64>,
        max_records: Option<NonZeroUsize>,
    ) -> PyResult<Option<Taken>> {
        let limit = rows_max(max_records);
        let rows = detached(py, |_| {
            Ok(match part {
                Some(part) => self.client.take_of(PartId::of_number(part), limit)?,
                None => self.client.take_any(limit)?,
            })
        })?;
        Ok(rows.map(Taken::new))
    }
}

impl Awaiting {
    fn begin(
        &self,
        py: Python<'_>,
        waiter: Py<PyAny>,
        command: impl FnOnce(u64) -> ConsumerCommand + Send,
    ) -> PyResult<()> {
        let recipient = telling::recipient(waiter, outcome_object);
        detached(py, |_| Ok(self.client.begin(recipient, command)?))
    }
}

/// What the blocking calls return.
fn outcome_object(py: Python<'_>, outcome: ConsumerOutcome) -> PyResult<Bound<'_, PyAny>> {
    match outcome {
        ConsumerOutcome::Ok => Ok(py.None().into_bound(py)),
        ConsumerOutcome::Position(position) => Ok(position.into_pyobject(py)?.into_any()),
        ConsumerOutcome::Committed(found) => {
            let found: Vec<_> =
                found.into_iter().map(|(tp, commit)| (pair(&tp), commit.map(|c| c.offset))).collect();
            found.into_pyobject(py)
        }
        ConsumerOutcome::Group(group) => {
            let group = (group.group_id, group.generation_id, group.member_id, group.instance_id);
            Ok(group.into_pyobject(py)?.into_any())
        }
        ConsumerOutcome::Offsets(found) => {
            let found: Vec<_> =
                found.into_iter().map(|(tp, at)| (pair(&tp), at.map_or(-1, |at| at.offset))).collect();
            found.into_pyobject(py)
        }
    }
}
