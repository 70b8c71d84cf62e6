//! Who reads what, and with which habits.

use super::common::{Departure, START_MS};
use super::{Birth, Down, Place, Plan, Trouble};
use crate::rng::Rng;

/// What a consumer does, in percent of its rounds.
#[derive(Debug, Clone)]
pub(crate) struct Habits {
    pub(crate) rows_max: usize,
    /// It takes rows of several partitions at once.
    pub(crate) takes_more: bool,
    pub(crate) work_ms_max: u64,
    /// Rounds with so much work that the group may go on without it.
    pub(crate) slow: u64,
    pub(crate) slow_ms: u64,
    pub(crate) gap_ms_max: u64,
    pub(crate) poll_ms: u64,
    pub(crate) pause: u64,
    pub(crate) resume: u64,
    pub(crate) seek: u64,
    pub(crate) commit: u64,
    pub(crate) unsubscribe: u64,
    /// It subscribes to other topics.
    pub(crate) resubscribe: u64,
    /// It has a listener.
    pub(crate) listens: bool,
    pub(crate) listener_ms_max: u64,
    /// Of what is taken back: how often the listener commits it.
    pub(crate) listener_commits: u64,
}

/// A consumer: one after the other, where it comes back.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each read by itself")]
pub(crate) struct ReaderPlan {
    pub(crate) options: Vec<(&'static str, String)>,
    /// It shares the topics with the others of the group; else it reads all of these by itself.
    pub(crate) in_group: bool,
    pub(crate) is_static: bool,
    /// It is told when the log was cut below what it has read, and goes where it wants (`auto.offset.reset=none`).
    pub(crate) resets_itself: bool,
    /// Logs are cut while it reads.
    pub(crate) logs_are_cut: bool,
    pub(crate) places: Vec<Place>,
    pub(crate) topics: Vec<usize>,
    pub(crate) start_ms: u64,
    pub(crate) departure: Option<Departure>,
    pub(crate) habits: Habits,
}

impl Plan {
    /// The same with consumers.
    ///
    /// Peers that lie may end a member's membership for good, and a machine that loses power loses commits, since our
    /// broker confirms what is not synced yet. Such seeds stay with the producers. Logs are cut by [`Trouble::Cut`].
    pub(crate) fn with_readers(mut self, rng: &mut Rng) -> Self {
        self.lies.clear();
        self.sync_fails = 0;
        for restart in &mut self.restarts {
            if restart.down == Down::PowerLoss {
                restart.down = Down::Kill;
            }
        }
        self.producers.truncate(2);
        if !self.calm && rng.chance(30) {
            let count = rng.between(1, 4);
            for _ in 0..count {
                let to = rng.index(self.cluster.nodes);
                self.cluster.troubles.push((rng.between(START_MS, self.heal_ms), Trouble::Coordinate { to }));
            }
        }
        self.cut_logs(rng);
        let members = if rng.chance(80) { rng.between(1, 3) } else { 0 };
        let alone = if members == 0 { rng.between(1, 2) } else { rng.between(0, 1) };
        // Two lists: a group on its way from the one to the other. What they share comes first, since a coordinator that
        // starts again knows of each member no more than what the group has chosen.
        let (one, other) = rng.pick(&[
            ("range", "range"),
            ("roundrobin", "roundrobin,range"),
            ("sticky", "sticky"),
            ("cooperative-sticky", "cooperative-sticky"),
            ("cooperative-sticky", "cooperative-sticky"),
            ("range,cooperative-sticky", "range"),
            ("cooperative-sticky", "cooperative-sticky,range"),
        ]);
        for member in 0..members {
            let assignor = if member % 2 == 0 { one } else { other };
            let reader = ReaderPlan::draw(rng, &self, Some((member, assignor)));
            self.readers.push(reader);
        }
        for _ in 0..alone {
            let reader = ReaderPlan::draw(rng, &self, None);
            self.readers.push(reader);
        }
        self
    }

    /// Leaders that were behind, in some seeds.
    fn cut_logs(&mut self, rng: &mut Rng) {
        // What is cut off would still lie in the memory that readers have.
        if self.calm || self.direct.is_some() || !rng.chance(35) {
            return;
        }
        let places: Vec<Place> = self.places().collect();
        for _ in 0..rng.between(1, 4) {
            let (place, to) = (rng.pick(&places), rng.index(self.cluster.nodes));
            let lacks = 1 + i64::try_from(rng.skewed(40)).unwrap_or(0);
            let at_ms = rng.between(START_MS + 100, self.heal_ms);
            self.cluster.troubles.push((at_ms, Trouble::Cut { place, to, lacks }));
        }
    }

