"""Which tests stay together when several processes run them: those of a file, and all of Spark's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

SPARK: Final = "tests/spark/"
LONGEST: Final = (SPARK, "tests/demo/test_demo.py", "tests/lab/test_run.py", "tests/stock/test_kafka_python_suite.py")
"""What takes longest goes first, or one process would still be at it when the others have ended."""


class Together(LoadFileScheduling):
    """Files as units, so that what they share is set up once: a session of Spark, a cluster, a run of the lab."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        longest = next((unit for unit in LONGEST if unit in self.workqueue), None)
        if longest is not None:
            self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)
