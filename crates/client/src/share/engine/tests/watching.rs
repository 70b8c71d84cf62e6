//! Watches: they tell of records without acquiring any.

use super::*;

/// One credit for three brokers, quiet, with everything looked at once.
fn quiet() -> Bench {
    let mut bench = Bench::limited(&[1, 2, 3], 1, &[]);
    bench.poll(2_000).unwrap();
    bench
}

#[test]
fn what_a_watch_sees_is_asked_for_at_once() {
    for partition in [0, 1, 2, 1, 0] {
        let mut bench = quiet();
        let (now_ms, watches) = (bench.now_ms(), bench.watches());
        bench.buffer().begin_poll(now_ms).unwrap();
        bench.buffer().wait(now_ms, true, false);
        bench.give(ShareCommand::Wake);
        assert!(watches >= 3, "each broker is watched");
        bench.append(partition, 1);
        // No time may go by, but for records that another member could be fetching.
        assert!(bench.buffer().has_any(), "partition {partition}");
        assert_eq!(bench.now_ms(), now_ms);
    }
}

#[test]
fn an_end_that_is_out_of_range_is_looked_up_anew() {
    let mut bench = quiet();
    bench.append(0, 3);
    for _ in 0..3 {
        assert_eq!(bench.rows().0, 0);
    }
    bench.poll(1_000).unwrap();
    // The log was cut: its end is before what was seen.
    let part = bench.kafka.share.parts.get_mut(&key(0)).unwrap();
    part.records.truncate(1);
    part.batches.clear();
    bench.poll(6_000).unwrap();
    let now_ms = bench.now_ms();
    bench.append(0, 1);
    let (partition, rows) = bench.rows();
    assert_eq!((partition, rows), (0, vec![(1, 1)]));
    assert!(bench.now_ms() - now_ms <= 500);
}

#[test]
fn a_broker_that_refuses_watches_is_looked_at_all_the_same_and_not_watched_without_end() {
    let mut bench = Bench::limited(&[1, 2], 1, &[]);
    bench.poll(1_000).unwrap();
    // It says that it leads nothing, though metadata says so.
    let refused = Fault::Refuse(ErrorCode::NOT_LEADER_OR_FOLLOWER);
    *bench.kafka.faults.of(&[ApiKey::Fetch]) = vec![refused; 10_000].into();
    let before = bench.watches();
    bench.poll(20_000).unwrap();
    assert!(bench.watches() - before <= 60, "{} watches", bench.watches() - before);
    bench.append(1, 1);
    assert_eq!(bench.rows(), (1, vec![(0, 1)]));
}
