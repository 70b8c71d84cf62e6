//! A member of a share group (KIP-932): nobody has to let go of anything first, since several members may have the same
//! partition. The id is our own and stays for good: share sessions go by it, and outlive a coordinator that has forgotten
//! the member.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse};

use super::epoch_member::{Answer, EpochMember, EpochProtocol, Heartbeat, Ids};
use crate::error::Error;
use crate::time::Backoff;

/// The epoch of who leaves.
const LEAVE: i32 = -1;

/// Who has no partitions yet asks again after this, in milliseconds, then after twice as long, up to the coordinator's interval:
/// it prepares the partitions of a group after its first heartbeat, and can give them only with a later one.
const HURRY_MS: u64 = 100;

/// A share consumer's member.
pub(super) type ShareMember = EpochMember<ShareProtocol>;

/// What is KIP-932's alone.
#[derive(Debug)]
pub(crate) struct ShareProtocol {
    /// The next wait for partitions, as long as there are none.
    hurry_ms: u64,
}

impl EpochProtocol for ShareProtocol {
    type Request = ShareGroupHeartbeatRequest;
    const GROUP: &'static str = "share group";
    const HAS_OWNERS: bool = false;

    fn heartbeat(&mut self, say: Heartbeat<'_>) -> ShareGroupHeartbeatRequest {
        ShareGroupHeartbeatRequest {
            group_id: say.group_id,
            member_id: say.member_id,
            member_epoch: say.member_epoch,
            rack_id: say.rack_id,
            subscribed_topic_names: say.topics,
        }
    }

    fn leave(&self, group_id: String, member_id: String) -> ShareGroupHeartbeatRequest {
        ShareGroupHeartbeatRequest {
            group_id,
            member_id,
            member_epoch: LEAVE,
            ..ShareGroupHeartbeatRequest::default()
        }
    }

    fn read(response: ShareGroupHeartbeatResponse) -> Answer {
        let assignment = response.assignment.map(|assignment| {
            let mut ids = Ids::new();
            for topic in assignment.topic_partitions {
                ids.entry(topic.topic_id).or_default().extend(topic.partitions);
            }
            ids
        });
        Answer {
            code: response.error_code,
            message: response.error_message,
            member_id: None,
            member_epoch: response.member_epoch,
            interval_ms: response.heartbeat_interval_ms,
            assignment,
        }
    }

    /// Says what is missing where the broker has no share groups: too old, or the feature is off.
    fn explained(error: Error) -> Error {
        match error {
            Error::Broker { code: ErrorCode::UNSUPPORTED_VERSION, detail, .. } => {
                let needs = "share groups need Kafka 4.1 or newer, with share.version 1 finalized";
                Error::broker(ErrorCode::UNSUPPORTED_VERSION, format!("{detail}: {needs}"))
            }
            error => error,
        }
    }

    fn subscribed(&mut self, _: Option<String>) {
        self.hurry_ms = HURRY_MS;
    }

    fn wait_ms(&mut self, asked_ms: u64, has_partitions: bool) -> u64 {
        let wait = if has_partitions { asked_ms } else { asked_ms.min(self.hurry_ms) };
        self.hurry_ms = self.hurry_ms.saturating_mul(2);
        wait
    }
}

impl ShareMember {
    /// `rack` is `client.rack`.
    pub(super) fn new(rack: String, request_timeout_ms: u64, backoff: Backoff) -> ShareMember {
        EpochMember::of(ShareProtocol { hurry_ms: HURRY_MS }, rack, request_timeout_ms, backoff)
    }
}

#[cfg(test)]
mod tests;
