"""A topic that is deleted while it is read, on our broker and on Apache Kafka."""

from __future__ import annotations

import time

import pytest

import headrace as hr


@pytest.mark.slow
def test_a_topic_deleted_while_it_is_read_is_named_and_the_others_go_on(cluster, topic):
    doomed = f"{topic}-doomed"
    for name in (topic, doomed):
        cluster.create_topic(name)
    options = {"auto.offset.reset": "earliest", "allow.auto.create.topics": False, "fetch.max.wait.ms": 200}
    with (
        hr.Producer(cluster.bootstrap_servers) as producer,
        hr.Consumer(cluster.bootstrap_servers, options) as consumer,
    ):
        for name in (topic, doomed):
            producer.send(name, b"before").result(10)
        consumer.assign([(doomed, 0), (topic, 0)])
        got = []
        deadline = time.monotonic() + 20
        while len(got) < 2:
            assert time.monotonic() < deadline
            got += consumer.poll(1.0)["topic"].to_pylist()
        assert sorted(got) == sorted([topic, doomed])
        cluster.delete_topic(doomed)
        with pytest.raises(hr.KafkaError, match=doomed) as caught:
            while time.monotonic() < deadline:
                assert consumer.poll(0.5).num_rows == 0
        assert caught.value.topic == doomed
        producer.send(topic, b"after").result(10)
        rest = []
        while not rest and time.monotonic() < deadline + 20:
            try:
                rest += consumer.poll(1.0)["value"].to_pylist()
            except hr.KafkaError as error:
                assert error.topic == doomed  # noqa: PT017  (it may be told again)
        assert rest == [b"after"]
