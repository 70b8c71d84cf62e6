//! Which brokers have the copies of a partition, and which of them leads: `AlterPartitionReassignments`,
//! `ListPartitionReassignments`, `ElectLeaders`.

use std::collections::{BTreeMap, BTreeSet};

use headrace_cluster::model::{NodeId, PartitionValue};
use headrace_cluster::{CommandId, Member};
use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::alter_partition_reassignments_request::ReassignablePartition;
use headrace_wire::messages::alter_partition_reassignments_response::{
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use headrace_wire::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use headrace_wire::messages::list_partition_reassignments_response::{
    OngoingPartitionReassignment, OngoingTopicReassignment,
};
use headrace_wire::messages::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, ElectLeadersRequest,
    ElectLeadersResponse, ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
};

use super::Refusal;
use crate::auth::{Operation, Resource};
use crate::context::Context;
use crate::context::call::{Call, Outcome};
use crate::context::task::{Task, Turn};
use crate::store::{Place, Topic};

/// Partitions that are asked for in one turn, and commands of one request that are under way.
const UNDER_WAY_MAX: usize = 32;
/// [`ElectLeadersRequest::election_type`]: the first replica, or one that may lack records.
const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

fn check_cluster<D: Disk>(context: &Context<D>, call: &Call, operation: Operation) -> Result<(), Refusal> {
    if context.allows(call, operation, Resource::Cluster) {
        return Ok(());
    }
    Err((ErrorCode::CLUSTER_AUTHORIZATION_FAILED, "not authorized for the cluster".to_owned()))
}

fn find<D: Disk>(context: &Context<D>, topic: &str, index: i32) -> Result<Place, Refusal> {
    let found = context.store.by_name(topic).filter(|found| found.has_partition(index));
    let none = || (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, format!("there is no partition {topic}-{index}"));
    found.map(|found| (found.id, index)).ok_or_else(none)
}

// ---- other replicas

/// A partition whose command is under way.
struct Asked {
    command: CommandId,
    /// Where its answer stands: topic and partition.
    slot: (usize, usize),
}

/// A request for other replicas under way.
pub(crate) struct Reassign {
    may_differ: bool,
    /// What is still to be asked for, the next one last.
    left: Vec<((usize, usize), ReassignablePartition)>,
    /// What was asked for before, so that it is not twice.
    seen: BTreeSet<(usize, i32)>,
    asked: Vec<Asked>,
    response: AlterPartitionReassignmentsResponse,
}

/// Has partitions get other replicas. It is answered once that is noted, and done while they are copied: see
/// [`list_partition_reassignments`].
///
/// Most work: [`UNDER_WAY_MAX`] partitions in a turn, and as many transactions at once.
pub(crate) fn alter_partition_reassignments<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: AlterPartitionReassignmentsRequest,
) -> Outcome<AlterPartitionReassignmentsResponse, Reassign> {
    let may_differ = request.allow_replication_factor_change;
    let mut response = AlterPartitionReassignmentsResponse {
        allow_replication_factor_change: may_differ,
        ..AlterPartitionReassignmentsResponse::default()
    };
    if let Err((error, why)) = check_cluster(context, call, Operation::Alter) {
        (response.error_code, response.error_message) = (error.code(), Some(why));
        return Outcome::Reply(response);
    }
    let mut left = Vec::new();
    for (at, topic) in request.topics.into_iter().enumerate() {
        let count = topic.partitions.len();
        response
            .responses
            .push(ReassignableTopicResponse { name: topic.name, partitions: Vec::with_capacity(count) });
        left.extend(
            topic.partitions.into_iter().enumerate().map(|(slot, partition)| ((at, slot), partition)),
        );
    }
    left.reverse();
    let reassign = Reassign { may_differ, left, seen: BTreeSet::new(), asked: Vec::new(), response };
    reassign.begin(&mut (), context, call)
}

impl Reassign {
    fn ask<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        slot: (usize, usize),
        partition: &ReassignablePartition,
    ) {
        let Some(topic) = self.response.responses.get_mut(slot.0) else { return };
        let index = partition.partition_index;
        let asked = if self.seen.insert((slot.0, index)) {
            ask_to_reassign(context, &topic.name, partition, self.may_differ)
        } else {
            Err((ErrorCode::INVALID_REQUEST, format!("{}-{index} is named twice", topic.name)))
        };
        let (error, error_message) = match asked {
            Ok(command) => {
                if let (Some(cluster), Some(command)) = (&mut context.cluster, command) {
                    cluster.await_command(command);
                    self.asked.push(Asked { command, slot });
                }
                (ErrorCode::NONE, None)
            }
            Err((error, why)) => (error, Some(why)),
        };
        let error_code = error.code();
        topic.partitions.push(ReassignablePartitionResponse {
            partition_index: index,
            error_code,
            error_message,
        });
    }

    /// Says of commands that have ended what has become of them.
    fn take_results<D: Disk>(&mut self, context: &mut Context<D>) {
        let Some(cluster) = &mut context.cluster else { return };
        let responses = &mut self.response.responses;
        self.asked.retain(|one| match cluster.take_result(one.command) {
            None => true,
            Some(Ok(())) => false,
            Some(Err(why)) => {
                let topic = responses.get_mut(one.slot.0);
                if let Some(answer) = topic.and_then(|topic| topic.partitions.get_mut(one.slot.1)) {
                    answer.error_code = ErrorCode::REQUEST_TIMED_OUT.code();
                    answer.error_message = Some(why);
                }
                false
            }
        });
    }
}

