//! Partitions that are read from their leader's memory: a broker that keeps its logs in files beside those of the small
//! Kafka, and lends them.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs::File;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow_array::cast::AsArray;
use headrace_fabric::{Committed, Memory, Region, Rights};
use headrace_wire::compression::Codec;
use headrace_wire::direct::{SLOT_BYTES, Slot};
use headrace_wire::messages::{
    ApiKey, DirectConnectRequest, DirectConnectResponse, DirectReleaseRequest, DirectReleaseResponse,
    GrantFetchRequest, GrantFetchResponse,
};
use headrace_wire::records::BatchHeader;

use super::kafka::{Bench, Kafka, named, tp};
use crate::consumer::{Assignment, ConsumerCommand, ConsumerEvent, StartAt, Taken, lock};
use crate::core::scripted::{Answer, Incoming};
use crate::engine::{Engine, LinkId};
use crate::error::Error;
use crate::options::ConsumerConfig;

const SLOTS_KEY: u64 = 1;
const SEGMENT_BYTES: usize = 8 << 20;
const AT_0: StartAt = StartAt::Offset(0);

/// A segment, as the broker has it.
struct Segment {
    base: i64,
    file: File,
    /// Where each batch begins: its last offset and position.
    batches: Vec<(i64, usize)>,
    bytes: usize,
    sealed: bool,
}

impl Segment {
    fn new(base: i64) -> Segment {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("headrace-segment-{}-{number}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        Segment { base, file, batches: Vec::new(), bytes: 0, sealed: false }
    }

    fn append(&mut self, batch: &[u8], last_offset: i64) {
        self.file.write_all(batch).unwrap();
        self.batches.push((last_offset, self.bytes));
        self.bytes += batch.len();
    }
}

struct Grant {
    place: i32,
    base: i64,
    slot: Option<usize>,
}

/// What the broker does about links.
struct Host {
    slots: Region,
    memory: Arc<Memory>,
    logs: BTreeMap<i32, Vec<Segment>>,
    /// How much of the small Kafka's logs stands in files.
    copied: BTreeMap<i32, usize>,
    grants: BTreeMap<u16, Grant>,
    free: Vec<usize>,
    next: u16,
    /// What was asked for, and what was given back.
    asked: Vec<(i32, i64)>,
    released: Vec<i32>,
    connects: usize,
    refuse_connect: Option<(i16, &'static str)>,
    refuse_grant: Option<i16>,
    slots_sent: bool,
    files: VecDeque<(u64, File, usize)>,
    lie: Option<Box<dyn Fn(&mut GrantFetchResponse)>>,
}

impl Host {
    fn answer(&mut self, incoming: &Incoming) -> Option<Answer> {
        match incoming.key {
            ApiKey::DirectConnect => {
                let request: DirectConnectRequest = incoming.decode();
                assert_eq!(request.fabric, "shm");
                self.connects += 1;
                let (error_code, error_message) = match self.refuse_connect {
                    Some((code, why)) => (code, Some(why.to_owned())),
                    None => (0, None),
                };
                Some(incoming.reply::<DirectConnectRequest>(&DirectConnectResponse {
                    error_code,
                    error_message,
                    ..Default::default()
                }))
            }
            ApiKey::GrantFetch => {
                let request: GrantFetchRequest = incoming.decode();
                self.asked.push((request.partition, request.offset));
                let mut response = match self.refuse_grant {
                    Some(error_code) => GrantFetchResponse { error_code, ..Default::default() },
                    None => self.grant(&request),
                };
                if let Some(lie) = &self.lie {
                    lie(&mut response);
                }
                Some(incoming.reply::<GrantFetchRequest>(&response))
            }
            ApiKey::DirectRelease => {
                let request: DirectReleaseRequest = incoming.decode();
                for id in &request.ids {
                    self.end(u16::try_from(*id).unwrap());
                }
                self.released.extend(request.ids);
                Some(incoming.reply::<DirectReleaseRequest>(&DirectReleaseResponse::default()))
            }
            _ => None,
        }
    }

    fn end(&mut self, id: u16) -> Option<Grant> {
        let grant = self.grants.remove(&id)?;
        if let Some(slot) = grant.slot {
            self.write(slot, Slot { sealed: true, ..Slot::default() });
            self.free.push(slot);
        }
        Some(grant)
    }

