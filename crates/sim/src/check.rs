//! What must be true in the end.

use std::collections::{BTreeMap, BTreeSet};

use headrace_client::producer::BatchId;

use crate::consumer::Consumer;
use crate::plan::{Place, Trouble};
use crate::producer::{End, Producer, Record, name_of};
use crate::server::HOLE;
use crate::world::World;

/// How long, beyond `linger.ms`, a record to a node that is well may take when nothing is wrong but another node.
const LIVELY_MS: u64 = 500;

/// Stands for what is not there any more.
const NOBODY: (usize, usize) = (usize::MAX, usize::MAX);

/// Producer and number of each record of each partition, by offset.
type Logs = BTreeMap<Place, Vec<(usize, usize)>>;

/// Holds the logs against what callers were told.
pub(crate) fn check(world: &mut World) -> Result<(), String> {
    for (number, producer) in world.producers.iter().enumerate() {
        producer.check_rest().map_err(|why| format!("producer {number}: {why}"))?;
    }
    let (mut logs, mut all) = (Logs::new(), Logs::new());
    let mut cut_off = BTreeSet::new();
    for place in world.plan.lasting().collect::<Vec<_>>() {
        let values = world.server.values(place, world.now)?;
        let names: Option<Vec<(usize, usize)>> =
            values.iter().map(|value| if *value == HOLE { Some(NOBODY) } else { name_of(value) }).collect();
        let names = names.ok_or_else(|| format!("{place:?} has a record that nobody sent"))?;
        let history = world.server.cluster.log(place).ok_or("a partition without a log")?;
        let shown = |at: usize| i64::try_from(at).is_ok_and(|at| history.shown(at).is_ok());
        let log = names.iter().enumerate().filter(|(at, _)| shown(*at)).map(|(_, name)| *name);
        logs.insert(place, log.collect());
        cut_off.extend(names.iter().enumerate().filter(|(at, _)| !shown(*at)).map(|(_, name)| *name));
        all.insert(place, names);
    }
    cut_off.extend(world.server.lost().iter().filter_map(|value| name_of(value)));
    world.outcome.lost = world.server.lost().len();
    world.outcome.segments = world.server.segments();
    for (place, log) in &logs {
        check_log(world, *place, log).map_err(|why| format!("{place:?}: {why}"))?;
    }
    for (number, producer) in world.producers.iter().enumerate() {
        check_alone(producer, (number, &logs)).map_err(|why| format!("producer {number}: {why}"))?;
        for (at, record) in producer.records.iter().enumerate() {
            // Of one that is gone nobody knows, and what went with its topic is nowhere.
            if record.end.is_none() && producer.gone || world.plan.is_doomed(record.topic) {
                continue;
            }
            let fault = check_record(record, (number, at), &logs, producer.plan.unconfirmed)
                .err()
                .filter(|_| !cut_off.contains(&(number, at)))
                .or_else(|| must_arrive(world, record).err());
            if let Some(why) = fault {
                return Err(format!("producer {number}, record {at}: {why}; {record:?}"));
            }
        }
        world.outcome.rows += producer.rows_taken;
        world.outcome.records += producer.records.len();
        world.outcome.acked +=
            producer.records.iter().filter(|r| matches!(r.end, Some(End::Acked(..)))).count();
    }
    world.check_given_back()?;
    check_readers(world, &all)?;
    check_share_consumers(world, &all)?;
    world.outcome.lively = check_lively(world)?;
    world.outcome.refused = world.server.refused;
    Ok(())
}

/// What consumers were given is what the logs have, or had before they were cut, and everybody has left. `all`: what the
/// broker has, with what was cut off.
fn check_readers(world: &mut World, all: &Logs) -> Result<(), String> {
    for (number, consumer) in world.consumers.iter().enumerate() {
        if !consumer.gone && !consumer.is_closed() {
            return Err(format!("consumer {number} is not closed"));
        }
    }
    for ((place, epoch, offset), name) in &world.ledger.seen {
        let history = world.server.cluster.log(*place);
        let at = history.and_then(|history| history.place_of(*offset, *epoch));
        let there = at.and_then(|at| all.get(place)?.get(usize::try_from(at).ok()?));
        if there != Some(name) {
            return Err(format!(
                "{place:?}, offset {offset} of epoch {epoch}: {name:?} was given, and {there:?} is there"
            ));
        }
    }
    world.outcome.read = world.ledger.tally;
    world.outcome.exposed.read = world.consumers.iter().map(Consumer::read_in_memory).sum();
    Ok(())
}

/// Share consumers were given what the logs have, everybody has left, and every record is accepted, rejected by somebody,
/// or was delivered too often.
fn check_share_consumers(world: &mut World, all: &Logs) -> Result<(), String> {
    for (number, share_consumer) in world.share_consumers.iter().enumerate() {
        if !share_consumer.gone && !share_consumer.is_closed() {
            return Err(format!("share consumer {number} is not closed"));
        }
    }
    for ((place, offset), name) in &world.shared {
        let there = usize::try_from(*offset).ok().and_then(|at| all.get(place)?.get(at));
        if there != Some(name) {
            return Err(format!("{place:?}, offset {offset}: {name:?} was given, and {there:?} is there"));
        }
    }
    let Some(share) = &world.server.share else { return Ok(()) };
    for (place, log) in all {
        share.check_all_done(*place, log.len()).map_err(|why| format!("{place:?}: {why}"))?;
    }
    for (place, offset, by) in share.accepted() {
        if !world.wanted.contains(&(by, place, offset)) {
            return Err(format!("{place:?}, offset {offset}: share consumer {by} accepts it for nobody"));
        }
    }
    world.outcome.shared.counts = share.counts();
    Ok(())
}

