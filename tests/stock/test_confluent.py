"""confluent-kafka (librdkafka), unchanged, on our broker."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

TIMEOUT_SECONDS = 15
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def servers(stock_servers):
    return stock_servers


@pytest.fixture
def admin(servers):
    return AdminClient({"bootstrap.servers": servers, "log_level": 4})


@pytest.fixture
def made(admin, topic):
    """A topic of two partitions."""
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(TIMEOUT_SECONDS)
    return topic


@contextmanager
def consumer(servers, **settings):
    defaults = {
        "bootstrap.servers": servers,
        "group.id": "unused",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "check.crcs": True,
        "heartbeat.interval.ms": 200,
        "session.timeout.ms": 10_000,
        "fetch.wait.max.ms": 100,
    }
    client = Consumer(defaults | {name.replace("_", "."): value for name, value in settings.items()})
    try:
        yield client
    finally:
        client.close()


def send(servers, topic, messages, **settings):
    """Sends, waits for every delivery report and returns the messages that came back in them."""
    reports = []

    def delivered(error, message):
        assert error is None, error
        reports.append(message)

    producer = Producer(
        {"bootstrap.servers": servers, "linger.ms": 20}
        | {name.replace("_", "."): value for name, value in settings.items()}
    )
    for message in messages:
        producer.produce(topic, on_delivery=delivered, **message)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert len(reports) == len(messages)
    return reports


def take(client, count):
    """The next `count` messages."""
    got = []
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} of {count}"
        for message in client.consume(count - len(got), 0.2):
            assert message.error() is None, message.error()
            got.append(message)
    return got


def read(servers, topic, count, partition=0):
    with consumer(servers) as client:
        client.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        return take(client, count)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_delivers(servers, made, acks):
    messages = [{"value": b"%d" % i, "partition": 0} for i in range(500)]
    reports = send(servers, made, messages, acks=acks)
    got = read(servers, made, 500)
    assert [message.value() for message in got] == [b"%d" % i for i in range(500)]
    if acks != "0":
        assert [message.offset() for message in reports] == list(range(500))


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_comes_back_as_it_went(servers, made, codec):
    values = [(b"%d" % i) * 100 for i in range(300)]
    send(servers, made, [{"value": value, "partition": 0} for value in values], compression_type=codec)
    assert [message.value() for message in read(servers, made, 300)] == values


def test_an_idempotent_producer_numbers_over_batches(servers, made):
    messages = [{"value": b"%d" % i, "partition": i % 2} for i in range(3000)]
    send(servers, made, messages, enable_idempotence=True, batch_num_messages=50, linger_ms=1)
    for partition in (0, 1):
        got = read(servers, made, 1500, partition)
        assert [message.value() for message in got] == [b"%d" % i for i in range(partition, 3000, 2)]
        assert [message.offset() for message in got] == list(range(1500))


def test_keys_headers_timestamps_and_tombstones(servers, made):
    headers = [("a", b"1"), ("a", b"2"), ("empty", b""), ("none", None)]
    sent = {"key": b"k", "value": None, "headers": headers, "timestamp": 1_600_000_000_123, "partition": 1}
    send(servers, made, [sent, {"value": b"", "key": b"", "partition": 1, "timestamp": 5}])
    first, second = read(servers, made, 2, partition=1)
    assert (first.key(), first.value(), first.headers()) == (b"k", None, headers)
    assert first.timestamp()[1] == 1_600_000_000_123
    assert (second.key(), second.value(), second.timestamp()[1]) == (b"", b"", 5)


def test_a_message_of_half_a_mebibyte(servers, made):
    value = bytes(range(256)) * 2048
    send(servers, made, [{"value": value, "partition": 0}])
    assert read(servers, made, 1)[0].value() == value


def test_what_is_too_large_is_refused_and_nothing_is_kept(servers, admin, topic):
    admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "1000"})])[topic].result(TIMEOUT_SECONDS)
    errors = []
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, b"x" * 5000, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert [error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]
    latest = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()})
    assert [future.result(TIMEOUT_SECONDS).offset for future in latest.values()] == [0]


def test_a_topic_is_made_by_the_first_message(servers, topic):
    send(servers, topic, [{"value": b"x"}])
    with consumer(servers, allow_auto_create_topics=True) as client:
        client.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        assert take(client, 1)[0].value() == b"x"


def test_the_end_of_a_partition_is_told(servers, made):
    send(servers, made, [{"value": b"x", "partition": 0}])
    with consumer(servers, enable_partition_eof=True) as client:
        client.assign([TopicPartition(made, 0, OFFSET_BEGINNING)])
        assert client.poll(TIMEOUT_SECONDS).value() == b"x"
        assert client.poll(TIMEOUT_SECONDS).error().code() == KafkaError._PARTITION_EOF


def test_watermarks_seeks_and_offsets_for_times(servers, made):
    send(servers, made, [{"value": b"%d" % i, "partition": 0, "timestamp": 1000 * (i + 1)} for i in range(10)])
    with consumer(servers) as client:
        assert client.get_watermark_offsets(TopicPartition(made, 0), TIMEOUT_SECONDS) == (0, 10)
        asked = [TopicPartition(made, 0, 3500), TopicPartition(made, 1, 3500)]
        found = client.offsets_for_times(asked, TIMEOUT_SECONDS)
        assert [(at.partition, at.offset) for at in found] == [(0, 3), (1, -1)]
        client.assign([TopicPartition(made, 0, 8)])
        assert take(client, 1)[0].offset() == 8
        client.seek(TopicPartition(made, 0, 2))
        assert [message.offset() for message in take(client, 3)] == [2, 3, 4]


class Member:
    """A group member that polls on a thread of its own, as applications do."""

    def __init__(self, servers, group, topic, **settings):
        self.seen = []
        self.assigned = None
        self.over = threading.Event()
        self.arguments = (servers, group, topic, settings)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        servers, group, topic, settings = self.arguments
        with consumer(servers, group_id=group, enable_auto_commit=True, **settings) as client:
            client.subscribe([topic])
            while not self.over.is_set():
                for message in client.consume(100, 0.05):
                    assert message.error() is None, message.error()
                    self.seen.append((message.partition(), message.offset()))
                self.assigned = sorted(at.partition for at in client.assignment())

    def leave(self):
        self.over.set()
        self.thread.join(TIMEOUT_SECONDS)
        assert not self.thread.is_alive()


def eventually(check, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_two_members_share_a_topic_and_hand_it_over(servers, made, strategy):
    group = f"g-{made}"
    settings = {"partition_assignment_strategy": strategy}
    send(servers, made, [{"value": b"%d" % i, "partition": i % 2} for i in range(200)])
    members = []
    try:
        members.append(Member(servers, group, made, **settings))
        eventually(lambda: members[0].assigned == [0, 1] and len(members[0].seen) == 200)
        members.append(Member(servers, group, made, **settings))
        eventually(lambda: sorted((members[0].assigned or []) + (members[1].assigned or [])) == [0, 1])
        eventually(lambda: len(members[0].assigned) == 1)
        members[0].leave()
        eventually(lambda: members[1].assigned == [0, 1])
        send(servers, made, [{"value": b"more", "partition": i % 2} for i in range(20)])
        eventually(lambda: {(0, 109), (1, 109)} <= set(members[1].seen))
    finally:
        for member in members:
            member.leave()


def test_a_static_member_comes_back_without_a_rebalance(servers, made):
    group = f"g-{made}"
    rebalances = []
    with consumer(servers, group_id=group, group_instance_id="b") as other:
        other.subscribe([made], on_assign=lambda _, parts: rebalances.append(sorted(at.partition for at in parts)))
        mine = []
        for _ in range(2):
            with consumer(servers, group_id=group, group_instance_id="a") as client:
                client.subscribe([made])
                deadline = time.monotonic() + 20
                while len(client.assignment()) != 1 or len(other.assignment()) != 1:
                    assert time.monotonic() < deadline, (client.assignment(), other.assignment())
                    client.poll(0.05)
                    other.poll(0.05)
                mine.append(client.assignment()[0].partition)
                before = len(rebalances)
        for _ in range(10):
            other.poll(0.05)
        assert mine[0] == mine[1]
        assert len(rebalances) == before
        assert len(other.assignment()) == 1


def test_two_static_members_of_one_name_do_not_live_together(servers, made):
    settings = {"group_id": f"g-{made}", "group_instance_id": "same"}
    with consumer(servers, **settings) as first, consumer(servers, **settings) as second:
        first.subscribe([made])
        eventually(lambda: first.poll(0.05) is None and len(first.assignment()) == 2)
        second.subscribe([made])
        eventually(lambda: second.poll(0.05) is None and len(second.assignment()) == 2)
        errors = []

        def fenced():
            message = first.poll(0.05)
            if message is not None and message.error() is not None:
                errors.append(message.error().code())
            return KafkaError._FATAL in errors or KafkaError.FENCED_INSTANCE_ID in errors

        eventually(fenced)


def test_commits_last_and_are_shown(servers, made):
    group = f"g-{made}"
    send(servers, made, [{"value": b"%d" % i, "partition": 0} for i in range(10)])
    with consumer(servers, group_id=group) as client:
        client.subscribe([made])
        take(client, 4)
        [done] = client.commit(offsets=[TopicPartition(made, 0, 4, "why")], asynchronous=False)
        assert (done.offset, done.error) == (4, None)
        found = client.committed([TopicPartition(made, 0), TopicPartition(made, 1)], TIMEOUT_SECONDS)
        assert [(at.partition, at.offset) for at in found] == [(0, 4), (1, -1001)]
    with consumer(servers, group_id=group) as client:
        client.subscribe([made])
        assert take(client, 1)[0].offset() == 4


def test_groups_are_listed_described_altered_and_deleted(servers, admin, made):
    group = f"g-{made}"
    with consumer(servers, group_id=group, client_id="someone") as client:
        client.subscribe([made])
        eventually(lambda: client.poll(0.05) is None and len(client.assignment()) == 2)
        client.commit(offsets=[TopicPartition(made, 0, 0)], asynchronous=False)
        listed = admin.list_consumer_groups(request_timeout=TIMEOUT_SECONDS).result(TIMEOUT_SECONDS)
        assert group in {one.group_id for one in listed.valid}
        described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_SECONDS)
        assert described.state.name == "STABLE"
        assert [member.client_id for member in described.members] == ["someone"]
        assert [at.partition for at in described.members[0].assignment.topic_partitions] == [0, 1]
        with pytest.raises(KafkaException) as refused:
            admin.delete_consumer_groups([group])[group].result(TIMEOUT_SECONDS)
        assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    from confluent_kafka import ConsumerGroupTopicPartitions  # noqa: PLC0415 -- used here alone

    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(made, 0, 7)])
    admin.alter_consumer_group_offsets([wanted])[group].result(TIMEOUT_SECONDS)
    kept = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(TIMEOUT_SECONDS)
    assert [(at.topic, at.partition, at.offset) for at in kept.topic_partitions] == [(made, 0, 7)]
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_SECONDS)
    listed = admin.list_consumer_groups(request_timeout=TIMEOUT_SECONDS).result(TIMEOUT_SECONDS)
    assert group not in {one.group_id for one in listed.valid}


def test_topics_are_made_described_widened_and_deleted(admin, topic):
    new = NewTopic(topic, 1, 1, config={"retention.ms": "60000"})
    admin.create_topics([new])[topic].result(TIMEOUT_SECONDS)
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([new])[topic].result(TIMEOUT_SECONDS)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    resource = ConfigResource(ResourceType.TOPIC, topic)
    config = admin.describe_configs([resource])[resource].result(TIMEOUT_SECONDS)
    assert config["retention.ms"].value == "60000"
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(TIMEOUT_SECONDS)
    assert len(admin.list_topics(topic, TIMEOUT_SECONDS).topics[topic].partitions) == 3
    cluster = admin.describe_cluster().result(TIMEOUT_SECONDS)
    assert len(cluster.nodes) == 1
    admin.delete_topics([topic])[topic].result(TIMEOUT_SECONDS)
    assert topic not in admin.list_topics(timeout=TIMEOUT_SECONDS).topics


def test_records_are_deleted_up_to_an_offset(servers, admin, made):
    send(servers, made, [{"value": b"%d" % i, "partition": 0} for i in range(10)])
    at = TopicPartition(made, 0, 6)
    [future] = admin.delete_records([at]).values()
    assert future.result(TIMEOUT_SECONDS).low_watermark == 6
    assert read(servers, made, 1)[0].offset() == 6
