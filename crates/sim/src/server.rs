//! The real broker with its disk in memory, behind the nodes of the cluster: frames, responses, syncs, and what a restart
//! leaves of it.

mod exposing;
mod reading;
mod sharing;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use bytes::{Bytes, BytesMut};
use headrace_broker::{AllowAll, Broker, BrokerConfig, ConnId, FlushWork, Response};
use headrace_log::{Disk, MemoryDisk, MemoryFile, SyncFault};
use headrace_wire::compression::decompress;
use headrace_wire::frame::{
    decode_request_header, decode_response, encode_request, encode_response, peek_request,
};
use headrace_wire::messages::api_versions_response::ApiVersion;
use headrace_wire::messages::create_topics_request::CreatableTopic;
use headrace_wire::messages::fetch_request::{FetchPartition, FetchTopic};
use headrace_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use headrace_wire::messages::metadata_request::MetadataRequestTopic;
use headrace_wire::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, CreateTopicsRequest, FetchRequest, ListOffsetsRequest,
    Message, MetadataRequest, ProduceRequest, Request,
};
use headrace_wire::primitive::{Reader, Records, Segment};
use headrace_wire::records::{BatchHeader, RecordIter, batch_size, verify_crc};
use headrace_wire::time::Now;

use self::exposing::SimMemory;
use self::reading::{Read, Sessions};
pub(crate) use self::sharing::Sharing;
use crate::cluster::{Cluster, Refusals};
use crate::frames::Frames;
use crate::plan::{Birth, Down, Place, Plan, TOPICS};
use crate::rng::Rng;

/// Connections of the simulation itself; those of producers are counted from 1.
const OWN: ConnId = ConnId(1 << 60);
const CREATE_VERSION: i16 = 7;
const FETCH_VERSION: i16 = 12;
const LIST_VERSION: i16 = 7;
const METADATA_VERSION: i16 = 12;
/// Timestamps that stand for the end of a log and for its start.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
/// What stands for the value of a record that is not there; those of producers are never empty.
pub(crate) const HOLE: Bytes = Bytes::new();
const DECOMPRESSED_BYTES_MAX: usize = 1 << 24;

/// What the broker has to say to a connection.
#[derive(Debug)]
pub(crate) enum Said {
    /// An answer, and how many refusals of the connection's node are in it.
    Bytes(u64, Bytes, usize),
    Close(u64),
}

/// A request whose answer is not the broker's alone.
#[derive(Debug)]
enum Asked {
    Produce {
        version: i16,
        refused: Refusals,
    },
    Metadata {
        version: i16,
    },
    /// The nodes know share groups.
    Versions {
        version: i16,
    },
    Read(Read),
}

#[derive(Debug)]
struct Client {
    node: usize,
    frames: Frames,
    /// By correlation id.
    asked: HashMap<i32, Asked>,
    broken: bool,
    /// It has gone while its node did nothing: what it asked is still done.
    gone: bool,
    /// Whoever was at its other end waits for nothing any more.
    given_up: bool,
}

/// What a Produce response says beside the broker's part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extra {
    /// The pause that it asks for.
    pub(crate) throttle_ms: i32,
    /// Refusals name the leader.
    pub(crate) tells_leader: bool,
}

pub(crate) struct Server {
    pub(crate) cluster: Cluster,
    /// Batches that were refused since another node leads.
    pub(crate) refused: usize,
    /// Answers to clients of nodes that do nothing, and those that no request of the broker led to.
    said: Vec<Said>,
    /// Connections of the simulation's own that the broker has closed.
    closed_own: Vec<u64>,
    disk: MemoryDisk,
    config: BrokerConfig,
    broker: Option<Broker<MemoryDisk>>,
    clients: BTreeMap<u64, Client>,
    sessions: Sessions,
    syncing: VecDeque<FlushWork<MemoryFile>>,
    /// What the broker said while it was asked something else.
    unread: VecDeque<Response<MemoryFile>>,
    pub(crate) share: Option<Sharing>,
    starts: u64,
    /// Clients may have memory of the broker's, of which so much is not to be had, in percent.
    exposes: Option<u64>,
    /// Bytes of files that readers over RDMA may have registered, by link and key.
    windows: BTreeMap<(u64, u64), u64>,
    /// Ends of links over RDMA so far.
    offered: u64,
    /// The values of records that were deleted, from each partition's first on.
    deleted: BTreeMap<Place, Vec<Bytes>>,
    /// The values of records when power was lost on a drive that had lied of its syncs.
    before_loss: BTreeMap<Place, Vec<Bytes>>,
    /// Those of them that were gone then.
    lost: Vec<Bytes>,
    lost_power: bool,
    seed: u64,
}

