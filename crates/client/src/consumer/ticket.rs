//! How engine and callers name a partition of the cache.

/// A partition of the cache. Never used twice by one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartId(pub(super) u64);

impl PartId {
    /// The number of the partition in this cache, for callers that keep it elsewhere.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// The opposite of [`PartId::number`]. A number that no partition has is one that is gone.
    #[must_use]
    pub fn of_number(number: u64) -> PartId {
        PartId(number)
    }
}

/// What a fill must show: the partition, and the generation that its data was fetched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The partition.
    pub part: PartId,
    pub(super) generation: u64,
}
