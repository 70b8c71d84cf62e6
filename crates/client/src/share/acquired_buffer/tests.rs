//! Callers on one side, the engine on the other.

use arrow_array::Int64Array;

use super::*;

const LOCK_MS: u64 = 1000;

fn tp(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

fn origin(node: i32, at_ms: u64) -> Origin {
    let session = u64::try_from(node).unwrap();
    Origin { node, session, sent_ms: at_ms, received_ms: at_ms, lock_ms: LOCK_MS }
}

fn chunk(offsets: impl IntoIterator<Item = i64>) -> RecordBatch {
    let offsets = Int64Array::from_iter_values(offsets);
    RecordBatch::try_from_iter([("offset", Arc::new(offsets) as _)]).unwrap()
}

fn ten(first: i64) -> Delivery {
    let ranges = vec![AcquiredRange { first, last: first + 9, delivery_count: 1 }];
    Delivery { chunks: vec![chunk(first..first + 10)], ranges, ..Delivery::default() }
}

fn buffer(mode: AcknowledgementMode) -> AcquiredBuffer {
    let mut buffer = AcquiredBuffer::new(mode);
    buffer.set_nodes([(tp(0), 1), (tp(1), 2)]);
    buffer
}

/// Offsets 0 to 9 of partition 0 from node 1, 100 to 109 of partition 1 from node 2.
fn full(mode: AcknowledgementMode) -> AcquiredBuffer {
    let mut buffer = buffer(mode);
    buffer.put(&tp(0), origin(1, 0), ten(0));
    buffer.put(&tp(1), origin(2, 0), ten(100));
    buffer
}

fn take(buffer: &mut AcquiredBuffer, max: usize) -> (i32, usize, usize, bool) {
    let rows = buffer.take(0, max).unwrap().unwrap();
    (rows.partition.partition, rows.start, rows.len, rows.wake)
}

fn mark(first: i64, last: i64, ack: Ack) -> Mark {
    Mark { first, last, delivery_count: 1, ack }
}

fn sent(buffer: &mut AcquiredBuffer, node: i32, request: u64) -> Vec<(i32, i64, i64, Vec<i8>)> {
    let all = buffer.begin(node, request, true).into_iter();
    all.flat_map(|(tp, runs)| runs.into_iter().map(move |run| (tp.partition, run.first, run.last, run.types)))
        .collect()
}

const IMPLICIT: AcknowledgementMode = AcknowledgementMode::Implicit;
const EXPLICIT: AcknowledgementMode = AcknowledgementMode::Explicit;
const DONE: Verdict = Verdict::Applied { sent_ms: 0, received_ms: 0, lock_ms: None };

#[test]
fn a_poll_gives_rows_of_one_partition_and_the_last_ones_wake_the_engine() {
    let mut buffer = full(IMPLICIT);
    assert_eq!(take(&mut buffer, 4), (0, 0, 4, false));
    assert_eq!(take(&mut buffer, 100), (0, 4, 6, false));
    assert_eq!(take(&mut buffer, 100), (1, 0, 10, true));
    assert!(buffer.take(0, 100).is_none() && !buffer.has_any());
    assert_eq!(buffer.metrics().records_consumed, 20);
    assert_eq!(buffer.metrics().records_acquired, 20);
}

#[test]
fn the_next_poll_accepts_what_the_last_gave_and_nothing_else() {
    let mut buffer = full(IMPLICIT);
    assert!(!buffer.begin_poll(0).unwrap(), "nothing was given yet");
    take(&mut buffer, 4);
    assert!(buffer.changes().is_empty());
    assert!(buffer.begin_poll(0).unwrap());
    let changes = buffer.changes();
    assert_eq!((changes.len(), changes[&1].give_back, changes[&1].urgent), (1, 4, false));
    assert_eq!(sent(&mut buffer, 1, 1), [(0, 0, 3, vec![1])]);
    assert_eq!(buffer.end(0, &tp(0), 1, DONE), 0);
    assert_eq!(buffer.metrics().records_acknowledged, 4);
    assert_eq!(buffer.acknowledge(&[]).unwrap_err().kafka_name(), "ILLEGAL_STATE");
}

#[test]
fn with_explicit_acknowledgement_a_poll_asks_for_every_row() {
    let mut buffer = full(EXPLICIT);
    buffer.begin_poll(0).unwrap();
    take(&mut buffer, 10);
    let text = buffer.begin_poll(0).unwrap_err().to_string();
    assert!(text.contains("t-0"), "{text}");
    buffer.acknowledge(&[(tp(0), vec![mark(0, 8, Ack::Accept)])]).unwrap();
    buffer.begin_poll(0).unwrap_err();
    assert!(sent(&mut buffer, 1, 1).is_empty(), "nothing goes while the poll is refused");
    buffer.acknowledge(&[(tp(0), vec![mark(9, 9, Ack::Renew)])]).unwrap();
    assert!(buffer.begin_poll(0).unwrap());
    assert_eq!(sent(&mut buffer, 1, 1), [(0, 0, 9, vec![1, 1, 1, 1, 1, 1, 1, 1, 1, 4])]);
    buffer.end(0, &tp(0), 1, Verdict::Applied { sent_ms: 5, received_ms: 5, lock_ms: Some(LOCK_MS) });
    // What was renewed is marked when its time comes; a poll does not ask for it.
    assert!(!buffer.begin_poll(0).unwrap());
    buffer.acknowledge(&[(tp(0), vec![mark(9, 9, Ack::Release)])]).unwrap();
    assert!(buffer.begin_poll(0).unwrap());
    assert_eq!(sent(&mut buffer, 1, 2), [(0, 9, 9, vec![2])]);
}

#[test]
fn rows_that_are_not_held_are_told_and_all_others_are_marked() {
    let mut buffer = full(EXPLICIT);
    take(&mut buffer, 10);
    take(&mut buffer, 5);
    let marks = [(tp(0), vec![mark(0, 9, Ack::Accept)]), (tp(1), vec![mark(100, 109, Ack::Accept)])];
    let error = buffer.acknowledge(&marks).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::INVALID_RECORD_STATE));
    let text = error.to_string();
    assert!(
        text.contains("partition 1") && text.contains("5 of the rows") && text.contains("offset 105"),
        "{text}"
    );
    buffer.begin_poll(0).unwrap();
    let changes = buffer.changes();
    assert_eq!((changes[&1].give_back, changes[&2].give_back), (10, 5));
    let text = buffer.acknowledge(&[(tp(7), vec![mark(0, 1, Ack::Accept)])]).unwrap_err().to_string();
    assert!(text.contains("partition 7"), "{text}");
    buffer.set_renews(false);
    let error = buffer.acknowledge(&[(tp(0), vec![mark(0, 1, Ack::Renew)])]).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UNSUPPORTED_VERSION));
}

