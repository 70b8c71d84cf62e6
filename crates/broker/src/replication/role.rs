//! What a broker is to a partition that it has a copy of.

use std::collections::BTreeMap;

use headrace_cluster::CommandId;
use headrace_cluster::model::{NodeId, PartitionValue, Registration};
use headrace_cluster::store::Revision;

/// What a broker is to a partition.
#[derive(Debug)]
pub(crate) enum Role {
    /// It has the only copy there can be: it is in no cluster.
    Sole,
    /// It takes records, and hands them out.
    Leader(Box<Leading>),
    /// It copies the leader's log, or waits until somebody leads.
    Follower(Following),
}

/// What a follower knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Following {
    /// Of the partition, as the view has it.
    pub(crate) epoch: i32,
    /// Whom it copies; nobody while nobody leads.
    pub(crate) leader: Option<NodeId>,
    /// As the leader said last, and never beyond the end of the own log.
    pub(crate) high_watermark: i64,
    /// The leader may push what is new: it is not asked for it.
    pub(crate) is_pushed: bool,
    /// In this epoch the log was found to be how the leader's begins. Until then nothing of it is given to consumers: where
    /// the leader was elected uncleanly, it may lack what was committed.
    pub(crate) agrees: bool,
    /// Where the leader's log began, as it said last.
    pub(crate) leader_start: i64,
    /// At most so many bytes lie between the high watermark and the end of the own log.
    uncommitted_bytes: u64,
}

impl Following {
    /// One who knows nothing yet of this epoch and leader but that these records are committed.
    pub(crate) fn new(epoch: i32, leader: Option<NodeId>, high_watermark: i64) -> Self {
        Self { epoch, leader, high_watermark, ..Self::default() }
    }

    /// The leader has said how far its log is committed and where it begins, of which the own is the part that ends at `end`,
    /// with what was `appended` just now. How many bytes can be read now that could not be before, at most; nothing: none.
    pub(crate) fn take_marks(&mut self, said: (i64, i64), end: i64, appended: u64) -> Option<u64> {
        let before = self.high_watermark;
        self.high_watermark = said.0.max(before).min(end);
        self.leader_start = said.1;
        self.uncommitted_bytes = self.uncommitted_bytes.saturating_add(appended);
        let is_first = !std::mem::replace(&mut self.agrees, true);
        if is_first {
            // Nobody has counted what was there before.
            self.uncommitted_bytes = u64::MAX;
        }
        let bytes = self.uncommitted_bytes;
        if self.high_watermark == end {
            self.uncommitted_bytes = 0;
        }
        (is_first || self.high_watermark > before).then_some(bytes.max(1))
    }

    /// The own log was cut, and ends at `end`. Whether what is left is as the leader's the next answer says.
    pub(crate) fn cut(&mut self, end: i64) {
        self.high_watermark = self.high_watermark.min(end);
        self.agrees = false;
    }
}

/// How far a follower has come.
#[derive(Debug, Clone, Copy)]
struct Progress {
    /// The broker epoch under which it fetches.
    epoch: Revision,
    /// It has everything before this offset, from `start` on.
    end: i64,
    start: i64,
    /// When it last had all that the leader had.
    caught_up_ms: u64,
    /// When it last fetched, and where the leader's log ended then.
    fetched_ms: u64,
    leader_end: i64,
}

/// What a leader knows.
#[derive(Debug)]
pub(crate) struct Leading {
    pub(crate) epoch: i32,
    node: NodeId,
    /// Which brokers are to have a copy.
    replicas: Vec<NodeId>,
    /// The in-sync set, as the view has it.
    isr: Vec<Registration>,
    /// Who was asked into it since: they count, as nobody knows whether it was done.
    asked: Vec<Registration>,
    /// The revision of the partition that the view has.
    modified: Revision,
    change: Option<CommandId>,
    followers: BTreeMap<NodeId, Progress>,
    high_watermark: i64,
    /// Where the log ended when it began to lead.
    start: i64,
    /// Where it ended when that was looked at last.
    end: i64,
    /// Since when it leads.
    since_ms: u64,
}

