//! What a message becomes in Arrow, and how its fields are read.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::StringArray;
use arrow_schema::{DataType, Field as ArrowField, Fields, TimeUnit};
use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind as Described, MessageDescriptor};

use super::cursor::wire;
use crate::column::Shape;
use crate::error::SchemaError;
use crate::wanted::Wanted;

/// The most columns of a value, those of nested messages included.
const COLUMNS_MAX: usize = 20_000;
/// How deep messages may be nested.
const DEPTH_MAX: usize = 64;
/// Fields with smaller numbers are found without hashing.
const DENSE_MAX: u32 = 1024;
/// The most fields that an error lists.
const NAMES_MAX: usize = 20;

/// The fields of a message that become columns.
#[derive(Debug, Clone)]
pub(super) struct Message {
    /// One for each column, in their order.
    pub(super) fields: Vec<Field>,
    /// How many groups of fields it has of which one is set at most.
    pub(super) oneofs: usize,
    /// The fields that are lists or maps.
    pub(super) lists: Vec<usize>,
    /// By the number of the field.
    dense: Vec<Slot>,
    sparse: HashMap<u32, Slot>,
}

/// What a number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// Nothing that is wanted.
    Skip,
    /// The field of a column.
    Field(usize),
    /// A field without a column, which unsets the others of its oneof if it is written like this.
    Unsets { oneof: usize, wire: u8 },
}

impl Message {
    #[inline]
    pub(super) fn slot(&self, number: u32) -> Slot {
        match self.dense.get(number as usize) {
            Some(slot) => *slot,
            None if self.sparse.is_empty() => Slot::Skip,
            None => self.sparse.get(&number).copied().unwrap_or(Slot::Skip),
        }
    }
}

/// A field with a column.
#[derive(Debug, Clone)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) number: u32,
    pub(super) label: Label,
    pub(super) kind: Kind,
    pub(super) oneof: Option<usize>,
    /// How encoding writes many numbers: one after the other behind one length.
    pub(super) packed: bool,
}

/// How often a field may come, and what stands for one that does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Label {
    /// Once; the default of its type.
    Implicit,
    /// Once; null.
    Optional,
    /// Once; without it the message is wrong.
    Required,
    /// Any number of times.
    Repeated,
    /// Any number of times, each an entry with a key of its own.
    Map,
}

/// What a field holds; of a map, its entry.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    Scalar(Scalar),
    Enum(Arc<Symbols>),
    Message(Message),
    /// A message whose end is marked, and whose length is not said.
    Group(Message),
    /// `google.protobuf.Timestamp`: microseconds since 1970.
    Timestamp,
    /// `google.protobuf.Duration`: microseconds.
    Duration,
    /// `google.protobuf.Int64Value` and its like.
    Wrapper(Scalar),
}

impl Kind {
    /// How a value of it is written.
    #[inline]
    pub(super) fn wire(&self) -> u8 {
        match self {
            Self::Scalar(of) => of.wire(),
            Self::Enum(_) => wire::VARINT,
            Self::Group(_) => wire::GROUP,
            Self::Message(_) | Self::Timestamp | Self::Duration | Self::Wrapper(_) => wire::BYTES,
        }
    }

    /// Whether a second value does not replace the first one, but is merged into it.
    pub(super) fn is_message(&self) -> bool {
        !matches!(self, Self::Scalar(_) | Self::Enum(_))
    }

    /// Whether many values may stand behind one length.
    pub(super) fn is_packable(&self) -> bool {
        self.wire() != wire::BYTES && !self.is_message()
    }
}

/// What is no message and no enum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    Bool,
    Int32,
    Uint32,
    Sint32,
    Fixed32,
    Int64,
    Sint64,
    Fixed64,
    Float,
    Double,
    String,
    Bytes,
}

impl Scalar {
    #[inline]
    pub(super) fn wire(self) -> u8 {
        match self {
            Self::Bool | Self::Int32 | Self::Uint32 | Self::Sint32 | Self::Int64 | Self::Sint64 => {
                wire::VARINT
            }
            Self::Fixed32 | Self::Float => wire::FIXED32,
            Self::Fixed64 | Self::Double => wire::FIXED64,
            Self::String | Self::Bytes => wire::BYTES,
        }
    }
}

