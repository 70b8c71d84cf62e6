//! The contents of a Fetch response, processed while it arrives.

use headrace_wire::compression::Codec;
use headrace_wire::errors::ErrorCode;
use headrace_wire::records::BatchHeader;
use headrace_wire::time::Now;

use super::cache::lock;
use super::decode::{CHUNK_BYTES, OpenChunk, RawBatch};
use super::fetch_call::{AbortedFilter, Current, DAMAGED, FetchCall, Issue, SKIPPED};
use super::fetch_stream::{FetchEvent, FetchStream, PartitionHead, PartitionTail, Step, TopicKey};
use super::fetcher::Fetcher;
use super::part::{Answer, PartState};
use super::tag::Tag;
use super::ticket::Ticket;
use super::types::TopicPartition;
use crate::arrived::Arrived;
use crate::core::{StreamSink, StreamStep};
use crate::error::Error;

/// How much is waited for while a caller decodes: what is kept for it then fills the memory in which it arrives.
const GATHERED_BYTES: usize = 384 << 10;

/// Only while so much of the answer is to come: its end is not waited for, since with it the next request goes out. And
/// only where bytes come so fast that it takes no time.
const GATHERED_FROM: usize = 1 << 20;

impl StreamSink<Tag> for Fetcher {
    fn stream(
        &mut self,
        _now: Now,
        tag: &mut Tag,
        _node: i32,
        version: i16,
        frame_left: usize,
        bytes: Arrived<'_>,
    ) -> StreamStep {
        let Tag::Fetch(call) = tag else {
            return StreamStep { consumed: bytes.bytes().len(), want: 1, result: Ok(()) };
        };
        let mut step = self.take_up(call, version, frame_left, bytes);
        if let Some(current) = &mut call.current {
            self.flush(current);
            let left = frame_left - step.consumed.min(frame_left);
            let fast = bytes.bytes().len() >= GATHERED_BYTES / 4;
            if fast && left >= GATHERED_FROM && lock(&self.cache).wants_raw(current.ticket) {
                step.want = step.want.max(GATHERED_BYTES);
            }
        }
        step
    }
}

impl Fetcher {
    fn take_up(
        &mut self,
        call: &mut FetchCall,
        version: i16,
        frame_left: usize,
        arrived: Arrived<'_>,
    ) -> StreamStep {
        let (bytes, mut consumed) = (arrived.bytes(), 0);
        loop {
            let stream = call.stream.get_or_insert_with(|| FetchStream::new(version, frame_left));
            let rest = bytes.get(consumed..).unwrap_or_default();
            match stream.next(rest) {
                Ok(progress) => {
                    consumed += progress.consumed;
                    match progress.step {
                        Step::Event(event) => self.event(call, event, arrived),
                        Step::Need(want) => return StreamStep { consumed, want, result: Ok(()) },
                        Step::Done if consumed < frame_left && consumed < bytes.len() => {
                            let result = Err("the Fetch response goes on after its end".to_owned());
                            return StreamStep { consumed, want: 1, result };
                        }
                        Step::Done => return StreamStep { consumed, want: 1, result: Ok(()) },
                    }
                }
                Err(error) => return StreamStep { consumed, want: 1, result: Err(error.to_string()) },
            }
        }
    }

    fn event(&mut self, call: &mut FetchCall, event: FetchEvent<'_>, arrived: Arrived<'_>) {
        match event {
            FetchEvent::Head(head) => {
                let code = ErrorCode::new(head.error);
                lock(&self.cache).count_fetch();
                if let Some(session) = self.sessions.get_mut(&call.source) {
                    session.answering = true;
                }
                if code != ErrorCode::NONE {
                    self.issues.push(Issue::Session { source: call.source, code });
                } else if let Some(session) = self.sessions.get_mut(&call.source) {
                    session.retry.succeed();
                    session.answered(head.session_id);
                }
            }
            FetchEvent::Partition(head) => call.current = self.begin(call, head),
            FetchEvent::LastBatch { next_offset, leader_epoch, response_ends } => {
                if let Some(current) = &call.current
                    && let Some(place) = self.place(current.ticket)
                {
                    place.ends_at(next_offset, leader_epoch);
                }
                if response_ends {
                    self.allow_next(call);
                }
            }
            FetchEvent::Batch { header, bytes } => {
                if let Some(mut current) = call.current.take()
                    && self.batch(&mut current, &header, arrived, bytes)
                {
                    call.current = Some(current);
                }
            }
            FetchEvent::BadBatch { error } => {
                if let Some(mut current) = call.current.take() {
                    self.spoil(&mut current, error.to_string());
                }
            }
            FetchEvent::PartitionEnd(tail) => self.partition_end(call, &tail),
            FetchEvent::End(endpoints) => {
                self.issues.extend(endpoints.into_iter().map(Issue::Endpoint));
                self.allow_next(call);
            }
        }
    }

