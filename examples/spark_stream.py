"""A streaming query over a topic: counts per key, printed with every micro-batch.

Run it with `.venv/bin/python examples/spark_stream.py` after `make demo`; it ends by itself after what is there now.
"""

from __future__ import annotations

import tempfile

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

import headrace as hr
from headrace.spark import session


def main() -> None:
    """Fills a topic, then counts it by key."""
    with hr.Broker.start() as broker, tempfile.TemporaryDirectory() as checkpoint:
        with hr.Producer(broker.bootstrap_servers) as producer:
            keys = [f"sensor-{i % 5}" for i in range(10_000)]
            producer.send_arrow("readings", pa.table({"key": keys, "value": [str(i) for i in range(10_000)]}))
        spark = session("counts", master="local[2]", spark_ui_enabled=False, spark_sql_shuffle_partitions=2)
        query = (
            spark.readStream.format("headrace")
            .option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .option("subscribe", "readings")
            .option("startingOffsets", "earliest")
            .load()
            .groupBy(F.col("key").cast("string").alias("sensor"))
            .count()
            .writeStream.outputMode("complete")
            .format("console")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        spark.stop()


if __name__ == "__main__":
    main()
