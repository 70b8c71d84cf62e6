//! Any engine against the scripted Kafka.

use std::ops::{Deref, DerefMut};

use super::kafka::ScriptedKafka;
use super::world::World;
use crate::engine::Engine;

/// An engine, its connections, and the cluster that it works with.
pub(crate) struct Bench<E: Engine> {
    pub(crate) world: World<E>,
    pub(crate) kafka: ScriptedKafka,
    last_op: u64,
}

impl<E: Engine> Bench<E> {
    pub(crate) fn of(engine: E, kafka: ScriptedKafka) -> Bench<E> {
        Bench { world: World::new(engine), kafka, last_op: 0 }
    }

    /// A number for the next operation.
    pub(crate) fn next_op(&mut self) -> u64 {
        self.last_op += 1;
        self.last_op
    }

    /// Gives a command and lets everything happen that takes no time.
    pub(crate) fn give(&mut self, command: E::Command) {
        self.world.command(command);
        self.settle();
    }

    /// Lets everything happen that takes no time.
    pub(crate) fn settle(&mut self) {
        self.world.settle(&mut self.kafka);
    }

    /// Goes on to what happens next by itself; `false` when that lies behind `until`.
    pub(crate) fn step(&mut self, until: u64) -> bool {
        self.world.step(until, &mut self.kafka)
    }

    /// Lets `ms` go by, with every timer at its time.
    pub(crate) fn run(&mut self, ms: u64) {
        self.world.run(ms, &mut self.kafka);
    }

    /// A node ends all its connections.
    pub(crate) fn cut(&mut self, node: i32) {
        for conn in self.world.open_conns() {
            if i32::from(self.world.port_of(conn)) == 9000 + node {
                self.world.reset(conn);
            }
        }
        self.settle();
    }
}

impl<E: Engine> Deref for Bench<E> {
    type Target = World<E>;

    fn deref(&self) -> &World<E> {
        &self.world
    }
}

impl<E: Engine> DerefMut for Bench<E> {
    fn deref_mut(&mut self) -> &mut World<E> {
        &mut self.world
    }
}
