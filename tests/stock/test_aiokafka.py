"""aiokafka, unchanged, on our broker."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

TIMEOUT_SECONDS = 20
CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def servers(stock_servers):
    return stock_servers


@pytest.fixture
def made(servers, topic):
    """A topic of two partitions."""

    async def make():
        async with running(AIOKafkaAdminClient(bootstrap_servers=servers)) as admin:
            await admin.create_topics([NewTopic(topic, 2, 1)])

    bounded(make())
    return topic


def bounded(work):
    """Runs a coroutine to its end, or fails when it takes too long."""
    return asyncio.run(asyncio.wait_for(work, TIMEOUT_SECONDS))


@asynccontextmanager
async def running(client):
    await client.start()
    try:
        yield client
    finally:
        await (client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())


def consumer(servers, *topics, **settings):
    defaults = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "heartbeat_interval_ms": 200}
    return running(AIOKafkaConsumer(*topics, bootstrap_servers=servers, **(defaults | settings)))


def producer(servers, **settings):
    return running(AIOKafkaProducer(bootstrap_servers=servers, **settings))


async def take(client, count) -> list[ConsumerRecord]:
    got: list[ConsumerRecord] = []
    while len(got) < count:
        for records in (await client.getmany(timeout_ms=200, max_records=count - len(got))).values():
            got.extend(records)
    return got


async def read(servers, topic, count, partition=0):
    async with consumer(servers) as client:
        client.assign([TopicPartition(topic, partition)])
        return await take(client, count)


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_comes_back_as_it_went(servers, made, codec):
    values = [b"%d" % i * 100 for i in range(300)]

    async def work():
        async with producer(servers, compression_type=codec, linger_ms=20) as client:
            for sent in [await client.send(made, value, partition=0) for value in values]:
                await sent
        return await read(servers, made, 300)

    assert [record.value for record in bounded(work())] == values


@pytest.mark.parametrize("settings", [{"acks": 0}, {"acks": 1}, {"acks": "all"}, {"enable_idempotence": True}])
def test_every_acks_delivers(servers, made, settings):
    async def work():
        async with producer(servers, **settings) as client:
            for sent in [await client.send(made, b"%d" % i, partition=0) for i in range(200)]:
                await sent
        return await read(servers, made, 200)

    assert [(record.offset, record.value) for record in bounded(work())] == [(i, b"%d" % i) for i in range(200)]


def test_keys_headers_timestamps_and_tombstones(servers, made):
    headers = [("a", b"1"), ("a", b"")]

    async def work():
        async with producer(servers) as client:
            await client.send_and_wait(made, None, b"k", 1, 1_600_000_000_123, headers)
        return await read(servers, made, 1, partition=1)

    [record] = bounded(work())
    assert (record.key, record.value, record.timestamp) == (b"k", None, 1_600_000_000_123)
    assert list(record.headers) == headers


def test_offsets_for_times_and_ends(servers, made):
    first, second = TopicPartition(made, 0), TopicPartition(made, 1)

    async def work():
        async with producer(servers) as client:
            for i in range(10):
                await client.send_and_wait(made, b"x", partition=0, timestamp_ms=1000 * (i + 1))
        async with consumer(servers) as client:
            found = await client.offsets_for_times({first: 3500, second: 3500})
            assert (found[first].offset, found[first].timestamp, found[second]) == (3, 4000, None)
            assert await client.beginning_offsets([first]) == {first: 0}
            assert await client.end_offsets([first, second]) == {first: 10, second: 0}

    bounded(work())


def test_two_members_share_a_topic_and_commit(servers, made):
    group = f"g-{made}"

    async def work():
        async with consumer(servers, made, group_id=group) as one, consumer(servers, made, group_id=group) as two:
            while [len(one.assignment()), len(two.assignment())] != [1, 1]:
                await asyncio.gather(one.getmany(timeout_ms=50), two.getmany(timeout_ms=50))
            assert one.assignment() | two.assignment() == {TopicPartition(made, 0), TopicPartition(made, 1)}
            async with producer(servers) as sender:
                for i in range(100):
                    await sender.send_and_wait(made, b"%d" % i, partition=i % 2)
            for client in (one, two):
                [at] = client.assignment()
                assert [record.offset for record in await take(client, 50)] == list(range(50))
                await client.commit({at: (30, "m")})
                assert await client.committed(at) == 30
        async with consumer(servers, made, group_id=group) as client:
            assert {record.offset for record in await take(client, 1)} == {30}

    bounded(work())


def test_topics_and_groups_through_its_admin(servers, made):
    group = f"g-{made}"

    async def work():
        async with running(AIOKafkaAdminClient(bootstrap_servers=servers)) as admin:
            assert made in await admin.list_topics()
            [described] = await admin.describe_topics([made])
            assert len(described["partitions"]) == 2
            async with consumer(servers, made, group_id=group) as client:
                await client.commit({TopicPartition(made, 0): (0, "")})
                assert group in {one[0] for one in await admin.list_consumer_groups()}
                assert await admin.describe_consumer_groups([group])
            kept = await admin.list_consumer_group_offsets(group)
            assert {at: found.offset for at, found in kept.items()} == {TopicPartition(made, 0): 0}
            await admin.delete_topics([made])
            assert made not in await admin.list_topics()

    bounded(work())
