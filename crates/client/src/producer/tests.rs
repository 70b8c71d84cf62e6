//! The producer against scripted brokers on a fake clock.

mod ends;
mod faults;
mod order;
mod rows;
mod split;
mod world;