    fn grant(&mut self, request: &GrantFetchRequest) -> GrantFetchResponse {
        let place = request.partition;
        let before: Vec<u16> =
            self.grants.iter().filter(|(_, g)| g.place == place).map(|(id, _)| *id).collect();
        for id in before {
            self.end(id);
        }
        self.next += 1;
        let id = self.next;
        let segments = self.logs.get(&place).unwrap();
        let has = |s: &&Segment| s.batches.last().is_some_and(|(last, _)| *last >= request.offset);
        let segment = segments.iter().find(has).unwrap_or(segments.last().unwrap());
        let position = segment.batches.iter().find(|(last, _)| *last >= request.offset);
        let position = position.map_or(segment.bytes, |(_, at)| *at);
        let mapped = if segment.sealed { segment.bytes } else { SEGMENT_BYTES };
        let (sealed, committed, base) = (segment.sealed, segment.bytes, segment.base);
        let key = u64::from(id) + 100;
        let file = segment.file.try_clone().unwrap();
        let slot = if sealed { None } else { self.free.pop() };
        self.files.push_back((key, file, mapped));
        self.grants.insert(id, Grant { place, base, slot });
        self.publish(place);
        let number = |n: usize| i64::try_from(n).unwrap();
        GrantFetchResponse {
            id,
            key: key.cast_signed(),
            memory_bytes: number(mapped),
            base_offset: base,
            position: number(position),
            committed: number(committed),
            sealed,
            slots_key: SLOTS_KEY.cast_signed(),
            slot: slot.map_or(-1, |slot| i32::try_from(slot).unwrap()),
            high_watermark: self.end_of(place),
            ..GrantFetchResponse::default()
        }
    }

    fn end_of(&self, place: i32) -> i64 {
        let last = self.logs[&place].iter().rev().find_map(|segment| segment.batches.last());
        last.map_or(0, |(last, _)| last + 1)
    }

    fn write(&self, slot: usize, said: Slot) {
        for (at, word) in said.to_words().into_iter().enumerate().rev() {
            self.slots.word(slot * SLOT_BYTES + at * 8).unwrap().store(word, Ordering::Release);
        }
    }

    fn publish(&self, place: i32) {
        for (id, grant) in self.grants.iter().filter(|(_, grant)| grant.place == place) {
            let Some(slot) = grant.slot else { continue };
            let segment = self.logs[&place].iter().find(|segment| segment.base == grant.base).unwrap();
            let said = Slot {
                committed: segment.bytes as u64,
                sealed: segment.sealed,
                high_watermark: self.end_of(place),
                last_stable_offset: self.end_of(place),
                id: *id,
            };
            self.write(slot, said);
        }
    }

    fn roll(&mut self, place: i32) {
        let end = self.end_of(place);
        let segments = self.logs.get_mut(&place).unwrap();
        segments.last_mut().unwrap().sealed = true;
        segments.push(Segment::new(end));
        self.publish(place);
    }

    /// The slot and id of a partition's grant.
    fn slot_of(&self, place: i32) -> (usize, u16) {
        let (id, grant) = self.grants.iter().find(|(_, grant)| grant.place == place).unwrap();
        (grant.slot.unwrap(), *id)
    }
}

/// A consumer, its Kafka, and the memory of that.
struct Shared {
    bench: Bench,
    host: Rc<RefCell<Host>>,
    made: HashSet<LinkId>,
    /// Memory waits for a test to let it come.
    holds_slots: bool,
    holds_files: bool,
}

impl Shared {
    fn new(partitions: i32, options: &[(&str, &str)]) -> Shared {
        let memory = Memory::sealed("slots", 4096 * SLOT_BYTES).unwrap();
        let host = Host {
            slots: Region::whole(memory.clone()),
            memory,
            logs: (0..partitions).map(|place| (place, vec![Segment::new(0)])).collect(),
            copied: BTreeMap::new(),
            grants: BTreeMap::new(),
            free: (0..4096).rev().collect(),
            next: 0,
            asked: Vec::new(),
            released: Vec::new(),
            connects: 0,
            refuse_connect: None,
            refuse_grant: None,
            slots_sent: false,
            files: VecDeque::new(),
            lie: None,
        };
        let host = Rc::new(RefCell::new(host));
        let mut kafka = Kafka::new(&[("t", partitions)]);
        let script = host.clone();
        kafka.script = Some(Box::new(move |incoming| script.borrow_mut().answer(incoming)));
        let given = options.iter().any(|(name, _)| *name == "headrace.datapath");
        let auto = if given { &[][..] } else { &[("headrace.datapath", "auto")] };
        let options = [auto, options].concat();
        let bench = Bench::new(kafka, &options);
        Shared { bench, host, made: HashSet::new(), holds_slots: false, holds_files: false }
    }

    /// With all of these partitions assigned, from the start.
    fn reading(partitions: i32, options: &[(&str, &str)]) -> Shared {
        let mut shared = Shared::new(partitions, options);
        shared.assign(partitions);
        shared
    }

    fn assign(&mut self, partitions: i32) {
        let all: Vec<_> = (0..partitions).map(|place| ("t", place)).collect();
        self.bench.assign(&all, AT_0);
        self.settle();
    }

