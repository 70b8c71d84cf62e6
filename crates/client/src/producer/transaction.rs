//! A producer's transactions: their states, and what is asked of the coordinators (docs/transactions.md).
//!
//! It sends through the engine's [`Core`] and leaves to the engine what is the engine's: it says which batches may go
//! out, which end unsent, and under which id and epoch the partitions go on.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use headrace_wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use headrace_wire::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, EndTxnRequest,
    FindCoordinatorRequest, InitProducerIdRequest, Request, TxnOffsetCommitRequest, TxnOffsetCommitResponse,
};
use headrace_wire::time::Now;

use super::batch::PartitionKey;
use super::sequence::Identity;
use crate::core::{CallSpec, Core, Lane, Reply, Target};
use crate::error::{Error, Result};
use crate::events::client_event;
use crate::group::Coordinator;
use crate::partition::{CommitOffset, GroupMetadata};
use crate::time::{Backoff, Retry};

/// The cluster's feature for transactions, and the level from which on a write itself adds its partition (KIP-890).
const FEATURE: &str = "transaction.version";
const FEATURE_WITH_IMPLICIT_ADD: i16 = 2;
/// The last versions that add nothing by themselves: from these on a broker expects transaction version 2.
const PRODUCE_WITHOUT_ADD: i16 = 11;
const OFFSETS_WITHOUT_ADD: i16 = 4;
const END_WITHOUT_EPOCH: i16 = 4;
/// How soon to ask again while the coordinator completes the transaction before. That takes it a few milliseconds.
const CONCURRENT_RETRY_MS: u64 = 20;

/// A request of a transaction.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Who coordinates the transactional id?
    FindTransactions,
    /// Who coordinates the group whose offsets are to be committed?
    FindGroup,
    Init,
    AddPartitions(BTreeMap<PartitionKey, Arc<str>>),
    AddOffsets(String),
    CommitOffsets,
    End,
}

#[derive(Debug, Clone)]
enum State {
    /// `init_transactions` was not called.
    New,
    /// A first id and epoch is asked for.
    Initializing,
    Ready,
    Open,
    /// Waits for batches on their way, then for the coordinator.
    Ending {
        commit: bool,
    },
    /// Aborted; a new epoch is asked for, since sequences may have been lost (version 1 only).
    Renewing,
    /// Something in the transaction failed: it can only be aborted.
    Failed(Error),
    /// Nothing goes any more.
    Dead(Error),
}

/// A caller that waits for a state.
#[derive(Debug)]
struct Waiter {
    op: u64,
    deadline: u64,
    timeout_ms: u64,
}

/// Offsets to commit in the transaction.
#[derive(Debug)]
struct Offsets {
    waiter: Waiter,
    commits: Vec<CommitOffset>,
    group: GroupMetadata,
}

/// The transactions of one producer.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts beside the state, each true or not in several of its values"
)]
pub(super) struct Transactions {
    id: String,
    timeout_ms: i32,
    request_timeout_ms: u64,
    backoff: Backoff,
    state: State,
    identity: Option<Identity>,
    /// Writes add their partitions themselves. Settled when a transaction begins.
    implicit: bool,
    coordinator: Coordinator,
    group: Option<Coordinator>,
    added: HashSet<PartitionKey>,
    /// Partitions that batches wait for.
    wanted: BTreeMap<PartitionKey, Arc<str>>,
    groups_added: HashSet<String>,
    offsets: Option<Offsets>,
    /// The coordinator has something to end.
    started: bool,
    /// A request without an answer, that may have started the transaction.
    uncertain: Option<Step>,
    /// One request at a time is on its way.
    in_flight: bool,
    retry: Retry,
    last_error: Option<Error>,
    waiters: Vec<Waiter>,
    /// How the last transaction ended: for a caller that did not wait for it and asks again.
    last_end: Option<bool>,
    // What the engine takes.
    done: VecDeque<(u64, Result<()>)>,
    fresh: Option<Identity>,
    unsent_end: Option<Error>,
    died: bool,
    gate_moved: bool,
}