/// The names of an enum's numbers.
#[derive(Debug, Clone)]
pub(super) struct Symbols {
    pub(super) names: Arc<StringArray>,
    /// The number of each name.
    pub(super) numbers: Vec<i32>,
    /// The place of each number among the names.
    places: HashMap<i32, i32>,
    /// The same of numbers from 0, which most have only; less than 0 for those without a name.
    dense: Vec<i32>,
    /// The place of the first number, which is the default.
    pub(super) default: i32,
}

impl Symbols {
    fn of(described: &EnumDescriptor) -> Self {
        let (mut names, mut numbers, mut places) = (Vec::new(), Vec::new(), HashMap::new());
        for value in &described.enum_descriptor_proto().value {
            let place = i32::try_from(names.len()).unwrap_or(i32::MAX);
            // Of several names of a number the first one is its name.
            places.entry(value.number()).or_insert(place);
            names.push(value.name().to_owned());
            numbers.push(value.number());
        }
        let mut dense = vec![-1; numbers.len()];
        for (at, place) in dense.iter_mut().enumerate() {
            *place = i32::try_from(at).ok().and_then(|number| places.get(&number)).copied().unwrap_or(-1);
        }
        let default = places.get(&described.default_value().number()).copied().unwrap_or(0);
        Self { names: Arc::new(StringArray::from(names)), numbers, places, dense, default }
    }

    /// Where the name of a number stands.
    #[inline]
    pub(super) fn place(&self, number: i32) -> Option<i32> {
        match usize::try_from(number).ok().and_then(|at| self.dense.get(at)) {
            Some(place) if *place >= 0 => Some(*place),
            _ => self.places.get(&number).copied(),
        }
    }
}

type Made<T> = Result<T, SchemaError>;

/// Makes the columns of a message.
#[derive(Default)]
pub(super) struct Planner {
    /// A null stands for a field that is not written, so that all but required ones may be null.
    to_encode: bool,
    columns: usize,
    /// The messages that are open, which may not stand within themselves.
    open: Vec<String>,
    /// By the names of enums, which many fields may share.
    enums: HashMap<String, Arc<Symbols>>,
}

impl Planner {
    /// How a message is read, and what it becomes.
    ///
    /// # Errors
    /// A field is wanted that is not there, or a message contains itself.
    pub(super) fn plan(of: &MessageDescriptor, wanted: &Wanted) -> Made<(Message, Shape)> {
        Self::default().message(of, wanted)
    }

    /// The same for columns that are to be encoded.
    ///
    /// # Errors
    /// A message contains itself.
    pub(super) fn plan_to_encode(of: &MessageDescriptor) -> Made<(Message, Shape)> {
        Self { to_encode: true, ..Self::default() }.message(of, &Wanted::all())
    }

    fn message(&mut self, of: &MessageDescriptor, wanted: &Wanted) -> Made<(Message, Shape)> {
        let name = of.full_name();
        if self.open.iter().any(|open| open == name) {
            let hint = "which no column can: name the fields that you want in columns=";
            return Err(SchemaError::new(format!("message {name} contains itself, {hint}")));
        }
        if self.open.len() >= DEPTH_MAX {
            return Err(SchemaError::new(format!("messages are nested more than {DEPTH_MAX} deep")));
        }
        check_names(of, wanted)?;
        self.open.push(name.to_owned());
        let mut planned = Vec::new();
        let (mut arrow, mut children, mut slots) = (Vec::new(), Vec::new(), Vec::new());
        let oneofs: Vec<_> = of.oneofs().filter(|one| !one.is_synthetic()).collect();
        for field in in_order(of) {
            let oneof =
                field.containing_oneof().and_then(|one| oneofs.iter().position(|other| *other == one));
            let Some(wanted) = wanted.field(field.name()) else {
                let slot = oneof.map(|oneof| Slot::Unsets { oneof, wire: wire_of(&field) });
                slots.extend(slot.map(|slot| (field.number(), slot)));
                continue;
            };
            let (made, shape) = self
                .field(&field, oneof, wanted)
                .map_err(|why| SchemaError::new(format!("field {:?} of {name}: {why}", field.name())))?;
            let nullable = made.label == Label::Optional || (self.to_encode && made.label != Label::Required);
            slots.push((made.number, Slot::Field(planned.len())));
            arrow.push(ArrowField::new(field.name(), shape.data_type.clone(), nullable));
            children.push(shape);
            planned.push(made);
        }
        let made = Message::of(planned, oneofs.len(), slots);
        self.open.pop();
        let shape = Shape { data_type: DataType::Struct(Fields::from(arrow)), symbols: None, children };
        Ok((made, shape))
    }

