//! What a seed stands for: who produces what, and which faults there are how often.

use crate::rng::Rng;

/// The simulation begins at this time, so that nothing confuses "never" with "at the start".
pub(crate) const START_MS: u64 = 1000;
/// What is still to come of the faults after their end must be over by so much later.
pub(crate) const GRACE_MS: u64 = 8000;

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

/// Rates are in percent; a fault that a seed does not have has 0. Each seed has some of the faults, so that rare ones
/// are also seen alone.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) partitions: i32,
    /// The broker syncs before it confirms, so power may be lost.
    pub(crate) durable: bool,
    /// The topic is made by the first who asks for it.
    pub(crate) auto_create: bool,
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
    pub(crate) sync_ms_max: u64,
    pub(crate) sync_fails: u64,
    /// How much later than asked a client's thread or timer may run.
    pub(crate) lag_ms_max: u64,
    pub(crate) restarts: Vec<Restart>,
    /// From, until: new connections may reach a liar.
    pub(crate) lies: Vec<(u64, u64)>,
    /// When all faults end.
    pub(crate) heal_ms: u64,
    pub(crate) producers: Vec<ProducerPlan>,
}

#[derive(Debug, Clone)]
pub(crate) struct ProducerPlan {
    pub(crate) options: Vec<(&'static str, String)>,
    pub(crate) idempotent: bool,
    /// `acks=0`: nobody promises anything.
    pub(crate) unconfirmed: bool,
    pub(crate) max_block_ms: u64,
    pub(crate) delivery_timeout_ms: u64,
    pub(crate) callers: Vec<Vec<Step>>,
}

/// What a caller does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Sleep { ms: u64 },
    Until { ms: u64 },
    Send { partition: Option<i32>, with_key: bool, bytes: usize, must_arrive: bool },
    Flush,
    Close { timeout_ms: u64 },
}

impl Plan {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let heal_ms = START_MS + rng.between(500, 6000);
        let durable = rng.chance(40);
        let partitions = rng.pick(&[1, 1, 2, 3, 5]);
        let some = |rng: &mut Rng, of_seeds: u64, rate_max: u64| {
            if rng.chance(of_seeds) { rng.between(1, rate_max) } else { 0 }
        };
        let restarts = if rng.chance(40) { rng.between(1, 3) } else { 0 };
        let lies = if rng.chance(15) { rng.between(1, 2) } else { 0 };
        Self {
            partitions,
            durable,
            auto_create: rng.chance(20),
            delay_ms_max: rng.pick(&[0, 1, 5, 30, 200]),
            piece_bytes_max: rng.pick(&[7, 300, 4000, 1 << 20, 1 << 20]),
            cut: some(rng, 50, 60),
            stall: some(rng, 40, 40),
            stall_ms_max: rng.pick(&[50, 500, 4000, 60_000]),
            black_hole: some(rng, 20, 40),
            throttle: some(rng, 20, 50),
            sync_ms_max: rng.pick(&[0, 3, 50, 800, 3000]),
            sync_fails: if durable { some(rng, 25, 30) } else { 0 },
            lag_ms_max: rng.pick(&[0, 0, 1, 10, 100]),
            restarts: (0..restarts).map(|_| Restart::draw(rng, durable, heal_ms)).collect(),
            lies: (0..lies)
                .map(|_| {
                    let from = rng.between(0, heal_ms);
                    (from, from + rng.between(10, 2000))
                })
                .collect(),
            heal_ms,
            producers: (0..rng.between(1, 3)).map(|_| ProducerPlan::draw(rng, partitions, heal_ms)).collect(),
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
    fn draw(rng: &mut Rng, partitions: i32, heal_ms: u64) -> Self {
        let idempotent = rng.chance(75);
        let acks = if idempotent { "all" } else { rng.pick(&["all", "1", "1", "0"]) };
        let in_flight = if idempotent { rng.between(1, 5) } else { rng.between(1, 8) };
        let batch = rng.pick(&[100_u64, 400, 2000, 10_000, 40_000]);
        let memory = rng.pick(&[batch * 2, batch * 3, 20_000, 200_000]).max(batch).max(500);
        let linger = rng.pick(&[0_u64, 0, 3, 20, 100]);
        let request_timeout = rng.pick(&[150_u64, 400, 1500]);
        let delivery_timeout = (linger + request_timeout) + rng.pick(&[0_u64, 300, 2000, 10_000]);
        let max_block = rng.pick(&[0_u64, 50, 1000, 3000]);
        // For the last round nothing may be so short that honest delays use it up.
        let closes_early =
            rng.chance(40) || delivery_timeout < 2000 || max_block < 1000 || request_timeout < 400;
        let retries = if rng.chance(15) { rng.between(1, 3) } else { 1 << 30 };
        let codec = rng.pick(&["none", "none", "none", "lz4", "snappy", "zstd", "gzip"]);
        let strategy = rng.pick(&["full", "incremental"]);
        let options = vec![
            ("bootstrap.servers", "boot:9092".to_owned()),
            ("enable.idempotence", idempotent.to_string()),
            ("acks", acks.to_owned()),
            ("max.in.flight.requests.per.connection", in_flight.to_string()),
            ("batch.size", batch.to_string()),
            ("buffer.memory", memory.to_string()),
            ("buffer.memory.allocation.strategy", strategy.to_owned()),
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
            (0..rng.between(1, 3)).map(|_| steps_of_a_caller(rng, partitions, batch)).collect();
        callers.push(last_caller(rng, partitions, heal_ms, closes_early));
        Self {
            options,
            idempotent,
            unconfirmed: acks == "0",
            max_block_ms: max_block,
            delivery_timeout_ms: delivery_timeout,
            callers,
        }
    }
}

fn steps_of_a_caller(rng: &mut Rng, partitions: i32, batch_bytes: u64) -> Vec<Step> {
    let pause_ms_max = rng.pick(&[0, 5, 50, 500]);
    let spread = rng.pick(&[0, 50, 100]);
    let mut steps = Vec::new();
    for _ in 0..rng.between(1, 30) {
        steps.push(match rng.between(0, 99) {
            0..75 => {
                let named = !rng.chance(spread);
                let count = u64::try_from(partitions).unwrap_or(1);
                let partition = i32::try_from(rng.between(0, count - 1)).unwrap_or(0);
                let bytes = if rng.chance(3) { batch_bytes * 2 } else { rng.skewed(batch_bytes.min(5000)) };
                Step::Send {
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

/// Ends the producer: at any time, or after a record to each partition when all is well again.
fn last_caller(rng: &mut Rng, partitions: i32, heal_ms: u64, closes_early: bool) -> Vec<Step> {
    if closes_early {
        let at = rng.between(START_MS, heal_ms + GRACE_MS);
        return vec![Step::Until { ms: at }, Step::Close { timeout_ms: rng.pick(&[0, 20, 500, 20_000]) }];
    }
    let mut steps = vec![Step::Until { ms: heal_ms + GRACE_MS }];
    for partition in 0..partitions {
        steps.push(Step::Send { partition: Some(partition), with_key: false, bytes: 10, must_arrive: true });
    }
    if rng.chance(50) {
        steps.push(Step::Flush);
    }
    steps.push(Step::Close { timeout_ms: 20_000 });
    steps
}
