//! Administration: topics, offsets, groups, settings.
//!
//! An operation is a list of items. Each goes to the broker that answers for it (the controller, a partition's leader, a
//! group's coordinator), together with others that take the same route, and again after a retriable error. All tries
//! share the operation's timeout.

mod configs;
mod engine;
mod features;
mod groups;
mod job;
mod offsets;
mod replicas;
mod shares;
#[cfg(test)]
mod tests;
mod topics;
mod types;

pub use engine::AdminEngine;
pub use types::{
    AdminCommand, AdminEvent, AdminOutcome, AdminRequest, ClusterDescription, ConfigChange, ConfigEntry,
    ConfigResource, CreatedTopic, FeatureMetadata, GroupDescription, GroupListing, GroupMember, NewTopic,
    Reassignment, ShareOffset,
};
