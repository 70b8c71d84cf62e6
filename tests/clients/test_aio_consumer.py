"""Consuming from coroutines, against our broker and against Apache Kafka."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import (
    ClosedError,
    ConfigError,
    KafkaError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    UsageError,
)
from tests.clients.helpers import assert_free, bounded, heartbeat

ROWS = 1000


@pytest.fixture
def filled(cluster, topic):
    """A topic of two partitions with 1,000 records each: value `p:i`."""
    cluster.create_topic(topic, 2)
    values = [f"{i % 2}:{i // 2}".encode() for i in range(2 * ROWS)]
    table = pa.table({"value": values, "partition": pa.array([i % 2 for i in range(2 * ROWS)], pa.int32())})
    with hr.Producer(cluster.bootstrap_servers, batch_size=2000, compression_type="lz4") as producer:
        producer.send_arrow(topic, table)
    return topic


def earliest(cluster, **options):
    return hr.aio.Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest", **options)


def rows_of(batch):
    return list(zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True))


async def drain(consumer, count, max_records=None):
    got = []
    while len(got) < count:
        batch = await consumer.poll(20.0, max_records)
        assert batch.num_rows, f"{len(got)} of {count}"
        got += rows_of(batch)
    return got


def of(rows, partition):
    return [offset for number, offset in rows if number == partition]


def test_everything_is_read_once_and_in_order(cluster, filled):
    async def work():
        async with earliest(cluster) as consumer, heartbeat() as beats:
            await consumer.assign([(filled, 0), hr.TopicPartition(filled, 1)])
            rows = await drain(consumer, 2 * ROWS, 7)
            assert consumer.assignment() == [(filled, 0), (filled, 1)]
            assert await consumer.position((filled, 0)) == ROWS
            empty = await consumer.poll(0.1)
            assert empty.num_rows == 0
            assert empty.schema == consumer.schema
            return rows, beats

    rows, beats = bounded(work())
    assert of(rows, 0) == of(rows, 1) == list(range(ROWS))
    assert_free(beats)


def test_poll_all_gives_one_batch_a_partition(cluster, filled):
    async def work():
        async with earliest(cluster) as consumer:
            await consumer.assign([(filled, 0), (filled, 1)])
            got = []
            while len(got) < 2 * ROWS:
                batches = await consumer.poll_all(20.0, 300)
                numbers = [batch["partition"][0].as_py() for batch in batches]
                assert 0 < len(numbers) == len(set(numbers))
                assert sum(batch.num_rows for batch in batches) <= 300
                got += [row for batch in batches for row in rows_of(batch)]
            assert await consumer.poll_all(0.05) == []
            return got

    rows = bounded(work())
    assert of(rows, 0) == of(rows, 1) == list(range(ROWS))


def test_a_wait_is_ended_by_rows_and_starts_no_thread_of_its_own(cluster, topic):
    cluster.create_topic(topic, 2)

    async def work():
        producer = hr.aio.Producer(cluster.bootstrap_servers, linger_ms=0)
        async with earliest(cluster) as consumer, producer, heartbeat() as beats:
            await consumer.assign([(topic, 0), (topic, 1)])
            assert (await consumer.poll(0.2)).num_rows == 0
            before = threading.active_count()
            polls = [asyncio.create_task(consumer.poll(20.0)) for _ in range(50)]
            await asyncio.sleep(0.2)
            assert not any(poll.done() for poll in polls)
            assert threading.active_count() == before
            await (await producer.send(topic, b"late", partition=1))
            done, waiting = await asyncio.wait(polls, timeout=20, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result()["value"].to_pylist() for task in done] == [[b"late"]]
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            return beats

    assert_free(bounded(work()))


def test_a_cancelled_poll_loses_no_rows(cluster, filled):
    dice = random.Random(11)

    async def work():
        async with earliest(cluster) as consumer:
            await consumer.assign([(filled, 0), (filled, 1)])
            rows, cancelled = [], 0
            while len(rows) < 2 * ROWS:
                task = asyncio.create_task(consumer.poll(20.0, dice.randrange(1, 60)))
                for _ in range(dice.randrange(3)):
                    await asyncio.sleep(0)
                if dice.random() < 0.5:
                    task.cancel()
                batch: Any = (await asyncio.gather(task, return_exceptions=True))[0]
                if isinstance(batch, asyncio.CancelledError):
                    cancelled += 1
                else:
                    rows += rows_of(batch)
            return rows, cancelled

    rows, cancelled = bounded(work())
    assert cancelled > 0
    assert of(rows, 0) == of(rows, 1) == list(range(ROWS))


def test_pause_keeps_what_was_fetched_and_seek_drops_it(cluster, filled):
    async def work():
        async with earliest(cluster) as consumer:
            await consumer.assign([(filled, 0), (filled, 1)])
            rows = await drain(consumer, 4, 2)
            consumer.pause([(filled, 0)])
            assert consumer.paused() == [(filled, 0)]
            rows += await drain(consumer, ROWS - len(of(rows, 1)))
            assert not of(rows[4:], 0)
            waiting = asyncio.create_task(consumer.poll(20.0))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            consumer.resume([(filled, 0)])
            rows += rows_of(await waiting)
            rows += await drain(consumer, 2 * ROWS - len(rows))
            consumer.seek((filled, 0), 990)
            again = await drain(consumer, 10)
            consumer.seek_to_beginning([(filled, 1)])
            again += await drain(consumer, 1, 1)
            consumer.seek_to_end()
            assert (await consumer.poll(0.2)).num_rows == 0
            return rows, again

    rows, again = bounded(work())
    assert of(rows, 0) == of(rows, 1) == list(range(ROWS))
    assert again == [*((0, offset) for offset in range(990, ROWS)), (1, 0)]


def test_group_calls(cluster, filled):
    async def work():
        async with earliest(cluster, group_id=filled, enable_auto_commit=False) as consumer:
            await consumer.subscribe(filled)
            await drain(consumer, 2 * ROWS)
            both = [(filled, 0), (filled, 1)]
            assert await consumer.committed(both) == dict.fromkeys(both)
            await consumer.commit({(filled, 0): 400})
            assert await consumer.committed(both) == {(filled, 0): 400, (filled, 1): None}
            await consumer.commit()
            assert await consumer.committed(both) == dict.fromkeys(both, ROWS)
            assert (await consumer.group_metadata()).group_id == filled
            assert await consumer.beginning_offsets(both) == dict.fromkeys(both, 0)
            assert await consumer.end_offsets(both) == dict.fromkeys(both, ROWS)
            with pytest.raises(UsageError, match="unsubscribe first"):
                await consumer.assign(both)
            await consumer.unsubscribe()
            assert consumer.assignment() == []
            await consumer.assign([(filled, 1)])
            assert await consumer.position((filled, 1)) == ROWS

    bounded(work())


def test_what_cannot_be_done_says_why(cluster, filled):
    async def work():
        async with hr.aio.Consumer(cluster.bootstrap_servers, auto_offset_reset="none") as consumer:
            with pytest.raises(ConfigError, match=r"group\.id"):
                await consumer.subscribe([filled])
            with pytest.raises(ConfigError, match="must stand in it"):
                await consumer.subscribe(re.compile("t.*", re.IGNORECASE))
            with pytest.raises(ConfigError, match=r"group\.id"):
                await consumer.commit({(filled, 0): 1})
            with pytest.raises(UsageError, match="not assigned"):
                await consumer.position((filled, 0))
            await consumer.assign([(filled, 0)])
            consumer.seek((filled, 0), 5000)
            with pytest.raises(OffsetOutOfRangeError, match=f"{filled}.*5000"):
                await consumer.poll(20.0)
            consumer.seek((filled, 0), 999)
            assert await drain(consumer, 1) == [(0, 999)]
            with pytest.raises((ValueError, TypeError)):
                await consumer.poll(1.0, 0)

    bounded(work())


def test_nobody_there_is_told_without_blocking_the_loop(topic):
    async def work():
        async with hr.aio.Consumer("127.0.0.1:1", group_id="g") as consumer, heartbeat() as beats:
            await consumer.assign([(topic, 0)])
            with pytest.raises(KafkaTimeoutError, match=r"127\.0\.0\.1:1"):
                await consumer.position((topic, 0), timeout=0.5)
            with pytest.raises(KafkaTimeoutError, match=r"127\.0\.0\.1:1"):
                await consumer.committed([(topic, 0)], timeout=0.5)
            while_waiting = list(beats)
            cancelled = asyncio.create_task(consumer.commit({(topic, 0): 1}, timeout=30))
            await asyncio.sleep(0.05)
            cancelled.cancel()
            await asyncio.wait((cancelled,))
            assert cancelled.cancelled()
            await consumer.close(timeout=0.1)
            return while_waiting

    assert_free(bounded(work()), waits=2)


def test_closing_ends_what_waits(cluster, topic):
    cluster.create_topic(topic)

    async def work():
        consumer = earliest(cluster, group_id=topic, enable_auto_commit=False)
        await consumer.assign([(topic, 0)])
        waiting = [asyncio.create_task(consumer.poll(30.0)) for _ in range(3)]
        await asyncio.sleep(0.1)
        await consumer.close()
        for ended in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(ended, ClosedError)
        with pytest.raises(ClosedError):
            await consumer.poll(0.0)
        with pytest.raises(ClosedError):
            await consumer.commit()
        await consumer.close()

    bounded(work())


def test_tasks_do_not_share_what_is_committed_without_them(cluster, filled):
    async def work():
        async with earliest(cluster, group_id=filled) as consumer:
            await consumer.assign([(filled, 0)])
            consumer.pause([(filled, 0)])
            waiting = asyncio.create_task(consumer.poll(20.0, 10))
            await asyncio.sleep(0)
            for poll in (consumer.poll, consumer.poll_all):
                with pytest.raises(UsageError, match="another task is polling"):
                    await poll(0.0)
            waiting.cancel()
            consumer.resume([(filled, 0)])
            # One after the other they may.
            assert (await consumer.poll(20.0, 10)).num_rows == 10
            assert waiting.cancelled()
            assert (await asyncio.create_task(consumer.poll(20.0, 10))).num_rows == 10

    bounded(work())


@pytest.mark.slow
def test_a_member_that_only_waits_stays_in_its_group(cluster, filled):
    async def work():
        async with earliest(cluster, group_id=filled, max_poll_interval_ms=1500) as consumer:
            await consumer.subscribe([filled])
            await drain(consumer, 2 * ROWS)
            assert (await consumer.poll(4.0)).num_rows == 0
            assert len(consumer.assignment()) == 2

    bounded(work())


def test_one_event_loop_uses_a_consumer():
    consumer = hr.aio.Consumer("127.0.0.1:1")

    async def first():
        await consumer.assign([("t", 0)])

    async def second():
        with pytest.raises(UsageError, match="another event loop"):
            await consumer.poll(0.1)
        await consumer.close(timeout=0)

    bounded(first())
    bounded(second())


def test_a_loop_that_is_gone_is_told_nothing(cluster, filled):
    consumer = earliest(cluster)

    async def leave_a_poll_behind():
        await consumer.assign([(filled, 0)])
        consumer.pause([(filled, 0)])
        task = asyncio.create_task(consumer.poll(30.0))
        await asyncio.sleep(0.1)
        task.cancel()

    bounded(leave_a_poll_behind())
    consumer.resume([(filled, 0)])
    time.sleep(0.1)
    consumer._blocking.close()
    with pytest.raises(KafkaError):
        consumer.resume([(filled, 0)])


def threads(name):
    """Of this process, by name; the kernel keeps fifteen characters."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found.append((task / "comm").read_text().strip())
        except FileNotFoundError:  # it has just ended
            continue
    return found.count(name[:15])


