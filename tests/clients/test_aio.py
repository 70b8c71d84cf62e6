"""Producing from coroutines, against our broker and against Apache Kafka."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import (
    ClosedError,
    KafkaError,
    KafkaTimeoutError,
    MessageTooLargeError,
    SchemaError,
    UsageError,
)
from tests.clients.helpers import assert_free, bounded, heartbeat
from tests.kafka.apache import free_ports

VALUE = b"x" * 10_000
# Six of VALUE fill it.
SMALL = {"buffer_memory": 65_536, "batch_size": 16_384}


def values(servers, topic):
    table = hr.read(servers, topic).read_all().sort_by([("partition", "ascending"), ("offset", "ascending")])
    return table["value"].to_pylist()


async def fill(producer, topic):
    """Sends until a send waits; gives the futures of those before, and the task that waits."""
    sent = []
    while True:
        task = asyncio.create_task(producer.send(topic, VALUE, partition=0))
        while not task.done():
            await asyncio.sleep(0.01)
            if producer.metrics()["waiting-threads"] > 0:
                return sent, task
        sent.append(task.result())
        assert len(sent) < 20


def test_a_sent_record_comes_back_whole(cluster, topic):
    cluster.create_topic(topic, 3)

    async def work():
        async with hr.aio.Producer(cluster.bootstrap_servers) as producer:
            sent = await producer.send(
                topic, b"value", key=b"key", partition=2, timestamp=1_700_000_000_123, headers={"a": b"1"}
            )
            return await sent

    assert bounded(work()) == hr.RecordMetadata(topic, 2, 0, 1_700_000_000_123)
    (row,) = hr.read(cluster.bootstrap_servers, topic, include_headers=True).read_all().to_pylist()
    assert (row["key"], row["value"], row["headers"]) == (b"key", b"value", [{"key": "a", "value": b"1"}])


def test_sends_keep_their_order_and_leave_turns_to_others(cluster, topic):
    cluster.create_topic(topic)

    async def work():
        async with hr.aio.Producer(cluster.bootstrap_servers, batch_size=1000) as producer, heartbeat() as beats:
            begun, futures = time.monotonic(), []
            while len(futures) < 5000 or time.monotonic() < begun + 0.2:
                futures.append(await producer.send(topic, str(len(futures)).encode()))
            while_sending = list(beats)
            return [(await future).offset for future in futures], while_sending

    offsets, beats = bounded(work())
    assert offsets == list(range(len(offsets)))
    assert len(beats) > 2, "no other task had its turn"
    assert values(cluster.bootstrap_servers, topic) == [str(i).encode() for i in range(len(offsets))]


@pytest.mark.parametrize("strategy", ["full", "incremental"])
def test_a_small_buffer_is_awaited_and_loses_nothing(cluster, topic, strategy):
    cluster.create_topic(topic, 2)
    options = {**SMALL, "buffer_memory_allocation_strategy": strategy}
    table = pa.table({"value": [f"row {i} ".encode() + b"x" * 1000 for i in range(3000)]})

    async def sender(producer, name):
        futures = [await producer.send(topic, b"%d:%d" % (name, i) + VALUE, partition=1) for i in range(40)]
        return [(await future).offset for future in futures]

    async def work():
        async with hr.aio.Producer(cluster.bootstrap_servers, **options) as producer:
            senders = [asyncio.create_task(sender(producer, name)) for name in range(4)]
            arrow = await producer.send_arrow(topic, table.append_column("partition", pa.array([0] * 3000, pa.int32())))
            assert await arrow == 3000
            offsets = await asyncio.gather(*senders)
            metrics = producer.metrics()
        return offsets, metrics

    offsets, metrics = bounded(work())
    assert sorted(offset for of_one in offsets for offset in of_one) == list(range(160))
    assert all(of_one == sorted(of_one) for of_one in offsets)
    assert metrics["bufferpool-wait-time-ns-total"] > 0
    assert metrics["waiting-threads"] == 0
    found = values(cluster.bootstrap_servers, topic)
    assert found[:3000] == table["value"].to_pylist()
    assert len(found) == 3160


def test_results_are_told_row_by_row(cluster, topic):
    cluster.create_topic(topic, 2)
    table = pa.table({"value": [b"a", b"x" * 20_000, b"c"], "partition": pa.array([0, 1, 1], pa.int32())})

    async def work():
        async with hr.aio.Producer(cluster.bootstrap_servers, max_request_size=10_000) as producer:
            return await (await producer.send_arrow(topic, table, results=True))

    batch = bounded(work())
    assert batch["partition"].to_pylist() == [0, None, 1]
    assert batch["offset"].to_pylist() == [0, None, 0]
    assert "max.request.size" in batch["error"].to_pylist()[1]


def test_what_cannot_be_sent_says_why(cluster, topic):
    cluster.create_topic(topic)

    async def work():
        async with hr.aio.Producer(cluster.bootstrap_servers, max_request_size=10_000) as producer:
            await (await producer.send(topic, b"first"))
            with pytest.raises(MessageTooLargeError, match=r"max\.request\.size"):
                await producer.send(topic, b"x" * 20_000)
            with pytest.raises(UsageError, match="has no partition 2"):
                await producer.send(topic, b"x", partition=2)
            with pytest.raises(TypeError, match="encode it first"):
                await producer.send(topic, "text")
            with pytest.raises(SchemaError, match="vlaue"):
                await producer.send_arrow(topic, pa.table({"vlaue": [b"x"]}))
            with pytest.raises(TypeError, match="send_arrow takes"):
                await producer.send_arrow(topic, [b"x"])
            with pytest.raises(MessageTooLargeError):
                await producer.send_arrow(topic, pa.table({"value": [b"fine", b"x" * 20_000]}))
            await producer.flush()

    bounded(work())
    assert values(cluster.bootstrap_servers, topic) == [b"first", b"fine"]


@pytest.mark.slow
def test_a_topic_that_nobody_tells_about_is_awaited_in_vain(topic):
    async def work():
        async with hr.aio.Producer("127.0.0.1:1", max_block_ms=700) as producer, heartbeat() as beats:
            with pytest.raises(KafkaTimeoutError, match=rf"{topic}.*127\.0\.0\.1:1"):
                await (await producer.send(topic, b"x"))
            await producer.send(topic, b"x")
            with pytest.raises(KafkaTimeoutError, match=topic):
                await producer.flush()
            with pytest.raises(KafkaTimeoutError, match=rf"{topic}.*127\.0\.0\.1:1"):
                await producer.send_arrow(topic, pa.table({"value": [b"x"]}))
            batch = await (await producer.send_arrow(topic, pa.table({"value": [b"x"]}), results=True))
            assert topic in batch["error"].to_pylist()[0]
            return beats

    assert_free(bounded(work()), waits=4)


def test_a_full_buffer_times_out_without_blocking_the_loop(topic):
    async def work():
        with hr.Broker.start() as broker:
            producer = hr.aio.Producer(
                broker.bootstrap_servers, max_block_ms=1000, delivery_timeout_ms=120_000, **SMALL
            )
            await (await producer.send(topic, b"first", partition=0))
        sent, waiting = await fill(producer, topic)
        assert 4 <= len(sent) <= 6
        async with heartbeat() as beats:
            with pytest.raises(KafkaTimeoutError, match=r"buffer\.memory"):
                await waiting
        assert_free(beats)
        assert producer.metrics()["buffer-exhausted-total"] == 1
        assert producer.metrics()["waiting-threads"] == 0
        with pytest.raises(KafkaError):
            await producer.close(timeout=0.1)
        for future in sent:
            with pytest.raises(KafkaError):
                await future

    bounded(work())


def test_a_cancelled_send_leaves_nothing_and_holds_up_nobody(topic, tmp_path):
    async def work():
        (port,) = free_ports(1)
        with hr.Broker.start(tmp_path, port=port) as broker:
            servers = broker.bootstrap_servers
            producer = hr.aio.Producer(servers, delivery_timeout_ms=120_000, **SMALL)
            await (await producer.send(topic, b"first", partition=0))
        sent, cancelled = await fill(producer, topic)
        rows = pa.table({"value": [b"row"] * 10, "partition": pa.array([0] * 10, pa.int32())})
        also = asyncio.create_task(producer.send_arrow(topic, rows))
        behind = asyncio.create_task(producer.send(topic, b"behind", partition=0))
        await asyncio.sleep(0.1)
        assert producer.metrics()["waiting-threads"] == 3
        kept = []
        for task in (cancelled, also):
            task.cancel()
            try:
                await task
            except asyncio.CancelledError as error:
                kept.append(error)  # with its frames, as a logger may
        assert len(kept) == 2
        assert producer.metrics()["waiting-threads"] == 1
        with hr.Broker.start(tmp_path, port=port):
            await (await behind)
            await asyncio.gather(*sent)
            await producer.flush()
            assert producer.metrics()["buffer-available-bytes"] == producer.metrics()["buffer-total-bytes"]
            await producer.close()
            return len(sent), values(servers, topic)

    sent, found = bounded(work())
    assert found == [b"first", *[VALUE] * sent, b"behind"]


def test_what_is_cancelled_is_not_sent_and_all_else_is_once(cluster, topic):
    cluster.create_topic(topic)
    dice = random.Random(7)

    async def work():
        async with hr.aio.Producer(cluster.bootstrap_servers, **SMALL) as producer:
            tasks = [asyncio.create_task(producer.send(topic, b"%d:" % i + VALUE)) for i in range(400)]
            for i in dice.sample(range(400), 200):
                await asyncio.sleep(0)
                tasks[i].cancel()
            await asyncio.wait(tasks)
            sent = [i for i, task in enumerate(tasks) if not task.cancelled()]
            await producer.flush()
            for i in sent:
                await tasks[i].result()
            metrics = producer.metrics()
            assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]
            assert metrics["waiting-threads"] == 0
            return sent

    sent = bounded(work())
    assert 200 <= len(sent) < 400
    found = [int(value.partition(b":")[0]) for value in values(cluster.bootstrap_servers, topic)]
    assert sorted(found) == sent


def test_flush_tells_of_failures_once_and_of_time_that_ran_out(topic):
    async def work():
        with hr.Broker.start() as broker:
            producer = hr.aio.Producer(
                broker.bootstrap_servers, delivery_timeout_ms=2000, request_timeout_ms=1000, linger_ms=0
            )
            await (await producer.send(topic, b"there", partition=0))
            await producer.flush()
        lost = await producer.send(topic, b"lost", partition=0)
        with pytest.raises(KafkaTimeoutError, match="flushing the producer"):
            await producer.flush(timeout=0.1)
        cancelled = asyncio.create_task(producer.flush())
        await asyncio.sleep(0.05)
        cancelled.cancel()
        await asyncio.wait((cancelled,))
        with pytest.raises(KafkaError):
            await producer.flush()
        with pytest.raises(KafkaError):
            await lost
        await producer.flush()
        await producer.close()

    bounded(work())


def test_closing_ends_what_waits(topic):
    async def work():
        with hr.Broker.start() as broker:
            producer = hr.aio.Producer(broker.bootstrap_servers, delivery_timeout_ms=120_000, **SMALL)
            await (await producer.send(topic, b"first", partition=0))
        sent, waiting = await fill(producer, topic)
        unknown = asyncio.create_task(producer.send("unknown", b"x"))
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(0.05)
        (closed,) = await asyncio.gather(producer.close(timeout=0.2), return_exceptions=True)
        for task in (waiting, unknown):
            with pytest.raises(ClosedError):
                await task
        # A failure is told once: by the close, or by the flush that it ended.
        (ended,) = await asyncio.gather(flushing, return_exceptions=True)
        assert sum(isinstance(outcome, KafkaError) for outcome in (closed, ended)) == 1
        await asyncio.gather(*sent, return_exceptions=True)
        with pytest.raises(ClosedError):
            await producer.send(topic, b"x")
        with pytest.raises(ClosedError):
            await producer.flush()
        await producer.close()

    bounded(work())


def test_one_event_loop_uses_a_producer():
    producer = hr.aio.Producer("127.0.0.1:1")

    async def second():
        with pytest.raises(UsageError, match="another event loop"):
            await producer.send("t", b"x")
        await producer.close(timeout=0)

    async def flush_of_nothing():
        await producer.flush()

    bounded(flush_of_nothing())
    bounded(second())


ENDS = """
import asyncio, sys
import headrace as hr

async def work():
    producer = hr.aio.Producer(sys.argv[1], linger_ms=500)
    await producer.send(sys.argv[2], b"sent")
    return producer

producer = asyncio.run(work())
"""


def test_a_process_that_does_not_close_its_producer_loses_nothing(cluster, topic):
    cluster.create_topic(topic)
    ended = subprocess.run(
        [sys.executable, "-c", ENDS, cluster.bootstrap_servers, topic],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert values(cluster.bootstrap_servers, topic) == [b"sent"]
