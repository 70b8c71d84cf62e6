//! How a value that was written with one schema is read into the columns of another (Avro 1.12, "Schema Resolution").

use arrow_buffer::i256;

use super::default;
use super::schema::{AvroSchema, Kind, Logical, Name, TypeId};
use super::target::{Member, Target, TargetKind};

/// The most operations of one plan: unions of unions multiply.
const OPS_MAX: usize = 200_000;

/// Reads one value from the bytes into one column.
#[derive(Debug, PartialEq)]
pub(super) enum Op {
    /// Nothing is read; the column is one of nulls only.
    Null,
    /// Nothing is read; the row is null.
    PushNull,
    Boolean,
    Int,
    Long,
    TimeMillis,
    TimeMicros,
    Float,
    Double,
    IntToLong,
    IntToFloat,
    IntToDouble,
    LongToFloat,
    LongToDouble,
    FloatToDouble,
    /// Bytes or a string, which have the same form.
    Bytes,
    Fixed(usize),
    /// The reader's number of each symbol of the writer.
    Enum(Vec<Result<i32, String>>),
    /// Bytes, or so many of them, and what the number stays below.
    Decimal {
        size: Option<usize>,
        precision: u8,
        below: i128,
    },
    LargeDecimal {
        size: Option<usize>,
        precision: u8,
        below: i256,
    },
    Duration,
    Array(Box<Op>),
    Map(Box<Op>),
    Record(Vec<Step>),
    /// A union of null and one other type, by the number of null.
    Nullable(i64, Box<Op>),
    /// A union, by the branch that was written.
    Union(Vec<Op>),
    /// One of the members of a struct; the others are null.
    Member(usize, Box<Op>),
    /// None of the members of a struct, all of which are null: what was written is skipped.
    NoMember(Skip),
    /// A branch that the reader's schema does not take.
    NotTaken(String),
}

/// What is done for one field of a record, in the order in which they were written.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Read {
        column: usize,
        name: String,
        op: Op,
    },
    /// Fields that follow each other and that nobody asked for.
    Skip(Vec<SkippedField>),
    /// A field that was not written: its default, as bytes of its type.
    Default {
        column: usize,
        name: String,
        bytes: Vec<u8>,
        op: Op,
    },
}

impl Op {
    /// Those of a record.
    pub(super) fn steps(&self) -> &[Step] {
        if let Self::Record(steps) = self { steps } else { &[] }
    }
}

#[derive(Debug, PartialEq)]
pub(super) struct SkippedField {
    pub(super) name: String,
    pub(super) of: Skip,
}

/// What is skipped.
#[derive(Debug)]
pub(super) enum Skip {
    Varint,
    /// Bytes with their length in front.
    Bytes,
    Boolean,
    Fixed(usize),
    /// A union of null, which has this number, and one other type.
    Nullable(i64, Box<Skip>),
    /// A type of the writer's schema.
    Other(TypeId),
}

impl Skip {
    fn of(schema: &AvroSchema, id: TypeId) -> Self {
        match &schema.of(id).kind {
            Kind::Int | Kind::Long | Kind::Enum { .. } => Self::Varint,
            Kind::Boolean => Self::Boolean,
            Kind::Float => Self::Fixed(4),
            Kind::Double => Self::Fixed(8),
            Kind::Bytes | Kind::String => Self::Bytes,
            Kind::Fixed { size, .. } => Self::Fixed(*size),
            Kind::Union(branches) => {
                let is_null = |id: &TypeId| matches!(schema.of(*id).kind, Kind::Null);
                match branches[..] {
                    // A union has no union among its branches, so this ends.
                    [a, b] if is_null(&a) && !is_null(&b) => Self::Nullable(0, Box::new(Self::of(schema, b))),
                    [a, b] if is_null(&b) && !is_null(&a) => Self::Nullable(1, Box::new(Self::of(schema, a))),
                    _ => Self::Other(id),
                }
            }
            _ => Self::Other(id),
        }
    }
}

