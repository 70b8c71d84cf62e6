"""Mode explore-limits: the highest rate at which delivery stays under a latency."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.lab.schedule import Schedule

if TYPE_CHECKING:
    from headrace.lab.coordinator import Run
    from headrace.lab.workload import Explore

SETTLE_S: Final = 5
SENT_MIN: Final = 0.98
"""The least share of what was due that is to be sent, and received."""

CONFIRM_LESS: Final = 0.95
CONFIRM_ATTEMPTS: Final = 5
TOLD_S: Final = 20.0
"""How long after a step its last second may be told."""

LEAST_RATE: Final = 1.0
"""A rate below this is taken for none."""


@dataclass(frozen=True)
class Step:
    """One rate, and what was measured at it."""

    rate: float
    seconds: int
    sent_rate: float
    received_rate: float
    latency_ms: float
    backlog_growth: int
    why: str
    """Why the rate is too high; empty if it is not."""
    confirming: bool = False

    @property
    def holds(self) -> bool:
        """Whether the rate can be kept."""
        return not self.why


class Target(Protocol):
    """What is explored."""

    async def measure(self, rate: float, seconds: int) -> Step:
        """Sends at a rate for so many seconds."""

    async def drain(self) -> str:
        """Empties the backlog; gives why that failed, or an empty text."""


@dataclass
class Found:
    """A limit, and the steps to it."""

    rate: float
    steps: list[Step]
    failed: str = ""


async def search(target: Target, explore: Explore) -> Found:
    """Doubles the rate until it is too high, then halves the distance; the answer must hold once more, for longer."""
    found = Found(0.0, [])
    low, high, rate = 0.0, math.inf, explore.start_rate
    seconds = round(explore.step_seconds)
    while True:
        step = await _step(target, found, rate, seconds)
        if found.failed:
            return found
        if step.holds:
            low = rate
            if rate >= explore.max_rate:
                break
        else:
            high = rate
        if math.isinf(high):
            rate = min(low * 2, explore.max_rate)
            continue
        if high - low <= explore.precision * high or high < LEAST_RATE:
            break
        rate = (low + high) / 2
    for _ in range(CONFIRM_ATTEMPTS if low else 0):
        step = await _step(target, found, low, 2 * seconds)
        found.steps[-1] = dataclasses.replace(step, confirming=True)
        if step.holds or found.failed:
            break
        low *= CONFIRM_LESS
    else:
        if low:
            found.failed = f"no rate near {low:,.0f} held for {2 * seconds} s"
    found.rate = low
    return found


async def _step(target: Target, found: Found, rate: float, seconds: int) -> Step:
    step = await target.measure(rate, seconds)
    found.steps.append(step)
    if not step.holds:
        found.failed = await target.drain()
    return step


def judge(explore: Explore, step: Step) -> str:
    """Why a step's rate is too high; empty if it is not."""
    if step.sent_rate < SENT_MIN * step.rate:
        return f"only {step.sent_rate:,.0f} a second were sent"
    if step.received_rate < SENT_MIN * step.rate:
        return f"only {step.received_rate:,.0f} a second were received"
    if step.backlog_growth > step.rate:
        return f"the backlog grew by {step.backlog_growth:,}"
    if step.latency_ms > explore.target_latency_ms:
        return f"p{explore.percentile:g} is {step.latency_ms:,.1f} ms"
    return ""


class Live:
    """A run as a target."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def measure(self, rate: float, seconds: int) -> Step:
        """Sends at a rate: first until it has settled, then for the seconds that count."""
        run, totals = self._run, self._run.totals
        await run.rate(Schedule.constant(rate))
        first = math.ceil(run.t_s) + SETTLE_S
        counted = range(first, first + seconds)
        totals.measure(counted)
        await run.until(lambda: run.complete >= first - 1, t_s=first + TOLD_S)
        before = totals.backlog
        await run.until(lambda: run.complete >= counted[-1], t_s=counted[-1] + 1 + TOLD_S)
        step = Step(
            rate=rate,
            seconds=seconds,
            sent_rate=sum(totals.sent_by_second[n] for n in counted) / seconds,
            received_rate=sum(totals.received_by_second[n] for n in counted) / seconds / totals.groups,
            latency_ms=totals.step["delivery"].at(run.workload.explore.percentile) / 1000,
            backlog_growth=totals.backlog - before,
            why="",
        )
        step = dataclasses.replace(step, why=judge(run.workload.explore, step))
        reported = "holds" if step.holds else f"too high: {step.why}"
        run.view.note(
            f"{rate:,.0f} a second: {reported} (p{run.workload.explore.percentile:g} {step.latency_ms:,.1f} ms)"
        )
        return step

    async def drain(self) -> str:
        """Pauses the producers and takes the work away until all is received."""
        run, totals, workload = self._run, self._run.totals, self._run.workload
        await run.rate(Schedule.constant(0))
        await run.work(0, 0)
        end = run.t_s + workload.drain_timeout_seconds
        # Backlog 0 must be told after the pause, not be left from before it.
        reported = run.complete + 2
        drained = await run.until(lambda: run.complete >= reported and totals.backlog == 0, t_s=end)
        await run.work(workload.consumer_proc_ms_min, workload.consumer_proc_ms_max)
        return "" if drained else f"{totals.backlog:,} records were left after {workload.drain_timeout_seconds:g} s"


async def explore(run: Run) -> dict[str, Any]:
    """Looks for the limit."""
    run.totals.counted = (0, 0)
    await run.consumers()
    await run.producers(waiting=True)
    await run.start()
    found = await search(Live(run), run.workload.explore)
    await run.stop("produce")
    await run.stop("consume")
    # Of all that was tried only the last step is the answer's.
    run.totals.whole = run.totals.step
    settings = run.workload.explore
    verdict: dict[str, Any] = {
        "limit": found.rate,
        "percentile": settings.percentile,
        "targetLatencyMs": settings.target_latency_ms,
        "steps": [dataclasses.asdict(step) for step in found.steps],
    }
    if found.failed:
        verdict["failed"] = found.failed
        run.warn(found.failed)
    return verdict
