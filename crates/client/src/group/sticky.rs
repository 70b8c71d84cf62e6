//! The sticky division (KIP-54): as even as can be, and among those the one that moves little.
//!
//! Everybody keeps what it has, what nobody has goes to whoever has least, and then partitions move
//! along chains of members, from one that has more to one that has at least two fewer, until there is no such
//! chain. A chain is needed where members want different topics: `a` may be able to give only to
//! `b`, which gives something else to `c`. Without a chain the division is as even as it can be
//! (it has the least sum of squares), and each step makes that sum smaller, so it ends.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use super::assignor::Subscriber;
use crate::consumer::TopicPartition;

/// Who has which partitions of a topic.
type Holdings<'a> = BTreeMap<&'a str, Vec<i32>>;

struct Division<'a> {
    members: &'a [&'a Subscriber],
    /// Members by topic, those that want it.
    takers: BTreeMap<&'a str, Vec<usize>>,
    holdings: Vec<Holdings<'a>>,
    loads: Vec<usize>,
    /// Whose a partition was.
    before: HashMap<(&'a str, i32), usize>,
}

/// Divides the partitions of the topics among the members, in their order.
pub(super) fn sticky(
    members: &[&Subscriber],
    counts: &BTreeMap<String, i32>,
    division: &mut BTreeMap<String, Vec<TopicPartition>>,
) {
    let mut work = Division::of(members, counts);
    work.keep();
    work.hand_out(counts);
    // One step of whoever has most at the time: taking more from one than from the others would move too much.
    while work.by_load().into_iter().any(|giver| work.relieve(giver)) {}
    for (member, holdings) in members.iter().zip(work.holdings) {
        let Some(share) = division.get_mut(&member.member_id) else { continue };
        for (topic, partitions) in holdings {
            share.extend(partitions.into_iter().map(|p| TopicPartition::new(topic, p)));
        }
        share.sort();
    }
}

/// Takes out of a division what another member still has: that one lets it go first, and a rebalance later it is
/// given (KIP-429).
pub(super) fn withhold(members: &[Subscriber], division: &mut BTreeMap<String, Vec<TopicPartition>>) {
    let mut owners: HashMap<&TopicPartition, Vec<&str>> = HashMap::new();
    for member in members {
        for partition in &member.owned {
            owners.entry(partition).or_default().push(&member.member_id);
        }
    }
    for (taker, share) in division {
        share.retain(|partition| {
            owners.get(partition).is_none_or(|owners| owners.iter().all(|owner| owner == taker))
        });
    }
}

