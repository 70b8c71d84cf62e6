//! How a group's leader divides partitions among the members.

use std::collections::{BTreeMap, BTreeSet};

use super::sticky::{sticky, withhold};
use crate::consumer::TopicPartition;
use crate::options::Assignor;

/// A member, as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subscriber {
    /// The member's id.
    pub(crate) member_id: String,
    /// Its `group.instance.id`, if it is a static member.
    pub(crate) instance_id: Option<String>,
    /// The topics it wants.
    pub(crate) topics: BTreeSet<String>,
    /// What it says it has.
    pub(crate) owned: Vec<TopicPartition>,
    /// The generation in which it was given that; -1 when it does not say.
    pub(crate) generation: i32,
}

impl Subscriber {
    /// A member that has nothing yet.
    pub(crate) fn new(member_id: String, topics: BTreeSet<String>) -> Subscriber {
        Subscriber { member_id, instance_id: None, topics, owned: Vec::new(), generation: -1 }
    }

    /// Members are taken in this order: static ones by their lasting name, so that a restart changes nothing.
    fn order(&self) -> (bool, &str) {
        match &self.instance_id {
            Some(instance) => (false, instance),
            None => (true, &self.member_id),
        }
    }
}

/// Divides all partitions of the topics (`counts`: partitions by topic) among the members; every member gets an entry.
/// The same members and topics give the same division, whoever is the leader.
pub(crate) fn divide(
    assignor: Assignor,
    members: &[Subscriber],
    counts: &BTreeMap<String, i32>,
) -> BTreeMap<String, Vec<TopicPartition>> {
    let mut ordered: Vec<&Subscriber> = members.iter().collect();
    ordered.sort_by(|a, b| a.order().cmp(&b.order()));
    let mut division: BTreeMap<String, Vec<TopicPartition>> =
        members.iter().map(|member| (member.member_id.clone(), Vec::new())).collect();
    match assignor {
        Assignor::Range => range(&ordered, counts, &mut division),
        Assignor::RoundRobin => round_robin(&ordered, counts, &mut division),
        Assignor::Sticky => sticky(&ordered, counts, &mut division),
        Assignor::CooperativeSticky => {
            sticky(&ordered, counts, &mut division);
            withhold(members, &mut division);
        }
    }
    division
}

/// Each topic by itself: ranges of as even a length as can be, the longer ones to the first members.
fn range(
    members: &[&Subscriber],
    counts: &BTreeMap<String, i32>,
    division: &mut BTreeMap<String, Vec<TopicPartition>>,
) {
    for (topic, &count) in counts {
        let takers: Vec<_> = members.iter().filter(|member| member.topics.contains(topic)).collect();
        let Ok(number) = i32::try_from(takers.len()) else { continue };
        if number == 0 {
            continue;
        }
        let (each, longer) = (count / number, count % number);
        let mut next = 0;
        for (index, member) in (0..).zip(takers) {
            let end = next + each + i32::from(index < longer);
            if let Some(share) = division.get_mut(&member.member_id) {
                share.extend((next..end).map(|partition| TopicPartition::new(topic.as_str(), partition)));
            }
            next = end;
        }
    }
}

/// All partitions of all topics in a row, one to each member in turn that wants the topic.
fn round_robin(
    members: &[&Subscriber],
    counts: &BTreeMap<String, i32>,
    division: &mut BTreeMap<String, Vec<TopicPartition>>,
) {
    let mut turn = 0;
    for (topic, &count) in counts {
        if !members.iter().any(|member| member.topics.contains(topic)) {
            continue;
        }
        for partition in 0..count {
            while members.get(turn).is_none_or(|member| !member.topics.contains(topic)) {
                turn = (turn + 1) % members.len();
            }
            if let Some(share) = members.get(turn).and_then(|member| division.get_mut(&member.member_id)) {
                share.push(TopicPartition::new(topic.as_str(), partition));
            }
            turn = (turn + 1) % members.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: &str, topics: &[&str]) -> Subscriber {
        let topics = topics.iter().map(|t| (*t).to_owned()).collect();
        Subscriber::new(id.to_owned(), topics)
    }

    fn counts(topics: &[(&str, i32)]) -> BTreeMap<String, i32> {
        topics.iter().map(|(t, n)| ((*t).to_owned(), *n)).collect()
    }

    fn shares(division: &BTreeMap<String, Vec<TopicPartition>>) -> Vec<String> {
        let list =
            |all: &Vec<TopicPartition>| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        division.iter().map(|(member, all)| format!("{member}: {}", list(all))).collect()
    }

    #[test]
    fn range_divides_each_topic_by_itself() {
        let members = [member("b", &["t", "u"]), member("a", &["t", "u"])];
        let division = divide(Assignor::Range, &members, &counts(&[("t", 3), ("u", 3)]));
        assert_eq!(shares(&division), ["a: t-0 t-1 u-0 u-1", "b: t-2 u-2"]);
    }

    #[test]
    fn round_robin_goes_on_from_topic_to_topic() {
        let members = [member("b", &["t", "u"]), member("a", &["t", "u"])];
        let division = divide(Assignor::RoundRobin, &members, &counts(&[("t", 3), ("u", 3)]));
        assert_eq!(shares(&division), ["a: t-0 t-2 u-1", "b: t-1 u-0 u-2"]);
    }

    #[test]
    fn nobody_gets_what_it_did_not_ask_for_and_nothing_is_left_out() {
        let members = [member("a", &["t"]), member("b", &["t", "u"]), member("c", &["u"]), member("d", &[])];
        for assignor in [Assignor::Range, Assignor::RoundRobin, Assignor::Sticky, Assignor::CooperativeSticky]
        {
            let division = divide(assignor, &members, &counts(&[("t", 5), ("u", 4), ("nobody", 2)]));
            let mut all: Vec<_> = division.values().flatten().map(ToString::to_string).collect();
            all.sort();
            assert_eq!(all, ["t-0", "t-1", "t-2", "t-3", "t-4", "u-0", "u-1", "u-2", "u-3"]);
            assert!(division["a"].iter().all(|p| &*p.topic == "t"));
            assert!(division["c"].iter().all(|p| &*p.topic == "u"));
            assert!(division["d"].is_empty());
        }
    }

    #[test]
    fn static_members_keep_their_place_when_their_id_changes() {
        let with = |id: &str, instance: &str| Subscriber {
            instance_id: Some(instance.to_owned()),
            ..member(id, &["t"])
        };
        let before = divide(Assignor::Range, &[with("x", "1"), with("y", "2")], &counts(&[("t", 2)]));
        let after = divide(Assignor::Range, &[with("z", "1"), with("y", "2")], &counts(&[("t", 2)]));
        assert_eq!(before["x"], after["z"]);
        assert_eq!(before["y"], after["y"]);
    }
}
