//! Links at their clients: what engines want done with them, and how they end there.

use headrace_client::io::{self, DirectWrite, LinkId, LinkRequest};
use headrace_fabric::simulated::PacketKind;
use headrace_wire::direct::Written;

use super::state::{Event, LinkEvent, World};
use crate::client::Who;
use crate::links::{Control, Link};
use crate::net::Way;

impl World {
    pub(super) fn begin_link(
        &mut self,
        who: Who,
        id: LinkId,
        address: String,
        token: [u8; 16],
    ) -> Result<(), String> {
        let (unmade, far) = self.exposing().map(|plan| (plan.unmade, plan.is_far(who)))?;
        if far {
            let reason = "it is on another host".to_owned();
            self.link(who, id, io::LinkEvent::Closed { reason, lasting: true });
            return Ok(());
        }
        self.last_link += 1;
        let key = self.last_link;
        self.tell(|| format!("{who:?} makes link {key}"));
        self.links.insert(key, Link::new(who, id, token, address));
        self.wires(who).links.insert(id, key);
        if !self.healed && self.rng.chance(unmade) {
            self.tell_link(key, Control::Gone("it cannot be made"));
        } else {
            let at = self.control_due() + 1;
            self.at(at, Event::Link(key, LinkEvent::Comes));
        }
        Ok(())
    }

    /// A client wants a link over RDMA.
    pub(super) fn begin_verbs(&mut self, who: Who, id: LinkId) {
        if !self.plan.direct.as_ref().is_some_and(|plan| plan.card) {
            let why = "there is no device".to_owned();
            return self.link(who, id, io::LinkEvent::EndpointReady(Err(why)));
        }
        self.last_link += 1;
        let key = self.last_link;
        self.tell(|| format!("{who:?} makes end {key} of a link over RDMA"));
        let mut link = Link::new(who, id, [0; 16], String::new());
        link.verbs = true;
        link.since = self.wires(who).conns_ended;
        self.links.insert(key, link);
        self.wires(who).links.insert(id, key);
        self.link(who, id, io::LinkEvent::EndpointReady(Ok(key.to_le_bytes().to_vec())));
    }

    pub(super) fn connect_verbs(&mut self, who: Who, id: LinkId, hello: &[u8]) {
        let key = hello.try_into().map_or(0, u64::from_le_bytes);
        if self.wires(who).links.get(&id) == Some(&key) {
            self.tell_link(key, Control::Linked);
        } else {
            let reason = "its other end has gone".to_owned();
            self.link(who, id, io::LinkEvent::Closed { reason, lasting: false });
        }
    }

    /// What an engine asks of a link that stands.
    pub(super) fn link_request(&mut self, who: Who, id: LinkId, request: LinkRequest) -> Result<(), String> {
        let Some(&name) = self.wires(who).links.get(&id) else { return Ok(()) };
        if let LinkRequest::Write(write) = request {
            return self.write_direct(who, name, write);
        }
        self.tell(|| format!("{who:?} asks over link {name}: {request:?}"));
        self.end_does(name, request)
    }

    fn end_does(&mut self, name: u64, request: LinkRequest) -> Result<(), String> {
        let now_us = self.now.mono_ms * 1000;
        let Some(link) = self.links.get_mut(&name) else { return Ok(()) };
        let Some(end) = &mut link.client_end else { return Ok(()) };
        match end.request(request, || now_us) {
            Ok(()) => self.carry(name),
            Err(fault) if link.lied => {
                self.lose_link(name, &fault.to_string());
                Ok(())
            }
            Err(fault) => Err(format!("an engine asks over link {name} for what cannot be: {fault}")),
        }
    }

