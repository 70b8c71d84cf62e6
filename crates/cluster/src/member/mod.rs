//! One broker's membership of its cluster: a lease, a registration, a view that is kept up to date, and elections.

mod commands;
mod elections;
mod lease;
mod reassign;

use std::collections::{BTreeMap, VecDeque};

use headrace_wire::uuid::Uuid;

use crate::model::{self, ClusterValue, Foreign, Key, NodeId, NodeValue, Place, Registration};
use crate::store::{Answer, Change, Compare, Pair, Request, Revision, Watched};
use crate::view::{Changed, Seen, View};
use commands::Command;
pub use commands::CommandId;
use elections::Elections;
use lease::Lease;

/// What failed is tried again after so long.
const RETRY_MS: u64 = 200;

/// What a broker is to its cluster.
#[derive(Debug, Clone)]
pub struct MemberConfig {
    /// `node.id`
    pub node: NodeId,
    /// The cluster that its data directory belongs to; nothing if that is new.
    pub cluster_id: Option<String>,
    /// The id that the cluster gets if there is none yet.
    pub new_cluster_id: String,
    /// `broker.session.timeout.ms`: without a sign of life for so long, the broker counts as dead.
    pub session_timeout_ms: u64,
}

/// Why a broker cannot be a member. It is over; nothing is asked of the store any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Something else lies under the prefix.
    #[error(transparent)]
    Foreign(#[from] Foreign),
    /// The data directory is another cluster's.
    #[error("the metadata store is that of the cluster {store}, and the data directory that of {directory}")]
    OtherCluster {
        /// The id in the store.
        store: String,
        /// The id of the data directory.
        directory: String,
    },
    /// The store was emptied, or is another one.
    #[error("the metadata store is empty, and the data directory belongs to the cluster {0}")]
    Empty(String),
    /// The store is older than what was read of it before.
    #[error("the metadata store went back from revision {from} to {to}: was it restored from a backup?")]
    WentBack {
        /// What was read before.
        from: Revision,
        /// What it has now.
        to: Revision,
    },
    /// The store knows nothing of a change of a partition that this broker has seen, perhaps before it was started again.
    #[error(
        "the metadata store knows {partition} as it was at revision {to}, and this broker has seen it at {from}: was the store \
         restored from a backup? Records that were acknowledged since may be lost when brokers go by it. Restore a newer backup, \
         or start each broker once with headrace.metadata.accept.restored=true"
    )]
    Forgot {
        /// The partition.
        partition: String,
        /// The revision that was seen.
        from: Revision,
        /// What the store has instead.
        to: Revision,
    },
    /// The same, and the partition was changed since: by a broker that knew no better.
    #[error(
        "the metadata store has {partition} led by {to}, and this broker has seen it led by {from}: was the store \
         restored from a backup, and did a broker lead since that was down before? Records that were acknowledged may be \
         lost when brokers go by it. Restore the backup once more, or a newer one, and start those brokers first that \
         were in sync last"
    )]
    Differs {
        /// The partition.
        partition: String,
        /// Who led it, and in which epoch.
        from: String,
        /// What the store has instead.
        to: String,
    },
}

/// Who leads, and in which epoch, for messages.
fn reign(leader: Option<Registration>, epoch: i32) -> String {
    let who = leader.map_or_else(|| "nobody".to_owned(), |leader| format!("broker {}", leader.0));
    format!("{who} in epoch {epoch}")
}

/// What a broker learns of its membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberEvent {
    /// The store is that of this cluster. The broker registers once [`Member::register`] has said as what.
    Identified(String),
    /// It is a member of this cluster, under this broker epoch.
    Registered(String, Revision),
    /// Another broker, or an earlier start of this one, holds its number; it waits for that one's lease to end.
    Waits(NodeValue),
    /// The view is another one.
    Changed(Changed),
    /// It may do nothing until it is registered again.
    Lost(String),
    /// A command was done, and the view shows it; or why not.
    Done(CommandId, Result<(), String>),
    /// It has handed over what it led, and ended its lease.
    Left,
    /// It cannot be a member.
    Refused(Refusal),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// Nothing is asked before then.
    Waiting(u64, Step),
    /// It knows its cluster, and not yet as what it is to register.
    Identified,
    /// An answer to this is waited for.
    Asking(Step),
    Live,
    Over,
}

