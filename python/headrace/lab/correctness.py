"""Mode correctness: what becomes of every single record while consumers crash and brokers restart."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from headrace.lab.faults import Faults
from headrace.lab.judge import LIMIT, Judge

if TYPE_CHECKING:
    from headrace.lab.coordinator import Run

QUIET_S: Final = 90.0
"""What has not come after so long without any record is lost: longer than a dead member keeps its partitions."""

LOOK_S: Final = 1.0


async def correctness(run: Run) -> dict[str, Any]:
    """Runs with faults, drains, and judges."""
    workload, totals = run.workload, run.totals
    warm_s = workload.warmup_duration_seconds
    whole_s = warm_s + workload.test_duration_seconds
    totals.counted = (round(warm_s), round(whole_s))
    faults = Faults(run)
    judge = run.judge = Judge(run.plan.groups, share=workload.consumer_type == "share")
    await run.backlog()
    await run.consumers()
    if workload.consumer_type == "share":
        judge.limit = await asyncio.to_thread(run.cluster.deliveries_limit, run.plan.groups[0])
    await run.producers()
    run.progress = lambda: (min(run.t_s / whole_s, 1.0), max(whole_s - run.t_s, 0.0))
    await run.start()
    doing = asyncio.ensure_future(faults.run())
    findings: dict[str, Any] = {"faults": faults.done}
    try:
        await run.until(lambda: doing.done() and (run.t_s >= whole_s or doing.exception() is not None))
        doing.result()
        await run.stop("produce")
        drained = await _drain(run, judge)
        await run.stop("consume")
        await asyncio.to_thread(judge.update)
        findings["groups"] = judge.findings()
    finally:
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        # Of a run that ends here as well: what was done to it may be why. What is missing then is not lost yet.
        run.bundle.json("findings.json", findings)
    verdict = {"drained": drained, **judge.verdict()}
    if verdict.get("atLimit"):
        sentence = (
            f"as often as the group's {LIMIT} ({judge.limit}) allows: one that is not accepted then comes no more"
        )
        run.warn(f"{verdict['atLimit']:,} records were given out {sentence}")
    if "failed" in verdict:
        run.warn(f"not correct: {verdict['failed']}")
    else:
        run.bundle.remove_journals()
    return verdict


async def _drain(run: Run, judge: Judge) -> bool:
    """Waits until all is seen, or nothing comes any more; whether all is seen."""
    end = time.monotonic() + run.workload.drain_timeout_seconds
    received, quiet = -1, 0.0
    while True:
        await asyncio.to_thread(judge.update)
        if not judge.left:
            return True
        now = time.monotonic()
        if run.totals.received != received:
            received, quiet = run.totals.received, now + QUIET_S
        if now > min(quiet, end):
            return False
        await run.until(t_s=run.t_s + LOOK_S)
