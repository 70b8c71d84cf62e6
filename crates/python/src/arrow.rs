//! Arrow data across the C data interface, as `PyCapsule`s.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::ffi_stream::{ArrayStreamReader, FFI_ArrowArrayStream};
use arrow_array::{
    Array, ArrayReader, ArrayRef, RecordBatch, RecordBatchOptions, RecordBatchReader, StructArray, make_array,
};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::wait::counted;

/// A batch as `(schema, array)` capsules for `__arrow_c_array__`.
pub(crate) fn export_batch<'py>(py: Python<'py>, batch: &RecordBatch) -> PyResult<Bound<'py, PyTuple>> {
    let array = StructArray::from(batch.clone()).to_data();
    let schema = FFI_ArrowSchema::try_from(batch.schema().as_ref()).map_err(arrow_error)?;
    let array = FFI_ArrowArray::new(&array);
    let schema = PyCapsule::new_with_value(py, schema, c"arrow_schema")?;
    let array = PyCapsule::new_with_value(py, array, c"arrow_array")?;
    PyTuple::new(py, [schema, array])
}

/// A single array, as [`export_batch`] gives a batch.
pub(crate) fn export_column<'py>(py: Python<'py>, column: &ArrayRef) -> PyResult<Bound<'py, PyTuple>> {
    let schema = FFI_ArrowSchema::try_from(column.data_type()).map_err(arrow_error)?;
    let array = FFI_ArrowArray::new(&column.to_data());
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
    counted(data.py(), || import_any(data))
}

fn import_any(data: &Bound<'_, PyAny>) -> PyResult<Imported> {
    if data.hasattr("__arrow_c_stream__")? {
        let capsule = data.call_method0("__arrow_c_stream__")?;
        let capsule = capsule.cast::<PyCapsule>().map_err(|_| not_arrow(data))?;
        let pointer = capsule.pointer_checked(Some(c"arrow_array_stream"))?.cast::<FFI_ArrowArrayStream>();
        // A single column speaks this interface too.
        let no_batches = |why: String| {
            PyValueError::new_err(format!("{} is no stream of batches: {why}", type_name(data)))
        };
        // SAFETY: the capsule's name says that it holds an ArrowArrayStream, which the C interface fixes as five pointers.
        let [_, get_next, ..] = unsafe { pointer.cast::<[usize; 5]>().read() };
        // SAFETY: as above; `from_raw` moves it out and leaves an empty one, which the capsule's destructor leaves alone.
        let reader = unsafe { ArrayStreamReader::from_raw(pointer.as_ptr()) };
        let reader = reader.map_err(|error| no_batches(error.to_string()))?;
        if get_next == 0 {
            // The reader relies on it.
            return Err(no_batches("it has no get_next".to_owned()));
        }
        let field = reader.field().clone();
        let DataType::Struct(columns) = field.data_type() else {
            return Err(no_batches(format!("its arrays are of {}", field.data_type())));
        };
        let schema = Schema::new(columns.clone()).with_metadata(field.metadata().clone());
        return Ok(Imported::Stream { reader, schema: Arc::new(schema), chunks: 0 });
    }
    let columns = import_pair(data)?;
    // A single column speaks the same interface.
    let DataType::Struct(fields) = columns.data_type() else {
        let (name, kind) = (type_name(data), columns.data_type());
        return Err(PyTypeError::new_err(format!(
            "{name} is an array of {kind}; a batch is taken, or an array of structs"
        )));
    };
    let schema = Arc::new(Schema::new(fields.clone()));
    Ok(Imported::Batch(Some(batch_of(&make_array(columns), schema, 0))))
}

/// Takes a type from any object that speaks the `PyCapsule` interface.
pub(crate) fn import_type(data: &Bound<'_, PyAny>) -> PyResult<DataType> {
    counted(data.py(), || {
        if !data.hasattr(intern!(data.py(), "__arrow_c_schema__"))? {
            return Err(not_arrow(data));
        }
        let capsule = data.call_method0(intern!(data.py(), "__arrow_c_schema__"))?;
        let capsule = capsule.cast::<PyCapsule>().map_err(|_| not_arrow(data))?;
        let pointer = capsule.pointer_checked(Some(c"arrow_schema"))?.cast::<FFI_ArrowSchema>();
        // SAFETY: the capsule's name says that it holds an ArrowSchema; it lives as long as `capsule`.
        DataType::try_from(unsafe { pointer.as_ref() }).map_err(arrow_error)
    })
}

/// Takes a single array from any object that speaks the `PyCapsule` interface.
pub(crate) fn import_column(data: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    counted(data.py(), || {
        if !data.hasattr(intern!(data.py(), "__arrow_c_array__"))? {
            return Err(not_arrow(data));
        }
        import_pair(data).map(make_array)
    })
}

fn import_pair(data: &Bound<'_, PyAny>) -> PyResult<ArrayData> {
    let pair = data.call_method0(intern!(data.py(), "__arrow_c_array__"))?;
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
    unsafe { arrow_array::ffi::from_ffi(array, schema) }.map_err(arrow_error)
}

/// What [`import`] found.
pub(crate) enum Imported {
    /// Arrays of structs that come one by one.
    Stream { reader: ArrayStreamReader, schema: SchemaRef, chunks: usize },
    /// One batch, until it is taken.
    Batch(Option<Result<RecordBatch, String>>),
}

impl Iterator for Imported {
    /// An error is a whole sentence.
    type Item = Result<RecordBatch, String>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Stream { reader, schema, chunks } => {
                let array = reader.next()?;
                let chunk = *chunks;
                *chunks += 1;
                Some(
                    array
                        .map_err(|e| e.to_string())
                        .and_then(|array| batch_of(&array, schema.clone(), chunk)),
                )
            }
            Self::Batch(batch) => batch.take(),
        }
    }
}

/// The columns of an array of structs. A batch has no way to say that a whole row is null, and what lies beneath such a
/// row may be anything: it must not go out as a record.
fn batch_of(array: &dyn Array, schema: SchemaRef, chunk: usize) -> Result<RecordBatch, String> {
    let rows =
        array.as_struct_opt().ok_or_else(|| format!("chunk {chunk} is an array of {}", array.data_type()))?;
    if let Some(row) = rows.nulls().and_then(|nulls| (0..nulls.len()).find(|row| nulls.is_null(*row))) {
        return Err(format!(
            "row {row} of chunk {chunk}, both counted from 0, is null as a whole; a tombstone is a row whose value is null"
        ));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    RecordBatch::try_new_with_options(schema, rows.columns().to_vec(), &options)
        .map_err(|error| error.to_string())
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
