//! Unions as arrow-avro takes them: columns as decoding gives them, structs of members, become unions of Arrow.
//!
//! A row of a dense union points at its place in the child of its branch. The children here are whole columns, in which each
//! row points at itself, so nothing is copied.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, ListArray, MapArray, NullArray, StructArray, UnionArray, new_empty_array,
};
use arrow_buffer::{NullBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Fields, UnionFields};

use super::schema::{AvroSchema, Kind, TypeId};
use super::target::{Member, Target, TargetKind};
use crate::conform::{Conformed, EncodeError, Held, failed, joined};

/// The most branches of a union that is written: Arrow counts them in a byte.
const BRANCHES_MAX: usize = 128;

/// Whether a schema has a union that is more than a type that may be null, or why one cannot be written.
pub(super) fn any(schema: &AvroSchema) -> Result<bool, String> {
    let mut found = false;
    for of in &schema.types {
        let Kind::Union(branches) = &of.kind else { continue };
        if branches.len() > BRANCHES_MAX {
            return Err(format!(
                "a union of {} types is not written, {BRANCHES_MAX} are the most",
                branches.len()
            ));
        }
        found |= is_several(schema, branches);
    }
    Ok(found)
}

fn is_null(schema: &AvroSchema, id: TypeId) -> bool {
    matches!(schema.of(id).kind, Kind::Null)
}

/// Whether it is no type that may be null.
fn is_several(schema: &AvroSchema, branches: &[TypeId]) -> bool {
    let others = branches.iter().filter(|id| !is_null(schema, **id)).count();
    others != 1 || branches.len() != 2
}

/// Puts unions into columns of one schema.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unions<'a>(pub(super) &'a AvroSchema);

impl Unions<'_> {
    /// A column of a type. Where `masked` is null nobody looks at it.
    pub(super) fn column(
        self,
        id: TypeId,
        target: &Target,
        given: &ArrayRef,
        masked: Option<&NullBuffer>,
        path: &str,
    ) -> Conformed<ArrayRef> {
        let (kind, seen) = (&self.0.of(id).kind, NullBuffer::union(masked, given.nulls()));
        let made: Result<ArrayRef, _> = match (kind, &target.kind) {
            (Kind::Union(branches), _) if is_several(self.0, branches) => {
                return self.union(branches, target, given, masked, path);
            }
            (Kind::Union(branches), _) => {
                let of = branches.iter().find(|id| !is_null(self.0, **id));
                return self.column(of.copied().unwrap_or(id), target, given, masked, path);
            }
            (Kind::Record { fields, .. }, TargetKind::Record(_, targets)) => {
                let rows = given.as_struct();
                let (mut columns, mut made) = (Vec::new(), Vec::new());
                for ((of, (at, target)), column) in rows.fields().iter().zip(targets).zip(rows.columns()) {
                    let Some(field) = fields.get(*at) else { continue };
                    let place = joined(path, &field.name);
                    let column = self.column(field.of, target, column, seen.as_ref(), &place)?;
                    made.push(self.field(field.of, of, &column));
                    columns.push(column);
                }
                StructArray::try_new_with_length(made.into(), columns, rows.nulls().cloned(), rows.len())
                    .map(|made| Arc::new(made) as _)
            }
            (Kind::Array(of), TargetKind::Array(item)) => {
                let DataType::List(field) = given.data_type() else { return Ok(given.clone()) };
                let list = given.as_list::<i32>();
                let masked = Held::of(list.offsets(), list.nulls()).masked;
                let items = self.column(*of, item, list.values(), masked.as_ref(), &format!("{path}[]"))?;
                let field = Arc::new(self.field(*of, field, &items));
                ListArray::try_new(field, list.offsets().clone(), items, list.nulls().cloned())
                    .map(|made| Arc::new(made) as _)
            }
            (Kind::Map(of), TargetKind::Map(value)) => {
                let map = given.as_map();
                let (DataType::Map(entries, sorted), [key, field]) =
                    (given.data_type(), &map.entries().fields()[..])
                else {
                    return Ok(given.clone());
                };
                let masked = Held::of(map.offsets(), map.nulls()).masked;
                let values = self.column(*of, value, map.values(), masked.as_ref(), &format!("{path}[]"))?;
                let fields = Fields::from(vec![key.as_ref().clone(), self.field(*of, field, &values)]);
                let entries = Field::new(entries.name(), DataType::Struct(fields.clone()), false);
                StructArray::try_new(fields, vec![map.keys().clone(), values], None)
                    .and_then(|pairs| {
                        let offsets = map.offsets().clone();
                        MapArray::try_new(Arc::new(entries), offsets, pairs, map.nulls().cloned(), *sorted)
                    })
                    .map(|made| Arc::new(made) as _)
            }
            _ => Ok(given.clone()),
        };
        made.map_err(|error| failed(path, error))
    }

    /// The field of a column that was made. A union has a null where that of its branch has one.
    fn field(self, id: TypeId, of: &Field, made: &ArrayRef) -> Field {
        let several = matches!(&self.0.of(id).kind, Kind::Union(branches) if is_several(self.0, branches));
        Field::new(of.name(), made.data_type().clone(), of.is_nullable() || several)
    }

    /// Each row in the branch of its type.
    fn union(
        self,
        branches: &[TypeId],
        target: &Target,
        given: &ArrayRef,
        masked: Option<&NullBuffer>,
        path: &str,
    ) -> Conformed<ArrayRef> {
        let null = branches.iter().position(|id| is_null(self.0, *id));
        let mut children: Vec<ArrayRef> = Vec::with_capacity(branches.len());
        let mut columns: Vec<(usize, &ArrayRef)> = Vec::new();
        for (at, branch) in branches.iter().enumerate() {
            let member = match &target.kind {
                _ if Some(at) == null => None,
                TargetKind::Members(members) => member(*branch, members, given, path)?,
                // The wider one of two numbers holds all values.
                TargetKind::Scalar(of) if of != branch => None,
                _ => Some((target, given)),
            };
            children.push(match member {
                Some((target, column)) => {
                    columns.push((at, column));
                    self.column(*branch, target, column, column.nulls(), path)?
                }
                None if Some(at) == null => Arc::new(NullArray::new(given.len())),
                None => new_empty_array(&narrow(&self.0.of(*branch).kind)),
            });
        }
        let ids = chosen(&columns, null, given, masked, path)?;
        let fields = children.iter().zip(0_i8..).map(|(child, id)| {
            (id, Arc::new(Field::new(format!("branch{id}"), child.data_type().clone(), true)))
        });
        let offsets = (0..i32::try_from(given.len()).unwrap_or(i32::MAX)).collect::<ScalarBuffer<i32>>();
        let made = UnionArray::try_new(fields.collect::<UnionFields>(), ids, Some(offsets), children);
        Ok(Arc::new(made.map_err(|error| failed(path, error))?))
    }
}

