"""`df.write.format("headrace")` and `df.writeStream`, read back through a third party's client."""

from __future__ import annotations

import re

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import functions
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from tests.kafka.cluster import Cluster
from tests.spark.conftest import numbers

pytestmark = pytest.mark.spark

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def consume(cluster, topic, partitions: int = 1) -> list[tuple]:
    """Everything in the topic: partition, key, value, headers."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none", "enable.auto.commit": False}
    )
    try:
        found = []
        for number in range(partitions):
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)
            consumer.assign([TopicPartition(topic, number, 0)])
            while end:
                message = consumer.poll(10)
                assert message is not None, f"{topic}-{number} should have {end} records"
                assert message.error() is None
                found.append((number, message.key(), message.value(), message.headers()))
                if (message.offset() or 0) + 1 >= end:
                    break
        return found
    finally:
        consumer.close()


def save(frame, cluster, **options):
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, **options}
    frame.write.format("headrace").mode("append").options(**given).save()


def test_all_columns_are_written(spark, cluster, topic):
    cluster.create_topic(topic, 3)
    schema = StructType(
        [
            StructField("ignored", IntegerType()),
            StructField("value", StringType()),
            StructField("key", BinaryType()),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("headers", HEADERS),
        ]
    )
    rows = [
        (1, "a", b"k", topic, 2, [("h", b"1"), ("h", None)]),
        (2, None, b"gone", topic, 0, None),
        (3, "ü", None, topic, 1, []),
        (4, "", b"", topic, 2, [("x", b"")]),
    ]
    save(spark.createDataFrame(rows, schema), cluster)
    assert sorted(consume(cluster, topic, 3), key=repr) == sorted(
        [
            (2, b"k", b"a", [("h", b"1"), ("h", None)]),
            (0, b"gone", None, None),
            (1, None, "ü".encode(), None),
            (2, b"", b"", [("x", b"")]),
        ],
        key=repr,
    )


def test_the_option_topic_wins_over_the_column(spark, cluster, topic):
    cluster.create_topic(topic)
    rows = spark.createDataFrame([("nowhere", bytearray(b"1")), (None, bytearray(b"2"))], "topic string, value binary")
    save(rows, cluster, topic=topic)
    assert sorted(value for _, _, value, _ in consume(cluster, topic)) == [b"1", b"2"]


def test_rows_name_their_topics(spark, cluster, topic):
    for name in ("a", "b"):
        cluster.create_topic(f"{topic}-{name}")
    frame = spark.range(100).select(
        functions.concat(
            functions.lit(f"{topic}-"), functions.when(functions.col("id") % 2 == 0, "a").otherwise("b")
        ).alias("topic"),
        functions.col("id").cast("string").alias("value"),
    )
    save(frame, cluster)
    for name, numbers_ in (("a", range(0, 100, 2)), ("b", range(1, 100, 2))):
        got = sorted(int(value) for _, _, value, _ in consume(cluster, f"{topic}-{name}"))
        assert got == list(numbers_)


def test_keys_choose_the_partition_as_kafkas_own_producer_does(spark, cluster, topic):
    cluster.create_topic(topic, 4)
    frame = spark.range(200).select(
        functions.col("id").cast("string").alias("key"),
        functions.lit("v").alias("value"),
        # Null leaves it to the key, also beside rows that say where to.
        functions.when(functions.col("id") == 7, 3).cast("int").alias("partition"),
    )
    save(frame, cluster, topic=topic)
    found = {int(key): partition for partition, key, _, _ in consume(cluster, topic, 4)}
    assert len(found) == 200
    assert found.pop(7) == 3
    # As org.apache.kafka.common.utils.Utils.murmur2 sends these keys.
    assert {key: found[key] for key in (0, 1, 2, 42, 100)} == {0: 0, 1: 3, 2: 0, 42: 0, 100: 1}
    assert set(found.values()) == {0, 1, 2, 3}


def test_a_stream_is_written_once_and_goes_on_after_a_restart(spark, cluster, topic, tmp_path):
    cluster.create_topic(topic)
    cluster.create_topic(f"{topic}-out", 2)
    numbers(cluster, topic, range(30))

    def run():
        source = spark.readStream.format("headrace").options(
            **{"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
        )
        query = (
            source.option("maxOffsetsPerTrigger", 10)
            .load()
            .writeStream.format("headrace")
            .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
            .option("topic", f"{topic}-out")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    run()
    assert sorted(int(v) for _, _, v, _ in consume(cluster, f"{topic}-out", 2)) == list(range(30))
    numbers(cluster, topic, range(30, 40))
    run()
    assert sorted(int(v) for _, _, v, _ in consume(cluster, f"{topic}-out", 2)) == list(range(40))


# Below, one broker will do.


@pytest.fixture
def ours(embedded_broker):
    return Cluster("embedded", embedded_broker.bootstrap_servers)


def test_a_row_without_topic_fails_the_write(spark, ours, topic):
    ours.create_topic(topic)
    frame = spark.createDataFrame([(topic, "1"), (None, "2")], "topic string, value string").coalesce(1)
    with pytest.raises(Exception, match="column topic is null in some row, and the option topic is not set"):
        save(frame, ours)


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("key string", {"topic": "t"}, "needs a column value; there are key"),
        ("value int", {"topic": "t"}, "column value is int; the headrace sink takes string or binary"),
        ("value string, key int", {"topic": "t"}, "column key is int; the headrace sink takes string or binary"),
        ("value string, topic int", {}, "column topic is int; the headrace sink takes string"),
        ("value string, partition bigint", {"topic": "t"}, "column partition is bigint; the headrace sink takes int"),
        (
            "value string, headers map<string,string>",
            {"topic": "t"},
            "column headers is map<string,string>; the headrace sink takes array<struct<key:string,value:binary>>",
        ),
        ("value string", {}, "needs the option topic or a column topic"),
        ("value string", {"topic": "t", "kafka.acks": "2"}, "option 'acks': '2' is not accepted"),
        ("value string", {"topic": "t", "kafka.no.such": "2"}, "option 'no.such': no such option"),
        ("value string", {"topic": "t", "kafka.value.serializer": "2"}, "use value.format"),
    ],
)
def test_refused_before_any_task(spark, ours, schema, options, message):
    with pytest.raises(Exception, match=re.escape(message)):
        save(spark.createDataFrame([], schema), ours, **options)


def test_modes(spark, ours, topic, tmp_path):
    frame = spark.createDataFrame([("1",)], "value string")
    writer = frame.write.format("headrace").option("kafka.bootstrap.servers", ours.bootstrap_servers)
    with pytest.raises(Exception, match=r"use mode\('append'\); a topic cannot be overwritten"):
        writer.option("topic", topic).mode("overwrite").save()
    for mode in ("error", "ignore"):
        with pytest.raises(Exception, match=r"(?i)append"):
            writer.option("topic", topic).mode(mode).save()

    ours.create_topic(topic)
    numbers(ours, topic, range(3))
    source = spark.readStream.format("headrace").option("kafka.bootstrap.servers", ours.bootstrap_servers)
    counted = source.option("subscribe", topic).option("startingOffsets", "earliest").load().groupBy("value").count()
    for mode, message in (("complete", "complete"), ("update", "(?i)update")):
        query = counted.writeStream.format("headrace").outputMode(mode).option("topic", topic)
        query = query.option("kafka.bootstrap.servers", ours.bootstrap_servers)
        with pytest.raises(Exception, match=message):
            query.option("checkpointLocation", str(tmp_path / mode)).start().awaitTermination(30)


def test_a_write_to_nobody_fails_in_time(spark, ours, topic):
    frame = spark.createDataFrame([("1",)], "value string").coalesce(1)
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        save(frame, ours, topic=topic, **{"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.max.block.ms": "500"})


def test_a_task_that_runs_again_writes_again(spark, ours, topic):
    """At least once: what a failed attempt has sent stays."""
    ours.create_topic(topic)
    frame = spark.range(0, 6, 1, 1).select(
        functions.when(functions.col("id") < 5, functions.col("id"))
        .otherwise(functions.raise_error(functions.lit("the last row fails")))
        .cast("string")
        .alias("value")
    )
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 1)
    try:
        with pytest.raises(Exception, match="the last row fails"):
            save(frame, ours, topic=topic, **{"kafka.linger.ms": "0"})
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    save(spark.range(0, 6, 1, 1).select(functions.col("id").cast("string").alias("value")), ours, topic=topic)
    got = [int(value) for _, _, value, _ in consume(ours, topic)]
    assert set(got) == set(range(6))
    assert got[-6:] == list(range(6))
