//! Flush, close, time-outs, and what callers are told.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::ApiKey;
use headrace_wire::messages::ProduceRequest;

use super::world::{TOPIC, World};
use crate::engine::Engine;
use crate::error::Error;
use crate::producer::{Accumulator, AppendError, ProducerCommand, ProducerEvent, RecordRef};
use crate::testing::Fault;

#[test]
fn an_unknown_topic_is_waited_for() {
    let mut world = World::new(&[1], &[]);
    world.kafka.topic_error = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
    let refused = world.append(0, "x").unwrap_err();
    assert!(matches!(refused, AppendError::NeedMetadata { .. }));
    assert!(refused.into_error(60).to_string().contains("'t' took longer than 60 ms"));
    world.advance(500);
    assert!(!world.events.contains(&ProducerEvent::TopicsDecided));
    let refused = world.append(0, "x").unwrap_err();
    let said = refused.into_error(60).to_string();
    assert!(said.contains("UNKNOWN_TOPIC_OR_PARTITION"), "what the broker said is told: {said}");
    world.kafka.topic_error = ErrorCode::NONE;
    world.advance(2000);
    assert!(world.events.contains(&ProducerEvent::TopicsDecided));
    world.append(0, "x").unwrap();
}

#[test]
fn a_refused_topic_is_an_error_at_once() {
    let mut world = World::new(&[1], &[]);
    world.kafka.topic_error = ErrorCode::TOPIC_AUTHORIZATION_FAILED;
    assert!(matches!(world.append(0, "x"), Err(AppendError::NeedMetadata { .. })));
    let refused = world.append(0, "x").unwrap_err();
    assert!(matches!(refused, AppendError::Topic(_)));
    let error = refused.into_error(0);
    assert_eq!(error.code(), Some(ErrorCode::TOPIC_AUTHORIZATION_FAILED));
    assert_eq!(error.place().topic.as_deref(), Some(TOPIC));
}

#[test]
fn a_record_that_can_never_be_sent_is_refused() {
    let mut world = World::ready(&[1], &[("max.request.size", "1000"), ("buffer.memory", "20000")]);
    let refused = world.append(0, &"x".repeat(1000)).unwrap_err();
    assert!(matches!(refused, AppendError::TooLarge { option: "max.request.size", limit: 1000, .. }));
    let refused = world.append(1, "x").unwrap_err();
    assert!(matches!(&refused, AppendError::PartitionOutOfRange { topic, .. } if topic == TOPIC));
    assert!(matches!(refused, AppendError::PartitionOutOfRange { partition: 1, partitions: 1, .. }));
    assert!(matches!(world.append(-1, "x"), Err(AppendError::PartitionOutOfRange { .. })));
    let mut world = World::ready(&[1], &[("buffer.memory", "20000")]);
    let refused = world.append(0, &"x".repeat(20_000)).unwrap_err();
    assert!(matches!(refused, AppendError::TooLarge { option: "buffer.memory", limit: 20_000, .. }));
    world.assert_empty();
    // A record above batch.size has a batch of its own.
    let mut world = World::ready(&[1], &[("batch.size", "100")]);
    world.append(0, &"y".repeat(5000)).unwrap();
    world.advance(5);
    assert_eq!(world.log(0).values[0].len(), 5000);
}

#[test]
fn a_full_buffer_sends_as_many_open_batches_as_are_lacking() {
    for strategy in ["full", "incremental"] {
        let mut world = World::ready(
            &[1, 1, 1, 1, 1],
            &[
                ("buffer.memory", "65536"),
                ("batch.size", "16384"),
                ("buffer.memory.allocation.strategy", strategy),
                ("linger.ms", "100000"),
                ("delivery.timeout.ms", "200000"),
            ],
        );
        for partition in 0..4 {
            world.append(partition, "x").unwrap();
        }
        assert_eq!(world.held(), 65_536);
        world.advance(50);
        assert!(world.kafka.served().is_empty());
        let Err(AppendError::Full(place)) = world.append(4, "x") else { panic!("there is memory") };
        assert!(world.wait(place).is_some());
        world.append(4, "x").unwrap();
        assert_eq!(world.kafka.served(), [(1, 1)], "the oldest");
    }
}