impl Server {
    pub(crate) fn new(plan: &Plan, rng: &mut Rng, now: Now) -> Result<Self, String> {
        let partitions = plan.partitions.to_string();
        let auto_create = plan.auto_create().to_string();
        let mut options = vec![
            ("log.dir", "/data"),
            ("advertised.host", "broker"),
            ("advertised.port", "9092"),
            ("num.partitions", &partitions),
            ("auto.create.topics.enable", &auto_create),
            ("group.min.session.timeout.ms", "1"),
        ];
        if plan.durable {
            options.push(("log.flush.interval.messages", "1"));
        }
        let roll_ms = plan.roll_ms.map(|ms| ms.to_string());
        if let Some(ms) = &roll_ms {
            options.extend([("log.roll.ms", ms.as_str()), ("log.index.interval.bytes", "100")]);
        }
        let exposing = plan.direct.as_ref().map(|direct| direct.settings.clone()).unwrap_or_default();
        options.extend(exposing.iter().map(|(name, value)| (*name, value.as_str())));
        let config = BrokerConfig::from_pairs(options).map_err(|why| why.to_string())?;
        let mut server = Self {
            cluster: Cluster::new(plan, rng),
            refused: 0,
            said: Vec::new(),
            closed_own: Vec::new(),
            disk: MemoryDisk::new(),
            config,
            broker: None,
            clients: BTreeMap::new(),
            sessions: Sessions::default(),
            syncing: VecDeque::new(),
            unread: VecDeque::new(),
            share: plan.share.as_ref().map(|share| Sharing::new(plan, share, rng)),
            starts: 0,
            exposes: plan.direct.as_ref().map(|direct| direct.missing),
            windows: BTreeMap::new(),
            offered: 0,
            deleted: BTreeMap::new(),
            before_loss: BTreeMap::new(),
            lost: Vec::new(),
            lost_power: false,
            seed: rng.next(),
        };
        server.start(now)?;
        for (topic, birth) in plan.topics.iter().enumerate() {
            if *birth == Birth::AtStart {
                server.create_topic(topic, plan.partitions, now)?;
            }
        }
        Ok(server)
    }

    pub(crate) fn is_up(&self) -> bool {
        self.broker.is_some()
    }

    pub(crate) fn start(&mut self, now: Now) -> Result<(), String> {
        self.starts += 1;
        let seed = self.seed.wrapping_add(self.starts);
        let memory = SimMemory { rng: Rng::new(seed), missing: self.exposes.unwrap_or(0) };
        let (disk, config) = (self.disk.clone(), self.config.clone());
        let opened = Broker::open(disk, Box::new(memory), config, Box::new(AllowAll), seed, now);
        let (broker, report) = opened.map_err(|why| format!("the broker does not start: {why}"))?;
        self.broker = Some(broker);
        if self.exposes.is_some() {
            self.begin_links(report.clean);
        }
        self.may_have_more();
        for (place, before) in std::mem::take(&mut self.before_loss) {
            let after = self.values(place, now)?;
            // What was not synced may have been kept as well.
            if !before.iter().zip(&after).all(|(before, after)| before == after || *after == HOLE) {
                return Err(format!("{place:?}: a drive that lies has taken records other than the last"));
            }
            let is_lost = |at: usize| after.get(at).is_none_or(|value| *value == HOLE);
            self.lost.extend(
                before.into_iter().enumerate().filter(|(at, _)| is_lost(*at)).map(|(_, value)| value),
            );
        }
        self.settle(now)
    }

    /// The values of records that a drive that lies has taken.
    pub(crate) fn lost(&self) -> &[Bytes] {
        &self.lost
    }

    /// Closed segments of all logs.
    pub(crate) fn segments(&self) -> usize {
        let paths = self.disk.file_paths();
        let logs = paths.iter().filter(|path| path.extension().is_some_and(|suffix| suffix == "log"));
        let dirs: BTreeSet<_> = logs.clone().filter_map(|path| path.parent()).collect();
        logs.count() - dirs.len()
    }

