//! The kernel: the one object that a driver has. It owns the connections with their queues, the rotation of work, the clock
//! and the parts, hands each request to the part that it concerns, and tells parts what others have changed.

mod cluster;
mod dispatch;
mod links;
mod turns;

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use headrace_fabric::MemorySource;
use headrace_log::Disk;
use headrace_wire::errors::ErrorCode;
use headrace_wire::time::Now;

use crate::auth::Authorizer;
use crate::config::BrokerConfig;
use crate::context::call::{ConnId, Response};
use crate::context::cluster::Cluster;
use crate::context::connections::{Due, Incoming};
use crate::context::waiting::Until;
use crate::context::{Change, Context};
use crate::direct::Direct;
use crate::error::BrokerError;
use crate::fetch::Fetch;
use crate::group::Groups;
use crate::metrics::{Metric, metrics};
use crate::replication::Replication;
use crate::replication::role::Role;
use crate::store::flush::FlushWork;
use crate::store::retention::Retention;
use crate::store::{OFFSETS_TOPIC, StartReport};
use turns::Working;

pub use cluster::ClusterStart;
pub use dispatch::OTHER_REQUEST_BYTES_MAX;

/// A Kafka broker without sockets, clock or threads of its own; the driver's loop gives it those.
///
/// Inputs are `handle_*`, outputs `poll_*`. After any input: poll responses until there is none, then closes, then
/// what is to be read again, then flush work; call [`Broker::work`] while it has some, as long as other inputs can wait; then sleep until
/// [`Broker::poll_timeout`] or the next input. Requests of one connection are answered in order. One input and one unit
/// of work are a few milliseconds each at most. Memory: what the peers' limits allow, plus the indexes of the log.
pub struct Broker<D: Disk> {
    context: Context<D>,
    // The parts. The store's handlers have no state but what is in the context.
    store: (),
    fetch: Fetch,
    groups: Groups,
    direct: Direct<D>,
    replication: Replication<D>,
    /// Requests that are handled in turns.
    tasks: HashMap<u64, Working<D>>,
    /// Those of them that wait for a change of the cluster, by the time until which they do.
    later: BTreeSet<(u64, u64)>,
    retention: Retention,
    retention_due: u64,
    offsets_check_due: u64,
    checkpoint_due: u64,
}

impl<D: Disk> std::fmt::Debug for Broker<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broker")
            .field("node_id", &self.context.config.node_id)
            .field("connections", &self.context.connections.len())
            .field("waiting_fetches", &self.fetch.waiting())
            .finish_non_exhaustive()
    }
}

fn due(now: Now, interval_ms: i64) -> u64 {
    now.mono_ms.saturating_add(u64::try_from(interval_ms).unwrap_or(1).max(1))
}

impl<D: Disk> Broker<D> {
    /// Opens the data directory named in `config`, recovers what is in it, and loads topics and groups. What it exposes to
    /// clients over links comes from `memory`.
    ///
    /// # Errors
    /// [`BrokerError`] names the file: the directory is in use by another broker, belongs to another cluster, or
    /// holds damaged files.
    pub fn open(
        disk: D,
        memory: Box<dyn MemorySource>,
        config: BrokerConfig,
        authorizer: Box<dyn Authorizer>,
        random_seed: u64,
        now: Now,
    ) -> Result<(Self, StartReport), BrokerError> {
        Self::open_in(disk, memory, (config, None), authorizer, random_seed, now)
    }

