//! Brokers, a store, and what lies between them, by a seed: requests and answers are late or lost, brokers are cut off,
//! paused, killed and restarted, their clocks run apart, the store stands still, forgets its history, and ends leases.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use headrace_cluster::local::LocalStore;
use headrace_cluster::model::{self, Key, NodeValue, PartitionValue, Place, Registration, TopicValue, Value};
use headrace_cluster::store::{Revision, Watched};
use headrace_cluster::{Answer, Member, MemberConfig, MemberEvent, Request};
use headrace_wire::random::SplitMix64;
use headrace_wire::uuid::Uuid;

pub(crate) const SESSION_MS: u64 = 3_000;
/// Faults happen for so long.
const TROUBLE_MS: u64 = 60_000;
/// And this long afterwards all is well.
const CALM_MS: u64 = 20_000;
/// A clock is off by so many thousandths at most.
const DRIFT_PERMILLE: u64 = 45;
const PARTITIONS: i32 = 5;
pub(crate) const TOPIC: Uuid = Uuid([7; 16]);

/// What a run came to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) elections: usize,
    pub(crate) transfers: usize,
    pub(crate) shrinks: usize,
    pub(crate) growths: usize,
    pub(crate) lost_leases: usize,
    pub(crate) pauses: usize,
    pub(crate) kills: usize,
    pub(crate) cuts: usize,
    pub(crate) compactions: usize,
    pub(crate) left: usize,
    pub(crate) waits: usize,
    pub(crate) revision: Revision,
}

struct Broker {
    member: Member,
    value: NodeValue,
    /// Its connection to the store; a restarted broker has another.
    client: u64,
    paused_until: u64,
    is_stopping: bool,
}

enum Travelling {
    Request(u64, i32, u64, Request),
    Answer(u64, i32, u64, Answer),
    Watched(u64, i32, u64, Watched),
}

pub(crate) struct World {
    random: SplitMix64,
    now: u64,
    store: LocalStore,
    brokers: BTreeMap<i32, Broker>,
    /// Those that are down, with when they come back.
    down: BTreeMap<i32, u64>,
    /// By broker: how its clock runs, in thousandths, and what it shows at the start.
    clocks: HashMap<i32, (u64, u64)>,
    travelling: BTreeMap<(u64, u64), Travelling>,
    sent: u64,
    /// Brokers whose network is cut, until when; what is sent meanwhile comes then, or never.
    cuts: BTreeMap<i32, u64>,
    /// When something happens next.
    next_happening: u64,
    /// When the last of a connection's watch arrives: its order is kept.
    watch_order: HashMap<u64, u64>,
    clients: u64,
    store_up_at: u64,
    loss_percent: u64,
    delay_ms: u64,
    /// All that was written of partitions, in order, and who lived then.
    seen: Revision,
    partitions: BTreeMap<Place, PartitionValue>,
    leaders: BTreeMap<(Place, i32), Registration>,
    alive: BTreeMap<i32, Revision>,
    /// What each broker's folder says: the broker epoch since which its logs have lost nothing.
    kept: BTreeMap<i32, Revision>,
    /// The states of the store in which each broker came back without something.
    lost: BTreeMap<i32, Vec<Revision>>,
    pub(crate) outcome: Outcome,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let mut between = |low: u64, high: u64| low + random.next_u64() % (high - low + 1);
        let count = [1, 3, 3, 5][usize::try_from(between(0, 3)).unwrap()];
        let (loss_percent, delay_ms) =
            (between(0, 15), [3, 30, 300, 1500][usize::try_from(between(0, 3)).unwrap()]);
        let clocks = (1..=count)
            .map(|id| (id, (between(1000 - DRIFT_PERMILLE, 1000 + DRIFT_PERMILLE), between(0, 1 << 20))))
            .collect();
        let mut world = Self {
            random,
            now: 1,
            store: LocalStore::new(),
            brokers: BTreeMap::new(),
            down: (1..=count).map(|id| (id, 0)).collect(),
            clocks,
            travelling: BTreeMap::new(),
            sent: 0,
            cuts: BTreeMap::new(),
            next_happening: 5_000,
            watch_order: HashMap::new(),
            clients: 0,
            store_up_at: 0,
            loss_percent,
            delay_ms,
            seen: 0,
            partitions: BTreeMap::new(),
            leaders: BTreeMap::new(),
            alive: BTreeMap::new(),
            kept: BTreeMap::new(),
            lost: BTreeMap::new(),
            outcome: Outcome::default(),
        };
        world.start_those_due();
        world
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.random.next_u64() % (high - low + 1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.random.next_u64() % 100 < percent
    }

