"""Many partitions with little each, small: `make bench` has 2,000 of them and the peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benches import memory, ours
from benches.peers import raw_fetch

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from tests.kafka.cluster import Cluster

PARTITIONS = 100
BUFFER_BYTES = 4 * memory.BATCH_BYTES  # 2.5 times what the partitions take in chunks, a 25th of what they would in full
LINGER_MS = 500


def where(cluster: Cluster, topic: str) -> memory.Where:
    cluster.create_topic(topic, PARTITIONS)
    return memory.Where(cluster.bootstrap_servers, topic, PARTITIONS, BUFFER_BYTES)


@pytest.mark.parametrize("strategy", ["incremental", "full"])
def test_open_batches(benchmark: BenchmarkFixture, cluster: Cluster, topic: str, strategy: str) -> None:
    """How many partitions are active when the buffer is exhausted."""
    counted = benchmark.pedantic(memory.open_partitions, (where(cluster, topic), strategy), rounds=1)
    if strategy == "incremental":
        assert counted == PARTITIONS
    else:
        # More than fit at once, if batches that the refused call hurries come back before it has given up.
        assert BUFFER_BYTES // memory.BATCH_BYTES <= counted < PARTITIONS


@pytest.mark.slow
@pytest.mark.parametrize("client", memory.CLIENTS)
def test_trickle(benchmark: BenchmarkFixture, cluster: Cluster, topic: str, client: str) -> None:
    """A record a second to each partition: only `full` has no memory for it."""
    footprint = benchmark.pedantic(memory.trickle, (where(cluster, topic), client, 1.5, LINGER_MS), rounds=1)
    assert footprint.sent > 0
    assert footprint.resident_mib > footprint.grown_mib
    assert (footprint.refused > 0) == (client == "full")


@pytest.mark.slow
def test_full_load_beside_a_trickle(benchmark: BenchmarkFixture, cluster: Cluster, topic: str) -> None:
    """All that was sent is there, once: what was measured, the block after it, and the record that connects."""
    cluster.create_topic(topic)
    arguments = (where(cluster, f"{topic}-trickle"), topic, "incremental", 20_000)
    sample, _ = benchmark.pedantic(memory.load, arguments, {"beside": True}, rounds=1)
    block = ours.block(memory.LOAD_BYTES).num_rows
    assert sample.records > 0
    assert raw_fetch.count(cluster.bootstrap_servers, topic) == sample.records + block + 1
