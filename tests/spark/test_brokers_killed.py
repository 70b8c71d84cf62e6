"""Streaming queries over a cluster of our brokers, which are killed one after the other: nothing is lost."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.cluster.processes import brokers, etcd
from tests.cluster.workload import TOPIC, Writer, check, create, kill_leaders, values_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COPIED = "copied"
KILLS = 4


def _read(spark: SparkSession, servers: str) -> DataFrame:
    reader = spark.readStream.format("headrace").option("kafka.bootstrap.servers", servers)
    return reader.option("subscribe", TOPIC).option("startingOffsets", "earliest").load().select("value")


def _await(query: StreamingQuery, rows: int) -> None:
    """Waits until so many rows have gone through a query."""
    until = time.monotonic() + 120
    query.processAllAvailable()
    # What was acknowledged last may be committed for readers a moment later.
    while sum(progress.numInputRows for progress in query.recentProgress) < rows:
        assert time.monotonic() < until, query.lastProgress
        time.sleep(0.2)
        query.processAllAvailable()


def test_queries_lose_nothing_while_brokers_are_killed(spark: SparkSession, tmp_path: Path):
    with etcd(tmp_path) as store, brokers(tmp_path, f"etcd://{store.client}", 3, min_insync_replicas="2") as nodes:
        servers = ",".join(node.address for node in nodes.values())
        create(servers, partitions=3, copies=3)
        create(servers, partitions=3, copies=3, name=COPIED)
        rows = _read(spark, servers).writeStream.option("checkpointLocation", str(tmp_path / "first"))
        files = rows.format("parquet").option("path", str(tmp_path / "files")).start()
        rows = _read(spark, servers).writeStream.option("checkpointLocation", str(tmp_path / "second"))
        rows = rows.format("headrace").option("kafka.bootstrap.servers", servers).option("topic", COPIED)
        copies = rows.start()
        try:
            writer = Writer(servers)
            try:
                kill_leaders(random.Random(5), nodes, servers, writer, KILLS)
            finally:
                writer.end()
            written = len(writer.acknowledged)
            _await(files, written)
            _await(copies, written)
        finally:
            files.stop()
            copies.stop()
        check(servers, writer)
        # Files have each record once; a topic that is written to has each at least once, as with Spark's own sink.
        found = pq.read_table(tmp_path / "files").column("value").to_pylist()
        assert Counter(found) == Counter(writer.acknowledged)
        assert set(values_of(servers, COPIED)) == set(writer.acknowledged)
