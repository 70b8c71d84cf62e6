//! Topics that were deleted and made again under the same name: they are read from where `auto.offset.reset` says, and
//! what was fetched of the old one is dropped. Its offsets mean nothing in the new one.

use std::collections::{BTreeSet, HashMap, HashSet};

use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use super::cache::lock;
use super::engine::ConsumerEngine;
use super::types::StartAt;
use crate::cluster::Cluster;

/// The topics behind the names, by their ids. Brokers that tell no ids leave it empty.
#[derive(Debug, Default)]
pub(super) struct Incarnations {
    seen_cluster: u64,
    current: HashMap<String, Uuid>,
    /// Ids of topics that are gone: a broker that lags behind may name one of them once more.
    past: HashSet<Uuid>,
}

impl Incarnations {
    /// The names that stand for another topic than before.
    fn renewed(&mut self, cluster: &Cluster, topics: &BTreeSet<String>) -> Vec<String> {
        if std::mem::replace(&mut self.seen_cluster, cluster.generation()) == cluster.generation() {
            return Vec::new();
        }
        self.current.retain(|topic, _| topics.contains(topic));
        let mut renewed = Vec::new();
        for topic in topics {
            let Some(id) = cluster.topic_id(topic).filter(|id| !self.past.contains(id)) else { continue };
            if let Some(old) = self.current.insert(topic.clone(), id).filter(|old| *old != id) {
                self.past.insert(old);
                renewed.push(topic.clone());
            }
        }
        renewed
    }
}

impl ConsumerEngine {
    /// Begins anew in topics that were made again. A bounded read is of the old one and is left alone.
    pub(super) fn restart_recreated(&mut self, now: Now) {
        let renewed = self.incarnations.renewed(self.core.cluster(), &self.wanted_topics);
        if renewed.is_empty() {
            return;
        }
        // Where the policy is to have none, looking for a commit that is gone with the topic ends in its error.
        let start = self.fetcher.settings.reset.start(now).unwrap_or(StartAt::Committed);
        let mut cache = lock(&self.cache);
        let of_them = |topic: &str| renewed.iter().any(|renewed| renewed == topic);
        let views = cache.views();
        let unbounded = views.filter(|view| view.stop.is_none() && of_them(&view.partition.topic));
        let targets: Vec<_> = unbounded.map(|view| (view.partition, start)).collect();
        // All of them are assigned, so this cannot fail.
        let _ = cache.seek(&targets);
        drop(cache);
        if let Some(membership) = &mut self.membership {
            membership.committed.retain(|partition, _| !of_them(&partition.topic));
        }
    }
}
