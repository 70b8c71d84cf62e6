"""Turns a query's bounds into offsets by asking the cluster."""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING

from headrace.errors import ConfigError, KafkaError, UnknownTopicOrPartitionError
from headrace.spark import clients
from headrace.spark.options import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.admin import OffsetInfo, OffsetSpec
    from headrace.spark.options import Bound, SourceOptions
    from headrace.spark.planning import Positions

_log = logging.getLogger("headrace.spark")


class DataLossError(KafkaError):
    """Records that the query should have read are gone; ``failOnDataLoss=false`` goes on without them."""


class OffsetReader:
    """Asks a cluster for partitions and offsets; connects on first use. The client retries transient errors."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self, *, missing_ok: bool = False) -> list[tuple[str, int]]:
        """The partitions that the query reads now, sorted.

        Args:
            missing_ok: leave out topics and partitions that do not exist.

        Raises:
            UnknownTopicOrPartitionError: a topic or partition that the options name does not exist.
        """
        topics = self._options.topics
        if topics.kind == "assign":
            wanted = [(t, p) for t, parts in topics.assigned.items() for p in parts]
            found = set(self._describe(list(topics.assigned), missing_ok=missing_ok))
            for topic, partition in wanted:
                if (topic, partition) not in found and not missing_ok:
                    raise UnknownTopicOrPartitionError(
                        f"assign names {topic}-{partition}, which is not there", topic=topic, partition=partition
                    )
            return sorted(found.intersection(wanted))
        if topics.kind == "subscribe":
            return self._describe(list(topics.names), missing_ok=missing_ok)
        pattern = re.compile(topics.pattern)
        with clients.admin(self._options.client) as admin:
            names = [name for name in admin.list_topics() if pattern.fullmatch(name)]
        # One that is deleted between the two questions is no error: no option names it.
        return self._describe(names, missing_ok=True)

    def earliest(self, partitions: Iterable[tuple[str, int]]) -> Positions:
        """The start of each partition's log."""
        return self._lookup(dict.fromkeys(partitions, "earliest"))

    def latest(self, partitions: Iterable[tuple[str, int]], read: Positions | None = None) -> Positions:
        """The end of each partition's log.

        Args:
            partitions: which.
            read: offsets that have been read already. An end before them is asked for again, since a broker that has
                just taken over may not know the end yet (KAFKA-7703).
        """
        wanted = list(partitions)
        ends: Positions = {}
        for attempt in range(self._options.fetch_retries):
            if attempt:
                time.sleep(self._options.fetch_retry_interval_ms / 1000)
            ends = self._lookup(dict.fromkeys(wanted, "latest"))
            if all(ends[tp] >= at for tp, at in (read or {}).items() if tp in ends):
                break
        return ends

    def resolve(self, bound: Bound, partitions: list[tuple[str, int]]) -> Positions:
        """The bound as an offset for each of the partitions.

        Raises:
            ConfigError: it names other partitions, or no record is at or after its time and the strategy is ``error``.
            DataLossError: a partition has no such offset; without ``failOnDataLoss`` the nearest one is taken.
        """
        if bound.everywhere == EARLIEST:
            return self.earliest(partitions)
        if bound.everywhere is not None:
            return self.latest(partitions)
        if bound.timestamp is not None:
            return self._at_times(bound, dict.fromkeys(partitions, bound.timestamp))
        by_topic = bound.offsets if bound.timestamps is None else bound.timestamps
        named = {(t, p): at for t, parts in (by_topic or {}).items() for p, at in parts.items()}
        if set(named) != set(partitions):
            missing = _names(set(partitions) - set(named)) or "none"
            unknown = _names(set(named) - set(partitions)) or "none"
            raise ConfigError(
                f"{bound.option} must name every partition that is read and no other: "
                f"missing {missing}, not read {unknown}"
            )
        if bound.timestamps is not None:
            return self._at_times(bound, named)
        return self._inside(bound, named)

    def lost(self, what: str) -> None:
        """Raises, or with ``failOnDataLoss=false`` warns.

        Raises:
            DataLossError: records are gone, as ``what`` says.
        """
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{what}; the option failOnDataLoss=false would go on without them")
        _log.warning("%s; going on, as failOnDataLoss is false", what)

    def _inside(self, bound: Bound, named: Positions) -> Positions:
        """Offsets by number, held against the log as it is."""
        earliest, latest = self.earliest(named), self.latest(named)
        found: Positions = {}
        for tp, at in named.items():
            if at in {EARLIEST, LATEST}:
                found[tp] = earliest[tp] if at == EARLIEST else latest[tp]
                continue
            found[tp] = min(max(at, earliest[tp]), latest[tp])
            if found[tp] != at:
                self.lost(
                    f"{bound.option} of {tp[0]}-{tp[1]} is {at}, but its records are those from {earliest[tp]} to "
                    f"{latest[tp]}"
                )
        return found

    def _at_times(self, bound: Bound, times: Mapping[tuple[str, int], int]) -> Positions:
        found = self._infos(dict(times))
        unmatched = sorted(tp for tp, info in found.items() if info.offset < 0)
        positions = {tp: info.offset for tp, info in found.items() if info.offset >= 0}
        if unmatched:
            if bound.option.startswith("starting") and self._options.start_strategy == "error":
                topic, partition = unmatched[0]
                raise ConfigError(
                    f"{bound.option}: no record of {topic}-{partition} is at or after {times[unmatched[0]]} ms; "
                    "startingOffsetsByTimestampStrategy 'latest' would begin at the end"
                )
            positions.update(self.latest(unmatched))
        return positions

    def _lookup(self, specs: Mapping[tuple[str, int], OffsetSpec]) -> Positions:
        return {tp: info.offset for tp, info in self._infos(specs).items()}

    def _infos(self, specs: Mapping[tuple[str, int], OffsetSpec]) -> dict[tuple[str, int], OffsetInfo]:
        if not specs:
            return {}
        with clients.admin(self._options.client) as admin:
            found = admin.list_offsets(specs)
        return {(tp.topic, tp.partition): info for tp, info in found.items()}

    def _describe(self, names: list[str], *, missing_ok: bool) -> list[tuple[str, int]]:
        left = list(names)
        while left:
            try:
                with clients.admin(self._options.client) as admin:
                    found = admin.describe_topics(left)
            except UnknownTopicOrPartitionError as error:
                if not missing_ok or error.topic not in left:
                    raise
                left.remove(error.topic)
            else:
                return sorted((name, p.partition) for name, topic in found.items() for p in topic.partitions)
        return []


def _names(partitions: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))
