//! Settings of topics: one table of Kafka's names, types, ranges and the broker options they default to.

use std::borrow::Cow;
use std::collections::BTreeMap;

use headrace_log::LogConfig;
use headrace_options::{Type, nearest};
use headrace_wire::records::TimestampType;

use crate::config::BrokerConfig;

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
    pub(crate) kind: Type,
    pub(crate) default: DefaultOf,
    /// For numbers: the range; for text: the words allowed, none for any.
    min: i64,
    max: i64,
    words: &'static [&'static str],
    sentence: &'static str,
    /// Why no value but the default is accepted, as the end of "the broker ...".
    only_default: Option<&'static str>,
}

const fn number(
    name: &'static str,
    kind: Type,
    default: DefaultOf,
    min: i64,
    sentence: &'static str,
) -> TopicOption {
    let max = if matches!(kind, Int) { i32::MAX as i64 } else { i64::MAX };
    TopicOption { name, kind, default, min, max, words: &[], sentence, only_default: None }
}

const fn words(
    name: &'static str,
    kind: Type,
    default: DefaultOf,
    words: &'static [&'static str],
    sentence: &'static str,
) -> TopicOption {
    TopicOption { name, kind, default, min: 0, max: 0, words, sentence, only_default: None }
}

/// A setting that exists for Kafka's tools, which send it at its default. Another value would be a promise that the
/// broker does not keep, so it is refused.
const fn only_default(
    name: &'static str,
    kind: Type,
    default: &'static str,
    why: &'static str,
) -> TopicOption {
    let words: &[&str] = match kind {
        Boolean => BOOLEANS,
        _ => &[],
    };
    TopicOption {
        name,
        kind,
        default: Fixed(default),
        min: i64::MIN,
        max: i64::MAX,
        words,
        sentence: "",
        only_default: Some(why),
    }
}

use DefaultOf::{Broker, Fixed};
use Type::{Boolean, Double, Int, List, Long, String as Text};

const BOOLEANS: &[&str] = &["true", "false"];
const NO_TIERS: &str = "has no tiered storage";
const NO_RECOMPRESSION: &str = "keeps every batch as its producer compressed it";
const NO_THROTTLE: &str = "does not limit how fast followers copy";

const LONG_MAX: &str = "9223372036854775807";

