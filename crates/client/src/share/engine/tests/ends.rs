//! Sessions, connections, leaders and the consumer itself come to their ends.

use super::*;

#[test]
fn closing_accepts_what_was_finished_releases_the_rest_and_leaves() {
    for (finished, accepted) in [(true, 3), (false, 0)] {
        let mut bench = Bench::limited(&[1, 2], 4, &[]);
        bench.append(0, 20);
        let mut rows = 0;
        while rows < 3 {
            rows = bench.rows().1.len();
        }
        let before = bench.accepted();
        let took = bench.close(finished);
        assert!(took <= 500, "a sentinel is waited for: {took} ms");
        assert_eq!(bench.accepted() - before, accepted);
        assert_eq!(bench.available(), 20 - bench.accepted());
        assert_eq!(bench.kafka.share.open_sessions(), []);
        assert_eq!(bench.heartbeats().last().unwrap().1.member_epoch, -1);
        bench.give(ShareCommand::Subscribe { op: 99, topics: vec!["t".to_owned()] });
        assert_eq!(bench.world.events.last(), Some(&ShareEvent::Done { op: 99, result: Err(Error::Closed) }));
    }
}

#[test]
fn closing_keeps_its_time_where_a_broker_does_not_answer() {
    let mut bench = Bench::limited(&[1, 2], 4, &[]);
    bench.append(0, 20);
    bench.rows();
    bench.kafka.silent = Some(1);
    bench.poll(100).unwrap();
    assert_eq!(bench.close(true), 10_000);
    assert!(bench.world.open_ports().is_empty());
}

#[test]
fn a_session_that_the_broker_has_forgotten_begins_anew_and_what_it_gave_is_told() {
    let mut bench = Bench::limited(&[1], 10, &[("share.acknowledgement.mode", "explicit")]);
    bench.append(0, 40);
    let (_, rows) = bench.rows();
    bench.mark(0, 0, i64::try_from(rows.len()).unwrap() - 1, Ack::Accept);
    bench.kafka.share.refuse = Some(ErrorCode::SHARE_SESSION_NOT_FOUND);
    assert_eq!(bench.commit(), BTreeMap::from([(0, Some(ErrorCode::SHARE_SESSION_NOT_FOUND))]));
    assert!(bench.poll(5_000).unwrap().is_some(), "the next session gives rows");
    assert_eq!(
        bench
            .kafka
            .asked::<ShareFetchRequest>()
            .iter()
            .filter(|(_, request)| request.share_session_epoch == 0)
            .count(),
        2
    );
    assert!(bench.kafka.share.most_held <= 10);
}

#[test]
fn a_lost_answer_costs_what_it_may_have_brought_until_that_is_over() {
    let mut bench = Bench::limited(&[1], 1, &[]);
    bench.append(0, 5);
    assert_eq!(bench.rows().1, [(0, 1)]);
    bench.kafka.silent = Some(1);
    assert_eq!(bench.poll(100), Ok(None));
    assert_eq!(bench.kafka.share.held(bench.world.engine.member.id()), 1);
    bench.kafka.silent = None;
    let lost_at = bench.now_ms();
    bench.cut(1);
    // The broker lets go of it at once; that cannot be known here.
    assert_eq!(bench.poll(LOCK_MS - 1_000), Ok(None));
    let (_, rows) = bench.rows();
    assert_eq!(rows, [(1, 2)]);
    assert!(bench.now_ms() - lost_at >= LOCK_MS);
}

/// A consumer of five records that was given one, and asked to wait for 2^30 ms.
fn throttled(options: &[(&str, &str)]) -> Bench {
    let mut bench = Bench::limited(&[1], 2, options);
    bench.append(0, 5);
    bench.kafka.spoil_until::<ShareFetchRequest>(|response| {
        let has_any = response.responses.iter().any(|topic| !topic.partitions.is_empty());
        response.throttle_time_ms = if has_any { 1 << 30 } else { 0 };
        has_any
    });
    assert_eq!(bench.rows().1, [(0, 1)]);
    bench
}

