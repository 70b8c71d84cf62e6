//! The admin engine against scripted brokers on a fake clock.

mod spoiled;

use std::cell::RefCell;

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::create_topics_response::CreatableTopicResult;
use headrace_wire::messages::delete_groups_response::DeletableGroupResult;
use headrace_wire::messages::delete_topics_response::DeletableTopicResult;
use headrace_wire::messages::describe_cluster_response::DescribeClusterBroker;
use headrace_wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use headrace_wire::messages::find_coordinator_response::Coordinator;
use headrace_wire::messages::list_groups_response::ListedGroup;
use headrace_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use headrace_wire::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use headrace_wire::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartitions, OffsetFetchResponseTopics,
};
use headrace_wire::messages::*;

use super::*;
use crate::error::{Error, Result};
use crate::options::{AdminConfig, IsolationLevel};
use crate::partition::{CommitOffset, TopicPartition};
use crate::testing::{Answer, Incoming, Layout, World, versions};
use crate::time::Jitter;

fn world() -> World<AdminEngine> {
    let pairs = [("bootstrap.servers".to_owned(), "localhost:9092".to_owned())];
    World::new(AdminEngine::new(&AdminConfig::from_pairs(pairs).unwrap(), 1))
}

fn layout() -> Layout {
    Layout { nodes: vec![1, 2], topics: vec![("t", vec![1, 2, 1]), ("u", vec![2])], epoch: 5 }
}

fn ask(world: &mut World<AdminEngine>, op: u64, request: AdminRequest) {
    world.command(AdminCommand::Do { op, request, timeout_ms: None });
}

/// The one event there is.
fn done(world: &mut World<AdminEngine>) -> Result<AdminOutcome> {
    assert_eq!(world.events.len(), 1, "{:?}", world.events);
    let AdminEvent::Done { result, .. } = world.events.remove(0);
    result
}

fn base(layout: &Layout, incoming: &Incoming) -> Answer {
    match incoming.key {
        ApiKey::ApiVersions => versions(incoming),
        ApiKey::Metadata => layout.metadata(incoming),
        key => panic!("{key:?} was not expected on port {}", incoming.port),
    }
}

fn tp(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(topic, partition)
}

/// Answers `ListOffsets` with offset = 100 × partition, or with the code that `code` gives.
fn offsets(incoming: &Incoming, code: impl Fn(&str, i32) -> i16) -> Answer {
    let request: ListOffsetsRequest = incoming.decode();
    let topic = |t: &list_offsets_request::ListOffsetsTopic| ListOffsetsTopicResponse {
        name: t.name.clone(),
        partitions: t
            .partitions
            .iter()
            .map(|p| ListOffsetsPartitionResponse {
                partition_index: p.partition_index,
                error_code: code(&t.name, p.partition_index),
                offset: i64::from(p.partition_index) * 100,
                timestamp: p.timestamp,
                leader_epoch: p.current_leader_epoch,
            })
            .collect(),
    };
    let topics = request.topics.iter().map(topic).collect();
    incoming.reply::<ListOffsetsRequest>(&ListOffsetsResponse { topics, ..Default::default() })
}

fn list_offsets(partitions: &[(&str, i32)]) -> AdminRequest {
    AdminRequest::ListOffsets {
        partitions: partitions.iter().map(|(t, p)| (tp(t, *p), -1)).collect(),
        isolation: IsolationLevel::ReadUncommitted,
    }
}

fn listed(outcome: Result<AdminOutcome>) -> Vec<(TopicPartition, Result<i64>)> {
    let AdminOutcome::Offsets(found) = outcome.unwrap() else { panic!() };
    found.into_iter().map(|(tp, at)| (tp, at.map(|at| at.offset))).collect()
}