impl Leading {
    /// A leader whose log ends at `end`; of its records those before `committed` are known to be committed.
    pub(crate) fn new(
        node: NodeId,
        epoch: i32,
        (value, modified): (&PartitionValue, Revision),
        (committed, end): (i64, i64),
        now_ms: u64,
    ) -> Self {
        let mut leading = Self {
            epoch,
            node,
            replicas: value.replicas.clone(),
            isr: value.isr.clone(),
            asked: Vec::new(),
            modified,
            change: None,
            followers: BTreeMap::new(),
            high_watermark: committed.min(end),
            start: end,
            end,
            since_ms: now_ms,
        };
        leading.advance(end, now_ms);
        leading
    }

    pub(crate) fn high_watermark(&self) -> i64 {
        self.high_watermark
    }

    /// How many are in sync, itself among them.
    pub(crate) fn in_sync(&self) -> usize {
        self.isr.len()
    }

    /// How many brokers are to have a copy.
    pub(crate) fn replicas(&self) -> usize {
        self.replicas.len()
    }

    /// How many records the follower lacks that is furthest behind, of those that have asked for some; the log ends at `end`.
    pub(crate) fn most_behind(&self, end: i64) -> u64 {
        let ends = self.followers.values().map(|known| known.end);
        ends.min().map_or(0, |least| u64::try_from(end.saturating_sub(least)).unwrap_or(0))
    }

    /// Whether a broker is in the in-sync set, or was asked into it.
    pub(crate) fn has_in_sync(&self, one: Registration) -> bool {
        self.isr.contains(&one) || self.asked.contains(&one)
    }

    /// The view may have another in-sync set, or other replicas. As long as the partition is the same, those that were asked
    /// into the set count: it may be done, and the view not show it yet.
    pub(crate) fn update(&mut self, value: &PartitionValue, modified: Revision) {
        if modified == self.modified {
            return;
        }
        self.modified = modified;
        self.replicas.clone_from(&value.replicas);
        self.followers.retain(|node, _| value.replicas.contains(node));
        self.isr.clone_from(&value.isr);
        self.asked.clear();
        self.change = None;
    }

    /// Moves the high watermark to what all have that are in sync, where the log ends at `end`; whether it has moved.
    pub(crate) fn advance(&mut self, end: i64, now_ms: u64) -> bool {
        if end > self.end {
            // Who had all until now is late from now on, however long nothing was written.
            for known in self.followers.values_mut().filter(|known| known.end >= self.end) {
                known.caught_up_ms = known.caught_up_ms.max(now_ms);
            }
            self.end = end;
        }
        let others = self.isr.iter().chain(&self.asked).filter(|one| one.0 != self.node);
        // Who has not fetched yet holds it where it is.
        let ends = others.map(|one| {
            let known = self.followers.get(&one.0).filter(|known| known.epoch == one.1);
            known.map_or(self.high_watermark, |known| known.end)
        });
        let reached = ends.fold(end, i64::min);
        let moves = reached > self.high_watermark;
        if moves {
            self.high_watermark = reached;
        }
        moves
    }

    /// A follower has all before `offset`, of which it asks for more or says that it was pushed; the leader's log ends at
    /// `end`. What it had once under a registration it keeps: a request that was under way while it was pushed to comes late.
    pub(crate) fn fetched(&mut self, from: Registration, offset: i64, end: i64, now_ms: u64) {
        let since_ms = self.since_ms;
        let known = self.followers.entry(from.0).or_insert(Progress {
            epoch: from.1,
            end: offset,
            start: i64::MAX,
            caught_up_ms: since_ms,
            fetched_ms: now_ms,
            leader_end: end,
        });
        if known.epoch != from.1 {
            *known = Progress { epoch: from.1, end: offset, start: i64::MAX, caught_up_ms: 0, ..*known };
        }
        let offset = offset.max(known.end);
        if offset >= end {
            known.caught_up_ms = now_ms;
        } else if offset >= known.leader_end {
            // It has all that there was when it asked before.
            known.caught_up_ms = known.caught_up_ms.max(known.fetched_ms);
        }
        (known.end, known.fetched_ms, known.leader_end) = (offset, now_ms, end);
    }

