//! `ListOffsets`, `OffsetForLeaderEpoch`, `DeleteRecords`.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use headrace_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use headrace_wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use headrace_wire::messages::{DeleteRecordsRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest};

use crate::world::*;

fn list(world: &mut World, version: i16, timestamp: i64) -> (ErrorCode, i64, i64) {
    let partition = ListOffsetsPartition { timestamp, ..ListOffsetsPartition::default() };
    let topic = ListOffsetsTopic { name: "t".into(), partitions: vec![partition] };
    let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..ListOffsetsRequest::default() };
    let response = world.call(version, &request);
    let partition = &response.topics[0].partitions[0];
    (ErrorCode::new(partition.error_code), partition.offset, partition.timestamp)
}

fn delete_before(world: &mut World, topic: &str, offset: i64) -> (ErrorCode, i64) {
    let partition = DeleteRecordsPartition { partition_index: 0, offset };
    let topic = DeleteRecordsTopic { name: topic.into(), partitions: vec![partition] };
    let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 1000 };
    let response = world.call(2, &request);
    let partition = &response.topics[0].partitions[0];
    (ErrorCode::new(partition.error_code), partition.low_watermark)
}

#[test]
fn offsets_by_time_and_the_special_ones() {
    let mut world = World::new();
    world.create("t", 1);
    for version in 1..=11 {
        assert_eq!(list(&mut world, version, -1), (ErrorCode::NONE, 0, -1));
        assert_eq!(list(&mut world, version, -2), (ErrorCode::NONE, 0, -1));
        assert_eq!(list(&mut world, version, WALL), (ErrorCode::NONE, -1, -1), "empty");
    }
    assert_eq!(list(&mut world, 7, -3), (ErrorCode::NONE, -1, -1));
    for (at, value) in [(10, "a"), (30, "b"), (20, "c")] {
        assert_eq!(produced(&world.produce("t", 0, batch(WALL + at, &[value]))).0, ErrorCode::NONE);
    }
    for version in 1..=11 {
        assert_eq!(list(&mut world, version, -1), (ErrorCode::NONE, 3, -1));
        assert_eq!(list(&mut world, version, WALL), (ErrorCode::NONE, 0, WALL + 10));
        assert_eq!(list(&mut world, version, WALL + 11), (ErrorCode::NONE, 1, WALL + 30));
        assert_eq!(list(&mut world, version, WALL + 31), (ErrorCode::NONE, -1, -1));
        let newest = list(&mut world, version, -3);
        let expected = if version >= 7 {
            (ErrorCode::NONE, 1, WALL + 30)
        } else {
            (ErrorCode::UNSUPPORTED_VERSION, -1, -1)
        };
        assert_eq!(newest, expected, "version {version}");
    }
    assert_eq!(list(&mut world, 8, -4), (ErrorCode::NONE, 0, -1));
    assert_eq!(list(&mut world, 9, -5), (ErrorCode::NONE, -1, -1));
    assert_eq!(list(&mut world, 11, -6), (ErrorCode::NONE, -1, -1));
    assert_eq!(list(&mut world, 11, -7).0, ErrorCode::UNSUPPORTED_VERSION);
}

#[test]
fn unknown_repeated_and_stale_partitions() {
    let mut world = World::new();
    world.create("t", 1);
    let partition = |partition_index, current_leader_epoch| ListOffsetsPartition {
        partition_index,
        current_leader_epoch,
        timestamp: -1,
    };
    let topic = ListOffsetsTopic {
        name: "t".into(),
        partitions: vec![partition(0, -1), partition(0, -1), partition(5, -1)],
    };
    let other = ListOffsetsTopic { name: "u".into(), partitions: vec![partition(0, 3)] };
    let request =
        ListOffsetsRequest { replica_id: -1, topics: vec![topic, other], ..ListOffsetsRequest::default() };
    let response = world.call(6, &request);
    let codes: Vec<i16> = response.topics.iter().flat_map(|t| &t.partitions).map(|p| p.error_code).collect();
    assert_eq!(codes, [0, 42, 3, 3]);
    let stale = ListOffsetsTopic { name: "t".into(), partitions: vec![partition(0, 3)] };
    let request = ListOffsetsRequest { replica_id: -1, topics: vec![stale], ..ListOffsetsRequest::default() };
    let response = world.call(6, &request);
    assert_eq!(response.topics[0].partitions[0].error_code, ErrorCode::UNKNOWN_LEADER_EPOCH.code());
}

#[test]
fn deleted_records_stay_deleted() {
    let mut world = World::new();
    world.create("t", 1);
    for value in ["a", "b", "c"] {
        world.append("t", 0, &[value]);
    }
    assert_eq!(delete_before(&mut world, "t", 4), (ErrorCode::OFFSET_OUT_OF_RANGE, -1));
    assert_eq!(delete_before(&mut world, "t", -2), (ErrorCode::OFFSET_OUT_OF_RANGE, -1));
    assert_eq!(delete_before(&mut world, "u", 0), (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, -1));
    assert_eq!(delete_before(&mut world, "t", 2), (ErrorCode::NONE, 2));
    assert_eq!(error_of(&world.fetch("t", 0, 1)), ErrorCode::OFFSET_OUT_OF_RANGE);
    assert_eq!(list(&mut world, 5, -2), (ErrorCode::NONE, 2, -1));
    let mut world = world.killed(&[]);
    assert_eq!(list(&mut world, 5, -2), (ErrorCode::NONE, 2, -1));
    assert_eq!(values(&world.fetch("t", 0, 2)), ["c"]);
    assert_eq!(delete_before(&mut world, "t", -1), (ErrorCode::NONE, 3));
    assert_eq!(world.append("t", 0, &["d"]), 3);
    world.create_with("compacted", 1, &[("cleanup.policy", "compact")]);
    assert_eq!(delete_before(&mut world, "compacted", 0).0, ErrorCode::POLICY_VIOLATION);
}

#[test]
fn ends_of_leader_epochs() {
    let mut world = World::new();
    world.create("t", 1);
    world.append("t", 0, &["a", "b"]);
    let mut world = world.killed(&[]);
    world.append("t", 0, &["c"]);
    let ask = |world: &mut World, version, leader_epoch, current_leader_epoch| {
        let partition = OffsetForLeaderPartition { partition: 0, current_leader_epoch, leader_epoch };
        let topic = OffsetForLeaderTopic { topic: "t".into(), partitions: vec![partition] };
        let request =
            OffsetForLeaderEpochRequest { topics: vec![topic], ..OffsetForLeaderEpochRequest::default() };
        let answer = world.call(version, &request).topics[0].partitions[0].clone();
        (answer.error_code, answer.leader_epoch, answer.end_offset)
    };
    for version in 2..=4 {
        assert_eq!(ask(&mut world, version, 0, -1), (0, 0, 2));
        assert_eq!(ask(&mut world, version, 1, 1), (0, 1, 3));
        assert_eq!(ask(&mut world, version, 9, -1), (0, -1, -1));
        assert_eq!(ask(&mut world, version, 0, 0).0, ErrorCode::FENCED_LEADER_EPOCH.code());
    }
}
