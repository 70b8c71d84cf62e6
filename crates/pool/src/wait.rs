//! Waiting for memory: a place in the queue that is polled, and a thread that sleeps on one.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use crate::error::PoolError;
use crate::lease::Lease;
use crate::ledger::Ticket;
use crate::pool::{Shared, State, wake_all};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// How long a blocked thread sleeps before it asks whether it should go on: Ctrl-C is answered within this time.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A place in the queue. Dropped, it is given up, with what may have been granted, and the next in the queue moves up.
#[derive(Debug)]
#[must_use = "dropping it gives the place up"]
pub struct Waiting {
    pool: Arc<Shared>,
    /// `None` once the wait has ended.
    ticket: Option<Ticket>,
    chunks: usize,
    since: Duration,
}

impl Waiting {
    pub(crate) fn new(pool: Arc<Shared>, ticket: Ticket, chunks: usize, now: Duration) -> Self {
        Self { pool, ticket: Some(ticket), chunks, since: now }
    }

    /// The lease once it is granted, or why there is none: at `deadline` that is [`PoolError::Exhausted`]; `None` is
    /// never.
    ///
    /// While pending, `waker` is called at the grant and when the pool closes, on the thread that gave memory back or
    /// closed: it may only signal, and must own nothing of the pool's. It is not called at the deadline: poll again
    /// then. After an outcome there is nothing more to come but [`PoolError::Closed`].
    pub fn poll(
        &mut self,
        now: Duration,
        deadline: Option<Duration>,
        waker: &Waker,
    ) -> Poll<Result<Lease, PoolError>> {
        let Some(ticket) = self.ticket else { return Poll::Ready(Err(PoolError::Closed)) };
        // The handle is cloned so that the guard does not borrow what ends the wait.
        let pool = self.pool.clone();
        let mut state = pool.lock();
        let outcome = if state.ledger.is_granted(ticket, waker) {
            Ok(())
        } else if state.ledger.is_closed() {
            Err(PoolError::Closed)
        } else if deadline.is_some_and(|deadline| deadline <= now) {
            state.exhausted.record(now, 1);
            Err(PoolError::Exhausted {
                bytes: pool.config.bytes_of(self.chunks),
                total: state.ledger.total(),
                waited_ms: u64::try_from(now.saturating_sub(self.since).as_millis()).unwrap_or(u64::MAX),
            })
        } else {
            return Poll::Pending;
        };
        Poll::Ready(self.end(state, now, outcome))
    }

    /// Blocks this thread until there is an outcome.
    pub fn block(mut self, wait: &mut BlockingWait<'_>) -> Result<Lease, PoolError> {
        let parker = Arc::new(Parker::default());
        let waker = Waker::from(parker.clone());
        loop {
            let now = (wait.now)();
            if let Poll::Ready(outcome) = self.poll(now, wait.deadline, &waker) {
                return outcome;
            }
            let left = wait.deadline.map_or(CHECK_INTERVAL, |deadline| deadline.saturating_sub(now));
            if !parker.park(left.min(CHECK_INTERVAL)) && (wait.check)() {
                return self.interrupt((wait.now)());
            }
        }
    }

    /// Gives the place up for [`PoolError::Interrupted`]; unlike a drop it counts the time waited.
    fn interrupt(mut self, now: Duration) -> Result<Lease, PoolError> {
        let pool = self.pool.clone();
        self.end(pool.lock(), now, Err(PoolError::Interrupted))
    }

    fn end(
        &mut self,
        mut state: MutexGuard<'_, State>,
        now: Duration,
        outcome: Result<(), PoolError>,
    ) -> Result<Lease, PoolError> {
        let waited = now.saturating_sub(self.since).as_nanos();
        state.waited.record(now, u64::try_from(waited).unwrap_or(u64::MAX));
        let ticket = self.ticket.take();
        match outcome {
            Ok(()) => {
                drop(state);
                Ok(Lease::new(self.pool.clone(), self.chunks))
            }
            Err(error) => {
                self.leave(state, ticket);
                Err(error)
            }
        }
    }

    fn leave(&self, mut state: MutexGuard<'_, State>, ticket: Option<Ticket>) {
        let bytes = self.pool.config.bytes_of(self.chunks);
        let wakers = ticket.map(|ticket| state.ledger.leave(ticket, bytes));
        drop(state);
        wake_all(wakers.unwrap_or_default());
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.leave(self.pool.lock(), Some(ticket));
        }
    }
}

/// How a thread waits; good for all waits of one append, which share its deadline.
pub struct BlockingWait<'a> {
    /// The clock.
    pub now: &'a dyn Fn() -> Duration,
    /// When to give up, on that clock; `None` is never.
    pub deadline: Option<Duration>,
    /// Asked at least every [`CHECK_INTERVAL`], without any lock; `true` ends the wait with
    /// [`PoolError::Interrupted`].
    pub check: &'a mut dyn FnMut() -> bool,
}

impl fmt::Debug for BlockingWait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingWait").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// A thread asleep until it is woken, once: nothing wakes a waiter that still has to wait.
#[derive(Debug, Default)]
struct Parker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Parker {
    /// Sleeps until woken, now or before, or for `timeout`; says which.
    fn park(&self, timeout: Duration) -> bool {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        if !*woken {
            woken = self.changed.wait_timeout(woken, timeout).unwrap_or_else(PoisonError::into_inner).0;
        }
        *woken
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}
