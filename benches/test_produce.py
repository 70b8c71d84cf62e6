"""Produce from Arrow, small: `make bench` has the full sizes and the peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benches import ours
from benches.peers import confluent, raw_fetch, raw_produce

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from tests.kafka.cluster import Cluster

BATCH_BYTES = 128 << 10
CASES = [pytest.param(100, 200_000, id="100-200k-tcp"), pytest.param(1024, 40_000, id="1024-40k-tcp")]
RUNNERS = [
    pytest.param(ours.produce, id="headrace"),
    pytest.param(confluent.produce, id="confluent"),
]


@pytest.mark.parametrize(("size", "count"), CASES)
@pytest.mark.parametrize("runner", RUNNERS)
def test_produce_from_arrow(benchmark: BenchmarkFixture, cluster: Cluster, topic: str, runner, size: int, count: int):
    """All that was acknowledged is there, once."""
    cluster.create_topic(topic)
    options = {"size": size, "batch_bytes": BATCH_BYTES}
    benchmark.pedantic(runner, (cluster.bootstrap_servers, topic, count), options, rounds=1)
    assert raw_fetch.count(cluster.bootstrap_servers, topic) == count


@pytest.mark.parametrize(("size", "count"), CASES)
def test_produce_raw(benchmark: BenchmarkFixture, cluster: Cluster, topic: str, size: int, count: int) -> None:
    """The limit."""
    cluster.create_topic(topic)
    options = {"size": size, "batch_bytes": BATCH_BYTES}
    benchmark.pedantic(raw_produce.measure, (cluster.bootstrap_servers, topic, 1, count), options, rounds=1)
    assert raw_fetch.count(cluster.bootstrap_servers, topic) == count
