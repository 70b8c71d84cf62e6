"""How many records are due when: constant rates, ramps, and rounds of them, with the inverse in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

NEVER: Final = np.iinfo(np.int64).max
"""The due time of a record that is never due."""


@dataclass(frozen=True)
class Segment:
    """A stretch of time over which the rate goes linearly from one value to another, in records a second."""

    from_rate: float
    to_rate: float
    duration_s: float

    @property
    def records(self) -> float:
        """Records due in it."""
        return (self.from_rate + self.to_rate) / 2 * self.duration_s


@dataclass(frozen=True)
class Schedule:
    """Segments one after the other, in rounds if it repeats; else the last rate goes on.

    ``count(t)`` is the integral of the rate. Record k (from 0) is due when ``count(t)`` reaches k + 1.
    """

    segments: tuple[Segment, ...]
    repeating: bool = False

    @classmethod
    def constant(cls, rate: float) -> Schedule:
        """The same rate for ever."""
        return cls((Segment(rate, rate, 1.0),))

    @property
    def duration_s(self) -> float:
        """Seconds of all segments, of one round."""
        return sum(segment.duration_s for segment in self.segments)

    @cached_property
    def _table(self) -> tuple[NDArray[np.float64], ...]:
        """Of each segment: begin in seconds, records before it, rate at its begin, slope; and records at its end."""
        durations = np.array([s.duration_s for s in self.segments])
        records = np.array([s.records for s in self.segments])
        rates = np.array([s.from_rate for s in self.segments])
        slopes = np.array([(s.to_rate - s.from_rate) / s.duration_s for s in self.segments])
        ends = np.cumsum(records)
        return np.cumsum(durations) - durations, ends - records, rates, slopes, ends

    def rate(self, t_s: float) -> float:
        """Records a second at that time."""
        round_s = self.duration_s
        if t_s < 0:
            return 0.0
        if t_s >= round_s:
            if not self.repeating:
                return self.segments[-1].to_rate
            t_s %= round_s
        begins, _, rates, slopes, _ = self._table
        at = int(np.searchsorted(begins, t_s, side="right")) - 1
        return float(rates[at] + slopes[at] * (t_s - begins[at]))

    def count(self, t_s: float) -> float:
        """Records due up to that time."""
        if t_s <= 0:
            return 0.0
        begins, before, rates, slopes, ends = self._table
        round_s, whole = self.duration_s, 0.0
        if t_s >= round_s:
            if not self.repeating:
                return float(ends[-1]) + self.segments[-1].to_rate * (t_s - round_s)
            rounds, t_s = divmod(t_s, round_s)
            whole = rounds * float(ends[-1])
        at = int(np.searchsorted(begins, t_s, side="right")) - 1
        into = t_s - float(begins[at])
        return whole + float(before[at] + (rates[at] + slopes[at] * into / 2) * into)

    def due(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """When these records are due, in nanoseconds from the begin; `NEVER` for those that never are."""
        begins, before, rates, slopes, ends = self._table
        wanted = np.asarray(numbers, np.float64) + 1
        total, offset_s = float(ends[-1]), np.zeros(len(wanted))
        if self.repeating and total > 0:
            rounds = np.ceil(wanted / total) - 1
            # Rounding must not take a record out of its round, where it would be due never.
            wanted = np.clip(wanted - rounds * total, 0, total)
            offset_s = rounds * self.duration_s
        # A segment without records is never chosen: its end is not above its predecessor's.
        at = np.minimum(np.searchsorted(ends, wanted, side="left"), len(ends) - 1)
        rest, rate, slope = wanted - before[at], rates[at], slopes[at]
        root = np.sqrt(np.maximum(rate * rate + 2 * slope * rest, 0))
        with np.errstate(divide="ignore", invalid="ignore"):
            # The stable form of the square root's solution; for a slope of 0 it is the plain division.
            seconds = offset_s + begins[at] + np.where(rest > 0, 2 * rest / (rate + root), 0.0)
            beyond = wanted > total
            if not self.repeating and beyond.any():
                seconds = np.where(beyond, self.duration_s + (wanted - total) / self.segments[-1].to_rate, seconds)
        nanoseconds = np.full(len(wanted), NEVER, np.int64)
        finite = np.isfinite(seconds)
        if self.repeating and total <= 0:
            finite[:] = False
        nanoseconds[finite] = np.rint(seconds[finite] * 1e9).astype(np.int64)
        return nanoseconds

    def to_json(self) -> dict[str, Any]:
        """As a workload file has it."""
        return {
            "type": "REPEATING" if self.repeating else "ONCE",
            "segments": [
                {"rate": s.from_rate, "durationSeconds": s.duration_s}
                if s.from_rate == s.to_rate
                else {"fromRate": s.from_rate, "toRate": s.to_rate, "durationSeconds": s.duration_s}
                for s in self.segments
            ],
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Schedule:
        """What `to_json` wrote."""
        segments = tuple(
            Segment(s.get("fromRate", s.get("rate")), s.get("toRate", s.get("rate")), s["durationSeconds"])
            for s in given["segments"]
        )
        return cls(segments, repeating=given["type"] == "REPEATING")
