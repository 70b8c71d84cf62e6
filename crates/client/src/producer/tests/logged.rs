//! What the log tells of batches that brokers do not take.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::ApiKey;
use headrace_wire::targets;
use tracing::Level;

use super::world::World;
use crate::producer::ProducerCommand;
use crate::testing::{Fault, events_of};

const MESSAGE: &str = "a batch was not taken";

#[test]
fn a_batch_that_is_tried_again_is_logged_with_its_partition_the_reason_and_the_wait() {
    let mut world = World::ready(&[1, 2], &[("client.id", "app")]);
    world.kafka.faults.add(ApiKey::Produce, Fault::Refuse(ErrorCode::NOT_ENOUGH_REPLICAS));
    let events = events_of(|| {
        world.send(1, "a secret value");
        world.advance(1_000);
    });
    assert!(world.take_done().iter().all(|(_, result)| result.is_ok()));
    let found: Vec<_> = events.iter().filter(|event| event.message() == MESSAGE).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    let of = |name| found[0].field(name);
    assert_eq!((found[0].level, found[0].target), (Level::DEBUG, targets::PRODUCER));
    assert_eq!((of("client"), of("client_id"), of("partition")), ("producer", "app", "1"));
    assert!(of("topic") == "t" && of("error").contains("NOT_ENOUGH_REPLICAS"), "{found:?}");
    assert!((16..=24).contains(&of("again_in_ms").parse::<u64>().unwrap()), "{found:?}");
    assert!(!format!("{events:?}").contains("a secret"), "no event has a record's value");
}

#[test]
fn many_batches_that_fail_at_once_write_few_lines() {
    let mut world = World::ready(&[1; 100], &[("retries", "0")]);
    world.kafka.faults.add(ApiKey::Produce, Fault::DropBefore);
    let events = events_of(|| {
        for partition in 0..100 {
            world.append(partition, "x").unwrap();
        }
        world.command(ProducerCommand::Flush { op: 1 });
    });
    assert_eq!(world.take_done().len(), 100, "all were in one request");
    assert_eq!(events.iter().filter(|event| event.message() == MESSAGE).count(), 20);
    world.advance(2_000);
    world.kafka.faults.add(ApiKey::Produce, Fault::Refuse(ErrorCode::INVALID_RECORD));
    let events = events_of(|| {
        world.send(0, "x");
    });
    let line = events.iter().find(|event| event.message() == MESSAGE).unwrap();
    assert_eq!(line.field("suppressed"), "80", "the next line says how many there were");
}
