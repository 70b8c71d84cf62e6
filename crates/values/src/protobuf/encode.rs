//! Arrow columns to rows of Protobuf.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    DurationMicrosecondType, Float32Type, Float64Type, Int32Type, Int64Type, TimestampMicrosecondType,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, StringArray, StructArray};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::DataType;

use super::cursor::{Tag, wire};
use super::decode::SECONDS;
use super::decoder::prefix;
use super::merge::{put_tag, put_varint};
use super::plan::{Field, Kind, Label, Message, Planner, Scalar};
use super::schema::ProtobufSchema;
use crate::column::Shape;
use crate::conform::{self, Conformed, failed, joined};
use crate::error::SchemaError;

const MICROS_PER_SECOND: i64 = 1_000_000;

/// Writes rows of one message.
#[derive(Debug, Clone)]
pub struct ProtobufEncoder {
    plan: Message,
    shape: Shape,
    /// What stands behind a schema's id.
    prefix: Vec<u8>,
}

impl ProtobufEncoder {
    /// An encoder for a message of a schema; without a name, for the first one.
    ///
    /// # Errors
    /// There is none, or it contains itself.
    pub fn new(schema: &ProtobufSchema, message: Option<&str>) -> Result<Self, SchemaError> {
        let message = schema.message(message)?;
        let (plan, shape) = Planner::plan_to_encode(&message)?;
        let places = schema.messages();
        let place = places.iter().find(|(_, of)| *of == message).map(|(path, _)| prefix(path));
        let prefix = place.ok_or_else(|| {
            SchemaError::new(format!("message {} is of a file that the schema imports", message.full_name()))
        })?;
        Ok(Self { plan, shape, prefix })
    }

    /// The type that columns are brought to.
    #[must_use]
    pub fn data_type(&self) -> &DataType {
        &self.shape.data_type
    }

    /// The place of the message in its schema, as it stands behind the schema's id.
    #[must_use]
    pub fn place(&self) -> &[u8] {
        &self.prefix
    }

    /// The rows, each behind a byte 0, the schema's `id` and the place of the message, if there is an id; null where a row
    /// of `columns` is. A column that is null, or not there, is a field that is not set.
    ///
    /// # Errors
    /// A column is unknown, or has a value that its field cannot have; a required one is missing or null.
    pub fn encode(&self, columns: &StructArray, id: Option<u32>) -> Conformed<BinaryArray> {
        let rows = conform::rows(&self.shape, columns)?;
        let fields = sources(&self.plan, rows.as_struct(), None, "")?;
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(rows.len() + 1);
        ends.push(0);
        for row in 0..rows.len() {
            if columns.is_valid(row) {
                if let Some(id) = id {
                    bytes.push(0);
                    bytes.extend_from_slice(&id.to_be_bytes());
                    bytes.extend_from_slice(&self.prefix);
                }
                put_message(&fields, row, &mut bytes);
            }
            ends.push(
                i32::try_from(bytes.len())
                    .map_err(|_| failed("", "the rows would have more than 2 GiB: encode fewer at a time"))?,
            );
        }
        let offsets = OffsetBuffer::new(ScalarBuffer::from(ends));
        let made = BinaryArray::try_new(offsets, Buffer::from_vec(bytes), columns.nulls().cloned());
        made.map_err(|error| failed("", error))
    }
}

/// A field and the column that its values are in.
struct Source<'a> {
    field: &'a Field,
    /// That of one value.
    tag: Tag,
    nulls: Option<&'a NullBuffer>,
    values: Values<'a>,
}

/// The values of a column.
enum Values<'a> {
    One(Of<'a>),
    List(&'a OffsetBuffer<i32>, Of<'a>),
}

