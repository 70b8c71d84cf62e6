//! Waiting for memory, or for a broker's share of it.

use std::task::{Poll, Waker};
use std::time::Duration;

use headrace_pool::{BlockingWait, Lease, PoolError, Waiting};

use super::shares::{LineId, Permits};
use crate::error::Error;
use crate::options::BrokerShare;

/// What an append has waited for: memory, or leave to take some for one broker. Goes into the next try; dropped, it is
/// given back.
#[derive(Debug, Default)]
pub struct Grant {
    pub(super) memory: Option<Lease>,
    pub(super) permits: Option<Permits>,
}

/// What an append waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scarce {
    /// `buffer.memory`.
    Memory,
    /// What batches for one broker may hold of it (`buffer.memory.broker.share`).
    Share {
        /// The broker's node id; `None`: the partitions that have no leader.
        node: Option<i32>,
        /// How much that is.
        share: BrokerShare,
    },
}

impl Scarce {
    /// The error for the user after a wait in vain of `waited_ms` (`max.block.ms`).
    #[must_use]
    pub fn timed_out(self, waited_ms: u64) -> Error {
        let detail = match self {
            Self::Memory => "buffer.memory is used up by records that are still on their way".to_owned(),
            Self::Share { node, share } => {
                let whose = match node {
                    Some(node) => format!("for node {node}"),
                    None => "of partitions without a leader".to_owned(),
                };
                format!(
                    "records {whose} that are still on their way hold their share of buffer.memory \
                     (buffer.memory.broker.share = {share})"
                )
            }
        };
        Error::Timeout { what: "waiting for producer memory".to_owned(), ms: waited_ms, detail }
    }
}

/// A place in the queue of the pool, or of a broker's share. Dropped, it is given up, with what may have been granted.
#[derive(Debug)]
#[must_use = "dropping it gives the place up"]
pub struct Place {
    waiting: Waiting,
    /// `None` once the wait has ended.
    kind: Option<Kind>,
    scarce: Scarce,
}

#[derive(Debug)]
enum Kind {
    /// The permits are kept meanwhile.
    Memory(Option<Permits>),
    Share(LineId),
}

impl Place {
    pub(super) fn for_memory(waiting: Waiting, permits: Option<Permits>) -> Self {
        Self { waiting, kind: Some(Kind::Memory(permits)), scarce: Scarce::Memory }
    }

    pub(super) fn for_share(waiting: Waiting, line: LineId, share: BrokerShare) -> Self {
        let scarce = Scarce::Share { node: line.leader, share };
        Self { waiting, kind: Some(Kind::Share(line)), scarce }
    }

    /// What is waited for.
    #[must_use]
    pub fn scarce(&self) -> Scarce {
        self.scarce
    }

    /// What the wait has brought, or why nothing: as [`Waiting::poll`]. [`PoolError::Closed`] does not say that the
    /// producer is closed; the next try does, if it is.
    pub fn poll(
        &mut self,
        now: Duration,
        deadline: Option<Duration>,
        waker: &Waker,
    ) -> Poll<Result<Grant, PoolError>> {
        self.waiting.poll(now, deadline, waker).map(|outcome| Self::grant(self.kind.take(), outcome))
    }

    /// Blocks this thread until there is an outcome, see [`Self::poll`].
    pub fn block(self, wait: &mut BlockingWait<'_>) -> Result<Grant, PoolError> {
        Self::grant(self.kind, self.waiting.block(wait))
    }

    fn grant(kind: Option<Kind>, outcome: Result<Lease, PoolError>) -> Result<Grant, PoolError> {
        let lease = outcome?;
        Ok(match kind {
            Some(Kind::Share(line)) => Grant { memory: None, permits: Some(Permits { line, lease }) },
            Some(Kind::Memory(permits)) => Grant { memory: Some(lease), permits },
            None => Grant { memory: Some(lease), permits: None },
        })
    }
}