/// Every setting of a topic, by name.
pub(crate) const TOPIC_OPTIONS: &[TopicOption] = &[
    words(
        "cleanup.policy",
        List,
        Broker("log.cleanup.policy"),
        &["compact", "delete"],
        "What happens to old segments. Compaction is not implemented yet, so compact keeps everything.",
    ),
    only_default("compression.gzip.level", Int, "-1", NO_RECOMPRESSION),
    only_default("compression.lz4.level", Int, "9", NO_RECOMPRESSION),
    only_default("compression.type", Text, "producer", NO_RECOMPRESSION),
    only_default("compression.zstd.level", Int, "3", NO_RECOMPRESSION),
    number(
        "delete.retention.ms",
        Long,
        Fixed("86400000"),
        0,
        "Accepted for compaction, which is not implemented yet.",
    ),
    only_default("file.delete.delay.ms", Long, "60000", "deletes files at once"),
    number(
        "flush.messages",
        Long,
        Broker("log.flush.interval.messages"),
        1,
        "Number of new records after which the partition is synced to disk.",
    ),
    number(
        "flush.ms",
        Long,
        Broker("log.flush.interval.ms"),
        0,
        "Time in ms after which new records are synced to disk.",
    ),
    only_default("follower.replication.throttled.replicas", List, "", NO_THROTTLE),
    number(
        "index.interval.bytes",
        Int,
        Broker("log.index.interval.bytes"),
        0,
        "Bytes of log between two index entries.",
    ),
    only_default("leader.replication.throttled.replicas", List, "", NO_THROTTLE),
    only_default("local.retention.bytes", Long, "-2", NO_TIERS),
    only_default("local.retention.ms", Long, "-2", NO_TIERS),
    number(
        "max.compaction.lag.ms",
        Long,
        Fixed(LONG_MAX),
        1,
        "Accepted for compaction, which is not implemented yet.",
    ),
    number(
        "max.message.bytes",
        Int,
        Broker("message.max.bytes"),
        0,
        "Largest record batch in bytes, as sent (after compression).",
    ),
    number(
        "message.timestamp.after.max.ms",
        Long,
        Broker("log.message.timestamp.after.max.ms"),
        0,
        "How far, in ms, a record's timestamp may lie in the future.",
    ),
    number(
        "message.timestamp.before.max.ms",
        Long,
        Broker("log.message.timestamp.before.max.ms"),
        0,
        "How far, in ms, a record's timestamp may lie in the past.",
    ),
    words(
        "message.timestamp.type",
        Text,
        Broker("log.message.timestamp.type"),
        &["CreateTime", "LogAppendTime"],
        "Whose clock sets the timestamps of records: the producer's (CreateTime) or the broker's (LogAppendTime).",
    ),
    words(
        "min.cleanable.dirty.ratio",
        Double,
        Fixed("0.5"),
        &[],
        "Accepted for compaction, which is not implemented yet.",
    ),
    number(
        "min.compaction.lag.ms",
        Long,
        Fixed("0"),
        0,
        "Accepted for compaction, which is not implemented yet.",
    ),
    number(
        "min.insync.replicas",
        Int,
        Broker("min.insync.replicas"),
        1,
        "How many brokers must have a batch before it is acknowledged to a producer with acks all; all of them where a topic has fewer copies.",
    ),
    only_default("preallocate", Boolean, "false", "does not preallocate files"),
    only_default("remote.log.copy.disable", Boolean, "false", NO_TIERS),
    only_default("remote.log.delete.on.disable", Boolean, "false", NO_TIERS),
    only_default("remote.storage.enable", Boolean, "false", NO_TIERS),
    number(
        "retention.bytes",
        Long,
        Broker("log.retention.bytes"),
        -1,
        "Size in bytes of a partition beyond which its oldest closed segments are deleted; -1 keeps them all.",
    ),
    number(
        "retention.ms",
        Long,
        Broker("log.retention.ms"),
        -1,
        "Age in ms after which closed segments are deleted; -1 keeps them forever.",
    ),
    number(
        "segment.bytes",
        Int,
        Broker("log.segment.bytes"),
        1_048_576,
        "Size in bytes at which a segment is closed and a new one is started.",
    ),
    number(
        "segment.index.bytes",
        Int,
        Broker("log.index.size.max.bytes"),
        4,
        "Size in bytes at which an index is full, so that its segment is closed.",
    ),
    only_default("segment.jitter.ms", Long, "0", "closes segments without jitter"),
    number("segment.ms", Long, Broker("log.roll.ms"), 1, "Age in ms at which a segment is closed."),
    words(
        "unclean.leader.election.enable",
        Boolean,
        Broker("unclean.leader.election.enable"),
        BOOLEANS,
        "Whether a broker may lead a partition that lacks committed records, if nobody else can: they are lost then.",
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

    /// What it does, for the reference page and `DescribeConfigs`.
    pub(crate) fn sentence(&self) -> Cow<'static, str> {
        match self.only_default {
            Some(why) => format!("Only the default is accepted: the broker {why}.").into(),
            None => self.sentence.into(),
        }
    }

    /// Whether the value is one of its kind and range. The words are Kafka's own, as clients print them.
    fn check(&self, value: &str) -> Result<(), String> {
        let wrong = |bad: &str, why: String| {
            Err(format!("Invalid value {bad} for configuration {}: {why}", self.name))
        };
        let trimmed = value.trim();
        match self.kind {
            Int | Long => {
                let number = match self.kind {
                    Int => trimmed.parse::<i32>().map(i64::from),
                    _ => trimmed.parse::<i64>(),
                };
                match number {
                    Ok(n) if n < self.min => wrong(value, format!("Value must be at least {}", self.min)),
                    Ok(n) if n > self.max => wrong(value, format!("Value must be no more than {}", self.max)),
                    Ok(_) => Ok(()),
                    Err(_) => wrong(
                        value,
                        format!("Not a number of type {}", if self.kind == Int { "INT" } else { "LONG" }),
                    ),
                }
            }
            Double => match trimmed.parse::<f64>() {
                Ok(n) if n < 0.0 => wrong(&format!("{n:?}"), "Value must be at least 0".to_owned()),
                Ok(n) if n > 1.0 => wrong(&format!("{n:?}"), "Value must be no more than 1".to_owned()),
                Ok(n) if !n.is_nan() => Ok(()),
                _ => wrong(value, "Not a number of type DOUBLE".to_owned()),
            },
            Boolean if BOOLEANS.iter().any(|word| trimmed.eq_ignore_ascii_case(word)) => Ok(()),
            Boolean => wrong(value, "Expected value to be either true or false".to_owned()),
            List | Text => {
                let bad = items(self.kind, value).find(|word| !self.words.contains(word));
                match bad {
                    Some(bad) if !self.words.is_empty() => {
                        wrong(bad, format!("String must be one of: {}", self.words.join(", ")))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// Whether the broker can do what the value says.
    fn supports(&self, value: &str) -> Result<(), String> {
        let (Some(why), Fixed(default)) = (self.only_default, self.default) else { return Ok(()) };
        let same = match self.kind {
            Int | Long => value.trim().parse::<i64>().ok() == default.parse().ok(),
            _ => value.trim().eq_ignore_ascii_case(default),
        };
        if same {
            return Ok(());
        }
        let only = if default.is_empty() { "an empty value" } else { default };
        Err(format!(
            "Invalid value {value} for configuration {}: this broker {why}, so only {only} is possible \
             (docs/broker.md)",
            self.name
        ))
    }
}

/// The words of a list, or the one of a text.
fn items(kind: Type, value: &str) -> impl Iterator<Item = &str> {
    let pieces = if kind == List { usize::MAX } else { 1 };
    value.splitn(pieces, ',').map(str::trim).filter(move |word| kind != List || !word.is_empty())
}

/// Checks one setting that is stored; the error is a sentence. What an earlier version has accepted stays readable.
pub(crate) fn check(name: &str, value: &str) -> Result<(), String> {
    known(name)?.check(value)
}

fn known(name: &str) -> Result<&'static TopicOption, String> {
    find(name).ok_or_else(|| {
        let hint = nearest(name, TOPIC_OPTIONS.iter().map(|o| o.name));
        let hint = hint.map(|(_, near)| format!(", did you mean {near}?")).unwrap_or_default();
        format!("Unknown topic config name: {name}{hint}")
    })
}

/// Checks the settings that a client wants a topic to have; the error is a sentence for the client.
pub(crate) fn check_all(overrides: &BTreeMap<String, String>) -> Result<(), String> {
    for (name, value) in overrides {
        let option = known(name)?;
        option.check(value).and_then(|()| option.supports(value))?;
    }
    let number = |name: &str, default| {
        overrides.get(name).and_then(|value| value.trim().parse::<i64>().ok()).unwrap_or(default)
    };
    let (least, most) = (number("min.compaction.lag.ms", 0), number("max.compaction.lag.ms", i64::MAX));
    if least > most {
        return Err(format!(
            "conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        ));
    }
    Ok(())
}

/// What the settings of a topic come to.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) log: LogConfig,
    /// `min.insync.replicas`
    pub(crate) min_in_sync: usize,
}

/// The settings of a topic with these overrides, all of which were checked.
pub(crate) fn settings(config: &BrokerConfig, overrides: &BTreeMap<String, String>) -> Settings {
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
    let append_time = value("message.timestamp.type").trim() == "LogAppendTime";
    let log = LogConfig {
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
    };
    Settings { log, min_in_sync: usize::try_from(long("min.insync.replicas")).unwrap_or(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_valid_and_the_table_is_sorted() {
        let config = BrokerConfig::from_pairs([]).unwrap();
        for option in TOPIC_OPTIONS {
            assert_eq!(check(option.name, &option.default_value(&config)), Ok(()), "{}", option.name);
        }
        assert!(TOPIC_OPTIONS.is_sorted_by_key(|o| o.name));
        assert_eq!(settings(&config, &BTreeMap::new()).log, LogConfig::default());
    }

    #[test]
    fn overrides_win_and_compacted_topics_are_not_cut() {
        let config = BrokerConfig::from_pairs([]).unwrap();
        let set = |pairs: &[(&str, &str)]| {
            let overrides = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            settings(&config, &overrides).log
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

    /// What `check_all` says of one setting.
    fn said(name: &str, value: &str) -> Result<(), String> {
        check_all(&BTreeMap::from([(name.to_owned(), value.to_owned())]))
    }

    #[test]
    fn wrong_settings_are_named_in_kafkas_words() {
        for (name, value, why) in [
            ("retention.ms", "soon", "Not a number of type LONG"),
            ("retention.ms", "-2", "Value must be at least -1"),
            ("segment.bytes", "99999999999", "Not a number of type INT"),
            ("cleanup.policy", "burn", "String must be one of: compact, delete"),
            ("preallocate", "maybe", "Expected value to be either true or false"),
            ("min.cleanable.dirty.ratio", "x", "Not a number of type DOUBLE"),
        ] {
            let expected = format!("Invalid value {value} for configuration {name}: {why}");
            assert_eq!(said(name, value).unwrap_err(), expected);
        }
        assert_eq!(
            said("cleanup.policy", "compact,burn").unwrap_err(),
            said("cleanup.policy", "burn").unwrap_err()
        );
        assert_eq!(
            said("min.cleanable.dirty.ratio", "2").unwrap_err(),
            "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1"
        );
        assert_eq!(
            said("retention.mss", "1").unwrap_err(),
            "Unknown topic config name: retention.mss, did you mean retention.ms?"
        );
        let lags = [("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5")];
        let lags = lags.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(
            check_all(&BTreeMap::from(lags)).unwrap_err(),
            "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)"
        );
        for (name, value) in
            [("retention.ms", " 5 "), ("cleanup.policy", ""), ("cleanup.policy", "delete, compact")]
        {
            assert_eq!(said(name, value), Ok(()));
        }
    }

    #[test]
    fn what_the_broker_does_not_do_is_refused_by_name_and_stays_readable() {
        let config = BrokerConfig::from_pairs([]).unwrap();
        for option in TOPIC_OPTIONS {
            let Some(why) = option.only_default else { continue };
            assert_eq!(said(option.name, &option.default_value(&config)), Ok(()), "{}", option.name);
            let other = match option.kind {
                Int | Long => "7",
                Boolean => "true",
                _ => "gzip",
            };
            let error = said(option.name, other).unwrap_err();
            assert!(error.contains(option.name) && error.contains(why), "{error}");
            assert_eq!(check(option.name, other), Ok(()), "stored by an earlier version");
        }
        assert_eq!(said("remote.storage.enable", " False "), Ok(()));
        assert!(said("remote.storage.enable", "no").unwrap_err().contains("either true or false"));
    }
}
