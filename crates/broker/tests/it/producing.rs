//! Produce and `InitProducerId`.

use bytes::Bytes;
use headrace_broker::{AllowAll, ConnId};
use headrace_log::SyncFault;
use headrace_wire::compression::Codec;
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame;
use headrace_wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use headrace_wire::messages::{
    DeleteTopicsRequest, FindCoordinatorRequest, InitProducerIdRequest, MetadataRequest, ProduceRequest,
};
use headrace_wire::primitive::Records;
use headrace_wire::records::{BatchBuilder, NO_HEADERS, ProducerStamp};
use headrace_wire::uuid::Uuid;

use crate::world::*;

fn topic_id(world: &mut World, name: &str) -> Uuid {
    let response = world.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() });
    response.topics.iter().find(|t| t.name.as_deref() == Some(name)).unwrap().topic_id
}

#[test]
fn every_version_appends() {
    let mut world = World::new();
    world.create("t", 1);
    let id = topic_id(&mut world, "t");
    for version in 3..=13 {
        let mut request = produce_request(-1, "t", 0, batch(WALL, &["a", "b"]));
        if version >= 13 {
            request.topic_data[0].name = String::new();
            request.topic_data[0].topic_id = id;
        }
        let response = world.call(version, &request);
        let expected = i64::from(version - 3) * 2;
        assert_eq!(produced(&response), (ErrorCode::NONE, expected), "version {version}");
        assert_eq!(response.responses[0].partition_responses[0].log_append_time_ms, -1);
    }
    assert_eq!(values(&world.fetch("t", 0, 20)), ["a", "b"]);
}

#[test]
fn several_topics_and_partitions_fail_one_by_one() {
    let mut world = World::new();
    world.create("t", 2);
    world.create("u", 1);
    let data = |index, value: &str| PartitionProduceData {
        index,
        records: Some(Records::from(batch(WALL, &[value]))),
    };
    let topic = |name: &str, partition_data| TopicProduceData {
        name: name.into(),
        partition_data,
        ..TopicProduceData::default()
    };
    let request = ProduceRequest {
        acks: 1,
        topic_data: vec![
            topic("t", vec![data(0, "t0"), data(9, "t9"), data(1, "t1")]),
            topic("missing", vec![data(0, "m")]),
            topic("u", vec![data(0, "u0")]),
        ],
        ..ProduceRequest::default()
    };
    let response = world.call(9, &request);
    let codes: Vec<Vec<i16>> = response
        .responses
        .iter()
        .map(|t| t.partition_responses.iter().map(|p| p.error_code).collect())
        .collect();
    assert_eq!(codes, [vec![0, 3, 0], vec![3], vec![0]]);
    assert_eq!(values(&world.fetch("t", 1, 0)), ["t1"]);
    assert_eq!(values(&world.fetch("u", 0, 0)), ["u0"]);
}

#[test]
fn bad_input_is_refused_by_name_and_appends_nothing() {
    let mut world = World::with(&[("message.max.bytes", "2000")]);
    world.create("t", 1);
    let good = batch(WALL, &["a", "b"]);
    let mut wrong_crc = good.to_vec();
    *wrong_crc.last_mut().unwrap() ^= 1;
    let mut old_magic = good.to_vec();
    old_magic[16] = 1;
    let mut lying_count = good.to_vec();
    lying_count[57..61].copy_from_slice(&3_i32.to_be_bytes());
    let crc = crc_of(&lying_count);
    lying_count[17..21].copy_from_slice(&crc);
    let mut unknown_codec = good.to_vec();
    unknown_codec[22] |= 5;
    let crc = crc_of(&unknown_codec);
    unknown_codec[17..21].copy_from_slice(&crc);
    let two = [good.clone(), good.clone()].concat();
    let large = batch(WALL, &[&"x".repeat(3000)]);
    let cases: [(&str, Bytes, ErrorCode); 9] = [
        ("truncated", good.slice(..good.len() - 3), ErrorCode::CORRUPT_MESSAGE),
        ("wrong crc", wrong_crc.into(), ErrorCode::CORRUPT_MESSAGE),
        ("magic", old_magic.into(), ErrorCode::INVALID_RECORD),
        ("count", lying_count.into(), ErrorCode::INVALID_RECORD),
        ("codec", unknown_codec.into(), ErrorCode::UNSUPPORTED_COMPRESSION_TYPE),
        ("two batches", two.into(), ErrorCode::INVALID_RECORD),
        ("nothing", Bytes::new(), ErrorCode::INVALID_RECORD),
        ("too large", large, ErrorCode::MESSAGE_TOO_LARGE),
        ("from the future", batch(WALL + 7_200_000, &["x"]), ErrorCode::INVALID_TIMESTAMP),
    ];
    for (what, records, error) in cases {
        let response = world.produce("t", 0, records);
        assert_eq!(produced(&response), (error, -1), "{what}");
        assert!(response.responses[0].partition_responses[0].error_message.is_some(), "{what}");
    }
    let mut none = produce_request(-1, "t", 0, Bytes::new());
    none.topic_data[0].partition_data[0].records = None;
    assert_eq!(produced(&world.call(9, &none)).0, ErrorCode::INVALID_RECORD);
    let strange = produce_request(2, "t", 0, good);
    assert_eq!(produced(&world.call(9, &strange)).0, ErrorCode::INVALID_REQUIRED_ACKS);
    assert_eq!(world.append("t", 0, &["first"]), 0);
}

