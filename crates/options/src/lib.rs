//! Tables of options. One row for each option makes a field of a typed struct, the check of its value, what an error says of
//! it, and a line of the reference page.
//!
//! [`options!`] declares a struct with its rows. A caller finds the [`Row`] of each name that was given, collects what
//! was given in [`Values`], and has the struct made of them. Names that are not in a table are its own business, but for
//! the [`nearest`] one.
#![forbid(unsafe_code)]

mod names;
mod page;
mod row;
mod table;
mod value;

pub use names::nearest;
pub use page::{reasons, table};
pub use row::{INT_MAX, Kind, LONG_MAX, Row, Type, number};
pub use table::{Refusal, Values};
pub use value::OptionValue;
