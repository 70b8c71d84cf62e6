//! Decoders of keys and values: columns of bytes in, columns of what they mean out.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, StructArray};
use arrow_schema::ArrowError;
use headrace_values::avro::{AvroDecoder as Decoder, AvroEncoder as Encoder, AvroSchema, RecordColumn};
use headrace_values::framing::Framing;
use headrace_values::headers;
use headrace_values::json::{JsonDecoder as OfJson, JsonEncoder as ToJson};
use headrace_values::protobuf::{
    ProtobufDecoder as OfProtobuf, ProtobufEncoder as ToProtobuf, ProtobufSchema,
};
use headrace_values::text::Text;
use headrace_values::{Decoded, EncodeError, RowError, SchemaError};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arrow;
use crate::wait::uninterrupted;

/// Decodes Avro.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct AvroDecoder(Decoder);

/// A bad row: its number, the field and what is wrong.
type BadRow = (usize, String, String);

fn schema_error(error: SchemaError) -> PyErr {
    PyValueError::new_err(error.0)
}

#[pymethods]
impl AvroDecoder {
    /// A decoder for rows that begin with the id of one of `writers`, or, without those, for bare rows of the reader's schema.
    #[new]
    #[pyo3(signature = (reader, references, columns, writers))]
    fn new(
        reader: &str,
        references: Vec<String>,
        columns: Option<Vec<String>>,
        writers: Option<Vec<(u32, String)>>,
    ) -> PyResult<Self> {
        let reader = Arc::new(AvroSchema::parse(reader, &references).map_err(schema_error)?);
        let framing = if writers.is_some() { Framing::Confluent } else { Framing::None };
        let mut decoder = Decoder::new(reader.clone(), columns.as_deref(), framing).map_err(schema_error)?;
        match writers {
            None => decoder.add_writer(Framing::ONE, reader),
            Some(writers) => {
                for (number, schema) in writers {
                    let schema = AvroSchema::parse(&schema, &references);
                    let schema = schema
                        .map_err(|error| PyValueError::new_err(format!("schema id {number}: {error}")))?;
                    decoder.add_writer(number, Arc::new(schema));
                }
            }
        }
        Ok(Self(decoder))
    }

    /// A decoder into a column for each of some records: the column's name, the record's, a schema that has it and the
    /// schemas that this one names. Rows begin with an id, unless they are bare ones of a `writer`.
    #[staticmethod]
    fn of_records(
        records: Vec<(String, String, String, Vec<String>)>,
        columns: Option<Vec<String>>,
        writer: Option<(String, Vec<String>)>,
    ) -> PyResult<Self> {
        let records = records.into_iter().map(|(column, record, schema, references)| {
            let schema = Arc::new(AvroSchema::parse(&schema, &references)?);
            Ok(RecordColumn { column, record, schema })
        });
        let records = records.collect::<Result<Vec<_>, _>>().map_err(schema_error)?;
        let framing = if writer.is_some() { Framing::None } else { Framing::Confluent };
        let mut decoder = Decoder::of_records(&records, columns.as_deref(), framing).map_err(schema_error)?;
        if let Some((schema, references)) = writer {
            let schema = AvroSchema::parse(&schema, &references).map_err(schema_error)?;
            decoder.add_writer(Framing::ONE, Arc::new(schema));
        }
        Ok(Self(decoder))
    }

    /// The same with the schema of one more id, and the schemas that it names; or with why its rows cannot be decoded.
    #[pyo3(signature = (number, schema, references, why=None))]
    fn with_writer(&self, number: u32, schema: &str, references: Vec<String>, why: Option<String>) -> Self {
        let mut decoder = self.0.clone();
        match why.map_or_else(|| AvroSchema::parse(schema, &references), |why| Err(SchemaError(why))) {
            Ok(schema) => decoder.add_writer(number, Arc::new(schema)),
            Err(why) => decoder.refuse_writer(number, &why.0),
        }
        Self(decoder)
    }

    /// The ids that rows name and whose schemas are not known, each once.
    fn missing(&self, py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let rows = arrow::import_column(rows)?;
        uninterrupted(py, || self.0.missing(&rows)).map_err(arrow::arrow_error)
    }

    /// The values of rows, and the rows that could not be decoded.
    fn decode(&self, py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<(Column, Vec<BadRow>)> {
        let rows = arrow::import_column(rows)?;
        columns(uninterrupted(py, || self.0.decode(&rows)))
    }
}

/// Encodes Avro.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct AvroEncoder(Encoder);

#[pymethods]
impl AvroEncoder {
    #[new]
    fn new(schema: &str, references: Vec<String>) -> PyResult<Self> {
        let schema = Arc::new(AvroSchema::parse(schema, &references).map_err(schema_error)?);
        Encoder::new(&schema).map(Self).map_err(schema_error)
    }

