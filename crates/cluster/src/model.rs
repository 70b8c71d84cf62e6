//! The keys of a cluster, and their values.

use std::collections::BTreeMap;

use headrace_wire::uuid::Uuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::store::Revision;

/// The format of values that is written and read.
pub const FORMAT: u32 = 1;
/// The most bytes of a value that is read.
const VALUE_BYTES_MAX: usize = 1 << 20;
/// The most replicas of a partition.
pub const REPLICAS_MAX: usize = 64;

/// The number of a broker.
pub type NodeId = i32;

/// A partition of a topic.
pub type Place = (Uuid, i32);

/// What a key stands for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The cluster.
    Cluster,
    /// A broker, for as long as it lives.
    Node(NodeId),
    /// A topic by its name.
    Topic(String),
    /// A partition.
    Partition(Place),
}

impl Key {
    /// Its text.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Cluster => "cluster".to_owned(),
            Self::Node(id) => format!("nodes/{id}"),
            Self::Topic(name) => format!("topics/{name}"),
            Self::Partition((topic, index)) => format!("partitions/{topic}/{index}"),
        }
    }

    /// What a text stands for; nothing if it is none of ours.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let key = match text.split_once('/') {
            None if text == "cluster" => Self::Cluster,
            Some(("nodes", id)) => Self::Node(id.parse().ok().filter(|id| *id >= 0)?),
            Some(("topics", name)) if !name.is_empty() => Self::Topic(name.to_owned()),
            Some(("partitions", place)) => {
                let (topic, index) = place.split_once('/')?;
                Self::Partition((topic.parse().ok()?, index.parse().ok().filter(|index| *index >= 0)?))
            }
            _ => return None,
        };
        // A number has one text only.
        (key.text() == text).then_some(key)
    }
}

/// The cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterValue {
    /// [`FORMAT`]
    pub format: u32,
    /// Kafka's cluster id.
    pub cluster_id: String,
}

/// A broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeValue {
    /// Where clients and other brokers reach it.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// `broker.rack`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    /// The broker epoch since which its logs have lost nothing: at each start after that it had been closed, or its process had
    /// died and its machine had not. Nothing: since this registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intact_since: Option<Revision>,
}

/// A topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicValue {
    /// Its id, in Kafka's text form.
    pub id: String,
    /// How many partitions it has.
    pub partitions: i32,
    /// Settings of its own.
    #[serde(default)]
    pub configs: BTreeMap<String, String>,
}

impl NodeValue {
    /// Whether its logs have all that they had under an earlier registration of it.
    #[must_use]
    pub fn is_intact_since(&self, epoch: Revision) -> bool {
        self.intact_since.is_some_and(|since| since <= epoch)
    }
}

/// A broker under one of its registrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Registration(pub NodeId, pub Revision);

/// A partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionValue {
    /// Who has copies, in the order of preference. Those that are on their way out come last.
    pub replicas: Vec<NodeId>,
    /// Who leads; nobody while none of the in-sync set can.
    pub leader: Option<Registration>,
    /// Grows with each election.
    pub epoch: i32,
    /// Who has all committed records. A broker that has registered anew since may lack some.
    pub isr: Vec<Registration>,
    /// While it gets other replicas: those that it is to have in the end, and those that it had before. All of them have copies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target: Vec<NodeId>,
    /// See `target`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub original: Vec<NodeId>,
    /// Who is to lead, as somebody has asked; its leader hands it over, or takes this back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<NodeId>,
}

impl PartitionValue {
    /// Whether it is getting other replicas.
    #[must_use]
    pub fn is_reassigned(&self) -> bool {
        !self.target.is_empty()
    }

    /// Of the replicas those that are new.
    #[must_use]
    pub fn adding(&self) -> Vec<NodeId> {
        self.target.iter().filter(|id| !self.original.contains(id)).copied().collect()
    }

