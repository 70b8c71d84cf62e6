//! Links: produce and fetch through memory that the broker exposes to clients of its own user (docs/one-sided.md), and to
//! leaders that push (docs/cluster.md).
//!
//! A link belongs to the connection on which its client asked for it, and ends with it. Grants are asked for over the
//! connection, so that they are authorized as Produce and Fetch are; of what a client writes it notifies the broker over the link. Memory that
//! a client may write is read once, into memory of the broker's own, and checked there.

mod action;
mod fetch;
mod grants;
mod links;
mod produce;
mod replicate;
mod ring;
mod shared;
mod slots;

pub use action::{LinkAction, LinkId, SLOTS_KEY};
pub use fetch::Refusal;
pub(crate) use grants::Direct;
