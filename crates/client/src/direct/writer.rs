//! One partition's landing ring, as the producer that writes into it sees it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use headrace_fabric::{Memory, Region};
use headrace_wire::direct::{EXCLUSIVE, Reservation, SHARED, WriteAck, Written};
use headrace_wire::messages::GrantProduceResponse;
use headrace_wire::records::FinishedBatch;

use crate::io::{DirectWrite, LinkId, LinkRequest};

/// Turns that are asked for at once.
const ASKED_MAX: usize = 8;
/// What tells how far a shared ring was read.
const WORD_BYTES: usize = 8;

/// What a producer has of a partition's memory at its leader.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are granted, and each write looks at one")]
pub(crate) enum Writing<T> {
    /// The leader `node` is asked for so many bytes.
    Asking { node: i32, wished: i64 },
    /// Granted; the memory may still be on its way.
    Granted(Writer<T>),
    /// Not before this time.
    Refused { until: u64 },
}

/// A grant to write batches of one partition into a landing ring, from its start on and around.
#[derive(Debug)]
pub(crate) struct Writer<T> {
    pub(crate) node: i32,
    pub(crate) link: LinkId,
    pub(crate) key: u64,
    id: u16,
    ring: u64,
    /// Bytes that were asked for.
    pub(crate) wished: i64,
    batch_max: usize,
    quota: usize,
    turns: Turns,
    pending: VecDeque<Pending<T>>,
    pending_bytes: u64,
}

/// Where the next write goes.
#[derive(Debug)]
enum Turns {
    /// The ring is this producer's own: the next write is next to the last.
    Own {
        /// The memory has come.
        exposed: bool,
        next: Reservation,
    },
    /// Others write there as well: each write draws its turn from the order word.
    FetchAdd {
        order_at: usize,
        freed_key: u64,
        ring: Option<Region>,
        freed: Option<Region>,
        /// Has drawn its turn, and waits for the ring to be read so far: where it ends.
        held: Option<(u64, DirectWrite)>,
    },
    /// The same by operations: a turn is asked for, and comes later; how far the ring was read is fetched where it matters.
    Asked {
        order_at: usize,
        freed_key: u64,
        exposed: bool,
        freed: Option<Region>,
        /// How far the ring was read at least, since what ended there was answered.
        read: u64,
        /// Where the last turn ends that has come.
        drawn: u64,
        /// Those that wait for their turns, in order.
        asking: VecDeque<Vec<Bytes>>,
        /// Those that have theirs, and wait for the ring to be read.
        held: VecDeque<(u64, DirectWrite)>,
    },
}

#[derive(Debug)]
struct Pending<T> {
    /// Where it ends; with the order, unknown while its turn is asked for.
    end: u64,
    order: u16,
    bytes: u64,
    /// When it was written, by `mono_ms`.
    since: u64,
    what: T,
}

impl<T> Writer<T> {
    /// What was granted; an error says what cannot be of it. `remote`: its memory is written by operations.
    pub(crate) fn new(
        node: i32,
        link: LinkId,
        remote: bool,
        granted: &GrantProduceResponse,
    ) -> Result<Self, String> {
        let ring = u64::try_from(granted.ring_bytes).unwrap_or(0);
        let batch_max = usize::try_from(granted.batch_bytes_max).unwrap_or(0);
        let quota = usize::try_from(granted.quota).unwrap_or(0);
        if ring == 0 || batch_max == 0 || quota == 0 {
            return Err(format!(
                "granted a ring of {} bytes for {} batches of {} bytes",
                granted.ring_bytes, granted.quota, granted.batch_bytes_max
            ));
        }
        let turns = match granted.mode {
            EXCLUSIVE => Turns::Own { exposed: false, next: Reservation { order: 0, position: 0 } },
            SHARED if remote => Turns::Asked {
                order_at: usize::try_from(granted.order_at).unwrap_or(usize::MAX),
                freed_key: granted.freed_key.cast_unsigned(),
                exposed: false,
                freed: None,
                read: 0,
                drawn: 0,
                asking: VecDeque::new(),
                held: VecDeque::new(),
            },
            SHARED => Turns::FetchAdd {
                order_at: usize::try_from(granted.order_at).unwrap_or(usize::MAX),
                freed_key: granted.freed_key.cast_unsigned(),
                ring: None,
                freed: None,
                held: None,
            },
            other => return Err(format!("granted a ring in mode {other}")),
        };
        Ok(Self {
            node,
            link,
            key: granted.key.cast_unsigned(),
            id: granted.id,
            ring,
            wished: granted.ring_bytes,
            batch_max,
            quota,
            turns,
            pending: VecDeque::new(),
            pending_bytes: 0,
        })
    }