#[test]
fn a_commit_ends_when_all_partitions_were_answered() {
    let mut buffer = full(EXPLICIT);
    take(&mut buffer, 10);
    take(&mut buffer, 10);
    let marks = [(tp(0), vec![mark(0, 9, Ack::Accept)]), (tp(1), vec![mark(100, 104, Ack::Reject)])];
    buffer.acknowledge(&marks).unwrap();
    buffer.commit(0, 8, 1000);
    let changes = buffer.changes();
    assert!(changes[&1].urgent && changes[&2].urgent);
    assert_eq!(sent(&mut buffer, 1, 1), [(0, 0, 9, vec![1])]);
    assert_eq!(sent(&mut buffer, 2, 2), [(1, 100, 104, vec![3])]);
    buffer.end(0, &tp(0), 1, DONE);
    assert!(buffer.ended(0).is_none());
    assert_eq!(buffer.end(0, &tp(1), 2, Verdict::Refused(ErrorCode::INVALID_RECORD_STATE)), 5);
    let (commit, results) = buffer.ended(0).unwrap();
    assert_eq!((commit, &results[0]), (8, &(tp(0), None)));
    assert_eq!(results[1].1.as_ref().unwrap().code(), Some(ErrorCode::INVALID_RECORD_STATE));
    assert!(buffer.troubles().is_empty(), "the commit has reported it");
    // Nobody waits for this one.
    buffer.acknowledge(&[(tp(1), vec![mark(105, 109, Ack::Accept)])]).unwrap();
    buffer.begin_poll(0).unwrap();
    sent(&mut buffer, 2, 3);
    buffer.end(0, &tp(1), 3, Verdict::Refused(ErrorCode::INVALID_RECORD_STATE));
    assert_eq!(buffer.troubles().len(), 1);
    buffer.commit(0, 9, 1000);
    assert_eq!(buffer.ended(0), Some((9, Vec::new())));
}

