"""A streaming query over a topic of Avro: counts and means per key, printed with every micro-batch.

Run it with `.venv/bin/python examples/spark_stream.py` after `make demo`; it ends by itself after what is there now.
"""

from __future__ import annotations

import tempfile

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

import headrace as hr
from headrace.spark import session

READING = {"type": "record", "name": "Reading", "fields": [{"name": "celsius", "type": "double"}]}


def main() -> None:
    """Fills a topic, then groups it by key."""
    with hr.Broker.start(registry=True) as broker, tempfile.TemporaryDirectory() as checkpoint:
        readings = pa.table(
            {
                "key": [f"sensor-{i % 5}" for i in range(10_000)],
                "value": [{"celsius": i % 40 / 2} for i in range(10_000)],
            }
        )
        with hr.Producer(broker.bootstrap_servers) as producer:
            registry = hr.SchemaRegistry(broker.registry_url)
            producer.send_arrow("readings", readings, value=hr.Avro(READING, registry=registry))
        spark = session("readings", master="local[2]", spark_ui_enabled=False, spark_sql_shuffle_partitions=2)
        query = (
            spark.readStream.format("headrace")
            .option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .option("subscribe", "readings")
            .option("startingOffsets", "earliest")
            .option("key.format", "string")
            .option("value.format", "avro")
            .option("schema.registry.url", broker.registry_url)
            .load()
            .groupBy("key")
            .agg(F.count("*").alias("readings"), F.avg("value.celsius").alias("celsius"))
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
