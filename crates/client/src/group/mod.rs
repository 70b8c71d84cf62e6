//! Groups: the coordinator, membership by the three protocols, and how a leader of the classic one divides partitions.
//!
//! `classic_member` is a member by the first protocol; `epoch_member` is one by the heartbeats of KIP-848 and KIP-932, and
//! `consumer_member` and `share_member` say where those two differ.

mod assignor;
mod classic_member;
mod consumer_member;
mod context;
mod coordinator;
mod epoch_member;
mod member;
mod names;
mod protocol;
mod share_member;
mod sticky;

use self::classic_member::ClassicMember;
use self::consumer_member::ConsumerMember;
pub(crate) use self::context::{GroupTag, MemberContext, MemberTag};
pub(crate) use self::coordinator::Coordinator;
pub(crate) use self::member::{GroupMember, MemberEvent, MemberSettings};
use self::share_member::ShareMember;
use crate::options::GroupProtocol;
use crate::time::Backoff;

/// A consumer's member that has not joined.
pub(crate) fn member_of<T: GroupTag>(
    protocol: GroupProtocol,
    settings: MemberSettings,
) -> Box<dyn GroupMember<T>> {
    match protocol {
        GroupProtocol::Classic => Box::new(ClassicMember::new(settings)),
        GroupProtocol::Consumer => Box::new(ConsumerMember::new(settings)),
    }
}

/// A share consumer's member that has not joined. `rack` is `client.rack`.
pub(crate) fn share_member_of<T: GroupTag>(
    rack: String,
    request_timeout_ms: u64,
    backoff: Backoff,
) -> Box<dyn GroupMember<T>> {
    Box::new(ShareMember::new(rack, request_timeout_ms, backoff))
}