#[test]
fn a_commit_that_a_pause_holds_up_says_so() {
    let mut bench = throttled(&[("share.acknowledgement.mode", "explicit")]);
    bench.mark(0, 0, 0, Ack::Accept);
    let (op, now_ms) = (99, bench.now_ms());
    bench.buffer().commit(now_ms, op, 10_000);
    bench.give(ShareCommand::Wake);
    bench.run(10_000);
    let reported = format!("{:?}", bench.world.events.last());
    assert!(reported.contains("op: 99") && reported.contains("Timeout"), "{reported}");
    assert!(reported.contains("node 1 asked to wait 1073741824 ms (throttled)"), "{reported}");
}

#[test]
fn a_pause_that_is_too_long_is_cut_short() {
    let mut bench = throttled(&[]);
    assert_eq!(bench.poll(55_000), Ok(None));
    assert!(bench.poll(6_000).unwrap().is_some());
}

#[test]
fn a_pause_ends_with_the_connection_that_it_was_asked_for_over() {
    let mut bench = throttled(&[]);
    assert_eq!(bench.poll(5_000), Ok(None));
    bench.cut(1);
    assert!(bench.poll(5_000).unwrap().is_some());
}

#[test]
fn a_request_that_was_never_written_costs_nothing() {
    let mut bench = Bench::limited(&[1], 1, &[]);
    bench.append(0, 5);
    bench.world.refused = vec![9001];
    assert_eq!(bench.poll(500), Ok(None));
    bench.world.refused.clear();
    assert_eq!(bench.poll(2_000).unwrap(), Some((0, vec![(0, 1)])));
}

#[test]
fn a_connection_that_ends_with_rows_at_hand_ends_their_session() {
    let mut bench = Bench::subscribed(&[1], &[]);
    bench.append(0, 5);
    assert_eq!(bench.rows().1.len(), 5);
    bench.cut(1);
    bench.kafka.share.may_be_late = true;
    // The next request finds out: its session is not known, and what it acknowledges is told.
    let (_, rows) = bench.rows();
    assert_eq!(rows.len(), 5);
    assert_eq!(bench.accepted(), 0);
    let text = bench.troubles();
    assert!(
        text.iter().any(|text| text.contains("were not acknowledged") && text.contains("5 records")),
        "{text:?}"
    );
}

#[test]
fn a_leader_that_moves_frees_what_the_old_one_gave() {
    for max_records in [1, 500] {
        let mut bench = Bench::limited(&[1, 2], max_records, &[]);
        bench.append(0, 5);
        assert_eq!(bench.rows(), (0, vec![(0, 1)]));
        bench.kafka.share.move_leader(key(0), 2);
        bench.kafka.layout.topics[0].1[0] = 2;
        bench.kafka.layout.epoch = 5;
        bench.kafka.share.may_be_late = true;
        let moved_at = bench.now_ms();
        while bench.accepted() < 5 {
            bench.poll(600).unwrap();
            assert!(
                bench.now_ms() - moved_at < LOCK_MS / 2,
                "with {max_records}: {} accepted",
                bench.accepted()
            );
        }
        assert_eq!(bench.kafka.share.in_session(2), [0, 1]);
    }
}

#[test]
fn a_partition_in_error_is_asked_for_with_growing_waits() {
    let mut bench = Bench::limited(&[1], 10, &[]);
    let codes = vec![ErrorCode::KAFKA_STORAGE_ERROR; 1000];
    bench.kafka.share.parts.get_mut(&key(0)).unwrap().fetch_codes = codes;
    bench.poll(10_000).unwrap();
    let left = bench.kafka.share.parts[&key(0)].fetch_codes.len();
    assert!((980..=993).contains(&left), "{} tries in ten seconds", 1000 - left);
}

