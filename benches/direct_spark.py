"""Our Spark source and sink through memory shared with our broker, beside the same over TCP, in one session in turns.

Read rate: a batch query of four partitions. Delay: a record a time is sent to a topic, a query copies it to another
(`readStream` to `writeStream`, a micro-batch each), and a consumer there takes it; most of that is Spark's own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import headrace as hr
from benches import startup
from benches.harness import ROOT, Row, compare, paired, say
from benches.peers.meter import Sample
from tests.kafka.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from benches.run import Bench

PARTITIONS = 4
CASES = ((100, 5_000_000, 1.1), (1024, 1_000_000, 1.2))
"""Bytes of a value, records, and the least ratio."""
DELAYS = 40
WARM_UP = 10
PATIENCE_SECONDS = 60
TIMEOUT_SECONDS = 1800


def rows(bench: Bench) -> Iterator[Row]:
    """Both sizes, then the delay."""
    with startup.broker_process() as process:
        own = Cluster("headrace", process.bootstrap_servers)
        for size, full, bar in CASES:
            yield from read_rows(bench, own, size, bench.records(full), bar)
        yield delay_row(bench, own)


def read_rows(bench: Bench, own: Cluster, size: int, records: int, bar: float) -> Iterator[Row]:
    """One size of value."""
    case = f"direct: Spark batch read[{size}B-{PARTITIONS}p"
    say(f"{case}]: {records} records, {bench.pairs} rounds")
    with bench.full_topic(own, size, PARTITIONS, records) as topic:
        options = ["--records", records, "--rounds", bench.pairs, "--formats", "headrace", "headrace-shm"]
        lines = in_spark("benches.peers.spark_batch", own.bootstrap_servers, topic, *options)
    samples: dict[tuple[str, str], list[Sample]] = {}
    for line in lines:
        samples.setdefault((line["format"], line["action"]), []).append(Sample.parse(line["sample"]))
    for action in ("noop", "sum"):
        ours, tcp = samples["headrace-shm", action], samples["headrace", action]
        yield compare(f"{case}-{action}], through memory / over TCP", ours, tcp, bar=bar)


def delay_row(bench: Bench, own: Cluster) -> Row:
    """From the send of a record until the copy that a query made of it is there."""
    say(f"direct: Spark, {DELAYS} records one by one, {bench.pairs} rounds")
    lines = in_spark("benches.direct_spark", own.bootstrap_servers, "--rounds", bench.pairs)
    taken = {way: [float(line["p50_ms"]) for line in lines if line["way"] == way] for way in ("shm", "tcp")}
    return paired("direct: Spark query, from send to its copy / over TCP", taken["shm"], taken["tcp"], "ms")


def in_spark(module: str, *arguments: object) -> list[dict[str, str]]:
    """What a program prints that runs on the pyspark of the other benches, a line of JSON each."""
    paths = [str(ROOT / ".deps" / "pyspark-4.2"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def delays(spark: SparkSession, bootstrap: str, way: str, number: int) -> list[float]:
    """Milliseconds of each record; the query runs meanwhile."""
    topics = [f"delay-{side}-{way}-{number}-{time.time_ns()}" for side in ("in", "out")]
    client = {"kafka.bootstrap.servers": bootstrap, "headrace.datapath": way}
    with hr.Admin(bootstrap) as admin:
        for topic in topics:
            admin.create_topic(topic, 1)
    source = spark.readStream.format("headrace").options(**client, subscribe=topics[0], startingOffsets="earliest")
    taken = []
    with (
        tempfile.TemporaryDirectory() as folder,
        hr.Producer(bootstrap, linger_ms=0) as producer,
        hr.Consumer(bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([(topics[1], 0)])
        sink = source.load().select("value").writeStream.format("headrace").options(**client, topic=topics[1])
        query = sink.option("checkpointLocation", folder).trigger(processingTime="0 seconds").start()
        for _ in range(WARM_UP + DELAYS):
            since = time.perf_counter()
            producer.send(topics[0], b"x" * 100)
            while consumer.poll(1.0).num_rows == 0:
                assert query.isActive, query.exception()
                assert time.perf_counter() - since < PATIENCE_SECONDS, "no copy came"
            taken.append((time.perf_counter() - since) * 1e3)
        query.stop()
    return taken[WARM_UP:]


def main() -> None:
    """Entry point of the program that measures delays."""
    from benches.peers.spark_batch import session  # noqa: PLC0415 -- PYTHONPATH decides at run time
    from headrace.spark import register  # noqa: PLC0415 -- as above

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    spark = register(session(""))
    for number in range(options.rounds):
        for way in ("tcp", "shm") if number % 2 == 0 else ("shm", "tcp"):
            found = delays(spark, options.bootstrap, way, number)
            print(json.dumps({"way": way, "p50_ms": statistics.median(found)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
