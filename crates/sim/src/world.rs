//! The loop: one queue of events in virtual time.

mod clients;
mod conns;
mod lines;
mod links;
mod nodes;
mod readers;
mod rogues;
mod share_consumers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headrace_client::io::Input;
use headrace_fabric::Memory;
use headrace_log::SyncFault;
use headrace_wire::time::Now;

use crate::Cast;
use crate::client::Who;
use crate::consumer::{Consumer, Ledger, Tally};
use crate::links::Link;
use crate::net::{Conn, Way, Weather};
use crate::plan::{Birth, Down, GRACE_MS, Place, Plan, START_MS, Trouble};
use crate::producer::Producer;
use crate::rng::Rng;
use crate::server::{Extra, Said, Server};
use crate::share_consumer::SimShareConsumer;

pub use self::links::Exposed;
use self::links::LinkEvent;
use self::rogues::Rogue;
pub use self::share_consumers::Shared;

/// Where the wall clocks begin.
const WALL_MS: i64 = 1_700_000_000_000;
/// All must have happened by so long after the end of the faults.
const REST_MS: u64 = GRACE_MS + 120_000;
/// Events at one moment; more is a loop.
const EVENTS_AT_ONCE_MAX: u32 = 20_000;
/// Faults last at most so long. Consumers make many more events than producers.
const HEAL_MS: u64 = 6000;
const HEAL_MS_WITH_READERS: u64 = 3000;
/// The network when all is well.
const CALM: Weather = Weather { delay_ms_max: 3, piece_bytes_max: 1 << 20 };
/// The longest sync when all is well.
/// Makes the chance of a drive that lies one of its own.
const SYNC_LIES: u64 = 0x6c69_6573;
/// What tells the chance of segments from that of all else.
const SEGMENTS: u64 = 0x7365_676d;
const CALM_SYNC_MS: u64 = 20;
const THROTTLE_MS_MAX: u64 = 700;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
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

/// What a run came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Records that callers gave.
    pub records: usize,
    /// Those that came in as rows of Arrow batches and were taken.
    pub rows: usize,
    /// Those of all that were confirmed.
    pub acked: usize,
    /// Batches that a node refused since it did not lead, or did not know that it did.
    pub refused: usize,
    /// Syncs that failed.
    pub syncs_failed: usize,
    /// Syncs that succeeded and wrote nothing.
    pub syncs_lied: usize,
    /// Records that went with the power since syncs had lied.
    pub lost: usize,
    /// Segments that were closed, of all logs in the end.
    pub segments: usize,
    /// Records that came through to their node while another one did nothing.
    pub lively: usize,
    /// What consumers did.
    pub read: Tally,
    /// What became of the records of share groups.
    pub shared: Shared,
    /// What came of memory that the broker exposed.
    pub exposed: Exposed,
    /// Events that were simulated.
    pub events: u64,
    /// Stands for all that happened: two runs of a seed have the same.
    pub digest: u64,
}

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
    confirmed: BTreeSet<(Place, i64)>,
    share_end: share_consumers::ShareEnd,
    /// Consumers whose threads and timers are to be looked at.
    touched: Vec<Who>,
    pub(crate) now: Now,
    pub(crate) outcome: Outcome,
    rng: Rng,
    /// By time, then by chance, so that what happens at the same moment happens in any order.
    queue: BTreeMap<(u64, u64), Event>,
    conns: BTreeMap<u64, Conn>,
    last_conn: u64,
    links: BTreeMap<u64, Link>,
    last_link: u64,
    /// Ends of links over RDMA that the broker connects, by the names that those will have.
    joining: BTreeMap<u64, u64>,
    /// What the broker has exposed: link and key, and bytes to be written.
    exposes: BTreeMap<(u64, u64), Option<Arc<Memory>>>,
    /// Links over RDMA that their clients have just ended, and how many connections had ended when those were begun.
    ended_early: Vec<(Who, u64, u64)>,
    rogues: Vec<Rogue>,
    last_rogue_conn: u64,
    broker_armed: Option<u64>,
    /// The syncs that were asked for last until then.
    sync_until: u64,
    healed: bool,
    at_once: u32,
    story: Option<Vec<String>>,
}