#[test]
fn a_group_that_refuses_is_told_by_the_poll_and_the_next_one_tries_again() {
    let mut bench = Bench::new(&[1], &[]);
    let refused = Fault::Refuse(ErrorCode::GROUP_AUTHORIZATION_FAILED);
    *bench.kafka.faults.of(&[ApiKey::ShareGroupHeartbeat]) = vec![refused; 1_000].into();
    bench.subscribe();
    let error = bench.poll(1_000).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::GROUP_AUTHORIZATION_FAILED));
    bench.run(5_000);
    let joins = |bench: &Bench| bench.heartbeats().iter().filter(|(_, it)| it.member_epoch == 0).count();
    assert_eq!(joins(&bench), 1);
    let (begun, mut reported) = (bench.now_ms(), 0);
    while bench.now_ms() < begun + 5_000 {
        reported += usize::from(bench.poll(100).is_err());
    }
    assert!(
        (3..15).contains(&reported) && joins(&bench) < 15,
        "reported {reported} times, {} joins",
        joins(&bench)
    );
    bench.kafka.faults.of(&[ApiKey::ShareGroupHeartbeat]).clear();
    bench.append(0, 2);
    assert_eq!(bench.rows().1.len(), 2);
}

#[test]
fn a_leader_moves_whatever_becomes_of_its_rows_at_that_moment() {
    let mut bench =
        Bench::subscribed(&[1, 2], &[("share.acknowledgement.mode", "explicit"), ("max.poll.records", "2")]);
    bench.append(0, 5);
    // Two with the caller, one of which is marked; three in the buffer.
    assert_eq!(bench.rows(), (0, vec![(0, 1), (1, 1)]));
    bench.mark(0, 0, 0, Ack::Accept);
    bench.kafka.share.move_leader(key(0), 2);
    bench.kafka.layout.topics[0].1[0] = 2;
    bench.kafka.layout.epoch = 5;
    assert_eq!(bench.commit(), BTreeMap::from([(0, Some(ErrorCode::NOT_LEADER_OR_FOLLOWER))]));
    let mark = [(tp(0), vec![Mark { first: 1, last: 1, delivery_count: 1, ack: Ack::Accept }])];
    let error = bench.buffer().acknowledge(&mark).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::INVALID_RECORD_STATE));
    assert_eq!(bench.world.engine.scheduler.held(1), 0, "what the old leader gave is free");
    let mut offsets = Vec::new();
    while offsets.len() < 5 {
        let (_, rows) = bench.rows();
        let (first, last) = (rows[0].0, rows[rows.len() - 1].0);
        bench.mark(0, first, last, Ack::Accept);
        offsets.extend(first..=last);
    }
    assert_eq!(offsets, [0, 1, 2, 3, 4]);
    assert_eq!(bench.commit(), BTreeMap::from([(0, None)]));
    assert_eq!(bench.accepted(), 5);
}

#[test]
fn a_topic_that_is_not_there_is_told_once_and_read_when_it_comes() {
    let mut bench = Bench::new(&[1], &[]);
    bench.kafka.layout.topics[0].0 = "other";
    bench.kafka.gives = Some(Vec::new());
    bench.subscribe();
    assert!(matches!(bench.poll(1_000), Ok(None)), "it may just be being created");
    let error = bench.poll(5_000).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
    assert_eq!(error.place().topic.as_deref(), Some("t"));
    assert!(matches!(bench.poll(10_000), Ok(None)), "the caller knows");
    bench.kafka.layout.topics[0].0 = "t";
    bench.kafka.layout.epoch += 1;
    bench.kafka.gives = Some(vec![0]);
    bench.append(0, 2);
    assert_eq!(bench.rows().1.len(), 2);
}

#[test]
fn a_cluster_that_nobody_reaches_is_told_as_often_as_a_request_may_take() {
    let mut bench = Bench::new(&[1], &[("request.timeout.ms", "1000")]);
    bench.world.refused = vec![9092];
    bench.subscribe();
    assert!(matches!(bench.poll(900), Ok(None)));
    for _ in 0..2 {
        let text = bench.poll(3_000).unwrap_err().to_string();
        assert!(text.contains("localhost:9092"), "{text}");
    }
    bench.world.refused.clear();
    bench.run(5_000);
    bench.append(0, 2);
    assert_eq!(bench.rows().1.len(), 2);
}