def steady(look):
    """What it finds, once that has stayed the same for a while."""
    found, since = look(), time.monotonic()
    deadline = since + 10
    while time.monotonic() < since + 0.5:
        assert time.monotonic() < deadline, "it changes all the time"
        time.sleep(0.02)
        if (now := look()) != found:
            found, since = now, time.monotonic()
    return found


def test_a_consumer_that_nobody_holds_ends_its_threads(embedded_broker, topic):
    # Consumers that tests before have dropped may still be ending.
    gc.collect()
    before = steady(lambda: (threads("headrace-consume"), threads("headrace-tell")))

    async def work():
        consumer = hr.aio.Consumer(embedded_broker.bootstrap_servers)
        await consumer.assign([(topic, 0)])
        await consumer.poll(0.1)
        assert (threads("headrace-consume"), threads("headrace-tell")) == (before[0] + 1, before[1] + 1)

    bounded(work())
    gc.collect()
    deadline = time.monotonic() + 10
    while (threads("headrace-consume"), threads("headrace-tell")) != before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


ENDS = """
import asyncio, sys
import headrace as hr

async def work():
    consumer = hr.aio.Consumer(sys.argv[1], auto_offset_reset="latest", group_id="left")
    await consumer.assign([(sys.argv[2], 0)])
    task = asyncio.create_task(consumer.poll(60.0))
    await asyncio.sleep(0.2)
    return consumer

consumer = asyncio.run(work())
"""


def test_a_process_that_does_not_close_its_consumer_ends(embedded_broker, topic):
    command = [sys.executable, "-c", ENDS, embedded_broker.bootstrap_servers, topic]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