impl World {
    pub(crate) fn new(seed: u64, cast: Cast, with_story: bool) -> Result<Self, String> {
        let mut rng = Rng::new(seed);
        let heal_ms = if cast == Cast::Producers { HEAL_MS } else { HEAL_MS_WITH_READERS };
        let plan = Plan::draw(&mut rng, heal_ms);
        let plan = match cast {
            // From chance of its own, so that the other draws of a seed stay what they are.
            Cast::Producers => plan.with_lying_syncs(&mut Rng::new(seed ^ SYNC_LIES)),
            Cast::Consumers => plan.with_readers(&mut rng),
            Cast::ShareConsumers => plan.with_share_consumers(&mut rng),
            Cast::Direct => plan.with_direct(&mut rng),
        };
        // Settings of its own decide where memory is exposed.
        let plan =
            if cast == Cast::Direct { plan } else { plan.with_segments(&mut Rng::new(seed ^ SEGMENTS)) };
        let now = Now { mono_ms: START_MS, wall_ms: WALL_MS };
        let server = Server::new(&plan, &mut rng, now)?;
        let mut producers = Vec::new();
        for (number, producer) in (0..).zip(&plan.producers) {
            producers.push(Producer::new(number, producer.clone(), rng.next())?);
        }
        let mut world = Self {
            plan,
            server,
            producers,
            consumers: Vec::new(),
            ledger: Ledger::default(),
            share_consumers: Vec::new(),
            shared: BTreeMap::new(),
            wanted: BTreeSet::new(),
            confirmed: BTreeSet::new(),
            share_end: share_consumers::ShareEnd::default(),
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
        };
        let plan = world.plan.clone();
        world.tell(|| format!("{plan:#?}"));
        for restart in &plan.restarts {
            world.at(restart.at_ms, Event::Down(restart.down, restart.down_ms));
        }
        for (at, trouble) in &plan.cluster.troubles {
            world.at(*at, Event::Trouble(*trouble));
        }
        for (topic, birth) in plan.topics.iter().enumerate() {
            if let Birth::At(at) = birth {
                world.at(*at, Event::Create(topic));
            }
        }
        world.at(plan.heal_ms, Event::Heal);
        for producer in 0..world.producers.len() {
            for caller in 0..world.producers[producer].caller_count() {
                world.at(START_MS, Event::Caller(producer, caller));
            }
        }
        world.ledger.follow(world.server.cluster.logs());
        world.plan_readers();
        world.plan_share_consumers();
        world.plan_direct();
        world.after_broker()?;
        Ok(world)
    }

    pub(crate) fn take_story(&mut self) -> Vec<String> {
        self.story.take().unwrap_or_default()
    }

    fn tell(&mut self, line: impl FnOnce() -> String) {
        let now_ms = self.now.mono_ms;
        if let Some(story) = &mut self.story {
            story.push(format!("{now_ms:>7} ms  {}", line()));
        }
    }

    fn digest(&mut self, what: u64) {
        self.outcome.digest =
            (self.outcome.digest ^ what).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
    }

    fn at(&mut self, ms: u64, event: Event) {
        let tie = self.rng.next();
        let ms = ms.max(self.now.mono_ms);
        // Two events at one moment with the same tie: not in the lifetime of this machine, but none may get lost.
        let tie = (tie..=u64::MAX).find(|tie| !self.queue.contains_key(&(ms, *tie))).unwrap_or(tie);
        self.queue.insert((ms, tie), event);
    }

    fn weather(&self) -> Weather {
        if self.healed {
            return CALM;
        }
        Weather { delay_ms_max: self.plan.delay_ms_max, piece_bytes_max: self.plan.piece_bytes_max }
    }

    fn delay(&mut self) -> u64 {
        let max = self.weather().delay_ms_max;
        self.now.mono_ms + self.rng.between(0, max)
    }

