//! What can be wrong with a schema, and with a row.

use std::fmt;

use arrow_array::ArrayRef;

/// Why a schema cannot be used: a sentence that names the type or the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SchemaError(pub String);

impl SchemaError {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

/// What is wrong with the bytes of one row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowErrorKind {
    /// They end within a value.
    #[error("the bytes end within a value")]
    Truncated,
    /// There are more of them than the schema describes.
    #[error("{0} bytes are left behind the value")]
    Trailing(usize),
    /// They do not begin as framed bytes do.
    #[error("it does not begin with the magic byte 0 and the schema's id (4 bytes)")]
    NotFramed,
    /// Nobody has given the schema of that id.
    #[error("schema id {0} is not known")]
    UnknownSchema(u32),
    /// Nobody has given the schema of that GUID.
    #[error("the schema of GUID {} is not known", guid_text(.0))]
    UnknownGuid([u8; 16]),
    /// A header that should name the schema does not.
    #[error("its header of the schema holds neither an id nor a GUID")]
    Header,
    /// The schema that the row was written with cannot be read with the reader's.
    #[error("schema id {id} cannot be read with the reader's schema: {why}")]
    Unreadable {
        /// The writer's schema.
        id: u32,
        /// What does not match.
        why: String,
    },
    /// A variable-length integer has more bits than its type.
    #[error("an integer has more bits than its type")]
    Overlong,
    /// A length or a count is negative, or larger than what is left.
    #[error("a length or count of {0} cannot be")]
    Length(i64),
    /// A number has another size.
    #[error("a value of {wanted} bytes has {bytes}")]
    Size {
        /// Of its type.
        wanted: usize,
        /// That were given.
        bytes: usize,
    },
    /// A text is not UTF-8.
    #[error("a string is not valid UTF-8")]
    Utf8,
    /// A boolean is neither 0 nor 1.
    #[error("a boolean is neither 0 nor 1, but {0}")]
    Boolean(u8),
    /// A union has no such branch.
    #[error("a union has no branch {0}")]
    Branch(i64),
    /// The branch that was written is none that the reader's schema takes.
    #[error("the reader's schema does not take branch {0} of the union: {1}")]
    BranchNotTaken(usize, String),
    /// An enum has no such symbol.
    #[error("an enum has no symbol number {0}")]
    Symbol(i64),
    /// The symbol that was written is not one of the reader's, and those have no default.
    #[error("the reader's enum has no symbol {0:?} and no default")]
    SymbolNotTaken(String),
    /// A decimal has more digits than its type.
    #[error("a decimal has more digits than its precision of {0}")]
    Decimal(u8),
    /// A duration has more milliseconds than fit.
    #[error("a duration has too many months or days")]
    Duration,
    /// More items than the limit on items that take no bytes.
    #[error("there are too many items that take no bytes")]
    Items,
    /// More nulls and defaults than the limit on what no bytes stand for.
    #[error("nulls of its records and defaults would take more than 256 MiB")]
    Filler,
    /// A time of day is not within a day.
    #[error("a time of day is not within a day")]
    TimeOfDay,
    /// Types are nested deeper than the limit.
    #[error("values are nested more than {0} deep")]
    Depth(usize),
    /// A column would have more bytes than its offsets count.
    #[error("a column would have more than 2 GiB: decode fewer rows at a time")]
    TooLarge,
    /// It is not JSON.
    #[error("it is not JSON at byte {at}: {what}")]
    Json {
        /// Where, in bytes from the start of the value.
        at: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A string of JSON has half of a character that takes two.
    #[error("half of a surrogate pair stands alone in a string")]
    Surrogate,
    /// A value of JSON is of another kind than its column takes.
    #[error("{found} stands where {wanted} should")]
    Kind {
        /// What the column takes.
        wanted: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// A number or a time is beyond its type.
    #[error("{0} has no place in its type, {1}")]
    Range(String, &'static str),
    /// A text is no date or time.
    #[error("{0:?} is not {1}")]
    Time(String, &'static str),
    /// A field is null or missing, and its column takes no null.
    #[error("it is null or missing, which its column does not take")]
    NullNotTaken,
    /// A field stands in an object twice.
    #[error("it stands in its object twice")]
    Twice,
    /// A field's number or way of writing is none.
    #[error("{0} is no tag of a field")]
    Tag(u64),
    /// A group ends that did not begin, or does not end.
    #[error("a group ends that did not begin, or does not end")]
    Group,
    /// What stands behind a schema's id is no place of a message.
    #[error("{0} is no number of a message in its schema")]
    MessageIndex(i64),
    /// It is another message than the one that is wanted.
    #[error("it is a message {found}, not {wanted}")]
    Message {
        /// Its name.
        found: String,
        /// The name of the one that is wanted.
        wanted: String,
    },
    /// The decoder contradicts itself.
    #[error("a column is not of the type of its field (a defect of headrace)")]
    Internal,
}

/// Why one row could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowError {
    /// Its number among the rows that were given.
    pub row: usize,
    /// The field as a path such as `items[].price`; empty for the value itself.
    pub field: String,
    /// What is wrong.
    pub kind: RowErrorKind,
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            self.kind.fmt(f)
        } else {
            write!(f, "field {}: {}", self.field, self.kind)
        }
    }
}

impl std::error::Error for RowError {}

/// Rows that were decoded.
#[derive(Debug)]
pub struct Decoded {
    /// As many rows as were given, in their order; or fewer, at least one, if a call may have no more: what is left is for
    /// another call. Rows without bytes and rows that could not be decoded are null.
    pub values: ArrayRef,
    /// The rows that could not be decoded, in order.
    pub errors: Vec<RowError>,
}

/// In hexadecimal digits, as registries write it.
fn guid_text(guid: &[u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(*guid));
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| digits.get(part).unwrap_or_default());
    parts.join("-")
}

