//! A seeded simulation: real producers ([`headrace_client::producer::ProducerEngine`]) and the real broker
//! ([`headrace_broker::Broker`] on a disk in memory) over a network that fails, in virtual time. In front of the broker
//! stand one to three nodes, each with connections of its own, that lead partitions in turns: the broker's log is what
//! replicas that are all alike have.
//!
//! A seed stands for everything: options, callers, and which faults come when. Faults are delays, reordering between
//! connections, connections cut at any byte, stalls, connection attempts that are never answered, pauses that a broker
//! asks for, restarts of the broker (stop, kill, loss of power where it syncs before it confirms), failing syncs, late
//! timers and threads, peers that lie, leaders that move, nodes that go down or do nothing for a time, nodes that know of
//! none of that yet, and topics that are made only later. After a while all faults end, producers are closed, and [`run`] checks:
//! - nothing confirmed is lost, and it lies at the offset that was told;
//! - of an idempotent producer nothing is there twice, and each partition has its records in order; of one with one
//!   request in flight each partition has what was confirmed in order;
//! - every record that a caller gave was answered exactly once, batches of a partition in order;
//! - records that are sent when all is well again arrive;
//! - while one node does nothing, records to the others arrive as ever (in seeds where nothing else is wrong);
//! - flushes, closes and waits keep their time-outs;
//! - the memory of every producer is free again, nobody waits, nothing is left to be done.
//!
//! The same seed does the same on every machine, so a failure is told by its seed, and [`story`] tells what happened.
#![forbid(unsafe_code)]

mod check;
mod cluster;
mod frames;
mod liar;
mod net;
mod plan;
mod producer;
mod rng;
mod server;
mod world;

pub use crate::world::Outcome;
use crate::world::World;

/// Simulates what `seed` stands for.
///
/// # Errors
/// A sentence that says what did not hold.
pub fn run(seed: u64) -> Result<Outcome, String> {
    let mut world = World::new(seed, false)?;
    simulate(&mut world)
}

/// Simulates `seed` and tells what happened, line by line, with the plan at the start and the verdict at the end. A
/// panic ends the story where it happens.
#[must_use]
pub fn story(seed: u64) -> Vec<String> {
    let mut world = match World::new(seed, true) {
        Ok(world) => world,
        Err(why) => return vec![why],
    };
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| simulate(&mut world)));
    let mut story = world.take_story();
    story.push(match told {
        Ok(Ok(outcome)) => format!("all holds: {outcome:?}"),
        Ok(Err(why)) => why,
        Err(_) => "a panic".to_owned(),
    });
    story
}

fn simulate(world: &mut World) -> Result<Outcome, String> {
    world.run()?;
    check::check(world)?;
    Ok(world.outcome)
}
