//! The most work that one request can ask for: no input and no unit of work may take long.
//!
//! Measured is the time that the thread has had a processor, so that a loaded machine does not count.

use bytes::Bytes;
use headrace_wire::compression::Codec;
use headrace_wire::frame;
use headrace_wire::messages::create_partitions_request::CreatePartitionsTopic;
use headrace_wire::messages::create_topics_request::CreatableTopic;
use headrace_wire::messages::delete_topics_request::DeleteTopicState;
use headrace_wire::messages::describe_configs_request::DescribeConfigsResource;
use headrace_wire::messages::describe_topic_partitions_request::TopicRequest;
use headrace_wire::messages::fetch_request::{FetchPartition, FetchTopic};
use headrace_wire::messages::join_group_request::JoinGroupRequestProtocol;
use headrace_wire::messages::leave_group_request::MemberIdentity;
use headrace_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use headrace_wire::messages::metadata_request::MetadataRequestTopic;
use headrace_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use headrace_wire::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use headrace_wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use headrace_wire::messages::produce_request::PartitionProduceData;
use headrace_wire::messages::*;
use headrace_wire::primitive::Records;
use headrace_wire::records::{BatchBuilder, NO_HEADERS, ProducerStamp};

use crate::world::*;

/// What a request may take at once, in a release build; tests are built with little optimization, so they allow ten times
/// as much.
const BAR_NS: u64 = 50_000_000;
const SLACK: u64 = 10;

/// What this thread has had of a processor, in nanoseconds.
fn spent() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn encoded<R: Request>(version: i16, request: &R) -> Bytes {
    frame::encode_request(version, 1, Some("c"), request).unwrap().to_bytes().unwrap().slice(4..)
}

/// Handles a request; the longest that one step of it took, and how many there were.
fn longest<R: Request>(world: &mut World, version: i16, request: &R) -> (u64, usize) {
    let frame = frame::encode_request(version, 1, Some("c"), request).unwrap().to_bytes().unwrap().slice(4..);
    let (mut most, mut steps) = (0, 0);
    let mut frame = Some(frame);
    while frame.is_some() || world.broker.has_work() {
        let before = spent();
        match frame.take() {
            Some(frame) => world.broker.handle_frame(world.now, A, frame),
            None => drop(world.broker.work(world.now)),
        }
        most = most.max(spent() - before);
        steps += 1;
        while world.broker.poll_response().is_some() {}
        if let Some((_, why)) = world.broker.poll_close() {
            panic!("{}: {why}", R::NAME);
        }
    }
    (most, steps)
}

#[expect(clippy::print_stdout, reason = "the figures are what one looks for when this fails")]
fn check<R: Request>(world: &mut World, version: i16, request: &R) -> usize {
    let (most, steps) = longest(world, version, request);
    println!("{:>24} {:>7} us at most, {steps} steps", R::NAME, most / 1000);
    assert!(most <= BAR_NS * SLACK, "{}: {most} ns", R::NAME);
    steps
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("name-{i}")).collect()
}

fn wide(partitions: i32) -> World {
    let mut world = World::new();
    world.create("t", partitions);
    world
}

#[test]
fn metadata_of_everything_and_of_topics_that_are_to_be_made() {
    let mut world = wide(1000);
    check(&mut world, 9, &MetadataRequest { topics: None, ..MetadataRequest::default() });

    let topic = |name: String| MetadataRequestTopic { name: Some(name), ..MetadataRequestTopic::default() };
    let unknown = MetadataRequest {
        topics: Some(names(400).into_iter().map(topic).collect()),
        allow_auto_topic_creation: true,
        ..MetadataRequest::default()
    };
    let (_, before) = world.disk.counts();
    let steps = check(&mut world, 9, &unknown);
    let (_, after) = world.disk.counts();
    assert!(steps >= 12, "{steps}");
    // Two for each write of the state file.
    assert!(after - before <= 2 * 400 / 20, "{} syncs", after - before);
    let all = world.call(9, &MetadataRequest { topics: None, ..MetadataRequest::default() });
    assert_eq!(all.topics.len(), 401);
    let pages = DescribeTopicPartitionsRequest {
        topics: names(10_000).into_iter().map(|name| TopicRequest { name }).collect(),
        response_partition_limit: 2000,
        ..DescribeTopicPartitionsRequest::default()
    };
    check(&mut world, 0, &pages);
}

