//! What callers and the consumer engine exchange.

use super::ticket::PartId;
use crate::error::Error;
pub use crate::partition::{CommitOffset, GroupMetadata, OffsetAt, PartitionName, TopicPartition};

/// Where reading a partition begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartAt {
    /// At the group's committed offset; where there is none, as `auto.offset.reset` says.
    #[default]
    Committed,
    /// At the first offset that is still there.
    Earliest,
    /// After the last record.
    Latest,
    /// At this offset.
    Offset(i64),
    /// At the first record whose timestamp is this or later, in Unix milliseconds; at the end when there is none.
    Timestamp(i64),
}

impl StartAt {
    /// The offset, where it is known from the start.
    pub(super) fn offset(self) -> Option<i64> {
        match self {
            StartAt::Offset(offset) => Some(offset),
            _ => None,
        }
    }
}

/// How many partitions a message names.
const NAMED_MAX: usize = 3;

/// Some partitions by name, for messages.
pub(super) fn some_of<'a>(partitions: impl IntoIterator<Item = &'a TopicPartition>) -> String {
    let mut rest = partitions.into_iter();
    let named: Vec<_> = rest.by_ref().take(NAMED_MAX).map(ToString::to_string).collect();
    match rest.count() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// A partition to read, from where, and up to where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Which partition.
    pub partition: TopicPartition,
    /// Where to begin. `None` keeps the position of a partition that is assigned already, and is
    /// [`StartAt::Committed`] for a new one.
    pub start: Option<StartAt>,
    /// Read no record at or after this offset; the partition is finished once its position is there. `None` reads on.
    pub stop: Option<i64>,
}

impl Assignment {
    /// Reads on for ever from where the group stands.
    #[must_use]
    pub fn of(partition: TopicPartition) -> Assignment {
        Assignment { partition, start: None, stop: None }
    }
}

/// What a caller asks of the engine. `op` is the caller's own number; the answer carries it.
#[derive(Clone, Debug)]
pub enum ConsumerCommand {
    /// Read exactly these partitions, without group membership. The position of partitions that stay is kept.
    Assign {
        /// The caller's number for the answer.
        op: u64,
        /// The whole new assignment.
        partitions: Vec<Assignment>,
    },
    /// Join the group and read the share of these topics that it gives.
    Subscribe {
        /// The caller's number for the answer, which comes at once: joining goes on behind it.
        op: u64,
        /// The topics.
        topics: Vec<String>,
    },
    /// Join the group and read the share of the topics whose names match.
    SubscribePattern {
        /// The caller's number for the answer, which comes at once: joining goes on behind it.
        op: u64,
        /// A regular expression for whole names: where the coordinator looks for them, by the rules of RE2/J.
        pattern: String,
    },
    /// From now on a listener is notified of rebalances, or none any more: [`ConsumerEvent::CallListener`].
    Listen(bool),
    /// The listener was called: the answer to [`ConsumerEvent::CallListener`].
    ListenerCalled {
        /// The number of the notice.
        notice: u64,
    },
    /// Leave the group and read nothing.
    Unsubscribe {
        /// The caller's number for the answer.
        op: u64,
    },
    /// The next offset to be handed out, once it is known.
    Position {
        /// The caller's number for the answer.
        op: u64,
        /// A partition that is assigned.
        partition: TopicPartition,
        /// How long to wait, in milliseconds.
        timeout_ms: u64,
    },
    /// What the group has committed.
    Committed {
        /// The caller's number for the answer.
        op: u64,
        /// Which partitions.
        partitions: Vec<TopicPartition>,
        /// How long to wait, in milliseconds.
        timeout_ms: u64,
    },
    /// Commit offsets for the group.
    Commit {
        /// The caller's number for the answer.
        op: u64,
        /// What to commit.
        offsets: Vec<CommitOffset>,
        /// How long to try, in milliseconds.
        timeout_ms: u64,
    },
    /// Commit the positions that partitions had when the caller asked; those that are gone by now are left out.
    CommitPositions {
        /// The caller's number for the answer.
        op: u64,
        /// What to commit: [`FetchCache::positions`](super::FetchCache::positions).
        positions: Vec<(PartId, CommitOffset)>,
        /// How long to try, in milliseconds.
        timeout_ms: u64,
    },
    /// Commit offsets of partitions that are read still; of others nothing is committed, and the answer is an error.
    CommitParts {
        /// The caller's number for the answer.
        op: u64,
        /// What to commit.
        offsets: Vec<(PartId, CommitOffset)>,
        /// How long to try, in milliseconds.
        timeout_ms: u64,
    },
    /// As whom this consumer commits: for a producer that commits its offsets in a transaction.
    GroupMetadata {
        /// The caller's number for the answer.
        op: u64,
    },
    /// Look up offsets: a timestamp in Unix milliseconds, -1 latest, -2 earliest, -3 that of the largest timestamp.
    ListOffsets {
        /// The caller's number for the answer.
        op: u64,
        /// What to look up.
        targets: Vec<(TopicPartition, i64)>,
        /// How long to try, in milliseconds.
        timeout_ms: u64,
    },
    /// Commit what auto commit still owes, leave the group, close every connection.
    Close {
        /// The caller's number for the answer.
        op: u64,
        /// The caller has processed all rows that it was given; else those of its last poll do not count as processed.
        finished: bool,
        /// How long that may take, in milliseconds.
        timeout_ms: u64,
    },
    /// Look at the shared cache: it was changed, or there is room in it again.
    Wake,
}

