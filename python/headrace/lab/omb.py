"""Workload files of the OpenMessaging Benchmark: their fields under our names and units.

Names that both have in common (``topics``, ``messageSize``, ``producerRate``, …) mean the same and are not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from yaml.nodes import Node

    from headrace.lab.nodes import Reader

RENAMED: Final = {
    "keyDistributor": "messageDistributor",
    "testDurationMinutes": "testDurationSeconds",
    "warmupDurationMinutes": "warmupDurationSeconds",
    "consumerBacklogSizeGB": "backlogRecords",
}
"""Their name to ours."""

IGNORED: Final = frozenset({"backlogDrainRatio"})
"""Fields that change nothing: a backlog is always drained to its end here."""

FOREIGN: Final = {
    "tpcHFilesUrl": "TPC-H data is not sent here",
    "tpcHFiles": "TPC-H data is not sent here",
}
"""Fields that cannot be followed, and why."""


def minutes(reader: Reader, node: Node, field: str) -> float:
    """A duration in minutes, as seconds."""
    return reader.number(node, field, 0, 14_400) * 60


def backlog_bytes(reader: Reader, node: Node, field: str) -> float:
    """A backlog in GB, as bytes."""
    return reader.number(node, field, 0, 100_000) * 1e9
