//! The world's state, its queue of events, and what every part of it needs. The parts are above it, and know nothing of
//! each other but what is below them; `world.rs` says in which order.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use headrace_client::arrived::{Arrived, Consumed};
use headrace_client::engine::Engine;
use headrace_client::io::{ChannelEvent, ConnId, Input, LinkEvent as EngineLinkEvent, LinkId, Output};
use headrace_fabric::Memory;
use headrace_wire::time::Now;

use crate::client::{AnyEvent, Who, Wires};
use crate::consumer::{Consumer, Ledger};
use crate::links::Link;
use crate::net::{Conn, Way, Weather};
use crate::outcome::Outcome;
use crate::plan::{DirectPlan, Down, Place, Plan, START_MS, Trouble};
use crate::producer::Producer;
use crate::rng::Rng;
use crate::rogue::Rogue;
use crate::server::Server;
use crate::share_consumer::SimShareConsumer;

/// Where the wall clocks begin.
const WALL_MS: i64 = 1_700_000_000_000;
/// The network when all is well.
const CALM: Weather = Weather { delay_ms_max: 3, piece_bytes_max: 1 << 20 };

/// What happens next, and to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// An engine takes its commands.
    Turn(Who),
    /// A client's timer, if it is still set to this time.
    Timer(Who, u64),
    Caller(usize, usize),
    /// A consumer's caller.
    Reader(usize),
    /// A consumer of this place in the plan comes, as its first or a later one.
    Comes(usize, u32),
    /// A consumer goes as it was planned.
    Goes(usize),
    /// Consumers close if they have read all.
    Finish,
    /// A share consumer's caller.
    ShareConsumer(usize),
    /// As [`Event::Comes`].
    ShareConsumerComes(usize, u32),
    ShareConsumerGoes(usize),
    /// Share consumers close if all records are done with.
    ShareFinish,
    Connect(u64),
    Arrive(u64, Way),
    BrokerTimer(u64),
    /// The oldest sync ends.
    Synced,
    Down(Down, u64),
    Up,
    Trouble(Trouble),
    /// A partition without leader gets one.
    Elect(Place, usize),
    /// Others take over from a node that is gone.
    FailOver(usize),
    NodeUp(usize),
    /// A node that did nothing goes on.
    NodeAwake(usize),
    /// A node learns what has become of the cluster.
    Learn(usize),
    /// Somebody makes a topic.
    Create(usize),
    /// Something of a link.
    Link(u64, LinkEvent),
    /// A client looks at its memory.
    Look(Who),
    Rogue(usize),
    /// A producer is gone at one blow; its connections end, or nobody is told.
    ProducerGoes(usize, bool),
    /// Somebody deletes a topic.
    Delete(usize),
    /// Somebody deletes so many of a hundred records.
    DeleteRecords(Place, i64),
    Heal,
}

/// What happens to a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkEvent {
    /// A client that makes it has come to the broker.
    Comes,
    /// The broker has connected its end of one over RDMA.
    Joined,
    /// Something has come over its socket.
    Control,
    /// Something has come otherwise.
    ToClient,
    ToBroker,
    /// The client's card has heard nothing for too long.
    Deaf,
    /// The broker learns that it has ended.
    End,
    /// It ends by itself.
    Fault,
}

/// How far the end of share consumers has come.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ShareEnd {
    /// When everything was sent.
    pub(super) sent_ms: Option<u64>,
    /// When everything was done with.
    pub(super) done_ms: Option<u64>,
    /// Since when nothing has come, and how many requests there were by then.
    pub(super) idle: Option<(u64, u64)>,
}

