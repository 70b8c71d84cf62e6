"""kafka-python, unchanged, on our broker."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import TopicAlreadyExistsError

TIMEOUT_SECONDS = 20
CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def servers(stock_servers):
    return stock_servers


@pytest.fixture
def admin(servers):
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=servers)) as client:
        yield client


@pytest.fixture
def made(admin, topic):
    """A topic of two partitions."""
    admin.create_topics([NewTopic(topic, 2, 1)], wait_for_metadata=True)
    return topic


def producer(servers, **settings):
    return contextlib.closing(KafkaProducer(bootstrap_servers=servers, **settings))


def consumer(servers, *topics, **settings):
    defaults = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "heartbeat_interval_ms": 200}
    return contextlib.closing(KafkaConsumer(*topics, bootstrap_servers=servers, **(defaults | settings)))


def take(client, count):
    got = []
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} of {count}"
        for records in client.poll(200, max_records=count - len(got)).values():
            got.extend(records)
    return got


def read(servers, topic, count, partition=0):
    with consumer(servers) as client:
        client.assign([TopicPartition(topic, partition)])
        return take(client, count)


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_comes_back_as_it_went(servers, made, codec):
    with producer(servers, compression_type=codec, linger_ms=20) as client:
        for i in range(300):
            client.send(made, b"%d" % i * 100, partition=0)
        client.flush(TIMEOUT_SECONDS)
    assert [record.value for record in read(servers, made, 300)] == [b"%d" % i * 100 for i in range(300)]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_delivers(servers, made, acks):
    with producer(servers, acks=acks, enable_idempotence=acks == "all") as client:
        sent = [client.send(made, b"%d" % i, partition=0) for i in range(200)]
        client.flush(TIMEOUT_SECONDS)
        if acks != 0:
            assert [one.get(TIMEOUT_SECONDS).offset for one in sent] == list(range(200))
    assert [record.value for record in read(servers, made, 200)] == [b"%d" % i for i in range(200)]


def test_keys_headers_timestamps_and_tombstones(servers, made):
    with producer(servers) as client:
        client.send(made, None, b"k", [("a", b"1"), ("a", b"")], 1, 1_600_000_000_123).get(TIMEOUT_SECONDS)
    [record] = read(servers, made, 1, partition=1)
    assert (record.key, record.value, record.timestamp) == (b"k", None, 1_600_000_000_123)
    assert [tuple(header) for header in record.headers] == [("a", b"1"), ("a", b"")]


def test_offsets_for_times_and_ends(servers, made):
    with producer(servers) as client:
        for i in range(10):
            client.send(made, b"x", partition=0, timestamp_ms=1000 * (i + 1))
        client.flush(TIMEOUT_SECONDS)
    first, second = TopicPartition(made, 0), TopicPartition(made, 1)
    with consumer(servers) as client:
        found = client.offsets_for_times({first: 3500, second: 3500})
        assert (found[first].offset, found[first].timestamp, found[second]) == (3, 4000, None)
        assert client.beginning_offsets([first]) == {first: 0}
        assert client.end_offsets([first, second]) == {first: 10, second: 0}
        client.assign([first])
        client.seek(first, 7)
        assert [record.offset for record in take(client, 3)] == [7, 8, 9]


@pytest.mark.slow
def test_two_members_share_a_topic_and_commit(servers, made):
    group = f"g-{made}"
    with (
        consumer(servers, made, group_id=group) as one,
        consumer(servers, made, group_id=group) as two,
        producer(servers) as sender,
    ):
        # A leader that has no metadata of the topic yet gives everyone nothing; the next round comes when it has. A
        # poll that ends while it joins can leave a member without heartbeats for good (3.0.12).
        deadline = time.monotonic() + 3 * TIMEOUT_SECONDS
        with ThreadPoolExecutor(2) as pool:
            while [len(one.assignment()), len(two.assignment())] != [1, 1]:
                assert time.monotonic() < deadline, (one.assignment(), two.assignment())
                list(pool.map(lambda client: client.poll(3000), (one, two)))
        assert one.assignment() | two.assignment() == {TopicPartition(made, 0), TopicPartition(made, 1)}
        for i in range(100):
            sender.send(made, b"%d" % i, partition=i % 2)
        sender.flush(TIMEOUT_SECONDS)
        for client in (one, two):
            [at] = client.assignment()
            assert [record.offset for record in take(client, 50)] == list(range(50))
            client.commit({at: OffsetAndMetadata(30, "m", -1)})
            assert client.committed(at) == 30
    with consumer(servers, made, group_id=group) as client:
        assert {record.offset for record in take(client, 2)} >= {30}


def test_topics_and_groups_through_its_admin(servers, admin, made):
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(made, 2, 1)])
    assert made in {one["name"] if isinstance(one, dict) else one for one in admin.list_topics()}
    admin.create_partitions({made: 3})
    [described] = admin.describe_topics([made])
    assert len(described["partitions"]) == 3
    group = f"g-{made}"
    with consumer(servers, group_id=group) as client:
        # Metadata that comes while it assigns as leader starts no new round, so it is to know the topic before.
        assert client.partitions_for_topic(made) == {0, 1, 2}
        client.subscribe([made])
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(client.assignment()) != 3:
            assert time.monotonic() < deadline
            client.poll(500)
        client.commit({TopicPartition(made, 0): OffsetAndMetadata(0, "", -1)})
        assert len(admin.describe_groups([group])[group]["members"]) == 1
    assert group in {one["group_id"] for one in admin.list_groups()}
    assert admin.delete_groups([group]) == {group: "OK"}
    assert group not in {one["group_id"] for one in admin.list_groups()}
    admin.delete_topics([made])
    assert made not in {one["name"] if isinstance(one, dict) else one for one in admin.list_topics()}
