//! What of the cluster is reported to callers unasked: that topics do not exist, or that no broker answers.

use std::collections::{BTreeSet, HashMap};

use headrace_wire::time::Now;

use super::cache::{SharedCache, lock};
use super::fetcher::Fetcher;
use super::membership::Membership;
use super::offsets::Lookups;
use super::tag::Tag;
use super::types::TopicPartition;
use crate::core::Core;
use crate::missing::{Unreachable, unknown_partition};

/// Which topics matter, and what of the cluster was reported to the caller.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) topics: BTreeSet<String>,
    /// Topics that the brokers do not know, since when, and whether that was reported to the caller.
    unknown: HashMap<String, (u64, bool)>,
    /// The cluster's generation when unknown topics were last looked for.
    seen_cluster: u64,
    unreachable: Unreachable,
}

/// Those for whom topics matter.
#[derive(Clone, Copy)]
pub(super) struct Readers<'a> {
    pub(super) fetcher: &'a Fetcher,
    pub(super) lookups: &'a Lookups,
    pub(super) membership: Option<&'a Membership>,
}

impl Readers<'_> {
    /// All topics that matter.
    fn topics(self) -> BTreeSet<String> {
        let parts = self.fetcher.parts.values().map(|part| part.partition.topic.to_string());
        let lookups = self.lookups.topics().map(str::to_owned);
        let subscribed = self.membership.filter(|membership| membership.is_subscribed());
        let member = subscribed.into_iter().flat_map(|membership| membership.member.watched());
        parts.chain(lookups).chain(member).collect()
    }

    /// The topics that the caller has named, and which may be made for it. What the group assigned or a pattern found was
    /// there already: asked for by name once somebody has deleted it, it would be made again.
    fn named(self) -> BTreeSet<String> {
        let assigned = |topic: &TopicPartition| {
            self.membership.is_some_and(|m| m.is_subscribed() || m.owned.contains(topic))
        };
        let by_hand = self.fetcher.parts.values().filter(|part| !assigned(&part.partition));
        let by_hand = by_hand.map(|part| part.partition.topic.to_string());
        let by_name = self.membership.iter().filter(|m| m.is_subscribed() && m.pattern.is_none());
        let by_name = by_name.flat_map(|membership| membership.topics.iter().cloned());
        by_hand.chain(by_name).chain(self.lookups.named().map(str::to_owned)).collect()
    }
}

impl Watch {
    /// Tells the core which topics matter.
    pub(super) fn want_topics(&mut self, now: Now, core: &mut Core<Tag>, readers: Readers<'_>) {
        let (wanted, named) = (readers.topics(), readers.named());
        core.forget_topics(self.topics.difference(&wanted).map(String::as_str));
        core.make_no_more(wanted.difference(&named).map(String::as_str));
        core.want_topics(now, wanted.intersection(&named).map(String::as_str));
        core.watch_topics(now, wanted.difference(&named).map(String::as_str));
        self.unknown.retain(|topic, _| wanted.contains(topic));
        self.seen_cluster = 0;
        self.topics = wanted;
    }

    /// Tells the caller of partitions that the cluster has not got, once for each time they go missing.
    pub(super) fn find_unknown_topics(
        &mut self,
        now: Now,
        core: &Core<Tag>,
        cache: &SharedCache,
        readers: Readers<'_>,
    ) {
        let cluster = core.cluster();
        let seen = std::mem::replace(&mut self.seen_cluster, cluster.generation());
        if self.unknown.is_empty() && seen == cluster.generation() {
            return;
        }
        let is_missing = |partition: &TopicPartition| {
            let outside = |count: i32| !(0..count).contains(&partition.partition);
            cluster.topic_error(&partition.topic).is_some()
                || cluster.partition_count(&partition.topic).is_some_and(outside)
        };
        // Nobody waits for what is about to go, such as a topic that was deleted and does not match any more.
        let stays = |partition: &TopicPartition| {
            readers.membership.is_none_or(|membership| !membership.withheld.contains(partition))
        };
        let parts = readers.fetcher.parts.values().filter(|part| stays(&part.partition));
        let parts = parts.map(|part| (part.partition.clone(), Some(part.ticket)));
        let subscribed = readers.membership.iter().filter(|membership| membership.is_subscribed());
        let subscribed = subscribed.flat_map(|membership| membership.member.topics());
        let subscribed = subscribed.map(|topic| (TopicPartition::new(topic.as_str(), 0), None));
        let mut missing: Vec<_> =
            parts.chain(subscribed).filter(|(partition, _)| is_missing(partition)).collect();
        // In one order, whatever that of the table is.
        missing.sort_by(|(a, _), (b, _)| a.cmp(b));
        let topics: BTreeSet<&str> = missing.iter().map(|(partition, _)| &*partition.topic).collect();
        self.unknown.retain(|topic, _| topics.contains(topic.as_str()));
        let mut reported = Vec::new();
        for (partition, ticket) in &missing {
            let (since, known) =
                *self.unknown.entry(partition.topic.to_string()).or_insert((now.mono_ms, false));
            if !known && let Some(error) = unknown_partition(core, partition, since, now) {
                match ticket {
                    Some(ticket) => drop(lock(cache).fail(*ticket, error, false)),
                    None => lock(cache).fail_all(error),
                }
                reported.push(partition.topic.to_string());
            }
        }
        for topic in reported {
            self.unknown.entry(topic).and_modify(|(_, known)| *known = true);
        }
    }

    /// Tells a caller that polls why nothing comes, as long as no broker has ever answered.
    pub(super) fn watch_brokers(&mut self, now: Now, core: &Core<Tag>, cache: &SharedCache, timeout_ms: u64) {
        if let Some(error) = self.unreachable.find(now, core, timeout_ms, !self.topics.is_empty()) {
            lock(cache).fail_all(error);
        }
    }
}
