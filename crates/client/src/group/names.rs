//! Names of topics that a coordinator names by their ids alone.

use std::collections::HashMap;

use headrace_wire::messages::metadata_request::MetadataRequestTopic;
use headrace_wire::messages::{MetadataRequest, MetadataResponse};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use crate::cluster::Cluster;
use crate::core::{Core, Lane, Target};
use crate::error::Result;

/// What is known of them, and the question for more.
#[derive(Debug)]
pub(super) struct TopicNames {
    names: HashMap<Uuid, String>,
    asking: bool,
    ask_at: u64,
    /// No second question before so long, in milliseconds.
    pause_ms: u64,
    request_timeout_ms: u64,
}

impl TopicNames {
    pub(super) fn new(pause_ms: u64, request_timeout_ms: u64) -> TopicNames {
        TopicNames {
            names: HashMap::new(),
            asking: false,
            ask_at: 0,
            pause_ms: pause_ms.max(1),
            request_timeout_ms,
        }
    }

    pub(super) fn get(&self, id: &Uuid) -> Option<&str> {
        self.names.get(id).map(String::as_str)
    }

    /// Whether a name is known, also from the cluster's metadata.
    pub(super) fn find(&mut self, cluster: &Cluster, id: Uuid) -> bool {
        let mut found = cluster.topics().filter(|(_, topic)| topic.id == id);
        if let Some((name, _)) = found.next() {
            self.names.insert(id, name.to_owned());
        }
        self.names.contains_key(&id)
    }

    /// Asks for names, unless that has just been done.
    pub(super) fn ask<T>(&mut self, now: Now, core: &mut Core<T>, ids: Vec<Uuid>, tag: impl FnOnce() -> T) {
        if self.asking || !core.timers().is_due(now, self.ask_at) {
            return;
        }
        self.asking = true;
        self.ask_at = now.mono_ms + self.pause_ms;
        let topic = |topic_id| MetadataRequestTopic { topic_id, name: None };
        let request = MetadataRequest {
            topics: Some(ids.into_iter().map(topic).collect()),
            allow_auto_topic_creation: false,
            ..MetadataRequest::default()
        };
        core.call(now, Target::Any, Lane::Control, request, tag(), self.request_timeout_ms);
    }

    /// The answer to that.
    pub(super) fn learn(&mut self, result: Result<MetadataResponse>) {
        self.asking = false;
        for topic in result.into_iter().flat_map(|response| response.topics) {
            if let Some(name) = topic.name.filter(|_| topic.error_code == 0) {
                self.names.insert(topic.topic_id, name);
            }
        }
    }

    /// Forgets those that nobody needs.
    pub(super) fn retain(&mut self, needs: impl Fn(&Uuid) -> bool) {
        self.names.retain(|id, _| needs(id));
    }
}
