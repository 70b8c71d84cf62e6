//! The admin engine: operations, their items, and when each is asked for again.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::FindCoordinatorRequest;
use headrace_wire::time::Now;

use super::job::{Answer, Calls, Each, Job, Route, Tag};
use super::types::{AdminCommand, AdminEvent, AdminRequest};
use super::{configs, features, groups, offsets, replicas, shares, topics};
use crate::arrived::{Arrived, Consumed};
use crate::core::{CREATING_WAITS, Core, Lane, NoStream, Reply, Target};
use crate::engine::Engine;
use crate::error::{BAD_ANSWERS_MAX, Error, Result};
use crate::events::kind;
use crate::group::Coordinator;
use crate::io::{ConnId, Input, Output};
use crate::options::AdminConfig;
use crate::time::{Backoff, Retry};

/// Answers about a topic that the cluster does not know. They count as passing errors only as often as
/// [`Job::unknown_topic_tries`] says.
const UNKNOWN_TOPIC: [ErrorCode; 2] = [ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, ErrorCode::UNKNOWN_TOPIC_ID];

/// Asks brokers for what callers want to know or changed, again where that helps, until each operation's time is up.
pub struct AdminEngine {
    core: Core<Tag>,
    retries: u32,
    backoff: Backoff,
    request_timeout_ms: u64,
    api_timeout_ms: u64,
    ops: BTreeMap<u64, Op>,
    coordinators: HashMap<String, Coordinator>,
    events: VecDeque<AdminEvent>,
}

struct Op {
    job: Box<dyn Job>,
    deadline: u64,
    timeout_ms: u64,
    /// `None` until the job knows its items.
    items: Option<Vec<Item>>,
}

#[derive(Default)]
struct Item {
    state: State,
    retry: Retry,
    /// The metadata that has already been looked at in vain.
    generation: u64,
    /// A leader has refused it: only newer metadata than this says whom to ask next.
    stale: Option<u64>,
    last_error: Option<Error>,
}

#[derive(Default)]
enum State {
    /// To be asked for as soon as it is known where, not before `retry` is due.
    #[default]
    Waiting,
    /// Asked for.
    Sent,
    Done(Option<Error>),
}

/// Where an item can be asked for now.
enum Way {
    To(Target, Lane),
    /// Metadata or a coordinator must come first.
    NotYet,
    Failed(Error),
}

impl AdminEngine {
    /// An engine that connects when it has something to ask. The same `seed` gives the same jitter.
    #[must_use]
    pub fn new(config: &AdminConfig, seed: u64) -> Self {
        let common = &config.common;
        Self {
            core: Core::new(common, false, seed).named(kind::ADMIN),
            retries: config.retries,
            backoff: Backoff::of(common),
            request_timeout_ms: common.request_timeout_ms,
            api_timeout_ms: common.default_api_timeout_ms,
            ops: BTreeMap::new(),
            coordinators: HashMap::new(),
            events: VecDeque::new(),
        }
    }

    fn start(&mut self, now: Now, op: u64, request: AdminRequest, timeout_ms: Option<u64>) {
        if self.core.is_closed() {
            self.finish(op, Err(Error::Closed));
            return;
        }
        let timeout_ms = timeout_ms.unwrap_or(self.api_timeout_ms);
        let deadline = now.mono_ms.saturating_add(timeout_ms);
        let op_state = Op { job: job(request), deadline, timeout_ms, items: None };
        self.ops.insert(op, op_state);
    }

    /// Takes answers, asks what can be asked, and reports what has ended, until nothing more moves.
    fn work(&mut self, now: Now) {
        loop {
            self.core.timers().start();
            let mut moved = false;
            while let Some(reply) = self.core.poll_reply() {
                self.take(now, reply);
                moved = true;
            }
            for op in self.ops.keys().copied().collect::<Vec<_>>() {
                self.advance(now, op);
            }
            if !moved {
                return;
            }
        }
    }

    fn take(&mut self, now: Now, reply: Reply<Tag>) {
        match reply.tag {
            Tag::FindCoordinator(ref group) => {
                let group = group.clone();
                let (_, _, result) = reply.split::<FindCoordinatorRequest>();
                let Some(coordinator) = self.coordinators.get_mut(&group) else { return };
                if let Err(error) = coordinator.answered(now, &mut self.core, result) {
                    self.coordinators.remove(&group);
                    self.fail_group(&group, &error);
                }
            }
            Tag::Items { op, items } => {
                let Some(state) = self.ops.get_mut(&op) else { return };
                let node = reply.node;
                let results = reply.result.and_then(|(version, body)| {
                    let results = state.job.receive(&items, &Answer { version, body, node })?;
                    Ok(results)
                });
                match results {
                    Ok(results) => {
                        for (item, result) in items.into_iter().zip(results) {
                            self.settle(now, op, item, result);
                        }
                    }
                    Err(error) => {
                        for item in items {
                            self.settle(now, op, item, Err(error.clone()));
                        }
                    }
                }
            }
        }
    }

