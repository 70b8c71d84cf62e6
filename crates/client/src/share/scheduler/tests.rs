//! Brokers that answer as they are told, and what is asked of them.

use headrace_wire::random::SplitMix64;

use super::*;

fn at(mono_ms: u64) -> Now {
    Now { mono_ms, wall_ms: 0 }
}

fn limited(credits: u32, brokers: i32) -> Scheduler {
    scheduler(AcquireMode::RecordLimit, credits, brokers)
}

fn scheduler(mode: AcquireMode, max_records: u32, brokers: i32) -> Scheduler {
    let mut scheduler = Scheduler::new(Settings { mode, max_records, max_wait_ms: 500 });
    scheduler.set_brokers(1..=brokers);
    scheduler.set_demand(Demand::Waiting);
    scheduler
}

fn all(scheduler: &mut Scheduler, now_ms: u64) -> Vec<Ask> {
    std::iter::from_fn(|| scheduler.poll(at(now_ms))).collect()
}

fn fetch(node: i32, max_records: u32, max_wait_ms: u64) -> Ask {
    Ask::Fetch { node, max_records, max_wait_ms }
}

fn full(acquired: u32) -> Answer {
    Answer { acquired, more: true, refused: 0 }
}

const EMPTY: Answer = Answer { acquired: 0, more: false, refused: 0 };

/// Lets a broker give all it is asked for, and the caller hand it back, until it is asked for all that is left.
fn warm(scheduler: &mut Scheduler, node: i32, now_ms: u64) -> u32 {
    let mut asked = 0;
    for _ in 0..6 {
        for ask in all(scheduler, now_ms) {
            if let Ask::Fetch { node: of, max_records, .. } = ask
                && of == node
            {
                asked = max_records;
                scheduler.answered(at(now_ms), node, full(max_records));
                scheduler.give_back(at(now_ms), node, max_records, false);
            }
        }
    }
    asked
}

#[test]
fn a_credit_waits_at_each_quiet_broker_and_the_rest_where_records_are() {
    let mut scheduler = limited(500, 3);
    assert_eq!(all(&mut scheduler, 0), [fetch(1, 1, 500), fetch(2, 1, 500), fetch(3, 1, 500)]);
    scheduler.answered(at(10), 2, full(1));
    assert_eq!(all(&mut scheduler, 10), [fetch(2, 8, 0)]);
    scheduler.answered(at(12), 2, full(8));
    scheduler.give_back(at(12), 2, 9, false);
    assert_eq!(all(&mut scheduler, 12), [fetch(2, 64, TINY_WAIT_MS)]);
    assert_eq!(warm(&mut scheduler, 2, 14), 0, "its answer is outstanding");
    scheduler.answered(at(14), 2, full(64));
    scheduler.give_back(at(14), 2, 64, false);
    assert_eq!(warm(&mut scheduler, 2, 14), 498);
    assert_eq!(scheduler.charged(), 500);
}

#[test]
fn what_goes_back_is_asked_of_the_same_broker_at_once_and_of_others_with_the_answer() {
    let mut scheduler = limited(1, 2);
    // Fewer credits than brokers: looks without a wait, one at a time, and watches.
    assert_eq!(all(&mut scheduler, 1000), [fetch(1, 1, 0), Ask::Watch { node: 2 }]);
    scheduler.answered(at(1001), 1, full(1));
    scheduler.watched(2, true, 0);
    assert_eq!(all(&mut scheduler, 1001), [], "the only credit is held");
    scheduler.give_back(at(1002), 1, 1, false);
    // Node 2 comes first, so node 1 does not use its credit again.
    assert_eq!(all(&mut scheduler, 1002), [Ask::Acknowledge { node: 1 }]);
    scheduler.acknowledged(1, 0);
    assert_eq!(all(&mut scheduler, 1003), [fetch(2, 1, TINY_WAIT_MS)]);
    scheduler.answered(at(1004), 2, full(1));
    scheduler.give_back(at(1004), 2, 1, false);
    // Both have a backlog now: the turn is still with node 1, so node 2 gives its credit back.
    let asks = all(&mut scheduler, 1004);
    assert_eq!(asks, [Ask::Acknowledge { node: 2 }]);
    scheduler.acknowledged(2, 0);
    assert_eq!(all(&mut scheduler, 1005), [fetch(1, 1, TINY_WAIT_MS)]);
    scheduler.answered(at(1006), 1, full(1));
    scheduler.give_back(at(1006), 1, 1, false);
    assert_eq!(all(&mut scheduler, 1006), [fetch(1, 1, TINY_WAIT_MS)], "one request for both");
}

