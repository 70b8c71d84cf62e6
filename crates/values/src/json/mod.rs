//! JSON to Arrow by a type of Arrow, and back.
//!
//! | Arrow | JSON |
//! |---|---|
//! | bool, utf8 | a boolean, a string |
//! | int32, int64 | a number without a fraction, as `1`, `1.0` or `1e2` |
//! | float32, float64 | a number |
//! | decimal128 | a number, or a string of one, without digits beyond its scale |
//! | date32, timestamp | a string in RFC 3339, or a number: days, or units of the timestamp since 1970 |
//! | list, struct, map with keys of utf8 | an array, an object, an object |
//! | null | null |
//!
//! A null and a missing field are nulls, where the type takes them. Fields that the type does not have are skipped.

mod block;
mod cursor;
mod decoder;
mod encode;
mod layout;
mod number;
mod rows;
mod target;
#[cfg(test)]
mod tests;
mod value;

pub use decoder::JsonDecoder;
pub use encode::JsonEncoder;
