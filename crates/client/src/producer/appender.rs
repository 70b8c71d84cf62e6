//! The callers' side of the accumulator.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use headrace_pool::{BufferPool, Lease};
use headrace_wire::time::Now;

use super::accumulator::{Accumulator, Appended, OnAppended, RecordRef};
use super::batch::{BatchId, SealJob};
use super::error::AppendError;
use super::place::Grant;

/// Appends from any thread. Records are encoded under the accumulator's lock; a batch that is full is compressed
/// without it, on the thread that filled it, so several callers compress side by side.
#[derive(Clone)]
pub struct Appender {
    shared: Arc<Mutex<Accumulator>>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Appender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Appender").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl Appender {
    /// A caller's side of `shared`. Both are called when the engine has to look at [`super::ProducerCommand::Wake`]:
    /// `wake` without the lock, so that it may run the engine, and not again until the engine has looked; `ring` by
    /// whoever gives memory back that parked records were waiting for, perhaps with the lock: it only tells the engine's
    /// thread.
    #[must_use]
    pub fn new(
        shared: Arc<Mutex<Accumulator>>,
        wake: Arc<dyn Fn() + Send + Sync>,
        ring: Arc<dyn Fn() + Send + Sync>,
    ) -> Self {
        lock(&shared).set_waker(Waker::from(Arc::new(Bell(ring))));
        Self { shared, wake }
    }

    /// The memory of all batches.
    #[must_use]
    pub fn pool(&self) -> BufferPool {
        self.lock().pool().clone()
    }

    /// The accumulator under its lock.
    ///
    /// A caller that panicked under the lock has left whole batches behind at worst one record short, so the lock is
    /// taken all the same.
    pub fn lock(&self) -> MutexGuard<'_, Accumulator> {
        lock(&self.shared)
    }

    /// Appends one record. `grant` is what a wait for memory has brought ([`AppendError::Full`]). `placed` is told batch and index before the engine can report the batch as done; it runs
    /// under the lock and must be short.
    pub fn append_record(
        &self,
        now: Now,
        record: &RecordRef<'_>,
        grant: Option<Grant>,
        placed: impl FnOnce(BatchId, u32),
    ) -> Result<Appended, AppendError> {
        self.with_grant(grant, |accumulator, lease| {
            let (batch, index) = accumulator.append_record(now, record, lease)?;
            placed(batch, index);
            Ok(Appended { batch, index })
        })
    }

    /// Appends one record as [`Self::append_record`] does; while no metadata of its topic has come it is parked
    /// instead, copied and charged to `buffer.memory`, and gets its place once one has. `on_appended` makes what its sender is
    /// told with then: the place, or the error it is refused with, or that `max.block.ms` have passed. So this never
    /// fails with [`AppendError::NeedMetadata`].
    pub fn append_or_park(
        &self,
        now: Now,
        record: &RecordRef<'_>,
        grant: Option<Grant>,
        placed: impl FnOnce(BatchId, u32),
        on_appended: impl FnOnce() -> OnAppended,
    ) -> Result<(), AppendError> {
        self.with_grant(grant, |accumulator, lease| {
            accumulator.append_or_park(now, record, lease, placed, on_appended)
        })
    }

    /// The partition that a record would go to if it were appended now; `None` while its topic is not known, or for one
    /// that it does not have.
    #[must_use]
    pub fn place_of(&self, record: &RecordRef<'_>) -> Option<u32> {
        self.with(|accumulator| accumulator.place_of(record))
    }

    /// Ends all open batches and compresses them on this thread. Before a flush this saves the engine's thread the
    /// work.
    pub fn seal_all(&self) {
        self.with(Accumulator::seal_all);
    }

    /// As [`Self::with`], for a caller that has waited: `append` gets the memory that it was granted, and charges what it
    /// takes to its permits. What is left of both goes back.
    pub(super) fn with_grant<T>(
        &self,
        grant: Option<Grant>,
        append: impl FnOnce(&mut Accumulator, &mut Lease) -> T,
    ) -> T {
        self.with(|accumulator| {
            let Grant { memory, permits } = grant.unwrap_or_default();
            let mut lease = memory.unwrap_or_else(|| accumulator.pool().empty_lease());
            accumulator.shares_mut().bring(permits);
            let result = append(accumulator, &mut lease);
            drop(accumulator.shares_mut().take_brought());
            result
        })
    }

    /// Runs `append` under the lock; then, without it, compresses the batches that it ended, and wakes the engine if
    /// that has something new to see.
    pub(super) fn with<T>(&self, append: impl FnOnce(&mut Accumulator) -> T) -> T {
        let mut accumulator = self.lock();
        let result = append(&mut accumulator);
        let jobs = accumulator.take_jobs();
        let mut wake = accumulator.wake_needed();
        drop(accumulator);
        if !jobs.is_empty() {
            let sealed: Vec<_> = jobs.into_iter().map(SealJob::run).collect();
            let mut accumulator = self.lock();
            for sealed in sealed {
                accumulator.sealed(sealed);
            }
            wake |= accumulator.wake_needed();
        }
        if wake {
            (self.wake)();
        }
        result
    }
}

/// Wakes the engine from whatever thread gives memory back. It owns nothing of the accumulator or the pool.
struct Bell(Arc<dyn Fn() + Send + Sync>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

pub(super) fn lock(shared: &Mutex<Accumulator>) -> MutexGuard<'_, Accumulator> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