#[test]
fn offsets_are_asked_of_each_leader_in_one_request() {
    let (mut world, layout) = (world(), layout());
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::ListOffsets => {
            let request: ListOffsetsRequest = i.decode();
            assert!(request.topics.iter().all(|t| t.partitions.iter().all(|p| p.current_leader_epoch == 5)));
            offsets(i, |_, _| 0)
        }
        _ => base(&layout, i),
    };
    ask(&mut world, 1, list_offsets(&[("t", 2), ("u", 0), ("t", 1), ("t", 0)]));
    world.settle(&mut broker);
    let found = listed(done(&mut world));
    assert_eq!(
        found,
        [(tp("t", 2), Ok(200)), (tp("u", 0), Ok(0)), (tp("t", 1), Ok(100)), (tp("t", 0), Ok(0))]
    );
    let mut asked: Vec<u16> = world.log.iter().filter(|l| l.1 == ApiKey::ListOffsets).map(|l| l.0).collect();
    asked.sort_unstable();
    assert_eq!(asked, [9001, 9002]);
}

#[test]
fn a_partition_whose_leader_has_moved_is_asked_of_the_new_one_and_the_others_are_not_asked_again() {
    let mut world = world();
    let cluster = RefCell::new(layout());
    let counts = RefCell::new(std::collections::BTreeMap::<(u16, String, i32), u32>::new());
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::ListOffsets => {
            for t in i.decode::<ListOffsetsRequest>().topics {
                for p in t.partitions {
                    *counts.borrow_mut().entry((i.port, t.name.clone(), p.partition_index)).or_default() += 1;
                }
            }
            let moved = i.port == 9001;
            if moved {
                cluster.borrow_mut().topics[0].1 = vec![1, 2, 2];
                cluster.borrow_mut().epoch = 6;
            }
            offsets(i, |_, p| if moved && p == 2 { 6 } else { 0 })
        }
        _ => base(&cluster.borrow(), i),
    };
    ask(&mut world, 1, list_offsets(&[("t", 0), ("t", 1), ("t", 2)]));
    world.run(2_000, &mut broker);
    assert!(listed(done(&mut world)).iter().all(|(_, end)| end.is_ok()));
    let counts = counts.borrow();
    assert!(counts.values().all(|n| *n == 1), "{counts:?}");
    assert!(counts.contains_key(&(9002, "t".to_owned(), 2)));
}

#[test]
fn an_unknown_topic_and_partition_are_named_within_seconds_and_do_not_hold_up_the_others() {
    let (mut world, layout) = (world(), layout());
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::ListOffsets => offsets(i, |_, _| 0),
        _ => base(&layout, i),
    };
    ask(&mut world, 1, list_offsets(&[("t", 0), ("nope", 0), ("t", 9)]));
    world.run(6_000, &mut broker);
    let found = listed(done(&mut world));
    assert_eq!(found[0].1, Ok(0));
    for (at, place) in [(1, "topic 'nope', partition 0"), (2, "topic 't', partition 9")] {
        let error = found[at].1.as_ref().unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
        assert!(error.to_string().starts_with(place), "{error}");
    }
    assert!(found[2].1.as_ref().unwrap_err().to_string().contains("3 partitions"));
    // Nothing wakes the engine again but the age of its metadata and idle connections.
    let attempts = world.log.len();
    world.run(60_000, &mut broker);
    assert_eq!(world.log.len(), attempts);
}

#[test]
fn a_topic_that_appears_late_is_found() {
    let mut world = world();
    let cluster = RefCell::new(layout());
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::ListOffsets => offsets(i, |_, _| 0),
        _ => base(&cluster.borrow(), i),
    };
    ask(&mut world, 1, list_offsets(&[("new", 1)]));
    world.run(500, &mut broker);
    assert!(world.events.is_empty());
    cluster.borrow_mut().topics.push(("new", vec![1, 2]));
    world.run(1_000, &mut broker);
    assert_eq!(listed(done(&mut world)), [(tp("new", 1), Ok(100))]);
}

#[test]
fn an_operation_that_cannot_end_ends_at_its_deadline_and_says_why() {
    let (mut world, layout) = (world(), layout());
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::ListOffsets => offsets(i, |_, _| 5),
        _ => base(&layout, i),
    };
    world.command(AdminCommand::Do { op: 9, request: list_offsets(&[("t", 0)]), timeout_ms: Some(3_000) });
    world.run(2_999, &mut broker);
    assert!(world.events.is_empty());
    world.run(1, &mut broker);
    let error = listed(done(&mut world)).remove(0).1.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Timeout { ms: 3_000, .. }), "{error:?}");
    assert!(text.contains("topic 't', partition 0") && text.contains("LEADER_NOT_AVAILABLE"), "{text}");
    let asked = world.log.iter().filter(|l| l.1 == ApiKey::ListOffsets).count();
    assert!((4..=9).contains(&asked), "{asked} tries with back-off");
}

