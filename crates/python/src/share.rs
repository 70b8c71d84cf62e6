//! The share consumer.

mod awaiting;

use std::num::NonZeroUsize;
use std::sync::Arc;

use arrow_array::RecordBatch;
use headrace_client::error::Error;
use headrace_client::options::ShareConfig;
use headrace_client::share::{CommitResults, marks_of};
use headrace_net::client::{ShareClient, deadline_in};
use pyo3::prelude::*;
use pyo3::types::PyDict;

pub(crate) use self::awaiting::AwaitingShare;
use crate::arrow;
use crate::chunks::Chunks;
use crate::consumer::{Empty, Tp, pair, plain, rows_max};
use crate::errors;
use crate::options::{Given, Options};
use crate::wait::{detached, seconds, uninterrupted};

/// Partitions and why their records were not acknowledged.
type Results = Vec<(Tp, Option<Py<PyAny>>)>;

/// A share consumer with its thread.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct ShareConsumer {
    client: Arc<ShareClient>,
    chunks: Arc<Chunks>,
}

#[pymethods]
impl ShareConsumer {
    #[new]
    fn start(py: Python<'_>, options: Given<'_>) -> PyResult<Self> {
        let mut options = Options::of(py, options)?;
        let pairs = std::mem::take(&mut options.pairs);
        let mut config = ShareConfig::from_pairs(pairs).map_err(|e| errors::to_py(py, &e))?;
        options.complete(py, &mut config.common)?;
        let client = uninterrupted(py, || ShareClient::start(&config)).map_err(|e| errors::to_py(py, &e))?;
        Ok(Self { client: Arc::new(client), chunks: Arc::default() })
    }

    /// The same consumer for callers that never block.
    fn awaiting(&self) -> AwaitingShare {
        AwaitingShare::new(self.client.clone(), self.chunks.clone())
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

    /// No topics: ends the subscription.
    fn subscribe(&self, py: Python<'_>, topics: Vec<String>) -> PyResult<()> {
        detached(py, |check| self.client.subscribe(topics, check))
    }

    fn assignment(&self, py: Python<'_>) -> PyResult<Vec<Tp>> {
        self.client.assignment().map(|names| plain(&names)).map_err(|e| errors::to_py(py, &e))
    }

    #[pyo3(signature = (timeout, max_records=None))]
    fn poll<'py>(
        &self,
        py: Python<'py>,
        timeout: f64,
        max_records: Option<NonZeroUsize>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let deadline = deadline_in(seconds(Some(timeout)));
        let rows = detached(py, |check| self.client.poll(rows_max(max_records), deadline, check))?;
        rows.map(|rows| self.chunks.share_batch(py, &rows)).transpose()
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
        found.iter().map(|rows| self.chunks.share_batch(py, rows)).collect()
    }

    /// Marks rows: Arrow data with the columns topic (string), partition (int32), offset (int64), `delivery_count` (int16) and
    /// `acknowledge_type` (int8).
    fn acknowledge(&self, py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        let batches: Result<Vec<RecordBatch>, String> = arrow::import(rows)?.collect();
        let batches = batches.map_err(|why| errors::to_py(py, &Error::Usage(why)))?;
        detached(py, |_| Ok(self.client.acknowledge(&marks_of(&batches)?)?))
    }

    #[pyo3(signature = (timeout=None))]
    fn commit(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Results> {
        let results = detached(py, |check| self.client.commit(seconds(timeout), check))?;
        Ok(results_of(py, results))
    }

    /// Commits without waiting; `take_ended` tells the end under the number that this gives.
    fn commit_async(&self, py: Python<'_>) -> PyResult<u64> {
        detached(py, |_| Ok(self.client.commit_async()?))
    }

    /// The next commit of `commit_async` that has ended: its number, and its results or an error of the whole.
    fn take_ended(&self, py: Python<'_>) -> Option<(u64, Option<Results>, Option<Py<PyAny>>)> {
        let (number, result) = self.client.take_ended()?;
        Some(match result {
            Ok(results) => (number, Some(results_of(py, results)), None),
            Err(error) => (number, None, Some(errors::to_object(py, &error))),
        })
    }

    /// How long brokers lock a record, in milliseconds; None before the first answer.
    #[getter]
    fn lock_timeout_ms(&self) -> Option<u64> {
        self.client.lock_timeout_ms()
    }

    /// The counters, under Kafka's names where it has them.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let assigned = self.client.assignment().map_err(|e| errors::to_py(py, &e))?;
        let now = self.client.metrics();
        let metrics = PyDict::new(py);
        metrics.set_item("records-consumed-total", now.records_consumed)?;
        metrics.set_item("records-acquired-total", now.records_acquired)?;
        metrics.set_item("records-acknowledged-total", now.records_acknowledged)?;
        metrics.set_item("records-lock-expired-total", now.records_lock_expired)?;
        metrics.set_item("records-excess-total", now.records_excess)?;
        metrics.set_item("assigned-partitions", assigned.len())?;
        Ok(metrics)
    }

    /// How many decisions there were so far, and those after the first `after`, as far as they are kept.
    #[pyo3(signature = (after=0))]
    fn decisions(&self, after: u64) -> (u64, Vec<String>) {
        self.client.decisions(after)
    }

    /// `finished`: the rows of the last poll have been processed.
    fn close(&self, py: Python<'_>, timeout: f64, finished: bool) -> PyResult<()> {
        let timeout = seconds(Some(timeout)).unwrap_or_default();
        detached(py, |check| self.client.close(timeout, finished, check))
    }
}

fn results_of(py: Python<'_>, results: CommitResults) -> Results {
    let reported = |error: Option<Error>| error.map(|error| errors::to_object(py, &error));
    results.into_iter().map(|(tp, error)| (pair(&tp), reported(error))).collect()
}
