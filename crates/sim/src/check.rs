//! What must be true in the end.

use headrace_client::producer::BatchId;

use crate::producer::{End, Record, name_of};
use crate::world::World;

/// Holds the logs against what callers were told.
pub(crate) fn check(world: &mut World) -> Result<(), String> {
    for (number, producer) in world.producers.iter().enumerate() {
        producer.check_rest().map_err(|why| format!("producer {number}: {why}"))?;
    }
    let mut logs = Vec::new();
    for partition in 0..world.plan.partitions {
        let values = world.server.values(partition, world.now)?;
        let names: Option<Vec<(usize, usize)>> = values.iter().map(|value| name_of(value)).collect();
        logs.push(names.ok_or_else(|| format!("partition {partition} has a record that nobody sent"))?);
    }
    for (partition, log) in (0..).zip(&logs) {
        check_log(world, partition, log).map_err(|why| format!("partition {partition}: {why}"))?;
    }
    for (number, producer) in world.producers.iter().enumerate() {
        for (at, record) in producer.records.iter().enumerate() {
            let fault = check_record(record, (number, at), &logs, producer.plan.unconfirmed)
                .err()
                .or_else(|| must_arrive(world, record).err());
            if let Some(why) = fault {
                return Err(format!("producer {number}, record {at}: {why}; {record:?}"));
            }
        }
        world.outcome.records += producer.records.len();
        world.outcome.acked +=
            producer.records.iter().filter(|r| matches!(r.end, Some(End::Acked(..)))).count();
    }
    Ok(())
}

/// Nothing is there that was not sent, and of idempotent producers everything once and in order.
fn check_log(world: &World, partition: i32, log: &[(usize, usize)]) -> Result<(), String> {
    let mut last: Vec<Option<(BatchId, u32)>> = vec![None; world.producers.len()];
    for (offset, (number, at)) in log.iter().enumerate() {
        let producer = world.producers.get(*number).ok_or("a record of no producer")?;
        let record =
            producer.records.get(*at).ok_or_else(|| format!("a record that producer {number} never had"))?;
        let name = || format!("offset {offset}: producer {number}, record {at}");
        let Some(place) = record.placed else {
            return Err(format!("{}: it was refused and is there", name()));
        };
        if record.partition.is_some_and(|asked| asked != partition) {
            return Err(format!("{}: it was sent to another partition", name()));
        }
        if producer.plan.idempotent && last[*number].replace(place).is_some_and(|before| before >= place) {
            return Err(format!("{}: it is there twice, or behind one that was sent after it", name()));
        }
    }
    Ok(())
}

/// What was confirmed is where the confirmation says.
fn check_record(
    record: &Record,
    name: (usize, usize),
    logs: &[Vec<(usize, usize)>],
    unconfirmed: bool,
) -> Result<(), String> {
    let Some(End::Acked(partition, offset)) = record.end else { return Ok(()) };
    let log = usize::try_from(partition)
        .ok()
        .and_then(|at| logs.get(at))
        .ok_or("it was confirmed for no partition")?;
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
