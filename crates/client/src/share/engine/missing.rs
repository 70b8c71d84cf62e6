//! What of the cluster a caller is told without having asked: topics that are not there, and that nobody answers.

use std::collections::{BTreeMap, BTreeSet};

use headrace_wire::errors::ErrorCode;
use headrace_wire::time::Now;

use crate::consumer::UNKNOWN_TOPIC_GRACE_MS;
use crate::core::Core;
use crate::error::Error;

/// What is not there.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// When callers are told that no broker answers.
    unreachable_at: Option<u64>,
    /// Topics that brokers do not know: since when, and whether callers were told.
    topics: BTreeMap<String, (u64, bool)>,
}

impl Missing {
    /// What the next poll is to be told: each topic once for each time it goes missing, and again and again that no broker
    /// has ever answered. Later outages are waited out, as in Kafka's own consumers.
    pub(super) fn find<T>(
        &mut self,
        now: Now,
        core: &Core<T>,
        topics: &BTreeSet<String>,
        wait_ms: u64,
    ) -> Vec<Error> {
        let mut errors = self.unknown_topics(now, core, topics);
        errors.extend(self.unreachable(now, core, wait_ms));
        errors
    }

    /// What trying again will not help is told by every poll.
    fn unreachable<T>(&mut self, now: Now, core: &Core<T>, wait_ms: u64) -> Option<Error> {
        let error = core.metadata_error().filter(|error| error.retriable());
        let Some(error) = error.filter(|_| core.cluster().generation() == 0) else {
            self.unreachable_at = None;
            return None;
        };
        if !core.timers().is_due(now, *self.unreachable_at.get_or_insert(now.mono_ms + wait_ms)) {
            return None;
        }
        self.unreachable_at = Some(now.mono_ms + wait_ms);
        core.timers().wake_at(now.mono_ms + wait_ms);
        Some(error.clone())
    }

    fn unknown_topics<T>(&mut self, now: Now, core: &Core<T>, topics: &BTreeSet<String>) -> Vec<Error> {
        let code = |topic: &String| Some((topic.clone(), core.cluster().topic_error(topic)?));
        let missing: BTreeMap<String, ErrorCode> = topics.iter().filter_map(code).collect();
        self.topics.retain(|topic, _| missing.contains_key(topic));
        let mut errors = Vec::new();
        for (topic, code) in missing {
            let (since, told) = self.topics.entry(topic.clone()).or_insert((now.mono_ms, false));
            if *told {
                continue;
            }
            // It may just be being created.
            let graced = core.timers().is_due(now, *since + UNKNOWN_TOPIC_GRACE_MS);
            if !code.retriable() || (graced && code == ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) {
                *told = true;
                errors.push(Error::topic(code, topic, ""));
            }
        }
        errors
    }
}
