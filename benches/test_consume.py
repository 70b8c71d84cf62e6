"""Consume to Arrow, small: `make bench` has the full sizes and the peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benches import ours
from benches.peers import confluent, raw_fetch, raw_produce

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from tests.kafka.cluster import Cluster

CASES = [
    pytest.param(100, 200_000, 1, id="100-200k-tcp"),
    pytest.param(100, 200_000, 4, id="100-200k-tcp-4p"),
    pytest.param(1024, 40_000, 1, id="1024-40k-tcp"),
]


def filled(cluster: Cluster, topic: str, size: int, count: int, partitions: int) -> tuple[str, str, int, int]:
    """Where a topic with `count` records is, as the runners take it."""
    cluster.create_topic(topic, partitions)
    raw_produce.measure(cluster.bootstrap_servers, topic, partitions, count, size=size, batch_bytes=64 << 10)
    return cluster.bootstrap_servers, topic, partitions, count


@pytest.mark.parametrize(("size", "count", "partitions"), CASES)
def test_consume_to_arrow(
    benchmark: BenchmarkFixture, cluster: Cluster, topic: str, size: int, count: int, partitions: int
) -> None:
    """Ours; the runner checks the offsets of every batch."""
    where = filled(cluster, topic, size, count, partitions)
    sample = benchmark.pedantic(ours.consume, where, rounds=3, warmup_rounds=1)
    assert 0 < sample.records < count


@pytest.mark.slow
@pytest.mark.parametrize(("size", "count", "partitions"), CASES[:1])
def test_consume_confluent_to_arrow(
    benchmark: BenchmarkFixture, cluster: Cluster, topic: str, size: int, count: int, partitions: int
) -> None:
    """The peer most of our users come from."""
    where = filled(cluster, topic, size, count, partitions)
    sample = benchmark.pedantic(confluent.consume, where, {"build": confluent.to_arrow}, rounds=3, warmup_rounds=1)
    assert 0 < sample.records < count


@pytest.mark.parametrize(("size", "count", "partitions"), CASES[:2])
def test_consume_raw_fetch(
    benchmark: BenchmarkFixture, cluster: Cluster, topic: str, size: int, count: int, partitions: int
) -> None:
    """The limit."""
    where = filled(cluster, topic, size, count, partitions)
    sample = benchmark.pedantic(raw_fetch.measure, where, rounds=3, warmup_rounds=1)
    assert sample.records < count
