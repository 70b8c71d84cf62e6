"""Many requests in flight: what they bring when the network takes 5 ms each way.

One partition and batches of one size, so that a request is a batch and its time is the network's. The broker tells
clients the address of the proxy, so everything goes through it.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from benches.harness import Row, compare, in_turns, program, say
from benches.peers import rdkafka
from benches.proxy import DelayingProxy
from tests.kafka.apache import ApacheKafka
from tests.kafka.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benches.peers.meter import Sample
    from benches.run import Bench

DELAY_MS = 5.0
IN_FLIGHT = 5
BATCH_BYTES = 64 << 10
SIZE = 1024
RECORDS = 64_000
BAR = 4.5
CEILING_IN_FLIGHT = 40
CEILING_BAR = 2.0
"""The proxy lets through this many times what is measured, or it is the proxy that is measured."""


@contextlib.contextmanager
def far_cluster(delay_ms: float, *, quick: bool = False) -> Iterator[Cluster]:
    """Apache Kafka, `delay_ms` away in each direction."""
    with DelayingProxy(delay_ms) as proxy:
        listeners = f"PLAINTEXT://{proxy.address}"
        with ApacheKafka(heap="512m" if quick else "1g", quick=quick, advertised_listeners=listeners) as kafka:
            proxy.forward_to(kafka.port)
            yield Cluster("apache", proxy.address)


def rows(bench: Bench) -> Iterator[Row]:
    """Five in flight beside one, and the same of bare prebuilt batches: what the network and the broker allow."""
    records = bench.records(RECORDS)
    case = f"pipelining[{SIZE}B-{BATCH_BYTES >> 10}KiB-{DELAY_MS:.0f}ms]"
    say(f"{case}: {records} records, {bench.pairs} rounds")
    options = ("--records", records, "--size", SIZE, "--batch-bytes", BATCH_BYTES, "--in-flight")
    sizes = {"size": SIZE, "batch_bytes": BATCH_BYTES}

    def ours(in_flight: int, bootstrap: str, topic: str) -> Sample:
        return program("benches.ours", "produce", bootstrap, topic, "--connect-first", *options, in_flight)

    def raw(in_flight: int, bootstrap: str, topic: str) -> Sample:
        return program("benches.peers.raw_produce", bootstrap, topic, *options, in_flight)

    def librdkafka(bootstrap: str, topic: str) -> Sample:
        return rdkafka.produce(bootstrap, topic, records, in_flight=IN_FLIGHT, **sizes)

    with far_cluster(DELAY_MS) as far:
        senders: list[Callable[[str, str], Sample]] = [
            partial(ours, IN_FLIGHT),
            partial(ours, 1),
            partial(raw, IN_FLIGHT),
            partial(raw, 1),
            partial(raw, CEILING_IN_FLIGHT),
            librdkafka,
        ]
        runners = [bench.into_empty_topic(far, send) for send in senders]
        five, one, limit, raw_one, ceiling, c_client = in_turns(runners, bench.pairs)
    yield compare(f"{case}: {IN_FLIGHT} in flight / 1", five, one, limit, bar=BAR)
    yield compare(f"{case}: raw produce, {IN_FLIGHT} in flight / 1", limit, raw_one)
    yield compare(f"{case}: {IN_FLIGHT} in flight / librdkafka C", five, c_client, limit)
    yield compare(f"{case}: raw produce, {CEILING_IN_FLIGHT} in flight / ours", ceiling, five, bar=CEILING_BAR)
