//! Who leads a partition whose leader is gone.

use std::collections::{BTreeMap, BTreeSet};

use super::{Member, MemberEvent, Phase, What};
use crate::model::{self, Key, PartitionValue, Place, Registration};
use crate::store::{Answer, Change, Compare, Request};
use crate::view::Changed;

/// Partitions of one transaction: etcd takes 128 operations, and each has a compare and a change.
const PLACES_MAX: usize = 32;
/// An election that came to nothing is tried again after so long, if nothing has changed by then.
pub(super) const ELECTION_RETRY_MS: u64 = 200;
/// A topic's setting: a broker that lacks committed records may lead if nobody else can.
const UNCLEAN: &str = "unclean.leader.election.enable";

/// The elections under way.
#[derive(Debug, Default)]
pub(super) struct Elections {
    /// Until when nothing is done about a partition; nothing: until it is answered.
    waiting: BTreeMap<Place, Option<u64>>,
    /// A transaction with others has failed.
    alone: BTreeSet<Place>,
}

impl Elections {
    pub(super) fn due_ms(&self) -> Option<u64> {
        self.waiting.values().flatten().min().copied()
    }

    /// A partition has changed, so whatever was tried is over.
    pub(super) fn settled(&mut self, place: Place) {
        self.waiting.remove(&place);
        self.alone.remove(&place);
    }
}

impl Member {
    /// Has itself elected where it is the candidate: for these partitions, or for all.
    pub(super) fn elect(&mut self, places: Option<&BTreeSet<Place>>) {
        if self.phase != Phase::Live || self.leaving || self.acts(self.now_ms).is_none() {
            return;
        }
        let all = || self.view.partitions.keys();
        let is_ours =
            |place: &Place| !self.elections.waiting.contains_key(place) && self.is_candidate(*place);
        let ours: Vec<Place> = match places {
            Some(places) => places.iter().copied().filter(is_ours).collect(),
            None => all().copied().filter(is_ours).collect(),
        };
        let (alone, together): (Vec<_>, Vec<_>) =
            ours.into_iter().partition(|place| self.elections.alone.contains(place));
        for places in alone.chunks(1).chain(together.chunks(PLACES_MAX)) {
            self.ask_for_election(places);
        }
    }

    /// Tries again what came to nothing.
    pub(super) fn elect_again(&mut self) {
        let now_ms = self.now_ms;
        let is_due =
            |(place, at): (&Place, &Option<u64>)| at.is_some_and(|at| at <= now_ms).then_some(*place);
        let due: BTreeSet<_> = self.elections.waiting.iter().filter_map(is_due).collect();
        if due.is_empty() {
            return;
        }
        self.elections.waiting.retain(|place, _| !due.contains(place));
        self.elect(Some(&due));
        // Whoever wanted to lead beyond the epochs of a log finds out that it does not yet.
        let led: BTreeSet<_> = due.into_iter().filter(|place| self.leads(now_ms, *place).is_some()).collect();
        if !led.is_empty() {
            self.events.push_back(MemberEvent::Changed(Changed { partitions: led, ..Changed::default() }));
        }
    }

    fn is_candidate(&self, place: Place) -> bool {
        let Some(partition) = self.view.partitions.get(&place) else { return false };
        let value = &partition.value;
        self.view.candidate(value) == Some(self.config.node) || self.is_unclean_candidate(place, value)
    }

    /// Whether nobody of the in-sync set is alive, and it is the first of the replicas that may lead all the same.
    fn is_unclean_candidate(&self, place: Place, value: &PartitionValue) -> bool {
        let nodes = &self.view.nodes;
        if value.isr.iter().any(|one| nodes.contains_key(&one.0)) {
            return false;
        }
        value.by_completeness().find(|id| nodes.contains_key(id)) == Some(self.config.node)
            && self.allows_unclean(place)
    }

