//! Kafka's own requests and answers as messages (`headrace.datapath=two-sided`).

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

pub(super) const TWO_SIDED: (&str, &str) = ("headrace.datapath", "two-sided");

/// What Soft-RoCE has sent; a card counts otherwise.
fn packets() -> Option<u64> {
    let counter = "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts";
    Some(std::fs::read_to_string(counter).ok()?.trim().parse().unwrap())
}

#[test]
#[ignore = "needs an RDMA device"]
fn frames_go_both_ways_as_messages() {
    let folder = Folder::new("frames");
    let server = broker(&folder.0, 0, &[("message.max.bytes", "4000000")]);
    let servers = server.bootstrap_servers().to_owned();
    let before = packets();
    // Many small frames under way, then some of several messages, and of more than a side receives before it takes any.
    let small = producer(&servers, &[TWO_SIDED, ("linger.ms", "0"), ("batch.size", "500")]);
    let whole = producer(&servers, &[TWO_SIDED, ("max.request.size", "4000000"), ("batch.size", "1000000")]);
    let reader = consumer(&servers, "t", &[TWO_SIDED]);
    send(&small, "t", 0..1000, 100);
    expect(&reader, 0..1000, 100);
    let plain = consumer(&servers, "t", &[("headrace.datapath", "tcp")]);
    expect(&plain, 0..1000, 100);
    let mut next = 1000;
    for bytes in [16_000, 16_384, 40_001, 3_500_000] {
        send(&whole, "t", next..next + 3, bytes);
        expect(&reader, next..next + 3, bytes);
        next += 3;
    }
    // Nobody answers.
    let heedless = producer(&servers, &[TWO_SIDED, ("acks", "0"), ("linger.ms", "0")]);
    send(&heedless, "t", next..next + 10, 100);
    expect(&reader, next..next + 10, 100);
    // One by one: both sides sleep in between.
    for number in next + 10..next + 20 {
        send(&small, "t", number..number + 1, 100);
        expect(&reader, number..number + 1, 100);
    }
    assert_eq!((small.direct_bytes().unwrap(), direct_bytes(&reader)), (0, 0));
    if let (Some(before), Some(after)) = (before, packets()) {
        // 10 MB each way, in packets of 4 KiB at most.
        assert!(after - before > 5000, "{} packets", after - before);
    }
    for consumer in [&reader, &plain] {
        consumer.close(PATIENCE, true, &mut || false).unwrap();
    }
    for producer in [&small, &whole, &heedless] {
        producer.close(PATIENCE, &mut || false).unwrap();
    }
    assert_eq!(server.take_troubles(), Vec::<String>::new());
}

#[test]
#[ignore = "needs an RDMA device"]
fn frames_find_a_broker_again_that_was_killed() {
    let folder = Folder::new("frames-killed");
    let first = Killed::start(&folder.0, "0");
    let servers = first.1.clone();
    let port = servers.rsplit(':').next().unwrap().to_owned();
    let producer = producer(&servers, &[TWO_SIDED, ("linger.ms", "0")]);
    let reader = consumer(&servers, "t", &[TWO_SIDED]);
    send(&producer, "t", 0..100, 100);
    expect(&reader, 0..100, 100);
    let value = value(100, 100);
    producer.send(&record(&value), (), &mut || false).unwrap();
    drop(first);
    let again = Killed::start(&folder.0, &port);
    assert_eq!(again.1, servers);
    producer.flush(Some(PATIENCE), &mut || false).unwrap();
    assert_eq!(producer.take_failure().map(|error| error.to_string()), None);
    expect(&reader, 100..101, 100);
    send(&producer, "t", 101..120, 100);
    expect(&reader, 101..120, 100);
}

#[test]
#[ignore = "a producer for others"]
fn sender_of_another() {
    let Ok(servers) = std::env::var("HEADRACE_VERBS_SERVERS") else { return };
    let producer = producer(&servers, &[TWO_SIDED, ("linger.ms", "0"), ("enable.idempotence", "false")]);
    send(&producer, "t", 0..20, 50_000);
    println!("\nwrites");
    for turn in 1.. {
        send(&producer, "t", turn * 20..turn * 20 + 20, 50_000);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_sender_that_is_killed_amid_a_frame_leaves_nothing_of_it() {
    let folder = Folder::new("sender");
    // Room for one link: the next client has it once the last one's has ended.
    let server = broker(&folder.0, 0, &[("headrace.direct.links.max", "1")]);
    let servers = server.bootstrap_servers().to_owned();
    kill_twice("frames::sender_of_another", &servers);
    let reader = consumer(&servers, "t", &[TWO_SIDED, ("check.crcs", "true")]);
    expect_whole(&reader, 40, 50_000);
    assert_eq!(server.take_troubles(), Vec::<String>::new());
}

#[test]
#[ignore = "needs an RDMA device"]
fn frames_have_their_turn_beside_a_link_that_is_never_quiet() {
    let folder = Folder::new("busy");
    // Once something has come over the link, the broker does not sleep for a second.
    let server = broker(&folder.0, 0, &[("headrace.poll.spin.us", "1000000"), ("num.partitions", "2")]);
    let servers = server.bootstrap_servers().to_owned();
    let busy = producer(&servers, &[("linger.ms", "0")]);
    warm(&busy, "busy", 100);
    let ends = AtomicBool::new(false);
    let bytes = busy.direct_bytes().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sent = 0;
            while !ends.load(Ordering::Relaxed) {
                send(&busy, "busy", sent..sent + 1, 100);
                sent += 1;
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let small = producer(&servers, &[TWO_SIDED, ("linger.ms", "0")]);
        let reader = consumer(&servers, "t", &[TWO_SIDED]);
        for number in 0..20 {
            send(&small, "t", number..number + 1, 100);
            expect(&reader, number..number + 1, 100);
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert!(busy.direct_bytes().unwrap() > bytes);
}