    /// What the memory is called that it needs: the ring's, and of a shared one what tells how far it was read.
    pub(crate) fn keys(&self) -> (u64, Option<u64>) {
        match self.turns {
            Turns::Own { .. } => (self.key, None),
            Turns::FetchAdd { freed_key, .. } | Turns::Asked { freed_key, .. } => (self.key, Some(freed_key)),
        }
    }

    /// Whether memory of it is called so.
    pub(crate) fn has_key(&self, key: u64) -> bool {
        let keys = self.keys();
        keys.0 == key || keys.1 == Some(key)
    }

    /// Memory has come under one of its [keys](Self::keys). An error says what cannot be of it.
    pub(crate) fn show(&mut self, key: u64, memory: &Arc<Memory>) -> Result<(), String> {
        let region = Region::whole(memory.clone());
        match &mut self.turns {
            Turns::Own { exposed, .. } => *exposed = true,
            Turns::FetchAdd { order_at, ring, .. } if key == self.key => {
                region.word(*order_at).map_err(|error| error.to_string())?;
                *ring = Some(region);
            }
            Turns::Asked { order_at, exposed, .. } if key == self.key => {
                region.word(*order_at).map_err(|error| error.to_string())?;
                *exposed = true;
            }
            Turns::FetchAdd { freed, .. } | Turns::Asked { freed, .. } => {
                region.load(0).map_err(|error| error.to_string())?;
                *freed = Some(region);
            }
        }
        Ok(())
    }

    /// Whether its memory has come.
    pub(crate) fn is_exposed(&self) -> bool {
        match &self.turns {
            Turns::Own { exposed, .. } => *exposed,
            Turns::FetchAdd { ring, freed, .. } => ring.is_some() && freed.is_some(),
            Turns::Asked { exposed, freed, .. } => *exposed && freed.is_some(),
        }
    }

    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    /// Whether a batch of this size will ever go in.
    pub(crate) fn takes(&self, bytes: usize) -> bool {
        bytes <= self.batch_max && self.fits(bytes)
    }

