//! What a part of the broker is given with each request: the time, the settings, who may do what, the store, and ways to
//! answer. A part sees the [`Context`] and its own state; the kernel, and the other parts, it does not see.

pub(crate) mod call;
pub(crate) mod connections;
pub(crate) mod task;
pub(crate) mod unsynced;

use std::collections::VecDeque;
use std::sync::Arc;

use headrace_log::{AppendError, AppendOrigin, Appended, Disk};
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::Request;
use headrace_wire::time::{Now, RateLimit};
use headrace_wire::uuid::Uuid;

use crate::auth::{Authorizer, Operation, Resource};
use crate::config::BrokerConfig;
use crate::error::BrokerError;
use crate::random::Random;
use crate::store::flush::Flushes;
use crate::store::{Place, StartReport, Store, TopicKey};
use call::{Call, ConnId, Outcome};
use connections::Connections;
use unsynced::{Fail, FlushTarget, Unsynced};

/// What parts work with.
pub(crate) struct Context<D: Disk> {
    pub(crate) now: Now,
    pub(crate) config: BrokerConfig,
    pub(crate) authorizer: Box<dyn Authorizer>,
    pub(crate) random: Random,
    pub(crate) store: Store<D>,
    pub(crate) flushes: Flushes,
    pub(crate) unsynced: Unsynced<D::File>,
    pub(crate) connections: Connections<D::File>,
    /// What parts have done that others must know: the kernel tells them, after the input or the unit of work.
    pub(crate) changes: VecDeque<Change>,
    /// Lines of the log about topics: clients decide how often they come and go.
    pub(crate) lines: RateLimit,
}

/// A change of the store that parts look for.
#[derive(Debug)]
pub(crate) enum Change {
    /// A log has become longer.
    Appended {
        place: Place,
        bytes: u64,
        /// Fetches wait for it.
        is_watched: bool,
    },
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
    pub(crate) appended: Appended,
    /// It is to be synced before it is acknowledged, and is not yet.
    pub(crate) is_unsynced: bool,
}

/// Why nothing was appended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppendFailure {
    #[error("the topic has no partition {0}")]
    NoPartition(i32),
    #[error(transparent)]
    Refused(#[from] AppendError),
}

impl AppendFailure {
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::NoPartition(_) => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
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
        random_seed: u64,
        now: Now,
    ) -> Result<(Self, StartReport), BrokerError> {
        let mut random = Random::new(random_seed);
        let (store, report) = Store::open(disk, &config, &mut random, now)?;
        let context = Self {
            now,
            config,
            authorizer,
            random,
            store,
            flushes: Flushes::default(),
            unsynced: Unsynced::default(),
            connections: Connections::default(),
            changes: VecDeque::new(),
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

    /// Answers a request once these are durable; `fail` says in the response that one of them is not.
    pub(crate) fn reply_when_synced<R: Request + 'static>(
        &mut self,
        call: &Call,
        response: R::Response,
        mut targets: Vec<FlushTarget>,
        fail: Fail<R>,
    ) -> Outcome<R::Response>
    where
        R::Response: Send,
    {
        // They may be durable by now.
        targets.retain(|target| {
            let partition = self.store.partition_mut(target.place);
            partition.is_some_and(|p| p.log.recovery_point() <= target.last_offset)
        });
        if targets.is_empty() {
            return Outcome::Reply(response);
        }
        self.unsynced.wait::<R>(call, response, targets, fail);
        Outcome::Parked
    }

    // ---- records

    /// Appends a batch to a partition: the one way into a log. Whoever waits for records learns of it, and so does the
    /// rotation of syncs. `client`: the batch comes from one, and is checked as such.
    pub(crate) fn append(
        &mut self,
        key: &TopicKey,
        index: i32,
        batch: &[u8],
        client: bool,
    ) -> Result<AppendedTo, AppendFailure> {
        let origin = AppendOrigin { leader_epoch: self.store.leader_epoch(), client };
        let writable = self.store.check_appends();
        let (topic, partition) =
            self.store.partition_for_append(key, index).ok_or(AppendFailure::NoPartition(index))?;
        let place = (topic, index);
        let appended = writable.and_then(|()| partition.log.append(self.now, batch, origin))?;
        self.flushes.note(place, partition.log.flush_due());
        // Nothing may be due and the records not be durable yet: a repeat of what is being synced just now.
        let is_unsynced =
            partition.syncs_before_ack() && appended.last_offset >= partition.log.recovery_point();
        if !appended.duplicate {
            let (bytes, is_watched) = (batch.len() as u64, !partition.watchers.is_empty());
            self.changes.push_back(Change::Appended { place, bytes, is_watched });
        }
        Ok(AppendedTo { place, appended, is_unsynced })
    }
}
