"""Apache Kafka as several processes: node 1 is controller and broker, the others are brokers."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Protocol

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.kafka.apache import PROPERTIES, ApacheKafka, format_data, free_ports, new_id

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

TIMEOUT_SECONDS = 120

# The sessions of dead brokers end soon, and readers are sent to the replica in their rack. Node 1 is never killed: with
# replicas everywhere, coordinators survive the others.
SETTINGS = """
node.id={number}
broker.rack=RACK{number}
replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector
replica.lag.time.max.ms=2000
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
offsets.topic.replication.factor={count}
share.coordinator.state.topic.replication.factor={count}
group.share.min.session.timeout.ms=3000
group.share.min.heartbeat.interval.ms=500
"""

BROKER_ALONE = """
process.roles=broker
listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
"""


class Node(ApacheKafka):
    """One of the processes."""

    def __init__(
        self, number: int, count: int, cluster: str, first: Node | None, *, heap: str, quick: bool, **overrides: str
    ) -> None:
        super().__init__(heap=heap, quick=quick, **overrides)
        self.number = number
        self.count = count
        self.cluster = cluster
        self.first = first
        self.controller = 0

    def _start_once(self) -> None:
        if self.first is None:
            self.port, self.controller = free_ports(2)
        else:
            [self.port], self.controller = free_ports(1), self.first.controller
        settings = PROPERTIES.format(port=self.port, controller=self.controller, data=self.data, node=1)
        settings += SETTINGS.format(number=self.number, count=self.count)
        if self.first is not None:
            settings += BROKER_ALONE.format(port=self.port)
        settings += "".join(f"{name.replace('_', '.')}={value}\n" for name, value in self.overrides.items())
        properties = self.directory / "server.properties"
        properties.write_text(settings, encoding="utf-8")
        format_data(self.data, properties, self.cluster, self.number)
        self._launch()


class Server(Protocol):
    """One broker of several, in a process of its own."""

    process: subprocess.Popen[bytes] | None
    port: int

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect."""

    def kill(self) -> None:
        """Ends it as a crash does."""

    def restart(self) -> None:
        """Starts it again on its folder, and waits until it serves."""


class Nodes:
    """Several brokers of one cluster, whichever they are."""

    nodes: Sequence[Server]

    def node(self, number: int) -> Server:
        """A node by its id."""
        return self.nodes[number - 1]

    def revive(self) -> None:
        """Restarts whatever was killed."""
        for node in self.nodes:
            if node.process is None:
                node.restart()

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect: node 1."""
        return self.nodes[0].bootstrap_servers

    def create_topic(self, name: str, replicas: Sequence[Sequence[int]], config: Mapping[str, str]) -> None:
        """Makes a topic whose partitions have replicas on these nodes, the leader first; waits for all of them."""
        new = NewTopic(name, len(replicas), replica_assignment=[list(nodes) for nodes in replicas], config=dict(config))
        until(lambda: len(self._admin().list_topics(timeout=10).brokers) == len(self.nodes))
        admin = self._admin()
        admin.create_topics([new])[name].result(TIMEOUT_SECONDS)
        self.wait_in_sync(name, [sorted(nodes) for nodes in replicas])

    def wait_in_sync(self, name: str, nodes: Sequence[Sequence[int]]) -> None:
        """Waits until the replicas of each partition that are in sync are these."""

        def found() -> list[list[int]]:
            partitions = self._admin().list_topics(name, timeout=10).topics[name].partitions
            return [sorted(partitions[number].isrs) for number in sorted(partitions)]

        until(lambda: found() == [list(one) for one in nodes])

    def wait_leader(self, name: str, partition: int, node: int) -> None:
        """Waits until a partition is led by this node."""

        def leader() -> int | None:
            partitions = self._admin().list_topics(name, timeout=10).topics[name].partitions
            return partitions[partition].leader if partition in partitions else None

        until(lambda: leader() == node)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})


class ApacheNodes(Nodes):
    """A running cluster of `count` nodes; a context manager that kills them and removes their data.

    Args:
        count: how many.
        heap, quick: as of `ApacheKafka`.
        advertised: ports of loopback where clients are to connect, one for each node; by default its own.
        **overrides: brokers' settings, with underscores.
    """

    def __init__(
        self,
        count: int,
        *,
        heap: str = "256m",
        quick: bool = True,
        advertised: Sequence[int] | None = None,
        **overrides: str,
    ) -> None:
        def node(number: int, first: Node | None) -> Node:
            own = {}
            if advertised is not None:
                own["advertised_listeners"] = f"PLAINTEXT://127.0.0.1:{advertised[number - 1]}"
            return Node(number, count, cluster, first, heap=heap, quick=quick, **overrides, **own)

        cluster = new_id()
        first = node(1, None)
        self.nodes: Sequence[Node] = [first, *(node(number, first) for number in range(2, count + 1))]
        self.started = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            for node in self.nodes:
                started.enter_context(node)
            self.started = started.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.started.close()


def until(done: Callable[[], bool], timeout: float = TIMEOUT_SECONDS) -> None:
    """Waits until `done()`; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} s")
        time.sleep(0.1)
