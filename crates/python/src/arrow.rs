//! Arrow data across the C data interface, as `PyCapsule`s.

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use arrow_array::{Array, RecordBatch, RecordBatchReader, StructArray};
use arrow_schema::{ArrowError, DataType, Schema};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

/// A batch as `(schema, array)` capsules for `__arrow_c_array__`.
pub(crate) fn export_batch<'py>(py: Python<'py>, batch: &RecordBatch) -> PyResult<Bound<'py, PyTuple>> {
    let array = StructArray::from(batch.clone()).to_data();
    let schema = FFI_ArrowSchema::try_from(batch.schema().as_ref()).map_err(arrow_error)?;
    let array = FFI_ArrowArray::new(&array);
    let schema = PyCapsule::new_with_value(py, schema, c"arrow_schema")?;
    let array = PyCapsule::new_with_value(py, array, c"arrow_array")?;
    PyTuple::new(py, [schema, array])
}

/// A schema as a capsule for `__arrow_c_schema__`.
pub(crate) fn export_schema<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema).map_err(arrow_error)?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

/// A reader as a capsule for `__arrow_c_stream__`.
pub(crate) fn export_stream(
    py: Python<'_>,
    reader: Box<dyn RecordBatchReader + Send>,
) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(reader), c"arrow_array_stream")
}

/// Takes Arrow data from any object that speaks the `PyCapsule` interface.
pub(crate) fn import(data: &Bound<'_, PyAny>) -> PyResult<Imported> {
    if data.hasattr("__arrow_c_stream__")? {
        let capsule = data.call_method0("__arrow_c_stream__")?;
        let capsule = capsule.cast::<PyCapsule>().map_err(|_| not_arrow(data))?;
        let pointer = capsule.pointer_checked(Some(c"arrow_array_stream"))?.cast::<FFI_ArrowArrayStream>();
        // SAFETY: the capsule's name says that it holds an ArrowArrayStream, whose layout the C interface fixes;
        // `from_raw` moves it out and leaves an empty one, which the capsule's destructor leaves alone.
        let reader = unsafe { RecordBatchStreamReader::from_raw(pointer.as_ptr()) };
        // A single column speaks this interface too.
        let no_batches =
            |e| PyValueError::new_err(format!("{} is no stream of batches: {e}", type_name(data)));
        return reader.map(Imported::Stream).map_err(no_batches);
    }
    let pair = data.call_method0("__arrow_c_array__")?;
    let (schema, array): (Bound<'_, PyCapsule>, Bound<'_, PyCapsule>) =
        pair.extract().map_err(|_| not_arrow(data))?;
    let schema = schema.pointer_checked(Some(c"arrow_schema"))?.cast::<FFI_ArrowSchema>();
    let array = array.pointer_checked(Some(c"arrow_array"))?.cast::<FFI_ArrowArray>();
    // SAFETY: the capsule's name says that it holds an ArrowSchema; it lives as long as `pair`.
    let schema = unsafe { schema.as_ref() };
    // SAFETY: the capsule's name says that it holds an ArrowArray; `from_raw` moves it out and marks it released.
    let array = unsafe { FFI_ArrowArray::from_raw(array.as_ptr()) };
    if array.is_released() {
        return Err(PyValueError::new_err("these Arrow capsules have been taken before"));
    }
    // SAFETY: schema and array come from one producer as a pair, as the C data interface demands.
    let columns = unsafe { arrow_array::ffi::from_ffi(array, schema) }.map_err(arrow_error)?;
    // A single column speaks the same interface; only a struct without nulls is a batch.
    if !matches!(columns.data_type(), DataType::Struct(_)) || columns.null_count() > 0 {
        let (name, kind) = (type_name(data), columns.data_type());
        return Err(PyTypeError::new_err(format!(
            "{name} is an array of {kind}; a batch is taken, or an array of structs of which none is null"
        )));
    }
    Ok(Imported::Batch(RecordBatch::from(StructArray::from(columns))))
}

/// What [`import`] found.
pub(crate) enum Imported {
    /// Batches that come one by one.
    Stream(RecordBatchStreamReader),
    /// One batch.
    Batch(RecordBatch),
}

impl Iterator for Imported {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Stream(reader) => reader.next(),
            Self::Batch(batch) if batch.num_rows() == 0 => None,
            Self::Batch(batch) => {
                let rest = batch.slice(0, 0);
                Some(Ok(std::mem::replace(batch, rest)))
            }
        }
    }
}

/// An Arrow error as Python knows it.
#[expect(clippy::needless_pass_by_value, reason = "it is made to be given to map_err")]
pub(crate) fn arrow_error(error: ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn not_arrow(data: &Bound<'_, PyAny>) -> PyErr {
    let name = type_name(data);
    PyTypeError::new_err(format!("{name} does not speak Arrow's PyCapsule interface as it should"))
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string())
}