#[test]
fn topics_of_thousands_of_partitions() {
    let mut world = World::new();
    let topic = |name: &str, num_partitions| CreatableTopic {
        name: name.into(),
        num_partitions,
        replication_factor: 1,
        ..CreatableTopic::default()
    };
    let request = |topics| CreateTopicsRequest { topics, timeout_ms: 1000, ..CreateTopicsRequest::default() };
    assert!(check(&mut world, 7, &request(vec![topic("t", 5000)])) >= 100);
    let more = vec![CreatePartitionsTopic { name: "t".into(), count: 9000, assignments: None }];
    let request_more = CreatePartitionsRequest { topics: more, ..CreatePartitionsRequest::default() };
    assert!(check(&mut world, 3, &request_more) >= 100);
    assert_eq!(partition_dirs(&world.disk).len(), 9000);
    let gone = vec![DeleteTopicState { name: Some("t".into()), ..Default::default() }];
    assert!(
        check(&mut world, 6, &DeleteTopicsRequest { topics: gone, ..DeleteTopicsRequest::default() }) >= 200
    );
    assert_eq!(partition_dirs(&world.disk).len(), 0);
    // Names that metrics tell apart, each to be compared with all others.
    let many = (0..3000).map(|n| topic(&format!("a.{n}_b"), 1)).collect();
    assert!(check(&mut world, 7, &request(many)) >= 100);
    let again = (0..3000).map(|n| topic(&format!("a_{n}.b"), 1)).collect();
    check(&mut world, 7, &request(again));
    assert_eq!(partition_dirs(&world.disk).len(), 3000);

    let resource = |n: i32| DescribeConfigsResource {
        resource_type: 2,
        resource_name: format!("a.{n}_b"),
        configuration_keys: None,
    };
    let describe = |detailed| DescribeConfigsRequest {
        resources: (0..3000).map(resource).collect(),
        include_synonyms: detailed,
        include_documentation: detailed,
    };
    assert!(check(&mut world, 4, &describe(false)) >= 90);
    assert!(check(&mut world, 4, &describe(true)) >= 90);
    let all = world.call(4, &describe(false));
    assert!(all.results.iter().all(|result| result.error_code == 0), "thousands can be described at once");
    // What would take too much memory is refused by name.
    let much = world.call(4, &describe(true));
    let refused = much.results.iter().filter(|result| result.error_code != 0).count();
    let described = much.results.iter().filter(|result| !result.configs.is_empty()).count();
    assert!(refused + described == 3000 && described > 2000, "{refused} {described}");
}

#[test]
fn searches_by_time_where_no_index_helps() {
    let mut world = World::new();
    world.create_with("t", 1, &[("index.interval.bytes", "1000000000"), ("segment.bytes", "100000000")]);
    let same = batch(WALL, &["x"]);
    for _ in 0..50_000 {
        world.broker.handle_frame(world.now, A, encoded(9, &produce_request(-1, "t", 0, same.clone())));
        while world.broker.work(world.now) {}
        while world.broker.poll_response().is_some() {}
    }
    world.append("t", 0, &["the largest"]);
    let find = |timestamp| {
        let asked = ListOffsetsPartition { timestamp, ..ListOffsetsPartition::default() };
        let topics = vec![ListOffsetsTopic { name: "t".into(), partitions: vec![asked] }];
        ListOffsetsRequest { topics, ..ListOffsetsRequest::default() }
    };
    world.produce("t", 0, batch(WALL + 1, &["later"]));
    for timestamp in [WALL + 1, -3] {
        assert!(check(&mut world, 7, &find(timestamp)) >= 10);
        let found = world.call(7, &find(timestamp));
        assert_eq!(found.topics[0].partitions[0].offset, 50_001);
    }
}

#[test]
fn topics_that_are_half_made_are_there_for_nobody() {
    let mut world = World::with(&[("num.partitions", "100")]);
    let topic = MetadataRequestTopic { name: Some("slow".into()), ..MetadataRequestTopic::default() };
    let request = MetadataRequest {
        topics: Some(vec![topic]),
        allow_auto_topic_creation: true,
        ..MetadataRequest::default()
    };
    let frame = frame::encode_request(9, 1, Some("c"), &request).unwrap().to_bytes().unwrap().slice(4..);
    world.broker.handle_frame(world.now, A, frame);
    assert!(world.broker.has_work() && !partition_dirs(&world.disk).is_empty());
    let frame = frame::encode_request(9, 2, Some("c"), &MetadataRequest { topics: None, ..request.clone() });
    world.broker.handle_frame(world.now, B, frame.unwrap().to_bytes().unwrap().slice(4..));
    let seen = world.broker.poll_response().unwrap();
    assert!(seen.conn == B && seen.body.len < 100, "it has no partitions yet");
    // Its client goes, and it is made all the same.
    world.broker.handle_disconnect(world.now, A);
    while world.broker.work(world.now) {}
    world.connect(A);
    let all = world.call(9, &MetadataRequest { topics: None, ..MetadataRequest::default() });
    assert_eq!(all.topics[0].partitions.len(), 100);
    // A broker that is closed in the middle of it leaves nothing behind.
    let topic = MetadataRequestTopic { name: Some("never".into()), ..MetadataRequestTopic::default() };
    let request = MetadataRequest { topics: Some(vec![topic]), ..request };
    let frame = frame::encode_request(9, 1, Some("c"), &request).unwrap().to_bytes().unwrap().slice(4..);
    world.broker.handle_frame(world.now, A, frame);
    world.broker.close(world.now).unwrap();
    assert!(partition_dirs(&world.disk).iter().all(|dir| dir.starts_with("slow-")));
}

