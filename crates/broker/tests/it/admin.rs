//! Metadata, topics, partitions, settings.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use headrace_wire::messages::create_partitions_request::CreatePartitionsTopic;
use headrace_wire::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
};
use headrace_wire::messages::delete_topics_request::DeleteTopicState;
use headrace_wire::messages::describe_configs_request::DescribeConfigsResource;
use headrace_wire::messages::describe_log_dirs_request::DescribableLogDirTopic;
use headrace_wire::messages::describe_topic_partitions_request::{Cursor, TopicRequest};
use headrace_wire::messages::metadata_request::MetadataRequestTopic;
use headrace_wire::messages::{
    AlterConfigsRequest, AlterPartitionReassignmentsRequest, CreatePartitionsRequest, CreateTopicsRequest,
    DeleteTopicsRequest, DescribeClusterRequest, DescribeConfigsRequest, DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest, ElectLeadersRequest, IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest, MetadataRequest, alter_configs_request, elect_leaders_request,
    incremental_alter_configs_request,
};
use headrace_wire::uuid::Uuid;

use crate::world::*;

fn named(names: &[&str]) -> MetadataRequest {
    let topic =
        |name: &&str| MetadataRequestTopic { name: Some((*name).into()), ..MetadataRequestTopic::default() };
    MetadataRequest { topics: Some(names.iter().map(topic).collect()), ..MetadataRequest::default() }
}

fn all() -> MetadataRequest {
    MetadataRequest { topics: None, ..MetadataRequest::default() }
}

#[test]
fn metadata_in_every_version() {
    let mut world = World::new();
    world.create("a", 2);
    world.create("b", 1);
    for version in 0..=13 {
        let everything = if version == 0 { named(&[]) } else { all() };
        let response = world.call(version, &everything);
        let names: Vec<_> = response.topics.iter().map(|t| t.name.clone().unwrap()).collect();
        assert_eq!(names, ["a", "b"], "version {version}");
        assert_eq!(response.brokers[0].host, "broker.test");
        assert_eq!((response.brokers[0].port, response.brokers[0].node_id), (1234, 1));
        if version >= 1 {
            assert_eq!(response.controller_id, 1);
            assert_eq!(world.call(version, &named(&[])).topics.len(), 0, "an empty list is empty");
        }
        if version >= 2 {
            assert_eq!(response.cluster_id.as_deref(), Some(world.broker.cluster_id()));
        }
        assert_eq!(response.topics[0].partitions.len(), 2);
        assert_eq!(response.topics[0].partitions[1].replica_nodes, [1]);
        if version >= 10 {
            assert!(!response.topics[0].topic_id.is_zero());
        }
    }
}

#[test]
fn topics_are_made_on_demand_where_that_is_allowed() {
    let mut world = World::with(&[("num.partitions", "3")]);
    for version in 4..=13 {
        let quiet = MetadataRequest { allow_auto_topic_creation: false, ..named(&["later"]) };
        let response = world.call(version, &quiet);
        assert_eq!(response.topics[0].error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.code());
    }
    let unknown = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.code();
    for version in 0..=13 {
        // Old versions cannot say that they want none made.
        let name = format!("v{version}");
        let first = world.call(version, &named(&[&name]));
        assert_eq!((first.topics[0].error_code, first.topics[0].partitions.len()), (unknown, 0), "{name}");
        let second = world.call(version, &named(&[&name]));
        assert_eq!((second.topics[0].error_code, second.topics[0].partitions.len()), (0, 3), "{name}");
        assert_eq!(world.append(&name, 2, &["x"]), 0);
    }
    for bad in ["", ".", "..", "a b", "a/b", &"x".repeat(250)] {
        let response = world.call(9, &named(&[bad]));
        assert_eq!(response.topics[0].error_code, ErrorCode::INVALID_TOPIC_EXCEPTION.code(), "{bad:?}");
    }
    let mut world = World::with(&[("auto.create.topics.enable", "false")]);
    let response = world.call(9, &named(&["never"]));
    assert_eq!(response.topics[0].error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.code());
    assert!(partition_dirs(&world.disk).is_empty());
}

