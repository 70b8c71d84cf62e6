//! A Fetch response, read while it arrives.
//!
//! A frame of 16 MiB would have to be held and walked twice if it were decoded at its end. This
//! machine is fed with whatever bytes are there and gives out each part as soon as it is whole:
//! heads, then every record batch as a slice of the receive buffer, while it is still in the CPU
//! cache. It also says when the header of the last whole batch is known, which is when the next
//! Fetch can be sent.
//!
//! Layout: Fetch response 12 to 18 (all flexible, KIP-482). Version 12 names topics, 13 and later
//! carry topic ids (KIP-516), 16 and later may end with node endpoints (KIP-951).

mod cursor;
mod parts;
#[cfg(test)]
mod tests;

use headrace_wire::records::{BatchHeader, RecordError};
use headrace_wire::uuid::Uuid;

use self::cursor::{Cursor, Stop};
pub use self::parts::{
    AbortedTransaction, DivergingEpoch, FetchEvent, LeaderHint, NodeEndpoint, PartitionHead, PartitionTail,
    ResponseHead, TopicKey,
};

/// The largest record batch that is taken, in bytes. A batch has to be in the buffer as a whole
/// before it can be decoded, so this also bounds the receive buffer.
pub const BATCH_BYTES_MAX: usize = 256 << 20;
/// The largest tagged field that is looked into, in bytes; larger ones are a protocol error.
const TAG_BYTES_MAX: usize = 64 << 10;
/// The first version with topic ids instead of names.
const FIRST_VERSION_WITH_IDS: i16 = 13;

/// What one call to [`FetchStream::next`] came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Step<'a> {
    /// A part is whole.
    Event(FetchEvent<'a>),
    /// At least so many bytes must be in the buffer for progress, counted from after `consumed`.
    Need(usize),
    /// The response has been read to its end.
    Done,
}

/// A step, and how many bytes of the buffer were used up by it.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress<'a> {
    /// Bytes that are done with.
    pub consumed: usize,
    /// What came of them.
    pub step: Step<'a>,
}

/// The bytes are not a Fetch response of the version that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the Fetch response is malformed: {what}")]
pub struct FetchStreamError {
    /// What is wrong.
    pub what: &'static str,
}

/// Where the reader stands.
#[derive(Debug)]
enum State {
    Head,
    Topic,
    Partition,
    Aborted { left: usize },
    PartitionRest,
    Batches,
    Tail,
    TagCount(Scope),
    Tags { scope: Scope, left: usize },
    SkipTag { scope: Scope, left: usize, bytes: usize },
    Done,
}

/// The structure whose tagged fields are being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Aborted { left: usize },
    Partition,
    Topic,
    Response,
}

/// Reads one response. Feed it with [`next`](Self::next) until it says [`Step::Done`].
#[derive(Debug)]
pub struct FetchStream {
    version: i16,
    frame_left: usize,
    state: State,
    topics_left: usize,
    partitions_left: usize,
    topic: TopicKey,
    head: Option<PartitionHead>,
    tail: PartitionTail,
    endpoints: Vec<NodeEndpoint>,
    records_left: usize,
    header: Option<BatchHeader>,
    /// After the last whole batch of the partition: the next offset, and the batch's leader epoch.
    next: Option<(i64, i32)>,
    last_announced: bool,
}

impl FetchStream {
    /// The lowest version that can be read.
    pub const VERSION_MIN: i16 = 12;
    /// The highest version that can be read.
    pub const VERSION_MAX: i16 = 18;

    /// A reader for a response body of `frame_bytes` bytes (what follows the response header).
    #[must_use]
    pub fn new(version: i16, frame_bytes: usize) -> FetchStream {
        FetchStream {
            version,
            frame_left: frame_bytes,
            state: State::Head,
            topics_left: 0,
            partitions_left: 0,
            topic: TopicKey::Name(String::new()),
            head: None,
            tail: PartitionTail::default(),
            endpoints: Vec::new(),
            records_left: 0,
            header: None,
            next: None,
            last_announced: false,
        }
    }

    /// Bytes of the frame that have not been consumed.
    #[must_use]
    pub fn frame_left(&self) -> usize {
        self.frame_left
    }

