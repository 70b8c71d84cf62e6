//! Arrow columns to rows of JSON. Columns are brought to the type, and arrow-json writes them.

use std::sync::Arc;

use arrow_array::builder::BinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, BinaryArray, RecordBatch, RecordBatchOptions, StructArray};
use arrow_buffer::NullBuffer;
use arrow_json::LineDelimitedWriter;
use arrow_schema::{DataType, FieldRef, Fields, Schema};

use super::target;
use crate::column::Shape;
use crate::conform::{self, Conformed, failed, joined};
use crate::error::SchemaError;

/// Writes rows of one type.
#[derive(Debug, Clone)]
pub struct JsonEncoder {
    shape: Shape,
}

impl JsonEncoder {
    /// An encoder of a struct.
    ///
    /// # Errors
    /// It is none, or has a type within it that JSON is not decoded into.
    pub fn new(data_type: &DataType) -> Result<Self, SchemaError> {
        let (_, shape) = target::of(data_type)?;
        match &shape.data_type {
            DataType::Struct(_) => Ok(Self { shape: in_utc(shape) }),
            other => Err(SchemaError::new(format!("columns are written as an object, and not as {other}"))),
        }
    }

    /// The type that columns are brought to.
    #[must_use]
    pub fn data_type(&self) -> &DataType {
        &self.shape.data_type
    }

    /// The rows, each behind a byte 0 and the schema's `id` if there is one; null where a row of `columns` is. Fields that
    /// are null are left out.
    ///
    /// # Errors
    /// A column is missing or unknown, is null where its field is not, or has a value that JSON does not have.
    pub fn encode(&self, columns: &StructArray, id: Option<u32>) -> Conformed<BinaryArray> {
        let rows = conform::rows(&self.shape, columns)?;
        check_finite(&rows, None, "")?;
        let rows = rows.as_struct();
        let DataType::Struct(fields) = &self.shape.data_type else {
            return Err(failed("", "it is no struct"));
        };
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let schema = Arc::new(Schema::new(fields.clone()));
        let batch = RecordBatch::try_new_with_options(schema, rows.columns().to_vec(), &options);
        let mut writer = LineDelimitedWriter::new(Vec::new());
        writer.write(&batch.map_err(|error| failed("", error))?).map_err(|error| failed("", error))?;
        let written = writer.into_inner();
        let header = id.map(|id| [&[0][..], &id.to_be_bytes()].concat()).unwrap_or_default();
        if i32::try_from(written.len() + header.len() * rows.len()).is_err() {
            return Err(failed("", "the rows would have more than 2 GiB: encode fewer at a time"));
        }
        let mut made = BinaryBuilder::with_capacity(rows.len(), written.len() + header.len() * rows.len());
        let mut row = header.clone();
        // A line ends nowhere but behind a row: in a text it is escaped.
        for (number, line) in written.split(|byte| *byte == b'\n').take(rows.len()).enumerate() {
            if columns.is_null(number) {
                made.append_null();
                continue;
            }
            row.truncate(header.len());
            row.extend_from_slice(line);
            made.append_value(&row);
        }
        Ok(made.finish())
    }
}

/// The same with timestamps of any zone in UTC, by an offset: arrow-json knows no names of zones.
fn in_utc(shape: Shape) -> Shape {
    let children: Vec<_> = shape.children.into_iter().map(in_utc).collect();
    let renewed = |field: &FieldRef, of: DataType| Arc::new(field.as_ref().clone().with_data_type(of));
    let child = |at: usize| children.get(at).map_or(DataType::Null, |child| child.data_type.clone());
    let data_type = match shape.data_type {
        DataType::Timestamp(unit, Some(_)) => DataType::Timestamp(unit, Some(Arc::from("+00:00"))),
        DataType::List(item) => DataType::List(renewed(&item, child(0))),
        DataType::Map(entries, sorted) => {
            let pair = match entries.data_type() {
                DataType::Struct(pair) => renewed_all(pair, &children),
                other => other.clone(),
            };
            DataType::Map(renewed(&entries, pair), sorted)
        }
        DataType::Struct(fields) => renewed_all(&fields, &children),
        other => other,
    };
    Shape { data_type, symbols: shape.symbols, children }
}

/// A struct of fields with other types.
fn renewed_all(fields: &Fields, children: &[Shape]) -> DataType {
    let renewed = fields
        .iter()
        .zip(children)
        .map(|(field, child)| Arc::new(field.as_ref().clone().with_data_type(child.data_type.clone())));
    DataType::Struct(renewed.collect())
}

/// Raises for a number that is none of JSON, which arrow-json would write as a null. Where `masked` is null nobody looks.
fn check_finite(column: &ArrayRef, masked: Option<&NullBuffer>, path: &str) -> Conformed<()> {
    let seen = NullBuffer::union(masked, column.nulls());
    let check = |row: usize, is_finite: bool, shown: &dyn Fn() -> String| {
        if is_finite || seen.as_ref().is_some_and(|seen| seen.is_null(row)) {
            return Ok(());
        }
        Err(failed(path, format!("{} in row {row} is no number of JSON", shown())))
    };
    match column.data_type() {
        DataType::Float32 => {
            let values = column.as_primitive::<Float32Type>().values().iter().enumerate();
            values.into_iter().try_for_each(|(row, of)| check(row, of.is_finite(), &|| of.to_string()))
        }
        DataType::Float64 => {
            let values = column.as_primitive::<Float64Type>().values().iter().enumerate();
            values.into_iter().try_for_each(|(row, of)| check(row, of.is_finite(), &|| of.to_string()))
        }
        // Items below lists that are null have become none when columns were brought to their types.
        DataType::List(_) => check_finite(column.as_list::<i32>().values(), None, &format!("{path}[]")),
        DataType::Map(..) => check_finite(column.as_map().values(), None, &format!("{path}[]")),
        DataType::Struct(fields) => {
            column.as_struct().columns().iter().zip(fields).try_for_each(|(column, field)| {
                check_finite(column, seen.as_ref(), &joined(path, field.name()))
            })
        }
        _ => Ok(()),
    }
}
