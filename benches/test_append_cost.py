"""What an append costs, tiny and unoptimised: that all cases run with both strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benches import append_cost

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture


@pytest.mark.slow
@pytest.mark.timeout(append_cost.BUILD_TIMEOUT_SECONDS)  # it may have to be built first
def test_append_cost(benchmark: BenchmarkFixture) -> None:
    cases = benchmark.pedantic(append_cost.measure, (2, 1), {"release": False}, rounds=1)
    assert set(cases) == {f"{size}B-{case}" for size in (100, 1000) for case in ("one-by-one", "rows", "rows-8p")}
    for strategies in cases.values():
        assert [len(strategies[name]) for name in append_cost.STRATEGIES] == [2, 2]
        assert min(min(costs) for costs in strategies.values()) > 0
