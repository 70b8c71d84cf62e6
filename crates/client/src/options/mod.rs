//! Options: one table of rows gives the typed structs, the checks, the error messages and the reference page.

mod known;
mod page;
mod security;
mod table;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeMap;

pub use self::page::page;
pub use self::security::{Mechanism, Secret, SecurityProtocol};
pub use self::table::{AdminConfig, CommonConfig, ConsumerConfig, ProducerConfig, ShareConfig, rows};
pub use self::value::{
    AcknowledgementMode, Acks, AcquireMode, Assignor, AutoOffsetReset, BrokerShare, CompressionType,
    Datapath, Endpoint, GroupProtocol, IsolationLevel, OnBadRecords, Partitioner, RecoveryStrategy,
    ValueType,
};
use crate::error::{Error, Result};

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

    const fn takes(self, row: Self) -> bool {
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

/// Values by option name, checked to be options of the role.
struct Values(BTreeMap<&'static str, (String, String)>);

impl Values {
    fn from_pairs(role: Role, pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let mut values = BTreeMap::new();
        for (written, value) in pairs {
            let row = known::find(role, &written)?;
            if let Some((other, _)) = values.insert(row.name, (written.clone(), value)) {
                return Err(Error::config(written, format!("it is given twice (also as '{other}')")));
            }
        }
        Ok(Self(values))
    }

    /// As [`Self::from_pairs`], but what only another kind of client takes is skipped.
    fn from_shared_pairs(role: Role, pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let own = pairs.into_iter().filter(|(written, _)| !known::is_of_another(role, written));
        Self::from_pairs(role, own)
    }

    fn get<V: value::FromText>(&self, row: &Row) -> Result<V> {
        let (option, text) = match self.0.get(row.name) {
            Some((written, text)) => (written.as_str(), Some(text.as_str())),
            None => (row.name, row.default),
        };
        V::from_text(text, row.kind).map_err(|accepted| {
            let why = match text {
                Some(text) => V::refusal(text, &accepted),
                None => format!("it must be given; it takes {accepted}"),
            };
            Error::config(option, why)
        })
    }

    /// Whether the caller gave it.
    fn given(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}
