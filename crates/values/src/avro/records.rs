//! Several records as the columns of one decoder, for rows of several types.

use std::sync::Arc;

use super::schema::{AvroSchema, Kind, Name, TYPES_MAX, Type, TypeId};
use crate::error::SchemaError;

/// A record that becomes a column.
#[derive(Debug, Clone)]
pub struct RecordColumn {
    /// What the column is called.
    pub column: String,
    /// The name of the record, with its namespace.
    pub record: String,
    /// The record's schema, or one in which it stands, such as a union.
    pub schema: Arc<AvroSchema>,
}

/// One schema with all the types of several, and the column and type of each record. What types of two schemas are called
/// alike is no matter: types name each other by number.
pub(super) fn merged(records: &[RecordColumn]) -> Result<(AvroSchema, Vec<(String, TypeId)>), SchemaError> {
    let mut types: Vec<Type> = Vec::new();
    let mut found: Vec<(String, TypeId)> = Vec::new();
    for RecordColumn { column, record, schema } in records {
        if found.iter().any(|(other, _)| other == column) {
            return Err(SchemaError::new(format!(
                "two of the records would be column {column:?}: give their columns names"
            )));
        }
        let is_it =
            |of: &Type| matches!(&of.kind, Kind::Record { name: Name { full, .. }, .. } if full == record);
        let Some(id) = schema.types.iter().position(is_it) else {
            return Err(SchemaError::new(format!(
                "there is no record {record:?} in {}",
                schema.named(schema.root)
            )));
        };
        if types.len() + schema.types.len() > TYPES_MAX {
            return Err(SchemaError::new(format!("the schemas have more than {TYPES_MAX} types")));
        }
        let before = types.len();
        types.extend(schema.types.iter().map(|of| moved(of, before)));
        found.push((column.clone(), before + id));
    }
    Ok((AvroSchema { types, root: found.first().map_or(0, |(_, id)| *id) }, found))
}

/// A type behind so many others.
fn moved(of: &Type, by: usize) -> Type {
    let mut of = of.clone();
    match &mut of.kind {
        Kind::Array(inner) | Kind::Map(inner) => *inner += by,
        Kind::Union(branches) => branches.iter_mut().for_each(|branch| *branch += by),
        Kind::Record { fields, .. } => fields.iter_mut().for_each(|field| field.of += by),
        _ => {}
    }
    of
}
