//! Looking up offsets by time: to begin a partition, and for callers.

use std::collections::{BTreeMap, HashMap, HashSet};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use headrace_wire::messages::{ListOffsetsRequest, ListOffsetsResponse};
use headrace_wire::time::Now;

use super::tag::Tag;
use super::ticket::Ticket;
use super::types::{ConsumerOutcome, OffsetAt, StartAt, TopicPartition, some_of};
use crate::core::{Core, Lane, Target};
use crate::error::{BAD_ANSWERS_MAX, Error, Result};
use crate::missing::unknown_partition;
use crate::time::{Backoff, Retry};

/// The timestamp that asks for the end of the log.
const LATEST: i64 = -1;
/// The timestamp that asks for the first offset that is there.
const EARLIEST: i64 = -2;

/// Who wants to know.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// A partition, to begin reading.
    Start(Ticket),
    /// A caller: the operation, and which of its targets.
    Caller { op: u64, index: usize },
}

#[derive(Debug)]
struct Lookup {
    partition: TopicPartition,
    timestamp: i64,
    purpose: Purpose,
    in_flight: bool,
    retry: Retry,
    since: u64,
}

impl Lookup {
    /// What every log has is asked for: its beginning, or its end. A broker that cannot say where that is does not know
    /// it yet; taken for an answer, its -1 would begin the partition at its end.
    fn is_of_what_is_there(&self) -> bool {
        self.timestamp == EARLIEST || (self.timestamp == LATEST && matches!(self.purpose, Purpose::Start(_)))
    }
}

#[derive(Debug)]
struct CallerOp {
    found: Vec<(TopicPartition, Option<OffsetAt>)>,
    left: usize,
    deadline: u64,
    timeout_ms: u64,
    last_error: Option<Error>,
}

/// What a lookup for a partition's start came to.
#[derive(Debug)]
pub(super) enum Found {
    /// Begin here.
    Offset(Ticket, i64),
    /// It cannot be found out.
    Failed(Ticket, Error),
}

/// All lookups under way.
#[derive(Debug)]
pub(super) struct Lookups {
    pending: BTreeMap<u64, Lookup>,
    ops: BTreeMap<u64, CallerOp>,
    next: u64,
    isolation_level: i8,
    request_timeout_ms: u64,
    backoff: Backoff,
    /// What partitions wait for.
    pub(super) found: Vec<Found>,
    /// Callers' lookups that have ended.
    pub(super) done: Vec<(u64, Result<ConsumerOutcome>)>,
}

impl Lookups {
    pub(super) fn new(isolation_level: i8, request_timeout_ms: u64, backoff: Backoff) -> Lookups {
        Lookups {
            pending: BTreeMap::new(),
            ops: BTreeMap::new(),
            next: 0,
            isolation_level,
            request_timeout_ms,
            backoff,
            found: Vec::new(),
            done: Vec::new(),
        }
    }

    fn add(&mut self, now: Now, partition: TopicPartition, timestamp: i64, purpose: Purpose) {
        let lookup = Lookup {
            partition,
            timestamp,
            purpose,
            in_flight: false,
            retry: Retry::default(),
            since: now.mono_ms,
        };
        self.pending.insert(self.next, lookup);
        self.next += 1;
    }

    /// Finds where a partition begins. `start` must not be the committed offset.
    pub(super) fn start(&mut self, now: Now, partition: TopicPartition, start: StartAt, ticket: Ticket) {
        let timestamp = match start {
            StartAt::Earliest => EARLIEST,
            StartAt::Timestamp(timestamp) => timestamp,
            StartAt::Latest | StartAt::Committed | StartAt::Offset(_) => LATEST,
        };
        self.add(now, partition, timestamp, Purpose::Start(ticket));
    }

    /// A caller's lookup.
    pub(super) fn ask(&mut self, now: Now, op: u64, targets: Vec<(TopicPartition, i64)>, timeout_ms: u64) {
        let found: Vec<_> = targets.iter().map(|(partition, _)| (partition.clone(), None)).collect();
        if found.is_empty() {
            self.done.push((op, Ok(ConsumerOutcome::Offsets(found))));
            return;
        }
        let (left, deadline) = (found.len(), now.mono_ms.saturating_add(timeout_ms));
        self.ops.insert(op, CallerOp { found, left, deadline, timeout_ms, last_error: None });
        for (index, (partition, timestamp)) in targets.into_iter().enumerate() {
            self.add(now, partition, timestamp, Purpose::Caller { op, index });
        }
    }

