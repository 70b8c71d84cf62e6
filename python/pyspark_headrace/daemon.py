"""Spark's daemon of Python workers, but for the traceback of results that nobody wants any more.

``take``, ``show`` and ``limit`` end when they have enough rows, and a query ends when it is stopped. Spark then closes
the sockets of tasks that are still at work, and each of their workers fails to flush what is left. Spark's daemon
prints that as a traceback which ends in `BrokenPipeError`, though nothing is wrong. Everything else it prints as ever.

To use it: ``spark.python.daemon.module=pyspark_headrace.daemon``, as `headrace.spark.session` has it. Workers that plan
for the driver come from Spark's own daemon whatever that setting says: `unread.settle_worker` does the same in those.

Workers are forks of the daemon, so it must not start a thread: nothing is imported here but Spark's own daemon.
"""

from __future__ import annotations

from pyspark import daemon

from pyspark_headrace.unread import quieten


def main() -> None:
    """Runs Spark's daemon."""
    quieten(daemon)
    daemon.manager()


if __name__ == "__main__":
    main()