/// The way to a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Grant,
    Identify,
    Found,
    Register,
    /// Whether a registration, whose outcome is not known, is ours.
    Check,
    Load,
}

/// What a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Step(Step),
    KeepAlive,
    Elect(Vec<Place>),
    Command(CommandId),
    Transfer(Place),
    /// The lease of an earlier registration, or of one that ends.
    Revoke,
}

/// A partition that is being handed over.
#[derive(Debug, Clone, Copy)]
struct Handing {
    /// The leader epoch under which it was led.
    epoch: i32,
    /// When to ask again; nothing while an answer is waited for.
    again: Option<u64>,
}

#[derive(Debug, Clone)]
struct Pending {
    what: What,
    sent_ms: u64,
}

/// One broker's part in its cluster.
///
/// Inputs are `handle_*` and the commands; after each, take requests, then events, until there are none, and call
/// [`Self::handle_timeout`] at [`Self::poll_timeout`]. The time must be that of the moment: what it may do ends with its lease.
#[derive(Debug)]
pub struct Member {
    config: MemberConfig,
    /// What others learn of it.
    value: Option<NodeValue>,
    now_ms: u64,
    phase: Phase,
    lease: Option<Lease>,
    /// Its broker epoch while it is registered; 0 otherwise.
    epoch: Revision,
    view: View,
    /// A view that is being read.
    loading: View,
    /// The last key of it.
    loaded: Option<String>,
    /// The newest state that was read.
    newest: Revision,
    /// What an earlier start of this broker has seen, and what topics were called then.
    seen: Vec<Seen>,
    names: BTreeMap<Uuid, String>,
    /// A state of the store that the view has not reached yet, and since when that is known.
    ahead: Option<(Revision, u64)>,
    elections: Elections,
    commands: BTreeMap<CommandId, Command>,
    /// Commands that the store has done at a revision which the view has not reached yet.
    applied: BTreeMap<CommandId, Revision>,
    /// Partitions that it led and is handing over.
    handing: BTreeMap<Place, Handing>,
    /// It ends its membership once nothing is left to be handed over.
    leaving: bool,
    next_id: u64,
    /// The number of the watch that keeps the view up to date; 0: there is none.
    watch: u64,
    pending: BTreeMap<u64, Pending>,
    requests: VecDeque<(u64, Request)>,
    events: VecDeque<MemberEvent>,
}

impl Member {
    /// A broker that is about to join: it finds out which cluster it is.
    #[must_use]
    pub fn new(config: MemberConfig, now_ms: u64) -> Self {
        let mut member = Self {
            config,
            value: None,
            now_ms,
            phase: Phase::Asking(Step::Identify),
            lease: None,
            epoch: 0,
            view: View::default(),
            loading: View::default(),
            loaded: None,
            newest: 0,
            seen: Vec::new(),
            names: BTreeMap::new(),
            ahead: None,
            elections: Elections::default(),
            commands: BTreeMap::new(),
            applied: BTreeMap::new(),
            handing: BTreeMap::new(),
            leaving: false,
            next_id: 0,
            watch: 0,
            pending: BTreeMap::new(),
            requests: VecDeque::new(),
            events: VecDeque::new(),
        };
        member.take_step(Step::Identify);
        member
    }

    /// Has it register, with what others are to learn of it.
    pub fn register(&mut self, now_ms: u64, value: NodeValue) {
        self.now_ms = now_ms;
        self.value = Some(value);
        if self.phase == Phase::Identified {
            self.take_step(Step::Grant);
        }
    }

    /// Has it compare the store with what an earlier start of this broker has seen. `names` are those of topics, for messages.
    pub fn remember(&mut self, seen: Vec<Seen>, names: BTreeMap<Uuid, String>) {
        self.seen = seen;
        self.names = names;
    }