/// Types of two schemas are never the same, whatever their numbers.
impl PartialEq for Skip {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Varint, Self::Varint) | (Self::Bytes, Self::Bytes) | (Self::Boolean, Self::Boolean) => {
                true
            }
            (Self::Fixed(a), Self::Fixed(b)) => a == b,
            (Self::Nullable(a, of), Self::Nullable(b, other)) => a == b && of == other,
            _ => false,
        }
    }
}

/// Why a type cannot be read as another.
type Mismatch = String;

/// Makes the plan for one writer's schema.
pub(super) struct Planner<'a> {
    writer: &'a AvroSchema,
    reader: &'a AvroSchema,
    ops: usize,
}

impl<'a> Planner<'a> {
    /// How values of the writer's schema are read into the columns of the reader's.
    ///
    /// # Errors
    /// What does not match.
    pub(super) fn plan(
        writer: &'a AvroSchema,
        reader: &'a AvroSchema,
        target: &Target,
    ) -> Result<Op, Mismatch> {
        Planner { writer, reader, ops: 0 }.resolve(writer.root, target)
    }

    fn resolve(&mut self, id: TypeId, target: &Target) -> Result<Op, Mismatch> {
        self.ops += 1;
        if self.ops > OPS_MAX {
            return Err(format!("it takes more than {OPS_MAX} steps"));
        }
        let writer = self.writer;
        match &writer.of(id).kind {
            Kind::Union(branches) => self.union(branches, target),
            Kind::Null if matches!(target.kind, TargetKind::Null) => Ok(Op::Null),
            Kind::Null if target.nullable => Ok(Op::PushNull),
            kind => self.value(id, kind, target),
        }
    }

    fn union(&mut self, branches: &[TypeId], target: &Target) -> Result<Op, Mismatch> {
        let mut ops = Vec::with_capacity(branches.len());
        let mut why = None;
        for branch in branches {
            ops.push(self.resolve(*branch, target).unwrap_or_else(|mismatch| {
                why.get_or_insert_with(|| mismatch.clone());
                Op::NotTaken(mismatch)
            }));
        }
        if let Some(why) = why.filter(|_| ops.iter().all(|op| matches!(op, Op::NotTaken(_)))) {
            return Err(why);
        }
        if ops.len() == 2
            && let Some(null) = ops.iter().position(|op| matches!(op, Op::PushNull))
        {
            let other = ops.swap_remove(1 - null);
            return Ok(Op::Nullable(i64::from(null == 1), Box::new(other)));
        }
        Ok(Op::Union(ops))
    }

    fn value(&mut self, id: TypeId, kind: &Kind, target: &Target) -> Result<Op, Mismatch> {
        match &target.kind {
            TargetKind::Null => Err(self.mismatch(id, "null")),
            TargetKind::Scalar(reader) => self.scalar(id, *reader),
            TargetKind::Array(item) => match kind {
                Kind::Array(of) => Ok(Op::Array(Box::new(self.resolve(*of, item)?))),
                _ => Err(self.mismatch(id, "an array")),
            },
            TargetKind::Map(value) => match kind {
                Kind::Map(of) => Ok(Op::Map(Box::new(self.resolve(*of, value)?))),
                _ => Err(self.mismatch(id, "a map")),
            },
            TargetKind::Record(reader, fields) => self.record(id, *reader, fields),
            TargetKind::Members(members) => self.member(id, members),
            TargetKind::Records(members) => self.one_of(id, kind, members),
        }
    }

    fn mismatch(&self, id: TypeId, reader: &str) -> Mismatch {
        format!("{} is not {reader}", self.writer.named(id))
    }

