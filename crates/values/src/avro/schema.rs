//! An Avro schema, read from its JSON.
//!
//! Read here and not with a library, since `apache-avro` 0.21 does not keep whether a `uuid` is a string or 16 bytes, nor the
//! name of the latter.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::error::SchemaError;

/// The longest text of a schema, in bytes.
pub const SCHEMA_BYTES_MAX: usize = 4 << 20;
/// The most types in one schema, those of its references included.
pub(super) const TYPES_MAX: usize = 50_000;
/// The largest `fixed`, in bytes.
const FIXED_BYTES_MAX: u64 = 1 << 20;
/// How much of what is wrong an error shows.
const SHOWN_CHARS_MAX: usize = 100;
/// The most digits of a decimal.
pub(super) const DIGITS_MAX: u8 = 76;

/// A type of a schema, by its number there.
pub(super) type TypeId = usize;

/// An Avro schema with all the types that it names.
#[derive(Debug, Clone, PartialEq)]
pub struct AvroSchema {
    pub(super) types: Vec<Type>,
    pub(super) root: TypeId,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Type {
    pub(super) kind: Kind,
    pub(super) logical: Option<Logical>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    String,
    Fixed {
        name: Name,
        size: usize,
    },
    Enum {
        name: Name,
        symbols: Vec<String>,
        default: Option<String>,
    },
    Array(TypeId),
    Map(TypeId),
    Union(Vec<TypeId>),
    Record {
        name: Name,
        fields: Vec<Field>,
    },
    /// A named type whose definition is being read. None is left in a schema.
    Open,
}

/// What a number or bytes stand for. One that does not fit its type is ignored, as the specification asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Logical {
    Decimal { precision: u8, scale: i8 },
    Uuid,
    Date,
    TimeMillis,
    TimeMicros,
    TimestampMillis,
    TimestampMicros,
    TimestampNanos,
    LocalTimestampMillis,
    LocalTimestampMicros,
    LocalTimestampNanos,
    Duration,
}

/// The name of a record, an enum or a fixed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    /// With its namespace.
    pub(super) full: String,
    pub(super) aliases: Vec<String>,
}

impl Name {
    /// Without its namespace.
    pub(super) fn simple(&self) -> &str {
        simple(&self.full)
    }
}

pub(super) fn simple(full: &str) -> &str {
    full.rsplit_once('.').map_or(full, |(_, name)| name)
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) aliases: Vec<String>,
    pub(super) default: Option<Value>,
    pub(super) of: TypeId,
}

impl AvroSchema {
    /// Reads a schema. The types that it names and does not define are those of `references`, each of which may name types of
    /// the ones before it.
    ///
    /// # Errors
    /// What is wrong with it, with the type or the field.
    pub fn parse(text: &str, references: &[impl AsRef<str>]) -> Result<Self, SchemaError> {
        let mut reading = Reading::default();
        for reference in references {
            reading.read(reference.as_ref())?;
        }
        let root = reading.read(text)?;
        Ok(Self { types: reading.types, root })
    }

    pub(super) fn of(&self, id: TypeId) -> &Type {
        self.types.get(id).unwrap_or(&NULL)
    }

    /// The type as a reader of error messages knows it.
    pub(super) fn named(&self, id: TypeId) -> String {
        let of = self.of(id);
        let kind = match &of.kind {
            Kind::Array(item) => return format!("array of {}", self.named(*item)),
            Kind::Map(value) => return format!("map of {}", self.named(*value)),
            Kind::Union(branches) => {
                let branches: Vec<_> = branches.iter().map(|branch| self.named(*branch)).collect();
                return format!("union of {}", branches.join(", "));
            }
            kind => kind_name(kind),
        };
        of.logical.map_or_else(|| kind.to_owned(), |logical| format!("{kind} ({})", logical.name()))
    }
}

static NULL: Type = Type { kind: Kind::Null, logical: None };

