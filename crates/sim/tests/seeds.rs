//! Many seeds, of producers alone, with consumers, with share consumers, and through memory: as many as a time allows.
//! [`runner`] says which settings there are; `HEADRACE_SIM_SECONDS` and `HEADRACE_SIM_SEEDS` are for each cast, and
//! `HEADRACE_SIM_SEED` tells the story of one.
#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests are tests")]
#![allow(clippy::disallowed_methods, reason = "a test takes its settings from the environment")]
#![allow(clippy::print_stdout, reason = "a failure tells its story")]

mod runner;

use std::panic::catch_unwind;

use headrace_sim::{Cast, Outcome};
use runner::{Usual, run_seeds};

/// So many seeds run however long they take.
const SEEDS_MIN: u64 = 1000;
/// For each cast, where nothing else is asked for.
const USUAL: Usual = Usual { seconds: 15, seeds_min: SEEDS_MIN };

/// Every so many seeds one is simulated twice, and must do the same: else its failures cannot be replayed. Mostly it is the
/// order of a hash map that shows, which each table of each run has anew.
const AGAIN_EVERY: u64 = 4;

/// Lines of the story that a failure among many seeds prints.
const STORY_LINES_MAX: usize = 400;

/// Why a seed fails, if it does.
fn failure(cast: Cast, seed: u64) -> Result<Outcome, String> {
    catch_unwind(|| headrace_sim::run(cast, seed)).unwrap_or_else(|panic| Err(runner::said(&*panic)))
}

/// The same of a seed that is simulated twice, which must come to the same.
fn failure_again(cast: Cast, seed: u64) -> Result<Outcome, String> {
    let outcome = failure(cast, seed)?;
    if failure(cast, seed) == Ok(outcome) {
        return Ok(outcome);
    }
    Err("it does something else again: compare two of its stories, in which the four digits part first"
        .to_owned())
}

fn tell(cast: Cast, seed: u64, lines_max: usize) {
    let story = headrace_sim::story(cast, seed);
    let (plan, rest) = story.split_at(1.min(story.len()));
    let skipped = rest.len().saturating_sub(lines_max);
    println!("{}\n({skipped} lines left out)\n{}", plan.join("\n"), rest[skipped..].join("\n"));
}

