//! One scripted Kafka for the tests of every engine.
//!
//! A [`Bench`] is an engine on a fake clock, its connections, and the [`ScriptedKafka`] that answers. The Kafka keeps a
//! cluster's state and does what Apache Kafka does with it; the answer to each API is one function in the file of its kind. A
//! test says what goes wrong: [`Faults`] in the order of requests, [`ScriptedKafka::spoil`] for one field of an answer, a
//! script for whatever else. Whatever was asked is kept for assertions ([`ScriptedKafka::asked`]).

mod bench;
mod classic_group;
mod faults;
mod fetch;
mod kafka;
mod layout;
mod log;
mod offsets;
mod produce;
mod refusal;
mod spoil;
mod transactions;
mod world;

pub(crate) use self::bench::Bench;
pub(crate) use self::faults::Fault;
pub(crate) use self::kafka::ScriptedKafka;
pub(crate) use self::layout::{Layout, version_list, versions};
pub(crate) use self::log::Log;
pub(crate) use self::refusal::WHY;
pub(crate) use self::spoil::{ALL_WAYS, COST_MS, WAYS, Way, spoiled};
pub(crate) use self::transactions::{TRANSACTION, TRANSACTIONAL_ID};
pub(crate) use self::world::{Answer, Incoming, Peers, World};
