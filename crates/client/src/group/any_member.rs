//! A member by whichever protocol `group.protocol` names.

use headrace_wire::time::Now;

use super::Coordinator;
use super::consumer_member::ConsumerMember;
use super::member::{Member, MemberEvent, MemberSettings, MemberTag};
use crate::core::{Core, Reply};
use crate::options::GroupProtocol;

/// What both kinds of members can do; what each call means stands there.
#[derive(Debug)]
pub(crate) enum AnyMember {
    Classic(Box<Member>),
    Consumer(Box<ConsumerMember>),
}

impl AnyMember {
    pub(crate) fn new(protocol: GroupProtocol, settings: MemberSettings) -> AnyMember {
        match protocol {
            GroupProtocol::Classic => AnyMember::Classic(Box::new(Member::new(settings))),
            GroupProtocol::Consumer => AnyMember::Consumer(Box::new(ConsumerMember::new(settings))),
        }
    }

    /// Whether the coordinator finds topics by a pattern.
    pub(crate) fn takes_patterns(&self) -> bool {
        matches!(self, AnyMember::Consumer(_))
    }

    /// Whether commits carry a member epoch, which changes while partitions stay (KIP-848).
    pub(crate) fn has_epochs(&self) -> bool {
        matches!(self, AnyMember::Consumer(_))
    }

    pub(crate) fn is_cooperative(&self) -> bool {
        match self {
            AnyMember::Classic(member) => member.is_cooperative(),
            AnyMember::Consumer(_) => true,
        }
    }

    pub(crate) fn subscribe(&mut self, topics: impl IntoIterator<Item = String>, pattern: Option<String>) {
        match self {
            AnyMember::Classic(member) => member.subscribe(topics),
            AnyMember::Consumer(member) => member.subscribe(topics, pattern),
        }
    }

    pub(crate) fn topics(&self) -> Vec<&str> {
        match self {
            AnyMember::Classic(member) => member.topics().collect(),
            AnyMember::Consumer(member) => member.topics().collect(),
        }
    }

    pub(crate) fn watched(&self) -> Vec<String> {
        match self {
            AnyMember::Classic(member) => member.watched(),
            AnyMember::Consumer(member) => member.topics().map(str::to_owned).collect(),
        }
    }

    pub(crate) fn identity(&self) -> Option<(i32, &str)> {
        match self {
            AnyMember::Classic(member) => member.identity(),
            AnyMember::Consumer(member) => member.identity(),
        }
    }

    pub(crate) fn instance_id(&self) -> Option<&String> {
        match self {
            AnyMember::Classic(member) => member.instance_id(),
            AnyMember::Consumer(member) => member.instance_id(),
        }
    }

    pub(crate) fn wants_release(&self) -> bool {
        match self {
            AnyMember::Classic(member) => member.wants_release(),
            AnyMember::Consumer(member) => member.wants_release(),
        }
    }

    pub(crate) fn released(&mut self) {
        match self {
            AnyMember::Classic(member) => member.released(),
            AnyMember::Consumer(member) => member.released(),
        }
    }

    pub(crate) fn leave<T>(
        &mut self,
        now: Now,
        core: &mut Core<T>,
        coordinator: &Coordinator,
        reason: &str,
        wrap: impl Fn(MemberTag) -> T,
    ) -> bool {
        match self {
            AnyMember::Classic(member) => member.leave(now, core, coordinator, reason, wrap),
            AnyMember::Consumer(member) => member.leave(now, core, coordinator, wrap),
        }
    }

    pub(crate) fn drive<T>(
        &mut self,
        now: Now,
        core: &mut Core<T>,
        coordinator: &mut Coordinator,
        find: impl FnOnce() -> T,
        wrap: impl Fn(MemberTag) -> T,
    ) -> Option<MemberEvent> {
        match self {
            AnyMember::Classic(member) => member.drive(now, core, coordinator, find, wrap),
            AnyMember::Consumer(member) => member.drive(now, core, coordinator, find, wrap),
        }
    }

    pub(crate) fn answered<T>(
        &mut self,
        now: Now,
        core: &mut Core<T>,
        coordinator: &mut Coordinator,
        tag: MemberTag,
        reply: Reply<T>,
    ) -> Option<MemberEvent> {
        match self {
            AnyMember::Classic(member) => member.answered(now, core, coordinator, tag, reply),
            AnyMember::Consumer(member) => member.answered(now, core, coordinator, tag, reply),
        }
    }

    pub(crate) fn timeouts(&self) -> Vec<u64> {
        match self {
            AnyMember::Classic(member) => member.timeouts().collect(),
            AnyMember::Consumer(member) => member.timeouts().collect(),
        }
    }
}
