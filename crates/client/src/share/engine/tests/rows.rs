//! Rows come, and the next poll accepts them.

use super::*;

#[test]
fn it_joins_opens_sessions_and_gives_rows_which_the_next_poll_accepts() {
    let mut bench = Bench::subscribed(&[1, 2, 1], &[]);
    assert_eq!(bench.buffer().assignment(), [tp(0), tp(1), tp(2)]);
    assert!(bench.kafka.asked::<ShareFetchRequest>().is_empty(), "nobody has polled");
    bench.append(0, 3);
    bench.append(1, 2);
    let mut got: Vec<(i32, Vec<Row>)> = vec![bench.rows(), bench.rows()];
    got.sort();
    assert_eq!(got, [(0, vec![(0, 1), (1, 1), (2, 1)]), (1, vec![(0, 1), (1, 1)])]);
    assert_eq!(bench.poll(100), Ok(None));
    bench.run(600);
    assert_eq!((bench.accepted(), bench.kafka.share.held(bench.world.engine.member.id())), (5, 0));
    assert_eq!(bench.buffer().metrics().records_acknowledged, 5);
    assert_eq!(bench.kafka.share.in_session(1), [0, 2]);
    assert!(bench.troubles().is_empty(), "{:?}", bench.troubles());
}

#[test]
fn with_record_limit_all_is_drained_and_never_more_held_than_allowed() {
    for (max_records, leaders) in
        [(500, &[1, 2, 3][..]), (10, &[1, 2, 3]), (3, &[1, 2, 3]), (1, &[1, 2, 3, 1, 2, 3])]
    {
        let mut bench = Bench::limited(leaders, max_records, &[]);
        for partition in 0..i32::try_from(leaders.len()).unwrap() {
            for _ in 0..4 {
                bench.append(partition, 20);
            }
        }
        let total = leaders.len() * 80;
        let mut rows = 0;
        while rows < total {
            let (_, got) = bench.rows();
            assert!(got.len() <= usize::try_from(max_records).unwrap());
            assert!(got.iter().all(|(_, count)| *count == 1), "{max_records}: {got:?}");
            rows += got.len();
        }
        bench.poll(200).unwrap();
        bench.run(200);
        assert_eq!((rows, bench.accepted()), (total, total), "{max_records}");
        assert!(bench.kafka.share.most_held <= max_records.into());
        assert!(bench.troubles().is_empty(), "{:?}", bench.troubles());
    }
}

#[test]
fn a_record_at_a_quiet_broker_comes_at_once_while_another_has_a_backlog() {
    for max_records in [500, 1] {
        let mut bench = Bench::limited(&[1, 2, 3], max_records, &[]);
        for _ in 0..150 {
            bench.append(0, 200);
        }
        for _ in 0..20 {
            bench.rows();
        }
        bench.append(2, 1);
        let begun = bench.now_ms();
        let found = (0..20).any(|_| bench.rows().0 == 2);
        assert!(found, "with {max_records}");
        // No time goes by in this world but what is waited for.
        assert!(bench.now_ms() - begun <= 100, "with {max_records}: after {} ms", bench.now_ms() - begun);
    }
}

#[test]
fn an_idle_topic_costs_no_more_requests_than_a_wait_of_half_a_second_each() {
    for (max_records, partitions) in [(500, 3), (1, 3), (500, 300), (1, 300)] {
        let leaders: Vec<i32> = (0..partitions).map(|partition| 1 + partition % 3).collect();
        let mut bench = Bench::limited(&leaders, max_records, &[]);
        bench.poll(2_000).unwrap();
        bench.kafka.share.requests.clear();
        bench.poll(60_000).unwrap();
        for (node, requests) in &bench.kafka.share.requests {
            assert!(
                *requests <= 60 * 24 / 10,
                "node {node}: {requests} requests in a minute, with {max_records}"
            );
        }
    }
}

