"""Mode drain-backlog: how fast a backlog goes, and whether it goes fast to its end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.lab.coordinator import Run

WINDOW: Final = 2
"""Seconds that a rate is taken over: one alone depends on where its edges fall."""

END_SHARE: Final = 0.995
"""The floor is looked for up to here: the last records are too few for a rate."""

PARTS: Final = (50, 90, 99, 100)
ETA_SECONDS: Final = 10


@dataclass(frozen=True)
class Course:
    """A drain's rates, from the records of each second."""

    peak: float
    floor: float | None
    times: dict[str, float]

    @property
    def floor_percent(self) -> float | None:
        """The floor in percent of the peak; None where a drain was too short to have one."""
        return None if self.floor is None or not self.peak else self.floor / self.peak * 100


def course(received: Sequence[int], total: int) -> Course:
    """Peak (the best two seconds), floor and times of a drain.

    The floor is that of the lowest two seconds after the first full one, up to the second in which 99.5 % were there.
    """
    sums = [sum(received[n : n + WINDOW]) / WINDOW for n in range(max(len(received) - WINDOW + 1, 0))]
    peak = max(sums, default=float(sum(received)))
    first = next((n for n, count in enumerate(received) if count), len(received)) + 1
    there, end, times = 0, len(received), {}
    for n, count in enumerate(received):
        for part in PARTS:
            wanted = total * part / 100
            if there < wanted <= there + count:
                times[str(part)] = n + (wanted - there) / count
        if there < total * END_SHARE <= there + count:
            end = n
        there += count
    inside = sums[first : max(end - WINDOW + 1, first)]
    return Course(peak, min(inside, default=None), times)


async def drain(run: Run) -> dict[str, Any]:
    """Writes the backlog, starts the consumers, and waits until every record has come once."""
    workload, totals = run.workload, run.totals
    await run.backlog()
    if workload.schedule is not None:
        await run.producers()

    def left() -> int:
        return (totals.backlog_written + totals.acknowledged) * totals.groups - totals.fresh

    def progress() -> tuple[float | None, float | None]:
        everything = left() + totals.fresh
        recent = [totals.fresh_by_second[n] for n in range(max(run.complete - ETA_SECONDS, 0), run.complete + 1)]
        rate = sum(recent) / max(len(recent), 1)
        return totals.fresh / max(everything, 1), left() / rate if rate else None

    run.progress = progress
    run.clock(time.time_ns())
    await run.consumers(wait=False, distinct=True)
    if workload.schedule is not None:
        await run.start_producers()
    drained = await run.until(lambda: left() <= 0, t_s=workload.drain_timeout_seconds)
    await run.stop("produce")
    await run.stop("consume")
    received = [totals.fresh_by_second[n] for n in range(totals.newest + 1)]
    # A drain that was given up has not come to the times of the parts that are missing.
    found = course(received, max(left(), 0) + totals.fresh)
    seconds = found.times.get("100", float(len(received)))
    verdict: dict[str, Any] = {
        "drained": drained,
        "records": totals.fresh,
        "drainSeconds": seconds,
        "drainRate": totals.fresh / seconds if seconds else 0.0,
        "peakRate": found.peak,
        "floorRate": found.floor,
        "floorPercentOfPeak": found.floor_percent,
        "secondsTo": found.times,
    }
    if not drained:
        verdict["failed"] = f"{left():,} records were left after {workload.drain_timeout_seconds:g} s"
        run.warn(f"not drained: {verdict['failed']}")
    return verdict
