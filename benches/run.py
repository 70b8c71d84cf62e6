"""headrace beside its peers, in turns, in one run: `make bench`.

Prints one table and writes benches/results/latest.json. CPU is seconds of the client per million records. Ends with 1
when a bar is missed and `--strict` is given.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benches import (
    append_cost,
    consume,
    copies,
    direct,
    direct_spark,
    flow,
    handover,
    harness,
    idle_copies,
    idle_paused,
    lab_cost,
    memory,
    pause,
    pipelining,
    resume,
    share,
    stalled,
    startup,
    streams,
    two_sided,
    values,
)
from benches.harness import Row, compare, compare_cpu, in_turns, program, say
from benches.peers import rdkafka
from benches.peers.jvm import JavaPeer
from benches.peers.meter import Sample
from tests.kafka.apache import ApacheKafka
from tests.kafka.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RESULTS = harness.ROOT / "benches" / "results" / "latest.json"
DEPS = harness.ROOT / ".deps"
BATCH_BYTES = 128 << 10
LARGE_BATCH_BYTES = 1 << 20
WARM_UP_ROUNDS = 3
TOPIC_TIMEOUT_SECONDS = 60  # some have thousands of partitions
DELETE_DELAY_MS = 200
names = itertools.count(1)


class Bench:
    """What the groups share: Apache Kafka, the sizes, and topics that are there for as long as they are needed."""

    def __init__(self, apache: ApacheKafka, *, pairs: int, scale: float) -> None:
        self.apache = Cluster("apache", apache.bootstrap_servers)
        self.pairs = pairs
        self.scale = scale

    def records(self, full: int) -> int:
        """A count at this run's scale, in whole thousands of four partitions."""
        return max(4000, int(full * self.scale) // 4000 * 4000)

    @contextlib.contextmanager
    def empty_topic(self, cluster: Cluster, partitions: int = 1) -> Iterator[str]:
        """A topic that is deleted at the end, as its records take memory; the disk has settled when this returns.

        Names are equally long, since a name is in every request.
        """
        name = f"bench-{next(names):04}-{time.time_ns() % 1_000_000:06}"
        # Batches of 1 MiB are as large as a topic takes by default, and clients differ by some bytes.
        config = {"max.message.bytes": str(2 * LARGE_BATCH_BYTES)}
        topic = cluster.create_topic(name, partitions, config, timeout=TOPIC_TIMEOUT_SECONDS)
        yield topic
        cluster.delete_topic(topic)
        time.sleep(2 * DELETE_DELAY_MS / 1000)

    @contextlib.contextmanager
    def full_topic(self, cluster: Cluster, size: int, partitions: int, records: int) -> Iterator[str]:
        """A topic that holds `records` records of `size` bytes, deleted at the end."""
        with self.empty_topic(cluster, partitions) as topic:
            options = ("--partitions", partitions, "--records", records, "--size", size)
            program("benches.peers.raw_produce", cluster.bootstrap_servers, topic, *options)
            yield topic

    def into_empty_topic(self, cluster: Cluster, send: Callable[[str, str], Sample]) -> Callable[[], Sample]:
        """A runner that hands `send` the address and a topic of the run's own."""

        def run() -> Sample:
            with self.empty_topic(cluster) as topic:
                return send(cluster.bootstrap_servers, topic)

        return run


def copying(bench: Bench) -> Iterator[Row]:
    """A topic of Apache Kafka to Parquet files: `headrace copy`, and a program of confluent-kafka's users."""
    for size, full in ((100, 4_000_000), (1024, 400_000)):
        records = bench.records(full)
        case = f"copy to Parquet[{size}B-4p]"
        say(f"{case}: {records} records, {bench.pairs} rounds")
        with bench.full_topic(bench.apache, size, 4, records) as topic:
            options = ("--partitions", 4, "--records", records)
            where = (bench.apache.bootstrap_servers, topic, *options)
            ours, read, confluent = in_turns(
                [
                    partial(program, "benches.ours", "copy", *where),
                    partial(program, "benches.ours", "read", *where),
                    partial(program, "benches.peers.confluent", "copy", *where),
                ],
                bench.pairs,
            )
        yield compare(f"{case} / confluent-kafka and pyarrow", ours, confluent, read)


def produce(bench: Bench) -> Iterator[Row]:
    """Produce from Arrow to Apache Kafka, acks=1, batches of equal size."""
    for batch_bytes in (BATCH_BYTES, LARGE_BATCH_BYTES):
        for size, full, cpu_bar in ((100, 7_920_000, 1 / 3), (1024, 1_200_000, 3 / 4)):
            yield from produce_case(bench, size, full, batch_bytes, cpu_bar)


def produce_case(bench: Bench, size: int, full: int, batch_bytes: int, cpu_bar: float) -> Iterator[Row]:
    """One size of value and of batch, all clients in turns, each run to an empty topic."""
    records = bench.records(full)
    case = f"produce from Arrow[{size}B-{batch_bytes >> 10}KiB-1p]"
    say(f"{case}: {records} records, {bench.pairs} rounds")
    sizes = {"size": size, "batch_bytes": batch_bytes}
    options = ("--records", records, "--size", size, "--batch-bytes", batch_bytes)
    with JavaPeer() as java:
        senders: list[Callable[[str, str], Sample]] = [
            lambda b, t: program("benches.ours", "produce", b, t, *options),
            lambda b, t: program("benches.peers.raw_produce", b, t, *options),
            lambda b, t: rdkafka.produce(b, t, records, **sizes),
        ]
        if batch_bytes == BATCH_BYTES:
            senders += [
                lambda b, t: program("benches.peers.confluent", "produce", b, t, *options),
                lambda b, t: java.produce(b, t, records, **sizes),
            ]
        runners = [bench.into_empty_topic(bench.apache, send) for send in senders]
        ours, limit, c_client, *others = in_turns(runners, bench.pairs)
    yield compare(f"{case} / raw produce", ours, limit, limit, bar=0.95)
    yield compare(f"{case} / librdkafka C", ours, c_client, limit, bar=1)
    yield compare_cpu(f"{case}: CPU / librdkafka C", ours, c_client, limit, bar_below=cpu_bar)
    yield compare_cpu(f"{case}: the kernel's part of it", ours, c_client, limit, kernel=True)
    for name, samples in zip(("confluent-kafka produce", "Java producer, warm"), others, strict=False):
        yield compare(f"{case} / {name}", ours, samples, limit)


def produce_own(bench: Bench) -> Iterator[Row]:
    """Produce from Arrow to our broker, where the client's own ceiling shows, beside librdkafka C to Apache Kafka."""
    with startup.broker_process() as process:
        own = Cluster("headrace", process.bootstrap_servers)
        yield from produce_own_case(bench, own, 100, 7_920_000, bar=4)
        yield from produce_own_case(bench, own, 1024, 1_200_000)


def produce_own_case(bench: Bench, own: Cluster, size: int, full: int, *, bar: float | None = None) -> Iterator[Row]:
    """One size of value. Apache Kafka is warmed up first: it takes in several times as much then."""
    records = bench.records(full)
    case = f"produce to our broker[{size}B-128KiB-1p]"
    say(f"{case}: {records} records, {bench.pairs} rounds")
    options = ("--records", records, "--size", size, "--batch-bytes", BATCH_BYTES)

    def librdkafka(bootstrap: str, topic: str) -> Sample:
        return rdkafka.produce(bootstrap, topic, records, size=size, batch_bytes=BATCH_BYTES)

    on_apache = bench.into_empty_topic(bench.apache, librdkafka)
    for _ in range(WARM_UP_ROUNDS):
        on_apache()
    ours, limit, own_c_client, c_client = in_turns(
        [
            bench.into_empty_topic(own, lambda b, t: program("benches.ours", "produce", b, t, *options)),
            bench.into_empty_topic(own, lambda b, t: program("benches.peers.raw_produce", b, t, *options)),
            bench.into_empty_topic(own, librdkafka),
            on_apache,
        ],
        bench.pairs,
    )
    yield compare(f"{case} / librdkafka C to Apache Kafka", ours, c_client, limit, bar=bar)
    yield compare(f"{case} / librdkafka C to our broker", ours, own_c_client, limit)
    yield compare(f"{case} / raw produce to our broker", ours, limit, limit)
    yield compare_cpu(f"{case}: CPU / librdkafka C to our broker", ours, own_c_client, limit)
    yield compare_cpu(f"{case}: the kernel's part of it", ours, own_c_client, limit, kernel=True)


def spark(bench: Bench) -> Iterator[Row]:
    """Spark batch read from Apache Kafka, beside Spark's own connector, in one session of pyspark 4.2."""
    for size, partitions, full in ((100, 4, 5_000_000), (1024, 4, 1_000_000)):
        records = bench.records(full)
        case = f"Spark batch read[{size}B-{partitions}p"
        say(f"{case}]: {records} records, {bench.pairs} rounds")
        jars = (DEPS / "connector.cp").read_text(encoding="utf-8").strip().replace(os.pathsep, ",")
        env = {**os.environ, "PYTHONPATH": str(DEPS / "pyspark-4.2"), "PYSPARK_PYTHON": sys.executable}
        with bench.full_topic(bench.apache, size, partitions, records) as topic:
            command = [sys.executable, "-m", "benches.peers.spark_batch", bench.apache.bootstrap_servers, topic]
            command += ["--records", str(records), "--rounds", str(bench.pairs), "--jars", jars]
            printed = subprocess.run(
                command, cwd=harness.ROOT, env=env, stdout=subprocess.PIPE, text=True, timeout=1800, check=True
            ).stdout
        samples: dict[tuple[str, str], list[Sample]] = {}
        for line in printed.splitlines():
            if line.startswith("{"):
                result = json.loads(line)
                key = (result["format"], result["action"])
                samples.setdefault(key, []).append(Sample.parse(result["sample"]))
        for action in ("noop", "sum"):
            ours, peer = samples["headrace", action], samples["kafka", action]
            yield compare(f"{case}-{action}] / Spark's connector", ours, peer, bar=2 if size == 100 else None)


def broker(bench: Bench) -> Iterator[Row]:
    """Our broker: start, memory, and what librdkafka's C client does on it and on Apache Kafka."""
    say("broker: start and memory")
    yield from startup.rows(bench.pairs)
    with startup.broker_process() as process:
        yield from broker_rates(bench, Cluster("headrace", process.bootstrap_servers))


def broker_rates(bench: Bench, own: Cluster) -> Iterator[Row]:
    """The same client on both brokers, in turns; then our own client on ours beside the limit there."""
    records = bench.records(2_000_000)
    say(f"broker: librdkafka C produces, {records} records")

    def send(bootstrap: str, topic: str) -> Sample:
        return rdkafka.produce(bootstrap, topic, records, size=100, batch_bytes=BATCH_BYTES)

    both = in_turns([bench.into_empty_topic(cluster, send) for cluster in (own, bench.apache)], bench.pairs)
    yield compare("broker: librdkafka C produces[100B-1p] / on Apache Kafka", *both, bar=1)

    full = bench.records(5_000_000)
    say(f"broker: consumers, {full} records")
    with bench.full_topic(own, 100, 1, full) as topic, bench.full_topic(bench.apache, 100, 1, full) as on_apache:
        where = (own.bootstrap_servers, topic, "--records", full)
        mine, theirs, ours, limit = in_turns(
            [
                partial(rdkafka.consume, own.bootstrap_servers, topic, 1, full),
                partial(rdkafka.consume, bench.apache.bootstrap_servers, on_apache, 1, full),
                partial(program, "benches.ours", "consume", *where),
                partial(program, "benches.peers.raw_fetch", *where),
            ],
            bench.pairs,
        )
    yield compare("broker: librdkafka C consumes[100B-1p] / on Apache Kafka", mine, theirs, bar=0.95)
    yield compare("broker: consume to Arrow[100B-1p] / librdkafka C, both on ours", ours, mine, limit)


GROUPS = {
    "consume": consume.rows,
    "consume-compressed": consume.compressed_rows,
    "consume-own": consume.own_rows,
    "pause": pause.rows,
    "resume": resume.rows,
    "idle-paused": idle_paused.rows,
    "flow": flow.rows,
    "produce": produce,
    "produce-own": produce_own,
    "append": append_cost.rows,
    "memory": memory.rows,
    "pipelining": pipelining.rows,
    "copies": copies.rows,
    "merging": copies.by_merging,
    "idle-copies": idle_copies.rows,
    "handover": handover.rows,
    "stall": stalled.rows,
    "spark": spark,
    "streams": streams.rows,
    "share": share.rows,
    "share-trickle": share.trickle_rows,
    "share-idle": share.idle_rows,
    "lab": lab_cost.rows,
    "direct": direct.rows,
    "direct-spark": direct_spark.rows,
    "two-sided": two_sided.rows,
    "broker": broker,
    "values": values.rows,
    "copy": copying,
}


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--pairs", type=int, default=7, help="rounds in turns; medians are over them")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full record counts")
    parser.add_argument("--strict", action="store_true", help="fail when a bar is missed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    began = time.monotonic()
    rows: list[Row] = []
    with ApacheKafka(heap="2g", quick=False, log_segment_delete_delay_ms=str(DELETE_DELAY_MS)) as apache:
        bench = Bench(apache, pairs=options.pairs, scale=options.scale)
        for group in options.only:
            for row in GROUPS[group](bench):
                row.group = group
                rows.append(row)
                say(f"  {row.name}: {row.ratio_text}")
    print(harness.table(rows))
    harness.save(rows, options.out)
    missed = [row.name for row in rows if row.met is False]
    print(f"{len(rows)} rows in {time.monotonic() - began:.0f} s; bars missed: {', '.join(missed) or 'none'}")
    return 1 if missed and options.strict else 0


if __name__ == "__main__":
    sys.exit(main())
