//! Memory that processes share, and one-sided reads and writes of it: the ground of docs/plan/one-sided.md.
//!
//! What a peer may write is reached through [`Region`] alone, which copies and never lends: a peer can change it at any
//! moment. What a peer says, in words of shared memory as in messages, is checked before it is used.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod committed;
mod copy;
mod memory;
mod region;
mod ring;
pub mod shm;
pub mod verbs;

pub use self::committed::Committed;
pub use self::memory::{Memory, MemoryError, Rights};
pub use self::region::{OutOfBounds, Region};
pub use self::ring::{Note, NotesError, Receiver, RingWords, Sender, SharedWords, ring_bytes};