    /// Appends a batch of so many records, in the log and in the segment.
    fn append(&mut self, place: i32, records: i64) {
        self.append_as(place, records, Codec::None);
    }

    fn append_as(&mut self, place: i32, records: i64, codec: Codec) {
        self.bench.kafka.fill("t", place, 1, records, codec);
        self.copy(place);
    }

    /// Takes over what is new in the log.
    fn copy(&mut self, place: i32) {
        let mut host = self.host.borrow_mut();
        let log = &self.bench.kafka.logs[&("t".to_owned(), place)];
        let from = host.copied.insert(place, log.batches.len()).unwrap_or(0);
        for batch in &log.batches[from..] {
            let last = BatchHeader::parse(batch).unwrap().last_offset();
            host.logs.get_mut(&place).unwrap().last_mut().unwrap().append(batch, last);
        }
        host.publish(place);
    }

    fn look(&mut self) {
        let now = self.bench.world.now;
        self.bench.world.engine.handle_look(now);
        self.settle();
    }

    /// Lets everything happen that takes no time: links are made, and memory comes.
    fn settle(&mut self) {
        for _ in 0..1000 {
            self.bench.settle();
            let now = self.bench.world.now;
            let made: Vec<LinkId> =
                self.bench.world.links.iter().copied().filter(|link| self.made.insert(*link)).collect();
            let link = self.bench.world.links.last().copied();
            let engine = &mut self.bench.world.engine;
            for link in &made {
                self.host.borrow_mut().slots_sent = false;
                engine.handle_linked(now, *link);
            }
            let mut came = !made.is_empty();
            if let Some(link) = link {
                let mut host = self.host.borrow_mut();
                let granted = host.grants.values().any(|grant| grant.slot.is_some());
                if granted && !self.holds_slots && !std::mem::replace(&mut host.slots_sent, true) {
                    let file = host.memory.readers_file().unwrap();
                    let memory = Memory::from_peer(file, host.memory.len(), Rights::Read).unwrap();
                    engine.handle_lent(now, link, SLOTS_KEY, memory);
                    came = true;
                }
                while !self.holds_files
                    && let Some((key, file, len)) = host.files.pop_front()
                {
                    engine.handle_file(now, link, key, Committed::map(file.into(), len).unwrap());
                    came = true;
                }
            }
            if engine.direct_is_busy() {
                engine.handle_timeout(now);
                came = true;
            }
            if !came {
                return;
            }
        }
        panic!("memory never comes to rest");
    }

    fn run(&mut self, ms: u64) {
        self.bench.run(ms);
        self.settle();
    }

    /// The host's link ends.
    fn unlink(&mut self) {
        let link = self.bench.world.links.pop().unwrap();
        let mut host = self.host.borrow_mut();
        host.grants.clear();
        host.files.clear();
        host.slots_sent = false;
        drop(host);
        let now = self.bench.world.now;
        self.bench.world.engine.handle_unlinked(now, link, "gone".to_owned(), false);
    }

    fn drain(&mut self) -> Vec<String> {
        let mut all = self.bench.drain();
        self.settle();
        loop {
            let more = self.bench.drain();
            if more.is_empty() {
                return all;
            }
            all.extend(more);
            self.settle();
        }
    }

    fn fetches(&self) -> usize {
        self.bench.kafka.fetches.len()
    }

    fn direct_bytes(&self) -> u64 {
        lock(&self.bench.world.engine.cache()).metrics(0).direct_bytes_consumed_total
    }

    fn asked(&self) -> Vec<(i32, i64)> {
        self.host.borrow().asked.clone()
    }

    fn troubles(&self) -> Vec<String> {
        let text = |event: &ConsumerEvent| match event {
            ConsumerEvent::Trouble { what, error } => Some(format!("{what}: {error}")),
            _ => None,
        };
        self.bench.world.events.iter().filter_map(text).collect()
    }
}

fn wake(shared: &mut Shared) {
    shared.bench.command(|_| ConsumerCommand::Wake);
    shared.settle();
}

#[test]
fn rows_come_from_memory_and_a_fetch_that_waits_brings_none_of_them_again() {
    let mut shared = Shared::reading(1, &[]);
    assert_eq!(shared.bench.parked(), 1, "a Fetch was sent while there was no memory");
    assert_eq!(shared.asked(), [(0, 0)]);
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 0..10));
    assert!(shared.bench.world.events.contains(&ConsumerEvent::Ready));
    let read = shared.direct_bytes();
    assert!(read > 0);
    // The same records, asked for before.
    shared.bench.unpark();
    assert_eq!(shared.drain(), Vec::<String>::new());
    shared.append(0, 5);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 10..15));
    assert_eq!((shared.bench.position("t", 0), shared.fetches()), (Some(15), 1), "and no other Fetch");
    let metrics = lock(&shared.bench.world.engine.cache()).metrics(0);
    assert_eq!(metrics.records_lag, [(tp("t", 0), 0)]);
    shared.look();
    assert_eq!(shared.drain(), Vec::<String>::new());
}

