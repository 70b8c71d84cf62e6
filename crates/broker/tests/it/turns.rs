//! Topics that are made, extended and removed in turns: who sees what in between, and what a crash leaves.

use std::path::Path;

use headrace_wire::compression::Codec;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::create_partitions_request::CreatePartitionsTopic;
use headrace_wire::messages::create_topics_request::CreatableTopic;
use headrace_wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use headrace_wire::messages::delete_topics_request::DeleteTopicState;
use headrace_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use headrace_wire::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, CreateTopicsResponse, DeleteRecordsRequest,
    DeleteTopicsRequest, DeleteTopicsResponse, ListOffsetsRequest, MetadataRequest,
};
use headrace_wire::records::{BatchBuilder, NO_HEADERS, ProducerStamp};

use crate::world::*;

fn creation(topics: &[(&str, i32)]) -> CreateTopicsRequest {
    let topic = |(name, num_partitions): &(&str, i32)| CreatableTopic {
        name: (*name).into(),
        num_partitions: *num_partitions,
        replication_factor: 1,
        ..CreatableTopic::default()
    };
    CreateTopicsRequest { topics: topics.iter().map(topic).collect(), ..CreateTopicsRequest::default() }
}

fn extension(name: &str, count: i32) -> CreatePartitionsRequest {
    let topics = vec![CreatePartitionsTopic { name: name.into(), count, assignments: None }];
    CreatePartitionsRequest { topics, ..CreatePartitionsRequest::default() }
}

fn deletion(names: &[&str]) -> DeleteTopicsRequest {
    let topic = |name: &&str| DeleteTopicState { name: Some((*name).into()), ..DeleteTopicState::default() };
    DeleteTopicsRequest { topics: names.iter().map(topic).collect(), ..DeleteTopicsRequest::default() }
}

/// Each topic with its partitions.
fn topics(world: &mut World) -> Vec<(String, usize)> {
    let all = world.call_on(B, 12, &MetadataRequest { topics: None, ..MetadataRequest::default() });
    all.topics.into_iter().map(|topic| (topic.name.unwrap(), topic.partitions.len())).collect()
}

/// Does so many units of work; whether there is more.
fn work(world: &mut World, steps: usize) -> bool {
    (0..steps).all(|_| world.broker.work(world.now))
}

fn errors_of_creation(response: &CreateTopicsResponse) -> Vec<ErrorCode> {
    response.topics.iter().map(|topic| ErrorCode::new(topic.error_code)).collect()
}

fn errors_of_deletion(response: &DeleteTopicsResponse) -> Vec<ErrorCode> {
    response.responses.iter().map(|topic| ErrorCode::new(topic.error_code)).collect()
}

#[test]
fn a_crash_leaves_all_of_a_topic_that_was_being_made_or_nothing() {
    for steps in 0.. {
        let mut world = World::new();
        world.begin(A, 7, &creation(&[("slow", 100), ("a.b", 40)]));
        let more = work(&mut world, steps);
        assert!(!partition_dirs(&world.disk).is_empty());
        let mut world = world.killed(&[]);
        let found = topics(&mut world);
        let whole = vec![("a.b".to_owned(), 40), ("slow".to_owned(), 100)];
        assert!(found.is_empty() || found == whole, "{found:?}");
        assert_eq!(partition_dirs(&world.disk).len(), if found.is_empty() { 0 } else { 140 });
        assert_eq!(world.report.strays, [] as [String; 0]);
        if found.is_empty() {
            assert_eq!(world.try_create("a_b", 2), ErrorCode::NONE, "nothing is in its way");
        }
        if !more {
            assert_eq!(found, whole);
            assert!(steps >= 4, "{steps}");
            return;
        }
    }
}

#[test]
fn a_crash_leaves_all_new_partitions_of_a_topic_or_none() {
    for steps in 0.. {
        let mut world = World::new();
        world.create("t", 3);
        world.append("t", 2, &["x"]);
        world.begin(A, 3, &extension("t", 100));
        let more = work(&mut world, steps);
        assert!(partition_dirs(&world.disk).len() > 3);
        let mut world = world.killed(&[]);
        let count = topics(&mut world)[0].1;
        assert!(count == 3 || count == 100, "{count}");
        assert_eq!(partition_dirs(&world.disk).len(), count);
        assert_eq!(world.report.strays, [] as [String; 0]);
        assert_eq!(values(&world.fetch("t", 2, 0)), ["x"]);
        if !more {
            assert_eq!(count, 100);
            assert!(steps >= 3, "{steps}");
            return;
        }
    }
}

