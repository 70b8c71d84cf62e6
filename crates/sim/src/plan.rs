//! What a seed stands for: who produces what, and which faults there are how often.

mod common;
mod direct;
mod readers;
mod share_consumers;

use self::common::some;
pub(crate) use self::common::{Departure, GRACE_MS, START_MS, TOPICS};
pub(crate) use self::direct::DirectPlan;
pub(crate) use self::readers::ReaderPlan;
pub(crate) use self::share_consumers::{ShareConsumerPlan, SharePlan};
use crate::rng::Rng;

/// Who is in a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cast {
    /// Producers alone.
    Producers,
    /// Producers, and consumers that read what they send.
    Consumers,
    /// Producers, and share consumers of one group.
    ShareConsumers,
    /// Producers, and mostly consumers, through memory that the broker exposes.
    Direct,
}

/// How a broker goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Down {
    /// As asked: everything is synced and marked.
    Stop,
    /// The process is killed: what it wrote stays.
    Kill,
    /// The machine loses power: what was not synced may be lost, and no connection is told.
    PowerLoss,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Restart {
    pub(crate) at_ms: u64,
    pub(crate) down_ms: u64,
    pub(crate) down: Down,
}

/// A partition of a topic, which is named by its place in [`TOPICS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) topic: usize,
    pub(crate) partition: i32,
}

/// How a topic comes to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Birth {
    AtStart,
    /// The first who asks for it makes it.
    ByWhoAsks,
    /// Somebody makes it at that time; until then it is not there.
    At(u64),
}

/// What befalls the nodes. What lasts into the time when all is well ends there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A partition gets a leader, after a time without one.
    Move { place: Place, to: usize, gap_ms: u64 },
    /// A node is gone, and comes back; others take over what it led.
    Down { node: usize, down_ms: u64 },
    /// A node accepts connections and bytes, and does nothing with them for a time.
    Stall { node: usize, stall_ms: u64 },
    /// Another node coordinates the groups.
    Coordinate { to: usize },
    /// A node leads a partition that was behind: the last records, about so many, are gone.
    Cut { place: Place, to: usize, lacks: i64 },
}

/// The nodes, which have one broker behind them, and what they know of each other.
#[derive(Debug, Clone)]
pub(crate) struct ClusterPlan {
    pub(crate) nodes: usize,
    /// When what happens.
    pub(crate) troubles: Vec<(u64, Trouble)>,
    /// Of nodes: how many learn of a change only up to `stale_ms_max` later.
    pub(crate) stale: u64,
    pub(crate) stale_ms_max: u64,
    /// How long others may take to take over from a node that is gone.
    pub(crate) failover_ms_max: u64,
    /// Of refusals by a node that does not lead: how many name who does (KIP-951).
    pub(crate) tells_leader: u64,
    /// A node that is gone is still in the list of brokers.
    pub(crate) lists_the_dead: bool,
}

/// Rates are in percent; a fault that a seed does not have has 0. Each seed has some of the faults, so that rare ones
/// are also seen alone.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Of each topic.
    pub(crate) partitions: i32,
    /// The topics that there are, in the order of [`TOPICS`].
    pub(crate) topics: Vec<Birth>,
    /// Nothing happens but that one node does nothing for a time, and memory is plenty: the others must not feel it.
    pub(crate) calm: bool,
    pub(crate) cluster: ClusterPlan,
    /// The broker syncs before it confirms, so power may be lost.
    pub(crate) durable: bool,
    pub(crate) delay_ms_max: u64,
    /// Bytes travel in pieces of at most so many.
    pub(crate) piece_bytes_max: u64,
    /// Of connections: how many break at some byte.
    pub(crate) cut: u64,
    /// Of connections: how many stall at some byte, for up to `stall_ms_max`.
    pub(crate) stall: u64,
    pub(crate) stall_ms_max: u64,
    /// Of connection attempts: how many are never answered.
    pub(crate) black_hole: u64,
    /// Of Produce responses: how many ask for a pause.
    pub(crate) throttle: u64,
    /// Age at which the broker begins a new segment, of the groups' journal as well; without it a log has one.
    pub(crate) roll_ms: Option<u64>,
    pub(crate) sync_ms_max: u64,
    /// Of syncs: how many fail. What they were to write is on no disk then, whatever later syncs say.
    pub(crate) sync_fails: u64,
    /// Of syncs: how many succeed though the drive only keeps what they were to write, until one that does not lie.
    pub(crate) sync_lies: u64,
    /// How much later than asked a client's thread or timer may run.
    pub(crate) lag_ms_max: u64,
    pub(crate) restarts: Vec<Restart>,
    /// From, until: new connections may reach a byzantine.
    pub(crate) lies: Vec<(u64, u64)>,
    /// When all faults end.
    pub(crate) heal_ms: u64,
    pub(crate) producers: Vec<ProducerPlan>,
    /// None in seeds that are about producers alone.
    pub(crate) readers: Vec<ReaderPlan>,
    /// Only in seeds that are about a share group.
    pub(crate) share: Option<SharePlan>,
    /// Only in seeds that are about memory that the broker exposes.
    pub(crate) direct: Option<DirectPlan>,
}

