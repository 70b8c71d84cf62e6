"""The same bad admin requests to our broker and to Apache Kafka: the same codes, and the same words for people.

Requests are made of kafka-python's messages, as no admin client would send most of them. Where our broker differs on
purpose the case says so, with what it answers.
"""

from __future__ import annotations

import socket
import struct
import uuid
from contextlib import closing

import pytest
from confluent_kafka import Producer
from kafka.protocol import admin as messages

pytestmark = pytest.mark.kafka

NONE, UNKNOWN_TOPIC, INVALID_CONFIG, INVALID_REQUEST, POLICY_VIOLATION = 0, 3, 40, 42, 44
UNKNOWN_SERVER_ERROR = -1
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
NO_ID = uuid.UUID(int=0)
SOME_ID = uuid.UUID(int=77)

# Settings that our broker has at Kafka's default only: a value of each that Kafka takes or refuses.
ONLY_DEFAULT = {
    "compression.gzip.level": "5",
    "compression.lz4.level": "18",
    "compression.type": "gzip",
    "compression.zstd.level": "23",
    "file.delete.delay.ms": "-1",
    "follower.replication.throttled.replicas": "0:1",
    "leader.replication.throttled.replicas": "*",
    "local.retention.bytes": "5",
    "local.retention.ms": "-3",
    "preallocate": "true",
    "remote.log.copy.disable": "true",
    "remote.log.delete.on.disable": "true",
    "remote.storage.enable": "true",
    "segment.jitter.ms": "-1",
}

WRONG_SETTINGS = [
    ("nope", "1"),
    ("message.format.version", "3.0"),
    ("retention.mss", "1"),
    ("retention.ms", "soon"),
    ("retention.ms", "-2"),
    ("retention.ms", ""),
    ("retention.ms", None),
    ("retention.ms", " 5 "),
    ("segment.bytes", "100"),
    ("segment.bytes", "99999999999"),
    ("segment.index.bytes", "3"),
    ("segment.ms", "0"),
    ("cleanup.policy", "burn"),
    ("cleanup.policy", "delete,burn"),
    ("cleanup.policy", ""),
    ("cleanup.policy", "delete,delete"),
    ("preallocate", "maybe"),
    ("preallocate", " False "),
    ("remote.storage.enable", "no"),
    ("min.cleanable.dirty.ratio", "2"),
    ("min.cleanable.dirty.ratio", "-0.5"),
    ("min.cleanable.dirty.ratio", "x"),
    ("message.timestamp.type", "now"),
    ("message.timestamp.before.max.ms", "-1"),
    ("max.message.bytes", "-1"),
    ("index.interval.bytes", "-1"),
    ("flush.messages", "0"),
    ("flush.ms", "-1"),
    ("delete.retention.ms", "-1"),
    ("max.compaction.lag.ms", "0"),
    ("min.compaction.lag.ms", "-1"),
    ("min.insync.replicas", "0"),
    ("unclean.leader.election.enable", "perhaps"),
]