    /// One item has its answer: it is done, or asked for again after a wait.
    fn settle(&mut self, now: Now, op: u64, index: usize, result: Result<()>) {
        let Some(op) = self.ops.get_mut(&op) else { return };
        let Some(item) = op.items.as_mut().and_then(|items| items.get_mut(index)) else { return };
        let Err(error) = result else {
            item.state = State::Done(None);
            return;
        };
        let unknown = error.code().is_some_and(|code| UNKNOWN_TOPIC.contains(&code));
        let tries = match error {
            _ if unknown => op.job.unknown_topic_tries().min(self.retries),
            Error::BadAnswer { .. } => BAD_ANSWERS_MAX.min(self.retries),
            _ => self.retries,
        };
        if !error.retriable() || item.retry.failures() >= tries {
            item.state = State::Done(Some(error));
            return;
        }
        match op.job.route(index) {
            Route::Coordinator(group) => {
                if let Some(coordinator) = self.coordinators.get_mut(group) {
                    coordinator.judge(&error);
                }
            }
            Route::Leader(..) => {
                item.stale = Some(self.core.cluster().generation());
                self.core.refresh(now);
            }
            Route::Controller | Route::Node(_) => {
                self.core.refresh(now);
            }
            Route::Any => {}
        }
        self.core.put_off(now, &mut item.retry, self.backoff);
        item.state = State::Waiting;
        item.last_error = Some(error);
    }

    /// Nothing will find this group's coordinator.
    fn fail_group(&mut self, group: &str, error: &Error) {
        for op in self.ops.values_mut() {
            let Op { job, items: Some(items), .. } = op else { continue };
            for (index, item) in items.iter_mut().enumerate() {
                if matches!(item.state, State::Waiting) && job.route(index) == Route::Coordinator(group) {
                    item.state = State::Done(Some(error.clone()));
                }
            }
        }
    }

    fn advance(&mut self, now: Now, id: u64) {
        let Some(mut op) = self.ops.remove(&id) else { return };
        let is_late = self.core.timers().is_due(now, op.deadline);
        if op.items.is_none() && !self.prepare(now, &mut op) && !is_late {
            match self.hopeless() {
                Some(error) => self.finish(id, Err(error)),
                None => drop(self.ops.insert(id, op)),
            }
            return;
        }
        let Some(mut items) = op.items.take() else {
            self.finish(id, Err(self.too_late(&op, None)));
            return;
        };
        if is_late {
            for (index, item) in items.iter_mut().enumerate() {
                if !matches!(item.state, State::Done(_)) {
                    let error = self.too_late(&op, Some((index, item)));
                    item.state = State::Done(Some(error));
                }
            }
        } else {
            self.send(now, id, &op, &mut items);
        }
        if items.iter().any(|item| !matches!(item.state, State::Done(_))) {
            op.items = Some(items);
            self.ops.insert(id, op);
            return;
        }
        let error = |item: Item| match item.state {
            State::Done(error) => error,
            _ => None,
        };
        let wanted = topics_of(&op);
        let result = op.job.finish(items.into_iter().map(error).collect());
        self.forget(&wanted);
        self.finish(id, result);
    }

    /// Makes the items of an operation, once the cluster is known as far as it needs.
    fn prepare(&mut self, now: Now, op: &mut Op) -> bool {
        if !op.job.prepare(self.core.cluster()) {
            if self.core.cluster().generation() == 0
                && !self.core.refreshing(now)
                && self.core.metadata_error().is_none()
            {
                self.core.refresh(now);
            }
            return false;
        }
        let generation = self.core.cluster().generation();
        let item = || Item { generation, ..Item::default() };
        op.items = Some((0..op.job.len()).map(|_| item()).collect());
        let wanted = topics_of(op);
        self.core.want_topics(now, wanted.iter().map(String::as_str));
        true
    }

    /// Sends what can be sent, in one call for all items that go the same way.
    fn send(&mut self, now: Now, id: u64, op: &Op, items: &mut [Item]) {
        let mut calls: BTreeMap<(Target, Lane), Vec<usize>> = BTreeMap::new();
        for (index, item) in items.iter_mut().enumerate() {
            if !matches!(item.state, State::Waiting) || !item.retry.is_due(now, self.core.timers()) {
                continue;
            }
            match self.way(now, op.job.route(index), op, item) {
                Way::To(target, lane) => {
                    item.state = State::Sent;
                    calls.entry((target, lane)).or_default().push(index);
                }
                Way::NotYet => {}
                Way::Failed(error) => item.state = State::Done(Some(error)),
            }
        }
        let timeout_ms = self.request_timeout_ms.min(op.deadline.saturating_sub(now.mono_ms));
        for ((target, lane), items) in calls {
            op.job.send(Calls { core: &mut self.core, now, target, lane, timeout_ms, op: id, items });
        }
    }