    /// A follower says where its log begins.
    pub(crate) fn begins(&mut self, from: Registration, start: i64) {
        if let Some(known) = self.followers.get_mut(&from.0).filter(|known| known.epoch == from.1) {
            known.start = start;
        }
    }

    /// Of the followers in sync that have an offset and are near, the one that has come furthest; of several, the first by
    /// number.
    pub(crate) fn nearest(&self, offset: i64, is_near: impl Fn(Registration) -> bool) -> Option<NodeId> {
        let others = self.isr.iter().filter(|one| one.0 != self.node);
        let have_it = others.filter_map(|one| {
            let known = self.followers.get(&one.0).filter(|known| known.epoch == one.1)?;
            ((known.start..=known.end).contains(&offset) && is_near(*one)).then_some((known.end, one.0))
        });
        have_it.max_by_key(|(end, node)| (*end, std::cmp::Reverse(*node))).map(|(_, node)| node)
    }

    /// The in-sync set that this leader wants, if it is another than that of the view: without those that have not caught up
    /// for `lag_ms`, and with those that have come as far as the high watermark, and have what there was when it began to lead.
    pub(crate) fn wanted_isr(
        &self,
        end: i64,
        now_ms: u64,
        lag_ms: u64,
        is_alive: impl Fn(Registration) -> bool,
    ) -> Option<Vec<Registration>> {
        if self.change.is_some() {
            return None;
        }
        let keeps_up = |one: &Registration| {
            let known = self.followers.get(&one.0).filter(|known| known.epoch == one.1);
            let caught_up_ms = known.map_or(self.since_ms, |known| known.caught_up_ms.max(self.since_ms));
            let has_all = known.is_some_and(|known| known.end >= end);
            one.0 == self.node || has_all || now_ms.saturating_sub(caught_up_ms) <= lag_ms
        };
        let mut wanted: Vec<_> =
            self.isr.iter().copied().filter(|one| is_alive(*one) && keeps_up(one)).collect();
        let reached = self.high_watermark.max(self.start);
        for (node, known) in &self.followers {
            let one = Registration(*node, known.epoch);
            if known.end >= reached
                && !wanted.iter().any(|one| one.0 == *node)
                && is_alive(one)
                && keeps_up(&one)
            {
                wanted.push(one);
            }
        }
        // Who was asked into it and is late by now counts until the partition was written once more.
        let counts_late = self.asked.iter().any(|one| !wanted.contains(one));
        (wanted != self.isr || counts_late).then_some(wanted)
    }

    /// This in-sync set was asked for.
    pub(crate) fn ask(&mut self, isr: &[Registration], command: CommandId) {
        let new = isr.iter().filter(|one| !self.isr.contains(one) && !self.asked.contains(one));
        let new: Vec<_> = new.copied().collect();
        self.asked.extend(new);
        self.change = Some(command);
    }

    /// Whether a change of the partition is under way that it has asked for.
    pub(crate) fn is_changing(&self) -> bool {
        self.change.is_some()
    }

    /// A change of the partition was asked for that puts nobody into the in-sync set.
    pub(crate) fn await_change(&mut self, command: CommandId) {
        self.change = Some(command);
    }