    pub(super) fn open_in(
        disk: D,
        memory: Box<dyn MemorySource>,
        (config, cluster): (BrokerConfig, Option<Cluster>),
        authorizer: Box<dyn Authorizer>,
        random_seed: u64,
        now: Now,
    ) -> Result<(Self, StartReport), BrokerError> {
        let (context, mut report) = Context::open(disk, config, authorizer, cluster, random_seed, now)?;
        let config = &context.config;
        let mut broker = Self {
            store: (),
            fetch: Fetch::new(config),
            groups: Groups::new(config),
            direct: Direct::new(memory),
            replication: Replication::new(),
            tasks: HashMap::new(),
            later: BTreeSet::new(),
            retention: Retention::default(),
            // A full disk waits for nothing else.
            retention_due: match context.store.check_appends() {
                Ok(()) => due(now, config.log_retention_check_interval_ms),
                Err(_) => now.mono_ms,
            },
            checkpoint_due: due(now, config.log_flush_offset_checkpoint_interval_ms),
            offsets_check_due: due(now, config.offsets_retention_check_interval_ms),
            context,
        };
        if broker.context.cluster.is_none() {
            for (partition, skipped) in broker.groups.load(&mut broker.context)? {
                report.add(OFFSETS_TOPIC, partition, skipped);
            }
        }
        broker.context.flushes.note_offline(&broker.context.store);
        Ok((broker, report))
    }

    /// The options.
    #[must_use]
    pub fn config(&self) -> &BrokerConfig {
        &self.context.config
    }

    /// Sets the address that metadata gives to clients, once the driver has bound its socket.
    pub fn set_advertised(&mut self, host: impl Into<String>, port: u16) {
        self.context.config.advertised_host = host.into();
        self.context.config.advertised_port = port;
    }

    /// The address that metadata gives to clients.
    #[must_use]
    pub fn advertised(&self) -> (&str, u16) {
        (&self.context.config.advertised_host, self.context.config.advertised_port)
    }

    /// The cluster's id.
    #[must_use]
    pub fn cluster_id(&self) -> &str {
        &self.context.store.cluster_id
    }

    // ---- inputs

    /// A client has connected. `peer` is its address, as text.
    pub fn handle_connect(&mut self, now: Now, conn: ConnId, peer: &str) {
        self.context.now = now;
        self.context.connections.connect(conn, peer);
    }

    /// One whole request, without its size prefix.
    pub fn handle_frame(&mut self, now: Now, conn: ConnId, frame: Bytes) {
        self.context.now = now;
        if self.context.connections.receive(conn, frame) {
            self.handle_next(conn);
            self.settle();
        }
    }

    /// Whether the peer of a connection does not take its answers: then no further request of it is handled until it does.
    pub fn hold(&mut self, conn: ConnId, held: bool) {
        self.context.connections.hold(conn, held);
    }

    /// A client is gone. What it waits for is dropped; its group memberships end with their sessions, except for those that
    /// it has not learnt of.
    pub fn handle_disconnect(&mut self, now: Now, conn: ConnId) {
        self.context.now = now;
        let current = self.context.connections.disconnect(conn);
        self.direct.handle_disconnect(conn);
        if let Some(token) = current {
            self.abandon(token);
            self.context.unacknowledged.forget(token);
        }
        self.fetch.handle_disconnect(&mut self.context, conn, current);
        self.groups.handle_disconnect(&mut self.context, conn, current);
        self.settle();
    }