    /// The next request of the session may go out. Not after an error: the session starts anew then.
    fn allow_next(&mut self, call: &mut FetchCall) {
        if std::mem::replace(&mut call.announced, true) {
            return;
        }
        let failed = self.issues.iter().any(|issue| matches!(issue, Issue::Session { .. }));
        if let Some(session) = self.sessions.get_mut(&call.source)
            && !failed
        {
            session.early = true;
            self.dirty = true;
        }
    }

    /// The head of a partition. `None` when its data is not wanted (any more).
    fn begin(&mut self, call: &mut FetchCall, head: PartitionHead) -> Option<Current> {
        let source = call.source;
        let session = self.sessions.get(&source)?;
        let topic = match head.topic {
            TopicKey::Name(name) => name.into(),
            TopicKey::Id(id) => session.names.get(&id)?.clone(),
        };
        let member = session.members.get(&TopicPartition::new(topic, head.partition))?;
        let (ticket, asked, checked) = (member.ticket, member.offset, member.leader_epoch);
        let part = self.part(ticket)?;
        let PartState::Placed(place) = &mut part.state else { return None };
        if place.answer != Answer::None || place.offset != asked {
            return None;
        }
        let code = ErrorCode::new(head.error);
        if code != ErrorCode::NONE {
            let range = (head.log_start_offset, head.high_watermark);
            call.refused = Some((ticket, part.partition.clone()));
            self.issues.push(Issue::Partition { ticket, node: source.node, code, range });
            return None;
        }
        place.answer = Answer::Arriving(source);
        part.retry.succeed();
        part.source = Some(source);
        // What a follower has says nothing about the leader's log.
        if part.replica.is_none_or(|(replica, _)| replica != source.node) {
            place.check(checked);
        }
        if head.preferred_read_replica >= 0 {
            self.issues.push(Issue::Replica { ticket, node: head.preferred_read_replica });
        }
        let mut current = self.open(ticket, asked, head.high_watermark, head.records_bytes)?;
        current.source = Some(source);
        current.aborted = self.settings.is_read_committed().then(|| AbortedFilter::new(head.aborted));
        Some(current)
    }

    /// Rows of a partition come, from `asked` on.
    pub(super) fn open(
        &mut self,
        ticket: Ticket,
        asked: i64,
        high_watermark: i64,
        records_bytes: usize,
    ) -> Option<Current> {
        if records_bytes > 0 {
            self.served += 1;
        }
        let served = self.served;
        let part = self.parts.get_mut(&ticket.part).filter(|part| part.ticket == ticket)?;
        if records_bytes > 0 {
            part.served = served;
        }
        let leader_epoch = part.place()?.leader_epoch;
        let mut open = part.open.take().unwrap_or_else(|| OpenChunk::new(&self.schema, &part.partition));
        open.restart(asked, leader_epoch, part.stop);
        lock(&self.cache).answered(ticket, high_watermark, records_bytes);
        Some(Current {
            ticket,
            source: None,
            open,
            aborted: None,
            pushed: asked,
            end: high_watermark,
            claimed: None,
            records_bytes,
            kept: None,
            chunks: Vec::new(),
            raws: Vec::new(),
        })
    }