#[test]
fn what_was_there_before_comes_from_memory_behind_what_a_fetch_brings() {
    for piece in [7, 100, usize::MAX] {
        let options = [("max.partition.fetch.bytes", "100000"), ("fetch.buffer.bytes", "1048576")];
        let mut shared = Shared::new(1, &options);
        shared.bench.world.piece = piece;
        for _ in 0..20 {
            let log = shared.bench.kafka.logs.get_mut(&("t".to_owned(), 0)).unwrap();
            let values: Vec<_> = (log.end..log.end + 100).map(|at| format!("{at:01000}")).collect();
            log.append(Codec::None, &values);
        }
        shared.copy(0);
        shared.assign(1);
        let held = lock(&shared.bench.world.engine.cache()).held_bytes();
        assert!(held > 500_000, "Fetch has filled it: {held}");
        let expected: Vec<_> = (0..2000).map(|at| format!("{at:01000}")).collect();
        assert!(shared.drain() == expected, "pieces of {piece}");
        assert!(shared.direct_bytes() > 0);
    }
}

#[test]
fn an_answer_that_is_arriving_is_waited_for() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    let parked = shared.bench.kafka.take_parked();
    let bytes = shared.bench.kafka.late_answer(&parked[0]);
    let half = bytes.len() - 20;
    shared.bench.world.push(parked[0].conn, &bytes[..half]);
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), Vec::<String>::new(), "the first of them are on their way");
    shared.bench.world.push(parked[0].conn, &bytes[half..]);
    shared.settle();
    assert_eq!(shared.drain(), named("t", 0, 0..20));
}

#[test]
fn a_link_that_ends_leaves_the_rest_to_fetch_until_there_is_another() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    shared.look();
    shared.unlink();
    shared.settle();
    let last = &shared.bench.kafka.fetches.last().unwrap().1;
    assert_eq!(last.topics[0].partitions[0].fetch_offset, 10);
    shared.append(0, 5);
    shared.bench.unpark();
    assert_eq!(shared.bench.drain(), named("t", 0, 0..15));
    assert_eq!(shared.host.borrow().connects, 1, "it is left alone for a while");
    shared.run(1_001);
    assert_eq!(shared.host.borrow().connects, 2);
    assert_eq!(shared.asked(), [(0, 0), (0, 15)]);
    let before = shared.fetches();
    shared.append(0, 5);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 15..20));
    assert_eq!(shared.fetches(), before);
}

#[test]
fn a_grant_that_is_refused_for_now_is_asked_for_again() {
    let mut shared = Shared::new(1, &[]);
    shared.host.borrow_mut().refuse_grant = Some(6);
    shared.assign(1);
    shared.append(0, 10);
    shared.bench.unpark();
    assert_eq!(shared.drain(), named("t", 0, 0..10));
    assert_eq!((shared.asked(), shared.direct_bytes()), (vec![(0, 0)], 0));
    shared.host.borrow_mut().refuse_grant = None;
    shared.run(1_001);
    assert_eq!(shared.asked(), [(0, 0), (0, 10)]);
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 10..20));
    assert!(shared.direct_bytes() > 0);
    assert_eq!(shared.troubles(), Vec::<String>::new());
}

#[test]
fn too_many_readers_are_told_once_or_are_an_error() {
    for (datapath, required) in [("auto", false), ("shm", true)] {
        let mut shared = Shared::new(2, &[("headrace.datapath", datapath)]);
        shared.host.borrow_mut().refuse_grant = Some(89);
        shared.assign(2);
        if required {
            for _ in 0..2 {
                let text = shared.bench.poll_error().to_string();
                assert!(text.contains("headrace.datapath"), "{text}");
            }
        }
        assert_eq!(shared.troubles().len(), usize::from(!required));
        shared.append(0, 3);
        shared.bench.unpark();
        assert_eq!(shared.drain(), named("t", 0, 0..3));
    }
}

