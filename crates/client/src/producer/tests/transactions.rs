//! Transactions against the scripted coordinator: ends, faults, fencing, in both versions of the protocol.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::AddPartitionsToTxnRequest;
use headrace_wire::messages::ApiKey;
use headrace_wire::messages::TxnOffsetCommitRequest;
use proptest::prelude::*;

use super::world::{TOPIC, World};
use crate::error::Error;
use crate::partition::{CommitOffset, GroupMetadata, TopicPartition};
use crate::producer::{AppendError, ProducerCommand};
use crate::testing::{Fault, TRANSACTION, TRANSACTIONAL_ID, WHY};

const TIMEOUT_MS: u64 = 5_000;

/// A transactional producer that has its id and epoch.
fn ready(implicit: bool) -> World {
    let mut world = fresh(implicit);
    assert_eq!(ask(&mut world, init), Ok(()));
    world
}

fn fresh(implicit: bool) -> World {
    let mut world =
        World::new(&[1, 2, 1], &[("transactional.id", TRANSACTIONAL_ID), ("request.timeout.ms", "300")]);
    world.kafka.transactions.implicit = implicit;
    world.command(ProducerCommand::Metadata { topic: TOPIC.to_owned() });
    world
}

fn init(op: u64) -> ProducerCommand {
    ProducerCommand::InitTransactions { op, timeout_ms: TIMEOUT_MS }
}

fn begin(op: u64) -> ProducerCommand {
    ProducerCommand::BeginTransaction { op }
}

fn commit(op: u64) -> ProducerCommand {
    ProducerCommand::EndTransaction { op, commit: true, timeout_ms: TIMEOUT_MS }
}

fn abort(op: u64) -> ProducerCommand {
    ProducerCommand::EndTransaction { op, commit: false, timeout_ms: TIMEOUT_MS }
}

fn offsets(offset: i64) -> impl Fn(u64) -> ProducerCommand {
    move |op| {
        let partition = TopicPartition::new("in", 0);
        ProducerCommand::SendOffsets {
            op,
            offsets: vec![CommitOffset { partition, offset, leader_epoch: -1, metadata: String::new() }],
            group: GroupMetadata {
                group_id: "g".to_owned(),
                generation_id: 3,
                member_id: "m".to_owned(),
                instance_id: None,
            },
            timeout_ms: TIMEOUT_MS,
        }
    }
}

/// Gives a command and lets time pass until it has ended.
fn ask(world: &mut World, command: impl Fn(u64) -> ProducerCommand) -> Result<(), Error> {
    const OP: u64 = 900;
    world.events.retain(|event| !matches!(event, crate::producer::ProducerEvent::Done { op: OP, .. }));
    world.command(command(OP));
    for _ in 0..2 * TIMEOUT_MS / 10 {
        if let Some(result) = world.is_done(OP) {
            return result;
        }
        world.advance(10);
    }
    panic!("the command did not end");
}

