//! Who goes through memory that the broker exposes, and what befalls that.

use super::common::{START_MS, some};
use super::{Birth, Down, Place, Plan, ProducerPlan, Step, Trouble};
use crate::client::Who;
use crate::rng::Rng;

/// Links, and what lies in the memory that came over them. Rates are in percent.
#[derive(Debug, Clone)]
pub(crate) struct DirectPlan {
    /// Settings of the broker.
    pub(crate) settings: Vec<(&'static str, String)>,
    /// A note, or a word of a slot, takes at most so long to be seen.
    pub(crate) note_ms_max: u64,
    /// Notes are taken only at multiples of this.
    pub(crate) burst_ms: u64,
    /// Memory that is exposed takes at most so long to come.
    pub(crate) control_ms_max: u64,
    /// Of memory that is exposed: how much never comes, though the link lives; also when all is well.
    pub(crate) withheld: u64,
    /// Of links: how many end by themselves, after up to `link_ms_max`.
    pub(crate) ends: u64,
    pub(crate) link_ms_max: u64,
    /// Of writes: how many are the last of their link, before, in the middle of, or after writing, or told as well.
    pub(crate) breaks: u64,
    /// Of links that are asked for: how many cannot be made.
    pub(crate) unmade: u64,
    /// Of the times that a file has grown: how often there is more in it than is committed.
    pub(crate) torn: u64,
    /// Of the times that a client hears something: how often something else comes as well.
    pub(crate) lies: u64,
    /// Clients that lie to the broker: when they come.
    pub(crate) rogues: Vec<RoguePlan>,
    /// Producers that are gone at one blow: which, and when; and whether their connections end with them.
    pub(crate) deaths: Vec<(usize, u64, bool)>,
    /// A topic that is deleted while it is written: nobody else reads it, and nothing is said of its records.
    pub(crate) doomed: Option<(usize, u64)>,
    /// When records are deleted, where, and how many of a hundred of all that there are.
    pub(crate) deletes: Vec<(u64, Place, i64)>,
    /// There are cards.
    pub(crate) card: bool,
    /// Consumers, and every other producer, are on another host.
    pub(crate) far: bool,
    /// Of files that are shown over RDMA: how many cannot be registered.
    pub(crate) unregistered: u64,
    /// Of the memory that the broker wants to expose: how much its machine has not.
    pub(crate) missing: u64,
}

/// A client that asks for memory and tells of what it has not written there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RoguePlan {
    pub(crate) at_ms: u64,
    /// What it does, one after the other.
    pub(crate) acts: u64,
    pub(crate) every_ms: u64,
    /// It comes over RDMA.
    pub(crate) verbs: bool,
    /// It writes beside others.
    pub(crate) shares: bool,
}

impl DirectPlan {
    fn draw(rng: &mut Rng, heal_ms: u64, producers: usize, scarce: bool) -> Self {
        let rogues = if rng.chance(25) { rng.between(1, 3) } else { 0 };
        let deaths = if producers > 1 && rng.chance(40) { producers - 1 } else { 0 };
        Self {
            settings: settings(rng, scarce),
            note_ms_max: rng.pick(&[0, 0, 1, 20, 300]),
            burst_ms: rng.pick(&[1, 1, 1, 50, 400, 4000]),
            control_ms_max: rng.pick(&[0, 0, 0, 5, 100, 3000]),
            withheld: if rng.chance(15) { rng.pick(&[10, 50, 100]) } else { 0 },
            ends: some(rng, 40, 80),
            link_ms_max: rng.pick(&[10, 300, 2000]),
            breaks: some(rng, 40, 20),
            unmade: some(rng, 20, 60),
            torn: rng.pick(&[0, 30, 100]),
            lies: some(rng, 20, 10),
            rogues: (0..rogues)
                .map(|_| RoguePlan {
                    at_ms: rng.between(START_MS, heal_ms),
                    acts: rng.between(1, 30),
                    every_ms: rng.pick(&[0, 1, 30]),
                    verbs: rng.chance(70),
                    shares: rng.chance(60),
                })
                .collect(),
            deaths: (0..deaths)
                .map(|at| {
                    let within_ms = rng.pick(&[50, 500, 3000]);
                    (at, START_MS + rng.between(0, within_ms), rng.chance(70))
                })
                .collect(),
            doomed: None,
            deletes: Vec::new(),
            card: false,
            far: false,
            unregistered: 0,
            missing: 0,
        }
    }

    /// Whether a client is on another host than the broker.
    pub(crate) fn is_far(&self, who: Who) -> bool {
        self.far && !matches!(who, Who::Producer(number) if number % 2 > 0)
    }
}

