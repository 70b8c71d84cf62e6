//! Reading from the nearest copy (KIP-392): a leader sends consumers to the follower in their rack, and followers hand out
//! what they know to be committed.

use headrace_cluster::model::NodeId;
use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;

use crate::context::Context;
use crate::replication::role::Role;
use crate::store::{Partition, Topic};

impl<D: Disk> Context<D> {
    /// Whether consumers of a rack are sent to followers there, if there are any.
    pub(super) fn sends_on(&self, rack: &str) -> bool {
        self.config.is_rack_aware() && self.cluster.is_some() && self.config.broker_rack != rack
    }

    /// The follower in a rack that a consumer reads from at this offset, of a partition that this broker leads.
    pub(super) fn nearest(&self, partition: &Partition<D>, offset: i64, rack: &str) -> Option<NodeId> {
        let (Role::Leader(leading), Some(cluster)) = (&partition.role, &self.cluster) else { return None };
        // What the leader does not have is for the leader to tell.
        if !(partition.log.start_offset()..=partition.log.end_offset()).contains(&offset) {
            return None;
        }
        let view = cluster.member.view();
        leading.nearest(offset, |one| {
            let node = view.nodes.get(&one.0).filter(|_| view.is_alive(one));
            node.is_some_and(|node| node.value.rack.as_deref() == Some(rack))
        })
    }

    /// Finds a partition that this broker leads, or a copy of which consumers may read here, with its leader epoch;
    /// `believed` is as for [`Self::find_led`].
    pub(super) fn find_copy<'a>(
        &'a self,
        topic: &'a Topic<D>,
        index: i32,
        believed: i32,
    ) -> Result<(&'a Partition<D>, i32), ErrorCode> {
        let Some((partition, following)) =
            topic.partition(index).and_then(|partition| match &partition.role {
                Role::Follower(following) => Some((partition, following)),
                Role::Sole | Role::Leader(_) => None,
            })
        else {
            return self.find_led(topic, index, believed);
        };
        let member = self.cluster.as_ref().map(|cluster| &cluster.member);
        let acts = member.is_some_and(|member| member.acts(self.now.mono_ms).is_some());
        if !acts || following.leader.is_none() {
            return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        }
        Self::check_epoch(believed, following.epoch).map(|()| (partition, following.epoch))
    }
}
