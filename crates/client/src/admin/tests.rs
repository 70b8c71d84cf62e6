//! The admin engine against scripted brokers on a fake clock.

mod spoiled;

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::*;

use super::*;
use crate::error::{Error, Result};
use crate::options::{AdminConfig, IsolationLevel};
use crate::partition::{CommitOffset, TopicPartition};
use crate::testing::{Answer, Bench, Fault, Incoming, Layout, ScriptedKafka, WHY, found};
use crate::time::Jitter;

/// Nodes 1 and 2, topic t with three partitions and u with one; each log ends at 100 times its partition.
fn kafka() -> ScriptedKafka {
    let topics = vec![("t", vec![1, 2, 1]), ("u", vec![2])];
    let mut kafka = ScriptedKafka::with(Layout { nodes: vec![1, 2], topics, epoch: 5 });
    for ((_, partition), log) in &mut kafka.logs {
        log.end = i64::from(*partition) * 100;
    }
    kafka.coordinator = 2;
    kafka
}

fn bench() -> Bench<AdminEngine> {
    let pairs = [("bootstrap.servers".to_owned(), "localhost:9092".to_owned())];
    Bench::of(AdminEngine::new(&AdminConfig::from_pairs(pairs).unwrap(), 1), kafka())
}

/// Asks for something, and lets time go by.
fn ask(bench: &mut Bench<AdminEngine>, ms: u64, request: AdminRequest) {
    bench.world.command(AdminCommand::Do { op: 1, request, timeout_ms: None });
    bench.run(ms);
}

/// The one event there is.
fn done(bench: &mut Bench<AdminEngine>) -> Result<AdminOutcome> {
    assert_eq!(bench.events.len(), 1, "{:?}", bench.events);
    let AdminEvent::Done { result, .. } = bench.events.remove(0);
    result
}

fn tp(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(topic, partition)
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
    let mut bench = bench();
    ask(&mut bench, 0, list_offsets(&[("t", 2), ("u", 0), ("t", 1), ("t", 0)]));
    let found = listed(done(&mut bench));
    assert_eq!(
        found,
        [(tp("t", 2), Ok(200)), (tp("u", 0), Ok(0)), (tp("t", 1), Ok(100)), (tp("t", 0), Ok(0))]
    );
    let asked = bench.kafka.asked::<ListOffsetsRequest>();
    let mut partitions =
        asked.iter().flat_map(|(_, request)| request.topics.iter().flat_map(|t| &t.partitions));
    assert!(partitions.all(|p| p.current_leader_epoch == 5));
    let mut ports: Vec<u16> = asked.iter().map(|(port, _)| *port).collect();
    ports.sort_unstable();
    assert_eq!(ports, [9001, 9002]);
}

#[test]
fn a_partition_whose_leader_has_moved_is_asked_of_the_new_one_and_the_others_are_not_asked_again() {
    let mut bench = bench();
    // Node 1 leads partition 2 no more, and says so.
    bench.kafka.spoil_until::<ListOffsetsRequest>(|answer| {
        let moved = answer.topics[0].partitions.iter_mut().find(|p| p.partition_index == 2);
        moved.map(|p| p.error_code = ErrorCode::NOT_LEADER_OR_FOLLOWER.code()).is_some()
    });
    ask(&mut bench, 0, list_offsets(&[("t", 0), ("t", 1), ("t", 2)]));
    bench.kafka.layout.topics[0].1 = vec![1, 2, 2];
    bench.kafka.layout.epoch = 6;
    bench.run(2_000);
    assert!(listed(done(&mut bench)).iter().all(|(_, end)| end.is_ok()));
    let mut asked = Vec::new();
    for (port, request) in bench.kafka.asked::<ListOffsetsRequest>() {
        for topic in &request.topics {
            asked.extend(topic.partitions.iter().map(|p| (port, p.partition_index)));
        }
    }
    asked.sort_unstable();
    assert_eq!(asked, [(9001, 0), (9001, 2), (9002, 1), (9002, 2)], "each once");
}

#[test]
fn an_unknown_topic_and_partition_are_named_within_seconds_and_do_not_hold_up_the_others() {
    let mut bench = bench();
    ask(&mut bench, 6_000, list_offsets(&[("t", 0), ("nope", 0), ("t", 9)]));
    let found = listed(done(&mut bench));
    assert_eq!(found[0].1, Ok(0));
    for (at, place) in [(1, "topic 'nope', partition 0"), (2, "topic 't', partition 9")] {
        let error = found[at].1.as_ref().unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
        assert!(error.to_string().starts_with(place), "{error}");
    }
    assert!(found[2].1.as_ref().unwrap_err().to_string().contains("3 partitions"));
    // Nothing wakes the engine again but the age of its metadata and idle connections.
    let requests = bench.log.len();
    bench.run(60_000);
    assert_eq!(bench.log.len(), requests);
}

