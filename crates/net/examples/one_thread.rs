//! One record from a producer through a broker to a consumer, all in one thread, through shared memory and a log on the disk:
//! what the way costs without any hand-over between threads. `one_thread RECORDS` prints a JSON line.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a program that measures")]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock and its arguments")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "figures are small"
)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use headrace_broker::{AllowAll, Broker, BrokerConfig, ConnId, LinkAction, LinkId, Response};
use headrace_client::arrived::Arrived;
use headrace_client::consumer::{
    Assignment, ConsumerCommand, ConsumerEngine, SharedCache, StartAt, Taken, TopicPartition, lock,
};
use headrace_client::engine::Engine;
use headrace_client::io::{ChannelEvent, ChannelRequest, Input, LinkEvent, LinkRequest, Output};
use headrace_client::options::{ConsumerConfig, ProducerConfig};
use headrace_client::producer::{Appender, ProducerCommand, ProducerEngine, RecordRef};
use headrace_fabric::{Committed, Region, SystemMemory};
use headrace_net::clock::Clock;
use headrace_net::disk::{FileDisk, FileHandle};
use headrace_wire::primitive::Segment;

const VALUE: [u8; 100] = [b'x'; 100];
const RECORD: RecordRef<'_> = RecordRef {
    topic: "t",
    partition: Some(0),
    key: None,
    value: Some(&VALUE),
    headers: &[],
    timestamp_ms: None,
};
const WARM_UP: usize = 20_000;

/// An engine, and what stands between it and the broker.
struct Client<E> {
    engine: E,
    number: u64,
    conns: HashMap<ConnId, headrace_client::io::ConnId>,
    unread: Vec<u8>,
    link: Option<headrace_client::io::LinkId>,
    exposed: BTreeMap<u64, Region>,
}

struct World {
    broker: Broker<FileDisk>,
    clock: Clock,
    said: VecDeque<LinkAction<FileHandle>>,
    answers: VecDeque<Response<FileHandle>>,
}

fn flatten(response: &Response<FileHandle>) -> Bytes {
    let mut flat = BytesMut::new();
    for segment in &response.body.segments {
        match segment {
            Segment::Bytes(bytes) => flat.extend_from_slice(bytes),
            Segment::External { token, len } => {
                let slice = &response.files[*token as usize];
                let mut bytes = vec![0; *len as usize];
                slice.file.shared().unwrap().read_exact_at(&mut bytes, slice.position).unwrap();
                flat.extend_from_slice(&bytes);
            }
        }
    }
    flat.freeze()
}

impl World {
    /// Does all that is to be done for a client and then has the broker answer, until neither has anything to say.
    fn settle<E: Engine>(&mut self, client: &mut Client<E>) {
        loop {
            let mut quiet = true;
            while let Some(output) = client.engine.poll_output() {
                match output {
                    Output::Event(_) => {}
                    request => {
                        quiet = false;
                        self.act(client, request);
                    }
                }
            }
            while self.broker.work(self.clock.now()) {}
            while let Some(response) = self.broker.poll_response() {
                self.answers.push_back(response);
            }
            while let Some(action) = self.broker.poll_link_action() {
                self.said.push_back(action);
            }
            for _ in 0..self.answers.len() {
                let Some(response) = self.answers.pop_front() else { break };
                if let Some(&conn) = client.conns.get(&response.conn) {
                    quiet = false;
                    client.unread.extend_from_slice(&flatten(&response));
                    let arrived = Arrived::from(client.unread.as_slice());
                    let consumed = client.engine.handle_bytes(self.clock.now(), conn, arrived);
                    client.unread.drain(..consumed.bytes);
                } else {
                    self.answers.push_back(response);
                }
            }
            for _ in 0..self.said.len() {
                let Some(action) = self.said.pop_front() else { break };
                match self.hand(client, action) {
                    None => quiet = false,
                    Some(others) => self.said.push_back(others),
                }
            }
            if quiet {
                return;
            }
        }
    }

