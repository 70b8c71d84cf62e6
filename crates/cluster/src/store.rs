//! What a metadata store is asked, and answers: the six operations of etcd that we use.

/// A state of the store; each transaction that changes something makes the next. 0 is before all.
pub type Revision = i64;

/// The id of a lease.
pub type LeaseId = i64;

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The key, without the prefix of the cluster.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// The revision that made it.
    pub created: Revision,
    /// The revision that changed it last.
    pub modified: Revision,
    /// The lease with which it goes.
    pub lease: Option<LeaseId>,
}

/// What must hold for a transaction to change anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    /// The key was made by this revision; 0: it is not there.
    Created(String, Revision),
    /// The key was changed last by this revision; 0: it is not there.
    Modified(String, Revision),
}

/// What a transaction changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The key has this value from now on, for as long as the lease lives if one is given.
    Put(String, Vec<u8>, Option<LeaseId>),
    /// The key is gone.
    Delete(String),
}

/// What a store is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A lease of so many milliseconds.
    Grant {
        /// How long it lives without being kept alive. etcd rounds up to seconds.
        ttl_ms: u64,
    },
    /// The lease's time begins anew.
    KeepAlive(LeaseId),
    /// The lease ends, and its keys go.
    Revoke(LeaseId),
    /// Keys in their order, some at a time.
    Range {
        /// What they begin with.
        prefix: String,
        /// The last key of the answer before.
        after: Option<String>,
        /// As of this revision; 0: the newest.
        revision: Revision,
    },
    /// All changes at once, if all compares hold; otherwise none.
    Commit {
        /// What must hold.
        compares: Vec<Compare>,
        /// What changes.
        changes: Vec<Change>,
    },
    /// Each change from this revision on. Whatever comes of it has the number of this request; of an earlier watch nothing is
    /// wanted any more.
    Watch {
        /// The first revision.
        from: Revision,
    },
}

/// What a store answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A lease, and how long it lives.
    Granted(LeaseId, u64),
    /// A lease was kept alive.
    KeptAlive {
        /// It lives so long from when the store had the request; 0: it is over.
        ttl_ms: u64,
        /// The state of the store.
        revision: Revision,
    },
    /// The lease is over.
    Revoked,
    /// Keys, as of a revision.
    Range {
        /// The state of the store.
        revision: Revision,
        /// In order of their keys.
        pairs: Vec<Pair>,
        /// There are keys behind them.
        more: bool,
    },
    /// A transaction was applied, or its compares did not hold.
    Committed {
        /// Whether it was applied.
        succeeded: bool,
        /// The state afterwards.
        revision: Revision,
    },
    /// Nobody knows whether it was done.
    Failed(String),
}

/// A change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It has another value.
    Put(Pair),
    /// It is gone.
    Deleted(String),
}

/// What a watch brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// What a revision has changed. Each revision comes whole, and in order.
    Changes(Revision, Vec<Event>),
    /// The revision that was asked for is no longer kept: read anew.
    Compacted,
    /// It has ended; ask again.
    Ended(String),
}
