//! The share consumer's calls that never wait, for asyncio. A `waiter` is completed on the delivery thread.

use std::num::NonZeroUsize;
use std::sync::Arc;

use headrace_client::share::ShareOutcome;
use headrace_net::client::ShareClient;
use pyo3::prelude::*;

use super::results_of;
use crate::chunks::Chunks;
use crate::consumer::rows_max;
use crate::telling;
use crate::wait::{detached, seconds};

/// A share consumer's other face.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct AwaitingShare {
    client: Arc<ShareClient>,
    chunks: Arc<Chunks>,
}

impl AwaitingShare {
    pub(super) fn new(client: Arc<ShareClient>, chunks: Arc<Chunks>) -> Self {
        Self { client, chunks }
    }
}

#[pymethods]
impl AwaitingShare {
    /// No topics: ends the subscription.
    fn begin_subscribe(&self, py: Python<'_>, topics: Vec<String>, waiter: Py<PyAny>) -> PyResult<()> {
        let recipient = telling::recipient(waiter, outcome_object);
        detached(py, |_| Ok(self.client.begin_subscribe(recipient, topics)?))
    }

    fn begin_commit(&self, py: Python<'_>, timeout: Option<f64>, waiter: Py<PyAny>) -> PyResult<()> {
        let recipient = telling::recipient(waiter, outcome_object);
        detached(py, |_| Ok(self.client.begin_commit(recipient, seconds(timeout))?))
    }

    /// `bell` is notified (`set_result(None)`) each time it is worth looking again after `arm`, and at the end.
    fn hang_bell(&self, py: Python<'_>, bell: Py<PyAny>) -> PyResult<()> {
        detached(py, |_| Ok(self.client.hang_bell(telling::bell(bell))?))
    }

    fn arm(&self) {
        self.client.arm();
    }

    /// Whether `try_poll` gives something now. Rows are awaited of any partition: `part` is None.
    #[pyo3(signature = (part=None))]
    fn has_rows(&self, py: Python<'_>, part: Option<u64>) -> PyResult<bool> {
        let _ = part;
        detached(py, |_| Ok(self.client.has_rows()?))
    }

    /// One number while there are rows.
    fn parts_ready(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        let ready = detached(py, |_| Ok(self.client.has_rows()?))?;
        Ok(if ready { vec![0] } else { Vec::new() })
    }

    /// A poll begins: rows of the one before are accepted, or sent as they were marked.
    fn begin_poll(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |_| Ok(self.client.begin_poll()?))
    }

    #[pyo3(signature = (max_records=None))]
    fn try_poll<'py>(
        &self,
        py: Python<'py>,
        max_records: Option<NonZeroUsize>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let rows = detached(py, |_| Ok(self.client.try_take(rows_max(max_records))?))?;
        rows.map(|rows| self.chunks.share_batch(py, &rows)).transpose()
    }

    #[pyo3(signature = (max_records=None))]
    fn try_poll_all<'py>(
        &self,
        py: Python<'py>,
        max_records: Option<NonZeroUsize>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let found = detached(py, |_| Ok(self.client.try_take_all(rows_max(max_records))?))?;
        found.iter().map(|rows| self.chunks.share_batch(py, rows)).collect()
    }

    /// A poll begins to wait for rows; `end_wait` once for each.
    fn begin_wait(&self) {
        self.client.begin_wait();
    }

    /// `rows`: it got some.
    fn end_wait(&self, rows: bool) {
        self.client.end_wait(rows);
    }
}

/// What the blocking calls return.
fn outcome_object(py: Python<'_>, outcome: ShareOutcome) -> PyResult<Bound<'_, PyAny>> {
    match outcome {
        ShareOutcome::Ok => Ok(py.None().into_bound(py)),
        ShareOutcome::Committed(results) => results_of(py, results).into_pyobject(py),
    }
}