    /// Whether its ring is large enough for a batch of this size.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        bytes as u64 <= self.ring
    }

    /// Whether one goes in now.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let room = match &self.turns {
            Turns::Own { .. } => self.pending_bytes.saturating_add(bytes as u64) <= self.ring,
            // Others may draw in between: it is looked at again then.
            Turns::FetchAdd { held: Some(_), .. } => false,
            Turns::FetchAdd { order_at, ring: Some(ring), .. } => {
                let word = ring.load(*order_at).unwrap_or(u64::MAX);
                self.is_read_to(Reservation::from_word(word).position.saturating_add(bytes as u64))
            }
            Turns::FetchAdd { .. } => false,
            // Whether others have drawn in between is only known when its turn comes.
            Turns::Asked { drawn, asking, held, .. } => {
                let asked: usize = asking.iter().flatten().map(Bytes::len).sum();
                held.is_empty()
                    && asking.len() < ASKED_MAX
                    && self.is_read_to(drawn.saturating_add(asked as u64).saturating_add(bytes as u64))
            }
        };
        room && self.is_exposed() && self.pending.len() < self.quota
    }

    /// Whether the broker has read as far as it must have for a write to end here.
    fn is_read_to(&self, end: u64) -> bool {
        match &self.turns {
            Turns::Own { .. } => true,
            Turns::FetchAdd { freed, .. } => {
                let read = freed.as_ref().and_then(|freed| freed.load(0).ok()).unwrap_or(0);
                read.saturating_add(self.ring) >= end
            }
            Turns::Asked { freed, read, .. } => {
                let reported = freed.as_ref().and_then(|freed| freed.load(0).ok()).unwrap_or(0);
                reported.max(*read).saturating_add(self.ring) >= end
            }
        }
    }

    /// Whether it waits for room that others may take, and give: nobody tells of either.
    pub(crate) fn waits_untold(&self) -> bool {
        matches!(self.turns, Turns::FetchAdd { .. }) || self.is_held()
    }

    /// Writes that have their turn and wait for room.
    fn held(&self) -> usize {
        match &self.turns {
            Turns::Own { .. } => 0,
            Turns::FetchAdd { held, .. } => usize::from(held.is_some()),
            Turns::Asked { held, .. } => held.len(),
        }
    }

    /// Whether a write waits for room.
    pub(crate) fn is_held(&self) -> bool {
        self.held() > 0
    }

    /// What is to be done so that it is seen how far the ring was read, if a write waits for that.
    pub(crate) fn refresh(&self) -> Option<LinkRequest> {
        match &self.turns {
            Turns::Asked { freed_key, held, .. } if !held.is_empty() => {
                Some(LinkRequest::Refresh { key: *freed_key, bytes: WORD_BYTES })
            }
            _ => None,
        }
    }

    /// The next write that has waited, once there is room.
    pub(crate) fn release(&mut self) -> Option<DirectWrite> {
        let Turns::FetchAdd { held: Some((end, _)), .. } = &self.turns else { return self.release_asked() };
        if !self.is_read_to(*end) {
            return None;
        }
        let Turns::FetchAdd { held, .. } = &mut self.turns else { return None };
        held.take().map(|(_, write)| write)
    }

    fn release_asked(&mut self) -> Option<DirectWrite> {
        let Turns::Asked { held, .. } = &self.turns else { return None };
        let (end, _) = held.front()?;
        if !self.is_read_to(*end) {
            return None;
        }
        let Turns::Asked { held, .. } = &mut self.turns else { return None };
        held.pop_front().map(|(_, write)| write)
    }

    /// Nothing is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Since when the oldest write waits for its answer.
    pub(crate) fn waits_since(&self) -> Option<u64> {
        self.pending.front().map(|pending| pending.since)
    }

    /// Takes a batch for which there was room: it is written, or a turn is asked for. `None`: others were faster, and it is
    /// [released](Self::release) later.
    pub(crate) fn write(&mut self, batch: &FinishedBatch, what: T, since: u64) -> Option<LinkRequest> {
        let bytes = batch.len as u64;
        self.pending_bytes += bytes;
        let turn = match &mut self.turns {
            Turns::Asked { order_at, asking, .. } => {
                self.pending.push_back(Pending { end: 0, order: 0, bytes, since, what });
                asking.push_back(batch.chunks.clone());
                let add = Reservation::add(batch.len);
                return Some(LinkRequest::FetchAdd { key: self.key, at: *order_at, add });
            }
            Turns::Own { next, .. } => {
                let turn = *next;
                let (order, position) = (turn.order.wrapping_add(1), turn.position + batch.len as u64);
                *next = Reservation { order, position };
                turn
            }
            Turns::FetchAdd { order_at, ring, .. } => {
                let word = ring.as_ref().and_then(|ring| ring.word(*order_at).ok());
                let word =
                    word.map_or(0, |word| word.fetch_add(Reservation::add(batch.len), Ordering::AcqRel));
                Reservation::from_word(word)
            }
        };
        let end = turn.position.saturating_add(bytes);
        self.pending.push_back(Pending { end, order: turn.order, bytes, since, what });
        let write = self.write_at(turn, &batch.chunks);
        if self.is_read_to(end) {
            return Some(LinkRequest::Write(write));
        }
        if let Turns::FetchAdd { held, .. } = &mut self.turns {
            *held = Some((end, write));
        }
        None
    }

    /// The next turn that was asked for has come: what the order word was. The write that has it; `None`: it is
    /// [released](Self::release) later.
    pub(crate) fn drew(&mut self, word: u64) -> Option<DirectWrite> {
        let turn = Reservation::from_word(word);
        let Turns::Asked { asking, drawn, .. } = &mut self.turns else { return None };
        let chunks = asking.pop_front()?;
        let pending =
            self.pending.len().checked_sub(asking.len() + 1).and_then(|at| self.pending.get_mut(at))?;
        let end = turn.position.saturating_add(pending.bytes);
        (pending.order, pending.end, *drawn) = (turn.order, end, end);
        let write = self.write_at(turn, &chunks);
        if !self.is_held() && self.is_read_to(end) {
            return Some(write);
        }
        if let Turns::Asked { held, .. } = &mut self.turns {
            held.push_back((end, write));
        }
        None
    }

    fn write_at(&self, turn: Reservation, chunks: &[Bytes]) -> DirectWrite {
        let mut position = turn.position;
        let mut bytes = 0;
        let mut pieces = Vec::with_capacity(chunks.len() + 1);
        for chunk in chunks {
            bytes += chunk.len();
            let mut chunk = chunk.clone();
            while !chunk.is_empty() {
                let at = position % self.ring;
                let room = usize::try_from(self.ring - at).unwrap_or(usize::MAX);
                let piece: Bytes = chunk.split_to(room.min(chunk.len()));
                position = position.wrapping_add(piece.len() as u64);
                pieces.push((at, piece));
            }
        }
        let written = Written { id: self.id, order: turn.order };
        let notify = (written.to_immediate(), u32::try_from(bytes).unwrap_or(u32::MAX));
        DirectWrite { key: self.key, pieces, notify }
    }

    /// Which write an answer is of. Answers come in the order of the writes; any other is an error.
    pub(crate) fn acked(&mut self, ack: WriteAck) -> Result<T, String> {
        let asking = if let Turns::Asked { asking, .. } = &self.turns { asking.len() } else { 0 };
        let reported = self.pending.len().saturating_sub(self.held() + asking);
        let expected = self.pending.front().filter(|_| reported > 0).map(|pending| pending.order);
        let pending = match expected {
            Some(order) if order == ack.written.order => self.pending.pop_front(),
            _ => None,
        };
        let Some(Pending { bytes, what, end, .. }) = pending else {
            let next = expected.map_or("none".to_owned(), |order| order.to_string());
            return Err(format!("answered write {}, when {next} was next", ack.written.order));
        };
        self.pending_bytes = self.pending_bytes.saturating_sub(bytes);
        if let Turns::Asked { read, .. } = &mut self.turns {
            *read = end.max(*read);
        }
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
        let mut writer = Writer::new(1, LinkId(2), false, &granted).unwrap();
        assert!(!writer.is_exposed());
        writer.show(3, &Memory::sealed("test", usize::try_from(ring).unwrap()).unwrap()).unwrap();
        writer
    }

    /// Two members of one ring, and what the broker has of it.
    fn pair(ring: i64, quota: i32) -> (Writer<u32>, Writer<u32>, Region) {
        let memory = Memory::sealed("test", usize::try_from(ring).unwrap() + 64).unwrap();
        let freed = Memory::sealed("test", 64).unwrap();
        let member = |id| {
            let granted = GrantProduceResponse {
                mode: SHARED,
                id,
                key: 3,
                ring_bytes: ring,
                batch_bytes_max: 80,
                quota,
                order_at: ring,
                freed_key: 4,
                ..GrantProduceResponse::default()
            };
            let mut writer = Writer::new(1, LinkId(2), false, &granted).unwrap();
            assert_eq!(writer.keys(), (3, Some(4)));
            writer.show(4, &freed).unwrap();
            assert!(!writer.is_exposed() && !writer.has_room(1));
            writer.show(3, &memory).unwrap();
            assert!(writer.is_exposed());
            writer
        };
        (member(7), member(8), Region::whole(freed.clone()))
    }

    fn direct(request: Option<LinkRequest>) -> DirectWrite {
        let Some(LinkRequest::Write(write)) = request else { panic!("{request:?}") };
        write
    }

    /// A member to which turns come, of a ring of 104 bytes, and what tells it how far that was read.
    fn remote(quota: i32) -> (Writer<u32>, Region) {
        let granted = GrantProduceResponse {
            mode: SHARED,
            id: 7,
            key: 3,
            ring_bytes: 104,
            batch_bytes_max: 80,
            quota,
            order_at: 104,
            freed_key: 4,
            ..GrantProduceResponse::default()
        };
        let mut writer = Writer::new(1, LinkId(2), true, &granted).unwrap();
        let freed = Memory::sealed("test", 64).unwrap();
        assert_eq!(writer.keys(), (3, Some(4)));
        assert!(writer.has_key(3) && writer.has_key(4) && !writer.has_key(5));
        writer.show(3, &Memory::sealed("test", 168).unwrap()).unwrap();
        assert!(!writer.is_exposed() && !writer.has_room(1));
        writer.show(4, &freed).unwrap();
        assert!(writer.is_exposed());
        (writer, Region::whole(freed))
    }

    fn ask(writer: &mut Writer<u32>, bytes: &'static [u8], what: u32) {
        let request = writer.write(&batch(&[bytes]), what, 0);
        let Some(LinkRequest::FetchAdd { key, at, add }) = request else { panic!("{request:?}") };
        assert_eq!((key, at, add), (3, 104, Reservation::add(bytes.len())));
    }

    fn word(order: u16, position: u64) -> u64 {
        Reservation { order, position }.to_word()
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
        let first = direct(writer.write(&batch(&[&[1; 60], &[2; 10]]), 1, 0));
        assert_eq!((first.key, first.notify), (3, (0x0007_0000, 70)));
        assert_eq!(
            first.pieces.iter().map(|(at, piece)| (*at, piece.len())).collect::<Vec<_>>(),
            [(0, 60), (60, 10)]
        );
        assert!(writer.has_room(30) && !writer.has_room(31));
        assert_eq!(writer.acked(ack(0)), Ok(1));
        let second = direct(writer.write(&batch(&[&[3; 20], &[4; 40]]), 2, 0));
        assert_eq!(
            second.pieces.iter().map(|(at, piece)| (*at, piece.len())).collect::<Vec<_>>(),
            [(70, 20), (90, 10), (0, 30)]
        );
        assert_eq!(second.notify, (0x0007_0001, 60));
    }

    #[test]
    fn answers_come_in_the_order_of_the_writes() {
        let mut writer = writer(1000, 2);
        for what in 0..2 {
            assert!(writer.has_room(10));
            writer.write(&batch(&[&[0; 10]]), what, 0).unwrap();
        }
        assert!(!writer.has_room(10), "a quota of two");
        assert!(writer.acked(ack(1)).unwrap_err().contains("when 0 was next"));
        assert_eq!(writer.acked(ack(0)), Ok(0));
        assert_eq!(writer.acked(ack(1)), Ok(1));
        assert!(writer.is_idle());
        assert!(writer.acked(ack(2)).is_err());
        writer.write(&batch(&[&[0; 10]]), 9, 0).unwrap();
        assert_eq!(writer.abandon().collect::<Vec<_>>(), [9]);
    }

    #[test]
    fn members_of_a_ring_draw_turns_and_wait_for_it_to_be_read() {
        let (mut one, mut two, freed) = pair(128, 8);
        let drawn = |write: DirectWrite| (write.notify, write.pieces[0].0);
        assert_eq!(drawn(direct(one.write(&batch(&[&[1; 40]]), 1, 0))), ((0x0007_0000, 40), 0));
        assert_eq!(drawn(direct(two.write(&batch(&[&[2; 60]]), 2, 0))), ((0x0008_0001, 60), 40));
        assert!(one.has_room(28) && !one.has_room(29), "what others have drawn counts");
        // Both have seen that there is room; one is faster.
        assert_eq!(drawn(direct(one.write(&batch(&[&[3; 28]]), 3, 0))), ((0x0007_0002, 28), 100));
        assert!(two.write(&batch(&[&[4; 28]]), 4, 0).is_none());
        assert!(two.is_held() && !two.has_room(1), "its next writes keep their order");
        assert!(two.release().is_none());
        freed.word(0).unwrap().store(27, Ordering::Release);
        assert!(two.release().is_none());
        freed.word(0).unwrap().store(40, Ordering::Release);
        assert_eq!(drawn(two.release().unwrap()), ((0x0008_0003, 28), 0));
        assert!(!two.is_held() && two.release().is_none());
        let of = |id, order| WriteAck { written: Written { id, order }, ..ack(0) };
        assert_eq!((two.acked(of(8, 1)), two.acked(of(8, 3))), (Ok(2), Ok(4)));
        assert_eq!((one.acked(of(7, 0)), one.acked(of(7, 2))), (Ok(1), Ok(3)));
    }

    #[test]
    fn an_answer_to_what_is_held_is_a_lie() {
        let (mut one, mut two, _) = pair(64, 8);
        one.write(&batch(&[&[1; 60]]), 1, 0).unwrap();
        assert!(two.write(&batch(&[&[2; 60]]), 2, 0).is_none());
        let held = WriteAck { written: Written { id: 8, order: 1 }, ..ack(0) };
        assert!(two.acked(held).unwrap_err().contains("when none was next"));
        assert_eq!(two.abandon().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn an_order_word_that_says_what_cannot_be_reaches_nothing_else() {
        let (mut one, _, _) = pair(64, 8);
        let Turns::FetchAdd { ring: Some(ring), .. } = &one.turns else { panic!() };
        ring.word(64).unwrap().store(u64::MAX, Ordering::Release);
        assert!(!one.has_room(1));
        assert!(one.write(&batch(&[&[1; 60]]), 1, 0).is_none());
        let Turns::FetchAdd { held: Some((_, write)), .. } = &one.turns else { panic!() };
        assert!(write.pieces.iter().all(|(at, piece)| *at + piece.len() as u64 <= 64));
    }

    #[test]
    fn turns_that_are_asked_for_come_later_and_in_order() {
        let (mut writer, freed) = remote(8);
        freed.word(0).unwrap().store(1000, Ordering::Release);
        ask(&mut writer, &[1; 40], 1);
        ask(&mut writer, &[2; 20], 2);
        assert!(!writer.is_idle());
        assert!(writer.acked(ack(0)).unwrap_err().contains("when none was next"), "it has no turn yet");
        let first = writer.drew(word(5, 1000)).unwrap();
        assert_eq!((first.notify, first.key), ((0x0007_0005, 40), 3));
        let at: Vec<_> = first.pieces.iter().map(|(at, piece)| (*at, piece.len())).collect();
        assert_eq!(at, [(1000 % 104, 40)]);
        assert_eq!(writer.acked(ack(5)), Ok(1));
        // Somebody else has drawn in between.
        let second = writer.drew(word(9, 1070)).unwrap();
        assert_eq!((second.notify, second.pieces[0].0), ((0x0007_0009, 20), 1070 % 104));
        assert!(writer.drew(word(10, 1090)).is_none(), "of a turn that nobody has asked for");
        assert_eq!(writer.acked(ack(9)), Ok(2));
        assert!(writer.is_idle());
    }

    #[test]
    fn turns_that_are_asked_for_wrap_with_the_order_word() {
        let (mut writer, freed) = remote(8);
        // As a card adds to it: what is carried out of the order is lost.
        let mut order_word = word(u16::MAX - 1, 7000);
        freed.word(0).unwrap().store(7000, Ordering::Release);
        for (what, order) in [(1, u16::MAX - 1), (2, u16::MAX), (3, 0), (4, 1)] {
            ask(&mut writer, &[1; 20], what);
            let write = writer.drew(order_word).unwrap();
            assert_eq!(write.notify, (0x0007_0000 | u32::from(order), 20));
            order_word = order_word.wrapping_add(Reservation::add(20));
            assert_eq!(writer.acked(ack(order)), Ok(what));
            freed.word(0).unwrap().fetch_add(20, Ordering::Release);
        }
        assert_eq!(Reservation::from_word(order_word), Reservation { order: 2, position: 7080 });
    }

    #[test]
    fn a_turn_that_comes_too_early_waits_for_the_ring_to_be_read() {
        let (mut writer, freed) = remote(8);
        for what in 1..=3 {
            assert!(writer.has_room(30), "{what}");
            ask(&mut writer, &[1; 30], what);
        }
        assert!(!writer.has_room(30), "all that it has asked for is in the ring");
        assert!(writer.has_room(14));
        assert!(writer.refresh().is_none() && !writer.waits_untold());
        assert!(writer.drew(word(4, 300)).is_none());
        assert!(writer.drew(word(6, 350)).is_none(), "in order, behind the first");
        assert!(writer.is_held() && writer.waits_untold() && !writer.has_room(1));
        let refresh = writer.refresh();
        assert!(matches!(refresh, Some(LinkRequest::Refresh { key: 4, bytes: 8 })), "{refresh:?}");
        assert!(writer.acked(ack(4)).is_err(), "it was not written");
        freed.word(0).unwrap().store(225, Ordering::Release);
        assert!(writer.release().is_none());
        freed.word(0).unwrap().store(226, Ordering::Release);
        assert_eq!(writer.release().unwrap().notify, (0x0007_0004, 30));
        assert!(writer.release().is_none() && writer.is_held());
        // Its own answer tells how far the ring was read, as well.
        assert_eq!(writer.acked(ack(4)), Ok(1));
        assert_eq!(writer.release().unwrap().notify, (0x0007_0006, 30));
        assert!(!writer.is_held() && writer.release().is_none());
        assert_eq!(writer.abandon().collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn so_many_turns_are_asked_for_at_once_and_no_more() {
        let (mut writer, _) = remote(64);
        for what in 0..ASKED_MAX {
            assert!(writer.has_room(1));
            ask(&mut writer, &[1], u32::try_from(what).unwrap());
        }
        assert!(!writer.has_room(1));
        assert!(writer.drew(word(0, 0)).is_some());
        assert!(writer.has_room(1));
        let (mut writer, _) = remote(2);
        ask(&mut writer, &[1], 0);
        ask(&mut writer, &[1], 1);
        assert!(!writer.has_room(1), "a quota of two");
        // An order word that somebody has written over: nothing outside of the ring, and no end.
        let (mut writer, _) = remote(2);
        ask(&mut writer, &[1; 80], 0);
        assert!(writer.drew(u64::MAX).is_none());
        let Turns::Asked { held, .. } = &writer.turns else { panic!() };
        assert!(
            held.iter()
                .flat_map(|(_, write)| &write.pieces)
                .all(|(at, piece)| *at + piece.len() as u64 <= 104)
        );
    }

    #[test]
    fn a_ring_without_its_words_is_refused() {
        let granted = |mode, order_at| GrantProduceResponse {
            mode,
            order_at,
            key: 3,
            ring_bytes: 64,
            batch_bytes_max: 64,
            quota: 1,
            ..GrantProduceResponse::default()
        };
        assert!(Writer::<u32>::new(1, LinkId(0), false, &granted(9, 0)).unwrap_err().contains("mode 9"));
        let memory = Memory::sealed("test", 64).unwrap();
        for order_at in [-1, 60, 64] {
            for remote in [false, true] {
                let mut writer =
                    Writer::<u32>::new(1, LinkId(0), remote, &granted(SHARED, order_at)).unwrap();
                assert!(writer.show(3, &memory).is_err(), "{order_at}");
            }
        }
    }

    #[test]
    fn a_grant_of_nothing_is_refused() {
        let granted = GrantProduceResponse { ring_bytes: -5, quota: 1, ..GrantProduceResponse::default() };
        assert!(Writer::<u32>::new(1, LinkId(0), false, &granted).unwrap_err().contains("-5 bytes"));
    }
}