    /// The topics that lookups need to know the leaders of.
    pub(super) fn topics(&self) -> impl Iterator<Item = &str> {
        self.pending.values().map(|lookup| &*lookup.partition.topic)
    }

    /// Of those, the ones that a caller has named.
    pub(super) fn named(&self) -> impl Iterator<Item = &str> {
        let is_callers = |lookup: &&Lookup| matches!(lookup.purpose, Purpose::Caller { .. });
        self.pending.values().filter(is_callers).map(|lookup| &*lookup.partition.topic)
    }

    /// Drops the lookups of partitions that are not read any more.
    pub(super) fn retain_starts(&mut self, mut current: impl FnMut(Ticket) -> bool) {
        self.pending.retain(|_, lookup| match lookup.purpose {
            Purpose::Start(ticket) => current(ticket),
            Purpose::Caller { .. } => true,
        });
    }

    /// Sends what can be sent, ends what took too long.
    pub(super) fn drive(&mut self, now: Now, core: &mut Core<Tag>) {
        self.expire(now, core);
        let mut by_node: BTreeMap<i32, Vec<u64>> = BTreeMap::new();
        let mut asked: HashSet<TopicPartition> =
            self.pending.values().filter(|l| l.in_flight).map(|l| l.partition.clone()).collect();
        let mut leaderless = false;
        for (&id, lookup) in &mut self.pending {
            if lookup.in_flight || !lookup.retry.is_due(now, core.timers()) {
                continue;
            }
            match core.cluster().leader(&lookup.partition.topic, lookup.partition.partition) {
                // A broker refuses a request that names a partition twice: the second one waits its turn.
                Some((node, _)) if asked.insert(lookup.partition.clone()) => {
                    by_node.entry(node).or_default().push(id);
                }
                Some(_) => {}
                None => leaderless = true,
            }
        }
        if leaderless && !core.refreshing(now) {
            core.refresh(now);
        }
        for (node, ids) in by_node {
            let request = self.request(core, &ids);
            core.call(
                now,
                Target::Node(node),
                Lane::Control,
                request,
                Tag::ListOffsets(ids),
                self.request_timeout_ms,
            );
        }
    }

    fn request(&mut self, core: &Core<Tag>, ids: &[u64]) -> ListOffsetsRequest {
        let mut topics: BTreeMap<&str, Vec<ListOffsetsPartition>> = BTreeMap::new();
        for id in ids {
            if let Some(lookup) = self.pending.get_mut(id) {
                lookup.in_flight = true;
            }
        }
        for lookup in ids.iter().filter_map(|id| self.pending.get(id)) {
            let TopicPartition { topic, partition } = &lookup.partition;
            topics.entry(topic).or_default().push(ListOffsetsPartition {
                partition_index: *partition,
                current_leader_epoch: core.cluster().leader(topic, *partition).map_or(-1, |(_, epoch)| epoch),
                timestamp: lookup.timestamp,
            });
        }
        let topics = topics.into_iter();
        ListOffsetsRequest {
            replica_id: -1,
            isolation_level: self.isolation_level,
            topics: topics
                .map(|(name, partitions)| ListOffsetsTopic { name: name.to_owned(), partitions })
                .collect(),
            timeout_ms: i32::try_from(self.request_timeout_ms).unwrap_or(i32::MAX),
        }
    }

    /// An answer, or its failure.
    pub(super) fn answered(
        &mut self,
        now: Now,
        core: &mut Core<Tag>,
        ids: &[u64],
        result: Result<ListOffsetsResponse>,
    ) {
        let mut answers = HashMap::new();
        let mut failed = None;
        match result {
            Ok(response) => {
                for topic in response.topics {
                    for partition in topic.partitions {
                        answers.insert((topic.name.clone(), partition.partition_index), partition);
                    }
                }
            }
            Err(error) => {
                core.refresh(now);
                failed = Some(error);
            }
        }
        for &id in ids {
            let Some(lookup) = self.pending.get_mut(&id) else { continue };
            lookup.in_flight = false;
            let TopicPartition { topic, partition } = &lookup.partition;
            let answer = answers.get(&(topic.to_string(), *partition));
            let code = answer.map(|answer| ErrorCode::new(answer.error_code));
            match (answer, code) {
                (Some(answer), Some(ErrorCode::NONE))
                    if answer.offset < 0 && lookup.is_of_what_is_there() =>
                {
                    let what = if lookup.timestamp == EARLIEST { "beginning" } else { "end" };
                    let detail = format!("ListOffsets has no {what} of the log (offset {})", answer.offset);
                    let code = ErrorCode::OFFSET_NOT_AVAILABLE;
                    let error = Error::partition(code, &**topic, *partition, detail);
                    self.retry(now, core, id, error);
                }
                (Some(answer), Some(ErrorCode::NONE)) => {
                    let at = OffsetAt {
                        offset: answer.offset,
                        timestamp: answer.timestamp,
                        leader_epoch: answer.leader_epoch,
                    };
                    self.found(now, id, Some(at).filter(|at| at.offset >= 0));
                }
                (_, code) => {
                    let error = code.map(|code| Error::partition(code, &**topic, *partition, "ListOffsets"));
                    let error = error.or(failed.clone()).unwrap_or_else(|| Error::BadAnswer {
                        peer: "a broker".into(),
                        why: format!("did not answer for {topic}-{partition}"),
                    });
                    self.retry(now, core, id, error);
                }
            }
        }
    }