#[test]
fn a_caller_runs_ahead_only_of_brokers_that_take_batches() {
    let options = [("buffer.memory", "1048576"), ("batch.size", "16384"), ("linger.ms", "0")];
    let fill = |world: &mut World| {
        let large = "x".repeat(16_000);
        for _ in 0..40 {
            world.append(0, &large).unwrap();
        }
    };
    let ahead = |world: &World| world.appender.lock().runs_ahead(world.now);

    let mut world = World::ready(&[1], &options);
    world.kafka.holding = true;
    fill(&mut world);
    assert!(!ahead(&world), "nothing has ended yet: who knows how fast it is");

    let mut world = World::ready(&[1], &options);
    world.send(0, "first");
    world.kafka.holding = true;
    fill(&mut world);
    assert!(ahead(&world), "more than half of the buffer");
    world.settle();
    assert!(!world.events.contains(&ProducerEvent::CaughtUp));
    world.advance(150);
    assert!(!ahead(&world), "nothing ends any more: that is no broker to wait for");
    world.kafka.holding = false;
    world.advance(10);
    assert!(world.events.contains(&ProducerEvent::CaughtUp));
    assert!(!ahead(&world));
}

#[test]
fn how_far_ahead_a_caller_runs_depends_on_how_much_a_request_can_carry() {
    let large = "x".repeat(16_000);
    let batches_until_ahead = |partitions: &[i32]| {
        let options = [("buffer.memory", "33554432"), ("batch.size", "131072"), ("linger.ms", "0")];
        let mut world = World::ready(partitions, &options);
        world.send(0, "first");
        world.kafka.holding = true;
        let mut records = 0;
        while !world.appender.lock().runs_ahead(world.now) {
            let partition = records / 8 % partitions.len();
            world.append(i32::try_from(partition).unwrap(), &large).unwrap();
            records += 1;
        }
        // Each partition's last batch is still open, and does not count.
        records / 8 + 1 - partitions.len()
    };
    let least = batches_until_ahead(&[1]);
    assert!((8..=9).contains(&least), "a mebibyte is the least: {least}");
    let four = batches_until_ahead(&[1; 4]);
    assert!((28..=29).contains(&four), "five requests of four batches, and two more: {four}");
    let many = batches_until_ahead(&[1; 64]);
    assert!((56..=57).contains(&many), "no request is larger than max.request.size: {many}");
}

#[test]
fn open_batches_keep_their_time_while_memory_is_on_its_way_back() {
    let options = [
        ("buffer.memory", "65536"),
        ("batch.size", "16384"),
        ("buffer.memory.allocation.strategy", "incremental"),
        ("linger.ms", "1000"),
        ("enable.idempotence", "false"),
    ];
    let mut world = World::ready(&[1, 1], &options);
    world.kafka.holding = true;
    world.append(0, "waits for more").unwrap();
    let large = "x".repeat(16_000);
    for _ in 0..3 {
        world.append(1, &large).unwrap();
    }
    world.settle();
    let Err(AppendError::Full(place)) = world.append(1, &large) else { panic!("there is memory") };
    world.advance(10);
    assert_eq!(world.unanswered(), 3, "what is in flight is enough");
    world.advance(15);
    assert_eq!(world.unanswered(), 4, "nothing has ended for 20 ms");
    drop(place);
}

#[test]
fn what_is_not_used_of_a_batch_is_another_batchs_with_incremental_and_not_with_full() {
    for (strategy, open) in [("full", 2), ("incremental", 16)] {
        let options = [
            ("buffer.memory", "262144"),
            ("batch.size", "131072"),
            ("buffer.memory.allocation.strategy", strategy),
            ("linger.ms", "100000"),
            ("delivery.timeout.ms", "200000"),
        ];
        let mut world = World::ready(&[1; 20], &options);
        world.kafka.holding = true;
        let taken = (0..20).take_while(|partition| world.append(*partition, "x").is_ok()).count();
        assert_eq!(taken, open, "{strategy}");
    }
}