class Peer:
    """A connection on which each answer is awaited."""

    def __init__(self, bootstrap_servers):
        host, port = bootstrap_servers.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)

    def close(self):
        self.socket.close()

    def ask(self, name, version, **fields):
        request = getattr(messages, f"{name}Request")[version](**fields)
        request.with_header(correlation_id=1, client_id="bad")
        self.socket.sendall(request.encode(framed=True, header=True))
        size = struct.unpack(">i", self._exactly(4))[0]
        response = getattr(messages, f"{name}Response")
        return response.decode(self._exactly(size), version=version, header=True)

    def _exactly(self, count):
        got = self.socket.recv(count, socket.MSG_WAITALL)
        assert len(got) == count, "the broker has closed the connection"
        return got

    def create(self, *topics, version=7, dry=True):
        """Codes and messages by topic; each is (name, partitions, replication, assignments, settings)."""
        topic = messages.CreateTopicsRequest.CreatableTopic
        wanted = [
            topic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication,
                assignments=[topic.CreatableReplicaAssignment(partition_index=p, broker_ids=b) for p, b in assignments],
                configs=[topic.CreatableTopicConfig(name=key, value=value) for key, value in settings],
            )
            for name, partitions, replication, assignments, settings in topics
        ]
        answer = self.ask("CreateTopics", version, topics=wanted, timeout_ms=10_000, validate_only=dry)
        return sorted((t.name, t.error_code, t.error_message) for t in answer.topics)

    def delete(self, *topics, version=6):
        """Codes and messages by topic; each is (name, id)."""
        state = messages.DeleteTopicsRequest.DeleteTopicState
        named = {"topics": [state(name=name, topic_id=number) for name, number in topics]}
        if version < 6:
            named = {"topic_names": [name for name, _ in topics]}
        answer = self.ask("DeleteTopics", version, timeout_ms=10_000, **named)
        message = (lambda t: t.error_message) if version >= 5 else (lambda _: None)
        return sorted((str(t.name), t.error_code, message(t)) for t in answer.responses)

    def extend(self, *topics):
        """Codes and messages by topic; each is (name, count, brokers by partition or None)."""
        topic = messages.CreatePartitionsRequest.CreatePartitionsTopic
        wanted = [
            topic(
                name=name,
                count=count,
                assignments=None
                if brokers is None
                else [topic.CreatePartitionsAssignment(broker_ids=one) for one in brokers],
            )
            for name, count, brokers in topics
        ]
        answer = self.ask("CreatePartitions", 3, topics=wanted, timeout_ms=10_000, validate_only=True)
        return sorted((t.name, t.error_code, t.error_message) for t in answer.results)

    def alter(self, *resources):
        """Codes and messages by resource; each is (type, name, settings)."""
        resource = messages.AlterConfigsRequest.AlterConfigsResource
        wanted = [
            resource(
                resource_type=kind,
                resource_name=name,
                configs=[resource.AlterableConfig(name=key, value=value) for key, value in settings],
            )
            for kind, name, settings in resources
        ]
        answer = self.ask("AlterConfigs", 2, resources=wanted, validate_only=True)
        return sorted((r.resource_name, r.error_code, r.error_message) for r in answer.responses)

    def change(self, *resources):
        """Codes and messages by resource; each is (type, name, changes), these (setting, operation, value)."""
        resource = messages.IncrementalAlterConfigsRequest.AlterConfigsResource
        wanted = [
            resource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    resource.AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in changes
                ],
            )
            for kind, name, changes in resources
        ]
        answer = self.ask("IncrementalAlterConfigs", 1, resources=wanted, validate_only=True)
        return sorted((r.resource_name, r.error_code, r.error_message) for r in answer.responses)

    def describe(self, kind, name):
        """Code and message of one resource."""
        resource = messages.DescribeConfigsRequest.DescribeConfigsResource
        one = resource(resource_type=kind, resource_name=name, configuration_keys=None)
        answer = self.ask("DescribeConfigs", 4, resources=[one], include_synonyms=False, include_documentation=False)
        return [(r.resource_name, r.error_code, r.error_message) for r in answer.results]

    def default_settings(self, name):
        """A topic's settings, by name."""
        resource = messages.DescribeConfigsRequest.DescribeConfigsResource
        one = resource(resource_type=TOPIC, resource_name=name, configuration_keys=None)
        answer = self.ask("DescribeConfigs", 4, resources=[one], include_synonyms=False, include_documentation=False)
        return {config.name: config.value for config in answer.results[0].configs}

    def delete_records(self, name, *partitions):
        """Partition, low watermark and code of each partition; each is (partition, offset)."""
        topic = messages.DeleteRecordsRequest.DeleteRecordsTopic
        one = topic(
            name=name,
            partitions=[topic.DeleteRecordsPartition(partition_index=p, offset=o) for p, o in partitions],
        )
        answer = self.ask("DeleteRecords", 2, topics=[one], timeout_ms=10_000)
        return [(p.partition_index, p.low_watermark, p.error_code) for t in answer.topics for p in t.partitions]


