//! What a watcher of the cache can see of it.

use super::FetchCache;
use super::metrics::{ConsumerMetrics, Counters};
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

    /// What has been counted, and how things stand.
    #[must_use]
    pub fn metrics(&self, now_ms: u64) -> ConsumerMetrics {
        let Counters { fetches, fetched_bytes, direct_bytes, records, discarded } = self.counters;
        let mut records_lag: Vec<_> =
            self.slots.values().filter_map(|slot| Some((slot.id.clone(), slot.lag()?))).collect();
        records_lag.sort();
        let polled = (self.last_poll_ms > 0).then(|| now_ms.saturating_sub(self.last_poll_ms));
        ConsumerMetrics {
            records_consumed_total: records,
            bytes_consumed_total: fetched_bytes,
            direct_bytes_consumed_total: direct_bytes,
            fetch_total: fetches,
            records_lag,
            assigned_partitions: self.slots.len(),
            last_poll_seconds_ago: polled.map(|ms| std::time::Duration::from_millis(ms).as_secs_f64()),
            fetch_cache_bytes: self.held_bytes,
            fetch_cache_total_bytes: self.budget,
            fetch_cache_bytes_discarded: discarded,
        }
    }
}
