"""What a thousand partitions with three copies cost while nothing is written: processor time of each of three brokers.

Ours beside Apache Kafka's, one after the other, with nobody connected. Our leaders push, which asks followers for
nothing; `fetched` has followers that fetch over TCP, as Apache's do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benches.harness import Row, paired, say
from tests.cluster.processes import brokers, etcd
from tests.cluster.workload import create
from tests.kafka.apache import scratch_folder
from tests.kafka.nodes import ApacheNodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benches.run import Bench

COPIES = 3
PARTITIONS = 1000
TOPIC = "idle"
SETTLE_SECONDS = 20.0
"""All are in sync before, and the JVM has compiled what it runs."""
MEASURE_SECONDS = 20.0
BAR_PERCENT = 2.0


def _seconds(process: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _percent(bootstrap: str, processes: Sequence[int]) -> list[float]:
    """Of a core, for each of these brokers, once the topic has settled."""
    create(bootstrap, partitions=PARTITIONS, copies=COPIES, name=TOPIC)
    time.sleep(SETTLE_SECONDS)
    before, began = [_seconds(process) for process in processes], time.monotonic()
    time.sleep(MEASURE_SECONDS)
    taken = time.monotonic() - began
    return [100 * (_seconds(process) - had) / taken for process, had in zip(processes, before, strict=True)]


def rows(_: Bench) -> Iterator[Row]:
    """Per cent of a core a broker, with our figures below the bar."""
    say(f"idle copies: {PARTITIONS} partitions, {COPIES} copies")
    with ApacheNodes(COPIES, heap="1g", quick=False) as apache:
        processes = [node.process.pid for node in apache.nodes if node.process]
        theirs = _percent(apache.bootstrap_servers, processes)
    for side, pushes in ("pushed", "auto"), ("fetched", "tcp"):
        with contextlib.ExitStack() as running:
            folder = scratch_folder("idle-copies")
            running.callback(shutil.rmtree, folder, ignore_errors=True)
            address = f"etcd://{running.enter_context(etcd(folder)).client}"
            nodes = running.enter_context(brokers(folder, address, COPIES, headrace_direct_replication=pushes))
            ours = _percent(nodes[1].address, [node.process.pid for node in nodes.values() if node.process])
        label = f"{PARTITIONS} idle partitions, {COPIES} copies, {side}: CPU of a broker / Apache Kafka"
        yield paired(label, ours, theirs, "% of a core", bar_on_ours=BAR_PERCENT)
