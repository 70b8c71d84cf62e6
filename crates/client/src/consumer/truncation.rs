//! Finding out that the log was cut below what was read (KIP-320), and what follows from it.
//!
//! Every Fetch names the leader epoch of the record before its offset, so a leader whose log differs there says where
//! the two part. A partition that holds rows and is not fetched for now (paused, without room) would not hear of it, and
//! hand out rows that are gone: its new leader is asked with `OffsetForLeaderEpoch`.

use std::collections::{BTreeMap, HashMap};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use headrace_wire::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};
use headrace_wire::time::Now;

use super::cache::{Cut, lock};
use super::fetch_stream::DivergingEpoch;
use super::fetcher::Fetcher;
use super::part::Part;
use super::tag::{EpochQuestion, Tag};
use super::ticket::Ticket;
use super::types::TopicPartition;
use crate::core::{Core, Lane, Target};
use crate::error::{Error, Result};

/// The replica id of a consumer.
const CONSUMER: i32 = -1;

impl Fetcher {
    /// Asks new leaders about partitions that hold rows of before.
    pub(super) fn check_positions(&mut self, now: Now, core: &mut Core<Tag>) {
        let mut by_node: BTreeMap<i32, Vec<EpochQuestion>> = BTreeMap::new();
        let mut cache = lock(&self.cache);
        for part in self.parts.values_mut() {
            let TopicPartition { topic, partition } = &part.partition;
            let Some((node, leader_epoch)) = core.cluster().leader(topic, *partition) else { continue };
            let (ticket, partition, due) = (part.ticket, part.partition.clone(), !part.retry.is_waiting(now));
            let Some(place) = part.place_mut() else { continue };
            let known = place.checked_epoch >= 0 && place.leader_epoch >= 0;
            let is_new = known && leader_epoch > place.checked_epoch;
            if due && is_new && !place.checking && cache.holds(ticket) {
                place.checking = true;
                let (offset, last_epoch) = (place.offset, place.leader_epoch);
                let asked = EpochQuestion { ticket, partition, offset, last_epoch, leader_epoch };
                by_node.entry(node).or_default().push(asked);
            }
        }
        drop(cache);
        for (node, mut asked) in by_node {
            // The same seed is to do the same.
            asked.sort_by(|a, b| a.partition.cmp(&b.partition));
            let timeout_ms = self.settings.request_timeout_ms;
            let request = request(&asked);
            core.call(now, Target::Node(node), Lane::Control, request, Tag::EpochEnds(asked), timeout_ms);
        }
    }

    /// An answer, or its failure. What may pass is asked again, and so is who was left out of an answer: a cut that nobody
    /// notices hands out rows that are gone. For what may not pass the next Fetch has the same error.
    pub(super) fn checked(
        &mut self,
        now: Now,
        core: &mut Core<Tag>,
        asked: Vec<EpochQuestion>,
        result: Result<OffsetForLeaderEpochResponse>,
    ) {
        self.dirty = true;
        let again = result.as_ref().map_or_else(Error::retriable, |_| true);
        let mut ends = HashMap::new();
        for topic in result.map(|response| response.topics).unwrap_or_default() {
            for end in topic.partitions {
                ends.insert(TopicPartition::new(topic.topic.as_str(), end.partition), end);
            }
        }
        for EpochQuestion { ticket, partition, offset, last_epoch, leader_epoch } in asked {
            let Some(place) = self.place(ticket) else { continue };
            place.checking = false;
            let end = ends.get(&partition);
            let code = end.map(|end| ErrorCode::new(end.error_code));
            match (end, code) {
                (Some(end), Some(ErrorCode::NONE)) => {
                    place.check(leader_epoch);
                    let (epoch, end_offset) = (end.leader_epoch, end.end_offset);
                    if epoch < last_epoch || end_offset < offset {
                        self.truncated(now, core, ticket, DivergingEpoch { epoch, end_offset });
                    }
                }
                (_, code) if code.map_or(again, ErrorCode::retriable) => {
                    self.put_off(now, core, ticket);
                    core.refresh(now);
                }
                _ => place.check(leader_epoch),
            }
        }
    }