#[test]
fn brokers_with_a_backlog_take_turns() {
    let mut scheduler = limited(10, 2);
    let mut served = [0_u32; 3];
    for now_ms in 0..400 {
        for ask in all(&mut scheduler, now_ms) {
            match ask {
                Ask::Fetch { node, max_records, .. } => {
                    served[usize::try_from(node).unwrap()] += max_records;
                    scheduler.answered(at(now_ms), node, full(max_records));
                    scheduler.give_back(at(now_ms), node, max_records, false);
                }
                Ask::Acknowledge { node } => scheduler.acknowledged(node, 0),
                Ask::Watch { .. } => panic!("both have records"),
            }
            assert!(scheduler.charged() <= 10);
        }
    }
    let (less, more) = (served[1].min(served[2]), served[1].max(served[2]));
    assert!(less * 3 > more * 2, "{served:?}");
}

#[test]
fn nothing_waits_at_a_broker_whose_records_are_held() {
    let mut scheduler = limited(500, 2);
    all(&mut scheduler, 0);
    scheduler.answered(at(5), 1, Answer { acquired: 1, more: false, refused: 0 });
    assert_eq!(all(&mut scheduler, 5), [fetch(1, 8, 0)]);
    scheduler.answered(at(6), 1, EMPTY);
    assert_eq!(all(&mut scheduler, 6), [], "its record is held");
    // In place of the sentinel: a watch, and looks without a wait.
    assert_eq!(all(&mut scheduler, 6 + WATCH_DELAY_MS), [Ask::Watch { node: 1 }]);
    assert_eq!(all(&mut scheduler, 5 + SWEEP_MS), [fetch(1, 1, 0)]);
    scheduler.answered(at(507), 1, EMPTY);
    scheduler.give_back(at(510), 1, 1, false);
    assert_eq!(all(&mut scheduler, 510), [Ask::Acknowledge { node: 1 }]);
    scheduler.acknowledged(1, 0);
    assert_eq!(all(&mut scheduler, 512), [fetch(1, 1, 500)]);
}

#[test]
fn what_a_watch_sees_while_the_broker_is_asked_is_not_forgotten() {
    let mut scheduler = limited(1, 3);
    all(&mut scheduler, 1000);
    // Node 1 has looked and found nothing; the record came before its answer did.
    scheduler.watched(1, true, 0);
    scheduler.answered(at(1002), 1, EMPTY);
    assert_eq!(all(&mut scheduler, 1002), [fetch(1, 1, TINY_WAIT_MS)]);
}

#[test]
fn sweeps_begin_where_records_were_last_and_what_was_seen_goes_first() {
    let mut scheduler = limited(1, 3);
    for node in [1, 2, 3] {
        let now_ms = 1000 + u64::try_from(node).unwrap();
        assert_eq!(all(&mut scheduler, now_ms)[0], fetch(node, 1, 0));
        let acquired = u32::from(node == 2);
        scheduler.answered(at(now_ms), node, Answer { acquired, ..EMPTY });
        scheduler.give_back(at(now_ms), node, acquired, false);
        if node == 2 {
            // Node 3 has never been asked: it comes first.
            assert_eq!(all(&mut scheduler, now_ms), [Ask::Acknowledge { node: 2 }]);
            scheduler.acknowledged(2, 0);
        }
    }
    // Node 2 gave a record, so it is asked again before anything else.
    assert_eq!(all(&mut scheduler, 1004)[0], fetch(2, 1, TINY_WAIT_MS));
    scheduler.answered(at(1005), 2, EMPTY);
    assert!(all(&mut scheduler, 1100).iter().all(|ask| matches!(ask, Ask::Watch { .. })));
    let mut order = Vec::new();
    for now_ms in [1505, 1506, 1507] {
        let Some(Ask::Fetch { node, .. }) = scheduler.poll(at(now_ms)) else { panic!("no sweep") };
        order.push(node);
        if now_ms == 1505 {
            scheduler.watched(3, true, 0);
        }
        scheduler.answered(at(now_ms), node, EMPTY);
    }
    assert_eq!(order, [2, 3, 1]);
}

