//! Record batches to Arrow.

mod builder;
mod columns;
mod quick;
mod schema;
mod values;

pub use builder::{ChunkBuilder, DecodeError, Pushed};
pub use schema::{BatchSchema, DEFAULT_MAX_PLAIN_BYTES, MAX_CHUNK_BYTES, ValueType};

#[cfg(test)]
mod tests;
