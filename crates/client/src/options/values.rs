//! The values that a caller has given.

use std::collections::BTreeMap;

use super::known;
use super::row::{Role, Row};
use super::value::FromText;
use crate::error::{Error, Result};

/// Values by option name, checked to be options of the role.
pub(super) struct Values(BTreeMap<&'static str, (String, String)>);

impl Values {
    pub(super) fn from_pairs(role: Role, pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
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
    pub(super) fn from_shared_pairs(
        role: Role,
        pairs: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self> {
        let own = pairs.into_iter().filter(|(written, _)| !known::is_of_another(role, written));
        Self::from_pairs(role, own)
    }

    pub(super) fn get<V: FromText>(&self, row: &Row) -> Result<V> {
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
    pub(super) fn given(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}