    /// The member that a value goes to: the one of the same type and name, else of the same type, else of a wider one.
    fn member(&mut self, id: TypeId, members: &[Member]) -> Result<Op, Mismatch> {
        let same =
            |exactly: bool, reader: TypeId| match (&self.writer.of(id).kind, &self.reader.of(reader).kind) {
                (
                    Kind::Record { name: a, .. } | Kind::Enum { name: a, .. } | Kind::Fixed { name: a, .. },
                    Kind::Record { name: b, .. } | Kind::Enum { name: b, .. } | Kind::Fixed { name: b, .. },
                ) => {
                    if exactly {
                        a.full == b.full
                    } else {
                        matches(a, b)
                    }
                }
                (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
            };
        let mut order: Vec<(usize, usize)> = Vec::new();
        for (number, member) in members.iter().enumerate() {
            let rank = if same(true, member.of) {
                0
            } else if same(false, member.of) {
                1
            } else {
                2
            };
            order.push((rank, number));
        }
        order.sort_unstable();
        for (rank, number) in order {
            let Some(member) = members.get(number) else { continue };
            let is_record = matches!(self.reader.of(member.of).kind, Kind::Record { .. });
            // A record of another name is another thing, whatever its fields.
            if rank == 2 && is_record {
                continue;
            }
            if let Ok(op) = self.resolve(id, &member.target) {
                return Ok(Op::Member(number, Box::new(op)));
            }
        }
        Err(format!("{} is none of the reader's union", self.writer.named(id)))
    }

    /// The column of a record that is one of several, by its whole name or an alias. What is none of them is no error.
    fn one_of(&mut self, id: TypeId, kind: &Kind, members: &[Member]) -> Result<Op, Mismatch> {
        let reader = self.reader;
        let found = |is: &dyn Fn(&Name, &Name) -> bool| {
            members.iter().position(|member| match (kind, &reader.of(member.of).kind) {
                (Kind::Record { name: writer, .. }, Kind::Record { name: reader, .. }) => is(writer, reader),
                _ => false,
            })
        };
        let number = found(&|writer, reader| writer.full == reader.full)
            .or_else(|| found(&|writer, reader| reader.aliases.contains(&writer.full)));
        match number.and_then(|number| Some((number, members.get(number)?))) {
            Some((number, member)) => Ok(Op::Member(number, Box::new(self.resolve(id, &member.target)?))),
            None => Ok(Op::NoMember(Skip::of(self.writer, id))),
        }
    }

    fn scalar(&self, id: TypeId, reader_id: TypeId) -> Result<Op, Mismatch> {
        let (writer, reader) = (self.writer.of(id), self.reader.of(reader_id));
        let mismatch = || Err(self.mismatch(id, &self.reader.named(reader_id)));
        if let (Some(a), Some(b)) = (writer.logical, reader.logical)
            && a != b
        {
            return mismatch();
        }
        Ok(match (&writer.kind, &reader.kind, reader.logical) {
            (Kind::Bytes, Kind::Bytes, Some(Logical::Decimal { precision, .. })) => decimal(None, precision),
            (Kind::Fixed { size, name }, Kind::Fixed { size: wanted, name: other }, logical) => {
                if size != wanted || !matches(name, other) {
                    return mismatch();
                }
                match logical {
                    Some(Logical::Decimal { precision, .. }) => decimal(Some(*size), precision),
                    Some(Logical::Duration) => Op::Duration,
                    _ => Op::Fixed(*size),
                }
            }
            (Kind::Boolean, Kind::Boolean, _) => Op::Boolean,
            (Kind::Int, Kind::Int, Some(Logical::TimeMillis)) => Op::TimeMillis,
            (Kind::Long, Kind::Long, Some(Logical::TimeMicros)) => Op::TimeMicros,
            (Kind::Int, Kind::Int, _) => Op::Int,
            (Kind::Int, Kind::Long, _) => Op::IntToLong,
            (Kind::Int, Kind::Float, _) => Op::IntToFloat,
            (Kind::Int, Kind::Double, _) => Op::IntToDouble,
            (Kind::Long, Kind::Long, _) => Op::Long,
            (Kind::Long, Kind::Float, _) => Op::LongToFloat,
            (Kind::Long, Kind::Double, _) => Op::LongToDouble,
            (Kind::Float, Kind::Float, _) => Op::Float,
            (Kind::Float, Kind::Double, _) => Op::FloatToDouble,
            (Kind::Double, Kind::Double, _) => Op::Double,
            (Kind::Bytes | Kind::String, Kind::Bytes | Kind::String, None | Some(Logical::Uuid)) => Op::Bytes,
            (Kind::Enum { name, symbols, .. }, Kind::Enum { name: other, symbols: wanted, default }, _) => {
                if !matches(name, other) {
                    return mismatch();
                }
                let number = |symbol: &String| wanted.iter().position(|other| other == symbol);
                let number = |symbol: &String| {
                    let found = number(symbol).or_else(|| default.as_ref().and_then(number));
                    found.and_then(|at| i32::try_from(at).ok()).ok_or_else(|| symbol.clone())
                };
                Op::Enum(symbols.iter().map(number).collect())
            }
            _ => return mismatch(),
        })
    }

    fn record(&mut self, id: TypeId, reader_id: TypeId, targets: &[(usize, Target)]) -> Result<Op, Mismatch> {
        let (writer, reader) = (self.writer, self.reader);
        let (Kind::Record { fields, name, .. }, Kind::Record { fields: wanted, .. }) =
            (&writer.of(id).kind, &reader.of(reader_id).kind)
        else {
            return Err(self.mismatch(id, &reader.named(reader_id)));
        };
        let mut steps = Vec::with_capacity(fields.len());
        let mut found = vec![false; targets.len()];
        for field in fields {
            let is_it = |at: usize| {
                let wanted = wanted.get(at)?;
                (wanted.name == field.name || wanted.aliases.contains(&field.name)).then_some(wanted)
            };
            // The field of that name comes before one that had it once.
            let by_name =
                targets.iter().position(|(at, _)| wanted.get(*at).is_some_and(|of| of.name == field.name));
            let column = by_name.or_else(|| targets.iter().position(|(at, _)| is_it(*at).is_some()));
            let column = column.filter(|column| !found.get(*column).copied().unwrap_or(true));
            let Some((column, (_, target))) = column.and_then(|column| Some((column, targets.get(column)?)))
            else {
                let field = SkippedField { name: field.name.clone(), of: Skip::of(writer, field.of) };
                match steps.last_mut() {
                    Some(Step::Skip(fields)) => fields.push(field),
                    _ => steps.push(Step::Skip(vec![field])),
                }
                continue;
            };
            let op =
                self.resolve(field.of, target).map_err(|why| format!("field {:?}: {why}", field.name))?;
            if let Some(found) = found.get_mut(column) {
                *found = true;
            }
            steps.push(Step::Read { column, name: field.name.clone(), op });
        }
        for (column, (at, target)) in targets.iter().enumerate() {
            let Some(field) = wanted.get(*at).filter(|_| !found.get(column).copied().unwrap_or(true)) else {
                continue;
            };
            let Some(value) = &field.default else {
                return Err(format!("{} has no field {:?}, which has no default", name.full, field.name));
            };
            let bytes = default::encode(reader, field.of, value)
                .map_err(|why| format!("the default of field {:?}: {why}", field.name))?;
            let op = Planner { writer: reader, reader, ops: self.ops }.resolve(field.of, target)?;
            steps.push(Step::Default { column, name: field.name.clone(), bytes, op });
        }
        Ok(Op::Record(steps))
    }
}

/// Whether a writer's type is the reader's by name, or by a name that it had.
pub(super) fn matches(writer: &Name, reader: &Name) -> bool {
    writer.simple() == reader.simple() || reader.aliases.contains(&writer.full)
}

fn decimal(size: Option<usize>, precision: u8) -> Op {
    match 10_i128.checked_pow(precision.into()) {
        Some(below) if precision <= 38 => Op::Decimal { size, precision, below },
        _ => {
            let below = i256::from_i128(10).checked_pow(precision.into()).unwrap_or(i256::MAX);
            Op::LargeDecimal { size, precision, below }
        }
    }
}
