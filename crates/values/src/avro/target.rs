//! What a reader's schema becomes in Arrow, and which of its fields are wanted.

use std::sync::Arc;

use arrow_array::StringArray;
use arrow_schema::{DataType, Field, Fields, IntervalUnit, TimeUnit};

use super::schema::{AvroSchema, Kind, Logical, TypeId};
use crate::column::Shape;
use crate::error::SchemaError;
use crate::wanted::Wanted;

/// The most columns of a value, those of nested records included.
const COLUMNS_MAX: usize = 20_000;
/// How deep types may be nested.
pub(super) const DEPTH_MAX: usize = 64;

/// The most fields that an error lists.
const NAMES_MAX: usize = 20;

/// A type of the reader's schema as a column.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) nullable: bool,
    pub(super) kind: TargetKind,
}

#[derive(Debug, Clone)]
pub(super) enum TargetKind {
    Null,
    /// What is no list, map or struct.
    Scalar(TypeId),
    /// The wanted fields of a record, by their number there.
    Record(TypeId, Vec<(usize, Target)>),
    Array(Box<Target>),
    Map(Box<Target>),
    /// The branches of a union, without null, of which each value has one.
    Members(Vec<Member>),
    /// Records of which each row may be one; stands for whole rows only.
    Records(Vec<Member>),
}

/// One of several types as a column.
#[derive(Debug, Clone)]
pub(super) struct Member {
    /// The column's.
    pub(super) name: String,
    pub(super) of: TypeId,
    pub(super) target: Target,
}

/// Makes the columns of a schema.
pub(super) struct Targets<'a> {
    schema: &'a AvroSchema,
    columns: usize,
    /// The records that are open, which may not stand within themselves.
    open: Vec<TypeId>,
}

type Made<T> = Result<T, SchemaError>;

impl<'a> Targets<'a> {
    /// What the wanted fields of a schema become.
    ///
    /// # Errors
    /// A field is wanted that is not there, or a type cannot be a column.
    pub(super) fn of(schema: &'a AvroSchema, wanted: &Wanted) -> Made<Target> {
        Targets { schema, columns: 0, open: Vec::new() }.target(schema.root, wanted)
    }

    /// What the wanted ones of several records become, each with the name of its column.
    ///
    /// # Errors
    /// As for `of`.
    pub(super) fn of_records(
        schema: &'a AvroSchema,
        records: &[(String, TypeId)],
        wanted: &Wanted,
    ) -> Made<Target> {
        let missing = wanted.fields.keys().find(|name| !records.iter().any(|(column, _)| column == *name));
        if let Some(missing) = missing {
            let columns: Vec<_> = records.iter().map(|(column, _)| column.as_str()).collect();
            let columns = columns.join(", ");
            return Err(SchemaError::new(format!(
                "there is no column {missing:?}; the records are {columns}"
            )));
        }
        let mut targets = Targets { schema, columns: 0, open: Vec::new() };
        let mut members = Vec::new();
        for (column, id) in records {
            let Some(of) = wanted.field(column) else { continue };
            let target = targets.target(*id, of)?;
            members.push(Member { name: column.clone(), of: *id, target });
        }
        Ok(Target { nullable: true, kind: TargetKind::Records(members) })
    }

    fn target(&mut self, id: TypeId, wanted: &Wanted) -> Made<Target> {
        self.columns += 1;
        if self.columns > COLUMNS_MAX {
            return Err(SchemaError::new(format!(
                "the schema has more than {COLUMNS_MAX} columns; name fewer in columns="
            )));
        }
        let kind = match &self.schema.of(id).kind {
            Kind::Union(branches) => return self.union(id, branches, wanted),
            Kind::Null | Kind::Open => TargetKind::Null,
            Kind::Array(item) => TargetKind::Array(Box::new(self.nested(id, *item, wanted)?)),
            Kind::Map(value) => TargetKind::Map(Box::new(self.nested(id, *value, wanted)?)),
            Kind::Record { .. } => return self.record(id, wanted),
            _ => TargetKind::Scalar(id),
        };
        if let (Some(name), TargetKind::Null | TargetKind::Scalar(_)) = (wanted.fields.keys().next(), &kind) {
            return Err(SchemaError::new(format!("there is no field {name:?} in {}", self.schema.named(id))));
        }
        Ok(Target { nullable: false, kind })
    }

