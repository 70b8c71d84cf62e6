//! One connection: its socket, what encrypts or carries its bytes, and what has come and goes.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;

use headrace_fabric::verbs::VerbsEndpoint;
use headrace_link::carrier::Carrier;
use mio::net::TcpStream;
use rustix::buffer::spare_capacity;
use rustix::net::RecvFlags;

use super::super::inbox::Inbox;
use super::super::low_water::LowWater;
use crate::clock::Clock;
use crate::outbox::Outbox;
use crate::tls::{Fault, Session};

#[expect(clippy::struct_excessive_bools, reason = "each is one independent fact of the socket")]
pub(super) struct Connection {
    pub(super) socket: TcpStream,
    /// `None` without TLS.
    pub(super) tls: Option<Session>,
    /// The host's name, as the engine gave it.
    pub(super) host: Arc<str>,
    pub(super) address: SocketAddr,
    pub(super) inbox: Inbox,
    pub(super) low_water: LowWater,
    pub(super) outbox: Outbox,
    /// What its bytes go over instead of the socket, which only tells its end then.
    pub(super) carrier: Option<Box<Carrier<VerbsEndpoint>>>,
    /// It is about to have one, and sends nothing before.
    pub(super) joining: bool,
    /// The socket has told something since.
    pub(super) reported: bool,
    pub(super) connected: bool,
    /// The engine has been told: the TLS handshake, if there is one, is done.
    pub(super) established: bool,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// Further addresses of the host, for when this one does not answer.
    pub(super) others: Vec<SocketAddr>,
}

impl Drop for Connection {
    /// To close the socket would not do: a child of this process that was forked meanwhile has it open too, and the broker
    /// would keep the connection, and memory that it exposes by it.
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Connection {
    /// Goes on with the TLS handshake; `true` when it is done, or none is to be made.
    pub(super) fn shake_hands(&mut self) -> Result<bool, Fault> {
        let Some(tls) = self.tls.as_mut() else { return Ok(true) };
        loop {
            self.writable = self.writable && tls.flush(&self.socket)?;
            if !tls.is_handshaking() {
                return Ok(true);
            }
            if !self.readable {
                return Ok(false);
            }
            self.readable = tls.receive(&self.socket, self.inbox.room())?.is_some();
        }
    }

    /// Whether the socket of a connection that goes over a link still stands: its end is that of both.
    pub(super) fn look_for_end(&mut self) -> Result<(), Fault> {
        match rustix::net::recv(&self.socket, &mut [0; 1], RecvFlags::PEEK) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(()),
            Ok((_, 0)) => Err("the peer closed the connection".to_owned().into()),
            Ok(_) => Err("the peer sends over TCP what was to come over RDMA".to_owned().into()),
            Err(e) => Err(io::Error::from(e).into()),
        }
    }

    /// Reads once into the buffer: how many bytes came, `None` when there are none now. The end is a fault.
    pub(super) fn receive(&mut self, clock: Clock) -> Result<Option<usize>, Fault> {
        if let Some(carrier) = self.carrier.as_mut() {
            return match carrier.receive(self.inbox.room(), || clock.micros()) {
                Ok(read) => Ok(Some(read)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
                Err(e) => Err(e.into()),
            };
        }
        if let Some(tls) = self.tls.as_mut() {
            return tls.receive(&self.socket, self.inbox.room());
        }
        match rustix::net::recv(&self.socket, spare_capacity(self.inbox.room()), RecvFlags::empty()) {
            Ok((_, 0)) => Err("the peer closed the connection".to_owned().into()),
            Ok((_, read)) => Ok(Some(read)),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(rustix::io::Errno::INTR) => Ok(Some(0)),
            Err(e) => Err(io::Error::from(e).into()),
        }
    }
}
