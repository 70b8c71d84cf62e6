"""Streams, against our broker and against Apache Kafka: demand, order, commits, rebalances."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import subprocess
import sys
import time
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import (
    ClosedError,
    ConfigError,
    FencedInstanceIdError,
    KafkaError,
    KafkaTimeoutError,
    RebalanceInProgressError,
    UsageError,
)
from tests.clients.helpers import assert_free, bounded, heartbeat
from tests.clients.spoiler import FETCH, Spoiler

ROWS = 1000
PARTITIONS = 4


def fill(servers, topic, partitions, rows, size=20):
    """Record i of partition p is `p:i`, padded to `size` bytes."""
    count = partitions * rows
    values = [f"{i % partitions}:{i // partitions}:".encode().ljust(size, b"x") for i in range(count)]
    numbers = pa.array([i % partitions for i in range(count)], pa.int32())
    with hr.Producer(servers, batch_size=16_384) as producer:
        producer.send_arrow(topic, pa.table({"value": values, "partition": numbers}))


@pytest.fixture
def filled(cluster, topic):
    """A topic of four partitions with 1,000 records each."""
    cluster.create_topic(topic, PARTITIONS)
    fill(cluster.bootstrap_servers, topic, PARTITIONS, ROWS)
    return topic


def stream_of(cluster, topics, **options):
    """Small batches, so that there are many."""
    defaults = {"auto_offset_reset": "earliest", "max_poll_records": 37}
    return hr.aio.Stream(cluster.bootstrap_servers, topics, **{**defaults, **options})


def group(topic, **options):
    quick = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 300}
    return {"group_id": f"g-{topic}", **quick, **options}


def rows_of(batch):
    return list(zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True))


def of(rows, partition):
    return [offset for number, offset in rows if number == partition]


def whole(rows, partitions=PARTITIONS, count=ROWS):
    return all(of(rows, partition) == list(range(count)) for partition in range(partitions))


async def until(condition):
    while not condition():  # noqa: ASYNC110  (of what the tasks under test do)
        await asyncio.sleep(0.01)


async def committed(cluster, topic):
    async with hr.aio.Consumer(cluster.bootstrap_servers, group_id=f"g-{topic}") as consumer:
        found = await consumer.committed([(topic, number) for number in range(PARTITIONS)])
        return [found[topic, number] for number in range(PARTITIONS)]


def test_every_row_comes_once_and_in_order_and_is_committed(cluster, filled):
    async def work():
        rows = []
        async with stream_of(cluster, filled, **group(filled)) as stream:
            async for batch in stream:
                rows += rows_of(batch)
                if len(rows) >= PARTITIONS * ROWS:
                    break
        return rows, await committed(cluster, filled)

    rows, offsets = bounded(work())
    assert whole(rows)
    assert offsets == [ROWS] * PARTITIONS


def test_commits_tell_the_leader_epoch_of_what_was_read(cluster, filled):
    async def work():
        rows = 0
        async with stream_of(cluster, filled, **group(filled)) as stream:
            async for batch in stream:
                rows += batch.num_rows
                if rows == PARTITIONS * ROWS:
                    break

    bounded(work())
    names = [confluent_kafka.TopicPartition(filled, number) for number in range(PARTITIONS)]
    reader = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": f"g-{filled}"})
    try:
        found = reader.committed(names, timeout=20)
    finally:
        reader.close()
    assert [(tp.offset, tp.leader_epoch) for tp in found] == [(ROWS, 0)] * PARTITIONS, "of a topic's first leader"


def test_what_failed_is_not_committed_and_comes_again(cluster, filled):
    async def work():
        first = []
        with pytest.raises(RuntimeError, match="broken"):
            async with stream_of(cluster, filled, **group(filled)) as stream:
                async for batch in stream:
                    if len(first) >= 500:
                        raise RuntimeError("broken")
                    first += rows_of(batch)
        offsets = await committed(cluster, filled)
        assert offsets == [len(of(first, number)) or None for number in range(PARTITIONS)]
        async with stream_of(cluster, filled, **group(filled)) as stream:
            async for batch in stream:
                first += rows_of(batch)
                if len(first) >= PARTITIONS * ROWS:
                    break
        return first

    assert whole(bounded(work()))


def test_what_another_task_took_is_not_finished_by_leaving(cluster, filled):
    async def work():
        async with stream_of(cluster, [(filled, 0), (filled, 1)], **group(filled)) as stream:
            partitions = stream.partitions()
            (mine, batches), (other, others) = [await anext_of(partitions) for _ in range(2)]
            await anext_of(batches)
            taken = asyncio.Event()
            broken = asyncio.create_task(take_two(others, taken))
            await taken.wait()
            broken.cancel()
        offsets = await committed(cluster, filled)
        return offsets[mine.partition], offsets[other.partition]

    async def take_two(batches, taken):
        await anext_of(batches)
        await anext_of(batches)
        taken.set()
        await asyncio.sleep(30)

    assert bounded(work()) == (37, 37)


@pytest.mark.parametrize("auto_commit", [False, True])
def test_without_auto_commit_or_a_group_nothing_is_committed(cluster, filled, auto_commit):
    options = {} if auto_commit else group(filled, enable_auto_commit=False)

    async def work():
        rows = []
        where = [(filled, number) for number in range(PARTITIONS)] if auto_commit else filled
        async with stream_of(cluster, where, **options) as stream:
            async for batch in stream:
                rows += rows_of(batch)
                if len(rows) >= PARTITIONS * ROWS:
                    break
        return rows, await committed(cluster, filled)

    rows, offsets = bounded(work())
    assert whole(rows)
    assert offsets == [None] * PARTITIONS


def test_each_partition_has_its_own_speed(cluster, filled):
    async def work():
        rows, tasks, held_back = [], [], []
        enough = asyncio.Event()

        async def read(batches, slow):
            async for batch in batches:
                rows.extend(rows_of(batch))
                if slow:
                    await enough.wait()
                if len(rows) - len(of(rows, 0)) == (PARTITIONS - 1) * ROWS and not enough.is_set():
                    held_back.append(len(of(rows, 0)))
                    enough.set()

        async with stream_of(cluster, filled, **group(filled)) as stream:
            async for tp, batches in stream.partitions():
                assert tp.topic == filled
                tasks.append(asyncio.create_task(read(batches, slow=tp.partition == 0)))
                if len(tasks) == PARTITIONS:
                    break
            await until(lambda: len(rows) == PARTITIONS * ROWS)
            stream.stop()
            await asyncio.gather(*tasks)
        return rows, held_back, await committed(cluster, filled)

    rows, held_back, offsets = bounded(work())
    assert held_back[0] <= 37
    assert whole(rows)
    assert offsets == [ROWS] * PARTITIONS


def test_a_reader_that_falls_behind_is_fetched_no_further_and_no_byte_twice(topic, tmp_path):
    size, rows = 1000, 8000
    limit = 1 << 20

    async def work(broker):
        with Spoiler(broker.bootstrap_servers) as proxy:
            async with hr.aio.Stream(
                proxy.address,
                [(topic, 0), (topic, 1)],
                auto_offset_reset="earliest",
                max_poll_records=100,
                max_partition_fetch_bytes=limit,
            ) as stream:
                flows = {tp.partition: batches async for tp, batches in first(stream.partitions(), 2)}
                slow = rows_of(await anext_of(flows[0]))
                fast = []
                while len(fast) < rows:
                    fast += rows_of(await anext_of(flows[1]))
                await asyncio.sleep(0.7)
                ahead = proxy.answered[FETCH] - rows * size
                while len(slow) < rows:
                    slow += rows_of(await anext_of(flows[0]))
            return fast, slow, ahead, proxy.answered[FETCH]

    with hr.Broker.start(tmp_path) as broker:
        hr.Admin(broker.bootstrap_servers).create_topics([hr.NewTopic(topic, 2)])
        fill(broker.bootstrap_servers, topic, 2, rows, size)
        fast, slow, ahead, total = bounded(work(broker))
    assert of(slow, 0) == of(fast, 1) == list(range(rows))
    # What may lie there, what one Fetch brings, one that was on its way; a record is some bytes longer than its value.
    assert ahead < 3 * limit + 2 * rows * size * 0.03
    assert total < 1.05 * 2 * rows * size


async def first(items, count):
    async for item in items:
        yield item
        count -= 1
        if count == 0:
            return


def anext_of(items):
    return items.__anext__()


def test_cancelled_asks_lose_nothing(cluster, filled):
    dice = random.Random(3)

    async def read(batches, rows):
        cancelled = 0
        while len(rows) < ROWS:
            task = asyncio.ensure_future(anext_of(batches))
            for _ in range(dice.randrange(3)):
                await asyncio.sleep(0)
            if dice.random() < 0.5:
                task.cancel()
            batch: Any = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(batch, asyncio.CancelledError):
                cancelled += 1
            else:
                rows += rows_of(batch)
        return cancelled

    async def work():
        async with stream_of(cluster, [(filled, number) for number in range(PARTITIONS)]) as stream:
            found, tasks = [], []
            async for _, batches in first(stream.partitions(), PARTITIONS):
                found.append([])
                tasks.append(asyncio.create_task(read(batches, found[-1])))
            cancelled = await asyncio.gather(*tasks)
        return [row for rows in found for row in rows], sum(cancelled)

    rows, cancelled = bounded(work())
    assert cancelled > 0
    assert whole(rows)


@pytest.mark.parametrize("form", ["plain", "committable", "partition"])
def test_a_map_keeps_the_order_and_its_limit(cluster, filled, form):
    dice = random.Random(5)
    running, most = 0, 0

    async def double(item):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(dice.random() / 200)
        running -= 1
        return item

    async def work():
        rows = []
        async with stream_of(cluster, filled, **group(filled)) as stream:
            if form == "plain":
                results = stream.map(double, 5)
            elif form == "committable":
                results = stream.committable().map(double, 5)
            else:
                (_, batches) = await anext_of(stream.partitions())
                results = batches.map(double, 5)
            async for result in results:
                rows += rows_of(result.batch if form == "committable" else result)
                if form == "committable":
                    result.done()
                if len(rows) >= (ROWS if form == "partition" else PARTITIONS * ROWS):
                    break
        return rows, await committed(cluster, filled)

    rows, offsets = bounded(work())
    assert 1 < most <= 5
    if form == "partition":
        (number,) = {partition for partition, _ in rows}
        assert of(rows, number) == list(range(ROWS))
        assert [offset for offset in offsets if offset is not None] == [ROWS]
    else:
        assert whole(rows)
        assert offsets == [ROWS] * PARTITIONS


def test_a_map_that_fails_commits_nothing_from_there_on(cluster, filled):
    done = []

    async def check(batch):
        partition, start = rows_of(batch)[0]
        # Later batches are finished before this one fails.
        await asyncio.sleep(0.1 if start >= 300 else 0)
        if partition == 2 and start >= 300:
            raise RuntimeError(f"broken at {start}")
        return rows_of(batch)

    async def work():
        with pytest.raises(RuntimeError, match="broken at") as caught:
            async with stream_of(cluster, filled, **group(filled)) as stream:
                results = stream.map(check, 8)
                with pytest.raises(RuntimeError, match="broken at") as failed:
                    async for rows in results:
                        done.extend(rows)
                with pytest.raises(StopAsyncIteration):
                    await anext_of(results)
                raise failed.value
        return int(str(caught.value).split()[-1]), await committed(cluster, filled)

    broken_at, offsets = bounded(work())
    assert of(done, 2) == list(range(broken_at))
    for number, offset in enumerate(offsets):
        assert (offset or 0) == len(of(done, number))


def test_no_call_of_a_map_outlives_the_block(cluster, filled):
    begun, ended = [], []

    async def roll_back(batch):
        begun.append(batch)
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.1)
            ended.append(batch)

    async def work():
        async with stream_of(cluster, [(filled, 0)]) as stream:
            waiting = asyncio.create_task(anext_of(stream.map(roll_back, 3)))
            await until(lambda: len(begun) == 3)
        assert len(ended) == 3
        await asyncio.wait((waiting,))

    bounded(work())


def test_marks_in_any_order_commit_no_unfinished_work(cluster, filled):
    async def work():
        async with stream_of(cluster, [(filled, 0)], commit_batches=1, **group(filled)) as stream:
            batches = stream.committable()
            items = [await anext_of(batches) for _ in range(4)]
            assert [item.next_offset for item in items] == [37, 74, 111, 148]
            assert items[0].partition == (filled, 0)
            items[1].done()
            items[3].done()
            waiting = asyncio.create_task(items[1].commit())
            await asyncio.sleep(0.2)
            assert not waiting.done()
            assert await committed(cluster, filled) == [None] * PARTITIONS
            await items[0].commit()
            await waiting
            assert (await committed(cluster, filled))[0] == 74
            await items[2].commit()
            assert (await committed(cluster, filled))[0] in {111, 148}
            last = await anext_of(batches)
        assert last.next_offset == 185
        return await committed(cluster, filled)

    assert bounded(work())[0] == 148, "the last one was not marked"


KILLED = """
import asyncio, random, sys
import headrace as hr

