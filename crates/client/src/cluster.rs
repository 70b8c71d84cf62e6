//! What is known of the cluster: brokers, topics, leaders.

use std::collections::{BTreeMap, HashMap};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::MetadataResponse;
use headrace_wire::uuid::Uuid;

/// A broker's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerInfo {
    /// Its id.
    pub node: i32,
    /// Host name or address as the broker advertises it.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Its rack, if it has one.
    pub rack: Option<String>,
}

/// One partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionInfo {
    /// The leader's node id; `None` while there is none.
    pub leader: Option<i32>,
    /// The leader's epoch; -1 when the broker does not tell.
    pub leader_epoch: i32,
    /// Nodes that hold a replica.
    pub replicas: Vec<i32>,
    /// Nodes whose replica is in sync.
    pub in_sync: Vec<i32>,
}

/// One topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its id; zero when the broker has none for it.
    pub id: Uuid,
    /// Whether it is one of Kafka's own.
    pub internal: bool,
    /// Its partitions by index. A gap in the broker's answer is a partition without a leader.
    pub partitions: Vec<PartitionInfo>,
}

/// A snapshot of the cluster that each metadata answer brings up to date.
#[derive(Debug, Default)]
pub struct Cluster {
    /// Its name; `None` until a broker has reported it.
    id: Option<String>,
    controller: Option<i32>,
    brokers: BTreeMap<i32, BrokerInfo>,
    topics: HashMap<String, TopicInfo>,
    errors: BTreeMap<String, ErrorCode>,
    generation: u64,
}

/// A partition that had a leader, and has another one or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaderChange {
    pub(crate) topic: String,
    pub(crate) partition: usize,
    pub(crate) from: i32,
    pub(crate) to: Option<i32>,
    pub(crate) epoch: i32,
}

/// The largest partition index taken from a broker: a lying index must not make us allocate.
const PARTITION_INDEX_MAX: usize = 1 << 20;

impl Cluster {
    /// The leader of a partition and the leader's epoch, if both topic and leader are known.
    #[must_use]
    pub fn leader(&self, topic: &str, partition: i32) -> Option<(i32, i32)> {
        let partition = self.partition(topic, partition)?;
        Some((partition.leader?, partition.leader_epoch))
    }

    /// What is known of a partition.
    #[must_use]
    pub fn partition(&self, topic: &str, partition: i32) -> Option<&PartitionInfo> {
        self.topics.get(topic)?.partitions.get(usize::try_from(partition).ok()?)
    }

    /// A topic's id; `None` while the topic is unknown or has none.
    #[must_use]
    pub fn topic_id(&self, topic: &str) -> Option<Uuid> {
        self.topics.get(topic).map(|t| t.id).filter(|id| *id != Uuid::ZERO)
    }

    /// How many partitions a topic has; `None` while it is unknown.
    #[must_use]
    pub fn partition_count(&self, topic: &str) -> Option<i32> {
        self.topics.get(topic).and_then(|t| i32::try_from(t.partitions.len()).ok())
    }

    /// What is known of a topic.
    #[must_use]
    pub fn topic(&self, topic: &str) -> Option<&TopicInfo> {
        self.topics.get(topic)
    }

    /// Every topic that was asked for and found, in no order.
    pub fn topics(&self) -> impl Iterator<Item = (&str, &TopicInfo)> {
        self.topics.iter().map(|(name, topic)| (name.as_str(), topic))
    }

    /// Why the last metadata answer had nothing on a topic.
    #[must_use]
    pub fn topic_error(&self, topic: &str) -> Option<ErrorCode> {
        self.errors.get(topic).copied()
    }

    /// Every topic that was asked for and refused, by name.
    pub fn topic_errors(&self) -> impl Iterator<Item = (&str, ErrorCode)> {
        self.errors.iter().map(|(name, code)| (name.as_str(), *code))
    }

    /// The brokers, by node id.
    pub fn brokers(&self) -> impl Iterator<Item = &BrokerInfo> {
        self.brokers.values()
    }

    /// One broker.
    #[must_use]
    pub fn broker(&self, node: i32) -> Option<&BrokerInfo> {
        self.brokers.get(&node)
    }

    /// The controller's node id. With `KRaft` it is any broker, which hands on what is the controller's.
    #[must_use]
    pub fn controller(&self) -> Option<i32> {
        self.controller
    }

