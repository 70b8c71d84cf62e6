//! Fetch: reads file ranges of many partitions, waits for `MinBytes` or `MaxWaitMs`, and answers within KIP-74's
//! limits and KIP-227's sessions. Record bytes are never read here.

mod nearest;
mod read;
mod session;

pub(crate) use read::is_prefix;
pub(crate) use session::FetchItem;

use std::collections::{BTreeSet, HashMap};

use headrace_cluster::model::Registration;
use headrace_log::{Disk, Slice};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::fetch_response::{
    EpochEndOffset, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData,
};
use headrace_wire::messages::{FetchRequest, FetchResponse};
use headrace_wire::primitive::Records;
use headrace_wire::time::Now;
use headrace_wire::uuid::Uuid;

use crate::config::BrokerConfig;
use crate::context::Context;
use crate::context::call::{Call, ConnId, Outcome};
use crate::store::{Partition, TopicKey};
use read::{PartitionRead, Reader, read_all};
use session::{Answered, FetchSessions, PARTITIONS_MAX, Scope};

/// The first version in which a consumer names its rack, and may be sent to a follower (KIP-392).
const RACK_FROM: i16 = 11;

/// The first version that names topics by id.
const BY_ID_FROM: i16 = 13;

/// The first version whose errors name the leader, and the first that gives its address (KIP-951).
const LEADER_FROM: i16 = 12;
const LEADER_ADDRESS_FROM: i16 = 16;

/// A fetch that waits for records.
#[derive(Debug)]
struct FetchWait {
    scope: Scope,
    items: Vec<FetchItem>,
    reader: Reader,
    min_bytes: u64,
    max_bytes: u32,
    deadline: u64,
    /// It is answered on the next try, whatever there is.
    overdue: bool,
    /// Bytes that were there on the last try, and those appended since.
    seen_bytes: u64,
}

/// Fetch sessions, and the fetches that wait.
#[derive(Debug)]
pub(crate) struct Fetch {
    sessions: FetchSessions,
    /// By token.
    waiting: HashMap<u64, (Call, Box<FetchWait>)>,
    /// Of those that wait.
    deadlines: BTreeSet<(u64, u64)>,
    /// Those that may have enough now.
    woken: BTreeSet<u64>,
}

impl Fetch {
    pub(crate) fn new(config: &BrokerConfig) -> Self {
        let slots = usize::try_from(config.max_incremental_fetch_session_cache_slots).unwrap_or(0);
        Self {
            sessions: FetchSessions::new(slots),
            waiting: HashMap::new(),
            deadlines: BTreeSet::new(),
            woken: BTreeSet::new(),
        }
    }

    /// Fetches that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// When [`Fetch::handle_timeout`] has something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Whether [`Fetch::work`] has something to do.
    pub(crate) fn has_work(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Handles a Fetch request.
    ///
    /// Most work: [`PARTITIONS_MAX`] partitions looked up and answered, once when it comes and once when it has waited; of
    /// records only ranges of files are noted. A partition that is named again replaces what was asked of it before.
    pub(crate) fn fetch<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        mut request: FetchRequest,
    ) -> Outcome<FetchResponse> {
        let by_id = call.version >= BY_ID_FROM;
        let from = match context.follower_of(call, &request) {
            Ok(from) => from,
            Err(error) => {
                let error_code = error.code();
                return Outcome::Reply(FetchResponse { error_code, ..FetchResponse::default() });
            }
        };
        let items = items_of(&request, by_id);
        let forgotten = forgotten_of(&request, by_id);
        let (id, epoch) = (request.session_id, request.session_epoch);
        let scope = if items.len().max(forgotten.len()) > PARTITIONS_MAX {
            Err(ErrorCode::INVALID_REQUEST)
        } else {
            let by = (context.now.mono_ms, call.conn);
            self.sessions.begin(by, id, epoch, by_id, items, &forgotten)
        };
        let scope = match scope {
            Ok(scope) => scope,
            Err(error) => {
                let error_code = error.code();
                return Outcome::Reply(FetchResponse { error_code, ..FetchResponse::default() });
            }
        };
        let items = match &scope {
            Scope::Sessionless(items) | Scope::Full(items) => items.clone(),
            Scope::Incremental { id, .. } => self.sessions.items(*id),
        };
        let reader = Reader::new(context, call.version, from, std::mem::take(&mut request.rack_id));
        let limit = u32::try_from(context.config.fetch_max_bytes).unwrap_or(u32::MAX);
        let max_wait_ms = u64::try_from(request.max_wait_ms).unwrap_or(0);
        let wait = FetchWait {
            scope,
            items,
            reader,
            min_bytes: u64::try_from(request.min_bytes).unwrap_or(0),
            max_bytes: u32::try_from(request.max_bytes).unwrap_or(0).min(limit),
            deadline: context.now.mono_ms.saturating_add(max_wait_ms),
            overdue: request.max_wait_ms <= 0,
            seen_bytes: 0,
        };
        self.answer_or_park(context, call.clone(), wait, true);
        Outcome::Parked
    }