    fn field(&mut self, of: &FieldDescriptor, oneof: Option<usize>, wanted: &Wanted) -> Made<(Field, Shape)> {
        self.columns += 1;
        if self.columns > COLUMNS_MAX {
            let hint = "name fewer in columns=";
            return Err(SchemaError::new(format!("the schema has more than {COLUMNS_MAX} columns; {hint}")));
        }
        let label = if of.is_map() {
            Label::Map
        } else if of.is_list() {
            Label::Repeated
        } else if of.is_required() {
            Label::Required
        } else if of.supports_presence() {
            Label::Optional
        } else {
            Label::Implicit
        };
        let (kind, shape) =
            if label == Label::Map { self.entry(of, wanted)? } else { self.kind(of, wanted)? };
        let shape = match label {
            Label::Repeated => list(shape),
            Label::Map => map(shape),
            _ => shape,
        };
        let name = of.name().to_owned();
        Ok((Field { name, number: of.number(), label, kind, oneof, packed: of.is_packed() }, shape))
    }

    /// The entry of a map, whose value is wanted as `wanted` says.
    fn entry(&mut self, of: &FieldDescriptor, wanted: &Wanted) -> Made<(Kind, Shape)> {
        let Described::Message(entry) = of.kind() else {
            return Err(SchemaError::new("a map has no entries"));
        };
        let (key, key_shape) = self.kind(&entry.map_entry_key_field(), &Wanted::all())?;
        let (value, value_shape) = self.kind(&entry.map_entry_value_field(), wanted)?;
        // Both are there in each entry, whether they were written or not; and they are written whatever they are.
        let label = if self.to_encode { Label::Required } else { Label::Implicit };
        let field = |name: &str, number, kind| Field {
            name: name.to_owned(),
            number,
            label,
            kind,
            oneof: None,
            packed: false,
        };
        let fields = vec![field("key", 1, key), field("value", 2, value)];
        let arrow = [("key", &key_shape), ("value", &value_shape)];
        let arrow = arrow.map(|(name, shape)| ArrowField::new(name, shape.data_type.clone(), false));
        let made = Message::of(fields, 0, vec![(1, Slot::Field(0)), (2, Slot::Field(1))]);
        let data_type = DataType::Struct(Fields::from_iter(arrow));
        Ok((Kind::Message(made), Shape { data_type, symbols: None, children: vec![key_shape, value_shape] }))
    }

    fn kind(&mut self, of: &FieldDescriptor, wanted: &Wanted) -> Made<(Kind, Shape)> {
        if let Described::Message(message) = of.kind() {
            if let Some((kind, data_type)) = well_known(message.full_name()) {
                check_leaf(of, wanted)?;
                return Ok((kind, Shape::plain(data_type)));
            }
            let (made, shape) = self.message(&message, wanted)?;
            return Ok((if of.is_group() { Kind::Group(made) } else { Kind::Message(made) }, shape));
        }
        check_leaf(of, wanted)?;
        if let Described::Enum(described) = of.kind() {
            let symbols = self.enums.entry(described.full_name().to_owned());
            let symbols = symbols.or_insert_with(|| Arc::new(Symbols::of(&described))).clone();
            let data_type = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
            let shape = Shape { data_type, symbols: Some(symbols.names.clone()), children: Vec::new() };
            return Ok((Kind::Enum(symbols), shape));
        }
        let (scalar, data_type) = scalar(&of.kind());
        Ok((Kind::Scalar(scalar), Shape::plain(data_type)))
    }
}

impl Message {
    fn of(fields: Vec<Field>, oneofs: usize, slots: Vec<(u32, Slot)>) -> Self {
        // A table for a few fields with large numbers would be the largest part of them.
        let dense_max = DENSE_MAX.min(u32::try_from(slots.len()).unwrap_or(DENSE_MAX).saturating_mul(8) + 16);
        let (low, high): (Vec<_>, Vec<_>) = slots.into_iter().partition(|(number, _)| *number < dense_max);
        let most = low.iter().map(|(number, _)| *number as usize + 1).max().unwrap_or(0);
        let mut dense = vec![Slot::Skip; most];
        for (number, slot) in low {
            if let Some(place) = dense.get_mut(number as usize) {
                *place = slot;
            }
        }
        let is_list = |field: &Field| matches!(field.label, Label::Repeated | Label::Map);
        let lists = fields.iter().enumerate().filter(|(_, field)| is_list(field)).map(|(at, _)| at).collect();
        Self { fields, oneofs, lists, dense, sparse: high.into_iter().collect() }
    }
}