    /// Grows with every change; 0 before the first answer.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Takes a metadata answer: all brokers, and the topics in it.
    /// Which partitions that had a leader have another one.
    pub(crate) fn update(&mut self, response: MetadataResponse) -> Vec<LeaderChange> {
        let mut changes = Vec::new();
        self.generation += 1;
        // Another cluster stands there now, whose leader epochs may be lower.
        if self.id.is_some() && response.cluster_id.is_some() && self.id != response.cluster_id {
            self.forget_brokers();
        }
        self.id = response.cluster_id.or(self.id.take());
        self.controller = Some(response.controller_id).filter(|id| *id >= 0);
        // An empty list comes from a broker that is just starting; what was known may still be right.
        if !response.brokers.is_empty() {
            self.brokers = response
                .brokers
                .into_iter()
                .filter_map(|b| {
                    let port = u16::try_from(b.port).ok()?;
                    Some((b.node_id, BrokerInfo { node: b.node_id, host: b.host, port, rack: b.rack }))
                })
                .collect();
        }
        for topic in response.topics {
            let Some(name) = topic.name else { continue };
            let code = ErrorCode::new(topic.error_code);
            if code != ErrorCode::NONE {
                self.errors.insert(name.clone(), code);
                // A deleted topic is gone; one that only its leader is missing from is not.
                if matches!(code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION | ErrorCode::UNKNOWN_TOPIC_ID) {
                    self.remove_topic(&name);
                }
                continue;
            }
            self.errors.remove(&name);
            let mut found =
                TopicInfo { id: topic.topic_id, internal: topic.is_internal, partitions: Vec::new() };
            for p in topic.partitions {
                let Ok(index) = usize::try_from(p.partition_index) else { continue };
                if index > PARTITION_INDEX_MAX {
                    continue;
                }
                if found.partitions.len() <= index {
                    found
                        .partitions
                        .resize_with(index + 1, || PartitionInfo { leader_epoch: -1, ..Default::default() });
                }
                // A leader that is not among the brokers has no address: it is gone, and the next one not elected yet.
                let leader = Some(p.leader_id).filter(|id| self.brokers.contains_key(id));
                found.partitions[index] = PartitionInfo {
                    leader,
                    leader_epoch: p.leader_epoch,
                    replicas: p.replica_nodes,
                    in_sync: p.isr_nodes,
                };
            }
            self.replace_topic(name, found, &mut changes);
        }
        changes
    }

    /// A broker that lags behind may still name a leader that we know to be replaced: the newer epoch stays.
    fn replace_topic(&mut self, name: String, mut found: TopicInfo, changes: &mut Vec<LeaderChange>) {
        if let Some(old) = self.topics.get_mut(&name).filter(|old| old.id == found.id) {
            for (at, (new, old)) in found.partitions.iter_mut().zip(&mut old.partitions).enumerate() {
                if new.leader_epoch >= 0 && new.leader_epoch < old.leader_epoch {
                    *new = std::mem::take(old);
                } else if let Some(from) = old.leader.filter(|_| new.leader != old.leader) {
                    let (topic, to, epoch) = (name.clone(), new.leader, new.leader_epoch);
                    changes.push(LeaderChange { topic, partition: at, from, to, epoch });
                }
            }
        }
        self.topics.insert(name, found);
    }

    /// Forgets the brokers, and who leads what. Leader epochs go too: those of another cluster may be lower.
    pub(crate) fn forget_brokers(&mut self) {
        self.generation += 1;
        self.controller = None;
        self.brokers.clear();
        for partition in self.topics.values_mut().flat_map(|topic| &mut topic.partitions) {
            (partition.leader, partition.leader_epoch) = (None, -1);
        }
    }

    /// Forgets a topic.
    pub(crate) fn remove_topic(&mut self, name: &str) {
        if self.topics.remove(name).is_some() {
            self.generation += 1;
        }
    }

    /// Forgets a topic and its error.
    pub(crate) fn forget_topic(&mut self, name: &str) {
        self.errors.remove(name);
        self.remove_topic(name);
    }

    /// A newer leader that came with another answer (KIP-951). Older news is ignored.
    pub(crate) fn update_leader(&mut self, topic: &str, partition: i32, node: i32, epoch: i32) -> bool {
        let known = usize::try_from(partition)
            .ok()
            .and_then(|index| self.topics.get_mut(topic)?.partitions.get_mut(index))
            .filter(|known| epoch > known.leader_epoch && node >= 0);
        let Some(known) = known else { return false };
        (known.leader, known.leader_epoch) = (Some(node), epoch);
        self.generation += 1;
        true
    }

    /// The address of a broker that came with another answer. A node id seen with a new address has moved.
    pub(crate) fn learn_broker(&mut self, node: i32, host: &str, port: u16) {
        let rack = self.brokers.get(&node).and_then(|b| b.rack.clone());
        self.brokers.insert(node, BrokerInfo { node, host: host.to_owned(), port, rack });
    }
}

#[cfg(test)]
mod tests {
    use headrace_wire::messages::metadata_response::{
        MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
    };

    use super::*;

    #[test]
    fn a_leader_that_is_no_broker_is_none() {
        let mut cluster = Cluster::default();
        let partition = |partition_index, leader_id| MetadataResponsePartition {
            partition_index,
            leader_id,
            leader_epoch: 3,
            ..Default::default()
        };
        let node_id = 1;
        let broker = MetadataResponseBroker { node_id, host: "a".to_owned(), port: 9092, rack: None };
        cluster.update(MetadataResponse {
            brokers: vec![broker],
            topics: vec![MetadataResponseTopic {
                name: Some("t".to_owned()),
                partitions: vec![partition(0, 1), partition(1, 2), partition(2, -1)],
                ..Default::default()
            }],
            ..Default::default()
        });
        assert_eq!(cluster.leader("t", 0), Some((1, 3)));
        assert_eq!(cluster.leader("t", 1), None);
        assert_eq!(cluster.leader("t", 2), None);
        assert_eq!(cluster.partition_count("t"), Some(3));
    }
}
