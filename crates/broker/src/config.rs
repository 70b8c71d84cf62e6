//! The broker's options: one table of Kafka's names, types, ranges, defaults and sentences.

use headrace_options::{INT_MAX, Kind, LONG_MAX, Row, Values, nearest, number, options};

/// Why an option was refused. The text names the option and what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No such option.
    #[error("unknown option {name:?}{}", hint(nearest.as_deref()))]
    Unknown {
        /// The name that was given.
        name: String,
        /// The nearest name that exists, when one is near.
        nearest: Option<String>,
    },
    /// The value is not of the option's type or lies outside its range.
    #[error("option {name} = {value:?}: expected {expected}")]
    Invalid {
        /// Kafka's name of the option.
        name: String,
        /// The value that was given.
        value: String,
        /// What is accepted.
        expected: String,
    },
    /// Kafka knows the option, this broker does not support it.
    #[error("option {name} is not supported: {reason}")]
    Unsupported {
        /// Kafka's name of the option.
        name: String,
        /// Why not.
        reason: &'static str,
    },
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map(|n| format!(", did you mean {n:?}?")).unwrap_or_default()
}

const CLEANUP_POLICIES: &[&str] = &["delete", "compact", "compact,delete", "delete,compact"];
const REPLICATION_PATHS: &[&str] = &["auto", "shm", "verbs", "tcp"];
/// Kafka's name of what sends consumers to the copy in their rack (KIP-392).
const RACK_AWARE: &str = "org.apache.kafka.common.replica.RackAwareReplicaSelector";
const TIMESTAMP_TYPES: &[&str] = &["CreateTime", "LogAppendTime"];

