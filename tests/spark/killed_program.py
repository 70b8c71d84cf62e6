"""Run and killed by test_killed.py: a query that writes each micro-batch to a file of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from headrace.spark import session


def main(bootstrap_servers: str, topic: str, folder: Path, trigger: str) -> None:
    spark = session("killed", master="local[2]", config={"spark.ui.enabled": False})

    def write(frame, batch_id: int) -> None:
        rows = [[row.partition, row.offset, int(row.value)] for row in frame.collect()]
        # One name a batch: a batch that is run again overwrites what its killed run wrote.
        file = folder / "out" / f"{batch_id}.json"
        file.with_suffix(".part").write_text(json.dumps(rows), encoding="utf-8")
        file.with_suffix(".part").rename(file)

    source = spark.readStream.format("headrace").option("kafka.bootstrap.servers", bootstrap_servers)
    frame = source.options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=50).load()
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.trigger(availableNow=True) if trigger == "now" else writer
    writer.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