@pytest.fixture(scope="module")
def brokers(embedded_broker, apache_kafka):
    """Connections to ours and to Apache Kafka."""
    with (
        closing(Peer(embedded_broker.bootstrap_servers)) as ours,
        closing(Peer(apache_kafka.bootstrap_servers)) as kafka,
    ):
        yield ours, kafka


@pytest.fixture
def made(brokers, topic):
    """A topic of two partitions on both."""
    for broker in brokers:
        assert broker.create(new(topic, 2), dry=False) == [(topic, NONE, None)]
    return topic


def new(name, partitions=1, replication=1, assignments=(), settings=()):
    return name, partitions, replication, assignments, settings


def same(brokers, verb, *arguments, **options):
    """Both give the same codes and say the same. Ours may add to Kafka's words, and speak where Kafka is silent."""
    ours, kafka = (getattr(broker, verb)(*arguments, **options) for broker in brokers)
    assert [answer[:2] for answer in ours] == [answer[:2] for answer in kafka], (arguments, ours, kafka)
    for (*_, said), (*_, expected) in zip(ours, kafka, strict=True):
        assert (said or "").startswith(expected or ""), arguments
    return ours


def apart(brokers, verb, *arguments, kafka, ours):
    """They differ on purpose: `kafka` is its code, `ours` our code and a part of what we say."""
    answers = [getattr(broker, verb)(*arguments) for broker in brokers]
    code, words = ours
    assert [answer[1] for answer in answers[1]] == [kafka] * len(answers[1]), answers
    assert all(answer[1] == code and words in (answer[2] or "") for answer in answers[0]), answers


def test_names_of_new_topics(brokers, made):
    said = same(brokers, "create", new(made))
    assert said[0][2] == f"Topic '{made}' already exists."
    for name in ("", ".", "..", "a b", "a/b", "x" * 250):
        same(brokers, "create", new(name))
    for broker in brokers:
        broker.create(new(f"{made}.d"), dry=False)
    same(brokers, "create", new(f"{made}_d"))
    same(brokers, "create", new(f"{made}x"), new(f"{made}x"))
    same(brokers, "create", new(made), new("a b"), new(f"{made}x", 0))


def test_partitions_and_replicas_of_new_topics(brokers, topic):
    for partitions in (0, -1, -2, 10_001, 20_000):
        same(brokers, "create", new(topic, partitions))
    same(brokers, "create", new(topic, 5001), new(f"{topic}b", 5001))
    same(brokers, "create", new(topic, -1, -1), version=3)
    for replication in (0, -2):
        same(brokers, "create", new(topic, 1, replication))
    # Kafka's message goes on about folders that are cordoned off.
    reached = "cannot be reached because only 1 broker(s) are registered"
    apart(brokers, "create", new(topic, 1, 3), kafka=38, ours=(38, reached))
    for assignments in (
        [(1, [1])],
        [(0, [1]), (2, [1])],
        [(0, [1]), (0, [1])],
        [(-1, [1])],
        [(0, [])],
        [(0, [9])],
        [(0, [-1])],
        [(0, [1, 1])],
        [(0, [1]), (1, [1, 9])],
    ):
        same(brokers, "create", new(topic, -1, -1, assignments))
    for partitions, replication in ((1, -1), (-1, 1), (1, 1)):
        same(brokers, "create", new(topic, partitions, replication, [(0, [1])]))


@pytest.mark.parametrize(("name", "value"), WRONG_SETTINGS, ids=str)
def test_wrong_settings(brokers, made, name, value):
    same(brokers, "create", new(f"{made}x", settings=[(name, value)]))
    if value is not None:
        same(brokers, "alter", (TOPIC, made, [(name, value)]))
        same(brokers, "change", (TOPIC, made, [(name, SET, value)]))


