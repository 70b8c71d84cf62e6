//! The loop: it takes one event after the other in virtual time.
//!
//! The world is one object, and each file below has the methods of one part of it. A part calls itself and what is below
//! it (`scripts/import_graph.py` checks that), so that it can be read without those above:
//! 1. `state`: what there is, the queue, and the engines' inputs and outputs;
//! 2. `conns`: connections; `lines`: what is on its way over links; `rogues`: what the broker does to rogues;
//! 3. `links`, over `conns` and `lines`: links at their clients, and clients that vanish;
//! 4. `readers`, `share_consumers`: who comes and goes, and when all is read;
//! 5. `clients`: what engines want done; `looks`, above it: what comes to clients over links;
//! 6. `broker`, over those of 2.: what the broker wants done;
//! 7. `arrivals`, `link_events`, `rogue_acts`, `nodes`, `direct`: what happens at either side;
//! 8. this file, which sets the plan's events and hands out one after the other.

mod arrivals;
mod broker;
mod clients;
mod conns;
mod direct;
mod lines;
mod link_events;
mod links;
mod looks;
mod nodes;
mod readers;
mod rogue_acts;
mod rogues;
mod share_consumers;
mod state;

use self::state::Event;
pub(crate) use self::state::World;
use crate::net::Way;
use crate::plan::{Birth, Cast, GRACE_MS, Plan, START_MS};
use crate::rng::Rng;

/// All must have happened by so long after the end of the faults.
const REST_MS: u64 = GRACE_MS + 120_000;
/// Events at one moment; more is a loop.
const EVENTS_AT_ONCE_MAX: u32 = 20_000;
/// Faults last at most so long. Consumers make many more events than producers.
const HEAL_MS: u64 = 6000;
const HEAL_MS_WITH_READERS: u64 = 3000;
/// Makes the chance of a drive that lies one of its own.
const SYNC_LIES: u64 = 0x6c69_6573;
/// What tells the chance of segments from that of all else.
const SEGMENTS: u64 = 0x7365_676d;

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
        let mut world = Self::bare(plan, rng, with_story)?;
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

    /// Until nothing but the broker's own housekeeping is left.
    pub(crate) fn run(&mut self) -> Result<(), String> {
        let limit_ms = self.plan.heal_ms + REST_MS;
        while self.queue.values().any(|event| self.is_awaited(event)) {
            let Some(((ms, tie), event)) = self.queue.pop_first() else { return Ok(()) };
            self.digest(ms ^ tie);
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
            Event::Timer(who, armed) => self.timer(who, armed),
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

    fn heal_all(&mut self) -> Result<(), String> {
        self.heal();
        self.heal_nodes()?;
        self.steady_readers();
        self.steady_share_consumers();
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
