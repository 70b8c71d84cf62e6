"""When faults are done: with a run that only writes down what it is asked for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from headrace.lab.faults import Fault, Faults


class Run:
    """Each worker takes until it is let go to come back."""

    t_s = 5.0
    nodes = None

    def __init__(self, *faults: Fault) -> None:
        self.workload = SimpleNamespace(faults=faults)
        self.view = SimpleNamespace(note=lambda _: None)
        self.asked: list[tuple[str, int]] = []
        self.back = asyncio.Event()

    async def crash_consumers(self, number: int, _down_s: float) -> None:
        self.asked.append(("crash", number))
        await self.back.wait()

    async def pause_consumers(self, number: int, _down_s: float) -> None:
        self.asked.append(("pause", number))


async def begun() -> None:
    """Lets everything run that does not wait."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_two_faults_of_one_process_are_done_one_after_the_other():
    async def main() -> None:
        run = Run(Fault("killConsumer", 1), Fault("pauseConsumer", 2), Fault("pauseConsumer", 3, worker=1))
        faults = Faults(run)
        doing = asyncio.ensure_future(faults.run())
        await begun()
        assert run.asked == [("crash", 0), ("pause", 1)]
        assert [fault["kind"] for fault in faults.done] == ["killConsumer", "pauseConsumer"]
        run.back.set()
        await doing
        assert run.asked[2:] == [("pause", 0)]
        assert all("endedSeconds" in fault for fault in faults.done)

    asyncio.run(main())
