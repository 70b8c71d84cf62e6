//! Which groups this broker coordinates: in a cluster those whose partition of `__consumer_offsets` it leads. It reads them from
//! that partition's log when it begins to lead, and forgets them when it ends.

use std::collections::BTreeSet;

use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{JoinGroupRequest, SyncGroupRequest};

use super::exchange::{Joined, Synced};
use super::journal::partition_of;
use super::membership::{join_response, sync_response};
use super::{Groups, Waiting};
use crate::context::Context;
use crate::context::cluster::Endpoint;
use crate::store::{OFFSETS_TOPIC, Place};

impl Groups {
    /// Whether this broker coordinates a group.
    pub(super) fn check_coordinator<D: Disk>(context: &Context<D>, group: &str) -> Result<(), ErrorCode> {
        if context.cluster.is_none() {
            return Ok(());
        }
        let lacks = ErrorCode::NOT_COORDINATOR;
        let topic = context.store.by_name(OFFSETS_TOPIC).ok_or(lacks)?;
        let index = partition_of(group, topic.partition_count());
        context.find_led(topic, index, -1).map(drop).map_err(|_| lacks)
    }

    /// The broker that coordinates a group, where one does.
    pub(super) fn coordinator_of<D: Disk>(context: &mut Context<D>, group: &str) -> Option<(i32, Endpoint)> {
        if context.cluster.is_none() {
            return Some((context.config.node_id, context.own_endpoint()));
        }
        crate::api::making::ensure_offsets_topic(context).ok()?;
        let topic = context.store.by_name(OFFSETS_TOPIC)?;
        let index = partition_of(group, topic.partition_count());
        let state = context.state_of((topic.id, index));
        Some((state.leader, context.endpoint(state.leader)?))
    }

    /// What this broker is to a partition has changed.
    pub(crate) fn take_role<D: Disk>(&mut self, context: &mut Context<D>, (topic, index): Place) {
        let Some(topic) = context.store.by_id(topic).filter(|topic| &*topic.name == OFFSETS_TOPIC) else {
            return;
        };
        let count = topic.partition_count();
        let leads = context.find_led(topic, index, -1).is_ok();
        if leads && self.led.insert(index) {
            let before: BTreeSet<_> = self.entries.keys().cloned().collect();
            match self.load_partition(context, index) {
                Ok(skipped) => skipped.report(context, index),
                Err(error) => context.store.note_trouble(&format!("groups cannot be read: {error}")),
            }
            let ids: Vec<_> = self.entries.keys().filter(|id| !before.contains(*id)).cloned().collect();
            for id in ids {
                self.measure(&id);
                self.arm(&id);
            }
        } else if !leads && self.led.remove(&index) {
            self.resign(context, index, count);
        }
    }

    /// Forgets the groups of a partition. Members that wait look for the new coordinator.
    fn resign<D: Disk>(&mut self, context: &mut Context<D>, index: i32, count: i32) {
        let ids: Vec<_> =
            self.entries.keys().filter(|id| partition_of(id, count) == index).cloned().collect();
        for id in ids {
            self.remove(&id);
        }
        let of = |waiting: &Waiting| partition_of(&waiting.group, count) == index;
        let tokens: Vec<_> =
            self.waiting.iter().filter(|(_, one)| of(one)).map(|(token, _)| *token).collect();
        for token in tokens {
            let Some(Waiting { call, joins, .. }) = self.waiting.remove(&token) else { continue };
            let error = ErrorCode::NOT_COORDINATOR;
            if joins {
                let response = join_response(call.version, Joined::error("", error));
                context.reply::<JoinGroupRequest>(&call, &response);
            } else {
                context.reply::<SyncGroupRequest>(&call, &sync_response(Synced::error(error)));
            }
        }
        self.journal.forget(index);
    }
}
