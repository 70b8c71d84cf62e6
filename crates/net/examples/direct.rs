//! The Rust side of benches/direct.py: single records and streams of them, through shared memory or over TCP.
//!
//! `direct DATAPATH SPIN_US RECORDS MEBIBYTES [BOOTSTRAP]` prints a JSON line a figure. Without BOOTSTRAP the broker is a
//! thread of this process. Topics `one-N`, `many-N`, `rows-N` and `large-N` are made, N being the process.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program that measures")]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock and its arguments")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "figures are small"
)]

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, BinaryArray, RecordBatch};
use headrace_broker::BrokerConfig;
use headrace_client::consumer::{Assignment, StartAt, TopicPartition};
use headrace_client::options::{ConsumerConfig, ProducerConfig};
use headrace_client::producer::RecordRef;
use headrace_columns::encode::Rows;
use headrace_net::broker::{BrokerServer, ServerOptions};
use headrace_net::client::{ConsumerClient, ProducerClient};

const PATIENCE: Duration = Duration::from_secs(30);
const WARM_UP: Duration = Duration::from_secs(2);
/// Empty polls that are timed at once.
const EMPTY: u32 = 100;
const VALUE: [u8; 100] = [b'x'; 100];
const LARGE: usize = 1024;
/// Of a batch from Arrow.
const ROWS: usize = 10_000;
const COPIED: usize = 256 << 20;
/// How often each stream is read.
const READS: usize = 3;

struct Bench {
    servers: String,
    datapath: String,
    spin_us: String,
}

fn tell(name: &str, mut us: Vec<f64>) {
    us.sort_by(f64::total_cmp);
    let at = |part: f64| us[((us.len() as f64 * part) as usize).min(us.len() - 1)];
    println!(
        "{{\"name\": \"{name}\", \"p50_us\": {:.3}, \"p99_us\": {:.3}, \"p999_us\": {:.3}}}",
        at(0.5),
        at(0.99),
        at(0.999)
    );
}

fn record(topic: &str) -> RecordRef<'_> {
    RecordRef { topic, partition: Some(0), key: None, value: Some(&VALUE), headers: &[], timestamp_ms: None }
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