#[derive(Debug, Clone)]
pub(crate) struct ProducerPlan {
    pub(crate) options: Vec<(&'static str, String)>,
    pub(crate) idempotent: bool,
    /// `acks=0`: nobody promises anything.
    pub(crate) unconfirmed: bool,
    /// Each broker gets one request at a time.
    pub(crate) one_in_flight: bool,
    pub(crate) linger_ms: u64,
    pub(crate) max_block_ms: u64,
    pub(crate) delivery_timeout_ms: u64,
    pub(crate) callers: Vec<Vec<Step>>,
}

/// What a caller does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Sleep { ms: u64 },
    Until { ms: u64 },
    Send { topic: usize, partition: Option<i32>, with_key: bool, bytes: usize, must_arrive: bool },
    SendRows(RowsPlan),
    Flush,
    Close { timeout_ms: u64 },
}

/// An Arrow batch that a caller sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowsPlan {
    /// Without one each row names its own.
    pub(crate) topic: Option<usize>,
    pub(crate) rows: usize,
    /// Of rows: how many name a partition.
    pub(crate) named: u64,
    /// Of rows: how many have a key.
    pub(crate) keyed: u64,
    pub(crate) bytes_max: u64,
    pub(crate) must_arrive: bool,
    /// What the rows are drawn from.
    pub(crate) seed: u64,
    pub(crate) shape: Shape,
}

impl RowsPlan {
    fn draw(rng: &mut Rng, shape: Shape, bytes_max: u64) -> Self {
        Self {
            topic: rng.chance(60).then(|| rng.index(shape.topics)),
            rows: usize::try_from(rng.skewed(15)).unwrap_or(0) + 1,
            named: rng.pick(&[0, 0, 50, 100]),
            keyed: rng.pick(&[0, 0, 50, 100]),
            bytes_max,
            must_arrive: false,
            seed: rng.next(),
            shape,
        }
    }
}

/// What all producers of a plan share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    topics: usize,
    partitions: i32,
    nodes: usize,
    calm: bool,
    heal_ms: u64,
}

impl Shape {
    pub(crate) fn place(self, rng: &mut Rng) -> Place {
        let partitions = usize::try_from(self.partitions).unwrap_or(1);
        let partition = i32::try_from(rng.index(partitions)).unwrap_or(0);
        Place { topic: rng.index(self.topics), partition }
    }
}

impl Plan {
    /// `heal_ms_max`: the faults last at most so long.
    pub(crate) fn draw(rng: &mut Rng, heal_ms_max: u64) -> Self {
        let nodes = rng.pick(&[1, 2, 3]);
        let shape = Shape {
            topics: rng.pick(&[1, 1, 2, 3]),
            partitions: rng.pick(&[1, 1, 2, 3, 5]),
            nodes,
            calm: nodes > 1 && rng.chance(5),
            heal_ms: START_MS + rng.between(500, heal_ms_max),
        };
        let plan = Self::draw_for(rng, shape);
        if shape.calm { plan.calmed() } else { plan }
    }

