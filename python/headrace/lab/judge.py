"""The judge of a correctness run: what was lost, doubled, out of order or accepted twice, from workers' journals."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.lab.journal import ACCEPTED, CORRUPT, DELIVERIES_SHIFT, FOREIGN, GIVEN, RECEIVED, SENT, Tail
from headrace.lab.marks import Marks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Events = NDArray[np.void]

NAMED_MAX: Final = 100
"""So many of each kind are named; all are counted."""

NO_LIMIT: Final = 256
"""More than `Marks` count."""

LIMIT: Final = "share.delivery.count.limit"
"""The group's setting after how many deliveries brokers give a record up."""


@dataclass
class Group:
    """What the members of one group have seen."""

    name: str
    seen: dict[int, Marks] = field(default_factory=lambda: defaultdict(Marks))
    """By producer: how often each sequence came."""
    places: dict[int, Marks] = field(default_factory=lambda: defaultdict(lambda: Marks(np.int64)))
    """By producer: at which offset each sequence stands, and 1."""
    taken: dict[tuple[int, int], Marks] = field(default_factory=lambda: defaultdict(lambda: Marks(np.uint64)))
    """By topic and partition: a bit for each delivery of an offset whose acknowledgement was taken."""
    given: dict[tuple[int, int], Marks] = field(default_factory=lambda: defaultdict(Marks))
    """By topic and partition: how often each offset was given out, as brokers tell members."""
    deliveries: dict[int, Marks] = field(default_factory=lambda: defaultdict(Marks))
    """By producer: the same of each sequence."""
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    named: dict[str, list[dict[str, int]]] = field(default_factory=lambda: defaultdict(list))

    def found(self, what: str, events: Iterable[dict[str, int]], count: int) -> None:
        """Counts and names findings."""
        self.counts[what] += count
        known = self.named[what]
        for event in events:
            if len(known) >= NAMED_MAX:
                break
            known.append(event)


