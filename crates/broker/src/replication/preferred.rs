//! Has the first replica of each partition lead again once it can: Kafka's preferred leader. Who leads hands over by itself.

use std::collections::{BTreeMap, BTreeSet};

use headrace_cluster::model::{NodeId, PartitionValue};
use headrace_log::Disk;

use crate::context::Context;
use crate::store::Place;

/// Partitions that are handed over at once: clients of each have to find its new leader.
const MOVES_MAX: usize = 32;
/// The others follow after so long.
const NEXT_MOVES_MS: u64 = 1000;

/// When to look next who leads: in `leader.imbalance.check.interval.seconds`, or never.
pub(super) fn next_look<D: Disk>(context: &Context<D>) -> Option<u64> {
    let config = &context.config;
    let interval_s = u64::try_from(config.leader_imbalance_check_interval_seconds).unwrap_or(u64::MAX);
    let due = context.now.mono_ms.saturating_add(interval_s.saturating_mul(1000));
    config.auto_leader_rebalance_enable.then_some(due)
}

/// Hands partitions that this broker leads over to their preferred leaders, where too few of theirs are led by them. When to
/// look next.
pub(super) fn hand_over<D: Disk>(context: &mut Context<D>) -> Option<u64> {
    let next_look = next_look(context);
    let now_ms = context.now.mono_ms;
    let cluster = context.cluster.as_mut()?;
    let view = cluster.member.view();
    let percentage = context.config.leader_imbalance_per_broker_percentage;
    let away = led_elsewhere(view.partitions.values().map(|partition| &partition.value), percentage);
    let preferred = |place: Place, value: &PartitionValue| {
        let first = *value.replicas.first()?;
        let is_ready = value.isr.iter().any(|one| one.0 == first && view.is_alive(*one));
        let is_ours = first != context.config.node_id && cluster.member.leads(now_ms, place).is_some();
        (is_ours && is_ready && away.contains(&first)).then_some((place, first))
    };
    let all = view.partitions.iter();
    let moves: Vec<_> = all.filter_map(|(place, known)| preferred(*place, &known.value)).collect();
    for (place, to) in moves.iter().take(MOVES_MAX) {
        // It may have died since the view was read: then somebody else is elected.
        let _ = cluster.member.transfer(now_ms, *place, *to);
    }
    if moves.len() > MOVES_MAX { Some(now_ms.saturating_add(NEXT_MOVES_MS)) } else { next_look }
}

/// The brokers of whose partitions, those in which they are the first replica, others lead more than a part in hundred.
fn led_elsewhere<'a>(all: impl Iterator<Item = &'a PartitionValue>, percentage: i32) -> BTreeSet<NodeId> {
    let mut counts: BTreeMap<NodeId, (u64, u64)> = BTreeMap::new();
    for value in all {
        let Some(first) = value.replicas.first() else { continue };
        let (of, elsewhere) = counts.entry(*first).or_default();
        *of += 1;
        *elsewhere += u64::from(value.leader.is_none_or(|leader| leader.0 != *first));
    }
    let limit = u64::try_from(percentage).unwrap_or(0);
    let is_over = |(node, (of, elsewhere)): (NodeId, (u64, u64))| {
        (elsewhere.saturating_mul(100) > limit.saturating_mul(of)).then_some(node)
    };
    counts.into_iter().filter_map(is_over).collect()
}
