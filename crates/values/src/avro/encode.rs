//! Arrow columns to rows of Avro. What a column is to be is what decoding makes of the schema; columns are brought there, and
//! arrow-avro writes them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_array::builder::BinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, DictionaryArray, Int32Array, ListArray, MapArray, NullArray, RecordBatch,
    RecordBatchOptions, StringArray, StructArray, make_array, new_null_array,
};
use arrow_avro::schema::{FingerprintStrategy, SCHEMA_METADATA_KEY};
use arrow_avro::writer::format::{AvroBinaryFormat, AvroSoeFormat};
use arrow_avro::writer::{Encoder, WriterBuilder};
use arrow_buffer::NullBuffer;
use arrow_cast::display::array_value_to_string;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, FieldRef, Schema};
use serde_json::{Map, Value, json};

use super::schema::{AvroSchema, Kind, Logical, TypeId, kind_name};
use super::target::{Target, TargetKind, Targets, Wanted};
use crate::error::SchemaError;

/// Why columns cannot be written with a schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", if field.is_empty() { String::new() } else { format!("field {field}: ") })]
pub struct EncodeError {
    /// As a path; empty for the columns as a whole.
    pub field: String,
    /// What is wrong.
    pub why: String,
}

type Conformed<T> = Result<T, EncodeError>;

/// Writes rows of one schema.
#[derive(Debug, Clone)]
pub struct AvroEncoder {
    schema: Arc<AvroSchema>,
    target: Target,
    data_type: DataType,
    /// The schema once more, without references and with what arrow-avro knows.
    text: String,
}

impl AvroEncoder {
    /// An encoder for a schema, which must be a record.
    ///
    /// # Errors
    /// It is none, or has a union of several types, or one within it cannot be a column.
    pub fn new(schema: Arc<AvroSchema>) -> Result<Self, SchemaError> {
        if !matches!(schema.of(schema.root).kind, Kind::Record { .. }) {
            return Err(SchemaError::new("columns are written as a record, and the schema is none"));
        }
        let target = Targets::of(&schema, &Wanted::all())?;
        if let Some(union) = schema.types.iter().find_map(|of| several(&schema, &of.kind)) {
            return Err(SchemaError::new(format!("a union of several types is not written: {union}")));
        }
        let data_type = target.shape(&schema)?.data_type;
        let text = Writing { schema: &schema, named: HashSet::new() }.of(schema.root).to_string();
        Ok(Self { schema, target, data_type, text })
    }

    /// The type that columns are brought to.
    #[must_use]
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// The rows, each behind a byte 0 and the schema's `id` if there is one; null where a row of `columns` is.
    ///
    /// # Errors
    /// A column is missing or unknown, is null where its field is not, or has a value that its field cannot have.
    pub fn encode(&self, columns: &StructArray, id: Option<u32>) -> Conformed<BinaryArray> {
        let failed = |why: String| failed("", why);
        let DataType::Struct(fields) = &self.data_type else {
            return Err(failed("it is no record".to_owned()));
        };
        let conform = Conform { schema: &self.schema };
        let rows: ArrayRef = Arc::new(columns.clone());
        let rows = conform.column(&self.target, &self.data_type, &rows, columns.nulls(), "")?;
        let rows = rows.as_struct();
        let metadata: HashMap<String, String> = [(SCHEMA_METADATA_KEY.to_owned(), self.text.clone())].into();
        let schema = Schema::new_with_metadata(fields.clone(), metadata);
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let batch =
            RecordBatch::try_new_with_options(Arc::new(schema.clone()), rows.columns().to_vec(), &options);
        let batch = batch.map_err(|error| failed(error.to_string()))?;
        let builder = WriterBuilder::new(schema);
        let encoder = match id {
            Some(id) => builder
                .with_fingerprint_strategy(FingerprintStrategy::Id(id))
                .build_encoder::<AvroSoeFormat>(),
            None => builder.build_encoder::<AvroBinaryFormat>(),
        };
        let mut encoder: Encoder = encoder.map_err(|error| failed(error.to_string()))?;
        encoder.encode(&batch).map_err(|error| failed(error.to_string()))?;
        let encoded = encoder.flush();
        let bytes = encoded.bytes();
        if i32::try_from(bytes.len()).is_err() {
            return Err(failed("the rows would have more than 2 GiB: encode fewer at a time".to_owned()));
        }
        let mut made = BinaryBuilder::with_capacity(rows.len(), bytes.len());
        for (row, ends) in encoded.offsets().windows(2).enumerate() {
            let [start, end] = ends else { continue };
            if columns.is_null(row) {
                made.append_null();
            } else {
                made.append_value(bytes.get(*start..*end).unwrap_or_default());
            }
        }
        Ok(made.finish())
    }
}