    fn logs_are_cut(&self) -> bool {
        self.cluster.troubles.iter().any(|(_, trouble)| matches!(trouble, Trouble::Cut { .. }))
    }
}

impl ReaderPlan {
    fn draw(rng: &mut Rng, plan: &Plan, member: Option<(u64, &str)>) -> Self {
        let auto_commit = rng.chance(60);
        let session = rng.pick(&[1500_u64, 3000, 6000]);
        let poll_interval = rng.pick(&[600_u64, 2000, 300_000]);
        let logs_are_cut = plan.logs_are_cut();
        let resets_itself = logs_are_cut && member.is_none() && rng.chance(50);
        let reset = if resets_itself { "none" } else { "earliest" };
        let mut options = vec![
            ("bootstrap.servers", rng.pick(&["boot:9092", "node1:9092,boot:9092"]).to_owned()),
            ("auto.offset.reset", reset.to_owned()),
            ("enable.auto.commit", (auto_commit && member.is_some()).to_string()),
            ("auto.commit.interval.ms", rng.pick(&["200", "1000", "5000"]).to_owned()),
            ("session.timeout.ms", session.to_string()),
            ("heartbeat.interval.ms", (session.min(poll_interval) / 3).to_string()),
            ("max.poll.interval.ms", poll_interval.to_string()),
            ("request.timeout.ms", rng.pick(&["300", "1000", "3000"]).to_owned()),
            ("default.api.timeout.ms", rng.pick(&["1000", "5000"]).to_owned()),
            ("fetch.max.wait.ms", rng.pick(&["100", "500", "500", "500"]).to_owned()),
            ("fetch.min.bytes", rng.pick(&["1", "1", "1", "400"]).to_owned()),
            ("fetch.max.bytes", rng.pick(&["300", "5000", "52428800"]).to_owned()),
            ("max.partition.fetch.bytes", rng.pick(&["200", "3000", "8388608"]).to_owned()),
            ("retry.backoff.ms", rng.pick(&["1", "20", "100"]).to_owned()),
            ("retry.backoff.max.ms", rng.pick(&["100", "1000"]).to_owned()),
            ("reconnect.backoff.ms", rng.pick(&["1", "50"]).to_owned()),
            ("metadata.max.age.ms", rng.pick(&["1000", "300000"]).to_owned()),
            ("connections.max.idle.ms", rng.pick(&["2000", "540000", "540000"]).to_owned()),
            ("socket.connection.setup.timeout.ms", rng.pick(&["100", "1000"]).to_owned()),
            ("socket.connection.setup.timeout.max.ms", "2000".to_owned()),
        ];
        // A static leader that comes back is told to leave the division as it is (KIP-814), and does not see that a topic
        // was made while it was away.
        let all_there = plan.topics.iter().all(|birth| *birth == Birth::AtStart);
        // One that lets go of partitions and comes back before it has joined without them is given what it was to keep,
        // and nobody gives the others to anyone before the next rebalance: so it is with Kafka.
        let cooperates = member.is_some_and(|(_, assignor)| assignor == "cooperative-sticky");
        let is_static = member.is_some() && all_there && !cooperates && rng.chance(30);
        if let Some((number, assignor)) = member {
            options.push(("group.id", "readers".to_owned()));
            options.push(("partition.assignment.strategy", assignor.to_owned()));
            if is_static {
                options.push(("group.instance.id", format!("reader-{number}")));
            }
        }
        let all: Vec<Place> = plan.lasting().collect();
        let some: Vec<Place> = all.iter().copied().filter(|_| rng.chance(60)).collect();
        let start_ms = START_MS + if rng.chance(50) { 0 } else { rng.between(0, plan.heal_ms - START_MS) };
        Self {
            options,
            in_group: member.is_some(),
            is_static,
            resets_itself,
            logs_are_cut,
            places: if some.is_empty() { all } else { some },
            topics: (0..plan.topics.len()).filter(|topic| !plan.is_doomed(*topic)).collect(),
            start_ms,
            departure: rng.chance(40).then(|| Departure::draw(rng, start_ms, plan.heal_ms)),
            habits: Habits::draw(rng, poll_interval, member.is_some(), is_static),
        }
    }
}

impl Habits {
    /// A static member whose subscription changes while it is away is told to go on as before (KIP-814).
    fn draw(rng: &mut Rng, poll_interval_ms: u64, in_group: bool, is_static: bool) -> Self {
        let listens = in_group && rng.chance(40);
        let may_resubscribe = in_group && !is_static;
        let busy = rng.chance(60);
        let seeks = rng.chance(30);
        Self {
            rows_max: rng.pick(&[1, 3, 20, 1000]),
            takes_more: rng.chance(50),
            work_ms_max: rng.pick(&[0, 1, 20, 200]),
            slow: if rng.chance(30) { rng.between(1, 10) } else { 0 },
            slow_ms: rng.pick(&[500, poll_interval_ms + 100]).min(3000),
            gap_ms_max: rng.pick(&[0, 5, 100]),
            poll_ms: rng.pick(&[50, 300, 1000]),
            pause: if busy { rng.between(5, 50) } else { 0 },
            resume: rng.between(10, 60),
            seek: if seeks { rng.between(1, 15) } else { 0 },
            commit: if rng.chance(50) { rng.between(1, 60) } else { 0 },
            unsubscribe: if rng.chance(20) { rng.between(1, 6) } else { 0 },
            resubscribe: if may_resubscribe && rng.chance(30) { rng.between(1, 10) } else { 0 },
            listens,
            listener_ms_max: rng.pick(&[0, 0, 5, 300]),
            listener_commits: rng.pick(&[0, 50, 100]),
        }
    }
}