    /// What a broker's clock shows.
    fn clock(&self, id: i32) -> u64 {
        let (rate, start) = self.clocks[&id];
        start + self.now * rate / 1000
    }

    fn start_those_due(&mut self) {
        let due: Vec<_> = self.down.iter().filter(|(_, at)| **at <= self.now).map(|(id, _)| *id).collect();
        for id in due {
            self.down.remove(&id);
            self.clients += 1;
            if self.now > 1 && self.chance(30) {
                self.kept.remove(&id);
                self.lost.entry(id).or_default().push(self.store.revision());
            }
            let intact_since = self.kept.get(&id).copied();
            let value = NodeValue { host: "localhost".into(), port: 9092, rack: None, intact_since };
            let config = MemberConfig {
                node: id,
                cluster_id: None,
                new_cluster_id: format!("cluster-of-{id}"),
                session_timeout_ms: SESSION_MS,
            };
            let mut member = Member::new(config, self.clock(id));
            member.register(self.clock(id), value.clone());
            let broker = Broker { member, value, client: self.clients, paused_until: 0, is_stopping: false };
            self.brokers.insert(id, broker);
            self.drain(id);
        }
    }

    fn is_calm(&self) -> bool {
        self.now >= TROUBLE_MS
    }

    fn send(&mut self, what: Travelling) {
        let (Travelling::Request(_, id, ..) | Travelling::Answer(_, id, ..) | Travelling::Watched(_, id, ..)) =
            &what;
        let cut_until = self.cuts.get(id).copied().filter(|until| *until > self.now);
        let is_watch = matches!(what, Travelling::Watched(..));
        let loss = if cut_until.is_some() { 50 } else { self.loss_percent };
        if !self.is_calm() && !is_watch && self.chance(loss) {
            return;
        }
        let delay = match (self.is_calm(), self.chance(2)) {
            (true, _) => self.between(1, 5),
            // It was lost once or twice on its way.
            (false, true) => self.between(1, 8_000),
            (false, false) => self.between(1, self.delay_ms),
        };
        let mut at = cut_until.unwrap_or(self.now) + delay;
        if let Travelling::Watched(client, ..) = &what {
            let last = self.watch_order.entry(*client).or_default();
            at = at.max(*last);
            *last = at;
        }
        self.sent += 1;
        self.travelling.insert((at, self.sent), what);
    }

    /// Takes what a member asks and says.
    fn drain(&mut self, id: i32) {
        loop {
            let Some(broker) = self.brokers.get_mut(&id) else { return };
            let client = broker.client;
            if let Some((request_id, request)) = broker.member.poll_request() {
                self.send(Travelling::Request(client, id, request_id, request));
                continue;
            }
            let Some(event) = broker.member.poll_event() else { return };
            match event {
                MemberEvent::Lost(_) => self.outcome.lost_leases += 1,
                MemberEvent::Waits(_) => self.outcome.waits += 1,
                MemberEvent::Refused(why) => panic!("broker {id}: {why}"),
                MemberEvent::Left => {
                    let clock = self.clock(id);
                    assert_eq!(self.brokers[&id].member.acts(clock), None, "broker {id} has left and acts");
                    self.outcome.left += 1;
                    self.kill(id, 3_000);
                }
                MemberEvent::Registered(_, epoch) => {
                    self.kept.entry(id).or_insert(epoch);
                }
                MemberEvent::Identified(_) | MemberEvent::Changed(_) | MemberEvent::Done(..) => {}
            }
        }
    }

