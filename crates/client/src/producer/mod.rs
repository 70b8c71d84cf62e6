//! The producer: callers append records to open batches, the engine sends the batches.
//!
//! Callers' threads share an [`Accumulator`] with the engine and reach it through [`Appender`]; records are encoded on
//! the caller's thread, straight into the chunks that go to the socket. [`ProducerEngine`] takes batches out, one Produce
//! request a leader at a time with up to `max.in.flight.requests.per.connection` of them on their way, and ends each
//! with one [`ProducerEvent::BatchDone`].
//!
//! Order: the ends of one partition's batches are reported in the order in which the batches were filled. The records
//! are in the log in that order too for an idempotent producer (the default) or with one request in flight. Otherwise a
//! batch that is sent again may come behind one that was sent after it, as in Kafka.

mod accumulator;
mod appender;
mod batch;
mod engine;
mod error;
mod partitioner;
mod place;
mod pressure;
mod queue;
mod request;
mod rows;
mod sequence;
mod settings;
mod shares;
#[cfg(test)]
mod tests;
mod topics;
mod transaction;

use crate::error::Error;
use crate::partition::CommitOffset;

pub use self::accumulator::{Accumulator, AccumulatorConfig, Appended, OnAppended, RecordRef};
pub use self::appender::Appender;
pub use self::batch::BatchId;
pub use self::engine::ProducerEngine;
pub use self::error::AppendError;
pub use self::partitioner::{murmur2, partition_of_key};
pub use self::place::{Grant, Place, Scarce};
pub use self::rows::RowSpan;
pub use crate::partition::GroupMetadata;

/// What a producer's engine is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProducerCommand {
    /// The accumulator has something new: see [`Appender::new`].
    Wake,
    /// Tell about a topic, so that the first append need not wait.
    Metadata {
        /// Its name.
        topic: String,
    },
    /// Send everything that was appended before; [`ProducerEvent::Done`] says when all of it has ended, well or not.
    Flush {
        /// Comes back with the event.
        op: u64,
    },
    /// Take no more records, send what is there until the time is over, fail the rest. [`ProducerEvent::Done`] follows
    /// when every batch has ended; it is an error if some had to be failed for lack of time. Then nothing more happens.
    Close {
        /// Comes back with the event.
        op: u64,
        /// Milliseconds from now; 0 fails everything that is not done.
        timeout_ms: u64,
    },
    /// Get the id and epoch of the transactional id; fences an older producer of it and aborts what that left open.
    InitTransactions {
        /// Comes back with the event.
        op: u64,
        /// How long the caller waits, milliseconds. The engine goes on behind it: asking again waits for the same.
        timeout_ms: u64,
    },
    /// Open a transaction: records are taken from now on.
    BeginTransaction {
        /// Comes back with the event.
        op: u64,
    },
    /// Commit a group's offsets as a part of the open transaction.
    SendOffsets {
        /// Comes back with the event.
        op: u64,
        /// The next offset to read of each partition.
        offsets: Vec<CommitOffset>,
        /// As whom.
        group: GroupMetadata,
        /// How long to try, milliseconds. After that the transaction can only be aborted.
        timeout_ms: u64,
    },
    /// Commit the open transaction once all of its records are written, or abort it.
    EndTransaction {
        /// Comes back with the event.
        op: u64,
        /// Commit it; else abort it: records that are not on their way end with [`Error::Aborted`].
        commit: bool,
        /// How long the caller waits, milliseconds. The engine goes on behind it: asking again waits for the same.
        timeout_ms: u64,
    },
}

impl ProducerCommand {
    /// The number that comes back with [`ProducerEvent::Done`]; `None` where nothing does.
    #[must_use]
    pub fn op(&self) -> Option<u64> {
        match self {
            Self::Wake | Self::Metadata { .. } => None,
            Self::Flush { op }
            | Self::Close { op, .. }
            | Self::InitTransactions { op, .. }
            | Self::BeginTransaction { op }
            | Self::SendOffsets { op, .. }
            | Self::EndTransaction { op, .. } => Some(*op),
        }
    }
}

/// What a producer's engine tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProducerEvent {
    /// A batch has ended, for good. Each batch that took a record ends exactly once, and so does each part of one that
    /// was split.
    BatchDone {
        /// Which one.
        batch: BatchId,
        /// Number of its records.
        records: u32,
        /// Where it lies, or why it does not, or may not.
        result: Result<BatchAck, Error>,
    },
    /// The broker found a batch too large, and it has become two; each of them ends by itself.
    BatchSplit {
        /// Which one: it goes on with its first records.
        batch: BatchId,
        /// How many those are.
        kept: u32,
        /// The batch of the others: what was record `kept` is its record 0.
        rest: BatchId,
    },
    /// Callers that were turned away with [`AppendError::NeedMetadata`] should look again.
    TopicsDecided,
    /// Callers that run ahead ([`Accumulator::runs_ahead`]) may go on.
    CaughtUp,
    /// A flush, a close or a step of a transaction has ended.
    Done {
        /// Of the command.
        op: u64,
        /// An error of the operation itself, not of single batches.
        result: Result<(), Error>,
    },
}

/// What the broker said to a batch that it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchAck {
    /// The topic.
    pub topic: std::sync::Arc<str>,
    /// The partition.
    pub partition: i32,
    /// Offset of the batch's first record; -1 if unknown: with `acks=0`, and sometimes for a batch that had arrived
    /// already when it was sent again.
    pub base_offset: i64,
    /// The broker's time in Unix milliseconds where the topic takes that as the records' timestamp, else -1.
    pub log_append_time: i64,
}
