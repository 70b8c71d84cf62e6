//! Administration: topics, offsets, groups, settings.
//!
//! An operation is a list of items. Each goes to the broker that answers for it (the controller, a partition's leader, a
//! group's coordinator), together with others that go the same way, and again after an error that may pass. All tries
//! together have the operation's time.

mod configs;
mod engine;
mod groups;
mod job;
mod offsets;
mod shares;
#[cfg(test)]
mod tests;
mod topics;
mod types;

pub use engine::AdminEngine;
pub use types::{
    AdminCommand, AdminEvent, AdminOutcome, AdminRequest, ClusterDescription, ConfigChange, ConfigEntry,
    ConfigResource, CreatedTopic, GroupDescription, GroupListing, GroupMember, NewTopic, ShareOffset,
};
