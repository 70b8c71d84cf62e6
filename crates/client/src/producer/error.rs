//! Why a record was not accepted.

use headrace_wire::errors::ErrorCode;

use super::place::Place;
use crate::error::Error;

/// Why an append failed. [`Self::Full`] and [`Self::NeedMetadata`] are for waiting: `max.block.ms` is one deadline for
/// both. Nothing of the failed record or row was kept.
#[derive(Debug)]
pub enum AppendError {
    /// `buffer.memory` is used up, or the broker's share of it. Wait in this place of the queue, then try again with
    /// what it grants.
    Full(Place),
    /// The topic's metadata is not known yet, and the record was not to be parked. Wait for
    /// [`super::ProducerEvent::TopicsDecided`], then try again.
    NeedMetadata {
        /// Which topic.
        topic: String,
        /// What the brokers last said.
        last: Option<Error>,
    },
    /// The record can never be sent with these options.
    TooLarge {
        /// Which topic.
        topic: String,
        /// Its size, at most.
        bytes: usize,
        /// What is allowed.
        limit: u64,
        /// The option that says so.
        option: &'static str,
    },
    /// The topic has no such partition.
    PartitionOutOfRange {
        /// Which topic.
        topic: String,
        /// The partition asked for.
        partition: i32,
        /// How many there are.
        partitions: u32,
    },
    /// The topic cannot be written.
    Topic(Error),
    /// A transactional producer takes records only while a transaction is open and nothing in it has failed.
    Transaction(Error),
    /// The producer is closed.
    Closed,
    /// The producer cannot go on.
    Fatal(Error),
}

impl AppendError {
    /// The error for the user, after `waited_ms` (`max.block.ms`) have passed where it was one to wait for.
    #[must_use]
    pub fn into_error(self, waited_ms: u64) -> Error {
        match self {
            Self::Full(place) => place.scarce().timed_out(waited_ms),
            Self::NeedMetadata { topic, last } => Error::Timeout {
                what: format!("waiting for metadata of topic '{topic}'"),
                ms: waited_ms,
                detail: last.map(|error| error.to_string()).unwrap_or_default(),
            },
            // Kafka's own producer names this and the broker's refusal alike.
            Self::TooLarge { topic, bytes, limit, option } => Error::topic(
                ErrorCode::MESSAGE_TOO_LARGE,
                topic,
                format!("a record of up to {bytes} bytes does not fit into {option} = {limit}"),
            ),
            Self::PartitionOutOfRange { topic, partition, partitions } => Error::Usage(format!(
                "topic '{topic}' has no partition {partition}: it has {partitions}, counted from 0"
            )),
            Self::Topic(error) | Self::Transaction(error) | Self::Fatal(error) => error,
            Self::Closed => Error::Closed,
        }
    }
}