#[test]
fn a_topic_that_appears_late_is_found() {
    let mut bench = bench();
    ask(&mut bench, 500, list_offsets(&[("new", 0)]));
    assert!(bench.events.is_empty());
    bench.kafka.make("new", 10);
    bench.run(1_000);
    assert_eq!(listed(done(&mut bench)), [(tp("new", 0), Ok(100))]);
}

#[test]
fn an_operation_that_cannot_end_ends_at_its_deadline_and_says_why() {
    let mut bench = bench();
    let refused = Fault::Refuse(ErrorCode::LEADER_NOT_AVAILABLE);
    *bench.kafka.faults.of(&[ApiKey::ListOffsets]) = vec![refused; 1_000].into();
    let request = list_offsets(&[("t", 0)]);
    bench.world.command(AdminCommand::Do { op: 9, request, timeout_ms: Some(3_000) });
    bench.run(2_999);
    assert!(bench.events.is_empty());
    bench.run(1);
    let error = listed(done(&mut bench)).remove(0).1.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Timeout { ms: 3_000, .. }), "{error:?}");
    assert!(text.contains("topic 't', partition 0") && text.contains("LEADER_NOT_AVAILABLE"), "{text}");
    let asked = bench.kafka.asked::<ListOffsetsRequest>().len();
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
        let mut bench = bench();
        bench.refused = vec![9092];
        let what = format!("{request:?}");
        bench.world.command(AdminCommand::Do { op: 1, request, timeout_ms: Some(2_000) });
        bench.run(2_000);
        assert_eq!((bench.events.len(), bench.log.len()), (1, 0), "{what}");
        let text = format!("{:?}", bench.events);
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
        let (mut bench, what) = (bench(), format!("{request:?}"));
        let http = |_: &Incoming| Some(Answer::Last(b"HTTP/1.1 400 Bad Request".to_vec()));
        bench.kafka.script = Some(Box::new(http));
        ask(&mut bench, 100, request);
        let text = format!("{:?}", bench.events);
        assert!(
            bench.events.len() == 1 && text.contains("does not speak the Kafka protocol"),
            "{what}: {text}"
        );
    }
}

#[test]
fn topics_are_created_by_the_controller_and_each_has_its_own_verdict() {
    let mut bench = bench();
    let new =
        |name: &str| NewTopic { name: name.to_owned(), partitions: 3, replication: -1, configs: vec![] };
    let topics = vec![new("fresh"), new("t")];
    ask(&mut bench, 0, AdminRequest::CreateTopics { topics, validate_only: false });
    let AdminOutcome::Created(results) = done(&mut bench).unwrap() else { panic!() };
    assert_eq!(results[0].1.as_ref().unwrap().partitions, 3);
    let error = results[1].1.as_ref().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::TOPIC_ALREADY_EXISTS));
    assert!(error.to_string().contains("'t'") && error.to_string().contains(WHY), "{error}");
}

