//! Connections: how they come to be, what travels over them, and how they end.

use bytes::Bytes;
use headrace_client::io::{ChannelEvent, ConnId};

use super::{Event, World};
use crate::byzantine::ByzantinePeer;
use crate::client::Who;
use crate::net::{Conn, FaultAt, Peer, Piece, Pipe, PipeFault, Way};

/// Bytes within which a connection's fault lies.
const FAULT_BYTES_MAX: u64 = 1 << 17;

impl World {
    pub(super) fn begin_connect(
        &mut self,
        who: Who,
        id: ConnId,
        host: &str,
        port: u16,
    ) -> Result<(), String> {
        let node = self.server.cluster.resolve(host, &mut self.rng);
        let node = node.ok_or_else(|| format!("{who:?} connects to {host}, which is no node"))?;
        self.last_conn += 1;
        let key = self.last_conn;
        let black_hole = !self.healed && self.rng.chance(self.plan.black_hole);
        let (to_server, to_client) = (self.draw_fault(), self.draw_fault());
        self.tell(|| {
            format!(
                "{who:?} connects to {host}:{port} as connection {key}; there {to_server:?}, back {to_client:?}"
            )
        });
        self.conns.insert(
            key,
            Conn {
                who,
                node,
                id,
                peer: Peer::Nobody,
                client: true,
                to_server: Pipe::with(to_server),
                to_client: Pipe::with(to_client),
                buffer: Vec::new(),
            },
        );
        self.wires(who).conns.insert(id, key);
        if !black_hole {
            // Not even a refusal takes no time: a client without back-off would try for ever at one moment.
            let at = self.delay() + 1;
            self.at(at, Event::Connect(key));
        }
        Ok(())
    }

    pub(super) fn draw_fault(&mut self) -> Option<FaultAt> {
        if self.healed {
            return None;
        }
        let fault = if self.rng.chance(self.plan.cut / 2) {
            PipeFault::Cut
        } else if self.rng.chance(self.plan.stall / 2) {
            PipeFault::StallMs(self.rng.between(1, self.plan.stall_ms_max))
        } else {
            return None;
        };
        let bytes_left = usize::try_from(self.rng.skewed(FAULT_BYTES_MAX)).unwrap_or(0);
        Some(FaultAt { bytes_left, fault })
    }

    pub(super) fn connect(&mut self, key: u64) -> Result<(), String> {
        let lied = self.plan.lies.iter().any(|(from, until)| (*from..*until).contains(&self.now.mono_ms));
        let lied = lied && !self.healed && self.rng.chance(70);
        let Some(conn) = self.conns.get_mut(&key).filter(|conn| conn.client) else { return Ok(()) };
        let (who, node, id) = (conn.who, conn.node, conn.id);
        if lied {
            let byzantine = ByzantinePeer::new(&mut self.rng);
            let reported = format!("connection {key} has reached {byzantine:?}");
            conn.peer = Peer::ByzantinePeer(byzantine);
            self.tell(|| reported);
        } else if self.server.is_up() && self.server.cluster.is_up(node) {
            conn.peer = Peer::Broker;
            self.server.connect(self.now, key, node);
            if let (Who::ShareConsumer(number), Some(share)) = (who, &mut self.server.share) {
                share.introduce(key, number, self.share_consumers[number].plan.limit);
            }
            self.tell(|| format!("connection {key} stands, to node {}", node + 1));
        } else {
            self.tell(|| format!("connection {key} is refused"));
            return self.client_end(key, "connection refused");
        }
        self.channel(who, id, ChannelEvent::Connected);
        self.settle(who)
    }

    pub(super) fn arrivals(&mut self, key: u64, way: Way, dues: impl IntoIterator<Item = u64>) {
        for due in dues {
            self.at(due, Event::Arrive(key, way));
        }
    }

    pub(super) fn send(&mut self, key: u64, way: Way, bytes: Bytes) {
        self.send_at(key, way, bytes, self.now.mono_ms);
    }

    pub(super) fn send_at(&mut self, key: u64, way: Way, bytes: Bytes, now_ms: u64) {
        let weather = self.weather();
        let Some(conn) = self.conns.get_mut(&key) else { return };
        let pipe = match way {
            Way::ToServer => &mut conn.to_server,
            Way::ToClient => &mut conn.to_client,
        };
        let (dues, cut) = pipe.send(&mut self.rng, now_ms, weather, bytes);
        self.arrivals(key, way, dues);
        if cut {
            self.tell(|| format!("connection {key} breaks {way:?}"));
            let other = match way {
                Way::ToServer => Way::ToClient,
                Way::ToClient => Way::ToServer,
            };
            self.end(key, other);
        }
    }

