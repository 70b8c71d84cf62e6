//! One partition's segment, as a consumer that reads it where it stands sees it.

use bytes::Bytes;
use headrace_fabric::{Committed, Region};
use headrace_wire::direct::{SLOT_BYTES, Slot};
use headrace_wire::messages::GrantFetchResponse;
use headrace_wire::records::BatchHeader;

use crate::engine::LinkId;

/// Why a segment is read no further.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The broker has given the slot to somebody else.
    Ended,
    /// The broker says what cannot be.
    Lie(String),
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
    file: Option<Committed>,
    /// Bytes of the file that have been read.
    position: usize,
    /// Bytes of the file that are there to be read.
    committed: usize,
    sealed: bool,
    high_watermark: i64,
}

impl Reader {
    /// What was granted; an error says what cannot be of it.
    pub(crate) fn new(node: i32, link: LinkId, granted: &GrantFetchResponse) -> Result<Self, String> {
        let bytes = |number: i64| usize::try_from(number).ok();
        let told = (bytes(granted.position), bytes(granted.committed), bytes(granted.memory_bytes));
        let (Some(position), Some(committed), Some(mapped)) = told else {
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
            file: None,
            position,
            committed,
            sealed: granted.sealed,
            high_watermark: granted.high_watermark,
        })
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
        self.file = Some(file);
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
        self.file.is_some() && (self.slots_key.is_none() || self.slots.is_some())
    }

    /// Where it is told how far the segment is committed: a word that changes whenever that does.
    pub(crate) fn word(&self) -> Option<(Region, usize)> {
        Some((self.slots.clone()?, self.slot))
    }

    /// Looks how far the segment is committed.
    pub(crate) fn look(&mut self) -> Result<(), Lost> {
        let (Some(slots), Some(file)) = (&self.slots, &mut self.file) else { return Ok(()) };
        let mut words = [0; 4];
        // In this order: what the first word says is true of the others.
        for (at, word) in words.iter_mut().enumerate() {
            *word = slots.load(self.slot + at * 8).map_err(|error| Lost::Lie(error.to_string()))?;
        }
        let Slot { committed, sealed, high_watermark, id, .. } = Slot::from_words(words);
        if id != self.id {
            return Err(Lost::Ended);
        }
        // One whose segment is gone says less: what was there of it still is.
        let committed = usize::try_from(committed).unwrap_or(usize::MAX).max(self.committed);
        if committed > self.committed && self.sealed {
            return Err(Lost::Lie("a sealed segment has grown".to_owned()));
        }
        file.advance(committed).map_err(|error| Lost::Lie(error.to_string()))?;
        (self.committed, self.sealed) = (committed, self.sealed || sealed);
        self.high_watermark = self.high_watermark.max(high_watermark);
        Ok(())
    }

    /// Whether there is something to be read.
    pub(crate) fn has_unread(&self) -> bool {
        self.position < self.committed
    }

    /// Whether all was read, and nothing will be added.
    pub(crate) fn is_read_out(&self) -> bool {
        self.sealed && !self.has_unread()
    }

    /// What is to be read next, about `limit` bytes of it, but one batch at least; and whether that is all there is.
    pub(crate) fn unread(&self, limit: usize) -> (Bytes, bool) {
        let upto = |len: usize| {
            let end = self.position.saturating_add(len).min(self.committed);
            // The file was seen to reach that far when it was told.
            let file = self.file.as_ref();
            file.and_then(|file| file.bytes(self.position..end).ok()).unwrap_or_default()
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
    }
}
