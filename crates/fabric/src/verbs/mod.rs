//! RDMA: cards that read and write the memory of other machines, and Soft-RoCE, which does it in the kernel.
//!
//! ```text
//! Device ── opened, one port and address of it
//!   Domain ── whose queue pairs reach the memory that is registered in it, and none else's
//!     Registration ── a range of Memory, with what a peer may do to it
//!     QueuePair ── reliable, connected by exchanging Addresses; its completions come to a Completions
//!   Completions ── a completion queue, and a descriptor to sleep on
//! ```
//! A [`VerbsEndpoint`] has one of each, and is what others use.
//! Each holds what it is made of, so that nothing is closed before its last user. The library is opened when it is wanted:
//! its absence, no device, no rights are answers, which say what to do.
//!
//! What is sound does not hang on a peer. A card checks each access against a registration, which keeps its memory mapped;
//! after [`Registration::revoke`] it refuses them. What a peer may write is only seen through [`Region`](crate::Region).
//! Cards and CPUs are not atomic to each other: a word that peers add to is added to through a card by its owner as well.

mod device;
mod endpoint;
mod library;
mod memory;
mod queue;
mod sys;

use std::io;

pub use self::device::{Atomics, Device, Domain, Limits, Want, devices};
pub use self::endpoint::{Joining, Options, VerbsEndpoint};
pub use self::memory::{Grants, Piece, Place, Registration, Remote};
pub use self::queue::{
    Address, Completion, Completions, Done, Failure, Opening, Patience, QueuePair, Shape, Work,
};

/// Why there are no verbs, or not what was asked of them.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The system has no RDMA as we know it.
    #[error("RDMA needs Linux: set headrace.datapath to auto or tcp")]
    NotLinux,
    /// The machine has no library for RDMA.
    #[error(
        "RDMA needs {name}, and this machine has none ({cause}): install rdma-core (Debian: libibverbs1 and \
         ibverbs-providers), or set headrace.datapath to auto, shm or tcp"
    )]
    NoLibrary {
        /// The library's file.
        name: String,
        /// What the system says.
        cause: libloading::Error,
    },
    /// It lacks a function.
    #[error(
        "the machine's libibverbs has no {symbol}: install a newer rdma-core, or set headrace.datapath to auto, shm or tcp"
    )]
    OldLibrary {
        /// The function.
        symbol: &'static str,
    },
    /// Nothing to send with.
    #[error(
        "this machine has no RDMA device: load its driver (for Soft-RoCE: `rdma link add rxe0 type rxe netdev ...`), or \
         set headrace.datapath to auto, shm or tcp"
    )]
    NoDevice,
    /// Not the one that was asked for.
    #[error("this machine has no RDMA device {name}; it has {known}")]
    UnknownDevice {
        /// Asked for.
        name: String,
        /// There are.
        known: String,
    },
    /// The device's file may not be opened.
    #[error(
        "RDMA device {device} may not be opened ({source}): give this user the right to /dev/infiniband/uverbs*, or set \
         headrace.datapath to auto, shm or tcp"
    )]
    NotPermitted {
        /// Which one.
        device: String,
        /// What the system says.
        source: io::Error,
    },
    /// No cable, no link, or not the one that was asked for.
    #[error(
        "RDMA device {device} has no active port that fits: bring its network up, or \
         set headrace.datapath to auto, shm or tcp"
    )]
    NoPort {
        /// Which one.
        device: String,
    },
    /// The port has no address, or not the one that was asked for.
    #[error(
        "port {port} of RDMA device {device} has no address (gid) that fits: give its network an IP address, or set \
         headrace.datapath to auto, shm or tcp"
    )]
    NoAddress {
        /// Which one.
        device: String,
        /// Its port.
        port: u8,
    },
    /// Such as siw: fetch-and-add is what shared produce is made of.
    #[error(
        "RDMA device {device} has no atomic operations: shared produce needs them; produce exclusively, or set \
         headrace.datapath to shm or tcp"
    )]
    NoAtomics {
        /// Which one.
        device: String,
    },
    /// Pages would have to stay in memory, and this user may not have so many.
    #[error(
        "{bytes} bytes may not be locked in memory for RDMA: raise the limit (ulimit -l, LimitMEMLOCK=), or set \
         headrace.datapath to auto, shm or tcp"
    )]
    Locked {
        /// What was to be registered.
        bytes: usize,
    },
    /// The kernel registers no pages of such a file to be written by a peer.
    #[error(
        "{bytes} bytes cannot be registered for RDMA: memory that peers write must be on tmpfs or hugetlbfs, not on a \
         disk's file system, and older kernels register none that is mapped to be read only"
    )]
    File {
        /// What was to be registered.
        bytes: usize,
    },
    /// More than the device, or the one who made a queue, has room for.
    #[error("{asked} {what} are more than there is room for: {room}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// This many were asked for.
        asked: u64,
        /// This many there can be.
        room: u64,
    },
    /// Local memory that a piece does not have, or which is only read.
    #[error(transparent)]
    Bounds(#[from] crate::OutOfBounds),
    /// No memory to receive into.
    #[error(transparent)]
    Memory(#[from] crate::MemoryError),
    /// What a word was before goes into a word.
    #[error("a fetch-and-add fills one piece of 8 bytes")]
    NoWord,
    /// A piece is of another domain's memory.
    #[error("a queue pair reaches the memory of its own domain alone")]
    OtherDomain,
    /// A peer's address cannot be one.
    #[error("a peer's RDMA address {0}")]
    Peer(&'static str),
    /// The system refuses.
    #[error("RDMA: cannot {action}: {source}")]
    System {
        /// What was being done.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// Of verbs.
pub type Result<T, E = VerbsError> = std::result::Result<T, E>;

/// What the last call of the library has left, where it says nothing itself.
fn last(action: &'static str) -> VerbsError {
    VerbsError::System { action, source: io::Error::last_os_error() }
}

/// What a call of the library answers that gives an error's number.
fn check(action: &'static str, answer: std::ffi::c_int) -> Result<()> {
    match answer {
        0 => Ok(()),
        // Some calls say -1 and leave the number elsewhere.
        number if number < 0 => Err(last(action)),
        number => Err(VerbsError::System { action, source: io::Error::from_raw_os_error(number) }),
    }
}