#[test]
fn no_reachable_broker_ends_every_kind_of_operation_at_its_deadline_with_the_reason() {
    for request in [
        list_offsets(&[("t", 0)]),
        AdminRequest::ListGroups,
        AdminRequest::DescribeCluster,
        AdminRequest::DeleteTopics(vec!["t".to_owned()]),
        AdminRequest::DescribeGroups(vec!["g".to_owned()]),
        AdminRequest::DescribeConfigs(vec![ConfigResource::Broker(1)]),
    ] {
        let mut world = world();
        world.refused = vec![9092];
        let what = format!("{request:?}");
        world.command(AdminCommand::Do { op: 1, request, timeout_ms: Some(2_000) });
        world.run(2_000, &mut |i: &Incoming| panic!("{i:?}"));
        assert_eq!(world.events.len(), 1, "{what}");
        let text = format!("{:?}", world.events);
        assert!(text.contains("Timeout") && text.contains("refused"), "{what}: {text}");
    }
}

#[test]
fn a_port_that_speaks_something_else_fails_every_kind_of_operation_at_once() {
    for request in [
        list_offsets(&[("t", 0)]),
        AdminRequest::ListGroups,
        AdminRequest::DescribeCluster,
        AdminRequest::DescribeGroups(vec!["g".to_owned()]),
        AdminRequest::DescribeConfigs(vec![ConfigResource::Broker(1)]),
    ] {
        let (mut world, what) = (world(), format!("{request:?}"));
        ask(&mut world, 1, request);
        world.run(100, &mut |_: &Incoming| Answer::Last(b"HTTP/1.1 400 Bad Request".to_vec()));
        let text = format!("{:?}", world.events);
        assert!(
            world.events.len() == 1 && text.contains("does not speak the Kafka protocol"),
            "{what}: {text}"
        );
    }
}

#[test]
fn topics_are_created_by_the_controller_and_each_has_its_own_verdict() {
    let (mut world, layout) = (world(), layout());
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::CreateTopics => {
            let request: CreateTopicsRequest = i.decode();
            let result = |t: &create_topics_request::CreatableTopic| CreatableTopicResult {
                name: t.name.clone(),
                error_code: if t.name == "old" { 36 } else { 0 },
                error_message: (t.name == "old").then(|| "it is there".to_owned()),
                num_partitions: t.num_partitions,
                ..Default::default()
            };
            let topics = request.topics.iter().map(result).collect();
            i.reply::<CreateTopicsRequest>(&CreateTopicsResponse { topics, ..Default::default() })
        }
        _ => base(&layout, i),
    };
    let new =
        |name: &str| NewTopic { name: name.to_owned(), partitions: 3, replication: -1, configs: vec![] };
    let topics = vec![new("fresh"), new("old")];
    ask(&mut world, 1, AdminRequest::CreateTopics { topics, validate_only: false });
    world.settle(&mut broker);
    let AdminOutcome::Created(results) = done(&mut world).unwrap() else { panic!() };
    assert_eq!(results[0].1.as_ref().unwrap().partitions, 3);
    let error = results[1].1.as_ref().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::TOPIC_ALREADY_EXISTS));
    assert!(error.to_string().contains("'old'") && error.to_string().contains("it is there"), "{error}");
}

#[test]
fn deleting_an_unknown_topic_fails_at_once() {
    let (mut world, layout) = (world(), layout());
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::DeleteTopics => {
            let request: DeleteTopicsRequest = i.decode();
            let result = |t: delete_topics_request::DeleteTopicState| DeletableTopicResult {
                error_code: if t.name.as_deref() == Some("t") { 0 } else { 3 },
                name: t.name,
                ..Default::default()
            };
            let responses = request.topics.into_iter().map(result).collect();
            i.reply::<DeleteTopicsRequest>(&DeleteTopicsResponse { responses, ..Default::default() })
        }
        _ => base(&layout, i),
    };
    ask(&mut world, 1, AdminRequest::DeleteTopics(vec!["t".to_owned(), "nope".to_owned()]));
    world.settle(&mut broker);
    let AdminOutcome::Named(results) = done(&mut world).unwrap() else { panic!() };
    assert_eq!(results[0], ("t".to_owned(), Ok(())));
    assert_eq!(results[1].1.as_ref().unwrap_err().code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
}

