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
            slot_seen: false,
            file: if remote {
                File::Remote(Fetched { bytes: Bytes::new(), asked: None, next: FETCH_BYTES_MIN })
            } else {
                File::Coming
            },
            position,
            committed,
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
        let mut words = [0; 4];
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
            // One batch is larger; or what is there is none, which is found when nothing is left to be read behind it.
            fetched.next = fetched.next.max(cut.unwrap_or(0)).max(bytes.len().saturating_add(1));
            if bytes.len() >= FETCH_BYTES_MAX && cut.is_none_or(|size| size <= bytes.len()) {
                fetched.bytes = bytes.clone();
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
