"""Topics, offsets and groups, against our broker and against Apache Kafka."""

from __future__ import annotations

import time
from datetime import datetime, timezone

import pytest

import headrace as hr
from headrace.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    KafkaTimeoutError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)


@pytest.fixture
def admin(cluster):
    with hr.Admin(cluster.bootstrap_servers) as client:
        yield client


def eventually(check, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_life_of_a_topic(admin, topic):
    admin.create_topic(topic, 2, 1, {"retention.ms": "3600000"})
    eventually(lambda: topic in admin.list_topics())
    description = admin.describe_topics([topic])[topic]
    assert [p.partition for p in description.partitions] == [0, 1]
    assert description.partitions[0].leader == admin.describe_cluster().nodes[0].node_id
    assert admin.describe_topic_config(topic)["retention.ms"] == "3600000"
    with pytest.raises(TopicAlreadyExistsError, match=topic) as caught:
        admin.create_topic(topic)
    assert caught.value.topic == topic
    admin.create_partitions(topic, 5)
    eventually(lambda: len(admin.describe_topics([topic])[topic].partitions) == 5)
    with pytest.raises(InvalidPartitionsError):
        admin.create_partitions(topic, 3)
    admin.delete_topics([topic])
    eventually(lambda: topic not in admin.list_topics())
    with pytest.raises(UnknownTopicOrPartitionError, match=topic):
        admin.describe_topics([topic])


def test_offsets(admin, cluster, topic):
    admin.create_topic(topic, 1, 1)
    with hr.Producer(cluster.bootstrap_servers, batch_size=1) as producer:
        for stamp in (3000, 1000, 2000):
            producer.send(topic, b"x", timestamp=stamp).result(10)
    at = lambda spec: admin.list_offsets({(topic, 0): spec})[topic, 0]  # noqa: E731
    assert at("earliest").offset == 0
    assert at("latest").offset == 3
    assert (at("max_timestamp").offset, at("max_timestamp").timestamp) == (0, 3000)
    assert at(1500).offset == 0
    assert at(datetime(2100, 1, 1, tzinfo=timezone.utc)).offset == -1
    assert admin.delete_records({(topic, 0): 2}) == {(topic, 0): 2}
    assert at("earliest").offset == 2
    with pytest.raises(UnknownTopicOrPartitionError, match=topic):
        admin.list_offsets({(topic, 9): "latest"})


def test_groups(admin, cluster, topic):
    admin.create_topic(topic, 2, 1)
    group = f"g-{topic}"
    admin.alter_group_offsets(group, {(topic, 0): 5, (topic, 1): 7})
    assert admin.group_offsets(group) == {(topic, 0): 5, (topic, 1): 7}
    assert group in {g.group_id for g in admin.list_groups()}
    admin.delete_groups([group])
    assert group not in {g.group_id for g in admin.list_groups()}


def test_the_cluster(admin, cluster):
    description = admin.describe_cluster()
    assert len(description.nodes) == 1
    host, port = cluster.bootstrap_servers.split(":")
    assert (description.nodes[0].host, description.nodes[0].port) == (host, int(port))


def test_settings_of_a_topic_are_changed_and_reset(admin, topic):
    admin.create_topic(topic, 1, 1, config={"retention.ms": "1000"})
    usual = admin.describe_topic_config(topic)["max.message.bytes"]
    admin.alter_topic_config(topic, {"retention.ms": "2000", "max.message.bytes": "4000"})
    there = admin.describe_topic_config(topic)
    assert (there["retention.ms"], there["max.message.bytes"]) == ("2000", "4000")
    admin.alter_topic_config(topic, {"max.message.bytes": None})
    there = admin.describe_topic_config(topic)
    assert (there["retention.ms"], there["max.message.bytes"]) == ("2000", usual)
    with pytest.raises(InvalidConfigError):
        admin.alter_topic_config(topic, {"retention.ms": "soon"})
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.alter_topic_config(f"{topic}-none", {"retention.ms": "1"})


def test_the_features(admin, cluster):
    found = admin.describe_features()
    # The embedded broker has none of what needs them.
    levels = {"transaction.version": 2, "share.version": 1} if cluster.kind == "apache" else {}
    assert {name: found.finalized_features.get(name) for name in levels} == levels
    assert bool(found.finalized_features) == (cluster.kind == "apache")
    for name, level in found.finalized_features.items():
        least, greatest = found.supported_features[name]
        assert least <= level <= greatest


def test_an_unreachable_broker_is_named():
    with hr.Admin("127.0.0.1:1", default_api_timeout_ms=800) as admin:
        begun = time.monotonic()
        with pytest.raises(KafkaTimeoutError, match=r"127\.0\.0\.1:1"):
            admin.list_topics()
        assert time.monotonic() - begun < 10
