//! The pool: the ledger and the buffers at rest, under one lock.

use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::config::PoolConfig;
use crate::error::PoolError;
use crate::lease::Lease;
use crate::ledger::Ledger;
use crate::meter::{Meter, PoolMetrics};
use crate::sync::{Mutex, MutexGuard};
use crate::wait::{BlockingWait, Waiting};

/// `buffer.memory`, shared by all that fill batches. Clones are handles of the same pool.
///
/// Memory at most: `buffer.memory`, and the chunks that compression takes from the heap beyond it.
///
/// Times are those of a clock of the caller's that never goes back, the same for all calls.
#[derive(Debug, Clone)]
pub struct BufferPool {
    shared: Arc<Shared>,
}

impl BufferPool {
    /// A pool with all its memory free, and none of it allocated.
    #[must_use]
    pub fn new(config: PoolConfig) -> Self {
        let state = State {
            ledger: Ledger::new(config.buffer_bytes),
            resting: Vec::new(),
            waited: Meter::default(),
            exhausted: Meter::default(),
        };
        Self { shared: Arc::new(Shared { config, state: Mutex::new(state) }) }
    }

    /// What the pool was made of, and how it counts chunks.
    #[must_use]
    pub fn config(&self) -> &PoolConfig {
        &self.shared.config
    }

    /// A lease of no chunks: it can grow.
    #[must_use]
    pub fn empty_lease(&self) -> Lease {
        Lease::new(self.shared.clone(), 0)
    }

    /// All `chunks` or nothing, without waiting: `None` as well when somebody else waits, or after
    /// [`BufferPool::close`].
    #[must_use]
    pub fn try_take(&self, chunks: usize) -> Option<Lease> {
        self.shared.try_take(chunks).then(|| Lease::new(self.shared.clone(), chunks))
    }

    /// Takes the last place in the queue for `chunks`, as one unit, and returns at once: also under a lock. Poll what is
    /// returned, or block on it, without the lock; it may be granted already.
    ///
    /// Do not wait while holding a lease: two callers could each hold what the other lacks.
    pub fn wait(&self, chunks: usize, now: Duration) -> Result<Waiting, PoolError> {
        let bytes = self.config().bytes_of(chunks);
        let mut state = self.shared.lock();
        let total = state.ledger.total();
        if state.ledger.is_closed() {
            return Err(PoolError::Closed);
        }
        if bytes > total {
            return Err(PoolError::TooLarge { bytes, total });
        }
        let ticket = state.ledger.join(bytes);
        drop(state);
        Ok(Waiting::new(self.shared.clone(), ticket, chunks, now))
    }

    /// All `chunks`, blocking this thread behind all who wait already. Do not block while holding a lease, see
    /// [`BufferPool::wait`].
    pub fn take(&self, chunks: usize, wait: &mut BlockingWait<'_>) -> Result<Lease, PoolError> {
        match self.try_take(chunks) {
            Some(lease) => Ok(lease),
            None => self.wait(chunks, (wait.now)())?.block(wait),
        }
    }

    /// Bytes that a newcomer could have without waiting.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.shared.lock().ledger.available()
    }

    /// How many callers are in the queue. While there are any, open batches should go out before their time.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.lock().ledger.waiting()
    }

    /// Bytes that those in the queue lack, all together: what has to come back before the last of them is granted.
    #[must_use]
    pub fn lacking(&self) -> u64 {
        self.shared.lock().ledger.lacking()
    }

    /// Ends all waits, also later ones, with [`PoolError::Closed`], and frees the buffers at rest. Leases and chunks
    /// stay valid.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        let wakers = state.ledger.close();
        let resting = std::mem::take(&mut state.resting);
        drop(state);
        drop(resting);
        wake_all(wakers);
    }

    /// The pool's metrics at `now`.
    #[must_use]
    pub fn metrics(&self, now: Duration) -> PoolMetrics {
        let state = self.shared.lock();
        let (waited_ns, waited_in) = state.waited.recent(now);
        let (exhausted, exhausted_in) = state.exhausted.recent(now);
        PoolMetrics {
            bufferpool_wait_ratio: Duration::from_nanos(waited_ns).div_duration_f64(waited_in),
            bufferpool_wait_time_ns_total: state.waited.total(),
            buffer_exhausted_rate: f64::from(u32::try_from(exhausted).unwrap_or(u32::MAX))
                / exhausted_in.as_secs_f64(),
            buffer_exhausted_total: state.exhausted.total(),
            waiting_threads: state.ledger.waiting(),
            buffer_total_bytes: state.ledger.total(),
            buffer_available_bytes: state.ledger.available(),
        }
    }

    /// Chunk buffers that are allocated and wait for their next use.
    #[must_use]
    pub fn resting_chunks(&self) -> usize {
        self.shared.lock().resting.len()
    }
}

/// What the pool, its leases, chunks and waiters share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: PoolConfig,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) ledger: Ledger,
    /// Empty buffers; the last one back is the first one out.
    resting: Vec<Vec<u8>>,
    /// Nanoseconds.
    pub(crate) waited: Meter,
    pub(crate) exhausted: Meter,
}

impl Shared {
    /// Nothing that runs under the lock can panic halfway, so a poisoned one is as good as any.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_take(&self, chunks: usize) -> bool {
        let mut state = self.lock();
        !state.ledger.is_closed() && state.ledger.take(self.config.bytes_of(chunks))
    }

    /// One chunk for a batch that is being closed: also after [`BufferPool::close`].
    pub(crate) fn take_to_close(&self) -> bool {
        self.lock().ledger.take(self.config.bytes_of(1))
    }

    pub(crate) fn give_back(&self, chunks: usize) {
        let wakers = self.lock().ledger.put(self.config.bytes_of(chunks));
        wake_all(wakers);
    }

    /// An empty buffer of one chunk.
    pub(crate) fn take_buffer(&self) -> Vec<u8> {
        let resting = self.lock().resting.pop();
        resting.unwrap_or_else(|| Vec::with_capacity(self.config.chunk_bytes()))
    }

    /// Gives back a charged chunk with its memory.
    pub(crate) fn give_back_buffer(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut state = self.lock();
        let wakers = state.ledger.put(self.config.bytes_of(1));
        if !state.ledger.is_closed() {
            state.resting.push(buffer);
        }
        drop(state);
        wake_all(wakers);
    }
}

pub(crate) fn wake_all(wakers: Vec<Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}
