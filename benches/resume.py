"""How soon a resumed partition delivers, when it holds nothing and the Fetch of its neighbour waits at the broker.

The neighbour is idle, so its Fetch lies at the broker for up to `fetch.max.wait.ms`. The limit is a bare Fetch on a
connection that stands: one round trip, and the broker's time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

import headrace as hr
from benches.harness import Row, in_turns, paired, program, say
from benches.peers import raw_fetch, wire
from benches.peers.jvm import JavaPeer
from benches.peers.meter import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.run import Bench

ROUNDS = 15
PARKED_SECONDS = 0.7
"""Longer than `fetch.max.wait.ms`: the Fetch at the broker does not name the paused partition any more."""
TIMEOUT_SECONDS = 30.0
BAR = 1.2
SIZE = 100


def ours(bootstrap: str, topic: str, rounds: int) -> list[float]:
    """Seconds from each resumption to the record that waits."""
    idle, resumed = (topic, 0), (topic, 1)
    took = []
    with (
        hr.Producer(bootstrap, linger_ms=0) as producer,
        hr.Consumer(bootstrap, enable_auto_commit=False) as consumer,
    ):
        consumer.assign([idle, resumed])
        consumer.seek_to_end()
        # A position is looked up only when somebody asks for it, and a record must come after that.
        assert consumer.position(idle) >= 0
        assert consumer.position(resumed) >= 0
        for _ in range(rounds):
            consumer.pause([resumed])
            producer.send(topic, b"x" * SIZE, partition=1).result(TIMEOUT_SECONDS)
            assert consumer.poll(PARKED_SECONDS).num_rows == 0, "a record of a partition that is paused"
            began = time.perf_counter()
            consumer.resume([resumed])
            batch = consumer.poll(TIMEOUT_SECONDS)
            took.append(time.perf_counter() - began)
            assert batch.num_rows == 1, f"{batch.num_rows} rows after a resumption"
    return took


def raw(bootstrap: str, topic: str, rounds: int) -> list[float]:
    """Seconds of a Fetch that is answered at once, as long after the one before it."""
    connection = wire.Connection(bootstrap)
    took = []
    for _ in range(rounds):
        time.sleep(PARKED_SECONDS)  # both sides cool down as long
        began = time.perf_counter()
        connection.send(wire.FETCH, 1, raw_fetch.request(topic, 1, 0))
        records, _, _ = raw_fetch.walk(connection.receive(), topic, 1)
        took.append(time.perf_counter() - began)
        assert records > 0, "a Fetch without records"
    connection.close()
    return took


def rows(bench: Bench) -> Iterator[Row]:
    """Medians of each round, in turns."""
    rounds = max(5, int(ROUNDS * min(1.0, bench.scale)))
    bootstrap = bench.apache.bootstrap_servers
    say(f"resume: {rounds} resumptions, {bench.pairs} rounds")
    with bench.empty_topic(bench.apache, 2) as topic, JavaPeer() as java:
        # So that a bare Fetch has one record to bring.
        with hr.Producer(bootstrap) as producer:
            producer.send(topic, b"x" * SIZE, partition=1).result(TIMEOUT_SECONDS)

        def timed(seconds: float) -> Sample:
            return Sample(rounds, 0, seconds, 0)

        mine, limit, peer = in_turns(
            [
                partial(program, "benches.resume", "ours", bootstrap, topic, rounds),
                partial(program, "benches.resume", "raw", bootstrap, topic, rounds),
                lambda: timed(java.resume(bootstrap, topic, rounds)),
            ],
            bench.pairs,
        )

    def ms(samples: list[Sample]) -> list[float]:
        return [sample.seconds * 1000 for sample in samples]

    yield paired("resume: to the first record / a bare Fetch", ms(mine), ms(limit), "ms", bar_below=BAR)
    yield paired("resume: to the first record / Java, warm", ms(mine), ms(peer), "ms")


def main() -> None:
    """Entry point; the sample's seconds are the median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["ours", "raw"])
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("rounds", type=int)
    o = parser.parse_args()
    took = (ours if o.what == "ours" else raw)(o.bootstrap, o.topic, o.rounds)
    print(Sample(o.rounds, 0, statistics.median(took), 0).line())


if __name__ == "__main__":
    main()