    fn act<E: Engine>(&mut self, client: &mut Client<E>, request: Output<E::Event>) {
        let now = self.clock.now();
        match request {
            Output::Channel(conn, ChannelRequest::Connect { .. }) => {
                let theirs = ConnId(client.number << 32 | u64::from(conn.0));
                self.broker.handle_connect(now, theirs, "127.0.0.1:1");
                client.conns.insert(theirs, conn);
                client.engine.handle(now, Input::Channel(conn, ChannelEvent::Connected));
            }
            Output::Channel(conn, ChannelRequest::Write(data)) => {
                let theirs = ConnId(client.number << 32 | u64::from(conn.0));
                let frame = data.to_bytes().unwrap();
                self.broker.handle_frame(now, theirs, frame.slice(4..));
            }
            Output::Link(link, LinkRequest::Connect { token, .. }) => {
                assert!(self.broker.handle_link(LinkId(client.number), token.0));
                client.link = Some(link);
                client.engine.handle(now, Input::Link(link, LinkEvent::Connected));
            }
            Output::Link(_, LinkRequest::Write(write)) => {
                let region = &client.exposed[&write.key];
                for (at, piece) in &write.pieces {
                    region.write(*at as usize, piece).unwrap();
                }
                let note = [u64::from(write.notify.0), u64::from(write.notify.1), 0, 0];
                self.broker.handle_note(now, LinkId(client.number), note);
            }
            _ => panic!("a request that nobody carries out"),
        }
    }

    /// What the broker says over a link; what is another's comes back.
    fn hand<E: Engine>(
        &mut self,
        client: &mut Client<E>,
        action: LinkAction<FileHandle>,
    ) -> Option<LinkAction<FileHandle>> {
        let (now, own) = (self.clock.now(), LinkId(client.number));
        let name = client.link;
        match action {
            LinkAction::ExposeToWrite { link, key, memory, .. }
            | LinkAction::ExposeToRead { link, key, memory }
                if link == own =>
            {
                client.exposed.insert(key, Region::whole(memory.clone()));
                client.engine.handle(now, Input::Link(name.unwrap(), LinkEvent::Exposed { key, memory }));
            }
            LinkAction::ExposeFile { link, key, file, bytes } if link == own => {
                let path = format!("/proc/self/fd/{}", file.shared().unwrap().as_raw_fd());
                let opened = std::fs::File::open(path).unwrap().into();
                let file = Committed::map(opened, bytes as usize).unwrap();
                client.engine.handle(now, Input::Link(name.unwrap(), LinkEvent::FileExposed { key, file }));
            }
            LinkAction::Acknowledge { link, note } if link == own => {
                client.engine.handle(now, Input::Link(name.unwrap(), LinkEvent::Note(note)));
                client.engine.handle(now, Input::PollMemory);
            }
            LinkAction::Nudge { link } => self.broker.handle_nudged(link),
            other => return Some(other),
        }
        None
    }
}

fn client<E>(number: u64, engine: E) -> Client<E> {
    let (conns, exposed) = (HashMap::new(), BTreeMap::new());
    Client { engine, number, conns, unread: Vec::new(), link: None, exposed }
}

/// All three, and the caller.
struct Bench {
    world: World,
    producer: Client<ProducerEngine>,
    appender: Appender,
    consumer: Client<ConsumerEngine>,
    cache: SharedCache,
}

