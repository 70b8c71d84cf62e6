//! The consumer.

mod awaiting;

use std::num::NonZeroUsize;
use std::sync::Arc;

use arrow_array::RecordBatch;
use headrace_client::consumer::{Assignment, CommitOffset, Rebalance, Rows, StartAt, TopicPartition};
use headrace_client::options::ConsumerConfig;
use headrace_net::client::{ConsumerClient, Notice, deadline_in};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyCapsule, PyDict, PyList, PyTuple};

pub(crate) use self::awaiting::Awaiting;
use crate::chunks::Chunks;
use crate::options::{Given, Options};
use crate::wait::{detached, seconds, uninterrupted};
use crate::{arrow, errors};

pub(crate) type Tp = (String, i32);
/// Kind, number, partitions, error.
type NoticeFields = (&'static str, u64, Vec<Tp>, Option<Py<PyAny>>);

/// Rows that were handed out: a slice of a chunk that is imported once.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Taken {
    rows: Rows,
}

impl Taken {
    pub(crate) fn new(rows: Rows) -> Self {
        Self { rows }
    }

    pub(crate) fn rows(&self) -> &Rows {
        &self.rows
    }
}

#[pymethods]
impl Taken {
    /// The partition's number in its consumer.
    #[getter]
    fn part(&self) -> u64 {
        self.rows.part.number()
    }

    #[getter]
    fn partition(&self) -> Tp {
        pair(&self.rows.partition)
    }

    /// The partition's position after these rows.
    #[getter]
    fn next_offset(&self) -> i64 {
        self.rows.next_offset
    }

    /// The leader epoch before that position, -1 when not known: a commit carries it (KIP-320).
    #[getter]
    fn leader_epoch(&self) -> i32 {
        self.rows.leader_epoch
    }
}

/// A batch of no rows.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Empty {
    batch: RecordBatch,
}

impl Empty {
    pub(crate) fn of(batch: RecordBatch) -> Self {
        Self { batch }
    }
}

#[pymethods]
impl Empty {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        drop(requested_schema);
        arrow::export_batch(py, &self.batch)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        arrow::export_schema(py, self.batch.schema_ref())
    }
}

/// A consumer with its thread.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Consumer {
    client: Arc<ConsumerClient>,
    chunks: Arc<Chunks>,
}

#[pymethods]
impl Consumer {
    #[new]
    fn start(py: Python<'_>, options: Given<'_>) -> PyResult<Self> {
        let mut options = Options::of(py, options)?;
        let pairs = std::mem::take(&mut options.pairs);
        let mut config = ConsumerConfig::from_pairs(pairs).map_err(|e| errors::to_py(py, &e))?;
        options.complete(py, &mut config.common)?;
        let client =
            uninterrupted(py, || ConsumerClient::start(config)).map_err(|e| errors::to_py(py, &e))?;
        Ok(Self { client: Arc::new(client), chunks: Arc::default() })
    }

    /// The same consumer for callers that never block.
    fn awaiting(&self) -> Awaiting {
        Awaiting::new(self.client.clone(), self.chunks.clone())
    }

    /// Errors since the last call that no other call has reported.
    fn take_troubles(&self) -> Vec<String> {
        self.client.take_troubles()
    }

    /// Whether `take_troubles` has something.
    #[getter]
    fn troubled(&self) -> bool {
        self.client.is_troubled()
    }

    fn empty(&self) -> Empty {
        Empty::of(self.client.empty().clone())
    }

    fn subscribe(&self, py: Python<'_>, topics: Vec<String>) -> PyResult<()> {
        detached(py, |check| self.client.subscribe(topics, check))
    }

    fn subscribe_pattern(&self, py: Python<'_>, pattern: String) -> PyResult<()> {
        detached(py, |check| self.client.subscribe_pattern(pattern, check))
    }

    fn assign(&self, py: Python<'_>, partitions: Vec<Tp>) -> PyResult<()> {
        let partitions = names(partitions).into_iter().map(Assignment::of).collect();
        detached(py, |check| self.client.assign(partitions, check))
    }

