//! What befalls the nodes, and the broker behind them.

use headrace_log::SyncFault;

use super::state::{Event, World};
use crate::plan::{Birth, Down, Place, Trouble};

/// How long after a failed try somebody tries again to make a topic.
const CREATE_AGAIN_MS: u64 = 50;

impl World {
    pub(super) fn down(&mut self, down: Down, down_ms: u64) -> Result<(), String> {
        if !self.server.is_up() {
            return Ok(());
        }
        self.tell(|| format!("the broker goes down for {down_ms} ms: {down:?}"));
        self.server.stop(self.now, down, &mut self.rng)?;
        (self.broker_armed, self.sync_until) = (None, 0);
        self.queue.retain(|_, event| *event != Event::Synced);
        self.at(self.now.mono_ms + down_ms, Event::Up);
        let silent = down == Down::PowerLoss && self.rng.chance(50);
        self.hang_up(|_| true, silent);
        self.end_links();
        self.forget_rogues();
        Ok(())
    }

    pub(super) fn sync_ends(&mut self) -> Result<(), String> {
        let fails = !self.healed && self.rng.chance(self.plan.sync_fails);
        let lies = self.plan.sync_lies > 0 && !self.healed && self.rng.chance(self.plan.sync_lies);
        let fault = match (fails, lies) {
            (true, _) => SyncFault::Fails,
            (false, true) => SyncFault::Lies,
            (false, false) => SyncFault::None,
        };
        self.outcome.syncs_failed += usize::from(fails);
        self.outcome.syncs_lied += usize::from(lies && !fails);
        self.tell(|| format!("a sync ends: {fault:?}"));
        self.server.synced(self.now, fault)?;
        self.after_broker()
    }

    /// The broker is gone, and all its links with it.
    fn end_links(&mut self) {
        for key in self.links.keys().copied().collect::<Vec<_>>() {
            if let Some(link) = self.links.get_mut(&key) {
                link.broker = false;
                link.broker_end = None;
            }
            self.tell_end(key, "its broker is gone");
        }
        self.joining.clear();
        self.exposes.clear();
    }

    pub(super) fn trouble(&mut self, trouble: Trouble) -> Result<(), String> {
        // Of the same moment as the end of all of it, and behind that: nobody would elect a leader any more.
        if self.healed {
            return Ok(());
        }
        self.tell(|| format!("trouble: {trouble:?}"));
        let cluster = &mut self.server.cluster;
        match trouble {
            Trouble::Move { place, to, gap_ms } => {
                if !cluster.is_up(to) {
                    return Ok(());
                }
                if gap_ms == 0 {
                    return self.elect(place, to);
                }
                cluster.elect(place, None);
                self.spread();
                self.at(self.now.mono_ms + gap_ms, Event::Elect(place, to));
                Ok(())
            }
            Trouble::Down { node, down_ms } => {
                if cluster.is_up(node) {
                    self.node_down(node, down_ms)?;
                }
                Ok(())
            }
            Trouble::Stall { node, stall_ms } => {
                if cluster.is_up(node) && !cluster.is_stalled(node) {
                    cluster.set_stalled(node, true);
                    self.at(self.now.mono_ms + stall_ms, Event::NodeAwake(node));
                }
                Ok(())
            }
            Trouble::Cut { place, to, lacks } => {
                if cluster.is_up(to) && self.server.is_up() {
                    self.cut(place, to, lacks)?;
                }
                Ok(())
            }
            Trouble::Coordinate { to } => {
                if cluster.is_up(to) {
                    cluster.coordinate(to);
                    self.spread();
                }
                Ok(())
            }
        }
    }

    pub(super) fn elect(&mut self, place: Place, node: usize) -> Result<(), String> {
        if self.healed {
            return Ok(());
        }
        // Whoever was to lead may be gone by now: then it leads as one that is.
        self.server.cluster.elect(place, Some(node));
        self.tell(|| format!("node {} leads {place:?}", node + 1));
        self.led()
    }

