//! Records through shared memory beside TCP, within one process: a broker on a thread, a producer and a consumer.
//! Prints one JSON line a figure. `direct DATAPATH RECORDS`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a program that measures")]

use std::time::{Duration, Instant};

use headrace_broker::BrokerConfig;
use headrace_client::options::ProducerConfig;
use headrace_client::producer::RecordRef;
use headrace_net::broker::{BrokerServer, ServerOptions};
use headrace_net::client::ProducerClient;

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

fn main() {
    let mut args = std::env::args().skip(1);
    let datapath = args.next().unwrap_or_else(|| "shm".to_owned());
    let records: usize = args.next().map_or(20_000, |n| n.parse().unwrap());
    let dir = std::env::temp_dir().join(format!("headrace-direct-{}", std::process::id()));
    let pairs = [("log.dir", dir.to_str().unwrap())];
    let broker = BrokerConfig::from_pairs(pairs).unwrap();
    let mut server =
        BrokerServer::start(ServerOptions { host: "127.0.0.1".into(), port: 0, broker }).unwrap();
    let servers = server.bootstrap_servers().to_owned();

    let config = ProducerConfig::from_pairs([
        ("bootstrap.servers".to_owned(), servers.clone()),
        ("headrace.datapath".to_owned(), datapath.clone()),
        ("linger.ms".to_owned(), "0".to_owned()),
    ])
    .unwrap();
    let producer = ProducerClient::<()>::start(config, |_| ()).unwrap();
    let value = [b'x'; 100];
    let record = RecordRef {
        topic: "t",
        partition: Some(0),
        key: None,
        value: Some(&value),
        headers: &[],
        timestamp_ms: None,
    };
    let send = || {
        producer.send(&record, (), &mut || false).unwrap();
        producer.flush(Some(Duration::from_secs(10)), &mut || false).unwrap();
    };
    let warm = Instant::now();
    while warm.elapsed() < Duration::from_millis(500) {
        send();
    }
    let mut us = Vec::with_capacity(records);
    for _ in 0..records {
        let since = Instant::now();
        send();
        us.push(since.elapsed().as_secs_f64() * 1e6);
    }
    tell("produce one record, acknowledged", &datapath, us);
    producer.close(Duration::from_secs(5), &mut || false).unwrap();
    server.stop().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}
