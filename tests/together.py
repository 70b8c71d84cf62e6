"""Which tests stay together when several processes run them, and which of them run at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

SPARK: Final = "tests/spark/"
LONGEST: Final = (SPARK, "tests/demo/test_demo.py", "tests/lab/test_run.py", "tests/stock/test_kafka_python_suite.py")
"""What takes longest goes first, or one process would still be at it when the others have ended."""

HUNGRY: Final = (SPARK, "tests/demo/", "tests/lab/", "tests/rdma/", "tests/stock/test_java_tools.py", "benches/")
"""What takes all the processor time that it gets: JVMs, and whatever compiles or emulates a processor."""
HUNGRY_MAX: Final = 2
"""So many of them at once. More would starve the others, whose consumers miss their heartbeats."""


class Together(LoadFileScheduling):
    """Files as units, so that what they share is set up once: a session of Spark, a cluster, a run of the lab."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if unit := self._next_unit():
            self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)

    def _next_unit(self) -> str | None:
        units = [unit for unit in LONGEST if unit in self.workqueue]
        units += [unit for unit in self.workqueue if unit not in LONGEST]
        under_way = (unit for work in self.assigned_work.values() for unit in work if not all(work[unit].values()))
        if sum(unit.startswith(HUNGRY) for unit in under_way) >= HUNGRY_MAX:
            # Only the hungry are left: then they need not wait for each other.
            return next((unit for unit in units if not unit.startswith(HUNGRY)), units[0] if units else None)
        return units[0] if units else None
