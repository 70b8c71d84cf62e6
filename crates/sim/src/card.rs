//! A reader's link over RDMA: both its ends, as drivers keep them (`crates/net`), and what is on its way between them.
//!
//! What the reader asks is done at the broker in the order in which it was asked, each at a time of its own, and ends in
//! that order, later again. A read that is done takes what is there then, and only what is registered.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use headrace_log::MemoryFile;

use crate::links::{Growing, Words};
use crate::rng::Rng;

/// Reads of files that are under way at once.
const CHUNKS: usize = 4;
/// Of parts of a file that are registered: how many reach no further than a few KiB, as if the file did not.
const SHORT: u64 = 60;
const SHORT_BYTES_MAX: u64 = 8 << 10;

/// What the reader wants of the broker.
#[derive(Debug)]
pub(crate) enum Asked {
    /// Bytes of a file, and for which reading.
    Read { number: u64, key: u64, at: u64, len: usize },
    /// The slots, which have changed so often by then.
    Slots { since: u64 },
    /// A part of a file from a place on, to be read.
    More { key: u64, at: u64 },
    /// It does nothing any more with what was ended.
    Freed { key: u64 },
    /// It is to be nudged.
    Sleeps,
}

/// What became of that.
#[derive(Debug)]
pub(crate) enum Done {
    Read {
        number: u64,
        bytes: Vec<u8>,
    },
    Slots(Vec<Words>),
    /// Nothing comes any more.
    Failed,
}

/// Bytes that the engine wants.
#[derive(Debug)]
struct Reading {
    number: u64,
    key: u64,
    at: u64,
    len: usize,
    begun: usize,
    bytes: Vec<u8>,
}

/// A file as the reader knows it.
#[derive(Debug, Default)]
struct File {
    window: Option<Range<u64>>,
    asked: bool,
    /// Reads under way.
    reading: usize,
}

/// A file as the broker has it for the reader.
pub(crate) struct Shown {
    pub(crate) file: Growing,
    /// What is registered of it.
    registered: Option<Range<u64>>,
    /// How much the broker has allowed for that.
    allowed: u64,
    pub(crate) ended: bool,
}

/// Both ends.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each read by itself")]
pub(crate) struct Card {
    pub(crate) asked: VecDeque<(u64, Asked)>,
    pub(crate) done: VecDeque<(u64, Done)>,
    // The reader's.
    files: BTreeMap<u64, File>,
    readings: VecDeque<Reading>,
    numbers: u64,
    under_way: usize,
    /// Slots that it keeps up to date, those with smaller numbers with them.
    watched: usize,
    looking: bool,
    again: bool,
    sleeps: bool,
    // The broker's.
    pub(crate) shown: BTreeMap<u64, Shown>,
    asleep: bool,
    stale: bool,
}

impl Card {
    // ---- the reader's end

    pub(crate) fn read(&mut self, key: u64, at: u64, len: usize) {
        self.numbers += 1;
        self.files.entry(key).or_default();
        let number = self.numbers;
        self.readings.push_back(Reading { number, key, at, len, begun: 0, bytes: Vec::new() });
    }

    pub(crate) fn watch(&mut self, slots: usize) {
        self.watched = self.watched.max(slots);
        self.again = true;
    }

    pub(crate) fn nudged(&mut self) {
        (self.sleeps, self.again) = (false, true);
    }

    /// Who looks reads slots again and again.
    pub(crate) fn look_again(&mut self) {
        self.again = true;
    }

    /// What is to be asked next. `since`: how often slots have changed.
    pub(crate) fn next(&mut self, since: u64, rng: &mut Rng) -> Option<Asked> {
        if self.watched > 0 && self.again && !self.looking {
            (self.looking, self.again) = (true, false);
            return Some(Asked::Slots { since });
        }
        for reading in &mut self.readings {
            let Some(file) = self.files.get_mut(&reading.key) else { continue };
            if reading.begun == reading.len {
                continue;
            }
            let at = reading.at + reading.begun as u64;
            let there =
                file.window.as_ref().filter(|window| window.contains(&at)).map(|window| window.end - at);
            let Some(there) = there else {
                if file.reading == 0 && !std::mem::replace(&mut file.asked, true) {
                    file.window = None;
                    return Some(Asked::More { key: reading.key, at });
                }
                continue;
            };
            if self.under_way == CHUNKS {
                break;
            }
            let left = (reading.len - reading.begun).min(usize::try_from(there).unwrap_or(usize::MAX));
            let len = if rng.chance(50) { left } else { left.min(1 + rng.index(4000)) };
            reading.begun += len;
            file.reading += 1;
            self.under_way += 1;
            return Some(Asked::Read { number: reading.number, key: reading.key, at, len });
        }
        if self.watched > 0 && !self.looking && !self.sleeps {
            self.sleeps = true;
            return Some(Asked::Sleeps);
        }
        None
    }

