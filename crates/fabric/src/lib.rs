//! Memory that processes share, and one-sided reads and writes of it: the ground of docs/one-sided.md.
//!
//! What a peer may write is reached through [`Region`] alone, which copies and never hands out a reference: a peer can change it at any
//! moment. What a peer says, in words of shared memory as in messages, is checked before it is used.
//!
//! | module | what is there |
//! |---|---|
//! | `memory`, `region`, `copy` | mapped files, bounded parts of them, and how they are copied |
//! | `committed` | files that a broker appends to, as its readers have them: the one thing that is handed out as bytes |
//! | `ring` | notes from one process to another |
//! | `endpoint` | [`Endpoint`]: what every fabric does |
//! | `mapped` | [`MappedLink`]: a link whose memory both sides have mapped |
//! | [`shm`] | links between processes of one host |
//! | [`verbs`] | RDMA, through libibverbs where there is one |
//! | [`simulated`] | both kinds of links for a simulation that plays the network |
//! | [`conformance`] | the suite of all providers |
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod committed;
pub mod conformance;
mod copy;
mod endpoint;
mod mapped;
mod memory;
mod region;
mod ring;
pub mod shm;
pub mod simulated;
pub mod verbs;

pub use self::committed::Committed;
pub use self::endpoint::{
    Access, DESCRIPTOR_BYTES_MAX, Descriptor, Endpoint, Event, FabricError, Limits, Local, Message, Obstacle,
    PIECES_MAX, Piece, Registration, Remote, SHORT_BYTES_MAX, Waitable,
};
pub use self::mapped::MappedLink;
pub use self::memory::{Memory, MemoryError, MemorySource, Rights, SystemMemory};
pub use self::region::{OutOfBounds, Region};
pub use self::ring::{Note, NotesError, Receiver, RingWords, Sender, SharedWords, ring_bytes};