impl Transactions {
    pub(super) fn new(id: String, timeout_ms: u32, backoff: Backoff, request_timeout_ms: u64) -> Self {
        Self {
            coordinator: Coordinator::of_transactions(id.clone(), backoff, request_timeout_ms),
            id,
            timeout_ms: i32::try_from(timeout_ms).unwrap_or(i32::MAX),
            request_timeout_ms,
            backoff,
            state: State::New,
            identity: None,
            implicit: false,
            group: None,
            added: HashSet::new(),
            wanted: BTreeMap::new(),
            groups_added: HashSet::new(),
            offsets: None,
            started: false,
            uncertain: None,
            in_flight: false,
            retry: Retry::default(),
            last_error: None,
            waiters: Vec::new(),
            last_end: None,
            done: VecDeque::new(),
            fresh: None,
            unsent_end: None,
            died: false,
            gate_moved: true,
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    // ---- callers ----

    /// Asks for an id and epoch; fences whoever had the transactional id, and aborts what was left open.
    pub(super) fn init(&mut self, now: Now, op: u64, timeout_ms: u64) {
        match &self.state {
            State::New => {
                self.enter(State::Initializing);
                self.wait(now, op, timeout_ms);
            }
            State::Initializing => self.wait(now, op, timeout_ms),
            State::Ready => self.done.push_back((op, Ok(()))),
            _ => {
                let error = self.why_not("a transaction is under way: it must end first");
                self.done.push_back((op, Err(error)));
            }
        }
    }

    /// Opens a transaction. `feature_level` is the cluster's for transactions.
    pub(super) fn begin<T>(&mut self, core: &Core<T>, op: u64) {
        let result = if matches!(self.state, State::Ready) {
            self.implicit = core.feature_level(FEATURE) >= FEATURE_WITH_IMPLICIT_ADD;
            self.last_end = None;
            self.enter(State::Open);
            Ok(())
        } else {
            Err(self.why_not("a transaction is open already"))
        };
        self.done.push_back((op, result));
    }

    /// Commits offsets of a group as a part of the transaction.
    pub(super) fn send_offsets(
        &mut self,
        now: Now,
        op: u64,
        offsets: Vec<CommitOffset>,
        group: GroupMetadata,
        timeout_ms: u64,
    ) {
        let refused = if !matches!(self.state, State::Open) {
            Some(self.why_not("no transaction is open: call begin_transaction first"))
        } else if self.offsets.is_some() {
            Some(Error::Usage(format!("{self}: send_offsets_to_transaction is under way already")))
        } else {
            None
        };
        if refused.is_some() || offsets.is_empty() {
            self.done.push_back((op, refused.map_or(Ok(()), Err)));
            return;
        }
        if self.group.as_ref().is_none_or(|known| known.group() != group.group_id) {
            self.group =
                Some(Coordinator::new(group.group_id.clone(), self.backoff, self.request_timeout_ms));
        }
        self.offsets = Some(Offsets { waiter: waiter(now, op, timeout_ms), commits: offsets, group });
    }

    /// Commits or aborts. Calling it again after a timeout waits for the same end, or learns that it has come.
    pub(super) fn end(&mut self, now: Now, op: u64, commit: bool, timeout_ms: u64) {
        match &self.state {
            State::Open => self.enter(State::Ending { commit }),
            State::Failed(_) if !commit => self.enter(State::Ending { commit }),
            State::Ending { commit: before } if *before == commit => {}
            State::Renewing if !commit => {}
            State::Ready if self.last_end == Some(commit) => {
                self.done.push_back((op, Ok(())));
                return;
            }
            State::Failed(error) => {
                let error = error.clone();
                self.done.push_back((op, Err(error)));
                return;
            }
            _ => {
                let error = self.why_not("no transaction is open");
                self.done.push_back((op, Err(error)));
                return;
            }
        }
        self.wait(now, op, timeout_ms);
        if !commit {
            self.drop_unsent(Error::Aborted);
        }
    }

    /// The producer closes: what is open is aborted.
    pub(super) fn close(&mut self) {
        if matches!(self.state, State::Open | State::Failed(_)) {
            self.enter(State::Ending { commit: false });
            self.drop_unsent(Error::Aborted);
        }
    }

    /// Whether the coordinator must still be informed how the transaction ends.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.state, State::Ending { .. } | State::Renewing)
    }

    /// Ends every caller's wait.
    pub(super) fn end_waits(&mut self, error: &Error) {
        let offsets = self.offsets.take().map(|offsets| offsets.waiter);
        for waiter in self.waiters.drain(..).chain(offsets) {
            self.done.push_back((waiter.op, Err(error.clone())));
        }
    }

    // ---- the engine ----

    /// Whether a batch of the partition may go out. If the partition is not in the transaction yet, it is added first.
    pub(super) fn may_send(&mut self, key: PartitionKey, topic: &Arc<str>) -> bool {
        if !matches!(self.state, State::Open | State::Ending { commit: true }) {
            return false;
        }
        if self.implicit {
            self.started = true;
            return true;
        }
        let added = self.added.contains(&key);
        if !added {
            self.wanted.insert(key, topic.clone());
        }
        added
    }

    /// A Produce request must not add partitions where the cluster does not.
    pub(super) fn produce_spec(&self, spec: CallSpec) -> CallSpec {
        if self.implicit { spec } else { spec.version_max(PRODUCE_WITHOUT_ADD) }
    }

    /// A batch of the transaction has failed for good.
    pub(super) fn batch_failed(&mut self, error: &Error) {
        // Whether the producer is fenced only the coordinator knows: an old epoch also comes of a transaction that the
        // coordinator has aborted for its age.
        let fatal = matches!(
            error.code(),
            Some(
                ErrorCode::PRODUCER_FENCED
                    | ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                    | ErrorCode::CLUSTER_AUTHORIZATION_FAILED
                    | ErrorCode::UNSUPPORTED_VERSION
                    | ErrorCode::INVALID_PRODUCER_ID_MAPPING
            )
        );
        if fatal { self.die(error.clone()) } else { self.fail(error) }
    }

    /// The next operation that has ended.
    pub(super) fn take_done(&mut self) -> Option<(u64, Result<()>)> {
        self.done.pop_front()
    }

    /// The id and epoch under which all partitions start anew.
    pub(super) fn take_identity(&mut self) -> Option<Identity> {
        self.fresh.take()
    }

    /// What every batch ends with that is not on its way: nothing more of the transaction is sent.
    pub(super) fn unsent_end(&self) -> Option<Error> {
        let over = matches!(self.state, State::Failed(_) | State::Ending { commit: false });
        self.unsent_end.clone().filter(|_| over)
    }

    /// The producer is of no more use, for this reason.
    pub(super) fn take_death(&mut self) -> Option<Error> {
        match &self.state {
            State::Dead(error) if std::mem::take(&mut self.died) => Some(error.clone()),
            _ => None,
        }
    }

    /// Whether appends are accepted, or the error that callers get; only if that has changed.
    pub(super) fn take_gate(&mut self) -> Option<Result<()>> {
        std::mem::take(&mut self.gate_moved).then(|| match self.state {
            State::Open => Ok(()),
            _ => Err(self.why_not("no transaction is open: call begin_transaction first")),
        })
    }

    /// Ends what took too long, and sends the next request. `outstanding`: batches that have not ended.
    pub(super) fn drive<T>(
        &mut self,
        now: Now,
        core: &mut Core<T>,
        outstanding: usize,
        tag: impl Fn(Step) -> T,
    ) {
        self.expire(now, core);
        if self.in_flight || !self.retry.is_due(now, core.timers()) {
            return;
        }
        let Some(step) = self.next_step(outstanding) else {
            if matches!(self.state, State::Ending { .. }) && outstanding == 0 {
                // Nothing was written, so the coordinator knows of nothing.
                self.become_ready();
            }
            return;
        };
        let node = match (&step, &mut self.group) {
            (Step::CommitOffsets, Some(group)) => group.need(now, core, || tag(Step::FindGroup)),
            _ => self.coordinator.need(now, core, || tag(Step::FindTransactions)),
        };
        if let Some(node) = node {
            self.in_flight = true;
            self.post(now, core, node, step, tag);
        }
    }

    fn next_step(&self, outstanding: usize) -> Option<Step> {
        match &self.state {
            State::Initializing | State::Renewing => Some(Step::Init),
            State::Open | State::Ending { commit: true } if !self.wanted.is_empty() => {
                Some(Step::AddPartitions(self.wanted.clone()))
            }
            State::Open | State::Ending { commit: true } if self.offsets.is_some() => {
                let group = self.offsets.as_ref().map(|offsets| &offsets.group.group_id)?;
                let known = self.implicit || self.groups_added.contains(group);
                Some(if known { Step::CommitOffsets } else { Step::AddOffsets(group.clone()) })
            }
            State::Ending { .. } if outstanding > 0 => None,
            State::Ending { .. } if self.started => Some(Step::End),
            // Ending what has not begun is an error, not ending what has begun holds up readers: so it is begun for sure.
            State::Ending { commit: false } => self.uncertain.clone(),
            _ => None,
        }
    }

    fn post<T>(&mut self, now: Now, core: &mut Core<T>, node: i32, step: Step, tag: impl Fn(Step) -> T) {
        let spec = CallSpec::new(Target::Node(node), Lane::Coordinator, self.request_timeout_ms);
        let Identity { id, epoch } = self.identity.unwrap_or(Identity { id: -1, epoch: -1 });
        let transactional_id = self.id.clone();
        match &step {
            Step::Init => {
                let request = InitProducerIdRequest {
                    transactional_id: Some(transactional_id),
                    transaction_timeout_ms: self.timeout_ms,
                    producer_id: id,
                    producer_epoch: epoch,
                };
                core.call_with(now, spec, request, tag(step));
            }
            Step::AddPartitions(partitions) => {
                let mut topics: BTreeMap<&Arc<str>, Vec<i32>> = BTreeMap::new();
                for (key, name) in partitions {
                    topics.entry(name).or_default().push(key.number());
                }
                let topic = |(name, partitions): (&Arc<str>, _)| AddPartitionsToTxnTopic {
                    name: name.to_string(),
                    partitions,
                };
                let request = AddPartitionsToTxnRequest {
                    v3_and_below_transactional_id: transactional_id,
                    v3_and_below_producer_id: id,
                    v3_and_below_producer_epoch: epoch,
                    v3_and_below_topics: topics.into_iter().map(topic).collect(),
                };
                core.call_with(now, spec, request, tag(step));
            }
            Step::AddOffsets(group) => {
                let request = AddOffsetsToTxnRequest {
                    transactional_id,
                    producer_id: id,
                    producer_epoch: epoch,
                    group_id: group.clone(),
                };
                core.call_with(now, spec, request, tag(step));
            }
            Step::CommitOffsets => {
                let Some(offsets) = &self.offsets else { return };
                let request = TxnOffsetCommitRequest {
                    transactional_id,
                    group_id: offsets.group.group_id.clone(),
                    producer_id: id,
                    producer_epoch: epoch,
                    generation_id: offsets.group.generation_id,
                    member_id: offsets.group.member_id.clone(),
                    group_instance_id: offsets.group.instance_id.clone(),
                    topics: topics_of(&offsets.commits),
                };
                self.started = true;
                let max = if self.implicit { i16::MAX } else { OFFSETS_WITHOUT_ADD };
                core.call_with(now, spec.version_max(max), request, tag(step));
            }
            Step::End => {
                let committed = matches!(self.state, State::Ending { commit: true });
                let request =
                    EndTxnRequest { transactional_id, producer_id: id, producer_epoch: epoch, committed };
                let max = if self.implicit { i16::MAX } else { END_WITHOUT_EPOCH };
                core.call_with(now, spec.version_max(max), request, tag(step));
            }
            Step::FindTransactions | Step::FindGroup => {}
        }
    }

    // ---- answers ----

    /// Takes an answer, or the lack of one.
    pub(super) fn answered<T>(&mut self, now: Now, core: &mut Core<T>, reply: Reply<Step>) {
        let (step, node) = (reply.tag.clone(), reply.node);
        if let Step::FindTransactions | Step::FindGroup = step {
            self.found(now, core, &step, reply);
            return;
        }
        self.in_flight = false;
        let result = match &step {
            Step::Init => decode::<InitProducerIdRequest>(reply).and_then(|response| {
                refusal(response.error_code, "InitProducerId")?;
                Identity::reported(node, response.producer_id, response.producer_epoch).map(Some)
            }),
            Step::AddPartitions(asked) => decode::<AddPartitionsToTxnRequest>(reply)
                .and_then(|response| self.partitions_refusal(asked, &response))
                .map(|()| None),
            Step::AddOffsets(group) => decode::<AddOffsetsToTxnRequest>(reply).and_then(|response| {
                refusal(response.error_code, &format!("adding group '{group}' to the transaction"))?;
                Ok(None)
            }),
            Step::CommitOffsets => decode::<TxnOffsetCommitRequest>(reply)
                .and_then(|response| self.offsets_refusal(&response))
                .map(|()| None),
            _ => decode::<EndTxnRequest>(reply).and_then(|response| {
                refusal(response.error_code, "ending the transaction")?;
                // Versions below 5 say nothing of it.
                match (response.producer_id, response.producer_epoch) {
                    (-1, -1) => Ok(None),
                    (id, epoch) => Identity::reported(node, id, epoch).map(Some),
                }
            }),
        };
        match result {
            Ok(identity) => {
                self.retry.reset();
                self.last_error = None;
                self.uncertain = None;
                self.succeeded(step, identity);
            }
            Err(error) if matches!(self.state, State::Dead(_)) => drop(error),
            // An end whose answer cannot be read may have taken place: only the coordinator's word says how it went.
            Err(error) if error.retriable() || error.answer_is_lost() => {
                self.try_again(now, core, step, error);
            }
            Err(error) => self.refused(&step, error),
        }
    }

    /// The coordinator said what cannot be.
    fn lie(&self, why: &str) -> Error {
        Error::BadAnswer { peer: format!("{self}: its coordinator"), why: why.to_owned() }
    }

    fn partitions_refusal(
        &self,
        asked: &BTreeMap<PartitionKey, Arc<str>>,
        response: &AddPartitionsToTxnResponse,
    ) -> Result<()> {
        let mut answered = HashSet::new();
        let mut errors = Vec::new();
        for topic in &response.results_by_topic_v3_and_below {
            for result in &topic.results_by_partition {
                answered.insert((topic.name.as_str(), result.partition_index));
                let code = fenced(ErrorCode::from(result.partition_error_code));
                // It says only that another partition was refused.
                if !code.is_none() && code != ErrorCode::OPERATION_NOT_ATTEMPTED {
                    let detail = "adding the partition to the transaction";
                    errors.push(Error::partition(code, topic.name.clone(), result.partition_index, detail));
                }
            }
        }
        worst(&errors)?;
        let missing = asked.iter().find(|(key, name)| !answered.contains(&(name.as_ref(), key.number())));
        missing.map_or(Ok(()), |(key, name)| Err(self.left_out(name, key.number(), "AddPartitionsToTxn")))
    }

    fn offsets_refusal(&self, response: &TxnOffsetCommitResponse) -> Result<()> {
        let mut answered = HashSet::new();
        let mut errors = Vec::new();
        for topic in &response.topics {
            for result in &topic.partitions {
                answered.insert((topic.name.as_str(), result.partition_index));
                let code = fenced(ErrorCode::from(result.error_code));
                if !code.is_none() {
                    let detail = "committing its offset in the transaction";
                    errors.push(Error::partition(code, topic.name.clone(), result.partition_index, detail));
                }
            }
        }
        worst(&errors)?;
        let asked = self.offsets.iter().flat_map(|offsets| &offsets.commits).map(|commit| &commit.partition);
        let missing = asked.into_iter().find(|at| !answered.contains(&(at.topic.as_ref(), at.partition)));
        missing.map_or(Ok(()), |at| Err(self.left_out(&at.topic, at.partition, "TxnOffsetCommit")))
    }

    fn left_out(&self, topic: &str, partition: i32, api: &str) -> Error {
        self.lie(&format!("left partition {partition} of topic '{topic}' out of its answer to {api}"))
    }

    fn found<T>(&mut self, now: Now, core: &mut Core<T>, step: &Step, reply: Reply<Step>) {
        let found = reply.decode::<FindCoordinatorRequest>();
        let coordinator = match (step, &mut self.group) {
            (Step::FindGroup, Some(group)) => group,
            (Step::FindGroup, None) => return,
            _ => &mut self.coordinator,
        };
        match coordinator.answered(now, core, found) {
            // Nothing has begun, and it may be no Kafka at all: who waits is told, and may ask again.
            Err(error) if error.answer_is_lost() && matches!(self.state, State::Initializing) => {
                self.end_waits(&error);
                self.enter(State::New);
            }
            Err(error) if !error.answer_is_lost() => self.refused(step, error),
            _ => {}
        }
    }

    fn succeeded(&mut self, step: Step, identity: Option<Identity>) {
        if matches!(self.state, State::Dead(_)) {
            return;
        }
        match step {
            Step::Init => {
                self.adopt(identity);
                self.become_ready();
            }
            Step::AddPartitions(partitions) => {
                self.started = true;
                for key in partitions.into_keys() {
                    self.wanted.remove(&key);
                    self.added.insert(key);
                }
            }
            Step::AddOffsets(group) => {
                self.started = true;
                self.groups_added.insert(group);
            }
            Step::CommitOffsets => {
                if let Some(offsets) = self.offsets.take() {
                    self.done.push_back((offsets.waiter.op, Ok(())));
                }
            }
            Step::End => {
                self.adopt(identity);
                let aborted = matches!(self.state, State::Ending { commit: false });
                if aborted && !self.implicit {
                    self.enter(State::Renewing);
                } else {
                    self.become_ready();
                }
            }
            Step::FindTransactions | Step::FindGroup => {}
        }
    }

    fn try_again<T>(&mut self, now: Now, core: &mut Core<T>, step: Step, error: Error) {
        match (&step, &mut self.group) {
            (Step::CommitOffsets, Some(group)) => group.judge(&error),
            _ => self.coordinator.judge(&error),
        }
        if error.code() == Some(ErrorCode::CONCURRENT_TRANSACTIONS) {
            self.retry.count();
            self.retry.wait_ms(now, CONCURRENT_RETRY_MS, core.timers());
        } else {
            core.put_off(now, &mut self.retry, self.backoff);
        }
        let again_in_ms = self.retry.wait_left_ms(now);
        client_event!(DEBUG, PRODUCER, core.name(), step = ?step, %error, again_in_ms, "a transaction's request failed");
        if error.answer_is_lost() && matches!(step, Step::AddPartitions(_) | Step::AddOffsets(_)) {
            self.uncertain = Some(step);
        }
        self.last_error = Some(error);
    }

    /// An answer that asking again does not mend.
    fn refused(&mut self, step: &Step, error: Error) {
        let fatal = matches!(
            error.code(),
            Some(
                ErrorCode::PRODUCER_FENCED
                    | ErrorCode::INVALID_TXN_STATE
                    | ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                    | ErrorCode::CLUSTER_AUTHORIZATION_FAILED
                    | ErrorCode::UNSUPPORTED_VERSION
                    | ErrorCode::INVALID_PRODUCER_ID_MAPPING
            )
        );
        // Where the transaction cannot be aborted either, nothing is left to do.
        let hopeless = match step {
            Step::Init | Step::FindTransactions => true,
            Step::End => matches!(self.state, State::Ending { commit: false }),
            _ => false,
        };
        if fatal || hopeless {
            self.die(error);
        } else {
            self.uncertain = None;
            self.fail(&error);
        }
    }

    // ---- states ----

    fn enter(&mut self, state: State) {
        self.state = state;
        self.gate_moved = true;
        // The wait was for the request before.
        self.retry.reset();
    }

    fn wait(&mut self, now: Now, op: u64, timeout_ms: u64) {
        self.waiters.push(waiter(now, op, timeout_ms));
    }

    fn adopt(&mut self, identity: Option<Identity>) {
        if let Some(identity) = identity {
            self.identity = Some(identity);
            self.fresh = Some(identity);
        }
    }

    fn become_ready(&mut self) {
        self.last_end = match self.state {
            State::Ending { commit } => Some(commit),
            State::Renewing => Some(false),
            _ => None,
        };
        self.enter(State::Ready);
        self.added.clear();
        self.wanted.clear();
        self.groups_added.clear();
        self.started = false;
        self.uncertain = None;
        for waiter in self.waiters.drain(..) {
            self.done.push_back((waiter.op, Ok(())));
        }
    }

    /// Batches that are not on their way end, and so does a commit of offsets.
    fn drop_unsent(&mut self, error: Error) {
        self.wanted.clear();
        if let Some(offsets) = self.offsets.take() {
            self.done.push_back((offsets.waiter.op, Err(error.clone())));
        }
        self.unsent_end = Some(error);
    }

    /// The transaction can only be aborted now.
    fn fail(&mut self, error: &Error) {
        if matches!(self.state, State::Open | State::Ending { commit: true }) {
            let reported = match error.code() {
                Some(ErrorCode::TRANSACTION_ABORTABLE) => error.clone(),
                _ => Error::broker(ErrorCode::TRANSACTION_ABORTABLE, error.to_string()),
            };
            self.end_waits(&reported);
            self.enter(State::Failed(reported.clone()));
            self.drop_unsent(reported);
        }
    }

    fn die(&mut self, error: Error) {
        if !matches!(self.state, State::Dead(_)) {
            self.end_waits(&error);
            self.wanted.clear();
            self.enter(State::Dead(error));
            self.died = true;
        }
    }

    fn expire<T>(&mut self, now: Now, core: &Core<T>) {
        let what = match self.state {
            State::Initializing => "getting a producer id for the transactional id",
            State::Ending { commit: true } => "committing the transaction",
            _ => "aborting the transaction",
        };
        let late = |waiter: &Waiter| core.timers().is_due(now, waiter.deadline);
        let expired: Vec<Waiter> = self.waiters.extract_if(.., |waiter| late(waiter)).collect();
        for waiter in expired {
            let error = self.too_late(core, what, &self.coordinator, waiter.timeout_ms);
            self.done.push_back((waiter.op, Err(error)));
        }
        if let Some(offsets) = self.offsets.as_ref().filter(|offsets| late(&offsets.waiter)) {
            let what = format!("committing offsets of group '{}' in the transaction", offsets.group.group_id);
            let coordinator = self.group.as_ref().unwrap_or(&self.coordinator);
            let error = self.too_late(core, &what, coordinator, offsets.waiter.timeout_ms);
            // Whether they are in it nobody knows.
            self.fail(&error);
        }
    }

    fn too_late<T>(&self, core: &Core<T>, what: &str, coordinator: &Coordinator, ms: u64) -> Error {
        let last = self.last_error.as_ref().or(coordinator.last_error());
        Error::Timeout {
            what: format!("{self}: {what}"),
            ms,
            detail: last.map_or_else(|| core.why_unreachable(), ToString::to_string),
        }
    }

    /// Why a call does not go in this state; `otherwise` where the state alone does not say.
    fn why_not(&self, otherwise: &str) -> Error {
        let why = match &self.state {
            State::Failed(error) | State::Dead(error) => return error.clone(),
            State::New | State::Initializing => "call init_transactions first",
            State::Ending { commit: true } => "the transaction is being committed",
            State::Ending { commit: false } | State::Renewing => "the transaction is being aborted",
            State::Ready | State::Open => otherwise,
        };
        Error::Usage(format!("{self}: {why}"))
    }
}

impl std::fmt::Display for Transactions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "transactional.id '{}'", self.id)
    }
}