fn refused(world: &mut World) -> String {
    match world.append(0, "x") {
        Err(AppendError::Transaction(error) | AppendError::Fatal(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn committed_records_are_seen_and_aborted_ones_are_not() {
    for implicit in [false, true] {
        let mut world = ready(implicit);
        for round in 0..4 {
            ask(&mut world, begin).unwrap();
            for partition in 0..3 {
                world.append(partition, &format!("{round}")).unwrap();
            }
            ask(&mut world, if round % 2 == 0 { commit } else { abort }).unwrap();
        }
        for log in world.logs() {
            assert_eq!(log.committed, ["0", "2"], "version 2: {implicit}");
            assert!(log.open.is_empty());
        }
        world.assert_empty();
        let added = !world.kafka.asked::<AddPartitionsToTxnRequest>().is_empty();
        assert_eq!(added, !implicit);
    }
}

#[test]
fn records_are_taken_in_a_transaction_only() {
    let mut world = fresh(true);
    assert!(refused(&mut world).contains("init_transactions"));
    assert!(matches!(ask(&mut world, begin), Err(Error::Usage(why)) if why.contains("init_transactions")));
    ask(&mut world, init).unwrap();
    assert!(refused(&mut world).contains("begin_transaction"));
    for end in [commit, abort] {
        assert!(matches!(ask(&mut world, end), Err(Error::Usage(why)) if why.contains("no transaction")));
    }
    assert!(matches!(ask(&mut world, offsets(1)), Err(Error::Usage(_))));
    ask(&mut world, begin).unwrap();
    assert!(matches!(ask(&mut world, begin), Err(Error::Usage(why)) if why.contains("open already")));
    world.append(0, "a").unwrap();
    ask(&mut world, commit).unwrap();
    assert!(refused(&mut world).contains("begin_transaction"));
    assert_eq!(world.log(0).committed, ["a"]);
}

#[test]
fn a_producer_without_a_transactional_id_knows_no_transactions() {
    let mut world = World::ready(&[1], &[]);
    for command in [init, begin, commit, abort] {
        let error = ask(&mut world, command).unwrap_err();
        assert!(matches!(error, Error::Config { option, .. } if option == "transactional.id"));
    }
}

#[test]
fn an_empty_transaction_asks_nobody() {
    for implicit in [false, true] {
        let mut world = ready(implicit);
        let before = world.coordinated();
        for end in [commit, abort] {
            ask(&mut world, begin).unwrap();
            ask(&mut world, end).unwrap();
        }
        assert_eq!(world.coordinated(), before);
        assert!(world.kafka.transactions.ends.is_empty());
    }
}

#[test]
fn offsets_are_committed_with_the_records_or_not_at_all() {
    for implicit in [false, true] {
        let mut world = ready(implicit);
        for (offset, end) in [(5, commit as fn(u64) -> ProducerCommand), (9, abort)] {
            ask(&mut world, begin).unwrap();
            world.append(0, "a").unwrap();
            ask(&mut world, offsets(offset)).unwrap();
            ask(&mut world, end).unwrap();
        }
        assert_eq!(world.kafka.transactions.offsets.get(&0), Some(&5));
        assert_eq!(world.kafka.transactions.member, Some((3, "m".to_owned())));
        // Offsets alone are a transaction too.
        ask(&mut world, begin).unwrap();
        ask(&mut world, offsets(12)).unwrap();
        ask(&mut world, commit).unwrap();
        assert_eq!(world.kafka.transactions.offsets.get(&0), Some(&12));
    }
}

#[test]
fn a_member_that_lost_its_partitions_can_only_abort() {
    let mut world = ready(true);
    ask(&mut world, begin).unwrap();
    world.append(0, "a").unwrap();
    // The group's coordinator is found first.
    world.kafka.faults.of(TRANSACTION).extend([Fault::None, Fault::Refuse(ErrorCode::ILLEGAL_GENERATION)]);
    let error = ask(&mut world, offsets(5)).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::TRANSACTION_ABORTABLE));
    assert!(error.to_string().contains("ILLEGAL_GENERATION"), "{error}");
    assert_eq!(ask(&mut world, commit).unwrap_err().code(), Some(ErrorCode::TRANSACTION_ABORTABLE));
    ask(&mut world, abort).unwrap();
    ask(&mut world, begin).unwrap();
    world.append(0, "b").unwrap();
    ask(&mut world, offsets(5)).unwrap();
    ask(&mut world, commit).unwrap();
    assert_eq!(world.log(0).committed, ["b"]);
}

#[test]
fn what_the_coordinator_leaves_out_of_its_answer_is_asked_for_again() {
    for implicit in [false, true] {
        let mut world = ready(implicit);
        ask(&mut world, begin).unwrap();
        world.kafka.spoil::<TxnOffsetCommitRequest>(2, |answer| answer.topics.clear());
        ask(&mut world, offsets(7)).unwrap();
        assert_eq!(world.kafka.spoils_left(), 0);
        ask(&mut world, commit).unwrap();
        assert_eq!(world.kafka.transactions.offsets.get(&0), Some(&7));
        // Never told, they are not taken for done.
        ask(&mut world, begin).unwrap();
        world.kafka.spoil::<TxnOffsetCommitRequest>(1000, |answer| answer.topics.clear());
        let error = ask(&mut world, offsets(8)).unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::TRANSACTION_ABORTABLE));
        assert!(error.to_string().contains("left partition 0 of topic 'in' out"), "{error}");
        world.kafka.spoil_no_more();
        ask(&mut world, abort).unwrap();
        assert_eq!(world.kafka.transactions.offsets.get(&0), Some(&7));
    }
    let mut world = ready(false);
    ask(&mut world, begin).unwrap();
    world.kafka.spoil::<AddPartitionsToTxnRequest>(2, |answer| answer.results_by_topic_v3_and_below.clear());
    world.append(0, "x").unwrap();
    ask(&mut world, commit).unwrap();
    assert_eq!(world.log(0).committed, ["x"]);
}

