"""Records lie in a partition in the order of the calls that sent them, whichever face they went through."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import KafkaTimeoutError
from tests.clients.helpers import bounded

SMALL = {"buffer_memory": 65_536, "batch_size": 16_384}
PARTITIONS = 3


def create(broker, topic, partitions=1):
    with hr.Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions)


def rows_of(servers, topic):
    """Values and partitions, in the order of the log."""
    table = hr.read(servers, topic).read_all().sort_by([("partition", "ascending"), ("offset", "ascending")])
    return list(zip(table["partition"].to_pylist(), table["value"].to_pylist(), strict=True))


def assert_ordered(rows, count):
    """Numbers rise within each partition, and none is missing."""
    by_partition = {}
    for partition, value in rows:
        by_partition.setdefault(partition, []).append(int(value.split(b" ")[0]))
    assert sorted(number for numbers in by_partition.values() for number in numbers) == list(range(count))
    for partition, numbers in by_partition.items():
        assert numbers == sorted(numbers), f"partition {partition}"


def test_gathered_sends_keep_the_order_of_their_calls(embedded_broker, topic):
    create(embedded_broker, topic)

    async def work():
        async with hr.aio.Producer(embedded_broker.bootstrap_servers) as producer:
            futures = await asyncio.gather(*(producer.send(topic, b"%d " % i, key=b"one") for i in range(300)))
            return [(await future).offset for future in futures]

    assert bounded(work()) == list(range(300))


class Calls:
    """Calls drawn at random, each with the numbers that its rows have as values."""

    def __init__(self, seed: int, topics: list[str], *, count: int, keyed: bool) -> None:
        self.random = random.Random(seed)
        self.topics = topics
        self.left = count
        self.keyed = keyed
        self.sent = dict.fromkeys(topics, 0)

    def __iter__(self):
        while self.left > 0:
            self.left -= 1
            topic = self.random.choice(self.topics)
            rows = self.random.choice([None, None, None, 1, 40])
            first = self.sent[topic]
            self.sent[topic] += rows or 1
            sizes = [self.random.choice([10, 10, 300, 5000]) for _ in range(rows or 1)]
            values = [b"%d " % (first + i) + b"x" * size for i, size in enumerate(sizes)]
            keys = [self.random.choice([b"a", b"b", b"c", b"d", None]) if self.keyed else None for _ in values]
            if rows is None:
                partition = self.random.choice([None, None, 0, 1]) if self.keyed else None
                yield topic, values[0], {"key": keys[0], "partition": partition}
            else:
                column = [topic] * rows
                named = self.random.random() < 0.8
                table = pa.table({"value": values, "key": pa.array(keys, pa.binary()), "topic": column})
                yield (topic if named else None), (table.drop(["topic"]) if named else table), None


def options_of(calls):
    """Mostly too little memory for what is on its way."""
    return calls.random.choice(
        [{}, SMALL, SMALL, {**SMALL, "linger_ms": 0}, {**SMALL, "buffer_memory_allocation_strategy": "full"}]
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_sends_of_a_thread_keep_their_order(embedded_broker, topic, seed, known):
    topics = [topic, f"{topic}-2"]
    for name in topics if known else ():
        create(embedded_broker, name, PARTITIONS)
    calls = Calls(seed, topics, count=60, keyed=seed % 2 == 0)
    with hr.Producer(embedded_broker.bootstrap_servers, **options_of(calls)) as producer:
        for name, data, how in calls:
            if how is None:
                producer.send_arrow(name, data)
            else:
                producer.send(name, data, **(how if known else {"key": how["key"]}))
    for name in topics:
        assert_ordered(rows_of(embedded_broker.bootstrap_servers, name), calls.sent[name])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_concurrent_sends_of_asyncio_keep_their_order(embedded_broker, topic, seed, known):
    topics = [topic, f"{topic}-2"]
    for name in topics if known else ():
        create(embedded_broker, name, PARTITIONS)
    calls = Calls(seed, topics, count=150, keyed=seed % 2 == 0)
    dice = random.Random(-seed - 1)

    async def call(producer, name, data, how):
        if how is None:
            return await producer.send_arrow(name, data)
        return await producer.send(name, data, **(how if known else {"key": how["key"]}))

    async def work():
        async with hr.aio.Producer(embedded_broker.bootstrap_servers, **options_of(calls)) as producer:
            tasks = []
            for name, data, how in calls:
                tasks.append(asyncio.create_task(call(producer, name, data, how)))
                if dice.random() < 0.1:
                    await asyncio.sleep(dice.choice([0, 0, 0.001]))
                if dice.random() < 0.05:
                    await tasks[-1]
            await asyncio.gather(*await asyncio.gather(*tasks))

    bounded(work())
    for name in topics:
        assert_ordered(rows_of(embedded_broker.bootstrap_servers, name), calls.sent[name])


def test_loops_of_several_tasks_keep_the_order_of_their_calls(embedded_broker, topic):
    create(embedded_broker, topic)

    async def work():
        called = []

        async def loop(producer, name):
            futures = []
            for i in range(200):
                called.append((name, i))
                futures.append(await producer.send(topic, b"%d" % (len(called) - 1)))
            return futures

        async with hr.aio.Producer(embedded_broker.bootstrap_servers) as producer:
            for futures in await asyncio.gather(*(loop(producer, name) for name in range(5))):
                await asyncio.gather(*futures)

    bounded(work())
    assert_ordered(rows_of(embedded_broker.bootstrap_servers, topic), 1000)


def test_cancelled_calls_let_the_others_go_on_in_order(embedded_broker, topic):
    create(embedded_broker, topic)
    dice = random.Random(7)

    async def work():
        async with hr.aio.Producer(embedded_broker.bootstrap_servers, **SMALL) as producer:
            tasks = [asyncio.create_task(producer.send(topic, b"%d " % i + b"x" * 3000, key=b"k")) for i in range(200)]
            await asyncio.sleep(0.001)
            for task in dice.sample(tasks, 60):
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            sent = [i for i, outcome in enumerate(ended) if not isinstance(outcome, BaseException)]
            assert len(sent) >= 140
            await asyncio.wait_for(asyncio.gather(*(ended[i] for i in sent)), 20)
            return sent

    sent = bounded(work())
    numbers = [int(value.split(b" ")[0]) for _, value in rows_of(embedded_broker.bootstrap_servers, topic)]
    assert numbers == sent


def test_those_behind_one_that_gives_up_give_up_in_their_own_time():
    # More than a chunk, and all memory holds three of them.
    value, count = b"x" * 16_000, 30

    async def work():
        producer = hr.aio.Producer("localhost:1", max_block_ms=1000, **SMALL)
        calls = (producer.send("t", value, key=b"k") for _ in range(count))
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 15)
        futures = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        await asyncio.gather(*futures, return_exceptions=True)
        with contextlib.suppress(KafkaTimeoutError):
            await producer.close(0)
        return [outcome for outcome in outcomes if isinstance(outcome, BaseException)]

    # Records that were parked give up as well, so that a few may follow them.
    errors = bounded(work())
    assert len(errors) > count // 2
    assert all(isinstance(error, KafkaTimeoutError) for error in errors)
