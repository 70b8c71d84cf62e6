//! A metadata store in memory: that of several brokers in one process, and of the simulation. It answers as etcd does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::store::{Answer, Change, Compare, Event, LeaseId, Pair, Request, Revision, Watched};

/// Keys of one answer.
const RANGE_KEYS_MAX: usize = 500;
/// Revisions that are kept for watches.
const HISTORY_MAX: Revision = 10_000;

/// What lasts of a store. Our values are JSON, and so text.
#[derive(Serialize, Deserialize)]
struct SavedStore {
    revision: Revision,
    keys: Vec<Saved>,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    key: String,
    value: String,
    created: Revision,
    modified: Revision,
}

#[derive(Debug, Clone)]
struct Lease {
    ttl_ms: u64,
    ends_ms: u64,
}

/// Keys with their history, leases, and who watches.
#[derive(Debug, Default)]
pub struct LocalStore {
    revision: Revision,
    pairs: BTreeMap<String, Pair>,
    leases: BTreeMap<LeaseId, Lease>,
    last_lease: LeaseId,
    history: VecDeque<(Revision, Vec<Event>)>,
    /// The oldest revision that a watch may begin with.
    oldest: Revision,
    /// By client, the number of its watch and the next revision that it waits for.
    watches: BTreeMap<u64, (u64, Revision)>,
}

