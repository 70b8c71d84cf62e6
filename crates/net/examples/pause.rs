//! The Rust side of benches/pause.py: ten partitions, nine of them, drawn anew before each poll, paused.
//!
//! `pause BOOTSTRAP TOPIC PARTITIONS MAX_RECORDS SECONDS_MAX RECORDS_MAX` prints one line of JSON, as
//! benches/peers/meter.py describes it. It ends after the time, or when a partition that is polled has no records left.
#![allow(clippy::print_stdout, reason = "the result goes to standard output")]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock and its arguments")]

use std::error::Error;
use std::time::{Duration, Instant};

use headrace_client::consumer::{Assignment, StartAt, TopicPartition};
use headrace_client::options::ConsumerConfig;
use headrace_net::client::{ConsumerClient, deadline_in};
use headrace_wire::random::SplitMix64;

const WAIT: Duration = Duration::from_secs(30);
/// Polls before the clock starts.
const WARM_UP_POLLS: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [bootstrap, topic, partitions, max_records, seconds, records_max] = words.as_slice() else {
        return Err("pause BOOTSTRAP TOPIC PARTITIONS MAX_RECORDS SECONDS_MAX RECORDS_MAX".into());
    };
    let (max_records, records_max): (usize, u64) = (max_records.parse()?, records_max.parse()?);
    let limit = Duration::from_secs_f64(seconds.parse()?);
    let options = [
        ("bootstrap.servers", bootstrap.as_str()),
        ("auto.offset.reset", "earliest"),
        ("enable.auto.commit", "false"),
    ];
    let owned = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let consumer = ConsumerClient::start(ConsumerConfig::from_pairs(owned)?)?;
    let mut interrupted = || false;
    let all: Vec<TopicPartition> =
        (0..partitions.parse::<i32>()?).map(|number| TopicPartition::new(topic.as_str(), number)).collect();
    let start = |partition: &TopicPartition| Assignment {
        start: Some(StartAt::Earliest),
        ..Assignment::of(partition.clone())
    };
    consumer.assign(all.iter().map(start).collect(), &mut interrupted).map_err(|why| format!("{why:?}"))?;
    // Everyone else is paused in turns: what is paused already stays so.
    let mut rng = SplitMix64::new(7);
    let (mut polls, mut records, mut counted) = (0, 0, 0);
    let mut began = Instant::now();
    let mut cpu = cpu_seconds()?;
    while records < records_max && (polls < WARM_UP_POLLS || began.elapsed() < limit) {
        let keep = usize::try_from(rng.next_u64() % u64::try_from(all.len())?)?;
        consumer.resume(std::slice::from_ref(&all[keep]))?;
        consumer.pause(&all[..keep])?;
        consumer.pause(&all[keep + 1..])?;
        let rows = consumer.poll(max_records, deadline_in(Some(WAIT)), &mut interrupted);
        let Some(rows) = rows.map_err(|why| format!("{why:?}"))? else {
            return Err(format!("nothing for {WAIT:?} after {records} records").into());
        };
        if rows.partition != all[keep] {
            return Err(format!("rows of {}, which is paused", rows.partition).into());
        }
        polls += 1;
        records += u64::try_from(rows.len)?;
        if polls == WARM_UP_POLLS {
            (began, cpu, counted) = (Instant::now(), cpu_seconds()?, records);
        }
        if rows.next_offset * i64::try_from(all.len())? >= i64::try_from(records_max)? {
            break;
        }
    }
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
    let records = records - counted;
    println!(r#"{{"records": {records}, "bytes": 0, "seconds": {seconds}, "cpu_seconds": {cpu}}}"#);
    consumer.close(Duration::from_secs(1), true, &mut interrupted).map_err(|why| format!("{why:?}").into())
}

/// The clock of `/proc/self/stat`, which is the same on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of CPU that this process has used.
fn cpu_seconds() -> Result<f64, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name of the program, which may hold anything, ends with the last bracket.
    let (_, numbers) = stat.rsplit_once(')').ok_or("/proc/self/stat has another form")?;
    let mut times = numbers.split_whitespace().skip(11);
    let mut next = || times.next().unwrap_or_default().parse::<f64>();
    Ok((next()? + next()?) / TICKS_PER_SECOND)
}
