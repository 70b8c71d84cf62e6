//! One partition's landing ring, as the producer that writes into it sees it.

use std::collections::VecDeque;

use bytes::Bytes;
use headrace_wire::direct::{WriteAck, Written};
use headrace_wire::messages::GrantProduceResponse;
use headrace_wire::records::FinishedBatch;

use crate::engine::{DirectWrite, LinkId};

/// What a producer has of a partition's memory at its leader.
#[derive(Debug)]
pub(crate) enum Writing<T> {
    /// The leader `node` is asked.
    Asking { node: i32 },
    /// Granted; the memory may still be on its way.
    Granted(Writer<T>),
    /// Not before this time.
    Refused { until: u64 },
}

/// An exclusive grant: this producer alone writes into the ring, from its start on and around.
#[derive(Debug)]
pub(crate) struct Writer<T> {
    pub(crate) node: i32,
    pub(crate) link: LinkId,
    pub(crate) key: u64,
    id: u16,
    ring: u64,
    batch_max: usize,
    quota: usize,
    /// The memory has come.
    pub(crate) lent: bool,
    /// Bytes written since the grant began.
    position: u64,
    next_order: u16,
    pending: VecDeque<Pending<T>>,
    pending_bytes: u64,
}

#[derive(Debug)]
struct Pending<T> {
    bytes: u64,
    what: T,
}

impl<T> Writer<T> {
    /// What was granted; an error says what cannot be of it.
    pub(crate) fn new(node: i32, link: LinkId, granted: &GrantProduceResponse) -> Result<Self, String> {
        let ring = u64::try_from(granted.ring_bytes).unwrap_or(0);
        let batch_max = usize::try_from(granted.batch_bytes_max).unwrap_or(0);
        let quota = usize::try_from(granted.quota).unwrap_or(0);
        if ring == 0 || batch_max == 0 || quota == 0 {
            return Err(format!(
                "granted a ring of {} bytes for {} batches of {} bytes",
                granted.ring_bytes, granted.quota, granted.batch_bytes_max
            ));
        }
        Ok(Self {
            node,
            link,
            key: granted.key.cast_unsigned(),
            id: granted.id,
            ring,
            batch_max,
            quota,
            lent: false,
            position: 0,
            next_order: 0,
            pending: VecDeque::new(),
            pending_bytes: 0,
        })
    }

    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    /// Whether a batch of this size will ever go in.
    pub(crate) fn takes(&self, bytes: usize) -> bool {
        bytes <= self.batch_max && bytes as u64 <= self.ring
    }

    /// Whether one goes in now.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let used = self.pending_bytes.saturating_add(bytes as u64);
        self.lent && used <= self.ring && self.pending.len() < self.quota
    }

    /// Nothing is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// The write of a batch for which there is room.
    pub(crate) fn write(&mut self, batch: &FinishedBatch, what: T) -> DirectWrite {
        let mut pieces = Vec::with_capacity(batch.chunks.len() + 1);
        for chunk in &batch.chunks {
            let mut chunk = chunk.clone();
            while !chunk.is_empty() {
                let at = self.position % self.ring;
                let room = usize::try_from(self.ring - at).unwrap_or(usize::MAX);
                let piece: Bytes = chunk.split_to(room.min(chunk.len()));
                self.position += piece.len() as u64;
                pieces.push((at, piece));
            }
        }
        let bytes = batch.len as u64;
        let written = Written { id: self.id, order: self.next_order };
        self.next_order = self.next_order.wrapping_add(1);
        self.pending.push_back(Pending { bytes, what });
        self.pending_bytes += bytes;
        let told = (written.to_immediate(), u32::try_from(batch.len).unwrap_or(u32::MAX));
        DirectWrite { link: self.link, key: self.key, pieces, told }
    }

    /// Which write an answer is of. Answers come in the order of the writes; any other is an error.
    pub(crate) fn acked(&mut self, ack: WriteAck) -> Result<T, String> {
        let expected = self.next_order.wrapping_sub(u16::try_from(self.pending.len()).unwrap_or(0));
        match self.pending.front() {
            Some(_) if ack.written.order == expected => {}
            _ => return Err(format!("answered write {}, when {expected} was next", ack.written.order)),
        }
        let Some(Pending { bytes, what }) = self.pending.pop_front() else {
            return Err("answered a write that was not made".to_owned());
        };
        self.pending_bytes = self.pending_bytes.saturating_sub(bytes);
        Ok(what)
    }

    /// What is on its way, and will not be answered any more.
    pub(crate) fn abandon(self) -> impl Iterator<Item = T> {
        self.pending.into_iter().map(|pending| pending.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(ring: i64, quota: i32) -> Writer<u32> {
        let granted = GrantProduceResponse {
            id: 7,
            key: 3,
            ring_bytes: ring,
            batch_bytes_max: 80,
            quota,
            ..GrantProduceResponse::default()
        };
        let mut writer = Writer::new(1, LinkId(2), &granted).unwrap();
        writer.lent = true;
        writer
    }

    fn batch(pieces: &[&'static [u8]]) -> FinishedBatch {
        let chunks: Vec<Bytes> = pieces.iter().map(|piece| Bytes::from_static(piece)).collect();
        let len = chunks.iter().map(Bytes::len).sum();
        FinishedBatch { chunks, len, records: 1, max_timestamp: 0 }
    }

    fn ack(order: u16) -> WriteAck {
        WriteAck {
            written: Written { id: 7, order },
            error_code: 0,
            base_offset: 0,
            log_append_time: -1,
            log_start_offset: 0,
        }
    }

    #[test]
    fn batches_go_around_the_ring_and_wait_for_room() {
        let mut writer = writer(100, 8);
        assert!(writer.takes(80) && !writer.takes(81));
        let first = writer.write(&batch(&[&[1; 60], &[2; 10]]), 1);
        assert_eq!((first.key, first.told), (3, (0x0007_0000, 70)));
        assert_eq!(
            first.pieces.iter().map(|(at, piece)| (*at, piece.len())).collect::<Vec<_>>(),
            [(0, 60), (60, 10)]
        );
        assert!(writer.has_room(30) && !writer.has_room(31));
        assert_eq!(writer.acked(ack(0)), Ok(1));
        let second = writer.write(&batch(&[&[3; 20], &[4; 40]]), 2);
        assert_eq!(
            second.pieces.iter().map(|(at, piece)| (*at, piece.len())).collect::<Vec<_>>(),
            [(70, 20), (90, 10), (0, 30)]
        );
        assert_eq!(second.told, (0x0007_0001, 60));
    }

    #[test]
    fn answers_come_in_the_order_of_the_writes() {
        let mut writer = writer(1000, 2);
        for what in 0..2 {
            assert!(writer.has_room(10));
            writer.write(&batch(&[&[0; 10]]), what);
        }
        assert!(!writer.has_room(10), "a quota of two");
        assert!(writer.acked(ack(1)).unwrap_err().contains("when 0 was next"));
        assert_eq!(writer.acked(ack(0)), Ok(0));
        assert_eq!(writer.acked(ack(1)), Ok(1));
        assert!(writer.is_idle());
        assert!(writer.acked(ack(2)).is_err());
        writer.write(&batch(&[&[0; 10]]), 9);
        assert_eq!(writer.abandon().collect::<Vec<_>>(), [9]);
    }

    #[test]
    fn a_grant_of_nothing_is_refused() {
        let granted = GrantProduceResponse { ring_bytes: -5, quota: 1, ..GrantProduceResponse::default() };
        assert!(Writer::<u32>::new(1, LinkId(0), &granted).unwrap_err().contains("-5 bytes"));
    }
}
