//! Brokers of a cluster while everything goes wrong, by a seed: they are killed, stopped, paused and come back, cut off from each
//! other and from the store, which is late, loses answers and watches, and is restarted; their clocks run apart, disks are full,
//! and time passes. What was acknowledged with acks all is never lost, and copies never part.

#![allow(clippy::print_stdout, reason = "a seed that is asked for alone is shown step by step")]

mod counts;
mod history;
mod plots;

use std::collections::{BTreeMap, BTreeSet};

use headrace_wire::random::SplitMix64;

use super::runner::{self, Usual, run_seeds};
use super::trio::{Source, StoreWays, Trio};
use counts::Counts;
use history::History;

/// Seeds of a usual run; `HEADRACE_SIM_SEEDS` asks for more.
const SEEDS: u64 = 150;
const STEPS: u32 = 150;
/// A clock is off by so many thousandths at most.
const DRIFT_PERMILLE: u64 = 45;
/// A broker that is stopped hands over for so long at most, as the driver has it.
const LEAVE_MS: u64 = 10_000;
/// After the store has changed, it is looked at each moment who leads, for so long.
const LOOKS_MS: u64 = 400;
const TOPICS: [&str; 3] = ["t", "u", "v"];

/// What somebody does, or what happens.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Produce,
    Read,
    ReadMemory,
    Move,
    Kill,
    KillRack,
    Stop,
    LosePower,
    Cut,
    LoseStore,
    Pause,
    Fill,
    Slow,
    LateWatch,
    Store,
    Relapse,
    Relay,
    Jump,
}

impl Kind {
    /// Whether it is no fault.
    fn is_client(self) -> bool {
        matches!(self, Self::Produce | Self::Read | Self::ReadMemory | Self::Jump)
    }
}

/// How often each happens. Each seed has faults of its own: of some none, of others many.
const KINDS: [(Kind, u64); 18] = [
    (Kind::Produce, 120),
    (Kind::Read, 25),
    (Kind::ReadMemory, 8),
    (Kind::Move, 4),
    (Kind::Kill, 4),
    (Kind::KillRack, 1),
    (Kind::Stop, 4),
    (Kind::LosePower, 3),
    (Kind::Cut, 4),
    (Kind::LoseStore, 4),
    (Kind::Pause, 5),
    (Kind::Fill, 2),
    (Kind::Slow, 5),
    (Kind::LateWatch, 5),
    (Kind::Store, 3),
    (Kind::Relapse, 2),
    (Kind::Relay, 2),
    (Kind::Jump, 6),
];

/// What comes at a time of its own: mostly the end of a fault.
#[derive(Debug, Clone, Copy)]
enum Later {
    Start(i32),
    Mend(i32),
    Reconnect(i32),
    Resume(i32),
    Free(i32),
    /// Who is killed, or loses power, and after how long it comes back.
    Kill(i32, u64),
    LosePower(i32, u64),
    /// Who is cut off, and for how long.
    Cut(i32, u64),
    /// Nothing comes from one to the other for so long.
    Slow(i32, i32, u64),
    /// A topic by its place, and who is to lead: the first of these replicas.
    Lead(usize, [i32; 3]),
    /// A batch with acks all, or 1, and a look, of a topic at a broker.
    Produce(usize, i32),
    ProduceToLeader(usize, i32),
    Read(usize, i32),
}

