//! Connections: what comes out at their ends.

use headrace_client::io::ChannelEvent;

use super::state::World;
use crate::byzantine::ByzantinePeer;
use crate::client::Who;
use crate::net::{Peer, Piece, Way};

impl World {
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
    fn client_end(&mut self, key: u64, why: &str) -> Result<(), String> {
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
}
