use headrace_wire::errors::ErrorCode;
use std::cell::RefCell;
use std::rc::Rc;

use headrace_wire::compression::Codec;
use headrace_wire::messages::{ApiKey, FetchRequest};

use super::bench::{Bench, named, tp};
use crate::consumer::{Assignment, ConsumerCommand, ConsumerEvent, StartAt, lock};
use crate::error::Error;
use crate::testing::{Answer, Fault, Incoming, ScriptedKafka};

const OFFSETS_AT_0: StartAt = StartAt::Offset(0);

/// What each Fetch asked for: session id, epoch, asked (partition, offset), forgotten partitions.
type Asked = (i32, i32, Vec<(i32, i64)>, Vec<i32>);

fn asked(request: &FetchRequest) -> Asked {
    let partitions = request.topics.iter().flat_map(|t| &t.partitions).map(|p| (p.partition, p.fetch_offset));
    let forgotten = request.forgotten_topics_data.iter().flat_map(|t| t.partitions.iter().copied());
    (request.session_id, request.session_epoch, partitions.collect(), forgotten.collect())
}

fn all_asked(bench: &Bench) -> Vec<Asked> {
    bench.kafka.fetches().iter().map(|(_, request)| asked(request)).collect()
}

#[test]
fn rows_come_in_order_and_sessions_are_incremental() {
    let mut kafka = ScriptedKafka::new(&[("t", 2)]);
    kafka.fill("t", 0, 3, 10, Codec::None);
    let mut bench = Bench::new(kafka, &[]);
    bench.assign(&[("t", 0), ("t", 1)], OFFSETS_AT_0);
    assert_eq!(bench.drain(), named("t", 0, 0..30));
    assert!(bench.world.events.contains(&ConsumerEvent::Ready));
    let fetches = all_asked(&bench);
    assert_eq!(fetches[0], (0, 0, vec![(0, 0), (1, 0)], vec![]), "a full request opens the session");
    assert_eq!(fetches[1], (11, 1, vec![(0, 30)], vec![]), "then only what has changed");
    assert_eq!(bench.kafka.parked(), 1);
    // New data: the answer, and one more request.
    bench.kafka.fill("t", 1, 1, 5, Codec::None);
    bench.unpark();
    assert_eq!(bench.drain(), named("t", 1, 0..5));
    assert_eq!(all_asked(&bench)[2..], [(11, 2, vec![(1, 5)], vec![])]);
    assert_eq!(bench.position("t", 0), Some(30));
}

#[test]
fn compressed_batches_are_decoded_by_the_caller_in_order() {
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let mut kafka = ScriptedKafka::new(&[("t", 1)]);
        kafka.fill("t", 0, 2, 100, Codec::None);
        kafka.fill("t", 0, 30, 100, codec);
        kafka.fill("t", 0, 2, 100, Codec::None);
        let mut bench = Bench::new(kafka, &[]);
        // In the middle of a batch.
        bench.assign(&[("t", 0)], StartAt::Offset(250));
        let mut all = Vec::new();
        while let Some(rows) = bench.poll(37) {
            all.extend(rows.unwrap());
        }
        assert_eq!(all, named("t", 0, 250..3400), "{codec:?}");
        assert_eq!(bench.position("t", 0), Some(3400));
        assert_eq!(lock(&bench.world.engine.cache).held_bytes(), 0);
    }
}

#[test]
fn pieces_of_any_size_give_the_same_rows() {
    for piece in [1, 7, 100, 4096] {
        let mut kafka = ScriptedKafka::new(&[("t", 3)]);
        for partition in 0..3 {
            kafka.fill("t", partition, 5, 7, if partition == 1 { Codec::Lz4 } else { Codec::None });
        }
        // 400 bytes a partition: batches are cut at the end of most answers.
        let mut bench = Bench::new(kafka, &[("max.partition.fetch.bytes", "400")]);
        bench.world.piece = piece;
        bench.assign(&[("t", 0), ("t", 1), ("t", 2)], OFFSETS_AT_0);
        let mut all = bench.drain();
        all.sort();
        let mut expected: Vec<_> = (0..3).flat_map(|p| named("t", p, 0..35)).collect();
        expected.sort();
        assert_eq!(all, expected, "pieces of {piece}");
    }
}

