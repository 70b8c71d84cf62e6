//! Errors, by the operation that failed.

use std::path::PathBuf;

use headrace_wire::records::RecordError;

use crate::disk::DiskError;

/// A log or data directory that cannot be opened or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Another process, or another broker of this one, has the data directory.
    #[error("data directory {} is in use by another broker", .0.display())]
    InUse(PathBuf),
    /// The data directory belongs to another cluster or node.
    #[error("{}: {what} is {found}, but this broker's is {wanted}", path.display())]
    Foreign {
        /// The `meta.properties` that says so.
        path: PathBuf,
        /// Which of its keys.
        what: &'static str,
        /// What the file says.
        found: String,
        /// What the broker's settings say.
        wanted: String,
    },
    /// A directory that holds what no broker has put there.
    #[error("{}: {what}", path.display())]
    NotOurs {
        /// The directory.
        path: PathBuf,
        /// What it holds.
        what: String,
    },
    /// A file of ours that does not read as one.
    #[error("{}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A topic name that could not be a directory's.
    #[error("topic name {0:?} is not allowed: 1 to 249 letters, digits, dots, underscores and hyphens")]
    TopicName(String),
    /// Data that was valid when it was written and is not any more.
    #[error("{} is damaged at byte {position}: {error}", path.display())]
    Damaged {
        /// The segment file.
        path: PathBuf,
        /// Where its damaged batch begins.
        position: u64,
        /// What is wrong with it.
        error: RecordError,
    },
    /// An offset outside of the log, where one inside is needed.
    #[error("offset {offset} is outside of the log, which holds {start} to {end}")]
    OutOfRange {
        /// The offset that was asked for.
        offset: i64,
        /// First offset of the log.
        start: i64,
        /// The offset that the next record will get.
        end: i64,
    },
}

/// Why nothing was appended. The log is as it was before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The bytes are no record batches, or their checksum is wrong.
    #[error("corrupt batch: {0}")]
    Corrupt(RecordError),
    /// A batch that is whole but breaks the format's rules or lies about itself.
    #[error("invalid batch: {0}")]
    Invalid(RecordError),
    /// A rule about the append as a whole is broken.
    #[error("invalid records: {0}")]
    Refused(&'static str),
    /// Unknown or unusable compression.
    #[error("{0}")]
    Codec(RecordError),
    /// A batch above `max.message.bytes`.
    #[error("batch of {size} bytes is larger than max.message.bytes, {limit}")]
    TooLarge {
        /// Bytes of the batch.
        size: usize,
        /// The setting.
        limit: u32,
    },
    /// A compressed batch that grows beyond what the broker looks into.
    #[error("the batch is larger than {limit} bytes once decompressed; send fewer records in one batch")]
    PlainTooLarge {
        /// Bytes allowed, see [`PLAIN_BYTES_MAX`](crate::PLAIN_BYTES_MAX).
        limit: usize,
    },
    /// An append above `segment.bytes`.
    #[error("{size} bytes in one append do not fit into a segment of {limit}")]
    ListTooLarge {
        /// Bytes of all batches.
        size: usize,
        /// The setting.
        limit: u64,
    },
    /// A record's timestamp is too far from the broker's time.
    #[error("timestamp {timestamp} is outside of what the topic takes: {earliest} to {latest}")]
    Timestamp {
        /// The offending one, Unix milliseconds.
        timestamp: i64,
        /// Earliest allowed now, Unix milliseconds.
        earliest: i64,
        /// Latest allowed now, Unix milliseconds.
        latest: i64,
    },
    /// Not the producer's next sequence number, and not one of its last batches either.
    #[error("producer {producer_id} sent sequence {sequence} after {last}")]
    OutOfOrder {
        /// The producer.
        producer_id: i64,
        /// First sequence of the batch.
        sequence: i32,
        /// Last sequence that the log has; -1 when the batch starts an epoch, which begins at 0.
        last: i32,
    },
    /// A producer that was replaced by one with a higher epoch.
    #[error("producer {producer_id} has epoch {current} by now, {epoch} is fenced")]
    Fenced {
        /// The producer.
        producer_id: i64,
        /// Epoch of the batch.
        epoch: i16,
        /// The current one.
        current: i16,
    },
    /// A transactional batch; the log knows no transactions.
    #[error("producer {0} has no transaction open here")]
    NoTransaction(i64),
    /// The epoch under which records are written is on no disk yet: after a crash another run would take the same one, and
    /// clients would not notice that records are gone.
    #[error("nothing can be appended before the leader epoch is on disk; the disk is full")]
    EpochUnstored,
    /// A sync has failed, and what it left in doubt was not made durable since.
    #[error("the log is offline: its records could not be synced to disk, and are being written again")]
    Offline,
    /// The disk refused; what had been written was taken back.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl AppendError {
    /// Kafka's error code for a Produce response.
    #[must_use]
    pub fn code(&self) -> i16 {
        match self {
            Self::Corrupt(_) => 2,
            Self::TooLarge { .. } | Self::PlainTooLarge { .. } => 10,
            Self::ListTooLarge { .. } => 18,
            Self::Timestamp { .. } => 32,
            Self::OutOfOrder { .. } => 45,
            Self::Fenced { .. } => 47,
            Self::NoTransaction(_) => 48,
            Self::Offline | Self::EpochUnstored | Self::Disk(_) => 56,
            Self::Codec(_) => 76,
            Self::Invalid(_) | Self::Refused(_) => 87,
        }
    }
}

/// Why nothing can be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The offset is before the log's start or after its end.
    #[error("offset {offset} is out of range: the log holds {start} to {end}")]
    OutOfRange {
        /// The offset that was asked for.
        offset: i64,
        /// First offset of the log.
        start: i64,
        /// The offset that the next record will get.
        end: i64,
    },
    /// The disk refused, or a segment is damaged.
    #[error(transparent)]
    Log(#[from] LogError),
}

impl From<DiskError> for ReadError {
    fn from(error: DiskError) -> Self {
        Self::Log(error.into())
    }
}
