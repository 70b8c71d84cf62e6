//! Heartbeats of groups whose coordinator gives partitions: KIP-848, and share groups.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::*;
use headrace_wire::uuid::Uuid;

use super::kafka::ScriptedKafka;

/// What a coordinator answers to a heartbeat.
#[derive(Debug, Clone)]
pub(crate) struct Beat {
    pub(crate) code: ErrorCode,
    pub(crate) why: &'static str,
    pub(crate) epoch: i32,
    pub(crate) interval_ms: i32,
    /// Partitions by topic id.
    pub(crate) given: Option<Vec<(Uuid, Vec<i32>)>>,
}

impl Beat {
    /// Topics are numbered from 1 on.
    pub(crate) fn new(epoch: i32, given: Option<&[(u8, &[i32])]>) -> Beat {
        let topic = |(id, partitions): &(u8, &[i32])| (Uuid([*id; 16]), partitions.to_vec());
        let given = given.map(|given| given.iter().map(topic).collect());
        Beat { code: ErrorCode::NONE, why: "", epoch, interval_ms: 1_000, given }
    }

    pub(crate) fn refusal(code: ErrorCode, why: &'static str) -> Beat {
        Beat { code, why, ..Beat::new(0, None) }
    }
}

macro_rules! heartbeat {
    ($name:ident, $request:ident, $response:ident, $module:ident, $joins:expr) => {
        impl ScriptedKafka {
            pub(super) fn $name(&mut self, request: &$request) -> $response {
                let joins: fn(&$request) -> bool = $joins;
                let beat = self.beat(request.member_epoch, joins(request));
                let topic = |(topic_id, partitions)| $module::TopicPartitions { topic_id, partitions };
                let topics = |given: Vec<_>| given.into_iter().map(topic).collect();
                $response {
                    error_code: beat.code.code(),
                    error_message: (!beat.code.is_none()).then(|| beat.why.to_owned()),
                    member_epoch: beat.epoch,
                    heartbeat_interval_ms: beat.interval_ms,
                    assignment: beat
                        .given
                        .map(|given| $module::Assignment { topic_partitions: topics(given) }),
                    ..Default::default()
                }
            }
        }
    };
}

heartbeat!(
    consumer_heartbeat,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    consumer_group_heartbeat_response,
    |request| request.member_epoch >= 0 && request.rebalance_timeout_ms > 0
);
heartbeat!(
    share_heartbeat,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    share_group_heartbeat_response,
    |request| request.member_epoch == 0
);

impl ScriptedKafka {
    /// The next answer that a test has given, but to who leaves; else that nothing has changed since the last one, or what
    /// the group gives of the first topic.
    fn beat(&mut self, epoch: i32, says_everything: bool) -> Beat {
        let partitions = || (0..).zip(&self.layout.topics[0].1).map(|(partition, _)| partition).collect();
        let all = (self.gives_all && says_everything).then(partitions);
        let given = self.gives.clone().or(all).map(|partitions| vec![(Uuid([1; 16]), partitions)]);
        let same = Beat { given, ..Beat::new(epoch.max(1), None) };
        if epoch < 0 { same } else { self.beats.pop_front().unwrap_or(same) }
    }
}