    fn kill(&mut self, id: i32, down_ms: u64) {
        if let Some(broker) = self.brokers.remove(&id) {
            self.store.disconnect(broker.client);
            let until = self.now + self.between(1, down_ms);
            self.down.insert(id, until);
        }
    }

    fn arrive(&mut self, what: Travelling) {
        match what {
            Travelling::Request(..) if self.store_up_at != 0 => {}
            Travelling::Request(client, id, request_id, request) => {
                let answer = self.store.handle(self.now, client, request_id, &request);
                self.note_store();
                if let Some(answer) = answer {
                    self.send(Travelling::Answer(client, id, request_id, answer));
                }
            }
            Travelling::Answer(client, id, request_id, answer) => {
                let clock = self.clock(id);
                if let Some(broker) = self.of_client(id, client) {
                    broker.member.handle_answer(clock, request_id, &answer);
                }
            }
            Travelling::Watched(client, id, watch, watched) => {
                let clock = self.clock(id);
                if let Some(broker) = self.of_client(id, client) {
                    broker.member.handle_watched(clock, watch, &watched);
                }
            }
        }
    }

    fn of_client(&mut self, id: i32, client: u64) -> Option<&mut Broker> {
        self.brokers.get_mut(&id).filter(|broker| broker.client == client)
    }

    /// What the store has written: who leads, and whether they may.
    fn note_store(&mut self) {
        let pairs: Vec<_> = self.store.pairs().filter(|pair| pair.modified > self.seen).cloned().collect();
        let nodes = self.store.pairs().filter_map(|pair| match model::decode(&pair.key, &pair.value) {
            Ok((Key::Node(id), Value::Node(_))) => Some((id, pair.created)),
            _ => None,
        });
        let alive: BTreeMap<_, _> = nodes.collect();
        for pair in pairs {
            let Ok((Key::Partition(place), Value::Partition(value))) = model::decode(&pair.key, &pair.value)
            else {
                continue;
            };
            if let Some(before) = self.partitions.get(&place).cloned() {
                self.check_change(place, &before, &value, &alive);
            }
            let leader = value.leader.unwrap();
            let first = self.leaders.entry((place, value.epoch)).or_insert(leader);
            assert_eq!(*first, leader, "{place:?}: two leaders in epoch {}", value.epoch);
            self.partitions.insert(place, value);
        }
        self.alive = alive;
        self.seen = self.store.revision();
    }

    fn check_change(
        &mut self,
        place: Place,
        before: &PartitionValue,
        after: &PartitionValue,
        alive: &BTreeMap<i32, Revision>,
    ) {
        let (old, new) = (before.leader.unwrap(), after.leader.unwrap());
        let lives = |one: &Registration| alive.get(&one.0) == Some(&one.1);
        if old == new {
            // Who finds nobody to hand over to any more begins to lead anew.
            let raised = after.epoch - before.epoch;
            assert!((0..=1).contains(&raised), "{place:?}: its leader raises the epoch by {raised}");
            assert!(lives(&old), "{place:?}: {old:?} is dead and changes its in-sync set");
            let set = |of: &PartitionValue| of.isr.iter().copied().collect::<BTreeSet<_>>();
            self.outcome.shrinks += usize::from(set(after).len() < set(before).len());
            self.outcome.growths += usize::from(set(after).len() > set(before).len());
            return;
        }
        assert_eq!(before.epoch + 1, after.epoch, "{place:?}: an election raises the epoch by one");
        assert!(lives(&new), "{place:?}: {new:?} is elected and dead");
        let all_back = before.isr.iter().all(|one| alive.contains_key(&one.0));
        let lost_nothing = |one: &Registration| {
            let mut lost = self.lost.get(&one.0).into_iter().flatten();
            !lost.any(|at| (one.1..new.1).contains(at))
        };
        let has_all = before.isr.iter().any(|one| one.0 == new.0 && (all_back || lost_nothing(one)));
        assert!(has_all, "{place:?}: {new:?} may lack records: {before:?}");
        if lives(&old) {
            self.outcome.transfers += 1;
        } else {
            self.outcome.elections += 1;
        }
    }

