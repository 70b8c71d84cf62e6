//! Topics, settings and groups, as an administrator asks for them.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::describe_configs_response::DescribeConfigsResourceResult;
use headrace_wire::messages::*;

use super::kafka::ScriptedKafka;
use super::log::Log;
use super::refusal::{Refusal, WHY};
use super::world::Incoming;

/// What has no resource's own value.
const BROKERS_DEFAULT: i8 = 5;

impl ScriptedKafka {
    fn has(&self, topic: &str) -> bool {
        self.layout.topics.iter().any(|(name, _)| *name == topic)
    }

    /// Its controller is the last node, which it names first.
    pub(super) fn describe_cluster(&self) -> DescribeClusterResponse {
        let broker = |id: &i32| describe_cluster_response::DescribeClusterBroker {
            broker_id: *id,
            host: "localhost".to_owned(),
            port: 9000 + id,
            ..Default::default()
        };
        DescribeClusterResponse {
            cluster_id: "c".to_owned(),
            controller_id: *self.layout.nodes.last().unwrap(),
            brokers: self.layout.nodes.iter().rev().map(broker).collect(),
            ..Default::default()
        }
    }

    pub(super) fn create_topics(&mut self, request: &CreateTopicsRequest) -> CreateTopicsResponse {
        let mut response = request.refused(ErrorCode::NONE);
        for (asked, answer) in request.topics.iter().zip(&mut response.topics) {
            answer.num_partitions = asked.num_partitions;
            if self.has(&asked.name) {
                answer.error_code = ErrorCode::TOPIC_ALREADY_EXISTS.code();
                answer.error_message = Some(WHY.to_owned());
            } else if !request.validate_only {
                let name: &'static str = asked.name.clone().leak();
                let leaders = vec![self.layout.nodes[0]; usize::try_from(asked.num_partitions).unwrap()];
                self.logs.extend((0..asked.num_partitions).map(|p| ((name.to_owned(), p), Log::default())));
                self.layout.topics.push((name, leaders));
            }
        }
        response
    }

    pub(super) fn delete_topics(&mut self, request: &DeleteTopicsRequest) -> DeleteTopicsResponse {
        let mut response = request.refused(ErrorCode::NONE);
        for answer in &mut response.responses {
            let name = answer.name.clone().unwrap();
            if self.has(&name) {
                self.delete(&name);
            } else {
                answer.error_code = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.code();
            }
        }
        response
    }

    pub(super) fn list_groups(&self, i: &Incoming) -> ListGroupsResponse {
        let here = self.groups.iter().filter(|(_, node)| *node == i.node());
        let group = |(name, _): &(&str, i32)| list_groups_response::ListedGroup {
            group_id: (*name).to_owned(),
            ..Default::default()
        };
        ListGroupsResponse { groups: here.map(group).collect(), ..Default::default() }
    }

    pub(super) fn alter_configs(
        &mut self,
        request: &IncrementalAlterConfigsRequest,
    ) -> IncrementalAlterConfigsResponse {
        for resource in request.resources.iter().filter(|_| !request.validate_only) {
            let of =
                self.configs.entry((resource.resource_type, resource.resource_name.clone())).or_default();
            for config in &resource.configs {
                match (config.config_operation, &config.value) {
                    (0, Some(value)) => drop(of.insert(config.name.clone(), value.clone())),
                    (1, None) => drop(of.remove(&config.name)),
                    other => panic!("{other:?} is no change"),
                }
            }
        }
        request.refused(ErrorCode::NONE)
    }

    /// What was set, and for brokers one default.
    pub(super) fn describe_configs(&self, request: &DescribeConfigsRequest) -> DescribeConfigsResponse {
        let mut response = request.refused(ErrorCode::NONE);
        for result in &mut response.results {
            let of = self.configs.get(&(result.resource_type, result.resource_name.clone()));
            let source = if result.resource_type == 32 { 8 } else { 1 };
            let set = of.into_iter().flatten().map(|(name, value)| (name.as_str(), value.as_str(), source));
            let default = (result.resource_type == 4).then_some(("num.partitions", "1", BROKERS_DEFAULT));
            let config = |(name, value, config_source): (&str, &str, i8)| DescribeConfigsResourceResult {
                name: name.to_owned(),
                value: Some(value.to_owned()),
                config_source,
                ..Default::default()
            };
            result.configs = set.chain(default).map(config).collect();
        }
        response
    }

    /// Of all topics, with what a test says of them.
    pub(super) fn share_group_offsets(
        &self,
        request: &DescribeShareGroupOffsetsRequest,
    ) -> DescribeShareGroupOffsetsResponse {
        use describe_share_group_offsets_response as answer;
        let mut response = request.refused(ErrorCode::NONE);
        let partition = |(partition, start_offset, lag, code): &(i32, i64, i64, ErrorCode)| {
            answer::DescribeShareGroupOffsetsResponsePartition {
                partition_index: *partition,
                start_offset: *start_offset,
                lag: *lag,
                error_code: code.code(),
                ..Default::default()
            }
        };
        for group in &mut response.groups {
            group.topics = vec![answer::DescribeShareGroupOffsetsResponseTopic {
                topic_name: self.layout.topics[0].0.to_owned(),
                partitions: self.share_offsets.iter().map(partition).collect(),
                ..Default::default()
            }];
        }
        response
    }
}
