"""Two nodes of Apache Kafka, of which the second can be made to stop answering."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.kafka import java
from tests.kafka.apache import ApacheKafka, free_ports
from tests.kafka.cluster import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A node that was stopped stays the leader of its partitions for so long: what is measured is a broker that does not
# answer, not one that was replaced.
SESSION_TIMEOUT_MS = 120_000
DELETE_DELAY_MS = 200


def properties(file: Path) -> dict[str, str]:
    """A file of `name=value` lines."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


class SecondNode(ApacheKafka):
    """A broker that joins the cluster of `first`, which is broker and controller."""

    def __init__(self, first: ApacheKafka, *, heap: str = "512m", quick: bool = True) -> None:
        super().__init__(heap=heap, quick=quick)
        self.first = first

    def _start_once(self) -> None:
        self.port = free_ports(1)[0]
        listener = f"PLAINTEXT://127.0.0.1:{self.port}"
        settings = properties(self.first.directory / "server.properties")
        settings |= {
            "process.roles": "broker",
            "node.id": "2",
            "listeners": listener,
            "advertised.listeners": listener,
            "log.dirs": str(self.data),
        }
        file = self.directory / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        cluster = properties(self.first.data / "meta.properties")["cluster.id"]
        java.run("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(file), "--no-initial-controllers")
        self._launch()

    @property
    def pid(self) -> int:
        """Its process, for signals."""
        assert self.process is not None
        return self.process.pid


class TwoNodes:
    """The cluster.

    SIGSTOP makes the second node one that takes connections, as its kernel does that, and answers nothing; SIGCONT
    ends that.
    """

    def __init__(self, first: ApacheKafka, second: SecondNode) -> None:
        self.first = first
        self.second = second

    def create_topic(self, name: str) -> str:
        """A topic of two partitions: 0 on the first node, 1 on the second. Gives its name."""
        admin = self._admin()
        new = NewTopic(name, num_partitions=2, replica_assignment=[[1], [2]])
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            # The second node serves some time before the controller counts it in.
            try:
                admin.create_topics([new], operation_timeout=TIMEOUT_SECONDS)[name].result(TIMEOUT_SECONDS)
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                break
        return name

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, as its records take memory; the disks have settled when this returns."""
        admin = self._admin()
        admin.delete_topics([name], operation_timeout=TIMEOUT_SECONDS)[name].result(TIMEOUT_SECONDS)
        time.sleep(2 * DELETE_DELAY_MS / 1000)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.first.bootstrap_servers, "log_level": 4})


@contextlib.contextmanager
def two_nodes(*, heap: str = "512m", quick: bool = True) -> Iterator[TwoNodes]:
    """Starts both; the end kills them."""
    session, delay = str(SESSION_TIMEOUT_MS), str(DELETE_DELAY_MS)
    settings = {"broker_session_timeout_ms": session, "log_segment_delete_delay_ms": delay}
    with (
        ApacheKafka(heap=heap, quick=quick, **settings) as first,
        SecondNode(first, heap=heap, quick=quick) as second,
    ):
        yield TwoNodes(first, second)
