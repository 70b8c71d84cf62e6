//! Memory on its way: reserved, being written, being read.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

use crate::pool::Shared;

/// Chunks that are reserved and not yet memory. Dropped, they go back.
#[derive(Debug)]
pub struct Lease {
    /// `None`: all chunks come from the heap.
    pool: Option<Arc<Shared>>,
    chunk_bytes: usize,
    chunks: usize,
    overflow_chunks: usize,
}

impl Lease {
    pub(crate) fn new(pool: Arc<Shared>, chunks: usize) -> Self {
        Self { chunk_bytes: pool.config.chunk_bytes(), pool: Some(pool), chunks, overflow_chunks: 0 }
    }

    /// A lease of no pool: its chunks come from the heap, for who fills a batch outside of a producer.
    #[must_use]
    pub fn of_heap(chunk_bytes: usize) -> Self {
        Self { pool: None, chunk_bytes, chunks: 0, overflow_chunks: 0 }
    }

    /// Chunks reserved and not used yet.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Chunks that came from the heap since the lease was made: a batch with any should be sent early.
    #[must_use]
    pub fn overflow_chunks(&self) -> usize {
        self.overflow_chunks
    }

    /// Bytes of each chunk.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Reserves so many more, all or nothing, without waiting; see [`crate::BufferPool::try_take`]. The heap always has
    /// more.
    pub fn try_grow(&mut self, chunks: usize) -> bool {
        let taken = self.pool.as_ref().is_none_or(|pool| pool.try_take(chunks));
        if taken {
            self.chunks += chunks;
        }
        taken
    }

    /// Gives back what is reserved beyond `chunks`.
    pub fn shrink_to(&mut self, chunks: usize) {
        let surplus = self.chunks.saturating_sub(chunks);
        self.chunks -= surplus;
        if let Some(pool) = self.pool.as_ref().filter(|_| surplus > 0) {
            pool.give_back(surplus);
        }
    }

    /// Moves up to `chunks` of the reservation to another lease of the same pool, and says how many: none to another
    /// pool's.
    pub fn move_to(&mut self, to: &mut Self, chunks: usize) -> usize {
        let same = match (&self.pool, &to.pool) {
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            _ => false,
        };
        let moved = if same { chunks.min(self.chunks) } else { 0 };
        self.chunks -= moved;
        to.chunks += moved;
        moved
    }

    /// An empty chunk: from the reservation, else from the pool without waiting, else from the heap, uncharged.
    pub fn next_chunk(&mut self) -> Chunk {
        match &self.pool {
            Some(pool) if self.chunks > 0 || pool.take_to_close() => {
                self.chunks = self.chunks.saturating_sub(1);
                Chunk { buffer: pool.take_buffer(), home: Some(pool.clone()) }
            }
            _ => {
                self.overflow_chunks += 1;
                Chunk { buffer: Vec::with_capacity(self.chunk_bytes), home: None }
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// A chunk that is being written. Dropped, or once the last clone of [`Chunk::freeze`]'s bytes is, its memory goes
/// back to the pool, on whatever thread that happens.
#[derive(Debug)]
pub struct Chunk {
    /// Never grows: its capacity is the chunk's.
    buffer: Vec<u8>,
    /// Where the memory is charged; `None` for the heap's.
    home: Option<Arc<Shared>>,
}

impl Chunk {
    /// Bytes that still fit.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.buffer.capacity() - self.buffer.len()
    }

    /// Whether `buffer.memory` is charged for it.
    #[must_use]
    pub fn is_charged(&self) -> bool {
        self.home.is_some()
    }

    /// Appends as many of `bytes` as fit, and says how many those were.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let room = self.room();
        // Bytes that fit go by a way of their own: a length that the compiler knows stays known, and the vector's own
        // check, being the same, goes away.
        if bytes.len() <= room {
            self.buffer.extend_from_slice(bytes);
            return bytes.len();
        }
        self.buffer.extend_from_slice(bytes.get(..room).unwrap_or_default());
        room
    }

    /// Forgets what was written from `len` on: a caller may put a block of fixed size, which is faster, and cut it.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.buffer.truncate(len);
    }

    /// The bytes written, shared and not copied. The chunk stays charged whole, however few they are.
    #[must_use]
    pub fn freeze(mut self) -> Bytes {
        if self.buffer.is_empty() {
            Bytes::new()
        } else if self.home.is_none() {
            Bytes::from(std::mem::take(&mut self.buffer))
        } else {
            Bytes::from_owner(self)
        }
    }
}

impl Deref for Chunk {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.give_back_buffer(std::mem::take(&mut self.buffer));
        }
    }
}