/// Nothing is there that was not sent, and of idempotent producers everything once and in order.
fn check_log(world: &World, own: Place, log: &[(usize, usize)]) -> Result<(), String> {
    let mut last: Vec<Option<(BatchId, u32)>> = vec![None; world.producers.len()];
    for (offset, (number, at)) in log.iter().enumerate().filter(|(_, name)| **name != NOBODY) {
        let producer = world.producers.get(*number).ok_or("a record of no producer")?;
        let record =
            producer.records.get(*at).ok_or_else(|| format!("a record that producer {number} never had"))?;
        let name = || format!("offset {offset}: producer {number}, record {at}");
        let Some(placed) = record.placed else {
            return Err(format!("{}: it was refused and is there", name()));
        };
        if record.topic != own.topic || record.partition.is_some_and(|asked| asked != own.partition) {
            return Err(format!("{}: it was sent elsewhere", name()));
        }
        if producer.plan.idempotent && last[*number].replace(placed).is_some_and(|before| before >= placed) {
            return Err(format!("{}: it is there twice, or behind one that was sent after it", name()));
        }
    }
    Ok(())
}

/// With one request in flight, what was confirmed is there in order also without idempotence: where a record is there
/// more than once, its first place counts.
fn check_alone(producer: &Producer, (number, logs): (usize, &Logs)) -> Result<(), String> {
    if !producer.plan.one_in_flight || producer.plan.unconfirmed {
        return Ok(());
    }
    for (place, log) in logs {
        let (mut last, mut seen) = (None, BTreeSet::new());
        for (offset, (_, at)) in log.iter().enumerate().filter(|(_, (of, _))| *of == number) {
            let record = &producer.records[*at];
            if !matches!(record.end, Some(End::Acked(..))) || !seen.insert(*at) {
                continue;
            }
            if last.replace(record.placed).is_some_and(|before| before > record.placed) {
                return Err(format!(
                    "{place:?}, offset {offset}: record {at} is behind one that was sent later"
                ));
            }
        }
    }
    Ok(())
}

/// While one node does nothing, records to the others are confirmed as fast as ever. Says how many there were.
fn check_lively(world: &World) -> Result<usize, String> {
    let [(from, Trouble::Stall { node, stall_ms })] = &world.plan.cluster.troubles[..] else { return Ok(0) };
    if !world.plan.calm {
        return Ok(0);
    }
    let mut count = 0;
    for (number, producer) in world.producers.iter().enumerate() {
        let known = known_by(producer, *from);
        for (at, record) in producer.records.iter().enumerate() {
            let place = record.partition.map(|partition| record.place(partition));
            let Some(place) = place.filter(|place| known.contains(place)) else { continue };
            let of_others = world.server.cluster.leader(place) != Some(*node);
            if !of_others || record.placed.is_none() || !(*from..from + stall_ms).contains(&record.taken_ms) {
                continue;
            }
            count += 1;
            let in_time = record.ended_ms <= record.taken_ms + producer.plan.linger_ms + LIVELY_MS;
            if !in_time || !matches!(record.end, Some(End::Acked(..))) {
                return Err(format!(
                    "producer {number}, record {at}: node {} does nothing, and it does not come through: {record:?}",
                    node + 1
                ));
            }
        }
    }
    Ok(count)
}

/// Where a producer had records confirmed before a time.
fn known_by(producer: &Producer, before_ms: u64) -> BTreeSet<Place> {
    let early = producer.records.iter().filter(|record| record.ended_ms < before_ms);
    early
        .filter_map(|record| if let Some(End::Acked(place, _)) = record.end { Some(place) } else { None })
        .collect()
}

/// What was confirmed is where the confirmation says.
fn check_record(record: &Record, name: (usize, usize), logs: &Logs, unconfirmed: bool) -> Result<(), String> {
    let Some(End::Acked(place, offset)) = record.end else { return Ok(()) };
    let log = logs.get(&place).ok_or("it was confirmed for no partition")?;
    match usize::try_from(offset) {
        Ok(offset) if log.get(offset) == Some(&name) => Ok(()),
        Ok(_) => Err("it was confirmed and is lost".to_owned()),
        Err(_) if unconfirmed || log.contains(&name) => Ok(()),
        Err(_) => Err("it was confirmed without an offset and is lost".to_owned()),
    }
}

/// When all is well again, records arrive; only a peer that lied may have ended a producer for good.
fn must_arrive(world: &World, record: &Record) -> Result<(), String> {
    let came = matches!(record.end, Some(End::Acked(..)));
    if record.must_arrive && !came && world.plan.lies.is_empty() {
        return Err("all was well when it was sent, and it did not arrive".to_owned());
    }
    Ok(())
}
