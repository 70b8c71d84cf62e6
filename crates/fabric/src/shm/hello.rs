//! How a link comes about.

use std::fmt::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::link::{Link, Side};
use super::message::{MESSAGE_BYTES, Message};
use super::{LinkError, NOTES_MAX, failed, socket};
use crate::memory::{Memory, Rights};
use crate::region::Region;
use crate::ring::{Receiver, Sender, ring_bytes};

/// Bytes of the token that a client says hello with.
pub const TOKEN_BYTES: usize = 16;

/// Where clients of this host arrive.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    name: String,
}

impl Drop for Listener {
    /// A child that was forked meanwhile has it open too, and who connects would wait for that.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

impl Listener {
    /// Listens at a name that nobody guesses.
    ///
    /// # Errors
    /// [`LinkError::System`]; [`LinkError::NotLinux`].
    pub fn bind(random: [u8; 16]) -> Result<Listener, LinkError> {
        let mut name = "headrace-".to_owned();
        for byte in random {
            // Writing to a string does not fail.
            let _ = write!(name, "{byte:02x}");
        }
        Ok(Listener { socket: socket::listen(&name)?, name })
    }

    /// What clients are told to connect to.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// The next client; none: not now.
    ///
    /// # Errors
    /// [`LinkError`] of that client, after which the next may be accepted; [`LinkError::System`] where there are no
    /// descriptors, and it waits.
    pub fn accept(&self) -> Result<Option<Arrival>, LinkError> {
        Ok(socket::accept(&self.socket)?.map(|socket| Arrival { socket }))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A client that has not said yet, or has just said, whose link it is. How many of them there may be, and for how long, is
/// the caller's to bound: dropped, they are gone.
#[derive(Debug)]
pub struct Arrival {
    socket: OwnedFd,
}

impl Arrival {
    /// The token that it says hello with; none: not yet.
    ///
    /// # Errors
    /// [`LinkError`], after which it is to be dropped.
    pub fn hello(&mut self) -> Result<Option<[u8; TOKEN_BYTES]>, LinkError> {
        let mut token = [0; TOKEN_BYTES];
        let Some((packet, files)) = socket::receive(self.socket.as_fd(), &mut token)? else {
            return Ok(None);
        };
        match <[u8; TOKEN_BYTES]>::try_from(packet) {
            Ok(token) if files.is_empty() => Ok(Some(token)),
            _ => Err(LinkError::Peer("says hello with what is no token")),
        }
    }

    /// Makes the link, with room for so many notes in each direction: a power of two.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn welcome(self, notes: u32) -> Result<Link, LinkError> {
        if !is_capacity(notes) {
            return Err(LinkError::Misuse("has a power of two of notes, up to a limit"));
        }
        let memory = Memory::sealed("headrace-link", memory_bytes(notes))?;
        let [ours, theirs] = [socket::new_bell()?, socket::new_bell()?];
        let file = memory.file().ok_or(LinkError::Misuse("is made of memory of its own"))?;
        let files = [file, ours.as_fd(), theirs.as_fd()];
        if !socket::send(self.socket.as_fd(), &Message::Welcome { notes }.encode(), &files)? {
            return Err(LinkError::Peer("takes no welcome"));
        }
        link(self.socket, &memory, notes, [ours, theirs], Side::Broker)
    }
}

impl AsFd for Arrival {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Connects to the [`Listener`] of this name, says hello, and waits to be welcomed. Each of these may take `timeout`.
///
/// # Errors
/// [`LinkError`]: [`LinkError::Absent`] where there is no such listener, [`LinkError::Gone`] where it does not know the token.
pub fn connect(name: &str, token: [u8; TOKEN_BYTES], timeout: Duration) -> Result<Link, LinkError> {
    let socket = socket::connect(name, timeout)?;
    if !socket::send(socket.as_fd(), &token, &[])? {
        return Err(LinkError::TimedOut);
    }
    let mut packet = [0; MESSAGE_BYTES];
    let Some((packet, files)) = socket::receive(socket.as_fd(), &mut packet)? else {
        return Err(LinkError::TimedOut);
    };
    rustix::io::ioctl_fionbio(&socket, true).map_err(failed("make a link"))?;
    let Some(Message::Welcome { notes }) = Message::decode(packet) else {
        return Err(LinkError::Peer("welcomes with what is no welcome"));
    };
    if !is_capacity(notes) {
        return Err(LinkError::Peer("has rings of a size that none can have"));
    }
    let Ok([file, theirs, ours]) = <[OwnedFd; 3]>::try_from(files) else {
        return Err(LinkError::Peer("welcomes with other descriptors than it should"));
    };
    let memory = Memory::from_peer(file, memory_bytes(notes), Rights::Write)?;
    link(socket, &memory, notes, [ours, theirs], Side::Client)
}

/// The broker sends over the first ring.
fn link(
    socket: OwnedFd,
    memory: &Arc<Memory>,
    notes: u32,
    bells: [OwnedFd; 2],
    side: Side,
) -> Result<Link, LinkError> {
    let whole = Region::whole(memory.clone());
    let bytes = ring_bytes(notes);
    let [first, second] = [whole.part(0, bytes)?, whole.part(bytes, bytes)?];
    let (sends, takes) = if side == Side::Broker { (first, second) } else { (second, first) };
    Ok(Link::new(socket, Sender::in_region(sends)?, Receiver::in_region(takes)?, bells, side))
}

fn is_capacity(notes: u32) -> bool {
    notes.is_power_of_two() && notes <= NOTES_MAX
}

fn memory_bytes(notes: u32) -> usize {
    ring_bytes(notes).saturating_mul(2)
}