struct Chaos {
    trio: Trio,
    random: SplitMix64,
    brokers: i32,
    weights: Vec<(Kind, u64)>,
    topics: Vec<History>,
    /// By time: what comes then.
    later: BTreeMap<(u64, u64), Later>,
    scheduled: u64,
    /// Until when there are no other faults than those that are scheduled.
    quiet_until: u64,
    /// Brokers whose disks are full.
    full: BTreeSet<i32>,
    /// Brokers that hand over what they lead, until when at most.
    stopping: BTreeMap<i32, u64>,
    /// Who has lost power last, and, by topic, the registration under which it was in sync then.
    powerless: Option<(i32, BTreeMap<&'static str, i64>)>,
    counts: Counts,
    traces: bool,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let mut below = |most: u64| random.next_u64() % most;
        let brokers = if below(2) == 0 { 5 } else { 3 };
        let ids: Vec<i32> = (1..=brokers).collect();
        // Leaders hand over to first replicas while records are written.
        let interval = ("leader.imbalance.check.interval.seconds", ["2", "300"][below(2) as usize]);
        let verbs = ("headrace.direct.verbs", ["false", "true"][below(2) as usize]);
        let pushes = ("headrace.direct.replication", ["auto", "auto", "tcp"][below(3) as usize]);
        let lag = ("replica.lag.time.max.ms", "2000");
        let mut trio = Trio::not_started(&ids, &[lag, interval, verbs, pushes]);
        let drifts = below(2) == 0;
        for id in &ids {
            if drifts {
                let rate = 1000 - DRIFT_PERMILLE + below(2 * DRIFT_PERMILLE + 1);
                trio.set_clock(*id, rate, below(1 << 20));
            }
            trio.start(*id);
        }
        // All push, or one is on a host of its own, or each: those are pushed to over RDMA, or fetch.
        match below(4) {
            0 => trio.apart = ids.iter().copied().collect(),
            1 => trio.apart = [ids[below(ids.len() as u64) as usize]].into(),
            _ => {}
        }
        let names = &TOPICS[..=below(3) as usize];
        for topic in names {
            trio.create(topic, 1, 3, &[("min.insync.replicas", ["1", "2"][below(2) as usize])]);
        }
        trio.pass(500);
        let topics = names.iter().enumerate().map(|(at, topic)| History::new(at, topic, &mut trio)).collect();
        let most = [0, 5, 100, 1500][below(4) as usize];
        trio.delays = (most > 0).then_some((seed, most));
        let (most_ms, loss_percent) = ([3, 30, 300, 1500][below(4) as usize], below(11));
        trio.ways = (below(2) == 0).then_some(StoreWays { chance: seed, most_ms, loss_percent });
        let weigh = |(kind, usual): (Kind, u64)| {
            (kind, if kind.is_client() { usual * 4 } else { usual * [0, 2, 4, 12][below(4) as usize] })
        };
        let weights = KINDS.map(weigh).to_vec();
        Self {
            trio,
            random,
            brokers,
            weights,
            topics,
            later: BTreeMap::new(),
            scheduled: 0,
            quiet_until: 0,
            full: BTreeSet::new(),
            stopping: BTreeMap::new(),
            powerless: None,
            counts: Counts::default(),
            traces: runner::replayed().is_some(),
        }
    }

    fn below(&mut self, most: u64) -> u64 {
        self.random.next_u64() % most
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let at = self.below(from.len().max(1) as u64) as usize;
        from.get(at).copied()
    }

    fn any_awake(&mut self) -> Option<i32> {
        let ids = self.trio.awake();
        self.pick(&ids)
    }

    /// A time for which something lasts.
    fn a_while(&mut self) -> u64 {
        let most = self.pick(&[100, 1000, 2500, 4000, 8000]).unwrap();
        1 + self.below(most)
    }

    fn schedule(&mut self, after_ms: u64, what: Later) {
        self.scheduled += 1;
        self.later.insert((self.trio.now.mono_ms + after_ms, self.scheduled), what);
    }

    fn kind(&mut self) -> Kind {
        let all = self.weights.iter().map(|(_, weight)| weight).sum();
        let mut at = self.below(all);
        for (kind, weight) in &self.weights {
            match at.checked_sub(*weight) {
                None => return *kind,
                Some(left) => at = left,
            }
        }
        Kind::Produce
    }

    fn step(&mut self) {
        let mut kind = self.kind();
        if self.trio.now.mono_ms < self.quiet_until && !kind.is_client() {
            kind = Kind::Produce;
        }
        let topic = self.below(self.topics.len() as u64) as usize;
        if let Some(id) = self.any_awake() {
            match kind {
                Kind::Produce => self.produce(topic, id),
                Kind::Read => self.read(topic, id),
                Kind::ReadMemory => {
                    let offset = self.below(self.topics[topic].seen() + 2) as i64;
                    self.topics[topic].begin_reading(&mut self.trio, id, offset);
                }
                Kind::Move => self.move_replicas(topic, id),
                Kind::Kill => {
                    let ms = self.a_while();
                    self.kill_for(id, ms);
                }
                Kind::KillRack => self.kill_rack(),
                Kind::Stop => self.stop(id),
                Kind::LosePower => {
                    let ms = self.a_while();
                    self.lose_power(id, ms);
                }
                Kind::Cut | Kind::LoseStore | Kind::Pause | Kind::Fill => self.disturb(kind, id),
                Kind::Slow | Kind::LateWatch => self.delay(kind, id),
                Kind::Store => self.trouble_store(id),
                Kind::Relapse => self.relapse(topic),
                Kind::Relay => self.relay(topic),
                Kind::Jump => {
                    let ms = self.a_while();
                    self.pass(ms);
                }
            }
        }
        let ms = self.pick(&[0, 0, 1, 5, 20, 100, 400]).unwrap();
        self.pass(ms);
        self.end_stopped();
        self.collect();
        if let Some(id) = self.any_awake() {
            self.topics[topic].note_leader(&mut self.trio, id);
        }
        self.trace();
        self.look_who_leads();
    }

