//! The cluster's state, which part of it answers what, and what a test has changed about that.

use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::rc::Rc;

use headrace_wire::compression::Codec;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::api_versions_response::FinalizedFeatureKey;
use headrace_wire::messages::*;
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use super::classic_group::Group;
use super::faults::{Fault, Faults};
use super::fetch::BrokerSession;
use super::heartbeats::Beat;
use super::layout::{Layout, version_list};
use super::log::Log;
use super::refusal::{Refusal, found};
use super::share::ShareKafka;
use super::spoil::spoiled;
use super::transactions::Transactions;
use super::world::{Answer, Incoming, Peers};
use crate::io::ConnId;

/// Answers in place of the Kafka, where it wants to.
type Script = Box<dyn FnMut(&Incoming) -> Option<Answer>>;

/// What a test does to answers of one kind; true: that was all.
type Change<R> = Box<dyn FnMut(&mut R) -> bool>;

/// A small Kafka for one engine. Its node n listens on port 9000 + n, and node 1 coordinates everything unless a test says otherwise.
pub(crate) struct ScriptedKafka {
    pub(crate) layout: Layout,
    speaks: BTreeMap<i16, (i16, i16)>,
    /// The node that coordinates groups and transactions.
    pub(crate) coordinator: i32,
    pub(crate) now: Now,
    pub(crate) faults: Faults,
    /// Answers before anything else does.
    pub(crate) script: Option<Script>,
    /// Changes to come, by kind.
    changes: Vec<(ApiKey, Box<dyn Any>)>,
    asked: Vec<(u16, Box<dyn Any>)>,
    pub(crate) logs: BTreeMap<(String, i32), Log>,
    pub(crate) sessions: HashMap<i32, BrokerSession>,
    /// The session opened last.
    pub(crate) last_session: i32,
    pub(crate) keep_sessions: bool,
    /// What every log is said to part at, whatever was read.
    pub(crate) lies: Option<(i32, i64)>,
    /// Errors to answer a partition's next fetches with.
    pub(crate) fetch_errors: Vec<(i32, i16)>,
    pub(super) parked: Vec<Incoming>,
    /// Aborted transactions of every partition: producer and first offset.
    pub(super) aborted: Vec<(i64, i64)>,
    /// Shared by all members of a group.
    pub(crate) committed: Rc<RefCell<BTreeMap<(String, i32), i64>>>,
    /// The leader epoch that committed offsets have.
    pub(crate) committed_epoch: i32,
    /// Commits that were looked at, with the names of topics that were given by id.
    pub(crate) commits: Vec<OffsetCommitRequest>,
    pub(crate) member: Rc<RefCell<Group>>,
    /// Which of the group's engines this is.
    pub(crate) who: usize,
    /// What the coordinator answers to heartbeats of KIP-848 and of share groups, before what it does by itself.
    pub(crate) beats: VecDeque<Beat>,
    /// Who joins is given all partitions of the first topic.
    pub(crate) gives_all: bool,
    /// Every heartbeat is answered with these, in place of that.
    pub(crate) gives: Option<Vec<i32>>,
    /// Commits of an earlier member epoch are refused.
    pub(crate) commits_from: i32,
    /// Share groups. While this has partitions, Fetch and `ListOffsets` are about them.
    pub(crate) share: ShareKafka,
    pub(super) waiting: BTreeMap<u64, Incoming>,
    pub(super) last_token: u64,
    /// Answers of share sessions of this node do not come.
    pub(crate) silent: Option<i32>,
    /// Groups that there are, and the node that coordinates each.
    pub(crate) groups: Vec<(&'static str, i32)>,
    /// Settings by kind and name of a resource.
    pub(super) configs: BTreeMap<(i8, String), BTreeMap<String, String>>,
    /// Where a share group stands in the first topic: partition, start, lag, code.
    pub(crate) share_offsets: Vec<(i32, i64, i64, ErrorCode)>,
    /// Why no topic is to be had.
    pub(crate) topic_error: ErrorCode,
    /// Produce requests wait, all of them or those to one node, and what comes behind them.
    pub(crate) holding: bool,
    pub(crate) held_node: Option<i32>,
    pub(crate) throttle_ms: i32,
    /// `max.message.bytes` of all topics.
    pub(crate) batch_bytes_max: usize,
    /// Ids and epochs to give to idempotent producers, before those that are counted.
    pub(crate) identities: VecDeque<(i64, i16)>,
    pub(super) last_identity: i64,
    pub(crate) transactions: Transactions,
    /// Requests for memory to write to, which a test answers.
    pub(crate) grants: VecDeque<Incoming>,
    /// The topics that Metadata requests have asked to be made if they are missing.
    pub(crate) to_make: BTreeSet<String>,
}

impl ScriptedKafka {
    /// Topics with so many partitions, all led by node 1.
    pub(crate) fn new(topics: &[(&'static str, i32)]) -> ScriptedKafka {
        let leaders = |count: i32| vec![1; usize::try_from(count).unwrap()];
        let topics = topics.iter().map(|(name, count)| (*name, leaders(*count))).collect();
        ScriptedKafka::with(Layout { nodes: vec![1], topics, epoch: 4 })
    }

    pub(crate) fn with(layout: Layout) -> ScriptedKafka {
        let mut logs = BTreeMap::new();
        for (name, leaders) in &layout.topics {
            logs.extend(
                (0..).zip(leaders).map(|(partition, _)| (((*name).to_owned(), partition), Log::default())),
            );
        }
        ScriptedKafka {
            layout,
            speaks: BTreeMap::new(),
            coordinator: 1,
            now: Now { mono_ms: 0, wall_ms: 0 },
            faults: Faults::default(),
            script: None,
            changes: Vec::new(),
            asked: Vec::new(),
            logs,
            sessions: HashMap::new(),
            last_session: 10,
            keep_sessions: true,
            lies: None,
            fetch_errors: Vec::new(),
            parked: Vec::new(),
            aborted: Vec::new(),
            committed: Rc::default(),
            committed_epoch: -1,
            commits: Vec::new(),
            member: Rc::default(),
            who: 0,
            beats: VecDeque::new(),
            gives_all: false,
            gives: None,
            commits_from: i32::MIN,
            share: ShareKafka::new(30_000),
            waiting: BTreeMap::new(),
            last_token: 0,
            silent: None,
            groups: Vec::new(),
            configs: BTreeMap::new(),
            share_offsets: Vec::new(),
            topic_error: ErrorCode::NONE,
            holding: false,
            held_node: None,
            throttle_ms: 0,
            batch_bytes_max: usize::MAX,
            identities: VecDeque::new(),
            last_identity: 100,
            transactions: Transactions::default(),
            grants: VecDeque::new(),
            to_make: BTreeSet::new(),
        }
    }

    // ---- what tests do

    /// Changes the next answers of a kind, so many.
    pub(crate) fn spoil<R: Request>(
        &mut self,
        times: usize,
        mut change: impl FnMut(&mut R::Response) + 'static,
    ) where
        R::Response: 'static,
    {
        let mut left = times;
        self.spoil_until::<R>(move |response| {
            change(response);
            left -= 1;
            left == 0
        });
    }

    /// Brokers speak these versions of an API from now on, in place of those that we know; `(0, -1)`: none.
    pub(crate) fn speak(&mut self, key: ApiKey, min: i16, max: i16) {
        self.speaks.insert(key.code(), (min, max));
    }

    /// Changes answers of a kind, until it says that that was all.
    pub(crate) fn spoil_until<R: Request>(&mut self, change: impl FnMut(&mut R::Response) -> bool + 'static)
    where
        R::Response: 'static,
    {
        let change: Change<R::Response> = Box::new(change);
        self.changes.push((R::KEY, Box::new(change)));
    }

    /// Every request of a kind so far, with its port.
    pub(crate) fn asked<R: Request + 'static>(&self) -> Vec<(u16, &R)> {
        self.asked.iter().filter_map(|(port, request)| Some((*port, request.downcast_ref::<R>()?))).collect()
    }

    /// Changes that are not over.
    pub(crate) fn spoils_left(&self) -> usize {
        self.changes.len()
    }

    pub(crate) fn spoil_no_more(&mut self) {
        self.changes.clear();
    }

    pub(crate) fn log(&mut self, topic: &str, partition: i32) -> &mut Log {
        self.logs.get_mut(&(topic.to_owned(), partition)).unwrap()
    }

    /// Appends `batches` batches of `each` records "topic-partition-offset".
    pub(crate) fn fill(&mut self, topic: &str, partition: i32, batches: i64, each: i64, codec: Codec) {
        let log = self.log(topic, partition);
        for _ in 0..batches {
            let values: Vec<_> =
                (log.end..log.end + each).map(|o| format!("{topic}-{partition}-{o}")).collect();
            log.append(codec, &values);
        }
    }

    /// Appends a control batch to partition 0.
    pub(crate) fn append_control(&mut self, topic: &str) {
        self.log(topic, 0).append_marked(&["marker"], 0x20, -1);
    }

    /// Appends a transaction and its end marker to partition 0.
    pub(crate) fn append_transaction(&mut self, topic: &str, producer: i64, values: &[&str], aborted: bool) {
        let log = self.log(topic, 0);
        let first = log.end;
        log.append_marked(values, 0x10, producer);
        log.append_marked(&["marker"], 0x30, producer);
        if aborted {
            self.aborted.push((producer, first));
        }
    }

    /// Deletes a topic; its id is not used again.
    pub(crate) fn delete(&mut self, name: &str) {
        self.logs.retain(|(topic, _), _| topic != name);
        for topic in self.layout.topics.iter_mut().filter(|topic| topic.0 == name) {
            topic.0 = "gone";
        }
    }

    /// Deletes a topic and makes it again.
    pub(crate) fn make_again(&mut self, name: &'static str, batches: i64) {
        self.delete(name);
        self.make(name, batches);
    }

    /// Makes a topic with one partition and `batches` batches of ten records.
    pub(crate) fn make(&mut self, name: &'static str, batches: i64) {
        self.layout.topics.push((name, vec![1]));
        self.logs.insert((name.to_owned(), 0), Log::default());
        self.fill(name, 0, batches, 10, Codec::None);
    }

    pub(super) fn topic_of(&self, id: Uuid) -> String {
        self.layout.topics[usize::from(id.0[0]) - 1].0.to_owned()
    }

    // ---- answers

    /// Answers by its state, unless a fault befalls the request or a change the answer. `None` of `handler`: not now.
    fn serve<R: Refusal>(
        &mut self,
        incoming: &Incoming,
        handler: impl FnOnce(&mut Self, &Incoming, &R) -> Option<R::Response>,
    ) -> Answer
    where
        R::Response: 'static,
    {
        let request: R = incoming.decode();
        self.asked.push((incoming.port, Box::new(request.clone())));
        let fault = self.faults.take(R::KEY);
        let mut reply_to = incoming.clone();
        let mut response = match fault {
            Fault::DropBefore => return Answer::Last(Vec::new()),
            Fault::Refuse(code) => request.refused(code),
            Fault::Spoil(way) => {
                let good =
                    || handler(self, incoming, &request).map(|response| incoming.reply::<R>(&response));
                return spoiled(way, incoming, good).unwrap_or(Answer::Silence);
            }
            _ => match handler(self, incoming, &request) {
                None => return if fault == Fault::Mute { Answer::Mute } else { Answer::Silence },
                Some(response) => response,
            },
        };
        match fault {
            Fault::DropAfter => return Answer::Last(Vec::new()),
            Fault::Mute => return Answer::Mute,
            Fault::DoThenSay(code) => response = request.refused(code),
            Fault::Garble => reply_to.correlation ^= 1 << 20,
            _ => {}
        }
        self.finish::<R>(&reply_to, response)
    }

    /// The answer with what a test changes about it.
    pub(super) fn finish<R: Request>(&mut self, incoming: &Incoming, mut response: R::Response) -> Answer
    where
        R::Response: 'static,
    {
        if let Some(at) = self.changes.iter().position(|(key, _)| *key == R::KEY) {
            let change = self.changes[at].1.downcast_mut::<Change<R::Response>>().unwrap();
            if change(&mut response) {
                self.changes.remove(at);
            }
        }
        incoming.reply::<R>(&response)
    }

    pub(crate) fn answer(&mut self, incoming: &Incoming) -> Answer {
        let held = self.holding || self.held_node == Some(incoming.node());
        if held && incoming.key == ApiKey::Produce {
            return Answer::Later;
        }
        let scripted = self.script.as_mut().and_then(|script| script(incoming));
        scripted.unwrap_or_else(|| self.good_answer(incoming))
    }

    fn good_answer(&mut self, i: &Incoming) -> Answer {
        let shares = !self.share.parts.is_empty();
        match i.key {
            ApiKey::ApiVersions => self.serve(i, |kafka, _, _: &ApiVersionsRequest| Some(kafka.versions())),
            ApiKey::Metadata => self.serve(i, |kafka, _, request| Some(kafka.metadata(request))),
            ApiKey::FindCoordinator => {
                self.serve(i, |kafka, _, request| Some(found(request, kafka.coordinator, ErrorCode::NONE)))
            }
            ApiKey::ConsumerGroupHeartbeat => {
                self.serve(i, |kafka, _, request| Some(kafka.consumer_heartbeat(request)))
            }
            ApiKey::ShareGroupHeartbeat => {
                self.serve(i, |kafka, _, request| Some(kafka.share_heartbeat(request)))
            }
            ApiKey::ShareFetch => self.serve(i, Self::share_fetch),
            ApiKey::ShareAcknowledge => self.serve(i, Self::share_acknowledge),
            ApiKey::Fetch if shares => self.serve(i, Self::watch),
            ApiKey::ListOffsets if shares => self.serve(i, |kafka, _, request| Some(kafka.ends(request))),
            ApiKey::Fetch => self.serve(i, Self::fetch),
            ApiKey::ListOffsets => self.serve(i, |kafka, _, request| Some(kafka.list_offsets(request))),
            ApiKey::OffsetForLeaderEpoch => {
                self.serve(i, |kafka, _, request| Some(kafka.epoch_ends(request)))
            }
            ApiKey::OffsetFetch => self.serve(i, |kafka, _, request| Some(kafka.offset_fetch(request))),
            ApiKey::OffsetCommit => self.serve(i, |kafka, i, request| Some(kafka.offset_commit(i, request))),
            ApiKey::JoinGroup => self.serve(i, |kafka, i, request| kafka.group().join(kafka.who, i, request)),
            ApiKey::SyncGroup => self.serve(i, |kafka, i, request| kafka.group().sync(kafka.who, i, request)),
            ApiKey::Heartbeat => self.serve(i, |kafka, _, request| Some(kafka.group().heartbeat(request))),
            ApiKey::LeaveGroup => self.serve(i, |kafka, _, request| Some(kafka.group().leave(request))),
            ApiKey::Produce => self.serve(i, Self::produce),
            ApiKey::InitProducerId => {
                self.serve(i, |kafka, _, request| Some(kafka.init_producer_id(request)))
            }
            ApiKey::AddPartitionsToTxn => {
                self.serve(i, |kafka, _, request| Some(kafka.add_partitions(request)))
            }
            ApiKey::AddOffsetsToTxn => self.serve(i, |kafka, _, request| Some(kafka.add_offsets(request))),
            ApiKey::TxnOffsetCommit => {
                self.serve(i, |kafka, i, request| Some(kafka.txn_offset_commit(i.version, request)))
            }
            ApiKey::EndTxn => self.serve(i, |kafka, i, request| Some(kafka.end_txn(i.version, request))),
            ApiKey::DescribeCluster => {
                self.serve(i, |kafka, _, _: &DescribeClusterRequest| Some(kafka.describe_cluster()))
            }
            ApiKey::CreateTopics => self.serve(i, |kafka, _, request| Some(kafka.create_topics(request))),
            ApiKey::DeleteTopics => self.serve(i, |kafka, _, request| Some(kafka.delete_topics(request))),
            ApiKey::CreatePartitions => self.serve(i, does_nothing::<CreatePartitionsRequest>),
            ApiKey::AlterPartitionReassignments => {
                self.serve(i, does_nothing::<AlterPartitionReassignmentsRequest>)
            }
            ApiKey::ListPartitionReassignments => {
                self.serve(i, does_nothing::<ListPartitionReassignmentsRequest>)
            }
            ApiKey::ElectLeaders => self.serve(i, does_nothing::<ElectLeadersRequest>),
            ApiKey::DeleteRecords => self.serve(i, does_nothing::<DeleteRecordsRequest>),
            ApiKey::ListGroups => self.serve(i, |kafka, i, _: &ListGroupsRequest| Some(kafka.list_groups(i))),
            ApiKey::DescribeGroups => self.serve(i, does_nothing::<DescribeGroupsRequest>),
            ApiKey::DeleteGroups => self.serve(i, does_nothing::<DeleteGroupsRequest>),
            ApiKey::DescribeConfigs => {
                self.serve(i, |kafka, _, request| Some(kafka.describe_configs(request)))
            }
            ApiKey::IncrementalAlterConfigs => {
                self.serve(i, |kafka, _, request| Some(kafka.alter_configs(request)))
            }
            ApiKey::DescribeShareGroupOffsets => {
                self.serve(i, |kafka, _, request| Some(kafka.share_group_offsets(request)))
            }
            ApiKey::DirectConnect => self.serve(i, does_nothing::<DirectConnectRequest>),
            ApiKey::DirectRelease => self.serve(i, does_nothing::<DirectReleaseRequest>),
            ApiKey::GrantProduce => self.serve(i, |kafka, i, _: &GrantProduceRequest| {
                kafka.grants.push_back(i.clone());
                None
            }),
            key => panic!("{key:?} was not expected on port {}", i.port),
        }
    }

    /// The group, with all its members.
    pub(crate) fn group(&self) -> std::cell::RefMut<'_, Group> {
        self.member.borrow_mut()
    }

    fn versions(&self) -> ApiVersionsResponse {
        let mut list = version_list();
        for api in &mut list.api_keys {
            if let Some((min, max)) = self.speaks.get(&api.api_key) {
                (api.min_version, api.max_version) = (*min, *max);
            }
        }
        list.api_keys.retain(|api| api.min_version <= api.max_version);
        let level = if self.transactions.implicit { 2 } else { 1 };
        list.finalized_features_epoch = 7;
        list.finalized_features = vec![FinalizedFeatureKey {
            name: "transaction.version".to_owned(),
            max_version_level: level,
            min_version_level: level,
        }];
        list
    }

    fn metadata(&mut self, request: &MetadataRequest) -> MetadataResponse {
        if request.allow_auto_topic_creation {
            self.to_make.extend(request.topics.iter().flatten().filter_map(|topic| topic.name.clone()));
        }
        let mut response = self.layout.metadata_for(request.clone());
        for topic in response.topics.iter_mut().filter(|_| !self.topic_error.is_none()) {
            topic.error_code = self.topic_error.code();
            topic.partitions.clear();
        }
        response
    }
}

/// An answer that says that all went well.
#[expect(clippy::unnecessary_wraps, reason = "as every handler")]
fn does_nothing<R: Refusal>(_: &mut ScriptedKafka, _: &Incoming, request: &R) -> Option<R::Response> {
    Some(request.refused(ErrorCode::NONE))
}

impl Peers for ScriptedKafka {
    fn answer(&mut self, incoming: &Incoming) -> Answer {
        ScriptedKafka::answer(self, incoming)
    }

    fn set_time(&mut self, now: Now) {
        self.now = now;
        self.share.now_ms = now.mono_ms;
    }

    fn timeout(&self) -> Option<u64> {
        self.share.timeout()
    }

    fn ready(&mut self) -> Vec<(ConnId, Vec<u8>)> {
        self.late_answers()
    }

    fn disconnected(&mut self, conn: ConnId) {
        self.share.disconnected(conn.0.into());
    }
}