#[test]
fn a_failed_record_fails_the_commit_and_an_abort_mends_it() {
    for implicit in [false, true] {
        let mut world = ready(implicit);
        ask(&mut world, begin).unwrap();
        world.append(0, "a").unwrap();
        world.kafka.faults.of(&[ApiKey::Produce]).push_back(Fault::Refuse(ErrorCode::INVALID_RECORD));
        let error = ask(&mut world, commit).unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::TRANSACTION_ABORTABLE));
        assert!(error.to_string().contains("INVALID_RECORD"), "{error}");
        // No more is taken, and what is taken is told the same.
        assert!(refused(&mut world).contains("INVALID_RECORD"));
        assert_eq!(ask(&mut world, begin).unwrap_err(), error);
        ask(&mut world, abort).unwrap();
        ask(&mut world, begin).unwrap();
        for partition in [0, 1] {
            world.append(partition, "b").unwrap();
        }
        ask(&mut world, commit).unwrap();
        assert_eq!(world.log(0).committed, ["b"], "version 2: {implicit}");
        assert_eq!(world.log(1).committed, ["b"]);
    }
}

#[test]
fn an_abort_ends_what_was_not_sent() {
    for implicit in [false, true] {
        let mut world = ready(implicit);
        ask(&mut world, begin).unwrap();
        world.append(0, "a").unwrap();
        world.append(1, "b").unwrap();
        world.take_done();
        ask(&mut world, abort).unwrap();
        let done = world.take_done();
        assert_eq!(done.len(), 2);
        assert!(done.iter().all(|(_, result)| *result == Err(Error::Aborted)), "{done:?}");
        assert!(world.logs().all(|log| log.values.is_empty()));
        world.assert_empty();
    }
}

#[test]
fn an_abort_waits_for_what_is_on_its_way() {
    for implicit in [false, true] {
        let mut world = ready(implicit);
        ask(&mut world, begin).unwrap();
        let first = world.append(0, "a").unwrap().batch;
        world.kafka.holding = true;
        world.advance(50);
        let second = world.append(0, "b").unwrap().batch;
        world.command(abort(5));
        assert_eq!(world.is_done(5), None, "a batch is on its way");
        world.kafka.holding = false;
        world.advance(100);
        assert_eq!(world.is_done(5), Some(Ok(())));
        let done = world.take_done();
        assert_eq!(done.iter().map(|(batch, _)| *batch).collect::<Vec<_>>(), [first, second], "in order");
        assert!(done[0].1.is_ok() && done[1].1 == Err(Error::Aborted));
        assert!(world.log(0).committed.is_empty() && world.log(0).open.is_empty());
    }
}

#[test]
fn a_newer_producer_fences_this_one_for_good() {
    for implicit in [false, true] {
        for early in [false, true] {
            let mut world = ready(implicit);
            ask(&mut world, begin).unwrap();
            world.append(0, "a").unwrap();
            if early {
                world.kafka.transactions.bump();
            } else {
                world.advance(50);
                world.kafka.log(TOPIC, 0).open.clear();
                world.kafka.transactions.bump();
            }
            let failed = ask(&mut world, commit).unwrap_err();
            if failed.code() == Some(ErrorCode::TRANSACTION_ABORTABLE) {
                // The partition's leader said so, and only the coordinator is believed.
                let fenced = ask(&mut world, abort).unwrap_err();
                assert_eq!(fenced.code(), Some(ErrorCode::PRODUCER_FENCED));
            } else {
                assert_eq!(failed.code(), Some(ErrorCode::PRODUCER_FENCED));
            }
            assert!(refused(&mut world).contains("PRODUCER_FENCED"));
            for command in [init, begin, commit, abort] {
                let error = ask(&mut world, command).unwrap_err();
                assert_eq!(error.code(), Some(ErrorCode::PRODUCER_FENCED));
            }
            assert!(world.log(0).committed.is_empty());
            world.assert_empty();
        }
    }
}

#[test]
fn a_refused_id_ends_the_producer() {
    // The last one is what a broker without transactions says.
    for code in [
        ErrorCode::INVALID_TRANSACTION_TIMEOUT,
        ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode::UNSUPPORTED_VERSION,
    ] {
        for found in [false, true] {
            let mut world = fresh(true);
            world.kafka.faults.of(TRANSACTION).extend(found.then_some(Fault::None));
            world.kafka.faults.of(TRANSACTION).push_back(Fault::Refuse(code));
            let error = ask(&mut world, init).unwrap_err();
            assert_eq!(error.code(), Some(code));
            assert_eq!(error.to_string().contains(WHY), !found, "{error}");
            assert_eq!(ask(&mut world, begin).unwrap_err().code(), Some(code));
        }
    }
}