/// All there is, and when it does what.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) server: Server,
    pub(crate) producers: Vec<Producer>,
    /// All that ever came.
    pub(crate) consumers: Vec<Consumer>,
    pub(crate) ledger: Ledger,
    /// All that ever came.
    pub(crate) share_consumers: Vec<SimShareConsumer>,
    /// What share consumers were given, by partition and offset: producer and number.
    pub(crate) shared: BTreeMap<(Place, i64), (usize, usize)>,
    /// What callers want accepted: consumer, partition and offset.
    pub(crate) wanted: BTreeSet<(usize, Place, i64)>,
    /// What commits have told as accepted.
    pub(super) confirmed: BTreeSet<(Place, i64)>,
    pub(super) share_end: ShareEnd,
    /// Consumers whose threads and timers are to be looked at.
    pub(super) touched: Vec<Who>,
    pub(crate) now: Now,
    pub(crate) outcome: Outcome,
    pub(super) rng: Rng,
    /// By time, then by chance, so that what happens at the same moment happens in any order.
    pub(super) queue: BTreeMap<(u64, u64), Event>,
    pub(super) conns: BTreeMap<u64, Conn>,
    pub(super) last_conn: u64,
    pub(super) links: BTreeMap<u64, Link>,
    pub(super) last_link: u64,
    /// Ends of links over RDMA that the broker connects, by the names that those will have.
    pub(super) joining: BTreeMap<u64, u64>,
    /// What the broker has exposed: link and key, and bytes to be written.
    pub(super) exposes: BTreeMap<(u64, u64), Option<Arc<Memory>>>,
    /// Links over RDMA that their clients have just ended, and how many connections had ended when those were begun.
    pub(super) ended_early: Vec<(Who, u64, u64)>,
    pub(super) rogues: Vec<Rogue>,
    pub(super) last_rogue_conn: u64,
    pub(super) broker_armed: Option<u64>,
    /// The syncs that were asked for last until then.
    pub(super) sync_until: u64,
    pub(super) healed: bool,
    pub(super) at_once: u32,
    pub(super) story: Option<Vec<String>>,
}

impl World {
    /// Nothing has happened yet, and nothing is to come.
    pub(super) fn bare(plan: Plan, mut rng: Rng, with_story: bool) -> Result<Self, String> {
        let now = Now { mono_ms: START_MS, wall_ms: WALL_MS };
        let server = Server::new(&plan, &mut rng, now)?;
        let mut producers = Vec::new();
        for (number, producer) in (0..).zip(&plan.producers) {
            producers.push(Producer::new(number, producer.clone(), rng.next())?);
        }
        Ok(Self {
            plan,
            server,
            producers,
            consumers: Vec::new(),
            ledger: Ledger::default(),
            share_consumers: Vec::new(),
            shared: BTreeMap::new(),
            wanted: BTreeSet::new(),
            confirmed: BTreeSet::new(),
            share_end: ShareEnd::default(),
            touched: Vec::new(),
            now,
            outcome: Outcome { digest: 0xcbf2_9ce4_8422_2325, ..Outcome::default() },
            rng,
            queue: BTreeMap::new(),
            conns: BTreeMap::new(),
            last_conn: 0,
            links: BTreeMap::new(),
            last_link: 0,
            joining: BTreeMap::new(),
            exposes: BTreeMap::new(),
            ended_early: Vec::new(),
            rogues: Vec::new(),
            last_rogue_conn: 0,
            broker_armed: None,
            sync_until: 0,
            healed: false,
            at_once: 0,
            story: with_story.then(Vec::new),
        })
    }

    pub(crate) fn take_story(&mut self) -> Vec<String> {
        self.story.take().unwrap_or_default()
    }

    pub(super) fn tell(&mut self, line: impl FnOnce() -> String) {
        let (now_ms, digest) = (self.now.mono_ms, self.outcome.digest & 0xffff);
        if let Some(story) = &mut self.story {
            story.push(format!("{now_ms:>7} ms  {digest:04x}  {}", line()));
        }
    }

    pub(super) fn digest(&mut self, what: u64) {
        self.outcome.digest =
            (self.outcome.digest ^ what).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
    }

