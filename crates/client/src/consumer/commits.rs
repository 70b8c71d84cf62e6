//! The group's offsets: committing them, and asking for them.
//!
//! Commits take effect in the order in which they were asked for. They go out one behind the other, without
//! awaiting answers: the coordinator handles one connection's requests in order. One that is to be sent again
//! holds up those behind it that have not gone out, and awaits those that have: what they have
//! committed meanwhile is newer, and is taken out of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use headrace_wire::messages::offset_fetch_request::OffsetFetchRequestTopic;
use headrace_wire::messages::{
    OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse,
};
use headrace_wire::time::Now;

use super::cache::Ticket;
use super::engine::Tag;
use super::types::{CommitOffset, ConsumerOutcome, TopicPartition, some_of};
use crate::core::{Backoff, CallSpec, Core, Lane, Target};
use crate::error::{Error, Result};
use crate::group::Coordinator;

/// The last version that names topics; later ones take ids.
const COMMIT_VERSION_WITH_NAMES: i16 = 9;
/// The last version for one group a request.
const FETCH_VERSION_WITH_ONE_GROUP: i16 = 7;

/// As whom offsets are committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// -1 outside a group.
    pub(super) generation: i32,
    /// Empty outside a group.
    pub(super) member_id: String,
    pub(super) instance_id: Option<String>,
    /// The generation is a member epoch: it changes while partitions stay (KIP-848).
    pub(super) epochs: bool,
}

impl Identity {
    /// Who is in no group.
    pub(super) const NOBODY: Identity =
        Identity { generation: -1, member_id: String::new(), instance_id: None, epochs: false };

    /// Whether partitions that were this one's are still its own, but for those it has let go.
    fn goes_on_as(&self, other: &Identity) -> bool {
        let same_member = (&self.member_id, self.epochs) == (&other.member_id, other.epochs);
        same_member && (self.epochs || self.generation == other.generation)
    }
}

/// Who asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// A caller's operation.
    Op(u64),
    /// The engine, now and then.
    Auto,
    /// The engine, before it lets go of partitions.
    Farewell,
    /// Partitions that need a place to begin.
    Starts(Vec<(TopicPartition, Ticket)>),
}

#[derive(Debug)]
enum Work {
    Commit(Vec<CommitOffset>),
    Fetch(Vec<TopicPartition>),
}

impl Work {
    fn partitions(&self) -> Vec<&TopicPartition> {
        match self {
            Work::Commit(offsets) => offsets.iter().map(|commit| &commit.partition).collect(),
            Work::Fetch(partitions) => partitions.iter().collect(),
        }
    }
}

#[derive(Debug)]
struct Job {
    asker: Asker,
    work: Work,
    /// As whom a commit was first to be sent. In the name of a later generation it would overwrite what the partition's
    /// next owner has committed.
    identity: Option<Identity>,
    deadline: u64,
    timeout_ms: u64,
    in_flight: bool,
    /// One of its partitions has gone: it is not sent again.
    given_up: bool,
    retry_at: u64,
    failures: u32,
    last_error: Option<Error>,
}

/// A job that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) id: u64,
    pub(super) asker: Asker,
    pub(super) result: Result<ConsumerOutcome>,
    /// What the group has now.
    pub(super) committed: Vec<(TopicPartition, i64)>,
}

/// The jobs under way.
#[derive(Debug)]
pub(super) struct Commits {
    jobs: BTreeMap<u64, Job>,
    next: u64,
    retry: Backoff,
    request_timeout_ms: u64,
    pub(super) ended: Vec<Ended>,
}

impl Commits {
    pub(super) fn new(retry: Backoff, request_timeout_ms: u64) -> Commits {
        Commits { jobs: BTreeMap::new(), next: 0, retry, request_timeout_ms, ended: Vec::new() }
    }

    fn add(&mut self, now: Now, asker: Asker, work: Work, timeout_ms: u64) -> u64 {
        let id = self.next;
        self.next += 1;
        if work.partitions().is_empty() {
            let outcome = match work {
                Work::Commit(_) => ConsumerOutcome::Ok,
                Work::Fetch(_) => ConsumerOutcome::Committed(Vec::new()),
            };
            self.ended.push(Ended { id, asker, result: Ok(outcome), committed: Vec::new() });
            return id;
        }
        let job = Job {
            asker,
            work,
            identity: None,
            deadline: now.mono_ms.saturating_add(timeout_ms),
            timeout_ms,
            in_flight: false,
            given_up: false,
            retry_at: 0,
            failures: 0,
            last_error: None,
        };
        self.jobs.insert(id, job);
        id
    }

