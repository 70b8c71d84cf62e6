"""Bounded reads as Arrow streams."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import MappingProxyType

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import OffsetOutOfRangeError, UsageError

BEGIN = datetime(2024, 5, 1, tzinfo=timezone.utc)


@pytest.fixture
def filled(cluster, topic):
    """Three partitions, 300 records each, one a second."""
    cluster.create_topic(topic, 3)
    n = 900
    table = pa.table(
        {
            "value": [str(i) for i in range(n)],
            "partition": pa.array([i % 3 for i in range(n)], pa.int32()),
            "timestamp": pa.array([BEGIN + timedelta(seconds=i // 3) for i in range(n)], pa.timestamp("ms", "UTC")),
        }
    )
    with hr.Producer(cluster.bootstrap_servers, compression_type="zstd") as producer:
        producer.send_arrow(topic, table)
    return topic


def offsets(table, partition):
    return [
        o for p, o in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True) if p == partition
    ]


def test_the_whole_topic(cluster, filled):
    read = hr.read(cluster.bootstrap_servers, filled)
    table = read.read_all()
    assert table.num_rows == 900
    assert sorted(int(v) for v in table["value"].to_pylist()) == list(range(900))
    for partition in range(3):
        assert offsets(table, partition) == list(range(300))
    with pytest.raises(UsageError, match="once"):
        read.read_all()


def test_a_table_has_the_batches_as_they_came_none_joined(cluster, topic):
    """So a column whose offsets have 32 bits may have more than 2 GiB: no chunk of it comes near."""
    size, count = 100_000, 60
    cluster.create_topic(topic)
    with hr.Producer(cluster.bootstrap_servers) as producer:
        for number in range(count):
            producer.send(topic, b"%06d" % number + bytes(size - 6))
    read = {
        "read_all": hr.read(cluster.bootstrap_servers, topic).read_all(),
        "stream": pa.table(hr.read(cluster.bootstrap_servers, topic)),
    }
    for way, table in read.items():
        chunks = table["value"].chunks
        assert max(chunk.nbytes for chunk in chunks) < count * size / 2, way
        assert [int(value[:6]) for value in table["value"].to_pylist()] == list(range(count)), way


def test_ranges(cluster, filled):
    b = cluster.bootstrap_servers
    assert offsets(hr.read(b, filled, start=290).read_all(), 1) == list(range(290, 300))
    assert offsets(hr.read(b, filled, end=5).read_all(), 2) == [0, 1, 2, 3, 4]
    table = hr.read(b, filled, start={0: 10, 2: 299}, end={0: 12, 2: 300}).read_all()
    assert (offsets(table, 0), offsets(table, 1), offsets(table, 2)) == ([10, 11], [], [299])
    assert hr.read(b, filled, start=MappingProxyType({0: 298, 2: 299})).read_all().num_rows == 3
    assert offsets(hr.read(b, filled, partitions=[1]).read_all(), 0) == []
    at = BEGIN + timedelta(seconds=100)
    table = hr.read(b, filled, start=at, end=at + timedelta(seconds=3)).read_all()
    assert [offsets(table, p) for p in range(3)] == [[100, 101, 102]] * 3
    assert hr.read(b, filled, start="latest").read_all().num_rows == 0
    assert hr.read(b, filled, start=BEGIN + timedelta(days=1)).read_all().num_rows == 0


def test_wrong_ranges(cluster, filled):
    b = cluster.bootstrap_servers
    with pytest.raises(UsageError, match="no partition 3"):
        hr.read(b, filled, partitions=[3])
    with pytest.raises(ValueError, match="start takes"):
        hr.read(b, filled, start="yesterday")
    with pytest.raises(OffsetOutOfRangeError, match=filled):
        hr.read(b, filled, start=1000, end=2000).read_all()


def test_others_take_the_stream(cluster, filled):
    b = cluster.bootstrap_servers
    frame = pl.DataFrame(hr.read(b, filled))
    assert frame.height == 900
    assert frame["offset"].max() == 299
    reader = pa.RecordBatchReader.from_stream(hr.read(b, filled))  # noqa: F841  (duckdb finds it by name)
    (row,) = duckdb.sql('select count(*), max("offset"), count(distinct partition) from reader').fetchall()
    assert row == (900, 299, 3)
    assert sum(batch.num_rows for batch in hr.read(b, filled)) == 900


def test_an_empty_topic(cluster, topic):
    cluster.create_topic(topic, 2)
    table = hr.read(cluster.bootstrap_servers, topic).read_all()
    assert table.num_rows == 0
    assert table.schema.field("value").type == pa.binary()
