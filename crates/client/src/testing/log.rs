//! A partition's log, as a consumer reads it.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use headrace_wire::compression::Codec;
use headrace_wire::records::{BatchBuilder, BatchHeader, NO_HEADERS, ProducerStamp, crc32c, patch};

use super::produce::Produced;

/// A partition's log.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) batches: Vec<Vec<u8>>,
    /// The leader epoch of batches to come.
    pub(crate) epoch: i32,
    /// What is sent in place of the header's last offset delta and count of a batch, by its place in the log.
    pub(crate) lies: BTreeMap<usize, (i32, i32)>,
    /// What producers have written.
    pub(crate) produced: Produced,
}

impl Default for Log {
    fn default() -> Log {
        Log {
            start: 0,
            end: 0,
            batches: Vec::new(),
            epoch: 1,
            lies: BTreeMap::new(),
            produced: Produced::default(),
        }
    }
}

impl Deref for Log {
    type Target = Produced;

    fn deref(&self) -> &Produced {
        &self.produced
    }
}

impl DerefMut for Log {
    fn deref_mut(&mut self) -> &mut Produced {
        &mut self.produced
    }
}

/// A batch of records with these values, which nobody in particular has produced.
fn batch(codec: Codec, values: impl Iterator<Item = impl AsRef<str>>) -> Vec<u8> {
    let mut builder = BatchBuilder::new(1 << 20);
    for value in values {
        builder.append(1_000, None, Some(value.as_ref().as_bytes()), NO_HEADERS.iter().copied()).unwrap();
    }
    builder.finish(ProducerStamp::NONE, codec, None).unwrap().to_vec()
}

impl Log {
    /// Appends a batch of records with these values.
    pub(crate) fn append(&mut self, codec: Codec, values: &[String]) {
        self.append_raw(batch(codec, values.iter()));
    }

    /// Appends a batch with other attributes and a producer.
    pub(crate) fn append_marked(&mut self, values: &[&str], attributes: i16, producer_id: i64) {
        let bytes = batch(Codec::None, values.iter());
        let (head, body) = bytes.split_at(BatchHeader::LEN);
        let mut header = BatchHeader::parse(head).unwrap();
        header.attributes |= attributes;
        header.producer_id = producer_id;
        header.seal(crc32c(body), body.len());
        self.append_raw([&header.encode()[..], body].concat());
    }

    /// Appends a batch as it is, at the end.
    pub(crate) fn append_raw(&mut self, mut bytes: Vec<u8>) {
        patch(&mut bytes, self.end, self.epoch).unwrap();
        self.end = BatchHeader::parse(&bytes).unwrap().last_offset() + 1;
        self.batches.push(bytes);
    }

    /// What a new leader finds that lacks the batches from `end` on: its own get a later epoch.
    pub(crate) fn cut(&mut self, end: i64) {
        self.batches.retain(|batch| BatchHeader::parse(batch).unwrap().last_offset() < end);
        self.end = end;
        self.epoch += 1;
    }

    /// The largest epoch up to this one, and where it ends.
    pub(crate) fn end_of(&self, epoch: i32) -> (i32, i64) {
        let headers = || self.batches.iter().map(|batch| BatchHeader::parse(batch).unwrap());
        let up_to = headers().map(|h| h.partition_leader_epoch).filter(|e| *e <= epoch).max();
        let later = headers().find(|h| h.partition_leader_epoch > epoch).map(|h| h.base_offset);
        (up_to.unwrap_or(-1), later.unwrap_or(self.end))
    }

    /// Whole batches from `offset` on, and of the one that does not fit the beginning.
    pub(super) fn read(&self, offset: i64, max_bytes: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for (at, batch) in self.batches.iter().enumerate() {
            if BatchHeader::parse(batch).unwrap().last_offset() < offset {
                continue;
            }
            let mut batch = batch.clone();
            if let Some((delta, count)) = self.lies.get(&at) {
                batch[23..27].copy_from_slice(&delta.to_be_bytes());
                batch[57..61].copy_from_slice(&count.to_be_bytes());
            }
            if !out.is_empty() && out.len() + batch.len() > max_bytes {
                out.extend_from_slice(&batch[..max_bytes.saturating_sub(out.len()).min(batch.len() - 1)]);
                break;
            }
            out.extend_from_slice(&batch);
        }
        out
    }
}