#[test]
fn what_is_due_elsewhere_than_in_a_session_and_renewals_go_alone() {
    let mut buffer = full(EXPLICIT);
    take(&mut buffer, 10);
    buffer.acknowledge(&[(tp(0), vec![mark(0, 8, Ack::Accept), mark(9, 9, Ack::Renew)])]).unwrap();
    buffer.begin_poll(0).unwrap();
    assert_eq!((buffer.goes_alone(1), buffer.goes_alone(2)), (true, false));
    assert_eq!(buffer.begin(1, 1, false).len(), 1);
    assert!(buffer.goes_alone(1), "the renewal is still to be sent");
    assert_eq!(buffer.begin(1, 2, true).len(), 1);
    assert!(!buffer.goes_alone(1));

    let mut buffer = full(IMPLICIT);
    take(&mut buffer, 10);
    buffer.begin_poll(0).unwrap();
    assert!(!buffer.goes_alone(1));
    buffer.set_nodes([(tp(1), 2)]);
    assert!(buffer.goes_alone(1), "its partition has left the session");
    assert_eq!(buffer.assignment(), [tp(1)]);
    assert_eq!(sent(&mut buffer, 1, 1), [(0, 0, 9, vec![1])]);
    buffer.end(0, &tp(0), 1, DONE);
    assert!(buffer.holds_none_of(1) && !buffer.holds_none_of(2));
}

#[test]
fn rows_that_nobody_takes_for_half_their_lock_go_back() {
    let mut buffer = full(IMPLICIT);
    take(&mut buffer, 3);
    buffer.expire(LOCK_MS / 2 - 1);
    assert!(buffer.has_any());
    assert_eq!(buffer.timeouts().min(), Some(LOCK_MS / 2));
    buffer.expire(LOCK_MS / 2);
    assert!(!buffer.has_any());
    let changes = buffer.changes();
    assert_eq!((changes[&1].give_back, changes[&2].give_back), (7, 10));
    assert_eq!(sent(&mut buffer, 1, 1), [(0, 3, 9, vec![2])]);
}

#[test]
fn locks_that_are_over_are_told_and_freed() {
    let mut buffer = full(IMPLICIT);
    buffer.set_lock_ms(LOCK_MS);
    take(&mut buffer, 10);
    buffer.expire(LOCK_MS - 1);
    buffer.changes();
    buffer.expire(LOCK_MS + DEADLINE_STEP_MS);
    let changes = buffer.changes();
    assert_eq!((changes[&1].freed, changes[&1].not_due), (10, 0));
    assert_eq!((changes[&2].freed, changes[&2].not_due), (10, 10), "released at half time, and not sent");
    assert_eq!(buffer.metrics().records_lock_expired, 10);
    let troubles = buffer.troubles();
    let text: Vec<String> = troubles.iter().map(|trouble| trouble.error.to_string()).collect();
    assert!(text.iter().any(|text| text.contains("10 records, whose lock is 1000 ms")), "{text:?}");
    assert!(!buffer.begin_poll(0).unwrap(), "there is nothing to accept");
}

#[test]
fn a_lock_is_looked_at_again_whatever_comes_between() {
    let mut buffer = full(EXPLICIT);
    take(&mut buffer, 10);
    buffer.acknowledge(&[(tp(0), vec![mark(0, 9, Ack::Renew)])]).unwrap();
    buffer.begin_poll(0).unwrap();
    sent(&mut buffer, 1, 1);
    // In a request, its time comes and goes.
    buffer.expire(LOCK_MS + DEADLINE_STEP_MS);
    buffer.end(1500, &tp(0), 1, Verdict::Applied { sent_ms: 1490, received_ms: 1500, lock_ms: Some(3000) });
    assert!(!buffer.holds_none_of(1));
    buffer.expire(4499);
    assert!(!buffer.holds_none_of(1));
    buffer.expire(4500 + DEADLINE_STEP_MS);
    assert!(buffer.holds_none_of(1));
}

#[test]
fn rows_of_a_session_that_is_over_are_not_given_out() {
    let mut buffer = full(IMPLICIT);
    take(&mut buffer, 3);
    buffer.session_over(1);
    assert_eq!(take(&mut buffer, 10), (1, 0, 10, true));
    assert!(buffer.begin_poll(0).unwrap());
    let changes = buffer.changes();
    assert_eq!(
        changes.keys().copied().collect::<Vec<_>>(),
        [2],
        "node 1 counts them until their lock is over"
    );
    assert!(!buffer.holds_none_of(1));
}

