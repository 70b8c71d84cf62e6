"""Consume to Arrow: through `poll` and `read`, from Apache Kafka and from our broker, plain and compressed."""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING

from benches import startup
from benches.harness import Row, compare, compare_cpu, in_turns, program, say
from benches.peers import rdkafka
from benches.peers.jvm import JavaPeer
from tests.kafka.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benches.peers.meter import Sample
    from benches.run import Bench

OF_RAW = {100: 0.85, 1024: 0.9}
# Of librdkafka's CPU for each record.
CPU = {100: 1 / 6, 1024: 1 / 2}
FASTER_THAN = {"librdkafka C": 5, "Java consumer, warm": 4, "confluent-kafka to Arrow": 20}


def rows(bench: Bench) -> Iterator[Row]:
    """Consume to Arrow from Apache Kafka."""
    for size, partitions, full in ((100, 1, 8_000_000), (100, 4, 8_000_000), (1024, 1, 1_500_000)):
        yield from _case(bench, size, partitions, full)


def _case(bench: Bench, size: int, partitions: int, full: int) -> Iterator[Row]:
    """One size of value and number of partitions, all clients in turns."""
    records = bench.records(full)
    case = f"consume to Arrow[{size}B-{partitions}p"
    say(f"{case}]: {records} records, {bench.pairs} rounds")
    bootstrap = bench.apache.bootstrap_servers
    with bench.full_topic(bench.apache, size, partitions, records) as topic, JavaPeer() as java:
        where = (bootstrap, topic, "--partitions", partitions, "--records", records)
        poll, read, limit, *peers = in_turns(
            [
                partial(program, "benches.ours", "consume", *where),
                partial(program, "benches.ours", "read", *where),
                partial(program, "benches.peers.raw_fetch", *where),
                partial(rdkafka.consume, bootstrap, topic, partitions, records),
                partial(java.consume, bootstrap, topic, partitions, records),
                partial(program, "benches.peers.confluent", "consume-arrow", *where),
            ],
            bench.pairs,
        )
    yield compare(f"{case}-poll] / raw Fetch", poll, limit, limit, bar=OF_RAW[size])
    yield compare(f"{case}-read] / raw Fetch", read, limit, limit, bar=OF_RAW[size])
    for name, peer in zip(FASTER_THAN, peers, strict=True):
        bar = _reachable(FASTER_THAN[name], OF_RAW[size], limit, peer) if size == 100 else None
        yield compare(f"{case}-poll] / {name}", poll, peer, limit, bar=bar)
    yield compare_cpu(f"{case}-poll]: CPU / librdkafka C", poll, peers[0], limit, bar_below=CPU[size])
    yield compare_cpu(f"{case}-poll]: the kernel's part of it", poll, peers[0], limit, kernel=True)


def _reachable(factor: float, of_raw: float, limit: Sequence[Sample], peer: Sequence[Sample]) -> float | None:
    """The factor as a bar, `None` where the share of raw Fetch that is asked for comes to less than it."""
    rates = [statistics.median(sample.rate for sample in samples) for samples in (limit, peer)]
    return factor if of_raw * rates[0] >= factor * rates[1] else None


def compressed_rows(bench: Bench) -> Iterator[Row]:
    """The same of compressed topics."""
    records = bench.records(4_000_000)
    bootstrap = bench.apache.bootstrap_servers
    for codec in ("lz4", "zstd"):
        case = f"consume to Arrow[100B-1p-{codec}]"
        say(f"{case}: {records} records, {bench.pairs} rounds")
        with bench.empty_topic(bench.apache) as topic:
            where = (bootstrap, topic, "--records", records)
            program("benches.ours", "produce", *where, "--compression", codec)
            ours, peer = in_turns(
                [
                    partial(program, "benches.ours", "consume", *where),
                    partial(rdkafka.consume, bootstrap, topic, 1, records),
                ],
                bench.pairs,
            )
        yield compare(f"{case} / librdkafka C", ours, peer, bar=2)


def own_rows(bench: Bench) -> Iterator[Row]:
    """From our broker, beside Apache Kafka."""
    with startup.broker_process() as process:
        own = Cluster("headrace", process.bootstrap_servers)
        for size, full in ((100, 8_000_000), (1024, 1_500_000)):
            records = bench.records(full)
            case = f"consume to Arrow from our broker[{size}B-1p]"
            say(f"{case}: {records} records, {bench.pairs} rounds")
            with (
                bench.full_topic(own, size, 1, records) as topic,
                bench.full_topic(bench.apache, size, 1, records) as on_apache,
            ):
                where = (own.bootstrap_servers, topic, "--records", records)
                theirs = (bench.apache.bootstrap_servers, on_apache, "--records", records)
                ours, apache, limit, c_client = in_turns(
                    [
                        partial(program, "benches.ours", "consume", *where),
                        partial(program, "benches.ours", "consume", *theirs),
                        partial(program, "benches.peers.raw_fetch", *where),
                        partial(rdkafka.consume, own.bootstrap_servers, topic, 1, records),
                    ],
                    bench.pairs,
                )
            yield compare(f"{case} / from Apache Kafka", ours, apache, limit, bar=1.3 if size == 100 else None)
            yield compare(f"{case} / librdkafka C from it", ours, c_client, limit)
