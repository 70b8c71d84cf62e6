//! Settings of topics: one table of Kafka's names, types, ranges and the broker options they default to.

use std::collections::BTreeMap;

use headrace_log::LogConfig;
use headrace_wire::records::TimestampType;

use crate::config::{BrokerConfig, nearest};

/// Kafka's type numbers in `DescribeConfigs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i8)]
pub(crate) enum Kind {
    Boolean = 1,
    String = 2,
    Int = 3,
    Long = 5,
    Double = 6,
    List = 7,
}

impl Kind {
    pub(crate) fn id(self) -> i8 {
        self as i8
    }
}

/// Where the default of a topic's setting comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DefaultOf {
    Broker(&'static str),
    Fixed(&'static str),
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TopicOption {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: DefaultOf,
    /// For numbers: the range; for text: the words allowed, none for any.
    min: i64,
    max: i64,
    words: &'static [&'static str],
    pub(crate) sentence: &'static str,
}

const fn number(
    name: &'static str,
    kind: Kind,
    default: DefaultOf,
    min: i64,
    sentence: &'static str,
) -> TopicOption {
    let max = if matches!(kind, Int) { i32::MAX as i64 } else { i64::MAX };
    TopicOption { name, kind, default, min, max, words: &[], sentence }
}

const fn words(
    name: &'static str,
    kind: Kind,
    default: DefaultOf,
    words: &'static [&'static str],
    sentence: &'static str,
) -> TopicOption {
    TopicOption { name, kind, default, min: 0, max: 0, words, sentence }
}

use DefaultOf::{Broker, Fixed};
use Kind::{Boolean, Double, Int, List, Long, String as Text};

const LONG_MAX: &str = "9223372036854775807";

/// Every setting of a topic, by name.
pub(crate) const TOPIC_OPTIONS: &[TopicOption] = &[
    words(
        "cleanup.policy",
        List,
        Broker("log.cleanup.policy"),
        &["delete", "compact"],
        "What happens to old segments; compaction itself is not done yet, so compact keeps everything.",
    ),
    words(
        "compression.type",
        Text,
        Fixed("producer"),
        &["producer"],
        "The broker keeps the producer's compression.",
    ),
    number("delete.retention.ms", Long, Fixed("86400000"), 0, "Kept for Kafka's tools; has no effect."),
    number(
        "file.delete.delay.ms",
        Long,
        Fixed("60000"),
        0,
        "Kept for Kafka's tools; files are deleted at once.",
    ),
    number(
        "flush.messages",
        Long,
        Broker("log.flush.interval.messages"),
        1,
        "Records after which the partition is synced to disk.",
    ),
    number(
        "flush.ms",
        Long,
        Broker("log.flush.interval.ms"),
        0,
        "Milliseconds after which new records are synced to disk.",
    ),
    number(
        "index.interval.bytes",
        Int,
        Broker("log.index.interval.bytes"),
        0,
        "Bytes of log between two index entries.",
    ),
    number("max.compaction.lag.ms", Long, Fixed(LONG_MAX), 1, "Kept for Kafka's tools; has no effect."),
    number(
        "max.message.bytes",
        Int,
        Broker("message.max.bytes"),
        0,
        "Largest record batch in bytes, as it travels.",
    ),
    number(
        "message.timestamp.after.max.ms",
        Long,
        Broker("log.message.timestamp.after.max.ms"),
        0,
        "How far in milliseconds a record's timestamp may lie in the future.",
    ),
    number(
        "message.timestamp.before.max.ms",
        Long,
        Broker("log.message.timestamp.before.max.ms"),
        0,
        "How far in milliseconds a record's timestamp may lie in the past.",
    ),
    words(
        "message.timestamp.type",
        Text,
        Broker("log.message.timestamp.type"),
        &["CreateTime", "LogAppendTime"],
        "Whose clock record timestamps come from.",
    ),
    words("min.cleanable.dirty.ratio", Double, Fixed("0.5"), &[], "Kept for Kafka's tools; has no effect."),
    number("min.compaction.lag.ms", Long, Fixed("0"), 0, "Kept for Kafka's tools; has no effect."),
    number("min.insync.replicas", Int, Fixed("1"), 1, "Kept for Kafka's tools; one node keeps one replica."),
    words(
        "preallocate",
        Boolean,
        Fixed("false"),
        &["true", "false"],
        "Kept for Kafka's tools; has no effect.",
    ),
    number(
        "retention.bytes",
        Long,
        Broker("log.retention.bytes"),
        -1,
        "Size in bytes of a partition beyond which closed segments are deleted; -1 keeps them.",
    ),
    number(
        "retention.ms",
        Long,
        Broker("log.retention.ms"),
        -1,
        "Age in milliseconds after which closed segments are deleted; -1 keeps them.",
    ),
    number(
        "segment.bytes",
        Int,
        Broker("log.segment.bytes"),
        1_048_576,
        "Size in bytes at which a segment is closed and a new one begun.",
    ),
    number(
        "segment.index.bytes",
        Int,
        Broker("log.index.size.max.bytes"),
        4,
        "Size in bytes at which an index counts as full and the segment is closed.",
    ),
    number("segment.jitter.ms", Long, Fixed("0"), 0, "Kept for Kafka's tools; has no effect."),
    number("segment.ms", Long, Broker("log.roll.ms"), 1, "Age in milliseconds at which a segment is closed."),
    words(
        "unclean.leader.election.enable",
        Boolean,
        Fixed("false"),
        &["true", "false"],
        "Kept for Kafka's tools; one node is always the leader.",
    ),
];