#[test]
fn an_answer_that_leaves_an_item_out_is_an_error_of_that_item() {
    let (mut world, layout) = (world(), layout());
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::DeleteTopics => i.reply::<DeleteTopicsRequest>(&DeleteTopicsResponse::default()),
        _ => base(&layout, i),
    };
    ask(&mut world, 1, AdminRequest::DeleteTopics(vec!["t".to_owned()]));
    world.run(5_000, &mut broker);
    let AdminOutcome::Named(results) = done(&mut world).unwrap() else { panic!() };
    assert!(matches!(&results[0].1, Err(Error::BadAnswer { why, .. }) if why.contains("topic 't'")));
}

#[test]
fn topics_are_described_by_name_or_all_of_them() {
    let (mut world, layout) = (world(), layout());
    let mut broker = |i: &Incoming| base(&layout, i);
    ask(&mut world, 1, AdminRequest::DescribeTopics(None));
    world.settle(&mut broker);
    let AdminOutcome::Topics(all) = done(&mut world).unwrap() else { panic!() };
    let names: Vec<&str> = all.iter().map(|t| t.0.as_str()).collect();
    assert_eq!(names, ["t", "u"]);
    ask(&mut world, 2, AdminRequest::DescribeTopics(Some(vec!["u".to_owned(), "nope".to_owned()])));
    world.run(3_000, &mut broker);
    let AdminOutcome::Topics(found) = done(&mut world).unwrap() else { panic!() };
    assert_eq!(found[0].1.as_ref().unwrap().partitions[0].leader, Some(2));
    assert!(found[1].1.as_ref().unwrap_err().to_string().contains("'nope'"));
}

