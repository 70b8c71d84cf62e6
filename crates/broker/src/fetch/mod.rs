//! Fetch: reads file ranges of many partitions, waits for `MinBytes` or `MaxWaitMs`, and answers within KIP-74's
//! limits and KIP-227's sessions. Record bytes are never read here.

mod read;
mod session;

use std::collections::{BTreeSet, HashMap};

use headrace_log::{Disk, Slice};
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame;
use headrace_wire::messages::fetch_response::{
    EpochEndOffset, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData,
};
use headrace_wire::messages::{FetchRequest, FetchResponse};
use headrace_wire::primitive::Records;
use headrace_wire::uuid::Uuid;

use crate::broker::Broker;
use crate::call::{Call, Parked, Response, Wait};
use read::PartitionRead;
use session::{Answered, Context};

pub(crate) use session::{FetchItem, FetchSessions, TopicKey};

/// The first version that names topics by id.
const BY_ID_FROM: i16 = 13;

/// Partitions that one request reads, with those that its session remembers.
pub(crate) const PARTITIONS_MAX: usize = 20_000;

/// The first version whose errors name the leader, and the first that gives its address (KIP-951).
const LEADER_FROM: i16 = 12;
const LEADER_ADDRESS_FROM: i16 = 16;

/// A fetch that waits for records.
#[derive(Debug)]
pub(crate) struct FetchWait {
    context: Context,
    items: Vec<FetchItem>,
    min_bytes: u64,
    max_bytes: u32,
    deadline: u64,
    /// It is answered on the next try, whatever there is.
    pub(crate) overdue: bool,
    /// Bytes that were there on the last try, and those appended since.
    seen_bytes: u64,
}

impl<D: Disk> Broker<D> {
    /// Handles a Fetch request.
    ///
    /// Most work: [`PARTITIONS_MAX`] partitions looked up and answered, once when it comes and once when it has waited; of
    /// records only ranges of files are noted. A partition that is named again replaces what was asked of it before.
    pub(crate) fn fetch(&mut self, call: &Call, request: FetchRequest) {
        let by_id = call.version >= BY_ID_FROM;
        let items = items_of(&request, by_id);
        let forgotten = forgotten_of(&request, by_id);
        let (id, epoch) = (request.session_id, request.session_epoch);
        let context = if items.len().max(forgotten.len()) > PARTITIONS_MAX {
            Err(ErrorCode::INVALID_REQUEST)
        } else {
            self.sessions.begin((self.now.mono_ms, call.conn), id, epoch, by_id, items, &forgotten)
        };
        let context = match context {
            Ok(context) => context,
            Err(error) => {
                let response = FetchResponse { error_code: error.code(), ..FetchResponse::default() };
                self.send_fetch(call, &response, Vec::new());
                return;
            }
        };
        let items = match &context {
            Context::Sessionless(items) | Context::Full(items) => items.clone(),
            Context::Incremental { id, .. } => self.sessions.items(*id),
        };
        let limit = u32::try_from(self.config.fetch_max_bytes).unwrap_or(u32::MAX);
        let wait = FetchWait {
            context,
            items,
            min_bytes: u64::try_from(request.min_bytes).unwrap_or(0),
            max_bytes: u32::try_from(request.max_bytes).unwrap_or(0).min(limit),
            deadline: self.now.mono_ms.saturating_add(u64::try_from(request.max_wait_ms).unwrap_or(0)),
            overdue: request.max_wait_ms <= 0,
            seen_bytes: 0,
        };
        self.answer_or_park(call.clone(), wait, true);
    }

    /// Tries a parked fetch again.
    pub(crate) fn retry_fetch(&mut self, token: u64) {
        match self.parked.remove(&token) {
            Some(Parked { call, wait: Wait::Fetch(wait) }) => self.answer_or_park(call, *wait, false),
            Some(other) => {
                self.parked.insert(token, other);
            }
            None => {}
        }
    }

    fn answer_or_park(&mut self, call: Call, mut wait: FetchWait, first_try: bool) {
        let reads = self.read_all(&call, &wait.items, wait.max_bytes);
        let bytes = reads.iter().map(|r| u64::from(r.bytes())).sum();
        let urgent = reads.iter().any(PartitionRead::is_urgent);
        let hopeless = reads.iter().all(PartitionRead::is_hopeless);
        if wait.overdue || urgent || hopeless || bytes >= wait.min_bytes {
            if !first_try {
                self.deadlines.remove(&(wait.deadline, call.token));
                self.unwatch_items(call.token, &wait.items);
            }
            self.answer_fetch(&call, wait.context, reads);
            return;
        }
        wait.seen_bytes = bytes;
        if first_try {
            self.deadlines.insert((wait.deadline, call.token));
            for item in &wait.items {
                if let Some(partition) = self.store.find_partition_mut(&item.topic, item.partition) {
                    partition.watchers.push(call.token);
                }
            }
        }
        self.parked.insert(call.token, Parked { call, wait: Wait::Fetch(Box::new(wait)) });
    }

