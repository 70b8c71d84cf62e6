//! Brokers of a cluster while everything goes wrong, by a seed: they are killed, stopped, paused and come back, cut off from each
//! other and from the store, which is late and loses answers; their clocks run apart, disks are full, and time passes in jumps.
//! What was acknowledged with acks all is never lost, and copies never part.

#![allow(clippy::disallowed_methods, reason = "seeds to run come from the environment")]
#![allow(clippy::print_stdout, reason = "a seed that is asked for alone is shown step by step")]

use std::collections::BTreeMap;

use headrace_wire::errors::ErrorCode;

use super::trio::{Reading, StoreWays, Trio};

/// Seeds of a usual run; `HEADRACE_SIM_SEEDS` asks for more.
const SEEDS: u64 = 150;
const STEPS: u32 = 120;
/// A clock is off by so many thousandths at most.
const DRIFT_PERMILLE: u64 = 45;

/// A small generator, so that a seed is the same everywhere.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % most
    }
}

/// What has happened, so that a run that exercised nothing fails.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    acknowledged: u64,
    kills: u64,
    stops: u64,
    power_losses: u64,
    cuts: u64,
    pauses: u64,
    /// What a broker that was paused took before it looked at its clock again.
    stale: u64,
    lost_answers: u64,
    full_disks: u64,
    elections: u64,
    truncated: u64,
    pushed: u64,
    read_in_memory: u64,
    read_from_followers: u64,
    over_verbs: u64,
    /// Replicas that were asked for, and how often it has others in the end.
    moves: u64,
    moved: u64,
}