    fn nested(&mut self, outer: TypeId, inner: TypeId, wanted: &Wanted) -> Made<Target> {
        if self.open.len() >= DEPTH_MAX {
            return Err(SchemaError::new(format!("types are nested more than {DEPTH_MAX} deep")));
        }
        self.open.push(outer);
        let made = self.target(inner, wanted);
        self.open.pop();
        made
    }

    fn record(&mut self, id: TypeId, wanted: &Wanted) -> Made<Target> {
        let schema = self.schema;
        let Kind::Record { name, fields } = &schema.of(id).kind else {
            return Ok(Target { nullable: false, kind: TargetKind::Null });
        };
        if self.open.contains(&id) {
            return Err(SchemaError::new(format!(
                "{:?} contains itself, which no column can: name the fields that you want in columns=",
                name.full
            )));
        }
        if let Some(missing) =
            wanted.fields.keys().find(|name| !fields.iter().any(|field| field.name == **name))
        {
            let mut known: Vec<_> = fields.iter().take(NAMES_MAX).map(|field| field.name.as_str()).collect();
            if fields.len() > NAMES_MAX {
                known.push("...");
            }
            let known = known.join(", ");
            return Err(SchemaError::new(format!(
                "there is no field {missing:?} in {:?}, which has {known}",
                name.full
            )));
        }
        let mut targets = Vec::new();
        for (at, field) in fields.iter().enumerate() {
            let Some(of) = wanted.field(&field.name) else { continue };
            let made = self.nested(id, field.of, of);
            let made = made
                .map_err(|why| SchemaError::new(format!("field {:?} of {}: {why}", field.name, name.full)))?;
            targets.push((at, made));
        }
        Ok(Target { nullable: false, kind: TargetKind::Record(id, targets) })
    }

    fn union(&mut self, union: TypeId, branches: &[TypeId], wanted: &Wanted) -> Made<Target> {
        let is_null = |id: &TypeId| matches!(self.schema.of(*id).kind, Kind::Null);
        let nullable = branches.iter().any(is_null);
        let members: Vec<TypeId> = branches.iter().copied().filter(|id| !is_null(id)).collect();
        let kind = match members[..] {
            [] => TargetKind::Null,
            [one] => {
                let one = self.target(one, wanted)?;
                return Ok(Target { nullable, ..one });
            }
            _ => {
                if let Some(number) = self.widest(&members) {
                    return Ok(Target { nullable, kind: TargetKind::Scalar(number) });
                }
                if let Some(name) = wanted.fields.keys().next() {
                    let why = "a union's members are wanted as a whole";
                    return Err(SchemaError::new(format!("there is no field {name:?}: {why}")));
                }
                let members = members.iter().enumerate().map(|(number, id)| {
                    let target = self.nested(union, *id, wanted)?;
                    Ok(Member { name: format!("member{number}"), of: *id, target })
                });
                TargetKind::Members(members.collect::<Made<_>>()?)
            }
        };
        Ok(Target { nullable, kind })
    }

    /// The type of two numbers of which one holds the other.
    fn widest(&self, members: &[TypeId]) -> Option<TypeId> {
        let [a, b] = *members else { return None };
        let (of_a, of_b) = (self.schema.of(a), self.schema.of(b));
        if of_a.logical.is_some() || of_b.logical.is_some() {
            return None;
        }
        match (&of_a.kind, &of_b.kind) {
            (Kind::Long, Kind::Int) | (Kind::Double, Kind::Float) => Some(a),
            (Kind::Int, Kind::Long) | (Kind::Float, Kind::Double) => Some(b),
            _ => None,
        }
    }
}