impl Logical {
    pub(super) fn name(self) -> String {
        let name = match self {
            Self::Decimal { precision, scale } => return format!("decimal({precision}, {scale})"),
            Self::Uuid => "uuid",
            Self::Date => "date",
            Self::TimeMillis => "time-millis",
            Self::TimeMicros => "time-micros",
            Self::TimestampMillis => "timestamp-millis",
            Self::TimestampMicros => "timestamp-micros",
            Self::TimestampNanos => "timestamp-nanos",
            Self::LocalTimestampMillis => "local-timestamp-millis",
            Self::LocalTimestampMicros => "local-timestamp-micros",
            Self::LocalTimestampNanos => "local-timestamp-nanos",
            Self::Duration => "duration",
        };
        name.to_owned()
    }

    /// The one that a definition names, if it fits the type.
    fn of(definition: &Map<String, Value>, kind: &Kind) -> Option<Self> {
        Some(match (definition.get("logicalType")?.as_str()?, kind) {
            ("decimal", Kind::Bytes | Kind::Fixed { .. }) => decimal(definition, kind)?,
            ("uuid", Kind::String | Kind::Fixed { size: 16, .. }) => Self::Uuid,
            ("date", Kind::Int) => Self::Date,
            ("time-millis", Kind::Int) => Self::TimeMillis,
            ("time-micros", Kind::Long) => Self::TimeMicros,
            ("timestamp-millis", Kind::Long) => Self::TimestampMillis,
            ("timestamp-micros", Kind::Long) => Self::TimestampMicros,
            ("timestamp-nanos", Kind::Long) => Self::TimestampNanos,
            ("local-timestamp-millis", Kind::Long) => Self::LocalTimestampMillis,
            ("local-timestamp-micros", Kind::Long) => Self::LocalTimestampMicros,
            ("local-timestamp-nanos", Kind::Long) => Self::LocalTimestampNanos,
            ("duration", Kind::Fixed { size: 12, .. }) => Self::Duration,
            _ => return None,
        })
    }
}

fn decimal(definition: &Map<String, Value>, kind: &Kind) -> Option<Logical> {
    let precision = u8::try_from(definition.get("precision")?.as_u64()?).ok()?;
    let scale = match definition.get("scale") {
        None => 0,
        Some(scale) => i8::try_from(scale.as_u64()?).ok()?,
    };
    // A fixed of n bytes holds floor(log10(2^(8n-1) - 1)) digits.
    let fits = match kind {
        Kind::Fixed { size, .. } => {
            let bits = u32::try_from(*size).ok()?.checked_mul(8)?.checked_sub(1)?;
            f64::from(bits) * std::f64::consts::LOG10_2 >= f64::from(precision)
        }
        _ => true,
    };
    (precision > 0 && u8::try_from(scale).ok()? <= precision && fits)
        .then_some(Logical::Decimal { precision, scale })
}

#[derive(Default)]
struct Reading {
    types: Vec<Type>,
    names: HashMap<String, TypeId>,
}

type Parsed<T> = Result<T, SchemaError>;

fn wrong<T>(why: impl Into<String>) -> Parsed<T> {
    Err(SchemaError::new(why))
}

impl Reading {
    fn read(&mut self, text: &str) -> Parsed<TypeId> {
        if text.len() > SCHEMA_BYTES_MAX {
            return wrong(format!("the schema has {} bytes, more than {SCHEMA_BYTES_MAX}", text.len()));
        }
        let value = match serde_json::from_str(text) {
            Ok(Value::Null) => Value::String("null".to_owned()),
            Ok(value) => value,
            // The name of a primitive type may stand there bare.
            Err(_) if primitive(text.trim()).is_some() => Value::String(text.trim().to_owned()),
            Err(error) => return wrong(format!("the schema is not JSON: {error}")),
        };
        self.value(&value, "")
    }

    fn push(&mut self, kind: Kind, logical: Option<Logical>) -> Parsed<TypeId> {
        if self.types.len() >= TYPES_MAX {
            return wrong(format!("the schema has more than {TYPES_MAX} types"));
        }
        self.types.push(Type { kind, logical });
        Ok(self.types.len() - 1)
    }