    /// At most one broker acts as a partition's leader, and it is the one of the newest epoch.
    fn check_leaders(&mut self) {
        for index in 0..PARTITIONS {
            let place = (TOPIC, index);
            let acting = self.brokers.iter().filter(|(_, broker)| broker.paused_until <= self.now);
            let acting: Vec<_> = acting
                .filter_map(|(id, broker)| Some((*id, broker.member.leads(self.clock(*id), place)?)))
                .collect();
            assert!(acting.len() <= 1, "{place:?} at {}: {acting:?} all lead", self.now);
        }
    }

    /// Something that somebody does, or that happens.
    fn happen(&mut self) {
        let ids: Vec<_> = self.brokers.keys().copied().collect();
        let Some(id) = ids.get(usize::try_from(self.between(0, 99)).unwrap() % ids.len().max(1)).copied()
        else {
            return;
        };
        let place = (TOPIC, i32::try_from(self.between(0, 4)).unwrap());
        match self.between(0, 29) {
            0 => {
                let ms = self.between(1, 6_000);
                self.outcome.pauses += 1;
                // What has come meanwhile comes at the end of the first pause: it must not be over before, or it comes late.
                let until = &mut self.brokers.get_mut(&id).unwrap().paused_until;
                *until = (*until).max(self.now + ms);
            }
            1 => {
                self.outcome.kills += 1;
                self.kill(id, 8_000);
            }
            2 => {
                let clock = self.clock(id);
                let broker = self.brokers.get_mut(&id).unwrap();
                if broker.paused_until <= self.now && !broker.is_stopping {
                    broker.is_stopping = true;
                    broker.member.stop(clock);
                }
            }
            3 => {
                self.outcome.compactions += 1;
                self.store.compact(self.store.revision());
            }
            4 => {
                // The store is restarted: leases have their whole time again, watches end.
                self.store_up_at = self.now + self.between(1, 4_000);
                for id in ids {
                    let client = self.brokers[&id].client;
                    if let Some(watch) = self.store.disconnect(client) {
                        let ended = Watched::Ended("the store has gone".into());
                        self.send(Travelling::Watched(client, id, watch, ended));
                    }
                }
            }
            5..=8 => self.change_isr(id, place),
            10..=11 => {
                self.outcome.cuts += 1;
                let until = self.now + self.between(1, 10_000);
                self.cuts.insert(id, until);
            }
            9 => {
                let clock = self.clock(id);
                let to = i32::try_from(self.between(1, 5)).unwrap();
                if self.brokers[&id].paused_until <= self.now {
                    let _ = self.brokers.get_mut(&id).unwrap().member.transfer(clock, place, to);
                }
            }
            _ => {}
        }
        self.drain(id);
    }

    fn change_isr(&mut self, id: i32, place: Place) {
        let (clock, grow) = (self.clock(id), self.chance(60));
        let broker = self.brokers.get_mut(&id).unwrap();
        if broker.paused_until > self.now || broker.member.leads(clock, place).is_none() {
            return;
        }
        let view = broker.member.view();
        let value = &view.partitions[&place].value;
        let live = value.replicas.iter().filter_map(|id| view.registration(*id));
        let isr: Vec<_> = live.filter(|one| one.0 == id || grow).collect();
        if isr != value.isr {
            let _ = broker.member.change_isr(clock, place, &isr);
        }
    }

    fn make_topic(&mut self) {
        let Some(id) = self.brokers.keys().copied().next() else { return };
        let clock = self.clock(id);
        let replicas: Vec<i32> = self.clocks.keys().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let turned = |at: i32| {
            let mut replicas = replicas.clone();
            let count = replicas.len();
            replicas.rotate_left(usize::try_from(at).unwrap() % count);
            replicas.truncate(3);
            replicas
        };
        let all: Vec<_> = (0..PARTITIONS).map(turned).collect();
        let value = TopicValue { id: TOPIC.to_string(), partitions: PARTITIONS, configs: BTreeMap::new() };
        let _ = self.brokers.get_mut(&id).unwrap().member.create_topic(clock, "orders", &value, &all);
        self.drain(id);
    }