impl<D: Disk> Task<D> for Reassign {
    fn turn(&mut self, (): &mut (), context: &mut Context<D>, call: &Call) -> Turn {
        self.take_results(context);
        for _ in self.asked.len()..UNDER_WAY_MAX {
            let Some((slot, partition)) = self.left.pop() else { break };
            self.ask(context, slot, &partition);
        }
        if self.asked.len() >= UNDER_WAY_MAX || (self.left.is_empty() && !self.asked.is_empty()) {
            return Turn::Later(u64::MAX);
        }
        if !self.left.is_empty() {
            return Turn::More;
        }
        context.reply::<AlterPartitionReassignmentsRequest>(call, &self.response);
        Turn::Done
    }

    fn abandon(&mut self, (): &mut (), context: &mut Context<D>) {
        if let Some(cluster) = &mut context.cluster {
            self.asked.drain(..).for_each(|one| cluster.forget_command(one.command));
        }
    }
}

/// The command that does it; nothing where nothing is to be done.
fn ask_to_reassign<D: Disk>(
    context: &mut Context<D>,
    topic: &str,
    partition: &ReassignablePartition,
    may_differ: bool,
) -> Result<Option<CommandId>, Refusal> {
    let place = find(context, topic, partition.partition_index)?;
    let target = partition.replicas.as_deref();
    let name = format!("{topic}-{}", partition.partition_index);
    let Some(cluster) = &mut context.cluster else {
        let own = context.config.node_id;
        return match target {
            Some([only]) if *only == own => Ok(None),
            Some(_) => {
                let why = format!("{name}: broker {own} is the only one");
                Err((ErrorCode::INVALID_REPLICA_ASSIGNMENT, why))
            }
            None => Err(none_under_way(&name)),
        };
    };
    let known = cluster.partition(place);
    let is_reassigned = known.is_some_and(PartitionValue::is_reassigned);
    if target.is_none() && !is_reassigned {
        return Err(none_under_way(&name));
    }
    let before =
        known.map_or(0, |value| if is_reassigned { value.original.len() } else { value.replicas.len() });
    if let Some(target) = target.filter(|target| !may_differ && target.len() != before) {
        let why = format!("{name} has {before} replicas, and would have {}", target.len());
        return Err((ErrorCode::INVALID_REPLICATION_FACTOR, why));
    }
    if known.is_some_and(|value| !is_reassigned && Some(&*value.replicas) == target) {
        return Ok(None);
    }
    if cluster.member.acts(context.now.mono_ms).is_none() {
        return Err(not_a_member());
    }
    let asked = cluster.member.reassign(context.now.mono_ms, place, target);
    asked.map(Some).map_err(|why| (ErrorCode::INVALID_REPLICA_ASSIGNMENT, format!("{name}: {why}")))
}

/// Another broker can do it, or this one in a while.
fn not_a_member() -> Refusal {
    let why = "the broker is not a member of its cluster at the moment".to_owned();
    (ErrorCode::NOT_CONTROLLER, why)
}

fn none_under_way(name: &str) -> Refusal {
    (ErrorCode::NO_REASSIGNMENT_IN_PROGRESS, format!("{name} is not getting other replicas"))
}

