//! What the consumer's requests are tagged with: what each is for, and what its answer needs of it.

use super::fetch_call::FetchCall;
use super::ticket::Ticket;
use super::types::TopicPartition;
use crate::group::{GroupTag, MemberTag};
use crate::io::LinkId;

/// What a call is for.
#[derive(Debug)]
pub(crate) enum Tag {
    Fetch(Box<FetchCall>),
    ListOffsets(Vec<u64>),
    EpochEnds(Vec<EpochQuestion>),
    Coordinator,
    OffsetCommit(u64),
    OffsetFetch(u64),
    Member(MemberTag),
    /// A link to this node.
    Link {
        node: i32,
    },
    Grant(Box<Granting>),
    Released,
}

impl GroupTag for Tag {
    fn coordinator() -> Tag {
        Tag::Coordinator
    }

    fn member(tag: MemberTag) -> Tag {
        Tag::Member(tag)
    }
}

/// A partition whose leader is asked where the epoch of what was read ends.
#[derive(Clone, Debug)]
pub(crate) struct EpochQuestion {
    pub(super) ticket: Ticket,
    pub(super) partition: TopicPartition,
    /// The offset after the last record that was fetched, and its epoch. More may have come when the answer does, from a
    /// leader that knew what was read before.
    pub(super) offset: i64,
    pub(super) last_epoch: i32,
    /// The leader's own epoch.
    pub(super) leader_epoch: i32,
}

/// What a request for a grant was about.
#[derive(Debug)]
pub(crate) struct Granting {
    pub(super) partition: TopicPartition,
    pub(super) ticket: Ticket,
    pub(super) node: i32,
    pub(super) link: LinkId,
    pub(super) leader_epoch: i32,
    pub(super) offset: i64,
}