impl LocalStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self { oldest: 1, ..Self::default() }
    }

    /// Its state and the keys that belong to no lease, as JSON: what a store begins with that comes after it.
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        let lasting = self.pairs.values().filter(|pair| pair.lease.is_none());
        let keys = lasting.map(|pair| Saved {
            key: pair.key.clone(),
            value: String::from_utf8_lossy(&pair.value).into_owned(),
            created: pair.created,
            modified: pair.modified,
        });
        serde_json::to_vec_pretty(&SavedStore { revision: self.revision, keys: keys.collect() })
            .unwrap_or_default()
    }

    /// A store that goes on from what [`Self::save`] made.
    ///
    /// # Errors
    /// That is none of it.
    pub fn load(saved: &[u8]) -> Result<Self, serde_json::Error> {
        let SavedStore { revision, keys } = serde_json::from_slice(saved)?;
        let pair = |saved: Saved| {
            let Saved { key, value, created, modified } = saved;
            (key.clone(), Pair { key, value: value.into_bytes(), created, modified, lease: None })
        };
        let pairs = keys.into_iter().map(pair).collect();
        Ok(Self { revision, pairs, oldest: revision + 1, ..Self::new() })
    }

    /// Its state.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// A key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Pair> {
        self.pairs.get(key)
    }

    /// All keys.
    pub fn pairs(&self) -> impl Iterator<Item = &Pair> {
        self.pairs.values()
    }

    /// When the next lease ends, in the time of the calls.
    #[must_use]
    pub fn next_end(&self) -> Option<u64> {
        self.leases.values().map(|lease| lease.ends_ms).min()
    }

    /// Ends the leases whose time is over.
    pub fn expire(&mut self, now_ms: u64) {
        let over = |(id, lease): (&LeaseId, &Lease)| (lease.ends_ms <= now_ms).then_some(*id);
        for id in self.leases.iter().filter_map(over).collect::<Vec<_>>() {
            self.end_lease(id);
        }
    }

    /// Gives each lease its whole time again, as etcd does when it has a new leader.
    pub fn renew(&mut self, now_ms: u64) {
        for lease in self.leases.values_mut() {
            lease.ends_ms = lease.ends_ms.max(now_ms.saturating_add(lease.ttl_ms));
        }
    }

    fn end_lease(&mut self, id: LeaseId) -> bool {
        let had = self.leases.remove(&id).is_some();
        let keys = self.pairs.values().filter(|pair| pair.lease == Some(id)).map(|pair| pair.key.clone());
        let changes: Vec<_> = keys.map(Change::Delete).collect();
        self.change(&changes);
        had
    }

    /// Forgets which keys were changed before a revision: watches that begin earlier have to read anew.
    pub fn compact(&mut self, before: Revision) {
        self.oldest = self.oldest.max(before.min(self.revision + 1));
        while self.history.front().is_some_and(|(revision, _)| *revision < self.oldest) {
            self.history.pop_front();
        }
    }

    /// What a client asks, with the request's number.
    pub fn handle(&mut self, now_ms: u64, client: u64, id: u64, request: &Request) -> Option<Answer> {
        self.expire(now_ms);
        Some(match request {
            Request::Grant { ttl_ms } => {
                self.last_lease += 1;
                let lease = Lease { ttl_ms: *ttl_ms, ends_ms: now_ms.saturating_add(*ttl_ms) };
                self.leases.insert(self.last_lease, lease);
                Answer::Granted(self.last_lease, *ttl_ms)
            }
            Request::KeepAlive(lease) => {
                let revision = self.revision;
                let ttl_ms = self.leases.get_mut(lease).map_or(0, |lease| {
                    lease.ends_ms = now_ms.saturating_add(lease.ttl_ms);
                    lease.ttl_ms
                });
                Answer::KeptAlive { ttl_ms, revision }
            }
            Request::Revoke(lease) => {
                self.end_lease(*lease);
                Answer::Revoked
            }
            Request::Range { prefix, after, revision } => self.range(prefix, after.as_deref(), *revision),
            Request::Commit { compares, changes } => {
                let holds = compares.iter().all(|compare| self.holds(compare)) && self.leases_live(changes);
                if holds {
                    self.change(changes);
                }
                Answer::Committed { succeeded: holds, revision: self.revision }
            }
            Request::Watch { from } => {
                self.watches.insert(client, (id, *from));
                return None;
            }
        })
    }

    /// A range as of an earlier state cannot be read here: whoever asks for one begins anew.
    fn range(&self, prefix: &str, after: Option<&str>, revision: Revision) -> Answer {
        if revision != 0 && revision != self.revision {
            return Answer::Failed(format!("revision {revision} is not kept, {} is", self.revision));
        }
        let from = after.unwrap_or(prefix).to_owned();
        let of = self.pairs.range(from..).map(|(_, pair)| pair);
        let mut pairs: Vec<_> = of
            .skip_while(|pair| after == Some(&*pair.key))
            .take_while(|pair| pair.key.starts_with(prefix))
            .take(RANGE_KEYS_MAX + 1)
            .cloned()
            .collect();
        let more = pairs.len() > RANGE_KEYS_MAX;
        pairs.truncate(RANGE_KEYS_MAX);
        Answer::Range { revision: self.revision, pairs, more }
    }

    fn holds(&self, compare: &Compare) -> bool {
        match compare {
            Compare::Created(key, revision) => {
                self.pairs.get(key).map_or(0, |pair| pair.created) == *revision
            }
            Compare::Modified(key, revision) => {
                self.pairs.get(key).map_or(0, |pair| pair.modified) == *revision
            }
        }
    }

    fn leases_live(&self, changes: &[Change]) -> bool {
        changes.iter().all(|change| match change {
            Change::Put(_, _, Some(lease)) => self.leases.contains_key(lease),
            _ => true,
        })
    }

    /// Applies changes as one revision, of which each key may be changed once.
    fn change(&mut self, changes: &[Change]) {
        let (next, mut events, mut seen) = (self.revision + 1, Vec::new(), BTreeSet::new());
        for change in changes {
            match change {
                Change::Put(key, value, lease) if seen.insert(key) => {
                    let created = self.pairs.get(key).map_or(next, |pair| pair.created);
                    let pair = Pair {
                        key: key.clone(),
                        value: value.clone(),
                        created,
                        modified: next,
                        lease: *lease,
                    };
                    self.pairs.insert(key.clone(), pair.clone());
                    events.push(Event::Put(pair));
                }
                Change::Delete(key) if seen.insert(key) && self.pairs.remove(key).is_some() => {
                    events.push(Event::Deleted(key.clone()));
                }
                _ => {}
            }
        }
        if !events.is_empty() {
            self.revision = next;
            self.history.push_back((next, events));
            // Each revision has an entry, so as many are kept.
            self.compact(next + 1 - HISTORY_MAX);
        }
    }

    /// What a client's watch brings next, with the number of that watch.
    pub fn poll_watch(&mut self, client: u64) -> Option<(u64, Watched)> {
        let (id, from) = self.watches.get_mut(&client)?;
        let id = *id;
        if *from < self.oldest {
            self.watches.remove(&client);
            return Some((id, Watched::Compacted));
        }
        let at = self.history.partition_point(|(revision, _)| *revision < *from);
        let (revision, events) = self.history.get(at)?;
        *from = revision + 1;
        Some((id, Watched::Changes(*revision, events.clone())))
    }

    /// A client's connection is gone, and with it its watch, whose number this is.
    pub fn disconnect(&mut self, client: u64) -> Option<u64> {
        self.watches.remove(&client).map(|(id, _)| id)
    }
}
