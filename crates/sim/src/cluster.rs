//! Nodes in front of the one broker, whose log stands for replicas that are all alike: who leads what, and what each
//! node knows of it.
//!
//! A node takes what it leads, and knows that it leads; the rest it refuses. So no two nodes ever append to a partition
//! at once, and nothing confirmed can be lost by a change of leaders.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::metadata_response::MetadataResponseBroker;
use headrace_wire::messages::produce_request::PartitionProduceData;
use headrace_wire::messages::produce_response::{
    LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use headrace_wire::messages::{MetadataResponse, ProduceRequest, ProduceResponse};
use headrace_wire::uuid::Uuid;

use crate::history::{Histories, History};
use crate::plan::{Birth, Place, Plan, TOPICS};
use crate::rng::Rng;

const PORT: i32 = 9092;
/// Epochs of leaders begin above all that the one broker gives, so that one of those would be seen.
const FIRST_EPOCH: i32 = 1000;
/// The name that stands for any node.
const ANY_HOST: &str = "boot";
/// The first version of Produce that names topics by id.
const PRODUCE_BY_ID: i16 = 13;
/// The first version of Produce whose refusals can name the leader (KIP-951).
const PRODUCE_TELLS_LEADER: i16 = 10;

#[derive(Debug, Clone, Copy)]
struct Lead {
    leader: Option<usize>,
    epoch: i32,
}

/// What is true of the cluster, or what a node holds for true.
#[derive(Debug, Clone)]
struct View {
    leads: BTreeMap<Place, Lead>,
    coordinator: usize,
    /// By topic: whether it is there.
    born: Vec<bool>,
    /// By node.
    up: Vec<bool>,
}

#[derive(Debug)]
struct Node {
    stalled: bool,
    view: View,
}

/// The answers of a node for the partitions that it does not take.
pub(crate) type Refusals = Vec<TopicProduceResponse>;

#[derive(Debug)]
pub(crate) struct Cluster {
    truth: View,
    nodes: Vec<Node>,
    /// Topics by the id that the broker gave.
    ids: HashMap<Uuid, usize>,
    lists_the_dead: bool,
    logs: Histories,
    /// Partitions that got a leader, and nobody has said yet where its time begins.
    pub(crate) unsettled: BTreeSet<Place>,
}

impl Cluster {
    pub(crate) fn new(plan: &Plan, rng: &mut Rng) -> Self {
        let count = plan.cluster.nodes;
        // Over links the broker speaks for itself.
        let epoch = if plan.direct.is_some() { 0 } else { FIRST_EPOCH };
        let leads = plan.places().map(|place| (place, Lead { leader: Some(rng.index(count)), epoch }));
        let truth = View {
            leads: leads.collect(),
            coordinator: 0,
            born: plan.topics.iter().map(|birth| !matches!(birth, Birth::At(_))).collect(),
            up: vec![true; count],
        };
        let nodes = (0..count).map(|_| Node { stalled: false, view: truth.clone() }).collect();
        Self {
            truth,
            nodes,
            ids: HashMap::new(),
            lists_the_dead: plan.cluster.lists_the_dead,
            logs: plan.places().map(|place| (place, History::new(epoch))).collect(),
            unsettled: BTreeSet::new(),
        }
    }

    pub(crate) fn nodes(&self) -> std::ops::Range<usize> {
        0..self.nodes.len()
    }

    /// The node at an address; any of them when it is the name for all.
    pub(crate) fn resolve(&self, host: &str, rng: &mut Rng) -> Option<usize> {
        if host == ANY_HOST {
            return Some(rng.index(self.nodes.len()));
        }
        self.nodes().find(|node| self.host(*node) == host)
    }

    fn host(&self, node: usize) -> String {
        format!("node{}", self.id(node))
    }

    #[expect(clippy::unused_self, reason = "nodes are the cluster's")]
    fn id(&self, node: usize) -> i32 {
        i32::try_from(node).unwrap_or(0) + 1
    }

    // ---- what happens

    pub(crate) fn is_up(&self, node: usize) -> bool {
        self.truth.up[node]
    }

    pub(crate) fn set_up(&mut self, node: usize, up: bool) {
        self.truth.up[node] = up;
        self.nodes[node].stalled = false;
    }

    pub(crate) fn is_stalled(&self, node: usize) -> bool {
        self.nodes[node].stalled
    }

    pub(crate) fn set_stalled(&mut self, node: usize, stalled: bool) {
        self.nodes[node].stalled = stalled;
    }

    pub(crate) fn leader(&self, place: Place) -> Option<usize> {
        self.truth.leads.get(&place)?.leader
    }

    pub(crate) fn elect(&mut self, place: Place, leader: Option<usize>) {
        if let Some(lead) = self.truth.leads.get_mut(&place) {
            *lead = Lead { leader, epoch: lead.epoch + 1 };
            if leader.is_some() {
                self.unsettled.insert(place);
            }
        }
    }

    /// The time of a partition's leader begins, whose log lacks nothing, or all from an offset on. `end`: where the
    /// broker's log ends.
    pub(crate) fn begin_era(&mut self, place: Place, cut: Option<i64>, end: i64) {
        self.unsettled.remove(&place);
        if let (Some(lead), Some(log)) = (self.truth.leads.get(&place), self.logs.get_mut(&place)) {
            match cut {
                Some(from) => log.cut(lead.epoch, from, end),
                None => log.lead(lead.epoch, end),
            }
        }
    }

    pub(crate) fn logs(&self) -> &Histories {
        &self.logs
    }

    pub(crate) fn log(&self, place: Place) -> Option<&History> {
        self.logs.get(&place)
    }

    /// The partitions that this node leads, or that nobody does.
    pub(crate) fn led_by(&self, leader: Option<usize>) -> Vec<Place> {
        let led = self.truth.leads.iter().filter(|(_, lead)| lead.leader == leader);
        led.map(|(place, _)| *place).collect()
    }

    pub(crate) fn coordinator(&self) -> usize {
        self.truth.coordinator
    }

    /// Another node coordinates the groups.
    pub(crate) fn coordinate(&mut self, node: usize) {
        self.truth.coordinator = node;
    }

    pub(crate) fn is_born(&self, topic: usize) -> bool {
        self.truth.born[topic]
    }

    pub(crate) fn bear(&mut self, topic: usize) {
        self.truth.born[topic] = true;
    }

    /// From now on the node knows what is true.
    pub(crate) fn learn(&mut self, node: usize) {
        self.nodes[node].view = self.truth.clone();
    }

    // ---- what nodes say

    /// Makes the broker's answer the node's.
    pub(crate) fn describe(&mut self, node: usize, response: &mut MetadataResponse) {
        let view = &self.nodes[node].view;
        let listed = |other: &usize| *other == node || self.lists_the_dead || view.up[*other];
        response.brokers = self
            .nodes()
            .filter(listed)
            .map(|other| MetadataResponseBroker {
                node_id: self.id(other),
                host: self.host(other),
                port: PORT,
                rack: None,
            })
            .collect();
        response.controller_id = self.id(0);
        for topic in &mut response.topics {
            let name = topic.name.as_deref().unwrap_or_default();
            let Some(number) = TOPICS.iter().position(|known| *known == name) else { continue };
            if topic.error_code != 0 {
                continue;
            }
            self.ids.insert(topic.topic_id, number);
            if !view.born[number] {
                topic.error_code = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.code();
                topic.topic_id = Uuid::ZERO;
                topic.partitions.clear();
            }
            for described in &mut topic.partitions {
                let place = Place { topic: number, partition: described.partition_index };
                let Some(lead) = view.leads.get(&place) else { continue };
                described.leader_id = lead.leader.map_or(-1, |leader| self.id(leader));
                described.leader_epoch = lead.epoch;
                if lead.leader.is_none() {
                    described.error_code = ErrorCode::LEADER_NOT_AVAILABLE.code();
                }
                described.replica_nodes = self.nodes().map(|other| self.id(other)).collect();
                described.isr_nodes.clone_from(&described.replica_nodes);
            }
        }
    }

    /// Takes out of a request what the node does not take, with its answers.
    pub(crate) fn refuse(&self, node: usize, version: i16, request: &mut ProduceRequest) -> Refusals {
        let mut refused = Refusals::new();
        for topic in &mut request.topic_data {
            let number = if version >= PRODUCE_BY_ID {
                self.ids.get(&topic.topic_id).copied()
            } else {
                TOPICS.iter().position(|known| *known == topic.name)
            };
            let Some(number) = number else { continue };
            let asked = std::mem::take(&mut topic.partition_data);
            let refusal = |data: &PartitionProduceData| {
                let place = Place { topic: number, partition: data.index };
                self.refusal(node, version, place)
            };
            let mut answers = Vec::new();
            for data in asked {
                match refusal(&data) {
                    Some(answer) => answers.push(answer),
                    None => topic.partition_data.push(data),
                }
            }
            if !answers.is_empty() {
                refused.push(TopicProduceResponse {
                    name: topic.name.clone(),
                    topic_id: topic.topic_id,
                    partition_responses: answers,
                });
            }
        }
        request.topic_data.retain(|topic| !topic.partition_data.is_empty());
        refused
    }

    fn refusal(&self, node: usize, version: i16, place: Place) -> Option<PartitionProduceResponse> {
        let code = self.why_not(node, version >= PRODUCE_BY_ID, place)?;
        Some(PartitionProduceResponse {
            index: place.partition,
            error_code: code.code(),
            base_offset: -1,
            ..PartitionProduceResponse::default()
        })
    }

    /// Why a node has nothing to say of a partition.
    fn why_not(&self, node: usize, by_id: bool, place: Place) -> Option<ErrorCode> {
        let view = &self.nodes[node].view;
        let (believed, lead) = (view.leads.get(&place)?, self.truth.leads.get(&place)?);
        if !view.born[place.topic] {
            Some(if by_id { ErrorCode::UNKNOWN_TOPIC_ID } else { ErrorCode::UNKNOWN_TOPIC_OR_PARTITION })
        } else if lead.leader == Some(node) && believed.leader == Some(node) {
            None
        } else {
            Some(ErrorCode::NOT_LEADER_OR_FOLLOWER)
        }
    }

    // ---- what consumers ask for

    /// The topic that a request names.
    pub(crate) fn topic(&self, name: &str, id: Uuid) -> Option<usize> {
        let named = TOPICS.iter().position(|known| *known == name);
        named.or_else(|| self.ids.get(&id).copied())
    }

    /// Why a node hands out nothing of a partition to a client that holds `epoch` for its leader's; -1 is none.
    pub(crate) fn why_not_read(
        &self,
        node: usize,
        by_id: bool,
        place: Place,
        epoch: i32,
    ) -> Option<ErrorCode> {
        let known = self.nodes[node].view.leads.get(&place).map_or(-1, |lead| lead.epoch);
        self.why_not(node, by_id, place).or(match epoch {
            epoch if epoch < 0 || epoch == known => None,
            epoch if epoch < known => Some(ErrorCode::FENCED_LEADER_EPOCH),
            _ => Some(ErrorCode::UNKNOWN_LEADER_EPOCH),
        })
    }

    /// Who leads a partition as far as a node knows: id, epoch, host and port.
    pub(crate) fn leader_for(&self, node: usize, place: Place) -> Option<(i32, i32, String, i32)> {
        let lead = self.nodes[node].view.leads.get(&place)?;
        let leader = lead.leader?;
        Some((self.id(leader), lead.epoch, self.host(leader), PORT))
    }

    /// The leader of a partition, if it is there and knows that it leads.
    pub(crate) fn serves(&self, place: Place) -> Option<usize> {
        let leader = self.leader(place)?;
        (self.is_up(leader) && self.why_not(leader, true, place).is_none()).then_some(leader)
    }

    /// Whether a node coordinates the groups, and knows it.
    pub(crate) fn coordinates(&self, node: usize) -> bool {
        self.truth.coordinator == node && self.nodes[node].view.coordinator == node
    }

    /// The coordinator as far as a node knows: id, host and port. `None` when it is gone.
    pub(crate) fn coordinator_for(&self, node: usize) -> Option<(i32, String, i32)> {
        let view = &self.nodes[node].view;
        let coordinator = view.coordinator;
        view.up[coordinator].then(|| (self.id(coordinator), self.host(coordinator), PORT))
    }

    /// Whether offsets in an answer may have to be others than the broker's.
    pub(crate) fn was_cut(&self) -> bool {
        self.logs.values().any(|log| !log.cuts().is_empty())
    }

    /// Puts the offsets of the nodes' logs in the place of the broker's. What was cut off meanwhile has none.
    pub(crate) fn place_produced(&self, response: &mut ProduceResponse) {
        for topic in &mut response.responses {
            let Some(number) = self.topic(&topic.name, topic.topic_id) else { continue };
            for answer in &mut topic.partition_responses {
                let log = self.log(Place { topic: number, partition: answer.index });
                if let Some(log) = log.filter(|_| answer.base_offset >= 0) {
                    answer.base_offset = log.shown(answer.base_offset).unwrap_or(-1);
                }
            }
        }
    }

    /// Puts a node's own answers beside the broker's; `tells` who leads instead, as far as the node knows.
    pub(crate) fn answer(
        &self,
        (node, version): (usize, i16),
        response: &mut ProduceResponse,
        refused: Refusals,
        tells: bool,
    ) {
        for mut topic in refused {
            for answer in &mut topic.partition_responses {
                if tells && version >= PRODUCE_TELLS_LEADER {
                    let number = match self.ids.get(&topic.topic_id) {
                        Some(number) => Some(*number),
                        None => TOPICS.iter().position(|known| *known == topic.name),
                    };
                    self.tell_leader(node, number, answer, &mut response.node_endpoints);
                }
            }
            let same = |other: &&mut TopicProduceResponse| {
                other.name == topic.name && other.topic_id == topic.topic_id
            };
            match response.responses.iter_mut().find(same) {
                Some(other) => other.partition_responses.append(&mut topic.partition_responses),
                None => response.responses.push(topic),
            }
        }
    }

    fn tell_leader(
        &self,
        node: usize,
        topic: Option<usize>,
        answer: &mut PartitionProduceResponse,
        endpoints: &mut Vec<NodeEndpoint>,
    ) {
        let view = &self.nodes[node].view;
        let lead = topic.and_then(|topic| view.leads.get(&Place { topic, partition: answer.index }));
        let Some(Lead { leader: Some(leader), epoch }) = lead.copied() else { return };
        let node_id = self.id(leader);
        answer.current_leader = LeaderIdAndEpoch { leader_id: node_id, leader_epoch: epoch };
        if endpoints.iter().all(|known| known.node_id != node_id) {
            endpoints.push(NodeEndpoint { node_id, host: self.host(leader), port: PORT, rack: None });
        }
    }
}
