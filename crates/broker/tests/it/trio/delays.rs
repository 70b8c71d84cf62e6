//! What makes brokers late: clocks that run apart, and a metadata store whose answers and watches take their time.

use super::*;

/// A broker's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnClock {
    /// How fast it runs, in thousandths, and what it shows at the start.
    pub(super) rate: u64,
    pub(super) start: u64,
    /// What it showed when the broker looked at it before it was paused, for as long as it goes by that.
    pub(super) stale: Option<Now>,
}

impl OwnClock {
    pub(super) const TRUE: Self = Self { rate: 1000, start: 0, stale: None };

    /// What it shows.
    pub(super) fn at(&self, now: Now) -> Now {
        let mono_ms = self.start + now.mono_ms * self.rate / 1000;
        self.stale.unwrap_or(Now { mono_ms, ..now })
    }

    /// When it shows that.
    pub(super) fn when(&self, mono_ms: u64) -> u64 {
        (mono_ms.saturating_sub(self.start) * 1000).div_ceil(self.rate)
    }
}

/// What lies between brokers and the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreWays {
    pub(crate) chance: u64,
    /// Requests, answers and watches are late by up to so much, or, one in fifty, by up to [`Self::WORST_MS`].
    pub(crate) most_ms: u64,
    /// So many in a hundred requests are lost, and so are as many answers, to requests that were done.
    pub(crate) loss_percent: u64,
}

impl StoreWays {
    const WORST_MS: u64 = 8000;

    fn below(&mut self, most: u64) -> u64 {
        self.chance =
            self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.chance >> 33) % most
    }

    fn loses(&mut self) -> bool {
        self.below(100) < self.loss_percent
    }

    fn delay(&mut self) -> u64 {
        let most = if self.below(50) == 0 { Self::WORST_MS } else { self.most_ms };
        self.below(most + 1)
    }
}

impl Trio {
    /// A broker takes no byte more on its disk, or does again.
    pub(crate) fn fill(&mut self, id: i32, is_full: bool) {
        let disk = self.nodes.get(&id).map(|node| &node.disk).or_else(|| self.down.get(&id)).unwrap();
        disk.set_room(is_full.then_some(0));
    }

    /// A broker's clock runs so fast, in thousandths, and shows so much at the start: of its next starts.
    pub(crate) fn set_clock(&mut self, id: i32, rate: u64, start: u64) {
        self.clocks.insert(id, OwnClock { rate, start, stale: None });
    }

    /// Nothing is late from now on. Who is paused goes on.
    pub(crate) fn calm(&mut self) {
        (self.delays, self.ways) = (None, None);
        self.slow.clear();
        self.late.clear();
        for id in self.paused.keys().copied().collect::<Vec<_>>() {
            self.resume(id, 0, |_| {});
        }
    }

    /// The store forgets what has changed: watches that begin earlier have to read anew.
    pub(crate) fn compact_store(&mut self) {
        self.store.compact(self.store.revision());
    }

    /// The store is restarted: leases have their whole time again, and watches end.
    pub(crate) fn restart_store(&mut self) {
        self.store.renew(self.now.mono_ms);
        for id in self.ids() {
            let client = self.nodes[&id].client;
            if let Some(watch) = self.store.disconnect(client) {
                self.bring(id, client, watch, Watched::Ended("the store has gone".into()));
            }
        }
    }

    /// A broker's watch brings nothing any more, and does not say so.
    pub(crate) fn silence_watch(&mut self, id: i32) {
        self.store.disconnect(self.nodes[&id].client);
    }

    /// Ends leases whose time is over.
    pub(super) fn expire(&mut self) {
        let before = self.store.revision();
        self.store.expire(self.now.mono_ms);
        self.note_change(before);
    }

    fn note_change(&mut self, before: i64) {
        if self.store.revision() != before {
            self.changed_ms = self.now.mono_ms;
        }
    }

    /// A request is on its way to the store.
    pub(super) fn ask_store(&mut self, id: i32, client: u64, number: u64, request: StoreRequest) {
        let Some(ways) = &mut self.ways else { return self.answer_store(id, client, number, &request) };
        if !ways.loses() {
            self.later(Travelling::Asked(id, client, number, request));
        }
    }