#[test]
fn idle_brokers_cost_what_they_cost_java() {
    for (credits, brokers, per_second) in [(500, 3, 2.01), (1, 6, 2.3), (5, 6, 2.3)] {
        let mut scheduler = limited(credits, brokers);
        let mut ends: Vec<(u64, Ask)> = Vec::new();
        let mut requests = 0_u32;
        for now_ms in 0..60_000_u64 {
            for (_, ask) in ends.extract_if(.., |(end, _)| *end == now_ms).collect::<Vec<_>>() {
                match ask {
                    Ask::Fetch { node, .. } => scheduler.answered(at(now_ms), node, EMPTY),
                    Ask::Watch { node } => scheduler.watched(node, false, 0),
                    Ask::Acknowledge { .. } => panic!("nothing is held"),
                }
            }
            while let Some(ask) = scheduler.poll(at(now_ms)) {
                requests += 1;
                let wait = match ask {
                    Ask::Fetch { max_wait_ms, .. } => max_wait_ms,
                    _ => WATCH_MS,
                };
                ends.push((now_ms + wait + 2, ask));
            }
        }
        let each = f64::from(requests) / 60.0 / f64::from(brokers);
        assert!(each <= per_second, "{credits} credits, {brokers} brokers: {each} requests a second");
    }
}

#[test]
fn nobody_polls_so_nothing_is_acquired_but_records_go_back() {
    let mut scheduler = limited(500, 2);
    all(&mut scheduler, 0);
    scheduler.answered(at(1), 1, full(1));
    scheduler.answered(at(1), 2, EMPTY);
    scheduler.set_demand(Demand::None);
    assert_eq!(all(&mut scheduler, 1), []);
    scheduler.give_back(at(10), 1, 1, false);
    assert_eq!(all(&mut scheduler, 10), [], "the next fetch may take it along");
    assert!(scheduler.timeouts().any(|at| at == 10 + ACK_LINGER_MS));
    assert_eq!(all(&mut scheduler, 10 + ACK_LINGER_MS), [Ask::Acknowledge { node: 1 }]);
    scheduler.acknowledged(1, 0);
    assert_eq!(scheduler.charged(), 0);
    // While the caller works, only brokers that are known to have records are asked.
    scheduler.set_demand(Demand::Ahead);
    assert_eq!(all(&mut scheduler, 40), [fetch(1, 8, 0)]);
}

#[test]
fn an_urgent_acknowledgement_waits_for_nothing() {
    for mode in [AcquireMode::RecordLimit, AcquireMode::BatchOptimized] {
        let mut scheduler = scheduler(mode, 500, 1);
        all(&mut scheduler, 0);
        scheduler.answered(at(1), 1, full(1));
        scheduler.set_demand(Demand::None);
        scheduler.give_back(at(1), 1, 1, true);
        assert_eq!(all(&mut scheduler, 1), [Ask::Acknowledge { node: 1 }], "{mode:?}");
    }
}

#[test]
fn a_lost_answer_keeps_its_credits_until_the_locks_are_over() {
    let mut scheduler = limited(1, 2);
    assert_eq!(scheduler.poll(at(1000)), Some(fetch(1, 1, 0)));
    scheduler.lost(1, 31_000);
    assert!(all(&mut scheduler, 2000).iter().all(|ask| matches!(ask, Ask::Watch { .. })));
    assert_eq!(scheduler.charged(), 1);
    assert!(scheduler.timeouts().any(|at| at == 31_000));
    assert_eq!(scheduler.poll(at(31_000)), Some(fetch(1, 1, 0)));
}

#[test]
fn a_refused_acknowledgement_counts_again() {
    let mut scheduler = limited(500, 1);
    assert_eq!(warm(&mut scheduler, 1, 0), 500);
    // Given back with a request for as many, and both came to nothing good.
    let Some(Ask::Fetch { max_records: 500, .. }) = scheduler.poll(at(1)) else { panic!("no fetch") };
    scheduler.answered(at(2), 1, Answer { acquired: 500, more: true, refused: 100 });
    assert_eq!(scheduler.charged(), 600);
    assert_eq!(all(&mut scheduler, 2), []);
    scheduler.give_back(at(3), 1, 50, false);
    // What goes back now makes up for it: it is not asked for again.
    assert_eq!(all(&mut scheduler, 3), [Ask::Acknowledge { node: 1 }]);
    scheduler.acknowledged(1, 0);
    assert_eq!(all(&mut scheduler, 4), []);
}

#[test]
fn all_brokers_are_asked_at_once_where_batches_come_whole() {
    let mut scheduler = scheduler(AcquireMode::BatchOptimized, 500, 3);
    assert_eq!(all(&mut scheduler, 0), [fetch(1, 500, 500), fetch(2, 500, 500), fetch(3, 500, 500)]);
    scheduler.answered(at(3), 2, full(700));
    scheduler.set_demand(Demand::None);
    assert_eq!(all(&mut scheduler, 3), []);
    scheduler.set_demand(Demand::Waiting);
    scheduler.give_back(at(4), 2, 700, false);
    assert_eq!(all(&mut scheduler, 4), [fetch(2, 500, 500)]);
    assert_eq!(scheduler.excess(), 0);
}