#[test]
fn a_time_out_leaves_the_end_open_and_asking_again_waits_for_it() {
    for implicit in [false, true] {
        let mut world = ready(implicit);
        ask(&mut world, begin).unwrap();
        world.append(1, "a").unwrap();
        world.advance(50);
        world.kill(1);
        let error = ask(&mut world, commit).unwrap_err();
        assert!(
            matches!(error, Error::Timeout { .. }) && error.to_string().contains(TRANSACTIONAL_ID),
            "{error}"
        );
        assert!(matches!(ask(&mut world, abort), Err(Error::Usage(why)) if why.contains("being committed")));
        world.refused.clear();
        assert_eq!(ask(&mut world, commit), Ok(()));
        assert_eq!(world.log(1).committed, ["a"]);
    }
}

#[test]
fn an_end_that_came_after_its_caller_had_gone_is_told_to_the_next() {
    for implicit in [false, true] {
        for (end, other) in
            [(commit as fn(u64) -> ProducerCommand, abort as fn(u64) -> ProducerCommand), (abort, commit)]
        {
            let mut world = ready(implicit);
            ask(&mut world, begin).unwrap();
            world.append(1, "a").unwrap();
            world.advance(50);
            world.kill(1);
            assert!(matches!(ask(&mut world, end), Err(Error::Timeout { .. })));
            world.refused.clear();
            world.advance(3000);
            let ends = world.kafka.transactions.ends.clone();
            assert_eq!(ends.len(), 1);
            assert_eq!(ask(&mut world, end), Ok(()));
            assert!(matches!(ask(&mut world, other), Err(Error::Usage(_))));
            assert_eq!(world.kafka.transactions.ends, ends);
            ask(&mut world, begin).unwrap();
            ask(&mut world, end).unwrap();
        }
    }
}

#[test]
fn closing_aborts_what_is_open() {
    for implicit in [false, true] {
        let mut world = ready(implicit);
        ask(&mut world, begin).unwrap();
        world.append(0, "a").unwrap();
        world.advance(50);
        world.append(0, "b").unwrap();
        world.command(ProducerCommand::Close { op: 7, timeout_ms: 1000 });
        world.advance(100);
        assert_eq!(world.is_done(7), Some(Ok(())));
        assert_eq!(world.kafka.transactions.ends, [false]);
        assert_eq!(world.log(0).values, ["a"]);
        assert_eq!(world.take_done().last().unwrap().1, Err(Error::Aborted));
        world.assert_empty();
        world.command(begin(8));
        assert_eq!(world.is_done(8), Some(Err(Error::Closed)));
    }
}

#[test]
fn closing_without_the_coordinator_ends_in_time() {
    let mut world = ready(true);
    ask(&mut world, begin).unwrap();
    world.append(1, "a").unwrap();
    world.advance(50);
    world.kill(1);
    world.command(commit(6));
    world.command(ProducerCommand::Close { op: 7, timeout_ms: 1000 });
    world.advance(900);
    assert_eq!((world.is_done(6), world.is_done(7)), (None, None));
    world.advance(200);
    assert_eq!(world.is_done(6), Some(Err(Error::Closed)));
    assert_eq!(world.is_done(7), Some(Ok(())));
}

#[test]
fn an_end_whose_answer_cannot_be_read_is_asked_for_again() {
    for implicit in [false, true] {
        let mut world = ready(implicit);
        for (value, end) in [("a", commit as fn(u64) -> ProducerCommand), ("b", abort), ("c", commit)] {
            ask(&mut world, begin).unwrap();
            world.append(0, value).unwrap();
            world.advance(50);
            world.kafka.faults.of(TRANSACTION).extend([Fault::Garble, Fault::Garble]);
            assert_eq!(ask(&mut world, end), Ok(()), "version 2: {implicit}");
        }
        assert_eq!(world.log(0).committed, ["a", "c"]);
        assert_eq!(world.kafka.transactions.ends, [true, false, true]);
        world.assert_empty();
    }
}

