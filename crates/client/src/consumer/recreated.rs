//! Topics that were deleted and made again under the same name: they are read from where `auto.offset.reset` says, and
//! what was fetched of the old one is dropped. Its offsets mean nothing in the new one.
//!
//! A partition of the new topic is another partition of the cache. So commits of positions that a caller was given
//! before, which name partitions of the cache, find theirs gone; those on their way name the old topic by its id.

use std::collections::{BTreeSet, HashMap, HashSet};

use headrace_wire::errors::ErrorCode;
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use super::cache::{SharedCache, lock};
use super::settings::Reset;
use super::types::{CommitOffset, StartAt, TopicPartition};
use crate::cluster::Cluster;
use crate::error::{Error, Result};

/// The topics behind the names, by their ids. Brokers that tell no ids leave it empty.
#[derive(Debug, Default)]
pub(super) struct Incarnations {
    seen_cluster: u64,
    current: HashMap<String, Uuid>,
    /// Ids of topics that are gone: a broker that lags behind may name one of them once more.
    past: HashSet<Uuid>,
    /// Names that have come to stand for another topic, and how many polls had begun then.
    renewed: HashMap<String, u64>,
}

impl Incarnations {
    /// The names that stand for another topic than before.
    fn renewed(&mut self, cluster: &Cluster, topics: &BTreeSet<String>) -> BTreeSet<String> {
        if std::mem::replace(&mut self.seen_cluster, cluster.generation()) == cluster.generation() {
            return BTreeSet::new();
        }
        self.current.retain(|topic, _| topics.contains(topic));
        self.renewed.retain(|topic, _| topics.contains(topic));
        let mut renewed = BTreeSet::new();
        for topic in topics {
            let Some(id) = cluster.topic_id(topic).filter(|id| !self.past.contains(id)) else { continue };
            if let Some(old) = self.current.insert(topic.clone(), id).filter(|old| *old != id) {
                self.past.insert(old);
                renewed.insert(topic.clone());
            }
        }
        renewed
    }

    /// The topics of these partitions as they are read now.
    pub(super) fn ids<'a>(&self, partitions: impl IntoIterator<Item = &'a TopicPartition>) -> TopicIds {
        let topics: BTreeSet<&str> = partitions.into_iter().map(|partition| &*partition.topic).collect();
        let known =
            topics.into_iter().filter_map(|topic| Some((topic.to_owned(), *self.current.get(topic)?)));
        TopicIds(known.collect())
    }
}

/// Topics by name, and the ids that they had.
#[derive(Clone, Debug, Default)]
pub(super) struct TopicIds(HashMap<String, Uuid>);

impl TopicIds {
    pub(super) fn new() -> TopicIds {
        TopicIds::default()
    }

    pub(super) fn id(&self, topic: &str) -> Option<Uuid> {
        self.0.get(topic).copied()
    }

    /// The name of the topic with this id.
    pub(super) fn name(&self, id: Uuid) -> Option<&String> {
        self.0.iter().find(|(_, known)| **known == id).map(|(name, _)| name)
    }

    /// Whether the topics of all these are among them.
    pub(super) fn has_all<'a>(&self, partitions: impl IntoIterator<Item = &'a TopicPartition>) -> bool {
        partitions.into_iter().all(|partition| self.0.contains_key(&*partition.topic))
    }
}

/// What was committed, or was to be, is of a topic that is gone.
pub(super) fn of_old_topic(TopicPartition { topic, partition }: &TopicPartition) -> Error {
    let detail = "the topic was deleted and made again: the commit is of the one before";
    Error::partition(ErrorCode::UNKNOWN_TOPIC_ID, &**topic, *partition, detail)
}

impl Incarnations {
    /// Begins anew in topics that were made again. A bounded read is of the old one and is left alone.
    pub(super) fn restart(
        &mut self,
        now: Now,
        cluster: &Cluster,
        topics: &BTreeSet<String>,
        reset: Reset,
        cache: &SharedCache,
    ) -> Option<Renewed> {
        let topics = self.renewed(cluster, topics);
        if topics.is_empty() {
            return None;
        }
        // Where the policy is to have none, looking for a commit that is gone with the topic ends in its error.
        let start = reset.start(now).unwrap_or(StartAt::Committed);
        let mut cache = lock(cache);
        let views = cache.views();
        let unbounded = views.filter(|view| view.stop.is_none() && topics.contains(&*view.partition.topic));
        let partitions: BTreeSet<_> = unbounded.map(|view| view.partition).collect();
        for partition in &partitions {
            cache.renew(partition, start);
        }
        let polls = cache.polls();
        self.renewed.extend(topics.iter().map(|topic| (topic.clone(), polls)));
        Some(Renewed { topics, partitions })
    }

    /// Offsets by name, of a caller that has not polled since their topic was made again, are of the topic before.
    pub(super) fn check_not_of_old_topic(&self, polls: u64, commits: &[CommitOffset]) -> Result<()> {
        let is_old = |commit: &&CommitOffset| self.renewed.get(&*commit.partition.topic) == Some(&polls);
        commits.iter().find(is_old).map_or(Ok(()), |commit| Err(of_old_topic(&commit.partition)))
    }
}

/// Topics that were made again.
pub(super) struct Renewed {
    pub(super) topics: BTreeSet<String>,
    /// Those of their partitions that begin anew.
    pub(super) partitions: BTreeSet<TopicPartition>,
}
