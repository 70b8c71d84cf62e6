//! Partitions and offsets, as all clients name them.

use std::fmt;
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