impl Bench {
    fn new(dir: &Path) -> Bench {
        let clock = Clock::start();
        let pairs =
            [("log.dir", dir.to_str().unwrap()), ("advertised.host", "here"), ("advertised.port", "1")];
        let config = BrokerConfig::from_pairs(pairs).unwrap();
        let (mut broker, _) = Broker::open(
            FileDisk::durable(),
            Box::new(SystemMemory),
            config,
            Box::new(AllowAll),
            1,
            clock.now(),
        )
        .unwrap();
        broker.set_link_address("here".to_owned());
        let world = World { broker, clock, said: VecDeque::new(), answers: VecDeque::new() };
        let own = [("bootstrap.servers", "here:1"), ("headrace.datapath", "shm")];
        let options = |more: &[(&str, &str)]| -> Vec<(String, String)> {
            own.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let config = ProducerConfig::from_pairs(options(&[("linger.ms", "0")])).unwrap();
        let (engine, accumulator) = ProducerEngine::new(config, 1).unwrap();
        // Its only caller has it look anyway.
        let wake = Arc::new(|| ());
        let appender = Appender::new(accumulator, wake.clone(), wake);
        let producer = client(1, engine);
        let mut engine = ConsumerEngine::new(ConsumerConfig::from_pairs(options(&[])).unwrap(), 2);
        let cache = engine.cache();
        let partition = TopicPartition::new("t", 0);
        lock(&cache).assign(vec![Assignment { partition, start: Some(StartAt::Earliest), stop: None }]);
        engine.handle(clock.now(), Input::Command(ConsumerCommand::Wake));
        Bench { world, producer, appender, consumer: client(2, engine), cache }
    }

    /// One record, from the call that sends it to the batch that is taken.
    fn pass(&mut self) {
        let clock = self.world.clock;
        self.appender
            .append_or_park(clock.now(), &RECORD, None, |_, _| (), || Box::new(|_| ()))
            .unwrap_or_else(|_| panic!("there is room for one record"));
        loop {
            self.producer.engine.handle(clock.now(), Input::Command(ProducerCommand::Wake));
            self.world.settle(&mut self.producer);
            if self.consumer.engine.has_news() {
                self.consumer.engine.handle(clock.now(), Input::PollMemory);
            }
            self.world.settle(&mut self.consumer);
            let taken = lock(&self.cache).take(500);
            match taken {
                Some(Taken::Rows(rows)) => return assert_eq!(rows.len, 1),
                None => self.wait(),
                Some(_) => panic!("neither an error nor a batch that is compressed"),
            }
        }
    }

    /// Does what is due by the clock: until all have found each other.
    fn wait(&mut self) {
        let now = self.world.clock.now();
        let due = |at: Option<u64>| at.is_some_and(|at| at <= now.mono_ms);
        if due(self.producer.engine.poll_timeout()) {
            self.producer.engine.handle(now, Input::Timeout);
        }
        if due(self.consumer.engine.poll_timeout()) {
            self.consumer.engine.handle(now, Input::Timeout);
        }
        if due(self.world.broker.poll_timeout()) {
            self.world.broker.handle_timeout(now);
        }
    }
}

fn main() {
    let Some(Ok(records)) = std::env::args().nth(1).map(|word| word.parse::<usize>()) else {
        eprintln!("one_thread RECORDS");
        std::process::exit(2);
    };
    let dir = std::env::temp_dir().join(format!("headrace-one-{}", std::process::id()));
    let mut bench = Bench::new(&dir);
    (0..WARM_UP).for_each(|_| bench.pass());
    let timed = |_| {
        let since = Instant::now();
        bench.pass();
        since.elapsed().as_secs_f64() * 1e6
    };
    let mut us: Vec<f64> = (0..records).map(timed).collect();
    assert!(lock(&bench.cache).metrics(0).direct_bytes_consumed_total > 0, "it went another way");
    us.sort_by(f64::total_cmp);
    let at = |part: f64| us[((us.len() as f64 * part) as usize).min(us.len() - 1)];
    println!(
        "{{\"name\": \"from send to batch, one thread\", \"p50_us\": {:.3}, \"p99_us\": {:.3}, \"p999_us\": {:.3}}}",
        at(0.5),
        at(0.99),
        at(0.999)
    );
    bench.world.broker.close(bench.world.clock.now()).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}