    /// Until nothing but the broker's own housekeeping is left.
    pub(crate) fn run(&mut self) -> Result<(), String> {
        let limit_ms = self.plan.heal_ms + REST_MS;
        while self.queue.values().any(|event| self.is_awaited(event)) {
            let Some(((ms, _), event)) = self.queue.pop_first() else { return Ok(()) };
            if ms > limit_ms {
                return Err(format!("it does not come to rest within {limit_ms} ms: {event:?} is next"));
            }
            let passed = ms - self.now.mono_ms;
            self.at_once = if passed == 0 { self.at_once + 1 } else { 0 };
            if self.at_once > EVENTS_AT_ONCE_MAX {
                return Err(format!("it goes round and round at {ms} ms: {event:?} is next"));
            }
            self.now.mono_ms = ms;
            self.now.wall_ms += i64::try_from(passed).unwrap_or(0);
            self.outcome.events += 1;
            self.handle(event)?;
            for producer in 0..self.producers.len() {
                self.after_producer(producer);
            }
            while let Some(who) = self.touched.pop() {
                self.after_client(who);
            }
        }
        self.conns.clear();
        Ok(())
    }

    /// Whether there is no rest before this. The broker's housekeeping and timers that nobody wants any more are nothing; but
    /// the end is not looked at while a log is offline, since reads stop short until the broker has made it good.
    fn is_awaited(&self, event: &Event) -> bool {
        match event {
            Event::BrokerTimer(_) => self.server.has_offline_logs(),
            Event::Timer(who, _) => self.lives(*who) && self.wants_timeout(*who).is_some(),
            _ => true,
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Turn(who) => self.turn(who),
            Event::Timer(who, armed) => {
                if self.lives(who) && self.wires(who).armed == Some(armed) {
                    self.wires(who).armed = None;
                    if !matches!(who, Who::Producer(_)) {
                        self.touch(who);
                    }
                    if self.wants_timeout(who).is_some_and(|at| at <= self.now.mono_ms) {
                        self.input(who, Input::Timeout);
                        self.settle(who)?;
                    }
                }
                Ok(())
            }
            Event::Reader(number) => self.read(number),
            Event::Comes(slot, count) => self.comes(slot, count),
            Event::Goes(number) => {
                self.goes(number);
                Ok(())
            }
            Event::Finish => self.finish(),
            Event::ShareConsumer(number) => self.share(number),
            Event::ShareConsumerComes(slot, count) => self.share_consumer_comes(slot, count),
            Event::ShareConsumerGoes(number) => {
                self.share_consumer_goes(number);
                Ok(())
            }
            Event::ShareFinish => self.finish_share_consumers(),
            Event::Caller(number, caller) => self.step(number, caller),
            Event::Connect(conn) => self.connect(conn),
            Event::Arrive(conn, Way::ToServer) => self.arrive_at_server(conn),
            Event::Arrive(conn, Way::ToClient) => self.arrive_at_client(conn),
            Event::BrokerTimer(armed) => {
                if self.broker_armed == Some(armed) {
                    self.broker_armed = None;
                    self.server.handle_timeout(self.now);
                    return self.after_broker();
                }
                Ok(())
            }
            Event::Synced => self.sync_ends(),
            Event::Down(down, down_ms) => self.down(down, down_ms),
            Event::Up => {
                self.tell(|| "the broker starts".to_owned());
                self.server.start(self.now)?;
                self.ledger.follow(self.server.cluster.logs());
                self.after_broker()
            }
            Event::Trouble(trouble) => self.trouble(trouble),
            Event::Elect(place, node) => self.elect(place, node),
            Event::FailOver(node) => self.fail_over(node),
            Event::NodeUp(node) => {
                self.node_up(node);
                Ok(())
            }
            Event::NodeAwake(node) => self.node_awake(node),
            Event::Learn(node) => {
                self.server.cluster.learn(node);
                Ok(())
            }
            Event::Create(topic) => self.create(topic),
            Event::Link(link, event) => self.handle_link(link, event),
            Event::Look(who) => self.look(who),
            Event::Rogue(number) => self.rogue_acts(number),
            Event::ProducerGoes(number, reported) => self.producer_goes(number, reported),
            Event::Delete(topic) => self.delete(topic),
            Event::DeleteRecords(place, percent) => self.delete_records(place, percent),
            Event::Heal => self.heal_all(),
        }
    }

    fn sync_ends(&mut self) -> Result<(), String> {
        let fails = !self.healed && self.rng.chance(self.plan.sync_fails);
        let lies = self.plan.sync_lies > 0 && !self.healed && self.rng.chance(self.plan.sync_lies);
        let fault = match (fails, lies) {
            (true, _) => SyncFault::Fails,
            (false, true) => SyncFault::Lies,
            (false, false) => SyncFault::None,
        };
        self.outcome.syncs_failed += usize::from(fails);
        self.outcome.syncs_lied += usize::from(lies && !fails);
        self.tell(|| format!("a sync ends: {fault:?}"));
        self.server.synced(self.now, fault)?;
        self.after_broker()
    }