    /// Nothing more comes out at this end than what is on its way.
    pub(super) fn end(&mut self, key: u64, way: Way) {
        let due = self.delay();
        let Some(conn) = self.conns.get_mut(&key) else { return };
        let due = match way {
            Way::ToServer => conn.to_server.end(due),
            Way::ToClient => conn.to_client.end(due),
        };
        self.arrivals(key, way, due);
    }

    pub(super) fn arrive_at_server(&mut self, key: u64) -> Result<(), String> {
        let Some(conn) = self.conns.get_mut(&key) else { return Ok(()) };
        let Some(piece) = conn.to_server.arrive(self.now.mono_ms) else { return Ok(()) };
        match (piece, &mut conn.peer) {
            (_, Peer::Nobody) => Ok(()),
            (Piece::Data(bytes), Peer::Broker) => {
                self.digest(key ^ (bytes.len() as u64) << 20);
                self.server.receive(self.now, key, &bytes)?;
                self.after_broker()
            }
            (Piece::Data(bytes), Peer::ByzantinePeer(byzantine)) => {
                for said in byzantine.receive(&mut self.rng, &bytes)? {
                    self.tell(|| format!("the byzantine of connection {key} says {} bytes", said.len()));
                    self.send(key, Way::ToClient, said);
                }
                Ok(())
            }
            (Piece::End, peer) => {
                *peer = Peer::Nobody;
                self.server.disconnect(self.now, key);
                self.after_broker()
            }
        }
    }

    pub(super) fn arrive_at_client(&mut self, key: u64) -> Result<(), String> {
        let Some(conn) = self.conns.get_mut(&key) else { return Ok(()) };
        let Some(piece) = conn.to_client.arrive(self.now.mono_ms) else { return Ok(()) };
        if !conn.client {
            return Ok(());
        }
        match piece {
            Piece::Data(bytes) => {
                conn.buffer.extend_from_slice(&bytes);
                self.digest(key ^ (bytes.len() as u64) << 40);
                self.deliver(key)
            }
            Piece::End => {
                self.tell(|| format!("connection {key} has ended"));
                self.client_end(key, "connection reset")
            }
        }
    }

    pub(super) fn deliver(&mut self, key: u64) -> Result<(), String> {
        loop {
            let Some(conn) = self.conns.get_mut(&key).filter(|conn| conn.client) else { return Ok(()) };
            if conn.buffer.is_empty() {
                return Ok(());
            }
            let (who, id, offered) = (conn.who, conn.id, conn.buffer.len());
            let mut buffer = std::mem::take(&mut conn.buffer);
            let consumed = self.bytes(who, id, &buffer);
            if consumed.bytes > offered || (consumed.bytes == 0 && consumed.want <= offered) {
                return Err(format!("{who:?} was offered {offered} bytes and says {consumed:?}"));
            }
            buffer.drain(..consumed.bytes);
            if let Some(conn) = self.conns.get_mut(&key) {
                conn.buffer = buffer;
            }
            self.settle(who)?;
            if consumed.bytes == 0 {
                return Ok(());
            }
        }
    }

    /// A client learns that its connection has ended.
    pub(super) fn client_end(&mut self, key: u64, why: &str) -> Result<(), String> {
        let Some(conn) = self.conns.get_mut(&key) else { return Ok(()) };
        let (who, id) = (conn.who, conn.id);
        self.server.give_up(key);
        if let Who::ShareConsumer(number) = who {
            self.share_consumers[number].note_loss(self.now);
        }
        conn.client = false;
        conn.to_client.mute();
        conn.to_server.copy_out();
        self.wires(who).conns.remove(&id);
        self.wires(who).conns_ended += 1;
        self.channel(who, id, ChannelEvent::Closed(why.to_owned()));
        self.end(key, Way::ToServer);
        self.settle(who)
    }

    /// Ends connections at the broker's side; when it does so `silent`ly, no client is told.
    pub(super) fn hang_up(&mut self, which: impl Fn(&Conn) -> bool, silent: bool) {
        let served: Vec<u64> = self
            .conns
            .iter()
            .filter(|(_, conn)| matches!(conn.peer, Peer::Broker) && which(conn))
            .map(|(key, _)| *key)
            .collect();
        for key in served {
            let Some(conn) = self.conns.get_mut(&key) else { continue };
            conn.peer = Peer::Nobody;
            conn.to_server.copy_out();
            conn.to_server.clear();
            conn.to_server.mute();
            if !conn.client {
                continue;
            }
            conn.to_client.lose_tail(&mut self.rng);
            if silent {
                conn.to_client.mute();
            } else {
                self.end(key, Way::ToClient);
            }
        }
    }
}
