"""Turns a query's bounds into offsets by asking the cluster."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from headrace.errors import ConfigError, KafkaError, Retriable
from headrace.spark import clients
from headrace.spark.options import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeVar

    from headrace.admin import OffsetInfo, OffsetSpec
    from headrace.spark.options import Bound, SourceOptions
    from headrace.spark.planning import Positions

    Found = TypeVar("Found")

_SPEC: dict[int, OffsetSpec] = {EARLIEST: "earliest", LATEST: "latest"}


class OffsetReader:
    """Asks a cluster for partitions and offsets, with the query's retries."""

    def __init__(self, options: SourceOptions) -> None:
        """Connects on first use."""
        self._options = options

    def partitions(self) -> list[tuple[str, int]]:
        """The partitions that the query reads at present, sorted."""
        return self._retry(self._partitions)

    def earliest(self, partitions: Iterable[tuple[str, int]]) -> Positions:
        """The start of each partition's log."""
        return self._lookup(dict.fromkeys(partitions, "earliest"))

    def latest(self, partitions: Iterable[tuple[str, int]]) -> Positions:
        """The end of each partition's log."""
        return self._lookup(dict.fromkeys(partitions, "latest"))

    def resolve(self, bound: Bound) -> Positions:
        """The bound as an offset a partition.

        Raises:
            ConfigError: it names other partitions than the query reads, or no record is at or after its time and the
                strategy is ``error``.
        """
        partitions = self.partitions()
        if bound.everywhere is not None:
            return self._lookup(dict.fromkeys(partitions, _SPEC[bound.everywhere]))
        if bound.timestamp is not None:
            return self._at_times(bound, dict.fromkeys(partitions, bound.timestamp))
        named = {(t, p): at for t, parts in (bound.timestamps or bound.offsets or {}).items() for p, at in parts.items()}
        if set(named) != set(partitions):
            missing = sorted(set(partitions) - set(named))
            unknown = sorted(set(named) - set(partitions))
            raise ConfigError(
                f"{bound.option} must name every partition that is read and no other: "
                f"missing {missing or 'none'}, not read {unknown or 'none'}"
            )
        if bound.timestamps is not None:
            return self._at_times(bound, named)
        asked = {tp: _SPEC[at] for tp, at in named.items() if at < 0}
        return {**named, **self._lookup(asked)}

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
        found = self._retry(lambda: clients.admin(self._options.client).list_offsets(specs))
        return {(tp.topic, tp.partition): info for tp, info in found.items()}

    def _partitions(self) -> list[tuple[str, int]]:
        topics = self._options.topics
        if topics.kind == "assign":
            return sorted((t, p) for t, parts in topics.assigned.items() for p in parts)
        admin = clients.admin(self._options.client)
        if topics.kind == "subscribePattern":
            pattern = re.compile(topics.pattern)
            names = [name for name in admin.list_topics() if pattern.fullmatch(name)]
        else:
            names = list(topics.names)
        described = admin.describe_topics(names) if names else {}
        return sorted((name, p.partition) for name, topic in described.items() for p in topic.partitions)

    def _retry(self, ask: Callable[[], Found]) -> Found:
        for attempt in range(self._options.fetch_retries):
            try:
                return ask()
            except KafkaError as error:
                if not isinstance(error, Retriable) or attempt + 1 == self._options.fetch_retries:
                    raise
                time.sleep(self._options.fetch_retry_interval_ms / 1000)
        raise AssertionError("unreachable: the last attempt returns or raises")