    /// Whether a partition's topic allows leaders that lack committed records.
    #[must_use]
    pub fn allows_unclean(&self, place: Place) -> bool {
        let topic = self.view.topic(place.0);
        topic.and_then(|(_, topic)| topic.value.configs.get(UNCLEAN)).is_some_and(|allowed| allowed == "true")
    }

    /// A partition that it is to lead, and whose log knows the epoch `known` or a later one already: the store is older than
    /// the log. It leads by itself, under a later one, where the topic allows leaders that lack records; whether it does.
    pub fn lead_beyond(&mut self, now_ms: u64, place: Place, known: i32) -> bool {
        self.now_ms = now_ms;
        let Some(partition) = self.view.partitions.get(&place) else { return false };
        if self.leads(now_ms, place).is_none() || !self.allows_unclean(place) || known == i32::MAX {
            return false;
        }
        if self.elections.waiting.contains_key(&place) {
            return true;
        }
        let own = self.own_registration();
        let key = Key::Partition(place).text();
        let compares = vec![
            Compare::Created(Key::Node(own.0).text(), own.1),
            Compare::Modified(key.clone(), partition.modified),
        ];
        let value =
            PartitionValue { epoch: known.saturating_add(1), isr: vec![own], ..partition.value.clone() };
        let changes = vec![Change::Put(key, model::encode(&value), None)];
        self.elections.waiting.insert(place, None);
        self.ask(What::Elect(vec![place]), Request::Commit { compares, changes });
        true
    }

    fn ask_for_election(&mut self, places: &[Place]) {
        let own = self.own_registration();
        let mut compares = vec![Compare::Created(Key::Node(own.0).text(), own.1)];
        let mut changes = Vec::new();
        for place in places {
            let Some(partition) = self.view.partitions.get(place) else { continue };
            let key = Key::Partition(*place).text();
            compares.push(Compare::Modified(key.clone(), partition.modified));
            for back in self.all_back(&partition.value) {
                // Partitions have the same few brokers, and there is room for 128 compares.
                if !compares.contains(&back) {
                    compares.push(back);
                }
            }
            let value = self.led_by_us(&partition.value, own);
            changes.push(Change::Put(key, model::encode(&value), None));
            self.elections.waiting.insert(*place, None);
        }
        self.ask(What::Elect(places.to_vec()), Request::Commit { compares, changes });
    }

    /// Where it leads since all are back that could know more: that they still are.
    fn all_back(&self, value: &PartitionValue) -> Vec<Compare> {
        let has_all = |one: &Registration| {
            one.0 == self.config.node
                && (self.view.is_alive(*one)
                    || self.value.as_ref().is_some_and(|value| value.is_intact_since(one.1)))
        };
        if !value.is_in_sync(self.config.node) || value.isr.iter().any(has_all) {
            return Vec::new();
        }
        let nodes = value.isr.iter().filter_map(|one| self.view.registration(one.0));
        nodes.map(|one| Compare::Created(Key::Node(one.0).text(), one.1)).collect()
    }

    /// The in-sync set is who lives, and has been in it since it registered.
    fn led_by_us(&self, value: &PartitionValue, own: Registration) -> PartitionValue {
        let others = value.isr.iter().filter(|one| one.0 != own.0 && self.view.is_alive(**one));
        let others: Vec<_> = others.copied().collect();
        let isr = if value.is_in_sync(own.0) { [vec![own], others].concat() } else { vec![own] };
        let epoch = value.epoch.saturating_add(1);
        PartitionValue { leader: Some(own), epoch, isr, wanted: None, ..value.clone() }
    }

    pub(super) fn answer_election(&mut self, places: &[Place], answer: &Answer) {
        let now_ms = self.now_ms;
        for place in places {
            if let Some(until) = self.elections.waiting.get_mut(place) {
                // What has come of it, the watch brings.
                *until = Some(now_ms.saturating_add(ELECTION_RETRY_MS));
                if places.len() > 1 && !matches!(answer, Answer::Committed { succeeded: true, .. }) {
                    self.elections.alone.insert(*place);
                }
            }
        }
    }
}
