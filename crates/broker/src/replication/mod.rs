//! Copies of partitions on several brokers (docs/cluster.md): what this broker is to each, what it fetches from leaders, and
//! how far its own followers are.
//!
//! The view of the cluster says who leads a partition; [`Replication`] makes the store as the view is. It owns the requests to
//! other brokers. What a leader knows of its followers is in the partition's [`Role`].

mod action;
pub(crate) mod assign;
mod fetcher;
mod following;
mod leading;
mod placing;
mod preferred;
mod push;
mod pusher;
mod reassign;
pub(crate) mod role;
mod throttle;
mod topics;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use headrace_cluster::MemberEvent;
use headrace_cluster::model::{NodeId, Registration};
use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;
use headrace_wire::primitive::Records;

use crate::context::Context;
use crate::store::{Place, Removing};
use fetcher::{Asked, Fetched, Fetcher, Wish};
use placing::Placing;
use push::Pushes;
use throttle::Throttle;

pub use action::{ClusterEvent, Lane, PeerAction, PeerConn, PushAction, PushEvent, PushWrite};
pub use pusher::PUSH_RING_BYTES_MAX;

/// Copies of partitions, and the brokers that they are copied from.
pub(crate) struct Replication<D: Disk> {
    fetchers: BTreeMap<NodeId, Fetcher>,
    pub(crate) pushes: Pushes,
    /// Whom each partition is copied from.
    copied_from: BTreeMap<Place, NodeId>,
    placing: Placing,
    /// Topics that are gone, and whose directories are being removed.
    removing: Vec<Removing<D>>,
    /// Topics that come once an earlier one of their name is removed.
    postponed: BTreeSet<String>,
    /// It may act: otherwise nothing is pushed, however long it is due.
    acts: bool,
    /// It has seen the cluster since the broker was started.
    has_seen: bool,
    actions: VecDeque<PeerAction>,
    events: VecDeque<ClusterEvent>,
    check_due: Option<u64>,
    balance_due: Option<u64>,
    /// Of the copies that this broker is being given.
    throttle: Throttle,
    /// What is wrong with a copy, as it was said last.
    troubles: BTreeMap<Place, String>,
}

impl<D: Disk> Replication<D> {
    pub(crate) fn new() -> Self {
        Self {
            fetchers: BTreeMap::new(),
            pushes: Pushes::default(),
            copied_from: BTreeMap::new(),
            placing: Placing::default(),
            removing: Vec::new(),
            postponed: BTreeSet::new(),
            acts: false,
            has_seen: false,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            check_due: None,
            balance_due: None,
            throttle: Throttle::default(),
            troubles: BTreeMap::new(),
        }
    }

    pub(crate) fn poll_action(&mut self) -> Option<PeerAction> {
        self.actions.pop_front().or_else(|| self.pushes.poll_connection())
    }

