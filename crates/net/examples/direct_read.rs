//! Reading through shared memory beside TCP, within one process: a broker on a thread, a producer and a consumer.
//! Prints one JSON line a figure. `direct_read DATAPATH RECORDS MEBIBYTES`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a program that measures")]

use std::time::{Duration, Instant};

use headrace_broker::BrokerConfig;
use headrace_client::consumer::{Assignment, StartAt, TopicPartition};
use headrace_client::options::{ConsumerConfig, ProducerConfig};
use headrace_client::producer::RecordRef;
use headrace_net::broker::{BrokerServer, ServerOptions};
use headrace_net::client::{ConsumerClient, ProducerClient};

fn percentile(sorted: &[f64], part: f64) -> f64 {
    let at = (sorted.len() as f64 * part) as usize;
    sorted[at.min(sorted.len() - 1)]
}

fn tell(name: &str, datapath: &str, mut us: Vec<f64>) {
    us.sort_by(f64::total_cmp);
    println!(
        "{{\"name\": \"{name}\", \"datapath\": \"{datapath}\", \"p50_us\": {:.2}, \"p99_us\": {:.2}, \"p999_us\": {:.2}}}",
        percentile(&us, 0.5),
        percentile(&us, 0.99),
        percentile(&us, 0.999)
    );
}

fn consumer(servers: &str, datapath: &str, value_type: &str, topic: &str) -> ConsumerClient {
    let config = ConsumerConfig::from_pairs(
        [("bootstrap.servers", servers), ("headrace.datapath", datapath), ("value.type", value_type)]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    let consumer = ConsumerClient::start(config.unwrap()).unwrap();
    let partition = TopicPartition::new(topic, 0);
    let start = Some(StartAt::Earliest);
    consumer.assign(vec![Assignment { partition, start, stop: None }], &mut || false).unwrap();
    consumer
}

fn record<'a>(topic: &'a str, value: &'a [u8]) -> RecordRef<'a> {
    RecordRef { topic, partition: Some(0), key: None, value: Some(value), headers: &[], timestamp_ms: None }
}

fn after(wait: Duration) -> Option<Instant> {
    Some(Instant::now() + wait)
}

fn latencies(servers: &str, datapath: &str, records: usize) {
    let config = ProducerConfig::from_pairs(
        [("bootstrap.servers", servers), ("headrace.datapath", datapath), ("linger.ms", "0")]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    let producer = ProducerClient::<()>::start(config.unwrap(), |_| ()).unwrap();
    let value = [b'x'; 100];
    let send = || {
        producer.send(&record("one", &value), (), &mut || false).unwrap();
        producer.flush(Some(Duration::from_secs(10)), &mut || false).unwrap();
    };
    send();
    let consumer = consumer(servers, datapath, "binary", "one");
    let poll = || {
        let rows = consumer.poll(500, after(Duration::from_secs(10)), &mut || false).unwrap();
        assert_eq!(rows.unwrap().len, 1);
    };
    poll();
    let warm = Instant::now();
    while warm.elapsed() < Duration::from_millis(2000) {
        send();
        poll();
    }
    let metrics = consumer.metrics().unwrap();
    assert_eq!(metrics.direct_bytes_consumed_total > 0, datapath == "shm");
    let mut us = Vec::with_capacity(records);
    for _ in 0..records {
        let since = Instant::now();
        assert!(consumer.poll(500, Some(since), &mut || false).unwrap().is_none());
        us.push(since.elapsed().as_secs_f64() * 1e6);
    }
    tell("poll that finds nothing", datapath, us);
    let (mut both, mut polls) = (Vec::with_capacity(records), Vec::with_capacity(records));
    for _ in 0..records {
        let since = Instant::now();
        send();
        let sent = Instant::now();
        poll();
        polls.push(sent.elapsed().as_secs_f64() * 1e6);
        both.push(since.elapsed().as_secs_f64() * 1e6);
    }
    tell("poll of a record that was just acknowledged", datapath, polls);
    tell("one record, produced, acknowledged and polled", datapath, both);
    consumer.close(Duration::from_secs(5), true, &mut || false).unwrap();
    producer.close(Duration::from_secs(5), &mut || false).unwrap();
}

fn stream(servers: &str, datapath: &str, mebibytes: usize) {
    let config = ProducerConfig::from_pairs(
        [("bootstrap.servers", servers), ("linger.ms", "5"), ("batch.size", "65536")]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    let producer = ProducerClient::<()>::start(config.unwrap(), |_| ()).unwrap();
    let value = [b'x'; 100];
    let records = (mebibytes << 20) / 108;
    for _ in 0..records {
        producer.send(&record("many", &value), (), &mut || false).unwrap();
    }
    producer.flush(Some(Duration::from_secs(60)), &mut || false).unwrap();
    producer.close(Duration::from_secs(5), &mut || false).unwrap();
    for value_type in ["binary", "binary_view"] {
        for round in 0..4 {
            let consumer = consumer(servers, datapath, value_type, "many");
            let mut rows = 0;
            let mut since = Instant::now();
            while rows < records {
                let taken = consumer.poll(1 << 20, after(Duration::from_secs(10)), &mut || false).unwrap();
                if rows == 0 {
                    since = Instant::now();
                }
                rows += taken.unwrap().len;
            }
            let seconds = since.elapsed().as_secs_f64();
            assert_eq!(rows, records);
            let direct = consumer.metrics().unwrap().direct_bytes_consumed_total;
            consumer.close(Duration::from_secs(5), true, &mut || false).unwrap();
            println!(
                "{{\"name\": \"stream, {value_type}, round {round}\", \"datapath\": \"{datapath}\", \"mib_s\": {:.0}, \"direct_mib\": {}}}",
                mebibytes as f64 / seconds,
                direct >> 20
            );
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let datapath = args.next().unwrap_or_else(|| "shm".to_owned());
    let records: usize = args.next().map_or(20_000, |n| n.parse().unwrap());
    let mebibytes: usize = args.next().map_or(256, |n| n.parse().unwrap());
    let dir = std::env::temp_dir().join(format!("headrace-direct-{}", std::process::id()));
    let broker = BrokerConfig::from_pairs([("log.dir", dir.to_str().unwrap())]).unwrap();
    let options = ServerOptions { host: "127.0.0.1".into(), port: 0, broker };
    let mut server = BrokerServer::start(options).unwrap();
    let servers = server.bootstrap_servers().to_owned();
    latencies(&servers, &datapath, records);
    stream(&servers, &datapath, mebibytes);
    server.stop().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}
