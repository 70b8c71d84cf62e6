//! What a driver has to say and to do about links: all of it is the business of the part `direct`.

use std::ops::Range;

use headrace_fabric::Note;
use headrace_log::Disk;
use headrace_wire::time::Now;

use super::Broker;
use crate::context::call::ConnId;
use crate::direct::{LinkAction, LinkId, Refusal};

impl<D: Disk> Broker<D> {
    /// Where clients can make links, once the driver listens there.
    pub fn set_link_address(&mut self, address: String) {
        self.direct.set_link_address(address);
    }

    /// Whether a link belongs to a connection, or carries it.
    #[must_use]
    pub fn has_link(&self, conn: ConnId) -> bool {
        self.direct.has_link(conn)
    }

    /// Whether memory is exposed to a connection's client, which is then not idle however little comes over it. One that is
    /// carried is as idle as one over TCP: all that comes is seen.
    #[must_use]
    pub fn is_exposed_memory(&self, conn: ConnId) -> bool {
        self.direct.is_exposed_memory(conn)
    }

    /// A client has made a link and said what it is known by: whether it may.
    pub fn handle_link(&mut self, link: LinkId, token: [u8; 16]) -> bool {
        self.direct.handle_link(&self.context, link, token)
    }

    /// The driver has an end of a link over verbs ready, for the next client that asks for one; or says why it has none.
    pub fn offer_link(&mut self, offer: Result<(LinkId, Vec<u8>), String>) {
        self.direct.offer_link(offer);
    }

    /// Whether an end over verbs is to be tried for once more, as somebody has asked for one and the last try failed.
    pub fn wants_offer(&mut self) -> bool {
        self.direct.wants_offer()
    }

    /// The two ends of a link over verbs are connected, or cannot be: its client is answered. `Ok(adds)`: whether both cards
    /// can add to words; else the client writes alone. `false`: the client has gone meanwhile, and the ends are to be given
    /// up.
    pub fn handle_joined(&mut self, now: Now, link: LinkId, made: Result<bool, String>) -> bool {
        self.context.now = now;
        self.direct.handle_joined(&mut self.context, link, made)
    }

    /// What was to be exposed under a key cannot be; its grant ends.
    pub fn handle_not_exposed(&mut self, link: LinkId, key: u64) {
        self.direct.handle_not_exposed(&mut self.context, link, key);
        self.settle();
    }

    /// A link has ended. Over verbs its client learns of it by the end of its connection, and from nobody else.
    pub fn handle_unlinked(&mut self, link: LinkId) {
        self.direct.handle_unlinked(&mut self.context, link);
        self.settle();
    }

    /// A client says that it has written a batch.
    pub fn handle_note(&mut self, now: Now, link: LinkId, note: Note) {
        self.context.now = now;
        self.direct.handle_note(&mut self.context, link, note);
        self.settle();
    }

    /// A client wants to read what a file has from a place on, over verbs: which part of the file is to be kept in memory
    /// for it instead of the last one; an error says why none, and ends the grant.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn handle_window(&mut self, link: LinkId, key: u64, at: u64) -> Result<Range<u64>, Refusal> {
        self.direct.handle_window(&mut self.context, link, key, at)
    }

    /// Clients that were to be woken have been.
    pub fn handle_nudged(&mut self, link: LinkId) {
        self.direct.handle_nudged(link);
    }

    /// The next thing to do with a link.
    pub fn poll_link_action(&mut self) -> Option<LinkAction<D::File>> {
        self.direct.poll_link_action()
    }
}
