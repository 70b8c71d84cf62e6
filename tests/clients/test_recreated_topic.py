"""A topic that is deleted and made again under the same name while it is read, on our broker and on Apache Kafka."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException

import headrace as hr
from headrace.errors import ConfigError

OLD, NEW = 100, 150


def options(**more):
    return {
        "auto.offset.reset": "earliest",
        "allow.auto.create.topics": False,
        "fetch.max.wait.ms": 200,
        "metadata.max.age.ms": 1000,
    } | more


def write(cluster, topic, values):
    with hr.Producer(cluster.bootstrap_servers) as producer:
        producer.send_arrow(topic, pa.table({"value": values}))


def read_some(consumer, deadline):
    got = []
    while len(got) < 5:
        assert time.monotonic() < deadline
        got += consumer.poll(1.0, max_records=1)["value"].to_pylist()


def make_again(cluster, topic, deadline):
    """More records than the old one had: its position is within the new one too."""
    cluster.delete_topic(topic)
    while True:
        try:
            cluster.create_topic(topic)
            break
        except KafkaException:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    write(cluster, topic, [b"new-%d" % i for i in range(NEW)])


def test_reading_goes_on_with_the_new_topic_and_nothing_of_the_old_one(cluster, topic):
    cluster.create_topic(topic)
    write(cluster, topic, [b"old"] * OLD)
    with hr.Consumer(cluster.bootstrap_servers, options()) as consumer:
        consumer.assign([(topic, 0)])
        deadline = time.monotonic() + 60
        read_some(consumer, deadline)
        make_again(cluster, topic, deadline)
        got = []
        # It may read on in what was fetched of the old one; not after the first row of the new one.
        while got[-1:] != [b"new-%d" % (NEW - 1)]:
            assert time.monotonic() < deadline, got
            try:
                got += consumer.poll(0.5, max_records=1)["value"].to_pylist()
            except hr.KafkaError as error:
                assert error.topic == topic, error  # noqa: PT017  (that it is gone may be told)
        assert got[got.index(b"new-0") :] == [b"new-%d" % i for i in range(NEW)]
        assert consumer.position((topic, 0)) == NEW


@pytest.mark.slow
def test_a_late_commit_of_the_old_topic_does_not_count_for_the_new_one(cluster, topic):
    cluster.create_topic(topic)
    write(cluster, topic, [b"old"] * OLD)
    # Nothing but the commit tells it that there is another topic: it asks for nothing and fetches nothing.
    quiet = options(**{"group.id": f"g-{topic}", "enable.auto.commit": False, "metadata.max.age.ms": 600_000})
    deadline = time.monotonic() + 60
    with hr.Consumer(cluster.bootstrap_servers, quiet) as consumer:
        consumer.subscribe([topic])
        rows = 0
        while rows < OLD:
            assert time.monotonic() < deadline
            rows += consumer.poll(1.0).num_rows
        consumer.pause([(topic, 0)])
        # What was asked for before the pause comes back before the topic goes: its answer would tell of that.
        assert consumer.poll(2.0).num_rows == 0
        make_again(cluster, topic, deadline)
        with pytest.raises(hr.KafkaError) as caught:
            consumer.commit()
        assert (caught.value.name, caught.value.topic) == ("UNKNOWN_TOPIC_ID", topic)
        assert consumer.committed([(topic, 0)]) == {(topic, 0): None}
        consumer.resume([(topic, 0)])
        got = []
        while len(got) < NEW:
            assert time.monotonic() < deadline, got
            got += consumer.poll(1.0)["value"].to_pylist()
        assert got == [b"new-%d" % i for i in range(NEW)]
        consumer.commit()
        assert consumer.committed([(topic, 0)]) == {(topic, 0): NEW}


def test_without_a_policy_a_topic_made_again_is_an_error(cluster, topic):
    cluster.create_topic(topic)
    write(cluster, topic, [b"old"] * OLD)
    nowhere = options(**{"auto.offset.reset": "none"})
    with hr.Consumer(cluster.bootstrap_servers, nowhere) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        deadline = time.monotonic() + 60
        read_some(consumer, deadline)
        make_again(cluster, topic, deadline)
        reported = None
        while not isinstance(reported, ConfigError):
            assert time.monotonic() < deadline, reported
            try:
                assert not any(value.startswith(b"new") for value in consumer.poll(0.5)["value"].to_pylist())
            except hr.KafkaError as error:
                reported = error
        assert "auto.offset.reset" in str(reported)
        assert topic in str(reported)
