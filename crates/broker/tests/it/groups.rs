//! Classic groups through their requests, and their offsets.

use bytes::Bytes;
use headrace_broker::{AllowAll, ConnId};
use headrace_log::SyncFault;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::join_group_request::JoinGroupRequestProtocol;
use headrace_wire::messages::leave_group_request::MemberIdentity;
use headrace_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use headrace_wire::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use headrace_wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use headrace_wire::messages::sync_group_request::SyncGroupRequestAssignment;
use headrace_wire::messages::*;
use headrace_wire::primitive::Writer;
use headrace_wire::uuid::Uuid;

use crate::world::*;

fn subscription(topics: &[&str]) -> Bytes {
    let subscription = ConsumerProtocolSubscription {
        topics: topics.iter().map(|t| (*t).to_owned()).collect(),
        ..ConsumerProtocolSubscription::default()
    };
    let mut writer = Writer::new();
    writer.i16(0);
    subscription.encode(0, &mut writer).unwrap();
    writer.finish().to_bytes().unwrap()
}

pub(crate) fn join(member: &str, instance: Option<&str>) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: "g".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 20_000,
        member_id: member.into(),
        group_instance_id: instance.map(str::to_owned),
        protocol_type: "consumer".into(),
        protocols: vec![JoinGroupRequestProtocol { name: "range".into(), metadata: subscription(&["t"]) }],
        ..JoinGroupRequest::default()
    }
}

pub(crate) fn sync(member: &str, generation_id: i32, assignments: &[(&str, &str)]) -> SyncGroupRequest {
    SyncGroupRequest {
        group_id: "g".into(),
        generation_id,
        member_id: member.into(),
        assignments: assignments
            .iter()
            .map(|(member_id, assignment)| SyncGroupRequestAssignment {
                member_id: (*member_id).into(),
                assignment: Bytes::copy_from_slice(assignment.as_bytes()),
            })
            .collect(),
        ..SyncGroupRequest::default()
    }
}

fn heartbeat(world: &mut World, member: &str, generation_id: i32) -> ErrorCode {
    let request = HeartbeatRequest {
        group_id: "g".into(),
        generation_id,
        member_id: member.into(),
        ..HeartbeatRequest::default()
    };
    ErrorCode::new(world.call_on(ConnId(9), 4, &request).error_code)
}

/// Joins the first member of a group: asks for an id, joins, syncs.
fn first_member(world: &mut World, conn: ConnId) -> (String, i32) {
    let response = world.call_on(conn, 5, &join("", None));
    assert_eq!(ErrorCode::new(response.error_code), ErrorCode::MEMBER_ID_REQUIRED);
    let id = response.member_id;
    let joined = world.call_on(conn, 5, &join(&id, None));
    assert_eq!((joined.error_code, &joined.leader), (0, &id));
    assert_eq!(joined.members.len(), 1);
    let synced = world.call_on(conn, 4, &sync(&id, joined.generation_id, &[(&id, "all")]));
    assert_eq!((synced.error_code, &synced.assignment[..]), (0, &b"all"[..]));
    (id, joined.generation_id)
}

fn world() -> World {
    let mut world = World::new();
    world.create("t", 4);
    world.connect(ConnId(9));
    world
}

#[test]
fn two_members_share_and_one_leaves() {
    let mut world = world();
    let (a, first) = first_member(&mut world, A);
    let b = world.call_on(B, 5, &join("", None)).member_id;
    assert!(b.starts_with("test-"), "{b}");
    let b_join = world.send(B, 5, &join(&b, None));
    assert!(world.answer::<JoinGroupRequest>(B, 5, b_join).is_none(), "a has to come back");
    assert_eq!(heartbeat(&mut world, &a, first), ErrorCode::REBALANCE_IN_PROGRESS);
    let a_joined = world.call_on(A, 5, &join(&a, None));
    let b_joined = world.answer::<JoinGroupRequest>(B, 5, b_join).unwrap();
    assert_eq!((a_joined.generation_id, b_joined.generation_id), (first + 1, first + 1));
    assert_eq!((&a_joined.leader, a_joined.members.len()), (&a, 2));
    assert_eq!((&b_joined.leader, b_joined.members.len()), (&a, 0));
    assert_eq!(b_joined.protocol_name.as_deref(), Some("range"));

    let b_sync = world.send(B, 4, &sync(&b, first + 1, &[]));
    assert!(world.answer::<SyncGroupRequest>(B, 4, b_sync).is_none());
    let a_synced = world.call_on(A, 4, &sync(&a, first + 1, &[(&a, "one"), (&b, "two"), ("stranger", "x")]));
    assert_eq!(&a_synced.assignment[..], b"one");
    assert_eq!(&world.answer::<SyncGroupRequest>(B, 4, b_sync).unwrap().assignment[..], b"two");
    assert_eq!(heartbeat(&mut world, &a, first + 1), ErrorCode::NONE);
    assert_eq!(heartbeat(&mut world, &a, first), ErrorCode::ILLEGAL_GENERATION);
    assert_eq!(heartbeat(&mut world, "nobody", first + 1), ErrorCode::UNKNOWN_MEMBER_ID);

    let leave = LeaveGroupRequest {
        group_id: "g".into(),
        members: vec![
            MemberIdentity { member_id: a.clone(), ..MemberIdentity::default() },
            MemberIdentity { member_id: "nobody".into(), ..MemberIdentity::default() },
        ],
        ..LeaveGroupRequest::default()
    };
    let left = world.call_on(A, 5, &leave);
    let codes: Vec<i16> = left.members.iter().map(|m| m.error_code).collect();
    assert_eq!((left.error_code, codes), (0, vec![0, ErrorCode::UNKNOWN_MEMBER_ID.code()]));
    assert_eq!(heartbeat(&mut world, &b, first + 1), ErrorCode::REBALANCE_IN_PROGRESS);
    let joined = world.call_on(B, 5, &join(&b, None));
    assert_eq!((joined.generation_id, &joined.leader), (first + 2, &b));
}