    fn value(&mut self, value: &Value, namespace: &str) -> Parsed<TypeId> {
        match value {
            Value::String(name) => self.by_name(name, namespace),
            Value::Array(branches) => self.union(branches, namespace),
            Value::Object(definition) => self.definition(definition, namespace),
            other => wrong(format!("a type is a name, an object or a list, and not {}", shown(other))),
        }
    }

    fn by_name(&mut self, name: &str, namespace: &str) -> Parsed<TypeId> {
        if let Some(kind) = primitive(name) {
            return self.push(kind, None);
        }
        let full = full_name(name, namespace);
        // A name without a namespace may also be one of no namespace.
        let found = self.names.get(&full).or_else(|| self.names.get(name));
        found.copied().map_or_else(|| wrong(format!("the type {full:?} is not defined")), Ok)
    }

    fn union(&mut self, branches: &[Value], namespace: &str) -> Parsed<TypeId> {
        let mut ids = Vec::with_capacity(branches.len());
        let mut seen = std::collections::HashSet::new();
        for branch in branches {
            let id = self.value(branch, namespace)?;
            let name = match self.types.get(id).map(|of| &of.kind) {
                Some(Kind::Union(_)) => return wrong("a union stands directly in a union"),
                // A record that is being read, whose name is known by its number only.
                Some(Kind::Open) | None => format!("#{id}"),
                // Without its logical type.
                Some(kind) => kind_name(kind).to_owned(),
            };
            if !seen.insert(name) {
                return wrong(format!("a union has {} twice", shown(branch)));
            }
            ids.push(id);
        }
        if ids.is_empty() {
            return wrong("a union has no branch");
        }
        self.push(Kind::Union(ids), None)
    }

    fn definition(&mut self, definition: &Map<String, Value>, namespace: &str) -> Parsed<TypeId> {
        let Some(of) = definition.get("type") else {
            return wrong(format!("{} has no \"type\"", shown(&Value::Object(definition.clone()))));
        };
        let Some(word) = of.as_str() else { return self.value(of, namespace) };
        match word {
            "record" | "error" | "enum" | "fixed" => self.named(word, definition, namespace),
            "array" | "map" => {
                let (key, what) = if word == "array" { ("items", "an array") } else { ("values", "a map") };
                let Some(inner) = definition.get(key) else { return wrong(format!("{what} has no {key:?}")) };
                let inner = self.value(inner, namespace)?;
                self.push(if word == "array" { Kind::Array(inner) } else { Kind::Map(inner) }, None)
            }
            _ => match primitive(word) {
                Some(kind) => {
                    let logical = Logical::of(definition, &kind);
                    self.push(kind, logical)
                }
                None => self.by_name(word, namespace),
            },
        }
    }

    fn named(&mut self, word: &str, definition: &Map<String, Value>, outer: &str) -> Parsed<TypeId> {
        let Some(given) = definition.get("name").and_then(Value::as_str).filter(|name| !name.is_empty())
        else {
            return wrong(format!("a type {word:?} has no \"name\""));
        };
        let namespace = definition.get("namespace").and_then(Value::as_str).unwrap_or(outer);
        let full = full_name(given, namespace);
        let namespace = full.rsplit_once('.').map_or("", |(namespace, _)| namespace).to_owned();
        let aliases =
            words(definition.get("aliases")).iter().map(|alias| full_name(alias, &namespace)).collect();
        let id = self.push(Kind::Open, None)?;
        if primitive(&full).is_some() || self.names.insert(full.clone(), id).is_some() {
            return wrong(format!("the type {full:?} is defined twice"));
        }
        let name = Name { full, aliases };
        let kind = match word {
            "enum" => enumeration(name, definition)?,
            "fixed" => {
                let size =
                    definition.get("size").and_then(Value::as_u64).filter(|size| *size <= FIXED_BYTES_MAX);
                let size = size.and_then(|size| usize::try_from(size).ok());
                let Some(size) = size else {
                    return wrong(format!("the size of {:?} is not from 0 to {FIXED_BYTES_MAX}", name.full));
                };
                Kind::Fixed { name, size }
            }
            _ => self.record(name, definition, &namespace)?,
        };
        let logical = Logical::of(definition, &kind);
        if let Some(open) = self.types.get_mut(id) {
            *open = Type { kind, logical };
        }
        Ok(id)
    }