    /// Tries a fetch again that was woken.
    pub(crate) fn work<D: Disk>(&mut self, context: &mut Context<D>) {
        if let Some(token) = self.woken.pop_first()
            && let Some((call, wait)) = self.waiting.remove(&token)
        {
            self.answer_or_park(context, call, *wait, false);
        }
    }

    /// Has the fetches tried again that have waited for long enough.
    pub(crate) fn handle_timeout(&mut self, now: Now) {
        while let Some(&(at, token)) = self.deadlines.first()
            && at <= now.mono_ms
        {
            self.deadlines.pop_first();
            self.wake_now(&[token]);
        }
    }

    /// A client has gone, and the request that it waited for.
    pub(crate) fn handle_disconnect<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        conn: ConnId,
        current: Option<u64>,
    ) {
        self.sessions.end_of(conn);
        if let Some(token) = current
            && let Some((_, wait)) = self.waiting.remove(&token)
        {
            self.woken.remove(&token);
            self.unwatch(context, token, &wait);
        }
    }

    /// The broker is closed: nobody waits any more.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.deadlines.clear();
        self.woken.clear();
    }

    fn answer_or_park<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: Call,
        mut wait: FetchWait,
        first_try: bool,
    ) {
        if let (true, Some(from)) = (first_try, wait.reader.from) {
            wait.items.iter().for_each(|item| context.note_fetched(from, item));
        }
        let reads = read_all(context, &call, &wait.items, wait.max_bytes, &wait.reader);
        let bytes = reads.iter().map(|r| u64::from(r.bytes())).sum();
        let urgent = reads.iter().any(PartitionRead::is_urgent);
        let hopeless = reads.iter().all(PartitionRead::is_hopeless);
        if wait.overdue || urgent || hopeless || bytes >= wait.min_bytes {
            if !first_try {
                self.unwatch(context, call.token, &wait);
            }
            self.answer_fetch(context, &call, wait.scope, reads);
            return;
        }
        wait.seen_bytes = bytes;
        if first_try {
            self.deadlines.insert((wait.deadline, call.token));
            for item in &wait.items {
                if let Some(partition) = context.store.find_partition_mut(&item.topic, item.partition) {
                    watchers(partition, wait.reader.from).push(call.token);
                }
            }
        }
        self.waiting.insert(call.token, (call, Box::new(wait)));
    }

    /// Tells the fetches that wait for a partition that `bytes` were appended to it.
    pub(crate) fn wake(&mut self, watchers: &[u64], bytes: u64) {
        for token in watchers {
            if let Some((_, wait)) = self.waiting.get_mut(token) {
                wait.seen_bytes = wait.seen_bytes.saturating_add(bytes);
                if wait.seen_bytes >= wait.min_bytes {
                    self.woken.insert(*token);
                }
            }
        }
    }

    /// Has these fetches answered at once: what they wait for is going away, or their time is over.
    pub(crate) fn wake_now(&mut self, watchers: &[u64]) {
        for token in watchers {
            if let Some((_, wait)) = self.waiting.get_mut(token) {
                wait.overdue = true;
                self.woken.insert(*token);
            }
        }
    }

    /// A fetch waits no longer.
    fn unwatch<D: Disk>(&mut self, context: &mut Context<D>, token: u64, wait: &FetchWait) {
        self.deadlines.remove(&(wait.deadline, token));
        for item in &wait.items {
            if let Some(partition) = context.store.find_partition_mut(&item.topic, item.partition) {
                watchers(partition, wait.reader.from).retain(|t| *t != token);
            }
        }
    }

    fn answer_fetch<D: Disk>(
        &mut self,
        context: &mut Context<D>,
        call: &Call,
        scope: Scope,
        reads: Vec<PartitionRead<D::File>>,
    ) {
        let (session_id, reads) = match scope {
            Scope::Sessionless(_) => (0, reads),
            Scope::Full(_) => {
                let answers = reads.iter().map(|r| (r.item.clone(), r.answered())).collect();
                let by_id = call.version >= BY_ID_FROM;
                let id = if call.version >= 7 {
                    let by = (context.now.mono_ms, call.conn);
                    self.sessions.open(by, by_id, answers, || context.random.next())
                } else {
                    0
                };
                (id, reads)
            }
            Scope::Incremental { id, epoch } => {
                if !self.sessions.is_current(id, epoch) {
                    let error_code = ErrorCode::INVALID_FETCH_SESSION_EPOCH.code();
                    let response = FetchResponse { error_code, ..FetchResponse::default() };
                    return context.reply::<FetchRequest>(call, &response);
                }
                let news: Vec<_> =
                    reads.into_iter().filter(|r| self.sessions.has_news(id, &r.item, r.answered())).collect();
                for read in &news {
                    self.sessions.answered(id, &read.item, read.answered());
                }
                (id, news)
            }
        };
        let (response, files) = fetch_response(context, call.version, session_id, reads);
        context.connections.reply::<FetchRequest>(call, &response, files);
    }
}

