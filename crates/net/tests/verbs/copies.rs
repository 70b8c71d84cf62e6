//! Three brokers of a cluster, whose leaders push into their followers' memory over RDMA.

use headrace_net::metadata::{LocalMetadata, MetadataSource};

use super::*;

/// Packets that the Soft-RoCE device has sent.
fn packets() -> u64 {
    let path = "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts";
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

struct Cluster {
    servers: Vec<BrokerServer>,
    folder: Folder,
}

impl Cluster {
    fn start(name: &str) -> Cluster {
        let folder = Folder::new(name);
        let metadata = MetadataSource::Local(LocalMetadata::open(None).unwrap());
        let start = |number: i32| {
            let (own, number) = (folder.0.join(format!("{number}")), number.to_string());
            let pairs = [
                ("node.id", number.as_str()),
                ("log.dir", own.to_str().unwrap()),
                ("default.replication.factor", "3"),
                ("headrace.direct.verbs", "true"),
                ("headrace.direct.replication", "verbs"),
            ];
            let broker = BrokerConfig::from_pairs(pairs).unwrap();
            let options = ServerOptions { metadata: Some(metadata.clone()), ..ServerOptions::local(broker) };
            BrokerServer::start(options).unwrap()
        };
        let servers = (1..=3).map(start).collect();
        Cluster { servers, folder }
    }

    fn addresses(&self) -> String {
        let all: Vec<_> = self.servers.iter().map(BrokerServer::bootstrap_servers).collect();
        all.join(",")
    }

    /// Whole batches of partition 0 of a topic, at each broker.
    fn logs(&self, topic: &str) -> Vec<Vec<u8>> {
        let at = |number: i32| {
            let path = self.folder.0.join(format!("{number}/{topic}-0/{:020}.log", 0));
            let mut bytes = std::fs::read(path).unwrap();
            // A file that is read over RDMA is longer than its batches.
            bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1));
            bytes
        };
        (1..=3).map(at).collect()
    }

    /// What the leader has, the others have as well, before long.
    fn expect_copies(&self, topic: &str) {
        let since = Instant::now();
        loop {
            let logs = self.logs(topic);
            if logs.iter().all(|log| *log == logs[0]) {
                return assert!(!logs[0].is_empty());
            }
            let sizes: Vec<_> = logs.iter().map(Vec::len).collect();
            assert!(since.elapsed() < PATIENCE, "copies have {sizes:?} bytes");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Sends until each record has others go to both followers over the device; what was sent.
fn warm_copies(producer: &ProducerClient<()>, topic: &str) -> usize {
    let (since, mut next) = (Instant::now(), 0);
    loop {
        let before = packets();
        for number in next..next + 10 {
            send(producer, topic, number..number + 1, 100);
        }
        next += 10;
        // Each is written to two followers, who answer.
        if packets() - before >= 40 {
            return next;
        }
        assert!(since.elapsed() < PATIENCE, "followers are not pushed to: {} packets", packets() - before);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn leaders_push_over_rdma_and_others_go_on_with_what_they_had() {
    let mut cluster = Cluster::start("copies");
    let servers = cluster.addresses();
    let producer = producer(&servers, &[("headrace.datapath", "tcp"), ("acks", "all")]);
    let mut sent = warm_copies(&producer, "t");
    // More than the ring has room for: it goes around.
    send(&producer, "t", sent..sent + 6000, 1000);
    let reader = consumer(&servers, "t", &[("headrace.datapath", "tcp")]);
    expect(&reader, 0..sent, 100);
    expect(&reader, sent..sent + 6000, 1000);
    sent += 6000;
    cluster.expect_copies("t");
    // A broker that is stopped hands over; another one pushes to who is left.
    cluster.servers[0].stop().unwrap();
    send(&producer, "t", sent..sent + 500, 1000);
    expect(&reader, sent..sent + 500, 1000);
    reader.close(PATIENCE, true, &mut || false).unwrap();
    producer.close(PATIENCE, &mut || false).unwrap();
}

#[test]
#[ignore = "needs an RDMA device"]
fn records_are_written_copied_and_read_one_sided() {
    let cluster = Cluster::start("one-sided-copies");
    let servers = cluster.addresses();
    let producer = producer(&servers, &[("linger.ms", "0"), ("acks", "all")]);
    let sent = warm(&producer, "t", 100);
    let reader = consumer(&servers, "t", &[]);
    expect(&reader, 0..sent, 100);
    let (since, mut next) = (Instant::now(), sent);
    let before = direct_bytes(&reader);
    while direct_bytes(&reader) == before {
        send(&producer, "t", next..next + 1, 100);
        expect(&reader, next..next + 1, 100);
        next += 1;
        assert!(since.elapsed() < PATIENCE, "the leader's memory is not read");
    }
    for number in next..next + 200 {
        send(&producer, "t", number..number + 1, 100);
        expect(&reader, number..number + 1, 100);
    }
    cluster.expect_copies("t");
    reader.close(PATIENCE, true, &mut || false).unwrap();
    producer.close(PATIENCE, &mut || false).unwrap();
}