    /// The broker shows a part of a file.
    pub(crate) fn shows(&mut self, key: u64, part: Range<u64>) {
        // It may have been ended meanwhile.
        if let Some(file) = self.files.get_mut(&key) {
            (file.asked, file.window) = (false, Some(part));
        }
    }

    /// What has this name is void.
    pub(crate) fn forget(&mut self, key: u64) {
        self.files.remove(&key);
        self.readings.retain(|reading| reading.key != key);
    }

    /// A read has ended: what the engine wanted, if it is all there.
    pub(crate) fn came(&mut self, number: u64, bytes: &[u8]) -> Option<(u64, u64, Bytes)> {
        self.under_way -= 1;
        // Of what is void nobody wants it.
        let at = self.readings.iter().position(|reading| reading.number == number)?;
        let reading = &mut self.readings[at];
        if let Some(file) = self.files.get_mut(&reading.key) {
            file.reading -= 1;
        }
        reading.bytes.extend_from_slice(bytes);
        if reading.bytes.len() < reading.len {
            return None;
        }
        let Reading { key, at, bytes, .. } = self.readings.remove(at)?;
        Some((key, at, bytes.into()))
    }

    /// Slots have been read.
    pub(crate) fn looked(&mut self) {
        self.looking = false;
    }

    pub(crate) fn watched(&self) -> usize {
        self.watched
    }

    // ---- the broker's end

    pub(crate) fn show(&mut self, key: u64, file: MemoryFile) {
        let shown = Shown { file: Growing::new(file), registered: None, allowed: 0, ended: false };
        self.shown.insert(key, shown);
    }

    /// Registers a part of a file in the place of the last one, as far as the file reaches, or not so far; which.
    pub(crate) fn register(
        &mut self,
        rng: &mut Rng,
        (key, at): (u64, u64),
        part: &Range<u64>,
    ) -> Result<Range<u64>, String> {
        let Some(shown) = self.shown.get_mut(&key) else {
            return Err(format!("the broker has a part of file {key} registered, which it does not show"));
        };
        let mut end = part.end.min(shown.file.len());
        if !part.contains(&at) || at >= end {
            return Err(format!(
                "the broker registers {part:?} of file {key}, up to {end}, to be read from {at}"
            ));
        }
        if rng.chance(SHORT) {
            end = end.min(at + rng.between(1, SHORT_BYTES_MAX));
        }
        let part_now = part.start..end;
        (shown.registered, shown.allowed) = (Some(part_now.clone()), part.end - part.start);
        Ok(part_now)
    }

    /// Does a read. `honest`: nobody has told the reader what is not so.
    pub(crate) fn reads(
        &mut self,
        (key, at, len): (u64, u64, usize),
        honest: bool,
    ) -> Result<Vec<u8>, String> {
        let part = at..at + len as u64;
        let Some(shown) = self.shown.get_mut(&key) else {
            return Err(format!("a reader reads {part:?} of file {key}, which is not lent to it"));
        };
        let inside = |all: &Range<u64>| all.start <= part.start && part.end <= all.end;
        if !shown.registered.as_ref().is_some_and(inside) {
            let registered = &shown.registered;
            return Err(format!("a reader reads {part:?} of file {key}, and {registered:?} is registered"));
        }
        let _ = shown.file.grown();
        if honest && part.end > shown.file.committed {
            let committed = shown.file.committed;
            return Err(format!(
                "a reader reads {part:?} of file {key}, of which {committed} bytes are committed"
            ));
        }
        let bytes = shown.file.source.bytes(at, len);
        if bytes.len() < len {
            return Err(format!("a reader reads {part:?} of file {key}, which is shorter"));
        }
        Ok(bytes)
    }

    /// Bytes of files that are registered, as far as the broker counts them.
    pub(crate) fn registered(&self) -> u64 {
        self.shown.values().filter(|shown| !shown.ended).map(|shown| shown.allowed).sum()
    }

    /// The reader sleeps from now on; whether it is nudged at once.
    pub(crate) fn sleeps(&mut self) -> bool {
        self.asleep = true;
        self.stale && self.nudge()
    }

    /// Slots have changed; whether the reader is told.
    pub(crate) fn nudge(&mut self) -> bool {
        if self.asleep {
            (self.asleep, self.stale) = (false, false);
            return true;
        }
        self.stale = true;
        false
    }
}