#[test]
fn the_cluster_is_described() {
    let (mut world, layout) = (world(), layout());
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::DescribeCluster => {
            let broker = |id| DescribeClusterBroker { broker_id: id, port: 9000 + id, ..Default::default() };
            i.reply::<DescribeClusterRequest>(&DescribeClusterResponse {
                cluster_id: "c".to_owned(),
                controller_id: 2,
                brokers: vec![broker(2), broker(1)],
                ..Default::default()
            })
        }
        _ => base(&layout, i),
    };
    ask(&mut world, 1, AdminRequest::DescribeCluster);
    world.settle(&mut broker);
    let AdminOutcome::Cluster(cluster) = done(&mut world).unwrap() else { panic!() };
    assert_eq!((cluster.cluster_id.as_str(), cluster.controller), ("c", 2));
    assert_eq!(cluster.brokers.iter().map(|b| b.node).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn groups_are_listed_from_every_broker_or_not_at_all() {
    for broken in [false, true] {
        let (mut world, layout) = (world(), layout());
        let mut broker = |i: &Incoming| match i.key {
            ApiKey::ListGroups => {
                let group = ListedGroup { group_id: format!("g{}", i.port), ..Default::default() };
                let error_code = if broken && i.port == 9002 { 31 } else { 0 };
                let groups = vec![group];
                i.reply::<ListGroupsRequest>(&ListGroupsResponse { error_code, groups, ..Default::default() })
            }
            _ => base(&layout, i),
        };
        ask(&mut world, 1, AdminRequest::ListGroups);
        world.run(100, &mut broker);
        match done(&mut world) {
            Ok(AdminOutcome::Groups(groups)) => {
                assert!(!broken);
                assert_eq!(groups.iter().map(|g| g.group.as_str()).collect::<Vec<_>>(), ["g9001", "g9002"]);
            }
            Err(error) => {
                assert!(broken);
                assert_eq!(error.code(), Some(ErrorCode::CLUSTER_AUTHORIZATION_FAILED));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Answers `FindCoordinator` with this node.
fn coordinator(incoming: &Incoming, node: i32, code: i16) -> Answer {
    let request: FindCoordinatorRequest = incoming.decode();
    let (host, port) = ("localhost".to_owned(), 9000 + node);
    let mut response = FindCoordinatorResponse::default();
    if incoming.version >= 4 {
        let found = |key| Coordinator {
            key,
            node_id: node,
            host: host.clone(),
            port,
            error_code: code,
            ..Default::default()
        };
        response.coordinators = request.coordinator_keys.into_iter().map(found).collect();
    } else {
        (response.node_id, response.host, response.port, response.error_code) = (node, host, port, code);
    }
    incoming.reply::<FindCoordinatorRequest>(&response)
}

#[test]
fn group_offsets_come_from_the_coordinator_even_when_it_moves() {
    let (mut world, layout) = (world(), layout());
    let at = RefCell::new(1);
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::FindCoordinator => coordinator(i, *at.borrow(), 0),
        ApiKey::OffsetFetch if i.port == 9001 => {
            *at.borrow_mut() = 2;
            let group =
                OffsetFetchResponseGroup { group_id: "g".to_owned(), error_code: 16, ..Default::default() };
            i.reply::<OffsetFetchRequest>(&OffsetFetchResponse { groups: vec![group], ..Default::default() })
        }
        ApiKey::OffsetFetch => {
            let request: OffsetFetchRequest = i.decode();
            assert_eq!((i.version, request.groups[0].group_id.as_str()), (9, "g"));
            let partition = |partition_index, committed_offset| OffsetFetchResponsePartitions {
                partition_index,
                committed_offset,
                metadata: Some("m".to_owned()),
                ..Default::default()
            };
            let topic = OffsetFetchResponseTopics {
                name: "t".to_owned(),
                partitions: vec![partition(1, 7), partition(0, 0), partition(2, -1)],
                ..Default::default()
            };
            let group = OffsetFetchResponseGroup {
                group_id: "g".to_owned(),
                topics: vec![topic],
                ..Default::default()
            };
            i.reply::<OffsetFetchRequest>(&OffsetFetchResponse { groups: vec![group], ..Default::default() })
        }
        _ => base(&layout, i),
    };
    ask(&mut world, 1, AdminRequest::GroupOffsets { group: "g".to_owned(), partitions: None });
    world.run(2_000, &mut broker);
    let AdminOutcome::GroupOffsets(found) = done(&mut world).unwrap() else { panic!() };
    let found: Vec<_> = found.into_iter().map(|(tp, o)| (tp, o.unwrap().offset)).collect();
    assert_eq!(found, [(tp("t", 0), 0), (tp("t", 1), 7)]);
}

#[test]
fn a_coordinator_that_is_not_there_yet_is_waited_for_and_a_refusal_is_not() {
    for (code, ends_at_once) in [(15, false), (30, true)] {
        let (mut world, layout) = (world(), layout());
        let tries = RefCell::new(0);
        let mut broker = |i: &Incoming| match i.key {
            ApiKey::FindCoordinator => {
                *tries.borrow_mut() += 1;
                coordinator(i, 1, if *tries.borrow() > 2 && !ends_at_once { 0 } else { code })
            }
            ApiKey::DeleteGroups => {
                let request: DeleteGroupsRequest = i.decode();
                let result = |group_id| DeletableGroupResult { group_id, ..Default::default() };
                let results = request.groups_names.into_iter().map(result).collect();
                i.reply::<DeleteGroupsRequest>(&DeleteGroupsResponse { results, ..Default::default() })
            }
            _ => base(&layout, i),
        };
        ask(&mut world, 1, AdminRequest::DeleteGroups(vec!["g".to_owned()]));
        world.run(2_000, &mut broker);
        let AdminOutcome::Named(results) = done(&mut world).unwrap() else { panic!() };
        if ends_at_once {
            let error = results[0].1.as_ref().unwrap_err();
            assert_eq!(error.code(), Some(ErrorCode::GROUP_AUTHORIZATION_FAILED));
            assert!(error.to_string().contains("'g'"), "{error}");
        } else {
            assert_eq!((results[0].1.clone(), *tries.borrow()), (Ok(()), 3));
        }
    }
}

#[test]
fn altering_offsets_gives_each_partition_its_verdict() {
    let (mut world, layout) = (world(), layout());
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::FindCoordinator => coordinator(i, 2, 0),
        ApiKey::OffsetCommit => {
            let request: OffsetCommitRequest = i.decode();
            assert_eq!((request.generation_id_or_member_epoch, request.member_id.as_str()), (-1, ""));
            let topic = |t: offset_commit_request::OffsetCommitRequestTopic| OffsetCommitResponseTopic {
                name: t.name,
                partitions: t
                    .partitions
                    .iter()
                    .map(|p| OffsetCommitResponsePartition {
                        partition_index: p.partition_index,
                        error_code: if p.partition_index == 1 { 25 } else { 0 },
                    })
                    .collect(),
                ..Default::default()
            };
            let topics = request.topics.into_iter().map(topic).collect();
            i.reply::<OffsetCommitRequest>(&OffsetCommitResponse { topics, ..Default::default() })
        }
        _ => base(&layout, i),
    };
    let commit =
        |p| CommitOffset { partition: tp("t", p), offset: 5, leader_epoch: -1, metadata: String::new() };
    let offsets = vec![commit(0), commit(1)];
    ask(&mut world, 1, AdminRequest::AlterGroupOffsets { group: "g".to_owned(), offsets });
    world.run(2_000, &mut broker);
    let AdminOutcome::Partitions(results) = done(&mut world).unwrap() else { panic!() };
    assert_eq!(results[0], (tp("t", 0), Ok(())));
    let error = results[1].1.as_ref().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UNKNOWN_MEMBER_ID));
}

#[test]
fn settings_of_a_broker_are_asked_of_that_broker_and_one_that_is_not_there_is_named() {
    let (mut world, layout) = (world(), layout());
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::DescribeConfigs => {
            assert_eq!(i.port, 9002);
            let request: DescribeConfigsRequest = i.decode();
            let result = |r: describe_configs_request::DescribeConfigsResource| DescribeConfigsResult {
                resource_type: r.resource_type,
                resource_name: r.resource_name,
                configs: vec![DescribeConfigsResourceResult {
                    name: "num.partitions".to_owned(),
                    value: Some("1".to_owned()),
                    config_source: 5,
                    ..Default::default()
                }],
                ..Default::default()
            };
            let results = request.resources.into_iter().map(result).collect();
            i.reply::<DescribeConfigsRequest>(&DescribeConfigsResponse { results, ..Default::default() })
        }
        _ => base(&layout, i),
    };
    let resources = vec![ConfigResource::Broker(2), ConfigResource::Broker(8)];
    ask(&mut world, 1, AdminRequest::DescribeConfigs(resources));
    world.run(1_000, &mut broker);
    let AdminOutcome::Configs(found) = done(&mut world).unwrap() else { panic!() };
    let entries = found[0].1.as_ref().unwrap();
    assert!(entries[0].is_default && entries[0].name == "num.partitions");
    assert!(found[1].1.as_ref().unwrap_err().to_string().contains("no broker 8"));
}

