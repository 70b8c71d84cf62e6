//! What a part of the broker is given with each request: the time, the settings, who may do what, the store, and ways to
//! answer. A part sees the [`Context`] and its own state; the kernel, and the other parts, it does not see.

pub(crate) mod call;
pub(crate) mod cluster;
pub(crate) mod connections;
mod counts;
pub(crate) mod task;
pub(crate) mod waiting;

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use headrace_cluster::model::Registration;
use headrace_log::{AppendError, AppendOrigin, Appended, Disk};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::Request;
use headrace_wire::records::BatchHeader;
use headrace_wire::time::{Now, RateLimit};
use headrace_wire::uuid::Uuid;

use crate::auth::{Authorizer, Operation, Resource};
use crate::config::BrokerConfig;
use crate::error::BrokerError;
use crate::random::Random;
use crate::replication::role::Role;
use crate::store::flush::Flushes;
use crate::store::{Partition, Place, StartReport, Store, Topic, TopicKey};
use call::{Call, ConnId, Outcome};
use cluster::Cluster;
use connections::Connections;
use counts::Counts;
use waiting::{Awaited, Fail, Unacknowledged, Until};

/// What parts work with.
pub(crate) struct Context<D: Disk> {
    pub(crate) now: Now,
    pub(crate) config: BrokerConfig,
    pub(crate) authorizer: Box<dyn Authorizer>,
    pub(crate) random: Random,
    pub(crate) store: Store<D>,
    pub(crate) flushes: Flushes,
    pub(crate) unacknowledged: Unacknowledged<D::File>,
    /// Its part in a cluster, where it is in one.
    pub(crate) cluster: Option<Cluster>,
    pub(crate) connections: Connections<D::File>,
    /// What parts have done that others must know: the kernel tells them, after the input or the unit of work.
    pub(crate) changes: VecDeque<Change>,
    pub(crate) counts: Counts,
    /// By partition and first offset, what was appended since the kernel pushed last; kept only where `keeps_fresh`.
    pub(crate) fresh: BTreeMap<(Place, i64), Fresh>,
    /// Followers are pushed to.
    pub(crate) keeps_fresh: bool,
    /// Lines of the log about topics: clients decide how often they come and go.
    pub(crate) lines: RateLimit,
}

/// A batch as it was just appended to a log, while it is still in memory.
#[derive(Debug)]
pub(crate) struct Fresh {
    /// Its first bytes, and what follows them.
    pub(crate) head: [u8; BatchHeader::LEN],
    pub(crate) body: Bytes,
    /// The offset after its last record.
    pub(crate) end: i64,
}

impl Fresh {
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// A change of the store that parts look for.
#[derive(Debug)]
pub(crate) enum Change {
    /// A log has become longer by so many bytes.
    Appended { place: Place, bytes: u64 },
    /// More of a log is committed.
    Committed { place: Place, bytes: u64 },
    /// What this broker is to a partition has changed: these fetches that wait for it are answered.
    RoleChanged { place: Place, watchers: Vec<u64> },
    /// A follower has all of a partition that this broker leads, and asks for more.
    CaughtUp { place: Place, follower: Registration },
    /// More of a copy is known to be committed, by so many bytes at most.
    CopyCommitted { place: Place, bytes: u64 },
    /// Somebody else leads a partition that this broker copies, or leads it in another epoch: these fetches that wait for it
    /// are answered.
    LeaderChanged { place: Place, watchers: Vec<u64> },
    /// Retention has moved starts of logs.
    StartsMoved,
    /// A topic has other settings.
    TopicConfigured(Uuid),
    /// A topic is gone.
    TopicDeleted {
        id: Uuid,
        name: Arc<str>,
        /// Tokens of the fetches that wait for it.
        watchers: Vec<u64>,
    },
}

/// What was appended, and where.
pub(crate) struct AppendedTo {
    pub(crate) place: Place,
    pub(crate) leader_epoch: i32,
    pub(crate) appended: Appended,
    /// It is to be synced before it is acknowledged, and is not yet.
    pub(crate) is_unsynced: bool,
    /// Not all of the in-sync set have it yet.
    pub(crate) is_uncommitted: bool,
}

/// Why nothing was appended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppendFailure {
    #[error("the topic has no partition {0}")]
    NoPartition(i32),
    #[error("this broker does not lead the partition")]
    NotLeader,
    #[error("{0} of the replicas are in sync, and min.insync.replicas is {1}")]
    NotEnoughReplicas(usize, usize),
    #[error(transparent)]
    Refused(#[from] AppendError),
}

impl AppendFailure {
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::NoPartition(_) => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            Self::NotLeader => ErrorCode::NOT_LEADER_OR_FOLLOWER,
            Self::NotEnoughReplicas(..) => ErrorCode::NOT_ENOUGH_REPLICAS,
            Self::Refused(error) => ErrorCode::new(error.code()),
        }
    }
}