    /// Lets time pass: what ends then ends, and it is looked at who leads.
    fn pass(&mut self, ms: u64) {
        let until = self.trio.now.mono_ms + ms;
        loop {
            let next = self.later.keys().next().map_or(until, |(at, _)| (*at).min(until));
            while self.trio.now.mono_ms < next && !self.trio.pass_some(next) {
                if self.trio.now.mono_ms < self.trio.changed_ms + LOOKS_MS {
                    self.look_who_leads();
                }
            }
            while let Some(entry) = self.later.first_entry()
                && entry.key().0 <= self.trio.now.mono_ms
            {
                let what = entry.remove();
                self.come(what);
            }
            if self.trio.now.mono_ms >= until {
                return;
            }
        }
    }

    /// At no moment two brokers give out records as leaders of a partition.
    fn look_who_leads(&mut self) {
        self.counts.looks += 1;
        look(&mut self.trio, &self.topics);
    }

    fn come(&mut self, what: Later) {
        self.say(format_args!("{what:?}"));
        match what {
            Later::Start(id) => self.start(id),
            Later::Mend(id) => drop(self.trio.cut.remove(&id)),
            Later::Reconnect(id) => drop(self.trio.lost.remove(&id)),
            Later::Resume(id) => {
                let stale = self.below(4) as usize;
                let topics = &self.topics;
                self.counts.stale += self.trio.resume(id, stale, |trio| look(trio, topics)) as u64;
            }
            Later::Free(id) => self.free(id),
            Later::Slow(from, to, ms) => drop(self.trio.slow.insert((from, to), self.trio.now.mono_ms + ms)),
            Later::Cut(id, ms) => {
                self.trio.cut.insert(id);
                self.schedule(ms, Later::Mend(id));
            }
            // What was to be done to somebody who is not there, or stands still, is not done.
            Later::Kill(id, _) | Later::LosePower(id, _) | Later::Read(_, id) | Later::Lead(_, [id, ..])
                if !self.trio.awake().contains(&id) => {}
            Later::Produce(_, id) | Later::ProduceToLeader(_, id) if !self.trio.ids().contains(&id) => {}
            Later::Kill(id, ms) => self.kill_for(id, ms),
            Later::LosePower(id, ms) => self.lose_power(id, ms),
            Later::Lead(topic, order) => self.trio.lead(self.topics[topic].topic, order),
            Later::Produce(topic, id) => self.topics[topic].produce(&mut self.trio, id, -1),
            Later::ProduceToLeader(topic, id) => self.topics[topic].produce(&mut self.trio, id, 1),
            Later::Read(topic, id) => drop(self.topics[topic].read(&mut self.trio, id, 0)),
        }
    }

    /// With one seed asked for: what there is after each step.
    fn trace(&mut self) {
        if self.traces {
            let trio = &self.trio;
            let (ms, up, awake) = (trio.now.mono_ms, trio.ids(), trio.awake());
            println!("{ms} ms: up {up:?}, awake {awake:?}, cut {:?}, lost {:?}", trio.cut, trio.lost);
            for topic in &self.topics {
                println!("  {}: {:?}", topic.topic, trio.stored(topic.topic));
            }
        }
    }

    fn say(&self, what: std::fmt::Arguments<'_>) {
        if self.traces {
            println!("{} ms: {what}", self.trio.now.mono_ms);
        }
    }

    // ---- clients

    /// Sends to whoever is said to lead, perhaps wrongly, or to anybody. They may be paused.
    fn produce(&mut self, topic: usize, id: i32) {
        let leader = match self.below(8) {
            0 => self.pick(&self.trio.ids()).unwrap_or(id),
            1 => self.trio.stored(self.topics[topic].topic).leader.map_or(id, |leader| leader.0),
            _ => self.trio.state_on_own(id, self.topics[topic].topic).0,
        };
        let to = if self.trio.ids().contains(&leader) { leader } else { id };
        let acks = if self.below(4) == 0 { 1 } else { -1 };
        self.topics[topic].produce(&mut self.trio, to, acks);
    }