#[test]
fn a_batch_that_finds_no_memory_to_grow_goes_out_and_the_record_opens_the_next() {
    let options = [
        ("buffer.memory", "65536"),
        ("batch.size", "131072"),
        ("buffer.memory.allocation.strategy", "incremental"),
        ("linger.ms", "100000"),
        ("delivery.timeout.ms", "200000"),
    ];
    let mut world = World::ready(&[1], &options);
    world.kafka.holding = true;
    let value = "v".repeat(1000);
    let place = loop {
        match world.append(0, &value) {
            Ok(_) => {}
            Err(AppendError::Full(place)) => break place,
            Err(other) => panic!("{other:?}"),
        }
    };
    assert_eq!(world.held(), 65_536);
    world.kafka.holding = false;
    let lease = world.wait(place).expect("the batch went out");
    let sent = world.log(0).values.len();
    assert!(sent > 60, "{sent} records went in one batch");
    drop(lease);
    world.append(0, &value).unwrap();
    world.command(ProducerCommand::Flush { op: 1 });
    assert_eq!(world.log(0).values.len(), sent + 1);
    world.assert_empty();
}

#[test]
fn a_flush_ends_when_what_was_before_it_has_ended() {
    let mut world = World::ready(&[1], &[("linger.ms", "100000"), ("delivery.timeout.ms", "200000")]);
    world.command(ProducerCommand::Flush { op: 1 });
    assert_eq!(world.is_done(1), Some(Ok(())), "nothing to wait for");
    world.send(0, "first");
    world.append(0, "a").unwrap();
    world.kafka.holding = true;
    world.command(ProducerCommand::Flush { op: 2 });
    world.append(0, "b").unwrap();
    world.command(ProducerCommand::Flush { op: 3 });
    world.append(0, "late").unwrap();
    world.advance(1000);
    assert_eq!((world.is_done(2), world.is_done(3)), (None, None));
    world.kafka.holding = false;
    world.settle();
    assert_eq!((world.is_done(2), world.is_done(3)), (Some(Ok(())), Some(Ok(()))));
    assert_eq!(world.log(0).values, ["first", "a", "b"], "what came after lingers");
}

#[test]
fn a_flush_ends_also_when_batches_fail() {
    let mut world = World::ready(&[1], &[]);
    *world.kafka.faults.of(&[ApiKey::Produce]) = [Fault::Refuse(ErrorCode::INVALID_RECORD)].into();
    world.append(0, "a").unwrap();
    world.command(ProducerCommand::Flush { op: 1 });
    assert_eq!(world.is_done(1), Some(Ok(())));
    let (_, result) = world.take_done().remove(0);
    assert_eq!(result.unwrap_err().code(), Some(ErrorCode::INVALID_RECORD));
}

#[test]
fn close_sends_what_is_there_and_takes_no_more() {
    let mut world = World::ready(&[1], &[("linger.ms", "100000"), ("delivery.timeout.ms", "200000")]);
    world.append(0, "a").unwrap();
    world.command(ProducerCommand::Close { op: 1, timeout_ms: 1000 });
    assert_eq!(world.is_done(1), Some(Ok(())));
    assert_eq!(world.log(0).values, ["a"]);
    assert!(matches!(world.append(0, "b"), Err(AppendError::Closed)));
    assert_eq!(world.engine.poll_timeout(), None);
    world.command(ProducerCommand::Close { op: 2, timeout_ms: 0 });
    world.command(ProducerCommand::Flush { op: 3 });
    assert_eq!((world.is_done(2), world.is_done(3)), (Some(Ok(())), Some(Ok(()))));
    world.assert_empty();
}