    /// It was refused, or nobody knows what has become of it.
    pub(crate) fn ask_again(&mut self, command: CommandId) {
        if self.change == Some(command) {
            self.change = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Registration = Registration(1, 11);
    const OTHER: Registration = Registration(2, 12);

    fn partition(isr: &[Registration]) -> PartitionValue {
        PartitionValue {
            replicas: vec![1, 2, 3],
            leader: Some(OWN),
            epoch: 3,
            isr: isr.to_vec(),
            ..PartitionValue::default()
        }
    }

    /// A leader of ten committed records, at the time 1000.
    fn leading(isr: &[Registration]) -> Leading {
        Leading::new(1, 3, (&partition(isr), 20), (10, 10), 1000)
    }

    #[test]
    fn who_was_asked_into_the_set_counts_until_the_partition_is_another() {
        let mut leading = leading(&[OWN]);
        leading.fetched(OTHER, 10, 10, 1000);
        leading.ask(&[OWN, OTHER], CommandId::default());
        // Something else of the view has changed, a broker or a setting.
        leading.update(&partition(&[OWN]), 20);
        assert!(!leading.advance(11, 1001), "it may be in the set, and lacks the record");
        assert_eq!(leading.high_watermark(), 10);
        leading.update(&partition(&[OWN]), 21);
        assert!(leading.advance(11, 1002), "it is not in the set");
    }

    #[test]
    fn who_was_asked_into_the_set_and_is_late_is_written_out_of_it() {
        let mut leading = leading(&[OWN]);
        leading.fetched(OTHER, 10, 10, 1000);
        leading.ask(&[OWN, OTHER], CommandId::default());
        leading.ask_again(CommandId::default());
        leading.advance(11, 1001);
        assert_eq!(leading.wanted_isr(11, 1001, 500, |_| true), Some(vec![OWN, OTHER]), "it has time");
        assert_eq!(leading.wanted_isr(11, 9000, 500, |_| true), Some(vec![OWN]), "nobody waits for ever");
    }

    #[test]
    fn the_nearest_follower_is_in_sync_has_the_offset_and_is_furthest() {
        let third = Registration(3, 13);
        let mut leading = leading(&[OWN, OTHER]);
        leading.fetched(OTHER, 10, 10, 1000);
        assert_eq!(leading.nearest(10, |_| true), None, "nobody knows where its log begins");
        leading.begins(OTHER, 4);
        let found = |leading: &Leading| [3, 4, 10, 11].map(|offset| leading.nearest(offset, |_| true));
        assert_eq!(found(&leading), [None, Some(2), Some(2), None]);
        assert_eq!(leading.nearest(4, |one| one != OTHER), None, "it is not near");
        leading.fetched(third, 10, 10, 1000);
        leading.begins(third, 0);
        assert_eq!(leading.nearest(3, |_| true), None, "it is not in sync");
        leading.update(&partition(&[OWN, third, OTHER]), 21);
        assert_eq!(found(&leading), [Some(3), Some(2), Some(2), None]);
        leading.advance(11, 1001);
        leading.fetched(third, 11, 11, 1001);
        assert_eq!(found(&leading), [Some(3), Some(3), Some(3), Some(3)]);
        leading.update(&partition(&[OWN, Registration(3, 14)]), 22);
        assert_eq!(found(&leading), [None; 4], "it has registered anew");
    }

    #[test]
    fn what_a_follower_can_read_is_never_counted_too_low() {
        let mut following = Following::new(1, Some(1), 0);
        assert_eq!(following.take_marks((3, 0), 5, 50), Some(u64::MAX), "what was there before counts");
        assert_eq!(following.take_marks((3, 0), 6, 10), None);
        assert_eq!(following.take_marks((6, 0), 6, 0), Some(u64::MAX));
        assert_eq!(following.take_marks((6, 0), 8, 20), None, "nothing of it is committed");
        assert_eq!(following.take_marks((7, 0), 9, 10), Some(30));
        assert_eq!(following.take_marks((9, 0), 9, 0), Some(30));
        assert_eq!(following.take_marks((8, 0), 9, 0), None, "an earlier answer takes nothing back");
        following.cut(4);
        assert_eq!((following.high_watermark, following.agrees), (4, false));
        assert_eq!(following.take_marks((4, 0), 4, 0), Some(u64::MAX));
    }

    #[test]
    fn a_follower_is_late_from_the_first_record_on_that_it_lacks() {
        let mut leading = leading(&[OWN, OTHER]);
        leading.fetched(OTHER, 10, 10, 1000);
        // Nothing is written for long, and so nothing is pushed.
        leading.advance(11, 60_000);
        assert_eq!(leading.wanted_isr(11, 60_400, 500, |_| true), None);
        leading.advance(12, 60_450);
        assert_eq!(leading.wanted_isr(12, 60_501, 500, |_| true), Some(vec![OWN]));
    }
}
