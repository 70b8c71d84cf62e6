//! The producer against scripted brokers on a fake clock.

mod coordinator;
mod ends;
mod faults;
mod order;
mod rows;
mod transactions;
mod world;
