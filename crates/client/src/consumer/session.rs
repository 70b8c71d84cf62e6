//! A fetch session with a broker (KIP-227): both sides remember what is read, and tell each other only what has changed.

use std::collections::HashMap;
use std::sync::Arc;

use headrace_wire::messages::FetchRequest;
use headrace_wire::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use super::settings::FetchSettings;
use super::ticket::Ticket;
use super::types::TopicPartition;
use crate::time::Retry;

/// A partition as the broker's session knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) ticket: Ticket,
    pub(super) offset: i64,
    /// The leader epoch of the record before the offset: a broker whose log has none such there says so (KIP-320).
    pub(super) last_epoch: i32,
    pub(super) leader_epoch: i32,
    pub(super) topic_id: Uuid,
}

/// A fetch session with one broker, or the requests outside it.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// 0 while there is none.
    pub(super) id: i32,
    /// The epoch of the next request; 0 opens a session.
    pub(super) epoch: i32,
    /// Requests whose answer has not ended.
    pub(super) in_flight: u32,
    /// Of the requests in flight, the first is being answered.
    pub(super) answering: bool,
    /// The answer being read is known to its last header: the next request can go out.
    pub(super) early: bool,
    pub(super) retry: Retry,
    pub(super) members: HashMap<TopicPartition, Member>,
    pub(super) names: HashMap<Uuid, Arc<str>>,
}

impl Session {
    /// Starts over with a full request. Needed whenever it is not certain that both sides agree on the epoch.
    pub(super) fn reset(&mut self) {
        self.id = 0;
        self.epoch = 0;
        self.members.clear();
    }

    pub(super) fn can_send(&self, now: Now) -> bool {
        (self.in_flight == 0 || (self.early && self.in_flight == 1)) && !self.retry.is_waiting(now)
    }

    /// An answer named the session.
    pub(super) fn answered(&mut self, id: i32) {
        if id == 0 {
            // The broker keeps none for us: go on with full requests.
            self.epoch = 0;
        } else if self.id == id {
            self.epoch = if self.epoch == i32::MAX { 1 } else { self.epoch + 1 };
        } else {
            self.epoch = 1;
        }
        self.id = id;
    }

    /// The next request: what is asked for now, and what the broker is to forget. Members are these from now on.
    pub(super) fn request(
        &mut self,
        settings: &FetchSettings,
        desired: Vec<(TopicPartition, Member)>,
    ) -> FetchRequest {
        let full = self.id == 0;
        let mut request = FetchRequest {
            max_wait_ms: settings.max_wait_ms,
            min_bytes: settings.min_bytes,
            max_bytes: settings.max_bytes,
            isolation_level: settings.isolation_level,
            session_id: self.id,
            session_epoch: self.epoch,
            rack_id: settings.rack.clone(),
            ..FetchRequest::default()
        };
        let mut members = HashMap::with_capacity(desired.len());
        for (partition, member) in desired {
            let known = if full { None } else { self.members.remove(&partition) };
            let recreated = known.as_ref().is_some_and(|known| known.topic_id != member.topic_id);
            if recreated && let Some(known) = &known {
                forget(&mut request.forgotten_topics_data, &partition, known.topic_id);
            }
            let place = |member: &Member| (member.offset, member.last_epoch, member.leader_epoch);
            let changed = known.is_none_or(|known| recreated || place(&known) != place(&member));
            if changed {
                ask(&mut request.topics, &partition, &member, settings.partition_max_bytes);
            }
            members.insert(partition, member);
        }
        if !full {
            // Paused, out of room, moved elsewhere: merely left out, they would be sent again and again.
            let mut left: Vec<_> = self.members.iter().collect();
            left.sort_unstable_by_key(|(partition, _)| *partition);
            for (partition, member) in left {
                forget(&mut request.forgotten_topics_data, partition, member.topic_id);
            }
        }
        self.names = members.iter().map(|(partition, m)| (m.topic_id, partition.topic.clone())).collect();
        self.members = members;
        request
    }
}

fn ask(topics: &mut Vec<FetchTopic>, partition: &TopicPartition, member: &Member, max_bytes: i32) {
    if topics.last().is_none_or(|topic| *topic.topic != *partition.topic) {
        let topic = FetchTopic {
            topic: partition.topic.to_string(),
            topic_id: member.topic_id,
            ..FetchTopic::default()
        };
        topics.push(topic);
    }
    if let Some(topic) = topics.last_mut() {
        topic.partitions.push(FetchPartition {
            partition: partition.partition,
            current_leader_epoch: member.leader_epoch,
            fetch_offset: member.offset,
            last_fetched_epoch: member.last_epoch,
            partition_max_bytes: max_bytes,
            ..FetchPartition::default()
        });
    }
}

fn forget(topics: &mut Vec<ForgottenTopic>, partition: &TopicPartition, topic_id: Uuid) {
    match topics.iter_mut().find(|topic| *topic.topic == *partition.topic && topic.topic_id == topic_id) {
        Some(topic) => topic.partitions.push(partition.partition),
        None => topics.push(ForgottenTopic {
            topic: partition.topic.to_string(),
            topic_id,
            partitions: vec![partition.partition],
        }),
    }
}
