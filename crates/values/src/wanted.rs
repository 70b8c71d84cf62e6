//! Which fields of a schema are to become columns.

use std::collections::BTreeMap;

/// The fields that are wanted of a type.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) all: bool,
    pub(crate) fields: BTreeMap<String, Wanted>,
}

impl Wanted {
    pub(crate) fn all() -> Self {
        Self { all: true, fields: BTreeMap::new() }
    }

    /// Those of paths such as `price.amount`.
    pub(crate) fn of(paths: &[String]) -> Self {
        let mut wanted = Self::default();
        for path in paths {
            let mut at = &mut wanted;
            for name in path.split('.') {
                at = at.fields.entry(name.to_owned()).or_default();
            }
            at.all = true;
        }
        wanted
    }

    /// What is wanted of a field, which is all of it if all is wanted of what it stands in.
    pub(crate) fn field(&self, name: &str) -> Option<&Self> {
        if self.all { Some(&ALL) } else { self.fields.get(name) }
    }
}

static ALL: Wanted = Wanted { all: true, fields: BTreeMap::new() };
