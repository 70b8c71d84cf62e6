//! Connections: how they come to be, what is sent over them, and how they end at the broker's side.

use bytes::Bytes;
use headrace_client::io::ConnId;

use super::state::{Event, World};
use crate::client::Who;
use crate::net::{Conn, FaultAt, Peer, Pipe, PipeFault, Way};

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

    fn draw_fault(&mut self) -> Option<FaultAt> {
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

    pub(super) fn arrivals(&mut self, key: u64, way: Way, dues: impl IntoIterator<Item = u64>) {
        for due in dues {
            self.at(due, Event::Arrive(key, way));
        }
    }

    pub(super) fn send(&mut self, key: u64, way: Way, bytes: Bytes) {
        self.send_at(key, way, bytes, self.now.mono_ms);
    }

    pub(super) fn send_at(&mut self, key: u64, way: Way, bytes: Bytes, now_ms: u64) {
        self.digest_bytes(&bytes);
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