#[test]
fn where_no_memory_can_be_had_it_is_tcp_or_an_error() {
    for (datapath, required) in [("auto", false), ("shm", true)] {
        let mut shared = Shared::new(1, &[("headrace.datapath", datapath)]);
        shared.host.borrow_mut().refuse_connect = Some((40, "the broker shares no memory"));
        shared.assign(1);
        shared.append(0, 10);
        shared.bench.unpark();
        if required {
            for _ in 0..2 {
                match shared.bench.poll_error() {
                    Error::Config { option: name, why } => {
                        assert_eq!(name, "headrace.datapath");
                        assert!(why.contains("shares no memory"), "{why}");
                    }
                    other => panic!("{other:?}"),
                }
            }
            continue;
        }
        assert_eq!(shared.drain(), named("t", 0, 0..10));
        shared.run(100_000);
        assert_eq!(shared.host.borrow().connects, 1);
        let troubles = shared.troubles();
        assert!(troubles.len() == 1 && troubles[0].contains("shares no memory"), "{troubles:?}");
    }
}

#[test]
fn transactions_are_read_over_tcp() {
    let options = |datapath: &str| {
        let pairs = [("bootstrap.servers", "a:1"), ("isolation.level", "read_committed")];
        let pairs = pairs.into_iter().chain([("headrace.datapath", datapath)]);
        ConsumerConfig::from_pairs(pairs.map(|(k, v)| (k.to_owned(), v.to_owned())))
    };
    let text = options("shm").unwrap_err().to_string();
    assert!(text.contains("headrace.datapath") && text.contains("isolation.level"), "{text}");
    options("auto").unwrap();
    let mut shared = Shared::reading(1, &[("isolation.level", "read_committed")]);
    shared.append(0, 10);
    shared.bench.unpark();
    assert_eq!(shared.drain(), named("t", 0, 0..10));
    assert_eq!(shared.host.borrow().connects, 0);
}

#[test]
fn a_segment_that_is_read_out_is_followed_by_the_next() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    shared.look();
    shared.host.borrow_mut().roll(0);
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 0..20));
    assert_eq!(shared.asked(), [(0, 0), (0, 10)]);
    // More than one at once, some of them sealed when they are granted.
    for _ in 0..3 {
        shared.append(0, 10);
        shared.host.borrow_mut().roll(0);
    }
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 20..60));
    assert_eq!(shared.fetches(), 1, "nothing of it was fetched");
    assert_eq!(shared.host.borrow().grants.len(), 1);
}

#[test]
fn a_segment_that_retention_removes_was_sealed_and_what_follows_comes() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    shared.look();
    shared.host.borrow_mut().roll(0);
    shared.append(0, 10);
    let host = shared.host.borrow_mut();
    let (slot, id) = host.slot_of(0);
    host.write(slot, Slot { committed: 0, sealed: true, high_watermark: 20, last_stable_offset: 20, id });
    drop(host);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 0..20));
}

#[test]
fn a_seek_asks_for_another_place_and_brings_nothing_of_before() {
    let mut shared = Shared::reading(1, &[]);
    for _ in 0..4 {
        shared.append(0, 10);
    }
    shared.look();
    assert_eq!(shared.bench.poll(5).unwrap().unwrap(), named("t", 0, 0..5));
    shared.bench.seek("t", 0, StartAt::Offset(25));
    shared.settle();
    assert_eq!(shared.drain(), named("t", 0, 25..40));
    assert_eq!(shared.asked().last(), Some(&(0, 25)));
    shared.append(0, 10);
    // Between the seek and the engine hearing of it a caller looks.
    let cache = shared.bench.world.engine.cache();
    lock(&cache).seek(&[(tp("t", 0), StartAt::Offset(3))]).unwrap();
    shared.look();
    assert_eq!(shared.bench.poll(usize::MAX), None);
    wake(&mut shared);
    assert_eq!(shared.drain(), named("t", 0, 3..50));
    shared.bench.unpark();
    shared.append(0, 1);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 50..51));
}

#[test]
fn a_pause_reads_nothing_on_and_keeps_what_was_read() {
    let mut shared = Shared::reading(2, &[]);
    shared.append(0, 10);
    shared.append(1, 10);
    shared.look();
    shared.bench.pause("t", 0);
    assert_eq!(shared.drain(), named("t", 1, 0..10));
    let before = shared.direct_bytes();
    shared.append(0, 10);
    shared.look();
    wake(&mut shared);
    assert_eq!(shared.direct_bytes(), before, "it is not read on");
    shared.append(1, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 1, 10..20));
    let fetches = shared.fetches();
    shared.bench.resume("t", 0);
    shared.settle();
    assert_eq!(shared.drain(), named("t", 0, 0..20));
    assert_eq!(shared.fetches(), fetches);
    assert_eq!(shared.asked(), [(0, 0), (1, 0)], "the grant was kept");
}

