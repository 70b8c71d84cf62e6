//! Which brokers get the copies of a new partition.

use headrace_cluster::model::NodeId;

/// A broker and its rack.
pub(crate) type Racked = (NodeId, Option<String>);

/// Brokers in an order in which neighbours are of different racks, as far as that can be: one of each rack in turn.
fn in_turns(brokers: &[Racked]) -> Vec<&Racked> {
    let mut racks: Vec<(&Option<String>, Vec<&Racked>)> = Vec::new();
    for broker in brokers {
        match racks.iter_mut().find(|(rack, _)| **rack == broker.1 && rack.is_some()) {
            Some((_, of)) => of.push(broker),
            None => racks.push((&broker.1, vec![broker])),
        }
    }
    let longest = racks.iter().map(|(_, of)| of.len()).max().unwrap_or(0);
    let turn = |at: usize| racks.iter().filter_map(move |(_, of)| of.get(at).copied());
    (0..longest).flat_map(turn).collect()
}

/// The replicas of so many partitions, `factor` each, in the order of preference: leaders go round the brokers from `start`
/// on, and so do the others from one round to the next, each in a rack of its own as long as there are some.
pub(crate) fn assign(brokers: &[Racked], partitions: usize, factor: usize, start: usize) -> Vec<Vec<NodeId>> {
    let order = in_turns(brokers);
    let count = order.len();
    if count == 0 {
        return Vec::new();
    }
    let of = |index: usize| {
        let first = start.wrapping_add(index) % count;
        let shift = index / count;
        let mut chosen: Vec<&Racked> = order.get(first).copied().into_iter().collect();
        let others = |at: usize| order.get((first + 1 + (shift + at) % (count - 1).max(1)) % count).copied();
        let mut rest: Vec<&Racked> = (0..count - 1).filter_map(others).collect();
        while chosen.len() < factor && !rest.is_empty() {
            let is_new = |one: &&Racked| one.1.is_none() || chosen.iter().all(|had| had.1 != one.1);
            let at = rest.iter().position(is_new).unwrap_or(0);
            chosen.push(rest.remove(at));
        }
        chosen.into_iter().map(|one| one.0).collect()
    };
    (0..partitions).map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn brokers(racks: &[Option<&str>]) -> Vec<Racked> {
        (1..).zip(racks).map(|(id, rack)| (id, rack.map(str::to_owned))).collect()
    }

    #[test]
    fn leaders_and_followers_are_spread_evenly() {
        let all = assign(&brokers(&[None; 4]), 12, 3, 1);
        for id in 1..=4 {
            assert_eq!(all.iter().filter(|replicas| replicas[0] == id).count(), 3);
            assert_eq!(all.iter().flatten().filter(|other| **other == id).count(), 9);
        }
        for replicas in &all {
            assert_eq!(replicas.iter().collect::<BTreeSet<_>>().len(), 3, "{replicas:?}");
        }
        let followers: BTreeSet<_> = all.iter().filter(|r| r[0] == 1).map(|r| r[1]).collect();
        assert_eq!(followers.len(), 3, "a broker's followers are not always the same: {all:?}");
    }

    #[test]
    fn copies_are_in_racks_of_their_own_where_there_are_enough() {
        let racks = [Some("a"), Some("a"), Some("b"), Some("b"), Some("c")];
        for replicas in assign(&brokers(&racks), 20, 3, 3) {
            let used: BTreeSet<_> =
                replicas.iter().map(|id| racks[usize::try_from(*id).unwrap() - 1]).collect();
            assert_eq!(used.len(), 3, "{replicas:?}");
        }
        for replicas in assign(&brokers(&racks), 20, 4, 0) {
            assert_eq!(replicas.iter().collect::<BTreeSet<_>>().len(), 4);
        }
    }

    #[test]
    fn there_are_never_more_copies_than_brokers() {
        assert_eq!(assign(&brokers(&[None]), 2, 3, 7), [[1], [1]]);
        assert!(assign(&[], 2, 3, 7).is_empty());
    }
}