fn crc_of(batch: &[u8]) -> [u8; 4] {
    // The table-free form of CRC-32C, slow and independent of the code under test.
    let mut crc = !0_u32;
    for byte in &batch[21..] {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 };
        }
    }
    (!crc).to_be_bytes()
}

#[test]
fn topics_are_named_by_id_from_version_13_on() {
    let mut world = World::new();
    world.create("t", 1);
    let mut request = produce_request(-1, "t", 0, batch(WALL, &["a"]));
    request.topic_data[0].topic_id = Uuid([9; 16]);
    let response = world.call(13, &request);
    assert_eq!(produced(&response).0, ErrorCode::UNKNOWN_TOPIC_ID);
    assert_eq!(response.responses[0].topic_id, Uuid([9; 16]));
}

#[test]
fn every_codec_is_taken() {
    let mut world = World::new();
    world.create("t", 1);
    for (i, codec) in Codec::ALL.into_iter().enumerate() {
        let records = batch_with(WALL, &["same", "same", "same"], ProducerStamp::NONE, codec);
        assert_eq!(produced(&world.produce("t", 0, records)), (ErrorCode::NONE, i as i64 * 3), "{codec:?}");
    }
}

#[test]
fn sequences_make_repeats_harmless_and_gaps_errors() {
    let mut world = World::new();
    world.create("t", 1);
    let id = world.call(4, &plain_id()).producer_id;
    let send = |world: &mut World, epoch, sequence, values: &[&str]| {
        produced(&world.produce("t", 0, stamped(id, epoch, sequence, values)))
    };
    assert_eq!(send(&mut world, 0, 0, &["a", "b"]), (ErrorCode::NONE, 0));
    assert_eq!(send(&mut world, 0, 2, &["c"]), (ErrorCode::NONE, 2));
    assert_eq!(send(&mut world, 0, 0, &["a", "b"]), (ErrorCode::NONE, 0), "a repeat");
    assert_eq!(send(&mut world, 0, 5, &["x"]).0, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(send(&mut world, 1, 0, &["d"]), (ErrorCode::NONE, 3), "a new epoch");
    assert_eq!(send(&mut world, 0, 3, &["old"]).0, ErrorCode::INVALID_PRODUCER_EPOCH);
    assert_eq!(values(&world.fetch("t", 0, 0)), ["a", "b", "c", "d"]);
}

#[test]
fn producer_ids_are_never_given_twice() {
    let mut world = World::new();
    let ask = |world: &mut World, version| {
        let response = world.call(version, &plain_id());
        assert_eq!((response.error_code, response.producer_epoch), (0, 0));
        response.producer_id
    };
    let mut last = -1;
    for i in 0..2500 {
        let id = ask(&mut world, i % 6);
        assert!(id > last);
        last = id;
    }
    let mut world = world.killed(&[]);
    assert!(ask(&mut world, 5) > last);
}

#[test]
fn transactional_ids_are_refused_clearly() {
    let mut world = World::new();
    let request =
        InitProducerIdRequest { transactional_id: Some("tx".into()), ..InitProducerIdRequest::default() };
    let response = world.call(5, &request);
    assert_eq!(response.error_code, ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED.code());
    for version in 1..=6 {
        let request = FindCoordinatorRequest {
            key: if version < 4 { "tx".into() } else { String::new() },
            key_type: 1,
            coordinator_keys: if version < 4 { Vec::new() } else { vec!["tx".into()] },
        };
        let answer = world.call(version, &request);
        let (code, why) = match answer.coordinators.first() {
            Some(one) => (one.error_code, one.error_message.clone()),
            None => (answer.error_code, answer.error_message),
        };
        // What librdkafka takes as final, and what Java prints the message with.
        let expected = if version < 4 {
            ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        } else {
            ErrorCode::UNSUPPORTED_VERSION
        };
        assert_eq!(code, expected.code(), "version {version}");
        let why = why.unwrap();
        assert!(why.contains("no transactions yet") && why.contains("docs/compatibility.md#"), "{why}");
    }
    world.create("t", 1);
    let stamp = ProducerStamp { producer_id: 1, epoch: 0, base_sequence: 0, transactional: true };
    let records = batch_with(WALL, &["x"], stamp, Codec::None);
    assert_eq!(produced(&world.produce("t", 0, records)).0, ErrorCode::INVALID_TXN_STATE);
}

#[test]
fn the_brokers_clock_stamps_records_if_asked() {
    let mut world = World::new();
    world.create_with("t", 1, &[("message.timestamp.type", "LogAppendTime")]);
    world.pass(5000);
    let response = world.produce("t", 0, batch(WALL - 99_999, &["a"]));
    assert_eq!(response.responses[0].partition_responses[0].log_append_time_ms, WALL + 5000);
}

#[test]
fn a_full_disk_fails_the_partition_and_the_broker_lives() {
    let mut world = World::new();
    world.create("t", 1);
    world.append("t", 0, &["before"]);
    world.disk.set_room(Some(20));
    assert_eq!(produced(&world.produce("t", 0, batch(WALL, &["lost"]))).0, ErrorCode::KAFKA_STORAGE_ERROR);
    assert_eq!(values(&world.fetch("t", 0, 0)), ["before"]);
    world.disk.set_room(None);
    assert_eq!(world.append("t", 0, &["after"]), 1);
    assert_eq!(values(&world.fetch("t", 0, 0)), ["before", "after"]);
}

#[test]
fn clients_do_not_write_to_internal_topics() {
    let mut world = World::new();
    world.call(
        9,
        &MetadataRequest {
            topics: Some(vec![headrace_wire::messages::metadata_request::MetadataRequestTopic {
                name: Some("__consumer_offsets".into()),
                ..Default::default()
            }]),
            ..MetadataRequest::default()
        },
    );
    let response = world.produce("__consumer_offsets", 0, batch(WALL, &["x"]));
    assert_eq!(produced(&response).0, ErrorCode::INVALID_TOPIC_EXCEPTION);
}

#[test]
fn a_sync_that_was_asked_for_comes_before_the_answer() {
    let mut world = World::new();
    world.create_with("t", 1, &[("flush.messages", "1")]);
    let correlation = world.send(A, 9, &produce_request(-1, "t", 0, batch(WALL, &["a"])));
    assert!(world.answer::<ProduceRequest>(A, 9, correlation).is_none());
    let work = world.broker.poll_flush().expect("a flush is due");
    assert!(work.files().count() > 0);
    // One that comes while the sync runs waits for the next.
    let second = world.send(B, 9, &produce_request(1, "t", 0, batch(WALL, &["b"])));
    world.broker.handle_flushed(world.now, work, Ok(()));
    let response = world.answer::<ProduceRequest>(A, 9, correlation).unwrap();
    assert_eq!(produced(&response), (ErrorCode::NONE, 0));
    assert!(world.answer::<ProduceRequest>(B, 9, second).is_none());
    let work = world.broker.poll_flush().expect("another flush is due");
    world.broker.handle_flushed(world.now, work, Err(std::io::ErrorKind::Other.into()));
    let response = world.answer::<ProduceRequest>(B, 9, second).unwrap();
    assert_eq!(produced(&response).0, ErrorCode::KAFKA_STORAGE_ERROR);
    assert_eq!(world.broker.take_troubles().len(), 1);
}

#[test]
fn a_sync_that_failed_is_not_believed_when_it_is_tried_again() {
    for restarts in [false, true] {
        let durable = ("log.flush.interval.messages", "1");
        let mut world = World::with(&[durable]);
        world.create("t", 1);
        let id = world.call(4, &plain_id()).producer_id;
        let request = |n: i32| produce_request(-1, "t", 0, stamped(id, 0, n, &[["a", "b", "c"][n as usize]]));
        let send = |world: &mut World, n| {
            let correlation = world.send(A, 9, &request(n));
            world.sync_all();
            produced(&world.answer::<ProduceRequest>(A, 9, correlation).expect("an answer")).0
        };
        assert_eq!(send(&mut world, 0), ErrorCode::NONE);
        world.disk.set_sync_fault(SyncFault::Fails);
        assert_eq!(send(&mut world, 1), ErrorCode::KAFKA_STORAGE_ERROR);
        world.disk.set_sync_fault(SyncFault::None);
        // The disk is well again, and what the system holds for written is on none.
        assert_eq!(send(&mut world, 1), ErrorCode::KAFKA_STORAGE_ERROR);
        assert_eq!(values(&world.fetch("t", 0, 0)), ["a"], "nothing that power may take");
        if restarts {
            world = world.killed(&[durable]);
        } else {
            world.pass(1000);
        }
        world.sync_all();
        assert_eq!(values(&world.fetch("t", 0, 0)), ["a", "b"]);
        assert_eq!(send(&mut world, 1), ErrorCode::NONE, "the repeat is known, and durable by now");
        assert_eq!(send(&mut world, 2), ErrorCode::NONE);
        let (disk, now) = (world.disk.after_power_loss(|_, _, _| 0), world.now);
        drop(world);
        let mut world = World::open(disk, config(&[]), Box::new(AllowAll), now);
        assert_eq!(values(&world.fetch("t", 0, 0)), ["a", "b", "c"]);
    }
}

#[test]
fn a_broker_whose_sync_failed_can_be_stopped_cleanly_once_the_disk_is_well() {
    let mut world = World::with(&[("log.flush.interval.messages", "1")]);
    world.create("t", 1);
    world.send(A, 9, &produce_request(-1, "t", 0, batch(WALL, &["a"])));
    world.disk.set_sync_fault(SyncFault::Fails);
    world.sync_all();
    world.disk.set_sync_fault(SyncFault::None);
    world.broker.close(world.now).unwrap();
    let (disk, now) = (world.disk.after_power_loss(|_, _, _| 0), world.now);
    drop(world);
    let mut world = World::open(disk, config(&[]), Box::new(AllowAll), now);
    assert!(world.report.clean && world.report.mended.is_empty(), "{}", world.report);
    assert_eq!(values(&world.fetch("t", 0, 0)), ["a"]);
}

#[test]
fn a_state_file_that_could_not_be_synced_is_written_again() {
    let mut world = World::new();
    world.create("t", 1);
    world.disk.set_sync_fault(SyncFault::Fails);
    assert_ne!(world.try_create("u", 1), ErrorCode::NONE);
    world.pass(3000);
    assert!(!world.broker.take_troubles().is_empty());
    world.disk.set_sync_fault(SyncFault::None);
    world.pass(3000);
    let (disk, now) = (world.disk.after_power_loss(|_, _, _| 0), world.now);
    drop(world);
    let mut world = World::open(disk, config(&[]), Box::new(AllowAll), now);
    assert_eq!((world.report.topics, world.report.strays.len()), (1, 0));
    world.create("u", 1);
}

#[test]
fn a_repeat_of_what_is_being_synced_waits_for_the_sync() {
    let mut world = World::new();
    world.create_with("t", 1, &[("flush.messages", "1")]);
    let id = world.call(4, &plain_id()).producer_id;
    let request = produce_request(-1, "t", 0, stamped(id, 0, 0, &["a"]));
    world.send(A, 9, &request);
    let work = world.broker.poll_flush().expect("a flush is due");
    let repeat = world.send(B, 9, &request);
    assert!(world.answer::<ProduceRequest>(B, 9, repeat).is_none(), "power may still be lost");
    world.broker.handle_flushed(world.now, work, Ok(()));
    let response = world.answer::<ProduceRequest>(B, 9, repeat).unwrap();
    assert_eq!(produced(&response), (ErrorCode::NONE, 0));
    assert_eq!(produced(&world.call(9, &request)), (ErrorCode::NONE, 0), "now it is durable");
}

#[test]
fn a_topic_that_goes_before_its_sync_ends_the_wait_for_it() {
    let mut world = World::new();
    world.create_with("t", 1, &[("flush.messages", "1")]);
    let correlation = world.send(A, 9, &produce_request(-1, "t", 0, batch(WALL, &["a"])));
    let request = DeleteTopicsRequest { topic_names: vec!["t".into()], ..DeleteTopicsRequest::default() };
    assert_eq!(world.call_on(B, 5, &request).responses[0].error_code, 0);
    assert!(world.broker.poll_flush().is_none());
    let response = world.answer::<ProduceRequest>(A, 9, correlation).expect("nobody waits for ever");
    assert_eq!(produced(&response), (ErrorCode::NONE, 0));
}

#[test]
fn many_compressed_batches_are_looked_into_over_many_turns() {
    let mut world = World::new();
    world.create("t", 40);
    let value = "x".repeat(1 << 20);
    let bomb = batch_with(WALL, &[&value], ProducerStamp::NONE, Codec::Gzip);
    let mut request = produce_request(-1, "t", 0, bomb.clone());
    request.topic_data[0].partition_data = (0..40)
        .map(|index| PartitionProduceData { index, records: Some(Records::from(bomb.clone())) })
        .collect();
    let frame = frame::encode_request(9, 77, Some("c"), &request).unwrap().to_bytes().unwrap().slice(4..);
    world.broker.handle_frame(world.now, A, frame);
    // Others are served in between, and what comes behind it on its own connection waits.
    let behind = frame::encode_request(9, 78, Some("c"), &MetadataRequest::default()).unwrap();
    world.broker.handle_frame(world.now, A, behind.to_bytes().unwrap().slice(4..));
    let mut turns = 1;
    while world.broker.poll_response().is_none() {
        assert!(world.broker.work(world.now));
        turns += 1;
    }
    assert!(turns >= 3, "{turns}");
    while world.broker.work(world.now) {}
    assert!(world.broker.poll_response().is_some_and(|r| r.conn == A));
    let end = |world: &mut World| world.fetch("t", 39, 1).responses[0].partitions[0].high_watermark;
    assert_eq!(end(&mut world), 1);

    // One that goes in the middle of it leaves nothing behind that is due.
    let gone = ConnId(50);
    world.connect(gone);
    let frame = frame::encode_request(9, 77, Some("c"), &request).unwrap().to_bytes().unwrap().slice(4..);
    world.broker.handle_frame(world.now, gone, frame);
    assert!(world.broker.has_work());
    world.broker.handle_disconnect(world.now, gone);
    while world.broker.work(world.now) {}
    assert_eq!(end(&mut world), 1);
}

#[test]
fn a_batch_that_grows_too_much_is_too_large() {
    let mut world = World::new();
    world.create("t", 1);
    world.create_with("large", 1, &[("max.message.bytes", "30000000")]);
    let value = "x".repeat(17 << 20);
    let mut builder = BatchBuilder::new(1 << 25);
    builder.append(WALL, None, Some(value.as_bytes()), NO_HEADERS.iter().copied()).unwrap();
    let bomb: Bytes = builder.finish(ProducerStamp::NONE, Codec::Gzip, None).unwrap().to_vec().into();
    assert_eq!(produced(&world.produce("t", 0, bomb.clone())).0, ErrorCode::MESSAGE_TOO_LARGE);
    assert_eq!(produced(&world.produce("large", 0, bomb)).0, ErrorCode::NONE, "plain ones may be as large");
}