/// The fields in the order of the schema.
fn in_order(of: &MessageDescriptor) -> Vec<FieldDescriptor> {
    let numbers = of.descriptor_proto().field.iter().filter_map(|field| u32::try_from(field.number()).ok());
    numbers.filter_map(|number| of.get_field(number)).collect()
}

fn check_names(of: &MessageDescriptor, wanted: &Wanted) -> Made<()> {
    let Some(missing) = wanted.fields.keys().find(|name| of.get_field_by_name(name).is_none()) else {
        return Ok(());
    };
    let fields = in_order(of);
    let mut known: Vec<_> = fields.iter().take(NAMES_MAX).map(FieldDescriptor::name).collect();
    if fields.len() > NAMES_MAX {
        known.push("...");
    }
    let why = format!("there is no field {missing:?} in {}, which has {}", of.full_name(), known.join(", "));
    Err(SchemaError::new(why))
}

/// A column has no fields to choose from.
fn check_leaf(of: &FieldDescriptor, wanted: &Wanted) -> Made<()> {
    wanted
        .fields
        .keys()
        .next()
        .map_or(Ok(()), |name| Err(SchemaError::new(format!("there is no field {name:?} in {}", of.name()))))
}

fn wire_of(of: &FieldDescriptor) -> u8 {
    match of.kind() {
        Described::Message(_) if of.is_group() => wire::GROUP,
        Described::Message(_) => wire::BYTES,
        Described::Enum(_) => wire::VARINT,
        kind => scalar(&kind).0.wire(),
    }
}

fn list(item: Shape) -> Shape {
    let data_type = DataType::List(Arc::new(ArrowField::new("item", item.data_type.clone(), false)));
    Shape { data_type, symbols: None, children: vec![item] }
}

fn map(entry: Shape) -> Shape {
    let entries = Arc::new(ArrowField::new("entries", entry.data_type, false));
    Shape { data_type: DataType::Map(entries, false), symbols: None, children: entry.children }
}

fn scalar(of: &Described) -> (Scalar, DataType) {
    match of {
        Described::Bool => (Scalar::Bool, DataType::Boolean),
        Described::Int32 => (Scalar::Int32, DataType::Int32),
        Described::Uint32 => (Scalar::Uint32, DataType::UInt32),
        Described::Sint32 => (Scalar::Sint32, DataType::Int32),
        Described::Fixed32 => (Scalar::Fixed32, DataType::UInt32),
        Described::Sfixed32 => (Scalar::Fixed32, DataType::Int32),
        Described::Int64 => (Scalar::Int64, DataType::Int64),
        Described::Uint64 => (Scalar::Int64, DataType::UInt64),
        Described::Sint64 => (Scalar::Sint64, DataType::Int64),
        Described::Fixed64 => (Scalar::Fixed64, DataType::UInt64),
        Described::Sfixed64 => (Scalar::Fixed64, DataType::Int64),
        Described::Float => (Scalar::Float, DataType::Float32),
        Described::Double => (Scalar::Double, DataType::Float64),
        Described::String => (Scalar::String, DataType::Utf8),
        Described::Bytes | Described::Message(_) | Described::Enum(_) => (Scalar::Bytes, DataType::Binary),
    }
}

/// Messages of Google's that stand for one value.
fn well_known(name: &str) -> Option<(Kind, DataType)> {
    let name = name.strip_prefix("google.protobuf.")?;
    let utc = || Some(Arc::from("UTC"));
    let (scalar, data_type) = match name {
        "Timestamp" => return Some((Kind::Timestamp, DataType::Timestamp(TimeUnit::Microsecond, utc()))),
        "Duration" => return Some((Kind::Duration, DataType::Duration(TimeUnit::Microsecond))),
        "BoolValue" => scalar(&Described::Bool),
        "Int32Value" => scalar(&Described::Int32),
        "UInt32Value" => scalar(&Described::Uint32),
        "Int64Value" => scalar(&Described::Int64),
        "UInt64Value" => scalar(&Described::Uint64),
        "FloatValue" => scalar(&Described::Float),
        "DoubleValue" => scalar(&Described::Double),
        "StringValue" => scalar(&Described::String),
        "BytesValue" => scalar(&Described::Bytes),
        _ => return None,
    };
    Some((Kind::Wrapper(scalar), data_type))
}
