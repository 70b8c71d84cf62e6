//! Clients and a broker over verbs: Soft-RoCE in a guest, where tests/rdma runs these; `cargo test -- --ignored` on a machine
//! with a card. A broker that is killed is a process of its own: this program once more.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::indexing_slicing,
    reason = "a test ends at what it did not expect, and starts processes"
)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use arrow_array::{Array, BinaryArray};
use headrace_broker::BrokerConfig;
use headrace_client::consumer::{Assignment, StartAt, TopicPartition};
use headrace_client::options::{ConsumerConfig, ProducerConfig};
use headrace_client::producer::RecordRef;
use headrace_net::broker::{BrokerServer, ServerOptions};
use headrace_net::client::{ConsumerClient, ProducerClient};

#[path = "verbs/byzantine.rs"]
mod byzantine;
#[path = "verbs/carried.rs"]
mod carried;
#[path = "verbs/copies.rs"]
mod copies;
#[path = "verbs/frames.rs"]
mod frames;

/// A guest's seconds are long ones.
const PATIENCE: Duration = Duration::from_secs(40);

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("headrace-verbs-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn broker(folder: &Path, port: u16, more: &[(&str, &str)]) -> BrokerServer {
    let own = [("log.dir", folder.to_str().unwrap()), ("headrace.direct.verbs", "true")];
    let pairs: Vec<_> = own.iter().chain(more).copied().collect();
    let broker = BrokerConfig::from_pairs(pairs).unwrap();
    BrokerServer::start(ServerOptions { port, ..ServerOptions::local(broker) }).unwrap()
}

fn pairs(servers: &str, more: &[(&str, &str)]) -> Vec<(String, String)> {
    let own = [("bootstrap.servers", servers), ("headrace.datapath", "verbs")];
    let own = own.iter().filter(|(name, _)| more.iter().all(|(other, _)| other != name));
    own.chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn producer(servers: &str, more: &[(&str, &str)]) -> ProducerClient<()> {
    ProducerClient::start(ProducerConfig::from_pairs(pairs(servers, more)).unwrap(), |_| ()).unwrap()
}

fn consumer(servers: &str, topic: &str, more: &[(&str, &str)]) -> ConsumerClient {
    let own = [("value.type", "binary")];
    let more: Vec<_> = own.iter().chain(more).copied().collect();
    let consumer = ConsumerClient::start(ConsumerConfig::from_pairs(pairs(servers, &more)).unwrap()).unwrap();
    let partition = TopicPartition::new(topic, 0);
    let assignment = Assignment { partition, start: Some(StartAt::Earliest), stop: None };
    consumer.assign(vec![assignment], &mut || false).unwrap();
    consumer
}

fn value(number: usize, bytes: usize) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(bytes.max(8), u8::try_from(number % 251).unwrap());
    value
}

