//! Partitions of topics that were deleted and created again.

use super::FetchCache;
use crate::consumer::types::{StartAt, TopicPartition};

impl FetchCache {
    /// The partition's topic is another one by now, of the same name. A new partition takes its place and begins at
    /// `start`; paused it is if the old one was. What names the old one finds it gone.
    pub(in crate::consumer) fn renew(&mut self, partition: &TopicPartition, start: StartAt) {
        let Some(old) = self.by_name.get(partition).and_then(|part| self.slots.get(part)) else { return };
        let (paused, stop) = (old.paused, old.stop);
        self.changes += 1;
        self.remove(partition);
        self.add(partition.clone(), start, stop);
        if let Some(new) = self.by_name.get(partition).and_then(|part| self.slots.get_mut(part)) {
            new.paused |= paused;
        }
    }
}
