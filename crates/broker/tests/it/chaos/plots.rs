//! Rows of faults that seldom come together by chance, and that the fences between brokers are there for. Their parts come at
//! times of their own, among everything else.

use super::{Chaos, Later};

/// Who is dead for so long is not elected again: leases are over by then.
const DEAD_MS: u64 = 5000;

impl Chaos {
    /// A leader, and two others of the in-sync set.
    fn three_of(&mut self, topic: usize) -> Option<(i32, i32, i32)> {
        let stored = self.trio.stored(self.topics[topic].topic);
        let leader = stored.leader?.0;
        let others: Vec<i32> = stored.isr.iter().map(|one| one.0).filter(|id| *id != leader).collect();
        let first = self.pick(&others)?;
        let second = others.iter().copied().find(|id| *id != first)?;
        Some((leader, first, second))
    }

    /// Mostly nothing else goes wrong for so long.
    fn quiet(&mut self, ms: u64) {
        if self.below(4) > 0 {
            self.quiet_until = self.trio.now.mono_ms + ms;
        }
    }

    /// A follower's Fetch is on its way for so long that the follower has lost power meanwhile, and has registered anew: it says
    /// nothing of what the follower has now. Then the leader dies, and perhaps the third.
    pub(super) fn relapse(&mut self, topic: usize) {
        let Some((leader, follower, third)) = self.three_of(topic) else { return };
        self.counts.relapses += 1;
        self.say(format_args!("broker {follower} relapses under {leader}"));
        let now_ms = self.trio.now.mono_ms;
        let arrives = 3600 + self.below(2500);
        self.schedule(0, Later::Produce(topic, leader));
        let falls = 100 + self.below(700);
        self.schedule(falls, Later::LosePower(follower, 200));
        if self.below(2) == 0 {
            self.trio.slow.insert((follower, leader), now_ms + arrives);
            self.schedule(falls + 1, Later::Cut(follower, arrives + 2000));
        } else {
            // What it asks for now comes late, and it is not yet what it was.
            self.schedule(falls + 1, Later::Slow(leader, follower, arrives + 9000));
        }
        let dies = arrives + 50 + self.below(800);
        if self.below(4) > 0 {
            self.schedule(dies, Later::Kill(third, DEAD_MS));
        }
        self.quiet(dies + DEAD_MS);
        self.schedule(dies + 1, Later::Kill(leader, DEAD_MS));
    }

    /// A follower's Fetch is on its way while somebody else leads, from whom the follower learns that its last records are to
    /// go, and until the first leader, which has seen nothing of that, leads again: it says nothing of what the follower has
    /// now. Then the other two die.
    pub(super) fn relay(&mut self, topic: usize) {
        let Some((leader, follower, third)) = self.three_of(topic) else { return };
        self.counts.relays += 1;
        self.say(format_args!("{leader} leads, then {third}, then {leader}, and {follower} is late"));
        let now_ms = self.trio.now.mono_ms;
        let arrives = 900 + self.below(900);
        self.trio.slow.insert((follower, leader), now_ms + arrives);
        for way in [(leader, third), (third, leader)] {
            self.trio.slow.insert(way, now_ms + arrives);
        }
        self.schedule(0, Later::ProduceToLeader(topic, leader));
        let first = 20 + self.below(150);
        self.schedule(first, Later::Lead(topic, [third, leader, follower]));
        let second = first + 60 + self.below(300);
        self.schedule(second, Later::Lead(topic, [leader, third, follower]));
        self.schedule(arrives.saturating_sub(1), Later::Cut(follower, 3000));
        for after in [5, 50, 200] {
            self.schedule(arrives + after, Later::Read(topic, leader));
        }
        let dies = arrives + 210 + self.below(400);
        self.quiet(dies + DEAD_MS);
        self.schedule(dies, Later::Kill(third, DEAD_MS));
        self.schedule(dies + 1, Later::Kill(leader, DEAD_MS));
    }
}