servers, topic, path, seed = sys.argv[1:]
dice = random.Random(int(seed))

async def work():
    options = {"auto_offset_reset": "earliest", "max_poll_records": 17, "commit_interval_ms": 20, "commit_batches": 3}
    where = [(topic, number) for number in range(4)]
    with open(path, "a", buffering=1) as file:
        async def finish(item):
            await asyncio.sleep(dice.random() / 50)
            for partition, offset in zip(item.batch["partition"].to_pylist(), item.batch["offset"].to_pylist()):
                file.write(f"{partition} {offset}\\n")
            item.done()
            return item.batch.num_rows
        async with hr.aio.Stream(servers, where, group_id=f"g-{topic}", **options) as stream:
            print("reading", flush=True)
            async for count in stream.committable().map(finish, 6):
                pass

asyncio.run(work())
"""


@pytest.mark.slow
def test_kills_lose_nothing_and_no_commit_covers_unfinished_work(cluster, filled, tmp_path):
    dice = random.Random(9)
    finished = set()
    for seed in range(6):
        path = tmp_path / str(seed)
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, cluster.bootstrap_servers, filled, str(path), str(seed)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout.readline() == "reading\n"
            time.sleep(0.1 + dice.random() * 0.4)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        finished |= {tuple(map(int, line.split())) for line in path.read_text().splitlines()}
        for number, offset in enumerate(bounded(committed(cluster, filled))):
            missing = set(range(offset or 0)) - {row for partition, row in finished if partition == number}
            assert not missing, f"partition {number} is committed up to {offset}"
    assert finished


def test_at_most_once_commits_before_it_hands_out(cluster, filled):
    async def work():
        rows = []
        with contextlib.suppress(RuntimeError):
            async with stream_of(cluster, filled, **group(filled)) as stream:
                async for batch in stream.at_most_once():
                    number, last = rows_of(batch)[-1]
                    assert (await committed(cluster, filled))[number] == last + 1
                    rows += rows_of(batch)
                    if len(rows) > 300:
                        raise RuntimeError("broken")
        async with stream_of(cluster, filled, **group(filled)) as stream:
            batches = stream.at_most_once()
            while len(rows) < PARTITIONS * ROWS:
                task = asyncio.ensure_future(anext_of(batches))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait((task,))
                if not task.cancelled():
                    rows += rows_of(task.result())
                rows += rows_of(await anext_of(batches))
        return rows

    assert whole(bounded(work())), "a row is lost, or came twice"


def test_partitions_begin_where_their_reader_says(cluster, filled):
    asked = []

    async def starts(partitions):
        asked.append(partitions)
        await asyncio.sleep(0.1)
        return {(filled, number): 900 + number for number in range(3)}

    async def read(stream):
        rows = []
        async for batch in stream:
            rows += rows_of(batch)
            if len(rows) >= 100 + 99 + 98 + ROWS:
                return rows
        return rows

    async def work():
        async with stream_of(cluster, filled, start_offsets=starts, **group(filled)) as stream:
            subscribed = await read(stream)
        where = {(filled, 0): 900, (filled, 1): 901, (filled, 2): 902, (filled, 3): 0}
        async with stream_of(cluster, where) as stream:
            return subscribed, await read(stream)

    for rows in bounded(work()):
        assert [of(rows, number)[0] for number in range(PARTITIONS)] == [900, 901, 902, 0]
        assert all(of(rows, number) == sorted(set(of(rows, number))) for number in range(PARTITIONS))
        assert len(rows) == 100 + 99 + 98 + ROWS
    assert [sorted(partitions) for partitions in asked] == [[(filled, number) for number in range(PARTITIONS)]]


@pytest.mark.parametrize("answer", ["raises", "negative"])
def test_bad_starts_are_told_to_who_asks(embedded_broker, topic, answer):
    def starts(partitions):
        if answer == "raises":
            raise LookupError("no database")
        return dict.fromkeys(partitions, -1)

    async def work():
        options = {"start_offsets": starts}
        async with hr.aio.Stream(embedded_broker.bootstrap_servers, [(topic, 0)], **options) as stream:
            with pytest.raises((LookupError, UsageError), match=r"no database|-1 for .*negative"):
                await anext_of(stream.__aiter__())

    bounded(work())


def test_revoked_partitions_end_and_what_is_buffered_of_them_is_not_delivered(cluster, filled):
    async def work():
        after, ended, given, held = [], [], {}, []
        go_on = asyncio.Event()

        async def hold(item):
            held.append(item)
            await go_on.wait()
            return item

        async def read(tp, results):
            async for item in results:
                after.append((tp, item.next_offset))
                item.done()
            ended.append(tp)

        options = group(filled, revoke_wait_ms=300)
        async with stream_of(cluster, filled, **options) as stream:
            tasks = []

            async def accept():
                async for tp, batches in stream.partitions(committable=True):
                    if tp not in given:
                        given[tp] = await anext_of(batches)
                        given[tp].done()
                        tasks.append(asyncio.create_task(read(tp, batches.map(hold, 3))))

            accepting = asyncio.create_task(accept())
            # Each partition has three batches behind `hold` then; another member takes some of the partitions.
            await until(lambda: len(held) == 3 * PARTITIONS)
            async with hr.aio.Consumer(
                cluster.bootstrap_servers, auto_offset_reset="earliest", **group(filled)
            ) as other:
                await other.subscribe([filled])
                theirs = []
                while not theirs or len(stream.assignment()) == PARTITIONS:
                    theirs += rows_of(await other.poll(0.1))
                taken = other.assignment()
                await until(lambda: len(ended) == PARTITIONS)
                go_on.set()
                await asyncio.sleep(0.1)
                starts = {number: of(theirs, number)[0] for number in {number for number, _ in theirs}}
            accepting.cancel()
            await asyncio.gather(accepting, *tasks, return_exceptions=True)
        return given, taken, after, starts

    given, taken, after, starts = bounded(work())
    assert 0 < len(taken) < PARTITIONS
    assert after == [], "these were buffered when their partitions went"
    # What was marked was committed before the partitions went: the next owner begins behind it.
    assert starts == {tp.partition: given[tp].next_offset for tp in taken if tp.partition in starts}
    assert starts


def test_a_mark_after_the_partition_went_is_told(cluster, filled):
    async def work():
        async with stream_of(cluster, filled, **group(filled, revoke_wait_ms=100)) as stream:
            batches = stream.committable()
            held = await anext_of(batches)
            quiet = group(filled, enable_auto_commit=False)
            async with hr.aio.Consumer(cluster.bootstrap_servers, **quiet) as other:
                await other.subscribe([filled])
                while not other.assignment():
                    await other.poll(0.1)
                with pytest.raises(RebalanceInProgressError, match=filled):
                    await held.commit()
                held.done()
            return await committed(cluster, filled)

    assert bounded(work()) == [None] * PARTITIONS


def test_leaving_tells_who_awaits_a_commit(cluster, filled):
    async def work():
        async with stream_of(cluster, [(filled, 0)], **group(filled)) as stream:
            batches = stream.committable()
            first, second = await anext_of(batches), await anext_of(batches)
            waiting = asyncio.create_task(second.commit())
            await asyncio.sleep(0.05)
            assert not waiting.done(), "the one before it is not done"
        with pytest.raises(ClosedError, match=filled):
            await asyncio.wait_for(waiting, 10)
        first.done()
        return await committed(cluster, filled)

    assert bounded(work()) == [None] * PARTITIONS


def test_draining_waits_for_what_was_handed_out(cluster, filled):
    async def work():
        async with stream_of(cluster, [(filled, 0)], commit_interval_ms=60_000, **group(filled)) as stream:
            batches = stream.committable()
            first, second = await anext_of(batches), await anext_of(batches)
            second.done()
            with pytest.raises(KafkaTimeoutError, match=rf"{filled}-0 not finished"):
                await stream.drain_and_stop(timeout=0.2)
            asyncio.get_running_loop().call_later(0.2, first.done)
            await stream.drain_and_stop(timeout=20)
            assert (await committed(cluster, filled))[0] == second.next_offset == 74
            with pytest.raises(StopAsyncIteration):
                await anext_of(batches)

    bounded(work())


def test_a_refused_commit_is_not_repeated_while_a_stream_settles(cluster, filled, caplog):
    tried = []

    async def refuse(offsets):
        tried.append(offsets)
        raise KafkaError("refused")

    async def work():
        async with stream_of(cluster, [(filled, 0)], commit_interval_ms=60_000, **group(filled)) as stream:
            stream._consumer._commit_parts = refuse
            (await anext_of(stream.committable())).done()
            with pytest.raises(KafkaTimeoutError, match=rf"{filled}-0 not finished or not committed"):
                await stream.drain_and_stop(timeout=0.5)
            # At most one by the stream's own pulse, whose first time has come as well.
            assert len(tried) <= 2
            tried.clear()

    with caplog.at_level(logging.WARNING, "headrace.consumer"):
        bounded(work())
    assert len(tried) == 1, "leaving tries once more"
    assert "may be read again: refused" in caplog.text


def test_who_drains_has_finished_what_it_took(cluster, filled):
    async def work():
        async with stream_of(cluster, [(filled, 0)], commit_interval_ms=60_000, **group(filled)) as stream:
            async for batch in stream:
                assert batch.num_rows == 37
                break
            await stream.drain_and_stop(timeout=10)
            return await committed(cluster, filled)

    assert bounded(work())[0] == 37


def test_stopping_ends_what_waits(cluster, topic):
    cluster.create_topic(topic)

    async def work():
        async with stream_of(cluster, [(topic, 0)]) as stream, heartbeat() as beats:
            partitions = stream.partitions()
            _, batches = await anext_of(partitions)
            waiting = [asyncio.ensure_future(anext_of(one)) for one in (partitions, batches)]
            mapped = asyncio.ensure_future(anext_of(batches.map(rows_of, 2)))
            await asyncio.sleep(0.3)
            assert not any(task.done() for task in (*waiting, mapped))
            stream.stop()
            for ended in await asyncio.gather(*waiting, mapped, return_exceptions=True):
                assert isinstance(ended, StopAsyncIteration)
            assert_free(beats)

    bounded(work())


def test_partitions_tell_what_keeps_them_from_coming(topic):
    async def work():
        options = {"group_id": "g", "request_timeout_ms": 500, "reconnect_backoff_ms": 10}
        async with hr.aio.Stream("127.0.0.1:1", topic, **options) as stream:
            with pytest.raises(KafkaTimeoutError, match=r"127\.0\.0\.1:1"):
                await anext_of(stream.partitions())

    bounded(work())


def test_partitions_that_another_instance_took_over_tell_so(cluster, filled):
    options = group(filled, group_instance_id="one", enable_auto_commit=False)

    async def read(batches):
        async for _ in batches:
            pass

    async def work():
        async with stream_of(cluster, filled, **options) as older:
            partitions = older.partitions()
            readers = [asyncio.create_task(read((await anext_of(partitions))[1])) for _ in range(PARTITIONS)]
            async with stream_of(cluster, filled, **options) as newer:
                taking = asyncio.create_task(anext_of(newer.__aiter__()))
                with pytest.raises(FencedInstanceIdError):
                    await anext_of(partitions)
                with pytest.raises(FencedInstanceIdError):
                    await anext_of(partitions)
                await taking
            await asyncio.wait(readers)

    bounded(work())


def test_what_is_not_a_stream_says_why():
    with pytest.raises(ValueError, match="topics is empty"):
        hr.aio.Stream("127.0.0.1:1", [])
    with pytest.raises(ValueError, match="both names and partitions: 't'"):
        hr.aio.Stream("127.0.0.1:1", ["t", ("t", 0)])
    with pytest.raises(ValueError, match="commit_batches is at least 1"):
        hr.aio.Stream("127.0.0.1:1", "t", commit_batches=0)
    with pytest.raises(ConfigError, match=r"enable\.auto\.commit"):
        hr.aio.Stream("127.0.0.1:1", "t", enable_auto_commit="perhaps")

    async def work():
        stream = hr.aio.Stream("127.0.0.1:1", [("t", 0)])
        for form in (stream.committable, stream.at_most_once, lambda: stream.partitions(committable=True)):
            with pytest.raises(ConfigError, match=r"group\.id"):
                form()
        with pytest.raises(UsageError, match="inside of its block"):
            await anext_of(stream.__aiter__())
        outside = hr.aio.Stream("127.0.0.1:1", [("t", 0)])
        with pytest.raises(UsageError, match="inside of its block"):
            await anext_of(outside.partitions())
        async with stream:
            assert stream.__aiter__() is stream.__aiter__()
            with pytest.raises(UsageError, match="one form"):
                stream.partitions()
            with pytest.raises(ValueError, match="parallelism"):
                stream.map(rows_of, 0)
        with pytest.raises(UsageError, match="entered once"):
            async with stream:
                pass
        with pytest.raises(ConfigError, match=r"group\.id"):
            async with hr.aio.Stream("127.0.0.1:1", "t"):
                pass

    bounded(work())