#[test]
fn a_removal_that_has_begun_is_finished_after_a_crash() {
    for steps in 0.. {
        let mut world = World::new();
        world.create("t", 100);
        world.create("u", 1);
        world.append("t", 99, &["old"]);
        world.begin(A, 6, &deletion(&["t"]));
        let more = work(&mut world, steps);
        assert_eq!(topics(&mut world), [("u".to_owned(), 1)], "it is gone at once");
        let mut world = world.killed(&[]);
        assert_eq!(topics(&mut world), [("u".to_owned(), 1)]);
        assert_eq!(partition_dirs(&world.disk).len(), 1);
        assert_eq!(world.report.strays, [] as [String; 0]);
        world.create("t", 100);
        assert_eq!(world.append("t", 99, &["new"]), 0);
        if !more {
            assert!(steps >= 3, "{steps}");
            return;
        }
    }
}

#[test]
fn a_stop_in_the_middle_leaves_what_a_crash_would() {
    let mut world = World::new();
    world.create("old", 100);
    world.begin(A, 7, &creation(&[("new", 100)]));
    world.begin(B, 6, &deletion(&["old"]));
    work(&mut world, 2);
    let mut world = world.stopped(&[]);
    assert!(world.report.clean && world.report.strays.is_empty(), "{}", world.report);
    assert_eq!(topics(&mut world), []);
    assert_eq!(partition_dirs(&world.disk).len(), 0);
}

#[test]
fn requests_for_one_topic_wait_for_each_other_or_are_refused() {
    let mut world = World::new();
    let first = world.begin(A, 7, &creation(&[("t", 100), ("a.b", 1), ("a_b", 1)]));
    assert!(world.broker.has_work());
    // Its name is taken, and so are those that metrics would not tell from it.
    let second = world.call_on(B, 7, &creation(&[("t", 1)]));
    assert_eq!(errors_of_creation(&second), [ErrorCode::TOPIC_ALREADY_EXISTS]);
    let first = world.answer::<CreateTopicsRequest>(A, 7, first).unwrap();
    let (none, invalid) = (ErrorCode::NONE, ErrorCode::INVALID_TOPIC_EXCEPTION);
    assert_eq!(errors_of_creation(&first), [none, none, invalid]);
    assert_eq!((first.topics[0].num_partitions, first.topics[1].num_partitions), (100, 1));

    let more = world.begin(A, 3, &extension("t", 200));
    assert!(world.broker.has_work());
    let gone = world.begin(B, 6, &deletion(&["t", "a.b"]));
    world.collect();
    let more = world.answer::<CreatePartitionsRequest>(A, 3, more).unwrap();
    assert_eq!(more.results[0].error_code, 0, "{:?}", more.results[0].error_message);
    let gone = world.answer::<DeleteTopicsRequest>(B, 6, gone).unwrap();
    assert_eq!(errors_of_deletion(&gone), [none, none]);
    assert_eq!((topics(&mut world), partition_dirs(&world.disk).len()), (vec![], 0));

    world.create("t", 100);
    let gone = world.begin(A, 6, &deletion(&["t"]));
    let again = world.begin(B, 6, &deletion(&["t"]));
    assert_eq!(world.broker.poll_response().map(|response| response.conn), Some(B), "there is none any more");
    let _ = again;
    let made = world.begin(B, 7, &creation(&[("t", 1)]));
    world.collect();
    let gone = world.answer::<DeleteTopicsRequest>(A, 6, gone).unwrap();
    assert_eq!(errors_of_deletion(&gone), [none]);
    // Its directories were still there.
    let made = world.answer::<CreateTopicsRequest>(B, 7, made).unwrap();
    assert_eq!(errors_of_creation(&made), [ErrorCode::TOPIC_ALREADY_EXISTS]);
    world.create("t", 1);
    assert_eq!(world.append("t", 0, &["new"]), 0);
}

#[test]
fn what_has_begun_goes_on_without_its_client() {
    let mut world = World::new();
    world.create("old", 100);
    world.begin(A, 7, &creation(&[("new", 100)]));
    world.begin(B, 6, &deletion(&["old"]));
    world.broker.handle_disconnect(world.now, A);
    world.broker.handle_disconnect(world.now, B);
    world.collect();
    world.connect(B);
    assert_eq!(topics(&mut world), [("new".to_owned(), 100)]);
    assert_eq!(partition_dirs(&world.disk).len(), 100);
}

#[test]
fn a_disk_that_gets_full_in_the_middle_leaves_nothing() {
    let mut world = World::new();
    world.create("t", 2);
    let before = partition_dirs(&world.disk);
    let create = world.begin(A, 7, &creation(&[("one", 1), ("slow", 100)]));
    work(&mut world, 1);
    world.disk.set_room(Some(0));
    let response = loop {
        world.collect();
        if let Some(response) = world.answer::<CreateTopicsRequest>(A, 7, create) {
            break response;
        }
    };
    let full = ErrorCode::KAFKA_STORAGE_ERROR;
    assert_eq!(errors_of_creation(&response), [full, full], "one write of the state file is for both");
    let more = world.call(3, &extension("t", 50));
    assert_eq!(ErrorCode::new(more.results[0].error_code), full);
    assert_eq!(partition_dirs(&world.disk), before);
    world.disk.set_room(None);
    world.create("slow", 100);
    assert_eq!(topics(&mut world), [("slow".to_owned(), 100), ("t".to_owned(), 2)]);
}