    fn unsubscribe(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |check| self.client.unsubscribe(check))
    }

    fn assignment(&self, py: Python<'_>) -> PyResult<Vec<Tp>> {
        self.client.assignment().map(|names| plain(&names)).map_err(|e| errors::to_py(py, &e))
    }

    fn paused(&self, py: Python<'_>) -> PyResult<Vec<Tp>> {
        self.client.paused().map(|names| plain(&names)).map_err(|e| errors::to_py(py, &e))
    }

    /// What has been read and what lies in the fetch cache, under Kafka's names.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let now = self.client.metrics().map_err(|error| errors::to_py(py, &error))?;
        let metrics = PyDict::new(py);
        metrics.set_item("records-consumed-total", now.records_consumed_total)?;
        metrics.set_item("bytes-consumed-total", now.bytes_consumed_total)?;
        metrics.set_item("direct-bytes-consumed-total", now.direct_bytes_consumed_total)?;
        metrics.set_item("fetch-total", now.fetch_total)?;
        metrics.set_item("assigned-partitions", now.assigned_partitions)?;
        if let Some(seconds) = now.last_poll_seconds_ago {
            metrics.set_item("last-poll-seconds-ago", seconds)?;
        }
        if let Some(most) = now.records_lag.iter().map(|(_, lag)| lag).max() {
            metrics.set_item("records-lag-max", most)?;
        }
        for (partition, lag) in &now.records_lag {
            metrics.set_item(format!("records-lag-{partition}"), lag)?;
        }
        metrics.set_item("fetch-cache-bytes", now.fetch_cache_bytes)?;
        metrics.set_item("fetch-cache-total-bytes", now.fetch_cache_total_bytes)?;
        let discarded = now.fetch_cache_bytes_discarded;
        metrics.set_item("fetch-cache-bytes-discarded-total", discarded.total())?;
        metrics.set_item("fetch-cache-bytes-discarded-seek-total", discarded.seek)?;
        metrics.set_item("fetch-cache-bytes-discarded-unassign-total", discarded.unassign)?;
        metrics.set_item("fetch-cache-bytes-discarded-truncation-total", discarded.truncation)?;
        metrics.set_item("fetch-cache-bytes-discarded-reset-total", discarded.reset)?;
        Ok(metrics)
    }

    #[pyo3(signature = (timeout, max_records=None))]
    fn poll<'py>(
        &self,
        py: Python<'py>,
        timeout: f64,
        max_records: Option<NonZeroUsize>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let limit = rows_max(max_records);
        // Letting other threads run and coming back takes longer than a poll that need not wait.
        if let Some(rows) = self.client.poll_at_hand(limit) {
            return self.chunks.batch(py, &rows).map(Some);
        }
        let deadline = deadline_in(seconds(Some(timeout)));
        let rows = detached(py, |check| self.client.poll(limit, deadline, check))?;
        rows.map(|rows| self.chunks.batch(py, &rows)).transpose()
    }

    #[pyo3(signature = (timeout, max_records=None))]
    fn poll_all<'py>(
        &self,
        py: Python<'py>,
        timeout: f64,
        max_records: Option<NonZeroUsize>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let deadline = deadline_in(seconds(Some(timeout)));
        let found = detached(py, |check| self.client.poll_all(rows_max(max_records), deadline, check))?;
        found.iter().map(|rows| self.chunks.batch(py, rows)).collect()
    }

    /// What a poll does before it takes rows: those of before count as processed.
    fn begin_poll(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |_| Ok(self.client.begin_poll()?))
    }

    #[pyo3(signature = (partition, timeout=None))]
    fn position(&self, py: Python<'_>, partition: Tp, timeout: Option<f64>) -> PyResult<i64> {
        detached(py, |check| self.client.position(name(partition), seconds(timeout), check))
    }

    fn seek(&self, py: Python<'_>, partition: Tp, offset: i64) -> PyResult<()> {
        detached(py, |_| Ok(self.client.seek(&[(name(partition), StartAt::Offset(offset))])?))
    }

    fn seek_to_beginning(&self, py: Python<'_>, partitions: Vec<Tp>) -> PyResult<()> {
        self.seek_all(py, partitions, StartAt::Earliest)
    }

    fn seek_to_end(&self, py: Python<'_>, partitions: Vec<Tp>) -> PyResult<()> {
        self.seek_all(py, partitions, StartAt::Latest)
    }

    fn pause(&self, partitions: &Bound<'_, PyAny>) -> PyResult<()> {
        self.set_paused(&borrowed(partitions)?, true, partitions.py())
    }

    fn resume(&self, partitions: &Bound<'_, PyAny>) -> PyResult<()> {
        self.set_paused(&borrowed(partitions)?, false, partitions.py())
    }

    #[pyo3(signature = (offsets=None, timeout=None))]
    fn commit(&self, py: Python<'_>, offsets: Option<Vec<(Tp, i64)>>, timeout: Option<f64>) -> PyResult<()> {
        let offsets = offsets.map(commits);
        detached(py, |check| self.client.commit(offsets, seconds(timeout), check))
    }

    /// Commits without waiting; `take_notice` tells the end under the number that this gives.
    #[pyo3(signature = (offsets=None))]
    fn commit_async(&self, py: Python<'_>, offsets: Option<Vec<(Tp, i64)>>) -> PyResult<u64> {
        let offsets = offsets.map(commits);
        detached(py, |_| Ok(self.client.commit_async(offsets)?))
    }

    /// Whether `take_notice` reports rebalances.
    fn listen(&self, py: Python<'_>, on: bool) -> PyResult<()> {
        detached(py, |_| Ok(self.client.listen(on)?))
    }

    /// What must be reported before a poll returns rows.
    fn take_notice(&self, py: Python<'_>) -> Option<NoticeFields> {
        Some(match self.client.take_notice()? {
            Notice::Rebalance { number, news, partitions } => {
                let kind = match news {
                    Rebalance::Assigned => "assigned",
                    Rebalance::Revoked => "revoked",
                    Rebalance::Lost => "lost",
                };
                (kind, number, plain(&partitions), None)
            }
            Notice::Committed { op, result } => {
                let error = result.err().map(|error| errors::to_object(py, &error));
                ("committed", op, Vec::new(), error)
            }
        })
    }

    /// The next commit of `commit_async` that has ended.
    fn take_committed(&self, py: Python<'_>) -> Option<(u64, Option<Py<PyAny>>)> {
        let (op, result) = self.client.take_committed()?;
        Some((op, result.err().map(|error| errors::to_object(py, &error))))
    }

    /// The listener was called.
    fn listener_called(&self, number: u64) {
        self.client.listener_called(number);
    }

    /// What a listener has to give back because this consumer leaves its group.
    fn take_back(&self) -> Vec<Tp> {
        plain(&self.client.take_back())
    }

    #[pyo3(signature = (partitions, timeout=None))]
    fn committed(
        &self,
        py: Python<'_>,
        partitions: Vec<Tp>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<(Tp, Option<i64>)>> {
        let found = detached(py, |check| self.client.committed(names(partitions), seconds(timeout), check))?;
        Ok(found.into_iter().map(|(tp, commit)| (pair(&tp), commit.map(|c| c.offset))).collect())
    }

    fn group_metadata(&self, py: Python<'_>) -> PyResult<(String, i32, String, Option<String>)> {
        let group = detached(py, |check| self.client.group_metadata(check))?;
        Ok((group.group_id, group.generation_id, group.member_id, group.instance_id))
    }

    #[pyo3(signature = (partitions, timestamp, timeout=None))]
    fn list_offsets(
        &self,
        py: Python<'_>,
        partitions: Vec<Tp>,
        timestamp: i64,
        timeout: Option<f64>,
    ) -> PyResult<Vec<(Tp, i64)>> {
        let targets = names(partitions).into_iter().map(|tp| (tp, timestamp)).collect();
        let found = detached(py, |check| self.client.list_offsets(targets, seconds(timeout), check))?;
        Ok(found.into_iter().map(|(tp, at)| (pair(&tp), at.map_or(-1, |at| at.offset))).collect())
    }

    /// `finished`: the rows of the last poll have been processed.
    fn close(&self, py: Python<'_>, timeout: f64, finished: bool) -> PyResult<()> {
        let timeout = seconds(Some(timeout)).unwrap_or_default();
        detached(py, |check| self.client.close(timeout, finished, check))
    }
}