/// Who is woken when the partition has more for one who asks.
fn watchers<D: Disk>(partition: &mut Partition<D>, from: Option<Registration>) -> &mut Vec<u64> {
    if from.is_some() { &mut partition.followers } else { &mut partition.watchers }
}

fn fetch_response<D: Disk>(
    context: &Context<D>,
    version: i16,
    session_id: i32,
    reads: Vec<PartitionRead<D::File>>,
) -> (FetchResponse, Vec<Slice<D::File>>) {
    let mut response = FetchResponse { session_id, ..FetchResponse::default() };
    let mut files = Vec::new();
    let mut last: Option<TopicKey> = None;
    for read in reads {
        if last.as_ref() != Some(&read.item.topic) {
            let (topic, topic_id) = match &read.item.topic {
                TopicKey::Name(name) => (name.to_string(), Uuid::ZERO),
                TopicKey::Id(id) => (String::new(), *id),
            };
            response.responses.push(FetchableTopicResponse { topic, topic_id, partitions: Vec::new() });
            last = Some(read.item.topic.clone());
        }
        let moved = [ErrorCode::FENCED_LEADER_EPOCH, ErrorCode::NOT_LEADER_OR_FOLLOWER].contains(&read.error);
        let leader = moved.then(|| context.leader_of(&read.item.topic, read.item.partition)).flatten();
        if let Some((leader, _)) = leader.filter(|_| version >= LEADER_ADDRESS_FROM)
            && !response.node_endpoints.iter().any(|one| one.node_id == leader)
        {
            response.node_endpoints.extend(context.endpoint(leader).map(|at| NodeEndpoint {
                node_id: leader,
                host: at.host,
                port: i32::from(at.port),
                rack: at.rack,
            }));
        }
        let data = partition_data(read, leader.filter(|_| version >= LEADER_FROM), &mut files);
        if let Some(topic) = response.responses.last_mut() {
            topic.partitions.push(data);
        }
    }
    (response, files)
}

