"""The work of a consumer on records: when each begins, and a sleep until all of it is done."""

from __future__ import annotations

import heapq
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import threading

    from numpy.typing import NDArray


class Work:
    """Takes between `min_ms` and `max_ms` for a record, uniformly; `parallelism` at once, -1 all."""

    def __init__(self, min_ms: float, max_ms: float, parallelism: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._parallelism = parallelism
        self.set(min_ms, max_ms)

    def set(self, min_ms: float, max_ms: float) -> None:
        """Changes what a record takes from now on."""
        self._min_ns, self._max_ns = min_ms * 1e6, max_ms * 1e6

    @property
    def needed(self) -> bool:
        """Whether records take any time."""
        return self._max_ns > 0

    def plan(self, count: int) -> tuple[NDArray[np.int64], int]:
        """When the work on each record begins, and when all is done, in nanoseconds from now."""
        if self._max_ns <= 0 or not count:
            return np.zeros(count, np.int64), 0
        costs = self._random.uniform(self._min_ns, self._max_ns, count).astype(np.int64)
        if self._parallelism == -1 or self._parallelism >= count:
            return np.zeros(count, np.int64), int(costs.max())
        if self._parallelism == 1:
            ends = np.cumsum(costs)
            return ends - costs, int(ends[-1])
        # The next record goes to the worker that is free first.
        free = [0] * self._parallelism
        begins = np.empty(count, np.int64)
        for i, cost in enumerate(costs.tolist()):
            begins[i] = free[0]
            heapq.heapreplace(free, free[0] + cost)
        return begins, max(free)

    def run(self, count: int, stopped: threading.Event) -> NDArray[np.int64]:
        """Works on records; gives when each was begun, in nanoseconds since the epoch. Ends early when stopped."""
        began = time.time_ns()
        begins, took = self.plan(count)
        rest = (began + took - time.time_ns()) / 1e9
        if took and rest > 0:
            stopped.wait(rest)
        return began + begins
