//! What a consumer's operations cost the broker, by datapath: fetches of one batch, and looks that find nothing.
//!
//! `fetch_cost OPERATIONS ROUNDS DATAPATH...` prints a JSON line for each case, datapath and round. The broker is a process of
//! its own, this program once more, and what is counted is what the system charges to that process. Nobody spins
//! (`headrace.poll.spin.us` 0). Through memory a fetch is a batch that the consumer has got, and a look a poll that finds
//! nothing; else both are Fetch requests that were answered.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program that measures")]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock and its arguments")]
#![allow(clippy::cast_precision_loss, reason = "figures are small")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use headrace_broker::BrokerConfig;
use headrace_client::consumer::{Assignment, StartAt, TopicPartition};
use headrace_client::options::{ConsumerConfig, ProducerConfig};
use headrace_client::producer::RecordRef;
use headrace_net::broker::{BrokerServer, ServerOptions};
use headrace_net::client::{ConsumerClient, ProducerClient};

const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a record, each in a batch of its own.
const SIZES: [usize; 3] = [1 << 10, 4 << 10, 16 << 10];
/// How long is looked where there is nothing.
const LOOKS: Duration = Duration::from_secs(2);
/// Of `/proc/PID/stat`.
const TICK_US: f64 = 10_000.0;

/// The broker's process, killed when it is dropped.
struct Broker {
    process: Child,
    folder: PathBuf,
    servers: String,
}

impl Broker {
    fn start() -> Broker {
        let folder = std::env::temp_dir().join(format!("headrace-fetch-cost-{}", std::process::id()));
        let mut process = Command::new(std::env::current_exe().unwrap())
            .arg("broker")
            .arg(&folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut servers = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut servers).unwrap();
        Broker { process, folder, servers: servers.trim().to_owned() }
    }

