"""Producing, against our broker and against Apache Kafka."""

from __future__ import annotations

import queue
import random
import threading
from datetime import datetime, timezone

import confluent_kafka
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import (
    ClosedError,
    ConfigError,
    KafkaError,
    KafkaTimeoutError,
    MessageTooLargeError,
    SchemaError,
    UsageError,
)

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def rows(cluster, topic, **options):
    return (
        hr.read(cluster.bootstrap_servers, topic, **options)
        .read_all()
        .sort_by([("partition", "ascending"), ("offset", "ascending")])
    )


def test_a_sent_record_comes_back_whole(cluster, topic):
    cluster.create_topic(topic, 3)
    with hr.Producer(cluster.bootstrap_servers) as producer:
        sent = producer.send(
            topic, b"value", key=b"key", partition=2, timestamp=1_700_000_000_123, headers={"a": b"1", "b": None}
        )
        metadata = sent.result(10)
    assert metadata == hr.RecordMetadata(topic, 2, 0, 1_700_000_000_123)
    (row,) = rows(cluster, topic, include_headers=True).to_pylist()
    assert row == {
        "key": b"key",
        "value": b"value",
        "topic": topic,
        "partition": 2,
        "offset": 0,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=timezone.utc),
        "timestampType": 0,
        "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
    }


def test_null_and_empty_values_differ(cluster, topic):
    cluster.create_topic(topic)
    with hr.Producer(cluster.bootstrap_servers) as producer:
        producer.send(topic, None, key=b"")
        producer.send(topic, b"", key=None)
    table = rows(cluster, topic)
    assert table["value"].to_pylist() == [None, b""]
    assert table["key"].to_pylist() == [b"", None]


def test_offsets_follow_the_order_of_sends(cluster, topic):
    cluster.create_topic(topic)
    with hr.Producer(cluster.bootstrap_servers, linger_ms=1, batch_size=1000) as producer:
        futures = [producer.send(topic, str(i).encode()) for i in range(2000)]
        assert [f.result(20).offset for f in futures] == list(range(2000))
    assert rows(cluster, topic)["value"].to_pylist() == [str(i).encode() for i in range(2000)]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_is_read_by_others_and_by_us(cluster, topic, codec):
    cluster.create_topic(topic)
    values = [b"%d" % i * (i % 50) for i in range(3000)]
    with hr.Producer(cluster.bootstrap_servers, compression_type=codec) as producer:
        assert producer.send_arrow(topic, pa.table({"value": pa.array(values, pa.binary())})).result(20) == 3000
    assert rows(cluster, topic)["value"].to_pylist() == values
    other = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": topic, "check.crcs": True}
    )
    try:
        other.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        got: list[bytes | None] = []
        while len(got) < 3000:
            messages = other.consume(3000, 10)
            assert messages
            got.extend(m.value() for m in messages)
    finally:
        other.close()
    assert got == values


