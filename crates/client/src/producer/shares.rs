//! What batches for one broker may hold of `buffer.memory`, see "A broker's share" in docs/design/buffer-pool.md.
//!
//! Shares are counted and not handed out: the accumulator charges each batch for the chunks it has. Only when somebody
//! has to wait for a share there is a [`Line`], whose permits go to who came first.

use std::collections::BTreeMap;
use std::time::Duration;

use headrace_pool::{BufferPool, Lease, PoolConfig, PoolError, Waiting};

use super::batch::PartitionKey;
use super::pressure::Pressure;
use crate::options::BrokerShare;

/// Whose share it is: the partition's leader; partitions without one have a share of their own.
pub(super) type Leader = Option<i32>;

/// What one batch counts for.
#[derive(Debug)]
pub(super) struct Charge {
    key: PartitionKey,
    leader: Leader,
    chunks: usize,
    /// The batch takes no more: what it has comes back.
    ended: bool,
}

impl Charge {
    /// Nothing yet, for a batch of a partition that has this leader.
    pub(super) fn new(key: PartitionKey, leader: Leader) -> Self {
        Self { key, leader, chunks: 0, ended: false }
    }

    pub(super) fn chunks(&self) -> usize {
        self.chunks
    }

    /// All of it, for the last part of a batch that was split.
    pub(super) fn take(&mut self) -> Self {
        Self { chunks: std::mem::take(&mut self.chunks), ..*self }
    }
}

/// One queue for one leader's share: there may have been others before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LineId {
    pub(super) leader: Leader,
    number: u64,
}

/// Permits that a caller has waited for; those of a queue that has ended are good for nothing. Dropped, they go back.
#[derive(Debug)]
pub(super) struct Permits {
    pub(super) line: LineId,
    pub(super) lease: Lease,
}

/// The queue for one leader's share.
#[derive(Debug)]
struct Line {
    id: LineId,
    /// As large as the share; it gives leases and never chunks.
    permits: BufferPool,
    /// What the batches hold, as far as there are permits for it.
    taken: Lease,
}

impl Line {
    /// Chunks that a newcomer could have.
    fn free(&self) -> usize {
        let chunks = self.permits.available() / self.permits.config().bytes_of(1).max(1);
        usize::try_from(chunks).unwrap_or(usize::MAX)
    }

    /// Chunks that those who wait lack.
    fn lacking(&self) -> usize {
        let bytes = usize::try_from(self.permits.lacking()).unwrap_or(usize::MAX);
        self.permits.config().chunks_for(bytes)
    }

    /// Lets `taken` stand for `held` chunks: what is missing comes out of `brought`, then out of what is free. What is
    /// still missing then is what batches hold beyond the share, or beyond what others were promised: it comes back
    /// first, since `taken` shrinks only when less than that is held.
    fn balance(&mut self, held: usize, brought: Option<&mut Permits>) {
        self.taken.shrink_to(held);
        let mut missing = held - self.taken.chunks();
        if let Some(brought) = brought {
            missing -= brought.lease.move_to(&mut self.taken, missing);
        }
        let free = self.free();
        self.taken.try_grow(missing.min(free));
    }

    /// Nobody waits, and nobody is on the way to a batch.
    fn is_idle(&self, most: usize) -> bool {
        self.permits.waiting() == 0 && self.free() + self.taken.chunks() == most
    }
}

/// What one leader's batches hold.
#[derive(Debug, Default)]
struct Share {
    /// Chunks: the sum of the charges.
    held: usize,
    /// Of these, what batches have that take no more.
    on_way: usize,
    /// When a batch last ended, as the number of that end among all leaders', and in `Now::mono_ms`.
    ended: u64,
    ended_ms: Option<u64>,
    line: Option<Line>,
    /// Of those who wait in line.
    pressure: Pressure,
}

/// The shares of all leaders.
#[derive(Debug)]
pub(super) struct Shares {
    /// What a line is made of.
    config: PoolConfig,
    share: BrokerShare,
    /// Chunks of a share.
    most: usize,
    /// There are several leaders: shares hold.
    limited: bool,
    /// How many partitions each leads.
    leads: BTreeMap<Leader, usize>,
    closed: bool,
    by_leader: BTreeMap<Leader, Share>,
    /// How many batches have ended.
    ends: u64,
    lines: u64,
    /// What the caller whose append is under way has waited for.
    brought: Option<Permits>,
}