/// Answers which partitions are getting other replicas.
///
/// Most work: a look at each partition of the cluster.
pub(crate) fn list_partition_reassignments<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: ListPartitionReassignmentsRequest,
) -> Outcome<ListPartitionReassignmentsResponse> {
    let mut response = ListPartitionReassignmentsResponse::default();
    if let Err((error, why)) = check_cluster(context, call, Operation::Describe) {
        (response.error_code, response.error_message) = (error.code(), Some(why));
        return Outcome::Reply(response);
    }
    let Some(cluster) = &context.cluster else { return Outcome::Reply(response) };
    let ongoing = |index: i32, value: &PartitionValue| OngoingPartitionReassignment {
        partition_index: index,
        replicas: value.replicas.clone(),
        adding_replicas: value.adding(),
        removing_replicas: value.removing(),
    };
    let mut found: BTreeMap<&str, Vec<OngoingPartitionReassignment>> = BTreeMap::new();
    match &request.topics {
        Some(topics) => {
            let asked: BTreeSet<(&str, i32)> = topics
                .iter()
                .flat_map(|topic| topic.partition_indexes.iter().map(|index| (topic.name.as_str(), *index)))
                .collect();
            for (name, index) in asked {
                let Some(known) = context.store.by_name(name) else { continue };
                let value = cluster.partition((known.id, index)).filter(|value| value.is_reassigned());
                let one = value.map(|value| ongoing(index, value));
                found.entry(&known.name).or_default().extend(one);
            }
        }
        None => {
            for ((id, index), known) in &cluster.member.view().partitions {
                if known.value.is_reassigned()
                    && let Some(topic) = context.store.by_id(*id)
                {
                    found.entry(&topic.name).or_default().push(ongoing(*index, &known.value));
                }
            }
        }
    }
    found.retain(|_, partitions| !partitions.is_empty());
    let topic =
        |(name, partitions): (&str, _)| OngoingTopicReassignment { name: name.to_owned(), partitions };
    response.topics = found.into_iter().map(topic).collect();
    Outcome::Reply(response)
}

// ---- other leaders

/// A partition whose leader is awaited.
struct Electing {
    place: Place,
    /// Where its answer stands: topic and partition.
    slot: (usize, usize),
    command: CommandId,
    wanted: Option<NodeId>,
    /// What is wanted stands in the metadata store, or has stood there.
    is_noted: bool,
}

/// A request for leaders under way.
pub(crate) struct Elect {
    is_unclean: bool,
    deadline: u64,
    /// What is still to be asked for, the next one last.
    left: Vec<(String, i32)>,
    electing: Vec<Electing>,
    /// Only what is not as it was asked for is answered: all partitions were meant.
    is_all: bool,
    response: ElectLeadersResponse,
}

/// Has first replicas lead that are in sync, or a partition without a leader be led by whoever is alive. It is answered once
/// they lead.
///
/// Most work: [`UNDER_WAY_MAX`] partitions in a turn, and as many transactions at once.
pub(crate) fn elect_leaders<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: ElectLeadersRequest,
) -> Outcome<ElectLeadersResponse, Elect> {
    let mut response = ElectLeadersResponse::default();
    if let Err((error, _)) = check_cluster(context, call, Operation::Alter) {
        response.error_code = error.code();
        return Outcome::Reply(response);
    }
    if ![PREFERRED, UNCLEAN].contains(&request.election_type) {
        response.error_code = ErrorCode::INVALID_REQUEST.code();
        return Outcome::Reply(response);
    }
    let is_all = request.topic_partitions.is_none();
    let mut left: Vec<(String, i32)> = match request.topic_partitions {
        Some(topics) => {
            let each = |topic: headrace_wire::messages::elect_leaders_request::TopicPartitions| {
                topic.partitions.into_iter().map(move |index| (topic.topic.clone(), index))
            };
            topics.into_iter().flat_map(each).collect()
        }
        None => context.store.topics().flat_map(all_of).collect(),
    };
    left.reverse();
    let timeout_ms = u64::try_from(request.timeout_ms).unwrap_or(0);
    let elect = Elect {
        is_unclean: request.election_type == UNCLEAN,
        deadline: context.now.mono_ms.saturating_add(timeout_ms),
        left,
        electing: Vec::new(),
        is_all,
        response,
    };
    elect.begin(&mut (), context, call)
}

fn all_of<D: Disk>(topic: &Topic<D>) -> impl Iterator<Item = (String, i32)> + use<'_, D> {
    (0..topic.partition_count()).map(|index| (topic.name.to_string(), index))
}

impl Elect {
    /// Asks for the leader of one partition.
    fn ask<D: Disk>(&mut self, context: &mut Context<D>, topic: String, index: i32) {
        let asked = self.try_ask(context, &topic, index);
        if self.is_all && matches!(&asked, Err((ErrorCode::ELECTION_NOT_NEEDED, _))) {
            return;
        }
        let results = &mut self.response.replica_election_results;
        if results.last().is_none_or(|last| last.topic != topic) {
            results.push(ReplicaElectionResult { topic, partition_result: Vec::new() });
        }
        let at = results.len() - 1;
        let Some(result) = results.last_mut() else { return };
        let slot = (at, result.partition_result.len());
        let mut answer = PartitionResult { partition_id: index, ..PartitionResult::default() };
        match asked {
            Ok((place, command, wanted)) => {
                self.electing.push(Electing { place, slot, command, wanted, is_noted: false });
            }
            Err((error, why)) => (answer.error_code, answer.error_message) = (error.code(), Some(why)),
        }
        result.partition_result.push(answer);
    }