def test_arrow_columns_place_records(cluster, topic):
    cluster.create_topic(topic, 4)
    n = 1000
    table = pa.table(
        {
            "value": pa.array([f"v{i}" for i in range(n)]).dictionary_encode(),
            "key": pa.array([f"k{i % 7}".encode() for i in range(n)], pa.large_binary()),
            "partition": pa.array([i % 4 for i in range(n)], pa.int32()),
            "timestamp": pa.array([1_600_000_000_000 + i for i in range(n)], pa.timestamp("ms", "UTC")),
            "headers": pa.array(
                [[{"key": "h", "value": b"%d" % i}] if i % 2 else [] for i in range(n)],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    with hr.Producer(cluster.bootstrap_servers) as producer:
        assert producer.send_arrow(topic, table).result(20) == n
    got = rows(cluster, topic, include_headers=True).to_pylist()
    by_value = {row["value"].decode(): row for row in got}
    assert len(by_value) == n
    for i in range(n):
        row = by_value[f"v{i}"]
        assert row["partition"] == i % 4
        assert row["key"] == f"k{i % 7}".encode()
        assert int(row["timestamp"].timestamp() * 1000) == 1_600_000_000_000 + i
        assert row["headers"] == ([{"key": "h", "value": b"%d" % i}] if i % 2 else None)


def test_keys_choose_the_partition_that_java_would(cluster, topic):
    cluster.create_topic(topic, 5)
    keys = [f"key-{i}".encode() for i in range(200)]
    with hr.Producer(cluster.bootstrap_servers) as producer:
        producer.send_arrow(topic, pa.table({"value": keys, "key": keys}))
    ours = {row["key"]: row["partition"] for row in rows(cluster, topic).to_pylist()}
    other = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "partitioner": "murmur2_random"})
    theirs: dict[bytes | None, int | None] = {}
    for key in keys:
        other.produce(topic, b"x", key, on_delivery=lambda _e, m: theirs.__setitem__(m.key(), m.partition()))
    other.flush(10)
    assert ours == theirs
    assert len(set(ours.values())) == 5


@pytest.mark.parametrize(
    "partitioner",
    ["consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random"],
)
def test_partitioners_choose_as_librdkafkas_of_that_name(cluster, topic, partitioner):
    cluster.create_topic(topic, 7)
    keys = [f"key-{i}".encode() for i in range(100)] + [bytes([i, 255 - i, 128]) for i in range(100)]
    # Where a null or empty key is not a matter of chance.
    keys += [b""] if partitioner != "consistent_random" else []
    every = [*keys, None] if not partitioner.endswith("_random") else keys
    with hr.Producer(cluster.bootstrap_servers, partitioner=partitioner) as producer:
        producer.send_arrow(topic, pa.table({"value": [b"row"] * len(every), "key": pa.array(every, pa.binary())}))
        for key in every:
            producer.send(topic, b"record", key=key)
    ours = {(row["value"], row["key"]): row["partition"] for row in rows(cluster, topic).to_pylist()}
    other = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "partitioner": partitioner,
            # Else records without a key go where they like, whatever the partitioner says.
            "sticky.partitioning.linger.ms": 0,
        }
    )
    theirs: dict[bytes | None, int | None] = {}
    for key in every:
        other.produce(topic, b"x", key, on_delivery=lambda _e, m: theirs.__setitem__(m.key(), m.partition()))
    other.flush(10)
    assert {key: ours[b"row", key] for key in every} == theirs
    assert {key: ours[b"record", key] for key in every} == theirs
    assert len(set(theirs.values())) == 7


def test_rows_name_their_own_topics(cluster, topic):
    first, second = cluster.create_topic(f"{topic}-a"), cluster.create_topic(f"{topic}-b")
    table = pa.table({"topic": [first, second, first], "value": [b"1", b"2", b"3"]})
    with hr.Producer(cluster.bootstrap_servers) as producer:
        assert producer.send_arrow(None, table).result(10) == 3
    assert rows(cluster, first)["value"].to_pylist() == [b"1", b"3"]
    assert rows(cluster, second)["value"].to_pylist() == [b"2"]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(cluster, topic, acks):
    cluster.create_topic(topic)
    with hr.Producer(cluster.bootstrap_servers, acks=acks) as producer:
        offset = producer.send(topic, b"x").result(10).offset
        producer.flush()
    assert offset == (-1 if acks == "0" else 0)
    assert rows(cluster, topic).num_rows == 1 or acks == "0"


def test_many_threads_share_a_producer(cluster, topic):
    cluster.create_topic(topic, 2)
    with hr.Producer(cluster.bootstrap_servers) as producer:

        def work(name):
            for i in range(200):
                producer.send(topic, f"{name}:{i}".encode(), key=str(name).encode())

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    table = rows(cluster, topic)
    for name in range(4):
        mine = [v for v in table["value"].to_pylist() if v.startswith(b"%d:" % name)]
        assert mine == [f"{name}:{i}".encode() for i in range(200)]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_batch_larger_than_the_topic_allows_is_split(cluster, topic, codec):
    cluster.create_topic(topic, config={"max.message.bytes": "10000"})
    chance = random.Random(0)
    values = [b"%04d" % i + chance.randbytes(500) for i in range(100)]
    with hr.Producer(cluster.bootstrap_servers, linger_ms=200, compression_type=codec) as producer:
        one_by_one = [producer.send(topic, value) for value in values]
        as_table = producer.send_arrow(topic, pa.table({"value": values}))
        too_large = producer.send(topic, chance.randbytes(20_000))
        last = producer.send(topic, b"last")
        with pytest.raises(MessageTooLargeError, match=rf"{topic}.*partition 0.*max\.message\.bytes"):
            producer.flush()
        assert [future.result(10).offset for future in one_by_one] == list(range(100))
        assert as_table.result(10) == 100
        assert isinstance(too_large.exception(10), MessageTooLargeError)
        assert last.result(10).offset == 200
    assert rows(cluster, topic)["value"].to_pylist() == [*values, *values, b"last"]


