//! Why there is no lease.

/// Why a wait for memory ended without it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// More than there is: waiting would not help.
    #[error("{bytes} bytes are more than buffer.memory has, {total} bytes")]
    TooLarge {
        /// Bytes asked for, in whole chunks.
        bytes: u64,
        /// `buffer.memory`.
        total: u64,
    },
    /// The deadline passed first.
    #[error("no {bytes} bytes of buffer.memory ({total} bytes) came free in {waited_ms} ms (max.block.ms)")]
    Exhausted {
        /// Bytes asked for, in whole chunks.
        bytes: u64,
        /// `buffer.memory`.
        total: u64,
        /// How long this wait took.
        waited_ms: u64,
    },
    /// The caller's check asked to end the wait.
    #[error("the wait for buffer.memory was interrupted")]
    Interrupted,
    /// The pool was closed, or the wait had ended before.
    #[error("the producer is closed")]
    Closed,
}
