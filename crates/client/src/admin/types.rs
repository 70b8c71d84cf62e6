//! Requests to an admin client, and their results.

use headrace_wire::uuid::Uuid;

use crate::cluster::{BrokerInfo, TopicInfo};
use crate::error::{Error, Result};
use crate::options::IsolationLevel;
use crate::partition::{CommitOffset, OffsetAt, TopicPartition};

/// A topic to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// How many partitions; -1 takes the broker's `num.partitions`.
    pub partitions: i32,
    /// How many replicas of each; -1 takes the broker's `default.replication.factor`.
    pub replication: i16,
    /// Settings by Kafka's names, such as `retention.ms`.
    pub configs: Vec<(String, String)>,
}

/// A topic that was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedTopic {
    /// Its id; zero where the broker does not tell.
    pub id: Uuid,
    /// How many partitions it has; -1 where the broker does not tell.
    pub partitions: i32,
    /// How many replicas of each; -1 where the broker does not tell.
    pub replication: i16,
}

/// Features of a cluster, such as `share.version`, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureMetadata {
    /// The levels that all of its brokers keep to.
    pub finalized: Vec<(String, i16)>,
    /// The levels that the broker that was asked could keep to: the least and the greatest.
    pub supported: Vec<(String, (i16, i16))>,
}

/// Whose settings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ConfigResource {
    /// A topic, by name.
    Topic(String),
    /// A broker, by node id.
    Broker(i32),
    /// A group, by name (KIP-848, KIP-932). A group that nobody has made has settings too.
    Group(String),
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigEntry {
    /// Kafka's name.
    pub name: String,
    /// Its value; `None` where the broker keeps it to itself.
    pub value: Option<String>,
    /// Whether it is read-only.
    pub read_only: bool,
    /// Whether it is a secret.
    pub sensitive: bool,
    /// Whether nobody has set it.
    pub is_default: bool,
}

/// What to do with a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigChange {
    /// Give it this value.
    Set(String),
    /// Take it back to its default.
    Delete,
    /// Add to a list.
    Append(String),
    /// Take out of a list.
    Subtract(String),
}

/// A group as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupListing {
    /// Its id.
    pub group: String,
    /// `consumer` for consumer groups.
    pub protocol_type: String,
    /// Kafka's name of its state; empty where the broker does not tell.
    pub state: String,
    /// `classic`, `consumer` or `share`; empty where the broker does not tell.
    pub kind: String,
}

/// Where a share group stands in a partition (KIP-932).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareOffset {
    /// The first offset that was not done with when the broker last wrote that down; -1 while the group has not read the
    /// partition.
    pub start_offset: i64,
    /// Records that are not done with (KIP-1226); `None` where the broker does not know.
    pub lag: Option<i64>,
}

/// A classic group as described by its coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupDescription {
    /// Its id.
    pub group: String,
    /// Kafka's name of its state, such as `Stable`, or `Dead` for one that does not exist.
    pub state: String,
    /// `consumer` for consumer groups.
    pub protocol_type: String,
    /// The assignor in use.
    pub protocol: String,
    /// The coordinator's node id.
    pub coordinator: i32,
    /// Its members.
    pub members: Vec<GroupMember>,
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// Its id.
    pub member: String,
    /// Its `group.instance.id`, if it is static.
    pub instance: Option<String>,
    /// Its `client.id`.
    pub client_id: String,
    /// Where it connects from.
    pub host: String,
    /// What it reads; empty while the group is rebalancing, and for groups that are no consumer groups.
    pub partitions: Vec<TopicPartition>,
}

/// The cluster as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterDescription {
    /// Its id.
    pub cluster_id: String,
    /// The controller's node id, -1 when unknown.
    pub controller: i32,
    /// Its brokers, by node id.
    pub brokers: Vec<BrokerInfo>,
}

/// A partition that is getting other replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reassignment {
    /// All that it has at the moment, by node id.
    pub replicas: Vec<i32>,
    /// Of these the new ones, which do not have all records yet.
    pub adding: Vec<i32>,
    /// Of these the ones that go once the new ones have all.
    pub removing: Vec<i32>,
}