/// Runs all seeds. What the counts of all outcomes come to; none may be 0, or nothing was tested.
fn hold(cast: Cast, test: &str, counts: fn(&Outcome) -> Vec<(&'static str, usize)>) {
    if let Some(seed) = runner::replayed() {
        tell(cast, seed, usize::MAX);
        failure_again(cast, seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        return;
    }
    let run = |seed: u64| {
        let run = if seed.is_multiple_of(AGAIN_EVERY) { failure_again } else { failure };
        run(cast, seed).map(|outcome| counts(&outcome))
    };
    let add = |sums: &mut Vec<(&'static str, usize)>, one: Vec<(&'static str, usize)>| {
        for (sum, (_, count)) in sums.iter_mut().zip(one) {
            sum.1 += count;
        }
    };
    let ran = run_seeds(USUAL, counts(&Outcome::default()), run, add);
    if let Some((seed, _)) = ran.failed.first() {
        tell(cast, *seed, STORY_LINES_MAX);
        println!("Each of these is a seed of cargo test -p headrace-sim {test}");
    }
    let (seeds, first) = (ran.seeds, ran.first);
    let sums = ran.held();
    println!("{seeds} seeds from {first} on");
    for (what, count) in sums {
        println!("{what}: {count}");
        // A few seeds may well have none.
        assert!(count > 0 || seeds < SEEDS_MIN, "no {what} in any seed: nothing was tested");
    }
}

#[test]
fn seeds_hold() {
    hold(Cast::Producers, "seeds_hold", |outcome| {
        vec![
            ("confirmed records", outcome.acked),
            ("segments that were closed", outcome.segments),
            ("rows", outcome.rows),
            ("refusals by nodes that do not lead", outcome.refused),
            ("records past a node that does nothing", outcome.lively),
            ("syncs that failed", outcome.syncs_failed),
            ("syncs that lied", outcome.syncs_lied),
            ("records that syncs had lied of", outcome.lost),
        ]
    });
}

#[test]
fn consumers_hold() {
    hold(Cast::Consumers, "consumers_hold", |outcome| {
        vec![
            ("confirmed records", outcome.acked),
            ("segments that were closed", outcome.segments),
            ("rows that consumers were given", outcome.read.given),
            ("rows that were kept through a pause", outcome.read.kept),
            ("shares of a generation", outcome.read.shares),
            ("offsets committed", outcome.read.commits),
            ("seeks", outcome.read.seeks),
            ("members gone at one blow", outcome.read.crashes),
            ("partitions taken away", outcome.read.revoked),
            ("partitions lost to others", outcome.read.lost),
            ("partitions read on through a rebalance", outcome.read.carried),
            ("subscriptions to other topics", outcome.read.resubscribed),
            ("notices to listeners", outcome.read.reported),
            ("offsets that listeners committed", outcome.read.parting_commits),
            ("logs that were cut", outcome.read.cuts),
            ("readers that went back to a cut", outcome.read.went_back),
            ("readers that were told of a cut", outcome.read.told_of_cuts),
            ("fetches anew of what a cut took from a cache", outcome.read.dropped),
        ]
    });
}

#[test]
fn share_consumers_hold() {
    hold(Cast::ShareConsumers, "share_consumers_hold", |outcome| {
        let (shared, counts) = (&outcome.shared, &outcome.shared.counts);
        vec![
            ("confirmed records", outcome.acked),
            ("segments that were closed", outcome.segments),
            ("records acquired", counts.acquired),
            ("records acquired again", counts.again),
            ("records accepted", counts.accepted),
            ("records released", counts.released),
            ("records rejected", counts.rejected),
            ("locks renewed", counts.renewed),
            ("locks that were over", counts.expired),
            ("locks that were gone with their leader", counts.forgotten),
            ("acknowledgements refused of what was held", counts.refused),
            ("records acquired for who had given up", counts.stray),
            ("rows that callers were given", shared.given),
            ("records told as accepted", shared.confirmed),
            ("share consumers gone at one blow", shared.crashes),
            ("requests while there was nothing", shared.idle),
        ]
    });
}

#[test]
fn memory_holds() {
    hold(Cast::Direct, "memory_holds", |outcome| {
        let exposed = &outcome.exposed;
        vec![
            ("confirmed records", outcome.acked),
            ("segments that were closed", outcome.segments),
            ("rows that consumers were given", outcome.read.given),
            ("links that stood", exposed.links),
            ("links that ended", exposed.ended),
            ("rings that were exposed", exposed.rings),
            ("rings that were shared", exposed.shared),
            ("turns over RDMA", exposed.drawn),
            ("segments that were shown", exposed.files),
            ("memory that never came", exposed.withheld),
            ("batches that were written in memory", exposed.writes),
            ("batches that were never told", exposed.broken),
            ("batches that the broker took", exposed.taken),
            ("slots that changed", exposed.slots),
            ("bytes that were read in memory", exposed.read),
            ("parts of files shown over RDMA", exposed.windows),
            ("parts of files that could not be", exposed.refused),
            ("bytes that came over RDMA, one after the other", exposed.reads),
            ("reads that failed", exposed.failed),
            ("lies of brokers", exposed.lies),
            ("links that clients ended over lies", exposed.given_up),
            ("links that the broker ended over lies", exposed.closed),
            ("turns that Byzantine peers were given in rings of others", exposed.taken_by_byzantine),
            ("producers gone at one blow", exposed.deaths),
            ("topics that were deleted", exposed.deleted),
            ("times that records were deleted", exposed.records_deleted),
            ("readers that went on behind them", outcome.read.passed),
        ]
    });
}
