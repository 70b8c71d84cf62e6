//! The producer against scripted brokers on a fake clock.

mod ends;
mod faults;
mod order;
mod partitioning;
mod rows;
mod split;
mod world;
