//! How values are read from text.

use crate::{Kind, Type};

/// A type that an option's text is turned into.
pub trait OptionValue: Sized {
    /// Kafka's type of such an option.
    const TYPE: Type = Type::String;

    /// Reads a value; `None` when it is not one that `kind` describes. There is no text where nothing was given and
    /// nothing is the default.
    fn from_text(text: Option<&str>, kind: Kind) -> Option<Self>;

    /// Why a text is refused, for whoever gave it.
    #[must_use]
    fn refusal(text: &str, accepted: &str) -> String {
        format!("'{text}' is not accepted; it takes {accepted}")
    }
}

impl OptionValue for bool {
    const TYPE: Type = Type::Boolean;

    fn from_text(text: Option<&str>, _: Kind) -> Option<Self> {
        text?.trim().to_ascii_lowercase().parse().ok()
    }
}

macro_rules! ints {
    ($($int:ty: $type:ident),*) => {$(
        impl OptionValue for $int {
            const TYPE: Type = Type::$type;

            fn from_text(text: Option<&str>, kind: Kind) -> Option<Self> {
                let Kind::Int { min, max, .. } = kind else { return None };
                let number = text?.trim().parse().ok().filter(|n| (min..=max).contains(n))?;
                number.try_into().ok()
            }
        }
    )*};
}
ints!(u16: Int, i32: Int, u32: Int, i64: Long, u64: Long);

impl OptionValue for String {
    fn from_text(text: Option<&str>, kind: Kind) -> Option<Self> {
        let is_accepted = |text: &&str| match kind {
            Kind::Choice(words) => words.contains(text),
            Kind::Form(_) => !text.is_empty(),
            _ => true,
        };
        text.filter(is_accepted).map(str::to_owned)
    }
}

/// An empty text is none.
impl<T: OptionValue> OptionValue for Option<T> {
    const TYPE: Type = T::TYPE;

    fn from_text(text: Option<&str>, kind: Kind) -> Option<Self> {
        let text = text.filter(|text| !text.is_empty());
        text.map_or(Some(None), |text| T::from_text(Some(text), kind).map(Some))
    }
}

/// One value at least, with commas between them.
impl<T: OptionValue> OptionValue for Vec<T> {
    const TYPE: Type = Type::List;

    fn from_text(text: Option<&str>, kind: Kind) -> Option<Self> {
        let items = text?.split(',').map(str::trim).filter(|item| !item.is_empty());
        let items: Option<Self> = items.map(|item| T::from_text(Some(item), kind)).collect();
        items.filter(|items| !items.is_empty())
    }

    fn refusal(text: &str, accepted: &str) -> String {
        T::refusal(text, accepted)
    }
}

/// An enum of which each variant has Kafka's name and perhaps others, which are read in any case.
#[macro_export]
macro_rules! choice {
    ($(#[$meta:meta])* $choice:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $name:literal $(| $other:literal)*,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $choice {
            $($(#[$variant_meta])* $variant,)+
        }

        impl $choice {
            /// Kafka's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl $crate::OptionValue for $choice {
            fn from_text(text: Option<&str>, _: $crate::Kind) -> Option<Self> {
                let named = [$((Self::$variant, $name), $((Self::$variant, $other),)*)+];
                let is_it = |name: &str| name.eq_ignore_ascii_case(text.unwrap_or("").trim());
                named.into_iter().find(|(_, name)| is_it(name)).map(|(choice, _)| choice)
            }
        }
    };
}