#[test]
fn deleting_an_unknown_topic_fails_at_once() {
    let mut bench = bench();
    ask(&mut bench, 0, AdminRequest::DeleteTopics(vec!["t".to_owned(), "nope".to_owned()]));
    let AdminOutcome::Named(results) = done(&mut bench).unwrap() else { panic!() };
    assert_eq!(results[0], ("t".to_owned(), Ok(())));
    assert_eq!(results[1].1.as_ref().unwrap_err().code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
}

#[test]
fn an_answer_that_leaves_an_item_out_is_an_error_of_that_item() {
    let mut bench = bench();
    bench.kafka.spoil::<DeleteTopicsRequest>(1_000, |answer| answer.responses.clear());
    ask(&mut bench, 5_000, AdminRequest::DeleteTopics(vec!["t".to_owned()]));
    let AdminOutcome::Named(results) = done(&mut bench).unwrap() else { panic!() };
    assert!(matches!(&results[0].1, Err(Error::BadAnswer { why, .. }) if why.contains("topic 't'")));
}

#[test]
fn topics_are_described_by_name_or_all_of_them() {
    let mut bench = bench();
    ask(&mut bench, 0, AdminRequest::DescribeTopics(None));
    let AdminOutcome::Topics(all) = done(&mut bench).unwrap() else { panic!() };
    let names: Vec<&str> = all.iter().map(|t| t.0.as_str()).collect();
    assert_eq!(names, ["t", "u"]);
    ask(&mut bench, 3_000, AdminRequest::DescribeTopics(Some(vec!["u".to_owned(), "nope".to_owned()])));
    let AdminOutcome::Topics(found) = done(&mut bench).unwrap() else { panic!() };
    assert_eq!(found[0].1.as_ref().unwrap().partitions[0].leader, Some(2));
    assert!(found[1].1.as_ref().unwrap_err().to_string().contains("'nope'"));
}

#[test]
fn the_cluster_is_described() {
    let mut bench = bench();
    ask(&mut bench, 0, AdminRequest::DescribeCluster);
    let AdminOutcome::Cluster(cluster) = done(&mut bench).unwrap() else { panic!() };
    assert_eq!((cluster.cluster_id.as_str(), cluster.controller), ("c", 2));
    assert_eq!(cluster.brokers.iter().map(|b| b.node).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn groups_are_listed_from_every_broker_or_not_at_all() {
    let mut bench = bench();
    bench.kafka.groups = vec![("g1", 1), ("g2", 2)];
    ask(&mut bench, 100, AdminRequest::ListGroups);
    let AdminOutcome::Groups(groups) = done(&mut bench).unwrap() else { panic!() };
    assert_eq!(groups.iter().map(|g| g.group.as_str()).collect::<Vec<_>>(), ["g1", "g2"]);
    // The first broker that is asked answers, and the second refuses.
    let faults = [Fault::None, Fault::Refuse(ErrorCode::CLUSTER_AUTHORIZATION_FAILED)];
    bench.kafka.faults.of(&[ApiKey::ListGroups]).extend(faults);
    ask(&mut bench, 100, AdminRequest::ListGroups);
    assert_eq!(done(&mut bench).unwrap_err().code(), Some(ErrorCode::CLUSTER_AUTHORIZATION_FAILED));
}

#[test]
fn group_offsets_come_from_the_coordinator_even_when_it_moves() {
    let mut bench = bench();
    bench.kafka.coordinator = 1;
    bench
        .kafka
        .committed
        .borrow_mut()
        .extend([(0, 0), (1, 7), (2, -1)].map(|(p, at)| (("t".to_owned(), p), at)));
    bench.kafka.faults.add(ApiKey::OffsetFetch, Fault::Refuse(ErrorCode::NOT_COORDINATOR));
    ask(&mut bench, 0, AdminRequest::GroupOffsets { group: "g".to_owned(), partitions: None });
    bench.kafka.coordinator = 2;
    bench.run(2_000);
    let AdminOutcome::GroupOffsets(found) = done(&mut bench).unwrap() else { panic!() };
    let found: Vec<_> = found.into_iter().map(|(tp, o)| (tp, o.unwrap().offset)).collect();
    assert_eq!(found, [(tp("t", 0), 0), (tp("t", 1), 7)]);
    let asked: Vec<_> = bench.log.iter().filter(|(_, key, _)| *key == ApiKey::OffsetFetch).collect();
    assert_eq!(asked, [&(9001, ApiKey::OffsetFetch, 9), &(9002, ApiKey::OffsetFetch, 9)]);
    let requests = bench.kafka.asked::<OffsetFetchRequest>();
    assert!(requests.iter().all(|(_, request)| request.groups[0].group_id == "g"));
}

#[test]
fn a_coordinator_that_is_not_there_yet_is_waited_for_and_a_refusal_is_not() {
    for (code, tries) in
        [(ErrorCode::COORDINATOR_NOT_AVAILABLE, 3), (ErrorCode::GROUP_AUTHORIZATION_FAILED, 1)]
    {
        let mut bench = bench();
        bench.kafka.faults.of(&[ApiKey::FindCoordinator]).extend([Fault::Refuse(code); 2]);
        ask(&mut bench, 2_000, AdminRequest::DeleteGroups(vec!["g".to_owned()]));
        let AdminOutcome::Named(results) = done(&mut bench).unwrap() else { panic!() };
        assert_eq!(bench.kafka.asked::<FindCoordinatorRequest>().len(), tries);
        if tries == 1 {
            let error = results[0].1.as_ref().unwrap_err();
            assert_eq!(error.code(), Some(code));
            assert!(error.to_string().contains("'g'"), "{error}");
        } else {
            assert_eq!(results[0].1.clone(), Ok(()));
        }
    }
}

#[test]
fn altering_offsets_gives_each_partition_its_verdict() {
    let mut bench = bench();
    bench.kafka.spoil::<OffsetCommitRequest>(1, |answer| {
        answer.topics[0].partitions[1].error_code = ErrorCode::UNKNOWN_MEMBER_ID.code();
    });
    let commit =
        |p| CommitOffset { partition: tp("t", p), offset: 5, leader_epoch: -1, metadata: String::new() };
    let offsets = vec![commit(0), commit(1)];
    ask(&mut bench, 2_000, AdminRequest::AlterGroupOffsets { group: "g".to_owned(), offsets });
    let AdminOutcome::Partitions(results) = done(&mut bench).unwrap() else { panic!() };
    assert_eq!(results[0], (tp("t", 0), Ok(())));
    let error = results[1].1.as_ref().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UNKNOWN_MEMBER_ID));
    let asked = &bench.kafka.commits[0];
    assert_eq!((asked.generation_id_or_member_epoch, asked.member_id.as_str()), (-1, ""));
}

#[test]
fn settings_of_a_broker_are_asked_of_that_broker_and_one_that_is_not_there_is_named() {
    let mut bench = bench();
    let resources = vec![ConfigResource::Broker(2), ConfigResource::Broker(8)];
    ask(&mut bench, 1_000, AdminRequest::DescribeConfigs(resources));
    let AdminOutcome::Configs(found) = done(&mut bench).unwrap() else { panic!() };
    let entries = found[0].1.as_ref().unwrap();
    assert!(entries[0].is_default && entries[0].name == "num.partitions");
    assert!(found[1].1.as_ref().unwrap_err().to_string().contains("no broker 8"));
    let asked = bench.kafka.asked::<DescribeConfigsRequest>();
    assert!(asked.iter().all(|(port, _)| *port == 9002));
}

#[test]
fn settings_of_a_group_are_asked_of_any_broker_and_changed_by_the_controller() {
    let mut bench = bench();
    let group = ConfigResource::Group("g".to_owned());
    let alter = |changes| AdminRequest::AlterConfigs {
        changes: vec![(group.clone(), changes)],
        validate_only: false,
    };
    let name = "share.auto.offset.reset".to_owned();
    let changes =
        vec![(name.clone(), ConfigChange::Set("earliest".to_owned())), (name.clone(), ConfigChange::Delete)];
    ask(&mut bench, 0, alter(changes));
    assert_eq!(done(&mut bench), Ok(AdminOutcome::Altered(vec![(group.clone(), Ok(()))])));
    let asked = bench.kafka.asked::<IncrementalAlterConfigsRequest>()[0].1.resources[0].clone();
    assert_eq!((asked.resource_type, asked.resource_name.as_str()), (32, "g"));
    let changes: Vec<_> = asked.configs.iter().map(|c| (c.config_operation, c.value.as_deref())).collect();
    assert_eq!(changes, [(0, Some("earliest")), (1, None)]);
    bench.kafka.faults.add(ApiKey::IncrementalAlterConfigs, Fault::Refuse(ErrorCode::INVALID_CONFIG));
    ask(&mut bench, 0, alter(vec![("fnord".to_owned(), ConfigChange::Delete)]));
    let AdminOutcome::Altered(altered) = done(&mut bench).unwrap() else { panic!() };
    let error = altered[0].1.as_ref().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::INVALID_CONFIG));
    assert!(error.to_string().contains(&format!("group 'g': {WHY}")), "{error}");
    ask(&mut bench, 0, alter(vec![(name, ConfigChange::Set("earliest".to_owned()))]));
    done(&mut bench).unwrap();
    ask(&mut bench, 0, AdminRequest::DescribeConfigs(vec![group.clone()]));
    let AdminOutcome::Configs(found) = done(&mut bench).unwrap() else { panic!() };
    let entry = &found[0].1.as_ref().unwrap()[0];
    assert_eq!((entry.value.as_deref(), entry.is_default), (Some("earliest"), false));
}

