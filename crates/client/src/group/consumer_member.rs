//! A consumer's member by KIP-848: partitions have one owner, and topics may be found by a pattern.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::consumer_group_heartbeat_request::TopicPartitions;
use headrace_wire::messages::{ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse};

use super::epoch_member::{Answer, EpochMember, EpochProtocol, Heartbeat};
use super::member::MemberSettings;
use crate::error::Error;

/// The epoch of who leaves.
const LEAVE: i32 = -1;
/// A static member that will be back: its partitions wait for it until its session ends.
const LEAVE_FOR_A_WHILE: i32 = -2;

/// A consumer's member.
pub(super) type ConsumerMember = EpochMember<ConsumerProtocol>;

/// What is KIP-848's alone.
#[derive(Debug)]
pub(super) struct ConsumerProtocol {
    instance_id: Option<String>,
    rebalance_timeout_ms: i32,
    remote_assignor: Option<String>,
    pattern: Option<String>,
    /// The coordinator may have heard of a pattern.
    told_pattern: bool,
}

impl EpochProtocol for ConsumerProtocol {
    type Request = ConsumerGroupHeartbeatRequest;
    const GROUP: &'static str = "group";
    const HAS_OWNERS: bool = true;

    fn heartbeat(&mut self, say: Heartbeat<'_>) -> ConsumerGroupHeartbeatRequest {
        // An empty one says that there is none any more. Brokers of version 0 know of none.
        let none = || self.told_pattern.then(String::new);
        let pattern = self.pattern.clone().or_else(none).filter(|_| say.topics.is_some());
        self.told_pattern |= self.pattern.is_some();
        let held = say.held.map(|held| {
            let some = held.iter().filter(|(_, partitions)| !partitions.is_empty());
            some.map(|(topic_id, partitions)| TopicPartitions {
                topic_id: *topic_id,
                partitions: partitions.iter().copied().collect(),
            })
            .collect()
        });
        ConsumerGroupHeartbeatRequest {
            group_id: say.group_id,
            member_id: say.member_id,
            member_epoch: say.member_epoch,
            instance_id: self.instance_id.clone(),
            rack_id: say.rack_id,
            rebalance_timeout_ms: if say.full { self.rebalance_timeout_ms } else { -1 },
            subscribed_topic_names: say.topics,
            subscribed_topic_regex: pattern,
            server_assignor: self.remote_assignor.clone().filter(|_| say.full),
            topic_partitions: held,
        }
    }

    /// A static member says that it will be back.
    fn leave(&self, group_id: String, member_id: String) -> ConsumerGroupHeartbeatRequest {
        let instance_id = self.instance_id.clone();
        let member_epoch = if instance_id.is_some() { LEAVE_FOR_A_WHILE } else { LEAVE };
        ConsumerGroupHeartbeatRequest {
            group_id,
            member_id,
            member_epoch,
            instance_id,
            ..ConsumerGroupHeartbeatRequest::default()
        }
    }

    fn read(response: ConsumerGroupHeartbeatResponse) -> Answer {
        let assignment = response.assignment.map(|assignment| {
            let topics = assignment.topic_partitions.into_iter();
            topics.map(|topic| (topic.topic_id, topic.partitions.into_iter().collect())).collect()
        });
        Answer {
            code: response.error_code,
            message: response.error_message,
            member_id: response.member_id,
            member_epoch: response.member_epoch,
            interval_ms: response.heartbeat_interval_ms,
            assignment,
        }
    }

    /// Says what to do where the broker has the classic protocol alone.
    fn explained(error: Error) -> Error {
        match error {
            Error::Broker { code: ErrorCode::UNSUPPORTED_VERSION, detail, .. }
                if !detail.contains("speaks") =>
            {
                let needs =
                    "group.protocol=consumer needs Kafka 4.0 or newer; group.protocol=classic does without";
                Error::broker(ErrorCode::UNSUPPORTED_VERSION, format!("{detail}: {needs}"))
            }
            error => error,
        }
    }

    fn subscribed(&mut self, pattern: Option<String>) {
        self.pattern = pattern;
    }

    fn instance_id(&self) -> Option<&String> {
        self.instance_id.as_ref()
    }
}

impl ConsumerMember {
    pub(super) fn new(settings: MemberSettings) -> ConsumerMember {
        let protocol = ConsumerProtocol {
            rebalance_timeout_ms: settings.rebalance_timeout(),
            instance_id: settings.instance_id,
            remote_assignor: settings.remote_assignor,
            pattern: None,
            told_pattern: false,
        };
        EpochMember::of(protocol, settings.rack, settings.request_timeout_ms, settings.backoff)
    }
}