    fn found(&mut self, now: Now, id: u64, at: Option<OffsetAt>) {
        let Some(lookup) = self.pending.remove(&id) else { return };
        match (lookup.purpose, at) {
            (Purpose::Start(ticket), Some(at)) => self.found.push(Found::Offset(ticket, at.offset)),
            // No record is as new as that: begin with the next one to come.
            (Purpose::Start(ticket), None) => self.start(now, lookup.partition, StartAt::Latest, ticket),
            (Purpose::Caller { op, index }, at) => {
                let Some(caller) = self.ops.get_mut(&op) else { return };
                if let Some((_, found)) = caller.found.get_mut(index) {
                    *found = at;
                }
                caller.left -= 1;
                if caller.left == 0
                    && let Some(caller) = self.ops.remove(&op)
                {
                    let result = Ok(ConsumerOutcome::Offsets(caller.found));
                    self.done.push((op, result));
                }
            }
        }
    }

    fn retry(&mut self, now: Now, core: &mut Core<Tag>, id: u64, error: Error) {
        let Some(lookup) = self.pending.get_mut(&id) else { return };
        let bad =
            matches!(error, Error::BadAnswer { .. }) || error.code() == Some(ErrorCode::OFFSET_NOT_AVAILABLE);
        if error.retriable() && !(bad && lookup.retry.failures() >= BAD_ANSWERS_MAX) {
            core.put_off(now, &mut lookup.retry, self.backoff);
            core.refresh(now);
            if let Purpose::Caller { op, .. } = lookup.purpose
                && let Some(op) = self.ops.get_mut(&op)
            {
                op.last_error = Some(error);
            }
            return;
        }
        self.give_up(id, error);
    }

    fn give_up(&mut self, id: u64, error: Error) {
        match self.pending.remove(&id).map(|lookup| lookup.purpose) {
            Some(Purpose::Start(ticket)) => self.found.push(Found::Failed(ticket, error)),
            Some(Purpose::Caller { op, .. }) => {
                let ended = self.forget(op).map(|_| (op, Err(error)));
                self.done.extend(ended);
            }
            None => {}
        }
    }

    /// Drops an operation with all its lookups.
    fn forget(&mut self, op: u64) -> Option<CallerOp> {
        self.pending.retain(|_, l| !matches!(l.purpose, Purpose::Caller { op: other, .. } if other == op));
        self.ops.remove(&op)
    }

    fn expire(&mut self, now: Now, core: &Core<Tag>) {
        let late: Vec<_> = self
            .ops
            .iter()
            .filter(|(_, op)| core.timers().is_due(now, op.deadline))
            .map(|(op, _)| *op)
            .collect();
        for op in late {
            if let Some(caller) = self.forget(op) {
                let detail = caller.last_error.map_or(String::new(), |error| error.to_string());
                let what =
                    format!("looking up the offsets of {}", some_of(caller.found.iter().map(|f| &f.0)));
                let error = Error::Timeout { what, ms: caller.timeout_ms, detail };
                self.done.push((op, Err(error)));
            }
        }
        let unknown: Vec<_> = self
            .pending
            .iter()
            .filter(|(_, lookup)| matches!(lookup.purpose, Purpose::Caller { .. }))
            .filter_map(|(&id, lookup)| {
                Some((id, unknown_partition(core, &lookup.partition, lookup.since, now)?))
            })
            .collect();
        for (id, error) in unknown {
            self.give_up(id, error);
        }
    }

    /// Ends every caller's lookup with the same error, and forgets the others.
    pub(super) fn fail_all(&mut self, error: &Error) {
        self.pending.clear();
        let ops = std::mem::take(&mut self.ops).into_keys();
        self.done.extend(ops.map(|op| (op, Err(error.clone()))));
    }
}
