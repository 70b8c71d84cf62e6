//! Other replicas for a partition, and other leaders that somebody has asked for.
//!
//! Any broker may ask: it writes into the partition what is wanted. The leader does it, once it can.

use super::{CommandId, Member};
use crate::model::{NodeId, PartitionValue, Place, REPLICAS_MAX};

impl Member {
    /// Has a partition get these replicas, in the order of preference; those that it has stay until the new ones are in sync.
    /// Nothing: what is under way is given up, and it gets those that it had.
    ///
    /// # Errors
    /// It may not act; there is no such partition; one is named twice, or is new and not alive.
    pub fn reassign(
        &mut self,
        now_ms: u64,
        place: Place,
        target: Option<&[NodeId]>,
    ) -> Result<CommandId, String> {
        self.now_ms = now_ms;
        let known = self.view.partitions.get(&place).ok_or("there is no such partition")?;
        let value = known.value.reassigned(target);
        let target = target.unwrap_or(&value.target);
        if target.is_empty() || target.len() > REPLICAS_MAX {
            return Err(format!("{} replicas: 1 to {REPLICAS_MAX} are possible", target.len()));
        }
        for (at, id) in target.iter().enumerate() {
            if target.iter().take(at).any(|other| other == id) {
                return Err(format!("broker {id} is named twice"));
            }
            if !known.value.replicas.contains(id) && !self.view.nodes.contains_key(id) {
                return Err(format!("there is no broker {id} that is alive"));
            }
        }
        self.put_partition(place, &value, Vec::new())
    }

    /// Takes the replicas that are to go out of a partition that it leads, once all that are to come are in sync. Where it is
    /// to go itself, hands it over to one that stays, which is to do the rest; nothing is asked for then.
    ///
    /// # Errors
    /// It does not lead the partition; it is not being reassigned; or nobody that stays is in sync yet.
    pub fn finish_reassignment(&mut self, now_ms: u64, place: Place) -> Result<Option<CommandId>, String> {
        self.now_ms = now_ms;
        let value = self.led_value(now_ms, place)?;
        let is_ready = |id: &NodeId| value.isr.iter().any(|one| one.0 == *id && self.view.is_alive(*one));
        if !value.is_reassigned() || !value.adding().iter().all(is_ready) {
            return Err("there is nothing to be finished".to_owned());
        }
        if let Some(done) = value.with_target() {
            return self.put_partition(place, &done, Vec::new()).map(Some);
        }
        let next = value.target.iter().copied().find(|id| self.transfer(now_ms, place, *id).is_ok());
        next.map(|_| None).ok_or_else(|| "none of the replicas that stay is in sync".to_owned())
    }

    /// Has the leader of a partition hand it over to another replica, which is in sync.
    ///
    /// # Errors
    /// It may not act; there is no such partition; or that one is no replica that is in sync and alive.
    pub fn want_leader(&mut self, now_ms: u64, place: Place, wanted: NodeId) -> Result<CommandId, String> {
        self.now_ms = now_ms;
        let known = self.view.partitions.get(&place).ok_or("there is no such partition")?;
        if !known.value.isr.iter().any(|one| one.0 == wanted && self.view.is_alive(*one)) {
            return Err(format!("broker {wanted} is not in sync, or not alive"));
        }
        let value = PartitionValue { wanted: Some(wanted), ..known.value.clone() };
        self.put_partition(place, &value, Vec::new())
    }

    /// Hands a partition that it leads over to the one that somebody has asked for. Where that one cannot lead, or leads
    /// already, takes the wish back, by a command.
    ///
    /// # Errors
    /// It does not lead the partition, or nobody has asked for another leader.
    pub fn fulfil_wish(&mut self, now_ms: u64, place: Place) -> Result<Option<CommandId>, String> {
        self.now_ms = now_ms;
        let value = self.led_value(now_ms, place)?;
        let wanted = value.wanted.ok_or("nobody has asked for another leader")?;
        if self.transfer(now_ms, place, wanted).is_ok() {
            return Ok(None);
        }
        self.put_partition(place, &PartitionValue { wanted: None, ..value }, Vec::new()).map(Some)
    }

    /// Has a partition without a leader be led by the first of its replicas that is alive, whatever that one lacks.
    ///
    /// # Errors
    /// It may not act; there is no such partition; it has a leader; or none of its replicas is alive.
    pub fn elect_unclean(&mut self, now_ms: u64, place: Place) -> Result<CommandId, String> {
        self.now_ms = now_ms;
        let known = self.view.partitions.get(&place).ok_or("there is no such partition")?;
        if known.value.leader.is_some_and(|leader| self.view.is_alive(leader)) {
            return Err("it has a leader".to_owned());
        }
        let in_sync = self.view.candidate(&known.value);
        let first = || known.value.by_completeness().find(|id| self.view.nodes.contains_key(id));
        let next = in_sync.or_else(first).and_then(|id| self.view.registration(id));
        let next = next.ok_or("none of its replicas is alive")?;
        let epoch = known.value.epoch.saturating_add(1);
        let value = PartitionValue {
            leader: Some(next),
            epoch,
            isr: vec![next],
            wanted: None,
            ..known.value.clone()
        };
        self.put_partition(place, &value, vec![next])
    }

    fn led_value(&self, now_ms: u64, place: Place) -> Result<PartitionValue, String> {
        let known = self.view.partitions.get(&place).filter(|_| self.leads(now_ms, place).is_some());
        known.map(|known| known.value.clone()).ok_or_else(|| "it does not lead the partition".to_owned())
    }
}