    /// Time has passed: see [`Broker::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Now) {
        self.context.now = now;
        self.fetch.handle_timeout(now);
        self.groups.handle_timeout(&mut self.context);
        if self.retention_due <= now.mono_ms {
            self.retention_due = due(now, self.context.config.log_retention_check_interval_ms);
            if self.retention.begin(&self.context.store) {
                self.context.connections.due.push_back(Due::Retention);
            }
        }
        self.context.store.store_state_again(now);
        if self.checkpoint_due <= now.mono_ms {
            self.checkpoint_due = due(now, self.context.config.log_flush_offset_checkpoint_interval_ms);
            if let Err(error) = self.context.store.checkpoint() {
                self.context.store.note_trouble(&error);
            }
        }
        self.direct.handle_timeout(&self.context);
        let context = &mut self.context;
        context.unacknowledged.handle_timeout(&mut context.connections, now.mono_ms);
        self.replication.handle_timeout(&mut self.context);
        self.wake_late();
        if self.offsets_check_due <= now.mono_ms {
            self.offsets_check_due = due(now, self.context.config.offsets_retention_check_interval_ms);
            self.groups.expire_offsets(&mut self.context);
        }
        self.settle();
    }

    /// A flush has ended.
    pub fn handle_flushed(&mut self, now: Now, work: FlushWork<D::File>, result: std::io::Result<()>) {
        let context = &mut self.context;
        context.now = now;
        if let Err(error) = &result {
            context.store.note_trouble(&format!("sync failed: {error}"));
        }
        let place = work.place;
        let durable = context.flushes.done(&mut context.store, now, &work, result.is_ok());
        let partition = context.store.partition_mut(place);
        let recovery_point = partition.as_ref().map(|partition| partition.log.recovery_point());
        let connections = &mut context.connections;
        if durable {
            let end = recovery_point.unwrap_or(i64::MAX);
            context.unacknowledged.reach(connections, (place, Until::Synced), end, ErrorCode::NONE);
        } else {
            let error = ErrorCode::KAFKA_STORAGE_ERROR;
            context.unacknowledged.fail(connections, (place, Until::Synced), error);
        }
        if let Some(partition) = partition.filter(|_| durable) {
            // What came in before a failure can be read once it is durable.
            self.fetch.wake(&partition.watchers, 0);
            self.direct.publish(context, place);
        }
    }

    // ---- outputs

    /// The next answer to send.
    pub fn poll_response(&mut self) -> Option<Response<D::File>> {
        self.context.connections.next_response()
    }

    /// Whether there is an answer to send.
    #[must_use]
    pub fn has_responses(&self) -> bool {
        self.context.connections.has_responses()
    }

    /// Whether [`Broker::work`] has something to do.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.fetch.has_work() || !self.context.connections.due.is_empty()
    }

    /// Does one unit of what waits for its turn: answers a parked fetch that has enough, and handles the next request of a
    /// connection, or a part of one. Whether there is more.
    pub fn work(&mut self, now: Now) -> bool {
        self.context.now = now;
        self.fetch.work(&mut self.context);
        match self.context.connections.next_due() {
            Some(Due::Request(conn)) => self.handle_next(conn),
            Some(Due::Task(token)) => self.step(token),
            Some(Due::Retention) => self.step_retention(),
            Some(Due::Copies) => self.replication.step(&mut self.context),
            None => {}
        }
        self.settle();
        self.has_work()
    }

    /// The next connection to close, once what was answered before is sent, and why.
    pub fn poll_close(&mut self) -> Option<(ConnId, String)> {
        self.context.connections.closes.pop_front()
    }

    /// When to call [`Broker::handle_timeout`], in `mono_ms`.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let housekeeping = self.retention_due.min(self.offsets_check_due).min(self.checkpoint_due);
        let parts = [
            self.fetch.deadline(),
            self.groups.deadline(),
            self.direct.deadline(),
            self.replication.deadline(self.context.now.mono_ms),
            self.context.unacknowledged.deadline(),
            self.later.first().map(|(until, _)| *until),
            self.context.cluster.as_ref().and_then(|cluster| cluster.member.poll_timeout()),
        ];
        let store = [self.context.flushes.due(), self.context.store.state_due(), Some(housekeeping)];
        parts.into_iter().chain(store).flatten().min()
    }

    /// Whether more requests of this connection should be read now.
    #[must_use]
    pub fn wants_read(&self, conn: ConnId) -> bool {
        self.context.connections.wants_read(conn)
    }

    /// The next connection that is to be read again though it gets no answer: requests of it that waited were handled.
    pub fn poll_readable(&mut self) -> Option<ConnId> {
        self.context.connections.readable.pop_first()
    }

    /// Files to sync on a thread of their own; hand the work back with [`Broker::handle_flushed`].
    pub fn poll_flush(&mut self) -> Option<FlushWork<D::File>> {
        self.context.flushes.poll(&mut self.context.store, self.context.now)
    }

    /// Partitions whose last sync has failed and was not made good since: they take nothing, and reads end before what is
    /// not known to be durable.
    #[must_use]
    pub fn offline_logs(&self) -> usize {
        self.context.flushes.offline()
    }

    /// What it says of itself, for whoever watches over it.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        metrics(&self.context, self.replication.pushes.pushed())
    }

    /// Errors since the last call that no answer to a client could name, one sentence each: for the driver to log.
    pub fn take_troubles(&mut self) -> Vec<String> {
        self.context.store.take_troubles()
    }

    /// Stops cleanly: everything is synced and marked, so that the next start need not check the log. Waiting
    /// requests are dropped; their connections are for the driver to close.
    ///
    /// # Errors
    /// The disk refused; the next start recovers as after a crash.
    pub fn close(&mut self, now: Now) -> Result<(), BrokerError> {
        self.context.now = now;
        self.abandon_all();
        self.context.unacknowledged.clear();
        self.fetch.clear();
        self.groups.clear_waiting();
        self.context.store.close(now)
    }

    // ---- inside

    /// Handles the next request of a connection, if it can be handled now.
    fn handle_next(&mut self, conn: ConnId) {
        if let Some(Incoming { token, host, frame }) = self.context.connections.next(conn) {
            self.dispatch(conn, token, host, frame);
        }
    }

    /// One more turn of retention.
    fn step_retention(&mut self) {
        let step = self.retention.step(&mut self.context.store, self.context.now);
        if step.starts_moved {
            self.context.changes.push_back(Change::StartsMoved);
        }
        if step.more {
            self.context.connections.due.push_back(Due::Retention);
        }
    }

    /// Tells the parts what has changed. Each of them learns of it before anything that was answered is sent.
    fn settle(&mut self) {
        if self.context.cluster.is_some() && self.replication.follow_member(&mut self.context) {
            self.wake_later();
        }
        let context = &mut self.context;
        while let Some(change) = context.changes.pop_front() {
            match change {
                Change::Appended { place, bytes } => {
                    let Some(partition) = context.store.partition_mut(place) else { continue };
                    self.fetch.wake(&partition.followers, bytes);
                    self.replication.pushes.note_appended(place);
                    if matches!(partition.role, Role::Sole) {
                        self.fetch.wake(&partition.watchers, bytes);
                        self.direct.publish(context, place);
                    }
                }
                Change::Committed { place, bytes } => {
                    if let Some(partition) = context.store.partition_mut(place) {
                        self.fetch.wake(&partition.watchers, bytes.max(1));
                    }
                    self.replication.pushes.note_committed(place, context.now.mono_ms);
                    self.direct.publish(context, place);
                    self.direct.commit(context, place);
                }
                Change::CaughtUp { place, follower } => {
                    self.replication.pushes.caught_up(context, place, follower);
                }
                Change::CopyCommitted { place, bytes } => {
                    if let Some(partition) = context.store.partition_mut(place) {
                        self.fetch.wake(&partition.watchers, bytes);
                    }
                }
                Change::LeaderChanged { place, watchers } => {
                    self.fetch.wake_now(&watchers);
                    self.direct.end_copy(place);
                }
                Change::RoleChanged { place, watchers } => {
                    self.fetch.wake_now(&watchers);
                    self.direct.end_writers(place);
                    self.direct.end_readers(place);
                    self.groups.take_role(context, place);
                }
                Change::StartsMoved => {
                    self.direct.publish_all(context);
                    self.direct.end_copies_of_later_start(context);
                }
                Change::TopicConfigured(id) => self.direct.end_unfit_writers(context, id),
                Change::TopicDeleted { id, name, watchers } => {
                    self.fetch.wake_now(&watchers);
                    context.flushes.forget_topic(&mut context.store, id);
                    context.unacknowledged.end_topic(&mut context.connections, id);
                    self.direct.end_topic(id);
                    self.groups.forget_topic(context, &name);
                }
            }
        }
        let ended: Vec<_> = std::iter::from_fn(|| self.direct.poll_ended_copy()).collect();
        self.replication.fetch_again(&mut self.context, &ended);
        self.replication.pushes.push_all(&mut self.context);
    }
}
