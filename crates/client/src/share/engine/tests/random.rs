//! Seeded weather: connections end, answers do not come, leaders move, sessions are forgotten, locks run out, callers say
//! this and that. The model holds the client to its limit at every moment; in the end nothing is left over.

use headrace_wire::random::SplitMix64;

use super::*;

const SEEDS: u64 = 120;

struct Weather {
    chance: SplitMix64,
    bench: Bench,
    explicit: bool,
    appended: usize,
    /// Rows that a caller has, by partition, offset and delivery count.
    with_caller: Vec<(i32, i64, i16)>,
}

impl Weather {
    fn new(seed: u64) -> Weather {
        let mut chance = SplitMix64::new(seed);
        let explicit = chance.next_u64().is_multiple_of(2);
        let limits = !chance.next_u64().is_multiple_of(4);
        let max_records = [1, 2, 3, 5, 20, 500][usize::try_from(chance.next_u64() % 6).unwrap()].to_string();
        let nodes = 1 + chance.next_u64() % 4;
        let leaders: Vec<i32> = (0..nodes + chance.next_u64() % 4)
            .map(|_| 1 + i32::try_from(chance.next_u64() % nodes).unwrap())
            .collect();
        let options = [
            ("share.acquire.mode", if limits { "record_limit" } else { "batch_optimized" }),
            ("share.acknowledgement.mode", if explicit { "explicit" } else { "implicit" }),
            ("max.poll.records", max_records.as_str()),
            ("request.timeout.ms", "1000"),
        ];
        let mut bench = Bench::subscribed(&leaders, &options);
        bench.kafka.share.lock_ms = 500 + chance.next_u64() % 2_000;
        bench.kafka.share.deliveries_max = i16::MAX;
        bench.kafka.share.may_be_late = true;
        bench.kafka.share.notices = chance.next_u64().is_multiple_of(2);
        Weather { chance, bench, explicit, appended: 0, with_caller: Vec::new() }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.chance.next_u64() % bound
    }

    fn partition(&mut self) -> i32 {
        let count = self.bench.kafka.share.parts.len() as u64;
        i32::try_from(self.below(count)).unwrap()
    }

    fn node(&mut self) -> i32 {
        let count = self.bench.kafka.layout.nodes.len() as u64;
        let at = usize::try_from(self.below(count)).unwrap();
        self.bench.kafka.layout.nodes[at]
    }

    fn step(&mut self) {
        match self.below(40) {
            0..=5 => {
                let (partition, records) = (self.partition(), 1 + usize::try_from(self.below(30)).unwrap());
                self.appended += records;
                self.bench.append(partition, records);
            }
            6..=27 => self.poll(),
            28 => {
                let node = self.node();
                self.bench.cut(node);
            }
            29 => {
                let node = self.node();
                self.bench.kafka.silent = Some(node);
            }
            30 | 31 => self.bench.kafka.silent = None,
            32 => self.move_leader(),
            33 => {
                let codes = [
                    ErrorCode::SHARE_SESSION_NOT_FOUND,
                    ErrorCode::INVALID_SHARE_SESSION_EPOCH,
                    ErrorCode::SHARE_SESSION_LIMIT_REACHED,
                    ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
                    ErrorCode::UNKNOWN_SERVER_ERROR,
                ];
                let at = usize::try_from(self.below(5)).unwrap();
                self.bench.kafka.share.refuse = Some(codes[at]);
            }
            34 => {
                let partition = self.partition();
                let codes = &mut self.bench.kafka.share.parts.get_mut(&key(partition)).unwrap().fetch_codes;
                codes.push(ErrorCode::KAFKA_STORAGE_ERROR);
            }
            35 => {
                let port = u16::try_from(9000 + self.node()).unwrap();
                self.bench.world.refused = vec![port];
            }
            36 | 37 => self.bench.world.refused.clear(),
            _ => {
                let ms = self.below(1_500);
                self.bench.run(ms);
            }
        }
    }

    fn move_leader(&mut self) {
        let (partition, node) = (self.partition(), self.node());
        let at = usize::try_from(partition).unwrap();
        let kafka = &mut self.bench.kafka;
        if kafka.layout.topics[0].1[at] != node {
            kafka.share.move_leader(key(partition), node);
            kafka.layout.topics[0].1[at] = node;
            // Epochs of all partitions stand in one number here.
            kafka.layout.epoch += 1;
            for part in kafka.share.parts.values_mut() {
                part.leader_epoch = kafka.layout.epoch;
            }
        }
    }

    fn poll(&mut self) {
        self.mark();
        let ms = self.below(400);
        match self.bench.poll(ms) {
            Ok(Some((partition, rows))) => {
                self.with_caller =
                    rows.into_iter().map(|(offset, count)| (partition, offset, count)).collect();
            }
            Ok(None) => self.with_caller.clear(),
            Err(error) => panic!("{error}"),
        }
    }

    /// Says of each row that the caller has what became of it; mostly that it was worked on.
    fn mark(&mut self) {
        if !self.explicit {
            return;
        }
        let rows = std::mem::take(&mut self.with_caller);
        for (partition, offset, delivery_count) in rows {
            let ack = match self.below(12) {
                0 => Ack::Release,
                1 => Ack::Reject,
                _ => Ack::Accept,
            };
            let marks = [(tp(partition), vec![Mark { first: offset, last: offset, delivery_count, ack }])];
            // It may be too late for that.
            if let Err(error) = self.bench.buffer().acknowledge(&marks) {
                assert_eq!(error.code(), Some(ErrorCode::INVALID_RECORD_STATE));
            }
        }
    }

    fn heal(&mut self) {
        self.bench.kafka.silent = None;
        self.bench.world.refused.clear();
        for part in self.bench.kafka.share.parts.values_mut() {
            part.fetch_codes.clear();
        }
        let until = self.bench.now_ms() + 150_000;
        let is_open = |record: &Record| matches!(record, Record::Available | Record::Acquired { .. });
        while self.bench.kafka.share.records_in(is_open) > 0 {
            self.poll();
            if self.with_caller.is_empty() {
                self.bench.run(20);
            }
            if self.bench.now_ms() >= until {
                let decisions = self.bench.buffer().decisions(0).1;
                let last = &decisions[decisions.len().saturating_sub(12)..];
                let open: Vec<_> = self
                    .bench
                    .kafka
                    .share
                    .parts
                    .iter()
                    .flat_map(|(key, part)| {
                        let open = part.records.iter().enumerate().filter(|(_, (record, _))| is_open(record));
                        open.map(|(offset, record)| (key.1, part.leader, offset, record.clone()))
                            .collect::<Vec<_>>()
                    })
                    .collect();
                panic!("{open:?} of {} are left over; {last:#?}", self.appended);
            }
        }
    }
}

#[test]
fn in_any_weather_no_more_is_held_than_allowed_and_nothing_is_lost() {
    for seed in 1..=SEEDS {
        // The last one that a failing test names is the one.
        eprintln!("seed {seed}");
        let mut weather = Weather::new(seed);
        for _ in 0..150 {
            weather.step();
        }
        weather.heal();
        weather.bench.close(true);
        assert_eq!(
            weather.bench.kafka.share.records_in(|record| matches!(record, Record::Acquired { .. })),
            0
        );
    }
}
