//! Record batches to Arrow.

mod acquired;
mod builder;
mod columns;
mod quick;
mod schema;
mod spares;
mod values;

pub use acquired::{AcquiredRange, AcquiredRows, BadRecords, decode_acquired};
pub use builder::{ChunkBuilder, DecodeError, Pushed};
pub use schema::{BatchSchema, DEFAULT_MAX_PLAIN_BYTES, MAX_CHUNK_BYTES, ValueType};

#[cfg(test)]
mod tests;
