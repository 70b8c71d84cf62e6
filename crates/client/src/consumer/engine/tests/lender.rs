//! A broker that keeps the logs of the small Kafka in files as well, and lends them.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs::File;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use headrace_fabric::{Committed, Memory, Region, Rights};
use headrace_wire::compression::Codec;
use headrace_wire::direct::{SLOT_BYTES, Slot};
use headrace_wire::messages::{
    ApiKey, DirectConnectRequest, DirectConnectResponse, DirectReleaseRequest, DirectReleaseResponse,
    GrantFetchRequest, GrantFetchResponse,
};
use headrace_wire::records::BatchHeader;

use super::bench::Bench;
use crate::consumer::{ConsumerEvent, StartAt, lock};
use crate::engine::Engine;
use crate::io::{Input, LinkEvent, LinkId};
use crate::testing::{Answer, Incoming, ScriptedKafka};

const SLOTS_KEY: u64 = 1;
pub(super) const SEGMENT_BYTES: usize = 8 << 20;
const AT_0: StartAt = StartAt::Offset(0);

/// What a test makes of a grant.
type Lie = Box<dyn Fn(&mut GrantFetchResponse)>;

/// A segment, as the broker has it.
pub(super) struct Segment {
    pub(super) base: i64,
    pub(super) file: File,
    /// Where each batch begins: its last offset and position.
    pub(super) batches: Vec<(i64, usize)>,
    pub(super) bytes: usize,
    pub(super) sealed: bool,
}

