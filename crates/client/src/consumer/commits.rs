//! The group's offsets: committing them, and asking for them.

use std::collections::BTreeMap;

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
use super::types::{CommitOffset, ConsumerOutcome, TopicPartition};
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

#[derive(Debug)]
struct Job {
    asker: Asker,
    work: Work,
    deadline: u64,
    timeout_ms: u64,
    in_flight: bool,
    retry_at: u64,
    failures: u32,
    last_error: Option<Error>,
}

/// A job that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) asker: Asker,
    pub(super) result: Result<ConsumerOutcome>,
}

/// The jobs under way.
#[derive(Debug)]
pub(super) struct Commits {
    jobs: BTreeMap<u64, Job>,
    next: u64,
    retry: Backoff,
    request_timeout_ms: u64,
    require_stable: bool,
    pub(super) ended: Vec<Ended>,
}

impl Commits {
    pub(super) fn new(retry: Backoff, request_timeout_ms: u64, require_stable: bool) -> Commits {
        Commits {
            jobs: BTreeMap::new(),
            next: 0,
            retry,
            request_timeout_ms,
            require_stable,
            ended: Vec::new(),
        }
    }

    fn add(&mut self, now: Now, asker: Asker, work: Work, timeout_ms: u64) {
        let job = Job {
            asker,
            work,
            deadline: now.mono_ms.saturating_add(timeout_ms),
            timeout_ms,
            in_flight: false,
            retry_at: 0,
            failures: 0,
            last_error: None,
        };
        self.jobs.insert(self.next, job);
        self.next += 1;
    }

    pub(super) fn commit(&mut self, now: Now, asker: Asker, offsets: Vec<CommitOffset>, timeout_ms: u64) {
        if offsets.is_empty() {
            self.ended.push(Ended { asker, result: Ok(ConsumerOutcome::Ok) });
        } else {
            self.add(now, asker, Work::Commit(offsets), timeout_ms);
        }
    }

    pub(super) fn fetch(&mut self, now: Now, asker: Asker, partitions: Vec<TopicPartition>, timeout_ms: u64) {
        if partitions.is_empty() {
            self.ended.push(Ended { asker, result: Ok(ConsumerOutcome::Committed(Vec::new())) });
        } else {
            self.add(now, asker, Work::Fetch(partitions), timeout_ms);
        }
    }

    /// Ends everything with the same error.
    pub(super) fn fail_all(&mut self, error: &Error) {
        for (_, job) in std::mem::take(&mut self.jobs) {
            self.ended.push(Ended { asker: job.asker, result: Err(error.clone()) });
        }
    }

    /// Sends what can be sent, ends what took too long. `identity` is `None` while the group is being joined: commits
    /// wait then, since what they would say is about to change.
    pub(super) fn drive(
        &mut self,
        now: Now,
        core: &mut Core<Tag>,
        coordinator: &mut Coordinator,
        identity: Option<&Identity>,
    ) {
        let late: Vec<_> =
            self.jobs.iter().filter(|(_, job)| job.deadline <= now.mono_ms).map(|(id, _)| *id).collect();
        for job in late.into_iter().filter_map(|id| self.jobs.remove(&id)) {
            let what = match job.work {
                Work::Commit(_) => "committing offsets",
                Work::Fetch(_) => "asking for committed offsets",
            };
            let last_error = job.last_error.as_ref().or(coordinator.last_error());
            let detail = last_error.map_or(String::new(), ToString::to_string);
            let error = Error::Timeout { what: what.into(), ms: job.timeout_ms, detail };
            self.ended.push(Ended { asker: job.asker, result: Err(error) });
        }
        if self.jobs.is_empty() {
            return;
        }
        let Some(node) = coordinator.need(now, core, || Tag::Coordinator) else { return };
        for (&id, job) in &mut self.jobs {
            if job.in_flight || job.retry_at > now.mono_ms {
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
                    let request = fetch_request(coordinator.group(), partitions, self.require_stable);
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
            for topic in response.topics {
                for partition in topic.partitions {
                    let code = ErrorCode::new(partition.error_code);
                    if code != ErrorCode::NONE {
                        return Err(Error::partition(
                            code,
                            topic.name,
                            partition.partition_index,
                            "OffsetCommit",
                        ));
                    }
                }
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
        let result = result.and_then(read_fetch);
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
            Err(error) if is_passing(&error) => {
                coordinator.judge(&error);
                job.failures = job.failures.saturating_add(1);
                job.retry_at = now.mono_ms + self.retry.wait_ms(job.failures, core.jitter()).max(1);
                job.in_flight = false;
                job.last_error = Some(error);
                self.jobs.insert(id, job);
            }
            result => self.ended.push(Ended { asker: job.asker, result }),
        }
    }

    /// When to look again.
    pub(super) fn timeouts(&self) -> impl Iterator<Item = u64> {
        self.jobs.values().flat_map(|job| [job.retry_at, job.deadline])
    }
}

/// Errors after which the same request may do.
fn is_passing(error: &Error) -> bool {
    match error.code() {
        // These are about membership: the same commit would be refused again.
        Some(
            ErrorCode::REBALANCE_IN_PROGRESS | ErrorCode::ILLEGAL_GENERATION | ErrorCode::UNKNOWN_MEMBER_ID,
        ) => false,
        _ => error.retriable(),
    }
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

fn fetch_request(group: &str, partitions: &[TopicPartition], require_stable: bool) -> OffsetFetchRequest {
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
        require_stable,
        ..OffsetFetchRequest::default()
    }
}

fn read_fetch(response: OffsetFetchResponse) -> Result<ConsumerOutcome> {
    let code = ErrorCode::new(response.error_code);
    if code != ErrorCode::NONE {
        return Err(Error::broker(code, "OffsetFetch"));
    }
    let mut committed = Vec::new();
    for topic in response.topics {
        for p in topic.partitions {
            let partition = TopicPartition::new(topic.name.as_str(), p.partition_index);
            let code = ErrorCode::new(p.error_code);
            let found = match code {
                ErrorCode::NONE if p.committed_offset >= 0 => Some(CommitOffset {
                    partition: partition.clone(),
                    offset: p.committed_offset,
                    leader_epoch: p.committed_leader_epoch,
                    metadata: p.metadata.unwrap_or_default(),
                }),
                // A group cannot have an offset for what the coordinator does not know.
                ErrorCode::NONE | ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => None,
                code => return Err(Error::partition(code, topic.name, p.partition_index, "OffsetFetch")),
            };
            committed.push((partition, found));
        }
    }
    Ok(ConsumerOutcome::Committed(committed))
}
