//! What a broker knows of its cluster, and what it may do at a moment (docs/cluster.md): its lease, which brokers, topics and
//! partitions there are, who leads what, and elections.
//!
//! All of it lives in a metadata store, reached by [`Request`]s and [`Answer`]s that a driver carries. A [`Member`] is one
//! broker's part: it makes the requests, and is given the answers and the time.
//!
//! | module | what is there |
//! |---|---|
//! | [`store`] | what a metadata store is asked, and answers |
//! | [`local`] | a store in memory: of one process, and of the simulation |
//! | [`etcd`] | the same as messages of etcd's HTTP gateway |
//! | [`model`] | the keys and their values |
//! | [`view`] | what a broker has read of them |
#![forbid(unsafe_code)]

pub mod etcd;
pub mod local;
mod member;
pub mod model;
pub mod store;
pub mod view;

pub use member::{CommandId, Member, MemberConfig, MemberEvent, Refusal};
pub use store::{Answer, Request};