    /// Microseconds that it has worked: all, and by the share of ticks for itself and in the system.
    fn worked(&self) -> [f64; 3] {
        let of = |path: String| std::fs::read_to_string(path).unwrap();
        let process = self.process.id();
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let nanoseconds = tasks.map(|task| {
            let reported = of(format!("{}/schedstat", task.unwrap().path().display()));
            reported.split(' ').next().unwrap().parse::<f64>().unwrap()
        });
        let all = nanoseconds.sum::<f64>() / 1000.0;
        let stat = of(format!("/proc/{process}/stat"));
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks = |at: usize| fields[at].parse::<f64>().unwrap() * TICK_US;
        [all, ticks(11), ticks(12)]
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn serve(folder: &str) -> ! {
    let pairs = [("log.dir", folder), ("headrace.direct.verbs", "true"), ("headrace.poll.spin.us", "0")];
    let broker = BrokerConfig::from_pairs(pairs).unwrap();
    let server = BrokerServer::start(ServerOptions::local(broker)).unwrap();
    println!("{}", server.bootstrap_servers());
    loop {
        std::thread::park();
    }
}

fn pairs(own: &[(&str, &str)]) -> Vec<(String, String)> {
    own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn fill(servers: &str, topic: &str, bytes: usize, operations: usize) {
    let own = [("bootstrap.servers", servers), ("batch.size", "1")];
    let config = ProducerConfig::from_pairs(pairs(&own)).unwrap();
    let producer = ProducerClient::<()>::start(config, |_| ()).unwrap();
    let value = vec![b'x'; bytes];
    for _ in 0..operations {
        let record = RecordRef {
            topic,
            partition: Some(0),
            key: None,
            value: Some(&value),
            headers: &[],
            timestamp_ms: None,
        };
        producer.send(&record, (), &mut || false).unwrap();
    }
    producer.flush(Some(PATIENCE), &mut || false).unwrap();
    assert!(producer.take_failure().is_none());
    producer.close(PATIENCE, &mut || false).unwrap();
}

fn consumer(servers: &str, datapath: &str, topic: &str) -> ConsumerClient {
    let own = [
        ("bootstrap.servers", servers),
        ("headrace.datapath", datapath),
        ("headrace.poll.spin.us", "0"),
        // A batch an answer; and none that waits for one.
        ("fetch.max.bytes", "1"),
        ("max.partition.fetch.bytes", "1"),
        ("fetch.max.wait.ms", "0"),
    ];
    let consumer = ConsumerClient::start(ConsumerConfig::from_pairs(pairs(&own)).unwrap()).unwrap();
    let partition = TopicPartition::new(topic, 0);
    consumer
        .assign(vec![Assignment { partition, start: Some(StartAt::Earliest), stop: None }], &mut || false)
        .unwrap();
    consumer
}

fn rows(consumer: &ConsumerClient, wait: Duration) -> usize {
    let found = consumer.poll(1, Some(Instant::now() + wait), &mut || false).unwrap();
    found.map_or(0, |found| found.len)
}

fn tell(case: &str, datapath: &str, operations: usize, before: [f64; 3], after: [f64; 3], since: Instant) {
    let took = since.elapsed().as_secs_f64() * 1e6 / operations as f64;
    let [all, user, system] = [0, 1, 2].map(|at| (after[at] - before[at]) / operations as f64);
    println!(
        "{{\"case\": \"{case}\", \"datapath\": \"{datapath}\", \"operations\": {operations}, \"took_us\": {took:.2}, \
         \"broker_us\": {all:.3}, \"user_us\": {user:.3}, \"system_us\": {system:.3}}}"
    );
}

/// Batches that are there, each got by itself, once a whole round of them has gone the way that is measured.
fn batches(broker: &Broker, datapath: &str, bytes: usize, operations: usize) {
    let topic = format!("of-{bytes}");
    let consumer = consumer(&broker.servers, datapath, &topic);
    let whole = (operations * bytes) as u64;
    let began = Instant::now();
    loop {
        let before = (consumer.metrics().unwrap(), broker.worked(), Instant::now());
        let mut left = operations;
        while left > 0 {
            left -= rows(&consumer, PATIENCE);
        }
        let (after, worked) = (consumer.metrics().unwrap(), broker.worked());
        let direct = after.direct_bytes_consumed_total - before.0.direct_bytes_consumed_total;
        let fetches = after.fetch_total - before.0.fetch_total;
        // The first round makes links and connections.
        let first = before.0.fetch_total == 0;
        if !first && (datapath != "verbs" || direct >= whole) {
            assert!(datapath == "verbs" || fetches >= operations as u64, "several batches a fetch");
            tell(&format!("a batch of {bytes} bytes"), datapath, operations, before.1, worked, before.2);
            break;
        }
        assert!(began.elapsed() < PATIENCE, "it goes another way: {direct} bytes of {whole}");
        consumer.seek(&[(TopicPartition::new(topic.as_str(), 0), StartAt::Earliest)]).unwrap();
    }
    consumer.close(PATIENCE, false, &mut || false).unwrap();
}

/// Looks where nothing is, for a while.
fn nothing(broker: &Broker, datapath: &str) {
    let consumer = consumer(&broker.servers, datapath, "of-1024");
    while rows(&consumer, LOOKS) > 0 {}
    let fetches = || consumer.metrics().unwrap().fetch_total;
    let (first, before, since) = (fetches(), broker.worked(), Instant::now());
    let mut polls = 0;
    while since.elapsed() < LOOKS {
        assert_eq!(rows(&consumer, Duration::ZERO), 0);
        polls += 1;
        // There is one processor in a guest.
        if polls % 100 == 0 {
            std::thread::yield_now();
        }
    }
    let (after, fetched) = (broker.worked(), fetches() - first);
    let operations = if datapath == "verbs" { polls } else { usize::try_from(fetched).unwrap() };
    assert!(operations > 0 && (datapath != "verbs" || fetched == 0), "{fetched} fetches");
    tell("a look at nothing", datapath, operations, before, after, since);
    consumer.close(PATIENCE, false, &mut || false).unwrap();
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["broker", folder] => serve(folder),
        [operations, rounds, ref datapaths @ ..] if !datapaths.is_empty() => {
            let operations: usize = operations.parse().unwrap();
            let broker = Broker::start();
            for bytes in SIZES {
                fill(&broker.servers, &format!("of-{bytes}"), bytes, operations);
            }
            for _ in 0..rounds.parse().unwrap() {
                for datapath in datapaths {
                    for bytes in SIZES {
                        batches(&broker, datapath, bytes, operations);
                    }
                    nothing(&broker, datapath);
                }
            }
        }
        _ => {
            eprintln!("fetch_cost OPERATIONS ROUNDS DATAPATH...");
            std::process::exit(2);
        }
    }
}