    /// Commits offsets. Gives the number that [`Ended`] will carry.
    pub(super) fn commit(
        &mut self,
        now: Now,
        asker: Asker,
        offsets: Vec<CommitOffset>,
        timeout_ms: u64,
    ) -> u64 {
        self.add(now, asker, Work::Commit(offsets), timeout_ms)
    }

    /// Asks for committed offsets.
    pub(super) fn fetch(&mut self, now: Now, asker: Asker, partitions: Vec<TopicPartition>, timeout_ms: u64) {
        self.add(now, asker, Work::Fetch(partitions), timeout_ms);
    }

    /// What a job is about; nothing when it has ended.
    fn partitions(&self, id: u64) -> Vec<&TopicPartition> {
        self.jobs.get(&id).map_or_else(Vec::new, |job| job.work.partitions())
    }

    fn fail(&mut self, id: u64, error: Error) {
        if let Some(job) = self.jobs.remove(&id) {
            self.ended.push(Ended { id, asker: job.asker, result: Err(error), committed: Vec::new() });
        }
    }

    /// Ends everything with the same error.
    pub(super) fn fail_all(&mut self, error: &Error) {
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            self.fail(id, error.clone());
        }
    }

    /// Sends what can be sent, ends what took too long or comes too late. `identity` is `None` while the group is being
    /// joined: commits wait then, since what they would say is about to change.
    pub(super) fn drive(
        &mut self,
        now: Now,
        core: &mut Core<Tag>,
        coordinator: &mut Coordinator,
        identity: Option<&Identity>,
    ) {
        let too_late = |(id, job): (&u64, &mut Job)| Some((*id, job.too_late(now, coordinator, identity)?));
        for (id, error) in self.jobs.iter_mut().filter_map(too_late).collect::<Vec<_>>() {
            self.fail(id, error);
        }
        if self.jobs.is_empty() {
            return;
        }
        let Some(node) = coordinator.need(now, core, || Tag::Coordinator) else { return };
        let last_sent =
            self.jobs.iter().rfind(|(_, job)| job.in_flight && job.is_commit()).map(|(id, _)| *id);
        let mut held_up = false;
        for (&id, job) in &mut self.jobs {
            if job.in_flight {
                continue;
            }
            let overtaken = job.is_commit() && last_sent > Some(id);
            if job.retry_at > now.mono_ms || overtaken || (held_up && job.keeps_order()) {
                held_up |= job.is_commit();
                continue;
            }
            job.retry_at = 0;
            let timeout_ms = self.request_timeout_ms.min(job.deadline - now.mono_ms);
            let spec = CallSpec::new(Target::Node(node), Lane::Coordinator, timeout_ms);
            match (&job.work, identity) {
                (Work::Commit(offsets), Some(identity)) => {
                    let request = commit_request(coordinator.group(), identity, offsets);
                    let spec = spec.version_max(COMMIT_VERSION_WITH_NAMES);
                    core.call_with(now, spec, request, Tag::OffsetCommit(id));
                }
                (Work::Commit(_), None) => continue,
                (Work::Fetch(partitions), _) => {
                    let request = fetch_request(coordinator.group(), partitions);
                    let spec = spec.version_max(FETCH_VERSION_WITH_ONE_GROUP);
                    core.call_with(now, spec, request, Tag::OffsetFetch(id));
                }
            }
            job.in_flight = true;
        }
    }

    /// A commit was answered, or has failed.
    pub(super) fn committed(
        &mut self,
        now: Now,
        core: &mut Core<Tag>,
        coordinator: &mut Coordinator,
        id: u64,
        result: Result<OffsetCommitResponse>,
    ) {
        let result = result.and_then(|response| {
            let mut codes = HashMap::new();
            for topic in response.topics {
                for p in topic.partitions {
                    codes.insert(TopicPartition::new(topic.name.as_str(), p.partition_index), p.error_code);
                }
            }
            for partition in self.partitions(id) {
                let code = codes.get(partition).ok_or_else(|| left_out(partition, "OffsetCommit"))?;
                check(*code, partition, "OffsetCommit")?;
            }
            Ok(ConsumerOutcome::Ok)
        });
        self.end(now, core, coordinator, id, result);
    }

    /// Committed offsets were told, or asking has failed.
    pub(super) fn fetched(
        &mut self,
        now: Now,
        core: &mut Core<Tag>,
        coordinator: &mut Coordinator,
        id: u64,
        result: Result<OffsetFetchResponse>,
    ) {
        let asked = self.partitions(id);
        let result = result.and_then(|response| read_fetch(coordinator.group(), &asked, response));
        self.end(now, core, coordinator, id, result);
    }

    fn end(
        &mut self,
        now: Now,
        core: &mut Core<Tag>,
        coordinator: &mut Coordinator,
        id: u64,
        result: Result<ConsumerOutcome>,
    ) {
        let Some(mut job) = self.jobs.remove(&id) else { return };
        match result {
            // What is about membership is not retriable: the same commit would be refused again.
            Err(error) if !job.given_up && (error.retriable() || is_stale(&error)) => {
                coordinator.judge(&error);
                job.failures = job.failures.saturating_add(1);
                job.retry_at = now.mono_ms + self.retry.wait_ms(job.failures, core.jitter()).max(1);
                job.in_flight = false;
                job.last_error = Some(error);
                self.jobs.insert(id, job);
            }
            result => {
                if let (Work::Commit(offsets), Ok(_)) = (&job.work, &result) {
                    self.supersede(id, offsets);
                }
                let committed = match job.work {
                    Work::Commit(offsets) if result.is_ok() => {
                        offsets.into_iter().map(|commit| (commit.partition, commit.offset)).collect()
                    }
                    _ => Vec::new(),
                };
                self.ended.push(Ended { id, asker: job.asker, result, committed });
            }
        }
    }

    /// This commit is newer than those before it that are to be sent again.
    fn supersede(&mut self, id: u64, offsets: &[CommitOffset]) {
        let mut done = Vec::new();
        for (&earlier, job) in self.jobs.range_mut(..id) {
            if let Work::Commit(older) = &mut job.work
                && !job.in_flight
            {
                older.retain(|commit| offsets.iter().all(|newer| newer.partition != commit.partition));
                if older.is_empty() {
                    done.push(earlier);
                }
            }
        }
        for id in done {
            if let Some(Job { asker, .. }) = self.jobs.remove(&id) {
                self.ended.push(Ended { id, asker, result: Ok(ConsumerOutcome::Ok), committed: Vec::new() });
            }
        }
    }

    /// These partitions are another member's from now on: what was not sent for them is not sent any more.
    pub(super) fn give_up(&mut self, gone: &BTreeSet<TopicPartition>) {
        let mut late = Vec::new();
        for (&id, job) in &mut self.jobs {
            let Work::Commit(offsets) = &job.work else { continue };
            let Some(commit) = offsets.iter().find(|commit| gone.contains(&commit.partition)) else {
                continue;
            };
            job.given_up = true;
            if !job.in_flight {
                late.push((id, of_before(&commit.partition)));
            }
        }
        for (id, error) in late {
            self.fail(id, error);
        }
    }

    /// Whether some commit has not ended.
    pub(super) fn is_committing(&self) -> bool {
        self.jobs.values().any(Job::is_commit)
    }

    /// When to look again.
    pub(super) fn timeouts(&self) -> impl Iterator<Item = u64> {
        self.jobs.values().flat_map(|job| [job.retry_at, job.deadline])
    }
}

