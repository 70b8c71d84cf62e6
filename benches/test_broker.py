"""How soon our broker serves, and what it holds when idle: the bars of `make bench`, with room for a busy machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benches import startup
from tests.kafka.apache import resident_bytes

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

# The tests share two cores with whatever else runs: a bar missed by this much is not noise.
NOISE = 4


def test_broker_embedded_start(benchmark: BenchmarkFixture) -> None:
    """`Broker.start()` in a fresh Python."""
    best = min(benchmark.pedantic(lambda: [startup.embedded_start_ms() for _ in range(3)], rounds=1))
    assert best < startup.START_BAR_MS * NOISE


def test_broker_process_start_and_memory(benchmark: BenchmarkFixture) -> None:
    """`headrace broker`: from its start to the first answer, and what is resident then."""

    def start() -> tuple[float, float]:
        with startup.broker_process() as broker:
            time.sleep(0.5)
            return broker.started_in_seconds * 1000, resident_bytes(broker.process.pid) / startup.MIB

    started, resident = benchmark.pedantic(start, rounds=1)
    assert started < startup.PROCESS_BAR_MS * NOISE
    assert resident <= startup.RESIDENT_BAR_MIB
