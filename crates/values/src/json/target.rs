//! What a type of Arrow asks of JSON.

use std::collections::HashMap;

use arrow_schema::{DataType, Field, TimeUnit};

use super::cursor::Cursor;
use crate::column::Shape;
use crate::error::{Result, SchemaError};

/// The most columns, those within others included.
const COLUMNS_MAX: usize = 10_000;
/// How deep columns may be nested.
const DEPTH_MAX: usize = 60;
/// So many fields of a struct are found without a table.
const COMPARED_MAX: usize = 16;

/// A column, and what stands for it in JSON.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) nullable: bool,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Decimal { precision: u8, scale: i8 },
    Text,
    Date,
    Timestamp(TimeUnit),
    List(Box<Target>),
    Map(Box<Target>),
    Struct(Fields),
}

/// The fields of a struct.
#[derive(Debug, Clone)]
pub(super) struct Fields {
    pub(super) each: Vec<(String, Target)>,
    /// Each name as JSON has it most often, with its quotes and a colon.
    quoted: Vec<Vec<u8>>,
    by_name: HashMap<Vec<u8>, usize>,
}

impl Fields {
    /// A field's name with its quotes and a colon.
    #[inline]
    pub(super) fn quoted(&self, at: usize) -> Option<&[u8]> {
        self.quoted.get(at).map(Vec::as_slice)
    }

    /// The number of a field.
    pub(super) fn find(&self, name: &[u8]) -> Option<usize> {
        // A few lengths are looked at in less time than one hash takes.
        if self.each.len() <= COMPARED_MAX {
            return self.each.iter().position(|(field, _)| field.as_bytes() == name);
        }
        self.by_name.get(name).copied()
    }

    /// The field that the name stands for whose quote is next, up to the colon behind it. Escapes are resolved in `text`.
    pub(super) fn named(&self, cursor: &mut Cursor<'_>, text: &mut Vec<u8>) -> Result<Option<usize>> {
        if cursor.peek() != b'"' {
            return cursor.wrong("a name of an object should stand here");
        }
        let name = cursor.string()?;
        cursor.expect(b':', "a colon should stand here")?;
        if !name.escaped {
            return Ok(self.find(name.raw()));
        }
        name.unescape(text)?;
        Ok(self.find(text))
    }
}

type Made<T> = std::result::Result<T, SchemaError>;

/// What the values of a type become.
///
/// # Errors
/// The type, or one within it, is none that JSON is decoded into.
pub(super) fn of(data_type: &DataType) -> Made<(Target, Shape)> {
    let mut columns = 0;
    target(data_type, true, "", 0, &mut columns)
}

fn target(
    of: &DataType,
    nullable: bool,
    path: &str,
    depth: usize,
    columns: &mut usize,
) -> Made<(Target, Shape)> {
    *columns += 1;
    if depth > DEPTH_MAX || *columns > COLUMNS_MAX {
        let why =
            format!("the type has more than {COLUMNS_MAX} columns, or is nested more than {DEPTH_MAX} deep");
        return Err(SchemaError::new(why));
    }
    let mut child = |field: &Field, name: &str| {
        let path = if path.is_empty() || name.starts_with('[') {
            format!("{path}{name}")
        } else {
            format!("{path}.{name}")
        };
        target(field.data_type(), field.is_nullable(), &path, depth + 1, columns)
    };
    let mut children = Vec::new();
    let kind = match of {
        DataType::Null => Kind::Null,
        DataType::Boolean => Kind::Boolean,
        DataType::Int32 => Kind::Int,
        DataType::Int64 => Kind::Long,
        DataType::Float32 => Kind::Float,
        DataType::Float64 => Kind::Double,
        DataType::Decimal128(precision, scale) if *scale >= 0 => {
            Kind::Decimal { precision: *precision, scale: *scale }
        }
        DataType::Utf8 => Kind::Text,
        DataType::Date32 => Kind::Date,
        DataType::Timestamp(unit, _) if *unit != TimeUnit::Second => Kind::Timestamp(*unit),
        DataType::List(item) => {
            let (item, shape) = child(item, "[]")?;
            children.push(shape);
            Kind::List(Box::new(item))
        }
        DataType::Map(entries, false) => {
            let DataType::Struct(pair) = entries.data_type() else { return Err(not_taken(of, path)) };
            let [key, value] = &pair[..] else { return Err(not_taken(of, path)) };
            if key.data_type() != &DataType::Utf8 || key.is_nullable() {
                return Err(not_taken(of, path));
            }
            let (value, shape) = child(value, "[]")?;
            children = vec![Shape::plain(DataType::Utf8), shape];
            Kind::Map(Box::new(value))
        }
        DataType::Struct(fields) => {
            let (mut made, mut by_name) = (Vec::with_capacity(fields.len()), HashMap::new());
            for (at, field) in fields.iter().enumerate() {
                let (of, shape) = child(field, field.name())?;
                children.push(shape);
                if by_name.insert(field.name().as_bytes().to_vec(), at).is_some() {
                    return Err(SchemaError::new(format!(
                        "the field {:?} stands in its struct twice",
                        field.name()
                    )));
                }
                made.push((field.name().clone(), of));
            }
            let quoted = made
                .iter()
                .map(|(name, _)| format!("{}:", serde_json::Value::from(name.as_str())).into_bytes());
            Kind::Struct(Fields { quoted: quoted.collect(), each: made, by_name })
        }
        _ => return Err(not_taken(of, path)),
    };
    Ok((Target { nullable, kind }, Shape { data_type: of.clone(), symbols: None, children }))
}

fn not_taken(of: &DataType, path: &str) -> SchemaError {
    let at = if path.is_empty() { String::new() } else { format!("field {path}: ") };
    SchemaError::new(format!(
        "{at}JSON is not decoded into {of}; it is into bool, int32, int64, float, double, string, date32, timestamp in ms, \
         us or ns, decimal128, list, struct, map with keys of string, and null"
    ))
}
