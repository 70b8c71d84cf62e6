//! Chunks through Arrow's C stream interface, one by one.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::arrow;
use crate::consumer::Taken;

/// A stream without an end whose next batch is what was put last. Its schema crosses the border once, where a batch by
/// itself brings its own each time, which costs more than the batch.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Handover(Stream);

#[pymethods]
impl Handover {
    /// For chunks with the schema of this one.
    #[new]
    fn new(taken: &Taken) -> Self {
        Self(Stream { schema: taken.chunk().schema(), next: Arc::default() })
    }

    /// What the stream gives next: the whole chunk.
    fn put(&self, taken: &Taken) {
        *self.0.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(taken.chunk().clone());
    }

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