#[test]
fn metadata_by_id() {
    let mut world = World::new();
    world.create("a", 1);
    let id = world.call(12, &all()).topics[0].topic_id;
    let ask = |id| MetadataRequest {
        topics: Some(vec![MetadataRequestTopic { topic_id: id, name: None }]),
        ..MetadataRequest::default()
    };
    for version in [12, 13] {
        let found = world.call(version, &ask(id));
        assert_eq!((found.topics[0].error_code, found.topics[0].name.as_deref()), (0, Some("a")));
        let missing = world.call(version, &ask(Uuid([3; 16])));
        assert_eq!(missing.topics[0].error_code, ErrorCode::UNKNOWN_TOPIC_ID.code());
        assert_eq!(missing.topics[0].topic_id, Uuid([3; 16]));
    }
}

#[test]
fn authorized_operations_are_told_on_request() {
    let mut world = World::new();
    world.create("a", 1);
    let request = MetadataRequest {
        include_topic_authorized_operations: true,
        include_cluster_authorized_operations: true,
        ..all()
    };
    let response = world.call(9, &request);
    let bits: i32 = [3, 4, 5, 6, 7, 8, 10, 11].iter().map(|b| 1 << b).sum();
    assert_eq!(response.topics[0].topic_authorized_operations, bits);
    let bits: i32 = [5, 7, 8, 9, 10, 11, 12].iter().map(|b| 1 << b).sum();
    assert_eq!(response.cluster_authorized_operations, bits);
    assert_eq!(world.call(9, &all()).topics[0].topic_authorized_operations, i32::MIN);
    let cluster = DescribeClusterRequest {
        include_cluster_authorized_operations: true,
        ..DescribeClusterRequest::default()
    };
    for version in 0..=2 {
        let response = world.call(version, &cluster);
        assert_eq!((response.error_code, response.cluster_authorized_operations), (0, bits));
        assert_eq!(response.brokers[0].host, "broker.test");
    }
    let controllers = DescribeClusterRequest { endpoint_type: 2, ..DescribeClusterRequest::default() };
    assert_eq!(world.call(1, &controllers).error_code, ErrorCode::MISMATCHED_ENDPOINT_TYPE.code());
}

fn topic(name: &str) -> CreatableTopic {
    CreatableTopic {
        name: name.into(),
        num_partitions: 1,
        replication_factor: 1,
        ..CreatableTopic::default()
    }
}

fn create(world: &mut World, version: i16, topics: Vec<CreatableTopic>) -> Vec<ErrorCode> {
    let request = CreateTopicsRequest { topics, ..CreateTopicsRequest::default() };
    let response = world.call(version, &request);
    for topic in &response.topics {
        assert_eq!(topic.error_code != 0, topic.error_message.is_some());
    }
    response.topics.iter().map(|t| ErrorCode::new(t.error_code)).collect()
}

