//! The broker's options: one table of Kafka's names, types, ranges, defaults and sentences.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use headrace_wire::names::nearest;

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

/// One row of the option table, for generated documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OptionRow {
    /// Kafka's name, with dots.
    pub name: &'static str,
    /// `int`, `long`, `boolean` or `string`.
    pub kind: &'static str,
    /// The default as text; empty for none.
    pub default: &'static str,
    /// What it does, with its unit.
    pub sentence: &'static str,
}

/// A value that an option can hold, parsed from text.
trait OptionValue: Sized {
    type Range;
    const KIND: &'static str;
    fn parse(text: &str, range: &Self::Range) -> Result<Self, String>;
    fn show(&self) -> String;
}

macro_rules! int_option {
    ($int:ty, $kind:literal) => {
        impl OptionValue for $int {
            type Range = RangeInclusive<$int>;
            const KIND: &'static str = $kind;
            fn parse(text: &str, range: &Self::Range) -> Result<Self, String> {
                text.trim()
                    .parse()
                    .ok()
                    .filter(|n| range.contains(n))
                    .ok_or_else(|| format!("a whole number from {} to {}", range.start(), range.end()))
            }
            fn show(&self) -> String {
                self.to_string()
            }
        }
    };
}
int_option!(i32, "int");
int_option!(i64, "long");
int_option!(u16, "int");

impl OptionValue for bool {
    type Range = ();
    const KIND: &'static str = "boolean";
    fn parse(text: &str, (): &()) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err("true or false".to_owned()),
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl OptionValue for String {
    type Range = &'static [&'static str];
    const KIND: &'static str = "string";
    fn parse(text: &str, allowed: &Self::Range) -> Result<Self, String> {
        if allowed.is_empty() || allowed.contains(&text) {
            Ok(text.to_owned())
        } else {
            Err(format!("one of {}", allowed.join(", ")))
        }
    }
    fn show(&self) -> String {
        self.clone()
    }
}

impl OptionValue for Option<String> {
    type Range = ();
    const KIND: &'static str = "string";
    fn parse(text: &str, (): &()) -> Result<Self, String> {
        Ok((!text.is_empty()).then(|| text.to_owned()))
    }
    fn show(&self) -> String {
        self.clone().unwrap_or_default()
    }
}

impl OptionValue for PathBuf {
    type Range = ();
    const KIND: &'static str = "string";
    fn parse(text: &str, (): &()) -> Result<Self, String> {
        if text.is_empty() { Err("a path".to_owned()) } else { Ok(Self::from(text)) }
    }
    fn show(&self) -> String {
        self.display().to_string()
    }
}

macro_rules! options {
    ($($field:ident : $type:ty = $default:literal, $name:literal, $range:expr, $sentence:literal;)*) => {
        /// The options of a broker, under Kafka's names with dots as underscores.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct BrokerConfig {
            $(
                #[doc = concat!("`", $name, "`, default `", $default, "`: ", $sentence)]
                pub $field: $type,
            )*
        }

        impl BrokerConfig {
            /// Every option, in the order of the documentation.
            pub const OPTIONS: &'static [OptionRow] = &[$(OptionRow {
                name: $name,
                kind: <$type as OptionValue>::KIND,
                default: $default,
                sentence: $sentence,
            }),*];

            fn defaults() -> Result<Self, String> {
                Ok(Self { $($field: <$type as OptionValue>::parse($default, &$range)?,)* })
            }

            fn set_known(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
                match name {
                    $($name => Some(<$type as OptionValue>::parse(value, &$range).map(|v| self.$field = v)),)*
                    _ => None,
                }
            }

            /// The value of an option as text, `None` for a name that is not in the table.
            #[must_use]
            pub fn get(&self, name: &str) -> Option<String> {
                match name {
                    $($name => Some(OptionValue::show(&self.$field)),)*
                    _ => None,
                }
            }
        }
    };
}

const ANY: &[&str] = &[];
const CLEANUP_POLICIES: &[&str] = &["delete", "compact", "compact,delete", "delete,compact"];
const TIMESTAMP_TYPES: &[&str] = &["CreateTime", "LogAppendTime"];

