"""Clients that write to a cluster while its brokers and its etcd fail, and what must be there in the end."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import confluent_kafka
import confluent_kafka.admin

import headrace as hr

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping

    from typing_extensions import Self

    from headrace._options import OptionValue
    from tests.cluster.processes import Node

TOPIC = "orders"


def create(servers: str, partitions: int, copies: int, name: str = TOPIC) -> None:
    """Makes a topic, with a stock client."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    until = time.monotonic() + 60
    # On a busy machine one may have lost its lease, and be about to have another.
    while len(admin.list_topics(timeout=30).brokers) < copies and time.monotonic() < until:
        time.sleep(0.1)
    topic = confluent_kafka.admin.NewTopic(name, partitions, copies)
    admin.create_topics([topic])[name].result(30)


def leader(servers: str, partition: int = 0) -> int:
    """The number of the broker that leads; -1 if nobody does."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    found: int = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions[partition].leader
    return found


def kill_leaders(choice: random.Random, nodes: Mapping[int, Node], servers: str, writer: Writer, kills: int) -> None:
    """Kills whoever leads a partition, and starts it again a moment later, so many times."""
    for _ in range(kills):
        writer.wait_for_more()
        node = nodes[leader(servers, choice.randrange(3))]
        node.kill()
        writer.wait_for_each(range(3))
        time.sleep(choice.uniform(0, 2))
        node.start()
        writer.wait_for_each(range(3))


def read_all(servers: str) -> Counter[bytes]:
    """How often each value is in the topic, by a stock client."""
    return values_of(servers, TOPIC)


def values_of(servers: str, topic: str) -> Counter[bytes]:
    """How often each value is in a topic, by a stock client."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    found: Counter[bytes] = Counter()
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in partitions])
        ends: set[int] = set()
        until = time.monotonic() + 120
        while len(ends) < len(partitions):
            assert time.monotonic() < until, f"read {sum(found.values())} records, the ends of {ends}"
            for message in consumer.consume(1000, 1.0):
                error = message.error()
                if error is None:
                    found[message.value()] += 1
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ends.add(message.partition())
    finally:
        consumer.close()
    return found