    /// Notes where the times of new leaders begin: at the log's end, which nobody can tell while the broker is down.
    pub(crate) fn settle(&mut self, now: Now) -> Result<(), String> {
        if self.broker.is_some() {
            for place in self.cluster.unsettled.clone() {
                let end = self.end_of(place, now)?;
                self.cluster.begin_era(place, None, end);
            }
        }
        Ok(())
    }

    /// A node becomes the leader that lacks about the last `lacks` records, in whole batches. How many those are.
    pub(crate) fn cut(&mut self, place: Place, to: usize, lacks: i64, now: Now) -> Result<i64, String> {
        self.settle(now)?;
        let end = self.end_of(place, now)?;
        let Some(log) = self.cluster.log(place) else { return Ok(0) };
        let shown_end = log.shown(end).unwrap_or_else(|next| next);
        let from = (shown_end - lacks).max(0);
        let hidden = log.span(from).hidden;
        let from = if from < shown_end {
            self.batch_at(place, from + hidden, now)?.map_or(shown_end, |at| at - hidden)
        } else {
            shown_end
        };
        self.cluster.elect(place, Some(to));
        self.cluster.begin_era(place, (from < shown_end).then_some(from), end);
        self.sessions.drop_place(&self.cluster, place);
        Ok(shown_end - from)
    }

    pub(crate) fn stop(&mut self, now: Now, down: Down, rng: &mut Rng) -> Result<(), String> {
        self.lost_power |= down == Down::PowerLoss;
        if down == Down::PowerLoss && self.disk.is_lied_to() {
            for place in self.cluster.logs().keys().copied().collect::<Vec<_>>() {
                let values = self.values(place, now)?;
                self.before_loss.insert(place, values);
            }
        }
        let Some(mut broker) = self.broker.take() else { return Ok(()) };
        if down == Down::Stop {
            broker.close(now).map_err(|why| format!("the broker does not stop cleanly: {why}"))?;
        }
        drop(broker);
        self.disk = match down {
            Down::Stop | Down::Kill => self.disk.after_kill(),
            Down::PowerLoss => self.disk.after_power_loss(|_, synced, written| {
                let more = written.len().saturating_sub(synced.len());
                if rng.chance(50) { rng.index(more + 1) } else { rng.pick(&[0, more]) }
            }),
        };
        self.clients.clear();
        if let Some(share) = &mut self.share {
            share.forget_all(&self.cluster);
        }
        self.sessions.clear();
        self.said.clear();
        self.unread.clear();
        self.syncing.clear();
        Ok(())
    }

    // ---- connections

    pub(crate) fn connect(&mut self, now: Now, conn: u64, node: usize) {
        if let Some(broker) = &mut self.broker {
            broker.handle_connect(now, ConnId(conn), "10.0.0.1:5000");
            let (frames, asked) = (Frames::default(), HashMap::new());
            self.clients
                .insert(conn, Client { node, frames, asked, broken: false, gone: false, given_up: false });
        }
    }

    /// The client does not wait for anything on this connection any more, whatever of it is still to come.
    pub(crate) fn give_up(&mut self, conn: u64) {
        if let Some(client) = self.clients.get_mut(&conn) {
            client.given_up = true;
        }
    }

    pub(crate) fn disconnect(&mut self, now: Now, conn: u64) {
        match self.clients.get_mut(&conn) {
            Some(client) if self.cluster.is_stalled(client.node) => client.gone = true,
            _ => self.remove(now, conn),
        }
    }

    fn remove(&mut self, now: Now, conn: u64) {
        if let Some(share) = &mut self.share {
            share.disconnected(conn);
        }
        if self.clients.remove(&conn).is_some()
            && let Some(broker) = &mut self.broker
        {
            broker.handle_disconnect(now, ConnId(conn));
        }
    }

    /// The node is gone, and what it was doing. What the broker has taken for it stays.
    pub(crate) fn drop_node(&mut self, now: Now, node: usize) {
        self.sessions.drop_node(node);
        if let Some(share) = &mut self.share {
            share.forget(node);
        }
        let of_it = |(conn, client): (&u64, &Client)| (client.node == node).then_some(*conn);
        for conn in self.clients.iter().filter_map(of_it).collect::<Vec<_>>() {
            self.remove(now, conn);
        }
    }

