//! The broker through its frames: requests in, responses out, on a disk in memory and a clock of the test's.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "test values are small"
)]

mod admin;
mod authorization;
mod caught_up;
mod chaos;
mod connections;
mod damage;
mod direct;
mod fences;
mod fetching;
mod full_disk;
mod groups;
mod journal;
mod nearest;
mod offsets;
mod producing;
mod pushes;
mod reads;
mod reassign;
mod replicas;
mod restart;
#[path = "../../../sim/tests/runner/mod.rs"]
mod runner;
mod shared;
mod trio;
mod turns;
mod verbs;
mod world;
mod worst;
