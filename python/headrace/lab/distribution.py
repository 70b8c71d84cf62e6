"""Where each record goes: its key, or its partition, or neither."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEYS: Final = 10_000
"""Different keys of KEY_ROUND_ROBIN."""

DISTRIBUTORS: Final = {
    "NO_KEY": "no key, no partition: the client's own partitioner, which stays on a partition for a while",
    "KEY_ROUND_ROBIN": "one of 10,000 keys of 8 letters after the other, spread by the client's hash",
    "RANDOM_NANO": "a key from the clock's nanoseconds",
    "PINNED_PARTITIONS": "record i of producer p goes to partition (p + i) mod partitions",
    "PARTITION_ZIPF": "a partition drawn with weight 1 / (p + 1) ^ alpha, by the seed",
}


@dataclass(frozen=True)
class Distribution:
    """A distributor's name, and what it is given."""

    kind: str = "NO_KEY"
    alpha: float | None = None

    def to_json(self) -> str | dict[str, Any]:
        """As a workload file has it."""
        return self.kind if self.alpha is None else {"type": self.kind, "alpha": self.alpha}

    @classmethod
    def from_json(cls, given: str | dict[str, Any]) -> Distribution:
        """What `to_json` wrote."""
        return cls(given) if isinstance(given, str) else cls(given["type"], given["alpha"])

    def __str__(self) -> str:
        """As it stands in names."""
        return self.kind if self.alpha is None else f"{self.kind}({self.alpha:g})"


@dataclass(frozen=True)
class Placement:
    """Keys or partitions of some records; neither leaves it to the client."""

    keys: pa.BinaryArray | None = None
    partitions: NDArray[np.int32] | None = None


def weights(partitions: int, alpha: float) -> NDArray[np.float64]:
    """Each partition's share under PARTITION_ZIPF."""
    raw = (np.arange(partitions) + 1.0) ** -alpha
    shares: NDArray[np.float64] = raw / raw.sum()
    return shares


class Distributor:
    """Places one producer's records, in their order; the same seed gives the same places."""

    def __init__(self, distribution: Distribution, partitions: int, producer: int, seed: int) -> None:
        self._kind = distribution.kind
        self._partitions = partitions
        self._at = producer if self._kind == "PINNED_PARTITIONS" else 0
        self._random = np.random.default_rng([seed, producer])
        self._cycle = np.empty(0, np.int32)
        if self._kind == "KEY_ROUND_ROBIN":
            self._keys = pa.array([f"key-{i:04d}".encode() for i in range(KEYS)], pa.binary())
        if self._kind == "PARTITION_ZIPF":
            self._bounds = np.cumsum(weights(partitions, distribution.alpha or 1.0))
            self._bounds[-1] = 1.0

    def next(self, count: int) -> Placement:
        """Places the next records."""
        if self._kind == "NO_KEY":
            return Placement()
        if self._kind == "RANDOM_NANO":
            nanoseconds = time.time_ns() + np.arange(count)
            return Placement(keys=pa.array([str(n).encode() for n in nanoseconds], pa.binary()))
        if self._kind == "PARTITION_ZIPF":
            drawn = np.searchsorted(self._bounds, self._random.random(count), side="right")
            return Placement(partitions=drawn.astype(np.int32))
        if self._kind == "KEY_ROUND_ROBIN":
            numbers = self._at + np.arange(count)
            self._at += count
            return Placement(keys=self._keys.take(pa.array(numbers % KEYS)))
        begin = self._at % self._partitions
        self._at += count
        if begin + count > len(self._cycle):
            self._cycle = (np.arange(self._partitions + count) % self._partitions).astype(np.int32)
        return Placement(partitions=self._cycle[begin : begin + count])