    fn draw_for(rng: &mut Rng, shape: Shape) -> Self {
        let heal_ms = shape.heal_ms;
        let durable = rng.chance(40);
        let auto_create = rng.chance(20);
        let restarts = if rng.chance(40) { rng.between(1, 3) } else { 0 };
        let lies = if rng.chance(15) { rng.between(1, 2) } else { 0 };
        Self {
            partitions: shape.partitions,
            topics: (0..shape.topics).map(|_| Birth::draw(rng, auto_create, heal_ms)).collect(),
            calm: shape.calm,
            cluster: ClusterPlan::draw(rng, shape),
            durable,
            delay_ms_max: rng.pick(&[0, 1, 5, 30, 200]),
            piece_bytes_max: rng.pick(&[7, 300, 4000, 1 << 20, 1 << 20]),
            cut: some(rng, 50, 60),
            stall: some(rng, 40, 40),
            stall_ms_max: rng.pick(&[50, 500, 4000, 60_000]),
            black_hole: some(rng, 20, 40),
            throttle: some(rng, 20, 50),
            roll_ms: None,
            sync_ms_max: rng.pick(&[0, 3, 50, 800, 3000]),
            sync_fails: if durable { some(rng, 25, 30) } else { 0 },
            sync_lies: 0,
            lag_ms_max: rng.pick(&[0, 0, 1, 10, 100]),
            restarts: (0..restarts).map(|_| Restart::draw(rng, durable, heal_ms)).collect(),
            lies: (0..lies)
                .map(|_| {
                    let from = rng.between(0, heal_ms);
                    (from, from + rng.between(10, 2000))
                })
                .collect(),
            heal_ms,
            producers: (0..rng.between(1, 3)).map(|_| ProducerPlan::draw(rng, shape)).collect(),
            readers: Vec::new(),
            share: None,
            direct: None,
        }
    }

    /// The same without all that may hold up a node that is well.
    fn calmed(self) -> Self {
        Self {
            topics: vec![Birth::AtStart; self.topics.len()],
            delay_ms_max: self.delay_ms_max.min(5),
            cut: 0,
            stall: 0,
            black_hole: 0,
            throttle: 0,
            sync_ms_max: self.sync_ms_max.min(3),
            sync_fails: 0,
            lag_ms_max: self.lag_ms_max.min(10),
            restarts: Vec::new(),
            lies: Vec::new(),
            ..self
        }
    }

    /// The same with share consumers. A machine that loses power loses records that were given already, and no log is cut:
    /// an offset stands for one record, for ever.
    pub(crate) fn with_share_consumers(mut self, rng: &mut Rng) -> Self {
        self.sync_fails = 0;
        for restart in &mut self.restarts {
            if restart.down == Down::PowerLoss {
                restart.down = Down::Kill;
            }
        }
        self.producers.truncate(2);
        if !self.calm && rng.chance(30) {
            for _ in 0..rng.between(1, 4) {
                let to = rng.index(self.cluster.nodes);
                self.cluster.troubles.push((rng.between(START_MS, self.heal_ms), Trouble::Coordinate { to }));
            }
        }
        let lock_ms = rng.pick(&[50, 200, 600, 2000, 2000]);
        let count = rng.pick(&[1, 1, 2, 3, 4]);
        let idles = rng.chance(25);
        self.share = Some(SharePlan {
            lock_ms,
            deliveries_max: rng.pick(&[2, 5, 5, 1000]),
            notices: rng.chance(70),
            false_empties: rng.pick(&[0, 0, 10, 50]),
            errors: some(rng, 30, 20),
            heartbeat_ms: rng.pick(&[100, 500, 1000]),
            shared_by: rng.pick(&[1, 1, 2, 4]),
            idles,
            share_consumers: (0..count)
                .map(|_| ShareConsumerPlan::draw(rng, self.heal_ms, lock_ms, idles))
                .collect(),
        });
        self
    }

    /// The same with a drive that lies of its syncs, in some seeds in which power may be lost.
    pub(crate) fn with_lying_syncs(mut self, rng: &mut Rng) -> Self {
        if self.durable && !self.calm {
            self.sync_lies = some(rng, 40, 60);
        }
        self
    }

    /// The same with logs of several segments, in some seeds.
    pub(crate) fn with_segments(mut self, rng: &mut Rng) -> Self {
        self.roll_ms = rng.pick(&[None, Some(1), Some(20), Some(300)]);
        self
    }

    /// Whether the broker makes topics for those who ask.
    pub(crate) fn auto_create(&self) -> bool {
        self.topics.contains(&Birth::ByWhoAsks)
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let partitions = self.partitions;
        (0..self.topics.len())
            .flat_map(move |topic| (0..partitions).map(move |partition| Place { topic, partition }))
    }
}

impl Birth {
    fn draw(rng: &mut Rng, auto_create: bool, heal_ms: u64) -> Self {
        if auto_create {
            return rng.pick(&[Self::ByWhoAsks, Self::ByWhoAsks, Self::AtStart]);
        }
        if rng.chance(15) { Self::At(rng.between(START_MS, heal_ms)) } else { Self::AtStart }
    }
}