    /// What was said to [`Self::register`].
    #[must_use]
    pub fn value(&self) -> Option<&NodeValue> {
        self.value.as_ref()
    }

    // ---- what it knows

    /// The cluster as it was read last.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Its broker epoch, while it may act as a member of its cluster.
    #[must_use]
    pub fn acts(&self, now_ms: u64) -> Option<Revision> {
        let is_alive = self.lease.as_ref().is_some_and(|lease| now_ms < lease.ends_ms);
        (is_alive && self.epoch != 0).then_some(self.epoch)
    }

    /// The leader epoch under which it leads a partition at a moment; nothing if it may not.
    #[must_use]
    pub fn leads(&self, now_ms: u64, place: Place) -> Option<i32> {
        let epoch = self.acts(now_ms)?;
        let partition = &self.view.partitions.get(&place)?.value;
        let leads = partition.leader == Some(Registration(self.config.node, epoch));
        (leads && !self.handing.contains_key(&place)).then_some(partition.epoch)
    }

    /// Whether it leads a partition no longer because it has asked for another leader, and does not know who that is.
    #[must_use]
    pub fn is_handing_over(&self, place: Place) -> bool {
        self.handing.contains_key(&place)
    }

    fn own_registration(&self) -> Registration {
        Registration(self.config.node, self.epoch)
    }

    // ---- inputs

    /// The store has answered.
    pub fn handle_answer(&mut self, now_ms: u64, id: u64, answer: &Answer) {
        self.now_ms = now_ms;
        let Some(Pending { what, sent_ms }) = self.pending.remove(&id) else { return };
        match what {
            What::Step(step) if self.phase == Phase::Asking(step) => self.answer_step(step, sent_ms, answer),
            What::KeepAlive => self.answer_keep_alive(sent_ms, answer),
            What::Elect(places) => self.answer_election(&places, answer),
            What::Command(id) => self.answer_command(id, answer),
            What::Transfer(place) => self.answer_transfer(place),
            // Not that of an earlier lease, while this one is needed to hand over.
            What::Revoke if self.leaving && self.lease.is_none() => self.leave(),
            What::Step(_) | What::Revoke => {}
        }
    }

