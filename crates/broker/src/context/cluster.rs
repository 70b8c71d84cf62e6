//! A broker's part in its cluster, as the parts of the broker see it.

use std::collections::BTreeMap;

use headrace_cluster::model::{NodeId, NodeValue, PartitionValue};
use headrace_cluster::store::Revision;
use headrace_cluster::view::Changed;
use headrace_cluster::{CommandId, Member};
use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;

use super::Context;
use super::call::Call;
use super::waiting::{Awaited, Failure};
use crate::replication::role::{Following, Role};
use crate::store::{Place, TopicKey};

/// Where a broker is reached.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) rack: Option<String>,
}

/// What metadata says of a partition; -1 and nobody where it is not known.
#[derive(Debug, Clone)]
pub(crate) struct PartitionState {
    pub(crate) leader: NodeId,
    pub(crate) leader_epoch: i32,
    pub(crate) replicas: Vec<NodeId>,
    pub(crate) isr: Vec<NodeId>,
    pub(crate) offline: Vec<NodeId>,
}

impl PartitionState {
    pub(crate) fn error(&self) -> ErrorCode {
        if self.leader < 0 { ErrorCode::LEADER_NOT_AVAILABLE } else { ErrorCode::NONE }
    }
}

impl From<&NodeValue> for Endpoint {
    fn from(value: &NodeValue) -> Self {
        Self { host: value.host.clone(), port: value.port, rack: value.rack.clone() }
    }
}

/// What has become of a command; nothing while it is under way.
type Result = std::result::Result<(), String>;

/// Its membership, and the commands that somebody waits for.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) member: Member,
    commands: BTreeMap<CommandId, Option<Result>>,
    /// What requests that are being handled have asked for, with their tokens: they are answered once it is done.
    pub(crate) asked: Vec<(u64, Awaited)>,
    /// In-sync sets that were asked for.
    pub(crate) isr_changes: BTreeMap<CommandId, Place>,
}

impl Cluster {
    pub(crate) fn new(member: Member) -> Self {
        Self { member, commands: BTreeMap::new(), asked: Vec::new(), isr_changes: BTreeMap::new() }
    }

    /// Somebody will ask what has become of a command.
    pub(crate) fn await_command(&mut self, id: CommandId) {
        self.commands.insert(id, None);
    }

    /// A command has ended. Whether somebody has waited for it.
    pub(crate) fn end_command(&mut self, id: CommandId, result: Result) -> bool {
        let awaited = self.commands.get_mut(&id);
        awaited.map(|one| *one = Some(result)).is_some()
    }

    /// What has become of a command, once. Nothing while it is under way.
    pub(crate) fn take_result(&mut self, id: CommandId) -> Option<Result> {
        self.commands.get(&id)?.as_ref()?;
        self.commands.remove(&id).flatten()
    }

    /// Nobody asks any more what becomes of a command.
    pub(crate) fn forget_command(&mut self, id: CommandId) {
        self.commands.remove(&id);
    }

    pub(crate) fn partition(&self, place: Place) -> Option<&PartitionValue> {
        self.member.view().partitions.get(&place).map(|partition| &partition.value)
    }
}

impl<D: Disk> Context<D> {
    /// The broker is a member of its cluster, under this broker epoch.
    pub(crate) fn set_broker_epoch(&mut self, epoch: Revision) {
        let salt = self.random.next();
        self.store.set_broker_epoch(epoch, salt);
    }

    /// Takes note of what the metadata store knows, so that one that knows less is found out at the next start.
    pub(crate) fn note_seen(&mut self, changed: &Changed) {
        if let Some(cluster) = &self.cluster {
            self.store.note_seen(cluster.member.view(), changed, self.now);
        }
    }

    /// What a request has asked of the cluster.
    pub(crate) fn take_asked(&mut self, call: &Call) -> Vec<Awaited> {
        let Some(cluster) = &mut self.cluster else { return Vec::new() };
        let (asked, others) =
            std::mem::take(&mut cluster.asked).into_iter().partition(|one| one.0 == call.token);
        cluster.asked = others;
        let asked: Vec<(u64, Awaited)> = asked;
        asked.into_iter().map(|(_, awaited)| awaited).collect()
    }