def test_settings_of_kafka_are_accepted_at_their_defaults(brokers, made):
    ours, kafka = (broker.default_settings(made) for broker in brokers)
    # The fixture sets this one for Kafka.
    kafka["file.delete.delay.ms"] = "60000"
    assert ours == kafka
    all_of_them = sorted(kafka.items())
    same(brokers, "create", new(f"{made}x", settings=all_of_them))
    same(brokers, "alter", (TOPIC, made, all_of_them))
    same(brokers, "change", (TOPIC, made, [(name, SET, value) for name, value in all_of_them]))


@pytest.mark.parametrize(("name", "value"), ONLY_DEFAULT.items())
def test_what_our_broker_does_not_do_is_refused_by_name(brokers, made, name, value):
    ours = brokers[0]
    for _, code, said in (
        *ours.create(new(f"{made}x", settings=[(name, value)])),
        *ours.alter((TOPIC, made, [(name, value)])),
        *ours.change((TOPIC, made, [(name, SET, value)])),
    ):
        assert code == INVALID_CONFIG
        assert said.startswith(f"Invalid value {value} for configuration {name}: this broker ")
        assert "docs/broker.md" in said


@pytest.mark.parametrize(
    ("name", "value"), [("min.insync.replicas", "2"), ("unclean.leader.election.enable", "true")], ids=str
)
def test_settings_of_copies_are_taken_where_there_is_one_broker(brokers, made, name, value):
    same(brokers, "create", new(f"{made}x", settings=[(name, value)]))
    same(brokers, "alter", (TOPIC, made, [(name, value)]))


def test_all_copies_are_enough_where_there_are_fewer_than_min_insync_replicas(brokers, topic):
    for broker in brokers:
        assert broker.create(new(topic, settings=[("min.insync.replicas", "2")]), dry=False) == [(topic, NONE, None)]
        host, port = broker.socket.getpeername()
        errors = []
        producer = Producer({"bootstrap.servers": f"{host}:{port}", "acks": "all", "retries": 0})
        producer.produce(topic, b"x", on_delivery=lambda error, _, errors=errors: errors.append(error))
        assert producer.flush(20) == 0
        assert errors == [None]


def test_settings_that_contradict_each_other(brokers, made):
    lags = [("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5")]
    same(brokers, "create", new(f"{made}x", settings=lags))
    same(brokers, "alter", (TOPIC, made, lags))


def test_topics_that_cannot_be_deleted(brokers, made):
    for version in (1, 5, 6):
        same(brokers, "delete", (f"no-{made}", NO_ID), version=version)
    same(brokers, "delete", (f"no-{made}", NO_ID), (f"no-{made}", NO_ID))
    same(brokers, "delete", (made, NO_ID), (made, NO_ID))
    same(brokers, "delete", (None, SOME_ID))
    same(brokers, "delete", (None, SOME_ID), (None, SOME_ID))
    same(brokers, "delete", (None, NO_ID))
    same(brokers, "delete", (made, SOME_ID))
    for name in ("", "a b"):
        same(brokers, "delete", (name, NO_ID))
    assert same(brokers, "describe", TOPIC, made)[0][1] == NONE, "it is there still"


def test_partitions_that_cannot_be_added(brokers, made):
    for count in (2, 1, 0, -1, -2):
        same(brokers, "extend", (made, count, None))
    for name in (f"no-{made}", "a b"):
        same(brokers, "extend", (name, 3, None))
    for brokers_of in ([[1]], [[1]] * 3, [], [[1], []], [[1], [9]], [[1], [1, 1]]):
        same(brokers, "extend", (made, 4, brokers_of))
    same(brokers, "extend", (made, 3, None), (made, 4, None))
    apart(brokers, "extend", (made, 20_000, None), kafka=UNKNOWN_SERVER_ERROR, ours=(POLICY_VIOLATION, "Excessively"))


