"""Ten partitions, nine of them paused before each poll, drawn anew: what a pause costs, in time and in traffic.

Rates are those of a fixed time from the thousandth poll on, and end early when a partition is used up. For the traffic
each client reads a whole topic that way, through a proxy that counts; what it receives beyond the records as they lie
in the log is what pausing has cost.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from confluent_kafka import Consumer, TopicPartition

import headrace as hr
from benches import harness
from benches.harness import Row, compare, in_turns, paired, program, say
from benches.peers import raw_fetch
from benches.peers.jvm import JavaPeer
from benches.peers.meter import Meter, Sample
from benches.wiretap import Wiretap
from tests.kafka.apache import ApacheKafka
from tests.kafka.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benches.run import Bench

PARTITIONS = 10
SIZE = 100
RECORDS = 5_000_000
TRAFFIC_RECORDS = 1_000_000
SECONDS = 5.0
TIMEOUT_SECONDS = 30.0
WARM_UP_POLLS = 1000
TRAFFIC_BAR = 1.05
RUST = harness.ROOT / "target" / "release" / "examples" / "pause"

Limits = tuple[int, float, int]
"""The most rows of a poll, the most seconds (0: all that there is), the records of the topic."""


class Draw:
    """Which partition is read next, until one is used up, or with `to_the_end` all are."""

    def __init__(self, records: int, *, to_the_end: bool) -> None:
        self.drawn = drawn()
        self.left = [records // PARTITIONS] * PARTITIONS
        self.to_the_end = to_the_end

    def next(self) -> int | None:
        """Its number; None at the end."""
        kept = next(self.drawn)
        while self.to_the_end and any(self.left) and not self.left[kept]:
            kept = next(self.drawn)
        return kept if self.left[kept] else None


def drawn() -> Iterator[int]:
    """Numbers of partitions, drawn many at a time: Python takes as long for a random number as for a poll."""
    rng = np.random.default_rng(7)
    while True:
        yield from rng.integers(0, PARTITIONS, 10_000).tolist()


def read(draw: Draw, seconds: float, take: Callable[[int], int]) -> Sample:
    """Polls until the time is over, or the topic; `take` pauses all but one, polls, and says how many rows came."""
    meter = Meter()
    meter.start()
    polls = 0
    limited = not draw.to_the_end
    while (kept := draw.next()) is not None:
        count = take(kept)
        draw.left[kept] -= count
        meter.count(count, 0)
        polls += 1
        if limited and polls == WARM_UP_POLLS:
            meter = Meter()
            meter.start()
        if limited and polls % 16 == 0 and meter.elapsed > seconds:
            break
    return meter.sample()


def ours(bootstrap: str, topic: str, limits: Limits) -> Sample:
    """Through Python: slices of batches that are imported once."""
    most, seconds, records = limits
    partitions = [(topic, number) for number in range(PARTITIONS)]
    others = [[other for other in partitions if other != one] for one in partitions]
    polls = itertools.count()

    def take(kept: int) -> int:
        consumer.resume([partitions[kept]])
        consumer.pause(others[kept])
        batch = consumer.poll(TIMEOUT_SECONDS, most)
        count: int = batch.num_rows
        # Looking into a column costs as much as the poll: each is counted, one of sixteen looked into.
        if count == 0 or (next(polls) % 16 == 0 and batch.column("partition")[0].as_py() != kept):
            raise RuntimeError(f"{count} rows, not of partition {kept}")
        return count

    with hr.Consumer(bootstrap, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign(partitions)
        return read(Draw(records, to_the_end=seconds == 0), seconds, take)


def confluent(bootstrap: str, topic: str, limits: Limits) -> Sample:
    """The same with confluent-kafka."""
    most, seconds, records = limits
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**settings, "fetch.queue.backoff.ms": 1})
    partitions = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
    others = [[other for other in partitions if other is not one] for one in partitions]
    consumer.assign(partitions)
    draw = Draw(records, to_the_end=seconds == 0)

    def take(kept: int) -> int:
        consumer.resume([partitions[kept]])
        consumer.pause(others[kept])
        # It waits for as many as it is asked for: never more than there are.
        messages = consumer.consume(min(most, draw.left[kept]), TIMEOUT_SECONDS)
        if not messages:
            raise RuntimeError(f"nothing of partition {kept} for {TIMEOUT_SECONDS} s")
        for message in messages:
            # What was on its way when a partition was paused may still come.
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            stray = message.partition()
            assert stray is not None
            draw.left[stray] -= 1
        # The caller takes all of them off this one.
        draw.left[kept] += len(messages)
        return len(messages)

    sample = read(draw, seconds, take)
    consumer.close()
    return sample


def rust(bootstrap: str, topic: str, limits: Limits) -> Sample:
    """The core by itself, as `cargo build --release --example pause -p headrace-net` builds it."""
    return harness.executable(RUST, bootstrap, topic, PARTITIONS, *limits)


def rows(bench: Bench) -> Iterator[Row]:
    """Rates, then traffic."""
    records = bench.records(RECORDS) // PARTITIONS * PARTITIONS
    bootstrap = bench.apache.bootstrap_servers
    seconds = max(0.2, SECONDS * min(1.0, bench.scale))
    with bench.full_topic(bench.apache, SIZE, PARTITIONS, records) as topic, JavaPeer() as java:
        for most, python_bar, rust_bar in ((1, 1.0, 5.0), (500, 2.0, None)):
            case = f"pause[9 of {PARTITIONS}, max_records {most}]"
            limits = (most, seconds, records)
            say(f"{case}: {seconds} s, {bench.pairs} rounds")
            mine, core, peer, other = in_turns(
                [
                    partial(program, "benches.pause", "ours", bootstrap, topic, *limits),
                    partial(rust, bootstrap, topic, limits),
                    partial(java.pause, bootstrap, topic, PARTITIONS, limits),
                    partial(program, "benches.pause", "confluent", bootstrap, topic, *limits),
                ],
                bench.pairs,
            )
            yield compare(f"{case} / Java, warm", mine, peer, bar=python_bar)
            yield compare(f"{case}: Rust core / Java, warm", core, peer, bar=rust_bar)
            yield compare(f"{case} / confluent-kafka", mine, other)
    yield from traffic(bench)


@contextlib.contextmanager
def tapped(*, quick: bool = False) -> Iterator[tuple[Cluster, Wiretap]]:
    """Apache Kafka behind a proxy that counts."""
    with Wiretap() as tap:
        listeners = f"PLAINTEXT://{tap.address}"
        with ApacheKafka(heap="512m" if quick else "1g", quick=quick, advertised_listeners=listeners) as kafka:
            tap.forward_to(kafka.port)
            yield Cluster("apache", tap.address), tap


def traffic(bench: Bench) -> Iterator[Row]:
    """Bytes received beside bytes of the log."""
    records = bench.records(TRAFFIC_RECORDS) // PARTITIONS * PARTITIONS
    with tapped() as (far, tap), bench.full_topic(far, SIZE, PARTITIONS, records) as topic, JavaPeer() as java:
        size = float(log_bytes(far.bootstrap_servers, topic))
        limits = (500, 0.0, records)
        say(f"pause: traffic of {records} records, {size:.0f} bytes")
        for name, run in (
            ("headrace", partial(ours, far.bootstrap_servers, topic, limits)),
            ("Java", partial(java.pause, far.bootstrap_servers, topic, PARTITIONS, limits)),
            ("confluent-kafka", partial(confluent, far.bootstrap_servers, topic, limits)),
        ):
            tap.take()
            sample = run()
            assert sample.records == records, f"{name} read {sample.records} of {records} records"
            received = tap.take().received / 1e6
            bar = TRAFFIC_BAR if name == "headrace" else None
            case = f"pause: received / in the log, {name}"
            yield paired(case, [received], [size / 1e6], "MB", bar_below=bar)


def log_bytes(bootstrap: str, topic: str) -> int:
    """Bytes of a topic's batches."""
    return sum(raw_fetch.size(bootstrap, topic, partition) for partition in range(PARTITIONS))


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["ours", "confluent"])
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("most", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("records", type=int)
    o = parser.parse_args()
    run = ours if o.what == "ours" else confluent
    print(run(o.bootstrap, o.topic, (o.most, o.seconds, o.records)).line())


if __name__ == "__main__":
    main()
