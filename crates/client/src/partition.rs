//! Partitions and offsets, as all clients name them.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A partition of a topic, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's index, from 0.
    pub partition: i32,
}

impl TopicPartition {
    /// A partition of a topic.
    #[must_use]
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> Self {
        Self { topic: topic.into(), partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

/// What names a partition, whoever owns the topic's name: looking one up needs no copy of it.
pub trait PartitionName {
    /// The topic's name and the partition's index.
    fn name(&self) -> (&str, i32);
}

impl PartitionName for TopicPartition {
    fn name(&self) -> (&str, i32) {
        (&self.topic, self.partition)
    }
}

impl<S: AsRef<str>> PartitionName for (S, i32) {
    fn name(&self) -> (&str, i32) {
        (self.0.as_ref(), self.1)
    }
}

impl<'a> Borrow<dyn PartitionName + 'a> for TopicPartition {
    fn borrow(&self) -> &(dyn PartitionName + 'a) {
        self
    }
}

impl PartialEq for dyn PartitionName + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn PartitionName + '_ {}

impl Hash for dyn PartitionName + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // As what is derived for `TopicPartition` does: `Borrow` asks for it.
        self.name().hash(state);
    }
}

/// An offset to commit for a partition: the next one to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitOffset {
    /// Which partition.
    pub partition: TopicPartition,
    /// The next offset to read, so the last processed one plus 1.
    pub offset: i64,
    /// The leader epoch of the last processed record, -1 when not known.
    pub leader_epoch: i32,
    /// Free text to keep with it.
    pub metadata: String,
}

/// As whom a consumer commits offsets: lets a producer commit them in a transaction, and the group refuse it once the
/// consumer has lost its partitions (KIP-447).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMetadata {
    /// The group.
    pub group_id: String,
    /// The group's generation; -1 for a consumer that assigns its partitions itself.
    pub generation_id: i32,
    /// The member; empty for a consumer that assigns its partitions itself.
    pub member_id: String,
    /// `group.instance.id`.
    pub instance_id: Option<String>,
}

/// An offset that was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetAt {
    /// The offset.
    pub offset: i64,
    /// Its record's timestamp in Unix milliseconds; -1 for latest and earliest.
    pub timestamp: i64,
    /// The leader epoch of the record, -1 when not known.
    pub leader_epoch: i32,
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_partition_is_found_by_a_borrowed_name() {
        let names = [("a", 0), ("a", 1), ("b", 0), ("", -1)];
        let by_name: HashMap<TopicPartition, usize> =
            names.iter().enumerate().map(|(at, &(topic, p))| (TopicPartition::new(topic, p), at)).collect();
        for (at, name) in names.iter().enumerate() {
            assert_eq!(by_name.get(name as &dyn PartitionName), Some(&at));
            let owned = (name.0.to_owned(), name.1);
            assert_eq!(by_name.get(&owned as &dyn PartitionName), Some(&at));
        }
        assert_eq!(by_name.get(&("b", 1) as &dyn PartitionName), None);
        assert_eq!(by_name.get(&("ab", 0) as &dyn PartitionName), None);
    }
}
