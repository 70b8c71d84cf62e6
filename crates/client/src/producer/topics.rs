//! Topics as a producer knows them: their partitions with leaders and waiting batches, and errors about them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::batch::{PartitionKey, Slot};
use super::partitioner::{PartitionLoad, Sticky, pick};
use super::queue::Stand;
use crate::error::Error;
use crate::time::Jitter;
use foldhash::{HashMap, HashMapExt as _};

/// Most topics that one producer keeps; a caller that names more gets an error.
pub(super) const TOPICS_MAX: usize = 100_000;

#[derive(Debug)]
pub(super) enum TopicState {
    /// No broker has answered about it yet.
    Unknown,
    Ready,
    /// Cannot be written: not authorized, an impossible name.
    Refused(Error),
}

#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: Arc<str>,
    pub(super) state: TopicState,
    /// What the brokers last said against it; it may pass.
    pub(super) trouble: Option<Error>,
    /// How many partitions the topic has.
    pub(super) count: u32,
    /// At least `count`: a partition is never taken out, since batches name it by its place.
    partitions: Vec<Partition>,
    sticky: Sticky,
}

#[derive(Debug, Default)]
pub(super) struct Partition {
    pub(super) leader: Option<i32>,
    pub(super) slots: VecDeque<Slot>,
    /// What the accumulator's queue has of it.
    pub(super) stand: Stand,
}

/// All topics that callers have named, by the place in which they came.
#[derive(Debug)]
pub(super) struct Topics {
    all: Vec<Topic>,
    places: HashMap<Arc<str>, u32>,
    /// Those that the engine has not heard of yet.
    wanted: Vec<Arc<str>>,
    jitter: Jitter,
    /// Whether partitions with longer queues are chosen less often.
    adaptive: bool,
    /// Brokers that are left out, while any other is left.
    stalled: BTreeSet<i32>,
    /// A partition has got another leader, or none.
    moved: bool,
}

impl Topics {
    /// None. The same `seed` gives the same choice of sticky partitions.
    pub(super) fn new(seed: u64, adaptive: bool) -> Self {
        Self {
            all: Vec::new(),
            places: HashMap::new(),
            wanted: Vec::new(),
            jitter: Jitter::new(seed),
            adaptive,
            stalled: BTreeSet::new(),
            moved: false,
        }
    }

    /// Whether leaders have changed since the last call.
    pub(super) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// How many partitions each leads; `None` is among them if some have no leader.
    pub(super) fn leaders(&self) -> BTreeMap<Option<i32>, usize> {
        let mut leaders = BTreeMap::new();
        for partition in self.all.iter().flat_map(|topic| topic.partitions.iter().take(topic.count as usize))
        {
            *leaders.entry(partition.leader).or_default() += 1;
        }
        leaders
    }

    pub(super) fn set_stalled(&mut self, nodes: BTreeSet<i32>) {
        self.stalled = nodes;
    }

    pub(super) fn place(&self, name: &str) -> Option<u32> {
        self.places.get(name).copied()
    }

    /// The place of a topic that is not known yet, and that the engine will ask for; `None`: there are too many.
    pub(super) fn add(&mut self, name: &str) -> Option<u32> {
        if self.all.len() >= TOPICS_MAX {
            return None;
        }
        let place = u32::try_from(self.all.len()).ok()?;
        let name: Arc<str> = Arc::from(name);
        self.places.insert(name.clone(), place);
        self.wanted.push(name.clone());
        self.all.push(Topic {
            name,
            state: TopicState::Unknown,
            trouble: None,
            count: 0,
            partitions: Vec::new(),
            sticky: Sticky::default(),
        });
        Some(place)
    }

