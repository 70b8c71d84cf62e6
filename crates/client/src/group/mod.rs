//! Consumer groups: the coordinator, membership by both protocols, and how a leader of the classic one divides
//! partitions.

mod any_member;
mod assignor;
mod consumer_member;
mod coordinator;
mod member;
mod protocol;
mod sticky;

pub(crate) use any_member::AnyMember;
pub(crate) use coordinator::Coordinator;
pub(crate) use member::{MemberEvent, MemberSettings, MemberTag};
