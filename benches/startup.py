"""How soon a broker serves, and how much memory it holds when nobody asks: ours and Apache Kafka."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benches.harness import Row
from tests.kafka.apache import ApacheKafka, die_with_parent, free_ports, resident_bytes, scratch, serves

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = Path(sys.executable).parent / "headrace"
START_TIMEOUT_SECONDS = 10
STOP_TIMEOUT_SECONDS = 10
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


@dataclasses.dataclass
class Process:
    """A `headrace broker`."""

    bootstrap_servers: str
    pid: int
    started_in_seconds: float


@contextlib.contextmanager
def broker_process() -> Iterator[Process]:
    """Starts `headrace broker` on data in memory and waits for its first answer; stops it at the end."""
    port = free_ports(1)[0]
    data = tempfile.mkdtemp(prefix="headrace-bench-", dir=scratch())
    began = time.perf_counter()
    process = subprocess.Popen(
        [COMMAND, "broker", "--port", str(port), "--data-dir", data],
        stdout=subprocess.DEVNULL,
        preexec_fn=die_with_parent,  # noqa: PLW1509 -- the one call in it is safe after fork
    )
    try:
        while not serves(port, timeout=START_TIMEOUT_SECONDS):
            if process.poll() is not None or time.perf_counter() - began > START_TIMEOUT_SECONDS:
                raise RuntimeError("headrace broker did not come up; its messages are above")
            time.sleep(0.001)
        yield Process(f"127.0.0.1:{port}", process.pid, time.perf_counter() - began)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(data, ignore_errors=True)


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
    for _ in range(rounds):
        embedded.append(embedded_start_ms())
        with broker_process() as ours:
            process.append(ours.started_in_seconds * 1000)
            time.sleep(IDLE_SECONDS)
            resident.append(resident_bytes(ours.pid) / MIB)
    for _ in range(min(rounds, 3)):
        with ApacheKafka(heap="1g", quick=False) as kafka:
            apache.append(kafka.started_in_seconds * 1000)
            time.sleep(IDLE_SECONDS)
            apache_resident.append(kafka.resident_bytes() / MIB)
    for name, ours_all, peer_all, unit, bar in (
        ("broker: Broker.start() to the first answer", embedded, apache, "ms", START_BAR_MS),
        ("broker: headrace broker, process to the first answer", process, apache, "ms", PROCESS_BAR_MS),
        ("broker: resident when idle", resident, apache_resident, "MiB", RESIDENT_BAR_MIB),
    ):
        mine, theirs = statistics.median(ours_all), statistics.median(peer_all)
        yield Row(name=name, ours=mine, peer=theirs, ratio=mine / theirs, unit=unit, bar_on_ours=bar)