#[test]
fn the_next_fetch_goes_out_before_the_last_batch_has_arrived() {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 1, 2_000, Codec::None);
    let mut bench = Bench::new(kafka, &[]);
    bench.assign(&[("t", 0)], OFFSETS_AT_0);
    bench.drain();
    assert_eq!(bench.kafka.parked(), 1);
    bench.kafka.fill("t", 0, 1, 2_000, Codec::None);
    let before = bench.kafka.fetches().len();
    // Take the answer, but hand over only its first 300 bytes.
    let parked = bench.kafka.take_parked();
    let bytes = bench.kafka.late_answer(&parked[0]);
    bench.world.push(parked[0].conn, &bytes[..300]);
    bench.settle();
    assert_eq!(bench.kafka.fetches().len(), before + 1, "the next request is on its way");
    assert_eq!(asked(bench.kafka.fetches()[before].1).2, [(0, 4_000)]);
    assert_eq!(bench.drain(), Vec::<String>::new());
    bench.world.push(parked[0].conn, &bytes[300..]);
    bench.settle();
    assert_eq!(bench.drain(), named("t", 0, 2_000..4_000));
    assert_eq!(bench.kafka.fetches().len(), before + 1, "one at a time");
}

#[test]
fn a_pause_keeps_what_was_fetched_and_leaves_the_session() {
    let mut kafka = ScriptedKafka::new(&[("t", 2)]);
    kafka.fill("t", 0, 1, 10, Codec::None);
    kafka.fill("t", 1, 1, 10, Codec::None);
    let mut bench = Bench::new(kafka, &[]);
    bench.assign(&[("t", 0), ("t", 1)], OFFSETS_AT_0);
    bench.pause("t", 0);
    assert_eq!(bench.drain(), named("t", 1, 0..10), "nothing of a paused partition");
    bench.kafka.fill("t", 1, 1, 10, Codec::None);
    bench.unpark();
    assert_eq!(bench.drain(), named("t", 1, 10..20));
    let last = all_asked(&bench).pop().unwrap();
    assert_eq!((last.2, last.3), (vec![(1, 20)], vec![0]), "the paused partition is forgotten");
    bench.resume("t", 0);
    assert_eq!(bench.drain(), named("t", 0, 0..10), "what was fetched is still there");
    let outside = (0, -1, vec![(0, 10)], vec![]);
    assert_eq!(all_asked(&bench).pop().unwrap(), outside, "it need not wait for what waits at the broker");
    bench.unpark();
    let last = all_asked(&bench).pop().unwrap();
    assert_eq!((last.2, last.3), (vec![(0, 10)], vec![]), "and it is added back: nothing is fetched twice");
}

#[test]
fn a_seek_drops_what_was_fetched_and_what_is_on_its_way() {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 4, 10, Codec::None);
    let mut bench = Bench::new(kafka, &[]);
    bench.assign(&[("t", 0)], OFFSETS_AT_0);
    assert_eq!(bench.poll(5).unwrap().unwrap(), named("t", 0, 0..5));
    bench.seek("t", 0, StartAt::Offset(25));
    assert_eq!(bench.drain(), named("t", 0, 25..40), "nothing of before the seek");
    // The parked request asked for offset 40; its answer is not wanted.
    bench.kafka.fill("t", 0, 1, 10, Codec::None);
    bench.unpark();
    assert_eq!(bench.drain(), named("t", 0, 40..50));
    bench.seek("t", 0, StartAt::Earliest);
    assert_eq!(bench.poll(3).unwrap().unwrap(), named("t", 0, 0..3));
}

