//! Consumers that read a partition through the memory of the broker that leads it.

use std::collections::hash_map::Entry;

use headrace_log::MemoryFile;
use headrace_wire::direct::{SLOT_BYTES, Slot};
use headrace_wire::messages::GrantFetchRequest;

use super::*;

/// What brokers expose to consumers, by link.
#[derive(Default)]
pub(super) struct Exposed {
    /// The consumer's link to each broker.
    of: HashMap<i32, LinkId>,
    files: HashMap<(LinkId, u64), MemoryFile>,
    slots: HashMap<LinkId, Region>,
}

/// A segment that is read through memory.
pub(crate) struct Reading {
    pub(crate) at: i32,
    link: LinkId,
    key: u64,
    id: u16,
    file: MemoryFile,
    /// `None` of one that was sealed when it was granted.
    slot: Option<usize>,
    committed: usize,
    sealed: bool,
    position: usize,
    /// What was there to be read so far, whoever looks.
    shown: Vec<u8>,
}

impl Trio {
    /// What a broker does with a link that is not a leader's: whether it is about what a consumer reads.
    pub(super) fn expose(&mut self, link: LinkId, action: &LinkAction<MemoryFile>) -> bool {
        match action {
            LinkAction::ExposeFile { key, file, .. } => {
                self.exposed.files.insert((link, *key), file.clone());
            }
            LinkAction::ExposeToRead { memory, .. } => {
                self.exposed.slots.insert(link, Region::whole(memory.clone()));
            }
            LinkAction::End { key, .. } => return self.exposed.files.remove(&(link, *key)).is_some(),
            _ => return false,
        }
        true
    }

    /// A broker's process is gone, and its links with it.
    pub(super) fn end_exposed(&mut self, id: i32) {
        if let Some(link) = self.exposed.of.remove(&id) {
            self.exposed.files.retain(|(of, _), _| *of != link);
            self.exposed.slots.remove(&link);
        }
    }

    fn reader_link(&mut self, at: i32) -> LinkId {
        if let Entry::Vacant(free) = self.exposed.of.entry(at) {
            self.last_link += 1;
            let link = *free.insert(LinkId(self.last_link));
            self.nodes
                .get_mut(&at)
                .unwrap()
                .call(self.now, |broker, now| broker.handle_connect(now, READER, "127.0.0.1:5002"));
            let connect = DirectConnectRequest { fabric: "shm".into(), ..DirectConnectRequest::default() };
            let token = self.call_over(READER, at, 0, &connect).token.0;
            assert!(self.nodes.get_mut(&at).unwrap().broker.handle_link(link, token));
        }
        self.exposed.of[&at]
    }

    /// A consumer's grant to read partition 0 of a topic from an offset on.
    pub(crate) fn reader(&mut self, at: i32, topic: &str, offset: i64) -> Result<Reading, ErrorCode> {
        let link = self.reader_link(at);
        let unknown = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
        let topic_id = self.metadata_on_own(at, topic).ok_or(unknown)?.topic_id;
        let request = GrantFetchRequest { topic_id, partition: 0, current_leader_epoch: -1, offset };
        let granted = self.call_over(READER, at, 0, &request);
        if granted.error_code != 0 {
            return Err(ErrorCode::new(granted.error_code));
        }
        let bytes = |said: i64| usize::try_from(said).unwrap();
        assert!(granted.position <= granted.committed && granted.committed <= granted.memory_bytes);
        assert_eq!(granted.slot < 0, granted.sealed);
        let key = granted.key.cast_unsigned();
        Ok(Reading {
            at,
            link,
            key,
            id: granted.id,
            // It comes before the answer.
            file: self.exposed.files[&(link, key)].clone(),
            slot: usize::try_from(granted.slot).ok(),
            committed: bytes(granted.committed),
            sealed: granted.sealed,
            position: bytes(granted.position),
            shown: Vec::new(),
        })
    }

    /// What is new to a consumer; nothing once its grant has ended.
    pub(crate) fn look(&self, reading: &mut Reading) -> Option<Vec<(i64, String)>> {
        if !self.exposed.files.contains_key(&(reading.link, reading.key)) {
            return None;
        }
        if let Some(slot) = reading.slot {
            let words = &self.exposed.slots[&reading.link];
            let words = [0, 1, 2].map(|word| words.load(slot * SLOT_BYTES + word * 8).unwrap());
            let said = Slot::from_words(words);
            assert_eq!(said.id, reading.id, "a slot is its grant's as long as that stands");
            let committed = usize::try_from(said.committed).unwrap();
            assert!(committed >= reading.committed, "what is committed stays so");
            (reading.committed, reading.sealed) = (committed, said.sealed);
        }
        reading.shown = reading.file.bytes(0, reading.committed);
        assert_eq!(reading.shown.len(), reading.committed, "what is committed is there");
        let new = Bytes::copy_from_slice(&reading.shown[reading.position..]);
        reading.position = reading.committed;
        Some(decode(Some(&headrace_wire::primitive::Records::from(new))))
    }
}

impl Reading {
    /// What a consumer was shown stays in the file that it has mapped, whatever becomes of the log.
    pub(crate) fn check(&self) {
        assert!(self.file.bytes(0, self.shown.len()) == self.shown, "at broker {}", self.at);
    }

    /// Whether what comes next is in another segment.
    pub(crate) fn is_over(&self) -> bool {
        self.sealed && self.position == self.committed
    }
}