    /// The log of the node that was asked parts from what was read. Only the leader's word counts: a follower that came
    /// back without the end of its log has lost what the leader still has, and may have handed out.
    pub(super) fn diverging(
        &mut self,
        now: Now,
        core: &mut Core<Tag>,
        ticket: Ticket,
        node: i32,
        end: DivergingEpoch,
    ) {
        let Some(part) = self.part(ticket) else { return };
        let TopicPartition { topic, partition } = &part.partition;
        if core.cluster().leader(topic, *partition).is_some_and(|(leader, _)| leader != node) {
            part.replica.take_if(|(replica, _)| *replica == node);
            return;
        }
        self.truncated(now, core, ticket, end);
    }

    /// The leader's log parts from what was read at `end`: what is held beyond is dropped. Rows that were handed out
    /// cannot be taken back: reading goes on at the end of what both share, or as `auto.offset.reset` says when that is
    /// not known; where it is none, the caller decides.
    pub(super) fn truncated(&mut self, now: Now, core: &mut Core<Tag>, ticket: Ticket, end: DivergingEpoch) {
        let Some(part) = self.part(ticket) else { return };
        let before = reached(part);
        let partition = part.partition.clone();
        let DivergingEpoch { epoch, end_offset } = end;
        let known = epoch >= 0 && end_offset >= 0;
        let mut cache = lock(&self.cache);
        let position = match cache.truncate(ticket, if known { epoch } else { -1 }, end_offset) {
            Some(Cut::HandedOut(position)) => position,
            cut => {
                drop(cache);
                self.after_cut(now, core, ticket, before, cut.is_some());
                return;
            }
        };
        match self.settings.reset.start(now) {
            None => {
                let ticket = cache.move_back(ticket, position, -1);
                drop(cache);
                self.sync();
                if let Some(ticket) = ticket {
                    let end = known.then_some(end_offset);
                    let TopicPartition { topic, partition } = partition;
                    self.fail(
                        ticket,
                        Error::Truncated { topic: topic.to_string(), partition, offset: position, end },
                    );
                }
            }
            Some(start) => {
                if known {
                    cache.move_back(ticket, position.min(end_offset), epoch);
                } else {
                    cache.restart(ticket, start);
                }
                drop(cache);
                let what =
                    "a log was cut when its leader changed, so some rows that were read are gone from it";
                let detail =
                    format!("what was read before offset {position} is gone from offset {end_offset} on");
                let code = ErrorCode::OFFSET_OUT_OF_RANGE;
                self.troubles
                    .push((what, Error::partition(code, &*partition.topic, partition.partition, detail)));
                self.sync();
            }
        }
    }

    /// Goes on fetching after what is held was cut. An answer that changes nothing must not be asked for without end.
    fn after_cut(
        &mut self,
        now: Now,
        core: &mut Core<Tag>,
        ticket: Ticket,
        before: Option<(i64, i32)>,
        was_cut: bool,
    ) {
        if was_cut {
            self.sync();
        }
        let part = self.parts.get(&ticket.part);
        let again = part.filter(|part| reached(part) == before).map(|part| part.ticket);
        if let Some(ticket) = again {
            self.put_off(now, core, ticket);
        }
    }
}

/// What is fetched next, and the leader epoch before it.
fn reached(part: &Part) -> Option<(i64, i32)> {
    part.place().map(|place| (place.offset, place.leader_epoch))
}

fn request(asked: &[EpochQuestion]) -> OffsetForLeaderEpochRequest {
    let mut topics: BTreeMap<&str, Vec<OffsetForLeaderPartition>> = BTreeMap::new();
    for one in asked {
        topics.entry(&one.partition.topic).or_default().push(OffsetForLeaderPartition {
            partition: one.partition.partition,
            current_leader_epoch: one.leader_epoch,
            leader_epoch: one.last_epoch,
        });
    }
    let topic =
        |(topic, partitions): (&str, Vec<_>)| OffsetForLeaderTopic { topic: topic.to_owned(), partitions };
    OffsetForLeaderEpochRequest { replica_id: CONSUMER, topics: topics.into_iter().map(topic).collect() }
}
