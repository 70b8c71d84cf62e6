//! What the loop does for links over verbs, and for connections that go over one.

use std::io;
use std::os::fd::AsRawFd;

use bytes::Bytes;
use headrace_client::engine::Engine;
use headrace_client::io::{ConnId, LinkEvent, LinkId, LinkRequest};
use headrace_fabric::shm::LinkError;
use headrace_fabric::verbs::{VerbsEndpoint, Want};
use headrace_fabric::{SystemMemory, Waitable};
use headrace_link::carrier::Carrier;
use mio::unix::SourceFd;
use mio::{Interest, Token};

use super::super::offload::{self, For};
use super::super::work::Work;
use super::{Driver, FIRST_CARRIER, link_token};
use crate::carried::rests;

impl<E: Engine, F: FnMut(E::Event)> Driver<E, F> {
    /// Makes or ends a link.
    pub(super) fn link(&mut self, work: &mut Work<E, F>, link: LinkId, request: LinkRequest) {
        match request {
            LinkRequest::Connect { address, token } => {
                if let Err(source) = offload::link(self.back(), link, address, token) {
                    let action = "start a thread";
                    work.linked(link, Err(LinkError::System { action, source }));
                }
            }
            LinkRequest::MakeEndpoint => {
                if let Err(error) = self.make_endpoint(For::Link(link)) {
                    work.tell_engine(link, LinkEvent::EndpointReady(Err(error.to_string())));
                }
            }
            LinkRequest::Join(hello) => {
                if let Err(why) = self.join(For::Link(link), hello) {
                    work.joined(link, Err(why));
                }
            }
            LinkRequest::Close => {
                self.begun.remove(&For::Link(link));
                self.joining.remove(&For::Link(link));
                work.unlink(link);
            }
            LinkRequest::Write(_)
            | LinkRequest::FetchAdd { .. }
            | LinkRequest::Read { .. }
            | LinkRequest::Watch { .. }
            | LinkRequest::Refresh { .. } => {}
        }
    }

    pub(super) fn make_endpoint(&self, of: For) -> io::Result<()> {
        let want = Want { device: self.sockets.verbs_device.clone(), ..Want::default() };
        offload::begin(self.back(), of, self.device.clone(), want)
    }

    /// Our end is connected to the broker's.
    pub(super) fn join(&mut self, of: For, hello: Bytes) -> Result<(), String> {
        let joining = self.begun.remove(&of).ok_or("its end is not there any more")?;
        offload::join(self.back(), of, joining, hello).map_err(|error| error.to_string())?;
        self.joining.insert(of);
        Ok(())
    }

    /// It is, or cannot be. Nobody may want it any more.
    pub(super) fn joined(&mut self, work: &mut Work<E, F>, of: For, made: Result<VerbsEndpoint, String>) {
        if !self.joining.remove(&of) {
            return;
        }
        match of {
            For::Link(link) => {
                let made = made.and_then(|end| {
                    let (raw, token) = (end.wakers().0.as_raw_fd(), link_token(link, true));
                    let watched =
                        self.poll.registry().register(&mut SourceFd(&raw), token, Interest::READABLE);
                    watched.map_err(|error| error.to_string()).map(|()| end)
                });
                work.joined(link, made);
            }
            For::Connection(conn) => {
                if let Err(why) = made.and_then(|end| self.carry(conn, end)) {
                    self.failed(work, conn, why.into());
                }
            }
        }
    }

    /// A connection's bytes go over a link from now on.
    fn carry(&mut self, conn: ConnId, end: VerbsEndpoint) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&conn) else { return Ok(()) };
        let carrier = Carrier::new(end, &mut SystemMemory).map_err(|error| error.to_string())?;
        let (raw, token) =
            (carrier.endpoint().wakers().0.as_raw_fd(), Token(FIRST_CARRIER + conn.0 as usize));
        let watched = self.poll.registry().register(&mut SourceFd(&raw), token, Interest::READABLE);
        watched.map_err(|error| error.to_string())?;
        connection.carrier = Some(Box::new(carrier));
        connection.joining = false;
        self.carried.push(conn);
        self.stir(conn);
        Ok(())
    }

    /// There may be something to receive over a connection's link, or room to send.
    pub(super) fn stir(&mut self, id: ConnId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            (connection.readable, connection.writable) = (true, true);
            self.pending.push(id);
        }
    }

    /// Before the thread sleeps, or goes on: whether links that carry connections let it sleep. Those over which there is
    /// something to be done have a turn.
    pub(super) fn park(&mut self, busy: bool) -> bool {
        let mut sleeps = true;
        let spin_us = u64::try_from(self.spin.as_micros()).unwrap_or(u64::MAX);
        for id in self.carried.clone() {
            let carrier = self.connections.get_mut(&id).and_then(|connection| connection.carrier.as_mut());
            let Some(carrier) = carrier else { continue };
            if !rests(carrier, busy, (self.clock, spin_us)) {
                sleeps = false;
                self.stir(id);
            }
        }
        sleeps
    }

    pub(super) fn wake_carriers(&mut self) {
        for id in &self.carried {
            if let Some(carrier) = self.connections.get_mut(id).and_then(|c| c.carrier.as_mut()) {
                carrier.unpark();
            }
        }
    }
}