    fn way(&mut self, now: Now, route: Route<'_>, op: &Op, item: &mut Item) -> Way {
        match route {
            Route::Any => Way::To(Target::Any, Lane::Control),
            Route::Controller => Way::To(Target::Controller, Lane::Control),
            Route::Node(node) => {
                if self.core.cluster().broker(node).is_some() {
                    return Way::To(Target::Node(node), Lane::Control);
                }
                if self.core.cluster().generation() > 0 && item.generation != self.core.cluster().generation()
                {
                    return Way::Failed(Error::Usage(format!("the cluster has no broker {node}")));
                }
                self.need_metadata(now)
            }
            Route::Coordinator(group) => {
                let (backoff, timeout) = (self.backoff, self.request_timeout_ms);
                let coordinator = self
                    .coordinators
                    .entry(group.to_owned())
                    .or_insert_with(|| Coordinator::new(group.to_owned(), backoff, timeout));
                let tag = || Tag::FindCoordinator(group.to_owned());
                if let Some(node) = coordinator.need(now, &mut self.core, tag) {
                    return Way::To(Target::Node(node), Lane::Coordinator);
                }
                item.last_error = coordinator.last_error().cloned().or(item.last_error.take());
                Way::NotYet
            }
            Route::Leader(topic, partition) => {
                if item.stale.is_some_and(|stale| stale == self.core.cluster().generation()) {
                    return self.need_metadata(now);
                }
                if let Some((node, _)) = self.core.cluster().leader(topic, partition) {
                    return Way::To(Target::Node(node), Lane::Control);
                }
                self.without_leader(now, topic, partition, op, item)
            }
        }
    }

    /// What to do about a partition without a known leader: wait for metadata that is newer than what was looked at.
    fn without_leader(&mut self, now: Now, topic: &str, partition: i32, op: &Op, item: &mut Item) -> Way {
        let cluster = self.core.cluster();
        if cluster.generation() == item.generation {
            return self.need_metadata(now);
        }
        item.generation = cluster.generation();
        let (code, detail) = match (cluster.topic_error(topic), cluster.partition_count(topic)) {
            (Some(code), _) => (code, String::new()),
            (None, Some(count)) if partition < 0 || partition >= count => {
                (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, format!("the topic has {count} partitions"))
            }
            _ => (ErrorCode::LEADER_NOT_AVAILABLE, String::new()),
        };
        let error = Error::partition(code, topic, partition, detail);
        if !code.retriable() {
            return Way::Failed(error);
        }
        if UNKNOWN_TOPIC.contains(&code) {
            item.retry.count();
            let tries = op.job.unknown_topic_tries();
            if item.retry.failures() > if tries == 0 { 0 } else { tries + CREATING_WAITS } {
                return Way::Failed(error);
            }
        }
        item.last_error = Some(error);
        self.core.refresh(now);
        Way::NotYet
    }

    /// Waits for metadata, unless none can come.
    fn need_metadata(&mut self, now: Now) -> Way {
        if let Some(error) = self.hopeless() {
            return Way::Failed(error);
        }
        if !self.core.refreshing(now) && self.core.metadata_error().is_none() {
            self.core.refresh(now);
        }
        Way::NotYet
    }

    /// Why no metadata will come, whatever is waited for.
    fn hopeless(&self) -> Option<Error> {
        self.core.metadata_error().filter(|error| !error.retriable()).cloned()
    }

    fn too_late(&self, op: &Op, item: Option<(usize, &Item)>) -> Error {
        let name = item.map(|(index, _)| op.job.name(index)).unwrap_or_default();
        let last = item.and_then(|(_, item)| item.last_error.as_ref());
        let why =
            last.or(self.core.metadata_error()).map_or_else(|| self.core.why_unreachable(), Error::to_string);
        let why = if why.is_empty() { "no answer came".to_owned() } else { why };
        // The last error often begins with the name itself.
        let detail = if why.starts_with(&name) { why } else { format!("{name}: {why}") };
        Error::Timeout { what: op.job.what(), ms: op.timeout_ms, detail }
    }

    /// Forgets topics that no other operation needs, so that the next one asks afresh.
    fn forget(&mut self, wanted: &BTreeSet<String>) {
        let still: BTreeSet<String> = self.ops.values().flat_map(topics_of).collect();
        self.core.forget_topics(wanted.difference(&still).map(String::as_str));
    }