#[test]
fn every_version_of_the_membership_requests() {
    for version in 0..=9 {
        let mut world = world();
        let mut request = join("", None);
        if version == 0 {
            request.rebalance_timeout_ms = -1;
        }
        let mut joined = world.call(version, &request);
        if version >= 4 {
            assert_eq!(joined.error_code, ErrorCode::MEMBER_ID_REQUIRED.code());
            request.member_id = joined.member_id;
            joined = world.call(version, &request);
        }
        assert_eq!((joined.error_code, joined.generation_id), (0, 1), "version {version}");
        assert_eq!(joined.protocol_type.as_deref(), (version >= 7).then_some("consumer"));
        let id = joined.member_id;
        let mut ask = sync(&id, 1, &[(&id, "x")]);
        if version >= 5 {
            ask.protocol_type = Some("consumer".into());
            ask.protocol_name = Some("other".into());
            let refused = world.call(5, &ask);
            assert_eq!(refused.error_code, ErrorCode::INCONSISTENT_GROUP_PROTOCOL.code());
            ask.protocol_name = Some("range".into());
        }
        let synced = world.call(version.min(5), &ask);
        assert_eq!((synced.error_code, &synced.assignment[..]), (0, &b"x"[..]));
        let beat = HeartbeatRequest {
            group_id: "g".into(),
            generation_id: 1,
            member_id: id.clone(),
            ..HeartbeatRequest::default()
        };
        assert_eq!(world.call(version.min(4), &beat).error_code, 0);
        let version = version.min(5);
        let members = vec![MemberIdentity { member_id: id.clone(), ..MemberIdentity::default() }];
        let leave = LeaveGroupRequest {
            group_id: "g".into(),
            member_id: if version < 3 { id } else { String::new() },
            members: if version < 3 { vec![] } else { members },
        };
        assert_eq!(world.call(version, &leave).error_code, 0);
        assert_eq!(state(&mut world), "Empty");
    }
}

fn state(world: &mut World) -> String {
    let request = DescribeGroupsRequest { groups: vec!["g".into()], ..DescribeGroupsRequest::default() };
    world.call_on(ConnId(9), 4, &request).groups[0].group_state.clone()
}