#[test]
fn the_coordinator_tells_where_a_share_group_stands() {
    let mut bench = bench();
    bench.kafka.share_offsets = vec![
        (1, -1, -1, ErrorCode::NONE),
        (0, 7, 3, ErrorCode::NONE),
        (2, 0, 0, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
    ];
    bench.kafka.faults.add(ApiKey::DescribeShareGroupOffsets, Fault::Refuse(ErrorCode::GROUP_ID_NOT_FOUND));
    ask(&mut bench, 0, AdminRequest::ShareGroupOffsets("g".to_owned()));
    let error = done(&mut bench).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::GROUP_ID_NOT_FOUND));
    assert!(error.to_string().contains(&format!("group 'g': {WHY}")), "{error}");
    ask(&mut bench, 0, AdminRequest::ShareGroupOffsets("g".to_owned()));
    let AdminOutcome::ShareGroupOffsets(found) = done(&mut bench).unwrap() else { panic!() };
    assert_eq!(found[0], (tp("t", 0), Ok(ShareOffset { start_offset: 7, lag: Some(3) })));
    assert_eq!(found[1], (tp("t", 1), Ok(ShareOffset { start_offset: -1, lag: None })));
    assert_eq!(found[2].1.as_ref().unwrap_err().code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
    assert!(bench.log.contains(&(9002, ApiKey::DescribeShareGroupOffsets, 1)));
    let asked = bench.kafka.asked::<DescribeShareGroupOffsetsRequest>();
    assert!(asked.iter().all(|(port, request)| *port == 9002 && request.groups[0].topics.is_none()));
}

