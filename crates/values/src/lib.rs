//! What the bytes of keys and values mean: columns of bytes and a schema in, Arrow columns out. The design is
//! docs/values.md.
//!
//! [`text`] reads texts and numbers as Kafka's own clients write them. [`avro`] reads Avro, [`json`] reads JSON,
//! [`protobuf`] reads Protobuf. A
//! decoder decodes all rows into the columns of one reader's schema, whichever schema each row was written with, and leaves
//! out the rows that cannot be decoded, each with a [`RowError`].
#![forbid(unsafe_code)]

pub mod avro;
mod blocks;
mod budget;
mod collected;
mod column;
mod conform;
mod error;
pub mod framing;
pub mod headers;
mod input;
pub mod json;
pub mod protobuf;
mod seen;
pub mod text;
mod wanted;

pub use conform::EncodeError;
pub use error::{Decoded, RowError, RowErrorKind, SchemaError};
