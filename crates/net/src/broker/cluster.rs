//! What a broker's loop does for its cluster: carries requests to the metadata store and to other brokers.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use headrace_broker::{Broker, BrokerConfig, BrokerError, ClusterEvent, ClusterStart};
use headrace_cluster::{Member, MemberConfig, MemberEvent};
use headrace_log::LogDir;
use headrace_wire::targets;
use headrace_wire::uuid::Uuid;
use mio::event::Event;
use mio::{Events, Poll, Registry, Token, Waker};

use super::peers::Peers;
use crate::clock::Clock;
use crate::disk::FileDisk;
use crate::metadata::{MetadataEvent, MetadataSource, MetadataStore};

/// How long a start waits for the metadata store to say which cluster it is.
const IDENTIFY_MS: u64 = 30_000;
/// How many times that of a lease a broker waits that finds its number taken.
const WAIT_LEASES: u64 = 3;
/// How long a broker that stops tries to hand over what it leads.
const LEAVE_MS: u64 = 10_000;
/// For so long after that it answers what clients have sent meanwhile: who leads now.
const LINGER_MS: u64 = 50;
/// Rounds of carrying before sockets are looked at again.
const ROUNDS_MAX: usize = 64;

/// What comes of the first try to join.
pub(super) type Joined = Result<(), String>;

/// The cluster's side of a broker's loop.
pub(super) struct ClusterDriver {
    store: Box<dyn MetadataStore>,
    peers: Peers,
    clock: Clock,
    /// Whoever waits for the broker to join.
    joined: Option<Sender<Joined>>,
    /// When it stops waiting for what it leads to be handed over, and once that is done, when it ends.
    leaves_until: Option<u64>,
    refused: Option<String>,
    /// Who has its number, as long as it has not joined.
    taken_by: Option<String>,
    /// When it waits no longer for that one's lease to end.
    waits_until: u64,
}

fn failed(why: impl Into<String>) -> BrokerError {
    BrokerError::from(std::io::Error::other(why.into()))
}

/// A new random id for a cluster.
fn new_cluster_id(seed: u64) -> String {
    let mut bytes = [0; 16];
    let (high, low) = bytes.split_at_mut(8);
    high.copy_from_slice(&seed.to_be_bytes());
    low.copy_from_slice(&seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).to_be_bytes());
    Uuid(bytes).to_string()
}

/// The kernel's id of this start of the machine; without one, every start of the broker counts as one of the machine.
fn boot_id(seed: u64) -> String {
    let found = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    found.map_or_else(|_| seed.to_string(), |id| id.trim().to_owned())
}

