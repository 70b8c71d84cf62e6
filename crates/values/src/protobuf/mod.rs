//! Protobuf: schemas as `.proto` texts or descriptors, messages to Arrow columns, and back.
//!
//! A message is read by the schema whose columns come out: fields are found by their number, and what has another number
//! or another wire type is skipped, as the specification asks. The schema that a row was written with only says which
//! message it is.

mod compatible;
mod cursor;
mod decode;
mod decoder;
mod descriptor;
mod encode;
mod merge;
mod plan;
mod schema;
#[cfg(test)]
mod tests;

pub use compatible::Incompatibility;
pub use decoder::ProtobufDecoder;
pub use encode::ProtobufEncoder;
pub use schema::ProtobufSchema;
