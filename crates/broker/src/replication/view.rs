//! Makes the store as the view of the cluster is: topics, copies, and what this broker is to each.

use std::collections::BTreeSet;

use headrace_cluster::model::{PartitionValue, Registration};
use headrace_cluster::view::Changed;
use headrace_log::Disk;

use super::Replication;
use super::action::{Lane, PeerAction, PeerConn};
use super::fetcher::Fetcher;
use super::role::{Following, Leading, Role};
use crate::context::connections::Due;
use crate::context::waiting::Until;
use crate::context::{Change, Context};
use crate::store::Place;

impl<D: Disk> Replication<D> {
    /// The view has changed.
    pub(super) fn take_view(&mut self, context: &mut Context<D>, changed: &Changed) {
        let mut places = changed.partitions.clone();
        self.take_topics(context, changed, &mut places);
        if !changed.nodes.is_empty() {
            // Who leads and who is copied from may be another's word now.
            places.extend(
                context
                    .store
                    .topics()
                    .flat_map(|topic| topic.hosted().map(|(index, _)| (topic.id, index)).collect::<Vec<_>>()),
            );
            self.drop_fetchers(context, &changed.nodes);
        }
        for place in places {
            self.take_partition(context, place);
        }
        if !changed.nodes.is_empty() {
            // Nobody is to wait for those that are gone.
            context.check_in_sync_sets();
        }
        self.make_more(context);
    }

    /// The broker may not act: it leads nothing.
    pub(super) fn lose_roles(&mut self, context: &mut Context<D>) {
        let places: Vec<Place> = context
            .store
            .topics()
            .flat_map(|topic| topic.hosted().map(|(index, _)| (topic.id, index)).collect::<Vec<_>>())
            .collect();
        for place in places {
            let epoch = match context.store.partition_mut(place).map(|partition| &partition.role) {
                Some(Role::Leader(leading)) => leading.epoch,
                Some(Role::Follower(following)) => following.epoch,
                _ => continue,
            };
            self.follow(context, place, epoch, None);
        }
    }

    /// Has fetchers go whose leaders have gone, or registered anew.
    fn drop_fetchers(&mut self, context: &Context<D>, nodes: &BTreeSet<i32>) {
        let Some(cluster) = &context.cluster else { return };
        let view = cluster.member.view();
        for node in nodes {
            if self.fetchers.get(node).is_some_and(|fetcher| !view.is_alive(fetcher.leader)) {
                self.fetchers.remove(node);
                self.copied_from.retain(|_, from| from != node);
                self.actions
                    .push_back(PeerAction::Close { peer: PeerConn { node: *node, lane: Lane::Fetch } });
            }
        }
        self.pushes.retain(|one| view.is_alive(one));
    }

    pub(super) fn take_partition(&mut self, context: &mut Context<D>, place: Place) {
        let Some(cluster) = &context.cluster else { return };
        let Some(value) = cluster.partition(place).cloned() else { return };
        // It is looked at again when its topic comes.
        let Some(topic) = context.store.by_id(place.0) else { return };
        let is_to_be_here = value.replicas.contains(&context.config.node_id);
        let is_here = topic.partition(place.1).is_some();
        let fits = place.1 < topic.partition_count();
        self.placing.forget(place);
        match (is_here, is_to_be_here) {
            (true, true) => self.take_role(context, place, &value),
            (true, false) => {
                self.follow(context, place, value.epoch, None);
                self.troubles.remove(&place);
                self.placing.leave(context, place, !self.has_seen, value.epoch);
            }
            (false, true) if fits => self.placing.make(place),
            (false, _) => {}
        }
    }

    /// Has what is left be done in a turn of its own.
    pub(super) fn make_more(&self, context: &mut Context<D>) {
        if self.placing.is_due(context.now.mono_ms) || !self.removing.is_empty() {
            context.connections.due.push_back(Due::Copies);
        }
    }

    /// Makes some of the logs that are missing, and removes some that are to be elsewhere, or of topics that are gone.
    pub(crate) fn step(&mut self, context: &mut Context<D>) {
        if self.placing.is_due(context.now.mono_ms) {
            for place in self.placing.make_some(context) {
                self.take_partition(context, place);
            }
            self.placing.drop_some(context);
        }
        self.remove_some(context);
        self.make_more(context);
        self.fetch_all(context);
    }

