//! A seeded simulation: real producers ([`headrace_client::producer::ProducerEngine`]) and the real broker
//! ([`headrace_broker::Broker`] on a disk in memory) over a network that fails, in virtual time. In front of the broker
//! stand one to three nodes, each with connections of its own, that lead partitions in turns: the broker's log is what
//! replicas that are all alike have. Each leader's time is an epoch, which stands in the batches that it takes; a client
//! that holds another epoch for the leader's is refused.
//!
//! A seed stands for everything: options, callers, and which faults come when. Faults are delays, reordering between
//! connections, connections cut at any byte, stalls, connection attempts that are never answered, pauses that a broker
//! asks for, restarts of the broker (stop, kill, loss of power where it syncs before it confirms), failing syncs, late
//! timers and threads, segments that are closed after a millisecond or some, peers that lie, leaders that move, nodes that go down or do nothing for a time, nodes that know of
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
//! With [`Cast::Consumers`] real consumers ([`headrace_client::consumer::ConsumerEngine`]) read meanwhile, some as members
//! of a group, some by themselves. They poll, pause, resume, seek back, commit, subscribe to other topics, leave and come
//! back, crash, work so slowly that the group goes on without them; some have listeners that commit; the group's
//! coordinator moves from node to node; groups divide by every assignor, eager and cooperative. What is checked of them,
//! most of it at once:
//! - a partition's rows come in order, each once, without a gap: from where the group stands, or where a seek went;
//! - nobody begins, and nobody commits, behind what the group has processed, so no record is left out;
//! - a partition is one member's in a generation, and no member is given what it has;
//! - what a member keeps through a rebalance goes on where it was, and is not fetched again;
//! - a listener is notified of each partition as given once, then as taken or lost once, and rows come only in between;
//! - of topics that are not subscribed any more nothing is handed out;
//! - of a paused partition nothing is handed out, and nothing asked for; what is held of it is never fetched again;
//! - what was given is what the log has in the end, and everything in the log was given.
//!
//! In some seeds a node that was behind becomes the leader, and its log is the truth: what it lacks is cut off, confirmed
//! or not. A record is then named by offset and leader epoch, and for ever the same ([`history`]). What a cut allows:
//! - what was given and what was committed before is of a log that was, and its epochs say so;
//! - the next row is the one behind the last, in one and the same log, or the first behind the place where the log that was
//!   read and the one that is part: a reader goes back exactly there, once;
//! - a reader with `auto.offset.reset=none` is told that place, and what it had read;
//! - what the group has processed of the log that is counts as far as that is the log that it read: the rest must be read
//!   again;
//! - what is held may be fetched anew once for each cut before its end.
//!
//! Whoever seeks to an offset says nothing of the log that it knows that offset of, so members of a group in such seeds
//! seek to the start and to commits alone.
//!
//! With [`Cast::ShareConsumers`] one to four share consumers ([`headrace_client::share::ShareEngine`]) take records one by one, with
//! every mode of acquiring and acknowledging. The broker knows no share groups, so the nodes answer from a model
//! ([`headrace_client::testing::share::ShareKafka`]) that has the broker's log, and a coordinator of their own. What became of
//! records outlives restarts and leaders, locks do not; locks are short, partitions are at times another member's,
//! requests and partitions are refused now and then, and callers accept, release, reject, renew, commit, are too slow, leave,
//! crash and come back. What is checked:
//! - a member with `record_limit` never holds more than it may, at all nodes together, also of what it has forgotten; but
//!   for what is acquired by requests that come after it has given them up, and while acknowledgements were refused of what
//!   it holds;
//! - sessions are spoken to as the model wants it (its own assertions);
//! - every row was acquired for that member, with that count, and is what the log has there;
//! - what a commit tells as accepted is accepted by that member, and told once;
//! - nothing is accepted but what that consumer's caller was given and wants accepted, and nothing twice; in the end each
//!   record is accepted, was rejected by somebody, or was delivered too often;
//! - once all is well that takes no longer than a lock and ten seconds, and closing no longer than its limit;
//! - without records brokers are asked at most 2.4 times a second.
//!
//! With [`Cast::Direct`] producers, and mostly consumers, go through memory that the broker exposes (docs/one-sided.md),
//! beside others that do not; all of them also over RDMA, where turns in shared rings come later than they are asked for, and
//! slots and segments are read by operations (`card`). There is one node, and its epochs are the broker's own. Notes are
//! late and come in bursts, memory comes late or never, words of a slot come one by one, files have bytes behind what is
//! committed; links cannot be made, end at either side first (over RDMA a
//! client learns that by its connection alone), and break before, within and after a write; brokers restart,
//! limits are low, segments roll, a topic goes, records are deleted while they are read, producers are gone at one blow;
//! brokers lie of writes, slots and memory, and other clients lie to the broker of writes, also beside honest ones in a
//! ring, and scribble into what they had. Reads are done late, end later, fail at once or after a silence; the part of a
//! file that is registered ends after a few KiB, or none can be. What is checked of producers and consumers holds as ever,
//! and besides:
//! - nobody ends the link of one who is honest, and nobody writes where it has nothing;
//! - the broker reads what was written: no write of an honest producer is found to be spoilt;
//! - whoever reads a slot that changes is woken;
//! - whoever reads a file reads what is registered for it then, and nothing that is not committed;
//! - no more is exposed than settings allow, and nothing is when all have gone;
//! - who reads where records are deleted goes on with the first that is left, or with what it has in memory;
//! - what never comes keeps nobody from its records, also when it goes on.
//!
//! The same seed does the same on every machine, so a failure is reported by its seed, and [`story`] tells what happened.
//! Each line of it has four digits that stand for all that has happened up to there, bytes included.
#![forbid(unsafe_code)]

mod byzantine;
mod check;
mod client;
mod cluster;
mod consumer;
mod frames;
mod history;
mod links;
mod net;
mod outcome;
mod plan;
mod producer;
mod rng;
mod rogue;
mod server;
mod share_consumer;
mod world;

pub use crate::consumer::Tally;
pub use crate::outcome::{Exposed, Outcome, Shared};
pub use crate::plan::Cast;
use crate::world::World;

/// Simulates what `seed` stands for.
///
/// # Errors
/// A sentence that says what did not hold.
pub fn run(cast: Cast, seed: u64) -> Result<Outcome, String> {
    let mut world = World::new(seed, cast, false)?;
    simulate(&mut world)
}

/// Simulates `seed` and tells what happened, line by line, with the plan at the start and the verdict at the end. A
/// panic ends the story where it happens.
#[must_use]
pub fn story(cast: Cast, seed: u64) -> Vec<String> {
    let mut world = match World::new(seed, cast, true) {
        Ok(world) => world,
        Err(why) => return vec![why],
    };
    let reported = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| simulate(&mut world)));
    let mut story = world.take_story();
    story.push(match reported {
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
