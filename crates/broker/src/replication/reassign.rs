//! What a leader does that somebody has asked for: other replicas for its partition, or another leader.

use headrace_log::Disk;

use super::role::Role;
use crate::context::Context;
use crate::store::Place;

impl<D: Disk> Context<D> {
    /// Does what a partition says that this broker leads, if it can be done by now. It is looked at again with each change of
    /// the partition, and with each look at in-sync sets.
    pub(super) fn pursue(&mut self, place: Place) {
        let now_ms = self.now.mono_ms;
        let Self { cluster: Some(cluster), store, .. } = self else { return };
        let Some(value) = cluster.partition(place) else { return };
        let (is_wanted, is_reassigned) = (value.wanted.is_some(), value.is_reassigned());
        let Some(Role::Leader(leading)) = store.partition_mut(place).map(|partition| &mut partition.role)
        else {
            return;
        };
        if leading.is_changing() {
            return;
        }
        let asked = if is_wanted {
            cluster.member.fulfil_wish(now_ms, place)
        } else if is_reassigned {
            cluster.member.finish_reassignment(now_ms, place)
        } else {
            return;
        };
        if let Ok(Some(command)) = asked {
            leading.await_change(command);
            cluster.isr_changes.insert(command, place);
        }
    }
}