    /// The store does it, and its answer is on its way.
    pub(super) fn answer_store(&mut self, id: i32, client: u64, number: u64, request: &StoreRequest) {
        let before = self.store.revision();
        let answer = self.store.handle(self.now.mono_ms, client, number, request);
        self.note_change(before);
        let Some(answer) = answer else { return };
        let is_lost = self.ways.as_mut().map(StoreWays::loses);
        match is_lost {
            None => self.arrive(Travelling::Answered(id, client, number, answer)),
            Some(true) => self.lost_answers += 1,
            Some(false) => self.later(Travelling::Answered(id, client, number, answer)),
        }
    }

    /// What a watch has brought is on its way: none of it is lost, and its order stays.
    pub(super) fn bring(&mut self, id: i32, client: u64, number: u64, watched: Watched) {
        let what = Travelling::Watched(id, client, number, watched);
        let late = self.late.get(&id).copied().unwrap_or(0);
        if self.ways.is_none() && late <= self.now.mono_ms && !self.watched_at.contains_key(&client) {
            return self.arrive(what);
        }
        let delay = self.ways.as_mut().map_or(0, StoreWays::delay);
        let last = self.watched_at.entry(client).or_default();
        *last = (self.now.mono_ms + delay).max(late).max(*last);
        let at = *last;
        self.sent += 1;
        self.travelling.insert((at, self.sent), what);
    }

    fn later(&mut self, what: Travelling) {
        let delay = self.ways.as_mut().map_or(0, StoreWays::delay);
        self.sent += 1;
        self.travelling.insert((self.now.mono_ms + delay, self.sent), what);
    }

    /// Something has arrived. Whoever is paused takes it later.
    pub(super) fn arrive(&mut self, what: Travelling) {
        if let Some(paused) = self.paused.get_mut(&what.to()) {
            return paused.held.push(what);
        }
        match what {
            Travelling::Request(_, to, conn, bytes) => {
                if let Some(node) = self.nodes.get_mut(&to) {
                    node.broker.handle_frame(node.clock.at(self.now), conn, bytes);
                }
            }
            Travelling::Client(to, conn, bytes) => {
                let node = self.nodes.get_mut(&to).unwrap();
                node.broker.handle_frame(node.clock.at(self.now), conn, bytes);
            }
            Travelling::Hangup(_, to, conn) => {
                if let Some(node) = self.nodes.get_mut(&to) {
                    node.broker.handle_disconnect(node.clock.at(self.now), conn);
                }
            }
            Travelling::Closed(_, to, conn) => {
                if let Some(node) = self.nodes.get_mut(&to)
                    && let Some(peer) = node.peer_of(conn)
                {
                    node.peers.remove(&peer);
                    node.broker.peer_closed(node.clock.at(self.now), peer);
                }
            }
            Travelling::Pushing(leader, follower, event) => {
                if let Some(node) = self.nodes.get_mut(&leader) {
                    node.broker.handle_push(node.clock.at(self.now), follower, event);
                }
            }
            Travelling::Unlinked(_, to, link) => {
                if let Some(node) = self.nodes.get_mut(&to) {
                    node.broker.handle_unlinked(link);
                }
            }
            Travelling::Answer(from, to, conn, bytes) => {
                if let Some(node) = self.nodes.get_mut(&to)
                    && let Some(peer) = node.peer_of(conn).filter(|peer| peer.node == from)
                {
                    node.broker.handle_peer_frame(node.clock.at(self.now), peer, bytes);
                }
            }
            Travelling::Pushed(leader, to, link, note) => {
                if self.links.get(&(leader, to)).is_some_and(|one| one.link == link) {
                    let node = self.nodes.get_mut(&to).unwrap();
                    node.broker.handle_note(node.clock.at(self.now), link, note);
                }
            }
            Travelling::Acknowledged(follower, to, link, note) => {
                if self.links.get(&(to, follower)).is_some_and(|one| one.link == link) {
                    let node = self.nodes.get_mut(&to).unwrap();
                    node.broker.handle_push(node.clock.at(self.now), follower, PushEvent::Note(note));
                }
            }
            Travelling::Asked(id, client, number, request) => self.answer_store(id, client, number, &request),
            Travelling::Answered(id, client, number, answer) => {
                if let Some(node) = self.nodes.get_mut(&id).filter(|node| node.client == client) {
                    node.broker.handle_store_answer(node.clock.at(self.now), number, &answer);
                }
            }
            Travelling::Watched(id, client, number, watched) => {
                if let Some(node) = self.nodes.get_mut(&id).filter(|node| node.client == client) {
                    node.broker.handle_watched(node.clock.at(self.now), number, &watched);
                }
            }
        }
    }
}
