"""Streaming queries over a cluster of our brokers, which are killed one after the other: nothing is lost."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.cluster.faults import PARTITIONS, PATIENCE_SECONDS, SEED, Faults
from tests.cluster.processes import brokers, etcd, etcd_of
from tests.cluster.workload import TOPIC, Writer, check, create, kill_leaders, values_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COPIED = "copied"
KILLS = 4
FAULTS, FAULTS_PER_START = 30, 5


def _read(spark: SparkSession, servers: str) -> DataFrame:
    reader = spark.readStream.format("headrace").option("kafka.bootstrap.servers", servers)
    return reader.option("subscribe", TOPIC).option("startingOffsets", "earliest").load().select("value")


def _start(spark: SparkSession, servers: str, folder: Path) -> tuple[StreamingQuery, StreamingQuery]:
    """Two queries over the topic, from where they were: one writes files, the other a topic."""
    rows = _read(spark, servers).writeStream.option("checkpointLocation", str(folder / "first"))
    files = rows.format("parquet").option("path", str(folder / "files")).start()
    rows = _read(spark, servers).writeStream.option("checkpointLocation", str(folder / "second"))
    rows = rows.format("headrace").option("kafka.bootstrap.servers", servers).option("topic", COPIED)
    return files, rows.start()


def _await(query: StreamingQuery, rows: int) -> None:
    """Waits until a query has come so far in the topic."""
    until = time.monotonic() + 120
    query.processAllAvailable()
    # What was acknowledged last may be committed for readers a moment later.
    while _position(query) < rows:
        assert time.monotonic() < until, query.lastProgress
        time.sleep(0.2)
        query.processAllAvailable()


def _position(query: StreamingQuery) -> int:
    """The sum of the offsets that a query has reached."""
    progress = query.lastProgress
    if progress is None or (end := progress.sources[0].endOffset) is None:
        return 0
    return sum(json.loads(end)[TOPIC].values())


def _check(spark: SparkSession, servers: str, folder: Path, written: list[bytes]) -> None:
    """Files have each record once; a topic that is written to has each at least once, as with Spark's own sink."""
    found = spark.read.parquet(str(folder / "files")).toArrow().column("value").to_pylist()
    assert Counter(found) == Counter(written)
    assert set(values_of(servers, COPIED)) == set(written)


def test_queries_lose_nothing_while_brokers_are_killed(spark: SparkSession, tmp_path: Path):
    with etcd(tmp_path) as store, brokers(tmp_path, f"etcd://{store.client}", 3, min_insync_replicas="2") as nodes:
        servers = ",".join(node.address for node in nodes.values())
        create(servers, partitions=3, copies=3)
        create(servers, partitions=3, copies=3, name=COPIED)
        queries = _start(spark, servers, tmp_path)
        try:
            writer = Writer(servers)
            try:
                kill_leaders(random.Random(5), nodes, servers, writer, KILLS)
            finally:
                writer.end()
            for query in queries:
                _await(query, len(writer.acknowledged))
        finally:
            for query in queries:
                query.stop()
        check(servers, writer)
        _check(spark, servers, tmp_path, writer.acknowledged)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_queries_that_are_restarted_lose_nothing_whatever_is_killed(spark: SparkSession, tmp_path: Path):
    print(f"seed {SEED}: HEADRACE_SOAK_SEED={SEED} repeats the choices")
    with (
        etcd_of(tmp_path, 3) as store,
        brokers(tmp_path, f"etcd://{','.join(one.client for one in store)}", 3, min_insync_replicas="2") as nodes,
    ):
        servers = ",".join(node.address for node in nodes.values())
        create(servers, partitions=PARTITIONS, copies=3)
        create(servers, partitions=PARTITIONS, copies=3, name=COPIED)
        faults = Faults(random.Random(f"{SEED} spark"), nodes, store, servers)
        queries = _start(spark, servers, tmp_path)
        try:
            writer = Writer(servers)
            try:
                for number in range(1, FAULTS + 1):
                    writer.wait_for_more(50, PATIENCE_SECONDS)
                    faults.one()
                    writer.wait_for_each(range(PARTITIONS), PATIENCE_SECONDS)
                    if number % FAULTS_PER_START == 0:
                        for query in queries:
                            query.stop()
                        queries = _start(spark, servers, tmp_path)
            finally:
                writer.end()
            for query in queries:
                _await(query, len(writer.acknowledged))
        finally:
            for query in queries:
                query.stop()
        check(servers, writer)
        _check(spark, servers, tmp_path, writer.acknowledged)
    print(f"{len(writer.acknowledged)} records: {faults.counts}")