    pub(crate) fn poll_event(&mut self) -> Option<ClusterEvent> {
        self.events.pop_front()
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub(crate) fn deadline(&self, now_ms: u64) -> Option<u64> {
        let fetchers = self.fetchers.values().filter_map(|fetcher| fetcher.due(now_ms));
        let pushes = self.pushes.deadline().filter(|_| self.acts);
        fetchers.chain(pushes).chain(self.check_due).chain(self.balance_due).chain(self.placing.due()).min()
    }

    /// Time has passed: asks leaders, and looks at in-sync sets.
    pub(crate) fn handle_timeout(&mut self, context: &mut Context<D>) {
        let now_ms = context.now.mono_ms;
        let Some(cluster) = &mut context.cluster else { return };
        cluster.member.handle_timeout(now_ms);
        if self.check_due.is_some_and(|at| at <= now_ms) {
            context.check_in_sync_sets();
            self.arm_check(context);
        }
        if self.balance_due.is_some_and(|at| at <= now_ms) {
            self.balance_due = preferred::hand_over(context);
        }
        if self.placing.due().is_some_and(|at| at <= now_ms) {
            self.make_more(context);
        }
        self.fetch_all(context);
        self.pushes.handle_timeout(context);
    }

    /// In-sync sets are looked at twice in the time after which a follower is too late.
    fn arm_check(&mut self, context: &Context<D>) {
        let lag_ms = u64::try_from(context.config.replica_lag_time_max_ms).unwrap_or(u64::MAX);
        self.check_due = Some(context.now.mono_ms.saturating_add((lag_ms / 2).max(1)));
    }

    /// Takes in what has become of the membership; whether there was anything.
    pub(crate) fn follow_member(&mut self, context: &mut Context<D>) -> bool {
        let mut any = false;
        while let Some(event) = context.cluster.as_mut().and_then(|cluster| cluster.member.poll_event()) {
            any = true;
            match event {
                MemberEvent::Registered(_, epoch) => {
                    self.acts = true;
                    context.set_broker_epoch(epoch);
                }
                MemberEvent::Identified(_) => {}
                MemberEvent::Waits(other) => {
                    self.events.push_back(ClusterEvent::Waits(format!("{}:{}", other.host, other.port)));
                }
                MemberEvent::Changed(changed) => {
                    context.note_seen(&changed);
                    self.take_view(context, &changed);
                    if !std::mem::replace(&mut self.has_seen, true) {
                        self.events.push_back(ClusterEvent::Joined);
                        self.arm_check(context);
                        self.balance_due = preferred::next_look(context);
                    }
                }
                MemberEvent::Lost(why) => {
                    self.acts = false;
                    self.lose_roles(context);
                    self.events.push_back(ClusterEvent::Lost(why));
                }
                MemberEvent::Done(id, result) => {
                    let Some(cluster) = &mut context.cluster else { continue };
                    if let Some(place) = cluster.isr_changes.remove(&id) {
                        if let Some(partition) = context.store.partition_mut(place)
                            && let role::Role::Leader(leading) = &mut partition.role
                            && result.is_err()
                        {
                            leading.ask_again(id);
                        }
                    } else {
                        let error =
                            if result.is_ok() { ErrorCode::NONE } else { ErrorCode::REQUEST_TIMED_OUT };
                        cluster.end_command(id, result);
                        context.unacknowledged.end_command(&mut context.connections, id, error);
                    }
                }
                MemberEvent::Left => self.events.push_back(ClusterEvent::Left),
                MemberEvent::Refused(refusal) => {
                    self.lose_roles(context);
                    self.events.push_back(ClusterEvent::Refused(refusal));
                }
            }
        }
        if any {
            self.fetch_all(context);
        }
        any
    }

    // ---- the brokers that are copied from

    pub(crate) fn peer_connected(&mut self, context: &mut Context<D>, PeerConn { node, lane }: PeerConn) {
        if lane == Lane::Push {
            return self.pushes.connected(context, node);
        }
        if let Some(fetcher) = self.fetchers.get_mut(&node) {
            fetcher.opened();
            self.fetch_from(context, node);
        }
    }

    pub(crate) fn peer_closed(&mut self, context: &Context<D>, PeerConn { node, lane }: PeerConn) {
        if lane == Lane::Push {
            return self.pushes.closed(context, node);
        }
        if let Some(fetcher) = self.fetchers.get_mut(&node) {
            fetcher.closed(context.now.mono_ms);
        }
    }

    /// A broker has answered. A leader's records are taken over, and it is asked for more.
    pub(crate) fn peer_answered(
        &mut self,
        context: &mut Context<D>,
        PeerConn { node, lane }: PeerConn,
        answer: Bytes,
    ) {
        if lane == Lane::Push {
            return self.pushes.answered(context, node, answer);
        }
        let Some(fetcher) = self.fetchers.get_mut(&node) else { return };
        match fetcher.answered(answer, context.now.mono_ms) {
            Ok(fetched) => {
                let may_cut = context.prepare_cuts(&fetched);
                for one in fetched {
                    match context.take_over(&one, may_cut) {
                        Ok(()) => {
                            self.troubles.remove(&one.place);
                            if let Some(fetcher) = self.fetchers.get_mut(&node) {
                                fetcher.agreed(one.place);
                            }
                            self.throttle(context, &one);
                        }
                        Err(None) => {
                            if let Some(fetcher) = self.fetchers.get_mut(&node) {
                                fetcher.refused(one.place, context.now.mono_ms);
                            }
                        }
                        Err(why) => {
                            self.failed(context, one.place);
                            self.say(context, one.place, why);
                        }
                    }
                }
            }
            Err(why) => {
                context.store.note_trouble(&format!("the copies of broker {node}: {why}"));
                fetcher.closed(context.now.mono_ms);
                self.actions.push_back(PeerAction::Close { peer: PeerConn { node, lane } });
            }
        }
        self.fetch_from(context, node);
    }

    /// Has the operator know of a trouble with a copy, once for as long as it lasts.
    pub(super) fn say(&mut self, context: &mut Context<D>, place: Place, why: Option<String>) {
        if let Some(why) = why
            && self.troubles.get(&place) != Some(&why)
        {
            context.store.note_trouble(&why);
            self.troubles.insert(place, why);
        }
    }

    fn failed(&mut self, context: &Context<D>, place: Place) {
        let fetcher = self.copied_from.get(&place).and_then(|node| self.fetchers.get_mut(node));
        if let Some(fetcher) = fetcher {
            fetcher.failed(place, context.now.mono_ms);
        }
    }

    /// Has a copy that this broker is being given wait, where it comes faster than it may.
    fn throttle(&mut self, context: &Context<D>, one: &Fetched) {
        let now_ms = context.now.mono_ms;
        let rate = u64::try_from(context.config.follower_replication_throttled_rate).unwrap_or(u64::MAX);
        let bytes = one.data.records.as_ref().map_or(0, Records::len);
        let value = context.cluster.as_ref().and_then(|cluster| cluster.partition(one.place));
        let is_new = value.is_some_and(|value| value.adding().contains(&context.config.node_id));
        if !is_new || bytes == 0 {
            return;
        }
        let until = self.throttle.take(bytes as u64, rate, now_ms);
        if let Some(fetcher) = self.copied_from.get(&one.place).and_then(|node| self.fetchers.get_mut(node)) {
            fetcher.pause_until(one.place, until);
        }
    }

    /// Nobody pushes into these copies any more: their leaders are asked again, for all of them at once, as a request
    /// that waits for records of one would hold up the others.
    pub(crate) fn fetch_again(&mut self, context: &mut Context<D>, places: &[Place]) {
        for place in places {
            if let Some(partition) = context.store.partition_mut(*place)
                && let role::Role::Follower(following) = &mut partition.role
            {
                following.is_pushed = false;
            }
        }
        let nodes: BTreeSet<_> =
            places.iter().filter_map(|place| self.copied_from.get(place).copied()).collect();
        for node in nodes {
            self.fetch_from(context, node);
        }
    }

    fn fetch_all(&mut self, context: &mut Context<D>) {
        for node in self.fetchers.keys().copied().collect::<Vec<_>>() {
            self.fetch_from(context, node);
        }
    }

    fn fetch_from(&mut self, context: &mut Context<D>, node: NodeId) {
        let now_ms = context.now.mono_ms;
        let Some(epoch) = context.cluster.as_ref().and_then(|cluster| cluster.member.acts(now_ms)) else {
            return;
        };
        let own = Registration(context.config.node_id, epoch);
        let Some(fetcher) = self.fetchers.get_mut(&node) else { return };
        let Context { store, config, .. } = &mut *context;
        let look = |(topic, index): Place| -> Option<Asked> {
            let partition = store.by_id(topic)?.partition(index)?;
            let role::Role::Follower(following) = &partition.role else { return None };
            if following.is_pushed {
                return None;
            }
            let log = &partition.log;
            Some(Asked {
                epoch: following.epoch,
                end: log.end_offset(),
                start: log.start_offset(),
                last_epoch: log.latest_epoch().unwrap_or(-1),
                agrees: following.agrees,
            })
        };
        let peer = PeerConn { node, lane: Lane::Fetch };
        while let Some(wish) = fetcher.next(own, config, now_ms, look) {
            self.actions.push_back(match wish {
                Wish::Connect(at) => PeerAction::Connect { peer, host: at.host, port: at.port },
                Wish::Send(frame) => PeerAction::Send { peer, frame },
                Wish::Close => PeerAction::Close { peer },
            });
        }
    }
}
