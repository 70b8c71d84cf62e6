"""Which tests stay together when several processes run them, and which processes run those that wait for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadFileScheduling

from tests.polite import POLITE

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

SPARK: Final = "tests/spark/"
LONGEST: Final = (SPARK, "tests/demo/test_demo.py", "tests/lab/test_run.py", "tests/stock/test_kafka_python_suite.py")
"""What takes longest goes first, or one process would still be at it when the others have ended."""

HUNGRY: Final = (
    *(SPARK, "tests/demo/", "tests/lab/", "tests/rdma/", "tests/stock/test_java_tools.py", "benches/"),
    *("tests/broker/test_fair_share.py", "tests/broker/test_open_files.py"),
)
"""What takes all the processor time that it gets: JVMs, floods, and whatever compiles or emulates a processor.

It is for the processes that are polite.
"""


class Together(LoadFileScheduling):
    """Files as units, so that what they share is set up once: a session of Spark, a cluster, a run of the lab."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Gives what a process that died had still to do to the others.

        xdist gives them its finished files too. Whoever gets one has nothing to do, reports nothing, and so gets
        nothing more: the run would never end.
        """
        # xdist asks twice about a process that dies while it ends.
        if node in self.assigned_work:
            files = self.assigned_work[node]
            self.assigned_work[node] = {name: tests for name, tests in files.items() if not all(tests.values())}
        was_running: str | None = super().remove_node(node)
        return was_running

    def _assign_work_unit(self, node: WorkerController) -> None:
        units = [*(unit for unit in LONGEST if unit in self.workqueue), *self.workqueue]
        polite = len(self.nodes) <= len(POLITE) or node.gateway.id in POLITE
        # When their own kind is done, all take what is left.
        units.sort(key=lambda unit: unit.startswith(HUNGRY) != polite)
        if units:
            self.workqueue.move_to_end(units[0], last=False)
        super()._assign_work_unit(node)
