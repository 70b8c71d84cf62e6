//! What the nodes of a cluster say of themselves: versions, and metadata.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::api_versions_response::ApiVersion;
use headrace_wire::messages::metadata_request::MetadataRequestTopic;
use headrace_wire::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use headrace_wire::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse,
};
use headrace_wire::uuid::Uuid;

use super::world::{Answer, Incoming};

/// The answer of a broker that speaks everything we know.
pub(crate) fn versions(incoming: &Incoming) -> Answer {
    incoming.reply::<ApiVersionsRequest>(&version_list())
}

pub(crate) fn version_list() -> ApiVersionsResponse {
    let key = |key: &ApiKey| ApiVersion {
        api_key: key.code(),
        min_version: key.versions().min,
        max_version: key.versions().max,
    };
    ApiVersionsResponse { api_keys: ApiKey::ALL.iter().map(key).collect(), ..Default::default() }
}

/// Metadata of a cluster whose node n listens on port 9000 + n.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) nodes: Vec<i32>,
    /// Topic, and the leader of each partition (-1 for none).
    pub(crate) topics: Vec<(&'static str, Vec<i32>)>,
    pub(crate) epoch: i32,
}

impl Layout {
    pub(crate) fn metadata(&self, incoming: &Incoming) -> Answer {
        incoming.reply::<MetadataRequest>(&self.metadata_for(incoming.decode()))
    }

    /// The answer to a request, which names topics or gives their ids.
    pub(super) fn metadata_for(&self, request: MetadataRequest) -> MetadataResponse {
        let of_id = |id: Uuid| usize::from(id.0[0]).checked_sub(1).and_then(|at| self.topics.get(at));
        let name = |topic: MetadataRequestTopic| {
            topic.name.or_else(|| of_id(topic.topic_id).map(|(name, _)| (*name).to_owned()))
        };
        let names = request.topics.map(|topics| topics.into_iter().filter_map(name).collect());
        self.metadata_of(names)
    }

    /// What there is to say of these topics, by default of all.
    pub(crate) fn metadata_of(&self, names: Option<Vec<String>>) -> MetadataResponse {
        let all = || self.topics.iter().map(|t| t.0.to_owned()).collect();
        let names = names.unwrap_or_else(all);
        let topic = |name: String| {
            let Some((at, (_, leaders))) = self.topics.iter().enumerate().find(|(_, t)| t.0 == name) else {
                return MetadataResponseTopic { error_code: 3, name: Some(name), ..Default::default() };
            };
            let partition = |(index, leader): (usize, &i32)| MetadataResponsePartition {
                error_code: if *leader < 0 { ErrorCode::LEADER_NOT_AVAILABLE.code() } else { 0 },
                partition_index: i32::try_from(index).unwrap(),
                leader_id: *leader,
                leader_epoch: self.epoch,
                replica_nodes: self.nodes.clone(),
                isr_nodes: self.nodes.clone(),
                ..Default::default()
            };
            MetadataResponseTopic {
                is_internal: name.starts_with("__"),
                name: Some(name),
                topic_id: Uuid([u8::try_from(at).unwrap() + 1; 16]),
                partitions: leaders.iter().enumerate().map(partition).collect(),
                ..Default::default()
            }
        };
        let broker = |&node: &i32| MetadataResponseBroker {
            node_id: node,
            host: "localhost".to_owned(),
            port: 9000 + node,
            ..Default::default()
        };
        MetadataResponse {
            brokers: self.nodes.iter().map(broker).collect(),
            cluster_id: Some("test".to_owned()),
            controller_id: self.nodes.first().copied().unwrap_or(-1),
            topics: names.into_iter().map(topic).collect(),
            ..Default::default()
        }
    }
}
