//! What a leader does about its followers: takes note of how far they are, and has the in-sync set changed.

use headrace_cluster::model::Registration;
use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::FetchRequest;

use super::role::Role;
use crate::auth::{Operation, Resource};
use crate::context::call::Call;
use crate::context::{Change, Context};
use crate::fetch::{FetchItem, is_prefix};
use crate::store::Place;

/// The first version in which a follower names its broker epoch (KIP-903).
const REPLICA_STATE_FROM: i16 = 15;

impl<D: Disk> Context<D> {
    /// The follower that a Fetch request comes from; nothing where it is a consumer's.
    ///
    /// # Errors
    /// It may not act as a broker, or is none that is alive.
    pub(crate) fn follower_of(
        &self,
        call: &Call,
        request: &FetchRequest,
    ) -> Result<Option<Registration>, ErrorCode> {
        if self.cluster.is_none() {
            return Ok(None);
        }
        let (node, epoch) = if call.version >= REPLICA_STATE_FROM {
            (request.replica_state.replica_id, request.replica_state.replica_epoch)
        } else {
            (request.replica_id, -1)
        };
        if node < 0 {
            return Ok(None);
        }
        let from = Registration(node, epoch);
        self.check_broker(call, from)?;
        Ok(Some(from))
    }

    /// Checks that whoever asks may act as a broker, and is another one of the cluster that is alive.
    pub(crate) fn check_broker(&self, call: &Call, from: Registration) -> Result<(), ErrorCode> {
        let cluster = self.cluster.as_ref().ok_or(ErrorCode::INVALID_REQUEST)?;
        if !self.allows(call, Operation::ClusterAction, Resource::Cluster) {
            return Err(ErrorCode::CLUSTER_AUTHORIZATION_FAILED);
        }
        if from.0 == self.config.node_id || !cluster.member.view().is_alive(from) {
            return Err(ErrorCode::STALE_BROKER_EPOCH);
        }
        Ok(())
    }

    /// A follower asks for records of a partition from an offset on: it has what lies before, if its log does not part from
    /// this one earlier.
    pub(crate) fn note_fetched(&mut self, from: Registration, item: &FetchItem) {
        let Some(topic) = self.store.find(&item.topic) else { return };
        let place = (topic.id, item.partition);
        let Ok((partition, epoch)) = self.find_led(topic, item.partition, item.current_leader_epoch) else {
            return;
        };
        // An epoch that is not named cannot be compared.
        let is_replica = self
            .cluster
            .as_ref()
            .and_then(|cluster| cluster.partition(place))
            .is_some_and(|value| value.replicas.contains(&from.0));
        let has_records = is_prefix(&partition.log, item.offset, item.last_fetched_epoch, epoch);
        if item.current_leader_epoch < 0 || !is_replica || !has_records {
            return;
        }
        if item.offset == partition.log.end_offset() {
            self.changes.push_back(Change::CaughtUp { place, follower: from });
        }
        self.note_end(from, place, item.offset, Some(item.log_start));
    }

    /// A follower has taken what was pushed to it in this epoch: its copy ends there.
    pub(crate) fn note_copied(&mut self, from: Registration, place: Place, epoch: i32, end: i64) {
        let topic = self.store.by_id(place.0);
        let led = topic.and_then(|topic| self.find_led(topic, place.1, -1).ok());
        if led.is_some_and(|(_, led)| led == epoch) {
            self.note_end(from, place, end, None);
        }
    }

    /// A follower has all records before an offset, from `start` on, if it says so.
    fn note_end(&mut self, from: Registration, place: Place, offset: i64, start: Option<i64>) {
        let now_ms = self.now.mono_ms;
        let Some(partition) = self.store.partition_mut(place) else { return };
        let end = partition.log.end_offset();
        let Role::Leader(leading) = &mut partition.role else { return };
        leading.fetched(from, offset, end, now_ms);
        if let Some(start) = start {
            leading.begins(from, start);
        }
        let joins = !leading.has_in_sync(from);
        self.advance(place, 0);
        if joins {
            self.propose_isr(place);
        }
    }

    /// Asks for another in-sync set of a partition, where one is wanted.
    pub(crate) fn propose_isr(&mut self, place: Place) {
        let lag_ms = u64::try_from(self.config.replica_lag_time_max_ms).unwrap_or(u64::MAX);
        let now_ms = self.now.mono_ms;
        let Some(partition) = self.store.partition_mut(place) else { return };
        let (Role::Leader(leading), Some(cluster)) = (&mut partition.role, &mut self.cluster) else { return };
        let view = cluster.member.view();
        let end = partition.log.end_offset();
        let Some(wanted) = leading.wanted_isr(end, now_ms, lag_ms, |one| view.is_alive(one)) else { return };
        // Where it may not act at the moment, a later look will ask.
        if let Ok(command) = cluster.member.change_isr(now_ms, place, &wanted) {
            leading.ask(&wanted, command);
            cluster.isr_changes.insert(command, place);
        }
    }

    /// Looks at the in-sync sets of all partitions that this broker leads.
    pub(crate) fn check_in_sync_sets(&mut self) {
        let is_led = |partition: &crate::store::Partition<D>| matches!(partition.role, Role::Leader(_));
        let led = self.store.topics().flat_map(|topic| {
            topic.hosted().filter(move |(_, partition)| is_led(partition)).map(|(index, _)| (topic.id, index))
        });
        for place in led.collect::<Vec<_>>() {
            self.propose_isr(place);
            self.pursue(place);
        }
    }
}