#[test]
fn requests_that_make_no_sense() {
    let mut world = world();
    let code =
        |world: &mut World, request: &JoinGroupRequest| ErrorCode::new(world.call(5, request).error_code);
    let empty = JoinGroupRequest { group_id: String::new(), ..join("", None) };
    assert_eq!(code(&mut world, &empty), ErrorCode::INVALID_GROUP_ID);
    for session_timeout_ms in [-1, 0, 5999, 1_800_001] {
        let request = JoinGroupRequest { session_timeout_ms, ..join("", None) };
        assert_eq!(code(&mut world, &request), ErrorCode::INVALID_SESSION_TIMEOUT);
    }
    assert_eq!(code(&mut world, &join("made up", None)), ErrorCode::UNKNOWN_MEMBER_ID);
    let none = JoinGroupRequest { protocols: vec![], ..join("", None) };
    assert_eq!(code(&mut world, &none), ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
    first_member(&mut world, A);
    let other = JoinGroupRequest { protocol_type: "connect".into(), ..join("", None) };
    assert_eq!(code(&mut world, &other), ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
    assert_eq!(code(&mut world, &join("made up", None)), ErrorCode::UNKNOWN_MEMBER_ID);
    let response = world.call(4, &SyncGroupRequest { group_id: "h".into(), ..SyncGroupRequest::default() });
    assert_eq!(ErrorCode::new(response.error_code), ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn a_silent_member_is_dropped_after_its_session() {
    let mut world = world();
    let (a, generation) = first_member(&mut world, A);
    world.pass(9000);
    assert_eq!(heartbeat(&mut world, &a, generation), ErrorCode::NONE);
    world.pass(9999);
    assert_eq!(state(&mut world), "Stable");
    world.pass(1);
    assert_eq!(state(&mut world), "Empty");
    assert_eq!(heartbeat(&mut world, &a, generation), ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn a_rebalance_does_not_wait_for_the_silent_beyond_its_time() {
    let mut world = world();
    let (a, generation) = first_member(&mut world, A);
    let b = world.call_on(B, 5, &join("", None)).member_id;
    let waiting = world.send(B, 5, &join(&b, None));
    // a lives, but does not join.
    for _ in 0..3 {
        world.pass(6000);
        assert_eq!(heartbeat(&mut world, &a, generation), ErrorCode::REBALANCE_IN_PROGRESS);
    }
    assert!(world.answer::<JoinGroupRequest>(B, 5, waiting).is_none());
    world.pass(2000);
    let joined = world.answer::<JoinGroupRequest>(B, 5, waiting).unwrap();
    assert_eq!((joined.leader, joined.members.len()), (b, 1));
    assert_eq!(heartbeat(&mut world, &a, generation), ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn the_first_rebalance_waits_for_company_if_told_to() {
    let mut world = World::with(&[("group.initial.rebalance.delay.ms", "3000")]);
    world.connect(ConnId(9));
    let a = world.send(A, 3, &join("", None));
    world.pass(2000);
    let b = world.send(B, 3, &join("", None));
    world.pass(3999);
    assert!(world.answer::<JoinGroupRequest>(A, 3, a).is_none(), "the delay began again");
    world.pass(1);
    let a = world.answer::<JoinGroupRequest>(A, 3, a).unwrap();
    let b = world.answer::<JoinGroupRequest>(B, 3, b).unwrap();
    assert_eq!((a.generation_id, b.generation_id), (1, 1));
    assert_eq!(a.members.len() + b.members.len(), 2);
}

#[test]
fn a_static_member_comes_back_without_a_rebalance() {
    let mut world = world();
    let first = world.call(9, &join("", Some("i1")));
    let id = first.member_id.clone();
    assert!(id.starts_with("i1-"), "{id}");
    assert_eq!((first.error_code, first.skip_assignment), (0, false));
    let mut ask = sync(&id, 1, &[(&id, "mine")]);
    ask.group_instance_id = Some("i1".into());
    assert_eq!(world.call(4, &ask).error_code, 0);

    let back = world.call_on(B, 9, &join("", Some("i1")));
    assert_eq!((back.error_code, back.generation_id, back.skip_assignment), (0, 1, true));
    assert_ne!(back.member_id, id);
    assert_eq!((&back.leader, back.members.len()), (&back.member_id, 1));
    assert_eq!(state(&mut world), "Stable");
    let mut again = sync(&back.member_id, 1, &[]);
    again.group_instance_id = Some("i1".into());
    assert_eq!(&world.call_on(B, 4, &again).assignment[..], b"mine");
    // The earlier process is fenced.
    assert_eq!(world.call(4, &ask).error_code, ErrorCode::FENCED_INSTANCE_ID.code());
    assert_eq!(world.call(9, &join(&id, Some("i1"))).error_code, ErrorCode::FENCED_INSTANCE_ID.code());

    // Before version 9 the leader is told the old leader's id, so that it does not assign again.
    let old = world.call_on(B, 8, &join("", Some("i1")));
    assert_eq!((old.leader, old.members.len()), (back.member_id, 0));

    let leave = LeaveGroupRequest {
        group_id: "g".into(),
        members: vec![MemberIdentity { group_instance_id: Some("i1".into()), ..MemberIdentity::default() }],
        ..LeaveGroupRequest::default()
    };
    assert_eq!(world.call(5, &leave).members[0].error_code, 0, "an administrator needs no member id");
    assert_eq!(state(&mut world), "Empty");
}

#[test]
fn a_full_group_takes_no_more() {
    let mut world = World::with(&[("group.max.size", "1")]);
    world.connect(ConnId(9));
    let (_, _) = {
        let id = world.call(5, &join("", None)).member_id;
        let joined = world.call(5, &join(&id, None));
        assert_eq!(joined.error_code, 0);
        (id, joined.generation_id)
    };
    let refused = world.call_on(B, 5, &join("", None));
    assert_eq!(refused.error_code, ErrorCode::GROUP_MAX_SIZE_REACHED.code());
}

#[test]
fn ids_that_are_not_used_lapse() {
    let mut world = world();
    let id = world.call(5, &join("", None)).member_id;
    world.pass(10_000);
    assert_eq!(world.call(5, &join(&id, None)).error_code, ErrorCode::UNKNOWN_MEMBER_ID.code());
    assert!(world.call(4, &ListGroupsRequest::default()).groups.is_empty(), "the group came to nothing");
}

// ---- offsets

pub(crate) fn commit_request(
    group: &str,
    member: &str,
    generation: i32,
    offsets: &[(i32, i64)],
) -> OffsetCommitRequest {
    let partition = |(partition_index, committed_offset): &(i32, i64)| OffsetCommitRequestPartition {
        partition_index: *partition_index,
        committed_offset: *committed_offset,
        committed_metadata: Some("note".into()),
        ..OffsetCommitRequestPartition::default()
    };
    let partitions = offsets.iter().map(partition).collect();
    OffsetCommitRequest {
        group_id: group.into(),
        generation_id_or_member_epoch: generation,
        member_id: member.into(),
        topics: vec![OffsetCommitRequestTopic { name: "t".into(), partitions, ..Default::default() }],
        ..OffsetCommitRequest::default()
    }
}

pub(crate) fn commit(world: &mut World, request: &OffsetCommitRequest) -> Vec<ErrorCode> {
    let response = world.call(8, request);
    response.topics.iter().flat_map(|t| &t.partitions).map(|p| ErrorCode::new(p.error_code)).collect()
}

/// All committed offsets of a group.
fn committed(world: &mut World, group: &str) -> Vec<(String, i32, i64)> {
    let groups = vec![OffsetFetchRequestGroup { group_id: group.into(), topics: None, ..Default::default() }];
    let mut response = world.call(9, &OffsetFetchRequest { groups, ..OffsetFetchRequest::default() });
    let group = response.groups.remove(0);
    assert_eq!(group.error_code, 0);
    let positions = group.topics.into_iter().flat_map(|t| {
        t.partitions.into_iter().map(move |p| (t.name.clone(), p.partition_index, p.committed_offset))
    });
    positions.collect()
}

#[test]
fn offsets_in_every_version() {
    let mut world = world();
    let all = world.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() });
    let id = all.topics.iter().find(|t| t.name.as_deref() == Some("t")).unwrap().topic_id;
    for version in 2..=10 {
        let mut request = commit_request("g", "", -1, &[(1, 100 + i64::from(version))]);
        if version >= 10 {
            request.topics[0].name = String::new();
            request.topics[0].topic_id = id;
        }
        let response = world.call(version, &request);
        assert_eq!(response.topics[0].partitions[0].error_code, 0, "version {version}");
    }
    for version in 1..=10 {
        let (offset, metadata, missing) = if version < 8 {
            let topics = vec![OffsetFetchRequestTopic { name: "t".into(), partition_indexes: vec![1, 2] }];
            let request = OffsetFetchRequest {
                group_id: "g".into(),
                topics: Some(topics),
                ..OffsetFetchRequest::default()
            };
            let response = world.call(version, &request);
            let [one, two] = &response.topics[0].partitions[..] else { panic!("{response:?}") };
            (one.committed_offset, one.metadata.clone(), two.committed_offset)
        } else {
            let topics = vec![OffsetFetchRequestTopics {
                name: if version < 10 { "t".into() } else { String::new() },
                topic_id: if version < 10 { Uuid::ZERO } else { id },
                partition_indexes: vec![1, 2],
            }];
            let group =
                OffsetFetchRequestGroup { group_id: "g".into(), topics: Some(topics), ..Default::default() };
            let request = OffsetFetchRequest { groups: vec![group], ..OffsetFetchRequest::default() };
            let response = world.call(version, &request);
            let [one, two] = &response.groups[0].topics[0].partitions[..] else { panic!("{response:?}") };
            (one.committed_offset, one.metadata.clone(), two.committed_offset)
        };
        assert_eq!((offset, metadata.as_deref(), missing), (110, Some("note"), -1), "version {version}");
    }
    assert_eq!(committed(&mut world, "g"), [("t".into(), 1, 110)]);
    assert_eq!(committed(&mut world, "other"), []);
}

#[test]
fn who_may_commit_when() {
    let mut world = world();
    let (a, generation) = first_member(&mut world, A);
    let ask = |world: &mut World, member: &str, generation| {
        commit(world, &commit_request("g", member, generation, &[(0, 5)]))[0]
    };
    assert_eq!(ask(&mut world, &a, generation), ErrorCode::NONE);
    assert_eq!(ask(&mut world, &a, generation + 1), ErrorCode::ILLEGAL_GENERATION);
    assert_eq!(ask(&mut world, "stranger", generation), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(ask(&mut world, "", -1), ErrorCode::UNKNOWN_MEMBER_ID, "the group has members");
    let b = world.call_on(B, 5, &join("", None)).member_id;
    world.send(B, 5, &join(&b, None));
    assert_eq!(ask(&mut world, &a, generation), ErrorCode::NONE, "a last commit before joining again");
    world.call_on(A, 5, &join(&a, None));
    assert_eq!(ask(&mut world, &a, generation + 1), ErrorCode::REBALANCE_IN_PROGRESS);

    let nobody = commit_request("new", "m", 3, &[(0, 5)]);
    assert_eq!(commit(&mut world, &nobody), [ErrorCode::ILLEGAL_GENERATION]);
    let empty = commit_request("", "", -1, &[(0, 5)]);
    assert_eq!(commit(&mut world, &empty), [ErrorCode::INVALID_GROUP_ID]);
    let mixed = commit_request("new", "", -1, &[(0, 5), (9, 5), (1, 6)]);
    assert_eq!(
        commit(&mut world, &mixed),
        [ErrorCode::NONE, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, ErrorCode::NONE]
    );
    let mut long = commit_request("new", "", -1, &[(0, 7)]);
    long.topics[0].partitions[0].committed_metadata = Some("x".repeat(4097));
    assert_eq!(commit(&mut world, &long), [ErrorCode::OFFSET_METADATA_TOO_LARGE]);
    assert_eq!(committed(&mut world, "new"), [("t".into(), 0, 5), ("t".into(), 1, 6)]);
    let mut unknown = commit_request("new", "", -1, &[(0, 7)]);
    unknown.topics[0].name = String::new();
    unknown.topics[0].topic_id = Uuid([8; 16]);
    let response = world.call(10, &unknown);
    assert_eq!(response.topics[0].partitions[0].error_code, ErrorCode::UNKNOWN_TOPIC_ID.code());
}

#[test]
fn a_commit_keeps_a_member_alive() {
    let mut world = world();
    let (a, generation) = first_member(&mut world, A);
    for i in 0..5 {
        world.pass(9000);
        assert_eq!(commit(&mut world, &commit_request("g", &a, generation, &[(0, i)])), [ErrorCode::NONE]);
    }
    assert_eq!(state(&mut world), "Stable");
}

#[test]
fn a_full_disk_stores_no_offset_and_says_so() {
    let mut world = world();
    assert_eq!(commit(&mut world, &commit_request("g", "", -1, &[(0, 1)])), [ErrorCode::NONE]);
    world.disk.set_room(Some(10));
    let error = commit(&mut world, &commit_request("g", "", -1, &[(0, 2)]));
    assert_eq!(error, [ErrorCode::COORDINATOR_NOT_AVAILABLE]);
    assert_eq!(committed(&mut world, "g"), [("t".into(), 0, 1)]);
    assert!(!world.broker.take_troubles().is_empty());
    world.disk.set_room(None);
    assert_eq!(commit(&mut world, &commit_request("g", "", -1, &[(0, 2)])), [ErrorCode::NONE]);
}

#[test]
fn offsets_are_deleted_on_request_and_with_their_topic() {
    let mut world = world();
    let (_, _) = first_member(&mut world, A);
    let delete = |world: &mut World, group: &str, topic: &str, partition| {
        let partitions = vec![OffsetDeleteRequestPartition { partition_index: partition }];
        let topics = vec![OffsetDeleteRequestTopic { name: topic.into(), partitions }];
        let response = world.call_on(ConnId(9), 0, &OffsetDeleteRequest { group_id: group.into(), topics });
        let inner = response.topics.first().map_or(0, |t| t.partitions[0].error_code);
        (ErrorCode::new(response.error_code), ErrorCode::new(inner))
    };
    assert_eq!(delete(&mut world, "g", "t", 0), (ErrorCode::NONE, ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC));
    assert_eq!(delete(&mut world, "none", "t", 0).0, ErrorCode::GROUP_ID_NOT_FOUND);
    commit(&mut world, &commit_request("h", "", -1, &[(0, 5), (1, 6), (2, 7)]));
    assert_eq!(delete(&mut world, "h", "t", 0), (ErrorCode::NONE, ErrorCode::NONE));
    assert_eq!(delete(&mut world, "h", "u", 0).1, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(committed(&mut world, "h").len(), 2);
    let mut world = world.killed(&[]);
    world.connect(ConnId(9));
    assert_eq!(committed(&mut world, "h").len(), 2);
    let request = DeleteTopicsRequest { topic_names: vec!["t".into()], ..DeleteTopicsRequest::default() };
    assert_eq!(world.call(5, &request).responses[0].error_code, 0);
    assert_eq!(committed(&mut world, "h"), []);
}

#[test]
fn groups_are_listed_described_and_deleted() {
    let mut world = world();
    let (a, generation) = first_member(&mut world, A);
    commit(&mut world, &commit_request("h", "", -1, &[(0, 5)]));
    for version in 0..=5 {
        let listed = world.call(version, &ListGroupsRequest::default()).groups;
        assert_eq!(listed.iter().map(|g| g.group_id.as_str()).collect::<Vec<_>>(), ["g", "h"]);
        assert_eq!(listed[0].protocol_type, "consumer");
        if version >= 4 {
            assert_eq!((&listed[0].group_state[..], &listed[1].group_state[..]), ("Stable", "Empty"));
        }
    }
    let filter = |states: &[&str], types: &[&str]| ListGroupsRequest {
        states_filter: states.iter().map(|s| (*s).to_owned()).collect(),
        types_filter: types.iter().map(|s| (*s).to_owned()).collect(),
    };
    assert_eq!(world.call(5, &filter(&["stable"], &["Classic"])).groups.len(), 1);
    assert_eq!(world.call(5, &filter(&[], &["share"])).groups.len(), 0);

    for version in 0..=6 {
        let groups = vec!["g".into(), "nothing".into()];
        let request = DescribeGroupsRequest { groups, include_authorized_operations: version >= 3 };
        let response = world.call(version, &request);
        let member = &response.groups[0].members[0];
        assert_eq!((&response.groups[0].protocol_data[..], &member.member_id), ("range", &a));
        assert_eq!((&member.client_id[..], &member.client_host[..]), ("test", "/127.0.0.1"));
        assert_eq!(
            (&member.member_metadata, &member.member_assignment[..]),
            (&subscription(&["t"]), &b"all"[..])
        );
        let missing = &response.groups[1];
        let error = if version >= 6 { ErrorCode::GROUP_ID_NOT_FOUND } else { ErrorCode::NONE };
        assert_eq!((missing.error_code, &missing.group_state[..]), (error.code(), "Dead"));
    }
    let delete = |world: &mut World| {
        let request = DeleteGroupsRequest { groups_names: vec!["g".into(), "h".into(), "nothing".into()] };
        let response = world.call(2, &request);
        response.results.iter().map(|r| ErrorCode::new(r.error_code)).collect::<Vec<_>>()
    };
    assert_eq!(
        delete(&mut world),
        [ErrorCode::NON_EMPTY_GROUP, ErrorCode::NONE, ErrorCode::GROUP_ID_NOT_FOUND]
    );
    assert_eq!(heartbeat(&mut world, &a, generation), ErrorCode::NONE);
    let mut world = world.killed(&[]);
    assert_eq!(world.call(4, &ListGroupsRequest::default()).groups.len(), 1, "h stays deleted");
}

#[test]
fn offsets_expire_once_the_group_is_long_gone() {
    let mut world =
        World::with(&[("offsets.retention.minutes", "10"), ("offsets.retention.check.interval.ms", "1000")]);
    world.create("t", 4);
    world.connect(ConnId(9));
    let (a, generation) = first_member(&mut world, A);
    commit(&mut world, &commit_request("g", &a, generation, &[(0, 5)]));
    commit(&mut world, &commit_request("simple", "", -1, &[(0, 5)]));
    for _ in 0..70 {
        world.pass(9000);
        assert_eq!(heartbeat(&mut world, &a, generation), ErrorCode::NONE);
    }
    assert_eq!(committed(&mut world, "g").len(), 1, "it has a member");
    assert_eq!(committed(&mut world, "simple").len(), 0);
    world.pass(10_000 + 9 * 60_000);
    assert_eq!(committed(&mut world, "g").len(), 1);
    world.pass(61_000);
    assert_eq!(committed(&mut world, "g").len(), 0);
    assert!(world.call(4, &ListGroupsRequest::default()).groups.is_empty());
    let mut world = world.killed(&[]);
    assert!(world.call(4, &ListGroupsRequest::default()).groups.is_empty());
}

#[test]
fn members_survive_a_restart_of_the_broker() {
    let mut world = world();
    let (a, generation) = first_member(&mut world, A);
    commit(&mut world, &commit_request("g", &a, generation, &[(3, 33)]));
    for stop in [true, false] {
        world = if stop { world.stopped(&[]) } else { world.killed(&[]) };
        world.connect(ConnId(9));
        assert_eq!(heartbeat(&mut world, &a, generation), ErrorCode::NONE);
        assert_eq!(&world.call_on(A, 4, &sync(&a, generation, &[])).assignment[..], b"all");
        assert_eq!(committed(&mut world, "g"), [("t".into(), 3, 33)]);
    }
    world.pass(10_000);
    assert_eq!(state(&mut world), "Empty", "the session counts from the start");
}

#[test]
fn the_journal_is_kept_short() {
    let mut world = world();
    for i in 0..3 {
        let group = format!("idle-{i}");
        commit(&mut world, &commit_request(&group, "", -1, &[(0, i)]));
    }
    let mut request = commit_request("busy", "", -1, &[(0, 0), (1, 0), (2, 0), (3, 0)]);
    let mut largest = 0;
    for i in 0..3000_i64 {
        for partition in &mut request.topics[0].partitions {
            partition.committed_offset = i;
            partition.committed_metadata = Some("m".repeat(4000));
        }
        assert_eq!(commit(&mut world, &request)[0], ErrorCode::NONE);
        largest = largest.max(journal_bytes(&world));
    }
    // 48 MB were written, of which 16 KB count.
    assert!(largest < 16 << 20, "{largest} bytes");
    let mut world = world.killed(&[]);
    assert_eq!(committed(&mut world, "busy"), (0..4).map(|p| ("t".into(), p, 2999)).collect::<Vec<_>>());
    assert_eq!(committed(&mut world, "idle-2"), [("t".into(), 0, 2)]);
}

/// Commits to group `busy` until the journal is written anew; the offset of the last commit.
pub(crate) fn commit_until_a_snapshot(world: &mut World) -> i64 {
    let mut request = commit_request("busy", "", -1, &[(0, 0), (1, 0), (2, 0), (3, 0)]);
    let mut before = 0;
    for offset in 0..1000 {
        for partition in &mut request.topics[0].partitions {
            partition.committed_offset = offset;
            partition.committed_metadata = Some("m".repeat(4000));
        }
        assert_eq!(commit(world, &request), [ErrorCode::NONE; 4]);
        let bytes = journal_bytes(world);
        if bytes < before {
            return offset;
        }
        before = bytes;
    }
    panic!("the journal only grows");
}

#[test]
fn a_snapshot_of_the_journal_holds_the_commit_that_made_it_due() {
    let mut world = world();
    let last = commit_until_a_snapshot(&mut world);
    let mut world = world.killed(&[]);
    assert_eq!(committed(&mut world, "busy"), [0, 1, 2, 3].map(|p| ("t".into(), p, last)));
}

#[test]
fn a_snapshot_is_durable_before_it_replaces_anything() {
    let mut world = world();
    commit(&mut world, &commit_request("idle", "", -1, &[(0, 7)]));
    commit_until_a_snapshot(&mut world);
    let (disk, now) = (world.disk.after_power_loss(|_, _, _| 0), world.now);
    let mut world = World::open(disk, config(&[]), Box::new(AllowAll), now);
    assert_eq!(committed(&mut world, "idle"), [("t".into(), 0, 7)]);
}

#[test]
fn groups_and_positions_that_are_named_again_and_again_are_told_once() {
    let mut world = world();
    commit(&mut world, &commit_request("g", "", -1, &[(0, 1)]));
    let topic =
        OffsetFetchRequestTopics { name: "t".into(), partition_indexes: vec![0; 100], ..Default::default() };
    let group = OffsetFetchRequestGroup {
        group_id: "g".into(),
        topics: Some(vec![topic; 100]),
        ..OffsetFetchRequestGroup::default()
    };
    let request = OffsetFetchRequest { groups: vec![group; 100], ..OffsetFetchRequest::default() };
    let response = world.call(9, &request);
    assert_eq!((response.groups.len(), response.groups[0].topics.len()), (1, 1));
    assert_eq!(response.groups[0].topics[0].partitions.len(), 1);
    let request = DescribeGroupsRequest { groups: vec!["g".into(); 100], ..Default::default() };
    assert_eq!(world.call(5, &request).groups.len(), 1);
}

#[test]
fn a_commit_that_no_segment_holds_is_refused_for_good() {
    let mut world = World::with(&[("offsets.topic.segment.bytes", "2000000")]);
    world.create("wide", 600);
    let offsets: Vec<_> = (0..600).map(|p| (p, 5)).collect();
    let mut request = commit_request("g", "", -1, &offsets);
    request.topics[0].name = "wide".into();
    for partition in &mut request.topics[0].partitions {
        partition.committed_metadata = Some("m".repeat(4000));
    }
    assert_eq!(commit(&mut world, &request), [ErrorCode::INVALID_COMMIT_OFFSET_SIZE; 600]);
    assert!(committed(&mut world, "g").is_empty());
}

#[test]
fn a_group_that_no_segment_holds_is_part_of_a_snapshot_all_the_same() {
    let mut world = world();
    world.create("wide", 1200);
    for first in [0, 600] {
        let offsets: Vec<_> = (first..first + 600).map(|p| (p, 5)).collect();
        let mut request = commit_request("wide", "", -1, &offsets);
        request.topics[0].name = "wide".into();
        for partition in &mut request.topics[0].partitions {
            partition.committed_metadata = Some("m".repeat(4000));
        }
        assert_eq!(commit(&mut world, &request), [ErrorCode::NONE; 600]);
    }
    commit_until_a_snapshot(&mut world);
    let mut world = world.killed(&[]);
    assert_eq!(committed(&mut world, "wide").len(), 1200);
}

fn journal_bytes(world: &World) -> usize {
    let of_journal = |p: &&std::path::PathBuf| {
        p.to_string_lossy().contains("__consumer_offsets-") && p.extension().is_some_and(|e| e == "log")
    };
    world
        .disk
        .file_paths()
        .iter()
        .filter(of_journal)
        .map(|p| world.disk.contents(p).map_or(0, |b| b.len()))
        .sum()
}

/// A join with so many bytes of metadata, into a group of its own.
fn large_join(group: usize, bytes: usize) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol { name: "range".into(), metadata: vec![7; bytes].into() };
    JoinGroupRequest { group_id: format!("large-{group}"), protocols: vec![protocol], ..join("", None) }
}

/// Has members join with 3 MB each, over connections of their own, until one is refused; how many came in.
fn fill(world: &mut World, first: u64) -> u64 {
    for i in first..first + 100 {
        world.connect(ConnId(i));
        let correlation = world.send(ConnId(i), 3, &large_join(usize::try_from(i).unwrap(), 3_000_000));
        if let Some(answer) = world.answer::<JoinGroupRequest>(ConnId(i), 3, correlation)
            && answer.error_code != 0
        {
            assert_eq!(ErrorCode::new(answer.error_code), ErrorCode::COORDINATOR_NOT_AVAILABLE);
            return i - first;
        }
    }
    panic!("nobody is refused");
}

#[test]
fn what_members_say_is_bounded_and_goes_with_them() {
    // Their first generation is put off: they have not learnt their ids yet.
    let mut world = World::with(&[("group.initial.rebalance.delay.ms", "5000")]);
    let came = fill(&mut world, 100);
    assert!((5..=11).contains(&came), "{came}");
    // There is room left for those who say little.
    world.connect(ConnId(9));
    let small = world.send(ConnId(9), 3, &join("", None));
    assert!(world.answer::<JoinGroupRequest>(ConnId(9), 3, small).is_none());
    for i in 100..=100 + came {
        world.broker.handle_disconnect(world.now, ConnId(i));
    }
    assert_eq!(fill(&mut world, 200), came, "all was given back");

    // Those who are in a generation may come back, and go with their sessions.
    world.pass(5_000);
    for i in 200..=200 + came {
        world.broker.handle_disconnect(world.now, ConnId(i));
    }
    assert_eq!(fill(&mut world, 300), 0);
    world.pass(11_000);
    assert_eq!(fill(&mut world, 400), came);
}

#[test]
fn what_one_group_says_is_bounded() {
    let mut world = World::with(&[("group.initial.rebalance.delay.ms", "5000")]);
    let mut codes = Vec::new();
    for i in 100..103 {
        world.connect(ConnId(i));
        let correlation = world.send(ConnId(i), 3, &large_join(0, 3_000_000));
        let answer = world.answer::<JoinGroupRequest>(ConnId(i), 3, correlation);
        codes.push(answer.map_or(ErrorCode::NONE, |answer| ErrorCode::new(answer.error_code)));
    }
    assert_eq!(codes, [ErrorCode::NONE, ErrorCode::NONE, ErrorCode::GROUP_MAX_SIZE_REACHED]);

    let protocol = |i: i32| JoinGroupRequestProtocol { name: format!("p{i}"), ..Default::default() };
    let many = JoinGroupRequest {
        group_id: "many".into(),
        protocols: (0..101).map(protocol).collect(),
        ..join("", None)
    };
    let refused = ErrorCode::new(world.call_on(B, 3, &many).error_code);
    assert_eq!(refused, ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
}

#[test]
fn an_id_is_forgotten_with_the_connection_that_it_was_given_to() {
    let mut world = world();
    let conn = ConnId(70);
    world.connect(conn);
    let ids: Vec<String> = (0..200).map(|_| world.call_on(conn, 5, &join("", None)).member_id).collect();
    let groups = |world: &mut World| world.call(3, &ListGroupsRequest::default()).groups.len();
    assert_eq!(groups(&mut world), 1);
    world.broker.handle_disconnect(world.now, conn);
    assert_eq!(groups(&mut world), 0);
    let late = world.call_on(B, 5, &join(&ids[0], None));
    assert_eq!(ErrorCode::new(late.error_code), ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn commits_are_refused_while_the_offsets_log_is_offline() {
    let mut world = World::with(&[("log.flush.interval.messages", "1")]);
    world.create("t", 1);
    let commit = |world: &mut World, offset| {
        let correlation = world.send(A, 8, &commit_request("g", "", -1, &[(0, offset)]));
        world.sync_all();
        let response = world.answer::<OffsetCommitRequest>(A, 8, correlation).expect("an answer");
        ErrorCode::new(response.topics[0].partitions[0].error_code)
    };
    assert_eq!(commit(&mut world, 1), ErrorCode::NONE);
    world.disk.set_sync_fault(SyncFault::Fails);
    assert_eq!(commit(&mut world, 2), ErrorCode::COORDINATOR_NOT_AVAILABLE, "its own sync has failed");
    world.disk.set_sync_fault(SyncFault::None);
    assert_eq!(commit(&mut world, 2), ErrorCode::COORDINATOR_NOT_AVAILABLE);
    world.pass(1000);
    world.sync_all();
    assert_eq!(commit(&mut world, 3), ErrorCode::NONE);
    let (disk, now) = (world.disk.after_power_loss(|_, _, _| 0), world.now);
    drop(world);
    let mut world = World::open(disk, config(&[]), Box::new(AllowAll), now);
    assert_eq!(committed(&mut world, "g"), [("t".to_owned(), 0, 3)]);
}

#[test]
fn what_was_acknowledged_of_a_groups_offsets_survives_a_loss_of_power() {
    let durable = [("log.flush.interval.messages", "1")];
    let mut world = World::with(&durable);
    world.create("t", 3);
    let lose_power = |world: World| {
        let (disk, now) = (world.disk.after_power_loss(|_, _, _| 0), world.now);
        drop(world);
        World::open(disk, config(&durable), Box::new(AllowAll), now)
    };
    let correlation = world.send(A, 8, &commit_request("g", "", -1, &[(0, 7), (1, 8)]));
    assert!(world.answer::<OffsetCommitRequest>(A, 8, correlation).is_none(), "on no disk yet");
    world.sync_all();
    let response = world.answer::<OffsetCommitRequest>(A, 8, correlation).expect("an answer");
    assert!(response.topics[0].partitions.iter().all(|partition| partition.error_code == 0));
    world = lose_power(world);
    let (first, second) = (("t".to_owned(), 0, 7), ("t".to_owned(), 1, 8));
    assert_eq!(committed(&mut world, "g"), [first, second.clone()]);
    // What was refused waits for nothing.
    let response = world.call(8, &commit_request("g", "", 5, &[(0, 9)]));
    assert_ne!(response.topics[0].partitions[0].error_code, 0);

    let partitions = vec![OffsetDeleteRequestPartition { partition_index: 0 }];
    let topics = vec![OffsetDeleteRequestTopic { name: "t".into(), partitions }];
    let request = OffsetDeleteRequest { group_id: "g".into(), topics };
    let correlation = world.send(A, 0, &request);
    assert!(world.answer::<OffsetDeleteRequest>(A, 0, correlation).is_none());
    world.sync_all();
    let response = world.answer::<OffsetDeleteRequest>(A, 0, correlation).expect("an answer");
    assert_eq!((response.error_code, response.topics[0].partitions[0].error_code), (0, 0));
    world = lose_power(world);
    assert_eq!(committed(&mut world, "g"), [second]);

    let correlation = world.send(A, 2, &DeleteGroupsRequest { groups_names: vec!["g".into()] });
    assert!(world.answer::<DeleteGroupsRequest>(A, 2, correlation).is_none());
    world.sync_all();
    let response = world.answer::<DeleteGroupsRequest>(A, 2, correlation).expect("an answer");
    assert_eq!(response.results[0].error_code, 0);
    world = lose_power(world);
    assert_eq!(committed(&mut world, "g"), []);
}
