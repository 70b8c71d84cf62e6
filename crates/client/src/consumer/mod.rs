//! The consumer: fetching into a cache of Arrow chunks, positions, commits.

mod attempt;
mod cache;
mod commits;
mod decode;
mod direct;
mod engine;
mod fetch_call;
mod fetch_stream;
mod fetcher;
mod leaving;
mod listening;
mod membership;
mod offsets;
mod part;
mod queries;
mod recreated;
mod session;
mod settings;
mod sink;
mod tag;
mod ticket;
mod truncation;
mod types;
mod watch;

pub use cache::{
    AHEAD_BYTES, Admission, Asked, ConsumerMetrics, Discarded, FetchCache, Rows, SharedCache, SlotView,
    Taken, lock,
};
pub use decode::{CHUNK_BYTES, Chunk, DecodeJob, Decoded, RawBatch};
pub use engine::ConsumerEngine;
pub use fetch_stream::{
    AbortedTransaction, BATCH_BYTES_MAX, DivergingEpoch, FetchEvent, FetchStream, FetchStreamError,
    LeaderHint, NodeEndpoint, PartitionHead, PartitionTail, Progress, ResponseHead, Step, TopicKey,
};
pub use ticket::{PartId, Ticket};
pub use types::{
    Assignment, CommitOffset, ConsumerCommand, ConsumerEvent, ConsumerOutcome, GroupMetadata, OffsetAt,
    PartitionName, Rebalance, StartAt, TopicPartition,
};