#[test]
fn what_is_newly_wanted_does_not_wait_for_a_fetch_that_waits() {
    let mut kafka = ScriptedKafka::new(&[("t", 3)]);
    kafka.fill("t", 1, 40, 50, Codec::None);
    let mut bench = Bench::new(kafka, &[("max.partition.fetch.bytes", "3000")]);
    bench.assign(&[("t", 0)], OFFSETS_AT_0);
    assert_eq!(bench.kafka.parked(), 1);
    bench.assign(&[("t", 1), ("t", 2)], OFFSETS_AT_0);
    assert_eq!(bench.drain(), named("t", 1, 0..2_000));
    let waits: Vec<_> = bench.kafka.fetches().iter().map(|(_, request)| request.max_wait_ms).collect();
    assert_eq!(waits[0], 500);
    assert!(waits[1..].iter().all(|wait| *wait == 0), "{waits:?}");
    // At the end of the log it is not asked for again and again: it joins the session.
    let before = bench.kafka.fetches().len();
    bench.run(400);
    assert_eq!(bench.kafka.fetches().len(), before);
    bench.unpark();
    let (id, _, mut partitions, forgotten) = all_asked(&bench).pop().unwrap();
    partitions.sort_unstable();
    assert_eq!((id, partitions, forgotten), (11, vec![(1, 2_000), (2, 0)], vec![0]));
}

/// Keeps all requests to fetch unanswered, and gives them.
fn hold_fetches(bench: &mut Bench) -> Rc<RefCell<Vec<Incoming>>> {
    let held = Rc::new(RefCell::new(Vec::new()));
    let into = held.clone();
    bench.kafka.script = Some(Box::new(move |incoming| {
        (incoming.key == ApiKey::Fetch).then(|| {
            into.borrow_mut().push(incoming.clone());
            Answer::Silence
        })
    }));
    held
}

#[test]
fn two_answers_with_the_same_data_give_it_once() {
    let mut kafka = ScriptedKafka::new(&[("t", 2)]);
    kafka.fill("t", 1, 5, 100, Codec::None);
    let mut bench = Bench::new(kafka, &[]);
    bench.assign(&[("t", 0)], OFFSETS_AT_0);
    let held = hold_fetches(&mut bench);
    bench.assign(&[("t", 0), ("t", 1)], OFFSETS_AT_0);
    let outside = held.borrow_mut().remove(0);
    // The waiting one ends, and the session's next request asks for the same as the one outside it.
    bench.kafka.fill("t", 0, 1, 1, Codec::None);
    bench.unpark();
    let inside = held.borrow_mut().remove(0);
    let (first, second) = (bench.kafka.answer_to(&outside), bench.kafka.answer_to(&inside));
    bench.world.push(outside.conn, &first[..first.len() / 2]);
    bench.world.push(inside.conn, &second);
    bench.world.push(outside.conn, &first[first.len() / 2..]);
    bench.kafka.script = None;
    bench.settle();
    let mut rows = bench.drain();
    rows.sort_by_key(|row| row.rsplit('-').next().unwrap().parse::<i64>().unwrap());
    rows.retain(|row| row.starts_with("t-1"));
    assert_eq!(rows, named("t", 1, 0..500));
}

/// Hands over an answer to its last batch's header, and gives the rest.
fn begin_answer(bench: &mut Bench, fetch: &Incoming) -> Vec<u8> {
    let answer = bench.kafka.answer_to(fetch);
    bench.world.push(fetch.conn, &answer[..300]);
    bench.settle();
    answer[300..].to_vec()
}

#[test]
fn what_is_arriving_from_outside_the_session_does_not_join_it_before_it_is_there() {
    let mut kafka = ScriptedKafka::new(&[("t", 2)]);
    kafka.fill("t", 1, 1, 2_000, Codec::None);
    let mut bench = Bench::new(kafka, &[]);
    bench.assign(&[("t", 0)], OFFSETS_AT_0);
    let held = hold_fetches(&mut bench);
    bench.assign(&[("t", 0), ("t", 1)], OFFSETS_AT_0);
    let outside = held.borrow_mut().remove(0);
    let rest = begin_answer(&mut bench, &outside);
    bench.kafka.fill("t", 1, 1, 2_000, Codec::None);
    let next = held.borrow_mut().remove(0);
    assert_eq!(
        asked(&next.decode()),
        (0, -1, vec![(1, 2_000)], vec![]),
        "behind the other on its connection"
    );
    bench.unpark();
    let inside = held.borrow_mut().remove(0);
    assert_eq!(asked(&inside.decode()).2, [], "an answer could overtake, and would come again and again");
    bench.kafka.script = None;
    let answer = bench.kafka.answer_to(&next);
    bench.world.push(outside.conn, &[rest, answer].concat());
    bench.settle();
    assert_eq!(bench.drain(), named("t", 1, 0..4_000));
}