    /// When a clock shows a time, or has shown it.
    fn when(&self, id: i32, clock: u64) -> u64 {
        let (rate, start) = self.clocks[&id];
        (clock.saturating_sub(start) * 1000).div_ceil(rate)
    }

    /// When something is due.
    fn next(&self) -> u64 {
        let arrival = self.travelling.keys().next().map(|(at, _)| *at);
        let timers = self.brokers.iter().filter_map(|(id, broker)| {
            let due = self.when(*id, broker.member.poll_timeout()?);
            Some(due.max(broker.paused_until))
        });
        let others = [self.next_happening, self.store_up_at].into_iter().filter(|at| *at > self.now);
        let all = timers
            .chain(self.down.values().copied())
            .chain(self.store.next_end())
            .chain(others)
            .chain(arrival);
        all.min().unwrap_or(0).max(self.now + 1).min(self.now + 500)
    }

    fn tick(&mut self) {
        self.now = self.next();
        if self.store_up_at != 0 && self.store_up_at <= self.now {
            self.store_up_at = 0;
            self.store.renew(self.now);
        }
        if self.store_up_at == 0 {
            // Leases do not end while the store is down.
            self.store.expire(self.now);
            self.note_store();
        }
        self.start_those_due();
        let due: Vec<_> = self.travelling.range(..=(self.now, u64::MAX)).map(|(key, _)| *key).collect();
        for key in due {
            let Some(what) = self.travelling.remove(&key) else { continue };
            let (Travelling::Answer(_, id, ..) | Travelling::Watched(_, id, ..)) = &what else {
                self.arrive(what);
                continue;
            };
            // A paused broker has it when it goes on.
            let id = *id;
            let paused_until = self.brokers.get(&id).map_or(0, |broker| broker.paused_until);
            if paused_until > self.now {
                self.travelling.insert((paused_until, key.1), what);
                continue;
            }
            self.arrive(what);
            self.drain(id);
        }
        for id in self.brokers.keys().copied().collect::<Vec<_>>() {
            let clock = self.clock(id);
            let Some(broker) = self.brokers.get_mut(&id) else { continue };
            if broker.paused_until <= self.now && broker.member.poll_timeout().is_some_and(|at| at <= clock) {
                broker.member.handle_timeout(clock);
                self.drain(id);
            }
            self.watch(id);
        }
        self.check_leaders();
    }

    fn watch(&mut self, id: i32) {
        let Some(client) = self.brokers.get(&id).map(|broker| broker.client) else { return };
        while self.store_up_at == 0
            && let Some((watch, watched)) = self.store.poll_watch(client)
        {
            self.send(Travelling::Watched(client, id, watch, watched));
        }
    }

    pub(crate) fn run(&mut self) {
        let count = self.clocks.len();
        while self.now < TROUBLE_MS + CALM_MS {
            if !self.is_calm() && self.now >= self.next_happening {
                self.next_happening = self.now + self.between(1, 200);
                self.happen();
            }
            if self.partitions.is_empty() && self.brokers.len() == count {
                self.make_topic();
            }
            self.tick();
        }
        self.check_calm();
        self.outcome.revision = self.store.revision();
    }

    /// When all has been well for a time, all live and each partition has a leader that acts.
    fn check_calm(&mut self) {
        for (id, broker) in &self.brokers {
            assert!(
                broker.member.acts(self.clock(*id)).is_some(),
                "broker {id} does not act: {:?}",
                broker.member
            );
            let theirs = broker.member.view();
            assert_eq!(theirs.revision, self.store.revision(), "broker {id} knows all: {:?}", broker.value);
        }
        assert_eq!(self.brokers.len(), self.clocks.len());
        for index in 0..if self.partitions.is_empty() { 0 } else { PARTITIONS } {
            let place = (TOPIC, index);
            let leads =
                self.brokers.iter().filter_map(|(id, broker)| broker.member.leads(self.clock(*id), place));
            assert_eq!(leads.count(), 1, "{place:?} has a leader: {:?}", self.partitions.get(&place));
        }
    }
}