def test_a_small_buffer_slows_down_and_loses_nothing(cluster, topic):
    cluster.create_topic(topic)
    table = pa.table({"value": pa.array([b"x" * 1000] * 5000, pa.binary())})
    with hr.Producer(cluster.bootstrap_servers, buffer_memory=200_000, batch_size=16_384) as producer:
        assert producer.send_arrow(topic, table).result(30) == 5000
    assert rows(cluster, topic).num_rows == 5000


def test_what_cannot_be_sent_says_why(cluster, topic):
    cluster.create_topic(topic, 2)
    with hr.Producer(cluster.bootstrap_servers, max_request_size=10_000, max_block_ms=1500) as producer:
        producer.send(topic, b"first").result(10)
        with pytest.raises(MessageTooLargeError, match=rf"{topic}.*max\.request\.size"):
            producer.send(topic, b"x" * 20_000)
        with pytest.raises(UsageError, match=f"{topic}.* has no partition 2: it has 2"):
            producer.send(topic, b"x", partition=2)
        with pytest.raises(TypeError, match=r"value is bytes .* not str; encode it first"):
            producer.send(topic, "text")
        with pytest.raises(SchemaError, match="value"):
            producer.send_arrow(topic, pa.table({"vlaue": [b"x"]}))
        with pytest.raises(SchemaError, match=r"key.*Int64"):
            producer.send_arrow(topic, pa.table({"value": [b"x"], "key": [1]}))
        with pytest.raises(TypeError, match="send_arrow takes"):
            producer.send_arrow(topic, [b"x"])
        with pytest.raises(ValueError, match="time zone"):
            producer.send(topic, b"x", timestamp=datetime(2020, 1, 1))  # noqa: DTZ001
        producer.send(topic, b"fine").result(10)
    assert sorted(rows(cluster, topic)["value"].to_pylist()) == [b"fine", b"first"]


def test_a_closed_producer_says_so(cluster, topic):
    producer = hr.Producer(cluster.bootstrap_servers)
    producer.close()
    producer.close()
    with pytest.raises(ClosedError):
        producer.send(topic, b"x")


def test_an_unreachable_broker_is_named():
    with hr.Producer("127.0.0.1:1", max_block_ms=700) as producer:
        with pytest.raises(KafkaTimeoutError, match=r"topic 't'.*127\.0\.0\.1:1") as caught:
            producer.send("t", b"x").result(10)
        assert caught.value.retriable
        assert isinstance(caught.value, TimeoutError)
        kept = producer.send("t", b"x")
        with pytest.raises(KafkaTimeoutError, match="topic 't'"):
            producer.flush()
        assert kept.done()


def test_options_are_checked_by_name_and_value():
    for options, message in [
        ({"linger": 5}, "linger.ms"),
        ({"acks": "two"}, "acks"),
        ({"batch_size": "big"}, "batch.size"),
        ({"interceptor_classes": "x"}, "interceptor.classes"),
        ({"group_id": "g"}, "group.id"),
        ({"batch.size": object()}, "batch.size"),
    ]:
        with pytest.raises(ConfigError, match=message):
            hr.Producer("127.0.0.1:1", options)
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        hr.Producer()
    with pytest.raises(ConfigError, match="given twice"):
        hr.Producer("127.0.0.1:1", {"linger.ms": 1}, linger_ms=2)


def test_close_raises_for_records_that_did_not_get_through(topic):
    with hr.Broker.start() as broker:
        broker_servers = broker.bootstrap_servers
        producer = hr.Producer(broker_servers, linger_ms=60_000, delivery_timeout_ms=120_000)
        producer.send(topic, b"x", partition=0)
    future = producer.send(topic, b"y", partition=0)
    with pytest.raises(KafkaError):
        producer.close(timeout=1)
    assert isinstance(future.exception(1), KafkaError)


def test_a_callback_that_waits_for_another_record_is_refused(cluster, topic):
    cluster.create_topic(topic)
    raised = queue.Queue()

    def again(_future):
        try:
            raised.put(producer.send(topic, b"again").result())
        except UsageError as error:
            raised.put(error)

    with hr.Producer(cluster.bootstrap_servers, linger_ms=200) as producer:
        producer.send(topic, b"x").add_done_callback(again)
        assert "a callback cannot wait" in str(raised.get(timeout=30))
        # Elsewhere it may, also where the callback of another producer is called.
        assert producer.send(topic, b"y").result(30).topic == topic
        with hr.Producer(cluster.bootstrap_servers) as other:
            other.send(topic, b"z").add_done_callback(lambda _: raised.put(producer.send(topic, b"!").result(30)))
            assert raised.get(timeout=30).topic == topic