    fn heal_all(&mut self) -> Result<(), String> {
        self.heal();
        self.heal_nodes()?;
        self.steady_readers();
        self.steady_share_consumers();
        Ok(())
    }

    // ---- producers

    fn step(&mut self, number: usize, caller: usize) -> Result<(), String> {
        if self.producers[number].gone {
            return Ok(());
        }
        let again = self.producers[number].step(caller, self.now);
        let again = again.map_err(|why| format!("producer {number}: {why}"))?;
        if let Some(at) = again {
            self.at(at, Event::Caller(number, caller));
        }
        Ok(())
    }

    // ---- the broker

    fn after_broker(&mut self) -> Result<(), String> {
        let throttle = if self.healed { 0 } else { self.plan.throttle };
        let (rng, tells) = (&mut self.rng, self.plan.cluster.tells_leader);
        let said = self.server.poll(self.now, || {
            let throttle_ms = if rng.chance(throttle) { rng.between(1, THROTTLE_MS_MAX) } else { 0 };
            let throttle_ms = i32::try_from(throttle_ms).unwrap_or(0);
            Extra { throttle_ms, tells_leader: rng.chance(tells) }
        })?;
        for conn in self.server.take_closed_own() {
            self.tell(|| format!("the broker closes a rogue's connection {conn}"));
            self.rogue_is_hung_up(conn);
        }
        for said in said {
            match said {
                Said::Bytes(conn, bytes, refusals) => {
                    let len = bytes.len();
                    self.tell(|| {
                        format!("connection {conn} is answered: {len} bytes, {refusals} refusals by its node")
                    });
                    // Not even a refusal takes no time, a node's or that of a log that is offline, or who tries again at once
                    // would do so for ever at one moment.
                    let at = self.now.mono_ms + u64::from(refusals > 0 || self.plan.sync_fails > 0);
                    self.send_at(conn, Way::ToClient, bytes, at);
                }
                Said::Close(conn) => {
                    self.tell(|| format!("the broker closes connection {conn}"));
                    self.server.disconnect(self.now, conn);
                    self.end(conn, Way::ToClient);
                }
            }
        }
        self.expose()?;
        let sync_ms_max = if self.healed { CALM_SYNC_MS } else { self.plan.sync_ms_max };
        for _ in 0..self.server.poll_syncs() {
            // One thread does them, one after the other.
            let at = self.now.mono_ms + self.rng.between(0, sync_ms_max);
            self.sync_until = self.sync_until.max(at);
            self.tell(|| "a sync begins".to_owned());
            self.at(self.sync_until, Event::Synced);
        }
        if let Some(at) = self.server.poll_timeout()
            && self.broker_armed.is_none_or(|armed| at < armed)
        {
            self.broker_armed = Some(at);
            self.at(at, Event::BrokerTimer(at));
        }
        Ok(())
    }

    fn down(&mut self, down: Down, down_ms: u64) -> Result<(), String> {
        if !self.server.is_up() {
            return Ok(());
        }
        self.tell(|| format!("the broker goes down for {down_ms} ms: {down:?}"));
        self.server.stop(self.now, down, &mut self.rng)?;
        (self.broker_armed, self.sync_until) = (None, 0);
        self.queue.retain(|_, event| *event != Event::Synced);
        self.at(self.now.mono_ms + down_ms, Event::Up);
        let silent = down == Down::PowerLoss && self.rng.chance(50);
        self.hang_up(|_| true, silent);
        self.end_links();
        self.forget_rogues();
        Ok(())
    }

    /// All faults end. Connections that are hit by one are told so; what closed connections still hold is on its way.
    fn heal(&mut self) {
        self.tell(|| "all is well from now on".to_owned());
        self.healed = true;
        let open: Vec<u64> = self.conns.iter().filter(|(_, conn)| conn.client).map(|(key, _)| *key).collect();
        for key in open {
            if let Some(conn) = self.conns.get_mut(&key) {
                conn.to_client.clear();
                conn.to_server.clear();
            }
            self.end(key, Way::ToClient);
            self.end(key, Way::ToServer);
        }
    }
}