options! {
    /// The options of a broker, under Kafka's names with dots as underscores.
    #[non_exhaustive]
    BrokerConfig with get {}
    node_id: i32 = "node.id", number(0, INT_MAX), Some("1"), false, "The node's number in the cluster.";
    cluster_id: String = "cluster.id", Kind::Text, Some(""), false, "The cluster's id. If empty, a random one is made once and kept in the data directory.";
    broker_rack: String = "broker.rack", Kind::Text, Some(""), false, "The rack that metadata names for this broker.";
    advertised_host: String = "advertised.host", Kind::Text, Some(""), true, "The host name that metadata tells clients to connect to; if empty, the address that the broker is bound to.";
    advertised_port: u16 = "advertised.port", number(0, 65_535), Some("0"), true, "The port that metadata tells clients to connect to; if 0, the one that the broker is bound to.";
    data_dir: String = "log.dir", Kind::Form("a path"), Some("headrace-data"), false, "The directory that holds topics and offsets.";
    headrace_adopt: bool = "headrace.adopt", Kind::Bool, Some("false"), true, "Whether the broker starts on a data directory that has lost `headrace-state.json`, the file with the settings of its topics. It then finds topics by their folders and gives them default settings. A directory written by another kind of broker is always taken over in this way.";
    auto_create_topics_enable: bool = "auto.create.topics.enable", Kind::Bool, Some("true"), false, "Whether a metadata request for an unknown topic creates it.";
    delete_topic_enable: bool = "delete.topic.enable", Kind::Bool, Some("true"), false, "Whether topics can be deleted.";
    num_partitions: i32 = "num.partitions", number(1, 10_000), Some("1"), false, "Partitions of a topic that is created without a number of its own.";
    log_segment_bytes: i32 = "log.segment.bytes", number(1_048_576, INT_MAX), Some("1073741824"), false, "Size in bytes at which a log segment is closed and a new one is started.";
    log_roll_ms: i64 = "log.roll.ms", number(1, LONG_MAX), Some("604800000"), false, "Age in ms at which a log segment is closed.";
    log_retention_ms: i64 = "log.retention.ms", number(-1, LONG_MAX), Some("604800000"), false, "Age in ms after which closed segments are deleted; -1 keeps them forever.";
    log_retention_bytes: i64 = "log.retention.bytes", number(-1, LONG_MAX), Some("-1"), false, "Size in bytes of a partition beyond which its oldest closed segments are deleted; -1 keeps them all.";
    log_retention_check_interval_ms: i64 = "log.retention.check.interval.ms", number(1, LONG_MAX), Some("300000"), false, "How often, in ms, retention is applied.";
    log_cleanup_policy: String = "log.cleanup.policy", Kind::Choice(CLEANUP_POLICIES), Some("delete"), false, "What happens to old segments. Compaction is not implemented yet, so compact keeps everything.";
    log_index_interval_bytes: i32 = "log.index.interval.bytes", number(0, INT_MAX), Some("4096"), false, "Bytes of log between two index entries.";
    log_index_size_max_bytes: i32 = "log.index.size.max.bytes", number(4, INT_MAX), Some("10485760"), false, "Size in bytes at which an index is full, so that its segment is closed.";
    log_flush_interval_messages: i64 = "log.flush.interval.messages", number(1, LONG_MAX), Some("9223372036854775807"), false, "Number of new records after which a partition is synced to disk.";
    log_flush_interval_ms: i64 = "log.flush.interval.ms", number(0, LONG_MAX), Some("9223372036854775807"), false, "Time in ms after which a partition with new records is synced to disk.";
    log_flush_offset_checkpoint_interval_ms: i64 = "log.flush.offset.checkpoint.interval.ms", number(1, LONG_MAX), Some("60000"), false, "How often, in ms, the broker records how far each partition is synced to disk, and where it starts. After a crash only what follows that point is checked.";
    log_message_timestamp_type: String = "log.message.timestamp.type", Kind::Choice(TIMESTAMP_TYPES), Some("CreateTime"), false, "Whose clock sets the timestamps of records: the producer's (CreateTime) or the broker's (LogAppendTime).";
    log_message_timestamp_before_max_ms: i64 = "log.message.timestamp.before.max.ms", number(0, LONG_MAX), Some("9223372036854775807"), false, "How far, in ms, a record's timestamp may lie in the past.";
    log_message_timestamp_after_max_ms: i64 = "log.message.timestamp.after.max.ms", number(0, LONG_MAX), Some("3600000"), false, "How far, in ms, a record's timestamp may lie in the future.";
    message_max_bytes: i32 = "message.max.bytes", number(0, INT_MAX), Some("1048588"), false, "Largest record batch in bytes, as sent (after compression).";
    fetch_max_bytes: i32 = "fetch.max.bytes", number(1_024, INT_MAX), Some("57671680"), false, "Most bytes of records in one fetch response; one whole batch is sent even if it is larger.";
    max_incremental_fetch_session_cache_slots: i32 = "max.incremental.fetch.session.cache.slots", number(0, INT_MAX), Some("1000"), false, "Most incremental fetch sessions that are kept.";
    group_min_session_timeout_ms: i32 = "group.min.session.timeout.ms", number(1, INT_MAX), Some("6000"), false, "Shortest session timeout in ms that a group member may ask for.";
    group_max_session_timeout_ms: i32 = "group.max.session.timeout.ms", number(1, INT_MAX), Some("1800000"), false, "Longest session timeout in ms that a group member may ask for.";
    group_initial_rebalance_delay_ms: i32 = "group.initial.rebalance.delay.ms", number(0, INT_MAX), Some("0"), false, "Time in ms that the first rebalance of an empty group waits for more members (Kafka: 3000).";
    group_max_size: i32 = "group.max.size", number(1, INT_MAX), Some("2147483647"), false, "Most members that a group may have.";
    offsets_topic_num_partitions: i32 = "offsets.topic.num.partitions", number(1, 1_000), Some("1"), false, "Partitions of __consumer_offsets when it is created (Kafka: 50; a single node gains nothing from more than one).";
    offsets_topic_segment_bytes: i32 = "offsets.topic.segment.bytes", number(1_048_576, INT_MAX), Some("4194304"), false, "Segment size in bytes of __consumer_offsets.";
    offsets_topic_replication_factor: i32 = "offsets.topic.replication.factor", number(1, 64), Some("3"), false, "Copies of __consumer_offsets when it is created; as many as there are brokers, if there are fewer.";
    default_replication_factor: i32 = "default.replication.factor", number(1, 64), Some("1"), false, "Copies of the partitions of a topic that is created without a number of its own.";
    min_insync_replicas: i32 = "min.insync.replicas", number(1, 64), Some("1"), false, "How many brokers must have a batch before it is acknowledged to a producer with acks all; all of them where a topic has fewer copies. With fewer in sync such a batch is refused.";
    unclean_leader_election_enable: bool = "unclean.leader.election.enable", Kind::Bool, Some("false"), false, "Whether a broker may lead a partition that lacks committed records, if nobody else can: they are lost then.";
    broker_session_timeout_ms: i32 = "broker.session.timeout.ms", number(1_000, 3_600_000), Some("3000"), false, "Time in ms after which a broker of a cluster counts as dead if the metadata store has not heard of it (Kafka: 9000).";
    auto_leader_rebalance_enable: bool = "auto.leader.rebalance.enable", Kind::Bool, Some("true"), false, "Whether the first replica of a partition leads again once it is in sync: whoever leads then hands over.";
    leader_imbalance_check_interval_seconds: i64 = "leader.imbalance.check.interval.seconds", number(1, 31_536_000), Some("300"), false, "How often, in s, brokers look whether first replicas lead.";
    leader_imbalance_per_broker_percentage: i32 = "leader.imbalance.per.broker.percentage", number(0, 100), Some("10"), false, "Of the partitions in which a broker is the first replica, others may lead so many in a hundred.";
    replica_lag_time_max_ms: i64 = "replica.lag.time.max.ms", number(1, LONG_MAX), Some("30000"), false, "A follower that has not caught up with its leader for so long, in ms, is taken out of the in-sync set.";
    replica_selector_class: String = "replica.selector.class", Kind::Text, Some(""), false, "Which copy a consumer reads (KIP-392). Empty: that of the leader. `org.apache.kafka.common.replica.RackAwareReplicaSelector`: one in the consumer's rack (`client.rack`), if a broker with that `broker.rack` is in sync. Leaders look at it; any copy can be read.";
    replica_fetch_wait_max_ms: i32 = "replica.fetch.wait.max.ms", number(1, INT_MAX), Some("500"), false, "How long, in ms, a follower's fetch waits at the leader for records.";
    replica_fetch_max_bytes: i32 = "replica.fetch.max.bytes", number(0, INT_MAX), Some("1048576"), false, "Most bytes of one partition in an answer to a follower's fetch; one whole batch is sent even if it is larger.";
    replica_fetch_response_max_bytes: i32 = "replica.fetch.response.max.bytes", number(0, INT_MAX), Some("10485760"), false, "Most bytes of records in an answer to a follower's fetch; one whole batch is sent even if it is larger.";
    follower_replication_throttled_rate: i64 = "follower.replication.throttled.rate", number(1, LONG_MAX), Some("9223372036854775807"), false, "Most bytes a second that this broker copies of partitions that it is being given (AlterPartitionReassignments), for all of them together, until it has them. Copies that it has are not slowed (Kafka's lists of throttled replicas are not needed).";
    offset_metadata_max_bytes: i32 = "offset.metadata.max.bytes", number(0, INT_MAX), Some("4096"), false, "Longest metadata in bytes that may be committed with an offset.";
    offsets_retention_minutes: i32 = "offsets.retention.minutes", number(1, INT_MAX), Some("10080"), false, "Time in minutes that the offsets of a group without members are kept.";
    offsets_retention_check_interval_ms: i64 = "offsets.retention.check.interval.ms", number(1, LONG_MAX), Some("600000"), false, "How often, in ms, expired offsets are removed.";
    producer_id_expiration_ms: i32 = "producer.id.expiration.ms", number(1, INT_MAX), Some("86400000"), false, "Time in ms after which an idle producer's sequence numbers are forgotten.";
    socket_request_max_bytes: i32 = "socket.request.max.bytes", number(1_024, INT_MAX), Some("104857600"), false, "Largest request in bytes; a larger one closes the connection.";
    socket_send_buffer_bytes: i32 = "socket.send.buffer.bytes", number(-1, INT_MAX), Some("131072"), false, "Size in bytes of each connection's send buffer (`SO_SNDBUF`; Kafka: 102400). -1 leaves it to the system, which suits distant readers better but costs more CPU for nearby ones.";
    headrace_queued_max_response_bytes: i64 = "headrace.queued.max.response.bytes", number(0, LONG_MAX), Some("134217728"), true, "Most bytes of responses that may wait in memory to be read, for all clients together (records wait in their files instead). Beyond that, a client's requests wait until it has read its responses, and the connections of clients that read nothing for 10 s are closed, the largest backlog first.";
    connections_max_idle_ms: i64 = "connections.max.idle.ms", number(1, LONG_MAX), Some("600000"), false, "Time in ms after which an idle connection is closed.";
    headrace_direct: bool = "headrace.direct", Kind::Bool, Some("true"), true, "Whether headrace clients that run as the broker's user on the same host may write and read records through shared memory (docs/one-sided.md).";
    headrace_direct_verbs: bool = "headrace.direct.verbs", Kind::Bool, Some("false"), true, "Whether headrace clients may write and read records over RDMA (docs/one-sided.md), which is not encrypted.";
    headrace_verbs_device: String = "headrace.verbs.device", Kind::Text, Some(""), true, "The RDMA device, as `rdma link` shows it; by default the first one with an active port.";
    headrace_metadata_accept_restored: bool = "headrace.metadata.accept.restored", Kind::Bool, Some("false"), true, "Whether this start of the broker goes by the metadata store though that knows less of a partition than this broker has seen of it: it was restored from a backup, and records that were acknowledged since may be lost (docs/cluster.md).";
    headrace_poll_spin_us: i32 = "headrace.poll.spin.us", number(0, 1_000_000), Some("50"), true, "How long, in us, the broker goes on polling shared memory after something arrived there, yielding the processor after each look, before it sleeps until it is woken.";
    headrace_direct_links_max: i32 = "headrace.direct.links.max", number(0, 100_000), Some("1000"), true, "Most clients that may share memory with the broker at the same time.";
    headrace_direct_grants_max: i32 = "headrace.direct.grants.max", number(0, 60_000), Some("10000"), true, "Most grants that may be in force at the same time, for all clients together. A grant lets one client write or read one partition through shared memory, or one leader write its copy.";
    headrace_direct_ring_bytes_max: i64 = "headrace.direct.ring.bytes.max", number(65_536, 1_073_741_824), Some("16777216"), true, "Most bytes of memory that one producer gets for writing batches of one partition; a larger batch goes over TCP.";
    headrace_direct_hole_timeout_ms: i64 = "headrace.direct.hole.timeout.ms", number(10, 3_600_000), Some("1000"), true, "When several producers write to one partition through the same shared memory, and one of them has reserved space there but not written to it: time in ms after which all of them get new memory.";
    headrace_direct_replication: String = "headrace.direct.replication", Kind::Choice(REPLICATION_PATHS), Some("auto"), true, "How a leader's records come to its followers (docs/cluster.md): it writes them into shared memory of a follower that runs as its user on the same host (shm), into a follower's memory over RDMA, where both have headrace.direct.verbs (verbs), or is asked for them (tcp). auto is the first of these that works, for each follower.";
    headrace_direct_replication_batch_bytes: i32 = "headrace.direct.replication.batch.bytes", number(1, 16_777_216), Some("1024"), true, "Up to how many bytes of batches that wait and lie one behind the other in a log are written into a follower's memory at once. A larger batch is written alone, and nothing waits for more.";
    headrace_direct_memory_bytes: i64 = "headrace.direct.memory.bytes", number(0, LONG_MAX), Some("268435456"), true, "Most bytes of memory, for all clients together, for producers and leaders to write batches into and for log files that are kept in memory for readers over RDMA.";
}

