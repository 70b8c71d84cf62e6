//! Every API asks the authorizer, and says what it refused.

use headrace_broker::Operation;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::create_partitions_request::CreatePartitionsTopic;
use headrace_wire::messages::create_topics_request::CreatableTopic;
use headrace_wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use headrace_wire::messages::delete_topics_request::DeleteTopicState;
use headrace_wire::messages::describe_configs_request::DescribeConfigsResource;
use headrace_wire::messages::describe_topic_partitions_request::TopicRequest;
use headrace_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use headrace_wire::messages::metadata_request::MetadataRequestTopic;
use headrace_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use headrace_wire::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use headrace_wire::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use headrace_wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use headrace_wire::messages::*;

use crate::world::*;

const TOPIC: i16 = 29;
const GROUP: i16 = 30;
const CLUSTER: i16 = 31;

fn denied(operation: Operation, kind: Kind) -> World {
    let mut world = World::denying(&[(operation, kind)]);
    // Made on demand, as CREATE may be what is denied.
    let topic = MetadataRequestTopic { name: Some("t".into()), ..MetadataRequestTopic::default() };
    world.call(9, &MetadataRequest { topics: Some(vec![topic]), ..MetadataRequest::default() });
    world
}

#[test]
fn records() {
    let mut world = denied(Operation::Write, Kind::Topic);
    assert_eq!(produced(&world.produce("t", 0, batch(WALL, &["x"]))).0.code(), TOPIC);
    assert_eq!(produced(&world.produce("missing", 0, batch(WALL, &["x"]))).0.code(), TOPIC);

    let mut world = denied(Operation::Read, Kind::Topic);
    world.append("t", 0, &["secret"]);
    let response = world.fetch("t", 0, 0);
    assert_eq!(error_of(&response).code(), TOPIC);
    assert!(values(&response).is_empty());
    assert_eq!(response.responses[0].partitions[0].high_watermark, -1);
    assert_eq!(error_of(&world.fetch("missing", 0, 0)).code(), TOPIC);

    let mut world = denied(Operation::Delete, Kind::Topic);
    let partition = DeleteRecordsPartition { partition_index: 0, offset: 0 };
    let topics = vec![DeleteRecordsTopic { name: "t".into(), partitions: vec![partition] }];
    let response = world.call(2, &DeleteRecordsRequest { topics, timeout_ms: 1 });
    assert_eq!(response.topics[0].partitions[0].error_code, TOPIC);
}

#[test]
fn looking_at_topics() {
    let mut world = denied(Operation::Describe, Kind::Topic);
    world.create("t", 1);
    let topic = MetadataRequestTopic { name: Some("t".into()), ..MetadataRequestTopic::default() };
    let request = MetadataRequest { topics: Some(vec![topic]), ..MetadataRequest::default() };
    assert_eq!(world.call(9, &request).topics[0].error_code, TOPIC);
    let all = MetadataRequest { topics: None, ..MetadataRequest::default() };
    assert!(world.call(9, &all).topics.is_empty(), "left out of the list");

    let partitions = vec![ListOffsetsPartition { timestamp: -1, ..ListOffsetsPartition::default() }];
    let topics = vec![ListOffsetsTopic { name: "t".into(), partitions }];
    let response = world.call(5, &ListOffsetsRequest { topics, ..ListOffsetsRequest::default() });
    assert_eq!(response.topics[0].partitions[0].error_code, TOPIC);

    let partitions = vec![OffsetForLeaderPartition::default()];
    let topics = vec![OffsetForLeaderTopic { topic: "t".into(), partitions }];
    let response =
        world.call(4, &OffsetForLeaderEpochRequest { topics, ..OffsetForLeaderEpochRequest::default() });
    assert_eq!(response.topics[0].partitions[0].error_code, TOPIC);

    let topics = vec![TopicRequest { name: "t".into() }];
    let request = DescribeTopicPartitionsRequest { topics, ..DescribeTopicPartitionsRequest::default() };
    assert_eq!(world.call(0, &request).topics[0].error_code, TOPIC);
    assert!(world.call(0, &DescribeTopicPartitionsRequest::default()).topics.is_empty());
}