#[test]
fn released_records_are_found_though_no_watch_sees_them() {
    let mut bench = Bench::limited(&[1, 2], 1, &[("share.acknowledgement.mode", "explicit")]);
    bench.append(1, 1);
    assert_eq!(bench.rows(), (1, vec![(0, 1)]));
    bench.mark(1, 0, 0, Ack::Release);
    assert_eq!(bench.poll(2_000).unwrap(), Some((1, vec![(0, 2)])));
    let marks = [(tp(1), vec![Mark { first: 0, last: 0, delivery_count: 2, ack: Ack::Accept }])];
    bench.buffer().acknowledge(&marks).unwrap();
    assert_eq!(bench.commit(), BTreeMap::from([(1, None)]));
    assert_eq!(bench.acks(1, 0), [2, 1]);
}

#[test]
fn polls_without_a_wait_get_rows_too_and_when_nobody_polls_nothing_is_acquired() {
    let mut bench = Bench::subscribed(&[1], &[]);
    bench.append(0, 5);
    bench.run(10_000);
    assert_eq!(bench.available(), 5, "nobody has polled");
    let mut looks = 0;
    let rows = loop {
        let now_ms = bench.now_ms();
        bench.buffer().begin_poll(now_ms).unwrap();
        if let Some(rows) = bench.buffer().take(now_ms, 100) {
            break rows.unwrap();
        }
        bench.buffer().looked(now_ms);
        bench.give(ShareCommand::Wake);
        bench.run(1);
        looks += 1;
        assert!(looks < 100);
    };
    assert_eq!((rows.len, rows.wake), (5, true));
}

#[test]
fn rows_that_are_not_taken_go_back_after_half_their_lock() {
    let mut bench = Bench::limited(&[1], 10, &[]);
    bench.append(0, 10);
    let (_, rows) = bench.rows();
    // While the caller works the next ones are fetched, and nobody takes them.
    bench.append(0, 10);
    bench.append(0, 10);
    let more = bench.rows();
    assert_eq!(rows.len() + more.1.len() + bench.available(), 30);
    bench.run(LOCK_MS / 2 + 100);
    let held = bench.kafka.share.held(bench.world.engine.member.id());
    assert_eq!(held, more.1.len() as u64, "what the caller has is still its own");
}

#[test]
fn without_polls_it_leaves_and_the_next_one_joins_again() {
    let mut bench = Bench::subscribed(&[1], &[("max.poll.interval.ms", "5000")]);
    bench.append(0, 5);
    assert_eq!(bench.rows().1.len(), 5);
    bench.run(6_000);
    assert_eq!(bench.heartbeats().last().unwrap().1.member_epoch, -1);
    assert!(bench.troubles()[0].contains("max.poll.interval.ms"), "{:?}", bench.troubles());
    assert_eq!(bench.buffer().assignment(), []);
    assert_eq!(bench.accepted(), 0);
    let before = bench.heartbeats().len();
    bench.run(6_000);
    assert_eq!(bench.heartbeats().len(), before, "nobody polls");
    bench.append(0, 1);
    assert_eq!(bench.rows(), (0, vec![(5, 1)]), "what the caller had is accepted, and the next ones come");
    assert_eq!((bench.accepted(), bench.heartbeats()[before].1.member_epoch), (5, 0));
}

#[test]
fn partitions_that_go_are_not_fetched_and_what_is_held_of_them_is_acknowledged() {
    let mut bench = Bench::subscribed(&[1, 1], &[]);
    bench.append(0, 3);
    assert_eq!(bench.rows(), (0, vec![(0, 1), (1, 1), (2, 1)]));
    bench.kafka.gives = Some(vec![1]);
    bench.run(1_500);
    assert_eq!(bench.buffer().assignment(), [tp(1)]);
    bench.append(0, 1);
    bench.append(1, 1);
    assert_eq!(bench.rows(), (1, vec![(0, 1)]));
    bench.poll(100).unwrap();
    bench.run(100);
    assert_eq!((bench.accepted(), bench.available()), (4, 1));
    assert_eq!(bench.kafka.share.in_session(1), [1]);
    // Without any partition of it the broker's session is closed.
    bench.kafka.gives = Some(Vec::new());
    bench.run(2_500);
    assert_eq!(bench.kafka.share.open_sessions(), []);
}
