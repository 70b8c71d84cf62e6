//! Avro to Arrow: a schema, its resolution into a reader's (Avro 1.12, "Schema Resolution"), and decoding.
//!
//! | Avro | Arrow |
//! |---|---|
//! | boolean, int, long, float, double, string, bytes | boolean, int32, int64, float32, float64, utf8, binary |
//! | fixed | fixed_size_binary |
//! | enum | dictionary of int32 and utf8 |
//! | array, map, record | list, map, struct |
//! | null with one other type | that type, nullable |
//! | int with long, float with double | int64, float64 (as Spark reads them) |
//! | any other union | struct of `member0`, `member1`, ..., of which one is not null (as Spark reads them) |
//! | decimal | decimal128 up to 38 digits, decimal256 up to 76 |
//! | date, time-millis, time-micros | date32, time32 in ms, time64 in us |
//! | timestamp-..., local-timestamp-... | timestamp in ms, us or ns: with UTC, without a time zone |
//! | uuid | as its string, or fixed_size_binary(16) |
//! | duration | interval of months, days and ns |

mod compatible;
mod cursor;
mod decode;
mod decoder;
mod default;
mod encode;
mod plan;
mod records;
mod rows;
mod schema;
mod target;
#[cfg(test)]
mod tests;
mod unions;

pub use compatible::Incompatibility;
pub use decoder::AvroDecoder;
pub use encode::AvroEncoder;
pub use records::RecordColumn;
pub use schema::{AvroSchema, SCHEMA_BYTES_MAX};
