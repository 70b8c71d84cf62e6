//! Consumer groups by the classic protocol: the coordinator, membership, and how a leader divides partitions.

mod assignor;
mod coordinator;
mod member;
mod protocol;
mod sticky;

pub(crate) use coordinator::Coordinator;
pub(crate) use member::{Member, MemberEvent, MemberSettings, MemberTag};