impl ConsumerCommand {
    /// The caller's number for the answer; `None` where none is due.
    #[must_use]
    pub fn op(&self) -> Option<u64> {
        match self {
            Self::Assign { op, .. }
            | Self::Subscribe { op, .. }
            | Self::SubscribePattern { op, .. }
            | Self::Unsubscribe { op }
            | Self::Position { op, .. }
            | Self::Committed { op, .. }
            | Self::Commit { op, .. }
            | Self::CommitPositions { op, .. }
            | Self::CommitParts { op, .. }
            | Self::GroupMetadata { op }
            | Self::ListOffsets { op, .. }
            | Self::Close { op, .. } => Some(*op),
            Self::Wake | Self::Listen(_) | Self::ListenerCalled { .. } => None,
        }
    }
}

/// The answer to a command that went well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsumerOutcome {
    /// Nothing more to say.
    Ok,
    /// A position: the next offset to be handed out.
    Position(i64),
    /// Committed offsets, `None` where the group has none.
    Committed(Vec<(TopicPartition, Option<CommitOffset>)>),
    /// As whom it commits.
    Group(GroupMetadata),
    /// Offsets and their timestamps, `None` where no record matches.
    Offsets(Vec<(TopicPartition, Option<OffsetAt>)>),
}

/// What a rebalance does to partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebalance {
    /// They are this member's now. No rows are returned until the listener was called.
    Assigned,
    /// They are about to be revoked. They stay until the listener was called, so it can still commit.
    Revoked,
    /// They are gone already.
    Lost,
}

/// What the engine tells its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsumerEvent {
    /// A command has ended.
    Done {
        /// The command's number.
        op: u64,
        /// How.
        result: Result<ConsumerOutcome, Error>,
    },
    /// A waiting caller should look at the cache: rows, an error or the end of a bounded read has come.
    Ready,
    /// The group gave these partitions to this member.
    Assigned(Vec<TopicPartition>),
    /// These partitions go back to the group; their offsets were committed if auto commit is on.
    Revoked(Vec<TopicPartition>),
    /// These partitions are gone: the group has gone on without this member, nothing could be committed.
    Lost(Vec<TopicPartition>),
    /// A listener is to be called; the engine waits for [`ConsumerCommand::ListenerCalled`] as far as [`Rebalance`] says. Only while
    /// [`ConsumerCommand::Listen`] is on. What unsubscribing and closing give back is not told here: the caller knows.
    CallListener {
        /// Names this one.
        notice: u64,
        /// What happens to the partitions.
        news: Rebalance,
        /// Which; at least one.
        partitions: Vec<TopicPartition>,
    },
    /// An error that neither a call nor a poll reports; the consumer goes on.
    Trouble {
        /// What, and what follows from it: a sentence but for its end.
        what: &'static str,
        /// Why.
        error: Error,
    },
}