impl Bench {
    fn pairs(&self, more: &[(&str, &str)]) -> Vec<(String, String)> {
        let own = [
            ("bootstrap.servers", self.servers.as_str()),
            ("headrace.datapath", &self.datapath),
            ("headrace.poll.spin.us", &self.spin_us),
        ];
        own.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn producer(&self, linger_ms: &str) -> ProducerClient<()> {
        let pairs = self.pairs(&[("linger.ms", linger_ms), ("batch.size", "65536")]);
        let producer = ProducerClient::start(ProducerConfig::from_pairs(pairs).unwrap(), |_| ()).unwrap();
        // As from Python.
        producer.be_patient(true);
        producer
    }

    fn consumer(&self, topic: &str, more: &[(&str, &str)]) -> ConsumerClient {
        let config = ConsumerConfig::from_pairs(self.pairs(more)).unwrap();
        let consumer = ConsumerClient::start(config).unwrap();
        let (partition, start) = (TopicPartition::new(topic, 0), Some(StartAt::Earliest));
        consumer.assign(vec![Assignment { partition, start, stop: None }], &mut || false).unwrap();
        consumer
    }

    fn one_by_one(&self, records: usize) {
        let topic = format!("one-{}", std::process::id());
        let producer = self.producer("0");
        let left = Cell::new(0);
        let send = || {
            producer.send(&record(&topic), (), &mut || false).unwrap();
            producer.flush(Some(PATIENCE), &mut || false).unwrap();
            left.set(left.get() + 1);
        };
        let figure = |act: &dyn Fn()| -> Vec<f64> {
            let timed = |_| {
                let since = Instant::now();
                act();
                micros(since)
            };
            (0..records).map(timed).collect()
        };
        let warm = Instant::now();
        while warm.elapsed() < WARM_UP {
            send();
        }
        tell("produce, acknowledged", figure(&send));
        let consumer = self.consumer(&topic, &[]);
        let poll = || {
            let rows = consumer.poll(500, Some(Instant::now() + PATIENCE), &mut || false).unwrap();
            left.set(left.get() - rows.map_or(0, |rows| rows.len));
        };
        let take_all = || {
            while left.get() > 0 {
                poll();
            }
        };
        take_all();
        let warm = Instant::now();
        while warm.elapsed() < WARM_UP {
            send();
            take_all();
        }
        let empty = || consumer.poll(500, Some(Instant::now()), &mut || false).unwrap().is_none();
        let direct = consumer.metrics().unwrap().direct_bytes_consumed_total;
        let memory = matches!(self.datapath.as_str(), "shm" | "verbs");
        assert_eq!(direct > 0, memory, "it went another way");
        // Too short to be seen alone: each is a mean of many.
        let many = || (0..EMPTY).for_each(|_| assert!(empty()));
        tell("empty poll", figure(&many).into_iter().map(|us| us / f64::from(EMPTY)).collect());
        tell("produce, acknowledged, beside a consumer", figure(&send));
        take_all();
        let both = || {
            producer.send(&record(&topic), (), &mut || false).unwrap();
            left.set(1);
            take_all();
        };
        tell("from send to batch", figure(&both));
        producer.flush(Some(PATIENCE), &mut || false).unwrap();
        consumer.close(PATIENCE, true, &mut || false).unwrap();
        producer.close(PATIENCE, &mut || false).unwrap();
    }

    /// So many producers write one partition, all together so many records. The second of two rounds, which has memory from its
    /// start on.
    fn produce(
        &self,
        name: &str,
        topic: &str,
        (producers, records, size): (usize, usize, usize),
        send: &(dyn Fn(&ProducerClient<()>) + Sync),
    ) {
        let clients: Vec<_> = (0..producers).map(|_| self.producer("5")).collect();
        let flush = |producer: &ProducerClient<()>| producer.flush(Some(PATIENCE), &mut || false).unwrap();
        // Twice: with the second's coming the first one's memory is another.
        for producer in clients.iter().chain(&clients) {
            producer.send(&record(topic), (), &mut || false).unwrap();
            flush(producer);
        }
        for round in 0..2 {
            let since = Instant::now();
            std::thread::scope(|scope| {
                for producer in &clients {
                    scope.spawn(move || {
                        send(producer);
                        flush(producer);
                    });
                }
            });
            let seconds = since.elapsed().as_secs_f64();
            if round == 1 {
                let rate = records as f64 / seconds;
                let bytes = rate * size as f64;
                println!("{{\"name\": \"{name}\", \"records_s\": {rate:.0}, \"bytes_s\": {bytes:.0}}}");
            }
        }
        for producer in clients {
            producer.close(PATIENCE, &mut || false).unwrap();
        }
    }

    /// As `send_arrow` of Python does it.
    fn produce_rows(&self, name: &str, size: usize, (producers, records): (usize, usize)) -> String {
        let topic = format!("{}-{}", name.replace([' ', ','], "-"), std::process::id());
        let value = vec![b'x'; size];
        let column = BinaryArray::from_iter_values((0..ROWS).map(|_| &value));
        let batch = RecordBatch::try_from_iter([("value", Arc::new(column) as ArrayRef)]).unwrap();
        let rows = Rows::new(&batch).unwrap();
        let batches = records / ROWS / producers;
        self.produce(name, &topic, (producers, batches * ROWS * producers, size), &|producer| {
            for _ in 0..batches {
                let ticket = producer.begin_rows((), false);
                producer.send_rows(Some(&topic), &rows, &ticket, &mut || false).unwrap();
                producer.finish_rows(&ticket).unwrap();
            }
        });
        topic
    }

    /// The median of a few times, since each takes some hundredths of a second alone.
    fn consume(&self, name: &str, topic: &str, size: usize, records: usize, options: &[(&str, &str)]) {
        let mut rates = [(); READS].map(|()| self.consume_once(topic, records, options));
        rates.sort_by(f64::total_cmp);
        let rate = rates[READS / 2];
        let bytes = rate * size as f64;
        println!("{{\"name\": \"{name}\", \"records_s\": {rate:.0}, \"bytes_s\": {bytes:.0}}}");
    }

    /// Records a second of the second half of a topic of twice `records`.
    fn consume_once(&self, topic: &str, records: usize, options: &[(&str, &str)]) -> f64 {
        let consumer = self.consumer(topic, options);
        let (mut rows, mut since, mut before) = (0, Instant::now(), 0);
        while rows < 2 * records {
            let taken = consumer.poll(1 << 20, Some(Instant::now() + PATIENCE), &mut || false).unwrap();
            rows += taken.unwrap().len;
            // By then what is read comes the way that is asked for.
            if before == 0 && rows > records {
                (since, before) = (Instant::now(), rows);
            }
        }
        let rate = (rows - before) as f64 / since.elapsed().as_secs_f64();
        consumer.close(PATIENCE, true, &mut || false).unwrap();
        rate
    }

    fn streams(&self, mebibytes: usize) {
        let process = std::process::id();
        let copied = [("value.type", "binary")];
        let unchecked = [("value.type", "binary"), ("check.crcs", "false")];
        let views = [("value.type", "binary_view"), ("check.crcs", "false")];
        let many = format!("many-{process}");
        let records = (mebibytes << 20) / VALUE.len() / ROWS * ROWS;
        self.produce("produce", &many, (1, records, VALUE.len()), &|producer| {
            for _ in 0..records {
                producer.send(&record(&many), (), &mut || false).unwrap();
            }
        });
        self.produce_rows("produce from Arrow", VALUE.len(), (1, records));
        self.produce_rows("produce from Arrow, 4 producers", VALUE.len(), (4, records));
        self.consume("consume, copied", &many, VALUE.len(), records, &copied);
        self.consume("consume, copied, without CRC", &many, VALUE.len(), records, &unchecked);
        self.consume("consume, views", &many, VALUE.len(), records, &views);
        let records = ((mebibytes << 20) / LARGE).next_multiple_of(ROWS);
        let large = self.produce_rows("produce from Arrow, 1 KiB", LARGE, (1, records));
        let whole = records.next_multiple_of(4 * ROWS);
        self.produce_rows("produce from Arrow, 1 KiB, 4 producers", LARGE, (4, whole));
        self.consume("consume, 1 KiB, copied", &large, LARGE, records, &copied);
        self.consume("consume, 1 KiB, copied, without CRC", &large, LARGE, records, &unchecked);
        self.consume("consume, 1 KiB, views", &large, LARGE, records, &views);
    }
}

/// Bytes a second from memory to memory that no cache holds, of one thread.
fn copy_memory() {
    let from = vec![1_u8; COPIED];
    let mut to = vec![0_u8; COPIED];
    let copy = |to: &mut [u8]| {
        let since = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(to);
        COPIED as f64 / since.elapsed().as_secs_f64()
    };
    copy(&mut to);
    let best = (0..8).map(|_| copy(&mut to)).fold(0.0, f64::max);
    println!("{{\"name\": \"copy of memory\", \"bytes_s\": {best:.0}}}");
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [datapath, spin_us, records, mebibytes, servers @ ..] = words.as_slice() else {
        eprintln!("direct DATAPATH SPIN_US RECORDS MEBIBYTES [BOOTSTRAP]");
        std::process::exit(2);
    };
    let own = servers.is_empty().then(|| {
        let dir = std::env::temp_dir().join(format!("headrace-direct-{}", std::process::id()));
        let verbs = if datapath == "verbs" { "true" } else { "false" };
        let pairs = [
            ("log.dir", dir.to_str().unwrap()),
            ("headrace.poll.spin.us", spin_us),
            ("headrace.direct.verbs", verbs),
        ];
        let broker = BrokerConfig::from_pairs(pairs).unwrap();
        (BrokerServer::start(ServerOptions::local(broker)).unwrap(), dir)
    });
    let servers = servers.first().cloned().or_else(|| Some(own.as_ref()?.0.bootstrap_servers().to_owned()));
    let bench = Bench { servers: servers.unwrap(), datapath: datapath.clone(), spin_us: spin_us.clone() };
    bench.one_by_one(records.parse().unwrap());
    copy_memory();
    bench.streams(mebibytes.parse().unwrap());
    if let Some((mut server, dir)) = own {
        server.stop().unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }
}
