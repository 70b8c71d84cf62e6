//! Record batches to Arrow.

mod builder;
mod columns;
mod quick;
mod schema;

pub use builder::{ChunkBuilder, DecodeError, Pushed};
pub use schema::{BatchSchema, DEFAULT_MAX_PLAIN_BYTES, ValueType};

#[cfg(test)]
mod tests;