#[test]
fn partitions_that_go_are_given_back() {
    let mut shared = Shared::reading(2, &[]);
    shared.append(0, 10);
    shared.append(1, 10);
    shared.look();
    let partitions = vec![Assignment::of(tp("t", 1))];
    shared.bench.command(|op| ConsumerCommand::Assign { op, partitions });
    shared.settle();
    assert_eq!(shared.host.borrow().released, [1]);
    assert_eq!(shared.host.borrow().grants.len(), 1);
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 1, 0..10));
    // And back again, while the grant is asked for and gone once more.
    shared.assign(2);
    shared.append(1, 1);
    shared.look();
    let mut all = shared.drain();
    all.sort();
    let mut expected = [named("t", 0, 0..20), named("t", 1, 0..11)].concat();
    expected.sort();
    assert_eq!(all, expected);
}

#[test]
fn a_leader_that_has_moved_is_given_back_what_was_its() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    shared.look();
    shared.bench.kafka.layout.epoch = 5;
    shared.run(400_000);
    assert_eq!(shared.host.borrow().released, [1]);
    assert_eq!(shared.bench.kafka.epoch_asks.len(), 1, "it says first that the log was not cut");
    assert_eq!(shared.asked(), [(0, 0), (0, 10)]);
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 0..20));
}

#[test]
fn a_slot_of_somebody_else_is_not_believed() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 0..10));
    let host = shared.host.borrow_mut();
    let (slot, id) = host.slot_of(0);
    let said = Slot { committed: 1 << 40, sealed: false, high_watermark: 1 << 40, last_stable_offset: 0, id };
    host.write(slot, Slot { id: id + 1, ..said });
    drop(host);
    shared.look();
    shared.append(0, 5);
    shared.bench.unpark();
    assert_eq!(shared.drain(), named("t", 0, 10..15), "it is fetched");
    assert_eq!(shared.bench.world.links.len(), 1, "the link stays");
    shared.run(1_001);
    assert_eq!(shared.asked(), [(0, 0), (0, 15)]);
}

#[test]
fn a_broker_that_says_what_cannot_be_loses_its_link() {
    // Beyond what is mapped, beyond the file's end.
    for committed in [1_u64 << 40, SEGMENT_BYTES as u64] {
        let mut shared = Shared::reading(1, &[]);
        shared.append(0, 10);
        shared.look();
        let host = shared.host.borrow_mut();
        let (slot, id) = host.slot_of(0);
        host.write(slot, Slot { committed, sealed: false, high_watermark: 10, last_stable_offset: 10, id });
        drop(host);
        shared.look();
        assert_eq!(shared.bench.world.links, []);
        shared.append(0, 5);
        shared.bench.unpark();
        assert_eq!(shared.bench.drain(), named("t", 0, 0..15));
    }
    type Lie = fn(&mut GrantFetchResponse);
    let lies: [Lie; 5] = [
        |response| response.position = response.committed + 1,
        |response| response.committed = -1,
        |response| response.committed = response.memory_bytes + 1,
        |response| response.slot = -1,
        |response| response.slot = 1 << 30,
    ];
    for lie in lies {
        let mut shared = Shared::new(1, &[]);
        shared.host.borrow_mut().lie = Some(Box::new(lie));
        shared.assign(1);
        assert_eq!(shared.bench.world.links, []);
        shared.append(0, 5);
        shared.bench.unpark();
        assert_eq!(shared.drain(), named("t", 0, 0..5));
    }
}

#[test]
fn what_is_no_batch_is_an_error_of_its_partition() {
    for (garbage, why) in [(vec![9_u8; 200], "magic"), (vec![0; 20], "20")] {
        let mut shared = Shared::reading(2, &[]);
        shared.append(0, 10);
        shared.host.borrow_mut().logs.get_mut(&0).unwrap()[0].append(&garbage, 10);
        shared.host.borrow_mut().publish(0);
        shared.append(1, 3);
        shared.look();
        let mut rows = Vec::new();
        let mut error = None;
        for _ in 0..4 {
            match shared.bench.poll(usize::MAX) {
                Some(Ok(more)) => rows.extend(more),
                Some(Err(found)) => error = Some(found),
                None => break,
            }
        }
        rows.sort();
        assert_eq!(rows, [named("t", 0, 0..10), named("t", 1, 0..3)].concat());
        match error {
            Some(Error::Record { partition: 0, offset: 10, why: text, .. }) => {
                assert!(text.contains(why), "{text}");
            }
            other => panic!("{other:?}"),
        }
        shared.append(1, 3);
        shared.look();
        assert_eq!(shared.bench.world.links.len(), 1);
    }
}

#[test]
fn a_batch_goes_no_further_than_what_is_committed() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    shared.look();
    assert_eq!(shared.drain(), named("t", 0, 0..10));
    shared.bench.kafka.fill("t", 0, 1, 10, Codec::None);
    let batch = shared.bench.kafka.logs[&("t".to_owned(), 0)].batches[1].clone();
    shared.host.borrow_mut().logs.get_mut(&0).unwrap()[0].append(&batch[..batch.len() - 1], 19);
    shared.host.borrow_mut().publish(0);
    shared.look();
    let text = shared.bench.poll_error().to_string();
    assert!(text.contains("goes beyond") && text.contains("offset 10"), "{text}");
}