#[test]
fn changing_topics() {
    let new =
        CreatableTopic { name: "n".into(), num_partitions: 1, replication_factor: 1, ..Default::default() };
    let request = CreateTopicsRequest { topics: vec![new], ..CreateTopicsRequest::default() };
    let mut world = World::denying(&[(Operation::Create, Kind::Cluster), (Operation::Create, Kind::Topic)]);
    assert_eq!(world.call(5, &request).topics[0].error_code, TOPIC);
    let topic = MetadataRequestTopic { name: Some("n".into()), ..MetadataRequestTopic::default() };
    let demand = MetadataRequest { topics: Some(vec![topic]), ..MetadataRequest::default() };
    assert_eq!(world.call(9, &demand).topics[0].error_code, TOPIC);
    // Either permission is enough.
    assert_eq!(denied(Operation::Create, Kind::Cluster).call(5, &request).topics[0].error_code, 0);
    assert_eq!(denied(Operation::Create, Kind::Topic).call(5, &request).topics[0].error_code, 0);

    let mut world = denied(Operation::Delete, Kind::Topic);
    let request = DeleteTopicsRequest { topic_names: vec!["t".into()], ..DeleteTopicsRequest::default() };
    assert_eq!(world.call(5, &request).responses[0].error_code, TOPIC);
    let all = MetadataRequest { topics: None, ..MetadataRequest::default() };
    let topic_id = world.call(12, &all).topics[0].topic_id;
    let topics = vec![DeleteTopicState { name: None, topic_id }];
    let request = DeleteTopicsRequest { topics, ..DeleteTopicsRequest::default() };
    assert_eq!(world.call(6, &request).responses[0].error_code, TOPIC);

    let mut world = denied(Operation::Alter, Kind::Topic);
    let topics = vec![CreatePartitionsTopic { name: "t".into(), count: 3, assignments: None }];
    let request = CreatePartitionsRequest { topics, ..CreatePartitionsRequest::default() };
    assert_eq!(world.call(3, &request).results[0].error_code, TOPIC);
}

#[test]
fn settings() {
    let resource = |resource_type, name: &str| DescribeConfigsResource {
        resource_type,
        resource_name: name.into(),
        configuration_keys: None,
    };
    let request = DescribeConfigsRequest {
        resources: vec![resource(2, "t"), resource(4, "1")],
        ..DescribeConfigsRequest::default()
    };
    let codes = |world: &mut World| -> Vec<i16> {
        world.call(4, &request).results.iter().map(|r| r.error_code).collect()
    };
    assert_eq!(codes(&mut denied(Operation::DescribeConfigs, Kind::Topic)), [TOPIC, 0]);
    assert_eq!(codes(&mut denied(Operation::DescribeConfigs, Kind::Cluster)), [0, CLUSTER]);

    let mut world =
        World::denying(&[(Operation::AlterConfigs, Kind::Topic), (Operation::AlterConfigs, Kind::Cluster)]);
    world.create("t", 1);
    let resource = |resource_type| incremental_alter_configs_request::AlterConfigsResource {
        resource_type,
        resource_name: "t".into(),
        configs: vec![],
    };
    let request =
        IncrementalAlterConfigsRequest { resources: vec![resource(2), resource(4)], validate_only: false };
    let codes: Vec<i16> = world.call(1, &request).responses.iter().map(|r| r.error_code).collect();
    assert_eq!(codes, [TOPIC, CLUSTER]);
    let resource = |resource_type| alter_configs_request::AlterConfigsResource {
        resource_type,
        resource_name: "t".into(),
        configs: vec![],
    };
    let request = AlterConfigsRequest { resources: vec![resource(2), resource(4)], validate_only: false };
    let codes: Vec<i16> = world.call(2, &request).responses.iter().map(|r| r.error_code).collect();
    assert_eq!(codes, [TOPIC, CLUSTER]);
}

#[test]
fn cluster_and_producer_ids() {
    let mut world = denied(Operation::Describe, Kind::Cluster);
    assert_eq!(world.call(1, &DescribeClusterRequest::default()).error_code, CLUSTER);
    let mut world =
        World::denying(&[(Operation::IdempotentWrite, Kind::Cluster), (Operation::Write, Kind::Topic)]);
    world.create("t", 1);
    let response = world.call(4, &plain_id());
    assert_eq!((response.error_code, response.producer_id), (CLUSTER, -1));
    // Who may write to some topic may have an id (KIP-679).
    let mut world = denied(Operation::IdempotentWrite, Kind::Cluster);
    assert_eq!(world.call(4, &plain_id()).error_code, 0);
    let mut world = denied(Operation::Write, Kind::TransactionalId);
    let request =
        InitProducerIdRequest { transactional_id: Some("x".into()), ..InitProducerIdRequest::default() };
    let error = ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED.code();
    assert_eq!(world.call(4, &request).error_code, error);
    let mut world = denied(Operation::Describe, Kind::TransactionalId);
    let request =
        FindCoordinatorRequest { key_type: 1, coordinator_keys: vec!["x".into()], ..Default::default() };
    assert_eq!(world.call(6, &request).coordinators[0].error_code, error);
}