    /// A node that has done nothing for a time does what it was asked meanwhile, also by those who have gone.
    pub(crate) fn wake_node(&mut self, now: Now, node: usize) -> Result<(), String> {
        self.cluster.set_stalled(node, false);
        let of_it = |(conn, client): (&u64, &Client)| (client.node == node).then_some((*conn, client.gone));
        for (conn, gone) in self.clients.iter().filter_map(of_it).collect::<Vec<_>>() {
            self.read(now, conn)?;
            if gone {
                self.remove(now, conn);
            }
        }
        Ok(())
    }

    pub(crate) fn receive(&mut self, now: Now, conn: u64, bytes: &[u8]) -> Result<(), String> {
        if let Some(client) = self.clients.get_mut(&conn) {
            client.frames.push(bytes);
        }
        self.read(now, conn)
    }

    /// Hands on whole requests for as long as the broker wants them.
    fn read(&mut self, now: Now, conn: u64) -> Result<(), String> {
        let (Some(broker), Some(client)) = (&mut self.broker, self.clients.get_mut(&conn)) else {
            return Ok(());
        };
        if self.cluster.is_stalled(client.node) {
            return Ok(());
        }
        while !client.broken && broker.wants_read(ConnId(conn)) {
            let Some(frame) = client.frames.next()? else { break };
            let start = peek_request(&frame).map_err(|why| format!("a client sent no request: {why}"))?;
            let (version, id) = (start.api_version, start.correlation_id);
            let frame = match ApiKey::from_code(start.api_key) {
                Some(ApiKey::Produce) => {
                    self.share.iter_mut().for_each(|share| share.dirty = true);
                    let (frame, acks, refused) = led_part(&self.cluster, client.node, frame)?;
                    let refusals = count(&refused);
                    self.refused += refusals;
                    if acks != 0 {
                        client.asked.insert(id, Asked::Produce { version, refused });
                    } else if refusals > 0 {
                        // Who asked for no answer learns of an error only by the end of the connection.
                        client.broken = true;
                        self.said.push(Said::Close(conn));
                    }
                    frame
                }
                Some(ApiKey::Metadata) => {
                    self.share.iter_mut().for_each(|share| share.dirty = true);
                    client.asked.insert(id, Asked::Metadata { version });
                    frame
                }
                Some(ApiKey::ApiVersions) => {
                    if self.share.is_some() {
                        client.asked.insert(id, Asked::Versions { version });
                    }
                    frame
                }
                Some(
                    ApiKey::InitProducerId
                    | ApiKey::DirectConnect
                    | ApiKey::DirectRelease
                    | ApiKey::GrantProduce
                    | ApiKey::GrantFetch,
                ) => frame,
                Some(ApiKey::ShareGroupHeartbeat | ApiKey::ShareFetch | ApiKey::ShareAcknowledge) => {
                    let share = self.share.as_mut().ok_or("a share consumer among others")?;
                    let asker = (client.node, conn, client.given_up);
                    let Some(own) = share.take_in(&self.cluster, asker, now, frame)? else { continue };
                    client.asked.insert(id, Asked::Read(Read::Instead(own)));
                    reading::nothing(id)?
                }
                key => {
                    if let (Some(share), Some(ApiKey::Fetch | ApiKey::ListOffsets)) = (&mut self.share, key) {
                        share.watches += 1;
                    }
                    let (frame, read) =
                        reading::take_in(&self.cluster, &mut self.sessions, client.node, frame)?;
                    client.asked.extend(read.map(|read| (id, Asked::Read(read))));
                    frame
                }
            };
            broker.handle_frame(now, ConnId(conn), frame);
        }
        Ok(())
    }

    /// What the nodes have to say by now. `extra` is for each Produce response.
    pub(crate) fn poll(&mut self, now: Now, mut extra: impl FnMut() -> Extra) -> Result<Vec<Said>, String> {
        loop {
            let mut quiet = !self.poll_shares(now)?;
            let Some(broker) = &mut self.broker else { return Ok(Vec::new()) };
            while broker.work(now) {}
            while let Some(response) = self.unread.pop_front().or_else(|| broker.poll_response()) {
                quiet = false;
                let conn = response.conn.0;
                let bytes = flatten(&response)?;
                let Some(client) = self.clients.get_mut(&conn) else { continue };
                let (bytes, refusals) =
                    client.answer(&mut self.cluster, &mut self.sessions, bytes, &mut extra)?;
                self.said.push(Said::Bytes(conn, bytes, refusals));
            }
            while let Some((conn, _)) = broker.poll_close() {
                quiet = false;
                if let Some(client) = self.clients.get_mut(&conn.0) {
                    client.broken = true;
                    self.said.push(Said::Close(conn.0));
                } else {
                    broker.handle_disconnect(now, conn);
                    self.closed_own.push(conn.0);
                }
            }
            if quiet {
                break;
            }
            // Who has an answer may be read from again.
            for conn in self.clients.keys().copied().collect::<Vec<_>>() {
                self.read(now, conn)?;
            }
        }
        let (held, said) = std::mem::take(&mut self.said)
            .into_iter()
            .filter(|said| self.clients.contains_key(&said.conn()))
            .partition(|said| {
                let client = self.clients.get(&said.conn());
                client.is_some_and(|client| self.cluster.is_stalled(client.node))
            });
        self.said = held;
        Ok(said)
    }

