//! Packets with descriptors over a Unix socket, between processes of one user.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::{LinkError, failed};

/// Descriptors that come with one packet.
pub(super) const FILES_MAX: usize = 3;

/// Clients that can wait to be accepted; the others wait in [`connect`].
const BACKLOG: i32 = 128;
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// A socket that listens at a name which is no file, and never blocks.
pub(super) fn listen(name: &str) -> Result<OwnedFd, LinkError> {
    let socket = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    rustix::net::bind(&socket, &address(name)?).map_err(failed("bind a listener of links"))?;
    rustix::net::listen(&socket, BACKLOG).map_err(failed("listen for links"))?;
    Ok(socket)
}

/// A process of our own user that has connected, over a socket that never blocks; none: not now.
pub(super) fn accept(listener: &OwnedFd) -> Result<Option<OwnedFd>, LinkError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = match retry_on_intr(|| rustix::net::accept_with(listener, flags)) {
        Ok(socket) => socket,
        Err(Errno::AGAIN | Errno::CONNABORTED) => return Ok(None),
        Err(errno) => return Err(failed("accept a link")(errno)),
    };
    check_user(socket.as_fd())?;
    Ok(Some(socket))
}

/// Connects to a process of our own user. That, and each packet to it or from it, may take `timeout`.
pub(super) fn connect(name: &str, timeout: Duration) -> Result<OwnedFd, LinkError> {
    let socket = new_socket(SocketFlags::CLOEXEC)?;
    for kind in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, kind, Some(timeout.max(SHORTEST_WAIT)))
            .map_err(failed("bound the wait for a link"))?;
    }
    let to = address(name)?;
    match retry_on_intr(|| rustix::net::connect(&socket, &to)) {
        Ok(()) => {}
        Err(Errno::AGAIN) => return Err(LinkError::TimedOut),
        Err(Errno::CONNREFUSED) => return Err(LinkError::Absent { name: name.to_owned() }),
        Err(errno) => return Err(failed("connect to the broker's listener of links")(errno)),
    }
    check_user(socket.as_fd())?;
    Ok(socket)
}

/// What the other side notifies us by, or we it.
pub(super) fn new_bell() -> Result<OwnedFd, LinkError> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    rustix::event::eventfd(0, flags).map_err(failed("make a link"))
}

fn new_socket(flags: SocketFlags) -> Result<OwnedFd, LinkError> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(failed("make a socket for links"))
}

fn address(name: &str) -> Result<SocketAddrUnix, LinkError> {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed("name a listener of links"))
}

/// The other side of a socket is a process of our own user.
fn check_user(socket: BorrowedFd<'_>) -> Result<(), LinkError> {
    let theirs = socket_peercred(socket).map_err(failed("ask whose the other side is"))?.uid;
    if theirs == rustix::process::geteuid() {
        Ok(())
    } else {
        Err(LinkError::OtherUser { uid: theirs.as_raw() })
    }
}

/// False: not now. A packet goes whole or not at all.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    packet: &[u8],
    files: &[BorrowedFd<'_>],
) -> Result<bool, LinkError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !with.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(LinkError::Misuse("sends no more descriptors at once than its other side takes"));
    }
    let sent = retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut with, SendFlags::NOSIGNAL)
    });
    match sent {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(errno) => Err(failed("send over a link")(errno)),
    }
}

/// A packet, and the descriptors that came with it.
pub(super) type Packet<'bytes> = (&'bytes [u8], Vec<OwnedFd>);

/// The next packet; none: not now.
pub(super) fn receive<'bytes>(
    socket: BorrowedFd<'_>,
    into: &'bytes mut [u8],
) -> Result<Option<Packet<'bytes>>, LinkError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    // What is left in it when it is dropped is closed.
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received =
        retry_on_intr(|| rustix::net::recvmsg(socket, &mut [IoSliceMut::new(into)], &mut with, flags));
    let received = match received {
        Ok(received) => received,
        Err(Errno::AGAIN) => return Ok(None),
        Err(errno) => return Err(failed("receive over a link")(errno)),
    };
    let files: Vec<OwnedFd> = with
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .collect();
    if received.bytes == 0 {
        return Err(LinkError::Gone);
    }
    if received.flags.contains(ReturnFlags::CTRUNC) && files.len() < FILES_MAX {
        return Err(failed("take the descriptors that come over a link")(Errno::MFILE));
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(LinkError::Peer("sends more than there is room for"));
    }
    into.get(..received.bytes).map(|packet| Some((packet, files))).ok_or(LinkError::Gone)
}
