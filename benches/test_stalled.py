"""One of two brokers that stops answering, for a moment: `make bench` measures for longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benches import stalled
from benches.two_nodes import TwoNodes, two_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchmark.fixture import BenchmarkFixture


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    with two_nodes() as both:
        yield both


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("what", ["backlog", "flood"])
def test_one_broker_stops_answering(benchmark: BenchmarkFixture, nodes: TwoNodes, topic: str, what: str) -> None:
    """All that was sent arrives in the end, which `measure` checks; with a small backlog the other broker goes on."""
    where = (nodes.first.bootstrap_servers, nodes.create_topic(topic), what, 0.5, nodes.second.pid)
    rates = benchmark.pedantic(stalled.measure, where, rounds=1)
    assert rates.alive > 0
    assert rates.backlog > 0
    if what == "backlog":
        assert rates.silent > 0