    /// Reads on. `bytes` starts at the first byte not yet consumed and may reach beyond the frame.
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<Progress<'a>, FetchStreamError> {
        let mut consumed = 0;
        loop {
            if matches!(self.state, State::Done) {
                return Ok(Progress { consumed, step: Step::Done });
            }
            let rest = bytes.get(consumed..).unwrap_or_default();
            let rest = rest.get(..self.frame_left).unwrap_or(rest);
            let mut cursor = Cursor::new(rest);
            match self.step(&mut cursor) {
                Ok(event) => {
                    consumed += cursor.at;
                    self.frame_left -= cursor.at;
                    if let Some(event) = event {
                        return Ok(Progress { consumed, step: Step::Event(event) });
                    }
                }
                Err(Stop::Need(need)) if need <= self.frame_left => {
                    return Ok(Progress { consumed, step: Step::Need(need) });
                }
                Err(Stop::Need(_)) => {
                    return Err(FetchStreamError { what: "it ends in the middle of a field" });
                }
                Err(Stop::Bad(what)) => return Err(FetchStreamError { what }),
            }
        }
    }

    /// One transition. On `Err(Stop::Need)` nothing has changed and the step is tried again.
    fn step<'a>(&mut self, c: &mut Cursor<'a>) -> Result<Option<FetchEvent<'a>>, Stop> {
        match self.state {
            State::Head => self.head(c).map(Some),
            State::Topic => self.topic(c).map(|()| None),
            State::Partition => self.partition(c).map(|()| None),
            State::Aborted { left } => self.aborted(c, left).map(|()| None),
            State::PartitionRest => self.partition_rest(c).map(Some),
            State::Batches => self.batches(c),
            State::Tail => {
                let taken = c.take_up_to(self.records_left)?;
                self.records_left -= taken;
                if self.records_left == 0 {
                    self.state = State::TagCount(Scope::Partition);
                }
                Ok(None)
            }
            State::TagCount(scope) => {
                // A tagged field takes at least two bytes: its tag and its size.
                let left = c.uvarint()?;
                self.fits(left, 2, "more tagged fields than bytes")?;
                self.state = State::Tags { scope, left };
                Ok(None)
            }
            State::Tags { scope, left: 0 } => Ok(self.end_of(scope)),
            State::Tags { scope, left } => self.tag(c, scope, left).map(|()| None),
            State::SkipTag { scope, left, bytes } => {
                let taken = c.take_up_to(bytes)?;
                self.state = if taken == bytes {
                    State::Tags { scope, left }
                } else {
                    State::SkipTag { scope, left, bytes: bytes - taken }
                };
                Ok(None)
            }
            State::Done => Ok(None),
        }
    }

    /// Checks a count that the peer sent against the bytes that are left.
    fn fits(&self, count: usize, bytes_each: usize, what: &'static str) -> Result<(), Stop> {
        match count.checked_mul(bytes_each) {
            Some(bytes) if bytes <= self.frame_left => Ok(()),
            _ => Err(Stop::Bad(what)),
        }
    }

    fn head<'a>(&mut self, c: &mut Cursor<'a>) -> Result<FetchEvent<'a>, Stop> {
        let (_throttle_ms, error, session_id) = (c.i32()?, c.i16()?, c.i32()?);
        let topics = c.array_len()?;
        self.fits(topics, 3, "more topics than bytes")?;
        self.topics_left = topics;
        self.state = if topics == 0 { State::TagCount(Scope::Response) } else { State::Topic };
        Ok(FetchEvent::Head(ResponseHead { error, session_id }))
    }

    fn topic(&mut self, c: &mut Cursor<'_>) -> Result<(), Stop> {
        let topic = if self.version < FIRST_VERSION_WITH_IDS {
            TopicKey::Name(c.string()?.ok_or(Stop::Bad("a topic without a name"))?)
        } else {
            TopicKey::Id(Uuid(c.array::<16>()?))
        };
        let partitions = c.array_len()?;
        self.fits(partitions, 37, "more partitions than bytes")?;
        self.topic = topic;
        self.topics_left -= 1;
        self.partitions_left = partitions;
        self.state = if partitions == 0 { State::TagCount(Scope::Topic) } else { State::Partition };
        Ok(())
    }

    fn partition(&mut self, c: &mut Cursor<'_>) -> Result<(), Stop> {
        let (partition, error, high_watermark) = (c.i32()?, c.i16()?, c.i64()?);
        let (_last_stable_offset, log_start_offset) = (c.i64()?, c.i64()?);
        let head = PartitionHead {
            topic: self.topic.clone(),
            partition,
            error,
            high_watermark,
            log_start_offset,
            aborted: Vec::new(),
            preferred_read_replica: -1,
            records_bytes: 0,
        };
        let aborted = c.array_len()?;
        self.fits(aborted, 17, "more aborted transactions than bytes")?;
        self.head = Some(head);
        self.partitions_left -= 1;
        self.tail = PartitionTail::default();
        self.state = State::Aborted { left: aborted };
        Ok(())
    }

    fn aborted(&mut self, c: &mut Cursor<'_>, left: usize) -> Result<(), Stop> {
        if left == 0 {
            self.state = State::PartitionRest;
            return Ok(());
        }
        let aborted = AbortedTransaction { producer_id: c.i64()?, first_offset: c.i64()? };
        if let Some(head) = &mut self.head {
            head.aborted.push(aborted);
        }
        self.state = State::TagCount(Scope::Aborted { left: left - 1 });
        Ok(())
    }

    fn partition_rest<'a>(&mut self, c: &mut Cursor<'a>) -> Result<FetchEvent<'a>, Stop> {
        let preferred_read_replica = c.i32()?;
        let records_bytes = c.array_len()?;
        self.fits(records_bytes, 1, "records longer than the response")?;
        let Some(mut head) = self.head.take() else {
            return Err(Stop::Bad("a partition without a head"));
        };
        head.preferred_read_replica = preferred_read_replica;
        head.records_bytes = records_bytes;
        self.records_left = records_bytes;
        self.header = None;
        self.next = None;
        self.last_announced = false;
        self.state = State::Batches;
        Ok(FetchEvent::Partition(head))
    }

    fn batches<'a>(&mut self, c: &mut Cursor<'a>) -> Result<Option<FetchEvent<'a>>, Stop> {
        if self.records_left == 0 {
            self.state = State::TagCount(Scope::Partition);
            return Ok(None);
        }
        let Some(header) = &self.header else {
            return self.batch_header(c);
        };
        let bytes = c.bytes(header.size())?;
        let event = FetchEvent::Batch { header: header.clone(), bytes };
        self.header = None;
        self.records_left -= bytes.len();
        self.tail.batches += 1;
        Ok(Some(event))
    }

    /// Looks at the header of the next batch without consuming it.
    fn batch_header<'a>(&mut self, c: &Cursor<'a>) -> Result<Option<FetchEvent<'a>>, Stop> {
        if self.records_left < BatchHeader::LEN {
            return Ok(self.cut_tail());
        }
        let bytes = c.peek(BatchHeader::LEN)?;
        let header = match BatchHeader::parse(bytes) {
            Ok(header) if header.size() > self.records_left => return Ok(self.cut_tail()),
            Ok(header) if header.size() <= BATCH_BYTES_MAX => header,
            Ok(header) => {
                let error = RecordError::TooLarge(header.size());
                return Ok(Some(self.bad_batch(error)));
            }
            Err(error) => return Ok(Some(self.bad_batch(error))),
        };
        let is_last = self.records_left - header.size() < BatchHeader::LEN;
        self.next = Some((header.last_offset().saturating_add(1), header.partition_leader_epoch));
        self.header = Some(header);
        Ok(if is_last { self.announce_last() } else { None })
    }

    fn bad_batch<'a>(&mut self, error: RecordError) -> FetchEvent<'a> {
        self.last_announced = true;
        self.state = State::Tail;
        FetchEvent::BadBatch { error }
    }

    /// The rest of the partition's bytes is an incomplete batch: whatever came before was the last.
    fn cut_tail<'a>(&mut self) -> Option<FetchEvent<'a>> {
        self.tail.cut_bytes = self.records_left;
        self.state = State::Tail;
        self.announce_last()
    }

    fn announce_last<'a>(&mut self) -> Option<FetchEvent<'a>> {
        if self.last_announced {
            return None;
        }
        self.last_announced = true;
        let response_ends = self.topics_left == 0 && self.partitions_left == 0;
        let (next_offset, leader_epoch) = self.next?;
        Some(FetchEvent::LastBatch { next_offset, leader_epoch, response_ends })
    }

    /// One tagged field. Those that mean nothing here are skipped without being held.
    fn tag(&mut self, c: &mut Cursor<'_>, scope: Scope, left: usize) -> Result<(), Stop> {
        let (tag, size) = (c.uvarint()?, c.uvarint()?);
        self.fits(size, 1, "a tagged field longer than the response")?;
        let left = left - 1;
        let known = match scope {
            Scope::Partition => tag <= 1,
            Scope::Response => tag == 0 && self.version >= 16,
            Scope::Aborted { .. } | Scope::Topic => false,
        };
        if !known {
            self.state = State::SkipTag { scope, left, bytes: size };
            return Ok(());
        }
        if size > TAG_BYTES_MAX {
            return Err(Stop::Bad("a tagged field is too long"));
        }
        let mut value = Cursor::new(c.bytes(size)?);
        let read = match (scope, tag) {
            (Scope::Partition, 0) => {
                value.diverging().map(|d| self.tail.diverging = Some(d).filter(|d| d.epoch >= 0))
            }
            (Scope::Partition, _) => value.leader().map(|l| self.tail.leader = Some(l)),
            _ => value.endpoints().map(|e| self.endpoints = e),
        };
        read.map_err(|stop| match stop {
            Stop::Need(_) => Stop::Bad("a tagged field ends in the middle"),
            bad @ Stop::Bad(_) => bad,
        })?;
        self.state = State::Tags { scope, left };
        Ok(())
    }

    fn end_of<'a>(&mut self, scope: Scope) -> Option<FetchEvent<'a>> {
        match scope {
            Scope::Aborted { left } => {
                self.state = State::Aborted { left };
                None
            }
            Scope::Partition => {
                self.state =
                    if self.partitions_left == 0 { State::TagCount(Scope::Topic) } else { State::Partition };
                Some(FetchEvent::PartitionEnd(std::mem::take(&mut self.tail)))
            }
            Scope::Topic => {
                self.state =
                    if self.topics_left == 0 { State::TagCount(Scope::Response) } else { State::Topic };
                None
            }
            Scope::Response => {
                self.state = State::Done;
                Some(FetchEvent::End(std::mem::take(&mut self.endpoints)))
            }
        }
    }
}
