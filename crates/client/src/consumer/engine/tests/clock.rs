//! A wall clock that jumps: deadlines go by the clock that never goes back, so nothing depends on it but
//! `auto.offset.reset` by duration, and what is asked for then is always a time.

use headrace_wire::compression::Codec;
use headrace_wire::messages::ListOffsetsRequest;

use super::bench::{Bench, named};
use super::groups::Crowd;
use crate::consumer::{ConsumerEvent, StartAt};
use crate::testing::ScriptedKafka;
use crate::time::Jitter;

const HOUR_MS: i64 = 3_600_000;
const STEP_MS: u64 = 100;

/// What a member did: requests, commits and events up to each step, and the rows it got.
#[derive(Debug, PartialEq)]
struct Story {
    steps: Vec<[(usize, usize, usize); 2]>,
    rows: Vec<Vec<String>>,
    committed: Vec<i64>,
}

/// Two members share a topic, are given more, one polls too seldom and comes back; `clock` sets the wall clock before
/// each step.
fn life(mut clock: impl FnMut(i64) -> i64) -> Story {
    let options = [
        ("auto.commit.interval.ms", "1000"),
        ("max.poll.interval.ms", "15000"),
        ("metadata.max.age.ms", "4000"),
        ("session.timeout.ms", "9000"),
    ];
    let mut crowd = Crowd::new(2, 4, &options);
    let mut rows = vec![Vec::new(); 2];
    let mut steps = Vec::new();
    for step in 0..600 {
        for bench in &mut crowd.0 {
            bench.world.now.wall_ms = clock(bench.world.now.wall_ms);
        }
        match step {
            0 => crowd.subscribe(0),
            50 => crowd.subscribe(1),
            100 => {
                for bench in &mut crowd.0 {
                    (0..4).for_each(|partition| bench.kafka.fill("t", partition, 2, 5, Codec::Lz4));
                }
            }
            _ => {}
        }
        crowd.run(STEP_MS);
        for (who, rows) in rows.iter_mut().enumerate() {
            let away = who == 1 && (200..400).contains(&step);
            if !away {
                rows.extend(crowd.0[who].drain());
                crowd.0[who].unpark();
            }
        }
        crowd.deliver();
        let seen =
            |bench: &Bench| (bench.world.log.len(), bench.kafka.commits.len(), bench.world.events.len());
        steps.push([seen(&crowd.0[0]), seen(&crowd.0[1])]);
    }
    assert_eq!(crowd.count(1, |event| matches!(event, ConsumerEvent::Lost(_))), 1, "it polled too seldom");
    assert_eq!([crowd.assignment(0).len(), crowd.assignment(1).len()], [2, 2], "and came back");
    let committed = crowd.0[0].kafka.committed.borrow().values().copied().collect();
    Story { steps, rows, committed }
}

#[test]
fn a_group_lives_by_the_clock_that_never_goes_back() {
    let steady = life(|wall| wall);
    assert_eq!(steady.committed, [20; 4]);
    let mut all: Vec<_> = steady.rows.concat();
    all.sort();
    let mut written: Vec<_> = (0..4).flat_map(|partition| named("t", partition, 0..20)).collect();
    written.sort();
    assert_eq!(all, written, "each once");
    assert_eq!(life(|wall| wall - HOUR_MS), steady, "an hour back, each tenth of a second");
    assert_eq!(life(|wall| wall + 24 * HOUR_MS), steady);
    assert_eq!(life(|_| 0), steady, "it stands still at 1970");
    let mut random = Jitter::new(5);
    assert_eq!(life(|_| i64::try_from(random.below(1 << 42)).unwrap()), steady);
}

#[test]
fn a_reset_by_duration_asks_for_a_time_whatever_the_clock_says() {
    // -1 and -2 would be the end and the beginning of the log, and mean nothing below.
    for (wall_ms, asked) in [
        (1_700_000_000_000, 1_700_000_000_000 - HOUR_MS),
        (HOUR_MS, 0),
        (HOUR_MS - 1, 0),
        (HOUR_MS - 2, 0),
        (0, 0),
        (-7, 0),
        (i64::MIN, 0),
    ] {
        let mut kafka = ScriptedKafka::new(&[("t", 1)]);
        kafka.fill("t", 0, 1, 10, Codec::None);
        let mut bench = Bench::new(kafka, &[("auto.offset.reset", "by_duration:PT1H")]);
        bench.world.now.wall_ms = wall_ms;
        bench.assign(&[("t", 0)], StartAt::Committed);
        // Where nothing is as young as that, the end is asked for.
        let first = bench.kafka.asked::<ListOffsetsRequest>()[0].1.topics[0].partitions[0].timestamp;
        assert_eq!(first, asked, "{wall_ms}");
        let begins = if asked > 1_000 { 10 } else { 0 };
        assert_eq!(bench.drain(), named("t", 0, begins..10), "{wall_ms}");
    }
}