#[test]
fn settings_of_a_group_are_asked_of_any_broker_and_changed_by_the_controller() {
    let (mut world, layout) = (world(), layout());
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::IncrementalAlterConfigs => {
            let request: IncrementalAlterConfigsRequest = i.decode();
            let result = |r: incremental_alter_configs_request::AlterConfigsResource| {
                assert_eq!((r.resource_type, r.resource_name.as_str()), (32, "g"));
                let known = r.configs.iter().all(|c| c.name == "share.auto.offset.reset");
                let changes: Vec<_> =
                    r.configs.iter().map(|c| (c.config_operation, c.value.as_deref())).collect();
                assert!(!known || changes == [(0, Some("earliest")), (1, None)], "{changes:?}");
                incremental_alter_configs_response::AlterConfigsResourceResponse {
                    resource_type: r.resource_type,
                    resource_name: r.resource_name,
                    error_code: if known { 0 } else { ErrorCode::INVALID_CONFIG.code() },
                    error_message: (!known).then(|| "Unknown group config".to_owned()),
                }
            };
            let responses = request.resources.into_iter().map(result).collect();
            i.reply::<IncrementalAlterConfigsRequest>(&IncrementalAlterConfigsResponse {
                responses,
                ..Default::default()
            })
        }
        ApiKey::DescribeConfigs => {
            let request: DescribeConfigsRequest = i.decode();
            let result = |r: describe_configs_request::DescribeConfigsResource| DescribeConfigsResult {
                resource_type: r.resource_type,
                resource_name: r.resource_name,
                configs: vec![DescribeConfigsResourceResult {
                    name: "share.auto.offset.reset".to_owned(),
                    value: Some("earliest".to_owned()),
                    config_source: 8,
                    ..Default::default()
                }],
                ..Default::default()
            };
            let results = request.resources.into_iter().map(result).collect();
            i.reply::<DescribeConfigsRequest>(&DescribeConfigsResponse { results, ..Default::default() })
        }
        _ => base(&layout, i),
    };
    let group = ConfigResource::Group("g".to_owned());
    let alter = |changes| AdminRequest::AlterConfigs {
        changes: vec![(group.clone(), changes)],
        validate_only: false,
    };
    let name = "share.auto.offset.reset".to_owned();
    let changes =
        vec![(name.clone(), ConfigChange::Set("earliest".to_owned())), (name, ConfigChange::Delete)];
    ask(&mut world, 1, alter(changes));
    world.settle(&mut broker);
    assert_eq!(done(&mut world), Ok(AdminOutcome::Altered(vec![(group.clone(), Ok(()))])));
    ask(&mut world, 2, alter(vec![("fnord".to_owned(), ConfigChange::Delete)]));
    world.settle(&mut broker);
    let AdminOutcome::Altered(altered) = done(&mut world).unwrap() else { panic!() };
    let error = altered[0].1.as_ref().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::INVALID_CONFIG));
    assert!(error.to_string().contains("group 'g': Unknown group config"), "{error}");
    ask(&mut world, 3, AdminRequest::DescribeConfigs(vec![group.clone()]));
    world.settle(&mut broker);
    let AdminOutcome::Configs(found) = done(&mut world).unwrap() else { panic!() };
    let entry = &found[0].1.as_ref().unwrap()[0];
    assert_eq!((entry.value.as_deref(), entry.is_default), (Some("earliest"), false));
}