    /// Topics that were added since the last call.
    pub(super) fn take_wanted(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.wanted)
    }

    pub(super) fn get(&self, topic: u32) -> &Topic {
        &self.all[topic as usize]
    }

    pub(super) fn partition(&self, key: PartitionKey) -> &Partition {
        &self.all[key.topic as usize].partitions[key.partition as usize]
    }

    pub(super) fn partition_mut(&mut self, key: PartitionKey) -> &mut Partition {
        &mut self.all[key.topic as usize].partitions[key.partition as usize]
    }

    pub(super) fn names(&self) -> impl Iterator<Item = (u32, &Arc<str>)> {
        (0..).zip(self.all.iter().map(|topic| &topic.name))
    }

    /// Topics whose metadata is not known yet.
    pub(super) fn unknown(&self) -> Vec<u32> {
        let unknown = |topic: &Topic| matches!(topic.state, TopicState::Unknown);
        (0..).zip(&self.all).filter(|(_, topic)| unknown(topic)).map(|(place, _)| place).collect()
    }

    /// Takes over what the cluster says: the leader of each partition. A partition that is gone stays while it has
    /// batches, without a leader. Says whether callers can now append who could not before.
    pub(super) fn set(&mut self, topic: u32, leaders: &[Option<i32>]) -> bool {
        let topic = &mut self.all[topic as usize];
        topic.trouble = None;
        topic.count = u32::try_from(leaders.len()).unwrap_or(u32::MAX);
        if topic.partitions.len() < leaders.len() {
            topic.partitions.resize_with(leaders.len(), Partition::default);
        }
        let leaders = leaders.iter().copied().chain(std::iter::repeat(None));
        for (partition, leader) in topic.partitions.iter_mut().zip(leaders) {
            self.moved |= partition.leader != leader;
            partition.leader = leader;
        }
        let opened = !matches!(topic.state, TopicState::Ready) && topic.count > 0;
        if opened {
            topic.state = TopicState::Ready;
        }
        opened
    }

    /// The cluster does not know the topic, or refuses it. An error that may pass leaves callers waiting; a known
    /// topic stays known until then. Says whether it is refused.
    pub(super) fn set_error(&mut self, topic: u32, error: &Error) -> bool {
        let topic = &mut self.all[topic as usize];
        topic.trouble = Some(error.clone());
        let refused = !error.retriable();
        if refused {
            topic.state = TopicState::Refused(error.clone());
        } else if matches!(topic.state, TopicState::Ready) {
            for partition in &mut topic.partitions {
                self.moved |= partition.leader.take().is_some();
            }
        }
        refused
    }

    /// It is another partition's turn to take the records that may go anywhere.
    pub(super) fn leave_sticky(&mut self, topic: u32) {
        self.all[topic as usize].sticky.leave();
    }

    /// The partition whose turn it is to take the records that may go anywhere. Of the leaders that `used_up` names the
    /// one with the greatest number is taken, when no other is left.
    pub(super) fn sticky_partition(
        &mut self,
        topic: u32,
        used_up: impl FnOnce() -> BTreeMap<Option<i32>, u64>,
    ) -> u32 {
        let Topic { sticky, partitions, count, .. } = &mut self.all[topic as usize];
        match sticky.current() {
            Some(partition) if partition < *count => partition,
            _ => {
                let partitions = partitions.iter().take(*count as usize);
                let able = |leader: Option<i32>| leader.is_some_and(|node| !self.stalled.contains(&node));
                let any_able = partitions.clone().any(|partition| able(partition.leader));
                let left = |leader| if any_able { able(leader) } else { leader.is_some() };
                let used_up = if self.adaptive { used_up() } else { BTreeMap::new() };
                let rank = |leader| used_up.get(&leader).copied().unwrap_or(u64::MAX);
                let leaders = partitions.clone().map(|partition| partition.leader);
                let best = leaders.filter(|leader| left(*leader)).map(rank).max();
                let loads: Vec<PartitionLoad> = partitions
                    .map(|Partition { leader, slots, .. }| PartitionLoad {
                        queued: if self.adaptive {
                            u32::try_from(slots.len()).unwrap_or(u32::MAX)
                        } else {
                            0
                        },
                        available: left(*leader) && Some(rank(*leader)) == best,
                    })
                    .collect();
                sticky.start(pick(&mut self.jitter, &loads))
            }
        }
    }

    /// Counts bytes that went to the sticky partition; after `switch_bytes` it is the next one's turn.
    pub(super) fn count_sticky(&mut self, topic: u32, bytes: u64, batch_ended: bool, switch_bytes: u64) {
        self.all[topic as usize].sticky.sent(bytes, batch_ended, switch_bytes);
    }
}
