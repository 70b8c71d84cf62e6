//! Members of a cluster over a store in memory: a world with a seed, and what a store answers.
#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests are tests")]
#![allow(clippy::disallowed_methods, reason = "a test takes its settings from the environment")]
#![allow(clippy::print_stdout, reason = "a failure tells its story")]

mod etcd;
mod joining;
#[path = "../../../sim/tests/runner/mod.rs"]
mod runner;
mod seeds;
mod world;
