//! From what was given to a struct of options.

use std::collections::BTreeMap;

use crate::{OptionValue, Row};

/// Why a value is refused. Not `Debug`: there may be a password in it.
pub struct Refusal {
    /// The option's name.
    pub name: &'static str,
    /// The name in the caller's spelling.
    pub written: String,
    /// The value.
    pub text: String,
    /// What would be accepted.
    pub accepted: String,
    /// A sentence of both that shows no password.
    pub why: String,
}

/// What was given, by option.
#[derive(Default)]
pub struct Values(BTreeMap<&'static str, (String, String)>);

impl Values {
    /// Takes a value, in place of an earlier one: the spelling in which that was given is returned.
    pub fn insert(&mut self, row: &Row, written: &str, text: &str) -> Option<String> {
        let earlier = self.0.insert(row.name, (written.to_owned(), text.to_owned()));
        earlier.map(|(written, _)| written)
    }

    /// Whether the caller gave it.
    #[must_use]
    pub fn given(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The value that was given, or the default.
    ///
    /// # Errors
    /// It is not one that the row accepts, or there is none where there must be one.
    pub fn get<V: OptionValue>(&self, row: &Row) -> Result<V, Refusal> {
        let (written, text) = match self.0.get(row.name) {
            Some((written, text)) => (written.as_str(), Some(text.as_str())),
            None => (row.name, row.default),
        };
        V::from_text(text, row.kind).ok_or_else(|| {
            let accepted = row.kind.accepted();
            let why = match text {
                Some(text) => V::refusal(text, &accepted),
                None => format!("it must be given; it takes {accepted}"),
            };
            let text = text.unwrap_or_default().to_owned();
            Refusal { name: row.name, written: written.to_owned(), text, accepted, why }
        })
    }
}

/// A struct and its rows: `field: type = "name", kind, default, ours, sentence`. In braces may stand a field for another
/// such struct whose options are read as well; `with get` adds a method of that name, for types that are `Display`.
#[macro_export]
macro_rules! options {
    (@get [] $($rest:tt)*) => {};
    (@get [$get:ident] $config:ident $($field:ident $name:literal)*) => {
        impl $config {
            /// The value of an option as text, `None` for a name that is not in the table.
            #[must_use]
            pub fn $get(&self, name: &str) -> Option<String> {
                match name {
                    $($name => Some(self.$field.to_string()),)*
                    _ => None,
                }
            }
        }
    };
    ($(#[$meta:meta])* $config:ident $(with $get:ident)? { $($(#[$base_meta:meta])* $base:ident: $base_type:ident)? }
     $($field:ident: $type:ty = $name:literal, $kind:expr, $default:expr, $ours:literal, $sentence:literal;)*) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $config {
            $($(#[$base_meta])* pub $base: $base_type,)?
            $(#[doc = concat!("`", $name, "`: ", $sentence)] pub $field: $type,)*
        }

        impl $config {
            /// A row for each option, in the order of the reference page.
            pub const ROWS: &'static [$crate::Row; [$($name),*].len()] = &[$($crate::Row {
                name: $name,
                kind: $kind,
                config_type: <$type as $crate::OptionValue>::TYPE,
                default: $default,
                ours: $ours,
                sentence: $sentence,
            },)*];

            fn from_values(values: &$crate::Values) -> Result<Self, $crate::Refusal> {
                let [$($field),*] = Self::ROWS;
                Ok(Self {
                    $($base: $base_type::from_values(values)?,)?
                    $($field: values.get($field)?,)*
                })
            }
        }

        $crate::options!(@get [$($get)?] $config $($field $name)*);
    };
}
