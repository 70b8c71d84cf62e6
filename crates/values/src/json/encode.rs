//! Arrow columns to rows of JSON. Columns are brought to the type, and arrow-json writes them.

use std::sync::Arc;

use arrow_array::builder::BinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Float32Type, Float64Type, TimestampMicrosecondType, TimestampMillisecondType,
};
use arrow_array::{Array, ArrayRef, BinaryArray, RecordBatch, RecordBatchOptions, StringArray, StructArray};
use arrow_buffer::{ArrowNativeType, NullBuffer};
use arrow_cast::display::array_value_to_string;
use arrow_json::writer::{
    Encoder, EncoderFactory, EncoderOptions, LineDelimited, NullableEncoder, WriterBuilder, make_encoder,
};
use arrow_schema::{ArrowError, DataType, FieldRef, Fields, Schema, TimeUnit};

use super::target;
use crate::column::Shape;
use crate::conform::{self, Conformed, failed, joined};
use crate::error::SchemaError;

/// The days of the years 0 to 9999, from 1970 on.
const DAYS: std::ops::RangeInclusive<i64> = -719_528..=2_932_896;
const TIME: &str = "time of the years 0 to 9999, which RFC 3339 has";

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
        check_values(&rows, None, "")?;
        let rows = rows.as_struct();
        let DataType::Struct(fields) = &self.shape.data_type else {
            return Err(failed("", "it is no struct"));
        };
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let schema = Arc::new(Schema::new(fields.clone()));
        let batch = RecordBatch::try_new_with_options(schema, rows.columns().to_vec(), &options);
        let mut writer = WriterBuilder::new()
            .with_encoder_factory(Arc::new(MapsWithNulls))
            .build::<_, LineDelimited>(Vec::new());
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

/// Writes maps with their values that are null, which arrow-json leaves out as it does fields.
#[derive(Debug)]
struct MapsWithNulls;

impl EncoderFactory for MapsWithNulls {
    fn make_default_encoder<'a>(
        &self,
        _field: &'a FieldRef,
        array: &'a dyn Array,
        options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let Some(map) = array.as_map_opt() else { return Ok(None) };
        let ([_, field], Some(keys)) = (&map.entries().fields()[..], map.keys().as_string_opt::<i32>())
        else {
            return Ok(None);
        };
        let values = make_encoder(field, map.values(), options)?;
        let encoder = MapEncoder { offsets: map.value_offsets(), keys, values };
        Ok(Some(NullableEncoder::new(Box::new(encoder), map.nulls().cloned())))
    }
}

struct MapEncoder<'a> {
    offsets: &'a [i32],
    keys: &'a StringArray,
    values: NullableEncoder<'a>,
}

impl Encoder for MapEncoder<'_> {
    fn encode(&mut self, row: usize, to: &mut Vec<u8>) {
        let ends = self.offsets.get(row..row + 2).unwrap_or_default();
        let (first, end) =
            (ends.first().map_or(0, |at| at.as_usize()), ends.last().map_or(0, |at| at.as_usize()));
        to.push(b'{');
        for entry in first..end {
            if entry > first {
                to.push(b',');
            }
            to.extend_from_slice(serde_json::Value::from(self.keys.value(entry)).to_string().as_bytes());
            to.push(b':');
            if self.values.is_null(entry) {
                to.extend_from_slice(b"null");
            } else {
                self.values.encode(entry, to);
            }
        }
        to.push(b'}');
    }
}

/// Raises for a number that is none of JSON, which arrow-json would write as a null, and for a time that RFC 3339 does not
/// write. Where `masked` is null nobody looks.
fn check_values(column: &ArrayRef, masked: Option<&NullBuffer>, path: &str) -> Conformed<()> {
    let seen = NullBuffer::union(masked, column.nulls());
    let all = |is_good: &dyn Fn(usize) -> bool, what: &str| {
        let looked_at = |row: &usize| seen.as_ref().is_none_or(|seen| seen.is_valid(*row));
        let Some(row) = (0..column.len()).find(|row| !is_good(*row) && looked_at(row)) else { return Ok(()) };
        let shown = array_value_to_string(column, row).unwrap_or_default();
        Err(failed(path, format!("{shown} in row {row} is no {what}")))
    };
    let times = |values: &[i64], in_a_day: i64| {
        let is_written =
            |row: usize| values.get(row).is_some_and(|of| DAYS.contains(&of.div_euclid(in_a_day)));
        all(&is_written, TIME)
    };
    match column.data_type() {
        DataType::Float32 => {
            let values = column.as_primitive::<Float32Type>();
            all(&|row| values.value(row).is_finite(), "number of JSON")
        }
        DataType::Float64 => {
            let values = column.as_primitive::<Float64Type>();
            all(&|row| values.value(row).is_finite(), "number of JSON")
        }
        DataType::Date32 => {
            let values = column.as_primitive::<Date32Type>();
            all(&|row| DAYS.contains(&i64::from(values.value(row))), TIME)
        }
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            times(column.as_primitive::<TimestampMillisecondType>().values(), 86_400_000)
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            times(column.as_primitive::<TimestampMicrosecondType>().values(), 86_400_000_000)
        }
        // In nanoseconds there are only years that are written.
        // Items below lists that are null have become none when columns were brought to their types.
        DataType::List(_) => check_values(column.as_list::<i32>().values(), None, &format!("{path}[]")),
        DataType::Map(..) => check_values(column.as_map().values(), None, &format!("{path}[]")),
        DataType::Struct(fields) => {
            column.as_struct().columns().iter().zip(fields).try_for_each(|(column, field)| {
                check_values(column, seen.as_ref(), &joined(path, field.name()))
            })
        }
        _ => Ok(()),
    }
}
