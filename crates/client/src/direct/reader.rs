//! One partition's segment, as a consumer that reads it where it stands sees it.

use bytes::Bytes;
use headrace_fabric::{Committed, Region};
use headrace_wire::direct::{SLOT_BYTES, SLOT_WORDS, Slot};
use headrace_wire::messages::GrantFetchResponse;
use headrace_wire::records::BatchHeader;

use crate::consumer::BATCH_BYTES_MAX;
use crate::io::LinkId;

/// Why a segment is read no further.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The broker has given the slot to somebody else.
    Ended,
    /// The broker says what cannot be.
    Lie(String),
}

/// The least that is asked for at once of a file that is not mapped.
const FETCH_BYTES_MIN: usize = 16 << 10;
/// The most, unless one batch has more.
const FETCH_BYTES_MAX: usize = 1 << 20;

/// The segment's bytes.
#[derive(Debug)]
enum File {
    /// They are about to be mapped.
    Coming,
    Mapped(Committed),
    /// They are read by operations.
    Remote(Fetched),
}

/// What has been read of a file that is not mapped: whole batches from the reader's position on, except that what is wrong
/// with the first one is left for whoever decodes it.
#[derive(Debug)]
struct Fetched {
    bytes: Bytes,
    /// What was asked for and has not come: where, and how much.
    asked: Option<(usize, usize)>,
    /// What is asked for next.
    next: usize,
}

/// A grant to read one segment of a partition.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) node: i32,
    pub(crate) link: LinkId,
    /// Names the segment's memory.
    pub(crate) key: u64,
    /// Names the memory of slots; `None` for a segment that was sealed when it was granted.
    pub(crate) slots_key: Option<u64>,
    id: u16,
    slot: usize,
    slots: Option<Region>,
    /// The slot has been seen to be this grant's.
    slot_seen: bool,
    file: File,
    /// Bytes of the file that have been read.
    position: usize,
    /// Bytes of the file that are there to be read.
    committed: usize,
    /// So many there can be.
    committed_max: usize,
    sealed: bool,
    high_watermark: i64,
}

impl Reader {
    /// What was granted; an error says what cannot be of it.
    pub(crate) fn new(
        node: i32,
        link: LinkId,
        remote: bool,
        granted: &GrantFetchResponse,
    ) -> Result<Self, String> {
        let bytes = |number: i64| usize::try_from(number).ok();
        let reported = (bytes(granted.position), bytes(granted.committed), bytes(granted.memory_bytes));
        let (Some(position), Some(committed), Some(mapped)) = reported else {
            return Err("granted a segment of a negative size".to_owned());
        };
        if position > committed || committed > mapped {
            return Err(format!("granted position {position} of {committed} bytes, {mapped} of them mapped"));
        }
        let slot = usize::try_from(granted.slot).ok();
        if slot.is_none() && !granted.sealed {
            return Err("granted a segment that grows, without a slot".to_owned());
        }
        Ok(Self {
            node,
            link,
            key: granted.key.cast_unsigned(),
            slots_key: slot.map(|_| granted.slots_key.cast_unsigned()),
            id: granted.id,
            slot: slot.unwrap_or(0).saturating_mul(SLOT_BYTES),
            slots: None,
            slot_seen: false,
            file: if remote {
                File::Remote(Fetched { bytes: Bytes::new(), asked: None, next: FETCH_BYTES_MIN })
            } else {
                File::Coming
            },
            position,
            committed,
            committed_max: mapped,
            sealed: granted.sealed,
            high_watermark: granted.high_watermark,
        })
    }