impl<D: Disk> Context<D> {
    /// Opens the data directory that the settings name.
    pub(crate) fn open(
        disk: D,
        config: BrokerConfig,
        authorizer: Box<dyn Authorizer>,
        cluster: Option<Cluster>,
        random_seed: u64,
        now: Now,
    ) -> Result<(Self, StartReport), BrokerError> {
        let mut random = Random::new(random_seed);
        let (store, report) = Store::open(disk, &config, cluster.is_some(), &mut random, now)?;
        let context = Self {
            now,
            config,
            authorizer,
            random,
            store,
            flushes: Flushes::default(),
            unacknowledged: Unacknowledged::default(),
            cluster,
            connections: Connections::default(),
            changes: VecDeque::new(),
            counts: Counts::default(),
            fresh: BTreeMap::new(),
            keeps_fresh: false,
            lines: RateLimit::new(RateLimit::LINES_PER_S),
        };
        Ok((context, report))
    }

    // ---- who may

    /// Asks the authorizer.
    pub(crate) fn allows(&self, call: &Call, operation: Operation, resource: Resource<'_>) -> bool {
        self.authorizer.authorize(call.identity(), operation, resource)
    }

    /// KIP-430: what the caller may do with a resource, as a bit field.
    pub(crate) fn allowed_operations(&self, call: &Call, resource: Resource<'_>) -> i32 {
        let allowed = resource.operations().iter().filter(|op| self.allows(call, **op, resource));
        allowed.fold(0, |bits, op| bits | (1 << (*op as u8)))
    }

    // ---- answers

    /// Answers a request.
    pub(crate) fn reply<R: Request>(&mut self, call: &Call, response: &R::Response) {
        self.connections.reply::<R>(call, response, Vec::new());
    }

    /// Does what a handler has decided.
    pub(crate) fn conclude<R: Request>(&mut self, call: &Call, outcome: Outcome<R::Response>) {
        match outcome {
            Outcome::Reply(response) => self.reply::<R>(call, &response),
            Outcome::Parked => {}
            Outcome::Silent => self.connections.release(call),
            Outcome::Close(why) => self.connections.close(call.conn, why),
            Outcome::Turns(none) => match none {},
        }
    }

    /// Gives a connection up.
    pub(crate) fn close_connection(&mut self, conn: ConnId, why: String) {
        self.connections.close(conn, why);
    }