#[test]
fn fetches() {
    let mut world = wide(10);
    let fetch = |partitions: Vec<i32>| FetchRequest {
        max_wait_ms: 0,
        min_bytes: 1,
        max_bytes: i32::MAX,
        topics: vec![FetchTopic {
            topic: "t".into(),
            partitions: partitions
                .into_iter()
                .map(|partition| FetchPartition { partition, ..FetchPartition::default() })
                .collect(),
            ..FetchTopic::default()
        }],
        ..FetchRequest::default()
    };
    check(&mut world, 4, &fetch(vec![3; 200_000]));
    check(&mut world, 4, &fetch((0..20_000).collect()));
}

#[test]
fn batches_that_grow() {
    let mut world = wide(1);
    let value = vec![0; (16 << 20) - 100];
    let mut builder = BatchBuilder::new(1 << 25);
    builder.append(WALL, None, Some(&value), NO_HEADERS.iter().copied()).unwrap();
    let bomb: Bytes = builder.finish(ProducerStamp::NONE, Codec::Gzip, None).unwrap().to_vec().into();
    let mut request = produce_request(-1, "t", 0, Bytes::new());
    let data = PartitionProduceData { index: 0, records: Some(Records::from(bomb)) };
    request.topic_data[0].partition_data = vec![data; 10];
    assert!(check(&mut world, 9, &request) >= 9, "one a turn");
}

#[test]
fn offsets_of_partitions() {
    let mut world = wide(10);
    let partitions: Vec<_> = (0..100_000)
        .map(|partition_index| ListOffsetsPartition {
            partition_index,
            timestamp: -1,
            ..ListOffsetsPartition::default()
        })
        .collect();
    let topics = vec![ListOffsetsTopic { name: "t".into(), partitions }];
    check(&mut world, 3, &ListOffsetsRequest { topics, ..ListOffsetsRequest::default() });
    let partitions = vec![OffsetForLeaderPartition::default(); 300_000];
    let topics = vec![OffsetForLeaderTopic { topic: "t".into(), partitions }];
    check(&mut world, 3, &OffsetForLeaderEpochRequest { topics, ..OffsetForLeaderEpochRequest::default() });
}

#[test]
fn positions_of_groups() {
    let mut world = wide(1000);
    let partitions: Vec<_> = (0..20_000)
        .map(|i| OffsetCommitRequestPartition {
            partition_index: i % 1000,
            committed_offset: 5,
            committed_metadata: Some("m".repeat(100)),
            ..OffsetCommitRequestPartition::default()
        })
        .collect();
    let topics = vec![OffsetCommitRequestTopic {
        name: "t".into(),
        partitions,
        ..OffsetCommitRequestTopic::default()
    }];
    let commit = OffsetCommitRequest {
        group_id: "g".into(),
        generation_id_or_member_epoch: -1,
        topics,
        ..OffsetCommitRequest::default()
    };
    check(&mut world, 8, &commit);
    let topics = vec![OffsetFetchRequestTopics {
        name: "t".into(),
        partition_indexes: (0..200_000).collect(),
        ..OffsetFetchRequestTopics::default()
    }];
    let group = OffsetFetchRequestGroup {
        group_id: "g".into(),
        topics: Some(topics),
        ..OffsetFetchRequestGroup::default()
    };
    let fetch = OffsetFetchRequest { groups: vec![group], ..OffsetFetchRequest::default() };
    check(&mut world, 8, &fetch);
}

#[test]
fn groups() {
    let mut world = wide(1);
    let keys =
        FindCoordinatorRequest { coordinator_keys: names(10_000), ..FindCoordinatorRequest::default() };
    check(&mut world, 4, &keys);
    let filters = ListGroupsRequest { states_filter: names(200_000), ..ListGroupsRequest::default() };
    check(&mut world, 4, &filters);
    check(
        &mut world,
        5,
        &DescribeGroupsRequest { groups: names(100_000), ..DescribeGroupsRequest::default() },
    );
    check(&mut world, 2, &DeleteGroupsRequest { groups_names: names(10_000) });
    let leaver = |member_id: String| MemberIdentity { member_id, ..MemberIdentity::default() };
    let leave = LeaveGroupRequest {
        group_id: "g".into(),
        members: names(10_000).into_iter().map(leaver).collect(),
        ..LeaveGroupRequest::default()
    };
    check(&mut world, 4, &leave);
    let protocol = |name: String| JoinGroupRequestProtocol { name, metadata: Bytes::from(vec![1; 40_000]) };
    let join = JoinGroupRequest {
        group_id: "g".into(),
        session_timeout_ms: 10_000,
        protocol_type: "consumer".into(),
        protocols: names(100).into_iter().map(protocol).collect(),
        ..JoinGroupRequest::default()
    };
    check(&mut world, 3, &join);
    let deleted =
        names(1000).into_iter().map(|name| DeleteTopicState { name: Some(name), ..Default::default() });
    check(
        &mut world,
        6,
        &DeleteTopicsRequest { topics: deleted.collect(), ..DeleteTopicsRequest::default() },
    );
}
