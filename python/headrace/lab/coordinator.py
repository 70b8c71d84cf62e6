"""A run: workers started, steered by the mode, added up; and what is left of it is removed, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import KafkaError, KafkaTimeoutError, UsageError
from headrace.lab.protocol import Assigned, Done, Failed, Prepare, Rate, Ready, Second, SetWork, Start, Stop
from headrace.lab.schedule import Schedule
from headrace.lab.totals import Totals
from headrace.lab.worker.drivers import ALONE
from headrace.lab.workers import END_TIMEOUT_S, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.lab.bundle import Bundle
    from headrace.lab.campaign import Variation
    from headrace.lab.cluster import Cluster
    from headrace.lab.faults import Nodes
    from headrace.lab.judge import Judge
    from headrace.lab.protocol import FromWorker, ToWorker
    from headrace.lab.view import View

READY_TIMEOUT_S: Final = 60.0
SILENT_S: Final = 30.0
HEAD_START_S: Final = 0.3
STEP_S: Final = 0.25
SETTLED_S: Final = 6.0
"""A group that does not tell, or whose partitions have not moved for so long, is taken as it is.

Members of a share group learn of their partitions with their second heartbeat, after five seconds.
"""

WARNINGS_MAX: Final = 100
BACKLOG_PRODUCER: Final = 60_000
"""The number of the first producer of a backlog: its records are told apart from those of the producers."""


class Stopped(Exception):  # noqa: N818  (the user's wish, no error)
    """The user has had enough."""


@dataclass
class Stopping:
    """Whether the user has asked to stop."""

    asked: bool = False


@dataclass(frozen=True)
class Plan:
    """What is run: a variation, with one client, against a cluster."""

    variation: Variation
    driver: str
    run: str
    """Part of the names of topics and groups."""

    @property
    def title(self) -> str:
        """As the user sees it."""
        parts = (self.variation.workload.name, self.variation.name, self.driver)
        return " · ".join(part for part in parts if part)

    @property
    def topics(self) -> list[str]:
        """Its topics."""
        return [f"{self.run}-{number}" for number in range(self.variation.workload.topics)]

    @property
    def groups(self) -> list[str]:
        """Its groups."""
        workload = self.variation.workload
        count = workload.subscriptions_per_topic if workload.consumer_per_subscription else 0
        return [f"{self.run}-group-{number}" for number in range(count)]


class Run:
    """Workers of one plan. The methods up to `warn` are for the modes."""

    def __init__(
        self,
        plan: Plan,
        cluster: Cluster,
        bundle: Bundle,
        view: View,
        stopping: Stopping,
        *,
        nodes: Nodes | None = None,
    ) -> None:
        """`nodes` are the cluster's brokers, if the lab has started them."""
        self.plan = plan
        self.workload = plan.variation.workload
        self.view = view
        self.totals = Totals(plan.driver, bundle, groups=len(plan.groups))
        self.began_ns = 0
        self.warnings: list[str] = []
        self.progress: Callable[[], tuple[float | None, float | None]] = lambda: (None, None)
        self.runtimes: dict[str, dict[str, str]] = {}
        self.cluster = cluster
        self.bundle = bundle
        self.nodes = nodes
        self.judge: Judge | None = None
        """Set before there are workers, it is given their journals."""
        self._stopping = stopping
        self._workers: dict[str, WorkerProcess] = {}
        self._places: list[str] = []
        self._lives: dict[str, int] = defaultdict(int)
        self._asked: dict[str, Prepare] = {}
        self._roles: dict[str, str] = {}
        self._groups: dict[str, str] = {}
        self._ready: set[str] = set()
        self._assigned: dict[str, Assigned] = {}
        self._assigned_at = 0.0
        self._heard: dict[str, float] = {}
        self._told: dict[str, int] = {}
        self._shown = -1
        self._trouble: KafkaError | None = None
        self._changed = asyncio.Event()

    # What modes call.

    async def backlog(self) -> None:
        """Writes the backlog, by headrace whatever the driver, as fast as it can."""
        workload = self.workload
        if not workload.backlog_records:
            return
        self.view.note(f"writing a backlog of {workload.backlog_records:,} records")
        members = [BACKLOG_PRODUCER + number for number in range(workload.topics)]
        name = await self._worker("backlog", "backlog", "headrace", members, records=workload.backlog_records)
        await self._all_ready([name])
        began = time.monotonic()
        await self._workers[name].say(Start(at_ns=time.time_ns()))
        await self.until(lambda: self._workers[name].done)
        written = self.totals.backlog_written
        if written < workload.backlog_records:
            raise KafkaTimeoutError(f"the backlog has {written:,} of {workload.backlog_records:,} records")
        rate = written / max(time.monotonic() - began, 1e-3)
        self.view.note(f"a backlog of {written:,} records is written, {rate:,.0f} a second")

    async def producers(self, *, waiting: bool = False) -> None:
        """Starts the producers' workers; they wait for `start`, and with `waiting` for a first `rate` as well."""
        if waiting:
            self.workload = self.workload.replaced(producer_rate_schedule=Schedule.constant(0))
        count = self.workload.topics * self.workload.producers_per_topic
        parts = count if self.plan.driver in ALONE else min(count, 1)
        names = []
        for part in range(parts):
            members = [part] if parts > 1 else list(range(count))
            names.append(
                await self._worker(
                    f"producers-{part}", "produce", self.plan.driver, members, first=members[0], of=count
                )
            )
        await self._all_ready(names)

    async def consumers(self, *, wait: bool = True, distinct: bool = False) -> None:
        """Starts the consumers' workers; with `wait` returns when the groups have all their partitions."""
        per_group = self.workload.consumer_per_subscription
        parts = per_group if self.plan.driver in ALONE else min(self.workload.workers, per_group)
        names = []
        for number, group in enumerate(self.plan.groups):
            # Java's worker does it itself.
            if self.workload.group_config and self.plan.driver != "java":
                await asyncio.to_thread(self.cluster.set_group, group, dict(self.workload.group_config))
            members = [number * per_group + m for m in range(per_group)]
            for part in range(parts):
                name = f"consumers-{number}-{part}"
                self._groups[name] = group
                self._places.append(name)
                own = members[part::parts]
                names.append(await self._worker(name, "consume", self.plan.driver, own, group=group, distinct=distinct))
                if not wait:
                    await self._workers[name].say(Start(at_ns=self.began_ns))
        await self._all_ready(names)
        if wait:
            await self._limited(self._all_assigned, "the groups to have all partitions")

    def _consumer(self, number: int) -> str:
        """The name of the consumers' process with this number; one in the place of another has its number.

        Raises:
            UsageError: there is none.
        """
        if number >= len(self._places):
            raise UsageError(f"faults: worker {number}: the consumers have {len(self._places)} processes, from 0")
        base = self._places[number]
        return f"{base}~{self._lives[base]}" if base in self._lives else base

    @property
    def crashed(self) -> bool:
        """Whether consumers were killed."""
        return bool(self._lives)

    async def crash_consumers(self, number: int, down_s: float) -> None:
        """Kills a process with consumers as a crash would, and starts another in its place."""
        name = self._consumer(number)
        worker, asked = self._workers.pop(name), self._asked.pop(name)
        role, group = self._roles.pop(name), self._groups.pop(name)
        for known in (self._told, self._assigned, self._heard):
            known.pop(name, None)
        await worker.kill()
        await asyncio.sleep(down_s)
        base = name.partition("~")[0]
        self._lives[base] += 1
        again = f"{base}~{self._lives[base]}"
        self._groups[again] = group
        await self._launch(again, role, worker.driver, asked)
        await self._all_ready([again])
        await self._workers[again].say(Start(at_ns=self.began_ns))

    async def pause_consumers(self, number: int, down_s: float) -> None:
        """Stops a process with consumers for a while, as a machine that stands still would."""
        name = self._consumer(number)
        worker = self._workers[name]
        self._heard[name] = time.monotonic() + down_s
        worker.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(down_s)
        finally:
            worker.signal(signal.SIGCONT)

    async def start(self) -> None:
        """Begins: the clock, and all workers that wait."""
        self.clock(time.time_ns() + int(HEAD_START_S * 1e9))
        await self._to("produce", Start(at_ns=self.began_ns))
        await self._to("consume", Start(at_ns=self.began_ns))

    async def start_producers(self) -> None:
        """Begins with the producers alone, by the clock that is set."""
        await self._to("produce", Start(at_ns=self.began_ns))

    def clock(self, at_ns: int) -> None:
        """Sets when second 0 begins."""
        self.began_ns = at_ns
        for name in self._workers:
            self._heard[name] = time.monotonic() + HEAD_START_S

    @property
    def complete(self) -> int:
        """The last second that all workers have told of; -1 before."""
        return min(self._told.values(), default=self.totals.newest)

    @property
    def t_s(self) -> float:
        """Seconds since the begin."""
        return (time.time_ns() - self.began_ns) / 1e9

    async def until(self, condition: Callable[[], bool] = lambda: False, t_s: float | None = None) -> bool:
        """Waits until a condition holds (True), or the run's clock shows `t_s` (False).

        Raises:
            Stopped: the user has asked to stop.
            KafkaError: a worker has failed.
        """
        while True:
            if self._stopping.asked:
                raise Stopped
            if self._trouble is not None:
                raise self._trouble
            if condition():
                return True
            left = STEP_S if t_s is None else t_s - self.t_s
            if left <= 0:
                return False
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(left, STEP_S))
            self._watch()

    async def rate(self, schedule: Schedule | None, at_ns: int | None = None) -> None:
        """Gives the producers another schedule."""
        given = None if schedule is None else schedule.to_json()
        await self._to("produce", Rate(at_ns=at_ns or time.time_ns(), schedule=given))

    async def work(self, min_ms: float, max_ms: float) -> None:
        """Gives the consumers other work."""
        await self._to("consume", SetWork(min_ms=min_ms, max_ms=max_ms))

    async def stop(self, role: str) -> None:
        """Ends the workers of a role, well."""
        await self._to(role, Stop())
        ending = [worker for name, worker in self._workers.items() if self._roles[name] == role]
        late = []
        for worker in ending:
            if not await worker.wait(END_TIMEOUT_S):
                late.append(worker.name)
                await worker.kill()
        if late:
            self.warn(f"did not end within {END_TIMEOUT_S:.0f} s and were killed: {', '.join(late)}")

    async def kill(self) -> None:
        """Ends all workers at once."""
        for worker in list(self._workers.values()):
            await worker.kill()

    def warn(self, text: str) -> None:
        """Tells the user, and the bundle."""
        if text not in self.warnings and len(self.warnings) < WARNINGS_MAX:
            self.warnings.append(text)
            self.view.note(text)

    # What workers say.

    def _hear(self, worker: WorkerProcess, message: FromWorker | None) -> None:
        if self._workers.get(worker.name) is not worker:
            return  # it was crashed, and another is in its place
        self._heard[worker.name] = time.monotonic()
        self._changed.set()
        try:
            self._take(worker, message)
        except (TypeError, ValueError, LookupError) as error:
            # A message whose fields are not what they should be; a driver may be anybody's.
            self._trouble = self._trouble or worker.failure(f"what it tells cannot be used: {error!r}")

    def _take(self, worker: WorkerProcess, message: FromWorker | None) -> None:
        name = worker.name
        if message is None:
            if not worker.done:
                self._trouble = self._trouble or worker.failure()
        elif isinstance(message, Ready):
            self._ready.add(name)
            self.runtimes[name] = {"version": message.version, "runtime": message.runtime}
        elif isinstance(message, Assigned):
            self._assigned[name] = message
            self._assigned_at = time.monotonic()
        elif isinstance(message, Second):
            self._second(name, message)
        elif isinstance(message, Failed):
            self._trouble = self._trouble or worker.failure(message.why)
        elif isinstance(message, Done):
            self._told.pop(name, None)

    def _second(self, name: str, second: Second) -> None:
        role = self._roles[name]
        for error in second.errors:
            self.warn(f"{name}: {error}")
        if role == "backlog":
            self.totals.backlog_written += sum(row[3] for row in second.counts)
            return
        self.totals.take(name, role, second)
        self._told[name] = second.n
        if (complete := self.complete) > self._shown:
            self._shown = complete
            self.view.second(self.totals.snapshot(complete, *self.progress()))

    def _watch(self) -> None:
        """A worker that tells nothing for long has failed; one that is not ready yet has its own limit."""
        if not self.began_ns or time.time_ns() < self.began_ns:
            return
        for name, worker in self._workers.items():
            if name not in self._ready:
                continue
            silent = time.monotonic() - self._heard.get(name, time.monotonic())
            if not worker.ended and silent > SILENT_S:
                self._trouble = self._trouble or worker.failure(f"has told nothing for {silent:.0f} s")

    # Workers.

    async def _worker(self, name: str, role: str, driver: str, members: list[int], **more: Any) -> str:
        asked = Prepare(
            run=self.plan.run,
            role="consume" if role == "consume" else "produce",
            driver=driver,
            bootstrap=self.cluster.bootstrap,
            workload=self.workload.to_json(),
            topics=self.plan.topics,
            members=members,
            **more,
        )
        await self._launch(name, role, driver, asked)
        return name

    async def _launch(self, name: str, role: str, driver: str, asked: Prepare) -> None:
        worker = WorkerProcess(name, driver, self.bundle.folder / "logs" / f"{name}.log", self._hear)
        if self.judge is not None:
            journal = self.bundle.journals / f"{name}.events"
            asked = replace(asked, journal=str(journal.absolute()))
            self.judge.watch(journal, asked.group)
        self._workers[name], self._roles[name], self._asked[name] = worker, role, asked
        self._heard[name] = time.monotonic()
        if role != "backlog":
            self._told[name] = -1
        await worker.start()
        await worker.say(asked)

    async def _to(self, role: str, message: ToWorker) -> None:
        for worker in [worker for name, worker in self._workers.items() if self._roles[name] == role]:
            if not worker.ended:
                await worker.say(message)

    async def _all_ready(self, names: list[str]) -> None:
        await self._limited(lambda: self._ready.issuperset(names), "workers to be ready")

    def _all_assigned(self) -> bool:
        """Whether each group has all partitions and no member waits for one, as far as its members tell."""
        wanted = self.workload.topics * self.workload.partitions_per_topic
        held = dict.fromkeys(self.plan.groups, 0)
        holding = dict.fromkeys(self.plan.groups, 0)
        unknown = False
        for name, group in self._groups.items():
            reported = self._assigned.get(name)
            if reported is None:
                return False
            unknown |= reported.partitions is None
            held[group] += wanted if reported.partitions is None else reported.partitions
            holding[group] += reported.holding
        if any(count < wanted for count in held.values()):
            return False
        # A group's first member has all until the others are in. An assignor may leave some without for good.
        fair = min(self.workload.consumer_per_subscription, wanted)
        return (
            not unknown and all(count >= fair for count in holding.values())
        ) or time.monotonic() - self._assigned_at > SETTLED_S

    async def _limited(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + READY_TIMEOUT_S
        if not await self.until(lambda: condition() or time.monotonic() > end) or not condition():
            raise KafkaTimeoutError(f"waited {READY_TIMEOUT_S:.0f} s for {what}")