    // ---- time and syncs

    /// Whether a log is offline after a failed sync: what it has in doubt is written again by the broker's timers alone.
    pub(crate) fn has_offline_logs(&self) -> bool {
        self.broker.as_ref().is_some_and(|broker| broker.offline_logs() > 0)
    }

    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        let broker = self.broker.as_ref()?;
        let share = self.share.as_ref().and_then(Sharing::poll_timeout);
        [broker.poll_timeout(), share].into_iter().flatten().min()
    }

    /// The broker's log may have grown since share groups were notified of it.
    fn may_have_more(&mut self) {
        if let Some(share) = &mut self.share {
            share.dirty = true;
        }
    }

    /// Tells the share group of new records, and takes what it has to say. True when that is something.
    fn poll_shares(&mut self, now: Now) -> Result<bool, String> {
        if self.broker.is_none() || self.share.is_none() {
            return Ok(false);
        }
        if self.share.as_mut().is_some_and(|share| std::mem::take(&mut share.dirty)) {
            self.show_logs(now)?;
        }
        let Some(share) = &mut self.share else { return Ok(false) };
        let ready = share.ready(&self.cluster, now)?;
        let any = !ready.is_empty();
        self.said.extend(ready.into_iter().map(|(conn, bytes)| Said::Bytes(conn, bytes, 1)));
        Ok(any)
    }

    /// Shows the share group the topics that there are, and what has come behind the ends that it knows.
    fn show_logs(&mut self, now: Now) -> Result<(), String> {
        for topic in self.share.as_ref().map(Sharing::unknown).unwrap_or_default() {
            let name = Some(TOPICS[topic].to_owned());
            let topics = Some(vec![MetadataRequestTopic { name, ..MetadataRequestTopic::default() }]);
            let request = MetadataRequest { topics, allow_auto_topic_creation: false, ..Default::default() };
            let response = self.call(METADATA_VERSION, &request, now)?;
            let id =
                response.topics.first().filter(|topic| topic.error_code == 0).map(|topic| topic.topic_id);
            if let (Some(share), Some(id)) = (&mut self.share, id) {
                share.learn(topic, id);
            }
        }
        for (place, end) in self.share.as_ref().map(Sharing::ends).unwrap_or_default() {
            let bytes = self.batches(place, end, now)?;
            if let Some(share) = &mut self.share {
                share.append(place, &bytes)?;
                // One answer may not have all.
                share.dirty |= !bytes.is_empty();
            }
        }
        Ok(())
    }

    pub(crate) fn handle_timeout(&mut self, now: Now) {
        if let Some(broker) = &mut self.broker {
            broker.handle_timeout(now);
        }
        self.may_have_more();
    }

    /// How many syncs the broker asks for now, each to be ended with [`Self::synced`].
    pub(crate) fn poll_syncs(&mut self) -> usize {
        let before = self.syncing.len();
        self.syncing.extend(std::iter::from_fn(|| self.broker.as_mut()?.poll_flush()));
        self.syncing.len() - before
    }

    /// The oldest sync ends.
    pub(crate) fn synced(&mut self, now: Now, fault: SyncFault) -> Result<(), String> {
        let (Some(broker), Some(work)) = (&mut self.broker, self.syncing.pop_front()) else { return Ok(()) };
        self.disk.set_sync_fault(fault);
        // Of those that fail, all do.
        let results: Vec<_> = work.files().map(|file| self.disk.sync(file)).collect();
        self.disk.set_sync_fault(SyncFault::None);
        let result = results.into_iter().collect::<Result<(), _>>();
        if let Err(why) = &result
            && fault != SyncFault::Fails
        {
            return Err(format!("a sync in memory fails: {why}"));
        }
        broker.handle_flushed(now, work, result);
        self.may_have_more();
        Ok(())
    }

    // ---- the simulation's own requests

    pub(crate) fn create_topic(&mut self, topic: usize, partitions: i32, now: Now) -> Result<(), String> {
        let topic = CreatableTopic {
            name: TOPICS[topic].to_owned(),
            num_partitions: partitions,
            replication_factor: 1,
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
        self.may_have_more();
        let response = self.call(CREATE_VERSION, &request, now)?;
        match response.topics.first() {
            Some(topic) if topic.error_code == 0 => Ok(()),
            other => Err(format!("the topic cannot be made: {other:?}")),
        }
    }

    fn call<R: Request>(&mut self, version: i16, request: &R, now: Now) -> Result<R::Response, String> {
        self.connect_own(OWN.0, now);
        let response = self.ask(OWN.0, version, request, now);
        self.hang_up_own(OWN.0, now);
        response
    }

    /// A connection of the simulation's own, which no node stands before.
    pub(crate) fn connect_own(&mut self, conn: u64, now: Now) {
        if let Some(broker) = &mut self.broker {
            broker.handle_connect(now, ConnId(conn), "10.0.0.2:5000");
        }
    }

    pub(crate) fn hang_up_own(&mut self, conn: u64, now: Now) {
        if let Some(broker) = &mut self.broker {
            broker.handle_disconnect(now, ConnId(conn));
        }
    }

    /// Those of them that the broker has closed since.
    pub(crate) fn take_closed_own(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.closed_own)
    }

    /// Asks over such a connection, and does not hear of it.
    pub(crate) fn post<R: Request>(
        &mut self,
        conn: u64,
        version: i16,
        request: &R,
        now: Now,
    ) -> Result<(), String> {
        let broker = self.broker.as_mut().ok_or("the broker is down")?;
        let frame = encode_request(version, 0, Some("simulation"), request).map_err(|why| why.to_string())?;
        let frame = frame.to_bytes().ok_or("a request has no bytes")?;
        broker.handle_frame(now, ConnId(conn), frame.slice(4..));
        Ok(())
    }

    /// Asks over such a connection what is answered at once.
    pub(crate) fn ask<R: Request>(
        &mut self,
        conn: u64,
        version: i16,
        request: &R,
        now: Now,
    ) -> Result<R::Response, String> {
        self.post(conn, version, request, now)?;
        let broker = self.broker.as_mut().ok_or("the broker is down")?;
        while broker.work(now) {}
        let (own, others): (Vec<_>, Vec<_>) =
            std::iter::from_fn(|| broker.poll_response()).partition(|response| response.conn == ConnId(conn));
        self.unread.extend(others);
        let response = own.into_iter().next();
        let bytes = flatten(&response.ok_or_else(|| format!("{} is not answered", R::NAME))?)?;
        let (_, response) = decode_response::<R>(version, bytes.slice(4..)).map_err(|why| why.to_string())?;
        Ok(response)
    }

    /// The end of a partition in the broker's log; 0 when there is no topic, or nobody to ask.
    pub(crate) fn end_of(&mut self, place: Place, now: Now) -> Result<i64, String> {
        self.offset_at(place, LATEST, now)
    }

    fn offset_at(&mut self, place: Place, timestamp: i64, now: Now) -> Result<i64, String> {
        if self.broker.is_none() {
            return Ok(0);
        }
        let asked =
            ListOffsetsPartition { partition_index: place.partition, current_leader_epoch: -1, timestamp };
        let topic = ListOffsetsTopic { name: TOPICS[place.topic].to_owned(), partitions: vec![asked] };
        let request = ListOffsetsRequest { topics: vec![topic], ..ListOffsetsRequest::default() };
        let response = self.call(LIST_VERSION, &request, now)?;
        let answer = response.topics.first().and_then(|topic| topic.partitions.first());
        Ok(answer.filter(|answer| answer.error_code == 0).map_or(0, |answer| answer.offset))
    }

    /// The values of a partition in the broker's log, in the order of their offsets; none when there is no topic. Those that
    /// were deleted are as they were. There must be no gap, but for those of records that went with the power before they
    /// were synced: offsets that others came after are not given out again. They are [`HOLE`]s.
    pub(crate) fn values(&mut self, place: Place, now: Now) -> Result<Vec<Bytes>, String> {
        let mut values = self.deleted.get(&place).cloned().unwrap_or_default();
        let start = self.offset_at(place, EARLIEST, now)?;
        self.fill_up(&mut values, start).map_err(|why| format!("{place:?}: {why}"))?;
        loop {
            let offset = i64::try_from(values.len()).unwrap_or(i64::MAX);
            let bytes = self.batches(place, offset, now)?;
            if bytes.is_empty() {
                return Ok(values);
            }
            self.read_batches(&bytes, &mut values).map_err(|why| format!("{place:?}: {why}"))?;
        }
    }

    fn read_batches(&self, mut bytes: &[u8], values: &mut Vec<Bytes>) -> Result<(), String> {
        while !bytes.is_empty() {
            let size = batch_size(bytes).ok_or("half a batch header")?.map_err(|why| why.to_string())?;
            let batch = bytes.get(..size).ok_or("half a batch")?;
            bytes = &bytes[size..];
            verify_crc(batch).map_err(|why| why.to_string())?;
            let header = BatchHeader::parse(batch).map_err(|why| why.to_string())?;
            // The first batch comes as a whole, also if it was deleted in part.
            values.truncate(usize::try_from(header.base_offset).unwrap_or(0));
            self.fill_up(values, header.base_offset)?;
            let codec = header.codec().map_err(|why| why.to_string())?;
            let mut plain = Vec::new();
            decompress(codec, &batch[BatchHeader::LEN..], DECOMPRESSED_BYTES_MAX, &mut plain)
                .map_err(|why| why.to_string())?;
            for record in RecordIter::new(&header, &plain).map_err(|why| why.to_string())? {
                let record = record.map_err(|why| why.to_string())?;
                values.push(Bytes::copy_from_slice(record.value.unwrap_or_default()));
            }
            // A batch without records leads over what is lost at the end of a log.
            self.fill_up(values, header.last_offset() + 1)?;
        }
        Ok(())
    }

    /// Takes offsets up to `offset` for a hole, where there can be one.
    fn fill_up(&self, values: &mut Vec<Bytes>, offset: i64) -> Result<(), String> {
        let missing = usize::try_from(offset).unwrap_or(0).saturating_sub(values.len());
        if missing > 0 && !self.lost_power {
            return Err(format!("a batch has offset {offset} where {} is next", values.len()));
        }
        values.extend(std::iter::repeat_n(HOLE, missing));
        Ok(())
    }

    /// Batches from an offset of the broker's log on; nothing at its end, and when there is no topic.
    fn batches(&mut self, place: Place, offset: i64, now: Now) -> Result<Bytes, String> {
        let Place { topic, partition } = place;
        let asked = FetchPartition {
            partition,
            fetch_offset: offset,
            partition_max_bytes: 1 << 20,
            ..FetchPartition::default()
        };
        let topic =
            FetchTopic { topic: TOPICS[topic].to_owned(), partitions: vec![asked], ..FetchTopic::default() };
        let request = FetchRequest { min_bytes: 1, topics: vec![topic], ..FetchRequest::default() };
        let response = self.call(FETCH_VERSION, &request, now)?;
        let answer = response.responses.first().and_then(|topic| topic.partitions.first());
        let answer = answer.ok_or("a Fetch response has no partition")?;
        if answer.error_code == headrace_wire::errors::ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.code() {
            return Ok(Bytes::new());
        }
        if answer.error_code != 0 {
            return Err(format!("{place:?} cannot be read: error {}", answer.error_code));
        }
        Ok(answer.records.as_ref().and_then(Records::to_bytes).unwrap_or_default())
    }

    /// Where the batch begins that has this offset of the broker's log.
    fn batch_at(&mut self, place: Place, offset: i64, now: Now) -> Result<Option<i64>, String> {
        let bytes = self.batches(place, offset, now)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        BatchHeader::parse(&bytes).map(|header| Some(header.base_offset)).map_err(|why| why.to_string())
    }
}

