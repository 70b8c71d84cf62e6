"""Consuming, against our broker and against Apache Kafka."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import (
    ConfigError,
    ForkedError,
    KafkaError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    UsageError,
)


@pytest.fixture
def filled(cluster, topic):
    """A topic of two partitions with 1,000 records each: value `p:i`."""
    cluster.create_topic(topic, 2)
    values = [f"{i % 2}:{i // 2}".encode() for i in range(2000)]
    table = pa.table({"value": values, "partition": pa.array([i % 2 for i in range(2000)], pa.int32())})
    with hr.Producer(cluster.bootstrap_servers, batch_size=2000) as producer:
        producer.send_arrow(topic, table)
    return topic


def drain(consumer, count, max_records=None):
    got = []
    deadline = time.monotonic() + 20
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} of {count}"
        batch = consumer.poll(1.0, max_records)
        got.extend(
            zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
        )
    return got


def expected(partition, start=0, stop=1000):
    return [(partition, i, f"{partition}:{i}".encode()) for i in range(start, stop)]


def by_partition(rows, partition):
    return [row for row in rows if row[0] == partition]


def test_assign_reads_everything_in_order(cluster, filled):
    with hr.Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(filled, 0), hr.TopicPartition(filled, 1)])
        rows = drain(consumer, 2000)
        assert consumer.assignment() == [hr.TopicPartition(filled, 0), hr.TopicPartition(filled, 1)]
        assert consumer.position((filled, 0)) == 1000
    assert by_partition(rows, 0) == expected(0)
    assert by_partition(rows, 1) == expected(1)


@pytest.mark.parametrize("max_records", [1, 7, 5000])
def test_max_records_is_a_hard_limit(cluster, filled, max_records):
    with hr.Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(filled, 0)])
        got = []
        while len(got) < 50:
            batch = consumer.poll(5.0, max_records)
            assert 0 < batch.num_rows <= max_records
            assert len(set(batch["partition"].to_pylist())) == 1
            got.extend(batch["offset"].to_pylist())
            assert consumer.position((filled, 0)) == got[-1] + 1
        assert got == list(range(len(got)))


def test_max_poll_records_is_the_default_limit(cluster, filled):
    with hr.Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest", max_poll_records=11) as consumer:
        consumer.assign([(filled, 0)])
        assert consumer.poll(10.0).num_rows == 11
        assert consumer.poll(10.0, 20).num_rows == 20


def test_poll_all_gives_one_batch_a_partition(cluster, filled):
    with hr.Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(filled, 0), (filled, 1)])
        seen = {0: 0, 1: 0}
        while min(seen.values()) < 1000:
            batches = consumer.poll_all(5.0)
            partitions = [b["partition"][0].as_py() for b in batches]
            assert len(partitions) == len(set(partitions)) > 0
            for batch in batches:
                partition = batch["partition"][0].as_py()
                assert batch["offset"].to_pylist() == list(range(seen[partition], seen[partition] + batch.num_rows))
                seen[partition] += batch.num_rows


def test_a_passed_time_gives_no_rows_and_the_schema(cluster, topic):
    cluster.create_topic(topic)
    with hr.Consumer(cluster.bootstrap_servers, auto_offset_reset="latest") as consumer:
        consumer.assign([(topic, 0)])
        batch = consumer.poll(0.2)
        assert batch.num_rows == 0
        assert batch.schema == consumer.schema
        assert batch.schema.names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def test_new_records_end_a_wait(cluster, topic):
    cluster.create_topic(topic)
    with (
        hr.Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer,
        hr.Producer(cluster.bootstrap_servers, linger_ms=0) as producer,
    ):
        consumer.assign([(topic, 0)])
        assert consumer.poll(0.3).num_rows == 0
        threading.Timer(0.2, producer.send, (topic, b"late")).start()
        assert consumer.poll(10.0)["value"].to_pylist() == [b"late"]


def test_seek_goes_there_and_forgets_what_was_fetched(cluster, filled):
    with hr.Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(filled, 0)])
        drain(consumer, 10, 10)
        for target in (500, 3, 999):
            consumer.seek((filled, 0), target)
            assert consumer.position((filled, 0)) == target
            assert drain(consumer, 1, 5)[0][1] == target
        consumer.seek_to_beginning()
        assert drain(consumer, 1, 1) == expected(0, 0, 1)
        consumer.seek_to_end([(filled, 0)])
        assert consumer.poll(0.3).num_rows == 0
        assert consumer.position((filled, 0)) == 1000


def test_a_paused_partition_keeps_its_rows(cluster, filled):
    with hr.Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(filled, 0), (filled, 1)])
        rows = drain(consumer, 4, 2)
        consumer.pause([(filled, 0)])
        assert consumer.paused() == [hr.TopicPartition(filled, 0)]
        rows += drain(consumer, 1000 - len(by_partition(rows, 1)))
        assert not by_partition(rows[4:], 0)
        assert consumer.poll(0.2).num_rows == 0
        consumer.resume([(filled, 0)])
        rows += drain(consumer, 1000 - len(by_partition(rows, 0)))
    assert by_partition(rows, 0) == expected(0)
    assert by_partition(rows, 1) == expected(1)


def test_committed_offsets_are_where_the_next_one_begins(cluster, filled):
    options = {"group.id": filled, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    with hr.Consumer(cluster.bootstrap_servers, options) as consumer:
        assert consumer.committed([(filled, 0)]) == {(filled, 0): None}
        consumer.assign([(filled, 0), (filled, 1)])
        consumer.commit({(filled, 0): 400})
        drain(consumer, 2000)
        consumer.commit({(filled, 1): 900})
    with hr.Consumer(cluster.bootstrap_servers, options) as consumer:
        consumer.assign([(filled, 0), (filled, 1)])
        rows = drain(consumer, 700)
        assert consumer.committed([(filled, 0), (filled, 1)]) == {(filled, 0): 400, (filled, 1): 900}
    assert by_partition(rows, 0) == expected(0, 400)
    assert by_partition(rows, 1) == expected(1, 900)


def test_offsets_beyond_the_log(cluster, filled):
    with hr.Consumer(cluster.bootstrap_servers, auto_offset_reset="none") as consumer:
        consumer.assign([(filled, 0)])
        consumer.seek((filled, 0), 5000)
        with pytest.raises(OffsetOutOfRangeError, match=f"{filled}.*5000") as caught:
            consumer.poll(10.0)
        assert (caught.value.topic, caught.value.partition) == (filled, 0)
        consumer.seek((filled, 0), 990)
        assert drain(consumer, 10) == expected(0, 990)
    with hr.Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(filled, 0)])
        consumer.seek((filled, 0), 5000)
        assert drain(consumer, 1, 1) == expected(0, 0, 1)


@pytest.mark.slow
def test_unknown_topics_and_partitions(cluster, topic):
    with hr.Consumer(
        cluster.bootstrap_servers, allow_auto_create_topics=False, default_api_timeout_ms=3000
    ) as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises((UnknownTopicOrPartitionError, KafkaTimeoutError), match=topic):
            consumer.position((topic, 0))
        with pytest.raises(UsageError, match="not assigned"):
            consumer.seek(("other", 0), 1)
    with pytest.raises(KafkaError, match=topic):
        hr.read(cluster.bootstrap_servers, topic, default_api_timeout_ms=3000, allow_auto_create_topics=False)


def test_two_members_share_a_topic_and_one_takes_over(cluster, filled):
    options = {
        "group.id": f"g-{filled}",
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
    }
    with hr.Consumer(cluster.bootstrap_servers, options) as first:
        first.subscribe([filled])
        drain(first, 2000)
        assert len(first.assignment()) == 2
        first.commit()
        second = hr.Consumer(cluster.bootstrap_servers, options)
        try:
            second.subscribe([filled])
            deadline = time.monotonic() + 30
            while (len(first.assignment()), len(second.assignment())) != (1, 1):
                assert time.monotonic() < deadline
                assert first.poll(0.1).num_rows == 0, "committed rows came again"
                assert second.poll(0.1).num_rows == 0, "committed rows came again"
            assert sorted(first.assignment() + second.assignment()) == [(filled, 0), (filled, 1)]
        finally:
            second.close()
        deadline = time.monotonic() + 30
        while len(first.assignment()) != 2:
            assert time.monotonic() < deadline
            first.poll(0.1)


def test_subscribe_needs_a_group():
    with hr.Consumer("127.0.0.1:1") as consumer, pytest.raises((ConfigError, UsageError), match=r"group\.id"):
        consumer.subscribe(["t"])


def test_a_wait_ends_on_ctrl_c(embedded_broker, topic):
    code = (
        "import headrace as hr, sys\n"
        f"c = hr.Consumer({embedded_broker.bootstrap_servers!r}, auto_offset_reset='earliest')\n"
        f"c.assign([({topic!r}, 0)])\n"
        "try:\n    print('waiting', flush=True)\n    c.poll(60)\n"
        "except KeyboardInterrupt:\n    print('stopped', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(10) == 0
    finally:
        process.kill()


def test_a_forked_child_must_make_its_own(embedded_broker, topic):
    with hr.Producer(embedded_broker.bootstrap_servers) as producer:
        producer.send(topic, b"x").result(10)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                producer.send(topic, b"y")
            except ForkedError:
                status = 7
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert producer.send(topic, b"z").result(10).offset == 1
