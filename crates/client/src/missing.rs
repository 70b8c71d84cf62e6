//! What of the cluster is reported to callers unasked: that topics do not exist, or that no broker answers.

use headrace_wire::errors::ErrorCode;
use headrace_wire::time::Now;

use crate::core::Core;
use crate::error::Error;
use crate::partition::TopicPartition;

/// How long a topic may be unknown to the brokers before that is an error: it may just be being created.
const UNKNOWN_TOPIC_GRACE_MS: u64 = 2_000;

/// The error for a topic that brokers do not know, once it has been missing since `since` for long enough.
pub(crate) fn unknown_topic<T>(core: &Core<T>, topic: &str, since: u64, now: Now) -> Option<Error> {
    let graced = core.timers().is_due(now, since + UNKNOWN_TOPIC_GRACE_MS);
    let code = core.cluster().topic_error(topic)?;
    let certain = !code.retriable() || (graced && code == ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    certain.then(|| Error::topic(code, topic, ""))
}

/// The same for a partition: its topic may have fewer.
pub(crate) fn unknown_partition<T>(
    core: &Core<T>,
    TopicPartition { topic, partition }: &TopicPartition,
    since: u64,
    now: Now,
) -> Option<Error> {
    if core.cluster().topic_error(topic).is_some() {
        return unknown_topic(core, topic, since, now);
    }
    let graced = core.timers().is_due(now, since + UNKNOWN_TOPIC_GRACE_MS);
    let count = core.cluster().partition_count(topic)?;
    (graced && !(0..count).contains(partition)).then(|| {
        let detail = format!("the topic has {count} partitions");
        Error::partition(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, &**topic, *partition, detail)
    })
}

/// When it is reported to callers that no broker has ever answered.
#[derive(Debug, Default)]
pub(crate) struct Unreachable {
    at: Option<u64>,
}

impl Unreachable {
    /// Why no broker answers, while somebody waits for that: at once when trying again will not help, else after `wait_ms`,
    /// and then again and again. Later outages are waited out, as in Kafka's own consumers.
    pub(crate) fn find<T>(&mut self, now: Now, core: &Core<T>, wait_ms: u64, waits: bool) -> Option<Error> {
        let Some(error) = core.metadata_error().filter(|_| waits && core.cluster().generation() == 0) else {
            self.at = None;
            return None;
        };
        let grace = if error.retriable() { wait_ms } else { 0 };
        if !core.timers().is_due(now, *self.at.get_or_insert(now.mono_ms + grace)) {
            return None;
        }
        self.at = Some(now.mono_ms + wait_ms);
        core.timers().wake_at(now.mono_ms + wait_ms);
        Some(error.clone())
    }
}