    fn try_ask<D: Disk>(
        &self,
        context: &mut Context<D>,
        topic: &str,
        index: i32,
    ) -> Result<(Place, CommandId, Option<NodeId>), Refusal> {
        let place = find(context, topic, index)?;
        let not_needed =
            || (ErrorCode::ELECTION_NOT_NEEDED, format!("{topic}-{index} is led as it is to be"));
        let now_ms = context.now.mono_ms;
        let cluster = context.cluster.as_mut().ok_or_else(not_needed)?;
        if cluster.member.acts(now_ms).is_none() {
            return Err(not_a_member());
        }
        if now_ms >= self.deadline {
            return Err((ErrorCode::REQUEST_TIMED_OUT, "there was no time left for it".to_owned()));
        }
        let value = cluster.partition(place).ok_or_else(not_needed)?;
        let leader = value.leader.filter(|leader| cluster.member.view().is_alive(*leader));
        let first = value.replicas.first().copied();
        let asked = if self.is_unclean {
            if leader.is_some() {
                return Err(not_needed());
            }
            let asked = cluster.member.elect_unclean(now_ms, place).map(|command| (command, None));
            asked.map_err(|why| (ErrorCode::ELIGIBLE_LEADERS_NOT_AVAILABLE, why))
        } else {
            if leader.map(|leader| leader.0) == first {
                return Err(not_needed());
            }
            let first = first.unwrap_or(-1);
            let asked = want(&mut cluster.member, now_ms, place, first);
            asked.map(|command| (command, Some(first)))
        };
        let (command, wanted) = asked.map_err(|(error, why)| (error, format!("{topic}-{index}: {why}")))?;
        cluster.await_command(command);
        Ok((place, command, wanted))
    }

    /// Answers for those that are led as they were to be, or will not be.
    fn take_results<D: Disk>(&mut self, context: &mut Context<D>) {
        let is_late = context.now.mono_ms >= self.deadline;
        let Some(cluster) = &mut context.cluster else { return };
        let results = &mut self.response.replica_election_results;
        let mut fail = |(topic, partition): (usize, usize), error: ErrorCode, why: String| {
            let topic = results.get_mut(topic);
            if let Some(answer) = topic.and_then(|topic| topic.partition_result.get_mut(partition)) {
                (answer.error_code, answer.error_message) = (error.code(), Some(why));
            }
        };
        self.electing.retain_mut(|one| {
            let result = cluster.take_result(one.command);
            one.is_noted |= result == Some(Ok(()));
            let value = cluster.partition(one.place);
            let leader = value.and_then(|value| value.leader);
            let leads = leader.is_some_and(|leader| cluster.member.view().is_alive(leader));
            let is_done = leads && one.wanted.is_none_or(|wanted| leader.map(|one| one.0) == Some(wanted));
            if is_done {
                cluster.forget_command(one.command);
                return false;
            }
            if let Some(Err(why)) = result {
                fail(one.slot, ErrorCode::REQUEST_TIMED_OUT, why);
                return false;
            }
            // Its leader has taken it back.
            let is_refused =
                one.is_noted && one.wanted.is_some() && value.is_some_and(|value| value.wanted.is_none());
            if is_refused {
                let why = "the first replica is not in sync any more".to_owned();
                fail(one.slot, ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE, why);
                return false;
            }
            if is_late {
                cluster.forget_command(one.command);
                fail(one.slot, ErrorCode::REQUEST_TIMED_OUT, "it does not lead yet".to_owned());
            }
            !is_late
        });
    }
}

fn want(member: &mut Member, now_ms: u64, place: Place, first: NodeId) -> Result<CommandId, Refusal> {
    let asked = member.want_leader(now_ms, place, first);
    asked.map_err(|why| (ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE, why))
}

impl<D: Disk> Task<D> for Elect {
    fn turn(&mut self, (): &mut (), context: &mut Context<D>, call: &Call) -> Turn {
        self.take_results(context);
        for _ in self.electing.len()..UNDER_WAY_MAX {
            let Some((topic, index)) = self.left.pop() else { break };
            self.ask(context, topic, index);
        }
        if self.electing.len() >= UNDER_WAY_MAX || (self.left.is_empty() && !self.electing.is_empty()) {
            return Turn::Later(self.deadline);
        }
        if !self.left.is_empty() {
            return Turn::More;
        }
        context.reply::<ElectLeadersRequest>(call, &self.response);
        Turn::Done
    }

    fn abandon(&mut self, (): &mut (), context: &mut Context<D>) {
        if let Some(cluster) = &mut context.cluster {
            self.electing.drain(..).for_each(|one| cluster.forget_command(one.command));
        }
    }
}