#[test]
fn a_broker_that_leads_nothing_any_more_gets_back_what_is_its_own() {
    let mut scheduler = limited(500, 2);
    all(&mut scheduler, 0);
    scheduler.answered(at(1), 1, full(1));
    scheduler.answered(at(1), 2, EMPTY);
    scheduler.set_brokers([2]);
    assert_eq!(all(&mut scheduler, 1), [fetch(2, 1, 500)]);
    scheduler.give_back(at(2), 1, 1, false);
    assert_eq!(all(&mut scheduler, 2), [Ask::Acknowledge { node: 1 }]);
    scheduler.acknowledged(1, 0);
    assert_eq!((scheduler.held(1), scheduler.charged()), (0, 1));
}

/// What brokers count as this member's, by what they were sent and whatever happened to the answers.
#[derive(Debug, Default)]
struct Truth {
    held: BTreeMap<i32, u32>,
    /// Until when lost answers' records stay locked.
    lost: Vec<(u64, u32)>,
}

#[test]
fn brokers_never_count_more_than_there_are_credits() {
    for seed in 0..200 {
        let mut random = SplitMix64::new(seed);
        let mut draw = move |bound: u32| u32::try_from(random.next_u64() % u64::from(bound)).unwrap();
        let (credits, brokers) = (1 + draw(40), 1 + i32::try_from(draw(7)).unwrap());
        let mut scheduler = limited(credits, brokers);
        let mut truth = Truth::default();
        // Sent and not answered: when the answer comes, node, records acquired, records given back.
        let mut sent: Vec<(u64, Ask, u32, u32)> = Vec::new();
        let mut given_back = BTreeMap::<i32, u32>::new();
        for now_ms in 0..3000_u64 {
            truth.lost.retain(|(until, _)| *until > now_ms);
            for (_, ask, acquired, acks) in
                sent.extract_if(.., |(end, ..)| *end <= now_ms).collect::<Vec<_>>()
            {
                match ask {
                    Ask::Watch { node } => scheduler.watched(node, draw(2) == 0, 0),
                    Ask::Fetch { node, .. } | Ask::Acknowledge { node } if draw(20) == 0 => {
                        // The broker has done it, and the answer is lost.
                        let until = now_ms + 700;
                        *truth.held.entry(node).or_default() -= acquired;
                        truth.lost.push((until, acquired.max(acks)));
                        scheduler.lost(node, until);
                    }
                    Ask::Acknowledge { node } => scheduler.acknowledged(node, 0),
                    Ask::Fetch { node, .. } => {
                        let more = acquired > 0 && draw(2) == 0;
                        scheduler.answered(at(now_ms), node, Answer { acquired, more, refused: 0 });
                    }
                }
            }
            for node in 1..=brokers {
                let held = scheduler.held(node);
                let pending = given_back.get(&node).copied().unwrap_or(0);
                if held > pending && draw(10) == 0 {
                    let records = 1 + draw(held - pending);
                    scheduler.give_back(at(now_ms), node, records, draw(10) == 0);
                    *given_back.entry(node).or_default() += records;
                }
            }
            scheduler.set_demand([Demand::None, Demand::Ahead, Demand::Waiting][draw(3) as usize]);
            while let Some(ask) = scheduler.poll(at(now_ms)) {
                let (node, acquired) = match ask {
                    Ask::Fetch { node, max_records, .. } => (node, draw(max_records + 1)),
                    Ask::Acknowledge { node } | Ask::Watch { node } => (node, 0),
                };
                let is_watch = matches!(ask, Ask::Watch { .. });
                let acks = if is_watch { 0 } else { given_back.remove(&node).unwrap_or(0) };
                let held = truth.held.entry(node).or_default();
                *held = *held - acks + acquired;
                sent.push((now_ms + 1 + u64::from(draw(30)), ask, acquired, acks));
                assert!(scheduler.charged() <= u64::from(credits), "seed {seed}: {ask:?}");
                let lost: u32 = truth.lost.iter().map(|(_, records)| records).sum();
                let counted = truth.held.values().sum::<u32>() + lost;
                assert!(counted <= credits, "seed {seed} at {now_ms}: {counted} of {credits}, {truth:?}");
            }
        }
    }
}