    fn record(&mut self, name: Name, definition: &Map<String, Value>, namespace: &str) -> Parsed<Kind> {
        let Some(listed) = definition.get("fields").and_then(Value::as_array) else {
            return wrong(format!("the record {:?} has no list of \"fields\"", name.full));
        };
        let mut fields: Vec<Field> = Vec::with_capacity(listed.len());
        let mut seen = std::collections::HashSet::new();
        for field in listed {
            let Some(of) = field.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()) else {
                return wrong(format!("a field of {:?} has no name", name.full));
            };
            let at = |why: SchemaError| SchemaError::new(format!("field {of:?} of {}: {why}", name.full));
            if !seen.insert(of) {
                return wrong(format!("the record {:?} has the field {of:?} twice", name.full));
            }
            let Some(given) = field.get("type") else { return Err(at(SchemaError::new("it has no type"))) };
            // `"type": "record"` and the like, with the definition beside it.
            let in_place =
                matches!(given.as_str(), Some("record" | "error" | "enum" | "fixed" | "array" | "map"));
            let id = self.value(if in_place { field } else { given }, namespace).map_err(at)?;
            fields.push(Field {
                name: of.to_owned(),
                aliases: words(field.get("aliases")),
                default: field.get("default").cloned(),
                of: id,
            });
        }
        Ok(Kind::Record { name, fields })
    }
}

fn enumeration(name: Name, definition: &Map<String, Value>) -> Parsed<Kind> {
    let symbols = words(definition.get("symbols"));
    let distinct: std::collections::HashSet<_> = symbols.iter().collect();
    if symbols.is_empty() || distinct.len() != symbols.len() {
        return wrong(format!("the symbols of {:?} are not a list of distinct names", name.full));
    }
    let default = definition.get("default").and_then(Value::as_str).map(str::to_owned);
    if default.as_ref().is_some_and(|default| !symbols.contains(default)) {
        return wrong(format!("the default of {:?} is not one of its symbols", name.full));
    }
    Ok(Kind::Enum { name, symbols, default })
}

/// As much of a text as an error shows.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

fn words(list: Option<&Value>) -> Vec<String> {
    let list = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn full_name(name: &str, namespace: &str) -> String {
    match name.strip_prefix('.') {
        Some(name) => name.to_owned(),
        None if name.contains('.') || namespace.is_empty() => name.to_owned(),
        None => format!("{namespace}.{name}"),
    }
}

fn primitive(name: &str) -> Option<Kind> {
    Some(match name {
        "null" => Kind::Null,
        "boolean" => Kind::Boolean,
        "int" => Kind::Int,
        "long" => Kind::Long,
        "float" => Kind::Float,
        "double" => Kind::Double,
        "bytes" => Kind::Bytes,
        "string" => Kind::String,
        _ => return None,
    })
}

/// What two branches of a union may not have in common: the word for the type, or its name.
pub(super) fn kind_name(kind: &Kind) -> &str {
    match kind {
        Kind::Null | Kind::Open => "null",
        Kind::Boolean => "boolean",
        Kind::Int => "int",
        Kind::Long => "long",
        Kind::Float => "float",
        Kind::Double => "double",
        Kind::Bytes => "bytes",
        Kind::String => "string",
        Kind::Array(_) => "array",
        Kind::Map(_) => "map",
        Kind::Union(_) => "union",
        Kind::Fixed { name, .. } | Kind::Enum { name, .. } | Kind::Record { name, .. } => &name.full,
    }
}