impl ClusterPlan {
    fn draw(rng: &mut Rng, shape: Shape) -> Self {
        let stall = Trouble::Stall { node: rng.index(shape.nodes), stall_ms: rng.between(500, 3000) };
        let only_stall = (START_MS + rng.between(300, 1500), stall);
        // Most callers are done early.
        let until = rng.pick(&[shape.heal_ms, START_MS + 600]).min(shape.heal_ms);
        let count = if shape.nodes > 1 || rng.chance(20) { rng.skewed(12) } else { 0 };
        let troubles: Vec<(u64, Trouble)> = (0..count)
            .map(|_| {
                let (node, ms) = (rng.index(shape.nodes), rng.skewed(3000));
                let trouble = match rng.between(0, 9) {
                    0 | 1 => Trouble::Down { node, down_ms: ms },
                    2 | 3 => Trouble::Stall { node, stall_ms: ms },
                    _ => {
                        let gap_ms = if rng.chance(30) { rng.skewed(500) } else { 0 };
                        Trouble::Move { place: shape.place(rng), to: node, gap_ms }
                    }
                };
                (rng.between(START_MS, until), trouble)
            })
            .collect();
        Self {
            nodes: shape.nodes,
            troubles: if shape.calm { vec![only_stall] } else { troubles },
            stale: rng.pick(&[0, 30, 90]),
            stale_ms_max: rng.pick(&[10, 200, 2000]),
            failover_ms_max: rng.pick(&[0, 30, 1000]),
            tells_leader: rng.pick(&[0, 50, 100]),
            lists_the_dead: rng.chance(50),
        }
    }
}

impl Restart {
    fn draw(rng: &mut Rng, durable: bool, heal_ms: u64) -> Self {
        let downs: &[Down] = if durable {
            &[Down::Stop, Down::Kill, Down::PowerLoss, Down::PowerLoss]
        } else {
            &[Down::Stop, Down::Kill]
        };
        Self { at_ms: rng.between(START_MS, heal_ms), down_ms: rng.skewed(3000), down: rng.pick(downs) }
    }
}

impl ProducerPlan {
    fn draw(rng: &mut Rng, shape: Shape) -> Self {
        let idempotent = rng.chance(75);
        let acks = if idempotent { "all" } else { rng.pick(&["all", "1", "1", "0"]) };
        let in_flight = if idempotent { rng.between(1, 5) } else { rng.between(1, 8) };
        let batch = rng.pick(&[100_u64, 400, 2000, 10_000, 40_000]);
        let memory = rng.pick(&[batch * 2, batch * 3, 20_000, 200_000]).max(batch).max(500);
        let memory = if shape.calm { 1 << 26 } else { memory };
        let linger = rng.pick(&[0_u64, 0, 3, 20, 100]);
        let request_timeout = rng.pick(&[150_u64, 400, 1500]);
        let delivery_timeout = (linger + request_timeout) + rng.pick(&[0_u64, 300, 2000, 10_000]);
        let max_block = rng.pick(&[0_u64, 50, 1000, 3000]);
        let (request_timeout, delivery_timeout, max_block) = if shape.calm {
            (request_timeout.max(400), delivery_timeout + 2000, 3000)
        } else {
            (request_timeout, delivery_timeout, max_block)
        };
        let retries = if !shape.calm && rng.chance(15) { rng.between(1, 3) } else { 1 << 30 };
        // For the last round nothing may be so short that honest delays use it up, and to find out who leads by now takes
        // any number of tries.
        let closes_early = (!shape.calm && rng.chance(40))
            || delivery_timeout < 2000
            || max_block < 1000
            || request_timeout < 400
            || (retries < 10 && shape.nodes > 1);
        let codec = rng.pick(&["none", "none", "none", "lz4", "snappy", "zstd", "gzip"]);
        let strategy = rng.pick(&["full", "incremental"]);
        let share = rng.pick(&["0.5", "1", "0.1"]);
        let options = vec![
            ("bootstrap.servers", rng.pick(&["boot:9092", "node1:9092,boot:9092"]).to_owned()),
            ("enable.idempotence", idempotent.to_string()),
            ("acks", acks.to_owned()),
            ("max.in.flight.requests.per.connection", in_flight.to_string()),
            ("batch.size", batch.to_string()),
            ("buffer.memory", memory.to_string()),
            ("buffer.memory.allocation.strategy", strategy.to_owned()),
            ("buffer.memory.broker.share", share.to_owned()),
            ("linger.ms", linger.to_string()),
            ("request.timeout.ms", request_timeout.to_string()),
            ("delivery.timeout.ms", delivery_timeout.to_string()),
            ("retries", retries.to_string()),
            ("retry.backoff.ms", rng.pick(&["0", "5", "100"]).to_owned()),
            ("reconnect.backoff.ms", rng.pick(&["0", "5", "50"]).to_owned()),
            ("max.block.ms", max_block.to_string()),
            ("max.request.size", rng.pick(&["2000", "30000", "1048576"]).to_owned()),
            ("metadata.max.age.ms", rng.pick(&["100", "1000", "300000"]).to_owned()),
            ("connections.max.idle.ms", rng.pick(&["100", "1000", "540000"]).to_owned()),
            ("socket.connection.setup.timeout.ms", rng.pick(&["100", "1000"]).to_owned()),
            ("socket.connection.setup.timeout.max.ms", "2000".to_owned()),
            ("compression.type", codec.to_owned()),
        ];
        let mut callers: Vec<Vec<Step>> =
            (0..rng.between(1, 3)).map(|_| steps_of_a_caller(rng, shape, batch)).collect();
        callers.push(last_caller(rng, shape, closes_early));
        Self {
            options,
            idempotent,
            unconfirmed: acks == "0",
            one_in_flight: in_flight == 1,
            linger_ms: linger,
            max_block_ms: max_block,
            delivery_timeout_ms: delivery_timeout,
            callers,
        }
    }
}