/// What to do. Items are worked on independently: one that fails does not hold up the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminRequest {
    /// Create topics: [`AdminOutcome::Created`].
    CreateTopics {
        /// Which.
        topics: Vec<NewTopic>,
        /// Only check whether it would work.
        validate_only: bool,
    },
    /// Delete topics with all their records: [`AdminOutcome::Named`].
    DeleteTopics(Vec<String>),
    /// Raise the number of partitions: [`AdminOutcome::Named`].
    CreatePartitions {
        /// Topics, each with the number of partitions it has afterwards.
        topics: Vec<(String, i32)>,
        /// Only check whether it would work.
        validate_only: bool,
    },
    /// Describe topics, `None` for all of them: [`AdminOutcome::Topics`], sorted by name when all were asked for.
    DescribeTopics(Option<Vec<String>>),
    /// Describe the cluster: [`AdminOutcome::Cluster`].
    DescribeCluster,
    /// What the cluster has agreed to do (KIP-584): [`AdminOutcome::Features`].
    DescribeFeatures,
    /// Look up offsets by timestamp in Unix milliseconds: the first record at or after it. -1 is the end, -2 the
    /// beginning, -3 the record with the largest timestamp (KIP-734). [`AdminOutcome::Offsets`].
    ListOffsets {
        /// Partitions, each with its timestamp.
        partitions: Vec<(TopicPartition, i64)>,
        /// Whether open transactions end the log.
        isolation: IsolationLevel,
    },
    /// All groups: [`AdminOutcome::Groups`].
    ListGroups,
    /// Describe classic groups: [`AdminOutcome::GroupDescriptions`].
    DescribeGroups(Vec<String>),
    /// A group's committed offsets, of all partitions that have one: [`AdminOutcome::GroupOffsets`].
    GroupOffsets {
        /// The group.
        group: String,
        /// Which partitions; `None` for all.
        partitions: Option<Vec<TopicPartition>>,
    },
    /// Where a share group stands, in all partitions that it has read: [`AdminOutcome::ShareGroupOffsets`].
    ShareGroupOffsets(String),
    /// Set committed offsets of a group without members: [`AdminOutcome::Partitions`].
    AlterGroupOffsets {
        /// The group.
        group: String,
        /// What to commit.
        offsets: Vec<CommitOffset>,
    },
    /// Delete groups without members: [`AdminOutcome::Named`].
    DeleteGroups(Vec<String>),
    /// Drop the records before an offset, -1 for all: [`AdminOutcome::LowWatermarks`].
    DeleteRecords(Vec<(TopicPartition, i64)>),
    /// Give partitions other replicas, in the order of preference; without some, give up what is under way (KIP-455):
    /// [`AdminOutcome::Partitions`].
    Reassign(Vec<(TopicPartition, Option<Vec<i32>>)>),
    /// The partitions that are getting other replicas: [`AdminOutcome::Reassignments`].
    ListReassignments,
    /// Have first replicas lead that are in sync; or where nobody leads, whoever is alive (KIP-460):
    /// [`AdminOutcome::Partitions`].
    ElectLeaders {
        /// Which partitions.
        partitions: Vec<TopicPartition>,
        /// Whether the leader may lack records, which are lost then.
        unclean: bool,
    },
    /// Settings of topics, brokers and groups: [`AdminOutcome::Configs`].
    DescribeConfigs(Vec<ConfigResource>),
    /// Change settings of topics, brokers and groups: [`AdminOutcome::Altered`].
    AlterConfigs {
        /// What to change.
        changes: Vec<(ConfigResource, Vec<(String, ConfigChange)>)>,
        /// Only check whether it would work.
        validate_only: bool,
    },
}

/// The answer to an [`AdminRequest`], item by item in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminOutcome {
    /// Topics that were created.
    Created(Vec<(String, Result<CreatedTopic>)>),
    /// Topics or groups by name, with nothing more to say.
    Named(Vec<(String, Result<()>)>),
    /// Topics.
    Topics(Vec<(String, Result<TopicInfo>)>),
    /// The cluster.
    Cluster(ClusterDescription),
    /// Features.
    Features(FeatureMetadata),
    /// Offsets; an offset of -1 where no record matches.
    Offsets(Vec<(TopicPartition, Result<OffsetAt>)>),
    /// Groups, sorted by id.
    Groups(Vec<GroupListing>),
    /// Groups by id.
    GroupDescriptions(Vec<(String, Result<GroupDescription>)>),
    /// Committed offsets.
    GroupOffsets(Vec<(TopicPartition, Result<CommitOffset>)>),
    /// Where a share group stands.
    ShareGroupOffsets(Vec<(TopicPartition, Result<ShareOffset>)>),
    /// Partitions with nothing more to say.
    Partitions(Vec<(TopicPartition, Result<()>)>),
    /// The first offset that each partition keeps.
    LowWatermarks(Vec<(TopicPartition, Result<i64>)>),
    /// Partitions that are getting other replicas, sorted.
    Reassignments(Vec<(TopicPartition, Reassignment)>),
    /// Settings.
    Configs(Vec<(ConfigResource, Result<Vec<ConfigEntry>>)>),
    /// Resources whose settings were changed.
    Altered(Vec<(ConfigResource, Result<()>)>),
}

/// What an admin engine is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminCommand {
    /// Do something; answered by [`AdminEvent::Done`] with the same number.
    Do {
        /// The caller's number for it.
        op: u64,
        /// What.
        request: AdminRequest,
        /// How long it may take; `None` is `default.api.timeout.ms`.
        timeout_ms: Option<u64>,
    },
    /// End everything that is under way with [`Error::Closed`] and close all connections.
    Close,
}

/// What an admin engine tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminEvent {
    /// An operation has ended.
    Done {
        /// The caller's number for it.
        op: u64,
        /// The answer; an error when it failed as a whole.
        result: Result<AdminOutcome, Error>,
    },
}