#[test]
fn a_new_leader_is_not_asked_for_what_is_arriving_from_the_old_one() {
    let mut kafka = ScriptedKafka::new(&[("t", 2)]);
    kafka.layout.nodes = vec![1, 2];
    (0..2).for_each(|partition| kafka.fill("t", partition, 1, 2_000, Codec::None));
    let mut bench = Bench::new(kafka, &[("metadata.max.age.ms", "1000")]);
    let held = hold_fetches(&mut bench);
    bench.assign(&[("t", 0), ("t", 1)], OFFSETS_AT_0);
    let old = held.borrow_mut().remove(0);
    let rest = begin_answer(&mut bench, &old);
    bench.kafka.layout.topics[0].1 = vec![2, 2];
    bench.kafka.layout.epoch = 5;
    bench.run(3_000);
    let fetches = |held: &[Incoming]| -> Vec<_> {
        held.iter().map(|fetch| (fetch.port, asked(&fetch.decode()).2)).collect()
    };
    assert_eq!(fetches(&held.borrow()), [(9002, vec![(1, 0)])]);
    let last = rest.len() - 100;
    bench.world.push(old.conn, &rest[..last]);
    bench.settle();
    assert_eq!(fetches(&held.borrow())[1..], [(9002, vec![(0, 2_000)])], "at once, though more is arriving");
    bench.kafka.script = None;
    bench.world.push(old.conn, &rest[last..]);
    for fetch in held.borrow().iter() {
        let answer = bench.kafka.answer_to(fetch);
        bench.world.push(fetch.conn, &answer);
    }
    bench.settle();
    let mut rows = bench.drain();
    rows.sort_by_key(|row| row.rsplit('-').next().unwrap().parse::<i64>().unwrap());
    let (first, second): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.starts_with("t-0"));
    assert_eq!((first, second), (named("t", 0, 0..2_000), named("t", 1, 0..2_000)));
}

#[test]
fn a_lost_connection_loses_and_repeats_nothing() {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 20, 50, Codec::None);
    let mut bench = Bench::new(kafka, &[("max.partition.fetch.bytes", "3000")]);
    let mut fetches = 0;
    // Every other Fetch is answered with some of its bytes, then the connection is cut.
    let mut inner = ScriptedKafka::new(&[("t", 1)]);
    inner.fill("t", 0, 20, 50, Codec::None);
    inner.keep_sessions = false;
    bench.kafka.keep_sessions = false;
    bench.kafka.script = Some(Box::new(move |incoming| {
        if incoming.key != ApiKey::Fetch {
            return None;
        }
        fetches += 1;
        match inner.answer(incoming) {
            Answer::Bytes(bytes) if fetches % 2 == 1 => {
                Some(Answer::Last(bytes[..bytes.len() * 2 / 3].to_vec()))
            }
            answer => Some(answer),
        }
    }));
    bench.assign(&[("t", 0)], OFFSETS_AT_0);
    bench.run(60_000);
    assert_eq!(bench.drain(), named("t", 0, 0..1000));
}

#[test]
fn a_session_that_the_broker_dropped_is_opened_again() {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 1, 10, Codec::None);
    let mut bench = Bench::new(kafka, &[]);
    bench.assign(&[("t", 0)], OFFSETS_AT_0);
    bench.kafka.sessions.clear();
    bench.kafka.fill("t", 0, 1, 10, Codec::None);
    bench.unpark();
    assert_eq!(bench.drain(), named("t", 0, 0..20));
    let (id, epoch, partitions, _) = all_asked(&bench)[2].clone();
    assert_eq!((id, epoch, partitions), (0, 0, vec![(0, 10)]));
}

#[test]
fn a_broker_without_sessions_gets_full_requests() {
    let mut kafka = ScriptedKafka::new(&[("t", 2)]);
    kafka.keep_sessions = false;
    kafka.fill("t", 0, 2, 10, Codec::None);
    let mut bench = Bench::new(kafka, &[]);
    bench.assign(&[("t", 0), ("t", 1)], OFFSETS_AT_0);
    assert_eq!(bench.drain(), named("t", 0, 0..20));
    assert!(all_asked(&bench).iter().all(|(id, epoch, asked, _)| (*id, *epoch, asked.len()) == (0, 0, 2)));
}