    fn finish(&mut self, op: u64, result: Result<super::AdminOutcome>) {
        self.events.push_back(AdminEvent::Done { op, result });
    }
}

/// Topics whose leaders an operation needs.
fn topics_of(op: &Op) -> BTreeSet<String> {
    let leader = |index| match op.job.route(index) {
        Route::Leader(topic, _) => Some(topic.to_owned()),
        _ => None,
    };
    (0..op.job.len()).filter_map(leader).collect()
}

fn job(request: AdminRequest) -> Box<dyn Job> {
    match request {
        AdminRequest::CreateTopics { topics, validate_only } => {
            let topics = topics.into_iter().map(|topic| (topic.name.clone(), topic)).collect();
            Box::new(Each::new(topics::CreateTopics { validate_only }, topics))
        }
        AdminRequest::DeleteTopics(names) => Box::new(Each::of(topics::DeleteTopics, names)),
        AdminRequest::CreatePartitions { topics, validate_only } => {
            Box::new(Each::new(topics::CreatePartitions { validate_only }, topics))
        }
        AdminRequest::DescribeTopics(Some(names)) => Box::new(Each::of(topics::DescribeTopics, names)),
        AdminRequest::DescribeTopics(None) => Box::new(topics::DescribeAllTopics::default()),
        AdminRequest::DescribeCluster => Box::new(topics::DescribeCluster::default()),
        AdminRequest::DescribeFeatures => Box::new(features::DescribeFeatures::default()),
        AdminRequest::ListOffsets { partitions, isolation } => {
            Box::new(Each::new(offsets::ListOffsets(isolation), partitions))
        }
        AdminRequest::ListGroups => Box::new(groups::ListGroups::default()),
        AdminRequest::DescribeGroups(names) => Box::new(Each::of(groups::DescribeGroups, names)),
        AdminRequest::GroupOffsets { group, partitions } => {
            Box::new(groups::GroupOffsets::new(group, partitions))
        }
        AdminRequest::ShareGroupOffsets(group) => Box::new(shares::ShareGroupOffsets::new(group)),
        AdminRequest::AlterGroupOffsets { group, offsets } => {
            let offsets = offsets.into_iter().map(|commit| (commit.partition.clone(), commit)).collect();
            Box::new(Each::new(groups::AlterGroupOffsets(group), offsets))
        }
        AdminRequest::DeleteGroups(names) => Box::new(Each::of(groups::DeleteGroups, names)),
        AdminRequest::Reassign(partitions) => Box::new(Each::new(replicas::Reassign, partitions)),
        AdminRequest::ListReassignments => Box::new(replicas::ListReassignments::default()),
        AdminRequest::ElectLeaders { partitions, unclean: is_unclean } => {
            Box::new(Each::of(replicas::ElectLeaders { is_unclean }, partitions))
        }
        AdminRequest::DeleteRecords(partitions) => Box::new(Each::new(offsets::DeleteRecords, partitions)),
        AdminRequest::DescribeConfigs(resources) => Box::new(Each::of(configs::DescribeConfigs, resources)),
        AdminRequest::AlterConfigs { changes, validate_only } => {
            Box::new(Each::new(configs::AlterConfigs { validate_only }, changes))
        }
    }
}

impl Engine for AdminEngine {
    type Command = AdminCommand;
    type Event = AdminEvent;

    fn handle(&mut self, now: Now, input: Input<AdminCommand>) {
        match input {
            Input::Command(AdminCommand::Do { op, request, timeout_ms }) => {
                self.start(now, op, request, timeout_ms);
            }
            Input::Command(AdminCommand::Close) => {
                for op in std::mem::take(&mut self.ops).into_keys() {
                    self.finish(op, Err(Error::Closed));
                }
                self.core.close();
            }
            Input::Channel(conn, event) => self.core.handle_channel(now, conn, event),
            Input::Timeout => self.core.handle_timeout(now),
            // It has no links.
            Input::Link(..) | Input::PollMemory | Input::DescriptorShortage => return,
        }
        self.work(now);
    }

    fn handle_bytes(&mut self, now: Now, conn: ConnId, bytes: Arrived<'_>) -> Consumed {
        let consumed = self.core.handle_bytes(now, conn, bytes, &mut NoStream);
        self.work(now);
        consumed
    }

    fn poll_output(&mut self) -> Option<Output<AdminEvent>> {
        let event = || self.events.pop_front().map(Output::Event);
        self.core.poll_request().or_else(event)
    }

    fn name(&self) -> (&'static str, &str) {
        self.core.name().pair()
    }

    fn failing(&self) -> String {
        self.core.failing()
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.core.poll_timeout()
    }
}