fn waiter(now: Now, op: u64, timeout_ms: u64) -> Waiter {
    Waiter { op, deadline: now.mono_ms.saturating_add(timeout_ms), timeout_ms }
}

fn decode<R: Request>(reply: Reply<Step>) -> Result<R::Response> {
    reply.decode::<R>()
}

/// A coordinator that calls the epoch old knows of a newer producer; brokers before KIP-588 say it in this way.
fn fenced(code: ErrorCode) -> ErrorCode {
    if code == ErrorCode::INVALID_PRODUCER_EPOCH { ErrorCode::PRODUCER_FENCED } else { code }
}

fn refusal(code: i16, what: &str) -> Result<()> {
    let code = fenced(ErrorCode::from(code));
    if code.is_none() { Ok(()) } else { Err(Error::broker(code, what)) }
}

/// The first error that asking again does not mend, else the first.
fn worst(errors: &[Error]) -> Result<()> {
    let worst = errors.iter().find(|error| !error.retriable()).or(errors.first());
    worst.map_or(Ok(()), |error| Err(error.clone()))
}

fn topics_of(offsets: &[CommitOffset]) -> Vec<TxnOffsetCommitRequestTopic> {
    let mut topics: BTreeMap<&Arc<str>, Vec<TxnOffsetCommitRequestPartition>> = BTreeMap::new();
    for commit in offsets {
        topics.entry(&commit.partition.topic).or_default().push(TxnOffsetCommitRequestPartition {
            partition_index: commit.partition.partition,
            committed_offset: commit.offset,
            committed_leader_epoch: commit.leader_epoch,
            committed_metadata: Some(commit.metadata.clone()),
        });
    }
    let topic = |(name, partitions): (&Arc<str>, _)| TxnOffsetCommitRequestTopic {
        name: name.to_string(),
        partitions,
    };
    topics.into_iter().map(topic).collect()
}