#[test]
fn a_full_cache_stops_fetching_until_there_is_room() {
    let mut kafka = ScriptedKafka::new(&[("t", 2)]);
    let value = "x".repeat(100_000);
    for _ in 0..100 {
        kafka.log("t", 0).append(Codec::None, std::slice::from_ref(&value));
    }
    let mut bench =
        Bench::new(kafka, &[("fetch.buffer.bytes", "2000000"), ("max.partition.fetch.bytes", "300000")]);
    bench.assign(&[("t", 0), ("t", 1)], OFFSETS_AT_0);
    bench.settle();
    let held = lock(&bench.world.engine.cache).held_bytes();
    assert!((900_000..2_000_000).contains(&held), "{held} bytes held");
    let before = bench.kafka.fetches().len();
    // The empty partition is still waited for, the full one has left the session.
    assert_eq!(bench.kafka.parked(), 1);
    assert_eq!(all_asked(&bench).pop().unwrap().3, [0]);
    bench.run(10_000);
    assert_eq!(bench.kafka.fetches().len(), before);
    let mut rows = 0;
    while let Some(taken) = bench.poll(usize::MAX) {
        rows += taken.unwrap().len();
        bench.unpark();
    }
    assert_eq!(rows, 100);
}

#[test]
fn a_paused_partition_with_a_full_share_does_not_keep_another_from_being_read() {
    let mut kafka = ScriptedKafka::new(&[("t", 2)]);
    let value = "x".repeat(100_000);
    for partition in 0..2 {
        for _ in 0..40 {
            let log = kafka.log("t", partition);
            log.append(Codec::None, std::slice::from_ref(&value));
        }
    }
    let mut bench =
        Bench::new(kafka, &[("fetch.buffer.bytes", "2000000"), ("max.partition.fetch.bytes", "300000")]);
    bench.assign(&[("t", 0), ("t", 1)], OFFSETS_AT_0);
    bench.pause("t", 0);
    let mut rows = 0;
    for _ in 0..100 {
        while let Some(taken) = bench.poll(usize::MAX) {
            rows += taken.unwrap().len();
        }
        bench.unpark();
    }
    assert_eq!(rows, 40, "all of the other partition");
}

#[test]
fn leader_changes_are_followed() {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 1, 10, Codec::None);
    let mut bench = Bench::new(kafka, &[]);
    bench.assign(&[("t", 0)], OFFSETS_AT_0);
    assert_eq!(bench.drain().len(), 10);
    bench.kafka.fill("t", 0, 1, 10, Codec::None);
    bench.kafka.fetch_errors.push((0, 6));
    bench.kafka.layout.nodes = vec![1, 2];
    bench.kafka.layout.topics[0].1 = vec![2];
    bench.kafka.layout.epoch = 5;
    bench.unpark();
    bench.run(2_000);
    assert_eq!(bench.drain(), named("t", 0, 10..20));
    let (port, request) = *bench.kafka.fetches().last().unwrap();
    assert_eq!((port, request.session_id), (9002, bench.kafka.last_session), "a session with the new leader");
    assert_eq!(
        request.topics.iter().flat_map(|t| &t.partitions).map(|p| p.current_leader_epoch).max(),
        Some(5)
    );
}

#[test]
fn a_bounded_read_ends_exactly_at_its_stop() {
    for (codec, stop, control_end) in [
        (Codec::None, 25, false),
        (Codec::Zstd, 25, false),
        (Codec::None, 30, true),
        (Codec::None, 31, true),
        (Codec::Lz4, 0, false),
    ] {
        let mut kafka = ScriptedKafka::new(&[("t", 1)]);
        kafka.fill("t", 0, 3, 10, codec);
        if control_end {
            kafka.append_control("t");
        }
        let mut bench = Bench::new(kafka, &[]);
        let partitions =
            vec![Assignment { partition: tp("t", 0), start: Some(OFFSETS_AT_0), stop: Some(stop) }];
        bench.ok(|op| ConsumerCommand::Assign { op, partitions });
        assert_eq!(bench.drain(), named("t", 0, 0..stop.min(30)), "{codec:?} to {stop}");
        assert!(lock(&bench.world.engine.cache).is_finished(), "{codec:?} to {stop}");
        assert_eq!(bench.position("t", 0), Some(stop));
        assert_eq!(bench.kafka.parked(), 0, "nothing is asked for behind the stop");
    }
}