class Writer:
    """Writes numbers as fast as they are acknowledged, and keeps which were."""

    def __init__(self, servers: str) -> None:
        self.acknowledged: list[bytes] = []
        self.failed: list[str] = []
        self.times: dict[int, list[float]] = {}
        """When records of each partition were acknowledged."""
        self._ends = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
                # A paused broker may lead all partitions: what it was asked is asked again elsewhere.
                "socket.timeout.ms": 5000,
                "retry.backoff.ms": 50,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ends.is_set():
            value = f"{number}".encode()
            try:
                self._producer.produce(TOPIC, value, partition=number % 3, on_delivery=self._delivered)
                number += 1
            except BufferError:
                self._producer.poll(0.1)
            if number % 20 == 0:
                self._producer.poll(0.01)

    def _delivered(self, error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            self.acknowledged.append(message.value())
            self.times.setdefault(message.partition(), []).append(time.monotonic())
        else:
            self.failed.append(str(error))

    def wait_for_each(self, partitions: Iterable[int], seconds: float = 60) -> None:
        """Waits until a record of each partition was acknowledged that was sent from now on, or not long before."""
        since = time.monotonic()
        for partition in partitions:
            while not (times := self.times.get(partition)) or times[-1] <= since:
                stuck = time.monotonic() - since > seconds
                assert not stuck, f"partition {partition} is stuck: {self.failed[-3:]}"
                time.sleep(0.02)

    def wait_for_more(self, count: int = 200, seconds: float = 60) -> None:
        """Waits until so many more were acknowledged."""
        goal, until = len(self.acknowledged) + count, time.monotonic() + seconds
        while len(self.acknowledged) < goal:
            assert time.monotonic() < until, f"stuck at {len(self.acknowledged)}: {self.failed[-3:]}"
            time.sleep(0.02)

    def end(self) -> None:
        """Stops, once all is acknowledged."""
        self._ends.set()
        self._thread.join()
        assert self._producer.flush(120) == 0


class DirectWriter:
    """The same with our own producer, which writes into the leaders' memory where it can."""

    def __init__(self, servers: str) -> None:
        self.acknowledged: list[bytes] = []
        self.failed: list[str] = []
        self.direct_bytes = 0.0
        self._servers = servers
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        options: dict[str, OptionValue] = {
            "acks": "all",
            "enable.idempotence": True,
            "headrace.datapath": "auto",
            "delivery.timeout.ms": 120_000,
            "request.timeout.ms": 5000,
        }
        with hr.Producer(self._servers, options) as producer:
            number = 0
            while not self._ends.is_set():
                sent = []
                for _ in range(30):
                    value = f"direct {number}".encode()
                    sent.append((value, producer.send(TOPIC, value=value, partition=number % 3)))
                    number += 1
                for value, future in sent:
                    try:
                        future.result(130)
                        self.acknowledged.append(value)
                    except hr.KafkaError as error:
                        self.failed.append(str(error))
            self.direct_bytes = producer.metrics()["direct-bytes-produced-total"]

    def end(self) -> None:
        """Stops, once all is acknowledged."""
        self._ends.set()
        self._thread.join()


class DirectReader:
    """Our own consumer, which reads the leaders' memory where it can, from the beginning on."""

    def __init__(self, servers: str) -> None:
        self.direct_bytes = 0.0
        self._values: dict[tuple[int, int], bytes] = {}
        self._servers = servers
        self._failed: list[str] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        options: dict[str, OptionValue] = {"headrace.datapath": "auto", "request.timeout.ms": 5000}
        nexts: dict[int, int] = {}
        with hr.Consumer(self._servers, options, auto_offset_reset="earliest") as consumer:
            consumer.assign([(TOPIC, partition) for partition in range(3)])
            while not self._ends.is_set():
                try:
                    rows = consumer.poll(timeout=1)
                except hr.KafkaError as error:
                    self._failed.append(str(error))
                    continue
                columns = (rows.column(name).to_pylist() for name in ("partition", "offset", "value"))
                for partition, offset, value in zip(*columns, strict=True):
                    if offset != nexts.get(partition, 0):
                        self._failed.append(f"{TOPIC}-{partition}: {offset} for {nexts.get(partition, 0)}")
                    nexts[partition] = offset + 1
                    self._values[partition, offset] = value
            self.direct_bytes = consumer.metrics()["direct-bytes-consumed-total"]

    def check(self, written: Counter[bytes], seconds: float = 60) -> None:
        """Waits until it has read all that is there, and checks that it is that, in order and without a gap."""
        until = time.monotonic() + seconds
        while len(self._values) < written.total():
            assert time.monotonic() < until, f"{len(self._values)} of {written.total()}: {self._failed[-3:]}"
            time.sleep(0.1)
        self._ends.set()
        self._thread.join()
        assert not self._failed, self._failed[:3]
        assert Counter(self._values.values()) == written


class Verdict(NamedTuple):
    """What became of the records that were acknowledged."""

    acknowledged: int
    lost: list[bytes]
    twice: list[bytes]
    """Values that are in the topic more than once, although an idempotent producer wrote them."""


def verdict(found: Counter[bytes], *writers: Writer | DirectWriter) -> Verdict:
    """Compares what is there with what was acknowledged."""
    acknowledged = [value for writer in writers for value in writer.acknowledged]
    lost = [value for value in acknowledged if value not in found]
    return Verdict(len(acknowledged), lost, [value for value, times in found.items() if times > 1])


def check(servers: str, *writers: Writer | DirectWriter, reader: DirectReader | None = None) -> None:
    """All that was acknowledged is there, once, and has been read."""
    found = read_all(servers)
    if reader:
        reader.check(found)
    check_verdict(verdict(found, *writers), *writers)


def check_verdict(given: Verdict, *writers: Writer | DirectWriter) -> None:
    """Nothing is lost, nothing is there twice, and nothing was refused for good."""
    assert not given.twice, f"an idempotent producer wrote {len(given.twice)} twice, such as {given.twice[:5]}"
    assert not given.lost, f"{len(given.lost)} of {given.acknowledged} are lost, such as {given.lost[:5]}"
    for writer in writers:
        assert len(writer.acknowledged) == len(set(writer.acknowledged)) > 0
        assert not writer.failed, writer.failed[:3]