class Order:
    """Of one member, in one life of its process: whether a partition's records of a producer come in their order.

    What comes again after a rebalance goes back as well, but is not new to the member, or to its group.
    """

    def __init__(self) -> None:
        self._mine: dict[int, Marks] = defaultdict(Marks)
        self._highest: dict[tuple[int, int, int], int] = {}

    def behind(self, producer: int, place: tuple[int, int], sequence: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these records come for the first time after a later one of their producer and partition."""
        marks = self._mine[producer].at(sequence)
        _, first = np.unique(sequence, return_index=True)
        fresh = np.zeros(len(sequence), np.bool_)
        fresh[first] = marks[sequence[first]] == 0
        marks[sequence] = 1
        key = (producer, *place)
        highest = np.maximum.accumulate(np.concatenate([[self._highest.get(key, -1)], sequence]))
        self._highest[key] = int(highest[-1])
        return fresh & (sequence < highest[:-1])


@dataclass
class Life:
    """What one worker's process tells; without a group it is of producers."""

    tail: Tail
    group: Group | None
    orders: dict[int, Order] = field(default_factory=lambda: defaultdict(Order))
    """By member."""
    deliveries: dict[tuple[int, tuple[int, int]], Marks] = field(default_factory=lambda: defaultdict(Marks))
    """By member, topic and partition: as the how-manieth delivery it was given each offset last."""


class Judge:
    """Reads the journals of a run as they grow."""

    def __init__(self, groups: Iterable[str], *, share: bool) -> None:
        """`share`: these are share groups, which keep no order and have acknowledgements of their own."""
        self._share = share
        self.limit: int | None = None
        """How often brokers give a record out; None if they do not tell."""
        self._groups = {name: Group(name) for name in groups}
        self._sent: dict[int, Marks] = defaultdict(Marks)
        self._lives: list[Life] = []

    def watch(self, path: Path, group: str = "") -> None:
        """Takes a worker's journal in; that of producers has no group."""
        self._lives.append(Life(Tail(path), self._groups.get(group)))

    def update(self) -> None:
        """Reads what is new."""
        for life in self._lives:
            events = life.tail.read()
            group = life.group
            if group is None:
                for producer, own in _by(events[events["kind"] == SENT], "producer"):
                    self._sent[producer].count(own["sequence"].astype(np.int64))
                continue
            self._received(group, life.orders, events[events["kind"] == RECEIVED])
            # In turn: an acknowledgement is of the delivery before it.
            steps = events[(events["kind"] == GIVEN) | (events["kind"] == ACCEPTED)]
            for step in np.split(steps, np.flatnonzero(np.diff(steps["kind"])) + 1):
                if len(step) and step["kind"][0] == GIVEN:
                    self._given(group, life, step)
                else:
                    self._accepted(group, life, step)

    @staticmethod
    def _given(group: Group, life: Life, events: Events) -> None:
        for place, own in _by_place(events):
            count = own["flags"] >> DELIVERIES_SHIFT
            np.maximum.at(group.given[place].at(own["offset"]), own["offset"], count)
            for member, of_member in _by(own, "member"):
                offset = of_member["offset"]
                life.deliveries[member, place].at(offset)[offset] = of_member["flags"] >> DELIVERIES_SHIFT
        for producer, own in _by(events, "producer"):
            sequence = own["sequence"].astype(np.int64)
            np.maximum.at(group.deliveries[producer].at(sequence), sequence, own["flags"] >> DELIVERIES_SHIFT)

    def _received(self, group: Group, orders: dict[int, Order], events: Events) -> None:
        bad = (events["flags"] & (CORRUPT | FOREIGN)) != 0
        if bad.any():
            group.found("corrupt", map(_named, events[bad]), int(bad.sum()))
        right = events[~bad]
        for producer, own in _by(right, "producer"):
            sequence = own["sequence"].astype(np.int64)
            group.seen[producer].count(sequence)
            self._written_twice(group, producer, own[own["offset"] >= 0])
        # A damaged record is no lost one, if its head tells which it is.
        for producer, own in _by(events[bad & (events["flags"] & FOREIGN == 0)], "producer"):
            sequence = own["sequence"].astype(np.int64)
            known = (sequence >= 0) & (sequence < len(self._sent[producer].values))
            group.seen[producer].count(sequence[known])
        if self._share:
            return  # they keep no order
        for member, of_member in _by(right, "member"):
            for producer, of_producer in _by(of_member, "producer"):
                for place, own in _by_place(of_producer):
                    behind = orders[member].behind(producer, place, own["sequence"].astype(np.int64))
                    if behind.any():
                        group.found("outOfOrder", map(_named, own[behind]), int(behind.sum()))

    @staticmethod
    def _written_twice(group: Group, producer: int, events: Events) -> None:
        sequence = events["sequence"].astype(np.int64)
        places = group.places[producer].at(sequence)
        unique, first = np.unique(sequence, return_index=True)
        new = places[unique] == 0
        places[unique[new]] = events["offset"][first[new]] + 1
        other = places[sequence] != events["offset"] + 1
        group.found("writtenTwice", map(_named, events[other]), int(other.sum()))

    @staticmethod
    def _accepted(group: Group, life: Life, events: Events) -> None:
        for member, of_member in _by(events, "member"):
            for place, own in _by_place(of_member):
                offset, first, times = np.unique(own["offset"], return_index=True, return_counts=True)
                taken, own = group.taken[place].at(offset), own[first]  # noqa: PLW2901
                count = life.deliveries[member, place].at(offset)[offset]
                bit = np.uint64(1) << count.astype(np.uint64)
                # Brokers take what comes late, from one that was given it before, once the group is past it.
                twice = ((taken[offset] & bit) != 0) | (times > 1)
                late = (taken[offset] != 0) & ~twice
                taken[offset] |= bit
                group.found("acceptedTwice", map(_named, own[twice]), int(twice.sum()))
                group.found("acceptedLate", map(_named, own[late]), int(late.sum()))

    @property
    def records(self) -> int:
        """Records that brokers have acknowledged to producers."""
        return sum(int(np.count_nonzero(marks.values)) for marks in self._sent.values())

    @property
    def left(self) -> int:
        """Records that some group has not seen."""
        return sum(len(missing) for group in self._groups.values() for _, missing in self._missing(group))

    def _missing(self, group: Group) -> Iterator[tuple[int, NDArray[np.int64]]]:
        for producer, sent in self._sent.items():
            seen = group.seen[producer].values
            have = np.zeros(len(sent.values), np.bool_)
            have[: len(seen)] = seen[: len(have)] > 0
            yield producer, np.flatnonzero((sent.values > 0) & ~have)

    @staticmethod
    def _deliveries(group: Group, producer: int, sequence: NDArray[np.int64]) -> NDArray[np.integer[Any]]:
        """How often members were given these records, as far as they came to tell."""
        return group.deliveries[producer].at(sequence)[sequence]

    def verdict(self) -> dict[str, Any]:
        """The counts of all groups together; ``failed`` says what must not be."""
        found: dict[str, Any] = {"records": self.records, **dict.fromkeys(self._kinds, 0)}
        for group in self._groups.values():
            for what, count in self._counts(group).items():
                found[what] = max(found[what], count) if what == "deliveriesMax" else found[what] + count
        wrong = {"lost": "lost", "corrupt": "corrupt", "outOfOrder": "out of order", "acceptedTwice": "accepted twice"}
        reported = [f"{found[what]:,} {words}" for what, words in wrong.items() if found.get(what)]
        if self._share:
            found["deliveriesLimit"] = self.limit
        if found.get("givenUp"):
            why = f"brokers gave up {found['givenUp']:,} of them after {self.limit} deliveries, the group's {LIMIT}"
            reported[0] += f" ({why})"
        if not found["records"]:
            reported.append("no record was acknowledged to a producer")
        return {**found, "failed": ", ".join(reported)} if reported else found

    @property
    def _kinds(self) -> tuple[str, ...]:
        kinds = ("lost", "corrupt", "duplicates", "writtenTwice")
        of_share = ("acceptedTwice", "acceptedLate", "givenUp", "atLimit", "deliveriesMax")
        return (*kinds, *of_share) if self._share else (*kinds, "outOfOrder")

    def _counts(self, group: Group) -> dict[str, int]:
        counts = {what: group.counts[what] for what in self._kinds}
        counts["lost"] = sum(len(missing) for _, missing in self._missing(group))
        counts["duplicates"] = sum(int((marks.values > 1).sum()) for marks in group.seen.values())
        if self._share:
            counts["deliveriesMax"] = max((int(m.values.max()) for m in group.given.values()), default=0)
            limit = self.limit or NO_LIMIT
            counts["atLimit"] = sum(int((m.values >= limit).sum()) for m in group.given.values())
            counts["givenUp"] = sum(
                int((self._deliveries(group, *some) >= limit).sum()) for some in self._missing(group)
            )
        return counts

    def findings(self) -> list[dict[str, Any]]:
        """Of each group the counts, and the first of each kind by name."""
        found = []
        for group in self._groups.values():
            named: dict[str, list[dict[str, int]]] = {what: list(some) for what, some in group.named.items() if some}
            lost = [
                {"producer": p, "sequence": int(s), **({"deliveries": int(count)} if self._share else {})}
                for p, missing in self._missing(group)
                for s, count in zip(missing[:NAMED_MAX], self._deliveries(group, p, missing), strict=False)
            ]
            if lost:
                named["lost"] = lost[:NAMED_MAX]
            found.append({"group": group.name, **self._counts(group), "named": named})
        return found


def _by(events: Events, column: str) -> Iterator[tuple[int, Events]]:
    values = events[column]
    for value in np.unique(values).tolist():
        yield value, events[values == value]


def _by_place(events: Events) -> Iterator[tuple[tuple[int, int], Events]]:
    for topic, of_topic in _by(events, "topic"):
        for partition, own in _by(of_topic, "partition"):
            yield (topic, partition), own


def _named(event: Any) -> dict[str, int]:
    return {name: int(event[name]) for name in ("producer", "sequence", "member", "topic", "partition", "offset")}