@pytest.mark.parametrize("verb", ["alter", "change"])
def test_resources_that_cannot_be_altered(brokers, made, verb):
    def settings(*pairs):
        return [(name, SET, value) if verb == "change" else (name, value) for name, value in pairs]

    one = settings(("retention.ms", "5"))
    for kind, name in ((TOPIC, f"no-{made}"), (TOPIC, "a b"), (TOPIC, ""), (BROKER, "9"), (BROKER, "x"), (99, "x")):
        same(brokers, verb, (kind, name, one))
    same(brokers, verb, (TOPIC, made, settings(("retention.ms", "5"), ("retention.ms", "6"))))
    if verb == "change":
        same(brokers, verb, (TOPIC, made, one), (TOPIC, made, one))
    else:
        # Kafka never answers this.
        twice = brokers[0].alter((TOPIC, made, one), (TOPIC, made, one))
        assert twice == [(made, INVALID_REQUEST, "Each resource must appear at most once.")] * 2
    null = (INVALID_REQUEST, "Null value not supported for topic configs: retention.ms")
    apart(brokers, verb, (TOPIC, made, settings(("retention.ms", None))), kafka=INVALID_REQUEST, ours=null)
    starts = (INVALID_REQUEST, "given when it starts: docs/broker.md")
    apart(brokers, verb, (BROKER, "1", settings(("log.retention.ms", "5"))), kafka=NONE, ours=starts)
    for kind, code in ((CLIENT_METRICS, INVALID_REQUEST), (GROUP, INVALID_CONFIG)):
        lacks = (INVALID_REQUEST, "docs/compatibility.md#what-the-embedded-broker-lacks")
        apart(brokers, verb, (kind, "x", settings(("kafka", "5"))), kafka=code, ours=lacks)


def test_changes_that_cannot_be(brokers, made):
    for change in (
        ("retention.ms", APPEND, "5"),
        ("retention.ms", SUBTRACT, "5"),
        ("nope", APPEND, "5"),
        ("nope", DELETE, None),
        ("retention.ms", DELETE, "7"),
        ("cleanup.policy", APPEND, "burn"),
        ("cleanup.policy", APPEND, "delete"),
        ("cleanup.policy", SUBTRACT, "delete"),
    ):
        same(brokers, "change", (TOPIC, made, [change]))
    unknown = ("retention.ms", 9, "5")
    apart(
        brokers,
        "change",
        (TOPIC, made, [unknown]),
        kafka=UNKNOWN_SERVER_ERROR,
        ours=(INVALID_REQUEST, "Unknown operation 9 on retention.ms"),
    )


def test_resources_that_cannot_be_described(brokers, made):
    for kind, name in ((TOPIC, f"no-{made}"), (TOPIC, "a b"), (TOPIC, ""), (BROKER, "9"), (BROKER, "x"), (BROKER, "")):
        same(brokers, "describe", kind, name)
    apart(brokers, "describe", 99, "x", kafka=INVALID_REQUEST, ours=(INVALID_REQUEST, "Unknown resource type 99"))
    for kind, code in ((LOGGER, INVALID_REQUEST), (CLIENT_METRICS, NONE), (GROUP, NONE)):
        apart(brokers, "describe", kind, "x", kafka=code, ours=(INVALID_REQUEST, "docs/compatibility.md#"))


def test_records_that_cannot_be_deleted(brokers, made):
    for partitions in ([(7, 0)], [(-1, 0)], [(0, 5)], [(0, -2)], [(0, -1)], [(0, 0)]):
        ours, kafka = (broker.delete_records(made, *partitions) for broker in brokers)
        assert ours == kafka
    for name in (f"no-{made}", "a b"):
        ours, kafka = (broker.delete_records(name, (0, 0)) for broker in brokers)
        assert ours == kafka == [(0, -1, UNKNOWN_TOPIC)]
