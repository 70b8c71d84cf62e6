//! Many seeds, by [`runner`](super::runner).

use super::runner::{self, Usual, run_seeds};
use super::world::{Outcome, World};

/// Where nothing else is asked for.
const USUAL: Usual = Usual { seconds: 10, seeds_min: 100 };

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
    if let Some(seed) = runner::replayed() {
        println!("{:?}", run(seed));
        return;
    }
    let ran = run_seeds(USUAL, Outcome::default(), |seed| Ok(run(seed)), |sum, one| add(sum, &one));
    println!("{} seeds from {} on: {:?}", ran.seeds, ran.first, ran.sum);
    let sum = ran.held();
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
