//! A row of the table: everything about one option.

/// Which client an option belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Every client.
    Common,
    /// Producers.
    Producer,
    /// Consumers.
    Consumer,
    /// Consumers of a share group.
    Share,
    /// Admin clients.
    Admin,
}

impl Role {
    /// The client in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Common => "client",
            Self::Producer => "producer",
            Self::Consumer => "consumer",
            Self::Share => "share consumer",
            Self::Admin => "admin client",
        }
    }

    pub(super) const fn takes(self, row: Self) -> bool {
        matches!(row, Self::Common) || row as u8 == self as u8
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
    /// Something that the words describe.
    Form(&'static str),
    /// Any text.
    Text,
}

impl Kind {
    /// What is accepted, in words.
    pub(super) fn accepted(self) -> String {
        match self {
            Self::Bool => "true or false".to_owned(),
            Self::Int { min, max, unit } => {
                let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
                if max == i64::MAX {
                    format!("a whole number of at least {min}{unit}")
                } else {
                    format!("a whole number from {min} to {max}{unit}")
                }
            }
            Self::Choice(words) => format!("one of {}", words.join(", ")),
            Self::Choices(words) => format!("a list of {}, separated by commas", words.join(", ")),
            Self::Form(words) => words.to_owned(),
            Self::Text => "a text".to_owned(),
        }
    }

    /// Whether a word is one of those to choose from.
    pub(super) fn offers(self, word: &str) -> bool {
        matches!(self, Self::Choice(words) if words.contains(&word))
    }

    /// The number in `text`, if it is in range.
    pub(super) fn int(self, text: &str) -> Option<i64> {
        let Self::Int { min, max, .. } = self else { return None };
        text.trim().parse().ok().filter(|n| (min..=max).contains(n))
    }
}

/// One option.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Kafka's name; for options of our own, a name in Kafka's style.
    pub name: &'static str,
    /// Whose it is.
    pub role: Role,
    /// What a value may be.
    pub kind: Kind,
    /// The default as text; `None` for an option that must be given or has no value by default.
    pub default: Option<&'static str>,
    /// Whether Kafka's own clients have no such option.
    pub ours: bool,
    /// What it does.
    pub sentence: &'static str,
}