    fn take_role(&mut self, context: &mut Context<D>, place: Place, value: &PartitionValue) {
        let now_ms = context.now.mono_ms;
        let Some(cluster) = &context.cluster else { return };
        let view = cluster.member.view();
        let modified = view.partitions.get(&place).map_or(0, |known| known.modified);
        let leads = cluster.member.leads(now_ms, place);
        let leader =
            value.leader.filter(|leader| view.is_alive(*leader) && leader.0 != context.config.node_id);
        let Some(partition) = context.store.partition_mut(place) else { return };
        let latest = partition.log.latest_epoch().unwrap_or(-1);
        let Some(epoch) = leads else {
            // What its leader does not have would be cut off.
            let is_older =
                latest > value.epoch && self.is_refused(context, place, (value.epoch, latest), false);
            return self.follow(context, place, value.epoch, leader.filter(|_| !is_older));
        };
        if let Role::Leader(leading) = &mut partition.role
            && leading.epoch == epoch
        {
            let before = leading.in_sync();
            leading.update(value, modified);
            let after = leading.in_sync();
            context.counts.isr_shrinks += u64::from(after < before);
            context.counts.isr_expands += u64::from(after > before);
            context.advance(place, 0);
            return context.pursue(place);
        }
        if latest >= epoch {
            self.is_refused(context, place, (epoch, latest), true);
            return self.follow(context, place, value.epoch, None);
        }
        if matches!(&partition.role, Role::Follower(following) if following.is_pushed) {
            context.changes.push_back(Change::LeaderChanged { place, watchers: Vec::new() });
        }
        let ends = (partition.high_watermark(), partition.log.end_offset());
        let leading = Leading::new(context.config.node_id, epoch, (value, modified), ends, now_ms);
        partition.role = Role::Leader(Box::new(leading));
        let watchers = std::mem::take(&mut partition.watchers);
        context.changes.push_back(Change::RoleChanged { place, watchers });
        self.pushes.end(place);
        self.copy_from(context, place, None);
        context.pursue(place);
    }

    /// The log knows an epoch that is to begin only now: the store is older than the log. Other records may have been written
    /// under it, elsewhere, which epochs would not tell from these. Whether this broker leaves its log as it is; where the
    /// topic allows unclean leaders, it leads with it, or has it cut to what the leader has.
    fn is_refused(
        &mut self,
        context: &mut Context<D>,
        place: Place,
        (epoch, latest): (i32, i32),
        leads: bool,
    ) -> bool {
        let now_ms = context.now.mono_ms;
        let Some(cluster) = &mut context.cluster else { return true };
        let goes_on = if leads {
            cluster.member.lead_beyond(now_ms, place, latest)
        } else {
            cluster.member.allows_unclean(place)
        };
        let then = match (leads, goes_on) {
            (true, true) => {
                "As unclean.leader.election.enable is set, this broker leads with the records that it has"
            }
            (false, true) => {
                "As unclean.leader.election.enable is set, what the leader does not have is cut off"
            }
            (true, false) => {
                "This broker does not lead the partition; unclean.leader.election.enable of the topic lets it, with the \
                 records that it has"
            }
            (false, false) => {
                "This broker keeps its log as it is, and copies nothing; unclean.leader.election.enable of the topic \
                 has it cut to what the leader has"
            }
        };
        let topic = context.store.by_id(place.0).map(|topic| topic.name.clone()).unwrap_or_default();
        let why = format!(
            "{topic}-{}: the metadata store has the leader epoch {epoch}, and the log has {latest}; was the store \
             restored from a backup? {then}",
            place.1
        );
        self.say(context, place, Some(why));
        !goes_on
    }

    /// This broker does not lead a partition, and copies whoever does.
    fn follow(&mut self, context: &mut Context<D>, place: Place, epoch: i32, leader: Option<Registration>) {
        let Some(partition) = context.store.partition_mut(place) else { return };
        let high_watermark = partition.high_watermark();
        let mut following = Following::new(epoch, leader.map(|leader| leader.0), high_watermark);
        if let Role::Follower(before) = &partition.role {
            if (before.epoch, before.leader) == (following.epoch, following.leader) {
                following = *before;
            } else if before.is_pushed || !partition.watchers.is_empty() {
                // Whoever pushed in another epoch does so no more, and what it has under way comes too late. Consumers that
                // wait here learn of the epoch.
                let watchers = std::mem::take(&mut partition.watchers);
                context.changes.push_back(Change::LeaderChanged { place, watchers });
            }
        }
        let before = std::mem::replace(&mut partition.role, Role::Follower(following));
        self.pushes.end(place);
        if matches!(before, Role::Leader(_)) {
            let mut watchers = std::mem::take(&mut partition.watchers);
            watchers.append(&mut partition.followers);
            let failure = context.failure_of_lost(place);
            context.unacknowledged.fail(&mut context.connections, (place, Until::Committed), failure);
            context.changes.push_back(Change::RoleChanged { place, watchers });
        }
        self.copy_from(context, place, leader);
    }

    /// Has a partition be copied from this leader, and from nobody else.
    fn copy_from(&mut self, context: &Context<D>, place: Place, leader: Option<Registration>) {
        let before = self.copied_from.get(&place).copied();
        if before != leader.map(|leader| leader.0)
            && let Some(fetcher) = before.and_then(|node| self.fetchers.get_mut(&node))
        {
            fetcher.forget(place);
        }
        let at = leader.and_then(|leader| Some((leader, context.endpoint(leader.0)?)));
        let Some((leader, at)) = at else {
            self.copied_from.remove(&place);
            return;
        };
        self.copied_from.insert(place, leader.0);
        let fetcher = self.fetchers.entry(leader.0).or_insert_with(|| Fetcher::new(leader, at));
        // One that is to wait goes on waiting.
        fetcher.places.entry(place).or_insert(0);
    }
}
