"""Faults of a correctness run: what is done to consumers and brokers, and when."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.errors import KafkaError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.lab.coordinator import Run

COMMAND_TIMEOUT_S: Final = 120.0
END_TIMEOUT_S: Final = 30.0
BOOTSTRAP_VARIABLE: Final = "HEADRACE_BOOTSTRAP"
DOWN_S: Final = 5.0

KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "killConsumer": ("worker", "downSeconds"),
    "pauseConsumer": ("worker", "downSeconds"),
    "killBroker": ("broker", "downSeconds"),
    "restartBroker": ("broker",),
    "moveLeaders": (),
    "command": ("command",),
}
"""Each kind and what it takes besides ``atSeconds`` and ``kind``."""

WORDS: Final[Mapping[str, str]] = {
    "killConsumer": "consumers {worker} killed",
    "pauseConsumer": "consumers {worker} paused",
    "killBroker": "broker {broker} killed",
    "restartBroker": "broker {broker} restarted",
    "moveLeaders": "leaders moved",
    "command": "command: {command}",
}
"""Each kind as a page tells it."""

OF_NODES: Final = frozenset({"killBroker", "restartBroker"})


@dataclass(frozen=True)
class Fault:
    """One of them."""

    kind: str
    at_s: float
    down_s: float = DOWN_S
    worker: int = 0
    broker: int = 1
    command: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a workload file has it."""
        named = {"downSeconds": self.down_s, "worker": self.worker, "broker": self.broker, "command": self.command}
        return {"atSeconds": self.at_s, "kind": self.kind, **{name: named[name] for name in KINDS[self.kind]}}

    @property
    def words(self) -> str:
        """What it is, for a reader."""
        return WORDS[self.kind].format(worker=self.worker, broker=self.broker, command=self.command)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Fault:
        """What `to_json` wrote."""
        names = {"downSeconds": "down_s", "worker": "worker", "broker": "broker", "command": "command"}
        more = {names[name]: given[name] for name in KINDS[given["kind"]]}
        return cls(given["kind"], given["atSeconds"], **more)


class Process(Protocol):
    """A process that can be asked to end."""

    def terminate(self) -> None:
        """Asks it to."""

    def wait(self, timeout: float) -> int:
        """Waits until it has."""


class Node(Protocol):
    """A broker that the lab has started."""

    process: Process | None

    def kill(self) -> None:
        """Ends it as a crash would."""

    def restart(self) -> None:
        """Starts it again, on its data and port; returns when it serves."""


class Nodes(Protocol):
    """The brokers that the lab has started."""

    @property
    def nodes(self) -> Sequence[Node]:
        """By number, from 1."""

    def revive(self) -> None:
        """Starts what was killed."""


class Faults:
    """Does the faults of a run at their times."""

    def __init__(self, run: Run) -> None:
        """Raises UsageError where the run's cluster is not one for its faults."""
        self._run = run
        self._nodes = run.nodes
        self._standing: dict[tuple[str, int], asyncio.Lock] = defaultdict(asyncio.Lock)
        """By process of consumers, and by broker: held while it is down, or is started again."""
        self.done: list[dict[str, Any]] = []
        for fault in run.workload.faults:
            if fault.kind in OF_NODES and (self._nodes is None or fault.broker > len(self._nodes.nodes)):
                sentence = f"faults: {fault.kind} is of a broker of the lab's own: --kafka {fault.broker} or more"
                raise UsageError(sentence)

    async def run(self) -> None:
        """Does them all; returns when the last has ended.

        Raises:
            KafkaError: one cannot be done.
        """
        doing = [asyncio.ensure_future(self._one(fault)) for fault in self._run.workload.faults]
        try:
            await asyncio.gather(*doing)
        finally:
            for task in doing:
                task.cancel()
            await asyncio.gather(*doing, return_exceptions=True)
            if self._nodes is not None:
                await asyncio.to_thread(self._nodes.revive)

    async def _one(self, fault: Fault) -> None:
        await asyncio.sleep(max(fault.at_s - self._run.t_s, 0))
        takes = KINDS[fault.kind]
        if "worker" in takes or "broker" in takes:
            process = ("worker", fault.worker) if "worker" in takes else ("broker", fault.broker)
            # One that is being started again for another fault has to stand before it can fall.
            async with self._standing[process]:
                await self._do(fault)
        else:
            await self._do(fault)

    async def _do(self, fault: Fault) -> None:
        run = self._run
        reported = {**fault.to_json(), "beganSeconds": round(run.t_s, 3)}
        self.done.append(reported)
        run.view.note(f"fault: {fault.kind}")
        if fault.kind == "killConsumer":
            await run.crash_consumers(fault.worker, fault.down_s)
        elif fault.kind == "pauseConsumer":
            await run.pause_consumers(fault.worker, fault.down_s)
        elif fault.kind == "moveLeaders":
            await asyncio.to_thread(run.cluster.move_leaders, run.plan.topics)
        elif fault.kind == "command":
            await asyncio.to_thread(_command, fault.command, run.cluster.bootstrap)
        else:
            assert self._nodes is not None  # noqa: S101  (as was checked)
            await self._broker(self._nodes.nodes[fault.broker - 1], fault)
        reported["endedSeconds"] = round(run.t_s, 3)

    @staticmethod
    async def _broker(node: Node, fault: Fault) -> None:
        if fault.kind == "killBroker":
            await asyncio.to_thread(node.kill)
            await asyncio.sleep(fault.down_s)
        else:
            await asyncio.to_thread(_end, node)
        try:
            await asyncio.to_thread(node.restart)
        except RuntimeError as error:
            sentence = f"faults: broker {fault.broker} does not come back: {error}"
            raise KafkaError(sentence, name="FAULT_FAILED") from None


def _end(node: Node) -> None:
    """Has a broker end by itself, and hand its leaders over; one that does not is killed by its restart."""
    if node.process is not None:
        node.process.terminate()
        try:
            node.process.wait(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return


def _command(command: str, bootstrap: str) -> None:
    environment = {**os.environ, BOOTSTRAP_VARIABLE: bootstrap}
    try:
        done = subprocess.run(  # noqa: S602  (it is the user's own, and a shell's)
            command, shell=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise KafkaError(f"faults: {command!r} took over {COMMAND_TIMEOUT_S:.0f} s", name="FAULT_FAILED") from None
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-500:]
        raise KafkaError(f"faults: {command!r} ended with {done.returncode}: {said}", name="FAULT_FAILED")