#[test]
fn members_of_groups() {
    let mut world = denied(Operation::Read, Kind::Group);
    let join =
        JoinGroupRequest { group_id: "g".into(), session_timeout_ms: 10_000, ..JoinGroupRequest::default() };
    assert_eq!(world.call(5, &join).error_code, GROUP);
    let sync = SyncGroupRequest { group_id: "g".into(), ..SyncGroupRequest::default() };
    assert_eq!(world.call(4, &sync).error_code, GROUP);
    let beat = HeartbeatRequest { group_id: "g".into(), ..HeartbeatRequest::default() };
    assert_eq!(world.call(4, &beat).error_code, GROUP);
    let leave = LeaveGroupRequest { group_id: "g".into(), ..LeaveGroupRequest::default() };
    assert_eq!(world.call(5, &leave).error_code, GROUP);
    assert_eq!(commit(&mut world), GROUP);
    let mut world = denied(Operation::Read, Kind::Topic);
    assert_eq!(commit(&mut world), TOPIC);
}

fn commit(world: &mut World) -> i16 {
    let partitions = vec![OffsetCommitRequestPartition::default()];
    let topics = vec![OffsetCommitRequestTopic { name: "t".into(), partitions, ..Default::default() }];
    let request = OffsetCommitRequest { group_id: "g".into(), topics, ..OffsetCommitRequest::default() };
    world.call(7, &request).topics[0].partitions[0].error_code
}

#[test]
fn looking_at_groups_and_deleting_them() {
    let mut world = denied(Operation::Describe, Kind::Group);
    assert_eq!(commit(&mut world), 0);
    for version in 0..=6 {
        let request = FindCoordinatorRequest {
            key: if version < 4 { "g".into() } else { String::new() },
            coordinator_keys: if version < 4 { vec![] } else { vec!["g".into()] },
            ..FindCoordinatorRequest::default()
        };
        let response = world.call(version, &request);
        let error = if version < 4 { response.error_code } else { response.coordinators[0].error_code };
        assert_eq!(error, GROUP, "version {version}");
    }
    let fetch = OffsetFetchRequest {
        groups: vec![OffsetFetchRequestGroup { group_id: "g".into(), topics: None, ..Default::default() }],
        ..OffsetFetchRequest::default()
    };
    assert_eq!(world.call(9, &fetch).groups[0].error_code, GROUP);
    let describe = DescribeGroupsRequest { groups: vec!["g".into()], ..DescribeGroupsRequest::default() };
    assert_eq!(world.call(5, &describe).groups[0].error_code, GROUP);
    assert_eq!(world.call(4, &ListGroupsRequest::default()).groups.len(), 1, "by the right on the cluster");
    let mut world =
        World::denying(&[(Operation::Describe, Kind::Group), (Operation::Describe, Kind::Cluster)]);
    assert_eq!(world.call(4, &ListGroupsRequest::default()).groups.len(), 0);

    let mut world = denied(Operation::Delete, Kind::Group);
    assert_eq!(commit(&mut world), 0);
    let request = DeleteGroupsRequest { groups_names: vec!["g".into()] };
    assert_eq!(world.call(2, &request).results[0].error_code, GROUP);
    assert_eq!(delete_offset(&mut world).0, GROUP);
    let mut world = denied(Operation::Read, Kind::Topic);
    world.call(7, &OffsetCommitRequest { group_id: "g".into(), ..OffsetCommitRequest::default() });
    assert_eq!(
        delete_offset(&mut world),
        (ErrorCode::GROUP_ID_NOT_FOUND.code(), None),
        "nothing was committed"
    );

    let mut world = denied(Operation::Describe, Kind::Topic);
    world.create("t", 1);
    assert_eq!(commit(&mut world), 0);
    let topics = vec![OffsetFetchRequestTopics {
        name: "t".into(),
        partition_indexes: vec![0],
        ..OffsetFetchRequestTopics::default()
    }];
    let group = |topics| OffsetFetchRequestGroup { group_id: "g".into(), topics, ..Default::default() };
    let named = OffsetFetchRequest { groups: vec![group(Some(topics))], ..OffsetFetchRequest::default() };
    assert_eq!(world.call(9, &named).groups[0].topics[0].partitions[0].error_code, TOPIC);
    let all = OffsetFetchRequest { groups: vec![group(None)], ..OffsetFetchRequest::default() };
    assert!(world.call(9, &all).groups[0].topics.is_empty());
}

fn delete_offset(world: &mut World) -> (i16, Option<i16>) {
    let partitions = vec![OffsetDeleteRequestPartition { partition_index: 0 }];
    let topics = vec![OffsetDeleteRequestTopic { name: "t".into(), partitions }];
    let response = world.call(0, &OffsetDeleteRequest { group_id: "g".into(), topics });
    (response.error_code, response.topics.first().map(|t| t.partitions[0].error_code))
}
