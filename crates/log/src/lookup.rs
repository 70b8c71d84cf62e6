//! Finding records by time, and the ends of leader epochs.

use headrace_wire::compression::{Codec, decompress};
use headrace_wire::records::{BatchHeader, RecordIter, TimestampType};

use crate::disk::Disk;
use crate::error::LogError;
use crate::log::Log;
use crate::segment::{NO_TIMESTAMP, Segment};
use crate::validate::DECOMPRESSED_BYTES_MAX;

/// A record that was looked for by its timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundRecord {
    /// Its offset.
    pub offset: i64,
    /// Its timestamp, Unix milliseconds.
    pub timestamp: i64,
    /// Leader epoch of its batch.
    pub leader_epoch: i32,
}

/// Where a leader epoch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochEnd {
    /// The largest epoch that the log has and that is not above the one asked for.
    pub leader_epoch: i32,
    /// The offset after that epoch's last record.
    pub end_offset: i64,
}

/// A search for a record by time, which can be done in parts: where timestamps do not rise, as many batches as a segment has
/// may have to be looked at.
#[derive(Debug, Clone, Copy)]
pub struct TimeSearch(Goal);

/// What comes next in a search.
#[derive(Debug, Clone, Copy)]
enum Goal {
    /// To learn the largest timestamp.
    Largest,
    /// To learn it of the segment in which the log starts.
    Rest(Rest),
    /// To find the first record that has `timestamp` or a later one, from a batch on.
    First { timestamp: i64, from: Spot },
}

/// The rest of the segment in which the log starts.
#[derive(Debug, Clone, Copy)]
struct Rest {
    start_offset: i64,
    next: Spot,
    /// The largest timestamp so far, and the batch that has it.
    largest: i64,
    at: Spot,
}

/// Where a batch begins: the base offset of its segment, and the position there.
#[derive(Debug, Clone, Copy)]
struct Spot {
    base_offset: i64,
    position: u64,
}

/// What a part of a search came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Searched {
    /// There is more to look at.
    More,
    /// It has ended: the record, or that there is none.
    Found(Option<FoundRecord>),
}

impl TimeSearch {
    /// For the first record whose timestamp is `timestamp` (Unix milliseconds) or later.
    #[must_use]
    pub fn first_since(timestamp: i64) -> Self {
        Self(Goal::First { timestamp, from: Spot { base_offset: i64::MIN, position: 0 } })
    }

    /// For the first record that has the largest timestamp.
    #[must_use]
    pub fn largest() -> Self {
        Self(Goal::Largest)
    }
}

impl<D: Disk> Log<D> {
    /// The first record whose timestamp is `timestamp` (Unix milliseconds) or later, wherever later records with
    /// earlier timestamps lie. `None` when there is none.
    pub fn offset_for_timestamp(&self, timestamp: i64) -> Result<Option<FoundRecord>, LogError> {
        self.search_to_end(TimeSearch::first_since(timestamp))
    }

    /// The first record that has the largest timestamp of the log. `None` when the log is empty or its records
    /// have no timestamps.
    pub fn max_timestamp(&self) -> Result<Option<FoundRecord>, LogError> {
        self.search_to_end(TimeSearch::largest())
    }

    fn search_to_end(&self, mut search: TimeSearch) -> Result<Option<FoundRecord>, LogError> {
        loop {
            if let Searched::Found(found) = self.search(&mut search, usize::MAX)? {
                return Ok(found);
            }
        }
    }

    /// Goes on with a search, and looks at so many batches at most; two may be decompressed. Between two parts the log may
    /// change.
    pub fn search(&self, search: &mut TimeSearch, batches_max: usize) -> Result<Searched, LogError> {
        let mut left = batches_max;
        loop {
            match &mut search.0 {
                Goal::Rest(rest) if rest.start_offset == self.start_offset => {
                    if !self.look_through(rest, &mut left)? {
                        return Ok(Searched::More);
                    }
                    search.0 = self.first_of_largest(Some(rest));
                }
                Goal::Largest | Goal::Rest(_) => {
                    search.0 = match self.rest_to_look_through()? {
                        Some(rest) => Goal::Rest(rest),
                        None => self.first_of_largest(None),
                    };
                }
                Goal::First { timestamp, .. } if *timestamp == NO_TIMESTAMP => {
                    return Ok(Searched::Found(None));
                }
                Goal::First { timestamp, from } => return self.first_since(*timestamp, from, &mut left),
            }
        }
    }

    /// The segment in which the log starts, if its largest timestamp may be of a record before the start, and no other
    /// segment has a larger one.
    fn rest_to_look_through(&self) -> Result<Option<Rest>, LogError> {
        let mut segments = self.segments_from(self.start_offset);
        let Some(segment) = segments.next().filter(|s| s.base_offset < self.start_offset && s.size > 0)
        else {
            return Ok(None);
        };
        let others = segments.map(|segment| segment.max_timestamp).max().unwrap_or(NO_TIMESTAMP);
        if segment.max_timestamp < others {
            return Ok(None);
        }
        let mut position = segment.size;
        if let Some((at, header)) = segment.find(&self.disk, self.start_offset)? {
            let (is_cut, largest_at) = (header.base_offset < self.start_offset, segment.max_timestamp_offset);
            if largest_at > header.last_offset() || !is_cut && largest_at >= header.base_offset {
                return Ok(None);
            }
            position = at;
        }
        let next = Spot { base_offset: segment.base_offset, position };
        Ok(Some(Rest { start_offset: self.start_offset, next, largest: NO_TIMESTAMP, at: next }))
    }

