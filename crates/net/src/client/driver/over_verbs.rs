//! What the loop does for links over verbs, and for connections that go over one.

use std::os::fd::AsRawFd;

use headrace_client::engine::{ConnId, Engine, OverVerbs};
use headrace_fabric::verbs::Want;
use mio::unix::SourceFd;
use mio::{Interest, Token};

use super::super::aside::{self, For};
use super::super::verbs_link::VerbsLink;
use super::super::work::Work;
use super::{Driver, FIRST_CARRIER, link_token};
use crate::two_sided::Carrier;

impl<E: Engine, F: FnMut(E::Event)> Driver<E, F> {
    pub(super) fn verbs(&mut self, work: &mut Work<E, F>, action: OverVerbs) {
        match work.verbs(action) {
            Ok(())
            | Err(
                OverVerbs::Watch { .. }
                | OverVerbs::Read { .. }
                | OverVerbs::Draw { .. }
                | OverVerbs::Refresh { .. },
            ) => {}
            Err(OverVerbs::Begin { link }) => {
                let want = Want { device: self.sockets.verbs_device.clone(), ..Want::default() };
                if let Err(error) = aside::begin(self.back(), For::Link(link), self.device.clone(), want) {
                    work.engine.handle_begun(self.clock.now(), link, Err(error.to_string()));
                }
            }
            Err(OverVerbs::Connect { link, hello }) => {
                let gone = || "its end is not there any more".to_owned();
                let made = self.begun.remove(&For::Link(link)).ok_or_else(gone).and_then(|joining| {
                    let joined =
                        joining.join(&hello).map(VerbsLink::new).map_err(|error| error.to_string())?;
                    let (raw, token) = (joined.waker().as_raw_fd(), link_token(link, true));
                    let watched =
                        self.poll.registry().register(&mut SourceFd(&raw), token, Interest::READABLE);
                    watched.map_err(|error| error.to_string()).map(|()| joined)
                });
                work.joined(link, made);
            }
            Err(OverVerbs::Offer { conn }) => {
                let want = Want { device: self.sockets.verbs_device.clone(), ..Want::default() };
                let of = For::Connection(conn);
                if let Err(error) = aside::begin(self.back(), of, self.device.clone(), want) {
                    self.failed(work, conn, error.into());
                }
            }
            Err(OverVerbs::Carry { conn, hello }) => {
                if let Err(why) = self.carry(conn, &hello) {
                    self.failed(work, conn, why.into());
                }
            }
        }
    }

    /// A connection's bytes go over a link from now on.
    fn carry(&mut self, conn: ConnId, hello: &[u8]) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&conn) else { return Ok(()) };
        let joining = self.begun.remove(&For::Connection(conn)).ok_or("its link is not there any more")?;
        let joined = joining.join(hello).map_err(|error| error.to_string())?;
        let carrier = Carrier::new(joined).map_err(|error| error.to_string())?;
        let (raw, token) = (carrier.waker().as_raw_fd(), Token(FIRST_CARRIER + conn.0 as usize));
        let watched = self.poll.registry().register(&mut SourceFd(&raw), token, Interest::READABLE);
        watched.map_err(|error| error.to_string())?;
        connection.carrier = Some(Box::new(carrier));
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

    /// Before the thread sleeps: whether links that carry connections let it.
    pub(super) fn doze(&mut self) -> bool {
        let mut sleeps = true;
        for id in self.carried.clone() {
            let carrier = self.connections.get_mut(&id).and_then(|connection| connection.carrier.as_mut());
            // One that has failed says so at its turn.
            if carrier.is_some_and(|carrier| !carrier.doze(self.spin).unwrap_or(false)) {
                sleeps = false;
                self.stir(id);
            }
        }
        sleeps
    }

    pub(super) fn wake_carriers(&mut self) {
        for id in &self.carried {
            if let Some(carrier) = self.connections.get_mut(id).and_then(|c| c.carrier.as_mut()) {
                carrier.wake();
            }
        }
    }
}