/// Values that stand alone, or in lists.
enum Of<'a> {
    Boolean(&'a BooleanArray),
    /// Numbers of 32 bits, as their bits.
    Int(ScalarBuffer<i32>, Scalar),
    Long(ScalarBuffer<i64>, Scalar),
    Float(&'a [f32]),
    Double(&'a [f64]),
    Text(&'a StringArray),
    Bytes(&'a BinaryArray),
    /// Places of names, and the number of each name.
    Enum(&'a [i32], &'a [i32]),
    /// Microseconds, as seconds and nanoseconds.
    Time(&'a [i64], fn(i64, i64) -> i64),
    Wrapper(Box<Of<'a>>),
    Message(Vec<Source<'a>>),
}

/// The columns of a message's fields. Where `masked` is null nobody looks at them.
fn sources<'a>(
    plan: &'a Message,
    rows: &'a StructArray,
    masked: Option<&NullBuffer>,
    path: &str,
) -> Conformed<Vec<Source<'a>>> {
    let seen = NullBuffer::union(masked, rows.nulls());
    check_oneofs(plan, rows, seen.as_ref(), path)?;
    let columns = plan.fields.iter().zip(rows.columns());
    let sources = columns.map(|(field, column)| {
        let path = joined(path, &field.name);
        let values = match field.label {
            Label::Repeated => {
                let list = column.as_list::<i32>();
                Values::List(list.offsets(), of(&field.kind, list.values(), None, &path)?)
            }
            Label::Map => {
                let map = column.as_map();
                let Kind::Message(entry) = &field.kind else { return Err(failed(&path, "it is no map")) };
                Values::List(map.offsets(), Of::Message(sources(entry, map.entries(), None, &path)?))
            }
            _ => Values::One(of(&field.kind, column, seen.as_ref(), &path)?),
        };
        let tag = Tag { number: field.number, wire: field.kind.wire() };
        Ok(Source { field, tag, nulls: column.nulls(), values })
    });
    sources.collect()
}

/// Raises where two fields are set of which a message has one at most: whoever reads it would find the last one.
fn check_oneofs(plan: &Message, rows: &StructArray, seen: Option<&NullBuffer>, path: &str) -> Conformed<()> {
    for oneof in 0..plan.oneofs {
        let members = plan.fields.iter().zip(rows.columns()).filter(|(field, _)| field.oneof == Some(oneof));
        let members: Vec<_> = members.filter(|(_, column)| column.null_count() < column.len()).collect();
        if members.len() < 2 {
            continue;
        }
        for row in (0..rows.len()).filter(|row| seen.is_none_or(|seen| seen.is_valid(*row))) {
            let mut set =
                members.iter().filter(|(_, column)| column.is_valid(row)).map(|(field, _)| &field.name);
            if let (Some(one), Some(other)) = (set.next(), set.next()) {
                return Err(failed(
                    &joined(path, other),
                    format!("{one} is set too in row {row}, and only one of them can be"),
                ));
            }
        }
    }
    Ok(())
}

fn of<'a>(
    kind: &'a Kind,
    column: &'a ArrayRef,
    masked: Option<&NullBuffer>,
    path: &str,
) -> Conformed<Of<'a>> {
    let within = |seconds: std::ops::RangeInclusive<i64>| {
        let values = match column.data_type() {
            DataType::Duration(_) => column.as_primitive::<DurationMicrosecondType>().values(),
            _ => column.as_primitive::<TimestampMicrosecondType>().values(),
        };
        let seen = |row: usize| column.is_valid(row) && masked.is_none_or(|masked| masked.is_valid(row));
        let beyond = |(row, value): &(usize, &i64)| {
            !seconds.contains(&value.div_euclid(MICROS_PER_SECOND)) && seen(*row)
        };
        match values.iter().enumerate().find(beyond) {
            Some((row, value)) => {
                Err(failed(path, format!("{value} us in row {row} is beyond the range of its type")))
            }
            None => Ok(&values[..]),
        }
    };
    Ok(match kind {
        Kind::Scalar(scalar) => scalars(*scalar, column),
        Kind::Wrapper(scalar) => Of::Wrapper(Box::new(scalars(*scalar, column))),
        Kind::Enum(symbols) => {
            let places = column.as_dictionary::<Int32Type>().keys();
            Of::Enum(places.values(), &symbols.numbers)
        }
        Kind::Message(plan) | Kind::Group(plan) => {
            Of::Message(sources(plan, column.as_struct(), masked, path)?)
        }
        Kind::Timestamp => Of::Time(within(SECONDS)?, i64::div_euclid),
        // The nanoseconds have the sign of the seconds.
        Kind::Duration => Of::Time(within(-315_576_000_000..=315_575_999_999)?, |value, by| value / by),
    })
}

fn scalars(scalar: Scalar, column: &ArrayRef) -> Of<'_> {
    let bits = |values: &Buffer| ScalarBuffer::new(values.clone(), 0, column.len());
    let long_bits = |values: &Buffer| ScalarBuffer::new(values.clone(), 0, column.len());
    match column.data_type() {
        DataType::Boolean => Of::Boolean(column.as_boolean()),
        DataType::Int32 => Of::Int(column.as_primitive::<Int32Type>().values().clone(), scalar),
        DataType::UInt32 => Of::Int(bits(column.as_primitive::<UInt32Type>().values().inner()), scalar),
        DataType::Int64 => Of::Long(column.as_primitive::<Int64Type>().values().clone(), scalar),
        DataType::UInt64 => Of::Long(long_bits(column.as_primitive::<UInt64Type>().values().inner()), scalar),
        DataType::Float32 => Of::Float(column.as_primitive::<Float32Type>().values()),
        DataType::Float64 => Of::Double(column.as_primitive::<Float64Type>().values()),
        DataType::Utf8 => Of::Text(column.as_string()),
        _ => Of::Bytes(column.as_binary()),
    }
}

fn put_message(fields: &[Source<'_>], row: usize, to: &mut Vec<u8>) {
    for source in fields {
        if source.nulls.is_some_and(|nulls| nulls.is_null(row)) {
            continue;
        }
        match &source.values {
            Values::One(of) => {
                if source.field.label != Label::Implicit || !of.is_default(row) {
                    put_tag(to, source.tag);
                    of.put(row, source.tag, to);
                }
            }
            Values::List(offsets, of) => {
                let end = |at: usize| offsets.get(at).and_then(|end| usize::try_from(*end).ok()).unwrap_or(0);
                let items = end(row)..end(row + 1);
                if source.field.packed && !items.is_empty() {
                    put_tag(to, Tag { wire: wire::BYTES, ..source.tag });
                    put_behind_length(to, |to| items.for_each(|item| of.put(item, source.tag, to)));
                } else {
                    for item in items {
                        put_tag(to, source.tag);
                        of.put(item, source.tag, to);
                    }
                }
            }
        }
    }
}

/// Writes bytes behind their length. Room for a length of one byte is left; a longer one moves what follows it.
fn put_behind_length(to: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.push(0);
    put(to);
    let len = to.len() - start - 1;
    if let (Ok(short), Some(place)) = (u8::try_from(len), to.get_mut(start))
        && short < 0x80
    {
        *place = short;
        return;
    }
    let mut length = Vec::with_capacity(5);
    put_varint(&mut length, len as u64);
    to.splice(start..=start, length);
}

/// What writes a 0 where a type has no value, which no row refers to.
fn at<T: Copy + Default>(values: &[T], row: usize) -> T {
    values.get(row).copied().unwrap_or_default()
}

impl Of<'_> {
    /// Whether a value is the one that stands for a field that is not written.
    fn is_default(&self, row: usize) -> bool {
        match self {
            Self::Boolean(of) => !of.value(row),
            Self::Int(of, _) => at(of, row) == 0,
            Self::Long(of, _) => at(of, row) == 0,
            // A negative zero is none.
            Self::Float(of) => at(of, row).to_bits() == 0,
            Self::Double(of) => at(of, row).to_bits() == 0,
            Self::Text(of) => of.value(row).is_empty(),
            Self::Bytes(of) => of.value(row).is_empty(),
            Self::Enum(places, numbers) => number_of(places, numbers, row) == 0,
            Self::Time(..) | Self::Wrapper(_) | Self::Message(_) => false,
        }
    }

    fn put(&self, row: usize, tag: Tag, to: &mut Vec<u8>) {
        match self {
            Self::Boolean(of) => to.push(u8::from(of.value(row))),
            Self::Int(of, scalar) => put_int(at(of, row), *scalar, to),
            Self::Long(of, scalar) => put_long(at(of, row), *scalar, to),
            Self::Float(of) => to.extend_from_slice(&at(of, row).to_le_bytes()),
            Self::Double(of) => to.extend_from_slice(&at(of, row).to_le_bytes()),
            Self::Text(of) => put_bytes(of.value(row).as_bytes(), to),
            Self::Bytes(of) => put_bytes(of.value(row), to),
            Self::Enum(places, numbers) => put_int(number_of(places, numbers, row), Scalar::Int32, to),
            Self::Time(of, seconds) => put_behind_length(to, |to| put_time(at(of, row), *seconds, to)),
            Self::Wrapper(of) => put_behind_length(to, |to| {
                if !of.is_default(row) {
                    let tag = Tag { number: 1, wire: of.wire() };
                    put_tag(to, tag);
                    of.put(row, tag, to);
                }
            }),
            Self::Message(fields) if tag.wire == wire::GROUP => {
                put_message(fields, row, to);
                put_tag(to, Tag { wire: wire::GROUP_END, ..tag });
            }
            Self::Message(fields) => put_behind_length(to, |to| put_message(fields, row, to)),
        }
    }

    /// How a value of a wrapper is written.
    fn wire(&self) -> u8 {
        match self {
            Self::Float(_) => wire::FIXED32,
            Self::Double(_) => wire::FIXED64,
            Self::Text(_) | Self::Bytes(_) => wire::BYTES,
            _ => wire::VARINT,
        }
    }
}

fn number_of(places: &[i32], numbers: &[i32], row: usize) -> i32 {
    usize::try_from(at(places, row)).ok().and_then(|place| numbers.get(place)).copied().unwrap_or(0)
}

fn put_int(value: i32, scalar: Scalar, to: &mut Vec<u8>) {
    match scalar {
        Scalar::Fixed32 => to.extend_from_slice(&value.to_le_bytes()),
        Scalar::Sint32 => put_varint(to, u64::from(((value << 1) ^ (value >> 31)).cast_unsigned())),
        Scalar::Uint32 => put_varint(to, u64::from(value.cast_unsigned())),
        // A negative number has ten bytes, so that it can be read as one of 64 bits.
        _ => put_varint(to, i64::from(value).cast_unsigned()),
    }
}

fn put_long(value: i64, scalar: Scalar, to: &mut Vec<u8>) {
    match scalar {
        Scalar::Fixed64 => to.extend_from_slice(&value.to_le_bytes()),
        Scalar::Sint64 => put_varint(to, ((value << 1) ^ (value >> 63)).cast_unsigned()),
        _ => put_varint(to, value.cast_unsigned()),
    }
}

fn put_bytes(bytes: &[u8], to: &mut Vec<u8>) {
    put_varint(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

fn put_time(micros: i64, seconds: fn(i64, i64) -> i64, to: &mut Vec<u8>) {
    let whole = seconds(micros, MICROS_PER_SECOND);
    let nanos = (micros - whole * MICROS_PER_SECOND) * 1000;
    for (number, value) in [(1, whole), (2, nanos)] {
        if value != 0 {
            put_tag(to, Tag { number, wire: wire::VARINT });
            put_varint(to, value.cast_unsigned());
        }
    }
}