    /// Looks at so many batches of the rest of a segment; whether these were all.
    fn look_through(&self, rest: &mut Rest, left: &mut usize) -> Result<bool, LogError> {
        let mut segments = self.segments_from(self.start_offset);
        let Some(segment) = segments.next().filter(|s| s.base_offset == rest.next.base_offset) else {
            return Ok(true);
        };
        let mut headers = segment.headers(rest.next.position);
        while *left > 0 {
            let Some((position, header)) = headers.next(&self.disk, &segment.log)? else { return Ok(true) };
            *left -= 1;
            let mut largest = header.max_timestamp;
            if header.base_offset < self.start_offset {
                // The start lies in the middle of this batch: only its rest counts.
                largest = NO_TIMESTAMP;
                self.find_record(segment, position, &header, |offset, timestamp| {
                    if offset >= self.start_offset {
                        largest = largest.max(timestamp);
                    }
                    false
                })?;
            }
            if largest > rest.largest {
                (rest.largest, rest.at) = (largest, Spot { position, ..rest.next });
            }
            rest.next.position = position + header.size() as u64;
        }
        Ok(false)
    }

    /// The largest timestamp there is, and where it is first found. Where the segment in which the log starts was looked
    /// through, that counts and not what the segment has in all.
    fn first_of_largest(&self, rest: Option<&Rest>) -> Goal {
        let mut best = (NO_TIMESTAMP, Spot { base_offset: i64::MIN, position: 0 });
        for segment in self.segments_from(self.start_offset) {
            let start = Spot { base_offset: segment.base_offset, position: 0 };
            let own = match rest.filter(|rest| rest.next.base_offset == segment.base_offset) {
                Some(rest) => (rest.largest, rest.at),
                None if segment.size == 0 => continue,
                // Of a segment whose records before the start have later timestamps than any other, the rest was looked
                // through; of another one it does not matter.
                None => (segment.max_timestamp, start),
            };
            if own.0 > best.0 {
                best = own;
            }
        }
        Goal::First { timestamp: best.0, from: best.1 }
    }

    fn first_since(&self, timestamp: i64, from: &mut Spot, left: &mut usize) -> Result<Searched, LogError> {
        for segment in self.segments_from(self.start_offset.max(from.base_offset)) {
            if segment.size == 0 || segment.max_timestamp < timestamp {
                continue;
            }
            let mut position = if segment.base_offset == from.base_offset { from.position } else { 0 };
            if position == 0 {
                position = segment.position_before_timestamp(&self.disk, timestamp)?;
                if segment.base_offset < self.start_offset {
                    let start = segment.find(&self.disk, self.start_offset)?;
                    position = position.max(start.map_or(segment.size, |(position, _)| position));
                }
            }
            let mut headers = segment.headers(position);
            while let Some((position, header)) = headers.next(&self.disk, &segment.log)? {
                if *left == 0 {
                    *from = Spot { base_offset: segment.base_offset, position };
                    return Ok(Searched::More);
                }
                *left -= 1;
                if header.max_timestamp < timestamp || header.last_offset() < self.start_offset {
                    continue;
                }
                let late = |offset, t| t >= timestamp && offset >= self.start_offset;
                if let Some((offset, timestamp)) = self.find_record(segment, position, &header, late)? {
                    let leader_epoch = header.partition_leader_epoch;
                    return Ok(Searched::Found(Some(FoundRecord { offset, timestamp, leader_epoch })));
                }
            }
        }
        Ok(Searched::Found(None))
    }

    /// Offset and timestamp of the first record of a batch for which both satisfy `wanted`.
    fn find_record(
        &self,
        segment: &Segment<D>,
        position: u64,
        header: &BatchHeader,
        mut wanted: impl FnMut(i64, i64) -> bool,
    ) -> Result<Option<(i64, i64)>, LogError> {
        let damaged = |error| LogError::Damaged { path: segment.path().clone(), position, error };
        let bytes = segment.read_batch(&self.disk, position, header)?;
        let body = bytes.get(BatchHeader::LEN..).unwrap_or_default();
        let mut scratch = Vec::new();
        let plain = match header.codec().map_err(damaged)? {
            Codec::None => body,
            codec => {
                decompress(codec, body, DECOMPRESSED_BYTES_MAX, &mut scratch)
                    .map_err(|e| damaged(e.into()))?;
                &scratch
            }
        };
        let stamped = header.timestamp_type() == TimestampType::LogAppendTime;
        for record in RecordIter::new(header, plain).map_err(damaged)? {
            let record = record.map_err(damaged)?;
            let own = header.base_timestamp.saturating_add(record.timestamp_delta);
            let timestamp = if stamped { header.max_timestamp } else { own };
            let offset = header.base_offset.saturating_add(record.offset_delta.into());
            if wanted(offset, timestamp) {
                return Ok(Some((offset, timestamp)));
            }
        }
        Ok(None)
    }

    /// The latest leader epoch that wrote into the log.
    #[must_use]
    pub fn latest_epoch(&self) -> Option<i32> {
        self.epochs.latest()
    }

    /// Where `leader_epoch` ended, as `OffsetForLeaderEpoch` answers (KIP-101, KIP-279), while the log is written under
    /// the epoch `current`. `None`: there is no such epoch, which Kafka answers with epoch and offset -1.
    #[must_use]
    pub fn offset_for_epoch(&self, leader_epoch: i32, current: i32) -> Option<EpochEnd> {
        let (leader_epoch, end_offset) = self.epochs.end_of(leader_epoch, self.end_offset(), current)?;
        Some(EpochEnd { leader_epoch, end_offset })
    }
}
