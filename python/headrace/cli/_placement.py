"""Which brokers are to have which copies: when one is to have none any more, and when all are to have as many."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace._types import TopicPartition

Replicas: TypeAlias = list[int]
"""Node ids, the one that is to lead first."""


def drained(
    placed: Mapping[TopicPartition, Replicas], leaving: int, racks: Mapping[int, str | None]
) -> tuple[dict[TopicPartition, Replicas], list[TopicPartition]]:
    """What is to change so that a broker has no copy.

    Its place is taken by the broker with the fewest copies that has none of the partition, of a rack of its own if
    there is one.

    Args:
        placed: the replicas that each partition has.
        leaving: the broker's node id.
        racks: the brokers that are alive, and their racks.

    Returns:
        The replicas that partitions are to have instead; and those for which there is no other broker.
    """
    count = _copies(placed, racks)
    changes, stuck = {}, []
    for partition, replicas in sorted(placed.items()):
        if leaving not in replicas:
            continue
        stay = [node for node in replicas if node != leaving]
        free = [node for node in racks if node not in replicas]
        if not free:
            stuck.append(partition)
            continue
        to = min(free, key=lambda node: (_shares_rack(node, stay, racks), count[node], node))
        count[to] += 1
        changes[partition] = [to if node == leaving else node for node in replicas]
    return changes, stuck


def balanced(
    placed: Mapping[TopicPartition, Replicas], racks: Mapping[int, str | None]
) -> dict[TopicPartition, Replicas]:
    """What is to change so that no broker has two copies more than another, with as few moves as that takes.

    No copy goes to a rack that has one of its partition already, unless it comes from there.

    Args:
        placed: the replicas that each partition has.
        racks: the brokers that are alive, and their racks.

    Returns:
        The replicas that partitions are to have instead.
    """
    count = _copies(placed, racks)
    now = {partition: list(replicas) for partition, replicas in placed.items()}
    held: dict[int, list[TopicPartition]] = {node: [] for node in count}
    for partition, replicas in sorted(placed.items()):
        for node in replicas:
            held[node].append(partition)
    while move := _next_move(now, held, racks):
        partition, giver, taker = move
        now[partition] = [taker if node == giver else node for node in now[partition]]
        held[giver].remove(partition)
        held[taker].append(partition)
    return {partition: replicas for partition, replicas in now.items() if replicas != placed[partition]}


def _next_move(
    placed: Mapping[TopicPartition, Replicas],
    held: Mapping[int, list[TopicPartition]],
    racks: Mapping[int, str | None],
) -> tuple[TopicPartition, int, int] | None:
    """A copy that a broker with many can give to one with few: of the broker that has the most, if it can."""
    by_count = sorted(racks, key=lambda node: (len(held[node]), node))
    for giver in reversed(by_count):
        for taker in by_count:
            if len(held[giver]) <= len(held[taker]) + 1:
                break
            for partition in held[giver]:
                if taker in placed[partition]:
                    continue
                stay = [node for node in placed[partition] if node != giver]
                if _shares_rack(taker, stay, racks) <= _shares_rack(giver, stay, racks):
                    return partition, giver, taker
    return None


def _copies(placed: Mapping[TopicPartition, Replicas], racks: Iterable[int]) -> Counter[int]:
    count = Counter(dict.fromkeys(racks, 0))
    for replicas in placed.values():
        count.update(replicas)
    return count


def _shares_rack(node: int, others: Iterable[int], racks: Mapping[int, str | None]) -> bool:
    rack = racks[node]
    return rack is not None and any(racks.get(other) == rack for other in others)