    /// A whole batch. False when the partition's further data is not wanted.
    pub(super) fn batch(
        &mut self,
        current: &mut Current,
        header: &BatchHeader,
        arrived: Arrived<'_>,
        bytes: &[u8],
    ) -> bool {
        let open = &mut current.open;
        if open.is_finished() {
            return true;
        }
        current.claimed = None;
        if self.settings.skips_bad
            && let Err(error) = open.check(&self.schema, header, bytes)
        {
            let known = self.part(current.ticket).and_then(|part| part.left_out) == Some(header.base_offset);
            if !known && self.doubts(current, &error) {
                return false;
            }
            return self.leave_out(current, header, error);
        }
        if header.last_offset() < open.next_offset() {
            return true;
        }
        if current.aborted.as_mut().is_some_and(|aborted| aborted.skips(header)) {
            // A chunk has one epoch.
            let rises = header.partition_leader_epoch > open.leader_epoch();
            if rises && !self.close(current) {
                return false;
            }
            current.open.skip(header);
            return true;
        }
        let compressed = !header.is_control() && header.codec().is_ok_and(|codec| codec != Codec::None);
        if !compressed && !self.leaves_to_caller(current, header, arrived) {
            if !self.flush(current) {
                return false;
            }
            let pushed = current.open.push(header, bytes, &mut current.chunks);
            let wanted = self.flush(current);
            return match pushed {
                Ok(()) => wanted,
                Err(error) if self.settings.skips_bad => {
                    self.troubles.push((SKIPPED, error));
                    current.open.skip(header);
                    self.close(current)
                }
                Err(error) => {
                    if !self.doubts(current, &error) {
                        self.fail(current.ticket, error);
                    }
                    false
                }
            };
        }
        // Kept as it is, behind the rows before it, for the caller's thread.
        if current.raws.is_empty() && !self.close(current) {
            return false;
        }
        current.open.skip(header);
        let shares = !compressed || arrived.is_worth_keeping(current.records_bytes);
        let bytes = if shares { arrived.keep(bytes) } else { bytes::Bytes::copy_from_slice(bytes) };
        current.raws.push(RawBatch { header: header.clone(), bytes });
        true
    }

    /// Passes over a batch with a wrong checksum. Its header may be what is wrong, so one offset is left out: what stands
    /// behind the batch in the answer comes all the same. If nothing does, its word on where it ends counts as long as
    /// its two counts agree and the log has so much; else the broker is asked what comes next.
    fn leave_out(&mut self, current: &mut Current, header: &BatchHeader, error: Error) -> bool {
        current.open.step(header, current.end);
        let next = current.open.next_offset();
        let agree = i64::from(header.records_count) == i64::from(header.last_offset_delta) + 1;
        current.claimed =
            Some(header.last_offset() + 1).filter(|end| agree && (next..=current.end).contains(end));
        let mut known = false;
        if let Some(part) = self.part(current.ticket) {
            if let Some(place) = part.place_mut() {
                // The answer's last header has been taken at its word.
                place.offset = next;
            }
            known = part.left_out.replace(header.base_offset) == Some(header.base_offset);
        }
        if !known {
            self.troubles.push((SKIPPED, error));
        }
        self.close(current)
    }

    /// Whether a plain batch is kept for a caller that waits for rows, which then has something to do besides: two
    /// threads decode more than one. Not for ever: what nobody takes is decoded here. And in long runs, since chunks end
    /// where this changes.
    fn leaves_to_caller(
        &mut self,
        current: &mut Current,
        header: &BatchHeader,
        arrived: Arrived<'_>,
    ) -> bool {
        let kept = current.kept.filter(|kept| *kept < CHUNK_BYTES);
        let worth = !header.is_control() && arrived.is_worth_keeping(current.records_bytes);
        let mut keeps = worth && kept.is_some();
        if worth && !keeps {
            // What is kept already must be in the cache to be counted.
            let open = current.open.bytes();
            keeps = (open == 0 || open >= CHUNK_BYTES / 4)
                && self.flush(current)
                && lock(&self.cache).wants_raw(current.ticket);
        }
        current.kept = keeps.then(|| kept.unwrap_or(0) + header.size());
        keeps
    }

    /// What comes next is no batch.
    pub(super) fn spoil(&mut self, current: &mut Current, why: String) {
        let offset = current.open.next_offset();
        if let Some(part) = self.part(current.ticket) {
            let (topic, partition) = (part.partition.topic.to_string(), part.partition.partition);
            let error = Error::Record { topic, partition, offset, why };
            if !self.doubts(current, &error) {
                self.fail(current.ticket, error);
            }
        }
    }