/// Options that Kafka's broker has and this one does not, with the reason.
pub(crate) const UNSUPPORTED: &[(&str, &str)] = &[
    ("advertised.listeners", "give advertised.host and advertised.port"),
    ("listeners", "give the address to the driver (host and port)"),
    ("log.dirs", "one data directory is used: give log.dir"),
    ("broker.id", "the name is node.id"),
    ("process.roles", "there is one node that does everything"),
    (
        "controller.quorum.voters",
        "the cluster's metadata lies in etcd (docs/cluster.md): there is no controller quorum",
    ),
    (
        "controller.quorum.bootstrap.servers",
        "the cluster's metadata lies in etcd (docs/cluster.md): there is no controller quorum",
    ),
    ("zookeeper.connect", "there is no ZooKeeper"),
    ("compression.type", "the broker keeps the producer's compression"),
    ("log.retention.hours", "give log.retention.ms"),
    ("log.retention.minutes", "give log.retention.ms"),
    ("log.roll.hours", "give log.roll.ms"),
    ("num.io.threads", "one thread drives the broker"),
    ("num.network.threads", "one thread drives the broker"),
];

impl BrokerConfig {
    /// The defaults with the given options set; of an option that is given twice, the last value counts. Names are
    /// Kafka's, with dots or underscores.
    ///
    /// # Errors
    /// [`ConfigError`] names the first option that is unknown or not supported, or else one that has a wrong value.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, ConfigError> {
        let mut values = Values::default();
        for (name, value) in pairs {
            values.insert(find(name)?, name, value);
        }
        let config = Self::from_values(&values).map_err(|refusal| ConfigError::Invalid {
            name: refusal.name.to_owned(),
            value: refusal.text,
            expected: refusal.accepted,
        })?;
        if config.headrace_direct_replication == "verbs" && !config.headrace_direct_verbs {
            return Err(ConfigError::Invalid {
                name: "headrace.direct.replication".to_owned(),
                value: "verbs".to_owned(),
                expected: "headrace.direct.verbs to be true".to_owned(),
            });
        }
        if config.headrace_direct_replication == "shm" && !cfg!(target_os = "linux") {
            return Err(ConfigError::Invalid {
                name: "headrace.direct.replication".to_owned(),
                value: "shm".to_owned(),
                expected: "auto or tcp, since shared memory needs Linux".to_owned(),
            });
        }
        if !["", RACK_AWARE].contains(&config.replica_selector_class.as_str()) {
            return Err(ConfigError::Invalid {
                name: "replica.selector.class".to_owned(),
                value: config.replica_selector_class,
                expected: format!("nothing, or {RACK_AWARE}"),
            });
        }
        Ok(config)
    }

    /// Whether consumers are sent to the copy in their rack.
    pub(crate) fn is_rack_aware(&self) -> bool {
        self.replica_selector_class == RACK_AWARE
    }

    /// The rack that metadata names.
    pub(crate) fn rack(&self) -> Option<String> {
        Some(self.broker_rack.clone()).filter(|rack| !rack.is_empty())
    }
}