/// The column of a branch among a struct's.
fn member<'c>(
    branch: TypeId,
    members: &'c [Member],
    given: &'c ArrayRef,
    path: &str,
) -> Conformed<Option<(&'c Target, &'c ArrayRef)>> {
    let Some(member) = members.iter().find(|member| member.of == branch) else { return Ok(None) };
    let column = given.as_struct_opt().and_then(|rows| rows.column_by_name(&member.name));
    let column = column.ok_or_else(|| failed(path, format!("{} is no column", member.name)))?;
    Ok(Some((&member.target, column)))
}

/// The branch of each row, by the columns of the branches.
fn chosen(
    columns: &[(usize, &ArrayRef)],
    null: Option<usize>,
    given: &ArrayRef,
    masked: Option<&NullBuffer>,
    path: &str,
) -> Conformed<ScalarBuffer<i8>> {
    let at = |row: usize| if path.contains("[]") { String::new() } else { format!(" in row {row}") };
    let mut ids = Vec::with_capacity(given.len());
    for row in 0..given.len() {
        let is_null = given.is_null(row);
        let mut valid = columns.iter().filter(|(_, column)| !is_null && column.is_valid(row));
        let found = valid.next().map(|(branch, _)| *branch).or(null);
        let looked_at = masked.is_none_or(|masked| masked.is_valid(row));
        let why = match found {
            _ if !looked_at => None,
            Some(_) if valid.next().is_none() => None,
            Some(_) => Some(format!("more than one member of the union has a value{}", at(row))),
            None => Some(format!("it is null{}, which its type does not take", at(row))),
        };
        if let Some(why) = why {
            return Err(EncodeError { field: path.to_owned(), why });
        }
        ids.push(i8::try_from(found.unwrap_or(0)).unwrap_or(0));
    }
    Ok(ids.into())
}

/// The type of a number that is a branch beside a wider one.
fn narrow(kind: &Kind) -> DataType {
    match kind {
        Kind::Int => DataType::Int32,
        Kind::Long => DataType::Int64,
        Kind::Float => DataType::Float32,
        Kind::Double => DataType::Float64,
        _ => DataType::Null,
    }
}
