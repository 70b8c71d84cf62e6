"""The streaming query: flow and speed joined per lane, aggregated per site."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from headrace.demo import data, stopwatch

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from headrace.demo.cluster import Cluster

WATERMARK_MINUTES = 10
"""Data time that a partition may lag behind the others; a quarter of a second at the demo's pace."""


class Arrival(NamedTuple):
    """When a row came out, and how."""

    at: float
    """Seconds since the epoch."""
    delay: float
    """Seconds since the last record was sent that belongs to it."""
    minute: str
    """Of the row."""
    batch: int
    """Number of the micro-batch that handed it out."""


@dataclass
class Results:
    """What has come out so far."""

    rows: dict[tuple[str, str], tuple[int, float, int]] = field(default_factory=dict)
    """(flow, speed, lanes) by site and minute."""
    repeated: int = 0
    """Rows that came out twice; must stay 0."""
    arrivals: list[Arrival] = field(default_factory=list)
    """Of each row, in the order in which they came."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, rows: list[Any], at: float, batch: int) -> None:
        """Adds rows that came out at a time, of a micro-batch."""
        with self.lock:
            for row in rows:
                key = (row["site"], row["minute"])
                self.repeated += key in self.rows
                self.rows[key] = (row["flow"], row["speed"], row["lanes"])
                self.arrivals.append(Arrival(at, at - row["sent_ms"] / 1000, row["minute"], batch))

    def copy(self) -> Results:
        """What has come out until now; it does not change any more."""
        with self.lock:
            return Results(dict(self.rows), self.repeated, list(self.arrivals))

    def __len__(self) -> int:
        """Distinct rows."""
        return len(self.rows)


@dataclass(frozen=True)
class Folders:
    """Where a query keeps what it needs, and notes its times."""

    checkpoint: Path
    stopwatch: Path


def source(  # noqa: PLR0917  (each is one option)
    spark: SparkSession, cluster: Cluster, topic: str, starting: str, fields: str, notes: Path
) -> DataFrame:
    """One of the two topics as a stream, whose values are structs of these fields of its schema.

    It is ``format("headrace")`` with a stopwatch.
    """
    return (
        spark.readStream.format(stopwatch.TimedSource.name())
        .option(stopwatch.FOLDER, str(notes))
        .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", starting)
        .option("columns", "key,value,timestamp")
        .option("key.format", "string")
        .option("value.format", "avro")
        .option("value.columns", fields)
        .option("schema.registry.url", cluster.registry_url)
        .load()
    )


def measurements(raw: DataFrame, kind: str) -> DataFrame:
    """Records as columns: site, lane, minute, the measurement, and when it was sent."""
    return raw.select(
        F.split("key", "/")[0].alias("site"),
        F.col("value.internalId").alias("lane"),
        F.col("value.timestamp").alias("minute"),
        F.col(f"value.{kind}"),
        F.unix_millis("timestamp").alias(f"{kind}_sent_ms"),
    ).withWatermark("minute", f"{WATERMARK_MINUTES} minutes")


def start(
    spark: SparkSession, cluster: Cluster, starting: dict[str, str], folders: Folders, results: Results
) -> StreamingQuery:
    """Starts the query; its rows arrive in ``results``."""
    spark.dataSource.register(stopwatch.TimedSource)
    notes = folders.stopwatch
    flow, speed = (
        measurements(source(spark, cluster, topic, starting[topic], f"internalId,{kind},timestamp", notes), kind)
        for kind, topic in (("flow", data.FLOW_TOPIC), ("speed", data.SPEED_TOPIC))
    )
    per_lane = flow.join(speed, ["site", "lane", "minute"], "inner")
    per_site = per_lane.groupBy("site", "minute").agg(
        F.sum("flow").alias("flow"),
        F.avg("speed").alias("speed"),
        F.count("lane").cast("int").alias("lanes"),
        F.max(F.greatest("flow_sent_ms", "speed_sent_ms")).alias("sent_ms"),
    )
    result = per_site.withColumn("minute", F.date_format("minute", "yyyy-MM-dd HH:mm"))

    def take(batch: DataFrame, batch_id: int) -> None:
        # A filter in the query would be pushed below the watermark, which would then never pass the last minute.
        rows = [row for row in batch.collect() if row["site"] != data.END_SITE]
        results.take(rows, time.time(), batch_id)

    return (
        result.writeStream.outputMode("append")
        .foreachBatch(take)
        .option("checkpointLocation", str(folders.checkpoint))
        .queryName("traffic")
        .start()
    )
