//! Chunks of rows, as pyarrow has them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use headrace_client::consumer::Rows;
use headrace_client::share::ShareRows;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyCapsule;

use crate::arrow;
use crate::consumer::Taken;
use crate::wait::counted;

/// Partitions of which a chunk is kept that was handed out in part. One that was dropped meanwhile, by a seek or with its
/// partition, stays no longer than this.
const KEPT_MAX: usize = 32;

/// Imports what was taken: a chunk once, its slices from there, and the schema once for all chunks.
#[pyclass(frozen, module = "headrace._native")]
#[derive(Default)]
pub(crate) struct Chunks {
    // Threads may take turns at polling.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    import: Option<Import>,
    // Oldest first. Callers take turns between partitions, row by row if they like.
    begun: Vec<Begun>,
}

/// Rows of a chunk. Of one source no chunk is begun while another is not used up.
struct Slice<'a> {
    source: u64,
    chunk: &'a RecordBatch,
    chunk_id: u64,
    start: usize,
    len: usize,
}

/// A chunk whose rows have not all been handed out.
struct Begun {
    source: u64,
    chunk_id: u64,
    whole: Py<PyAny>,
}

#[pymethods]
impl Chunks {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// The rows.
    #[pyo3(name = "batch")]
    fn batch_of<'py>(&self, py: Python<'py>, taken: &Taken) -> PyResult<Bound<'py, PyAny>> {
        self.batch(py, taken.rows())
    }
}

impl Chunks {
    /// The rows as a `pyarrow.RecordBatch`.
    pub(crate) fn batch<'py>(&self, py: Python<'py>, rows: &Rows) -> PyResult<Bound<'py, PyAny>> {
        let Rows { chunk, chunk_id, start, len, .. } = rows;
        let source = rows.part.number();
        self.slice(py, &Slice { source, chunk, chunk_id: *chunk_id, start: *start, len: *len })
    }

    /// The rows of a share consumer, which gives one chunk after the other.
    pub(crate) fn share_batch<'py>(&self, py: Python<'py>, rows: &ShareRows) -> PyResult<Bound<'py, PyAny>> {
        let ShareRows { chunk, chunk_id, start, len, .. } = rows;
        self.slice(py, &Slice { source: 0, chunk, chunk_id: *chunk_id, start: *start, len: *len })
    }

    fn slice<'py>(&self, py: Python<'py>, rows: &Slice<'_>) -> PyResult<Bound<'py, PyAny>> {
        counted(py, || {
            let whole = self.whole(py, rows)?;
            if rows.len == rows.chunk.num_rows() {
                return Ok(whole);
            }
            whole.call_method1(intern!(py, "slice"), (rows.start, rows.len))
        })
    }

    fn whole<'py>(&self, py: Python<'py>, rows: &Slice<'_>) -> PyResult<Bound<'py, PyAny>> {
        let mut state = self.lock(py);
        let used_up = rows.start + rows.len >= rows.chunk.num_rows();
        let begun = state.begun.iter().position(|begun| begun.source == rows.source);
        if let Some(at) = begun
            && let Some(begun) = state.begun.get(at)
            && begun.chunk_id == rows.chunk_id
        {
            let whole = begun.whole.bind(py).clone();
            if used_up {
                state.begun.remove(at);
            }
            return Ok(whole);
        }
        if let Some(at) = begun {
            state.begun.remove(at);
        }
        let mut import = state.import.take();
        // Importing runs Python code, which may let other threads run.
        drop(state);
        let whole = match &import {
            Some(import) => import.next(py, rows.chunk)?,
            None => import.insert(Import::new(py, rows.chunk.schema())?).next(py, rows.chunk)?,
        };
        let mut state = self.lock(py);
        state.import = import;
        if !used_up {
            if state.begun.len() >= KEPT_MAX {
                state.begun.remove(0);
            }
            state.begun.push(Begun {
                source: rows.source,
                chunk_id: rows.chunk_id,
                whole: whole.clone().unbind(),
            });
        }
        Ok(whole)
    }

    fn lock<'a>(&'a self, py: Python<'_>) -> MutexGuard<'a, State> {
        self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }
}

/// A way for chunks into pyarrow: a C stream without an end whose next batch is what was put last. Its schema crosses the
/// border once, where a batch by itself brings its own each time, which costs more than the batch.
struct Import {
    stream: Stream,
    reader: Py<PyAny>,
}

impl Import {
    fn new(py: Python<'_>, schema: SchemaRef) -> PyResult<Self> {
        let stream = Stream { schema, next: Arc::default() };
        let reader = py.import("pyarrow")?.getattr("RecordBatchReader")?;
        let reader = reader.call_method1("from_stream", (Exported(stream.clone()),))?.unbind();
        Ok(Self { stream, reader })
    }

    fn next<'py>(&self, py: Python<'py>, chunk: &RecordBatch) -> PyResult<Bound<'py, PyAny>> {
        *self.stream.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(chunk.clone());
        self.reader.bind(py).call_method0(intern!(py, "read_next_batch"))
    }
}

/// What pyarrow asks for the stream.
#[pyclass(frozen, module = "headrace._native")]
struct Exported(Stream);

#[pymethods]
impl Exported {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        arrow::export_stream(py, Box::new(self.0.clone()))
    }
}

#[derive(Clone)]
struct Stream {
    schema: SchemaRef,
    next: Arc<Mutex<Option<RecordBatch>>>,
}

impl Iterator for Stream {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).take().map(Ok)
    }
}

impl RecordBatchReader for Stream {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}