fn partition_data<F>(
    read: PartitionRead<F>,
    leader: Option<(i32, i32)>,
    files: &mut Vec<Slice<F>>,
) -> PartitionData {
    let mut data = PartitionData {
        partition_index: read.item.partition,
        error_code: read.error.code(),
        high_watermark: read.high_watermark,
        last_stable_offset: read.high_watermark,
        log_start_offset: read.log_start,
        records: Some(Records::Chunks(Vec::new())),
        ..PartitionData::default()
    };
    if let Some(nearest) = read.nearest {
        data.preferred_read_replica = nearest;
    }
    // Clients send an epoch to compare from version 12 on, which is also when this can be told.
    if let Some((epoch, end_offset)) = read.diverging {
        data.diverging_epoch = EpochEndOffset { epoch, end_offset };
    }
    if let Some((leader_id, leader_epoch)) = leader {
        data.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch };
    }
    if let Some(slice) = read.slice
        && slice.len > 0
    {
        data.records = Some(Records::External { token: files.len() as u64, len: slice.len });
        files.push(slice);
    }
    data
}

impl<F> PartitionRead<F> {
    fn bytes(&self) -> u32 {
        self.slice.as_ref().map_or(0, |s| s.len)
    }

    /// Waiting would keep the client from something it must know.
    fn is_urgent(&self) -> bool {
        self.diverging.is_some()
            || self.nearest.is_some()
            || (self.error != ErrorCode::NONE && !self.is_hopeless())
    }

    /// Waiting for this partition is no use; others of the request may still be worth it.
    fn is_hopeless(&self) -> bool {
        matches!(
            self.error,
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
                | ErrorCode::UNKNOWN_TOPIC_ID
                | ErrorCode::TOPIC_AUTHORIZATION_FAILED
        )
    }

    fn answered(&self) -> Answered {
        Answered {
            failed: self.error != ErrorCode::NONE,
            diverging: self.diverging.is_some(),
            sent_on: self.nearest.is_some(),
            bytes: usize::try_from(self.bytes()).unwrap_or(usize::MAX),
            high_watermark: self.high_watermark,
            log_start: self.log_start,
        }
    }
}

/// What is asked for, each partition once. As in Kafka the last word about a partition counts, and its first place.
fn items_of(request: &FetchRequest, by_id: bool) -> Vec<FetchItem> {
    let mut items: Vec<FetchItem> = Vec::new();
    let mut places = HashMap::new();
    for topic in &request.topics {
        let key =
            if by_id { TopicKey::Id(topic.topic_id) } else { TopicKey::Name(topic.topic.as_str().into()) };
        let place_of: &mut HashMap<i32, usize> = places.entry(key.clone()).or_default();
        for p in &topic.partitions {
            let item = FetchItem {
                topic: key.clone(),
                partition: p.partition,
                offset: p.fetch_offset,
                max_bytes: p.partition_max_bytes,
                current_leader_epoch: p.current_leader_epoch,
                last_fetched_epoch: p.last_fetched_epoch,
                log_start: p.log_start_offset,
            };
            let place = *place_of.entry(p.partition).or_insert(items.len());
            match items.get_mut(place) {
                Some(earlier) => *earlier = item,
                None => items.push(item),
            }
        }
    }
    items
}

fn forgotten_of(request: &FetchRequest, by_id: bool) -> Vec<(TopicKey, i32)> {
    let mut forgotten = Vec::new();
    for topic in &request.forgotten_topics_data {
        let key =
            if by_id { TopicKey::Id(topic.topic_id) } else { TopicKey::Name(topic.topic.as_str().into()) };
        forgotten.extend(topic.partitions.iter().map(|p| (key.clone(), *p)));
    }
    forgotten
}