    /// Tells the fetches that wait for a partition that `bytes` were appended to it.
    #[inline]
    pub(crate) fn wake(
        parked: &mut HashMap<u64, Parked>,
        woken: &mut BTreeSet<u64>,
        watchers: &[u64],
        bytes: u64,
    ) {
        for token in watchers {
            if let Some(Parked { wait: Wait::Fetch(wait), .. }) = parked.get_mut(token) {
                wait.seen_bytes = wait.seen_bytes.saturating_add(bytes);
                if wait.seen_bytes >= wait.min_bytes {
                    woken.insert(*token);
                }
            }
        }
    }

    /// Has the fetches that wait for a partition answered at once: it is going away.
    pub(crate) fn wake_now(&mut self, watchers: &[u64]) {
        for token in watchers {
            if let Some(Parked { wait: Wait::Fetch(wait), .. }) = self.parked.get_mut(token) {
                wait.overdue = true;
                self.woken.insert(*token);
            }
        }
    }

    /// A parked request will not be answered: nothing wakes it any more.
    pub(crate) fn unwatch(&mut self, parked: &Parked) {
        if let Wait::Fetch(wait) = &parked.wait {
            self.deadlines.remove(&(wait.deadline, parked.call.token));
            self.woken.remove(&parked.call.token);
            self.unwatch_items(parked.call.token, &wait.items);
        }
    }

    fn unwatch_items(&mut self, token: u64, items: &[FetchItem]) {
        for item in items {
            if let Some(partition) = self.store.find_partition_mut(&item.topic, item.partition) {
                partition.watchers.retain(|t| *t != token);
            }
        }
    }

    fn answer_fetch(&mut self, call: &Call, context: Context, reads: Vec<PartitionRead<D::File>>) {
        let (session_id, reads) = match context {
            Context::Sessionless(_) => (0, reads),
            Context::Full(_) => {
                let answers = reads.iter().map(|r| (r.item.clone(), r.answered())).collect();
                let by_id = call.version >= BY_ID_FROM;
                let random = &mut self.random;
                let id = if call.version >= 7 {
                    self.sessions.open((self.now.mono_ms, call.conn), by_id, answers, || random.next())
                } else {
                    0
                };
                (id, reads)
            }
            Context::Incremental { id, epoch } => {
                if !self.sessions.is_current(id, epoch) {
                    let error_code = ErrorCode::INVALID_FETCH_SESSION_EPOCH.code();
                    self.send_fetch(
                        call,
                        &FetchResponse { error_code, ..FetchResponse::default() },
                        Vec::new(),
                    );
                    return;
                }
                let news: Vec<_> =
                    reads.into_iter().filter(|r| self.sessions.has_news(id, &r.item, r.answered())).collect();
                for read in &news {
                    self.sessions.answered(id, &read.item, read.answered());
                }
                (id, news)
            }
        };
        let (response, files) = self.fetch_response(call.version, session_id, reads);
        self.send_fetch(call, &response, files);
    }

    fn fetch_response(
        &self,
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
            let fenced = read.error == ErrorCode::FENCED_LEADER_EPOCH;
            if fenced && version >= LEADER_ADDRESS_FROM && response.node_endpoints.is_empty() {
                response.node_endpoints.push(NodeEndpoint {
                    node_id: self.config.node_id,
                    host: self.config.advertised_host.clone(),
                    port: i32::from(self.config.advertised_port),
                    rack: self.config.broker_rack.clone(),
                });
            }
            let data = self.partition_data(read, fenced && version >= LEADER_FROM, &mut files);
            if let Some(topic) = response.responses.last_mut() {
                topic.partitions.push(data);
            }
        }
        (response, files)
    }

    fn partition_data(
        &self,
        read: PartitionRead<D::File>,
        with_leader: bool,
        files: &mut Vec<Slice<D::File>>,
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
        // Clients send an epoch to compare from version 12 on, which is also when this can be told.
        if let Some((epoch, end_offset)) = read.diverging {
            data.diverging_epoch = EpochEndOffset { epoch, end_offset };
        }
        if with_leader {
            data.current_leader =
                LeaderIdAndEpoch { leader_id: self.config.node_id, leader_epoch: self.store.leader_epoch() };
        }
        if let Some(slice) = read.slice
            && slice.len > 0
        {
            data.records = Some(Records::External { token: files.len() as u64, len: slice.len });
            files.push(slice);
        }
        data
    }

    fn send_fetch(&mut self, call: &Call, response: &FetchResponse, files: Vec<Slice<D::File>>) {
        match frame::encode_response::<FetchRequest>(call.version, call.correlation_id, response) {
            Ok(body) => self.send(call, Response { conn: call.conn, body, files }),
            Err(error) => {
                self.close_connection(call.conn, format!("a Fetch response cannot be encoded: {error}"));
            }
        }
    }
}

impl<F> PartitionRead<F> {
    fn bytes(&self) -> u32 {
        self.slice.as_ref().map_or(0, |s| s.len)
    }

    /// Waiting would keep the client from something it must know.
    fn is_urgent(&self) -> bool {
        self.diverging.is_some() || (self.error != ErrorCode::NONE && !self.is_hopeless())
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