    fn read(&mut self, topic: usize, id: i32) {
        let seen = self.topics[topic].seen() as i64;
        let offset = if self.below(3) == 0 { 0 } else { seen };
        let leads = self.trio.leading(self.topics[topic].topic).contains(&id);
        let rows = self.topics[topic].read(&mut self.trio, id, offset);
        self.counts.read += rows;
        self.counts.read_from_followers += if leads { 0 } else { rows };
    }

    fn collect(&mut self) {
        for topic in &mut self.topics {
            self.counts.acknowledged += topic.collect(&mut self.trio);
            self.counts.read_in_memory += topic.look(&self.trio);
        }
    }

    /// Somebody wants the copies on other brokers, or another leader, or nothing of that any more.
    fn move_replicas(&mut self, topic: usize, by: i32) {
        let topic = self.topics[topic].topic;
        match self.below(4) {
            0 | 1 => self.trio.ask_for_first(by),
            2 => self.trio.ask_to_reassign(by, topic, None),
            _ => {
                let mut ids: Vec<i32> = (1..=self.brokers).collect();
                let mut target = Vec::new();
                while target.len() < 3 {
                    target.push(ids.swap_remove(self.below(ids.len() as u64) as usize));
                }
                self.counts.moves += 1;
                self.say(format_args!("broker {by} is asked for replicas {target:?} of {topic}"));
                self.trio.ask_to_reassign(by, topic, Some(&target));
            }
        }
    }

    // ---- faults

    fn kill(&mut self, id: i32) {
        self.trio.kill(id);
        self.forget(id);
    }

    /// A process is gone, and what its clients waited for.
    fn forget(&mut self, id: i32) {
        self.stopping.remove(&id);
        self.topics.iter_mut().for_each(|topic| topic.forget(id));
    }

    fn kill_for(&mut self, id: i32, back_ms: u64) {
        self.counts.kills += 1;
        self.say(format_args!("broker {id} is killed"));
        self.kill(id);
        self.schedule(back_ms, Later::Start(id));
    }

    /// Several at once, perhaps all, paused ones too.
    fn kill_rack(&mut self) {
        self.counts.racks += 1;
        for id in self.trio.ids() {
            if self.below(4) > 0 {
                let ms = self.a_while();
                self.kill_for(id, ms);
            }
        }
    }

    /// A machine loses power, and its broker what was not synced. That no two of them do so before the first has caught up is
    /// what copies on machines of their own are for.
    fn lose_power(&mut self, id: i32, back_ms: u64) {
        let mut in_sync_as = BTreeMap::new();
        for topic in self.topics.iter().map(|topic| topic.topic) {
            let in_sync = self.trio.in_sync(topic);
            let before = self.powerless.as_ref().and_then(|(id, was)| Some((id, was.get(topic)?)));
            // Who has lost power before is in sync anew, or no longer.
            let is_whole = before.is_none_or(|(id, was)| in_sync.get(id) != Some(was));
            if self.trio.stored(topic).replicas.contains(&id) {
                let Some(epoch) = in_sync.get(&id).filter(|_| in_sync.len() >= 3 && is_whole) else { return };
                in_sync_as.insert(topic, *epoch);
            } else if !is_whole {
                return;
            }
        }
        // What it has asked for may leave it alone in the set, done after it has lost its records.
        if self.trio.ids().len() == self.brokers as usize && !self.trio.is_asking(id) {
            self.counts.power_losses += 1;
            self.say(format_args!("broker {id} loses power"));
            self.powerless = Some((id, in_sync_as));
            self.trio.lose_power(id);
            self.forget(id);
            self.schedule(back_ms, Later::Start(id));
        }
    }

    /// A broker begins to hand over what it leads.
    fn stop(&mut self, id: i32) {
        if !self.stopping.contains_key(&id) {
            self.counts.stops += 1;
            self.say(format_args!("broker {id} is stopped"));
            self.trio.leave(id);
            self.stopping.insert(id, self.trio.now.mono_ms + LEAVE_MS);
        }
    }

    fn end_stopped(&mut self) {
        for (id, until) in self.stopping.clone() {
            let is_over = until <= self.trio.now.mono_ms;
            if !self.trio.awake().contains(&id) || !(self.trio.has_left(id) || is_over) {
                continue;
            }
            self.trio.close(id);
            self.forget(id);
            let ms = self.a_while();
            self.schedule(ms, Later::Start(id));
        }
    }

    fn start(&mut self, id: i32) {
        if !self.trio.ids().contains(&id) {
            // With a full disk it would not start.
            self.free(id);
            self.trio.start(id);
        }
    }

