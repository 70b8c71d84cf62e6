"""What to read next: admission control and the cutting of ranges, as in Spark's own connector. No I/O."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Positions: TypeAlias = "dict[tuple[str, int], int]"
"""Next offset to read by (topic, partition)."""


@dataclass(frozen=True)
class Range:
    """Records of one partition, ``start`` included, ``stop`` not."""

    topic: str
    partition: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Offsets in it."""
        return self.stop - self.start


def to_json(positions: Mapping[tuple[str, int], int]) -> dict[str, dict[str, int]]:
    """Positions in the form that Spark's own connector keeps in checkpoints."""
    found: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(positions):
        found.setdefault(topic, {})[str(partition)] = positions[topic, partition]
    return found


def from_json(offset: Mapping[str, Mapping[str, int]] | str) -> Positions:
    """Reads that form back, from a dict or from its text."""
    parsed: Any = json.loads(offset) if isinstance(offset, str) else offset
    return {(topic, int(p)): int(at) for topic, partitions in parsed.items() for p, at in partitions.items()}


def limit_rows(start: Positions, end: Positions, limit: int, earliest: Positions) -> Positions:
    """Shares ``limit`` records among the partitions in proportion to what each has.

    A share below one record is rounded up so that small partitions do not starve, others are rounded down. Partitions
    that are not in ``start`` are new and begin at ``earliest``.
    """
    sizes = {tp: max(stop - start.get(tp, earliest.get(tp, 0)), 0) for tp, stop in end.items()}
    total = sum(sizes.values())
    if total < 1:
        return dict(end)
    limited: Positions = {}
    for tp, stop in end.items():
        begin = start.get(tp, earliest.get(tp, 0))
        if sizes[tp] == 0:
            limited[tp] = stop
            continue
        share = limit * (sizes[tp] / total)
        taken = math.ceil(share) if share < 1 else math.floor(share)
        limited[tp] = min(begin + taken, stop)
    return limited


def available(start: Positions, end: Positions, earliest: Positions) -> int:
    """Records between two positions."""
    return sum(max(stop - start.get(tp, earliest.get(tp, 0)), 0) for tp, stop in end.items())


def cut(ranges: Iterable[Range], min_partitions: int | None, max_records: int | None) -> list[Range]:
    """Cuts ranges so that no piece has more than ``max_records`` and there are about ``min_partitions`` of them."""
    pieces = [r for r in ranges if r.size > 0]
    if max_records is not None:
        pieces = [piece for r in pieces for piece in _split(r, math.ceil(r.size / max_records))]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    total = sum(r.size for r in pieces)
    return [piece for r in pieces for piece in _split(r, max(math.floor(r.size / total * min_partitions + 0.5), 1))]


def _split(whole: Range, parts: int) -> list[Range]:
    cuts: list[Range] = []
    start, left = whole.start, whole.size
    for i in range(parts, 0, -1):
        size = left // i
        if size:
            cuts.append(Range(whole.topic, whole.partition, start, start + size))
        start, left = start + size, left - size
    return cuts