#[test]
fn partitions_that_are_made_in_turns_have_the_settings_of_the_end() {
    let mut world = World::new();
    world.create_with("t", 1, &[("max.message.bytes", "1000")]);
    world.begin(A, 3, &extension("t", 100));
    assert!(world.broker.has_work());
    let config = headrace_wire::messages::alter_configs_request::AlterableConfig {
        name: "max.message.bytes".into(),
        value: Some("2000".into()),
    };
    let resource = headrace_wire::messages::alter_configs_request::AlterConfigsResource {
        resource_type: 2,
        resource_name: "t".into(),
        configs: vec![config],
    };
    let request = headrace_wire::messages::AlterConfigsRequest {
        resources: vec![resource],
        ..headrace_wire::messages::AlterConfigsRequest::default()
    };
    let response = world.call_on(B, 2, &request);
    assert_eq!(response.responses[0].error_code, 0);
    world.collect();
    for partition in [0, 1, 99] {
        world.append("t", partition, &[&"x".repeat(1500)]);
    }
}

/// A batch of records with these timestamps, and values of so many bytes.
fn timed(timestamps: &[i64], bytes: usize) -> bytes::Bytes {
    let mut builder = BatchBuilder::new(1 << 24);
    for timestamp in timestamps {
        builder.append(*timestamp, None, Some(&vec![0; bytes]), NO_HEADERS.iter().copied()).unwrap();
    }
    builder.finish(ProducerStamp::NONE, Codec::None, None).unwrap().to_vec().into()
}

#[test]
fn records_are_deleted_in_turns_and_looked_for_in_what_is_left() {
    let mut world = World::new();
    world.create_with("t", 2, &[("segment.bytes", "1048576"), ("retention.ms", "-1")]);
    for n in 0..40 {
        // In each segment the first record has the largest timestamp, and in the first segments they are the largest.
        let late = WALL - 1000 * n;
        world.produce("t", 0, timed(&[late + 500, late], 300_000));
    }
    let logs = |world: &World| {
        let paths = world.disk.file_paths();
        paths.iter().filter(|p| p.starts_with(Path::new(DIR).join("t-0")) && p.ends_with_log()).count()
    };
    assert!(logs(&world) >= 30);
    let find = |world: &mut World, timestamp| {
        let asked = ListOffsetsPartition { timestamp, ..ListOffsetsPartition::default() };
        let topics = vec![ListOffsetsTopic { name: "t".into(), partitions: vec![asked] }];
        let found = world.call_on(B, 7, &ListOffsetsRequest { topics, ..ListOffsetsRequest::default() });
        let found = &found.topics[0].partitions[0];
        assert_eq!(found.error_code, 0);
        (found.offset, found.timestamp)
    };
    let largest = -3;
    assert_eq!(find(&mut world, largest), (0, WALL + 500));
    let partition = |partition_index, offset| DeleteRecordsPartition { partition_index, offset };
    let partitions = vec![partition(0, 61), partition(1, 0), partition(7, 0)];
    let topics = vec![DeleteRecordsTopic { name: "t".into(), partitions }];
    let correlation = world.begin(A, 2, &DeleteRecordsRequest { topics, ..DeleteRecordsRequest::default() });
    assert!(world.broker.has_work() && logs(&world) >= 25, "not all at once");
    // Nobody sees records that are to go.
    assert_eq!(error_of(&world.fetch("t", 0, 60)), ErrorCode::OFFSET_OUT_OF_RANGE);
    world.collect();
    assert!(logs(&world) <= 11);
    let response = world.answer::<DeleteRecordsRequest>(A, 2, correlation).unwrap();
    let partitions = &response.topics[0].partitions;
    let answers: Vec<_> =
        partitions.iter().map(|p| (p.partition_index, p.low_watermark, p.error_code)).collect();
    let unknown = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.code();
    assert_eq!(answers, [(0, 61, 0), (1, 0, 0), (7, -1, unknown)]);
    // Record 60, which is in the same batch, had a later timestamp than any after it.
    assert_eq!(find(&mut world, largest), (61, WALL - 30_000));
    assert_eq!(find(&mut world, WALL - 30_400), (61, WALL - 30_000));
    assert_eq!(find(&mut world, WALL - 29_999), (-1, -1));
    let mut world = world.killed(&[]);
    assert_eq!(error_of(&world.fetch("t", 0, 60)), ErrorCode::OFFSET_OUT_OF_RANGE);
    assert_eq!(values(&world.fetch("t", 0, 61)).len(), 2, "a batch is sent whole");
}

trait IsLog {
    fn ends_with_log(&self) -> bool;
}

impl IsLog for std::path::PathBuf {
    fn ends_with_log(&self) -> bool {
        self.extension().is_some_and(|extension| extension == "log")
    }
}
