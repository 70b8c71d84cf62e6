"""What became of each row of a `send_arrow`, against our broker and against Apache Kafka."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import SchemaError

SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("error", pa.string()),
    ]
)


def values_by_place(cluster, topic):
    found = hr.read(cluster.bootstrap_servers, topic).read_all().to_pylist()
    return {(row["partition"], row["offset"]): row for row in found}


@pytest.mark.parametrize("column", ["key", "partition", None])
def test_each_row_is_told_its_place_in_input_order(cluster, topic, column):
    cluster.create_topic(topic, 3)
    n = 4000
    columns = {"value": pa.array([f"v{i}" for i in range(n)])}
    if column == "key":
        columns["key"] = pa.array([f"k{i % 13}" for i in range(n)])
    if column == "partition":
        columns["partition"] = pa.array([i * 7 % 3 for i in range(n)], pa.int32())
    # Chunks of their own: the rows are counted over all of them.
    table = pa.concat_tables([pa.table(columns).slice(0, 1500), pa.table(columns).slice(1500)])
    with hr.Producer(cluster.bootstrap_servers, batch_size=4096) as producer:
        # Records of another call lie between.
        others = [producer.send(topic, b"other", partition=p) for p in range(3)]
        batch = producer.send_arrow(topic, table, results=True).result(20)
        assert {other.result(10).offset for other in others} == {0}
    assert batch.schema == SCHEMA
    assert batch.num_rows == n
    assert batch["error"].null_count == n
    places = values_by_place(cluster, topic)
    for i, row in enumerate(batch.to_pylist()):
        written = places[row["partition"], row["offset"]]
        assert written["value"] == f"v{i}".encode()
        assert written["timestamp"] == row["timestamp"]
        if column == "partition":
            assert row["partition"] == i * 7 % 3


def test_timestamps_are_those_that_were_written(cluster, topic):
    cluster.create_topic(topic, 1)
    appended = cluster.create_topic(f"{topic}-log", 1, {"message.timestamp.type": "LogAppendTime"})
    given = [1_600_000_000_123, None, 1_600_000_000_789]
    table = pa.table({"value": ["a", "b", "c"], "timestamp": pa.array(given, pa.timestamp("ms", "UTC"))})
    before = int(time.time() * 1000)
    with hr.Producer(cluster.bootstrap_servers) as producer:
        own = producer.send_arrow(topic, table, results=True).result(10)["timestamp"].cast(pa.int64()).to_pylist()
        theirs = producer.send_arrow(appended, table, results=True).result(10)["timestamp"].cast(pa.int64()).to_pylist()
    after = int(time.time() * 1000)
    assert (own[0], own[2]) == (given[0], given[2])
    assert before <= own[1] <= after
    assert all(before <= at <= after for at in theirs)


def test_rows_that_cannot_be_sent_keep_no_others_back(cluster, topic):
    first, second = cluster.create_topic(f"{topic}-a", 2), cluster.create_topic(f"{topic}-b", 2)
    table = pa.table(
        {
            "value": [b"0", b"x" * 20_000, b"2", b"3", b"4"],
            "topic": [first, first, None, second, first],
            "partition": pa.array([0, 0, 0, 9, 1], pa.int32()),
        }
    )
    with hr.Producer(cluster.bootstrap_servers, max_request_size=10_000) as producer:
        batch = producer.send_arrow(None, table, results=True).result(10)
        # Not a failed delivery: the batch is where these rows are told.
        producer.flush()
    errors = batch["error"].to_pylist()
    assert errors[0] is None
    assert "max.request.size" in errors[1]
    assert "row 2 names no topic" in errors[2]
    assert f"{second}' has no partition 9" in errors[3]
    assert errors[4] is None
    assert batch["offset"].to_pylist() == [0, None, None, None, 0]
    assert batch["timestamp"].null_count == 3
    assert [row["value"] for row in values_by_place(cluster, first).values()] == [b"0", b"4"]
    assert values_by_place(cluster, second) == {}


def test_a_batch_that_the_broker_refuses_fails_its_rows(cluster, topic):
    cluster.create_topic(topic, 1, {"max.message.bytes": "2000"})
    table = pa.table({"value": [b"small", b"x" * 5000, b"small"]})
    with hr.Producer(cluster.bootstrap_servers, batch_size=200) as producer:
        batch = producer.send_arrow(topic, table, results=True).result(10)
        errors = batch["error"].to_pylist()
        assert errors[0] is None
        assert topic in errors[1]
        assert batch["offset"].to_pylist()[1] is None
        assert errors[2] is None


def test_without_acks_there_are_no_offsets(cluster, topic):
    cluster.create_topic(topic)
    with hr.Producer(cluster.bootstrap_servers, acks=0) as producer:
        batch = producer.send_arrow(topic, pa.table({"value": ["a", "b"]}), results=True).result(10)
    assert batch.to_pylist()[0]["partition"] == 0
    assert batch["offset"].to_pylist() == [None, None]
    assert batch["timestamp"].null_count == batch["error"].null_count - 2 == 0


def test_no_rows_have_no_results(cluster, topic):
    with hr.Producer(cluster.bootstrap_servers) as producer:
        batch = producer.send_arrow(topic, pa.table({"value": pa.array([], pa.binary())}), results=True).result(10)
        assert producer.send_arrow(topic, pa.table({"value": pa.array([], pa.binary())})).result(10) == 0
    assert batch.schema == SCHEMA
    assert batch.num_rows == 0


def test_a_broker_that_is_not_there_fails_every_row(topic):
    table = pa.concat_tables([pa.table({"value": ["a", "b"]}), pa.table({"value": ["c"]})])
    with hr.Producer("127.0.0.1:1", max_block_ms=300) as producer:
        begun = time.monotonic()
        batch = producer.send_arrow(topic, table, results=True).result(10)
        assert time.monotonic() - begun < 5, "one wait for all"
    assert batch.num_rows == 3
    assert all(topic in error and "127.0.0.1:1" in error for error in batch["error"].to_pylist())


def test_rows_on_their_way_to_a_broker_that_goes_fail(topic):
    with hr.Broker.start() as broker:
        producer = hr.Producer(broker.bootstrap_servers, delivery_timeout_ms=1500, request_timeout_ms=1000, linger_ms=0)
        producer.send(topic, b"there", partition=0).result(10)
    batch = producer.send_arrow(topic, pa.table({"value": ["a", "b"]}), results=True).result(20)
    assert batch["offset"].null_count == 2
    assert batch["error"].null_count == 0
    producer.close()


def test_columns_that_cannot_be_sent_are_an_error_at_once(cluster, topic):
    with hr.Producer(cluster.bootstrap_servers) as producer:
        with pytest.raises(SchemaError, match="vlaue"):
            producer.send_arrow(topic, pa.table({"vlaue": [b"x"]}), results=True)


def test_the_buffer_can_be_watched(cluster, topic):
    cluster.create_topic(topic)
    with hr.Producer(cluster.bootstrap_servers, buffer_memory=200_000, batch_size=16_384) as producer:
        assert producer.metrics() == {
            "bufferpool-wait-ratio": 0.0,
            "bufferpool-wait-time-ns-total": 0,
            "buffer-exhausted-rate": 0.0,
            "buffer-exhausted-total": 0,
            "waiting-threads": 0,
            "buffer-total-bytes": 200_000,
            "buffer-available-bytes": 200_000,
            "direct-bytes-produced-total": 0,
        }
        producer.send_arrow(topic, pa.table({"value": pa.array([b"x" * 1000] * 5000)})).result(30)
        # Rows keep the brokers' pace, and may find room every time; records one by one run into the limit.
        for _ in range(50):
            sent = [producer.send(topic, b"x" * 30_000) for _ in range(100)]
            sent[-1].result(30)
            after = producer.metrics()
            if after["bufferpool-wait-time-ns-total"] > 0:
                break
    assert after["bufferpool-wait-time-ns-total"] > 0
    assert after["bufferpool-wait-ratio"] > 0
    assert after["waiting-threads"] == 0
