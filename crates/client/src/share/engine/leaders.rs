//! Which broker leads which partition of the assignment, and what follows when that changes.

use std::collections::{BTreeMap, BTreeSet};

use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use crate::core::Core;
use crate::partition::TopicPartition;
use crate::share::acquired_buffer::{AcquiredBuffer, SharedAcquiredBuffer, lock};
use crate::share::scheduler::Scheduler;
use crate::share::session::Parts;
use crate::share::watch::Watches;

/// Which partitions there are, and who leads them.
#[derive(Debug, Default)]
pub(super) struct Leaders {
    /// Partitions of the assignment, and the ids of their topics; those of which something is held as well.
    pub(super) ids: BTreeMap<TopicPartition, Uuid>,
    assigned: BTreeMap<TopicPartition, Uuid>,
    /// The partitions of the assignment by leader.
    pub(super) led: BTreeMap<i32, Parts>,
    /// The cluster's generation for which the leaders were looked up; `None`: not for this assignment.
    led_for: Option<u64>,
}

impl Leaders {
    /// These are the partitions now. False when they are no others than before.
    pub(super) fn assign(
        &mut self,
        buffer: &mut AcquiredBuffer,
        partitions: Vec<(TopicPartition, Uuid)>,
    ) -> bool {
        let assigned: BTreeMap<TopicPartition, Uuid> = partitions.into_iter().collect();
        if assigned == self.assigned {
            return false;
        }
        for (partition, id) in &assigned {
            // Made anew: nobody knows of what the topic before had given.
            if self.ids.insert(partition.clone(), *id).is_some_and(|before| before != *id) {
                for node in buffer.givers(partition) {
                    buffer.leader_moved(partition, node);
                }
            }
        }
        self.assigned = assigned;
        self.led_for = None;
        true
    }

    /// The partitions of the assignment.
    pub(super) fn assigned(&self) -> Vec<TopicPartition> {
        self.assigned.keys().cloned().collect()
    }

    /// Looks the leaders up, where anything may have changed.
    pub(super) fn look_up<T>(
        &mut self,
        now: Now,
        core: &mut Core<T>,
        buffer: &SharedAcquiredBuffer,
        watches: &mut Watches,
        scheduler: &mut Scheduler,
    ) {
        let generation = core.cluster().generation();
        if self.led_for.replace(generation) == Some(generation) {
            return;
        }
        let topics: BTreeSet<&str> = self.assigned.keys().map(|partition| &*partition.topic).collect();
        core.want_topics(now, topics);
        let mut led: BTreeMap<i32, Parts> = BTreeMap::new();
        let (mut nodes, mut missing) = (Vec::new(), false);
        for (partition, id) in &self.assigned {
            let cluster = core.cluster();
            let known = cluster.topic_id(&partition.topic) == Some(*id);
            match cluster.leader(&partition.topic, partition.partition).filter(|_| known) {
                Some((node, _)) => {
                    nodes.push((partition.clone(), node));
                    led.entry(node).or_default().insert((*id, partition.partition), partition.clone());
                }
                None => missing = true,
            }
        }
        let mut buffer = lock(buffer);
        for (partition, leader) in &nodes {
            // A new leader knows of no locks.
            for node in buffer.givers(partition).into_iter().filter(|node| node != leader) {
                buffer.leader_moved(partition, node);
            }
        }
        buffer.set_nodes(nodes);
        let assigned = &self.assigned;
        self.ids
            .retain(|partition, _| assigned.contains_key(partition) || !buffer.givers(partition).is_empty());
        drop(buffer);
        let keys: BTreeSet<_> = led.values().flat_map(|parts| parts.keys().copied()).collect();
        watches.retain(|key| keys.contains(key));
        scheduler.set_brokers(led.keys().copied());
        self.led = led;
        if missing {
            core.refresh(now);
        }
    }
}
