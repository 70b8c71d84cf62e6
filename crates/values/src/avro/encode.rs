//! Arrow columns to rows of Avro. What a column is to be is what decoding makes of the schema; columns are brought there, and
//! arrow-avro writes them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_array::builder::BinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{Array, BinaryArray, RecordBatch, RecordBatchOptions, StructArray};
use arrow_avro::schema::{FingerprintStrategy, SCHEMA_METADATA_KEY};
use arrow_avro::writer::format::{AvroBinaryFormat, AvroSoeFormat};
use arrow_avro::writer::{Encoder, WriterBuilder};
use arrow_schema::{DataType, Schema};
use serde_json::{Map, Value, json};

use super::schema::{AvroSchema, Kind, Logical, TypeId, kind_name};
use super::target::{Target, Targets};
use super::unions::{self, Unions};
use crate::column::Shape;
use crate::conform::{self, Conformed};
use crate::error::SchemaError;
use crate::wanted::Wanted;

/// Writes rows of one schema.
#[derive(Debug, Clone)]
pub struct AvroEncoder {
    shape: Shape,
    /// The schema and its columns, where unions of several types are to be put into them.
    unions: Option<(Arc<AvroSchema>, Arc<Target>)>,
    /// The schema once more, without references and with what arrow-avro knows.
    text: String,
}

impl AvroEncoder {
    /// An encoder for a schema, which must be a record.
    ///
    /// # Errors
    /// It is none, or a type within it cannot be a column.
    pub fn new(schema: &Arc<AvroSchema>) -> Result<Self, SchemaError> {
        if !matches!(schema.of(schema.root).kind, Kind::Record { .. }) {
            return Err(SchemaError::new("columns are written as a record, and the schema is none"));
        }
        let target = Targets::of(schema, &Wanted::all())?;
        let has_unions = unions::any(schema).map_err(SchemaError::new)?;
        let shape = target.shape(schema)?;
        let unions = has_unions.then(|| (schema.clone(), Arc::new(target)));
        let text = Writing { schema, named: HashSet::new() }.of(schema.root).to_string();
        Ok(Self { shape, unions, text })
    }

    /// The type that columns are brought to.
    #[must_use]
    pub fn data_type(&self) -> &DataType {
        &self.shape.data_type
    }

    /// The rows, each behind a byte 0 and the schema's `id` if there is one; null where a row of `columns` is.
    ///
    /// # Errors
    /// A column is missing or unknown, is null where its field is not, or has a value that its field cannot have.
    pub fn encode(&self, columns: &StructArray, id: Option<u32>) -> Conformed<BinaryArray> {
        let failed = |why: String| conform::failed("", why);
        let mut rows = conform::rows(&self.shape, columns)?;
        if let Some((schema, target)) = &self.unions {
            rows = Unions(schema).column(schema.root, target, &rows, columns.nulls(), "")?;
        }
        let rows = rows.as_struct_opt().ok_or_else(|| failed("it is no record".to_owned()))?;
        let metadata: HashMap<String, String> = [(SCHEMA_METADATA_KEY.to_owned(), self.text.clone())].into();
        let schema = Schema::new_with_metadata(rows.fields().clone(), metadata);
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
