//! One scripted Kafka for the tests of every engine.
//!
//! A `Bench` is an engine on a fake clock, its connections, and the `ScriptedKafka` that answers. The Kafka keeps a
//! cluster's state and does what Apache Kafka does with it; the answer to each API is one function in the file of its kind. A
//! test says what goes wrong: `Faults` in the order of requests, `ScriptedKafka::spoil` for one field of an answer, a
//! script for whatever else. Whatever was asked is kept for assertions (`ScriptedKafka::asked`).
//!
//! The brokers' side of share groups is here for the simulation too.

#[cfg(test)]
mod admin;
#[cfg(test)]
mod bench;
#[cfg(test)]
mod captured;
#[cfg(test)]
mod classic_group;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod fetch;
#[cfg(test)]
mod heartbeats;
#[cfg(test)]
mod kafka;
#[cfg(test)]
mod layout;
#[cfg(test)]
mod log;
#[cfg(test)]
mod offsets;
#[cfg(test)]
mod produce;
#[cfg(test)]
mod refusal;
pub mod share;
#[cfg(test)]
mod shared;
#[cfg(test)]
mod spoil;
#[cfg(test)]
mod transactions;
#[cfg(test)]
mod world;

#[cfg(test)]
pub(crate) use self::bench::Bench;
#[cfg(test)]
pub(crate) use self::captured::{Captured, events_of};
#[cfg(test)]
pub(crate) use self::faults::Fault;
#[cfg(test)]
pub(crate) use self::heartbeats::Beat;
#[cfg(test)]
pub(crate) use self::kafka::ScriptedKafka;
#[cfg(test)]
pub(crate) use self::layout::{Layout, version_list, versions};
#[cfg(test)]
pub(crate) use self::log::Log;
#[cfg(test)]
pub(crate) use self::refusal::{WHY, found};
#[cfg(test)]
pub(crate) use self::spoil::{ALL_WAYS, COST_MS, WAYS, Way};
#[cfg(test)]
pub(crate) use self::transactions::{TRANSACTION, TRANSACTIONAL_ID};
#[cfg(test)]
pub(crate) use self::world::{Answer, Incoming, Peers, World};