options! {
    node_id: i32 = "1", "node.id", 0..=i32::MAX, "The node's number in the cluster.";
    cluster_id: Option<String> = "", "cluster.id", (), "The cluster's id. If empty, a random one is made once and kept in the data directory.";
    broker_rack: Option<String> = "", "broker.rack", (), "The rack that metadata names for this broker.";
    advertised_host: String = "", "advertised.host", ANY, "The host name that metadata tells clients to connect to; if empty, the address that the broker is bound to.";
    advertised_port: u16 = "0", "advertised.port", 0..=u16::MAX, "The port that metadata tells clients to connect to; if 0, the one that the broker is bound to.";
    data_dir: PathBuf = "headrace-data", "log.dir", (), "The directory that holds topics and offsets.";
    headrace_adopt: bool = "false", "headrace.adopt", (), "Whether the broker starts on a data directory that has lost `headrace-state.json`, the file with the settings of its topics. It then finds topics by their folders and gives them default settings. A directory written by another kind of broker is always taken over in this way.";
    auto_create_topics_enable: bool = "true", "auto.create.topics.enable", (), "Whether a metadata request for an unknown topic creates it.";
    delete_topic_enable: bool = "true", "delete.topic.enable", (), "Whether topics can be deleted.";
    num_partitions: i32 = "1", "num.partitions", 1..=10_000, "Partitions of a topic that is created without a number of its own.";
    log_segment_bytes: i32 = "1073741824", "log.segment.bytes", 1_048_576..=i32::MAX, "Size in bytes at which a log segment is closed and a new one is started.";
    log_roll_ms: i64 = "604800000", "log.roll.ms", 1..=i64::MAX, "Age in ms at which a log segment is closed.";
    log_retention_ms: i64 = "604800000", "log.retention.ms", -1..=i64::MAX, "Age in ms after which closed segments are deleted; -1 keeps them forever.";
    log_retention_bytes: i64 = "-1", "log.retention.bytes", -1..=i64::MAX, "Size in bytes of a partition beyond which its oldest closed segments are deleted; -1 keeps them all.";
    log_retention_check_interval_ms: i64 = "300000", "log.retention.check.interval.ms", 1..=i64::MAX, "How often, in ms, retention is applied.";
    log_cleanup_policy: String = "delete", "log.cleanup.policy", CLEANUP_POLICIES, "What happens to old segments. Compaction is not implemented yet, so compact keeps everything.";
    log_index_interval_bytes: i32 = "4096", "log.index.interval.bytes", 0..=i32::MAX, "Bytes of log between two index entries.";
    log_index_size_max_bytes: i32 = "10485760", "log.index.size.max.bytes", 4..=i32::MAX, "Size in bytes at which an index is full, so that its segment is closed.";
    log_flush_interval_messages: i64 = "9223372036854775807", "log.flush.interval.messages", 1..=i64::MAX, "Number of new records after which a partition is synced to disk.";
    log_flush_interval_ms: i64 = "9223372036854775807", "log.flush.interval.ms", 0..=i64::MAX, "Time in ms after which a partition with new records is synced to disk.";
    log_flush_offset_checkpoint_interval_ms: i64 = "60000", "log.flush.offset.checkpoint.interval.ms", 1..=i64::MAX, "How often, in ms, the broker records how far each partition is synced to disk, and where it starts. After a crash only what follows that point is checked.";
    log_message_timestamp_type: String = "CreateTime", "log.message.timestamp.type", TIMESTAMP_TYPES, "Whose clock sets the timestamps of records: the producer's (CreateTime) or the broker's (LogAppendTime).";
    log_message_timestamp_before_max_ms: i64 = "9223372036854775807", "log.message.timestamp.before.max.ms", 0..=i64::MAX, "How far, in ms, a record's timestamp may lie in the past.";
    log_message_timestamp_after_max_ms: i64 = "3600000", "log.message.timestamp.after.max.ms", 0..=i64::MAX, "How far, in ms, a record's timestamp may lie in the future.";
    message_max_bytes: i32 = "1048588", "message.max.bytes", 0..=i32::MAX, "Largest record batch in bytes, as sent (after compression).";
    fetch_max_bytes: i32 = "57671680", "fetch.max.bytes", 1_024..=i32::MAX, "Most bytes of records in one fetch response; one whole batch is sent even if it is larger.";
    max_incremental_fetch_session_cache_slots: i32 = "1000", "max.incremental.fetch.session.cache.slots", 0..=i32::MAX, "Most incremental fetch sessions that are kept.";
    group_min_session_timeout_ms: i32 = "6000", "group.min.session.timeout.ms", 1..=i32::MAX, "Shortest session timeout in ms that a group member may ask for.";
    group_max_session_timeout_ms: i32 = "1800000", "group.max.session.timeout.ms", 1..=i32::MAX, "Longest session timeout in ms that a group member may ask for.";
    group_initial_rebalance_delay_ms: i32 = "0", "group.initial.rebalance.delay.ms", 0..=i32::MAX, "Time in ms that the first rebalance of an empty group waits for more members (Kafka: 3000).";
    group_max_size: i32 = "2147483647", "group.max.size", 1..=i32::MAX, "Most members that a group may have.";
    offsets_topic_num_partitions: i32 = "1", "offsets.topic.num.partitions", 1..=1_000, "Partitions of __consumer_offsets when it is created (Kafka: 50; a single node gains nothing from more than one).";
    offsets_topic_segment_bytes: i32 = "4194304", "offsets.topic.segment.bytes", 1_048_576..=i32::MAX, "Segment size in bytes of __consumer_offsets.";
    offset_metadata_max_bytes: i32 = "4096", "offset.metadata.max.bytes", 0..=i32::MAX, "Longest metadata in bytes that may be committed with an offset.";
    offsets_retention_minutes: i32 = "10080", "offsets.retention.minutes", 1..=i32::MAX, "Time in minutes that the offsets of a group without members are kept.";
    offsets_retention_check_interval_ms: i64 = "600000", "offsets.retention.check.interval.ms", 1..=i64::MAX, "How often, in ms, expired offsets are removed.";
    producer_id_expiration_ms: i32 = "86400000", "producer.id.expiration.ms", 1..=i32::MAX, "Time in ms after which an idle producer's sequence numbers are forgotten.";
    socket_request_max_bytes: i32 = "104857600", "socket.request.max.bytes", 1_024..=i32::MAX, "Largest request in bytes; a larger one closes the connection.";
    socket_send_buffer_bytes: i32 = "131072", "socket.send.buffer.bytes", -1..=i32::MAX, "Size in bytes of each connection's send buffer (`SO_SNDBUF`; Kafka: 102400). -1 leaves it to the system, which suits distant readers better but costs more CPU for nearby ones.";
    headrace_queued_max_response_bytes: i64 = "134217728", "headrace.queued.max.response.bytes", 0..=i64::MAX, "Most bytes of responses that may wait in memory to be read, for all clients together (records wait in their files instead). Beyond that, a client's requests wait until it has read its responses, and the connections of clients that read nothing for 10 s are closed, the largest backlog first.";
    connections_max_idle_ms: i64 = "600000", "connections.max.idle.ms", 1..=i64::MAX, "Time in ms after which an idle connection is closed.";
    headrace_direct: bool = "true", "headrace.direct", (), "Whether headrace clients that run as the broker's user on the same host may write and read records through shared memory (docs/one-sided.md).";
    headrace_direct_verbs: bool = "false", "headrace.direct.verbs", (), "Whether headrace clients may write and read records over RDMA (docs/one-sided.md), which is not encrypted.";
    headrace_verbs_device: String = "", "headrace.verbs.device", ANY, "The RDMA device, as `rdma link` shows it; by default the first one with an active port.";
    headrace_poll_spin_us: i32 = "50", "headrace.poll.spin.us", 0..=1_000_000, "How long, in us, the broker goes on polling shared memory after something arrived there, yielding the processor after each look, before it sleeps until it is woken.";
    headrace_direct_links_max: i32 = "1000", "headrace.direct.links.max", 0..=100_000, "Most clients that may share memory with the broker at the same time.";
    headrace_direct_grants_max: i32 = "10000", "headrace.direct.grants.max", 0..=60_000, "Most grants that may be in force at the same time, for all clients together. A grant lets one client write or read one partition through shared memory.";
    headrace_direct_ring_bytes_max: i64 = "16777216", "headrace.direct.ring.bytes.max", 65_536..=1_073_741_824, "Most bytes of memory that one producer gets for writing batches of one partition; a larger batch goes over TCP.";
    headrace_direct_hole_timeout_ms: i64 = "1000", "headrace.direct.hole.timeout.ms", 10..=3_600_000, "When several producers write to one partition through the same shared memory, and one of them has reserved space there but not written to it: time in ms after which all of them get new memory.";
    headrace_direct_memory_bytes: i64 = "268435456", "headrace.direct.memory.bytes", 0..=i64::MAX, "Most bytes of memory, for all clients together, for producers to write batches into and for log files that are kept in memory for readers over RDMA.";
}