impl Job {
    fn is_commit(&self) -> bool {
        matches!(self.work, Work::Commit(_))
    }

    /// A farewell goes out at once: it has all that those before it have, and who leaves may have no time left.
    fn keeps_order(&self) -> bool {
        self.is_commit() && self.asker != Asker::Farewell
    }

    /// Why there is no use in sending it, now or again.
    fn too_late(
        &mut self,
        now: Now,
        coordinator: &Coordinator,
        identity: Option<&Identity>,
    ) -> Option<Error> {
        if self.deadline <= now.mono_ms {
            let what = match &self.work {
                Work::Commit(_) => "committing the offsets of",
                Work::Fetch(_) => "asking for the committed offsets of",
            };
            let what = format!("{what} {}", some_of(self.work.partitions()));
            let last_error = self.last_error.as_ref().or(coordinator.last_error());
            let detail = last_error.map_or(String::new(), ToString::to_string);
            return Some(Error::Timeout { what, ms: self.timeout_ms, detail });
        }
        let (Work::Commit(offsets), false, Some(identity)) = (&self.work, self.in_flight, identity) else {
            return None;
        };
        if self.identity.get_or_insert_with(|| identity.clone()).goes_on_as(identity) {
            return None;
        }
        Some(of_before(&offsets.first()?.partition))
    }
}

