//! What a watcher of the cache can see of it.

use super::FetchCache;
use super::slot::Entry;
use crate::consumer::types::TopicPartition;

impl FetchCache {
    /// The offset behind all that is held of the partition: what is before it need not be fetched again. `None` while the
    /// position is not known, while a caller decodes some of it, and for a partition that is not assigned.
    #[must_use]
    pub fn held_to(&self, partition: &TopicPartition) -> Option<i64> {
        let slot = self.by_name.get(partition).and_then(|part| self.slots.get(part))?;
        let end = |entry: &Entry| match entry {
            Entry::Chunk(chunk) => Some(chunk.next_offset),
            Entry::Raw(raw) => Some(raw.header.last_offset().saturating_add(1)),
            Entry::Advance { next, .. } => Some(*next),
            Entry::Failed { .. } => None,
        };
        let last = slot.entries.iter().rev().find_map(end);
        let open = slot.open.as_ref().map(|open| open.chunk.next_offset);
        let position = slot.position.filter(|_| !slot.decoding)?;
        Some(last.or(open).unwrap_or(position).max(position))
    }
}