    /// The replicas, those that are new last: they may have next to nothing.
    pub fn by_completeness(&self) -> impl Iterator<Item = NodeId> + '_ {
        let adding = self.adding();
        let (new, old): (Vec<_>, Vec<_>) = self.replicas.iter().copied().partition(|id| adding.contains(id));
        old.into_iter().chain(new)
    }

    /// Of the replicas those that go once the new ones are in sync.
    #[must_use]
    pub fn removing(&self) -> Vec<NodeId> {
        let goes = |id: &&NodeId| self.is_reassigned() && !self.target.contains(id);
        self.replicas.iter().filter(goes).copied().collect()
    }

    /// The same with other replicas to come, or, without some, with those that it had: those that have copies stay until the new
    /// ones are in sync.
    #[must_use]
    pub fn reassigned(&self, target: Option<&[NodeId]>) -> Self {
        let original = if self.is_reassigned() { &self.original } else { &self.replicas };
        let target = target.unwrap_or(original);
        let leaving = self.replicas.iter().filter(|id| !target.contains(id));
        let replicas: Vec<_> = target.iter().chain(leaving).copied().collect();
        let (mut changed, is_order) = (self.clone(), replicas.len() == self.replicas.len());
        changed.wanted = None;
        // The same brokers in another order need not be waited for.
        let is_done = is_order && target.len() == replicas.len() && !self.is_reassigned();
        (changed.target, changed.original) =
            if is_done { (Vec::new(), Vec::new()) } else { (target.to_vec(), original.clone()) };
        changed.replicas = replicas;
        changed
    }

    /// The same once the new replicas are in sync: those that were to go are no replicas any more. Nothing while that cannot
    /// be, or its leader is to go.
    ///
    /// The leader leads anew then, under the next epoch: who goes removes its copy, and may be wanted again before its leader has
    /// seen it gone. What was known of the old copy must not be taken for true of the new one.
    #[must_use]
    pub fn with_target(&self) -> Option<Self> {
        let stays = |one: &Registration| self.target.contains(&one.0);
        let all_added = self.adding().iter().all(|id| self.is_in_sync(*id));
        (all_added && self.leader.is_some_and(|leader| stays(&leader))).then(|| Self {
            replicas: self.target.clone(),
            isr: self.isr.iter().copied().filter(stays).collect(),
            target: Vec::new(),
            original: Vec::new(),
            epoch: self.epoch.saturating_add(i32::from(!self.removing().is_empty())),
            ..self.clone()
        })
    }

    /// Whether a broker is in the in-sync set, under whichever registration.
    #[must_use]
    pub fn is_in_sync(&self, node: NodeId) -> bool {
        self.isr.iter().any(|one| one.0 == node)
    }

    /// Whether a broker would take it for a partition's state.
    pub(crate) fn check(&self) -> Result<(), String> {
        let distinct = |mut nodes: Vec<NodeId>| {
            let all = nodes.len();
            nodes.sort_unstable();
            nodes.dedup();
            nodes.len() == all
        };
        let isr: Vec<_> = self.isr.iter().map(|one| one.0).collect();
        if self.replicas.is_empty() || self.replicas.len() > REPLICAS_MAX || !distinct(self.replicas.clone())
        {
            return Err(format!(
                "replicas {:?}: 1 to {REPLICAS_MAX} different ones are possible",
                self.replicas
            ));
        }
        if self.isr.is_empty() || !distinct(isr.clone()) || isr.iter().any(|one| !self.replicas.contains(one))
        {
            return Err(format!("the in-sync set {isr:?} is not a part of the replicas {:?}", self.replicas));
        }
        let are_replicas = |nodes: &[NodeId]| nodes.iter().all(|id| self.replicas.contains(id));
        let (target, original) = (&self.target, &self.original);
        if !are_replicas(target)
            || !are_replicas(original)
            || target.is_empty() != original.is_empty()
            || !distinct(target.clone())
            || !distinct(original.clone())
        {
            return Err(format!(
                "replicas {:?}, which are to be {target:?} and were {original:?}",
                self.replicas
            ));
        }
        if self.leader.is_some_and(|leader| !self.isr.contains(&leader)) || self.epoch < 0 {
            return Err("the leader is not in the in-sync set, or the epoch is negative".to_owned());
        }
        Ok(())
    }
}

/// A value of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Of [`Key::Cluster`].
    Cluster(ClusterValue),
    /// Of [`Key::Node`].
    Node(NodeValue),
    /// Of [`Key::Topic`].
    Topic(TopicValue),
    /// Of [`Key::Partition`].
    Partition(PartitionValue),
}

/// A key or value that no broker of this version has written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the metadata store holds {key:?}, which headrace cannot read: {why}")]
pub struct Foreign {
    /// The key.
    pub key: String,
    /// What is wrong.
    pub why: String,
}

/// The bytes of a value.
#[must_use]
pub fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// Reads a key and its value.
///
/// # Errors
/// [`Foreign`] says which key, and what is wrong.
pub fn decode(key: &str, value: &[u8]) -> Result<(Key, Value), Foreign> {
    fn read<T: DeserializeOwned>(value: &[u8]) -> Result<T, String> {
        serde_json::from_slice(value).map_err(|why| why.to_string())
    }
    let foreign = |why: String| Foreign { key: key.chars().take(300).collect(), why };
    let Some(of) = Key::parse(key) else { return Err(foreign("it is no key of a cluster".to_owned())) };
    if value.len() > VALUE_BYTES_MAX {
        return Err(foreign(format!("{} bytes are more than {VALUE_BYTES_MAX}", value.len())));
    }
    let read = match &of {
        Key::Cluster => read::<ClusterValue>(value).and_then(|value| match value.format {
            FORMAT => Ok(Value::Cluster(value)),
            other => Err(format!("format {other} is not {FORMAT}: written by another version")),
        }),
        Key::Node(_) => read(value).map(Value::Node),
        Key::Topic(_) => read::<TopicValue>(value).and_then(|value| match value.id.parse::<Uuid>() {
            Ok(_) if value.partitions > 0 => Ok(Value::Topic(value)),
            Ok(_) => Err(format!("{} partitions", value.partitions)),
            Err(why) => Err(why.to_string()),
        }),
        Key::Partition(_) => {
            read::<PartitionValue>(value).and_then(|value| value.check().map(|()| Value::Partition(value)))
        }
    };
    read.map(|value| (of, value)).map_err(foreign)
}