    /// Somebody leads: the log's next epoch begins, and nodes learn of it.
    fn led(&mut self) -> Result<(), String> {
        self.server.settle(self.now)?;
        self.spread();
        self.ledger.follow(self.server.cluster.logs());
        self.after_broker()
    }

    /// A node that was behind leads: what it lacks is gone.
    pub(super) fn cut(&mut self, place: Place, to: usize, lacks: i64) -> Result<(), String> {
        let gone = self.server.cut(place, to, lacks, self.now)?;
        self.tell(|| format!("node {} leads {place:?}, whose log lacks {gone} records", to + 1));
        self.ledger.tally.cuts += usize::from(gone > 0);
        self.led()
    }

    fn node_down(&mut self, node: usize, down_ms: u64) -> Result<(), String> {
        self.server.cluster.set_up(node, false);
        self.server.drop_node(self.now, node);
        let silent = self.rng.chance(30);
        self.hang_up(|conn| conn.node == node, silent);
        let failover_ms = self.rng.between(0, self.plan.cluster.failover_ms_max);
        self.at(self.now.mono_ms + failover_ms, Event::FailOver(node));
        self.at(self.now.mono_ms + down_ms, Event::NodeUp(node));
        self.after_broker()
    }

    pub(super) fn fail_over(&mut self, node: usize) -> Result<(), String> {
        let cluster = &mut self.server.cluster;
        if cluster.is_up(node) {
            return Ok(());
        }
        let others: Vec<usize> = cluster.nodes().filter(|other| cluster.is_up(*other)).collect();
        for place in cluster.led_by(Some(node)) {
            let leader = others.get(self.rng.index(others.len())).copied();
            if leader.is_some() {
                cluster.elect(place, leader);
            }
        }
        if self.server.cluster.coordinator() == node
            && let Some(other) = others.get(self.rng.index(others.len())).copied()
        {
            self.server.cluster.coordinate(other);
        }
        self.tell(|| format!("others take over from node {}", node + 1));
        self.led()
    }

    pub(super) fn node_up(&mut self, node: usize) {
        if !self.server.cluster.is_up(node) {
            self.tell(|| format!("node {} is back", node + 1));
            self.server.cluster.set_up(node, true);
            self.spread();
        }
    }

    pub(super) fn node_awake(&mut self, node: usize) -> Result<(), String> {
        if !self.server.cluster.is_stalled(node) {
            return Ok(());
        }
        self.tell(|| format!("node {} goes on", node + 1));
        self.server.wake_node(self.now, node)?;
        self.after_broker()
    }

    pub(super) fn create(&mut self, topic: usize) -> Result<(), String> {
        if self.server.cluster.is_born(topic) {
            return Ok(());
        }
        if !self.server.is_up() {
            self.at(self.now.mono_ms + CREATE_AGAIN_MS, Event::Create(topic));
            return Ok(());
        }
        self.server.create_topic(topic, self.plan.partitions, self.now)?;
        self.server.cluster.bear(topic);
        self.tell(|| format!("topic {topic} is made"));
        self.spread();
        self.after_broker()
    }

    /// Tells the nodes what has become of the cluster, some of them only later.
    fn spread(&mut self) {
        for node in self.server.cluster.nodes() {
            if !self.healed && self.rng.chance(self.plan.cluster.stale) {
                let late_ms = self.rng.between(1, self.plan.cluster.stale_ms_max);
                self.at(self.now.mono_ms + late_ms, Event::Learn(node));
            } else {
                self.server.cluster.learn(node);
            }
        }
    }

    /// All nodes are there, everything has a leader, and everybody knows.
    pub(super) fn heal_nodes(&mut self) -> Result<(), String> {
        for node in self.server.cluster.nodes() {
            self.node_up(node);
            self.node_awake(node)?;
        }
        for place in self.server.cluster.led_by(None) {
            let node = self.rng.index(self.plan.cluster.nodes);
            self.server.cluster.elect(place, Some(node));
        }
        for topic in 0..self.plan.topics.len() {
            if matches!(self.plan.topics[topic], Birth::At(_)) {
                self.create(topic)?;
            }
        }
        self.led()
    }
}