#[test]
fn a_coordinator_that_no_broker_names_in_time_is_told_with_the_brokers() {
    let mut world =
        World::new(&[1], &[("transactional.id", TRANSACTIONAL_ID), ("request.timeout.ms", "30000")]);
    world.refused.extend([9001, 9002]);
    let error = ask(&mut world, init).unwrap_err();
    assert!(
        matches!(error, Error::Timeout { .. }) && error.to_string().contains("localhost:9001"),
        "{error}"
    );
}

#[test]
fn broken_answers_on_the_way_to_an_id_are_not_the_end() {
    for found in [false, true] {
        let mut world = fresh(true);
        world.kafka.faults.of(TRANSACTION).extend(found.then_some(Fault::None));
        world.kafka.faults.of(TRANSACTION).push_back(Fault::Garble);
        assert_eq!(ask(&mut world, init), Ok(()));
        ask(&mut world, begin).unwrap();
        world.append(0, "a").unwrap();
        ask(&mut world, commit).unwrap();
        assert_eq!(world.log(0).committed, ["a"]);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Append { partition: u8 },
    Offsets,
    Advance(u16),
    Fault(Fault),
    Mishap(Fault),
    End { commit: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..3_u8).prop_map(|partition| Step::Append { partition }),
        1 => Just(Step::Offsets),
        2 => (0..100_u16).prop_map(Step::Advance),
        1 => prop_oneof![
            Just(Fault::None),
            Just(Fault::Refuse(ErrorCode::NOT_ENOUGH_REPLICAS)),
            Just(Fault::Refuse(ErrorCode::INVALID_RECORD)),
            Just(Fault::DoThenSay(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND)),
            Just(Fault::DropBefore),
            Just(Fault::DropAfter),
            Just(Fault::Mute),
        ].prop_map(Step::Fault),
        2 => prop_oneof![
            Just(Fault::None),
            Just(Fault::Refuse(ErrorCode::CONCURRENT_TRANSACTIONS)),
            Just(Fault::Refuse(ErrorCode::NOT_COORDINATOR)),
            Just(Fault::Refuse(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS)),
            Just(Fault::DropBefore),
            Just(Fault::DropAfter),
            Just(Fault::Garble),
        ].prop_map(Step::Mishap),
        4 => any::<bool>().prop_map(|commit| Step::End { commit }),
    ]
}

/// Random transactions with faults that pass: readers see exactly those whose commit went well, whole and in order.
fn run(implicit: bool, steps: &[Step]) {
    let mut world = ready(implicit);
    ask(&mut world, begin).unwrap();
    let mut open: Vec<(usize, String)> = Vec::new();
    let mut expected = vec![Vec::new(); 3];
    let (mut offset, mut open_offset, mut expected_offset) = (0, None, None);
    for (n, step) in steps.iter().chain(&[Step::End { commit: true }]).enumerate() {
        match *step {
            Step::Append { partition } => {
                let value = format!("{n:05}");
                if world.append(i32::from(partition), &value).is_ok() {
                    open.push((usize::from(partition), value));
                }
            }
            Step::Offsets => {
                offset += 1;
                if ask(&mut world, offsets(offset)).is_ok() {
                    open_offset = Some(offset);
                }
            }
            Step::Advance(ms) => world.advance(u64::from(ms)),
            Step::Fault(fault) => world.kafka.faults.of(&[ApiKey::Produce]).push_back(fault),
            Step::Mishap(mishap) => world.kafka.faults.of(TRANSACTION).push_back(mishap),
            Step::End { commit: wanted } => {
                let committed = if wanted {
                    match ask(&mut world, commit) {
                        Ok(()) => true,
                        Err(error) => {
                            assert_eq!(error.code(), Some(ErrorCode::TRANSACTION_ABORTABLE), "{error}");
                            ask(&mut world, abort).unwrap();
                            false
                        }
                    }
                } else {
                    ask(&mut world, abort).unwrap();
                    false
                };
                if committed {
                    open.drain(..).for_each(|(partition, value)| expected[partition].push(value));
                    expected_offset = open_offset.or(expected_offset);
                }
                open.clear();
                open_offset = None;
                world.assert_empty();
                ask(&mut world, begin).unwrap();
            }
        }
    }
    for (log, expected) in world.logs().zip(expected) {
        assert_eq!(log.committed, expected);
    }
    assert_eq!(world.kafka.transactions.offsets.get(&0).copied(), expected_offset);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn readers_see_what_was_committed_and_nothing_else(
        steps in proptest::collection::vec(step(), 1..60),
        implicit in any::<bool>(),
    ) {
        run(implicit, &steps);
    }
}