#[test]
fn a_closed_producer_does_not_wait_for_the_end_of_a_pause() {
    let mut world = World::ready(&[1], &[]);
    world.kafka.throttle_ms = 400;
    world.send(0, "a");
    world.command(ProducerCommand::Close { op: 1, timeout_ms: 1000 });
    assert_eq!(world.is_done(1), Some(Ok(())));
    assert_eq!(world.engine.poll_timeout(), None);
}

#[test]
fn close_fails_at_its_deadline_what_has_not_arrived() {
    let mut world = World::ready(&[1], &[]);
    world.kafka.holding = true;
    for n in 0..7 {
        world.send(0, &n.to_string());
    }
    world.command(ProducerCommand::Flush { op: 1 });
    world.command(ProducerCommand::Close { op: 2, timeout_ms: 300 });
    world.advance(299);
    assert_eq!(world.is_done(2), None);
    world.advance(1);
    assert!(matches!(world.is_done(2), Some(Err(Error::Timeout { ms: 300, .. }))));
    assert_eq!(world.is_done(1), Some(Ok(())), "the flush has nothing more to wait for");
    let records = world.events.iter().map(|event| match event {
        ProducerEvent::BatchDone { records, .. } => *records,
        _ => 0,
    });
    assert_eq!(records.sum::<u32>(), 7, "nothing is lost silently");
    let done = world.take_done();
    assert!(done.iter().all(|(_, result)| matches!(result, Err(Error::Timeout { .. }))));
    world.assert_empty();
}

#[test]
fn a_batch_for_a_dead_broker_times_out_and_says_why() {
    let mut world = World::ready(&[2], &[("delivery.timeout.ms", "31000")]);
    world.kill(2);
    world.append(0, "a").unwrap();
    world.advance(30_900);
    assert!(world.take_done().is_empty());
    world.advance(200);
    let (_, result) = world.take_done().remove(0);
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Timeout { ms: 31_000, .. }));
    let said = error.to_string();
    assert!(said.contains("'t', partition 0") && said.contains("refused"), "{said}");
    world.assert_empty();
    world.refused.clear();
    world.append(0, "b").unwrap();
    world.advance(5000);
    assert_eq!(world.log(0).values, ["b"]);
}

#[test]
fn a_topic_that_is_deleted_fails_its_batches_in_time_and_says_so() {
    let mut world = World::ready(&[1], &[("delivery.timeout.ms", "2000"), ("request.timeout.ms", "1000")]);
    world.send(0, "a");
    world.kafka.topic_error = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
    *world.kafka.faults.of(&[ApiKey::Produce]) =
        [Fault::Refuse(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)].into();
    world.append(0, "b").unwrap();
    world.advance(1000);
    world.append(0, "c").unwrap();
    world.advance(2500);
    let done = world.take_done();
    assert_eq!(done.len(), 3);
    for (_, result) in &done[1..] {
        let said = result.as_ref().unwrap_err().to_string();
        assert!(said.contains("UNKNOWN_TOPIC_OR_PARTITION") && said.contains("'t'"), "{said}");
    }
    world.assert_empty();
}

#[test]
fn retries_end_the_tries() {
    let mut world = World::ready(&[1], &[("retries", "2"), ("enable.idempotence", "true")]);
    let refuse = Fault::Refuse(ErrorCode::NOT_ENOUGH_REPLICAS);
    *world.kafka.faults.of(&[ApiKey::Produce]) = [refuse, refuse, refuse].into();
    world.append(0, "a").unwrap();
    world.advance(5000);
    let (_, result) = world.take_done().remove(0);
    assert_eq!(result.unwrap_err().code(), Some(ErrorCode::NOT_ENOUGH_REPLICAS));
    assert_eq!(world.kafka.served().len(), 3);
    world.send(0, "b");
    assert_eq!(world.log(0).values, ["b"]);
}