#[test]
fn a_damaged_batch_is_an_error_that_stays_until_a_seek() {
    for codec in [Codec::None, Codec::Gzip] {
        let mut kafka = ScriptedKafka::new(&[("t", 1)]);
        kafka.fill("t", 0, 3, 10, codec);
        let log = kafka.log("t", 0);
        let last = log.batches[1].len() - 1;
        log.batches[1][last] ^= 1;
        let mut bench = Bench::new(kafka, &[]);
        bench.assign(&[("t", 0)], OFFSETS_AT_0);
        assert_eq!(bench.poll(usize::MAX).unwrap().unwrap(), named("t", 0, 0..10));
        for _ in 0..2 {
            bench.run(1_000);
            let error = bench.poll_error();
            assert!(
                matches!(&error, Error::Record { topic, partition: 0, offset: 10, .. } if topic == "t"),
                "{error}"
            );
        }
        assert_eq!(bench.position("t", 0), Some(10), "the position does not move past it");
        bench.seek("t", 0, StartAt::Offset(20));
        bench.unpark();
        assert_eq!(bench.drain(), named("t", 0, 20..30));
    }
}

#[test]
fn a_first_batch_that_is_cut_off_is_an_error() {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 1, 10, Codec::None);
    let log = kafka.log("t", 0);
    let end = log.batches[0].len() - 5;
    log.batches[0].truncate(end);
    let mut bench = Bench::new(kafka, &[]);
    bench.assign(&[("t", 0)], OFFSETS_AT_0);
    bench.run(1_000);
    let error = bench.poll_error();
    assert!(error.to_string().contains("cut off"), "{error}");
}

#[test]
fn a_broken_response_is_told_and_fetching_goes_on() {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 1, 10, Codec::None);
    let mut bench = Bench::new(kafka, &[]);
    let mut broken = true;
    bench.kafka.script = Some(Box::new(move |incoming| {
        let spoil = incoming.key == ApiKey::Fetch && std::mem::take(&mut broken);
        // Size, correlation id, header tags; then a topic count beyond the frame.
        let mut bytes = vec![0, 0, 0, 19];
        bytes.extend(incoming.correlation.to_be_bytes());
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x0f]);
        spoil.then_some(Answer::Bytes(bytes))
    }));
    bench.assign(&[("t", 0)], OFFSETS_AT_0);
    let error = bench.poll_error();
    assert!(matches!(error, Error::BadAnswer { .. }), "{error}");
    bench.run(5_000);
    assert_eq!(bench.drain(), named("t", 0, 0..10));
}

#[test]
fn aborted_transactions_are_left_out_when_only_committed_records_are_wanted() {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.append_transaction("t", 7, &["a0", "a1"], true);
    kafka.append_transaction("t", 8, &["c0"], false);
    kafka.fill("t", 0, 1, 2, Codec::None);
    let mut bench = Bench::new(kafka, &[]);
    bench.world.engine.fetcher.settings.isolation_level = 1;
    bench.assign(&[("t", 0)], OFFSETS_AT_0);
    assert_eq!(bench.drain(), ["c0", "t-0-5", "t-0-6"]);
    assert_eq!(bench.position("t", 0), Some(7));
}

#[test]
fn a_broker_that_opens_no_session_is_not_asked_without_end() {
    let mut kafka = ScriptedKafka::new(&[("t", 1)]);
    kafka.fill("t", 0, 1, 10, Codec::None);
    let mut bench = Bench::new(kafka, &[("retry.backoff.ms", "100"), ("retry.backoff.max.ms", "100")]);
    let forgotten = Fault::Refuse(ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
    *bench.kafka.faults.of(&[ApiKey::Fetch]) = [forgotten; 20].into();
    bench.assign(&[("t", 0)], StartAt::Offset(0));
    bench.run(1_000);
    let asked = bench.world.log.iter().filter(|(_, key, _)| *key == ApiKey::Fetch).count();
    assert!((5..15).contains(&asked), "{asked} in a second");
    bench.run(3_000);
    assert_eq!(bench.drain(), named("t", 0, 0..10));
}
