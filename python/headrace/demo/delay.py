"""What the end-to-end delay of a row is made of.

A row is handed out by the first micro-batch whose watermark has passed its minute. That watermark comes from the
records that the micro-batch before it has read. So the delay of each row falls into a chain of parts that adds up:

    sent ── window ── passed ── trigger ── the micro-batch before ── its own micro-batch ── there

`passed` is when the minute was sent that lets the watermark pass. Within both micro-batches the time in which headrace
was at work (`stopwatch`) is separated from the rest, which is Spark's.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.demo import data

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.demo.pipeline import Arrival


class Parts(NamedTuple):
    """Seconds of one row's delay; their sum is the delay."""

    window: float
    """Until the minute was sent that lets the watermark pass this one."""
    trigger: float
    """From then until the micro-batch began that read it: the one before was still running."""
    headrace: float
    """Planning, fetching and decoding in both micro-batches."""
    reading: float
    """The rest of the micro-batch that read it, which moves the watermark at its end."""
    handing: float
    """The rest of the micro-batch that handed out the row, until it was there."""


class Busy:
    """When headrace was at work, by anyone of its processes."""

    def __init__(self, times: Iterable[tuple[float, float]]) -> None:
        """Takes intervals in any order, also such as overlap."""
        self._begins: list[float] = []
        self._ends: list[float] = []
        for began, ended in sorted(times):
            if self._ends and began <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], ended)
            else:
                self._begins.append(began)
                self._ends.append(ended)
        lengths = (end - begin for begin, end in zip(self._begins, self._ends, strict=True))
        self._sums = list(accumulate(lengths, initial=0.0))
        self._known: dict[float, float] = {}  # rows of one micro-batch ask for the same moments

    def between(self, start: float, stop: float) -> float:
        """Seconds of work between two moments."""
        return max(self._until(stop) - self._until(start), 0.0)

    def _until(self, moment: float) -> float:
        if moment not in self._known:
            self._known[moment] = self._sum(moment)
        return self._known[moment]

    def _sum(self, moment: float) -> float:
        at = bisect_left(self._begins, moment)
        if at == 0:
            return 0.0
        return self._sums[at - 1] + min(moment, self._ends[at - 1]) - self._begins[at - 1]


def stamp(label: str) -> dt.datetime:
    """The time that a minute's label says, as if it were UTC."""
    return dt.datetime.fromisoformat(label).replace(tzinfo=dt.timezone.utc)


def runs(batches: Iterable[Mapping[str, Any]]) -> dict[int, tuple[float, float]]:
    """Begin and end of each micro-batch by its number, in seconds since the epoch, from Spark's progress reports."""
    found = {}
    for batch in batches:
        if "addBatch" in batch["durationMs"]:  # else the query was idle, and the number is the next one's
            begin = dt.datetime.fromisoformat(batch["timestamp"].replace("Z", "+00:00")).timestamp()
            found[batch["batchId"]] = (begin, begin + batch["durationMs"]["triggerExecution"] / 1000)
    return found


def passing(sent_at: Mapping[str, float], watermark: dt.timedelta) -> dict[str, float]:
    """When each minute could be passed by the watermark: the time of sending of the first one far enough behind it."""
    labels = sorted(label for label in sent_at if label != data.END_SITE)
    stamps = [stamp(label) for label in labels]
    times = [sent_at[label] for label in labels]
    if data.END_SITE in sent_at:
        stamps.append(stamps[-1] + data.END_AFTER)
        times.append(sent_at[data.END_SITE])
    found = {}
    for label, of in zip(labels, stamps, strict=False):
        at = bisect_left(stamps, of + watermark)
        if at < len(stamps):
            found[label] = times[at]
    return found


def parts(
    arrivals: Iterable[Arrival],
    passed: Mapping[str, float],
    batches: Mapping[int, tuple[float, float]],
    busy: Busy,
) -> list[tuple[Arrival, Parts]]:
    """The parts of each row's delay; without rows whose micro-batch, or the one before it, Spark did not report."""
    found = []
    for arrival in arrivals:
        own, before = batches.get(arrival.batch), batches.get(arrival.batch - 1)
        if own is None or before is None or arrival.minute not in passed:
            continue
        sent, there = arrival.at - arrival.delay, arrival.at
        window = min(max(passed[arrival.minute], sent), there)
        begun = min(max(before[0], window), there)
        handed = min(max(own[0], begun), there)
        first, second = busy.between(begun, handed), busy.between(handed, there)
        made = Parts(window - sent, begun - window, first + second, handed - begun - first, there - handed - second)
        found.append((arrival, made))
    return found


def means(found: Iterable[tuple[Arrival, Parts]]) -> Parts | None:
    """The mean of each part: unlike percentiles, means add up. None without rows."""
    rows = [made for _, made in found]
    if not rows:
        return None
    return Parts(*(sum(column) / len(rows) for column in zip(*rows, strict=True)))