    /// Answers a request once all targets are reached, or says of those that are not by `deadline` that they have timed out;
    /// `fail` says in the response what has become of one of them.
    pub(crate) fn reply_when_reached<R: Request + 'static>(
        &mut self,
        call: &Call,
        mut response: R::Response,
        mut targets: Vec<Awaited>,
        deadline: Option<u64>,
        fail: Fail<R>,
    ) -> Outcome<R::Response>
    where
        R::Response: Send,
    {
        // They may be by now.
        targets.retain(|target| {
            if matches!(target.until, Until::Done(_)) {
                return true;
            }
            let Some(partition) = self.store.partition_mut(target.place) else {
                // The topic is gone, and nobody misses its records; or its copy is elsewhere by now.
                if self.store.by_id(target.place.0).is_some() {
                    let failure = self.failure_of_lost(target.place);
                    fail(&mut response, target.slot, &failure);
                }
                return false;
            };
            let leads = match &partition.role {
                Role::Sole => true,
                Role::Leader(leading) => leading.epoch == target.leader_epoch,
                Role::Follower(_) => false,
            };
            match target.until {
                Until::Synced => partition.log.recovery_point() <= target.last_offset,
                Until::Committed if !leads => {
                    // It was lost between the turns of the request.
                    let failure = self.failure_of_lost(target.place);
                    fail(&mut response, target.slot, &failure);
                    false
                }
                Until::Committed | Until::Done(_) => partition.high_watermark() <= target.last_offset,
            }
        });
        if targets.is_empty() {
            return Outcome::Reply(response);
        }
        self.unacknowledged.wait::<R>(call, response, &targets, fail, deadline);
        Outcome::Parked
    }

    // ---- roles

    /// The leader epoch under which this broker leads a partition.
    ///
    /// # Errors
    /// It does not lead it.
    pub(crate) fn led(&self, place: Place, partition: &Partition<D>) -> Result<i32, ErrorCode> {
        match &partition.role {
            Role::Sole => Ok(self.store.leader_epoch()),
            Role::Leader(leading) => {
                let member = self.cluster.as_ref().map(|cluster| &cluster.member);
                let epoch = member.and_then(|member| member.leads(self.now.mono_ms, place));
                epoch.filter(|epoch| *epoch == leading.epoch).ok_or(ErrorCode::NOT_LEADER_OR_FOLLOWER)
            }
            Role::Follower(_) => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        }
    }

    /// Finds a partition that this broker leads, with its leader epoch; `believed` is the epoch in which a client takes it
    /// for the leader (-1: none, KIP-320).
    pub(crate) fn find_led<'a>(
        &'a self,
        topic: &'a Topic<D>,
        index: i32,
        believed: i32,
    ) -> Result<(&'a Partition<D>, i32), ErrorCode> {
        let Some(partition) = topic.partition(index) else {
            return Err(if topic.has_partition(index) {
                ErrorCode::NOT_LEADER_OR_FOLLOWER
            } else {
                ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
            });
        };
        let epoch = self.led((topic.id, index), partition)?;
        Self::check_epoch(believed, epoch).map(|()| (partition, epoch))
    }

    /// Compares the leader epoch that a client knows, if it knows one, with that of the partition.
    pub(crate) fn check_epoch(believed: i32, epoch: i32) -> Result<(), ErrorCode> {
        match believed.cmp(&epoch) {
            _ if believed < 0 => Ok(()),
            Ordering::Equal => Ok(()),
            Ordering::Less => Err(ErrorCode::FENCED_LEADER_EPOCH),
            Ordering::Greater => Err(ErrorCode::UNKNOWN_LEADER_EPOCH),
        }
    }

    // ---- records

    /// Appends a batch to a partition: the one way into a log, but for what a follower copies. Whoever waits for records
    /// learns of it, and so does the rotation of syncs.
    pub(crate) fn append(
        &mut self,
        key: &TopicKey,
        index: i32,
        batch: &Bytes,
        source: Source,
    ) -> Result<AppendedTo, AppendFailure> {
        let leader_epoch =
            self.store.find(key).map(|topic| self.find_led(topic, index, -1).map(|(_, epoch)| epoch));
        let leader_epoch = match leader_epoch {
            Some(Ok(epoch)) => epoch,
            Some(Err(ErrorCode::NOT_LEADER_OR_FOLLOWER)) => return Err(AppendFailure::NotLeader),
            Some(Err(_)) | None => return Err(AppendFailure::NoPartition(index)),
        };
        let client = source != Source::Broker;
        let origin = AppendOrigin { leader_epoch, client };
        let writable = self.store.check_appends();
        let (topic, partition) =
            self.store.partition_for_append(key, index).ok_or(AppendFailure::NoPartition(index))?;
        if source != Source::AnyAcks {
            partition.check_in_sync().map_err(|(have, need)| AppendFailure::NotEnoughReplicas(have, need))?;
        }
        let place = (topic, index);
        let appended = writable.and_then(|()| partition.log.append(self.now, batch, origin))?;
        self.flushes.note(place, partition.log.flush_due());
        // Nothing may be due and the records not be durable yet: a repeat of what is being synced just now.
        let is_unsynced =
            partition.syncs_before_ack() && appended.last_offset >= partition.log.recovery_point();
        if !appended.duplicate {
            self.counts.bytes_in += if client { batch.len() as u64 } else { 0 };
            self.changes.push_back(Change::Appended { place, bytes: batch.len() as u64 });
            if let Some(head) = appended.head.filter(|_| self.keeps_fresh) {
                let fresh = Fresh { head, body: batch.slice(head.len()..), end: appended.last_offset + 1 };
                self.fresh.insert((place, appended.base_offset), fresh);
            }
            self.advance(place, batch.len() as u64);
        }
        let committed = self.store.partition_mut(place).map_or(0, |partition| partition.high_watermark());
        let is_uncommitted = appended.last_offset >= committed;
        Ok(AppendedTo { place, leader_epoch, appended, is_unsynced, is_uncommitted })
    }

    /// Moves the high watermark of a partition that this broker leads, if it can be moved: the log has become longer, by so
    /// many bytes, or a follower has come further, or the in-sync set is another.
    pub(crate) fn advance(&mut self, place: Place, bytes: u64) {
        let now_ms = self.now.mono_ms;
        let Some(partition) = self.store.partition_mut(place) else { return };
        let end = partition.log.end_offset();
        if let Role::Leader(leading) = &mut partition.role
            && leading.advance(end, now_ms)
        {
            let end = leading.high_watermark();
            let in_sync = partition.check_in_sync();
            // They are in the log, and are read; but fewer have them than was asked for.
            let error =
                if in_sync.is_ok() { ErrorCode::NONE } else { ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND };
            self.unacknowledged.reach(&mut self.connections, (place, Until::Committed), end, error);
            self.changes.push_back(Change::Committed { place, bytes });
        }
    }
}

/// Who wants a batch appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A client that waits for all of the in-sync set.
    AllAcks,
    /// A client that does not.
    AnyAcks,
    /// This broker.
    Broker,
}