fn of_before(TopicPartition { topic, partition }: &TopicPartition) -> Error {
    let detail = "the commit is of before the rebalance";
    Error::partition(ErrorCode::ILLEGAL_GENERATION, &**topic, *partition, detail)
}

/// The member's epoch has moved on; the next heartbeat's answer has the new one.
fn is_stale(error: &Error) -> bool {
    error.code() == Some(ErrorCode::STALE_MEMBER_EPOCH)
}

fn commit_request(group: &str, identity: &Identity, offsets: &[CommitOffset]) -> OffsetCommitRequest {
    let mut topics: BTreeMap<&str, Vec<OffsetCommitRequestPartition>> = BTreeMap::new();
    for commit in offsets {
        topics.entry(&commit.partition.topic).or_default().push(OffsetCommitRequestPartition {
            partition_index: commit.partition.partition,
            committed_offset: commit.offset,
            committed_leader_epoch: commit.leader_epoch,
            committed_metadata: Some(commit.metadata.clone()),
        });
    }
    let topic = |(name, partitions): (&str, Vec<_>)| OffsetCommitRequestTopic {
        name: name.to_owned(),
        partitions,
        ..OffsetCommitRequestTopic::default()
    };
    OffsetCommitRequest {
        group_id: group.to_owned(),
        generation_id_or_member_epoch: identity.generation,
        member_id: identity.member_id.clone(),
        group_instance_id: identity.instance_id.clone(),
        topics: topics.into_iter().map(topic).collect(),
        ..OffsetCommitRequest::default()
    }
}

fn fetch_request(group: &str, partitions: &[TopicPartition]) -> OffsetFetchRequest {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for partition in partitions {
        topics.entry(&partition.topic).or_default().push(partition.partition);
    }
    let topic = |(name, partition_indexes): (&str, Vec<_>)| OffsetFetchRequestTopic {
        name: name.to_owned(),
        partition_indexes,
    };
    OffsetFetchRequest {
        group_id: group.to_owned(),
        topics: Some(topics.into_iter().map(topic).collect()),
        // Whatever the isolation level: a transaction that is still being decided may commit offsets of this group, and
        // who begins before them does again what it has done (KIP-447).
        require_stable: true,
        ..OffsetFetchRequest::default()
    }
}

fn read_fetch(
    group: &str,
    asked: &[&TopicPartition],
    response: OffsetFetchResponse,
) -> Result<ConsumerOutcome> {
    let refused = |code| Error::broker(code, format!("OffsetFetch of group '{group}'"));
    ErrorCode::new(response.error_code).check().map_err(refused)?;
    let mut found = HashMap::new();
    for topic in response.topics {
        for p in topic.partitions {
            found.insert(TopicPartition::new(topic.name.as_str(), p.partition_index), p);
        }
    }
    let one = |&partition: &&TopicPartition| {
        let p = found.get(partition).ok_or_else(|| left_out(partition, "OffsetFetch"))?;
        // A group cannot have an offset for what the coordinator does not know.
        if ErrorCode::new(p.error_code) != ErrorCode::UNKNOWN_TOPIC_OR_PARTITION {
            check(p.error_code, partition, "OffsetFetch")?;
        }
        let commit = (p.committed_offset >= 0).then(|| CommitOffset {
            partition: partition.clone(),
            offset: p.committed_offset,
            leader_epoch: p.committed_leader_epoch,
            metadata: p.metadata.clone().unwrap_or_default(),
        });
        Ok((partition.clone(), commit))
    };
    asked.iter().map(one).collect::<Result<_>>().map(ConsumerOutcome::Committed)
}

fn check(code: i16, TopicPartition { topic, partition }: &TopicPartition, what: &str) -> Result<()> {
    ErrorCode::new(code).check().map_err(|code| Error::partition(code, &**topic, *partition, what))
}

/// A partition without an answer must not pass for one that went well, or that has no commit.
fn left_out(partition: &TopicPartition, what: &str) -> Error {
    let why = format!("left {partition} out of its {what} response");
    Error::Protocol { peer: "the group coordinator".into(), why }
}