fn send(producer: &ProducerClient<()>, topic: &str, numbers: std::ops::Range<usize>, bytes: usize) {
    for number in numbers {
        let value = value(number, bytes);
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
    assert_eq!(producer.take_failure().map(|error| error.to_string()), None);
}

/// The next records are these, whole and in order.
fn expect(consumer: &ConsumerClient, numbers: std::ops::Range<usize>, bytes: usize) {
    let mut next = numbers.start;
    while next < numbers.end {
        let rows = consumer.poll(10_000, Some(Instant::now() + PATIENCE), &mut || false).unwrap();
        let rows = rows.unwrap_or_else(|| panic!("no record {next}"));
        let column = rows.chunk.column_by_name("value").unwrap();
        let values = column.as_any().downcast_ref::<BinaryArray>().unwrap();
        for row in rows.start..rows.start + rows.len {
            assert_eq!(values.value(row), value(next, bytes), "record {next}");
            next += 1;
        }
    }
    assert_eq!(next, numbers.end);
}

/// Sends until batches go over verbs; what was sent.
fn warm(producer: &ProducerClient<()>, topic: &str, bytes: usize) -> usize {
    let since = Instant::now();
    let mut sent = 0;
    while producer.direct_bytes().unwrap() == 0 {
        send(producer, topic, sent..sent + 1, bytes);
        sent += 1;
        assert!(since.elapsed() < PATIENCE, "nothing goes over verbs");
    }
    sent
}

fn direct_bytes(consumer: &ConsumerClient) -> u64 {
    consumer.metrics().unwrap().direct_bytes_consumed_total
}

#[test]
#[ignore = "needs an RDMA device"]
fn records_go_both_ways_around_rings_and_over_segments() {
    let folder = Folder::new("ways");
    // Rings of one batch or two, segments of several windows' worth of reads.
    let small = [
        ("headrace.direct.ring.bytes.max", "65536"),
        ("message.max.bytes", "65536"),
        ("log.segment.bytes", "1048576"),
    ];
    let mut server = broker(&folder.0, 0, &small);
    let servers = server.bootstrap_servers().to_owned();
    let producer = producer(&servers, &[("linger.ms", "1"), ("batch.size", "30000")]);
    let sent = warm(&producer, "t", 1000);
    let reader = consumer(&servers, "t", &[]);
    expect(&reader, 0..sent, 1000);
    send(&producer, "t", sent..3000, 1000);
    assert!(producer.direct_bytes().unwrap() > 2_000_000, "{:?}", producer.direct_bytes());
    expect(&reader, sent..3000, 1000);
    let before = direct_bytes(&reader);
    assert!(before > 1_000_000, "{before}");
    // One that comes late reads sealed segments and the growing one.
    let late = consumer(&servers, "t", &[]);
    expect(&late, 0..3000, 1000);
    // One record at a time: the reader sleeps, and is nudged.
    for number in 3000..3010 {
        send(&producer, "t", number..number + 1, 1000);
        expect(&reader, number..number + 1, 1000);
    }
    assert!(direct_bytes(&reader) > before);
    for consumer in [&reader, &late] {
        consumer.close(PATIENCE, true, &mut || false).unwrap();
    }
    producer.close(PATIENCE, &mut || false).unwrap();
    server.stop().unwrap();
    for file in std::fs::read_dir(folder.0.join("t-0")).unwrap() {
        let file = file.unwrap();
        let log = file.path().extension().is_some_and(|end| end == "log");
        assert!(!log || file.metadata().unwrap().len() <= 1 << 20, "{file:?} was not cut");
    }
}

#[test]
#[ignore = "a broker for others"]
fn broker_of_another() {
    let Ok(folder) = std::env::var("HEADRACE_VERBS_BROKER") else { return };
    let port = std::env::var("HEADRACE_VERBS_PORT").unwrap().parse().unwrap();
    let server = broker(Path::new(&folder), port, &[]);
    println!("\nserves {}", server.bootstrap_servers());
    loop {
        std::thread::park();
    }
}

/// A broker in a process of its own, killed when it is dropped.
struct Killed(Child, String);

impl Killed {
    fn start(folder: &Path, port: &str) -> Killed {
        let words = ["--ignored", "--exact", "--nocapture", "broker_of_another"];
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(words)
            .env("HEADRACE_VERBS_BROKER", folder)
            .env("HEADRACE_VERBS_PORT", port)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said =
            lines.map_while(Result::ok).find_map(|line| line.strip_prefix("serves ").map(str::to_owned));
        Killed(child, said.unwrap())
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_broker_that_is_killed_loses_nothing_that_it_has_acknowledged() {
    let folder = Folder::new("killed");
    let first = Killed::start(&folder.0, "0");
    let servers = first.1.clone();
    let port = servers.rsplit(':').next().unwrap().to_owned();
    let producer = producer(&servers, &[("linger.ms", "0")]);
    let sent = warm(&producer, "t", 100);
    let reader = consumer(&servers, "t", &[]);
    send(&producer, "t", sent..500, 100);
    expect(&reader, 0..500, 100);
    // A write may be under way, a read is.
    let value = value(500, 100);
    let record = record(&value);
    producer.send(&record, (), &mut || false).unwrap();
    drop(first);
    let again = Killed::start(&folder.0, &port);
    assert_eq!(again.1, servers);
    producer.flush(Some(PATIENCE), &mut || false).unwrap();
    assert_eq!(producer.take_failure().map(|error| error.to_string()), None);
    // Once each, and then over verbs again.
    expect(&reader, 500..501, 100);
    let before = (producer.direct_bytes().unwrap(), direct_bytes(&reader));
    let (since, mut next) = (Instant::now(), 501);
    while producer.direct_bytes().unwrap() == before.0 || direct_bytes(&reader) == before.1 {
        send(&producer, "t", next..next + 1, 100);
        expect(&reader, next..next + 1, 100);
        next += 1;
        assert!(since.elapsed() < PATIENCE, "verbs are not found again");
    }
    let whole = consumer(&servers, "t", &[]);
    expect(&whole, 0..next, 100);
}

#[test]
#[ignore = "a producer for others"]
fn producer_of_another() {
    let Ok(servers) = std::env::var("HEADRACE_VERBS_SERVERS") else { return };
    let producer = producer(&servers, &[("linger.ms", "0"), ("enable.idempotence", "false")]);
    let mut sent = warm(&producer, "t", 5000);
    // As many as are looked for.
    send(&producer, "t", sent..sent + 20, 5000);
    sent += 20;
    println!("\nwrites");
    loop {
        send(&producer, "t", sent..sent + 20, 5000);
        sent += 20;
    }
}

/// So many records at least, each as it was written, whichever they are.
fn expect_whole(reader: &ConsumerClient, records: usize, bytes: usize) {
    let mut seen = 0;
    while seen < records {
        let rows = reader.poll(records, Some(Instant::now() + PATIENCE), &mut || false).unwrap().unwrap();
        let column = rows.chunk.column_by_name("value").unwrap();
        let values = column.as_any().downcast_ref::<BinaryArray>().unwrap();
        for row in rows.start..rows.start + rows.len {
            let written = values.value(row);
            let number = usize::from_le_bytes(written[..8].try_into().unwrap());
            assert_eq!(written, value(number, bytes));
        }
        seen += rows.len;
    }
}

/// Twice starts a program that writes for others (a test of this file), and kills it amid that.
fn kill_twice(program: &str, servers: &str) {
    for _ in 0..2 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", program])
            .env("HEADRACE_VERBS_SERVERS", servers)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "writes"), "it does not come to write");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_producer_that_is_killed_in_a_write_gives_its_ring_back() {
    let folder = Folder::new("writer");
    let server = broker(&folder.0, 0, &[]);
    let servers = server.bootstrap_servers().to_owned();
    kill_twice("producer_of_another", &servers);
    // All that is in the log is whole.
    let reader = consumer(&servers, "t", &[("check.crcs", "true")]);
    expect_whole(&reader, 40, 5000);
    let producer = producer(&servers, &[("linger.ms", "0")]);
    assert!(warm(&producer, "t", 100) > 0);
    assert_eq!(server.take_troubles(), Vec::<String>::new());
}

/// How many records each producer has sent that shares a partition; their numbers begin at multiples of this.
const APART: usize = 1_000_000;

#[test]
#[ignore = "needs an RDMA device"]
fn producers_share_a_ring_beside_one_that_has_none() {
    const RECORDS: usize = 600;
    let folder = Folder::new("shared");
    let small = [("headrace.direct.ring.bytes.max", "65536"), ("message.max.bytes", "65536")];
    let server = broker(&folder.0, 0, &small);
    let servers = server.bootstrap_servers().to_owned();
    let own = [("linger.ms", "1"), ("batch.size", "12000")];
    let tcp = [("linger.ms", "1"), ("batch.size", "12000"), ("headrace.datapath", "tcp")];
    let producers = [&own[..], &own, &own, &tcp].map(|more| producer(&servers, more));
    // Each has a place in the ring before the others go on.
    let mut sent = [0; 4];
    for (number, producer) in producers.iter().enumerate().take(3) {
        let since = Instant::now();
        while producer.direct_bytes().unwrap() == 0 {
            let next = number * APART + sent[number];
            send(producer, "t", next..next + 1, 500);
            sent[number] += 1;
            assert!(since.elapsed() < PATIENCE, "producer {number} has no place in the ring");
        }
    }
    let before: Vec<u64> = producers.iter().map(|producer| producer.direct_bytes().unwrap()).collect();
    std::thread::scope(|scope| {
        for (number, producer) in producers.iter().enumerate() {
            let first = number * APART + sent[number];
            scope.spawn(move || send(producer, "t", first..first + RECORDS, 500));
        }
    });
    for (number, producer) in producers.iter().enumerate() {
        let direct = producer.direct_bytes().unwrap() - before[number];
        assert_eq!(direct > 100_000, number < 3, "producer {number}: {direct} bytes");
    }
    let reader = consumer(&servers, "t", &[("check.crcs", "true")]);
    let mut next = [0; 4];
    let all: usize = sent.iter().sum::<usize>() + 4 * RECORDS;
    while next.iter().sum::<usize>() < all {
        let rows = reader.poll(10_000, Some(Instant::now() + PATIENCE), &mut || false).unwrap();
        let rows = rows.unwrap_or_else(|| panic!("no more records than {next:?}"));
        let column = rows.chunk.column_by_name("value").unwrap();
        let values = column.as_any().downcast_ref::<BinaryArray>().unwrap();
        for row in rows.start..rows.start + rows.len {
            let number = usize::from_le_bytes(values.value(row)[..8].try_into().unwrap());
            let of = number / APART;
            assert_eq!(values.value(row), value(of * APART + next[of], 500), "of producer {of}");
            next[of] += 1;
        }
    }
    assert_eq!(next, sent.map(|sent| sent + RECORDS));
    assert_eq!(server.take_troubles(), Vec::<String>::new());
}

fn record(value: &[u8]) -> RecordRef<'_> {
    RecordRef {
        topic: "t",
        partition: Some(0),
        key: None,
        value: Some(value),
        headers: &[],
        timestamp_ms: None,
    }
}

/// What a client of this datapath is told, that cannot have it.
fn refusal(more: &[(&str, &str)], broker_has: bool) -> String {
    let folder = Folder::new("refusal");
    let own = [("log.dir", folder.0.to_str().unwrap())];
    let config = if broker_has { Some(("headrace.direct.verbs", "true")) } else { None };
    let config = BrokerConfig::from_pairs(own.into_iter().chain(config)).unwrap();
    let options = ServerOptions::local(config);
    let server = BrokerServer::start(options).unwrap();
    let producer = producer(server.bootstrap_servers(), more);
    let value = value(0, 8);
    let record = record(&value);
    let since = Instant::now();
    loop {
        let sent = producer.send(&record, (), &mut || false);
        if let Err(error) = sent {
            return format!("{error:?}");
        }
        let flushed = producer.flush(Some(PATIENCE), &mut || false);
        if let Some(error) = producer.take_failure() {
            return error.to_string();
        }
        if let Err(error) = flushed {
            return format!("{error:?}");
        }
        assert!(since.elapsed() < PATIENCE, "nobody says that there are no verbs");
    }
}

#[test]
fn a_machine_without_a_device_says_so() {
    if Path::new("/sys/class/infiniband").exists() {
        return;
    }
    let reported = refusal(&[], false);
    assert!(reported.contains("headrace.datapath"), "{reported}");
    // The library may not be there either.
    assert!(reported.contains("RDMA") && reported.contains("this machine has no"), "{reported}");
    let reported = refusal(&[frames::TWO_SIDED], false);
    assert!(reported.contains("headrace.datapath") && reported.contains("this machine has no"), "{reported}");
    let folder = Folder::new("none");
    let pairs = [("log.dir", folder.0.to_str().unwrap()), ("headrace.direct.verbs", "true")];
    let broker = BrokerConfig::from_pairs(pairs).unwrap();
    let reported = BrokerServer::start(ServerOptions::local(broker)).unwrap_err();
    assert!(reported.to_string().contains("headrace.direct.verbs"), "{reported}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_broker_without_verbs_says_so() {
    let reported = refusal(&[], false);
    assert!(reported.contains("headrace.direct.verbs is false"), "{reported}");
    let reported = refusal(&[frames::TWO_SIDED], false);
    assert!(
        reported.contains("headrace.datapath") && reported.contains("headrace.direct.verbs is false"),
        "{reported}"
    );
    let reported = refusal(&[("headrace.verbs.device", "mlx5_77")], true);
    assert!(reported.contains("mlx5_77"), "{reported}");
}

#[test]
#[ignore = "needs an RDMA device, and a user who may lock too little"]
fn what_may_not_be_locked_is_explained() {
    // Room for the ends of links, and none for rings.
    let reported = refusal(&[], true);
    assert!(reported.contains("ulimit -l"), "{reported}");
}

/// Microseconds that the processor has worked for a process.
fn worked_us(process: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let of = |path: PathBuf| -> f64 {
        let reported = std::fs::read_to_string(path.join("schedstat")).unwrap();
        reported.split(' ').next().unwrap().parse().unwrap()
    };
    tasks.map(|task| of(task.unwrap().path())).sum::<f64>() / 1000.0
}

/// A figure: `cargo test -- --ignored --exact --nocapture what_reading_costs_the_broker`.
#[test]
#[ignore = "measures; needs an RDMA device"]
fn what_reading_costs_the_broker() {
    const RECORDS: usize = 1000;
    // Who looks for long is not nudged.
    for (datapath, spin_us) in [("none", "0"), ("verbs", "50"), ("verbs", "1000000"), ("tcp", "50")] {
        let folder = Folder::new("cost");
        let server = Killed::start(&folder.0, "0");
        let producer = producer(&server.1, &[("linger.ms", "0")]);
        let sent = warm(&producer, "t", 100);
        let reader = (datapath != "none").then(|| {
            let more = [("headrace.datapath", datapath), ("headrace.poll.spin.us", spin_us)];
            let reader = consumer(&server.1, "t", &more);
            expect(&reader, 0..sent, 100);
            reader
        });
        let mut times = Vec::new();
        let mut before = worked_us(server.0.id());
        for number in sent..sent + RECORDS + 100 {
            if number == sent + 100 {
                before = worked_us(server.0.id());
            }
            let since = Instant::now();
            send(&producer, "t", number..number + 1, 100);
            if let Some(reader) = &reader {
                expect(reader, number..number + 1, 100);
            }
            times.push(since.elapsed().as_secs_f64() * 1e6);
        }
        let cost = (worked_us(server.0.id()) - before) / RECORDS as f64;
        times.sort_by(f64::total_cmp);
        println!(
            "{{\"reader\": \"{datapath}\", \"spin_us\": {spin_us}, \"broker_us\": {cost:.1}, \"round_p50_us\": {:.0}}}",
            times[times.len() / 2]
        );
    }
}
