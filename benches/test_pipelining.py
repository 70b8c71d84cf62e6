"""Requests in flight over a network with delay, small: `make bench` has the full sizes and the peers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from benches import ours, pipelining
from benches.peers import raw_fetch, raw_produce
from benches.proxy import DelayingProxy
from tests.kafka.apache import serves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from tests.kafka.cluster import Cluster

DELAY_MS = 5.0
RECORDS = 4000
SIZES = {"size": pipelining.SIZE, "batch_bytes": pipelining.BATCH_BYTES}


@pytest.fixture(scope="module")
def far() -> Iterator[Cluster]:
    with pipelining.far_cluster(DELAY_MS, quick=True) as cluster:
        yield cluster


def test_proxy_delays_both_directions(embedded_broker) -> None:
    with DelayingProxy(50) as proxy:
        proxy.forward_to(int(embedded_broker.bootstrap_servers.rpartition(":")[2]))
        began = time.monotonic()
        assert serves(proxy.port, timeout=5)
        assert time.monotonic() - began >= 0.1


@pytest.mark.kafka
@pytest.mark.parametrize("runner", [ours.produce, raw_produce.measure])
def test_in_flight(benchmark: BenchmarkFixture, far: Cluster, topic: str, runner) -> None:
    """One at a time waits for the network with each request; several do not."""
    far.create_topic(topic)
    one_partition = [1] if runner is raw_produce.measure else []
    where = (far.bootstrap_servers, topic, *one_partition, RECORDS)
    # The first run connects, and waits for a broker that is not warm.
    first = runner(*where, **SIZES, in_flight=5)
    five = benchmark.pedantic(runner, where, {**SIZES, "in_flight": 5}, rounds=1)
    one = runner(*where, **SIZES, in_flight=1)
    requests = RECORDS * pipelining.SIZE / pipelining.BATCH_BYTES
    assert one.seconds >= requests * 2 * DELAY_MS / 1000
    assert min(first.seconds, five.seconds) < one.seconds
    assert raw_fetch.count(far.bootstrap_servers, topic) == 3 * RECORDS
