//! Which broker leads which partition of the assignment, and what follows when that changes.

use std::collections::{BTreeMap, BTreeSet};

use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use super::{Kind, ShareEngine};
use crate::partition::TopicPartition;
use crate::share::session::Parts;
use crate::share::shelf::lock;
use crate::share::types::ShareEvent;

impl ShareEngine {
    /// These are the partitions now.
    pub(super) fn assign(&mut self, partitions: Vec<(TopicPartition, Uuid)>) {
        let assigned: BTreeMap<TopicPartition, Uuid> = partitions.into_iter().collect();
        if assigned == self.assigned {
            return;
        }
        let mut shelf = lock(&self.shelf);
        for (partition, id) in &assigned {
            // Made anew: nobody knows of what the topic before had given.
            if self.ids.insert(partition.clone(), *id).is_some_and(|before| before != *id) {
                for node in shelf.givers(partition) {
                    shelf.leader_moved(partition, node);
                }
            }
        }
        drop(shelf);
        self.assigned = assigned;
        self.led_for = None;
        let names = self.assigned.keys().cloned().collect();
        self.events.push_back(ShareEvent::Assigned(names));
    }

    /// Looks the leaders up, where anything may have changed.
    pub(super) fn lead(&mut self, now: Now) {
        let generation = self.core.cluster().generation();
        if self.led_for != Some(generation) {
            self.led_for = Some(generation);
            self.look_up(now);
        }
    }

    fn look_up(&mut self, now: Now) {
        let topics: BTreeSet<&str> = self.assigned.keys().map(|partition| &*partition.topic).collect();
        self.core.want_topics(now, topics);
        let mut led: BTreeMap<i32, Parts> = BTreeMap::new();
        let (mut nodes, mut missing) = (Vec::new(), false);
        for (partition, id) in &self.assigned {
            let cluster = self.core.cluster();
            let known = cluster.topic_id(&partition.topic) == Some(*id);
            match cluster.leader(&partition.topic, partition.partition).filter(|_| known) {
                Some((node, _)) => {
                    nodes.push((partition.clone(), node));
                    led.entry(node).or_default().insert((*id, partition.partition), partition.clone());
                }
                None => missing = true,
            }
        }
        let mut shelf = lock(&self.shelf);
        for (partition, leader) in &nodes {
            // A new leader knows of no locks.
            for node in shelf.givers(partition).into_iter().filter(|node| node != leader) {
                shelf.leader_moved(partition, node);
            }
        }
        shelf.set_nodes(nodes);
        let assigned = &self.assigned;
        self.ids
            .retain(|partition, _| assigned.contains_key(partition) || !shelf.givers(partition).is_empty());
        drop(shelf);
        let keys: BTreeSet<_> = led.values().flat_map(|parts| parts.keys().copied()).collect();
        self.watches.retain(|key| keys.contains(key));
        self.scheduler.set_brokers(led.keys().copied());
        self.led = led;
        if missing {
            self.core.refresh(now);
        }
    }

    /// Closes the sessions of brokers that lead none of the partitions, once nothing of them is held.
    pub(super) fn retire(&mut self, now: Now) {
        if self.closing.is_some() {
            return;
        }
        let idle = |node: &i32| !self.led.contains_key(node);
        let nodes: Vec<i32> = self.nodes.keys().copied().filter(idle).collect();
        let shelf = self.shelf.clone();
        let mut shelf = lock(&shelf);
        for node in nodes {
            let Some(it) = self.nodes.get(&node).filter(|it| it.request.is_none()) else { continue };
            if !shelf.holds_none_of(node) {
                continue;
            }
            if it.session.is_new() {
                self.nodes.remove(&node);
            } else {
                self.acknowledge(now, &mut shelf, node, Kind::Last);
            }
        }
    }
}