    /// What comes next of an answer is damaged. It may have been damaged on its way, by whatever it came through: so it
    /// is fetched once more, over a new connection. False when it has come like this before: the broker has it so then.
    fn doubts(&mut self, current: &mut Current, error: &Error) -> bool {
        self.close(current);
        let (next, leader_epoch) = (current.open.next_offset(), current.open.leader_epoch());
        let Some(source) = current.source else { return false };
        if !lock(&self.cache).suspect(current.ticket, next) {
            return false;
        }
        if let Some(place) = self.place(current.ticket) {
            place.break_off(next, leader_epoch);
        }
        self.issues.push(Issue::Damaged { source });
        self.troubles.push((DAMAGED, error.clone()));
        true
    }

    fn partition_end(&mut self, call: &mut FetchCall, tail: &PartitionTail) {
        let refused = call.refused.take();
        if let (Some((ticket, partition)), Some(hint)) = (refused, tail.leader) {
            self.issues.push(Issue::Leader { ticket, partition, hint });
        }
        let Some(mut current) = call.current.take() else { return };
        if tail.batches == 0 && tail.cut_bytes > 0 {
            // A broker sends the first batch whole, whatever the limits (KIP-74): asking again would bring the same.
            self.spoil(&mut current, format!("its record batch is cut off after {} bytes", tail.cut_bytes));
            return;
        }
        let ticket = current.ticket;
        self.end(current);
        if let Some(part) = self.part(ticket) {
            if let Some(place) = part.place_mut() {
                place.answer = Answer::None;
            }
            let partition = part.partition.clone();
            if let Some(end) = tail.diverging {
                self.issues.push(Issue::Diverging { ticket, node: call.source.node, end });
            }
            if let Some(hint) = tail.leader {
                self.issues.push(Issue::Leader { ticket, partition, hint });
            }
        }
        self.dirty |= std::mem::take(&mut self.held_up);
    }

    /// No more rows come for now.
    pub(super) fn end(&mut self, mut current: Current) {
        if let Some(end) = current.claimed {
            current.open.pass_to(end);
        }
        self.close(&mut current);
        let (next, leader_epoch) = (current.open.next_offset(), current.open.leader_epoch());
        let keep = self.parts.len() * CHUNK_BYTES <= self.settings.spare_bytes;
        if let Some(part) = self.part(current.ticket) {
            if let Some(place) = part.place_mut() {
                place.move_to(next, leader_epoch);
            }
            // A builder keeps memory for its next chunk: worth it for few partitions, too much for many.
            part.open = keep.then_some(current.open);
        }
    }

    /// Brings everything decoded so far into the cache, and its position up to date.
    fn close(&mut self, current: &mut Current) -> bool {
        match current.open.close() {
            Ok(chunk) => current.chunks.extend(chunk),
            Err(error) => {
                self.fail(current.ticket, error);
                return false;
            }
        }
        let mut wanted = self.flush(current);
        let next = current.open.next_offset();
        if next > current.pushed {
            current.pushed = next;
            let leader_epoch = current.open.leader_epoch();
            wanted = lock(&self.cache).advance(current.ticket, next, leader_epoch);
        }
        wanted
    }

    fn flush(&mut self, current: &mut Current) -> bool {
        if current.chunks.is_empty() && current.raws.is_empty() {
            return true;
        }
        let mut cache = lock(&self.cache);
        let mut wanted = true;
        for chunk in current.chunks.drain(..) {
            current.pushed = chunk.next_offset;
            wanted &= cache.push_chunk(current.ticket, chunk);
        }
        for raw in current.raws.drain(..) {
            current.pushed = current.pushed.max(raw.next_offset());
            wanted &= cache.push_raw(current.ticket, raw);
        }
        wanted
    }

    /// A Fetch has ended without its answer being complete. What was decoded is kept; the rest is asked for again.
    pub(super) fn abandon(&mut self, mut call: FetchCall) {
        let Some(mut current) = call.current.take() else { return };
        self.close(&mut current);
        let (next, leader_epoch) = (current.open.next_offset(), current.open.leader_epoch());
        if let Some(place) = self.place(current.ticket) {
            place.break_off(next, leader_epoch);
            // It may stand further back than memory was asked for.
            self.dirty = true;
        }
    }
}