impl<'a> Division<'a> {
    fn of(members: &'a [&'a Subscriber], counts: &'a BTreeMap<String, i32>) -> Division<'a> {
        let mut takers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, member) in members.iter().enumerate() {
            for topic in &member.topics {
                takers.entry(topic).or_default().push(index);
            }
        }
        takers.retain(|topic, _| counts.contains_key(*topic));
        // Two that claim one partition: the later generation is right. Of the same one, neither is to be believed.
        let mut claims: HashMap<(&str, i32), (i32, Option<usize>)> = HashMap::new();
        for (index, member) in members.iter().enumerate() {
            for TopicPartition { topic, partition } in &member.owned {
                let Some((topic, count)) = counts.get_key_value(&**topic) else { continue };
                if !member.topics.contains(topic) || !(0..*count).contains(partition) {
                    continue;
                }
                let claim = claims.entry((topic, *partition)).or_insert((i32::MIN, None));
                if member.generation > claim.0 || claim.1 == Some(index) {
                    *claim = (member.generation, Some(index));
                } else if member.generation == claim.0 {
                    claim.1 = None;
                }
            }
        }
        let before = claims.into_iter().filter_map(|(p, (_, owner))| Some((p, owner?))).collect();
        Division {
            members,
            takers,
            holdings: vec![Holdings::new(); members.len()],
            loads: vec![0; members.len()],
            before,
        }
    }

    fn give(&mut self, to: usize, topic: &'a str, partition: i32) {
        if let (Some(holdings), Some(load)) = (self.holdings.get_mut(to), self.loads.get_mut(to)) {
            holdings.entry(topic).or_default().push(partition);
            *load += 1;
        }
    }

    fn keep(&mut self) {
        let mut kept: Vec<_> = self.before.iter().map(|(&(topic, p), &owner)| (topic, p, owner)).collect();
        kept.sort_unstable();
        for (topic, partition, owner) in kept {
            self.give(owner, topic, partition);
        }
    }

    fn load(&self, member: usize) -> usize {
        self.loads.get(member).copied().unwrap_or_default()
    }

    /// What nobody has goes to whoever has least; topics that few want first, since there is least choice.
    fn hand_out(&mut self, counts: &'a BTreeMap<String, i32>) {
        let mut topics: Vec<(usize, &str, Vec<usize>)> =
            self.takers.iter().map(|(topic, takers)| (takers.len(), *topic, takers.clone())).collect();
        topics.sort_unstable();
        for (_, topic, takers) in topics {
            let mut queue: BTreeSet<(usize, usize)> = takers.iter().map(|m| (self.load(*m), *m)).collect();
            for partition in 0..counts.get(topic).copied().unwrap_or_default() {
                if self.before.contains_key(&(topic, partition)) {
                    continue;
                }
                let Some((load, member)) = queue.pop_first() else { break };
                self.give(member, topic, partition);
                queue.insert((load + 1, member));
            }
        }
    }

    /// The members, those with most first.
    fn by_load(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.members.len()).collect();
        order.sort_by_key(|member| std::cmp::Reverse(self.load(*member)));
        order
    }

    /// Moves partitions along a shortest chain from this member to one with at least two fewer. False when there is none.
    fn relieve(&mut self, giver: usize) -> bool {
        let limit = self.load(giver);
        let mut came_by: HashMap<usize, (usize, &'a str)> = HashMap::new();
        let mut seen: HashSet<&str> = HashSet::new();
        let mut layer = VecDeque::from([giver]);
        while !layer.is_empty() {
            let mut next = VecDeque::new();
            let mut best: Option<usize> = None;
            for from in layer {
                let Some(holdings) = self.holdings.get(from) else { continue };
                for (&topic, partitions) in holdings {
                    if partitions.is_empty() || !seen.insert(topic) {
                        continue;
                    }
                    for &to in self.takers.get(topic).into_iter().flatten() {
                        if to == giver || came_by.contains_key(&to) {
                            continue;
                        }
                        came_by.insert(to, (from, topic));
                        next.push_back(to);
                        if self.load(to) + 2 <= limit
                            && best.is_none_or(|best| self.load(to) < self.load(best))
                        {
                            best = Some(to);
                        }
                    }
                }
            }
            if let Some(end) = best {
                self.shift(giver, end, &came_by);
                return true;
            }
            layer = next;
        }
        false
    }

    fn shift(&mut self, giver: usize, end: usize, came_by: &HashMap<usize, (usize, &'a str)>) {
        let mut to = end;
        while to != giver {
            let Some(&(from, topic)) = came_by.get(&to) else { return };
            let Some(partition) = self.pick(from, to, topic) else { return };
            if let Some(partitions) = self.holdings.get_mut(from).and_then(|all| all.get_mut(topic)) {
                partitions.retain(|p| *p != partition);
            }
            if let Some(load) = self.loads.get_mut(from) {
                *load -= 1;
            }
            self.give(to, topic, partition);
            to = from;
        }
    }

    /// Which partition goes: best one that the taker had, else one that the giver had not, else the last.
    fn pick(&self, from: usize, to: usize, topic: &'a str) -> Option<i32> {
        let partitions = self.holdings.get(from)?.get(topic)?;
        let rank = |p: &i32| match self.before.get(&(topic, *p)) {
            Some(owner) if *owner == to => 2,
            Some(owner) if *owner == from => 0,
            _ => 1,
        };
        partitions.iter().copied().max_by_key(|p| (rank(p), *p))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use headrace_wire::random::SplitMix64;

    use super::super::assignor::{Subscriber, divide};
    use crate::consumer::TopicPartition;
    use crate::options::Assignor;

    type Shares = BTreeMap<String, Vec<TopicPartition>>;

    fn member(id: usize, topics: impl IntoIterator<Item = String>) -> Subscriber {
        Subscriber::new(format!("m{id:02}"), topics.into_iter().collect())
    }

    fn below(random: &mut SplitMix64, end: u64) -> u64 {
        random.next_u64() % end
    }

    fn topic(index: u64) -> String {
        format!("t{index}")
    }

    /// The loads that are as even as these members and topics allow, by trying ever larger flows: the reference.
    fn is_even(members: &[Subscriber], shares: &Shares) -> bool {
        // Optimal exactly when nobody can pass one on, over any chain, to someone with two fewer.
        let load = |id: &str| shares[id].len();
        members.iter().all(|giver| {
            let mut reach = BTreeSet::from([giver.member_id.clone()]);
            loop {
                let topics: BTreeSet<&str> =
                    reach.iter().flat_map(|id| shares[id].iter().map(|p| &*p.topic)).collect();
                let more: BTreeSet<String> = members
                    .iter()
                    .filter(|m| m.topics.iter().any(|t| topics.contains(t.as_str())))
                    .map(|m| m.member_id.clone())
                    .collect();
                if more.is_subset(&reach) {
                    break;
                }
                reach.extend(more);
            }
            reach.iter().all(|id| load(id) + 2 > load(&giver.member_id))
        })
    }

    fn check(members: &[Subscriber], counts: &BTreeMap<String, i32>, shares: &Shares, seed: u64) {
        let mut given = BTreeSet::new();
        for member in members {
            for partition in &shares[&member.member_id] {
                assert!(member.topics.contains(&*partition.topic), "seed {seed}");
                assert!(given.insert(partition.clone()), "seed {seed}: {partition} twice");
            }
        }
        let wanted = |topic: &String| members.iter().any(|m| m.topics.contains(topic));
        let all: i32 = counts.iter().filter(|(topic, _)| wanted(topic)).map(|(_, count)| count).sum();
        assert_eq!(given.len(), usize::try_from(all).unwrap(), "seed {seed}: all are given");
        assert!(is_even(members, shares), "seed {seed}: {shares:?}");
    }

    fn remember(members: &mut [Subscriber], shares: &Shares, generation: i32) {
        for member in members {
            member.owned = shares.get(&member.member_id).cloned().unwrap_or_default();
            member.generation = generation;
        }
    }

    fn moved(before: &Shares, after: &Shares, stayed: &[Subscriber]) -> usize {
        let lost = |m: &Subscriber| {
            let after: BTreeSet<_> = after[&m.member_id].iter().collect();
            before.get(&m.member_id).into_iter().flatten().filter(|p| !after.contains(p)).count()
        };
        stayed.iter().map(lost).sum()
    }

    #[test]
    fn any_group_is_divided_evenly_completely_and_stays_as_it_is() {
        for seed in 0..600 {
            let mut random = SplitMix64::new(seed);
            let topics = 1 + below(&mut random, 6);
            let counts: BTreeMap<String, i32> =
                (0..topics).map(|t| (topic(t), i32::try_from(below(&mut random, 12)).unwrap())).collect();
            let same = below(&mut random, 2) == 0;
            let mut members: Vec<_> = (0..=usize::try_from(below(&mut random, 8)).unwrap())
                .map(|id| member(id, (0..topics).filter(|_| same || below(&mut random, 2) == 0).map(topic)))
                .collect();
            let mut shares = divide(Assignor::Sticky, &members, &counts);
            check(&members, &counts, &shares, seed);
            for generation in 1..4 {
                remember(&mut members, &shares, generation);
                assert_eq!(
                    divide(Assignor::Sticky, &members, &counts),
                    shares,
                    "seed {seed}: nothing changed"
                );
                if below(&mut random, 2) == 0 && members.len() > 1 {
                    let index = usize::try_from(below(&mut random, members.len() as u64)).unwrap();
                    members.remove(index);
                } else {
                    members.push(member(
                        50 + usize::try_from(generation).unwrap(),
                        (0..topics).filter(|_| same || below(&mut random, 2) == 0).map(topic),
                    ));
                }
                let before = shares;
                shares = divide(Assignor::Sticky, &members, &counts);
                check(&members, &counts, &shares, seed);
                if same {
                    let least = least_moves(&members, &shares);
                    assert_eq!(moved(&before, &shares, &members), least, "seed {seed}");
                }
            }
        }
    }

    /// Where all want the same: what is over the share of each, with the larger shares for those that have most.
    fn least_moves(members: &[Subscriber], shares: &Shares) -> usize {
        let all: usize = shares.values().map(Vec::len).sum();
        let (each, more) = (all / members.len(), all % members.len());
        let mut had: Vec<usize> = members.iter().map(|m| m.owned.len()).collect();
        had.sort_unstable_by(|a, b| b.cmp(a));
        let quotas = (0..had.len()).map(|index| each + usize::from(index < more));
        had.iter().zip(quotas).map(|(had, quota)| had.saturating_sub(quota)).sum()
    }

    #[test]
    fn a_cooperative_group_comes_to_rest_and_no_partition_has_two_owners() {
        for seed in 0..300 {
            let mut random = SplitMix64::new(seed);
            let counts = BTreeMap::from([(topic(0), 7), (topic(1), 4)]);
            let mut members: Vec<Subscriber> = Vec::new();
            let mut generation = 0;
            for step in 0..6 {
                if members.len() > 1 && below(&mut random, 3) == 0 {
                    members.remove(0);
                } else {
                    members.push(member(step, (0..2).map(topic)));
                }
                for round in 0.. {
                    assert!(round < 3, "seed {seed}: two rounds are enough");
                    generation += 1;
                    let shares = divide(Assignor::CooperativeSticky, &members, &counts);
                    let held = |m: &Subscriber| m.owned.iter().cloned().collect::<BTreeSet<_>>();
                    let mut owners: BTreeSet<TopicPartition> = BTreeSet::new();
                    for m in &members {
                        let share: BTreeSet<_> = shares[&m.member_id].iter().cloned().collect();
                        // Until it has let go, a member has the old and the new.
                        for partition in held(m).union(&share) {
                            assert!(
                                owners.insert(partition.clone()),
                                "seed {seed}: {partition} has two owners"
                            );
                        }
                    }
                    let revoked = members
                        .iter()
                        .any(|m| held(m).iter().any(|partition| !shares[&m.member_id].contains(partition)));
                    remember(&mut members, &shares, generation);
                    if !revoked {
                        check(&members, &counts, &shares, seed);
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn of_two_claims_the_later_generation_is_right_and_of_equal_ones_neither() {
        let counts = BTreeMap::from([(topic(0), 2)]);
        let owned = vec![TopicPartition::new("t0", 0), TopicPartition::new("t0", 1)];
        let claim = |id, generation, owned: &[TopicPartition]| Subscriber {
            owned: owned.to_vec(),
            generation,
            ..member(id, [topic(0)])
        };
        let shares = divide(Assignor::Sticky, &[claim(0, 3, &owned[1..]), claim(1, 4, &owned[1..])], &counts);
        assert_eq!(shares["m01"], owned[1..]);
        let shares = divide(Assignor::Sticky, &[claim(0, 4, &owned), claim(1, 4, &owned)], &counts);
        assert_eq!((shares["m00"].len(), shares["m01"].len()), (1, 1));
    }
}