impl Shares {
    /// Shares of the pool of this configuration; they hold nobody up until [`Self::settle`] learns of several leaders.
    pub(super) fn new(pool: &PoolConfig, share: BrokerShare) -> Self {
        let chunk = pool.bytes_of(1).max(1);
        let most = (share.of(pool.buffer_bytes) / chunk).max(1);
        Self {
            config: PoolConfig { buffer_bytes: most.saturating_mul(chunk), ..*pool },
            share,
            most: usize::try_from(most).unwrap_or(usize::MAX),
            limited: false,
            leads: BTreeMap::new(),
            closed: false,
            by_leader: BTreeMap::new(),
            ends: 0,
            lines: 0,
            brought: None,
        }
    }

    pub(super) fn share(&self) -> BrokerShare {
        self.share
    }

    /// Whether shares hold: there is somebody to protect.
    pub(super) fn limited(&self) -> bool {
        self.limited
    }

    // ---- the caller whose append is under way ----

    /// The caller at hand has waited for these.
    pub(super) fn bring(&mut self, permits: Option<Permits>) {
        let line = |leader: Leader| Some(self.by_leader.get(&leader)?.line.as_ref()?.id);
        self.brought = permits.filter(|permits| line(permits.line.leader) == Some(permits.line));
    }

    /// What the caller at hand has left of it.
    pub(super) fn take_brought(&mut self) -> Option<Permits> {
        self.brought.take()
    }

    // ---- room ----

    /// Chunks that the caller at hand may have of the leader's share without waiting.
    pub(super) fn room(&self, leader: Leader) -> usize {
        if !self.limited {
            return usize::MAX;
        }
        let Some(share) = self.by_leader.get(&leader) else { return self.most };
        let Some(line) = &share.line else { return self.most.saturating_sub(share.held) };
        let brought = self.brought.as_ref().filter(|permits| permits.line == line.id);
        line.free().saturating_add(brought.map_or(0, |permits| permits.lease.chunks()))
    }

    /// Whether a batch may have so many chunks more: also more than the share, if nothing of that is held.
    pub(super) fn admits(&self, leader: Leader, chunks: usize) -> bool {
        !self.limited || self.room(leader) >= chunks.min(self.most)
    }

    /// The leaders that have had their share. The greater the number, the later a batch of theirs ended: there room is
    /// most likely to come.
    pub(super) fn used_up(&self) -> BTreeMap<Leader, u64> {
        let used_up = self.by_leader.iter().filter(|(leader, _)| self.room(**leader) == 0);
        used_up.map(|(leader, share)| (*leader, share.ended)).collect()
    }

    /// Takes a place in the queue for so many chunks of the leader's share, `wish` of them if that is modest. The
    /// caller at hand gives up what it has of any share.
    pub(super) fn wait(
        &mut self,
        leader: Leader,
        (chunks, wish): (usize, usize),
        now: Duration,
    ) -> Result<(Waiting, LineId), PoolError> {
        self.brought = None;
        if self.closed {
            return Err(PoolError::Closed);
        }
        let share = self.by_leader.entry(leader).or_default();
        let line = match &mut share.line {
            Some(line) => line,
            none => {
                let permits = BufferPool::new(self.config);
                let taken = permits.empty_lease();
                self.lines += 1;
                let id = LineId { leader, number: self.lines };
                let line = none.insert(Line { id, permits, taken });
                line.balance(share.held.min(self.most), None);
                line
            }
        };
        let wanted = chunks.max(wish.min(self.most / 4)).min(self.most);
        Ok((line.permits.wait(wanted, now)?, line.id))
    }

    /// How many callers wait for a share.
    pub(super) fn waiting(&self) -> usize {
        let lines = self.by_leader.values().filter_map(|share| share.line.as_ref());
        lines.map(|line| line.permits.waiting()).sum()
    }

    // ---- pressure ----

    /// Chunks of batches that take no more and are not done.
    pub(super) fn on_way(&self) -> usize {
        self.by_leader.values().map(|share| share.on_way).sum()
    }

    /// The leaders of which a batch has ended in the last `within_ms`: chunks of their batches that take no more, and how
    /// many partitions they lead.
    pub(super) fn movers(&self, now_ms: u64, within_ms: u64) -> impl Iterator<Item = (usize, usize)> {
        let moves =
            move |share: &Share| share.ended_ms.is_some_and(|at| at.saturating_add(within_ms) > now_ms);
        let movers = self.by_leader.iter().filter(move |(_, share)| moves(share));
        movers.map(|(leader, share)| (share.on_way, self.leads.get(leader).copied().unwrap_or(1)))
    }

