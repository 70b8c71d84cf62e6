//! What clients know of a topic with one partition: what was acknowledged to them, and what they have read.

use std::collections::BTreeMap;

use headrace_wire::errors::ErrorCode;

use crate::trio::{Reading, Trio};

/// A topic, its producer, and its consumers.
pub(super) struct History {
    pub(super) topic: &'static str,
    producer: usize,
    /// Produce requests that are not answered: broker, correlation, value, whether it is to be acknowledged by all.
    waiting: Vec<(i32, i32, String, bool)>,
    /// Values that were acknowledged with acks all, by their offset.
    acknowledged: BTreeMap<i64, String>,
    /// Those that were with acks 1: they may go.
    noted: BTreeMap<String, i64>,
    /// Values that a consumer has read, by their offset.
    seen: BTreeMap<i64, String>,
    /// What is read through memory, and what was.
    readings: Vec<Reading>,
    over: Vec<Reading>,
    written: u64,
    /// Who has copies in the beginning.
    first: Vec<i32>,
    /// Who has led in each epoch.
    led: BTreeMap<i32, i32>,
}

impl History {
    pub(super) fn new(producer: usize, topic: &'static str, trio: &mut Trio) -> Self {
        Self {
            topic,
            producer,
            waiting: Vec::new(),
            acknowledged: BTreeMap::new(),
            noted: BTreeMap::new(),
            seen: BTreeMap::new(),
            readings: Vec::new(),
            over: Vec::new(),
            written: 0,
            first: trio.folders(topic).0,
            led: BTreeMap::new(),
        }
    }

    /// How many offsets consumers know.
    pub(super) fn seen(&self) -> u64 {
        self.seen.len() as u64
    }

    /// One batch, if the broker has answered the one before.
    pub(super) fn produce(&mut self, trio: &mut Trio, to: i32, acks: i16) {
        if self.waiting.iter().any(|(at, ..)| *at == to) {
            return;
        }
        self.written += 1;
        let value = format!("{} {to} {}", self.topic, self.written);
        let correlation = trio.produce_as(self.producer, to, acks, self.topic, &value);
        self.waiting.push((to, correlation, value, acks == -1));
    }

    /// Takes answers in; how many batches all of the in-sync set have.
    pub(super) fn collect(&mut self, trio: &mut Trio) -> u64 {
        let before = self.acknowledged.len();
        for (to, correlation, value, is_all) in std::mem::take(&mut self.waiting) {
            match trio.produced(to, correlation) {
                Some((ErrorCode::NONE, offset)) if is_all => {
                    let before = self.acknowledged.insert(offset, value.clone());
                    assert_eq!(before, None, "offset {offset} was acknowledged twice, now for {value}");
                }
                Some((ErrorCode::NONE, offset)) => drop(self.noted.insert(value, offset)),
                Some(_) => {}
                None => self.waiting.push((to, correlation, value, is_all)),
            }
        }
        (self.acknowledged.len() - before) as u64
    }

    /// A broker is gone, and what it has not answered.
    pub(super) fn forget(&mut self, id: i32) {
        self.waiting.retain(|(at, ..)| *at != id);
    }

    /// A consumer sees no record that goes away, and none in the place of another, wherever it reads.
    pub(super) fn read(&mut self, trio: &mut Trio, from: i32, offset: i64) -> u64 {
        let rows = trio.rows(from, self.topic, offset);
        let count = rows.len() as u64;
        self.see(from, rows);
        count
    }

    fn see(&mut self, from: i32, rows: Vec<(i64, String)>) {
        for (offset, value) in rows {
            let before = self.seen.entry(offset).or_insert_with(|| value.clone());
            assert_eq!(*before, value, "at offset {offset} of broker {from}");
        }
    }

    /// A consumer begins to read through memory, at one that thinks that it leads.
    pub(super) fn begin_reading(&mut self, trio: &mut Trio, at: i32, offset: i64) {
        if let Ok(reading) = trio.reader(at, self.topic, offset) {
            // A broker ends what it has granted to the same consumer before.
            self.readings.push(reading);
        }
    }

    /// What is read through memory is looked at all the time, as a consumer that waits does.
    pub(super) fn look(&mut self, trio: &Trio) -> u64 {
        let mut count = 0;
        for mut reading in std::mem::take(&mut self.readings) {
            match trio.look(&mut reading) {
                Some(rows) => {
                    count += rows.len() as u64;
                    self.see(reading.at, rows);
                    self.readings.push(reading);
                }
                None => self.over.push(reading),
            }
        }
        count
    }

    /// At most one broker takes records in an epoch.
    pub(super) fn note_leader(&mut self, trio: &mut Trio, id: i32) {
        if let Some(epoch) = trio.leads(id, self.topic) {
            let first = *self.led.entry(epoch).or_insert(id);
            assert_eq!(first, id, "two brokers lead {} in epoch {epoch}", self.topic);
        }
    }

    /// All is well again: somebody leads, all are in sync, and have the same, among it what clients know. Whether others have
    /// copies than in the beginning, the leader epoch, and how much was cut off that its leader had acknowledged.
    pub(super) fn check(mut self, trio: &mut Trio, troubles: &[Vec<String>]) -> (bool, u64, u64) {
        self.readings.iter().chain(&self.over).for_each(Reading::check);
        let topic = self.topic;
        let id = trio.ids()[0];
        let (leader, epoch, isr) = trio.state_on_own(id, topic);
        let (have, wanted) = trio.folders(topic);
        assert_eq!(have, wanted, "who is to have a copy has one");
        assert!(leader > 0, "somebody leads: {troubles:?}");
        assert_eq!(isr.len(), 3, "all are in sync: {troubles:?}");
        self.forget(leader);
        self.produce(trio, leader, -1);
        trio.pass(2000);
        assert!(self.collect(trio) > 0, "the leader {leader} of {topic} takes records: {troubles:?}");
        let rows: BTreeMap<i64, String> = trio.rows(leader, topic, 0).into_iter().collect();
        for (offset, value) in self.acknowledged.iter().chain(&self.seen) {
            assert_eq!(rows.get(offset), Some(value), "{topic}, offset {offset}; {troubles:?}");
        }
        let bytes = trio.bytes(leader, topic, 0);
        for id in isr {
            assert_eq!(trio.bytes(id, topic, 0), bytes, "{topic}, brokers {id} and {leader}; {troubles:?}");
        }
        let cut_off = self.noted.iter().filter(|(value, offset)| rows.get(offset) != Some(value));
        (have != self.first, epoch as u64, cut_off.count() as u64)
    }
}