/// The setting of this name.
pub(crate) fn find(name: &str) -> Option<&'static TopicOption> {
    TOPIC_OPTIONS.iter().find(|o| o.name == name)
}

impl TopicOption {
    /// The value a topic has without a setting of its own.
    pub(crate) fn default_value(&self, config: &BrokerConfig) -> String {
        match self.default {
            Broker(name) => config.get(name).unwrap_or_default(),
            Fixed(value) => value.to_owned(),
        }
    }

    fn check(&self, value: &str) -> Result<(), String> {
        let wrong = |expected: String| Err(format!("{} = {value:?}: expected {expected}", self.name));
        match self.kind {
            Int | Long => match value.trim().parse::<i64>() {
                Ok(n) if (self.min..=self.max).contains(&n) => Ok(()),
                _ => wrong(format!("a whole number from {} to {}", self.min, self.max)),
            },
            Double => match value.trim().parse::<f64>() {
                Ok(n) if (0.0..=1.0).contains(&n) => Ok(()),
                _ => wrong("a number from 0 to 1".to_owned()),
            },
            List => {
                let given: Vec<&str> = value.split(',').map(str::trim).collect();
                if given.iter().all(|w| self.words.contains(w)) {
                    Ok(())
                } else {
                    wrong(format!("a list of {}", self.words.join(", ")))
                }
            }
            Text | Boolean => {
                if self.words.contains(&value) {
                    Ok(())
                } else {
                    wrong(format!("one of {}", self.words.join(", ")))
                }
            }
        }
    }
}

/// Checks one setting; the error is a sentence for the client.
pub(crate) fn check(name: &str, value: &str) -> Result<(), String> {
    if let Some(option) = find(name) {
        option.check(value)
    } else {
        let hint = nearest(name, TOPIC_OPTIONS.iter().map(|o| o.name));
        let hint = hint.map(|n| format!(", did you mean {n}?")).unwrap_or_default();
        Err(format!("unknown topic config name: {name}{hint}"))
    }
}

/// The log settings of a topic with these overrides, all of which were checked.
pub(crate) fn log_config(config: &BrokerConfig, overrides: &BTreeMap<String, String>) -> LogConfig {
    let value = |name: &str| {
        let own = overrides.get(name).cloned();
        own.or_else(|| find(name).map(|o| o.default_value(config))).unwrap_or_default()
    };
    let long = |name: &str| value(name).trim().parse::<i64>().unwrap_or(i64::MAX);
    let size = |name: &str| u32::try_from(long(name)).unwrap_or(u32::MAX);
    // Kafka's "never" is the largest long; the log's is the largest unsigned number.
    let count = |name: &str| match long(name) {
        i64::MAX => u64::MAX,
        n => u64::try_from(n).unwrap_or(0),
    };
    let deletes = value("cleanup.policy").split(',').any(|p| p.trim() == "delete");
    let append_time = value("message.timestamp.type") == "LogAppendTime";
    LogConfig {
        segment_bytes: size("segment.bytes"),
        segment_ms: long("segment.ms"),
        segment_index_bytes: size("segment.index.bytes"),
        index_interval_bytes: size("index.interval.bytes"),
        retention_bytes: if deletes { long("retention.bytes") } else { -1 },
        retention_ms: if deletes { long("retention.ms") } else { -1 },
        flush_messages: count("flush.messages"),
        flush_ms: count("flush.ms"),
        max_message_bytes: size("max.message.bytes"),
        message_timestamp_type: if append_time {
            TimestampType::LogAppendTime
        } else {
            TimestampType::CreateTime
        },
        message_timestamp_before_max_ms: long("message.timestamp.before.max.ms"),
        message_timestamp_after_max_ms: long("message.timestamp.after.max.ms"),
        producer_id_expiration_ms: i64::from(config.producer_id_expiration_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_valid_and_the_table_is_sorted() {
        let config = BrokerConfig::default();
        for option in TOPIC_OPTIONS {
            assert_eq!(check(option.name, &option.default_value(&config)), Ok(()), "{}", option.name);
        }
        assert!(TOPIC_OPTIONS.is_sorted_by_key(|o| o.name));
        assert_eq!(log_config(&config, &BTreeMap::new()), LogConfig::default());
    }

    #[test]
    fn overrides_win_and_compacted_topics_are_not_cut() {
        let config = BrokerConfig::default();
        let set = |pairs: &[(&str, &str)]| {
            let overrides = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            log_config(&config, &overrides)
        };
        let log = set(&[
            ("retention.ms", "5"),
            ("flush.messages", "1"),
            ("message.timestamp.type", "LogAppendTime"),
        ]);
        assert_eq!((log.retention_ms, log.flush_messages, log.flush_ms), (5, 1, u64::MAX));
        assert_eq!(log.message_timestamp_type, TimestampType::LogAppendTime);
        assert_eq!(set(&[("cleanup.policy", "compact")]).retention_ms, -1);
        assert_eq!(set(&[("cleanup.policy", "compact,delete")]).retention_ms, 604_800_000);
    }

    #[test]
    fn wrong_settings_are_named() {
        for (name, value) in [
            ("retention.ms", "soon"),
            ("retention.ms", "-2"),
            ("segment.bytes", "99999999999"),
            ("cleanup.policy", "burn"),
            ("preallocate", "maybe"),
            ("min.cleanable.dirty.ratio", "2"),
            ("compression.type", "zstd"),
        ] {
            let error = check(name, value).unwrap_err();
            assert!(error.contains(name) && error.contains("expected"), "{error}");
        }
        assert_eq!(
            check("retention.mss", "1").unwrap_err(),
            "unknown topic config name: retention.mss, did you mean retention.ms?"
        );
    }
}
