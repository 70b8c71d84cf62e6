"""Members of a group, each polled by a thread of its own: ours, librdkafka's, kafka-python's and Kafka's own."""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import kafka
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

import headrace as hr
from tests.kafka import java

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from tests.kafka.cluster import Cluster

PARTITIONS = 6
EACH = 50
EVERYTHING = [(p, at) for p in range(PARTITIONS) for at in range(EACH)]
Partition = tuple[str, int]
JAVA_MEMBER = Path(__file__).resolve().parent / "JavaMember.java"


def fill(cluster: Cluster, topic: str) -> None:
    """A topic of six partitions with 50 records each."""
    cluster.create_topic(topic, PARTITIONS)
    with hr.Producer(cluster.bootstrap_servers) as producer:
        for i in range(PARTITIONS * EACH):
            producer.send(topic, str(i // PARTITIONS).encode(), partition=i % PARTITIONS)


class Member:
    """What it has, what it read, and what it died of."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.rows: list[tuple[int, int]] = []
        self.polled_at: dict[tuple[int, int], int] = {}
        """When a row came first, in nanoseconds of the monotonic clock; kept by Kafka's own members and ours."""
        self.error: BaseException | None = None
        self.may_fail = False
        """Then its error is awaited, instead of failing whoever waits for something else."""
        self._over = False
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                self.poll()
        except BaseException as error:  # noqa: BLE001 -- `eventually` raises it
            self.error = error

    def poll(self) -> None:
        """Takes what is there, or waits a little."""
        raise NotImplementedError

    def assigned(self) -> set[Partition]:
        """What it has."""
        raise NotImplementedError

    def close(self) -> None:
        """Leaves the group; a second call does nothing."""
        if not self._over:
            self._over = True
            self._ends.set()
            self._thread.join()
            self.consumer.close()


class Ours(Member):
    """A member of ours, and what its listener was told."""

    def __init__(
        self, cluster: Cluster, topic: str, subscription: re.Pattern[str] | list[str] | None = None, **options: Any
    ) -> None:
        self.reported: list[tuple[str, set[Partition]]] = []
        consumer = hr.Consumer(
            cluster.bootstrap_servers, group_id=f"g-{topic}", auto_offset_reset="earliest", **options
        )
        consumer.subscribe(
            [topic] if subscription is None else subscription,
            on_assigned=lambda partitions: self.reported.append(("assigned", {tuple(p) for p in partitions})),
            on_revoked=lambda partitions: self.reported.append(("revoked", {tuple(p) for p in partitions})),
        )
        super().__init__(consumer)

    def poll(self) -> None:
        batch = self.consumer.poll(0.1, max_records=7)
        rows = list(zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True))
        self.polled_at = dict.fromkeys(rows, time.monotonic_ns()) | self.polled_at
        self.rows += rows

    def assigned(self) -> set[Partition]:
        return {tuple(p) for p in self.consumer.assignment()}


class Theirs(Member):
    """One whose assignment only its own thread may ask for."""

    _assigned: set[Partition] = set()  # noqa: RUF012 -- replaced, not changed

    def poll(self) -> None:
        self.take()
        self._assigned = {(p.topic, p.partition) for p in self.consumer.assignment()}

    def take(self) -> None:
        """Takes what is there, or waits a little."""
        raise NotImplementedError

    def assigned(self) -> set[Partition]:
        return self._assigned


class Confluent(Theirs):
    """A member of librdkafka's."""

    def __init__(self, cluster: Cluster, topic: str, **options: Any) -> None:
        settings = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": f"g-{topic}",
            "auto.offset.reset": "earliest",
        }
        settings |= {name.replace("_", "."): value for name, value in options.items()}
        consumer = confluent_kafka.Consumer(settings)
        consumer.subscribe([topic])
        super().__init__(consumer)

    def take(self) -> None:
        message = self.consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            self.rows.append((message.partition(), message.offset()))


class KafkaPython(Member):
    """A member of kafka-python's, with its sticky assignor.

    A poll that ends while it joins can leave it without heartbeats for good (3.0.12), so its polls are long.
    """

    def __init__(self, cluster: Cluster, topic: str, **options: Any) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=cluster.bootstrap_servers,
            group_id=f"g-{topic}",
            auto_offset_reset="earliest",
            partition_assignment_strategy=[StickyPartitionAssignor],
            **options,
        )
        # Metadata that comes while it assigns as leader starts no new round, so it is to know the topic before.
        assert consumer.partitions_for_topic(topic)
        consumer.subscribe([topic])
        super().__init__(consumer)

    def poll(self) -> None:
        for records in self.consumer.poll(timeout_ms=3000).values():
            self.rows += [(record.partition, record.offset) for record in records]

    def assigned(self) -> set[Partition]:
        return {(p.topic, p.partition) for p in self.consumer.assignment()}


class JavaProcess:
    """The program that stands in for a consumer: JavaMember.java."""

    def __init__(self, cluster: Cluster, topic: str, settings: dict[str, object]) -> None:
        everything = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": f"g-{topic}",
            "auto.offset.reset": "earliest",
            "max.poll.records": 7,
        } | settings
        pairs = [f"{name}={value}" for name, value in everything.items()]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        self._process = subprocess.Popen(
            java.command(str(JAVA_MEMBER), topic, *pairs),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def line(self) -> list[str]:
        """The words of what it tells next; none at its end."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().split()

    def end(self) -> None:
        """Tells it to close, and goes on."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        """Awaits its end.

        Raises:
            java.ToolError: it failed.
        """
        try:
            code = self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace")
        self._errors.close()
        if code != 0:
            raise java.ToolError(f"JavaMember ended with {code}: {said}")


class Java(Theirs):
    """A member of Kafka's own Java client, in a process of its own."""

    def __init__(self, cluster: Cluster, topic: str, **options: Any) -> None:
        self._topic = topic
        settings = {name.replace("_", "."): value for name, value in options.items()}
        super().__init__(JavaProcess(cluster, topic, settings))

    def poll(self) -> None:
        match self.consumer.line():
            case ["row", partition, offset, nanoseconds]:
                self.rows.append((int(partition), int(offset)))
                self.polled_at.setdefault(self.rows[-1], int(nanoseconds))
            case ["assigned", *partitions]:
                self._assigned = {(self._topic, int(partition)) for partition in partitions}
            case []:
                self._ends.set()
                if not self._over:
                    self.consumer.close()
                    raise EOFError("the Java member ended by itself")

    def close(self) -> None:
        # Its thread reads what it tells, up to the end.
        if not self._over:
            self._over = True
            self.consumer.end()
            self._thread.join()
            if self.error is None:
                self.consumer.close()


def eventually(what: Callable[[], object], *members: Member, seconds: float = 90) -> None:
    """Waits until that is so; what one of the members died of comes out."""
    deadline = time.monotonic() + seconds
    while not what():
        for member in members:
            if member.error is not None and not member.may_fail:
                raise member.error
        assert time.monotonic() < deadline, [(member.assigned(), len(member.rows), member.error) for member in members]
        time.sleep(0.05)


def shared(*members: Member, partitions: int = PARTITIONS) -> bool:
    """Whether each partition has one owner, and all have as many, or one more."""
    shares = [member.assigned() for member in members]
    sizes = [len(share) for share in shares]
    return sum(sizes) == partitions == len(set().union(*shares)) and max(sizes) - min(sizes) <= 1


def all_rows(*members: Member) -> list[tuple[int, int]]:
    """What they read, sorted: twice what came twice."""
    return sorted(row for member in members for row in member.rows)