impl Said {
    fn conn(&self) -> u64 {
        match self {
            Self::Bytes(conn, ..) | Self::Close(conn) => *conn,
        }
    }
}

impl Client {
    /// Makes the broker's answer the node's, and says how many refusals of the node are in it.
    fn answer(
        &mut self,
        cluster: &mut Cluster,
        sessions: &mut Sessions,
        bytes: Bytes,
        extra: &mut impl FnMut() -> Extra,
    ) -> Result<(Bytes, usize), String> {
        let Some(id) = bytes.get(4..8).and_then(|id| id.first_chunk::<4>()).map(|id| i32::from_be_bytes(*id))
        else {
            return Err("the broker sent a response without correlation id".to_owned());
        };
        match self.asked.remove(&id) {
            None => Ok((bytes, 0)),
            Some(Asked::Read(read)) => read.answer(cluster, sessions, self.node, &bytes, extra()),
            Some(Asked::Versions { version }) => {
                let change = |response: &mut ApiVersionsResponse| {
                    for key in [ApiKey::ShareGroupHeartbeat, ApiKey::ShareFetch, ApiKey::ShareAcknowledge] {
                        let (api_key, versions) = (key.code(), key.versions());
                        let (min_version, max_version) = (versions.min, versions.max);
                        response.api_keys.push(ApiVersion { api_key, min_version, max_version });
                    }
                };
                Ok((changed::<ApiVersionsRequest>(version, &bytes, change)?, 0))
            }
            Some(Asked::Metadata { version }) => {
                let change = |response: &mut _| cluster.describe(self.node, response);
                Ok((changed::<MetadataRequest>(version, &bytes, change)?, 0))
            }
            Some(Asked::Produce { version, refused }) => {
                let Extra { throttle_ms, tells_leader } = extra();
                if throttle_ms == 0 && refused.is_empty() && !cluster.was_cut() {
                    return Ok((bytes, 0));
                }
                let refusals = count(&refused);
                let bytes = changed::<ProduceRequest>(version, &bytes, |response| {
                    cluster.place_produced(response);
                    response.throttle_time_ms = throttle_ms;
                    cluster.answer((self.node, version), response, refused, tells_leader);
                })?;
                Ok((bytes, refusals))
            }
        }
    }
}