#[test]
fn closing_ends_operations_and_refuses_new_ones() {
    let mut bench = bench();
    bench.kafka.faults.add(ApiKey::ListOffsets, Fault::Mute);
    ask(&mut bench, 0, list_offsets(&[("t", 0)]));
    bench.give(AdminCommand::Close);
    assert_eq!(done(&mut bench), Err(Error::Closed));
    assert!(bench.open_ports().is_empty());
    ask(&mut bench, 0, list_offsets(&[("t", 0)]));
    assert_eq!(done(&mut bench), Err(Error::Closed));
}

#[test]
fn an_operation_on_nothing_ends_at_once() {
    let mut bench = bench();
    ask(&mut bench, 0, AdminRequest::DeleteTopics(Vec::new()));
    assert_eq!(done(&mut bench), Ok(AdminOutcome::Named(Vec::new())));
    assert!(bench.log.is_empty());
}

/// Operations while brokers refuse, stall, hang up and move, at random: each ends exactly once, by its deadline.
#[test]
fn every_operation_ends_once_by_its_deadline_whatever_brokers_do() {
    for seed in 0..200 {
        let mut bench = bench();
        let (mut chance, mut weather) = (Jitter::new(seed), Jitter::new(seed ^ 0xF00D));
        bench.kafka.script = Some(Box::new(move |i| match (weather.below(100), i.key) {
            (0..10, _) => Some(Answer::Silence),
            (10..18, _) => Some(Answer::Last(vec![0, 0, 0, 9, 1])),
            (..50, ApiKey::ListOffsets) => {
                Some(i.refuse::<ListOffsetsRequest>(ErrorCode::NOT_LEADER_OR_FOLLOWER))
            }
            (..30, ApiKey::FindCoordinator) => {
                Some(i.refuse::<FindCoordinatorRequest>(ErrorCode::COORDINATOR_NOT_AVAILABLE))
            }
            (60.., ApiKey::FindCoordinator) => {
                Some(i.reply::<FindCoordinatorRequest>(&found(&i.decode(), 1, ErrorCode::NONE)))
            }
            (..50, ApiKey::DeleteGroups) => Some(i.refuse::<DeleteGroupsRequest>(ErrorCode::NOT_COORDINATOR)),
            _ => None,
        }));
        let mut deadlines = std::collections::BTreeMap::new();
        for op in 0..25 {
            let request = match chance.below(4) {
                0 => AdminRequest::ListGroups,
                1 => AdminRequest::DeleteGroups(vec!["g".to_owned(), "h".to_owned()]),
                _ => list_offsets(&[("t", 0), ("t", 1), ("u", 0), ("nope", 0)]),
            };
            let timeout = 200 + chance.below(3_000);
            deadlines.insert(op, bench.now.mono_ms + timeout);
            bench.world.command(AdminCommand::Do { op, request, timeout_ms: Some(timeout) });
            if chance.below(5) == 0 {
                bench.kafka.layout.epoch += 1;
                bench.kafka.layout.topics[0].1.rotate_left(1);
            }
            // The last stretch is long enough for all that is left.
            bench.run(if op == 24 { 4_000 } else { chance.below(400) });
            for AdminEvent::Done { op, .. } in bench.events.drain(..) {
                assert!(deadlines.remove(&op).is_some(), "seed {seed}: operation {op} has ended twice");
            }
            let late = deadlines.iter().find(|(_, at)| **at < bench.now.mono_ms);
            assert_eq!(
                late, None,
                "seed {seed}: an operation should have ended by now, {}",
                bench.now.mono_ms
            );
        }
        assert!(deadlines.is_empty(), "seed {seed}: {deadlines:?} are left over");
    }
}