impl Segment {
    pub(super) fn new(base: i64) -> Segment {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("headrace-segment-{}-{number}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        Segment { base, file, batches: Vec::new(), bytes: 0, sealed: false }
    }

    pub(super) fn append(&mut self, batch: &[u8], last_offset: i64) {
        self.file.write_all(batch).unwrap();
        self.batches.push((last_offset, self.bytes));
        self.bytes += batch.len();
    }
}

pub(super) struct Grant {
    pub(super) place: i32,
    pub(super) base: i64,
    pub(super) slot: Option<usize>,
}

/// What the broker does about links.
pub(super) struct Host {
    pub(super) slots: Region,
    pub(super) memory: Arc<Memory>,
    pub(super) logs: BTreeMap<i32, Vec<Segment>>,
    /// How much of the small Kafka's logs stands in files.
    pub(super) copied: BTreeMap<i32, usize>,
    pub(super) grants: BTreeMap<u16, Grant>,
    pub(super) free: Vec<usize>,
    pub(super) next: u16,
    /// What was asked for, and what was given back.
    pub(super) asked: Vec<(i32, i64)>,
    pub(super) released: Vec<i32>,
    pub(super) connects: usize,
    pub(super) refuse_connect: Option<(i16, &'static str)>,
    pub(super) refuse_grant: Option<i16>,
    pub(super) slots_sent: bool,
    pub(super) files: VecDeque<(u64, File, usize)>,
    pub(super) lie: Option<Lie>,
}

impl Host {
    pub(super) fn answer(&mut self, incoming: &Incoming) -> Option<Answer> {
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

    pub(super) fn end(&mut self, id: u16) -> Option<Grant> {
        let grant = self.grants.remove(&id)?;
        if let Some(slot) = grant.slot {
            self.write(slot, Slot { sealed: true, ..Slot::default() });
            self.free.push(slot);
        }
        Some(grant)
    }

    pub(super) fn grant(&mut self, request: &GrantFetchRequest) -> GrantFetchResponse {
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

    pub(super) fn end_of(&self, place: i32) -> i64 {
        let last = self.logs[&place].iter().rev().find_map(|segment| segment.batches.last());
        last.map_or(0, |(last, _)| last + 1)
    }

    pub(super) fn write(&self, slot: usize, said: Slot) {
        for (at, word) in said.to_words().into_iter().enumerate().rev() {
            self.slots.word(slot * SLOT_BYTES + at * 8).unwrap().store(word, Ordering::Release);
        }
    }

    pub(super) fn publish(&self, place: i32) {
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

    pub(super) fn roll(&mut self, place: i32) {
        let end = self.end_of(place);
        let segments = self.logs.get_mut(&place).unwrap();
        segments.last_mut().unwrap().sealed = true;
        segments.push(Segment::new(end));
        self.publish(place);
    }

    /// The slot and id of a partition's grant.
    pub(super) fn slot_of(&self, place: i32) -> (usize, u16) {
        let (id, grant) = self.grants.iter().find(|(_, grant)| grant.place == place).unwrap();
        (grant.slot.unwrap(), *id)
    }
}

/// A consumer, its Kafka, and the memory of that.
pub(super) struct Shared {
    pub(super) bench: Bench,
    pub(super) host: Rc<RefCell<Host>>,
    pub(super) made: HashSet<LinkId>,
    /// Memory waits for a test to let it come.
    pub(super) holds_slots: bool,
    pub(super) holds_files: bool,
}

impl Shared {
    pub(super) fn new(partitions: i32, options: &[(&str, &str)]) -> Shared {
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
        let mut kafka = ScriptedKafka::new(&[("t", partitions)]);
        let script = host.clone();
        kafka.script = Some(Box::new(move |incoming| script.borrow_mut().answer(incoming)));
        let given = options.iter().any(|(name, _)| *name == "headrace.datapath");
        let auto = if given { &[][..] } else { &[("headrace.datapath", "auto")] };
        let options = [auto, options].concat();
        let bench = Bench::new(kafka, &options);
        Shared { bench, host, made: HashSet::new(), holds_slots: false, holds_files: false }
    }

    /// With all of these partitions assigned, from the start.
    pub(super) fn reading(partitions: i32, options: &[(&str, &str)]) -> Shared {
        let mut shared = Shared::new(partitions, options);
        shared.assign(partitions);
        shared
    }

    pub(super) fn assign(&mut self, partitions: i32) {
        let all: Vec<_> = (0..partitions).map(|place| ("t", place)).collect();
        self.bench.assign(&all, AT_0);
        self.settle();
    }

    /// Appends a batch of so many records, in the log and in the segment.
    pub(super) fn append(&mut self, place: i32, records: i64) {
        self.append_as(place, records, Codec::None);
    }

    pub(super) fn append_as(&mut self, place: i32, records: i64, codec: Codec) {
        self.bench.kafka.fill("t", place, 1, records, codec);
        self.copy(place);
    }

    /// Takes over what is new in the log.
    pub(super) fn copy(&mut self, place: i32) {
        let mut host = self.host.borrow_mut();
        let log = &self.bench.kafka.logs[&("t".to_owned(), place)];
        let from = host.copied.insert(place, log.batches.len()).unwrap_or(0);
        for batch in &log.batches[from..] {
            let last = BatchHeader::parse(batch).unwrap().last_offset();
            host.logs.get_mut(&place).unwrap().last_mut().unwrap().append(batch, last);
        }
        host.publish(place);
    }

    pub(super) fn look(&mut self) {
        let now = self.bench.world.now;
        self.bench.world.engine.handle(now, Input::PollMemory);
        self.settle();
    }

    /// Lets everything happen that takes no time: links are made, and memory comes.
    pub(super) fn settle(&mut self) {
        for _ in 0..1000 {
            self.bench.settle();
            let made: Vec<LinkId> =
                self.bench.world.links.iter().copied().filter(|link| self.made.insert(*link)).collect();
            let link = self.bench.world.links.last().copied();
            let world = &mut self.bench.world;
            for link in &made {
                self.host.borrow_mut().slots_sent = false;
                world.link(*link, LinkEvent::Connected);
            }
            let mut came = !made.is_empty();
            if let Some(link) = link {
                let mut host = self.host.borrow_mut();
                let granted = host.grants.values().any(|grant| grant.slot.is_some());
                if granted && !self.holds_slots && !std::mem::replace(&mut host.slots_sent, true) {
                    let file = host.memory.readers_file().unwrap();
                    let memory = Memory::from_peer(file, host.memory.len(), Rights::Read).unwrap();
                    world.link(link, LinkEvent::Exposed { key: SLOTS_KEY, memory });
                    came = true;
                }
                while !self.holds_files
                    && let Some((key, file, len)) = host.files.pop_front()
                {
                    let file = Committed::map(file.into(), len).unwrap();
                    world.link(link, LinkEvent::FileExposed { key, file });
                    came = true;
                }
            }
            if world.engine.direct.more {
                world.engine.handle(world.now, Input::Timeout);
                came = true;
            }
            if !came {
                return;
            }
        }
        panic!("memory never comes to rest");
    }

    /// Lets time pass, and memory come before anybody has given it up.
    pub(super) fn run(&mut self, ms: u64) {
        for from in (0..ms).step_by(500) {
            self.bench.run(500.min(ms - from));
            self.settle();
        }
    }

    /// The host's link ends.
    pub(super) fn unlink(&mut self) {
        let link = self.bench.world.links.pop().unwrap();
        let mut host = self.host.borrow_mut();
        host.grants.clear();
        host.files.clear();
        host.slots_sent = false;
        drop(host);
        self.bench.world.link(link, LinkEvent::Closed { reason: "gone".to_owned(), lasting: false });
    }

    pub(super) fn drain(&mut self) -> Vec<String> {
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

    pub(super) fn fetches(&self) -> usize {
        self.bench.kafka.fetches().len()
    }

    pub(super) fn direct_bytes(&self) -> u64 {
        lock(&self.bench.world.engine.cache()).metrics(0).direct_bytes_consumed_total
    }

    pub(super) fn asked(&self) -> Vec<(i32, i64)> {
        self.host.borrow().asked.clone()
    }

    pub(super) fn troubles(&self) -> Vec<String> {
        let text = |event: &ConsumerEvent| match event {
            ConsumerEvent::Trouble { what, error } => Some(format!("{what}: {error}")),
            _ => None,
        };
        self.bench.world.events.iter().filter_map(text).collect()
    }
}