#[test]
fn a_damaged_batch_is_an_error_or_left_out() {
    for skips in [false, true] {
        let policy = if skips { "skip" } else { "error" };
        let mut shared = Shared::reading(1, &[("on.bad.records", policy)]);
        shared.append(0, 10);
        shared.bench.kafka.fill("t", 0, 1, 10, Codec::None);
        let log = shared.bench.kafka.logs.get_mut(&("t".to_owned(), 0)).unwrap();
        let last = log.batches[1].len() - 1;
        log.batches[1][last] ^= 1;
        shared.copy(0);
        shared.append(0, 10);
        shared.look();
        assert_eq!(shared.bench.poll(usize::MAX).unwrap().unwrap(), named("t", 0, 0..10));
        if skips {
            assert_eq!(shared.drain(), named("t", 0, 20..30));
            assert_eq!(shared.troubles().len(), 1);
        } else {
            let error = shared.bench.poll_error();
            assert!(matches!(error, Error::Record { offset: 10, .. }), "{error:?}");
            shared.bench.seek("t", 0, StartAt::Offset(20));
            shared.settle();
            assert_eq!(shared.drain(), named("t", 0, 20..30));
        }
    }
}

#[test]
fn memory_may_come_late_and_in_any_order() {
    for (slots, files) in [(true, false), (false, true), (true, true)] {
        let mut shared = Shared::new(1, &[]);
        (shared.holds_slots, shared.holds_files) = (slots, files);
        shared.assign(1);
        shared.append(0, 10);
        shared.look();
        assert_eq!(shared.bench.drain(), Vec::<String>::new());
        shared.holds_files = false;
        shared.settle();
        shared.append(0, 10);
        shared.look();
        shared.holds_slots = false;
        shared.settle();
        assert_eq!(shared.drain(), named("t", 0, 0..20), "{slots} {files}");
        assert!(shared.direct_bytes() > 0);
    }
}

#[test]
fn memory_may_come_before_the_word_that_it_is_granted() {
    let mut shared = Shared::reading(1, &[]);
    // The next grant has this key.
    let now = shared.bench.world.now;
    let link = shared.bench.world.links[0];
    shared.append(0, 10);
    let file = shared.host.borrow().logs[&0][0].file.try_clone().unwrap();
    let file = Committed::map(file.into(), SEGMENT_BYTES).unwrap();
    shared.holds_files = true;
    shared.bench.world.engine.handle_file(now, link, 102, file);
    shared.bench.seek("t", 0, StartAt::Offset(5));
    shared.settle();
    assert_eq!(shared.drain(), named("t", 0, 5..10));
}

#[test]
fn only_what_has_changed_is_read_and_all_of_it() {
    let mut shared = Shared::reading(200, &[]);
    assert_eq!(shared.asked().len(), 200, "some at a time");
    let fetches = shared.fetches();
    for place in [3, 150, 7] {
        shared.append(place, 2);
    }
    shared.look();
    let mut rows = shared.drain();
    rows.sort();
    let mut expected: Vec<_> = [3, 150, 7].into_iter().flat_map(|place| named("t", place, 0..2)).collect();
    expected.sort();
    assert_eq!(rows, expected);
    assert_eq!(shared.fetches(), fetches);
}

#[test]
fn a_full_cache_reads_on_when_there_is_room() {
    // A value of a kilobyte, so that few batches fill it.
    let mut shared = Shared::reading(2, &[("fetch.buffer.bytes", "1048576")]);
    let value = "x".repeat(10_000);
    let log = |shared: &mut Shared, place: i32| {
        let log = shared.bench.kafka.logs.get_mut(&("t".to_owned(), place)).unwrap();
        for _ in 0..10 {
            log.append(Codec::None, &vec![value.clone(); 20]);
        }
    };
    for place in [0, 1] {
        log(&mut shared, place);
        shared.copy(place);
    }
    shared.look();
    let held = lock(&shared.bench.world.engine.cache()).held_bytes();
    assert!(held < 3 << 20, "{held}");
    assert!(shared.direct_bytes() < 3 << 20);
    let rows = shared.drain();
    assert_eq!(rows.len(), 400);
    assert_eq!((shared.bench.position("t", 0), shared.bench.position("t", 1)), (Some(200), Some(200)));
    assert_eq!(shared.fetches(), 1);
}