    pub(crate) fn own_endpoint(&self) -> Endpoint {
        let (host, port) = (self.config.advertised_host.clone(), self.config.advertised_port);
        Endpoint { host, port, rack: self.config.rack() }
    }

    /// Where a broker is reached that is alive.
    pub(crate) fn endpoint(&self, node: NodeId) -> Option<Endpoint> {
        match &self.cluster {
            None => (node == self.config.node_id).then(|| self.own_endpoint()),
            Some(cluster) => cluster.member.view().nodes.get(&node).map(|node| (&node.value).into()),
        }
    }

    /// The brokers that are alive, by number.
    pub(crate) fn brokers(&self) -> Vec<(NodeId, Endpoint)> {
        match &self.cluster {
            Some(cluster) if !cluster.member.view().nodes.is_empty() => {
                let nodes = cluster.member.view().nodes.iter();
                nodes.map(|(id, node)| (*id, (&node.value).into())).collect()
            }
            _ => vec![(self.config.node_id, self.own_endpoint())],
        }
    }

    /// Whom clients take for the controller. Every broker can do what they ask of it, so it need only be the same one.
    pub(crate) fn controller(&self) -> NodeId {
        let first = self.cluster.as_ref().and_then(|cluster| cluster.member.view().nodes.keys().next());
        first.copied().unwrap_or(self.config.node_id)
    }

    /// What metadata says of a partition.
    pub(crate) fn state_of(&self, place: Place) -> PartitionState {
        let Some(cluster) = &self.cluster else {
            let node = self.config.node_id;
            let leader_epoch = self.store.leader_epoch();
            let (replicas, isr, offline) = (vec![node], vec![node], Vec::new());
            return PartitionState { leader: node, leader_epoch, replicas, isr, offline };
        };
        let view = cluster.member.view();
        let Some(value) = cluster.partition(place) else {
            let (replicas, isr, offline) = (Vec::new(), Vec::new(), Vec::new());
            return PartitionState { leader: -1, leader_epoch: -1, replicas, isr, offline };
        };
        let leader = value.leader.filter(|leader| view.is_alive(*leader)).map_or(-1, |leader| leader.0);
        let is_dead = |id: &&NodeId| !view.nodes.contains_key(id);
        PartitionState {
            leader,
            leader_epoch: value.epoch,
            replicas: value.replicas.clone(),
            isr: value.isr.iter().map(|one| one.0).collect(),
            offline: value.replicas.iter().filter(is_dead).copied().collect(),
        }
    }

    /// Whether this broker has led a partition, and another one is about to.
    pub(crate) fn is_handing_over(&self, topic: &TopicKey, index: i32) -> bool {
        let Some(cluster) = &self.cluster else { return false };
        let Some(topic) = self.store.find(topic) else { return false };
        cluster.member.is_handing_over((topic.id, index))
    }

    /// What an answer says whose records are no longer in the care of this broker: who leads their partition now, if it is
    /// another one.
    pub(crate) fn failure_of_lost(&self, place: Place) -> Failure {
        let partition = self.store.by_id(place.0).and_then(|topic| topic.partition(place.1));
        let leader = partition.and_then(|partition| match &partition.role {
            Role::Follower(Following { epoch, leader, .. }) => {
                leader.and_then(|leader| Some((leader, *epoch, self.endpoint(leader)?)))
            }
            Role::Sole | Role::Leader(_) => None,
        });
        Failure { error: ErrorCode::NOT_LEADER_OR_FOLLOWER, leader }
    }

    /// The leader of a partition and its epoch, where somebody leads it.
    pub(crate) fn leader_of(&self, topic: &TopicKey, index: i32) -> Option<(NodeId, i32)> {
        let state = self.state_of((self.store.find(topic)?.id, index));
        (state.leader >= 0).then_some((state.leader, state.leader_epoch))
    }
}
