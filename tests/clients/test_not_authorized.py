"""What a broker with ACLs refuses is a typed error that names the topic or the group."""

from __future__ import annotations

import time

import confluent_kafka.admin as confluent
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

import headrace as hr
from headrace.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

TIMEOUT = 15


def deny(admin, *denied):
    """Nobody may do anything with these topics and groups."""
    denials = [
        confluent.AclBinding(
            kind,
            name,
            confluent.ResourcePatternType.LITERAL,
            "User:ANONYMOUS",
            "*",
            confluent.AclOperation.ALL,
            confluent.AclPermissionType.DENY,
        )
        for kind, name in denied
    ]
    for future in admin.create_acls(denials).values():
        future.result(TIMEOUT)
    # The controller has them; the broker obeys them a little later.
    until = time.monotonic() + TIMEOUT
    for kind, name in denied:
        while kind is confluent.ResourceType.TOPIC and not refused(admin, name):
            assert time.monotonic() < until, name
            time.sleep(0.05)


def refused(admin, topic):
    error = admin.list_topics(topic, timeout=TIMEOUT).topics[topic].error
    return error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture
def guarded(own_apache_kafka, topic):
    """An Apache Kafka where nobody may touch one topic and one group; gives its address."""
    kafka = own_apache_kafka(
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        allow_everyone_if_no_acl_found="true",
    )
    admin = confluent.AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for name in (topic, f"{topic}-open"):
        admin.create_topics([confluent.NewTopic(name, 1, 1)])[name].result(TIMEOUT)
    deny(admin, (confluent.ResourceType.TOPIC, topic), (confluent.ResourceType.GROUP, f"g-{topic}"))
    return kafka.bootstrap_servers


@pytest.mark.kafka
def test_each_client_names_what_it_may_not_touch(guarded, topic):
    refused = pytest.raises(TopicAuthorizationFailedError, match=topic)
    with hr.Producer(guarded, max_block_ms=8000) as producer:
        with refused as caught:
            producer.send(topic, b"x").result(TIMEOUT)
        assert (caught.value.topic, caught.value.name) == (topic, "TOPIC_AUTHORIZATION_FAILED")
        assert not caught.value.retriable
        producer.flush()
        with refused:
            producer.send_arrow(topic, pa.table({"value": [b"x"]})).result(TIMEOUT)
        assert producer.send(f"{topic}-open", b"y").result(TIMEOUT).offset == 0
    with hr.Admin(guarded, default_api_timeout_ms=8000) as admin, refused:
        admin.describe_topics([topic])
    with refused:
        hr.read(guarded, topic, default_api_timeout_ms=8000)
    with hr.Consumer(guarded, auto_offset_reset="earliest", default_api_timeout_ms=8000) as consumer:
        consumer.assign([(topic, 0), (f"{topic}-open", 0)])
        rows = []
        with refused:
            for _ in range(40):
                rows += consumer.poll(0.5)["value"].to_pylist()
        for _ in range(40):
            if rows:
                break
            try:
                rows += consumer.poll(0.5)["value"].to_pylist()
            except TopicAuthorizationFailedError:
                continue
        assert rows == [b"y"]
    with hr.Consumer(guarded, group_id=f"g-{topic}", default_api_timeout_ms=8000) as consumer:
        with pytest.raises(GroupAuthorizationFailedError, match=f"g-{topic}"):
            consumer.committed([(f"{topic}-open", 0)])
        consumer.subscribe([f"{topic}-open"])
        with pytest.raises(GroupAuthorizationFailedError, match=f"g-{topic}"):
            for _ in range(40):
                consumer.poll(0.5)


def reported(share, kind, text):
    """What polls raise at last, and then again."""
    for _ in range(2):
        with pytest.raises(kind, match=text) as caught:
            for _ in range(40):
                assert share.poll(0.5).num_rows == 0
    return caught.value


@pytest.mark.kafka
def test_a_share_consumer_names_what_it_may_not_touch(guarded, topic):
    free = f"{topic}-open"
    with hr.Admin(guarded) as settings:
        settings.alter_group_config(f"s-{topic}", {"share.auto.offset.reset": "earliest"})
    with hr.ShareConsumer(guarded, group_id=f"g-{topic}") as share:
        share.subscribe([free])
        reported(share, GroupAuthorizationFailedError, f"g-{topic}")
        assert share.commit() == {}
    options = {"group_id": f"s-{topic}", "share_acknowledgement_mode": "explicit"}
    with hr.ShareConsumer(guarded, **options) as share, hr.Producer(guarded) as producer:
        share.subscribe([topic])
        reported(share, TopicAuthorizationFailedError, "may not do this with the topic")
        share.subscribe([free])
        producer.send(free, b"x").result(TIMEOUT)
        rows = None
        for _ in range(40):
            rows = share.poll(0.5)
            if rows.num_rows:
                break
        assert rows["value"].to_pylist() == [b"x"]
        # What it has of a topic that it may not read any more is not acknowledged.
        share.acknowledge(rows)
        deny(confluent.AdminClient({"bootstrap.servers": guarded}), (confluent.ResourceType.TOPIC, free))
        results = share.commit()
        assert isinstance(results[free, 0], TopicAuthorizationFailedError)
        assert (results[free, 0].topic, results[free, 0].partition) == (free, 0)
        assert reported(share, TopicAuthorizationFailedError, free).code == results[free, 0].code
