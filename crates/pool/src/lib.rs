//! The memory of a producer's batches: `buffer.memory` bytes in chunks (KIP-1332). The design is docs/design/buffer-pool.md.
//!
//! A [`BufferPool`] grants a [`Lease`], at once or to who stands first in the queue; a lease becomes [`Chunk`]s as
//! bytes are written; a chunk becomes [`bytes::Bytes`] and returns to the pool when the last clone is dropped.
#![forbid(unsafe_code)]

mod config;
mod error;
mod lease;
mod ledger;
mod meter;
mod pool;
mod sync;
mod wait;

pub use config::{AllocationStrategy, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, PoolConfig};
pub use error::PoolError;
pub use lease::{Chunk, Lease};
pub use meter::PoolMetrics;
pub use pool::BufferPool;
pub use wait::{BlockingWait, CHECK_INTERVAL, Waiting};