impl Consumer {
    fn set_paused(&self, partitions: &[(PyBackedStr, i32)], paused: bool, py: Python<'_>) -> PyResult<()> {
        match self.client.try_set_paused(partitions, paused) {
            Some(done) => done.map_err(|error| errors::to_py(py, &error)),
            None if paused => detached(py, |_| Ok(self.client.pause(partitions)?)),
            None => detached(py, |_| Ok(self.client.resume(partitions)?)),
        }
    }

    fn seek_all(&self, py: Python<'_>, partitions: Vec<Tp>, to: StartAt) -> PyResult<()> {
        let targets: Vec<_> = names(partitions).into_iter().map(|tp| (tp, to)).collect();
        detached(py, |_| Ok(self.client.seek(&targets)?))
    }
}

fn commits(offsets: Vec<(Tp, i64)>) -> Vec<CommitOffset> {
    offsets.into_iter().map(|(tp, offset)| commit_of(tp, offset, -1)).collect()
}

fn commit_of(tp: Tp, offset: i64, leader_epoch: i32) -> CommitOffset {
    CommitOffset { partition: name(tp), offset, leader_epoch, metadata: String::new() }
}

/// The client takes zero for `max.poll.records`; a caller's own zero is refused before.
pub(crate) fn rows_max(max_records: Option<NonZeroUsize>) -> usize {
    max_records.map_or(0, NonZeroUsize::get)
}

pub(crate) fn name((topic, partition): Tp) -> TopicPartition {
    TopicPartition::new(topic, partition)
}

/// Partitions as the caller names them, from any iterable. The texts stay Python's.
fn borrowed(partitions: &Bound<'_, PyAny>) -> PyResult<Vec<(PyBackedStr, i32)>> {
    match partitions.cast::<PyList>() {
        Ok(list) => list.iter().map(|partition| partition.extract()).collect(),
        Err(_) => partitions.try_iter()?.map(|partition| partition?.extract()).collect(),
    }
}

fn names(partitions: Vec<Tp>) -> Vec<TopicPartition> {
    partitions.into_iter().map(name).collect()
}

pub(crate) fn pair(tp: &TopicPartition) -> Tp {
    (tp.topic.to_string(), tp.partition)
}

pub(crate) fn plain(partitions: &[TopicPartition]) -> Vec<Tp> {
    partitions.iter().map(pair).collect()
}