#[test]
fn the_coordinator_tells_where_a_share_group_stands() {
    use describe_share_group_offsets_response as answer;
    let (mut world, layout) = (world(), layout());
    let refuses = RefCell::new(true);
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::FindCoordinator => i.reply::<FindCoordinatorRequest>(&FindCoordinatorResponse {
            node_id: 2,
            host: "localhost".to_owned(),
            port: 9002,
            ..Default::default()
        }),
        ApiKey::DescribeShareGroupOffsets => {
            assert_eq!((i.port, i.version), (9002, 1));
            let request: DescribeShareGroupOffsetsRequest = i.decode();
            assert_eq!(request.groups[0].topics, None);
            let partition = |partition_index, start_offset, lag, error_code| {
                answer::DescribeShareGroupOffsetsResponsePartition {
                    partition_index,
                    start_offset,
                    lag,
                    error_code,
                    ..Default::default()
                }
            };
            let mut group = answer::DescribeShareGroupOffsetsResponseGroup {
                group_id: request.groups[0].group_id.clone(),
                ..Default::default()
            };
            if refuses.replace(false) {
                group.error_code = ErrorCode::GROUP_ID_NOT_FOUND.code();
                group.error_message = Some("nobody knows it".to_owned());
            } else {
                group.topics = vec![answer::DescribeShareGroupOffsetsResponseTopic {
                    topic_name: "t".to_owned(),
                    partitions: vec![
                        partition(1, -1, -1, 0),
                        partition(0, 7, 3, 0),
                        partition(2, 0, 0, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.code()),
                    ],
                    ..Default::default()
                }];
            }
            i.reply::<DescribeShareGroupOffsetsRequest>(&DescribeShareGroupOffsetsResponse {
                groups: vec![group],
                ..Default::default()
            })
        }
        _ => base(&layout, i),
    };
    ask(&mut world, 1, AdminRequest::ShareGroupOffsets("g".to_owned()));
    world.settle(&mut broker);
    let error = done(&mut world).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::GROUP_ID_NOT_FOUND));
    assert!(error.to_string().contains("group 'g': nobody knows it"), "{error}");
    ask(&mut world, 2, AdminRequest::ShareGroupOffsets("g".to_owned()));
    world.settle(&mut broker);
    let AdminOutcome::ShareGroupOffsets(found) = done(&mut world).unwrap() else { panic!() };
    assert_eq!(found[0], (tp("t", 0), Ok(ShareOffset { start_offset: 7, lag: Some(3) })));
    assert_eq!(found[1], (tp("t", 1), Ok(ShareOffset { start_offset: -1, lag: None })));
    assert_eq!(found[2].1.as_ref().unwrap_err().code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
}

