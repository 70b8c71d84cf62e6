//! What a broker has read of its cluster.

use std::collections::{BTreeMap, BTreeSet};

use headrace_wire::uuid::Uuid;

use crate::model::{
    self, Foreign, Key, NodeId, NodeValue, PartitionValue, Place, Registration, TopicValue, Value,
};
use crate::store::{Event, LeaseId, Pair, Revision};

/// A broker that is alive, as far as the store knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its broker epoch: the revision that registered it.
    pub epoch: Revision,
    /// The lease of its registration.
    pub lease: Option<LeaseId>,
    /// What it says of itself.
    pub value: NodeValue,
}

/// A partition, and since when it is like that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// The revision that changed it last.
    pub modified: Revision,
    /// Who leads it, and who has copies.
    pub value: PartitionValue,
}

/// A topic, and since when it is like that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// The revision that changed it last.
    pub modified: Revision,
    /// Its id, partitions and settings.
    pub value: TopicValue,
}

/// All of the cluster, as of one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// The state of the store.
    pub revision: Revision,
    /// The cluster's id, once there is one.
    pub cluster_id: Option<String>,
    /// The brokers that are alive.
    pub nodes: BTreeMap<NodeId, Node>,
    /// The topics by name.
    pub topics: BTreeMap<String, Topic>,
    /// The partitions.
    pub partitions: BTreeMap<Place, Partition>,
}

/// A change of a partition that a broker has seen. A store that does not know of it was restored from a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The partition.
    pub place: Place,
    /// The revision that changed it.
    pub modified: Revision,
    /// In which epoch it was led then, and by whom.
    pub epoch: i32,
    /// The leader of that epoch.
    pub leader: Option<Registration>,
}

/// What has changed in a view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changed {
    /// Brokers that came, went, or registered anew.
    pub nodes: BTreeSet<NodeId>,
    /// Topics that came, went, or have other settings.
    pub topics: BTreeSet<String>,
    /// Partitions.
    pub partitions: BTreeSet<Place>,
    /// It was found by comparing what was read anew with what was known. A store that was restored from a backup looks
    /// the same, so what is gone need not have been deleted.
    pub compared: bool,
}

impl Changed {
    /// Whether nothing has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.topics.is_empty() && self.partitions.is_empty()
    }
}

impl Seen {
    /// A partition as a view has it.
    #[must_use]
    pub fn of(place: Place, known: &Partition) -> Self {
        Self { place, modified: known.modified, epoch: known.value.epoch, leader: known.value.leader }
    }
}

impl View {
    /// Takes a key in.
    pub(crate) fn put(&mut self, pair: &Pair, changed: &mut Changed) -> Result<(), Foreign> {
        match model::decode(&pair.key, &pair.value)? {
            (_, Value::Cluster(value)) => self.cluster_id = Some(value.cluster_id),
            (Key::Node(id), Value::Node(value)) => {
                changed.nodes.insert(id);
                self.nodes.insert(id, Node { epoch: pair.created, lease: pair.lease, value });
            }
            (Key::Topic(name), Value::Topic(value)) => {
                changed.topics.insert(name.clone());
                self.topics.insert(name, Topic { modified: pair.modified, value });
            }
            (Key::Partition(place), Value::Partition(value)) => {
                changed.partitions.insert(place);
                self.partitions.insert(place, Partition { modified: pair.modified, value });
            }
            _ => {}
        }
        Ok(())
    }

    fn delete(&mut self, key: &str, changed: &mut Changed) {
        match Key::parse(key) {
            Some(Key::Node(id)) if self.nodes.remove(&id).is_some() => {
                changed.nodes.insert(id);
            }
            Some(Key::Topic(name)) if self.topics.remove(&name).is_some() => {
                changed.topics.insert(name);
            }
            Some(Key::Partition(place)) if self.partitions.remove(&place).is_some() => {
                changed.partitions.insert(place);
            }
            _ => {}
        }
    }

    /// Takes in what a revision has changed.
    pub(crate) fn apply(&mut self, revision: Revision, events: &[Event]) -> Result<Changed, Foreign> {
        let mut changed = Changed::default();
        for event in events {
            match event {
                Event::Put(pair) => self.put(pair, &mut changed)?,
                Event::Deleted(key) => self.delete(key, &mut changed),
            }
        }
        self.revision = revision;
        Ok(changed)
    }

    /// Which revision of a partition this view has instead of the one that was seen, if it knows nothing of that one. One that is
    /// gone may have been deleted, unless the store has not come as far.
    pub(crate) fn lacks(&self, seen: Seen) -> Option<Revision> {
        let known = self.partitions.get(&seen.place).map_or(self.revision, |partition| partition.modified);
        (known < seen.modified).then_some(known)
    }

    /// A partition that was led in an earlier epoch than was seen, or in that one by somebody else: an epoch begins
    /// once. So a store is found out that was restored, and in which the partition was changed since.
    pub(crate) fn differs(&self, seen: Seen) -> Option<&PartitionValue> {
        let value = &self.partitions.get(&seen.place)?.value;
        (value.epoch < seen.epoch || (value.epoch == seen.epoch && value.leader != seen.leader))
            .then_some(value)
    }

    /// What is not in both, or not the same.
    pub(crate) fn difference(&self, other: &Self) -> Changed {
        fn differing<K: Ord + Clone, V: PartialEq>(a: &BTreeMap<K, V>, b: &BTreeMap<K, V>) -> BTreeSet<K> {
            let keys = a.keys().chain(b.keys());
            keys.filter(|key| a.get(key) != b.get(key)).cloned().collect()
        }
        Changed {
            nodes: differing(&self.nodes, &other.nodes),
            topics: differing(&self.topics, &other.topics),
            partitions: differing(&self.partitions, &other.partitions),
            compared: true,
        }
    }

    /// Whether a registration is the one under which its broker lives.
    #[must_use]
    pub fn is_alive(&self, one: Registration) -> bool {
        self.nodes.get(&one.0).is_some_and(|node| node.epoch == one.1)
    }

    /// The registration of a broker that is alive.
    #[must_use]
    pub fn registration(&self, node: NodeId) -> Option<Registration> {
        self.nodes.get(&node).map(|found| Registration(node, found.epoch))
    }

    /// Who is to lead a partition whose leader is gone: the first of its replicas that is in the in-sync set and alive, and
    /// has lost nothing since it was put there. If nobody is left who could, one that may have lost something, but only
    /// once all of the in-sync set are back.
    #[must_use]
    pub fn candidate(&self, partition: &PartitionValue) -> Option<NodeId> {
        if partition.leader.is_some_and(|leader| self.is_alive(leader)) {
            return None;
        }
        let in_sync =
            || partition.replicas.iter().filter_map(|id| partition.isr.iter().find(|one| one.0 == *id));
        let has_all = |one: &&Registration| {
            self.nodes
                .get(&one.0)
                .is_some_and(|node| node.epoch == one.1 || node.value.is_intact_since(one.1))
        };
        let all_back = || in_sync().all(|one| self.nodes.contains_key(&one.0));
        let found = in_sync().find(has_all).or_else(|| in_sync().next().filter(|_| all_back()));
        found.map(|one| one.0)
    }

    /// The topic of an id.
    #[must_use]
    pub fn topic(&self, id: Uuid) -> Option<(&str, &Topic)> {
        let id = id.to_string();
        self.topics.iter().find(|(_, topic)| topic.value.id == id).map(|(name, topic)| (&**name, topic))
    }
}