fn count(refused: &Refusals) -> usize {
    refused.iter().map(|topic| topic.partition_responses.len()).sum()
}

/// The response in these bytes, with its size, after `change`.
fn changed<R: Request>(
    version: i16,
    bytes: &Bytes,
    change: impl FnOnce(&mut R::Response),
) -> Result<Bytes, String> {
    let decoded = decode_response::<R>(version, bytes.slice(4..));
    let (id, mut response) = decoded.map_err(|why| why.to_string())?;
    change(&mut response);
    let encoded = encode_response::<R>(version, id, &response).map_err(|why| why.to_string())?;
    encoded.to_bytes().ok_or_else(|| "a response has no bytes".to_owned())
}

/// What is left of a Produce request for the broker when the node has refused what it does not lead: the request, its
/// `acks`, and the refusals. A request of which nothing is left still goes to the broker, which answers in turn.
fn led_part(cluster: &Cluster, node: usize, frame: Bytes) -> Result<(Bytes, i16, Refusals), String> {
    let mut reader = Reader::new(frame.clone());
    let header = decode_request_header(&mut reader).map_err(|why| why.to_string())?;
    let version = header.api_version;
    let mut request = ProduceRequest::decode(version, &mut reader).map_err(|why| why.to_string())?;
    let refused = cluster.refuse(node, version, &mut request);
    if refused.is_empty() {
        return Ok((frame, request.acks, refused));
    }
    let encoded = encode_request(version, header.correlation_id, header.client_id.as_deref(), &request);
    let encoded = encoded.map_err(|why| why.to_string())?;
    let bytes = encoded.to_bytes().ok_or("a request has no bytes")?;
    Ok((bytes.slice(4..), request.acks, refused))
}

fn flatten(response: &Response<MemoryFile>) -> Result<Bytes, String> {
    let mut flat = BytesMut::with_capacity(response.body.len);
    for segment in &response.body.segments {
        match segment {
            Segment::Bytes(bytes) => flat.extend_from_slice(bytes),
            Segment::External { token, len } => {
                let file = usize::try_from(*token).ok().and_then(|at| response.files.get(at));
                let slice = file.ok_or("a response names no file")?;
                flat.extend_from_slice(&slice.file.bytes(slice.position, *len as usize));
            }
        }
    }
    if flat.len() != response.body.len {
        return Err(format!("a response of {} bytes says it has {}", flat.len(), response.body.len));
    }
    Ok(flat.freeze())
}