/// Finds out which cluster the metadata store is that of.
pub(super) fn identify(
    source: &MetadataSource,
    disk: &FileDisk,
    config: &mut BrokerConfig,
    (clock, seed): (Clock, u64),
    (poll, waker): (&mut Poll, &Arc<Waker>),
) -> Result<(ClusterStart, Box<dyn MetadataStore>), BrokerError> {
    let mut store = source.connect(waker.clone(), config)?;
    let directory = LogDir::<FileDisk>::cluster_of(disk, Path::new(&config.data_dir))?;
    let given = Some(config.cluster_id.clone()).filter(|id| !id.is_empty());
    let membership = MemberConfig {
        node: config.node_id,
        cluster_id: directory,
        new_cluster_id: given.clone().unwrap_or_else(|| new_cluster_id(seed)),
        session_timeout_ms: u64::try_from(config.broker_session_timeout_ms).unwrap_or(0),
    };
    let mut member = Member::new(membership, clock.mono_ms());
    let until = clock.mono_ms().saturating_add(IDENTIFY_MS);
    let mut last = None;
    let mut events = Events::with_capacity(8);
    loop {
        while let Some((id, request)) = member.poll_request() {
            store.send(id, request);
        }
        let mut has_come = false;
        while let Some(event) = store.poll() {
            has_come = true;
            let now_ms = clock.mono_ms();
            match event {
                MetadataEvent::Answer(id, answer) => {
                    if let headrace_cluster::Answer::Failed(why) = &answer {
                        last = Some(why.clone());
                    }
                    member.handle_answer(now_ms, id, &answer);
                }
                MetadataEvent::Watched(id, watched) => member.handle_watched(now_ms, id, &watched),
            }
        }
        match member.poll_event() {
            Some(MemberEvent::Identified(id)) => {
                if let Some(given) = given.filter(|given| *given != id) {
                    return Err(failed(format!(
                        "cluster.id is {given}, and the metadata store is that of the cluster {id}"
                    )));
                }
                config.cluster_id = id;
                return Ok((ClusterStart { member, boot_id: boot_id(seed) }, store));
            }
            Some(MemberEvent::Refused(why)) => return Err(failed(why.to_string())),
            Some(_) => continue,
            // There may be more to ask for.
            None if has_come => continue,
            None => {}
        }
        let now_ms = clock.mono_ms();
        if now_ms >= until {
            let why = last.unwrap_or_else(|| "it does not answer".to_owned());
            return Err(failed(format!("the metadata store cannot be reached: {why}")));
        }
        if member.poll_timeout().is_some_and(|at| at <= now_ms) {
            member.handle_timeout(now_ms);
            continue;
        }
        let due = member.poll_timeout().unwrap_or(until).min(until).saturating_sub(now_ms);
        match poll.poll(&mut events, Some(Duration::from_millis(due.max(1)))) {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
    }
}

impl ClusterDriver {
    pub(super) fn new(
        store: Box<dyn MetadataStore>,
        clock: Clock,
        waker: Arc<Waker>,
        joined: Sender<Joined>,
        config: &BrokerConfig,
    ) -> Self {
        let session_ms = u64::try_from(config.broker_session_timeout_ms).unwrap_or(0);
        Self {
            store,
            peers: Peers::new(waker),
            clock,
            joined: Some(joined),
            leaves_until: None,
            refused: None,
            taken_by: None,
            waits_until: clock.mono_ms().saturating_add(WAIT_LEASES * session_ms),
        }
    }

    pub(super) fn has(token: Token) -> bool {
        Peers::has(token)
    }

    pub(super) fn ready(&mut self, token: Token, event: &Event) {
        self.peers.ready(token, event);
    }

    /// Whether there is something to be done that no event announces.
    pub(super) fn is_busy(&self) -> bool {
        self.peers.is_busy()
    }

    /// When there is something to be done, by `mono_ms`.
    pub(super) fn due_ms(&self) -> Option<u64> {
        let now_ms = self.clock.mono_ms();
        let store = self.store.due_in_ms().map(|ms| now_ms.saturating_add(ms));
        let waits = self.taken_by.as_ref().map(|_| self.waits_until);
        [store, self.leaves_until, waits].into_iter().flatten().min()
    }

    /// Carries what is to be carried. Whether the loop is to go on: not once the broker cannot be a member.
    pub(super) fn turn(
        &mut self,
        broker: &mut Broker<FileDisk>,
        registry: &Registry,
    ) -> Result<(), BrokerError> {
        if self.store.due_in_ms() == Some(0) {
            self.store.look();
        }
        self.peers.turn(broker, registry, self.clock.now());
        for _ in 0..ROUNDS_MAX {
            let now = self.clock.now();
            let mut moved = false;
            while let Some(event) = self.store.poll() {
                moved = true;
                match event {
                    MetadataEvent::Answer(id, answer) => broker.handle_store_answer(now, id, &answer),
                    MetadataEvent::Watched(id, watched) => broker.handle_watched(now, id, &watched),
                }
            }
            while let Some((id, request)) = broker.poll_store_request() {
                moved = true;
                self.store.send(id, request);
            }
            while let Some(action) = broker.poll_peer_action() {
                moved = true;
                self.peers.act(broker, registry, action, now);
            }
            while let Some(event) = broker.poll_cluster_event() {
                moved = true;
                self.note(event);
            }
            if !moved {
                break;
            }
        }
        self.peers.write_all(broker, registry, self.clock.now());
        self.give_up(broker);
        match self.refused.take() {
            Some(why) => Err(failed(why)),
            None => Ok(()),
        }
    }

    /// A lease that is kept alive does not end: whoever holds it lives.
    fn give_up(&mut self, broker: &Broker<FileDisk>) {
        if self.clock.mono_ms() < self.waits_until {
            return;
        }
        if let (Some(other), Some(joined)) = (self.taken_by.take(), self.joined.take()) {
            let node = broker.config().node_id;
            let why = format!("another broker has the number {node} in this cluster, and lives: {other}");
            let _ = joined.send(Err(why.clone()));
            self.refused = Some(why);
        }
    }

    fn note(&mut self, event: ClusterEvent) {
        match event {
            ClusterEvent::Joined => {
                tracing::info!(target: targets::BROKER, "the broker has joined its cluster");
                self.taken_by = None;
                if let Some(joined) = self.joined.take() {
                    let _ = joined.send(Ok(()));
                }
            }
            ClusterEvent::Waits(other) if self.joined.is_some() && self.taken_by.as_ref() != Some(&other) => {
                let why = "another broker has this number; its lease must end first";
                tracing::warn!(target: targets::BROKER, other, "{why}");
                self.taken_by = Some(other);
            }
            ClusterEvent::Lost(why) => {
                tracing::warn!(target: targets::BROKER, why, "the broker is no member of its cluster, and tries to be one");
            }
            ClusterEvent::Left => {
                let ends = self.clock.mono_ms().saturating_add(LINGER_MS);
                self.leaves_until = self.leaves_until.map(|until| until.min(ends));
            }
            ClusterEvent::Refused(why) => {
                if let Some(joined) = self.joined.take() {
                    let _ = joined.send(Err(why.to_string()));
                }
                self.refused = Some(why.to_string());
            }
            _ => {}
        }
    }

    /// The broker is to stop: whether it has handed over what it led, or has tried for long enough.
    pub(super) fn leave(&mut self, broker: &mut Broker<FileDisk>) -> bool {
        let now = self.clock.now();
        let until = *self.leaves_until.get_or_insert_with(|| {
            broker.leave(now);
            now.mono_ms.saturating_add(LEAVE_MS)
        });
        now.mono_ms >= until
    }
}
