//! What of the cluster a caller is told without having asked: topics that are not there, and that nobody answers.

use std::collections::BTreeMap;

use headrace_wire::errors::ErrorCode;
use headrace_wire::time::Now;

use super::{ShareEngine, Standing};
use crate::consumer::UNKNOWN_TOPIC_GRACE_MS;
use crate::error::Error;
use crate::share::shelf::lock;

/// What is not there.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// When callers are told that no broker answers.
    unreachable_at: Option<u64>,
    /// Topics that brokers do not know: since when, and whether callers were told.
    topics: BTreeMap<String, (u64, bool)>,
}

impl Missing {
    /// When there is something to look at.
    pub(super) fn timeouts(&self) -> impl Iterator<Item = u64> + '_ {
        let topics = self.topics.values().filter(|(_, told)| !told);
        topics.map(|(since, _)| since + UNKNOWN_TOPIC_GRACE_MS).chain(self.unreachable_at)
    }
}

impl ShareEngine {
    /// Tells the next poll what is missing: each topic once for each time it goes missing, and again and again that no
    /// broker has ever answered. Later outages are waited out, as in Kafka's own consumers.
    pub(super) fn tell_missing(&mut self, now: Now) {
        if self.closing.is_some() || self.standing == Standing::Alone {
            self.missing = Missing::default();
            return;
        }
        let mut errors = self.unknown_topics(now);
        errors.extend(self.unreachable(now));
        if errors.is_empty() {
            return;
        }
        let mut shelf = lock(&self.shelf);
        for error in errors {
            shelf.fail(error);
        }
        self.filled = true;
    }

    /// What trying again will not help is told by every poll ([`ShareEngine::tell`]).
    fn unreachable(&mut self, now: Now) -> Option<Error> {
        let error = self.core.metadata_error().filter(|error| error.retriable());
        let Some(error) = error.filter(|_| self.core.cluster().generation() == 0).cloned() else {
            self.missing.unreachable_at = None;
            return None;
        };
        let wait_ms = self.settings.request_timeout_ms;
        if *self.missing.unreachable_at.get_or_insert(now.mono_ms + wait_ms) > now.mono_ms {
            return None;
        }
        self.missing.unreachable_at = Some(now.mono_ms + wait_ms);
        Some(error)
    }

    fn unknown_topics(&mut self, now: Now) -> Vec<Error> {
        let cluster = self.core.cluster();
        let missing: BTreeMap<&str, ErrorCode> = self
            .member
            .topics()
            .iter()
            .filter_map(|topic| Some((topic.as_str(), cluster.topic_error(topic)?)))
            .collect();
        self.missing.topics.retain(|topic, _| missing.contains_key(topic.as_str()));
        let mut errors = Vec::new();
        for (topic, code) in missing {
            let (since, told) = self.missing.topics.entry(topic.to_owned()).or_insert((now.mono_ms, false));
            // It may just be being created.
            let graced = now.mono_ms >= *since + UNKNOWN_TOPIC_GRACE_MS;
            let certain = !code.retriable() || (graced && code == ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
            if certain && !*told {
                *told = true;
                errors.push(Error::topic(code, topic, ""));
            }
        }
        errors
    }
}