/// Options that Kafka's broker has and this one does not, with the reason.
pub(crate) const UNSUPPORTED: &[(&str, &str)] = &[
    ("advertised.listeners", "give advertised.host and advertised.port"),
    ("listeners", "give the address to the driver (host and port)"),
    ("log.dirs", "one data directory is used: give log.dir"),
    ("broker.id", "the name is node.id"),
    ("process.roles", "there is one node that does everything"),
    ("controller.quorum.voters", "there is one node and no controller quorum"),
    ("controller.quorum.bootstrap.servers", "there is one node and no controller quorum"),
    ("zookeeper.connect", "there is no ZooKeeper"),
    ("default.replication.factor", "one node keeps one replica"),
    ("offsets.topic.replication.factor", "one node keeps one replica"),
    ("min.insync.replicas", "one node keeps one replica"),
    ("compression.type", "the broker keeps the producer's compression"),
    ("log.retention.hours", "give log.retention.ms"),
    ("log.retention.minutes", "give log.retention.ms"),
    ("log.roll.hours", "give log.roll.ms"),
    ("num.io.threads", "one thread drives the broker"),
    ("num.network.threads", "one thread drives the broker"),
];

impl Default for BrokerConfig {
    fn default() -> Self {
        // A test parses every default, so the error cannot happen.
        match Self::defaults() {
            Ok(config) => config,
            Err(expected) => unreachable!("a default in the option table is not {expected}"),
        }
    }
}

