//! Sizes of a pool, and what a batch asks for.

use headrace_options::choice;

/// Bytes of a chunk unless `batch.size` is smaller: few enough to stay in the nearest cache until their checksum is
/// taken, enough that the work per chunk vanishes.
pub const CHUNK_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a chunk at least: a record batch's header fits.
pub const CHUNK_BYTES_MIN: usize = 128;

choice! {
    /// `buffer.memory.allocation.strategy` (KIP-1332): how much memory a batch has while it is open.
    #[derive(Default)]
    AllocationStrategy {
        /// All of `batch.size` from its first record on.
        #[default]
        Full = "full",
        /// What its records need, chunk by chunk.
        Incremental = "incremental",
    }
}

/// What a pool is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolConfig {
    /// `buffer.memory`, bytes.
    pub buffer_bytes: u64,
    /// `batch.size`, bytes.
    pub batch_bytes: usize,
    /// `buffer.memory.allocation.strategy`.
    pub strategy: AllocationStrategy,
}

impl PoolConfig {
    /// Bytes of each chunk: `min(16384, batch.size)`, at least 128.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.batch_bytes.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)
    }

    /// Chunks that hold `bytes`.
    #[must_use]
    pub fn chunks_for(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.chunk_bytes())
    }

    /// Chunks to ask for when a batch opens of which `bytes` are known to come, header and first record. A record
    /// larger than `batch.size` has what it needs, with either strategy.
    #[must_use]
    pub fn chunks_to_open(&self, bytes: usize) -> usize {
        self.chunks_for(match self.strategy {
            AllocationStrategy::Full => bytes.max(self.batch_bytes),
            AllocationStrategy::Incremental => bytes,
        })
    }

    /// Bytes of so many chunks; what is more than a `u64` can say is more than any pool has.
    #[must_use]
    pub fn bytes_of(&self, chunks: usize) -> u64 {
        let chunks = u64::try_from(chunks).unwrap_or(u64::MAX);
        chunks.saturating_mul(u64::try_from(self.chunk_bytes()).unwrap_or(u64::MAX))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn config(batch_bytes: usize, strategy: AllocationStrategy) -> PoolConfig {
        PoolConfig { buffer_bytes: 1 << 20, batch_bytes, strategy }
    }

    #[test]
    fn chunks_are_batch_size_between_their_bounds() {
        let chunk = |batch| config(batch, AllocationStrategy::Full).chunk_bytes();
        assert_eq!([0, 127, 128, 1000, 16_384, 1 << 20].map(chunk), [128, 128, 128, 1000, 16_384, 16_384]);
    }

    #[test]
    fn full_opens_with_batch_size_and_incremental_with_what_is_known() {
        let full = config(100_000, AllocationStrategy::Full);
        assert_eq!([1, 100_000, 120_000].map(|bytes| full.chunks_to_open(bytes)), [7, 7, 8]);
        let incremental = config(100_000, AllocationStrategy::Incremental);
        assert_eq!([1, 16_385, 120_000].map(|bytes| incremental.chunks_to_open(bytes)), [1, 2, 8]);
        assert_eq!(incremental.bytes_of(2), 32_768);
        assert_eq!(incremental.bytes_of(usize::MAX), u64::MAX);
    }
}
