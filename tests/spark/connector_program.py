"""Run by test_connector.py on pyspark 4.2, with Spark's own connector beside ours; prints one line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

import headrace as hr
from headrace.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(brokers: dict[str, str], topic: str, folder: Path, jars: str) -> dict[str, Any]:
    """What was found with each of the brokers; a session of Spark serves all of them, for it takes long to start."""
    spark = session(
        "connector",
        master="local[2]",
        config={"spark.jars": jars, "spark.ui.enabled": False, "spark.sql.shuffle.partitions": 1},
    )
    spark.sparkContext.setLogLevel("ERROR")
    found: dict[str, Any] = {"version": pyspark.__version__}
    for name, bootstrap_servers in brokers.items():
        found[name] = beside(spark, bootstrap_servers, topic, folder / name)
    spark.stop()
    return found


def beside(spark: SparkSession, bootstrap_servers: str, topic: str, folder: Path) -> dict[str, Any]:
    """Whether the two do the same with a broker."""
    found: dict[str, Any] = {"turns": []}
    client = {"kafka.bootstrap.servers": bootstrap_servers}
    out = f"{topic}-out"
    with hr.Admin(bootstrap_servers) as admin:
        admin.create_topics([hr.NewTopic(topic, 2), hr.NewTopic(out, 2)])

    def send(numbers: range) -> None:
        with hr.Producer(bootstrap_servers) as producer:
            for i in numbers:
                headers = {"n": str(i).encode()} if i % 3 == 0 else None
                producer.send(topic, str(i).encode(), key=f"k{i}".encode(), partition=i % 2, headers=headers)

    # A batch: the same rows and the same schema from both.
    send(range(20))
    options = {"subscribe": topic, "includeHeaders": "true", **client}
    batches = {form: spark.read.format(form).options(**options).load() for form in ("headrace", "kafka")}
    rows = {form: sorted(map(repr, frame.collect())) for form, frame in batches.items()}
    found["batch"] = rows["headrace"] == rows["kafka"] and len(rows["kafka"]) == 20
    found["schema"] = batches["headrace"].schema == batches["kafka"].schema

    def run(source: str, sink: str) -> list[str]:
        reader = spark.readStream.format(source).options(subscribe=topic, startingOffsets="earliest", **client)
        writer = reader.load().select("key", "value").writeStream.format(sink)
        writer = writer.options(topic=out, checkpointLocation=str(folder / "checkpoint"), **client)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        written = hr.read(bootstrap_servers, out).read_all().column("value").to_pylist()
        return sorted((value.decode() for value in written), key=int)

    # One checkpoint, read in turns by the two; the sink in turns as well.
    turns = [("kafka", "kafka"), ("headrace", "headrace"), ("kafka", "headrace"), ("headrace", "kafka")]
    for number, (source, sink) in enumerate(turns):
        if number:
            send(range(10 + 10 * number, 20 + 10 * number))
        found["turns"].append(run(source, sink) == [str(i) for i in range(20 + 10 * number)])
    return found


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4])))
