//! What a Fetch response is made of.

use headrace_wire::records::{BatchHeader, RecordError};
use headrace_wire::uuid::Uuid;

/// How a response names a topic: by name up to version 12, by id from 13 on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TopicKey {
    /// The topic's name.
    Name(String),
    /// The topic's id.
    Id(Uuid),
}

/// What stands at the head of the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// The error of the whole response, 0 for none.
    pub error: i16,
    /// The fetch session, 0 for none (KIP-227).
    pub session_id: i32,
}

/// A producer's transaction that was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// The producer.
    pub producer_id: i64,
    /// The first offset of the transaction in this partition.
    pub first_offset: i64,
}

/// What stands before the records of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionHead {
    /// The topic.
    pub topic: TopicKey,
    /// The partition's index.
    pub partition: i32,
    /// The error of this partition, 0 for none.
    pub error: i16,
    /// The end of what is committed: the offset after the last record a consumer may see.
    pub high_watermark: i64,
    /// The first offset that is still there, -1 when not known.
    pub log_start_offset: i64,
    /// Transactions to leave out when only committed records are wanted.
    pub aborted: Vec<AbortedTransaction>,
    /// The replica to read from next, -1 for the leader (KIP-392).
    pub preferred_read_replica: i32,
    /// Bytes of records that follow.
    pub records_bytes: usize,
}

/// A leader as a response names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderHint {
    /// The broker's id, -1 when not known.
    pub leader_id: i32,
    /// Its leader epoch, -1 when not known.
    pub leader_epoch: i32,
}

/// Where the broker's log parted from what was read (KIP-320).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DivergingEpoch {
    /// The largest epoch that both share.
    pub epoch: i32,
    /// Where that epoch ends.
    pub end_offset: i64,
}

/// What stands after the records of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionTail {
    /// Set when the log was truncated below what was read.
    pub diverging: Option<DivergingEpoch>,
    /// Set when the leader has moved.
    pub leader: Option<LeaderHint>,
    /// Bytes of an incomplete last batch, which were dropped.
    pub cut_bytes: usize,
    /// Whole batches that were handed out.
    pub batches: u32,
}

/// A broker's address as a response gives it (KIP-951).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEndpoint {
    /// The broker's id.
    pub node_id: i32,
    /// Its host.
    pub host: String,
    /// Its port.
    pub port: i32,
}

/// A part of the response.
#[derive(Clone, Debug, PartialEq)]
pub enum FetchEvent<'a> {
    /// The head of the response; always the first event.
    Head(ResponseHead),
    /// The head of a partition.
    Partition(PartitionHead),
    /// The header of the last whole batch of this partition has been seen. Comes at most once a
    /// partition, and not at all when it holds no whole batch.
    LastBatch {
        /// The offset to fetch from next.
        next_offset: i64,
        /// The batch's leader epoch.
        leader_epoch: i32,
        /// No other partition follows in this response.
        response_ends: bool,
    },
    /// A whole batch.
    Batch {
        /// Its header.
        header: BatchHeader,
        /// All its bytes, header included.
        bytes: &'a [u8],
    },
    /// What follows in this partition is not a record batch; the rest of its bytes is dropped.
    BadBatch {
        /// What is wrong.
        error: RecordError,
    },
    /// The end of a partition.
    PartitionEnd(PartitionTail),
    /// The end of the response.
    End(Vec<NodeEndpoint>),
}
