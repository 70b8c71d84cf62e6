//! The same as for Linux, with what macOS and other Unix systems have.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::net::SendFlags;
use rustix::net::sockopt::set_socket_nosigpipe;

/// [`quieten`] does it: there is no such flag.
pub(crate) const QUIET: SendFlags = SendFlags::empty();
/// No such hint either.
pub(crate) const MORE: SendFlags = SendFlags::empty();

/// The most of a file that is copied at once.
const COPY_MAX: usize = 64 * 1024;

/// Sending over a connection that has ended is an error from now on, not a signal. Sockets that we connect are made so.
pub(crate) fn quieten(socket: &impl AsFd) {
    // Where it fails, a process that ignores the signal, as Python's do, is no worse off.
    let _ = set_socket_nosigpipe(socket, true);
}

/// Copies up to `want` bytes of a file into a socket: how many. `sendfile` has other arguments on each system.
pub(crate) fn send_file(socket: &impl AsFd, file: &File, position: u64, want: usize) -> io::Result<usize> {
    let mut copy = vec![0; want.min(COPY_MAX)];
    let read = file.read_at(&mut copy, position)?;
    Ok(rustix::net::send(socket, copy.get(..read).unwrap_or_default(), QUIET)?)
}

/// Random bytes.
pub(crate) fn random(bytes: &mut [u8]) -> io::Result<()> {
    File::open("/dev/urandom")?.read_exact(bytes)
}
