//! What a broker says of itself to whoever watches over it. Names are those of Kafka's metrics.

use headrace_log::Disk;

use crate::context::Context;
use crate::replication::role::Role;
use crate::store::Topic;

/// One figure of a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Kafka's group of metrics, such as `kafka.server:type=ReplicaManager`.
    pub group: &'static str,
    /// Its name there; headrace's own where Kafka has none.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub help: &'static str,
    /// It only grows, until the broker is started again.
    pub is_counter: bool,
    /// How much it is now.
    pub value: u64,
}

const REPLICAS: &str = "kafka.server:type=ReplicaManager";
const TOPICS: &str = "kafka.server:type=BrokerTopicMetrics";
const CONTROLLER: &str = "kafka.controller:type=KafkaController";
const FETCHERS: &str = "kafka.server:type=ReplicaFetcherManager";

/// What is counted by a look at all partitions that are here.
#[derive(Debug, Default)]
struct Here {
    partitions: u64,
    leaders: u64,
    under_replicated: u64,
    under_min: u64,
    at_min: u64,
    offline: u64,
    bytes: u64,
    most_behind: u64,
}

fn look<D: Disk>(context: &Context<D>) -> Here {
    let mut here = Here::default();
    for (_, partition) in context.store.topics().flat_map(Topic::hosted) {
        here.partitions += 1;
        here.offline += u64::from(partition.log.is_offline());
        here.bytes += partition.log.size_bytes();
        match &partition.role {
            Role::Follower(following) => {
                let behind = following.high_watermark.saturating_sub(partition.log.end_offset());
                here.most_behind = here.most_behind.max(u64::try_from(behind).unwrap_or(0));
            }
            Role::Sole => here.leaders += 1,
            Role::Leader(leading) => {
                here.leaders += 1;
                here.under_replicated += u64::from(leading.in_sync() < leading.replicas());
                let slack = leading.in_sync().cmp(&partition.needed_in_sync());
                here.under_min += u64::from(slack.is_lt());
                here.at_min += u64::from(slack.is_eq());
                let behind = leading.most_behind(partition.log.end_offset());
                here.most_behind = here.most_behind.max(behind);
            }
        }
    }
    here
}

/// What is counted by a look at all partitions of the cluster: without a leader, led by another than the first replica, being
/// given other replicas.
fn look_around<D: Disk>(context: &Context<D>) -> (u64, u64, u64) {
    let Some(cluster) = &context.cluster else { return (0, 0, 0) };
    let view = cluster.member.view();
    let (mut leaderless, mut imbalance, mut reassigned) = (0, 0, 0);
    for value in view.partitions.values().map(|known| &known.value) {
        let leader = value.leader.filter(|leader| view.is_alive(*leader)).map(|leader| leader.0);
        leaderless += u64::from(leader.is_none());
        imbalance += u64::from(leader.is_some() && leader != value.replicas.first().copied());
        reassigned += u64::from(value.is_reassigned());
    }
    (leaderless, imbalance, reassigned)
}

/// All figures. Most work: a look at each partition of the cluster.
pub(crate) fn metrics<D: Disk>(context: &Context<D>, pushed: u64) -> Vec<Metric> {
    let here = look(context);
    let (leaderless, imbalance, reassigned) = look_around(context);
    let counts = context.counts;
    let gauge = |group, name, help, value| Metric { group, name, help, is_counter: false, value };
    let counter = |group, name, help, value| Metric { group, name, help, is_counter: true, value };
    let brokers = context.brokers().len() as u64;
    vec![
        gauge(REPLICAS, "PartitionCount", "Partitions that this broker has a copy of.", here.partitions),
        gauge(REPLICAS, "LeaderCount", "Partitions that it leads.", here.leaders),
        gauge(
            REPLICAS,
            "UnderReplicatedPartitions",
            "Partitions that it leads of which not all copies are in sync.",
            here.under_replicated,
        ),
        gauge(
            REPLICAS,
            "UnderMinIsrPartitionCount",
            "Partitions that it leads with fewer copies in sync than min.insync.replicas: writes with acks=all fail.",
            here.under_min,
        ),
        gauge(
            REPLICAS,
            "AtMinIsrPartitionCount",
            "Partitions that it leads with as many copies in sync as min.insync.replicas: one more may not fail.",
            here.at_min,
        ),
        gauge(
            REPLICAS,
            "OfflineReplicaCount",
            "Copies here that take nothing, as a sync of theirs has failed.",
            here.offline,
        ),
        gauge(
            REPLICAS,
            "ReassigningPartitions",
            "Partitions of the cluster that are being moved.",
            reassigned,
        ),
        counter(
            REPLICAS,
            "IsrShrinks",
            "In-sync sets of partitions that it leads that became smaller.",
            counts.isr_shrinks,
        ),
        counter(REPLICAS, "IsrExpands", "The same that became larger.", counts.isr_expands),
        gauge(REPLICAS, "PushedReplicas", "Copies of followers into which it writes (headrace).", pushed),
        gauge(
            FETCHERS,
            "MaxLag",
            "Most records that a copy lacks, of those here and those of followers.",
            here.most_behind,
        ),
        counter(TOPICS, "BytesIn", "Bytes of batches that producers have sent.", counts.bytes_in),
        counter(
            TOPICS,
            "ReplicationBytesIn",
            "Bytes of batches that were copied from leaders.",
            counts.replication_bytes_in,
        ),
        gauge("kafka.log:type=Log", "Size", "Bytes of all copies here.", here.bytes),
        gauge(
            CONTROLLER,
            "OfflinePartitionsCount",
            "Partitions of the cluster that nobody leads.",
            leaderless,
        ),
        gauge(
            CONTROLLER,
            "PreferredReplicaImbalanceCount",
            "Partitions of the cluster that another than their first replica leads.",
            imbalance,
        ),
        gauge(CONTROLLER, "ActiveBrokerCount", "Brokers of the cluster that are alive.", brokers),
    ]
}
