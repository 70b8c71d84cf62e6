//! Drains topics as a share consumer, and prints how fast: `share_drain SERVERS GROUP TOPIC [option=value ...]`.
//!
//! Beside the options of a share consumer: `limit` is the most rows, `idle` how many milliseconds without rows end it,
//! `decisions=yes` prints why brokers were asked.
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock and its arguments")]
#![allow(clippy::cast_precision_loss, reason = "a rate for people")]

use std::time::{Duration, Instant};

use headrace_client::options::ShareConfig;
use headrace_net::client::{ShareClient, deadline_in};

fn main() {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().expect("SERVERS GROUP TOPIC");
    let (servers, group, topic) = (next(), next(), next());
    let mut pairs = vec![("bootstrap.servers".to_owned(), servers), ("group.id".to_owned(), group)];
    let (mut limit, mut idle, mut decisions) = (u64::MAX, 3_000, false);
    for arg in args {
        let (name, value) = arg.split_once('=').expect("option=value");
        match name {
            "limit" => limit = value.parse().expect("a number"),
            "decisions" => decisions = value == "yes",
            "idle" => idle = value.parse().expect("a number"),
            _ => pairs.push((name.to_owned(), value.to_owned())),
        }
    }
    let config = ShareConfig::from_pairs(pairs).expect("options");
    let client = ShareClient::start(&config).expect("a thread");
    let check = &mut || false;
    client.subscribe(vec![topic], check).expect("subscribed");
    let (begun, mut rows, mut polls) = (Instant::now(), 0_u64, 0_u64);
    let (mut mark, mut at_mark) = (Instant::now(), 0);
    let mut last = Instant::now();
    while rows < limit && last.elapsed() < Duration::from_millis(idle) {
        match client.poll(0, deadline_in(Some(Duration::from_millis(500))), check) {
            Ok(Some(taken)) => {
                rows += taken.len as u64;
                polls += 1;
                last = Instant::now();
            }
            Ok(None) => {}
            Err(error) => eprintln!("{error:?}"),
        }
        if mark.elapsed() >= Duration::from_secs(1) {
            eprintln!("{:6.1} s: {} rows/s", begun.elapsed().as_secs_f64(), rows - at_mark);
            (mark, at_mark) = (Instant::now(), rows);
        }
    }
    let seconds = (last - begun).as_secs_f64();
    eprintln!("{rows} rows in {polls} polls and {seconds:.2} s: {:.0}/s", rows as f64 / seconds);
    let closing = Instant::now();
    client.close(Duration::from_secs(10), true, check).expect("closed");
    eprintln!("closed in {:?}; {:?}", closing.elapsed(), client.metrics());
    for line in client.take_troubles() {
        eprintln!("trouble: {line}");
    }
    if decisions {
        for line in client.decisions(0).1 {
            eprintln!("{line}");
        }
    }
}