fn find(given: &str) -> Result<&'static Row, ConfigError> {
    let dotted = given.replace('_', ".");
    // `data_dir` and `log.dir` are the same thing; the first is how this project's Python names it.
    let dotted = if dotted == "data.dir" { "log.dir".to_owned() } else { dotted };
    if let Some(row) = BrokerConfig::ROWS.iter().find(|row| row.name == dotted) {
        return Ok(row);
    }
    if let Some((_, reason)) = UNSUPPORTED.iter().find(|(n, _)| *n == dotted) {
        return Err(ConfigError::Unsupported { name: dotted, reason });
    }
    let nearest = nearest(&dotted, BrokerConfig::ROWS.iter().map(|row| row.name));
    Err(ConfigError::Unknown { name: given.to_owned(), nearest: nearest.map(|(_, name)| name.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_parses_and_is_what_the_table_says() {
        let config = BrokerConfig::from_pairs([]).unwrap();
        for row in BrokerConfig::ROWS {
            assert_eq!(config.get(row.name).as_deref(), row.default, "{}", row.name);
            assert!(row.sentence.ends_with('.'), "{}", row.name);
        }
        assert_eq!(config.log_segment_bytes, 1 << 30);
    }

    #[test]
    fn dots_and_underscores_are_the_same() {
        let config = BrokerConfig::from_pairs([
            ("num_partitions", "4"),
            ("log.retention.ms", "-1"),
            ("data_dir", "/data"),
            ("auto_create_topics_enable", "False"),
        ])
        .unwrap();
        assert_eq!((config.num_partitions, config.log_retention_ms), (4, -1));
        assert_eq!(config.data_dir, "/data");
        assert!(!config.auto_create_topics_enable);
    }

    #[test]
    fn an_unknown_option_names_its_neighbour() {
        let error = BrokerConfig::from_pairs([("num.partition", "4")]).unwrap_err();
        assert_eq!(error.to_string(), "unknown option \"num.partition\", did you mean \"num.partitions\"?");
        let error = BrokerConfig::from_pairs([("zzz", "4")]).unwrap_err();
        assert_eq!(error.to_string(), "unknown option \"zzz\"");
    }

    #[test]
    fn wrong_values_say_what_is_accepted() {
        for (name, value, expected) in [
            ("num.partitions", "many", "a whole number from 1 to 10000"),
            ("num.partitions", "0", "a whole number from 1 to 10000"),
            ("auto.create.topics.enable", "yes", "true or false"),
            ("log.message.timestamp.type", "now", "one of CreateTime, LogAppendTime"),
            ("log.retention.ms", "-2", "a whole number from -1 to 9223372036854775807"),
            ("log.dir", "", "a path"),
            ("replica.selector.class", "my.Selector", &format!("nothing, or {RACK_AWARE}")),
        ] {
            let error = BrokerConfig::from_pairs([(name, value)]).unwrap_err();
            assert_eq!(error.to_string(), format!("option {name} = {value:?}: expected {expected}"));
        }
    }

    #[test]
    fn the_selector_is_kafkas() {
        for (class, is_rack_aware) in [("", false), (RACK_AWARE, true)] {
            let config = BrokerConfig::from_pairs([("replica.selector.class", class)]).unwrap();
            assert_eq!(config.is_rack_aware(), is_rack_aware, "{class}");
        }
    }

    #[test]
    fn options_of_kafka_that_are_not_supported_say_why() {
        let error = BrokerConfig::from_pairs([("listeners", "PLAINTEXT://:9092")]).unwrap_err();
        assert!(matches!(&error, ConfigError::Unsupported { name, .. } if name == "listeners"), "{error}");
        let config = BrokerConfig::from_pairs([]).unwrap();
        for (name, _) in UNSUPPORTED {
            assert_eq!(config.get(name), None, "{name} is in both tables");
        }
    }
}
