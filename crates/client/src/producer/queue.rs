//! Partitions with batches that the engine has not taken, by what stands first in them.

use std::collections::{BTreeMap, BTreeSet};

use super::batch::{BatchId, Body, PartitionKey, Slot};

/// What stands first in a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Stand {
    #[default]
    Empty,
    /// A batch that takes records.
    Open(BatchId),
    /// A batch that takes no more.
    Ended,
}

impl Stand {
    pub(super) fn of(front: Option<&Slot>) -> Self {
        match front {
            None => Self::Empty,
            Some(Slot { id, body: Body::Open(_), .. }) => Self::Open(*id),
            Some(_) => Self::Ended,
        }
    }
}

/// Each partition that has batches, once. What has to be looked at is found without passing the others: thousands of
/// partitions whose batches linger cost nothing until the oldest is due.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By the batch: ids rise with the time at which batches were opened.
    open: BTreeMap<BatchId, PartitionKey>,
    ended: BTreeSet<PartitionKey>,
}

impl Queue {
    /// A partition's first batch is another, or another's kind.
    pub(super) fn change(&mut self, key: PartitionKey, from: Stand, to: Stand) {
        if from == to {
            return;
        }
        match from {
            Stand::Empty => {}
            Stand::Open(id) => {
                self.open.remove(&id);
            }
            Stand::Ended => {
                self.ended.remove(&key);
            }
        }
        match to {
            Stand::Empty => {}
            Stand::Open(id) => {
                self.open.insert(id, key);
            }
            Stand::Ended => {
                self.ended.insert(key);
            }
        }
    }

    /// Partitions whose first batch takes records, the oldest first.
    pub(super) fn open(&self) -> impl Iterator<Item = (BatchId, PartitionKey)> {
        self.open.iter().map(|(id, key)| (*id, *key))
    }

    /// Partitions whose first batch takes no more records.
    pub(super) fn ended(&self) -> impl Iterator<Item = PartitionKey> {
        self.ended.iter().copied()
    }

    /// All partitions with batches.
    pub(super) fn all(&self) -> Vec<PartitionKey> {
        self.ended.iter().chain(self.open.values()).copied().collect()
    }
}
