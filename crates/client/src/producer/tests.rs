//! The producer against scripted brokers on a fake clock.

mod direct;
mod ends;
mod faults;
mod logged;
mod order;
mod partitioning;
mod rows;
mod shares;
mod split;
mod transactions;
mod unknown;
mod world;
