//! The broker through its frames: requests in, responses out, on a disk in memory and a clock of the test's.
#![expect(clippy::cast_possible_truncation, reason = "test values are small")]

mod admin;
mod authorization;
mod connections;
mod fetching;
mod groups;
mod offsets;
mod producing;
mod restart;
mod world;
