"""Run and killed by test_killed.py: a query that writes each micro-batch to a file of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def query(spark: SparkSession, bootstrap_servers: str, topic: str, folder: Path, most: int) -> DataStreamWriter:
    """The query; `most` is how many rows a batch has."""

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = [[row.partition, row.offset, int(row.value)] for row in frame.collect()]
        # One name a batch: a batch that is run again overwrites what its killed run wrote.
        file = folder / "out" / f"{batch_id}.json"
        file.with_suffix(".part").write_text(json.dumps(rows), encoding="utf-8")
        file.with_suffix(".part").rename(file)

    source = spark.readStream.format("headrace").option("kafka.bootstrap.servers", bootstrap_servers)
    frame = source.options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=most).load()
    return frame.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))


def main(bootstrap_servers: str, topic: str, folder: Path) -> None:
    spark = session("killed", master="local[2]", config={"spark.ui.enabled": False})
    query(spark, bootstrap_servers, topic, folder, 50).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
