//! Packets with descriptors over a Unix socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::{LinkError, failed};

/// Descriptors that come with one packet.
pub(super) const FILES_MAX: usize = 3;

/// The other side of a socket is a process of our own user.
pub(super) fn check_user(socket: BorrowedFd<'_>) -> Result<(), LinkError> {
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
