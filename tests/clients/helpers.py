"""What tests of clients share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, TypeVar

import confluent_kafka
import confluent_kafka.admin

import headrace as hr

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from tests.kafka.cluster import Cluster

TIMEOUT_SECONDS = 40
Result = TypeVar("Result")


def bounded(work: Coroutine[object, object, Result]) -> Result:
    """Runs a coroutine to its end, or fails when it takes too long."""
    return asyncio.run(asyncio.wait_for(work, TIMEOUT_SECONDS))


@contextlib.asynccontextmanager
async def heartbeat() -> AsyncIterator[list[float]]:
    """Beats as long as the event loop is free; gives the list of the beats' times."""
    beats = [time.monotonic()]

    async def beat() -> None:
        while True:
            await asyncio.sleep(0.01)
            beats.append(time.monotonic())

    task = asyncio.create_task(beat())
    try:
        yield beats
    finally:
        task.cancel()


def assert_free(beats: list[float], waits: int = 1) -> None:
    """Fails when the event loop stood still in each of so many waits.

    Then there is a beat or two between them. How many there are of a free loop depends on what else the machine does.
    """
    assert len(beats) > 3 * waits + 2, "the event loop stood still"


def settle(kafka: Cluster, topic: str) -> None:
    """Waits until no transaction of the topic is open: a commit is answered before its markers stand in the logs."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    partitions = admin.list_topics(topic, 10).topics[topic].partitions
    latest = confluent_kafka.admin.OffsetSpec.latest()
    asked = {confluent_kafka.TopicPartition(topic, number): latest for number in partitions}
    deadline = time.monotonic() + 20
    while True:
        stable, all_ = (
            {
                tp.partition: future.result(10).offset
                for tp, future in admin.list_offsets(asked, isolation_level=level).items()
            }
            for level in (
                confluent_kafka.IsolationLevel.READ_COMMITTED,
                confluent_kafka.IsolationLevel.READ_UNCOMMITTED,
            )
        )
        if stable == all_:
            return
        assert time.monotonic() < deadline, f"a transaction is left open: {stable} of {all_}"
        time.sleep(0.02)


def committed(kafka: Cluster, topic: str) -> list[bytes]:
    """What a `read_committed` reader sees, in order, by our own client and by another."""
    settle(kafka, topic)
    table = hr.read(kafka.bootstrap_servers, topic, isolation_level="read_committed").read_all()
    ours: list[bytes] = table.sort_by([("partition", "ascending"), ("offset", "ascending")])["value"].to_pylist()
    theirs: list[bytes] = []
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": f"reader-{time.time_ns()}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    numbers = sorted(reader.list_topics(topic, 10).topics[topic].partitions)
    for number in numbers:
        reader.assign([confluent_kafka.TopicPartition(topic, number, confluent_kafka.OFFSET_BEGINNING)])
        while (message := reader.poll(10)) is not None:
            if message.error():
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                break
            theirs.append(message.value())
    reader.close()
    assert ours == theirs
    return ours
