//! Acknowledgements: what callers say reaches the brokers, and what those say of it the callers.

use super::*;

const EXPLICIT: (&str, &str) = ("share.acknowledgement.mode", "explicit");

#[test]
fn each_word_reaches_the_broker() {
    let mut bench = Bench::subscribed(&[1], &[EXPLICIT]);
    bench.append(0, 6);
    assert_eq!(bench.rows().1.len(), 6);
    assert!(bench.poll(10).unwrap_err().to_string().contains("t-0"));
    bench.mark(0, 0, 1, Ack::Accept);
    bench.mark(0, 2, 2, Ack::Release);
    bench.mark(0, 3, 4, Ack::Reject);
    bench.mark(0, 5, 5, Ack::Accept);
    assert_eq!(bench.commit(), BTreeMap::from([(0, None)]));
    let acks: Vec<Vec<i8>> = (0..6).map(|offset| bench.acks(0, offset)).collect();
    assert_eq!(acks, [vec![1], vec![1], vec![2], vec![3], vec![3], vec![1]]);
    assert_eq!(bench.rows(), (0, vec![(2, 2)]));
}

#[test]
fn a_renewed_lock_begins_anew_and_the_row_stays_with_the_caller() {
    let mut bench = Bench::subscribed(&[1], &[EXPLICIT]);
    bench.append(0, 2);
    assert_eq!(bench.rows().1.len(), 2);
    bench.run(LOCK_MS - 5_000);
    bench.mark(0, 0, 0, Ack::Renew);
    bench.mark(0, 1, 1, Ack::Accept);
    assert_eq!(bench.commit(), BTreeMap::from([(0, None)]));
    bench.run(20_000);
    assert_eq!(bench.available(), 0);
    // Marked once more when its time comes.
    bench.mark(0, 0, 0, Ack::Accept);
    assert_eq!(bench.commit(), BTreeMap::from([(0, None)]));
    assert_eq!((bench.acks(0, 0), bench.accepted()), (vec![4, 1], 2));
    assert!(bench.troubles().is_empty(), "{:?}", bench.troubles());
}

#[test]
fn a_lock_that_is_over_is_told_and_the_records_go_to_others() {
    let mut bench = Bench::subscribed(&[1], &[]);
    bench.append(0, 5);
    assert_eq!(bench.rows().1.len(), 5);
    bench.run(LOCK_MS + 1_000);
    assert_eq!((bench.available(), bench.buffer().metrics().records_lock_expired), (5, 5));
    assert!(
        bench.troubles().iter().any(|text| text.contains("5 records, whose lock is 30000 ms")),
        "{:?}",
        bench.troubles()
    );
    assert_eq!(bench.rows().1, (0..5).map(|offset| (offset, 2)).collect::<Vec<_>>());
    assert_eq!(bench.accepted(), 0);

    let mut bench = Bench::subscribed(&[1], &[EXPLICIT]);
    bench.append(0, 5);
    bench.rows();
    bench.run(LOCK_MS + 1_000);
    let late = bench
        .buffer()
        .acknowledge(&[(tp(0), vec![Mark { first: 0, last: 4, delivery_count: 1, ack: Ack::Accept }])]);
    assert_eq!(late.unwrap_err().code(), Some(ErrorCode::INVALID_RECORD_STATE));
}

#[test]
fn what_brokers_refuse_is_told_by_the_commit_and_what_may_pass_is_sent_again() {
    for (code, reported, tries) in [
        (ErrorCode::INVALID_RECORD_STATE, Some(ErrorCode::INVALID_RECORD_STATE), 1),
        (ErrorCode::INVALID_REQUEST, Some(ErrorCode::INVALID_REQUEST), 1),
        (ErrorCode::NOT_LEADER_OR_FOLLOWER, Some(ErrorCode::NOT_LEADER_OR_FOLLOWER), 1),
        (ErrorCode::KAFKA_STORAGE_ERROR, None, 2),
        (ErrorCode::UNKNOWN_SERVER_ERROR, None, 2),
    ] {
        let mut bench = Bench::subscribed(&[1], &[EXPLICIT]);
        bench.append(0, 4);
        bench.rows();
        bench.mark(0, 0, 3, Ack::Accept);
        bench.kafka.share.parts.get_mut(&key(0)).unwrap().ack_codes.push(code);
        assert_eq!(bench.commit(), BTreeMap::from([(0, reported)]), "{code:?}");
        let batches = |request: &ShareAcknowledgeRequest| {
            request.topics.iter().any(|topic| !topic.partitions.is_empty())
        };
        let sent = bench
            .kafka
            .asked::<ShareAcknowledgeRequest>()
            .iter()
            .filter(|(_, request)| batches(request))
            .count();
        let asked = bench.kafka.asked::<ShareFetchRequest>();
        let piggybacked = asked.iter().filter(|(_, request)| {
            request.topics.iter().any(|t| t.partitions.iter().any(|p| !p.acknowledgement_batches.is_empty()))
        });
        assert_eq!(sent + piggybacked.count(), tries, "{code:?}");
        assert_eq!(bench.accepted(), if reported.is_none() { 4 } else { 0 });
    }
}

