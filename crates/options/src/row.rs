//! A row of a table: everything about one option.

/// Kafka's type of an option, with its number in `DescribeConfigs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i8)]
pub enum Type {
    /// `true` or `false`.
    Boolean = 1,
    /// A text.
    String = 2,
    /// A whole number of 32 bits.
    Int = 3,
    /// A whole number of 64 bits.
    Long = 5,
    /// A decimal number.
    Double = 6,
    /// Words, separated by commas.
    List = 7,
}

impl Type {
    /// The number in `DescribeConfigs`.
    #[must_use]
    pub const fn id(self) -> i8 {
        self as i8
    }

    /// Kafka's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Boolean => "boolean",
            Self::String => "string",
            Self::Int => "int",
            Self::Long => "long",
            Self::Double => "double",
            Self::List => "list",
        }
    }
}

/// What a value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number in a range, both ends included.
    Int {
        /// The least.
        min: i64,
        /// The most.
        max: i64,
        /// What it counts; empty for a plain number.
        unit: &'static str,
    },
    /// One of a few words.
    Choice(&'static [&'static str]),
    /// Several of a few words, separated by commas.
    Choices(&'static [&'static str]),
    /// Something that the words describe, and that is not empty.
    Form(&'static str),
    /// Any text.
    Text,
}

/// The largest number of 32 bits.
pub const INT_MAX: i64 = i32::MAX as i64;
/// The largest number of 64 bits.
pub const LONG_MAX: i64 = i64::MAX;

/// A plain number.
#[must_use]
pub const fn number(min: i64, max: i64) -> Kind {
    Kind::Int { min, max, unit: "" }
}

impl Kind {
    /// What is accepted, in words.
    #[must_use]
    pub fn accepted(self) -> String {
        match self {
            Self::Bool => "true or false".to_owned(),
            Self::Int { min, max, unit: "" } => format!("a whole number from {min} to {max}"),
            Self::Int { min, max: i64::MAX, unit } => format!("a whole number of at least {min} {unit}"),
            Self::Int { min, max, unit } => format!("a whole number from {min} to {max} {unit}"),
            Self::Choice(words) => format!("one of {}", words.join(", ")),
            Self::Choices(words) => format!("a list of {}, separated by commas", words.join(", ")),
            Self::Form(words) => words.to_owned(),
            Self::Text => "a text".to_owned(),
        }
    }
}

/// One option.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Kafka's name; for options of our own, a name in Kafka's style.
    pub name: &'static str,
    /// What a value may be.
    pub kind: Kind,
    /// Kafka's type.
    pub config_type: Type,
    /// The default as text; `None` for an option that must be given or has no value by default.
    pub default: Option<&'static str>,
    /// Whether Kafka itself has no such option.
    pub ours: bool,
    /// What it does.
    pub sentence: &'static str,
}