#[test]
fn without_acknowledgements_one_in_flight_goes_after_the_other() {
    let options = [
        ("acks", "0"),
        ("enable.idempotence", "false"),
        ("max.in.flight.requests.per.connection", "1"),
        ("linger.ms", "0"),
    ];
    let mut world = World::ready(&[1], &options);
    // Batches of their own, of which the engine hears all at once.
    let value = vec![b'x'; 100_000];
    let record = RecordRef { topic: TOPIC, partition: Some(0), value: Some(&value), ..RecordRef::default() };
    for _ in 0..6 {
        world.appender.append_record(world.now, &record, None, |_, _| ()).unwrap();
    }
    world.advance(200);
    assert_eq!(world.log(0).values.len(), 6);
    world.assert_empty();
}

#[test]
fn without_acks_a_batch_is_done_when_it_is_handed_over() {
    let mut world = World::ready(&[1], &[("acks", "0")]);
    world.send(0, "a");
    world.send(0, "b");
    assert_eq!(world.log(0).values, ["a", "b"]);
    let done = world.take_done();
    assert!(done.iter().all(|(_, result)| result.as_ref().unwrap().base_offset == -1));
    assert_eq!(done.len(), 2);
    world.assert_empty();
}

#[test]
fn a_producer_that_gets_no_id_fails_for_good_or_tries_again() {
    let mut world = World::ready(&[1], &[]);
    world.kafka.faults.add(ApiKey::InitProducerId, Fault::Refuse(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS));
    world.send(0, "a");
    world.advance(1000);
    assert_eq!(world.log(0).values, ["a"]);

    let mut world = World::ready(&[1], &[]);
    world.kafka.faults.add(ApiKey::InitProducerId, Fault::Refuse(ErrorCode::CLUSTER_AUTHORIZATION_FAILED));
    world.send(0, "a");
    let (_, result) = world.take_done().remove(0);
    assert_eq!(result.unwrap_err().code(), Some(ErrorCode::CLUSTER_AUTHORIZATION_FAILED));
    assert!(matches!(world.append(0, "b"), Err(AppendError::Fatal(_))));
    world.assert_empty();
}

#[test]
fn an_id_that_cannot_be_read_is_asked_for_again() {
    let mut world = World::ready(&[1], &[]);
    *world.kafka.faults.of(&[ApiKey::InitProducerId]) = [Fault::Garble; 3].into();
    world.send(0, "a");
    world.advance(5000);
    assert!(world.kafka.faults.of(&[ApiKey::InitProducerId]).is_empty());
    assert_eq!(world.log(0).values, ["a"]);
    world.assert_empty();
}

#[test]
fn a_negative_id_or_epoch_is_not_taken() {
    for lie in [(-1, 0), (5, -1), (-1, -1), (i64::MIN, i16::MIN)] {
        let mut world = World::ready(&[1], &[]);
        world.kafka.identities = [lie, (9, 0)].into();
        world.send(0, "a");
        world.advance(1000);
        assert_eq!(world.log(0).values, ["a"]);
        assert_eq!((&world.log(0).stamps[..], world.kafka.identities.len()), (&[(0, 0)][..], 0), "{lie:?}");
    }
}

#[test]
fn without_an_id_that_can_be_read_batches_end_in_time_and_others_go_out_later() {
    let mut world = World::ready(&[1], &[("delivery.timeout.ms", "2000"), ("request.timeout.ms", "1000")]);
    *world.kafka.faults.of(&[ApiKey::InitProducerId]) = vec![Fault::Garble; 1_000].into();
    world.send(0, "a");
    world.advance(1999);
    assert!(world.take_done().is_empty());
    world.advance(1);
    let (_, result) = world.take_done().remove(0);
    let error = result.unwrap_err();
    let said = error.to_string();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    assert!(
        said.contains("'t', partition 0") && said.contains("producer id") && said.contains("awaited"),
        "{said}"
    );
    world.kafka.faults.of(&[ApiKey::InitProducerId]).clear();
    world.send(0, "b");
    world.advance(2000);
    assert_eq!(world.log(0).values, ["b"]);
    world.assert_empty();
}

