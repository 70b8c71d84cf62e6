//! What Linux has and other systems have not, or have differently.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::net::SendFlags;
use rustix::rand::{GetRandomFlags, getrandom};

/// Sending over a connection that has ended is an error, not a signal.
pub(crate) const QUIET: SendFlags = SendFlags::NOSIGNAL;
/// More follows at once: what is sent may wait to share a packet with it.
pub(crate) const MORE: SendFlags = SendFlags::MORE;

/// Has the same as [`QUIET`] hold for all that is sent over a socket; here the flag is enough.
pub(crate) fn quieten(_: &impl AsFd) {}

/// Moves up to `want` bytes of a file from the page cache into a socket: how many.
pub(crate) fn send_file(socket: &impl AsFd, file: &File, position: u64, want: usize) -> io::Result<usize> {
    let mut position = position;
    Ok(rustix::fs::sendfile(socket, file, Some(&mut position), want)?)
}

/// Random bytes, 256 at most.
pub(crate) fn random(bytes: &mut [u8]) -> io::Result<()> {
    // So few come all at once.
    getrandom(bytes, GetRandomFlags::empty())?;
    Ok(())
}