    /// The order of things in a request or an answer changes nothing for long, but is another run all the same.
    pub(super) fn digest_bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.digest(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.digest(u64::from(*byte));
        }
    }

    pub(super) fn at(&mut self, ms: u64, event: Event) {
        let tie = self.rng.next();
        let ms = ms.max(self.now.mono_ms);
        // Two events at one moment with the same tie: not in the lifetime of this machine, but none may get lost.
        let tie = (tie..=u64::MAX).find(|tie| !self.queue.contains_key(&(ms, *tie))).unwrap_or(tie);
        self.queue.insert((ms, tie), event);
    }

    pub(super) fn weather(&self) -> Weather {
        if self.healed {
            return CALM;
        }
        Weather { delay_ms_max: self.plan.delay_ms_max, piece_bytes_max: self.plan.piece_bytes_max }
    }

    pub(super) fn delay(&mut self) -> u64 {
        let max = self.weather().delay_ms_max;
        self.now.mono_ms + self.rng.between(0, max)
    }

    pub(super) fn exposing(&self) -> Result<&DirectPlan, String> {
        let plan = self.plan.direct.as_ref();
        plan.ok_or_else(|| "memory is exposed where headrace.datapath is tcp".to_owned())
    }

    /// Something has happened to an engine's channels or links, or its time has come.
    pub(super) fn input(&mut self, who: Who, input: Input<Infallible>) {
        let now = self.now;
        match who {
            Who::Producer(number) => {
                self.producers[number].engine.handle(now, input.map(|none| match none {}));
            }
            Who::Consumer(number) => {
                self.consumers[number].engine.handle(now, input.map(|none| match none {}));
            }
            Who::ShareConsumer(number) => {
                self.share_consumers[number].engine.handle(now, input.map(|none| match none {}));
            }
        }
    }

    pub(super) fn channel(&mut self, who: Who, conn: ConnId, event: ChannelEvent) {
        self.input(who, Input::Channel(conn, event));
    }

    pub(super) fn link(&mut self, who: Who, link: LinkId, event: EngineLinkEvent) {
        self.input(who, Input::Link(link, event));
    }

    pub(super) fn bytes(&mut self, who: Who, conn: ConnId, bytes: &[u8]) -> Consumed {
        let (now, memory) = (self.now, Arc::new(bytes.to_vec()));
        let bytes = Arrived::shared(&memory, 0);
        match who {
            Who::Producer(number) => self.producers[number].engine.handle_bytes(now, conn, bytes),
            Who::Consumer(number) => self.consumers[number].engine.handle_bytes(now, conn, bytes),
            Who::ShareConsumer(number) => self.share_consumers[number].engine.handle_bytes(now, conn, bytes),
        }
    }

    pub(super) fn poll_output(&mut self, who: Who) -> Option<Output<AnyEvent>> {
        Some(match who {
            Who::Producer(number) => self.producers[number].engine.poll_output()?.map(AnyEvent::Producer),
            Who::Consumer(number) => self.consumers[number].engine.poll_output()?.map(AnyEvent::Consumer),
            Who::ShareConsumer(number) => {
                self.share_consumers[number].engine.poll_output()?.map(AnyEvent::Share)
            }
        })
    }

    pub(super) fn wires(&mut self, who: Who) -> &mut Wires {
        match who {
            Who::Producer(number) => &mut self.producers[number].wires,
            Who::Consumer(number) => &mut self.consumers[number].wires,
            Who::ShareConsumer(number) => &mut self.share_consumers[number].wires,
        }
    }

    pub(super) fn wants_timeout(&self, who: Who) -> Option<u64> {
        match who {
            Who::Producer(number) => self.producers[number].engine.poll_timeout(),
            Who::Consumer(number) => self.consumers[number].engine.poll_timeout(),
            Who::ShareConsumer(number) => self.share_consumers[number].engine.poll_timeout(),
        }
    }

    pub(super) fn lives(&self, who: Who) -> bool {
        match who {
            Who::Producer(number) => !self.producers[number].gone,
            Who::Consumer(number) => !self.consumers[number].gone,
            Who::ShareConsumer(number) => !self.share_consumers[number].gone,
        }
    }

    pub(super) fn touch(&mut self, who: Who) {
        if !self.touched.contains(&who) {
            self.touched.push(who);
        }
    }
}
