"""The modes: what is done in which order, and what is notified of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.lab.correctness import correctness
from headrace.lab.drain import drain
from headrace.lab.explore import SENT_MIN, explore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.lab.coordinator import Run

DELAY_MAX_MS: Final = 100.0
"""A run whose producers were later than this, or sent less than `SENT_MIN`, did not measure its rate."""

SETTLE_S: Final = 10.0
"""How long consumers may take for what was sent last; it does not count."""


async def steady(run: Run) -> dict[str, Any]:
    """Mode run: warm-up, then the time that counts."""
    workload, totals = run.workload, run.totals
    warm_s, whole_s = (
        workload.warmup_duration_seconds,
        workload.warmup_duration_seconds + workload.test_duration_seconds,
    )
    totals.counted = (round(warm_s), round(whole_s))
    await run.backlog()
    await run.consumers()
    await run.producers()
    run.progress = lambda: (min(run.t_s / whole_s, 1.0), max(whole_s - run.t_s, 0.0))
    await run.start()
    await run.until(t_s=whole_s)
    await run.stop("produce")
    everything = (totals.acknowledged + totals.backlog_written) * totals.groups if run.plan.groups else 0
    await run.until(lambda: totals.received >= everything, t_s=run.t_s + SETTLE_S)
    await run.stop("consume")
    missing, repeated = unbalanced(totals.received, everything, totals.failed * totals.groups)
    seconds = range(*totals.counted)
    verdict = {
        "publishRate": sum(totals.sent_by_second[n] for n in seconds) / workload.test_duration_seconds,
        "consumeRate": sum(totals.received_by_second[n] for n in seconds) / workload.test_duration_seconds,
        "keptUp": kept_up(run) and max(missing, repeated) <= (1 - SENT_MIN) * everything,
        "missing": missing,
        "repeated": repeated,
    }
    if not kept_up(run):
        run.warn("producers could not keep up: the rate that was asked for was not sent")
    if missing:
        run.warn(
            f"consumers received {totals.received:,} of {everything:,}: {missing:,} did not come in {SETTLE_S:g} s"
        )
    if repeated:
        run.warn(f"consumers received {totals.received:,} of {everything:,}: {repeated:,} came more than once")
    if workload.schedule is None and workload.producers_per_topic:
        run.warn("producerRate is 0: delivery counts from the send, there are no due times")
    return verdict


def unbalanced(received: int, wanted: int, failed: int) -> tuple[int, int]:
    """Records that did not come, and those that came once more than was sent.

    A `failed` record, which was not acknowledged, may have come or not: it is neither.
    """
    return max(wanted - received, 0), max(received - wanted - failed, 0)


def kept_up(run: Run) -> bool:
    """Whether the producers sent what was due, when it was."""
    if run.workload.schedule is None or not run.totals.due:
        return True
    late = run.totals.whole["delay"].at(99) / 1000 > DELAY_MAX_MS
    return not late and run.totals.handed >= SENT_MIN * run.totals.due


MODES: Final[dict[str, Callable[[Run], Awaitable[dict[str, Any]]]]] = {
    "run": steady,
    "drain-backlog": drain,
    "explore-limits": explore,
    "correctness": correctness,
}