impl Target {
    /// The column.
    pub(super) fn shape(&self, schema: &AvroSchema) -> Made<Shape> {
        let field = |name: &str, of: &Target, shape: &Shape| {
            Field::new(name, shape.data_type.clone(), of.nullable || matches!(of.kind, TargetKind::Null))
        };
        Ok(match &self.kind {
            TargetKind::Null => Shape::plain(DataType::Null),
            TargetKind::Scalar(id) => scalar(schema, *id)?,
            TargetKind::Array(item) => {
                let shape = item.shape(schema)?;
                let data_type = DataType::List(Arc::new(field("item", item, &shape)));
                Shape { data_type, symbols: None, children: vec![shape] }
            }
            TargetKind::Map(value) => {
                let (key, shape) = (Shape::plain(DataType::Utf8), value.shape(schema)?);
                let fields = [Field::new("key", DataType::Utf8, false), field("value", value, &shape)];
                let entries = DataType::Struct(Fields::from_iter(fields));
                let data_type = DataType::Map(Arc::new(Field::new("entries", entries, false)), false);
                Shape { data_type, symbols: None, children: vec![key, shape] }
            }
            TargetKind::Record(id, targets) => {
                let Kind::Record { fields: of, .. } = &schema.of(*id).kind else {
                    return Ok(Shape::plain(DataType::Null));
                };
                let (mut fields, mut children) = (Vec::new(), Vec::new());
                for (at, target) in targets {
                    let shape = target.shape(schema)?;
                    fields.push(field(of.get(*at).map_or("", |field| &field.name), target, &shape));
                    children.push(shape);
                }
                Shape { data_type: DataType::Struct(fields.into()), symbols: None, children }
            }
            TargetKind::Members(members) | TargetKind::Records(members) => {
                let (mut fields, mut children) = (Vec::new(), Vec::new());
                for member in members {
                    let shape = member.target.shape(schema)?;
                    fields.push(Field::new(&member.name, shape.data_type.clone(), true));
                    children.push(shape);
                }
                Shape { data_type: DataType::Struct(fields.into()), symbols: None, children }
            }
        })
    }
}

fn scalar(schema: &AvroSchema, id: TypeId) -> Made<Shape> {
    let of = schema.of(id);
    let utc = || Some(Arc::from("UTC"));
    Ok(Shape::plain(match (&of.kind, of.logical) {
        (_, Some(Logical::Decimal { precision, scale })) if precision <= 38 => {
            DataType::Decimal128(precision, scale)
        }
        (_, Some(Logical::Decimal { precision, scale })) if precision <= super::schema::DIGITS_MAX => {
            DataType::Decimal256(precision, scale)
        }
        (_, Some(Logical::Decimal { precision, .. })) => {
            let most = super::schema::DIGITS_MAX;
            return Err(SchemaError::new(format!("a decimal of {precision} digits has more than {most}")));
        }
        (_, Some(Logical::Date)) => DataType::Date32,
        (_, Some(Logical::TimeMillis)) => DataType::Time32(TimeUnit::Millisecond),
        (_, Some(Logical::TimeMicros)) => DataType::Time64(TimeUnit::Microsecond),
        (_, Some(Logical::TimestampMillis)) => DataType::Timestamp(TimeUnit::Millisecond, utc()),
        (_, Some(Logical::TimestampMicros)) => DataType::Timestamp(TimeUnit::Microsecond, utc()),
        (_, Some(Logical::TimestampNanos)) => DataType::Timestamp(TimeUnit::Nanosecond, utc()),
        (_, Some(Logical::LocalTimestampMillis)) => DataType::Timestamp(TimeUnit::Millisecond, None),
        (_, Some(Logical::LocalTimestampMicros)) => DataType::Timestamp(TimeUnit::Microsecond, None),
        (_, Some(Logical::LocalTimestampNanos)) => DataType::Timestamp(TimeUnit::Nanosecond, None),
        (_, Some(Logical::Duration)) => DataType::Interval(IntervalUnit::MonthDayNano),
        (Kind::Boolean, _) => DataType::Boolean,
        (Kind::Int, _) => DataType::Int32,
        (Kind::Long, _) => DataType::Int64,
        (Kind::Float, _) => DataType::Float32,
        (Kind::Double, _) => DataType::Float64,
        (Kind::Bytes, _) => DataType::Binary,
        (Kind::Fixed { size, .. }, _) => match i32::try_from(*size) {
            Ok(size) => DataType::FixedSizeBinary(size),
            Err(_) => return Err(SchemaError::new(format!("a fixed of {size} bytes is too large"))),
        },
        (Kind::Enum { symbols, .. }, _) => {
            let data_type = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
            let symbols = Some(Arc::new(StringArray::from_iter_values(symbols)));
            return Ok(Shape { data_type, symbols, children: Vec::new() });
        }
        _ => DataType::Utf8,
    }))
}