    fn write_direct(&mut self, who: Who, name: u64, write: DirectWrite) -> Result<(), String> {
        let breaks = self.exposing()?.breaks;
        let breaks = !self.healed && self.rng.chance(breaks);
        self.digest(name ^ u64::from(write.notify.0) << 20);
        self.tell(|| {
            let written = Written::from_immediate(write.notify.0);
            format!("{who:?} writes {} bytes over link {name}, breaks: {breaks}: {written:?}", write.notify.1)
        });
        self.end_does(name, LinkRequest::Write(write))?;
        if !breaks {
            self.outcome.exposed.writes += 1;
            return Ok(());
        }
        // The client dies in the middle: of what it has sent last a part is not there, or is and was not told.
        let lost = self.rng.between(0, 2);
        let Some(link) = self.links.get_mut(&name) else { return Ok(()) };
        let reported = match (&mut link.packets_to_broker, &mut link.to_broker) {
            (packets, _) if !packets.is_empty() && lost > 0 => {
                if let Some((due, (mut packet, since))) = packets.pop_back()
                    && let PacketKind::Write { pieces, notify, .. } = &mut packet.kind
                    && lost == 1
                {
                    *notify = None;
                    packet.op = None;
                    for piece in pieces.iter_mut() {
                        piece.len = self.rng.index(piece.len + 1);
                    }
                    packets.push_back((due, (packet, since)));
                }
                false
            }
            (_, notes) if !notes.is_empty() && lost > 0 => {
                notes.pop_back();
                false
            }
            _ => true,
        };
        self.outcome.exposed.writes += usize::from(reported);
        self.outcome.exposed.broken += usize::from(!reported);
        self.lose_link(name, "it broke over a write");
        Ok(())
    }

    /// A client ends a link since its broker says what cannot be.
    pub(super) fn unlink(&mut self, who: Who, id: LinkId) -> Result<(), String> {
        let Some(key) = self.wires(who).links.remove(&id) else { return Ok(()) };
        self.tell(|| format!("{who:?} ends link {key}"));
        // One over RDMA ends with its connection, which is about to be closed or was; or before it was a link.
        if let Some(link) = self.links.get(&key).filter(|link| link.verbs && !link.lied) {
            if link.linked {
                self.ended_early.push((who, key, link.since));
            }
            self.end_link_at_client(key);
            return Ok(());
        }
        if !self.links.get(&key).is_some_and(|link| link.lied) {
            return Err(format!("{who:?} ends link {key}, over which nobody has lied"));
        }
        self.outcome.exposed.given_up += 1;
        self.end_link_at_client(key);
        Ok(())
    }

    /// A client has done what it wants: links over RDMA that it has ended have ended with a connection.
    pub(super) fn check_ended(&mut self, who: Who) -> Result<(), String> {
        let ended = self.wires(who).conns_ended;
        for (by, key, since) in std::mem::take(&mut self.ended_early) {
            if by == who && since == ended {
                return Err(format!("{who:?} ends link {key}, over which nobody has lied"));
            }
        }
        Ok(())
    }

    /// A client learns by itself that a link has ended.
    pub(super) fn lose_link(&mut self, key: u64, why: &str) {
        let Some(link) = self.links.get(&key).filter(|link| link.client) else { return };
        let (who, id) = (link.who, link.id);
        self.wires(who).links.remove(&id);
        self.outcome.exposed.ended += 1;
        self.end_link_at_client(key);
        self.link(who, id, io::LinkEvent::Closed { reason: why.to_owned(), lasting: false });
    }

    /// Nobody is at the client's end any more, of which the broker learns.
    fn end_link_at_client(&mut self, key: u64) {
        let due = self.control_due();
        let Some(link) = self.links.get_mut(&key) else { return };
        link.client = false;
        link.client_end = None;
        self.at(due, Event::Link(key, LinkEvent::End));
    }

    /// Nobody is there any more, and the other end of each connection is told so or not.
    pub(super) fn vanish(&mut self, who: Who, reported: bool) {
        for key in std::mem::take(&mut self.wires(who).conns).into_values() {
            self.server.give_up(key);
            let Some(conn) = self.conns.get_mut(&key) else { continue };
            conn.client = false;
            conn.to_client.clear();
            conn.to_client.mute();
            conn.to_server.copy_out();
            conn.to_server.lose_tail(&mut self.rng);
            if reported {
                self.end(key, Way::ToServer);
            }
        }
        // The system ends what a process had of another one's memory.
        for key in std::mem::take(&mut self.wires(who).links).into_values() {
            self.end_link_at_client(key);
        }
    }
}
