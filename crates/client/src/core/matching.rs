//! Topics that are wanted because their names match, whoever makes or deletes them: then metadata is asked for of all.

use std::collections::{BTreeSet, HashSet};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::MetadataResponse;
use headrace_wire::messages::metadata_response::MetadataResponseTopic;
use regex::bytes::{Regex, RegexBuilder};

use super::refresh::Refresh;
use crate::cluster::Cluster;
use crate::error::{Error, Result};

/// The most that a compiled pattern may take, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// A pattern of whole names of topics. Names are ASCII, and so are its classes.
#[derive(Clone, Debug)]
pub(crate) struct TopicPattern {
    regex: Regex,
    internal_too: bool,
}

impl TopicPattern {
    /// `internal_too`: also topics that the cluster calls its own.
    pub(crate) fn new(text: &str, internal_too: bool) -> Result<TopicPattern> {
        let compile = |text: &str| {
            RegexBuilder::new(text).unicode(false).size_limit(PATTERN_BYTES_MAX).build().map_err(|error| {
                Error::config("topics", format!("the pattern '{text}' cannot be used: {error}"))
            })
        };
        // By itself first: what closes a group too many must not open ours.
        compile(text)?;
        Ok(TopicPattern { regex: compile(&format!(r"\A(?:{text})\z"))?, internal_too })
    }

    fn takes(&self, name: &str, internal: bool) -> bool {
        (self.internal_too || !internal) && self.regex.is_match(name.as_bytes())
    }
}

/// What is matched, and whether that is known.
#[derive(Debug, Default)]
pub(super) struct Matching {
    pattern: Option<TopicPattern>,
    /// An answer on all topics has come since the pattern was given.
    seen: bool,
    /// The last metadata request was for all topics.
    pub(super) asked_all: bool,
}

impl Matching {
    pub(super) fn is_on(&self) -> bool {
        self.pattern.is_some()
    }

    /// Whether the topics that match are known, if any are looked for.
    pub(super) fn is_settled(&self) -> bool {
        self.seen || self.pattern.is_none()
    }

    /// Looks for topics that match from now on.
    pub(super) fn begin(&mut self, pattern: TopicPattern) {
        (self.pattern, self.seen) = (Some(pattern), false);
    }

    /// Looks for none from now on: those that nobody names are forgotten.
    pub(super) fn end(&mut self, cluster: &mut Cluster, refresh: &Refresh) {
        if self.pattern.take().is_some() {
            let known = cluster.topics().map(|(name, _)| name.to_owned());
            for name in known.filter(|name| !refresh.is_wanted(name)).collect::<Vec<_>>() {
                cluster.forget_topic(&name);
            }
        }
    }

    /// The topics that match; `None` until an answer has arrived.
    pub(super) fn matched(&self, cluster: &Cluster) -> Option<BTreeSet<String>> {
        let pattern = self.pattern.as_ref().filter(|_| self.seen)?;
        let topics = cluster.topics().filter(|(name, topic)| pattern.takes(name, topic.internal));
        Some(topics.map(|(name, _)| name.to_owned()).collect())
    }

    /// Of an answer on all topics, what is wanted. A topic that it does not have is gone.
    pub(super) fn select(
        &mut self,
        mut response: MetadataResponse,
        cluster: &mut Cluster,
        refresh: &Refresh,
    ) -> MetadataResponse {
        if !std::mem::take(&mut self.asked_all) {
            return response;
        }
        // A broker that is just starting knows no topics either.
        if response.brokers.is_empty() {
            response.topics.clear();
            return response;
        }
        let pattern = self.pattern.as_ref();
        response.topics.retain(|topic| {
            let matches = |name: &str| pattern.is_some_and(|pattern| pattern.takes(name, topic.is_internal));
            topic.name.as_ref().is_some_and(|name| refresh.is_wanted(name) || matches(name))
        });
        self.seen = pattern.is_some();
        let reported: HashSet<String> =
            response.topics.iter().filter_map(|topic| topic.name.clone()).collect();
        let missing = refresh.wanted().filter(|name| !reported.contains(*name));
        response.topics.extend(missing.map(|name| MetadataResponseTopic {
            error_code: ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.code(),
            name: Some(name.clone()),
            ..MetadataResponseTopic::default()
        }));
        let known = cluster.topics().map(|(name, _)| name);
        let gone = known.filter(|name| !reported.contains(*name) && !refresh.is_wanted(name));
        for name in gone.map(str::to_owned).collect::<Vec<_>>() {
            cluster.forget_topic(&name);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_takes_whole_names_and_internal_topics_only_where_wanted() {
        let pattern = TopicPattern::new("a|ab.*", false).unwrap();
        let taken = ["a", "ab", "abc", "b", "xa", "aa", "A"].map(|name| pattern.takes(name, false));
        assert_eq!(taken, [true, true, true, false, false, false, false]);
        assert!(!pattern.takes("ab", true));
        assert!(TopicPattern::new("a", true).unwrap().takes("a", true));
        assert!(TopicPattern::new("(?i)a", false).unwrap().takes("A", false));
        let digits = TopicPattern::new(r"t-\d{2}\.\w+", false).unwrap();
        assert!(digits.takes("t-12.b_c", false) && !digits.takes("t-1x.b", false));
    }

    #[test]
    fn a_pattern_that_cannot_be_used_is_told_as_it_was_written() {
        for text in ["(", "a)|(b", "(?=a)b", "a{1,999999999}", r"\p{Greek}"] {
            let error = TopicPattern::new(text, false).unwrap_err();
            assert_eq!(error.kafka_name(), "INVALID_CONFIG", "{text}");
            assert!(error.to_string().contains(&format!("the pattern '{text}'")), "{error}");
        }
    }
}
