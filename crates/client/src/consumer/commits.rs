//! Committing the group's offsets.
//!
//! Commits take effect in the order in which they were asked for. They go out one behind the other, without
//! awaiting answers: the coordinator handles one connection's requests in order. One that is to be sent again
//! holds up those behind it that have not gone out, and awaits those that have: what they have
//! committed meanwhile is newer, and is taken out of it.
//!
//! A commit names topics by their ids where the coordinator takes that, as they were when it was asked for: offsets of a
//! topic that was deleted must not count for another of the same name.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use headrace_wire::messages::{OffsetCommitRequest, OffsetCommitResponse};
use headrace_wire::time::Now;

use super::attempt::{Attempt, RetryPolicy, check, left_out};
use super::recreated::{Incarnations, TopicIds};
use super::tag::Tag;
use super::types::{CommitOffset, TopicPartition, some_of};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::group::Coordinator;
use crate::time::TimerTable;

/// The last version that names topics; later ones take ids.
const VERSION_WITH_NAMES: i16 = 9;

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
}

#[derive(Debug)]
struct Job {
    asker: Asker,
    offsets: Vec<CommitOffset>,
    ids: TopicIds,
    /// As whom it was first to be sent. In the name of a later generation it would overwrite what the partition's next
    /// owner has committed.
    identity: Option<Identity>,
    /// One of its partitions has gone: it is not sent again.
    given_up: bool,
    attempt: Attempt,
}

/// A commit that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) id: u64,
    pub(super) asker: Asker,
    pub(super) result: Result<()>,
    /// What the group has now.
    pub(super) committed: Vec<(TopicPartition, (i64, i32))>,
}

/// The commits under way.
#[derive(Debug)]
pub(super) struct Commits {
    jobs: BTreeMap<u64, Job>,
    next: u64,
    policy: RetryPolicy,
    pub(super) ended: Vec<Ended>,
}

impl Commits {
    pub(super) fn new(policy: RetryPolicy) -> Commits {
        Commits { jobs: BTreeMap::new(), next: 0, policy, ended: Vec::new() }
    }

    /// Commits offsets of topics as they are read now. Gives the number that [`Ended`] will carry.
    pub(super) fn commit(
        &mut self,
        now: Now,
        asker: Asker,
        offsets: Vec<CommitOffset>,
        incarnations: &Incarnations,
        timeout_ms: u64,
    ) -> u64 {
        let id = self.next;
        self.next += 1;
        if offsets.is_empty() {
            self.ended.push(Ended { id, asker, result: Ok(()), committed: Vec::new() });
            return id;
        }
        let ids = incarnations.ids(offsets.iter().map(|commit| &commit.partition));
        let attempt = Attempt::new(now, timeout_ms);
        self.jobs.insert(id, Job { asker, offsets, ids, identity: None, given_up: false, attempt });
        id
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
        let timers = core.timers();
        let too_late =
            |(id, job): (&u64, &mut Job)| Some((*id, job.too_late(now, timers, coordinator, identity)?));
        for (id, error) in self.jobs.iter_mut().filter_map(too_late).collect::<Vec<_>>() {
            self.fail(id, error);
        }
        if self.jobs.is_empty() {
            return;
        }
        let Some(node) = coordinator.need(now, core, || Tag::Coordinator) else { return };
        let last_sent = self.jobs.iter().rfind(|(_, job)| job.attempt.in_flight).map(|(id, _)| *id);
        let mut held_up = false;
        for (&id, job) in &mut self.jobs {
            if job.attempt.in_flight {
                continue;
            }
            let overtaken = last_sent > Some(id);
            if job.attempt.waits(now, core.timers()) || overtaken || (held_up && job.keeps_order()) {
                held_up = true;
                continue;
            }
            let Some(identity) = identity else { continue };
            let named = job.ids.has_all(job.offsets.iter().map(|commit| &commit.partition));
            let spec = job.attempt.send(now, self.policy, node);
            let spec = spec.version_max(if named { i16::MAX } else { VERSION_WITH_NAMES });
            let request = request(coordinator.group(), identity, job);
            core.call_with(now, spec, request, Tag::OffsetCommit(id));
        }
    }

    /// A commit was answered, or has failed.
    pub(super) fn answered(
        &mut self,
        now: Now,
        core: &mut Core<Tag>,
        coordinator: &mut Coordinator,
        id: u64,
        result: Result<OffsetCommitResponse>,
    ) {
        let Some(mut job) = self.jobs.remove(&id) else { return };
        match result.and_then(|response| job.read(response)) {
            // What is about membership is not retriable: the same commit would be refused again.
            Err(error)
                if !job.given_up
                    && !job.attempt.gives_up(&error)
                    && (error.retriable() || is_stale(&error)) =>
            {
                coordinator.judge(&error);
                job.attempt.again(now, core, self.policy, error);
                self.jobs.insert(id, job);
            }
            Err(error) => {
                self.ended.push(Ended { id, asker: job.asker, result: Err(error), committed: Vec::new() });
            }
            Ok(()) => {
                self.supersede(id, &job.offsets);
                let offsets = job.offsets.into_iter();
                let committed =
                    offsets.map(|commit| (commit.partition, (commit.offset, commit.leader_epoch))).collect();
                self.ended.push(Ended { id, asker: job.asker, result: Ok(()), committed });
            }
        }
    }