/// Why a schema cannot be used, cut where it is long: each row of that schema repeats it.
pub(crate) fn repeated(why: &str) -> String {
    const CHARS_MAX: usize = 500;
    why.chars().take(CHARS_MAX).collect()
}

/// What was wrong with a row when all were read before, in the order of rows.
pub(crate) fn of_row(errors: &[RowError], row: usize) -> Option<&RowError> {
    errors.binary_search_by_key(&row, |error| error.row).ok().and_then(|at| errors.get(at))
}

/// An error on its way up, to which each type adds its name. A pointer, so that a value that is decoded well costs no more
/// than a word.
#[derive(Debug)]
pub(crate) struct Failure(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: RowErrorKind,
    /// From the innermost field outwards.
    path: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Field(String),
    Item,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

pub(crate) fn fail<T>(kind: RowErrorKind) -> Result<T> {
    Err(kind.into())
}

impl From<RowErrorKind> for Failure {
    #[cold]
    fn from(kind: RowErrorKind) -> Self {
        Self(Box::new(Inner { kind, path: Vec::new() }))
    }
}

impl Failure {
    /// Whether a call has as much as it may have, so that a row that fails may do well in the next one.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self.0.kind, RowErrorKind::TooLarge | RowErrorKind::Items | RowErrorKind::Filler)
    }

    /// Whether it is a text that is not UTF-8.
    pub(crate) fn is_text(&self) -> bool {
        self.0.kind == RowErrorKind::Utf8
    }

    pub(crate) fn into_kind(self) -> RowErrorKind {
        self.0.kind
    }

    #[cold]
    pub(crate) fn in_field(mut self, name: &str) -> Self {
        self.0.path.push(Step::Field(name.to_owned()));
        self
    }

    #[cold]
    pub(crate) fn in_item(mut self) -> Self {
        self.0.path.push(Step::Item);
        self
    }

    pub(crate) fn of_row(self, row: usize) -> RowError {
        let mut field = String::new();
        for step in self.0.path.iter().rev() {
            match step {
                Step::Field(name) if field.is_empty() => field.push_str(name),
                Step::Field(name) => {
                    field.push('.');
                    field.push_str(name);
                }
                Step::Item => field.push_str("[]"),
            }
        }
        RowError { row, field, kind: self.0.kind }
    }
}
