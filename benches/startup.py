"""How soon a broker serves, and how much memory it holds when nobody asks: ours and Apache Kafka."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from benches.harness import Row, paired
from tests.broker.process import BrokerProcess
from tests.kafka.apache import ApacheKafka, resident_bytes, scratch_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

START_TIMEOUT_SECONDS = 10
APACHE_ROUNDS_MAX = 3  # it takes seconds, and its ratios leave no doubt
IDLE_SECONDS = 2
MIB = 1 << 20
START_BAR_MS, PROCESS_BAR_MS, RESIDENT_BAR_MIB = 50, 200, 40
# From the call to the first answer, in a fresh Python that has imported the package.
EMBEDDED = """
import time, headrace
from tests.kafka.apache import serves
headrace.Broker
began = time.perf_counter()
with headrace.Broker.start() as broker:
    assert serves(int(broker.bootstrap_servers.rpartition(":")[2]))
    print((time.perf_counter() - began) * 1000)
"""


@contextlib.contextmanager
def broker_process(*settings: str) -> Iterator[BrokerProcess]:
    """`headrace broker` on data in memory, which goes with it."""
    folder = scratch_folder("bench")
    try:
        with BrokerProcess(folder / "data", *settings) as broker:
            yield broker
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def embedded_start_ms() -> float:
    """`Broker.start()` to the first answer."""
    printed = subprocess.run(
        [sys.executable, "-c", EMBEDDED],
        stdout=subprocess.PIPE,
        text=True,
        timeout=START_TIMEOUT_SECONDS,
        check=True,
    ).stdout
    return float(printed)


def rows(rounds: int) -> Iterator[Row]:
    """Medians over the rounds; the bars are on our own figures, not on the ratios."""
    embedded, process, resident, apache, apache_resident = [], [], [], [], []
    for number in range(rounds):
        embedded.append(embedded_start_ms())
        with broker_process() as ours:
            process.append(ours.started_in_seconds * 1000)
            time.sleep(IDLE_SECONDS)
            resident.append(resident_bytes(ours.process.pid) / MIB)
        if number < APACHE_ROUNDS_MAX:
            with ApacheKafka(heap="1g", quick=False) as kafka:
                apache.append(kafka.started_in_seconds * 1000)
                time.sleep(IDLE_SECONDS)
                apache_resident.append(kafka.resident_bytes() / MIB)
    for name, ours_all, peer_all, unit, bar in (
        ("broker: Broker.start() to the first answer", embedded, apache, "ms", START_BAR_MS),
        ("broker: headrace broker, process to the first answer", process, apache, "ms", PROCESS_BAR_MS),
        ("broker: resident when idle", resident, apache_resident, "MiB", RESIDENT_BAR_MIB),
    ):
        yield paired(name, ours_all, peer_all, unit, bar_on_ours=bar)