#[test]
fn a_batch_that_an_answer_forgets_is_sent_again_and_there_once() {
    let mut world = World::ready(&[1, 1], &[]);
    world.kafka.spoil::<ProduceRequest>(1, |answer| drop(answer.responses[0].partition_responses.remove(0)));
    world.append(0, "a").unwrap();
    world.append(1, "b").unwrap();
    world.advance(2_000);
    let done = world.take_done();
    assert!(done.len() == 2 && done.iter().all(|(_, result)| result.is_ok()), "{done:?}");
    assert_eq!([&world.log(0).values, &world.log(1).values], [&["a"], &["b"]]);
    world.assert_empty();
}

#[test]
fn a_throttled_producer_pauses() {
    let mut world = World::ready(&[1], &[]);
    world.kafka.throttle_ms = 400;
    world.send(0, "a");
    world.send(0, "b");
    assert_eq!(world.log(0).values, ["a"]);
    world.advance(399);
    assert_eq!(world.log(0).values, ["a"]);
    world.advance(1);
    assert_eq!(world.log(0).values, ["a", "b"]);
}

#[test]
fn a_pause_that_is_too_long_is_cut_short_and_named_in_the_error() {
    let mut world = World::ready(&[1], &[("delivery.timeout.ms", "40000")]);
    world.kafka.throttle_ms = 1 << 30;
    world.send(0, "a");
    world.send(0, "b");
    world.advance(40_000);
    world.send(0, "c");
    let errors: Vec<String> =
        world.take_done().into_iter().filter_map(|(_, result)| Some(result.err()?.to_string())).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("node 1 asked to wait 1073741824 ms (throttled)"), "{errors:?}");
    world.advance(19_000);
    assert_eq!(world.log(0).values, ["a"]);
    world.advance(1_000);
    assert_eq!(world.log(0).values, ["a", "c"]);
}

#[test]
fn a_pause_ends_with_the_connection_that_it_was_asked_for_over() {
    let mut world = World::ready(&[1], &[]);
    world.kafka.throttle_ms = 50_000;
    world.send(0, "a");
    world.send(0, "b");
    world.advance(1_000);
    assert_eq!(world.log(0).values, ["a"]);
    world.kill(1);
    world.refused.clear();
    world.advance(2_000);
    assert_eq!(world.log(0).values, ["a", "b"]);
}

#[test]
fn compressed_batches_give_memory_back_when_they_are_closed() {
    for codec in ["gzip", "snappy", "lz4", "zstd"] {
        let mut world = World::ready(&[1], &[("compression.type", codec), ("linger.ms", "100")]);
        world.send(0, "first");
        world.kafka.holding = true;
        for _ in 0..600 {
            world.append(0, &"abcdefgh".repeat(30)).unwrap();
        }
        world.advance(1000);
        let held = world.held();
        assert!(held <= 32 * 1024, "{codec}: {held}");
        world.kafka.holding = false;
        world.settle();
        assert_eq!(world.log(0).values.len(), 601);
        world.assert_empty();
    }
}

#[test]
fn a_level_that_the_codec_lacks_is_refused() {
    let options = [("compression.type", "zstd"), ("compression.zstd.level", "22")];
    assert!(crate::producer::ProducerEngine::new(super::world::config(&options), 1).is_ok());
}

#[test]
fn a_record_keeps_key_headers_and_timestamp() {
    use headrace_wire::records::Header;
    let world = World::ready(&[1, 1, 1], &[]);
    let headers = [Header { key: b"h", value: Some(b"v") }, Header { key: b"h", value: None }];
    let record = RecordRef {
        topic: TOPIC,
        key: Some(b"21"),
        value: None,
        headers: &headers,
        timestamp_ms: Some(5),
        partition: None,
    };
    let mut reported = None;
    let appended = world
        .appender
        .append_record(world.now, &record, None, |batch, index| reported = Some((batch, index)));
    let appended = appended.unwrap();
    assert_eq!(reported, Some((appended.batch, appended.index)));
    assert_eq!(world.accumulator(Accumulator::batches_outstanding), 1);
}