fn steps_of_a_caller(rng: &mut Rng, shape: Shape, batch_bytes: u64) -> Vec<Step> {
    let pause_ms_max = rng.pick(&[0, 5, 50, 500]);
    let spread = rng.pick(&[0, 50, 100]);
    if shape.calm {
        return steps_in_a_calm(rng, shape);
    }
    let mut steps = Vec::new();
    for _ in 0..rng.between(1, 30) {
        steps.push(match rng.between(0, 99) {
            0..6 => Step::SendRows(RowsPlan::draw(rng, shape, batch_bytes.min(400))),
            6..75 => {
                let named = !rng.chance(spread);
                let Place { topic, partition } = shape.place(rng);
                let bytes = if rng.chance(3) { batch_bytes * 2 } else { rng.skewed(batch_bytes.min(5000)) };
                Step::Send {
                    topic,
                    partition: named.then_some(partition),
                    with_key: rng.chance(50),
                    bytes: usize::try_from(bytes).unwrap_or(0),
                    must_arrive: false,
                }
            }
            75..80 => Step::Flush,
            _ => Step::Sleep { ms: rng.between(0, pause_ms_max) },
        });
    }
    steps
}

/// One record after the other, over a few seconds.
fn steps_in_a_calm(rng: &mut Rng, shape: Shape) -> Vec<Step> {
    let pause_ms_max = rng.pick(&[20, 100, 200]);
    let mut steps = Vec::new();
    for _ in 0..rng.between(20, 40) {
        let Place { topic, partition } = shape.place(rng);
        let (partition, with_key, bytes) = (Some(partition), rng.chance(50), rng.index(50));
        steps.push(Step::Send { topic, partition, with_key, bytes, must_arrive: false });
        steps.push(Step::Sleep { ms: rng.between(0, pause_ms_max) });
    }
    steps
}

/// Ends the producer: at any time, or after a record to each partition of each topic when all is well again.
fn last_caller(rng: &mut Rng, shape: Shape, closes_early: bool) -> Vec<Step> {
    let heal_ms = shape.heal_ms;
    if closes_early {
        let at = rng.between(START_MS, heal_ms + GRACE_MS);
        return vec![Step::Until { ms: at }, Step::Close { timeout_ms: rng.pick(&[0, 20, 500, 20_000]) }];
    }
    let mut steps = vec![Step::Until { ms: heal_ms + GRACE_MS }];
    for topic in 0..shape.topics {
        for partition in 0..shape.partitions {
            let partition = Some(partition);
            steps.push(Step::Send { topic, partition, with_key: false, bytes: 10, must_arrive: true });
        }
    }
    if rng.chance(50) {
        let rows = RowsPlan::draw(rng, shape, 10);
        steps.push(Step::SendRows(RowsPlan { must_arrive: true, ..rows }));
    }
    if rng.chance(50) {
        steps.push(Step::Flush);
    }
    steps.push(Step::Close { timeout_ms: 20_000 });
    steps
}