impl BrokerConfig {
    /// The defaults with the given options set. Names are Kafka's, with dots or underscores.
    ///
    /// # Errors
    /// [`ConfigError`] names the first option that is unknown, not supported, or has a wrong value.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for (name, value) in pairs {
            config.set(name, value)?;
        }
        Ok(config)
    }

    /// Sets one option from text.
    ///
    /// # Errors
    /// As [`BrokerConfig::from_pairs`].
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let dotted = name.replace('_', ".");
        // `data_dir` and `log.dir` are the same thing; the first is how this project's Python names it.
        let dotted = if dotted == "data.dir" { "log.dir".to_owned() } else { dotted };
        match self.set_known(&dotted, value) {
            Some(Ok(())) => Ok(()),
            Some(Err(expected)) => {
                Err(ConfigError::Invalid { name: dotted, value: value.to_owned(), expected })
            }
            None => Err(unknown(name, dotted)),
        }
    }
}

fn unknown(given: &str, dotted: String) -> ConfigError {
    if let Some((_, reason)) = UNSUPPORTED.iter().find(|(n, _)| *n == dotted) {
        return ConfigError::Unsupported { name: dotted, reason };
    }
    let nearest = nearest(&dotted, BrokerConfig::OPTIONS.iter().map(|row| row.name));
    ConfigError::Unknown { name: given.to_owned(), nearest: nearest.map(|(_, name)| name.to_owned()) }
}

impl fmt::Display for OptionRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, default {}): {}", self.name, self.kind, self.default, self.sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_parses_and_is_what_the_table_says() {
        let config = BrokerConfig::default();
        for row in BrokerConfig::OPTIONS {
            assert_eq!(config.get(row.name).as_deref(), Some(row.default), "{row}");
            assert!(row.sentence.ends_with('.'), "{row}");
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
        assert_eq!(config.data_dir, PathBuf::from("/data"));
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
        ] {
            let error = BrokerConfig::from_pairs([(name, value)]).unwrap_err();
            assert_eq!(error.to_string(), format!("option {name} = {value:?}: expected {expected}"));
        }
    }

    #[test]
    fn options_of_kafka_that_are_not_supported_say_why() {
        let error = BrokerConfig::from_pairs([("listeners", "PLAINTEXT://:9092")]).unwrap_err();
        assert!(matches!(&error, ConfigError::Unsupported { name, .. } if name == "listeners"), "{error}");
        for (name, _) in UNSUPPORTED {
            assert_eq!(BrokerConfig::default().get(name), None, "{name} is in both tables");
        }
    }
}