#[test]
fn rows_of_a_leader_that_has_moved_are_not_given_out() {
    let mut buffer = full(IMPLICIT);
    take(&mut buffer, 3);
    assert_eq!(buffer.givers(&tp(0)), BTreeSet::from([1]));
    buffer.leader_moved(&tp(0), 1);
    assert_eq!(buffer.changes()[&1].freed, 10);
    assert_eq!(take(&mut buffer, 10), (1, 0, 10, true));
}

#[test]
fn rows_acquired_anew_are_given_out_once() {
    let mut buffer = buffer(IMPLICIT);
    buffer.put(&tp(0), origin(1, 0), ten(0));
    let ranges = vec![AcquiredRange { first: 3, last: 4, delivery_count: 2 }];
    let anew = Delivery { chunks: vec![chunk(3..5)], ranges, ..Delivery::default() };
    buffer.put(&tp(0), origin(1, 10), anew);
    assert_eq!(take(&mut buffer, 100), (0, 0, 2, true));
    let changes = buffer.changes();
    assert_eq!((changes[&1].freed, changes[&1].give_back), (2, 8), "the others of the old answer go back");
}

#[test]
fn errors_come_after_the_rows_before_them_and_once() {
    let mut buffer = buffer(IMPLICIT);
    let bad =
        || Error::Record { topic: "t".to_owned(), partition: 0, offset: 10, why: "it is bad".to_owned() };
    let mut delivery = ten(0);
    delivery.ranges.push(AcquiredRange { first: 10, last: 12, delivery_count: 1 });
    (delivery.others, delivery.errors) = (vec![(10, 12, Ack::Release)], vec![bad()]);
    buffer.put(&tp(0), origin(1, 0), delivery);
    assert_eq!(buffer.changes()[&1].give_back, 3);
    assert_eq!(take(&mut buffer, 100), (0, 0, 10, false));
    assert_eq!(buffer.take(0, 1).unwrap().unwrap_err(), bad());
    assert!(buffer.take(0, 1).is_none());
    buffer.set_broken(Some(bad()));
    assert!(buffer.has_any());
    assert_eq!((buffer.take(0, 1).unwrap().is_err(), buffer.take(0, 1).unwrap().is_err()), (true, true));
    buffer.set_broken(None);
    assert!(buffer.take(0, 1).is_none());
}

#[test]
fn demand_follows_the_polls() {
    let mut buffer = buffer(IMPLICIT);
    assert_eq!(buffer.demand(0), Demand::None, "nobody has polled");
    assert!(buffer.wait(100, true, false));
    assert_eq!(buffer.demand(100_000), Demand::Waiting);
    buffer.wait(200, false, false);
    assert_eq!(
        (buffer.demand(200 + POLL_LINGER_MS - 1), buffer.demand(200 + POLL_LINGER_MS)),
        (Demand::Waiting, Demand::None)
    );
    assert!(buffer.looked(1000), "a look without a wait counts as well");
    assert!(!buffer.looked(1100));
    assert_eq!(buffer.demand(1100), Demand::Waiting);
    buffer.put(&tp(0), origin(1, 0), ten(0));
    assert_eq!(buffer.demand(1100), Demand::None, "there are rows to take");
    buffer.take(1200, 100).unwrap().unwrap();
    assert_eq!(buffer.demand(1200), Demand::Ahead, "the caller has rows to work on");
    buffer.put(&tp(0), origin(1, 0), ten(10));
    buffer.take(2000, 100).unwrap().unwrap();
    assert_eq!((buffer.demand(2000), buffer.demand(2000 + AHEAD_MS)), (Demand::Ahead, Demand::None));
}

#[test]
fn closing_accepts_what_was_finished_and_sends_what_was_marked() {
    for (finished, given_back) in [(true, 4), (false, 0)] {
        let mut buffer = full(IMPLICIT);
        take(&mut buffer, 4);
        buffer.close(finished);
        let runs = sent(&mut buffer, 1, 1);
        assert_eq!(runs.iter().map(|(_, first, last, _)| last - first + 1).sum::<i64>(), given_back);
        assert!(!buffer.has_any());
    }
    let mut buffer = full(EXPLICIT);
    take(&mut buffer, 4);
    buffer.acknowledge(&[(tp(0), vec![mark(0, 1, Ack::Reject)])]).unwrap();
    buffer.close(false);
    assert_eq!(sent(&mut buffer, 1, 1), [(0, 0, 1, vec![3])]);
}