    /// This commit is newer than those before it that are to be sent again.
    fn supersede(&mut self, id: u64, offsets: &[CommitOffset]) {
        let mut done = Vec::new();
        for (&earlier, job) in self.jobs.range_mut(..id).filter(|(_, job)| !job.attempt.in_flight) {
            job.offsets.retain(|commit| offsets.iter().all(|newer| newer.partition != commit.partition));
            if job.offsets.is_empty() {
                done.push(earlier);
            }
        }
        for id in done {
            if let Some(Job { asker, .. }) = self.jobs.remove(&id) {
                self.ended.push(Ended { id, asker, result: Ok(()), committed: Vec::new() });
            }
        }
    }

    /// These partitions are not this consumer's any more, for which `why` has the error: what was not sent for them is
    /// not sent any more.
    pub(super) fn give_up(
        &mut self,
        gone: &BTreeSet<TopicPartition>,
        why: impl Fn(&TopicPartition) -> Error,
    ) {
        let mut late = Vec::new();
        for (&id, job) in &mut self.jobs {
            let Some(commit) = job.offsets.iter().find(|commit| gone.contains(&commit.partition)) else {
                continue;
            };
            job.given_up = true;
            if !job.attempt.in_flight {
                late.push((id, why(&commit.partition)));
            }
        }
        for (id, error) in late {
            self.fail(id, error);
        }
    }

    /// Whether some commit has not ended.
    pub(super) fn is_committing(&self) -> bool {
        !self.jobs.is_empty()
    }
}

impl Job {
    /// A farewell goes out at once: it has all that those before it have, and who leaves may have no time left.
    fn keeps_order(&self) -> bool {
        self.asker != Asker::Farewell
    }

    /// Why there is no use in sending it, now or again.
    fn too_late(
        &mut self,
        now: Now,
        timers: &TimerTable,
        coordinator: &Coordinator,
        identity: Option<&Identity>,
    ) -> Option<Error> {
        let partitions = || self.offsets.iter().map(|commit| &commit.partition);
        let what = || format!("committing the offsets of {}", some_of(partitions()));
        if let Some(error) = self.attempt.late(now, timers, coordinator, what) {
            return Some(error);
        }
        let identity = identity.filter(|_| !self.attempt.in_flight)?;
        if self.identity.get_or_insert_with(|| identity.clone()).goes_on_as(identity) {
            return None;
        }
        Some(of_before(&self.offsets.first()?.partition))
    }

    /// What the coordinator says to each partition.
    fn read(&self, response: OffsetCommitResponse) -> Result<()> {
        let mut codes = HashMap::new();
        for topic in response.topics {
            let name = self.ids.name(topic.topic_id).unwrap_or(&topic.name);
            for p in topic.partitions {
                codes.insert(TopicPartition::new(name.as_str(), p.partition_index), p.error_code);
            }
        }
        for CommitOffset { partition, .. } in &self.offsets {
            let code = codes.get(partition).ok_or_else(|| left_out(partition, "OffsetCommit"))?;
            check(*code, partition, "OffsetCommit")?;
        }
        Ok(())
    }
}

/// The error for a commit whose partition has another owner.
pub(super) fn of_before(TopicPartition { topic, partition }: &TopicPartition) -> Error {
    let detail = "the commit is of before the rebalance";
    Error::partition(ErrorCode::ILLEGAL_GENERATION, &**topic, *partition, detail)
}

/// The member's epoch has moved on; the next heartbeat's answer has the new one.
fn is_stale(error: &Error) -> bool {
    error.code() == Some(ErrorCode::STALE_MEMBER_EPOCH)
}

fn request(group: &str, identity: &Identity, job: &Job) -> OffsetCommitRequest {
    let mut topics: BTreeMap<&str, Vec<OffsetCommitRequestPartition>> = BTreeMap::new();
    for commit in &job.offsets {
        topics.entry(&commit.partition.topic).or_default().push(OffsetCommitRequestPartition {
            partition_index: commit.partition.partition,
            committed_offset: commit.offset,
            committed_leader_epoch: commit.leader_epoch,
            committed_metadata: Some(commit.metadata.clone()),
        });
    }
    let topic = |(name, partitions): (&str, Vec<_>)| OffsetCommitRequestTopic {
        name: name.to_owned(),
        topic_id: job.ids.id(name).unwrap_or_default(),
        partitions,
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