#[test]
fn with_a_hard_limit_what_was_refused_counts_until_its_lock_is_over() {
    let mut bench = Bench::limited(&[1], 4, &[EXPLICIT]);
    bench.append(0, 8);
    assert_eq!(bench.rows().1.len(), 1, "a sentinel's");
    bench.mark(0, 0, 0, Ack::Accept);
    bench.kafka.share.parts.get_mut(&key(0)).unwrap().ack_codes.push(ErrorCode::INVALID_REQUEST);
    assert_eq!(bench.commit(), BTreeMap::from([(0, Some(ErrorCode::INVALID_REQUEST))]));
    let mut rows = 0;
    while let Some((_, got)) = bench.poll(1_000).unwrap() {
        rows += got.len();
        let marks = got.iter().map(|(offset, count)| Mark {
            first: *offset,
            last: *offset,
            delivery_count: *count,
            ack: Ack::Accept,
        });
        let marks = [(tp(0), marks.collect())];
        bench.buffer().acknowledge(&marks).unwrap();
    }
    assert_eq!(rows, 7, "the others, with the three credits that are left");
    assert!(bench.kafka.share.most_held <= 4);
}

#[test]
fn gaps_are_acknowledged_as_such_by_themselves() {
    let mut bench = Bench::subscribed(&[1], &[]);
    // The records of offsets 1 and 2 were compacted away: a batch of one that ends at offset 2.
    bench.kafka.share.append(key(0), 1);
    let part = bench.kafka.share.parts.get_mut(&key(0)).unwrap();
    let (_, last, bytes) = &mut part.batches[0];
    *last = 2;
    bytes[23..27].copy_from_slice(&2_i32.to_be_bytes());
    let mut header = headrace_wire::records::BatchHeader::parse(bytes).unwrap();
    let body = bytes.split_off(headrace_wire::records::BatchHeader::LEN);
    header.seal(headrace_wire::records::crc32c(&body), body.len());
    *bytes = [&header.encode()[..], &body].concat();
    part.records.extend([(Record::Available, 0), (Record::Available, 0)]);
    bench.append(0, 1);
    assert_eq!(bench.rows(), (0, vec![(0, 1), (3, 1)]));
    bench.poll(100).unwrap();
    bench.run(100);
    assert_eq!((bench.acks(0, 1), bench.acks(0, 2), bench.acks(0, 3)), (vec![0], vec![0], vec![1]));
}

#[test]
fn what_cannot_be_read_is_released_and_told_or_rejected_and_logged() {
    for (option, acks) in [("error", vec![2]), ("skip", vec![3])] {
        let mut bench = Bench::subscribed(&[1], &[("on.bad.records", option)]);
        bench.kafka.share.append(key(0), 2);
        bench.kafka.share.append(key(0), 3);
        bench.kafka.share.parts.get_mut(&key(0)).unwrap().batches[1].2[70] ^= 1;
        assert_eq!(bench.rows(), (0, vec![(0, 1), (1, 1)]));
        let next = bench.poll(1_000);
        if option == "error" {
            let text = next.unwrap_err().to_string();
            assert!(text.contains("topic 't', partition 0: offset 2"), "{text}");
        } else {
            assert_eq!(next, Ok(None));
            assert!(
                bench.troubles().iter().any(|text| text.contains("on.bad.records")),
                "{:?}",
                bench.troubles()
            );
        }
        bench.run(100);
        assert_eq!(bench.acks(0, 3)[..1], acks);
    }
}

#[test]
fn a_commit_whose_broker_does_not_answer_ends_with_its_time() {
    let mut bench = Bench::subscribed(&[1], &[EXPLICIT]);
    bench.append(0, 4);
    bench.rows();
    bench.mark(0, 0, 3, Ack::Accept);
    bench.kafka.silent = Some(1);
    let begun = bench.now_ms();
    assert_eq!(bench.commit(), BTreeMap::from([(0, Some(ErrorCode::REQUEST_TIMED_OUT))]));
    assert_eq!(bench.now_ms() - begun, 10_000);
}

#[test]
fn one_that_came_too_late_does_not_take_the_others_along() {
    let mut bench = Bench::subscribed(&[1], &[EXPLICIT]);
    bench.append(0, 3);
    bench.rows();
    bench.mark(0, 0, 2, Ack::Renew);
    assert_eq!(bench.commit(), BTreeMap::from([(0, None)]));
    let over_at = bench.now_ms() + LOCK_MS;
    bench.run(20_000);
    bench.append(0, 3);
    assert_eq!(bench.rows().1, [(3, 1), (4, 1), (5, 1)]);
    // The locks of the first three are over at the broker, and that is not noticed here in the same moment.
    bench.run(over_at + 1 - bench.now_ms());
    bench.kafka.share.may_be_late = true;
    bench.mark(0, 0, 5, Ack::Accept);
    assert_eq!(bench.commit(), BTreeMap::from([(0, Some(ErrorCode::INVALID_RECORD_STATE))]));
    assert_eq!((bench.accepted(), bench.acks(0, 0), bench.acks(0, 3)), (3, vec![4], vec![1]));
}