#[test]
fn create_topics_refuses_what_cannot_be() {
    let mut world = World::new();
    for version in 2..=7 {
        assert_eq!(create(&mut world, version, vec![topic(&format!("v{version}"))]), [ErrorCode::NONE]);
    }
    let config = |name: &str, value: Option<&str>| CreatableTopic {
        configs: vec![CreatableTopicConfig { name: name.into(), value: value.map(str::to_owned) }],
        ..topic("bad")
    };
    let assigned = |indexes: &[i32], broker| CreatableTopic {
        num_partitions: -1,
        replication_factor: -1,
        assignments: indexes
            .iter()
            .map(|i| CreatableReplicaAssignment { partition_index: *i, broker_ids: vec![broker] })
            .collect(),
        ..topic("assigned")
    };
    let cases = [
        (topic("v2"), ErrorCode::TOPIC_ALREADY_EXISTS),
        (topic("a/b"), ErrorCode::INVALID_TOPIC_EXCEPTION),
        (CreatableTopic { num_partitions: 0, ..topic("bad") }, ErrorCode::INVALID_PARTITIONS),
        (CreatableTopic { num_partitions: 1_000_000, ..topic("bad") }, ErrorCode::POLICY_VIOLATION),
        (CreatableTopic { replication_factor: 3, ..topic("bad") }, ErrorCode::INVALID_REPLICATION_FACTOR),
        (config("no.such.setting", Some("1")), ErrorCode::INVALID_CONFIG),
        (config("retention.ms", Some("soon")), ErrorCode::INVALID_CONFIG),
        (config("retention.ms", None), ErrorCode::INVALID_CONFIG),
        (assigned(&[0, 2], 1), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
        (assigned(&[0], 9), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
        (CreatableTopic { num_partitions: 2, ..assigned(&[0, 1], 1) }, ErrorCode::INVALID_REQUEST),
        (assigned(&[1, 0], 1), ErrorCode::NONE),
        (CreatableTopic { num_partitions: -1, replication_factor: -1, ..topic("defaults") }, ErrorCode::NONE),
    ];
    for (wanted, error) in cases {
        let name = wanted.name.clone();
        assert_eq!(create(&mut world, 5, vec![wanted]), [error], "{name}");
    }
    assert_eq!(
        create(&mut world, 5, vec![topic("twice"), topic("twice"), topic("once")]),
        [ErrorCode::INVALID_REQUEST, ErrorCode::NONE]
    );
    assert_eq!(create(&mut world, 5, vec![topic("x.y")]), [ErrorCode::NONE]);
    assert_eq!(
        create(&mut world, 5, vec![topic("x_y")]),
        [ErrorCode::INVALID_TOPIC_EXCEPTION],
        "names collide"
    );
}

#[test]
fn one_request_makes_no_more_partitions_than_kafka_allows() {
    let mut world = World::new();
    let wanted = |name: &str| CreatableTopic { num_partitions: 5_001, ..topic(name) };
    let refused = create(&mut world, 7, vec![wanted("a"), wanted("b")]);
    assert_eq!(refused, [ErrorCode::POLICY_VIOLATION; 2]);
    assert!(partition_dirs(&world.disk).is_empty());
    world.create("a", 1);
    world.create("b", 1);
    let more = |name: &str| CreatePartitionsTopic { name: name.into(), count: 5_002, assignments: None };
    let request = CreatePartitionsRequest {
        topics: vec![more("a"), more("b")],
        timeout_ms: 1000,
        validate_only: false,
    };
    for result in world.call(3, &request).results {
        assert_eq!(result.error_code, ErrorCode::POLICY_VIOLATION.code());
    }
    assert_eq!(partition_dirs(&world.disk).len(), 2);
}

#[test]
fn topics_that_a_request_names_twice_are_not_deleted() {
    let mut world = World::new();
    world.create("t", 1);
    world.create("u", 1);
    let names = ["t", "u", "t"].map(str::to_owned).to_vec();
    let response = world.call(5, &DeleteTopicsRequest { topic_names: names, ..Default::default() });
    let answers: Vec<_> = response.responses.iter().map(|r| (r.name.as_deref(), r.error_code)).collect();
    assert_eq!(answers, [(Some("t"), ErrorCode::INVALID_REQUEST.code()), (Some("u"), 0)]);
    assert_eq!(response.responses[0].error_message.as_deref(), Some("Duplicate topic name."));
    assert_eq!(partition_dirs(&world.disk).len(), 1);
}

#[test]
fn create_topics_tells_what_it_made_and_validates_only_on_request() {
    let mut world = World::new();
    let config = CreatableTopicConfig { name: "retention.ms".into(), value: Some("77".into()) };
    let wanted = CreatableTopic { num_partitions: 2, configs: vec![config], ..topic("t") };
    let mut request =
        CreateTopicsRequest { topics: vec![wanted], validate_only: true, ..CreateTopicsRequest::default() };
    assert_eq!(world.call(7, &request).topics[0].error_code, 0);
    assert!(world.call(9, &all()).topics.is_empty());
    request.validate_only = false;
    let made = world.call(7, &request).topics.remove(0);
    assert_eq!((made.num_partitions, made.replication_factor), (2, 1));
    assert!(!made.topic_id.is_zero());
    let configs = made.configs.unwrap();
    let retention = configs.iter().find(|c| c.name == "retention.ms").unwrap();
    assert_eq!((retention.value.as_deref(), retention.config_source), (Some("77"), 1));
    let segment = configs.iter().find(|c| c.name == "segment.bytes").unwrap();
    assert_eq!((segment.value.as_deref(), segment.config_source), (Some("1073741824"), 5));
}

#[test]
fn topics_are_deleted_by_name_and_by_id() {
    let mut world = World::new();
    for version in 1..=6 {
        world.create("t", 2);
        assert_eq!(world.append("t", 1, &["x"]), 0, "a new topic is empty");
        let request = if version < 6 {
            DeleteTopicsRequest {
                topic_names: vec!["t".into(), "gone".into()],
                ..DeleteTopicsRequest::default()
            }
        } else {
            let id = world.call(12, &all()).topics[0].topic_id;
            let topics = vec![
                DeleteTopicState { name: None, topic_id: id },
                DeleteTopicState { name: None, topic_id: Uuid([1; 16]) },
                DeleteTopicState { name: Some("t".into()), topic_id: id },
            ];
            DeleteTopicsRequest { topics, ..DeleteTopicsRequest::default() }
        };
        let response = world.call(version, &request);
        assert_eq!(response.responses[0].error_code, 0, "version {version}");
        assert_eq!(response.responses[0].name.as_deref(), Some("t"));
        let missing =
            if version < 6 { ErrorCode::UNKNOWN_TOPIC_OR_PARTITION } else { ErrorCode::UNKNOWN_TOPIC_ID };
        assert_eq!(response.responses[1].error_code, missing.code());
        if version == 6 {
            assert_eq!(response.responses[2].error_code, ErrorCode::INVALID_REQUEST.code());
        }
        assert!(partition_dirs(&world.disk).is_empty());
        assert_eq!(error_of(&world.fetch("t", 0, 0)), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    }
    let mut world = World::with(&[("delete.topic.enable", "false")]);
    world.create("t", 1);
    let request = DeleteTopicsRequest { topic_names: vec!["t".into()], ..DeleteTopicsRequest::default() };
    assert_eq!(world.call(5, &request).responses[0].error_code, ErrorCode::TOPIC_DELETION_DISABLED.code());
}

#[test]
fn partitions_are_added_never_taken() {
    let mut world = World::new();
    world.create("t", 2);
    let mut ask = |version, name: &str, count, validate_only| {
        let topic = CreatePartitionsTopic { name: name.into(), count, assignments: None };
        let request = CreatePartitionsRequest { topics: vec![topic], timeout_ms: 1000, validate_only };
        world.call(version, &request).results[0].error_code
    };
    assert_eq!(ask(0, "t", 2, false), ErrorCode::INVALID_PARTITIONS.code());
    assert_eq!(ask(1, "t", 1, false), ErrorCode::INVALID_PARTITIONS.code());
    assert_eq!(ask(2, "u", 5, false), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.code());
    assert_eq!(ask(3, "t", 5, true), 0);
    assert_eq!(ask(3, "t", 4, false), 0);
    assert_eq!(world.append("t", 3, &["x"]), 0);
    assert_eq!(error_of(&world.fetch("t", 4, 0)), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
}

#[test]
fn the_journal_of_groups_keeps_its_partitions() {
    let mut world = World::new();
    world.call(9, &named(&["__consumer_offsets"]));
    let topic = CreatePartitionsTopic { name: "__consumer_offsets".into(), count: 2, assignments: None };
    let request = CreatePartitionsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() };
    let refused = &world.call(3, &request).results[0];
    assert_eq!(refused.error_code, ErrorCode::INVALID_TOPIC_EXCEPTION.code());
    let topic_names = vec!["__consumer_offsets".into()];
    let request = DeleteTopicsRequest { topic_names, ..DeleteTopicsRequest::default() };
    let refused = &world.call(5, &request).responses[0];
    assert_eq!(refused.error_code, ErrorCode::INVALID_TOPIC_EXCEPTION.code());
}

#[test]
fn a_full_disk_makes_no_topic() {
    let mut world = World::new();
    world.create("before", 1);
    world.disk.set_room(Some(100));
    assert_eq!(create(&mut world, 5, vec![topic("after")]), [ErrorCode::KAFKA_STORAGE_ERROR]);
    world.disk.set_room(None);
    assert_eq!(world.call(9, &all()).topics.len(), 1);
    assert_eq!(create(&mut world, 5, vec![topic("after")]), [ErrorCode::NONE]);
}

fn describe(world: &mut World, kind: i8, name: &str) -> Vec<(String, String, i8)> {
    let resource =
        DescribeConfigsResource { resource_type: kind, resource_name: name.into(), configuration_keys: None };
    let request = DescribeConfigsRequest {
        resources: vec![resource],
        include_synonyms: true,
        include_documentation: true,
    };
    let result = world.call(4, &request).results.remove(0);
    assert_eq!(result.error_code, 0, "{:?}", result.error_message);
    assert!(result.configs.iter().all(|c| c.documentation.is_some()));
    result.configs.into_iter().map(|c| (c.name, c.value.unwrap(), c.config_source)).collect()
}

#[test]
fn settings_are_described_and_altered() {
    let mut world = World::with(&[("log.retention.ms", "1000")]);
    world.create_with("t", 1, &[("segment.bytes", "2000000")]);
    let find = |settings: &[(String, String, i8)], name: &str| {
        settings.iter().find(|(n, ..)| n == name).map(|(_, value, source)| (value.clone(), *source)).unwrap()
    };
    let settings = describe(&mut world, 2, "t");
    assert_eq!(find(&settings, "segment.bytes"), ("2000000".into(), 1));
    assert_eq!(find(&settings, "retention.ms"), ("1000".into(), 4));
    assert_eq!(find(&settings, "retention.bytes"), ("-1".into(), 5));
    let broker = describe(&mut world, 4, "1");
    assert_eq!(find(&broker, "log.retention.ms"), ("1000".into(), 4));
    assert_eq!(find(&broker, "advertised.listeners"), ("PLAINTEXT://broker.test:1234".into(), 4));

    let change =
        |name: &str, operation, value: Option<&str>| incremental_alter_configs_request::AlterableConfig {
            name: name.into(),
            config_operation: operation,
            value: value.map(str::to_owned),
        };
    let mut alter = |configs: Vec<_>| {
        let resource = incremental_alter_configs_request::AlterConfigsResource {
            resource_type: 2,
            resource_name: "t".into(),
            configs,
        };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
        ErrorCode::new(world.call(1, &request).responses[0].error_code)
    };
    assert_eq!(alter(vec![change("max.message.bytes", 0, Some("100"))]), ErrorCode::NONE);
    assert_eq!(alter(vec![change("cleanup.policy", 2, Some("compact"))]), ErrorCode::NONE);
    assert_eq!(alter(vec![change("segment.bytes", 1, None)]), ErrorCode::NONE);
    assert_eq!(alter(vec![change("retention.ms", 2, Some("1"))]), ErrorCode::INVALID_CONFIG);
    assert_eq!(alter(vec![change("retention.mss", 0, Some("1"))]), ErrorCode::INVALID_CONFIG);
    assert_eq!(alter(vec![change("retention.ms", 9, Some("1"))]), ErrorCode::INVALID_REQUEST);
    let twice = vec![change("retention.ms", 0, Some("1")), change("retention.ms", 0, Some("2"))];
    assert_eq!(alter(twice), ErrorCode::INVALID_REQUEST);
    assert_eq!(alter(vec![change("retention.ms", 0, None)]), ErrorCode::INVALID_REQUEST);
    let response = world.produce("t", 0, batch(WALL, &[&"x".repeat(200)]));
    assert_eq!(produced(&response).0, ErrorCode::MESSAGE_TOO_LARGE, "the new limit holds at once");
    let mut world = world.killed(&[]);
    let settings = describe(&mut world, 2, "t");
    assert_eq!(find(&settings, "max.message.bytes"), ("100".into(), 1));
    assert_eq!(find(&settings, "cleanup.policy"), ("delete,compact".into(), 1));
    assert_eq!(find(&settings, "segment.bytes").1, 5);

    let resource = alter_configs_request::AlterConfigsResource {
        resource_type: 2,
        resource_name: "t".into(),
        configs: vec![alter_configs_request::AlterableConfig {
            name: "retention.ms".into(),
            value: Some("9".into()),
        }],
    };
    let broker = alter_configs_request::AlterConfigsResource {
        resource_type: 4,
        resource_name: "1".into(),
        ..alter_configs_request::AlterConfigsResource::default()
    };
    let request = AlterConfigsRequest { resources: vec![resource, broker], validate_only: false };
    let response = world.call(2, &request);
    assert_eq!(response.responses[0].error_code, 0);
    assert_eq!(response.responses[1].error_code, ErrorCode::INVALID_REQUEST.code());
    let settings = describe(&mut world, 2, "t");
    assert_eq!(find(&settings, "retention.ms"), ("9".into(), 1));
    assert_eq!(find(&settings, "max.message.bytes").1, 5, "AlterConfigs replaces all");
}

#[test]
fn a_broker_tells_its_address_among_its_settings() {
    for (host, address) in
        [("::1", "PLAINTEXT://[::1]:9092"), ("example.org", "PLAINTEXT://example.org:9092")]
    {
        let mut world = World::with(&[("advertised.host", host), ("advertised.port", "9092")]);
        let settings = describe(&mut world, 4, "1");
        assert!(settings.contains(&("advertised.listeners".into(), address.into(), 4)), "{settings:?}");
    }
}

#[test]
fn retention_deletes_old_segments() {
    let mut world = World::with(&[("log.retention.check.interval.ms", "1000")]);
    world.create_with("t", 1, &[("retention.ms", "5000"), ("segment.ms", "100")]);
    world.append("t", 0, &["old"]);
    world.pass(200);
    world.append("t", 0, &["new"]);
    assert_eq!(values(&world.fetch("t", 0, 0)), ["old"]);
    world.pass(6500);
    assert_eq!(world.broker.take_troubles(), Vec::<String>::new());
    assert_eq!(error_of(&world.fetch("t", 0, 0)), ErrorCode::OFFSET_OUT_OF_RANGE);
}

#[test]
fn what_a_request_names_again_and_again_is_told_once() {
    let mut world = World::new();
    world.create("t", 1000);
    let response = world.call(9, &named(&["t"; 100]));
    assert_eq!(response.topics.len(), 1);
    let resource =
        DescribeConfigsResource { resource_type: 2, resource_name: "t".into(), ..Default::default() };
    let request =
        DescribeConfigsRequest { resources: vec![resource; 100], ..DescribeConfigsRequest::default() };
    assert_eq!(world.call(4, &request).results.len(), 1);
}

#[test]
fn topics_are_described_page_by_page() {
    let mut world = World::new();
    world.create("a", 3);
    world.create("b", 3);
    let mut seen = Vec::new();
    let mut cursor = None;
    for _ in 0..10 {
        let request = DescribeTopicPartitionsRequest { topics: vec![], response_partition_limit: 2, cursor };
        let response = world.call(0, &request);
        for topic in &response.topics {
            assert_eq!(topic.error_code, 0);
            seen.extend(topic.partitions.iter().map(|p| (topic.name.clone().unwrap(), p.partition_index)));
        }
        match response.next_cursor {
            Some(next) => {
                let (topic_name, partition_index) = (next.topic_name, next.partition_index);
                cursor = Some(Cursor { topic_name, partition_index });
            }
            None => break,
        }
    }
    let expected: Vec<(String, i32)> =
        ["a", "b"].iter().flat_map(|t| (0..3).map(|p| ((*t).to_owned(), p))).collect();
    assert_eq!(seen, expected);
    let asked = vec![TopicRequest { name: "no".into() }, TopicRequest { name: "a/b".into() }];
    let request =
        DescribeTopicPartitionsRequest { topics: asked, ..DescribeTopicPartitionsRequest::default() };
    let codes: Vec<i16> = world.call(0, &request).topics.iter().map(|t| t.error_code).collect();
    assert_eq!(codes, [17, 3]);
}

#[test]
fn the_data_directory_and_the_sizes_in_it_are_told() {
    let mut world = World::new();
    world.create("t", 2);
    world.append("t", 1, &["a", "b"]);
    let mut sizes = |topics: Option<Vec<DescribableLogDirTopic>>| {
        let [found] = &world.call(4, &DescribeLogDirsRequest { topics }).results[..] else { panic!("one") };
        assert_eq!((found.error_code, found.log_dir.as_str(), found.total_bytes), (0, DIR, -1));
        let all = found.topics.iter().flat_map(|topic| topic.partitions.iter().map(move |p| (topic, p)));
        all.map(|(topic, p)| (topic.name.clone(), p.partition_index, p.partition_size)).collect::<Vec<_>>()
    };
    let all = sizes(None);
    assert_eq!((all.len(), all[0].clone()), (2, ("t".to_owned(), 0, 0)));
    assert!(all[1].2 > 60);
    let some = DescribableLogDirTopic { topic: "t".into(), partitions: vec![1, 1, 9, -1] };
    assert_eq!(sizes(Some(vec![some])), all[1..]);
    assert_eq!(sizes(Some(vec![])), []);
}

#[test]
fn the_only_broker_has_all_copies_and_leads() {
    let mut world = World::new();
    world.create("t", 1);
    let reassign = |replicas: Option<Vec<i32>>| {
        let partitions = vec![ReassignablePartition { partition_index: 0, replicas }];
        let topics = vec![ReassignableTopic { name: "t".into(), partitions }];
        AlterPartitionReassignmentsRequest { topics, ..AlterPartitionReassignmentsRequest::default() }
    };
    for (replicas, error) in [
        (Some(vec![1]), ErrorCode::NONE),
        (Some(vec![1, 2]), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
        (Some(vec![]), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
        (None, ErrorCode::NO_REASSIGNMENT_IN_PROGRESS),
    ] {
        let answer = world.call(1, &reassign(replicas.clone()));
        let found = &answer.responses[0].partitions[0];
        assert_eq!((answer.error_code, found.error_code), (0, error.code()), "{replicas:?}");
    }
    assert_eq!(world.call(0, &ListPartitionReassignmentsRequest::default()).topics, []);
    let all = ElectLeadersRequest { topic_partitions: None, ..ElectLeadersRequest::default() };
    assert_eq!(world.call(2, &all).replica_election_results, []);
    let topic = elect_leaders_request::TopicPartitions { topic: "t".into(), partitions: vec![0, 5] };
    let some = ElectLeadersRequest { topic_partitions: Some(vec![topic]), ..all };
    let results = world.call(2, &some).replica_election_results[0].partition_result.clone();
    let codes: Vec<_> = results.iter().map(|one| ErrorCode::new(one.error_code)).collect();
    assert_eq!(codes, [ErrorCode::ELECTION_NOT_NEEDED, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION]);
}

#[test]
fn what_a_broker_has_not_set_can_be_taken_back() {
    let mut world = World::new();
    let rate = "leader.replication.throttled.rate";
    let mut ask = |operation: i8, kind: i8| {
        let config = incremental_alter_configs_request::AlterableConfig {
            name: rate.into(),
            config_operation: operation,
            value: Some("1".into()),
        };
        let resource = incremental_alter_configs_request::AlterConfigsResource {
            resource_type: kind,
            resource_name: "1".into(),
            configs: vec![config],
        };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
        ErrorCode::new(world.call(1, &request).responses[0].error_code)
    };
    assert_eq!(ask(1, 4), ErrorCode::NONE, "as Kafka's tools do after a move");
    assert_eq!(ask(0, 4), ErrorCode::INVALID_REQUEST);
}
