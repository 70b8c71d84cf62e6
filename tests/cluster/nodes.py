"""Brokers of headrace that stand in for `ApacheNodes` in tests of leaders that move."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tests.cluster.processes import Node, etcd
from tests.kafka.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self


class HeadraceNode(Node):
    """One of the processes."""

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect."""
        return self.address

    def restart(self) -> None:
        """Starts it again on its folder, and waits until it serves."""
        self.start()


class HeadraceNodes(Nodes):
    """A running cluster of so many brokers beside an etcd; a context manager that kills them.

    It is set as `ApacheNodes` is: each broker has a rack of its own, and readers are sent to the copy in theirs.

    Args:
        folder: for their data and logs.
        count: how many.
        **overrides: brokers' settings, with underscores.
    """

    nodes: Sequence[HeadraceNode]

    def __init__(self, folder: Path, count: int, **overrides: str) -> None:
        self._folder, self._count, self._overrides = folder, count, overrides
        self._started = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            store = started.enter_context(etcd(self._folder))
            settings = {
                "replica.lag.time.max.ms": "2000",
                "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
                **{name.replace("_", "."): value for name, value in self._overrides.items()},
            }
            self.nodes = [
                HeadraceNode(
                    self._folder, f"etcd://{store.client}", number, settings | {"broker.rack": f"RACK{number}"}
                )
                for number in range(1, self._count + 1)
            ]
            for node in self.nodes:
                started.callback(node.kill)
                node.start()
            self._started = started.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._started.close()