    /// A watch has brought something. `id` is the number of the request that asked for it.
    pub fn handle_watched(&mut self, now_ms: u64, id: u64, watched: &Watched) {
        self.now_ms = now_ms;
        self.end_with_lease();
        // An earlier watch may be ahead of what was read since: what it brings is not all that has changed.
        if self.phase != Phase::Live || id != self.watch {
            return;
        }
        match watched {
            Watched::Changes(revision, _) if *revision <= self.view.revision => {}
            Watched::Changes(revision, events) => match self.view.apply(*revision, events) {
                Ok(changed) => self.changed(changed),
                Err(foreign) => self.refuse(foreign.into()),
            },
            Watched::Compacted | Watched::Ended(_) => self.wait(0, Step::Load),
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        let limit = self.request_ms();
        let is_late =
            |(id, one): (&u64, &Pending)| (now_ms >= one.sent_ms.saturating_add(limit)).then_some(*id);
        for id in self.pending.iter().filter_map(is_late).collect::<Vec<_>>() {
            let why = format!("the metadata store has not answered for {limit} ms");
            self.handle_answer(now_ms, id, &Answer::Failed(why));
        }
        self.check_lease();
        if let Phase::Waiting(until, step) = self.phase
            && until <= now_ms
        {
            self.take_step(step);
        }
        self.elect_again();
        self.hand_over_again();
    }

    // ---- outputs

    /// The next request, with the number that its answer must have.
    pub fn poll_request(&mut self) -> Option<(u64, Request)> {
        self.requests.pop_front()
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<MemberEvent> {
        self.events.pop_front()
    }

    /// When [`Self::handle_timeout`] is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let limit = self.request_ms();
        let late = self.pending.values().map(|one| one.sent_ms.saturating_add(limit)).min();
        let waiting = match self.phase {
            Phase::Over => return None,
            Phase::Waiting(until, _) => Some(until),
            _ => None,
        };
        let lease = self.lease.as_ref().map(Lease::due_ms);
        let handing = self.handing.values().filter_map(|one| one.again).min();
        [late, waiting, lease, self.elections.due_ms(), handing].into_iter().flatten().min()
    }

    // ---- inside

    fn request_ms(&self) -> u64 {
        (self.config.session_timeout_ms / 3).max(1)
    }

    fn ask(&mut self, what: What, request: Request) {
        self.next_id += 1;
        self.pending.insert(self.next_id, Pending { what, sent_ms: self.now_ms });
        self.requests.push_back((self.next_id, request));
    }

    /// Asks for what has changed since the view.
    fn watch_on(&mut self) {
        self.next_id += 1;
        self.watch = self.next_id;
        self.requests.push_back((self.watch, Request::Watch { from: self.view.revision + 1 }));
    }

    fn wait(&mut self, ms: u64, step: Step) {
        self.phase = Phase::Waiting(self.now_ms.saturating_add(ms), step);
        if ms == 0 {
            self.take_step(step);
        }
    }

    fn take_step(&mut self, step: Step) {
        self.phase = Phase::Asking(step);
        let range = |prefix: String| Request::Range { prefix, after: None, revision: 0 };
        let own = Key::Node(self.config.node).text();
        let request = match step {
            Step::Grant => Request::Grant { ttl_ms: self.config.session_timeout_ms },
            Step::Identify => range(Key::Cluster.text()),
            Step::Found => {
                let value =
                    ClusterValue { format: model::FORMAT, cluster_id: self.config.new_cluster_id.clone() };
                let key = Key::Cluster.text();
                Request::Commit {
                    compares: vec![Compare::Created(key.clone(), 0)],
                    changes: vec![Change::Put(key, model::encode(&value), None)],
                }
            }
            Step::Register => Request::Commit {
                compares: vec![Compare::Created(own.clone(), 0)],
                changes: vec![Change::Put(
                    own,
                    model::encode(&self.value),
                    self.lease.as_ref().map(|lease| lease.id),
                )],
            },
            Step::Check => range(own),
            Step::Load => {
                self.loading = View::default();
                self.loaded = None;
                range(String::new())
            }
        };
        self.ask(What::Step(step), request);
    }

    fn answer_step(&mut self, step: Step, sent_ms: u64, answer: &Answer) {
        match (step, answer) {
            (Step::Grant, Answer::Granted(id, ttl_ms)) if *ttl_ms > 0 => {
                let ttl_ms = (*ttl_ms).min(self.config.session_timeout_ms);
                self.lease = Some(Lease::new(*id, ttl_ms, sent_ms));
                self.take_step(Step::Identify);
            }
            (Step::Identify, Answer::Range { pairs, .. }) => {
                let key = Key::Cluster.text();
                self.identify(pairs.iter().find(|pair| pair.key == key));
            }
            (Step::Found, Answer::Committed { .. }) => self.take_step(Step::Identify),
            (Step::Register, Answer::Committed { succeeded: true, revision }) => self.registered(*revision),
            (Step::Register, Answer::Committed { .. } | Answer::Failed(_)) => self.wait(0, Step::Check),
            (Step::Check, Answer::Range { pairs, .. }) => {
                let key = Key::Node(self.config.node).text();
                self.check(pairs.iter().find(|pair| pair.key == key));
            }
            (Step::Load, Answer::Range { revision, pairs, more }) => self.load(*revision, pairs, *more),
            _ => self.wait(RETRY_MS, step),
        }
    }

    fn identify(&mut self, found: Option<&Pair>) {
        let Some(pair) = found else {
            return match self.config.cluster_id.clone() {
                Some(directory) => self.refuse(Refusal::Empty(directory)),
                None => self.take_step(Step::Found),
            };
        };
        let store = match model::decode(&pair.key, &pair.value) {
            Ok((_, model::Value::Cluster(value))) => value.cluster_id,
            Ok(_) => return,
            Err(foreign) => return self.refuse(foreign.into()),
        };
        match &self.config.cluster_id {
            Some(directory) if *directory != store => {
                let directory = directory.clone();
                self.refuse(Refusal::OtherCluster { store, directory });
            }
            _ => {
                self.config.cluster_id = Some(store.clone());
                if self.lease.is_some() {
                    return self.take_step(Step::Register);
                }
                self.events.push_back(MemberEvent::Identified(store));
                self.phase = Phase::Identified;
                if self.value.is_some() {
                    self.take_step(Step::Grant);
                }
            }
        }
    }

    fn check(&mut self, found: Option<&Pair>) {
        let own = self.lease.as_ref().map(|lease| lease.id);
        match found {
            Some(pair) if pair.lease == own => self.registered(pair.created),
            Some(pair) => {
                if let Ok((_, model::Value::Node(other))) = model::decode(&pair.key, &pair.value) {
                    self.events.push_back(MemberEvent::Waits(other));
                }
                self.wait(RETRY_MS, Step::Register);
            }
            None => self.wait(RETRY_MS, Step::Register),
        }
    }

    fn registered(&mut self, epoch: Revision) {
        self.epoch = epoch;
        // Its logs go on with this process, whatever becomes of its membership.
        if let Some(value) = &mut self.value {
            value.intact_since = Some(value.intact_since.map_or(epoch, |since| since.min(epoch)));
        }
        let id = self.config.cluster_id.clone().unwrap_or_default();
        self.events.push_back(MemberEvent::Registered(id, epoch));
        self.take_step(Step::Load);
    }

    fn load(&mut self, revision: Revision, pairs: &[Pair], more: bool) {
        let mut ignored = Changed::default();
        for pair in pairs {
            if let Err(foreign) = self.loading.put(pair, &mut ignored) {
                return self.refuse(foreign.into());
            }
        }
        // What follows is asked for as of the first answer, and names the state that there is by then.
        if self.loaded.is_none() {
            self.loading.revision = revision;
        }
        let revision = self.loading.revision;
        if let (true, Some(last)) = (more, pairs.last()) {
            self.loaded = Some(last.key.clone());
            let request = Request::Range { prefix: String::new(), after: self.loaded.clone(), revision };
            return self.ask(What::Step(Step::Load), request);
        }
        if revision < self.newest {
            return self.refuse(Refusal::WentBack { from: self.newest, to: revision });
        }
        let view = std::mem::take(&mut self.loading);
        if let Some(forgot) = self.forgotten_by(&view) {
            return self.refuse(forgot);
        }
        self.seen = Vec::new();
        let changed = self.view.difference(&view);
        self.view = view;
        self.phase = Phase::Live;
        self.watch_on();
        self.changed(changed);
        // Those that were there before count as well.
        self.elect(None);
    }

    /// What a view that was read lacks of what was seen before. A backup that is restored with a later revision shows in this
    /// alone.
    fn forgotten_by(&self, view: &View) -> Option<Refusal> {
        let own = self.view.partitions.iter().map(|(place, known)| Seen::of(*place, known));
        own.chain(self.seen.iter().copied()).find_map(|seen| {
            let partition = || self.name_in(view, seen.place);
            if let Some(to) = view.lacks(seen) {
                return Some(Refusal::Forgot { partition: partition(), from: seen.modified, to });
            }
            let known = view.differs(seen)?;
            let (from, to) = (reign(seen.leader, seen.epoch), reign(known.leader, known.epoch));
            Some(Refusal::Differs { partition: partition(), from, to })
        })
    }

    /// The name of a partition, also where a view that was read has not got its topic any more.
    fn name_in(&self, view: &View, place: Place) -> String {
        let known = view.topic(place.0).or_else(|| self.view.topic(place.0)).map(|(name, _)| name);
        let name = known.or_else(|| self.names.get(&place.0).map(String::as_str));
        name.map_or_else(|| Key::Partition(place).text(), |name| format!("{name}-{}", place.1))
    }

    fn changed(&mut self, changed: Changed) {
        self.newest = self.newest.max(self.view.revision);
        if !self.view.is_alive(self.own_registration()) {
            return self.lose("the metadata store has ended its registration");
        }
        let own = self.own_registration();
        for place in &changed.partitions {
            let led = self.view.partitions.get(place).map(|known| (known.value.leader, known.value.epoch));
            // The in-sync set may have changed alone, by an earlier request.
            if self.handing.get(place).is_some_and(|one| led != Some((Some(own), one.epoch))) {
                self.handing.remove(place);
            }
            self.elections.settled(*place);
        }
        let places = changed.nodes.is_empty().then(|| changed.partitions.clone());
        if !changed.is_empty() {
            self.events.push_back(MemberEvent::Changed(changed));
        }
        self.end_shown();
        self.elect(places.as_ref());
        self.go_on_leaving();
    }

    /// It is no member any more, and begins anew.
    fn lose(&mut self, why: &str) {
        self.end_commands(why);
        self.pending.clear();
        self.requests.clear();
        self.elections = Elections::default();
        self.handing.clear();
        self.epoch = 0;
        if let Some(lease) = self.lease.take() {
            self.ask(What::Revoke, Request::Revoke(lease.id));
        }
        self.events.push_back(MemberEvent::Lost(why.to_owned()));
        if self.leaving {
            return self.leave();
        }
        self.wait(0, Step::Grant);
    }

    fn refuse(&mut self, why: Refusal) {
        self.end_commands(&why.to_string());
        self.pending.clear();
        self.requests.clear();
        self.epoch = 0;
        if let Some(lease) = self.lease.take() {
            self.ask(What::Revoke, Request::Revoke(lease.id));
        }
        self.phase = Phase::Over;
        self.events.push_back(MemberEvent::Refused(why));
    }

    fn leave(&mut self) {
        if self.phase != Phase::Over {
            self.phase = Phase::Over;
            self.events.push_back(MemberEvent::Left);
        }
    }

    // ---- the lease

    /// A lease that is over stays over, though a late answer says that the store has not ended it: what the broker led it has
    /// been asked about meanwhile, and has denied.
    fn end_with_lease(&mut self) {
        if self.lease.as_ref().is_some_and(|lease| lease.ends_ms <= self.now_ms) {
            self.lose("the metadata store has not answered for the time of the lease");
        }
    }

    /// Keeps the lease alive, and notices its end.
    fn check_lease(&mut self) {
        self.end_with_lease();
        let now_ms = self.now_ms;
        if let Some(lease) = &mut self.lease
            && lease.is_due(now_ms)
        {
            let id = lease.id;
            self.ask(What::KeepAlive, Request::KeepAlive(id));
        }
    }

    fn answer_keep_alive(&mut self, sent_ms: u64, answer: &Answer) {
        // Where there is no answer, the next one is sent when it is due.
        let Answer::KeptAlive { ttl_ms, revision } = *answer else { return };
        self.end_with_lease();
        let Some(lease) = &mut self.lease else { return };
        if ttl_ms == 0 {
            return self.lose("the metadata store has ended its lease");
        }
        lease.kept(sent_ms, ttl_ms.min(lease.ttl_ms));
        self.check_watch(revision);
    }

    /// Asks for the watch again where the store has been ahead for the time of a lease: it may have been lost on the way. The
    /// store may also have changed keys that are not ours.
    fn check_watch(&mut self, revision: Revision) {
        let (ahead, since) = self.ahead.unwrap_or((revision, self.now_ms));
        let is_behind = self.view.revision < ahead && self.phase == Phase::Live;
        self.ahead = is_behind.then_some((ahead, since));
        if is_behind && since.saturating_add(self.config.session_timeout_ms) <= self.now_ms {
            self.ahead = None;
            self.watch_on();
        }
    }
}