struct Chaos {
    trio: Trio,
    chance: Chance,
    brokers: i32,
    down: Vec<i32>,
    /// Brokers whose disks are full.
    full: Vec<i32>,
    /// Produce requests that are not answered: broker, correlation, value.
    waiting: Vec<(i32, i32, String)>,
    /// Values that were acknowledged with acks all, by their offset.
    acknowledged: BTreeMap<i64, String>,
    /// Values that a consumer has read, by their offset.
    seen: BTreeMap<i64, String>,
    /// What is read through memory, and what was.
    readings: Vec<Reading>,
    over: Vec<Reading>,
    written: u64,
    /// Who has lost power last, and the registration under which it was in sync then.
    powerless: Option<(i32, i64)>,
    /// Who has copies in the beginning.
    first: Vec<i32>,
    counts: Counts,
    traces: bool,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let mut chance = Chance(seed);
        let brokers = if chance.below(2) == 0 { 5 } else { 3 };
        let ids: Vec<i32> = (1..=brokers).collect();
        // Leaders hand over to first replicas while records are written.
        let interval = ("leader.imbalance.check.interval.seconds", ["2", "300"][chance.below(2) as usize]);
        let verbs = ("headrace.direct.verbs", ["false", "true"][chance.below(2) as usize]);
        let mut trio = Trio::not_started(&ids, &[("replica.lag.time.max.ms", "2000"), interval, verbs]);
        let drifts = chance.below(2) == 0;
        for id in &ids {
            if drifts {
                let rate = 1000 - DRIFT_PERMILLE + chance.below(2 * DRIFT_PERMILLE + 1);
                trio.set_clock(*id, rate, chance.below(1 << 20));
            }
            trio.start(*id);
        }
        // All push, or one is on a host of its own, or each: those are pushed to over RDMA, or fetch.
        match chance.below(4) {
            0 => trio.apart = ids.iter().copied().collect(),
            1 => trio.apart = [ids[chance.below(ids.len() as u64) as usize]].into(),
            _ => {}
        }
        let copies = brokers as i16 - i16::from(brokers == 5) * 2;
        let min = ["1", "2"][chance.below(2) as usize];
        trio.create("t", 1, copies, &[("min.insync.replicas", min)]);
        trio.pass(500);
        let (first, _) = trio.folders("t");
        let most = [0, 5, 100, 1500][chance.below(4) as usize];
        trio.delays = (most > 0).then_some((seed, most));
        let (most_ms, loss_percent) = ([3, 30, 300, 1500][chance.below(4) as usize], chance.below(11));
        trio.ways = (chance.below(2) == 0).then_some(StoreWays { chance: seed, most_ms, loss_percent });
        Self {
            trio,
            chance,
            brokers,
            down: Vec::new(),
            full: Vec::new(),
            waiting: Vec::new(),
            acknowledged: BTreeMap::new(),
            seen: BTreeMap::new(),
            readings: Vec::new(),
            over: Vec::new(),
            written: 0,
            powerless: None,
            first,
            counts: Counts::default(),
            traces: std::env::var("HEADRACE_SIM_SEED").is_ok(),
        }
    }

    fn any_up(&mut self) -> Option<i32> {
        let ids = self.trio.awake();
        let at = self.chance.below(ids.len().max(1) as u64) as usize;
        ids.get(at).copied()
    }

    fn step(&mut self) {
        match self.chance.below(100) {
            0..40 => self.produce(),
            40..48 => self.read(),
            48..52 => self.begin_reading(),
            52..54 => self.move_replicas(),
            54..58 => self.kill(),
            58..61 => self.stop(),
            61..73 => self.start(),
            73..75 => self.lose_power(),
            75..79 => {
                if let Some(id) = self.any_up() {
                    self.counts.cuts += 1;
                    self.trio.cut.insert(id);
                }
            }
            79..82 => {
                if let Some(id) = self.any_up() {
                    self.counts.cuts += 1;
                    self.trio.lost.insert(id);
                }
            }
            82..86 => {
                self.trio.cut.clear();
                self.trio.lost.clear();
            }
            86..88 => self.pause(),
            88..91 => self.resume(),
            91..93 => self.fill(),
            _ => {
                let ms = [5, 50, 500, 2000, 6000][self.chance.below(5) as usize];
                self.trio.pass(ms);
            }
        }
        self.collect();
        self.look();
        self.trace();
        self.check_leaders();
    }

    /// With one seed asked for: what there is after each step.
    fn trace(&mut self) {
        if self.traces {
            let (trio, acknowledged) = (&self.trio, &self.acknowledged);
            let (ms, up, cut, lost) = (trio.now.mono_ms, trio.ids(), &trio.cut, &trio.lost);
            println!(
                "{ms} ms: up {up:?}, cut {cut:?}, lost {lost:?}, {}, acknowledged {acknowledged:?}",
                trio.partition()
            );
        }
    }

    fn say(&self, what: &str, id: i32) {
        if self.traces {
            println!("broker {id} {what}");
        }
    }

    fn pause(&mut self) {
        if let Some(id) = self.any_up() {
            self.counts.pauses += 1;
            self.say("is paused", id);
            self.trio.pause(id);
        }
    }

    /// All go on that are paused. Some go by what their clocks showed before.
    fn resume(&mut self) {
        let awake = self.trio.awake();
        for id in self.trio.ids().into_iter().filter(|id| !awake.contains(id)).collect::<Vec<_>>() {
            let stale = self.chance.below(4);
            self.counts.stale += stale;
            self.say("goes on", id);
            self.trio.resume(id, stale as usize);
        }
    }

    /// A disk is full, or has room again.
    fn fill(&mut self) {
        match self.full.pop() {
            Some(id) => self.trio.fill(id, false),
            None => {
                let Some(id) = self.any_up() else { return };
                self.counts.full_disks += 1;
                self.say("has a full disk", id);
                self.trio.fill(id, true);
                self.full.push(id);
            }
        }
    }

    /// Sends to whoever thinks that it leads, perhaps wrongly.
    fn produce(&mut self) {
        let Some(to) = self.any_up() else { return };
        let to = if self.chance.below(3) > 0 {
            let leader = self.trio.state_on_own(to, "t").0;
            if self.trio.awake().contains(&leader) { leader } else { to }
        } else {
            to
        };
        if self.waiting.iter().any(|(at, ..)| *at == to) {
            return;
        }
        self.written += 1;
        let value = format!("{to} {}", self.written);
        let acks = if self.chance.below(4) == 0 { 1 } else { -1 };
        let correlation = self.trio.produce(to, acks, "t", &[&value]);
        if acks == -1 {
            self.waiting.push((to, correlation, value));
        } else {
            self.trio.produced(to, correlation);
        }
    }

    fn collect(&mut self) {
        for (to, correlation, value) in std::mem::take(&mut self.waiting) {
            match self.trio.produced(to, correlation) {
                Some((ErrorCode::NONE, offset)) => {
                    self.counts.acknowledged += 1;
                    let before = self.acknowledged.insert(offset, value.clone());
                    assert_eq!(before, None, "offset {offset} was acknowledged twice, now for {value}");
                }
                Some(_) => {}
                None if self.down.contains(&to) => {}
                None => self.waiting.push((to, correlation, value)),
            }
        }
    }

    /// A consumer sees no record that goes away, and none in the place of another, wherever it reads.
    fn read(&mut self) {
        let Some(from) = self.any_up() else { return };
        let offset = if self.chance.below(3) == 0 { 0 } else { self.seen.len() as i64 };
        let rows = self.trio.rows(from, "t", offset);
        if !rows.is_empty() && self.trio.leads(from, "t").is_none() {
            self.counts.read_from_followers += rows.len() as u64;
        }
        self.see(from, rows);
    }

    fn see(&mut self, from: i32, rows: Vec<(i64, String)>) {
        for (offset, value) in rows {
            let before = self.seen.entry(offset).or_insert_with(|| value.clone());
            assert_eq!(*before, value, "at offset {offset} of broker {from}");
        }
    }

    /// A consumer begins to read through memory, at one that thinks that it leads.
    fn begin_reading(&mut self) {
        let Some(at) = self.any_up() else { return };
        let offset = self.chance.below(self.seen.len() as u64 + 2) as i64;
        if let Ok(reading) = self.trio.reader(at, "t", offset) {
            // A broker ends what it has granted to the same consumer before.
            self.readings.push(reading);
        }
    }

    /// What is read through memory is looked at all the time, as a consumer that waits does.
    fn look(&mut self) {
        for mut reading in std::mem::take(&mut self.readings) {
            match self.trio.look(&mut reading) {
                Some(rows) => {
                    self.counts.read_in_memory += rows.len() as u64;
                    self.see(reading.at, rows);
                    self.readings.push(reading);
                }
                None => self.over.push(reading),
            }
        }
    }

    /// Somebody wants the copies on other brokers, or another leader, or nothing of that any more.
    fn move_replicas(&mut self) {
        let Some(by) = self.any_up() else { return };
        match self.chance.below(4) {
            0 => self.trio.ask_for_first(by),
            1 => self.trio.ask_to_reassign(by, "t", None),
            _ => {
                let mut ids: Vec<i32> = (1..=self.brokers).collect();
                let pick = |chance: &mut Chance, ids: &mut Vec<i32>| {
                    ids.swap_remove(chance.below(ids.len() as u64) as usize)
                };
                let target: Vec<i32> = (0..3).map(|_| pick(&mut self.chance, &mut ids)).collect();
                self.counts.moves += 1;
                self.say(&format!("is asked for replicas {target:?}"), by);
                self.trio.ask_to_reassign(by, "t", Some(&target));
            }
        }
    }

    fn kill(&mut self) {
        if self.trio.ids().len() > 1
            && let Some(id) = self.any_up()
        {
            self.counts.kills += 1;
            self.say("is killed", id);
            self.trio.kill(id);
            self.down.push(id);
        }
    }

    /// A machine loses power, and its broker what was not synced. That no two of them do so before the first has caught up is
    /// what copies on machines of their own are for.
    fn lose_power(&mut self) {
        let Some(id) = self.any_up() else { return };
        let in_sync = self.trio.in_sync();
        // Who has lost power before is in sync anew, or no longer.
        let is_whole = self.powerless.is_none_or(|(id, was)| in_sync.get(&id) != Some(&was));
        if self.down.is_empty()
            && in_sync.len() >= 3
            && is_whole
            && let Some(now) = in_sync.get(&id)
        {
            self.counts.power_losses += 1;
            self.say("loses power", id);
            self.powerless = Some((id, *now));
            self.trio.lose_power(id);
            self.down.push(id);
        }
    }

    fn stop(&mut self) {
        let Some(id) = self.any_up() else { return };
        // One that cannot reach the store hands nothing over.
        if self.trio.ids().len() > 1 && !self.trio.lost.contains(&id) {
            self.counts.stops += 1;
            self.say("is stopped", id);
            if self.full.contains(&id) {
                self.trio.fill(id, false);
                self.full.clear();
            }
            // With a store that is late it may give up, as after `LEAVE_MS`.
            self.trio.try_stop(id, 7);
            self.down.push(id);
        }
    }

    fn start(&mut self) {
        if !self.down.is_empty() {
            let at = self.chance.below(self.down.len() as u64) as usize;
            let id = self.down.swap_remove(at);
            self.waiting.retain(|(at, ..)| *at != id);
            self.trio.fill(id, false);
            self.full.retain(|full| *full != id);
            self.trio.start(id);
        }
    }

    /// At most one broker takes records in an epoch.
    fn check_leaders(&mut self) {
        let mut leaders = BTreeMap::new();
        for id in self.trio.awake() {
            if let Some(epoch) = self.trio.leads(id, "t") {
                let other = leaders.insert(epoch, id);
                assert_eq!(other, None, "brokers {other:?} and {id} both lead in epoch {epoch}");
            }
        }
        assert!(leaders.len() <= 1, "at one time: {leaders:?}");
    }

    /// All come back, and agree.
    fn finish(mut self) -> Counts {
        self.trio.cut.clear();
        self.trio.lost.clear();
        self.trio.calm();
        for id in std::mem::take(&mut self.full) {
            self.trio.fill(id, false);
        }
        while !self.down.is_empty() {
            self.start();
        }
        self.trio.pass(45_000);
        self.collect();
        self.look();
        self.readings.iter().chain(&self.over).for_each(Reading::check);
        self.check_leaders();
        let id = self.trio.ids()[0];
        let (leader, epoch, isr) = self.trio.state_on_own(id, "t");
        let (have, wanted) = self.trio.folders("t");
        assert_eq!(have, wanted, "who is to have a copy has one");
        self.counts.moved = u64::from(have != self.first);
        let troubles: Vec<_> = (1..=self.brokers).map(|id| self.trio.troubles(id)).collect();
        assert!(leader > 0, "somebody leads: {troubles:?}");
        assert_eq!(isr.len(), 3, "all are in sync: {troubles:?}");
        self.counts.elections = epoch as u64;
        let lies = self.trio.closed_links.iter().find(|why| why.contains("it tells of"));
        assert_eq!(lies, None, "no broker says what cannot be");
        self.counts.pushed = self.trio.writes;
        self.counts.over_verbs = self.trio.over_verbs;
        self.counts.lost_answers = self.trio.lost_answers;
        let rows: BTreeMap<i64, String> = self.trio.rows(leader, "t", 0).into_iter().collect();
        for (offset, value) in self.acknowledged.iter().chain(&self.seen) {
            assert_eq!(rows.get(offset), Some(value), "offset {offset}; {troubles:?}");
        }
        let bytes = self.trio.bytes(leader, "t", 0);
        for id in isr {
            assert_eq!(self.trio.bytes(id, "t", 0), bytes, "brokers {id} and {leader}; {troubles:?}");
        }
        self.counts.truncated = self.written - rows.len() as u64;
        self.counts
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
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds = match number("HEADRACE_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HEADRACE_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let mut sum = Counts::default();
    for seed in seeds.clone() {
        let counts = std::panic::catch_unwind(|| run(seed));
        let counts =
            counts.unwrap_or_else(|_| panic!("seed {seed}: HEADRACE_SIM_SEED={seed} shows it again"));
        sum.acknowledged += counts.acknowledged;
        sum.kills += counts.kills;
        sum.stops += counts.stops;
        sum.power_losses += counts.power_losses;
        sum.cuts += counts.cuts;
        sum.pauses += counts.pauses;
        sum.stale += counts.stale;
        sum.lost_answers += counts.lost_answers;
        sum.full_disks += counts.full_disks;
        sum.elections += counts.elections;
        sum.truncated += counts.truncated;
        sum.pushed += counts.pushed;
        sum.read_in_memory += counts.read_in_memory;
        sum.read_from_followers += counts.read_from_followers;
        sum.over_verbs += counts.over_verbs;
        sum.moves += counts.moves;
        sum.moved += counts.moved;
    }
    println!("{sum:?}");
    let runs = seeds.end - seeds.start;
    if runs > 1 {
        for count in [
            sum.acknowledged,
            sum.kills,
            sum.stops,
            sum.power_losses,
            sum.cuts,
            sum.pauses,
            sum.stale,
            sum.lost_answers,
            sum.full_disks,
            sum.elections,
            sum.truncated,
            sum.pushed,
            sum.read_in_memory,
            sum.read_from_followers,
            sum.over_verbs,
            sum.moves,
            sum.moved,
        ] {
            assert!(count >= runs / 5, "too little has happened: {sum:?}");
        }
    }
}