    fn free(&mut self, id: i32) {
        if self.full.remove(&id) {
            self.trio.fill(id, false);
        }
    }

    fn disturb(&mut self, kind: Kind, id: i32) {
        let ms = self.a_while();
        self.say(format_args!("broker {id}: {kind:?} for {ms} ms"));
        match kind {
            Kind::Cut => {
                self.counts.cuts += 1;
                self.trio.cut.insert(id);
                self.schedule(ms, Later::Mend(id));
            }
            Kind::LoseStore => {
                self.counts.lost += 1;
                self.trio.lost.insert(id);
                self.schedule(ms, Later::Reconnect(id));
            }
            Kind::Pause => {
                self.counts.pauses += 1;
                let at = self.pick(&Source::ALL).unwrap();
                self.trio.pause(id, at);
                self.schedule(ms, Later::Resume(id));
            }
            _ => {
                self.counts.full_disks += 1;
                self.full.insert(id);
                self.trio.fill(id, true);
                self.schedule(ms, Later::Free(id));
            }
        }
    }

    /// What is sent from one to another, or what a watch brings, comes not before a while.
    fn delay(&mut self, kind: Kind, id: i32) {
        let until = self.trio.now.mono_ms + self.a_while();
        if let Kind::LateWatch = kind {
            self.counts.late_watches += 1;
            self.say(format_args!("broker {id} sees nothing new before {until} ms"));
            self.trio.late.insert(id, until);
            return;
        }
        let to = 1 + self.below(self.brokers as u64) as i32;
        if to != id {
            self.counts.slow_ways += 1;
            self.say(format_args!("nothing comes from {id} to {to} before {until} ms"));
            self.trio.slow.insert((id, to), until);
        }
    }

    fn trouble_store(&mut self, id: i32) {
        match self.below(3) {
            0 => {
                self.counts.compactions += 1;
                self.trio.compact_store();
            }
            1 => {
                self.counts.store_restarts += 1;
                self.trio.restart_store();
            }
            _ => {
                self.counts.silent_watches += 1;
                self.trio.silence_watch(id);
            }
        }
    }

    /// All come back, and agree.
    fn finish(mut self) -> Counts {
        self.trio.cut.clear();
        self.trio.lost.clear();
        self.trio.calm();
        for id in self.stopping.keys().copied().collect::<Vec<_>>() {
            self.kill(id);
        }
        for id in 1..=self.brokers {
            self.free(id);
            self.start(id);
        }
        self.trio.pass(45_000);
        self.collect();
        self.look_who_leads();
        let troubles: Vec<_> = (1..=self.brokers).map(|id| self.trio.troubles(id)).collect();
        let lies = self.trio.closed_links.iter().find(|why| why.contains("it tells of"));
        assert_eq!(lies, None, "no broker says what cannot be");
        self.counts.pushed = self.trio.writes;
        self.counts.over_verbs = self.trio.over_verbs;
        self.counts.lost_answers = self.trio.lost_answers;
        for topic in self.topics {
            let (has_moved, epoch, cut_off) = topic.check(&mut self.trio, &troubles);
            self.counts.moved += u64::from(has_moved);
            self.counts.elections += epoch;
            self.counts.cut_off += cut_off;
        }
        self.counts
    }
}

fn look(trio: &mut Trio, topics: &[History]) {
    for topic in topics {
        let leading = trio.leading(topic.topic);
        assert!(leading.len() <= 1, "at one time {leading:?} lead {}", topic.topic);
    }
}

fn run(seed: u64) -> Counts {
    let mut chaos = Chaos::new(seed);
    for _ in 0..STEPS {
        chaos.step();
    }
    chaos.finish()
}

#[test]
fn nothing_acknowledged_is_lost_whatever_happens() {
    if let Some(seed) = runner::replayed() {
        println!("{:?}", run(seed));
        return;
    }
    let usual = Usual { seconds: 0, seeds_min: SEEDS };
    let ran = run_seeds(usual, Counts::default(), |seed| Ok(run(seed)), Counts::add);
    let (seeds, sum) = (ran.seeds, ran.sum);
    println!("{seeds} seeds from {} on: {sum:?}", ran.first);
    ran.held();
    for (what, count) in sum.all() {
        assert!(count >= seeds / 30, "{what}: {count}, too little in {seeds} seeds: {sum:?}");
    }
}

/// A failure can be replayed.
#[test]
fn a_seed_does_the_same_again() {
    for seed in 1..4 {
        assert_eq!(run(seed), run(seed));
    }
}