#[test]
fn compressed_batches_and_parts_of_batches() {
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let mut shared = Shared::new(1, &[]);
        for at in 0..6 {
            shared.append_as(0, 100, if at % 2 == 0 { codec } else { Codec::None });
        }
        let assignment =
            Assignment { partition: tp("t", 0), start: Some(StartAt::Offset(50)), stop: Some(450) };
        shared.bench.command(|op| ConsumerCommand::Assign { op, partitions: vec![assignment] });
        shared.settle();
        shared.bench.unpark();
        assert_eq!(shared.drain(), named("t", 0, 50..450), "{codec:?}");
        assert!(lock(&shared.bench.world.engine.cache()).is_finished());
    }
}

#[test]
fn a_topic_that_goes_is_told_by_fetch() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    shared.look();
    let now = shared.bench.world.now;
    let link = shared.bench.world.links[0];
    shared.host.borrow_mut().refuse_grant = Some(100);
    shared.bench.world.engine.handle_ended(now, link, 101);
    shared.settle();
    assert_eq!(shared.drain(), named("t", 0, 0..10));
    assert!(shared.fetches() > 1, "Fetch is asked again");
}

/// Where the values of rows lie.
fn values_at(rows: &arrow_array::RecordBatch) -> Vec<*const u8> {
    let column = rows.column_by_name("value").unwrap().as_binary_view();
    column.iter().map(|value| value.unwrap().as_ptr()).collect()
}

#[test]
fn views_point_into_the_mapping_and_keep_it() {
    let mut shared = Shared::new(1, &[("value.type", "binary_view")]);
    shared.holds_files = true;
    shared.assign(1);
    shared.append(0, 1000);
    let (now, link) = (shared.bench.world.now, shared.bench.world.links[0]);
    let (key, file, len) = shared.host.borrow_mut().files.pop_front().unwrap();
    let file = Committed::map(file.into(), len).unwrap();
    let mut mapping = file.clone();
    mapping.advance(shared.host.borrow().logs[&0][0].bytes).unwrap();
    let all = mapping.bytes(0..mapping.position()).unwrap();
    shared.bench.world.engine.handle_file(now, link, key, file);
    shared.settle();
    shared.look();
    let cache = shared.bench.world.engine.cache();
    let rows = loop {
        let taken = lock(&cache).take(usize::MAX);
        match taken.unwrap() {
            Taken::Decode(job) => drop(lock(&cache).put_back(job.run())),
            Taken::Rows(rows) => break rows.batch(),
            Taken::Failed(error) => panic!("{error}"),
        }
    };
    assert_eq!(super::kafka::values(&rows), named("t", 0, 0..1000));
    let range = all.as_ptr_range();
    // Short values stand in the view itself.
    let within = values_at(&rows).iter().filter(|at| range.contains(*at)).count();
    assert_eq!(within, 0, "ten bytes and less are not pointed to");
    assert!(rows.get_array_memory_size() < 1 << 20);
    drop((mapping, all));

    // Longer ones point into it, and outlive all that lent it.
    let long = vec!["y".repeat(100); 100];
    let log = shared.bench.kafka.logs.get_mut(&("t".to_owned(), 0)).unwrap();
    log.append(Codec::None, &long);
    shared.copy(0);
    shared.look();
    let rows = loop {
        let taken = lock(&cache).take(usize::MAX);
        match taken.unwrap() {
            Taken::Decode(job) => drop(lock(&cache).put_back(job.run())),
            Taken::Rows(rows) => break rows.batch(),
            Taken::Failed(error) => panic!("{error}"),
        }
    };
    let step: Vec<_> = values_at(&rows).windows(2).map(|two| two[1] as usize - two[0] as usize).collect();
    assert!(step.iter().all(|step| *step > 100 && *step < 120), "as records stand in a batch: {step:?}");
    shared.bench.command(|op| ConsumerCommand::Assign { op, partitions: Vec::new() });
    shared.unlink();
    drop(shared);
    drop(cache);
    assert_eq!(super::kafka::values(&rows), long);
}

#[test]
fn a_look_that_finds_nothing_touches_nothing() {
    let mut shared = Shared::reading(3, &[]);
    let cache = shared.bench.world.engine.cache();
    // Whoever locks the cache would wait for ever.
    let held = lock(&cache);
    let now = shared.bench.world.now;
    shared.bench.world.engine.handle_look(now);
    drop(held);
    assert_eq!(shared.bench.world.engine.poll_event(), None);
}

#[test]
fn closing_ends_everything() {
    let mut shared = Shared::reading(1, &[]);
    shared.append(0, 10);
    shared.bench.command(|op| ConsumerCommand::Close { op, finished: true, timeout_ms: 1000 });
    shared.look();
    assert_eq!(shared.bench.poll(usize::MAX), None);
}
