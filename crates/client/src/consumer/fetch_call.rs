//! A Fetch in flight: its broker, the part of its response that is arriving, and what is needed to process it.

use std::collections::HashSet;

use headrace_wire::errors::ErrorCode;
use headrace_wire::records::BatchHeader;

use super::decode::{Chunk, OpenChunk, RawBatch};
use super::fetch_stream::{AbortedTransaction, DivergingEpoch, FetchStream, LeaderHint, NodeEndpoint};
use super::ticket::Ticket;
use super::types::TopicPartition;

/// The error for a batch that is found damaged for the first time.
pub(super) const DAMAGED: &str =
    "a record batch came damaged, and is fetched once more over a new connection";

/// The error for a batch that was left out.
pub(super) const SKIPPED: &str = "a record batch was left out (on.bad.records is skip)";

/// Where a Fetch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Source {
    pub(super) node: i32,
    /// Outside the session, for what cannot wait.
    pub(super) catch_up: bool,
}

/// Something in an answer that needs the core to be dealt with.
#[derive(Debug)]
pub(super) enum Issue {
    /// A partition was refused. `range`: the first offset and the end, -1 when not told.
    Partition { ticket: Ticket, node: i32, code: ErrorCode, range: (i64, i64) },
    /// The whole answer is an error.
    Session { source: Source, code: ErrorCode },
    /// This node's log is not the one that was read (KIP-320).
    Diverging { ticket: Ticket, node: i32, end: DivergingEpoch },
    /// The leader has moved.
    Leader { ticket: Ticket, partition: TopicPartition, hint: LeaderHint },
    /// A broker's address.
    Endpoint(NodeEndpoint),
    /// A follower to read from.
    Replica { ticket: Ticket, node: i32 },
    /// What came from there is damaged, and is asked for again over a new connection.
    Damaged { source: Source },
}

/// A Fetch that has not been answered to its end.
#[derive(Debug)]
pub(crate) struct FetchCall {
    pub(super) source: Source,
    pub(super) stream: Option<FetchStream>,
    pub(super) current: Option<Current>,
    /// The partition that is refused: what follows may name its leader.
    pub(super) refused: Option<(Ticket, TopicPartition)>,
    /// The next request of the session has been allowed already.
    pub(super) announced: bool,
}

/// The partition whose records are arriving.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) ticket: Ticket,
    /// `None`: out of memory that is read, not out of an answer.
    pub(super) source: Option<Source>,
    pub(super) open: OpenChunk,
    pub(super) aborted: Option<AbortedFilter>,
    /// The position that the cache has been brought to.
    pub(super) pushed: i64,
    /// Where the log ends for readers, as the answer says.
    pub(super) end: i64,
    /// Where a batch that was left out says to end, if that can be so and nothing has come behind it.
    pub(super) claimed: Option<i64>,
    /// Bytes of records that the answer has of it.
    pub(super) records_bytes: usize,
    /// Bytes that have been kept as they came since that was last decided, `None` while batches are decoded here.
    pub(super) kept: Option<usize>,
    /// Decoded, not in the cache yet.
    pub(super) chunks: Vec<Chunk>,
    /// Kept as they came, not in the cache yet. Never beside chunks.
    pub(super) raws: Vec<RawBatch>,
}

impl FetchCall {
    pub(super) fn new(source: Source) -> FetchCall {
        FetchCall { source, stream: None, current: None, refused: None, announced: false }
    }
}

/// Leaves out the records of aborted transactions.
#[derive(Debug)]
pub(super) struct AbortedFilter {
    /// By first offset, the lowest last.
    upcoming: Vec<AbortedTransaction>,
    active: HashSet<i64>,
}

impl AbortedFilter {
    pub(super) fn new(mut aborted: Vec<AbortedTransaction>) -> AbortedFilter {
        aborted.sort_by_key(|aborted| std::cmp::Reverse(aborted.first_offset));
        AbortedFilter { upcoming: aborted, active: HashSet::new() }
    }

    pub(super) fn skips(&mut self, header: &BatchHeader) -> bool {
        while let Some(next) = self.upcoming.last()
            && next.first_offset <= header.last_offset()
        {
            self.active.insert(next.producer_id);
            self.upcoming.pop();
        }
        if header.is_control() {
            // The marker that ends the producer's transaction.
            self.active.remove(&header.producer_id);
            return false;
        }
        header.is_transactional() && self.active.contains(&header.producer_id)
    }
}