    /// Chunks of open batches that have to go out now, by leader, for those who wait for a share.
    pub(super) fn relief(&mut self, now_ms: u64) -> BTreeMap<Leader, usize> {
        let mut relief = BTreeMap::new();
        for (leader, share) in &mut self.by_leader {
            let lacking = share.line.as_ref().map_or(0, Line::lacking);
            let chunks = share.pressure.relief(now_ms, lacking, share.on_way);
            if chunks > 0 {
                relief.insert(*leader, chunks);
            }
        }
        relief
    }

    /// When to look at those who wait for a share again.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = u64> {
        self.by_leader.values().filter_map(|share| share.pressure.deadline())
    }

    // ---- charges ----

    /// The batch takes no more.
    pub(super) fn ended(&mut self, charge: &mut Charge) {
        if !std::mem::replace(&mut charge.ended, true) {
            self.by_leader.entry(charge.leader).or_default().on_way += charge.chunks;
        }
    }

    /// The batch has so many chunks now.
    pub(super) fn set(&mut self, charge: &mut Charge, chunks: usize) {
        if charge.chunks == chunks {
            return;
        }
        let share = self.by_leader.entry(charge.leader).or_default();
        share.held = share.held.saturating_sub(charge.chunks).saturating_add(chunks);
        if charge.ended {
            share.on_way = share.on_way.saturating_sub(charge.chunks).saturating_add(chunks);
        }
        charge.chunks = chunks;
        if chunks == 0 {
            share.pressure.done();
        }
        if let Some(line) = &mut share.line {
            let brought = self.brought.as_mut().filter(|permits| permits.line == line.id);
            line.balance(share.held.min(self.most), brought);
            if line.is_idle(self.most) {
                share.line = None;
            }
        }
    }

    /// The batch is done.
    pub(super) fn end(&mut self, now_ms: u64, mut charge: Charge) {
        self.ends += 1;
        if let Some(share) = self.by_leader.get_mut(&charge.leader) {
            (share.ended, share.ended_ms) = (self.ends, Some(now_ms));
        }
        self.set(&mut charge, 0);
    }

    /// Leaders have changed: each batch is charged to its partition's leader of now, and who waits for a share looks
    /// again, since it may be another's that it needs.
    pub(super) fn settle<'a>(
        &mut self,
        leads: BTreeMap<Leader, usize>,
        charges: impl Iterator<Item = &'a mut Charge>,
        leader_of: impl Fn(PartitionKey) -> Leader,
    ) {
        self.limited = leads.len() > 1 && !self.share.is_all();
        self.leads = leads;
        self.end_lines();
        for charge in charges {
            let leader = leader_of(charge.key);
            if leader != charge.leader {
                let chunks = charge.chunks;
                self.set(charge, 0);
                charge.leader = leader;
                self.set(charge, chunks);
            }
        }
        self.by_leader.retain(|_, share| share.held > 0);
    }

    /// Ends all waits, also later ones.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.end_lines();
    }

    fn end_lines(&mut self) {
        for share in self.by_leader.values_mut() {
            if let Some(line) = share.line.take() {
                line.permits.close();
            }
        }
    }

    /// Chunks that each leader's batches hold, where they hold any.
    pub(super) fn held(&self) -> BTreeMap<Leader, usize> {
        let some = self.by_leader.iter().filter(|(_, share)| share.held > 0);
        some.map(|(leader, share)| (*leader, share.held)).collect()
    }

    /// Checks what always holds of the counts.
    #[cfg(test)]
    pub(super) fn check<'a>(
        &self,
        charges: impl Iterator<Item = &'a Charge>,
        leader_of: impl Fn(PartitionKey) -> Leader,
    ) {
        let mut sums: BTreeMap<Leader, usize> = BTreeMap::new();
        for charge in charges.filter(|charge| charge.chunks > 0) {
            assert_eq!(charge.leader, leader_of(charge.key), "charged to its leader of now");
            *sums.entry(charge.leader).or_default() += charge.chunks;
        }
        assert_eq!(self.held(), sums, "what a leader holds is what its batches are charged");
        assert!(self.brought.is_none(), "no caller is at hand");
        for share in self.by_leader.values() {
            let Some(line) = &share.line else { continue };
            assert!(self.limited && line.taken.chunks() <= share.held.min(self.most));
        }
    }
}