/// A union of more than one type besides null.
fn several(schema: &AvroSchema, kind: &Kind) -> Option<String> {
    let Kind::Union(branches) = kind else { return None };
    let others = branches.iter().filter(|id| !matches!(schema.of(**id).kind, Kind::Null));
    let names: Vec<_> = others.map(|id| schema.named(*id)).collect();
    (names.len() != 1 || branches.len() > 2).then(|| names.join(", "))
}

/// Columns of a caller to those of a schema.
struct Conform<'a> {
    schema: &'a AvroSchema,
}

impl Conform<'_> {
    /// A column as it is written. Where `masked` is null nobody looks at it, so that it may be null there whatever its type.
    fn column(
        &self,
        target: &Target,
        of: &DataType,
        given: &ArrayRef,
        masked: Option<&NullBuffer>,
        path: &str,
    ) -> Conformed<ArrayRef> {
        let seen = NullBuffer::union(masked, given.logical_nulls().as_ref());
        let made: ArrayRef = match &target.kind {
            TargetKind::Null => Arc::new(NullArray::new(given.len())),
            TargetKind::Scalar(id) => self.scalar(*id, of, given, path)?,
            TargetKind::Record(id, targets) => self.record((*id, targets), of, given, seen.as_ref(), path)?,
            TargetKind::Array(item) => self.list(item, of, given, path)?,
            TargetKind::Map(value) => self.map(value, of, given, path)?,
            // `AvroEncoder::new` takes no schema with one.
            TargetKind::Members(_) => return Err(mismatch(given, of, path)),
        };
        if target.nullable || matches!(target.kind, TargetKind::Null) {
            return Ok(made);
        }
        unmasked(&made, masked, path)
    }

    fn record(
        &self,
        (id, targets): (TypeId, &[(usize, Target)]),
        of: &DataType,
        given: &ArrayRef,
        seen: Option<&NullBuffer>,
        path: &str,
    ) -> Conformed<ArrayRef> {
        let wrong = || mismatch(given, of, path);
        let (Kind::Record { fields, .. }, DataType::Struct(types)) = (&self.schema.of(id).kind, of) else {
            return Err(wrong());
        };
        let rows = given.as_struct_opt().ok_or_else(wrong)?;
        let names: Vec<_> = fields.iter().map(|field| field.name.as_str()).collect();
        if let Some(extra) = rows.column_names().into_iter().find(|name| !names.contains(name)) {
            let why = format!("the schema has no such field; it has {}", names.join(", "));
            return Err(EncodeError { field: joined(path, extra), why });
        }
        let mut columns = Vec::with_capacity(targets.len());
        for ((at, target), field) in targets.iter().zip(types) {
            let name = names.get(*at).copied().unwrap_or_default();
            let place = joined(path, name);
            columns.push(match rows.column_by_name(name) {
                Some(column) => self.column(target, field.data_type(), column, seen, &place)?,
                None if target.nullable => new_null_array(field.data_type(), rows.len()),
                None => return Err(failed(&place, "there is no such column")),
            });
        }
        let made =
            StructArray::try_new_with_length(types.clone(), columns, rows.nulls().cloned(), rows.len());
        Ok(Arc::new(made.map_err(|error| failed(path, error))?))
    }

    fn list(&self, item: &Target, of: &DataType, given: &ArrayRef, path: &str) -> Conformed<ArrayRef> {
        let wrong = || mismatch(given, of, path);
        let DataType::List(field) = of else { return Err(wrong()) };
        let as_it_is = item_type(given).ok_or_else(wrong)?;
        let as_it_is = field.as_ref().clone().with_data_type(as_it_is).with_nullable(true);
        let list = cast(given, &DataType::List(Arc::new(as_it_is))).map_err(|why| failed(path, why))?;
        let list = list.as_list::<i32>();
        let items = self.column(item, field.data_type(), list.values(), None, &format!("{path}[]"))?;
        let made = ListArray::try_new(field.clone(), list.offsets().clone(), items, list.nulls().cloned());
        Ok(Arc::new(made.map_err(|error| failed(path, error))?))
    }

    fn map(&self, value: &Target, of: &DataType, given: &ArrayRef, path: &str) -> Conformed<ArrayRef> {
        let wrong = || mismatch(given, of, path);
        let DataType::Map(entries, sorted) = of else { return Err(wrong()) };
        let DataType::Struct(pair) = entries.data_type() else { return Err(wrong()) };
        let [_, field] = &pair[..] else { return Err(wrong()) };
        let map = given.as_map_opt().ok_or_else(wrong)?;
        let keys = cast(map.keys(), &DataType::Utf8).map_err(|why| failed(path, why))?;
        let values = self.column(value, field.data_type(), map.values(), None, &format!("{path}[]"))?;
        let pairs = StructArray::try_new(pair.clone(), vec![keys, values], None);
        let pairs = pairs.map_err(|error| failed(path, error))?;
        let (offsets, nulls) = (map.offsets().clone(), map.nulls().cloned());
        let made = MapArray::try_new(entries.clone(), offsets, pairs, nulls, *sorted);
        Ok(Arc::new(made.map_err(|error| failed(path, error))?))
    }

    fn scalar(&self, id: TypeId, of: &DataType, given: &ArrayRef, path: &str) -> Conformed<ArrayRef> {
        let Kind::Enum { symbols, name, .. } = &self.schema.of(id).kind else {
            return cast(given, of).map_err(|why| failed(path, why));
        };
        let numbers: HashMap<&str, i32> = symbols.iter().map(String::as_str).zip(0..).collect();
        let texts = cast(given, &DataType::Utf8).map_err(|why| failed(path, why))?;
        let mut keys = Vec::with_capacity(texts.len());
        for text in texts.as_string::<i32>() {
            let number = text.map(|text| {
                let shown = || text.chars().take(100).collect::<String>();
                let unknown = || failed(path, format!("{:?} is no symbol of {}", shown(), name.full));
                numbers.get(text).copied().ok_or_else(unknown)
            });
            keys.push(number.transpose()?);
        }
        let dictionary = Arc::new(StringArray::from_iter_values(symbols));
        let made = DictionaryArray::<Int32Type>::try_new(Int32Array::from(keys), dictionary);
        Ok(Arc::new(made.map_err(|error| failed(path, error))?))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is made to be given to map_err")]
fn failed(path: &str, why: impl ToString) -> EncodeError {
    EncodeError { field: path.to_owned(), why: why.to_string() }
}

fn mismatch(given: &ArrayRef, of: &DataType, path: &str) -> EncodeError {
    failed(path, format!("a column of {} is not written as {of}", given.data_type()))
}

/// A column that has no nulls, but where nobody looks.
fn unmasked(column: &ArrayRef, masked: Option<&NullBuffer>, path: &str) -> Conformed<ArrayRef> {
    let Some(nulls) = column.nulls().filter(|nulls| nulls.null_count() > 0) else {
        return Ok(column.clone());
    };
    let bare = |row: usize| nulls.is_null(row) && masked.is_none_or(|masked| masked.is_valid(row));
    if let Some(row) = (0..column.len()).find(|row| bare(*row)) {
        let at = if path.contains("[]") { String::new() } else { format!(" in row {row}") };
        return Err(EncodeError {
            field: path.to_owned(),
            why: format!("it is null{at}, which its type does not take"),
        });
    }
    let data = column.to_data().into_builder().nulls(None).build();
    data.map(make_array).map_err(|error| EncodeError { field: path.to_owned(), why: error.to_string() })
}

fn item_type(given: &ArrayRef) -> Option<DataType> {
    let item: &FieldRef = match given.data_type() {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => item,
        _ => return None,
    };
    Some(item.data_type().clone())
}

/// A column of another type, if it can have all its values.
fn cast(given: &ArrayRef, of: &DataType) -> Result<ArrayRef, String> {
    if given.data_type() == of {
        return Ok(given.clone());
    }
    let (from_text, to_text) = (is_text(given.data_type()), is_text(of));
    if from_text && !to_text && !matches!(of, DataType::Binary | DataType::FixedSizeBinary(_)) {
        return Err(format!("a text is not written as {of}"));
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let made = cast_with_options(given, of, &options).map_err(|error| error.to_string())?;
    if of.is_numeric() || of.is_temporal() {
        // A cast rounds and cuts off; what does not come back was lost.
        let back =
            cast_with_options(&made, given.data_type(), &options).map_err(|error| error.to_string())?;
        let lost = |row: &usize| back.slice(*row, 1) != given.slice(*row, 1);
        if back.as_ref() != given.as_ref()
            && let Some(row) = (0..given.len()).find(lost)
        {
            let value = array_value_to_string(given, row).map_err(|error| error.to_string())?;
            return Err(format!("{value} in row {row} cannot be written as {of}"));
        }
    }
    Ok(made)
}

fn is_text(of: &DataType) -> bool {
    match of {
        DataType::Dictionary(_, values) => is_text(values),
        _ => matches!(of, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View),
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// A schema as one JSON, in which each name is defined where it stands first.
struct Writing<'a> {
    schema: &'a AvroSchema,
    named: HashSet<TypeId>,
}

impl Writing<'_> {
    fn of(&mut self, id: TypeId) -> Value {
        let of = self.schema.of(id);
        let mut made = Map::new();
        let name = match &of.kind {
            Kind::Fixed { name, .. } | Kind::Enum { name, .. } | Kind::Record { name, .. } => {
                Some(&name.full)
            }
            _ => None,
        };
        if let Some(name) = name {
            if !self.named.insert(id) {
                return json!(name);
            }
            made.insert("name".to_owned(), json!(name));
        }
        let word = match &of.kind {
            Kind::Union(branches) => return branches.iter().map(|branch| self.of(*branch)).collect(),
            Kind::Fixed { size, .. } => {
                made.insert("size".to_owned(), json!(size));
                "fixed"
            }
            Kind::Enum { symbols, .. } => {
                made.insert("symbols".to_owned(), json!(symbols));
                "enum"
            }
            Kind::Array(item) => {
                made.insert("items".to_owned(), self.of(*item));
                "array"
            }
            Kind::Map(value) => {
                made.insert("values".to_owned(), self.of(*value));
                "map"
            }
            Kind::Record { fields, .. } => {
                let fields: Vec<_> = fields
                    .iter()
                    .map(|field| json!({"name": field.name, "type": self.of(field.of)}))
                    .collect();
                made.insert("fields".to_owned(), json!(fields));
                "record"
            }
            primitive => kind_name(primitive),
        };
        let logical = of.logical.filter(|logical| *logical != Logical::Uuid);
        if made.is_empty() && logical.is_none() {
            // As arrow-avro must have it, or it takes a union with null for one of several types.
            return json!(word);
        }
        made.insert("type".to_owned(), json!(word));
        match logical {
            None => {}
            Some(Logical::Decimal { precision, scale }) => {
                made.insert("logicalType".to_owned(), json!("decimal"));
                made.insert("precision".to_owned(), json!(precision));
                made.insert("scale".to_owned(), json!(scale));
            }
            Some(logical) => {
                made.insert("logicalType".to_owned(), json!(logical.name()));
            }
        }
        Value::Object(made)
    }
}
