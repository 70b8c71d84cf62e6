//! What of the cluster is reported to callers unasked: that topics do not exist, or that no broker answers.

use std::collections::{BTreeMap, BTreeSet};

use headrace_wire::time::Now;

use crate::core::Core;
use crate::error::Error;
use crate::missing::{Unreachable, unknown_topic};

/// What is not there.
#[derive(Debug, Default)]
pub(super) struct Missing {
    unreachable: Unreachable,
    /// Topics that brokers do not know: since when, and whether that was reported to callers.
    topics: BTreeMap<String, (u64, bool)>,
}

impl Missing {
    /// What the next poll is to be told: each topic once for each time it goes missing, and that no broker has ever
    /// answered. What trying again will not help is reported by every poll.
    pub(super) fn find<T>(
        &mut self,
        now: Now,
        core: &Core<T>,
        topics: &BTreeSet<String>,
        wait_ms: u64,
    ) -> Vec<Error> {
        let is_missing = |topic: &String| core.cluster().topic_error(topic).is_some();
        self.topics.retain(|topic, _| topics.contains(topic) && is_missing(topic));
        let mut errors = Vec::new();
        for topic in topics.iter().filter(|topic| is_missing(topic)) {
            let (since, reported) = self.topics.entry(topic.clone()).or_insert((now.mono_ms, false));
            if !*reported && let Some(error) = unknown_topic(core, topic, *since, now) {
                *reported = true;
                errors.push(error);
            }
        }
        let waits = core.metadata_error().is_some_and(Error::retriable);
        errors.extend(self.unreachable.find(now, core, wait_ms, waits));
        errors
    }
}