    /// The rows of a struct, each behind a byte 0 and the id of the schema, if there is one. An error gives the field too.
    fn encode(&self, py: Python<'_>, columns: &Bound<'_, PyAny>, number: Option<u32>) -> PyResult<Column> {
        encoded(py, columns, |columns| self.0.encode(columns, number))
    }
}

/// The rows that are made of the columns of a struct. An error gives the field too.
fn encoded(
    py: Python<'_>,
    columns: &Bound<'_, PyAny>,
    encode: impl FnOnce(&StructArray) -> Result<BinaryArray, EncodeError> + Send,
) -> PyResult<Column> {
    let columns = arrow::import_column(columns)?;
    let columns = columns.as_struct_opt().ok_or_else(|| {
        PyTypeError::new_err(format!("columns are a struct, and not {}", columns.data_type()))
    })?;
    let encoded = uninterrupted(py, || encode(columns));
    let encoded = encoded.map_err(|error| PyValueError::new_err((error.to_string(), error.field)))?;
    Ok(Column(Arc::new(encoded)))
}

/// Whether an Avro schema is one, with the default of each field.
#[pyfunction]
pub(crate) fn check_avro(py: Python<'_>, schema: &str, references: Vec<String>) -> PyResult<()> {
    uninterrupted(py, || AvroSchema::parse(schema, &references)?.check_defaults()).map_err(schema_error)
}

/// Why rows that were written with one Avro schema cannot all be read with another: kind, place and reason. Both come with
/// the schemas that they name.
#[pyfunction]
pub(crate) fn avro_incompatibilities(
    py: Python<'_>,
    reader: (String, Vec<String>),
    writer: (String, Vec<String>),
) -> PyResult<Vec<(&'static str, String, String)>> {
    let parse = |(schema, references): &(String, Vec<String>)| AvroSchema::parse(schema, references);
    let found = uninterrupted(py, || parse(&reader)?.incompatibilities(&parse(&writer)?));
    let found = found.map_err(schema_error)?.into_iter();
    Ok(found.map(|one| (one.kind, one.path, one.why)).collect())
}

/// The id of the schema of each row that Confluent's serializers wrote.
#[pyfunction]
pub(crate) fn schema_ids(py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<Column> {
    let rows = arrow::import_column(rows)?;
    let ids = uninterrupted(py, || Framing::Confluent.ids(&rows)).map_err(arrow::arrow_error)?;
    Ok(Column(Arc::new(ids)))
}

/// The last header with the schema of keys, or of values, of each row of a column `headers`; None if no row has one.
#[pyfunction]
pub(crate) fn schema_headers(
    py: Python<'_>,
    rows: &Bound<'_, PyAny>,
    is_key: bool,
) -> PyResult<Option<Column>> {
    let rows = arrow::import_column(rows)?;
    let found = uninterrupted(py, || headers::last_headers(&rows, headers::header_name(is_key)));
    Ok(found.map_err(arrow::arrow_error)?.map(|found| Column(Arc::new(found))))
}

/// The GUIDs that such headers name, each once.
#[pyfunction]
pub(crate) fn header_guids(py: Python<'_>, found: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<u8>>> {
    let found = arrow::import_column(found)?;
    let found = of_headers(&found)?;
    Ok(uninterrupted(py, || headers::guids(found)).iter().map(|guid| guid.to_vec()).collect())
}

/// Rows with what their headers say in front of them, by the ids of GUIDs, and the rows whose headers say nothing known.
#[pyfunction]
pub(crate) fn with_prefix(
    py: Python<'_>,
    rows: &Bound<'_, PyAny>,
    found: &Bound<'_, PyAny>,
    ids: HashMap<[u8; 16], u32>,
) -> PyResult<(Column, Vec<BadRow>)> {
    let (rows, found) = (arrow::import_column(rows)?, arrow::import_column(found)?);
    let found = of_headers(&found)?;
    if rows.len() != found.len() {
        return Err(PyValueError::new_err(format!("{} rows have {} headers", rows.len(), found.len())));
    }
    let made = uninterrupted(py, || headers::with_prefix(&rows, found, |guid| ids.get(guid).copied()));
    let (rows, errors) = made.map_err(arrow::arrow_error)?;
    Ok((Column(Arc::new(rows)), bad_rows(errors)))
}

fn of_headers(found: &ArrayRef) -> PyResult<&BinaryArray> {
    found.as_binary_opt::<i32>().ok_or_else(|| PyTypeError::new_err("headers are bytes"))
}

/// Decodes JSON.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct JsonDecoder(OfJson);

#[pymethods]
impl JsonDecoder {
    /// Into a type of Arrow.
    #[new]
    fn new(of: &Bound<'_, PyAny>) -> PyResult<Self> {
        OfJson::new(&arrow::import_type(of)?).map(Self).map_err(schema_error)
    }

    fn decode(&self, py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<(Column, Vec<BadRow>)> {
        let rows = arrow::import_column(rows)?;
        columns(uninterrupted(py, || self.0.decode(&rows)))
    }
}

/// Encodes JSON.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct JsonEncoder(ToJson);

#[pymethods]
impl JsonEncoder {
    /// Of a struct.
    #[new]
    fn new(of: &Bound<'_, PyAny>) -> PyResult<Self> {
        ToJson::new(&arrow::import_type(of)?).map(Self).map_err(schema_error)
    }

    /// The rows of a struct, each behind a byte 0 and the id of the schema, if there is one. An error gives the field too.
    fn encode(&self, py: Python<'_>, columns: &Bound<'_, PyAny>, number: Option<u32>) -> PyResult<Column> {
        encoded(py, columns, |columns| self.0.encode(columns, number))
    }
}

/// A schema of Protobuf: the text of a file, or a serialized `FileDescriptorSet`.
#[derive(FromPyObject)]
pub(crate) enum Protobuf {
    Text(String),
    Descriptors(Vec<u8>),
}

/// The files that a schema imports, by name.
type Imports = Vec<(String, String)>;

impl Protobuf {
    fn parsed(&self, imports: &Imports, message: Option<&str>) -> Result<ProtobufSchema, SchemaError> {
        match self {
            Self::Text(text) => ProtobufSchema::parse(text, imports),
            Self::Descriptors(set) => ProtobufSchema::from_descriptors(set, message),
        }
    }
}

/// Decodes Protobuf.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct ProtobufDecoder(OfProtobuf);

#[pymethods]
impl ProtobufDecoder {
    /// A decoder of a message, for rows that begin with the id of one of `writers` and the place of the message there, or,
    /// without those, for bare rows.
    #[new]
    #[pyo3(signature = (schema, imports, message, columns, writers))]
    fn new(
        py: Python<'_>,
        schema: Protobuf,
        imports: Imports,
        message: Option<&str>,
        columns: Option<Vec<String>>,
        writers: Option<Vec<(u32, String)>>,
    ) -> PyResult<Self> {
        let made = uninterrupted(py, || {
            let schema = schema.parsed(&imports, message)?;
            let framing = if writers.is_some() { Framing::Confluent } else { Framing::None };
            let mut decoder = OfProtobuf::new(&schema, message, columns.as_deref(), framing)?;
            for (number, text) in writers.unwrap_or_default() {
                let writer = ProtobufSchema::parse(&text, &imports);
                let writer = writer.map_err(|error| SchemaError(format!("schema id {number}: {error}")))?;
                decoder.add_writer(number, &writer);
            }
            Ok(decoder)
        });
        made.map(Self).map_err(schema_error)
    }

    /// The same with the schema of one more id, and the files that it imports; or with why its rows cannot be decoded.
    #[pyo3(signature = (number, schema, imports, why=None))]
    fn with_writer(
        &self,
        py: Python<'_>,
        number: u32,
        schema: &str,
        imports: Imports,
        why: Option<String>,
    ) -> Self {
        let mut decoder = self.0.clone();
        let parsed = uninterrupted(py, || {
            why.map_or_else(|| ProtobufSchema::parse(schema, &imports), |why| Err(SchemaError(why)))
        });
        match parsed {
            Ok(schema) => decoder.add_writer(number, &schema),
            Err(why) => decoder.refuse_writer(number, &why.0),
        }
        Self(decoder)
    }

    /// The ids that rows name and whose schemas are not known, each once.
    fn missing(&self, py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let rows = arrow::import_column(rows)?;
        uninterrupted(py, || self.0.missing(&rows)).map_err(arrow::arrow_error)
    }

    /// The values of rows, and the rows that could not be decoded.
    fn decode(&self, py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<(Column, Vec<BadRow>)> {
        let rows = arrow::import_column(rows)?;
        columns(uninterrupted(py, || self.0.decode(&rows)))
    }
}

/// Encodes Protobuf.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct ProtobufEncoder(ToProtobuf);

#[pymethods]
impl ProtobufEncoder {
    #[new]
    #[pyo3(signature = (schema, imports, message))]
    fn new(py: Python<'_>, schema: Protobuf, imports: Imports, message: Option<&str>) -> PyResult<Self> {
        let made = uninterrupted(py, || ToProtobuf::new(&schema.parsed(&imports, message)?, message));
        made.map(Self).map_err(schema_error)
    }

    /// The place of the message in its schema.
    fn place(&self) -> &[u8] {
        self.0.place()
    }

    /// The rows of a struct, each behind a byte 0, the id of the schema and the place of the message, if there is an id. An
    /// error gives the field too.
    fn encode(&self, py: Python<'_>, columns: &Bound<'_, PyAny>, number: Option<u32>) -> PyResult<Column> {
        encoded(py, columns, |columns| self.0.encode(columns, number))
    }
}

/// The column `headers` with one more header for each row that is not null: the GUID of the schema of keys, or of values,
/// and for Protobuf the place of the message.
#[pyfunction]
#[pyo3(signature = (found, rows, is_key, guid, place))]
pub(crate) fn with_schema_header(
    py: Python<'_>,
    found: Option<&Bound<'_, PyAny>>,
    rows: &Bound<'_, PyAny>,
    is_key: bool,
    guid: [u8; 16],
    place: &[u8],
) -> PyResult<Column> {
    let found = found.map(arrow::import_column).transpose()?;
    let rows = arrow::import_column(rows)?;
    let value = headers::guid_header(&guid, place);
    let made = uninterrupted(py, || {
        headers::with_header(found.as_deref(), &rows, headers::header_name(is_key), &value)
    });
    Ok(Column(Arc::new(made.map_err(arrow::arrow_error)?)))
}

/// The file of a schema as a `FileDescriptorProto` in base64, and the names of the files that it imports, but for Google's
/// own. Raises if it is no schema.
#[pyfunction]
#[pyo3(signature = (schema, imports, message=None))]
pub(crate) fn protobuf_file(
    py: Python<'_>,
    schema: Protobuf,
    imports: Imports,
    message: Option<&str>,
) -> PyResult<(String, Vec<String>)> {
    let parsed = uninterrupted(py, || schema.parsed(&imports, message)).map_err(schema_error)?;
    Ok((parsed.to_base64(), parsed.imports()))
}

/// What texts of Protobuf have in common that are one schema. Raises if it is none.
#[pyfunction]
pub(crate) fn protobuf_identity(py: Python<'_>, schema: &str) -> PyResult<Vec<u8>> {
    uninterrupted(py, || ProtobufSchema::identity(schema)).map_err(schema_error)
}

/// Why messages that were written with one schema of Protobuf cannot all be read with another: kind, place and reason. Both
/// come with the files that they import.
#[pyfunction]
pub(crate) fn protobuf_incompatibilities(
    py: Python<'_>,
    reader: (String, Imports),
    writer: (String, Imports),
) -> PyResult<Vec<(&'static str, String, String)>> {
    let parse = |(schema, imports): &(String, Imports)| ProtobufSchema::parse(schema, imports);
    let found = uninterrupted(py, || Ok(parse(&reader)?.incompatibilities(&parse(&writer)?)));
    let found = found.map_err(schema_error)?.into_iter();
    Ok(found.map(|one| (one.kind, one.path, one.why)).collect())
}

/// Decodes texts and numbers as Kafka's own serializers write them.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct TextDecoder(Text);

#[pymethods]
impl TextDecoder {
    /// By the name of the type: `string`, `bool`, `int16`, `int32`, `int64`, `float` or `double`.
    #[new]
    fn new(name: &str) -> PyResult<Self> {
        let (_, of) = TEXTS
            .into_iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| PyValueError::new_err(format!("no serializer of Kafka writes {name}")))?;
        Ok(Self(of))
    }

    fn decode(&self, py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<(Column, Vec<BadRow>)> {
        let rows = arrow::import_column(rows)?;
        columns(uninterrupted(py, || self.0.decode(&rows)))
    }
}

/// By the names that pyarrow has for the types.
const TEXTS: [(&str, Text); 7] = [
    ("string", Text::Utf8),
    ("bool", Text::Boolean),
    ("int16", Text::Int16),
    ("int32", Text::Int32),
    ("int64", Text::Int64),
    ("float", Text::Float32),
    ("double", Text::Float64),
];

fn columns(decoded: Result<Decoded, ArrowError>) -> PyResult<(Column, Vec<BadRow>)> {
    let decoded = decoded.map_err(arrow::arrow_error)?;
    Ok((Column(decoded.values), bad_rows(decoded.errors)))
}

fn bad_rows(errors: Vec<RowError>) -> Vec<BadRow> {
    errors.into_iter().map(|error| (error.row, error.field, error.kind.to_string())).collect()
}

/// An array, for whoever speaks the `PyCapsule` interface.
#[pyclass(frozen, module = "headrace._native")]
pub(crate) struct Column(ArrayRef);

#[pymethods]
impl Column {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        // No other type is offered than the one that it has, as the interface permits.
        drop(requested_schema);
        arrow::export_column(py, &self.0)
    }
}