impl Plan {
    /// The same with links. There is one node, whose epochs are the broker's: the broker exposes memory, and it alone knows
    /// who has it.
    pub(crate) fn with_direct(mut self, rng: &mut Rng) -> Self {
        self.calm = false;
        self.cluster.nodes = 1;
        self.cluster.troubles.retain(|(_, trouble)| !matches!(trouble, Trouble::Move { .. }));
        for (_, trouble) in &mut self.cluster.troubles {
            if let Trouble::Down { node, .. } | Trouble::Stall { node, .. } = trouble {
                *node = 0;
            }
        }
        // A link ends with its connection: in half of the seeds those hold.
        if rng.chance(50) {
            (self.cut, self.stall, self.black_hole) = (0, 0, 0);
            self.cluster.troubles.clear();
            self.restarts.truncate(rng.index(2));
        }
        for producer in &mut self.producers {
            producer.linger_on(rng);
        }
        // Whoever shares a broker's memory is on its machine.
        for restart in &mut self.restarts {
            if restart.down == Down::PowerLoss {
                restart.down = Down::Kill;
            }
        }
        // No memory is exposed of partitions that sync before they confirm.
        self.durable &= rng.chance(15);
        let scarce = rng.chance(30);
        let doomed = (self.topics.len() > 1 && !self.auto_create() && rng.chance(40))
            .then(|| (self.topics.len() - 1, rng.between(START_MS + 50, self.heal_ms)));
        if let Some((doomed, _)) = doomed {
            self.topics[doomed] = Birth::AtStart;
            for producer in &mut self.producers {
                producer.outlive_topic();
            }
        }
        let direct = DirectPlan::draw(rng, self.heal_ms, self.producers.len(), scarce);
        // Whoever wants memory and nothing else is told where there can be none for good.
        let sure =
            !self.durable && direct.rogues.is_empty() && !scarce && direct.lies == 0 && direct.unmade == 0;
        let card = rng.chance(50);
        let [unregistered, missing] = [(); 2].map(|()| if sure { 0 } else { some(rng, 20, 50) });
        self.direct = Some(DirectPlan { doomed, card, far: card && !sure, unregistered, missing, ..direct });
        for rogue in self.direct.iter_mut().flat_map(|direct| &mut direct.rogues) {
            // Nobody shares a ring with who comes another way.
            rogue.verbs &= card;
            rogue.acts *= 1 + u64::from(rogue.shares);
        }
        for producer in &mut self.producers {
            let of: &[_] = match (sure, card) {
                (true, true) => &["verbs", "verbs", "verbs", "shm", "tcp"],
                (true, false) => &["shm", "shm", "auto", "tcp"],
                (false, _) => &["auto", "auto", "auto", "tcp"],
            };
            producer.go_by(rng.pick(of));
        }
        if rng.chance(75) {
            self = self.with_readers(rng);
            let places: Vec<Place> = self.lasting().collect();
            let deletes = if rng.chance(35) { rng.between(1, 12) } else { 0 };
            let when = (START_MS + 100, self.heal_ms);
            if let Some(direct) = &mut self.direct {
                let draw =
                    |_| (rng.between(when.0, when.1), rng.pick(&places), rng.pick(&[20, 60, 95, 100, 100]));
                direct.deletes = (0..deletes).map(draw).collect();
            }
            for reader in &mut self.readers {
                let of: &[_] = match (sure, card) {
                    (true, true) => &["verbs", "verbs", "verbs", "shm", "tcp"],
                    (true, false) => &["shm", "shm", "auto", "tcp"],
                    (false, _) => &["auto", "auto", "auto", "tcp"],
                };
                // There is more to be read than elsewhere.
                reader.habits.rows_max = reader.habits.rows_max.max(5);
                // Brokers would wait each time for more than a partition may bring.
                reader.options.retain(|(name, _)| *name != "fetch.min.bytes");
                reader.options.push(("headrace.datapath", rng.pick(of).to_owned()));
            }
        }
        self
    }

    /// Whether a topic goes while it is used.
    pub(crate) fn is_doomed(&self, topic: usize) -> bool {
        self.direct.as_ref().and_then(|direct| direct.doomed).is_some_and(|(doomed, _)| doomed == topic)
    }

    /// The partitions whose records count.
    pub(crate) fn lasting(&self) -> impl Iterator<Item = Place> + '_ {
        self.places().filter(|place| !self.is_doomed(place.topic))
    }
}

impl ProducerPlan {
    /// Without answers a producer stays with TCP, and may not ask for more.
    fn go_by(&mut self, datapath: &str) {
        let unanswered = self.options.contains(&("acks", "0".to_owned()));
        let datapath = if unanswered && datapath != "tcp" { "auto" } else { datapath };
        self.options.push(("headrace.datapath", datapath.to_owned()));
    }

    /// Callers begin when there may be memory, and go on for longer.
    fn linger_on(&mut self, rng: &mut Rng) {
        let last = self.callers.len().saturating_sub(1);
        for steps in self.callers.iter_mut().take(last) {
            if rng.chance(20) {
                continue;
            }
            let once = std::mem::take(steps);
            for _ in 0..rng.between(1, 3) {
                steps.push(Step::Sleep { ms: rng.skewed(400) });
                steps.extend(&once);
            }
        }
    }

    /// Records that go with their topic hold its memory to the end of their time, so others need not come through.
    fn outlive_topic(&mut self) {
        for step in self.callers.iter_mut().flatten() {
            match step {
                Step::Send { must_arrive, .. } => *must_arrive = false,
                Step::SendRows(rows) => rows.must_arrive = false,
                _ => {}
            }
        }
        // The broker's own refusals take no time, and are tried again only after some.
        self.options.retain(|(name, _)| *name != "retry.backoff.ms");
        self.options.push(("retry.backoff.ms", "5".to_owned()));
    }
}

fn settings(rng: &mut Rng, scarce: bool) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("headrace.direct.ring.bytes.max", rng.pick(&["65536", "65536", "100000", "1048576"]).to_owned()),
        ("log.segment.bytes", "1048576".to_owned()),
        ("headrace.direct.verbs", "true".to_owned()),
        ("log.roll.ms", rng.pick(&["1", "20", "300", "604800000"]).to_owned()),
    ];
    if scarce {
        settings.push((
            rng.pick(&[
                "headrace.direct.links.max",
                "headrace.direct.grants.max",
                "headrace.direct.grants.max",
            ]),
            rng.pick(&["0", "1", "2", "3"]).to_owned(),
        ));
        settings.push(("headrace.direct.memory.bytes", rng.pick(&["0", "65536", "200000"]).to_owned()));
    }
    settings
}
