"""A campaign from its file to its bundles."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import KafkaError
from headrace.lab import machine, report
from headrace.lab.bundle import LATENCY, PARTIAL, SERIES, Bundle, new_folder
from headrace.lab.cluster import Cluster
from headrace.lab.coordinator import Plan, Run, Stopped, Stopping
from headrace.lab.modes import MODES
from headrace.lab.totals import EVERY_SECOND
from headrace.lab.view import Plain

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from headrace.lab.campaign import Campaign
    from headrace.lab.faults import Nodes
    from headrace.lab.view import View

INTERRUPTED: Final = 130


@dataclass(frozen=True)
class Options:
    """How a campaign is run."""

    bootstrap: str
    results: Path
    only: str = "*"
    keep_topics: bool = False
    nodes: Nodes | None = None
    """The brokers, if the lab has started them: faults are done to them."""


class Lab:
    """Runs a campaign's variations one after the other."""

    def __init__(self, campaign: Campaign, options: Options, view: View | None = None) -> None:
        self._campaign = campaign
        self._options = options
        self._view = view or Plain()
        self._stopping = Stopping()
        self.folder: Path | None = None
        """Where the results are, once they have their name."""
        self._task: asyncio.Task[Any] | None = None

    async def run(self) -> int:
        """Runs all; gives the exit status.

        Raises:
            KafkaError: the cluster is not reached.
        """
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)
        try:
            with Cluster(self._options.bootstrap) as cluster:
                described = await asyncio.to_thread(cluster.describe)
                if self._stopping.asked:
                    return INTERRUPTED
                return await self._all(cluster, described)
        except asyncio.CancelledError:
            self._view.note("stopped at once: groups stay until their members' sessions have ended")
            return INTERRUPTED
        finally:
            self._view.close()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _interrupt(self) -> None:
        if self._stopping.asked and self._task is not None:
            self._task.cancel()
        elif not self._stopping.asked:
            self._stopping.asked = True
            self._view.note("stopping: what was measured is written down; once more to stop at once")

    def plans(self) -> list[Plan]:
        """What is run, in this order: of each variation every driver in turn."""
        chosen = [v for v in self._campaign.variations if fnmatchcase(v.name, self._options.only)]
        if not chosen:
            names = ", ".join(v.name for v in self._campaign.variations[:5])
            raise ValueError(f"--only {self._options.only}: no variation is called so; the first are {names}")
        mark = f"{time.strftime('%H%M%S', time.gmtime())}{secrets.token_hex(2)}"
        runs = [(v, driver) for v in chosen for driver in v.workload.driver]
        return [
            Plan(variation, driver, f"lab-{variation.workload.name}-{mark}-{number}")
            for number, (variation, driver) in enumerate(runs)
        ]

    async def _all(self, cluster: Cluster, described: dict[str, Any]) -> int:
        plans = self.plans()
        root = new_folder(self._options.results, self._campaign.name)
        several = len(plans) > 1
        status, runs = 0, []
        for number, plan in enumerate(plans, 1):
            part = f"{number:02}-{_folder(plan)}"
            bundle = Bundle(root.with_name(root.name + PARTIAL) / part if several else root)
            self._view.begin(f"{plan.title} ({number} of {len(plans)})" if several else plan.title)
            outcome = await self._one(plan, cluster, described, bundle)
            runs.append({"folder": part, "variation": plan.variation.name, "driver": plan.driver, **outcome})
            if several:
                content = {"name": self._campaign.name, "planned": len(plans), "runs": runs}
                Bundle.write_index(root.with_name(root.name + PARTIAL), content)
            if self._stopping.asked:
                status = INTERRUPTED
                break
            if not outcome["complete"] or outcome["failure"]:
                status = 1
        if several:
            root.with_name(root.name + PARTIAL).rename(root)
        self.folder = root
        page = await asyncio.to_thread(report.write, root)
        self._view.note(f"results are in {root}, to be read from {page}")
        return status

    async def _one(self, plan: Plan, cluster: Cluster, described: dict[str, Any], bundle: Bundle) -> dict[str, Any]:
        """Runs one plan, removes what it made, and writes its bundle."""
        run = Run(plan, cluster, bundle, self._view, self._stopping, nodes=self._options.nodes)
        before = machine.hardware(bundle.folder)
        verdict: dict[str, Any] = {}
        stopped_by = None
        layout: dict[str, Any] = {}
        settings: dict[str, Any] = {}
        try:
            layout = await asyncio.to_thread(cluster.make, plan.topics, plan.variation.workload)
            brokers = [broker["id"] for broker in described["brokers"]]
            settings = await asyncio.to_thread(cluster.settings, plan.topics[0], brokers)
            verdict = await MODES[plan.variation.workload.mode](run)
        except Stopped:
            stopped_by = report.USER
            await run.stop("produce")
            await run.stop("consume")
        except KafkaError as error:
            stopped_by = str(error)
            await run.stop("produce")
            await run.stop("consume")
        finally:
            await _surely(self._clean_up(run, cluster))
        run.totals.finish()
        outcome = {"complete": stopped_by is None, "stoppedBy": stopped_by, "failure": verdict.get("failed")}
        summary = {
            **_title(plan),
            **outcome,
            "begun": run.began_ns / 1e9,
            "seconds": max(run.totals.newest + 1, 0),
            "countedSeconds": None if run.totals.counted == EVERY_SECOND else list(run.totals.counted),
            "verdict": verdict,
            "warnings": run.warnings,
            **run.totals.summary(),
        }
        self._write(plan, run, bundle, summary)
        bundle.json("hardware.json", {**before, "loadAfter": machine.hardware(bundle.folder)["load"]})
        bundle.json("brokers.json", {**described, "topics": layout, **settings})
        bundle.finish(run.began_ns / 1e9)
        self._view.end(_ended(summary))
        return outcome

    def _write(self, plan: Plan, run: Run, bundle: Bundle, summary: dict[str, Any]) -> None:
        bundle.text("workload.yaml", self._campaign.text)
        resolved = {"variation": plan.variation.values, "driver": plan.driver, **plan.variation.workload.to_json()}
        bundle.json("resolved.json", {**resolved, "driver": plan.driver})
        bundle.json("summary.json", summary)
        bundle.json("versions.json", {**machine.versions(), "workers": run.runtimes})
        bundle.table("series", SERIES, run.totals.series)
        bundle.table("latency", LATENCY, run.totals.latency)

    async def _clean_up(self, run: Run, cluster: Cluster) -> None:
        await run.kill()
        if self._options.keep_topics:
            return
        left = await asyncio.to_thread(cluster.remove, run.plan.topics, run.plan.groups, crashed=run.crashed)
        for sentence in left:
            run.warn(sentence)


async def _surely(work: Coroutine[Any, Any, None]) -> None:
    """Does something to its end, also when this task is cancelled meanwhile; that comes out afterwards."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError


def _title(plan: Plan) -> dict[str, Any]:
    workload = plan.variation.workload
    return {
        "name": workload.name,
        "description": workload.description,
        "variation": plan.variation.name,
        "driver": plan.driver,
        "mode": workload.mode,
    }


def _folder(plan: Plan) -> str:
    """A plan's name as that of a folder."""
    text = "-".join(part for part in (plan.variation.name, plan.driver) if part)
    return "".join(c if c.isalnum() or c in "-_.=" else "-" for c in text)[:120]


def _ended(summary: dict[str, Any]) -> str:
    if not summary["complete"]:
        return report.stopped(summary["stoppedBy"])
    delivery = summary["deliveryMs"]
    reported = {name: value for name, value in summary["verdict"].items() if isinstance(value, int | float | str)}
    numbers = ", ".join(f"{name} {v:,.1f}" if isinstance(v, float) else f"{name} {v}" for name, v in reported.items())
    return f"{numbers}; delivery p50 {delivery['p50']:,.2f} ms, p99 {delivery['p99']:,.2f} ms"
