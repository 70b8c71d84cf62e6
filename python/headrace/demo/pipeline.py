"""The streaming query: flow and speed joined per lane, aggregated per site."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from headrace.demo import data

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WATERMARK = "10 minutes"
"""Data time that a partition may lag behind the others; a quarter of a second at the demo's pace."""


@dataclass
class Results:
    """What has come out so far."""

    rows: dict[tuple[str, str], tuple[int, float, int]] = field(default_factory=dict)
    """(flow, speed, lanes) by site and minute."""
    repeated: int = 0
    """Rows that came out twice; must stay 0."""
    delays: list[tuple[float, float, int]] = field(default_factory=list)
    """(seconds since the epoch, end-to-end seconds, rows) of each group of rows with one delay."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, rows: list[Any], at: float) -> None:
        """Adds rows that came out at a time."""
        with self.lock:
            for row in rows:
                key = (row["site"], row["minute"])
                self.repeated += key in self.rows
                self.rows[key] = (row["flow"], row["speed"], row["lanes"])
                self.delays.append((at, at - row["sent_ms"] / 1000, 1))

    def __len__(self) -> int:
        """Distinct rows."""
        return len(self.rows)


def source(spark: SparkSession, bootstrap_servers: str, topic: str, starting: str) -> DataFrame:
    """One of the two topics as a stream."""
    return (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", starting)
        .option("columns", "key,value,timestamp")
        .load()
    )


def measurements(raw: DataFrame, kind: str, sql_type: str) -> DataFrame:
    """Records as columns: site, lane, minute, the measurement, and when it was sent."""
    schema = f"internalId string, {kind} {sql_type}, timestamp string"
    parsed = F.from_json(F.col("value").cast("string"), schema)
    return raw.select(
        F.split(F.col("key").cast("string"), "/")[0].alias("site"),
        parsed["internalId"].alias("lane"),
        F.to_timestamp(parsed["timestamp"]).alias("minute"),
        parsed[kind].alias(kind),
        F.unix_millis("timestamp").alias(f"{kind}_sent_ms"),
    ).withWatermark("minute", WATERMARK)


def start(
    spark: SparkSession, bootstrap_servers: str, starting: dict[str, str], checkpoint: str, results: Results
) -> StreamingQuery:
    """Starts the query; its rows arrive in ``results``."""
    flow = measurements(source(spark, bootstrap_servers, data.FLOW_TOPIC, starting[data.FLOW_TOPIC]), "flow", "int")
    speed = measurements(
        source(spark, bootstrap_servers, data.SPEED_TOPIC, starting[data.SPEED_TOPIC]), "speed", "double"
    )
    per_lane = flow.join(speed, ["site", "lane", "minute"], "inner")
    per_site = per_lane.groupBy("site", "minute").agg(
        F.sum("flow").alias("flow"),
        F.avg("speed").alias("speed"),
        F.count("lane").cast("int").alias("lanes"),
        F.max(F.greatest("flow_sent_ms", "speed_sent_ms")).alias("sent_ms"),
    )
    result = per_site.withColumn("minute", F.date_format("minute", "yyyy-MM-dd HH:mm"))

    def take(batch: DataFrame, _batch_id: int) -> None:
        # A filter in the query would be pushed below the watermark, which would then never pass the last minute.
        rows = [row for row in batch.collect() if row["site"] != data.END_SITE]
        results.take(rows, time.time())

    return (
        result.writeStream.outputMode("append")
        .foreachBatch(take)
        .option("checkpointLocation", checkpoint)
        .queryName("traffic")
        .start()
    )