    /// Whether its bytes and slots are read by operations.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.file, File::Remote(_))
    }

    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    /// The partition's high watermark, as it was told last.
    pub(crate) fn high_watermark(&self) -> i64 {
        self.high_watermark
    }

    /// The segment's memory has come.
    pub(crate) fn show_file(&mut self, mut file: Committed) -> Result<(), Lost> {
        file.advance(self.committed).map_err(|error| Lost::Lie(error.to_string()))?;
        self.file = File::Mapped(file);
        Ok(())
    }

    /// The memory of slots has come.
    pub(crate) fn show_slots(&mut self, slots: Region) -> Result<(), Lost> {
        slots.load(self.slot).map_err(|error| Lost::Lie(error.to_string()))?;
        self.slots = Some(slots);
        Ok(())
    }

    /// Whether all the memory has come.
    pub(crate) fn is_shown(&self) -> bool {
        !matches!(self.file, File::Coming) && (self.slots_key.is_none() || self.slots.is_some())
    }

    /// Where it is told how far the segment is committed: a word that changes whenever that does.
    pub(crate) fn word(&self) -> Option<(Region, usize)> {
        Some((self.slots.clone()?, self.slot))
    }

    /// Looks how far the segment is committed.
    pub(crate) fn look(&mut self) -> Result<(), Lost> {
        let Some(slots) = &self.slots else { return Ok(()) };
        let mut words = [0; SLOT_WORDS];
        // In this order: what the first word says is true of the others.
        for (at, word) in words.iter_mut().enumerate() {
            *word = slots.load(self.slot + at * 8).map_err(|error| Lost::Lie(error.to_string()))?;
        }
        let Slot { committed, sealed, high_watermark, id, .. } = Slot::from_words(words);
        if id != self.id {
            // A copy of a slot may be older than the grant.
            let old = matches!(self.file, File::Remote(_)) && !self.slot_seen;
            return if old { Ok(()) } else { Err(Lost::Ended) };
        }
        self.slot_seen = true;
        // One whose segment is gone says less: what was there of it still is.
        let committed = usize::try_from(committed).unwrap_or(usize::MAX).max(self.committed);
        if committed > self.committed && self.sealed {
            return Err(Lost::Lie("a sealed segment has grown".to_owned()));
        }
        if committed > self.committed_max {
            let why = format!("{committed} bytes are committed of a segment of {}", self.committed_max);
            return Err(Lost::Lie(why));
        }
        if let File::Mapped(file) = &mut self.file {
            file.advance(committed).map_err(|error| Lost::Lie(error.to_string()))?;
        }
        (self.committed, self.sealed) = (committed, self.sealed || sealed);
        self.high_watermark = self.high_watermark.max(high_watermark);
        Ok(())
    }

    /// Whether there is something to be read, here and now.
    pub(crate) fn has_unread(&self) -> bool {
        match &self.file {
            File::Remote(fetched) => !fetched.bytes.is_empty(),
            _ => self.is_behind(),
        }
    }

    fn is_behind(&self) -> bool {
        self.position < self.committed
    }

    /// What is to be read by an operation now: where, and how much.
    pub(crate) fn ask(&mut self) -> Option<(u64, usize)> {
        let left = self.committed.saturating_sub(self.position);
        let File::Remote(fetched) = &mut self.file else { return None };
        if left == 0 || fetched.asked.is_some() || !fetched.bytes.is_empty() {
            return None;
        }
        let len = fetched.next.min(left);
        fetched.asked = Some((self.position, len));
        Some((u64::try_from(self.position).ok()?, len))
    }

    /// What was asked for has come; whether it is of use.
    pub(crate) fn take_read(&mut self, at: u64, bytes: &Bytes) -> bool {
        let (position, committed) = (self.position, self.committed);
        let File::Remote(fetched) = &mut self.file else { return false };
        if fetched.asked.take() != usize::try_from(at).ok().map(|at| (at, bytes.len())) || bytes.is_empty() {
            return false;
        }
        let all = position.saturating_add(bytes.len()) >= committed;
        let mut whole = 0;
        let mut cut = None;
        while let Some(rest) = bytes.get(whole..).filter(|rest| !rest.is_empty()) {
            match BatchHeader::parse(rest) {
                Ok(header) if header.size() <= rest.len() => whole += header.size(),
                Ok(header) => {
                    cut = Some(header.size());
                    break;
                }
                Err(_) => {
                    cut = Some(BatchHeader::LEN);
                    break;
                }
            }
        }
        let grown = fetched.next.saturating_mul(2).min(FETCH_BYTES_MAX);
        fetched.next = if all { fetched.next } else { grown };
        if whole == 0 && !all {
            // One batch is larger; or what is there is none, or one that nobody takes, which is for whoever decodes it.
            let size = cut.unwrap_or(0);
            if size > BATCH_BYTES_MAX || (bytes.len() >= FETCH_BYTES_MAX && size <= bytes.len()) {
                fetched.bytes = bytes.clone();
            } else {
                fetched.next = fetched.next.max(size).max(bytes.len().saturating_add(1));
            }
        } else {
            fetched.next = fetched.next.min(FETCH_BYTES_MAX);
            fetched.bytes = if all { bytes.clone() } else { bytes.slice(..whole) };
        }
        !fetched.bytes.is_empty()
    }

    /// Whether all was read, and nothing will be added.
    pub(crate) fn is_read_out(&self) -> bool {
        self.sealed && !self.is_behind()
    }

    /// What is to be read next, about `limit` bytes of it, but one batch at least; and whether that is all there is.
    pub(crate) fn unread(&self, limit: usize) -> (Bytes, bool) {
        let upto = |len: usize| {
            let end = self.position.saturating_add(len).min(self.committed);
            // The file was seen to reach that far when it was told.
            match &self.file {
                File::Mapped(file) => file.bytes(self.position..end).unwrap_or_default(),
                File::Remote(fetched) => fetched.bytes.clone(),
                File::Coming => Bytes::new(),
            }
        };
        let mut bytes = upto(limit.max(BatchHeader::LEN));
        if let Ok(header) = BatchHeader::parse(&bytes)
            && header.size() > bytes.len()
        {
            bytes = upto(header.size());
        }
        let all = self.position.saturating_add(bytes.len()) >= self.committed;
        (bytes, all)
    }

    /// So many bytes of what is unread have been read.
    pub(crate) fn pass(&mut self, bytes: usize) {
        self.position = self.position.saturating_add(bytes).min(self.committed);
        if let File::Remote(fetched) = &mut self.file {
            fetched.bytes = Bytes::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use headrace_fabric::Memory;
    use headrace_wire::compression::Codec;
    use headrace_wire::records::{BatchBuilder, NO_HEADERS, ProducerStamp};

    use super::*;

    const ID: u16 = 7;

    /// A segment of 4 MiB at most, all of it read by operations.
    fn granted(position: i64, committed: i64) -> GrantFetchResponse {
        let memory_bytes = 4 << 20;
        GrantFetchResponse {
            id: ID,
            key: 3,
            memory_bytes,
            position,
            committed,
            slots_key: 1,
            slot: 0,
            ..Default::default()
        }
    }

    fn remote(position: usize, committed: usize) -> Reader {
        let bytes = |number: usize| i64::try_from(number).unwrap();
        Reader::new(0, LinkId(0), true, &granted(bytes(position), bytes(committed))).unwrap()
    }

    /// A batch of one record of about so many bytes.
    fn batch(bytes: usize) -> Vec<u8> {
        let mut builder = BatchBuilder::new(8 << 20);
        builder.append(1, None, Some(&vec![1; bytes]), NO_HEADERS.iter().copied()).unwrap();
        builder.finish(ProducerStamp::NONE, Codec::None, None).unwrap().to_vec()
    }

    /// Reads a file as a card does, until something is there to be decoded; how often it asked.
    fn fetch(reader: &mut Reader, file: &[u8]) -> usize {
        for asked in 1.. {
            let (at, len) = reader.ask().unwrap();
            assert_eq!(reader.ask(), None, "one at a time");
            let from = usize::try_from(at).unwrap();
            let bytes = Bytes::copy_from_slice(&file[from..from + len]);
            if reader.take_read(at, &bytes) {
                return asked;
            }
        }
        0
    }

    fn slots() -> (Region, Region) {
        let memory = Memory::sealed("slots", SLOT_BYTES).unwrap();
        (Region::whole(memory.clone()), Region::whole(memory))
    }

    fn say(slots: &Region, slot: Slot) {
        for (at, word) in slot.to_words().into_iter().enumerate().rev() {
            slots.word(at * 8).unwrap().store(word, Ordering::Release);
        }
    }

    #[test]
    fn whole_batches_are_shown_in_order_however_they_are_cut() {
        let sizes = [10, 9000, 100, 20_000, 17_000, 200_000, 50, 1_500_000, 5, 30];
        let batches: Vec<Vec<u8>> = sizes.iter().map(|bytes| batch(*bytes)).collect();
        let file = batches.concat();
        let mut reader = remote(0, file.len());
        let mut seen = Vec::new();
        while reader.position < file.len() {
            assert!(!reader.has_unread());
            fetch(&mut reader, &file);
            let (bytes, all) = reader.unread(1);
            assert_eq!(all, reader.position + bytes.len() == file.len());
            let mut whole = 0;
            while whole < bytes.len() {
                whole += BatchHeader::parse(&bytes[whole..]).unwrap().size();
            }
            assert_eq!(whole, bytes.len(), "no part of a batch");
            seen.extend_from_slice(&bytes);
            reader.pass(bytes.len());
        }
        assert!(seen == file && reader.ask().is_none());
    }

    #[test]
    fn a_batch_that_is_larger_than_what_was_asked_for_is_asked_for_as_a_whole() {
        let file = [batch(3 << 20), batch(10)].concat();
        let mut reader = remote(0, file.len());
        assert_eq!(fetch(&mut reader, &file), 2);
        assert_eq!(BatchHeader::parse(&reader.unread(1).0).unwrap().size(), file.len() - batch(10).len());
    }

    #[test]
    fn a_batch_that_nobody_takes_is_not_read_to_its_end() {
        let mut file = batch(10);
        // Its length says 1 GiB.
        file[8..12].copy_from_slice(&(1_i32 << 30).to_be_bytes());
        file.resize(3 << 20, 0);
        let mut reader = remote(0, file.len());
        assert_eq!(fetch(&mut reader, &file), 1);
        assert!(reader.unread(1).0.len() <= FETCH_BYTES_MAX);
    }

    #[test]
    fn what_is_no_batch_is_left_for_who_decodes_it() {
        let file = vec![0; 3 << 20];
        let mut reader = remote(0, file.len());
        fetch(&mut reader, &file);
        assert!(!reader.unread(1).0.is_empty());
        // At the end of what is committed that is all there is.
        let mut reader = remote(100, 130);
        fetch(&mut reader, &file);
        assert_eq!(reader.unread(1), (Bytes::from(vec![0; 30]), true));
    }

    #[test]
    fn bytes_that_were_not_asked_for_are_of_no_use() {
        let file = batch(10);
        let bytes = Bytes::from(file.clone());
        let mut reader = remote(0, file.len());
        assert!(!reader.take_read(0, &bytes), "nothing was asked for");
        assert_eq!(reader.ask(), Some((0, file.len())));
        assert!(!reader.take_read(1, &bytes), "another place");
        assert_eq!(reader.ask(), Some((0, file.len())), "it is asked for again");
        assert!(!reader.take_read(0, &bytes.slice(1..)), "less");
        assert_eq!(reader.ask(), Some((0, file.len())));
        assert!(reader.take_read(0, &bytes) && reader.has_unread());
        assert!(!reader.take_read(0, &bytes), "twice");
        assert_eq!(reader.ask(), None, "what has come is not read yet");
        let mut mapped = Reader::new(0, LinkId(0), false, &granted(0, 10)).unwrap();
        assert!(!mapped.take_read(0, &bytes) && mapped.ask().is_none());
    }

    #[test]
    fn a_slot_of_before_the_grant_is_no_end_and_one_of_after_it_is() {
        let (own, theirs) = slots();
        let mut reader = remote(0, 0);
        assert!(!reader.is_shown());
        reader.show_slots(own).unwrap();
        assert!(reader.is_shown());
        say(&theirs, Slot { committed: 9, sealed: true, id: ID - 1, ..Slot::default() });
        assert_eq!((reader.look(), reader.committed, reader.sealed), (Ok(()), 0, false));
        say(&theirs, Slot { committed: 5, high_watermark: 2, id: ID, ..Slot::default() });
        assert_eq!((reader.look(), reader.committed, reader.high_watermark()), (Ok(()), 5, 2));
        // Its segment is gone.
        say(&theirs, Slot { committed: 0, sealed: true, high_watermark: 9, id: ID, ..Slot::default() });
        assert_eq!((reader.look(), reader.committed, reader.sealed), (Ok(()), 5, true));
        assert!(!reader.is_read_out(), "what was there of it still is");
        say(&theirs, Slot { sealed: true, ..Slot::default() });
        assert_eq!(reader.look(), Err(Lost::Ended));
    }

    #[test]
    fn a_slot_that_says_what_cannot_be_is_a_lie() {
        let (own, theirs) = slots();
        let mut reader = remote(0, 0);
        reader.show_slots(own).unwrap();
        say(&theirs, Slot { committed: (4 << 20) + 1, id: ID, ..Slot::default() });
        assert!(matches!(reader.look(), Err(Lost::Lie(_))), "more than the segment can have");
        assert_eq!(reader.ask(), None);
        say(&theirs, Slot { committed: 10, sealed: true, id: ID, ..Slot::default() });
        assert_eq!(reader.look(), Ok(()));
        say(&theirs, Slot { committed: 11, sealed: true, id: ID, ..Slot::default() });
        assert!(matches!(reader.look(), Err(Lost::Lie(_))), "it was sealed");
    }

    #[test]
    fn what_cannot_be_granted_is_refused() {
        let sealed = GrantFetchResponse { slot: -1, sealed: true, ..granted(0, 10) };
        let none = |granted: &GrantFetchResponse| Reader::new(0, LinkId(0), true, granted).is_err();
        assert!(Reader::new(0, LinkId(0), true, &sealed).unwrap().is_shown(), "it has no slot");
        assert!(none(&GrantFetchResponse { sealed: false, ..sealed }));
        assert!(none(&granted(11, 10)) && none(&granted(-1, 10)) && none(&granted(0, (4 << 20) + 1)));
    }
}
