"""`spark.read.format("headrace")` on our broker and on Apache Kafka."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from pyspark.sql import functions
from pyspark.sql.types import StringType, StructField, StructType

from tests.kafka.cluster import Cluster
from tests.spark.conftest import numbers, produce, threads

pytestmark = pytest.mark.spark

NOW_MS = 1_750_000_000_000
# A broker deletes what is as old as these timestamps.
KEPT = {"retention.ms": "-1"}

RECORDS: list[dict[str, Any]] = [
    {"value": b"plain"},
    {"value": b"keyed", "key": b"k"},
    {"value": None, "key": b"tombstone"},
    {"value": b"", "key": b""},
    {"value": bytes(range(256)), "key": b"\xff\x00"},
    {"value": b"one", "headers": [("h", b"1")]},
    {"value": b"twice", "headers": [("h", b"1"), ("h", b"\x00"), ("", b"")]},
    {"value": b"none", "headers": [("gone", None)]},
    {"value": "ü".encode(), "headers": [("käse", "ß".encode())]},
]


def test_all_columns_are_what_was_sent(load, cluster, topic):
    cluster.create_topic(topic, 3, KEPT)
    sent = []
    offsets = [0, 0, 0]
    for i in range(60):
        record = {**RECORDS[i % len(RECORDS)], "partition": i % 3, "timestamp": NOW_MS + i * 7}
        headers = record.get("headers")
        where = (topic, i % 3, offsets[i % 3])
        sent.append((record.get("key"), record["value"], *where, record["timestamp"], 0, headers))
        offsets[i % 3] += 1
        produce(cluster, topic, [record])
    frame = load(includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    frame = frame.withColumn("timestamp", functions.unix_millis("timestamp"))
    got = [tuple(row) for row in frame.collect()]
    got = [
        (*map(plain, row[:-1]), None if row[-1] is None else [(h.key, plain(h.value)) for h in row[-1]]) for row in got
    ]
    assert sorted(got, key=lambda row: row[3:5]) == sorted(sent, key=lambda row: row[3:5])


def plain(value):
    return bytes(value) if isinstance(value, bytearray) else value


def test_a_million_bytes_in_many_batches(load, cluster, topic):
    cluster.create_topic(topic, 2)
    values = [str(i).encode() * 25 for i in range(40_000)]
    produce(cluster, topic, [{"value": value, "partition": i % 2} for i, value in enumerate(values)])
    frame = load(columns="value,partition,offset")
    assert frame.columns == ["value", "partition", "offset"]
    counted = frame.groupBy("partition").agg(
        functions.count("value"), functions.sum(functions.length("value")), functions.max("offset")
    )
    assert {tuple(row) for row in counted.collect()} == {
        (p, 20_000, sum(len(v) for v in values[p::2]), 19_999) for p in (0, 1)
    }


def test_columns_are_chosen_by_name(load, cluster, topic):
    cluster.create_topic(topic)
    numbers(cluster, topic, range(3))
    frame = load(columns="OFFSET,value")
    assert [(plain(row.value), row.offset) for row in frame.collect()] == [(b"0", 0), (b"1", 1), (b"2", 2)]
    assert load(columns="headers", includeHeaders="true").collect() == [(None,)] * 3


def test_an_empty_topic_has_no_rows(load, cluster, topic):
    cluster.create_topic(topic, 2)
    assert load().collect() == []


def test_bounds(load, cluster, topic):
    cluster.create_topic(topic, 2, KEPT)
    at = [{"value": str(i).encode(), "partition": i % 2, "timestamp": NOW_MS + i * 1000} for i in range(20)]
    produce(cluster, topic, at)

    def got(**options):
        return sorted(int(row.value) for row in load(**options).select("value").collect())

    def by_partition(zero: int, one: int) -> str:
        return f'{{"{topic}":{{"0":{zero},"1":{one}}}}}'

    assert got() == list(range(20))
    bounded = got(startingOffsets=by_partition(3, -2), endingOffsets=by_partition(5, -1))
    assert bounded == [1, 3, 5, 6, 7, 8, 9, 11, 13, 15, 17, 19]
    assert got(startingTimestamp=NOW_MS + 4500, endingTimestamp=NOW_MS + 9000) == [5, 6, 7, 8]
    times = {"startingOffsetsByTimestamp": by_partition(NOW_MS + 15000, NOW_MS + 17000)}
    assert got(**times) == [16, 17, 18, 19]
    assert got(**times, endingOffsetsByTimestamp=by_partition(NOW_MS + 18000, NOW_MS + 99000)) == [16, 17, 19]
    assert got(startingTimestamp=NOW_MS + 99000, startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(Exception, match=r"no record of .* is at or after .* ms; startingOffsetsByTimestampStrategy"):
        got(startingTimestamp=NOW_MS + 99000)


def test_tasks_are_cut_as_asked(load, cluster, topic):
    cluster.create_topic(topic, 2)
    numbers(cluster, topic, range(100), partitions=2)
    assert load().rdd.getNumPartitions() == 2
    for options, tasks in (({"minPartitions": "6"}, 6), ({"maxRecordsPerPartition": "20"}, 6)):
        frame = load(**options)
        assert frame.rdd.getNumPartitions() == tasks
        assert sorted(int(row.value) for row in frame.collect()) == list(range(100))


def test_several_topics_in_one_read(load, cluster, topic):
    for name in ("a", "b", "c"):
        cluster.create_topic(f"{topic}-{name}")
        numbers(cluster, f"{topic}-{name}", range(2))
    topics = functions.col("topic")
    both = load(subscribe=f"{topic}-a,{topic}-b").select(topics).distinct().collect()
    assert {row.topic for row in both} == {f"{topic}-a", f"{topic}-b"}
    found = load(subscribe=None, subscribePattern=f"{topic}-[bc]").select(topics).distinct().collect()
    assert {row.topic for row in found} == {f"{topic}-b", f"{topic}-c"}
    assigned = load(subscribe=None, assign=f'{{"{topic}-c":[0]}}')
    assert {row.topic for row in assigned.collect()} == {f"{topic}-c"}


# Below, one broker will do: no answer of the cluster is in question.


@pytest.fixture
def ours(embedded_broker):
    return Cluster("embedded", embedded_broker.bootstrap_servers)


def read(spark, cluster, **options):
    return spark.read.format("headrace").options(**{"kafka.bootstrap.servers": cluster.bootstrap_servers, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "t", "startingOfsets": "earliest"}, "did you mean startingOffsets"),
        ({}, "exactly one of assign, subscribe and subscribePattern"),
        ({"subscribe": "t", "kafka.enable.auto.commit": "true"}, "offsets live in the checkpoint"),
        ({"subscribe": "t", "kafka.no.such.option": "1"}, "option 'no.such.option': no such option"),
        ({"subscribe": "t", "kafka.fetch.max.bytes": "x"}, "option 'fetch.max.bytes': 'x' is not accepted"),
        ({"subscribe": "t", "kafka.ssl.keystore.location": "x"}, "ssl.keystore.location"),
    ],
)
def test_load_itself_refuses(spark, ours, options, message):
    with pytest.raises(Exception, match=re.escape(message)):
        read(spark, ours, **options).load()


def test_what_only_a_batch_refuses_comes_when_it_is_planned(spark, ours, topic):
    ours.create_topic(topic)
    frame = read(spark, ours, subscribe=topic, startingOffsets="latest").load()
    with pytest.raises(Exception, match="startingOffsets 'latest' is for streaming queries"):
        frame.collect()


def test_a_schema_of_the_users_own_is_refused(spark, ours, topic):
    ours.create_topic(topic)
    with pytest.raises(Exception, match=r"has a schema of its own and takes no other: remove \.schema"):
        read(spark, ours, subscribe=topic).schema(StructType([StructField("value", StringType())])).load().collect()


def test_an_unknown_topic_and_an_absent_broker_are_named(spark, ours, topic):
    with pytest.raises(Exception, match=rf"topic '{topic}'.*UNKNOWN_TOPIC_OR_PARTITION"):
        read(spark, ours, subscribe=topic).load().collect()
    alone = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "500"}
    began = time.monotonic()
    with pytest.raises(Exception, match=r"bootstrap server 127\.0\.0\.1:1: cannot connect"):
        read(spark, ours, subscribe=topic, **alone).load().collect()
    assert time.monotonic() - began < 20


def test_stopped_and_failed_tasks_leave_no_thread_behind(spark, ours, topic):
    ours.create_topic(topic)
    numbers(ours, topic, range(5_000))
    frame = read(spark, ours, subscribe=topic).load()
    assert frame.count() == 5_000
    before = threads(spark)

    def fail(_):
        raise ValueError("the task fails")

    for _ in range(4):
        assert len(frame.limit(3).collect()) == 3
        with pytest.raises(Exception, match="the task fails"):
            frame.select("value").rdd.map(fail).collect()
    assert frame.count() == 5_000
    # A worker that had no client for these options yet may keep one; none keeps one for each task.
    deadline = time.monotonic() + 20
    while grown := {pid for pid, ids in threads(spark).items() if len(ids) > len(before.get(pid, ())) + 1}:
        assert time.monotonic() < deadline, (grown, before, threads(spark))
        time.sleep(0.1)
