//! Many seeds. `HEADRACE_SIM_SECONDS` sets the time, or `HEADRACE_SIM_SEEDS` how many; `HEADRACE_SIM_FIRST` says where they
//! begin; `HEADRACE_SIM_SEED` replays one.

use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::world::{Outcome, World};

/// Where nothing else is asked for.
const SECONDS: u64 = 10;
/// So many seeds run however long they take: with fewer, some fault might be in none of them.
const SEEDS_MIN: u64 = 100;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no whole number: {text}")))
}

fn run(seed: u64) -> Outcome {
    let mut world = World::new(seed);
    world.run();
    world.outcome
}

fn add(sum: &mut Outcome, one: &Outcome) {
    let sums = [
        (&mut sum.elections, one.elections),
        (&mut sum.transfers, one.transfers),
        (&mut sum.shrinks, one.shrinks),
        (&mut sum.growths, one.growths),
        (&mut sum.lost_leases, one.lost_leases),
        (&mut sum.pauses, one.pauses),
        (&mut sum.kills, one.kills),
        (&mut sum.cuts, one.cuts),
        (&mut sum.compactions, one.compactions),
        (&mut sum.left, one.left),
        (&mut sum.waits, one.waits),
    ];
    for (sum, one) in sums {
        *sum += one;
    }
}

/// No two brokers act as leader of a partition, whatever fails, and all lead again when nothing does.
#[test]
fn one_leader_at_a_time() {
    if let Some(seed) = setting("HEADRACE_SIM_SEED") {
        println!("{:?}", run(seed));
        return;
    }
    let first = setting("HEADRACE_SIM_FIRST").unwrap_or(1);
    let count = setting("HEADRACE_SIM_SEEDS");
    let least = first + count.unwrap_or(SEEDS_MIN);
    let until = Instant::now() + Duration::from_secs(setting("HEADRACE_SIM_SECONDS").unwrap_or(SECONDS));
    let (next, sum) = (AtomicU64::new(first), Mutex::new(Outcome::default()));
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= least && (count.is_some() || Instant::now() >= until) {
                        return;
                    }
                    match catch_unwind(|| run(seed)) {
                        Ok(outcome) => add(&mut sum.lock().unwrap(), &outcome),
                        Err(_) => failed.lock().unwrap().push(seed),
                    }
                }
            });
        }
    });
    let (sum, failed) = (sum.into_inner().unwrap(), failed.into_inner().unwrap());
    println!("{} seeds: {sum:?}", next.into_inner() - first);
    assert!(
        failed.is_empty(),
        "{} seeds fail. Replay one with HEADRACE_SIM_SEED={}",
        failed.len(),
        failed[0]
    );
    let counts = [
        sum.elections,
        sum.transfers,
        sum.shrinks,
        sum.growths,
        sum.lost_leases,
        sum.pauses,
        sum.kills,
        sum.cuts,
    ];
    assert!(counts.iter().all(|count| *count > 0), "something never happened: {sum:?}");
    assert!(sum.compactions > 0 && sum.left > 0 && sum.waits > 0, "something never happened: {sum:?}");
}

/// A failure can be replayed.
#[test]
fn a_seed_does_the_same_again() {
    for seed in 1..4 {
        assert_eq!(run(seed), run(seed));
    }
}
