//! Links between two processes of one user on one host.
//!
//! ```text
//! client                                        broker
//!   |                                             |  Listener::bind: an abstract Unix socket; its name is told over TCP
//!   |-- connect ------------------------------->  |  Listener::accept: each side asks the system whose process the other is
//!   |-- hello: the token that TCP told -------->  |  Arrival::hello: whose link this is
//!   |<- welcome: memory, two eventfds ----------  |  Arrival::welcome
//!   |<= expose, end of a key, in both directions => |  Link::expose, Link::control: over the socket, with descriptors
//!   |<= notes, in both directions ==============> |  Link::send, Link::take: over rings in the memory, no system call
//! ```
//! The memory has two rings of notes (`ring.rs`), the broker's first. Who sends a note and sees that the receiver sleeps
//! writes to its eventfd. The end of the process, or of the link, ends the socket, and the other side is told so.
//!
//! Nothing waits, except [`connect`]. What the other side says is checked: sizes, seals, keys, counts. It is believed not to
//! harm its own user's processes in ways that any of them could anyway: it can stop reading, and has our eventfd.

mod endpoint;
mod hello;
mod link;
mod message;
#[cfg_attr(not(target_os = "linux"), path = "elsewhere.rs")]
mod socket;

use std::io;

pub use self::endpoint::LinkEndpoint;
pub use self::hello::{Arrival, Listener, TOKEN_BYTES, connect};
pub use self::link::{Control, Link};
use crate::memory::MemoryError;
use crate::region::OutOfBounds;
use crate::ring::NotesError;

/// Notes that a ring can have: 2 MiB of them.
pub const NOTES_MAX: u32 = 1 << 16;
/// Keys that one side of a link can have exposed at once.
pub const KEYS_MAX: usize = 1 << 12;
/// Bytes that one key can be of: twice what a segment of a log can have.
pub const LENT_BYTES_MAX: usize = 1 << 32;
/// Messages that wait for the other side to take some, before it is an error.
pub const QUEUE_MAX: usize = 1 << 9;

/// Why there is no link, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The system refuses.
    #[error("cannot {action}: {source}")]
    System {
        /// What was being done.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The system has none of what a link is made of.
    #[error("shared memory between processes needs Linux; headrace.datapath=tcp does without")]
    NotLinux,
    /// The other side is not ours to share memory with.
    #[error(
        "the other side runs as user {uid}: shared memory is for clients of the broker's own user; \
         headrace.datapath=tcp does without"
    )]
    OtherUser {
        /// Whose it is.
        uid: u32,
    },
    /// There is no such listener.
    #[error(
        "on this host nobody listens for links at {name}: shared memory is for clients of the broker's own host and network \
         namespace; headrace.datapath=tcp does without"
    )]
    Absent {
        /// Where.
        name: String,
    },
    /// The other side has ended.
    #[error("the other side of the link has gone")]
    Gone,
    /// The other side took too long.
    #[error("the other side did not welcome the link in time")]
    TimedOut,
    /// The other side says what cannot be; the link is to be dropped.
    #[error("the other side of the link {0}")]
    Peer(&'static str),
    /// We ask for what cannot be done.
    #[error("a link {0}")]
    Misuse(&'static str),
    /// Too much is exposed, or waits to be.
    #[error("a link has room for {0}")]
    Full(&'static str),
    /// There is no memory, or the other side's is not what it says.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The memory of a link is too small.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// A ring is full, or the other side says of it what cannot be.
    #[error(transparent)]
    Notes(#[from] NotesError),
}

fn failed(action: &'static str) -> impl FnOnce(rustix::io::Errno) -> LinkError {
    use rustix::io::Errno;
    move |errno| match errno {
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => LinkError::Gone,
        _ => LinkError::System { action, source: errno.into() },
    }
}