#[test]
fn closing_ends_operations_and_refuses_new_ones() {
    let (mut world, layout) = (world(), layout());
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::ListOffsets => Answer::Silence,
        _ => base(&layout, i),
    };
    ask(&mut world, 1, list_offsets(&[("t", 0)]));
    world.settle(&mut broker);
    world.command(AdminCommand::Close);
    world.settle(&mut broker);
    assert_eq!(done(&mut world), Err(Error::Closed));
    assert!(world.open_ports().is_empty());
    ask(&mut world, 2, list_offsets(&[("t", 0)]));
    world.settle(&mut broker);
    assert_eq!(done(&mut world), Err(Error::Closed));
}

#[test]
fn an_operation_on_nothing_ends_at_once() {
    let mut world = world();
    ask(&mut world, 1, AdminRequest::DeleteTopics(Vec::new()));
    world.settle(&mut |i: &Incoming| panic!("{i:?}"));
    assert_eq!(done(&mut world), Ok(AdminOutcome::Named(Vec::new())));
}

/// Operations while brokers refuse, stall, hang up and move, at random: each ends exactly once, by its deadline.
#[test]
fn every_operation_ends_once_by_its_deadline_whatever_brokers_do() {
    for seed in 0..200 {
        let (mut world, mut layout) = (world(), layout());
        let (mut chance, mut weather) = (Jitter::new(seed), Jitter::new(seed ^ 0xF00D));
        let mut deadlines = std::collections::BTreeMap::new();
        for op in 0..25 {
            let request = match chance.below(4) {
                0 => AdminRequest::ListGroups,
                1 => AdminRequest::DeleteGroups(vec!["g".to_owned(), "h".to_owned()]),
                _ => list_offsets(&[("t", 0), ("t", 1), ("u", 0), ("nope", 0)]),
            };
            let timeout = 200 + chance.below(3_000);
            deadlines.insert(op, world.now.mono_ms + timeout);
            world.command(AdminCommand::Do { op, request, timeout_ms: Some(timeout) });
            if chance.below(5) == 0 {
                layout.epoch += 1;
                layout.topics[0].1.rotate_left(1);
            }
            let mut broker = |i: &Incoming| match (weather.below(100), i.key) {
                (0..10, _) => Answer::Silence,
                (10..18, _) => Answer::Last(vec![0, 0, 0, 9, 1]),
                (roll, ApiKey::ListOffsets) => offsets(i, |_, _| if roll < 50 { 6 } else { 0 }),
                (roll, ApiKey::FindCoordinator) => {
                    coordinator(i, 1 + i32::from(roll < 60), if roll < 30 { 15 } else { 0 })
                }
                (_, ApiKey::ListGroups) => i.reply::<ListGroupsRequest>(&ListGroupsResponse::default()),
                (roll, ApiKey::DeleteGroups) => {
                    let request: DeleteGroupsRequest = i.decode();
                    let error_code = if roll < 50 { 16 } else { 0 };
                    let result = |group_id| DeletableGroupResult { group_id, error_code };
                    let results = request.groups_names.into_iter().map(result).collect();
                    i.reply::<DeleteGroupsRequest>(&DeleteGroupsResponse { results, ..Default::default() })
                }
                _ => base(&layout, i),
            };
            // The last stretch is long enough for all that is left.
            world.run(if op == 24 { 4_000 } else { chance.below(400) }, &mut broker);
            for AdminEvent::Done { op, .. } in world.events.drain(..) {
                assert!(deadlines.remove(&op).is_some(), "seed {seed}: operation {op} has ended twice");
            }
            let late = deadlines.iter().find(|(_, at)| **at < world.now.mono_ms);
            assert_eq!(
                late, None,
                "seed {seed}: an operation should have ended by now, {}",
                world.now.mono_ms
            );
        }
        assert!(deadlines.is_empty(), "seed {seed}: {deadlines:?} are left over");
    }
}
