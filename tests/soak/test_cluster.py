"""Brokers of a cluster and members of its etcd are killed, paused and stopped: nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.cluster.faults import PARTITIONS, PATIENCE_SECONDS, SEED, Faults, longest_gap
from tests.cluster.networks import Network
from tests.cluster.processes import brokers, etcd_of
from tests.cluster.workload import (
    DirectReader,
    DirectWriter,
    Verdict,
    Writer,
    check_verdict,
    create,
    read_all,
    verdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "300"))
FAULTS = int(os.environ.get("HEADRACE_SOAK_FAULTS", "0"))
"""So many happen in all, however long it takes; without it as many as there is time for."""


class Totals:
    """What all clusters of a run have been through."""

    def __init__(self) -> None:
        self._events: Counter[str] = Counter()
        self._gaps: dict[tuple[str, str], list[float]] = {}
        self._acknowledged = self._lost = self._twice = 0

    def add(self, brokers: int, faults: Mapping[str, int], gaps: Mapping[str, Sequence[float]]) -> None:
        """Counts what happened to a cluster. A broker that is alone has to come back itself, so it counts apart."""
        self._events.update(faults)
        for what, seconds in gaps.items():
            self._gaps.setdefault((what, "alone" if brokers == 1 else "of several"), []).extend(seconds)

    def judge(self, given: Verdict) -> None:
        """Counts what became of its records."""
        self._acknowledged += given.acknowledged
        self._lost += len(given.lost)
        self._twice += len(given.twice)

    def __str__(self) -> str:
        events = ", ".join(f"{number} {what}" for what, number in self._events.most_common())
        lines = [f"cluster soak, seed {SEED}: {self._events.total()} events ({events})"]
        lines.append(f"  {self._acknowledged} records acknowledged, {self._lost} lost, {self._twice} there twice")
        for (what, who), seconds in self._gaps.items():
            median, most = statistics.median(seconds), max(seconds)
            lines.append(f"  without an acknowledgement, {what}, {who}: median {median:.2f} s, most {most:.2f} s")
        return "\n".join(lines)


@pytest.fixture(scope="module")
def totals(request: pytest.FixtureRequest) -> Iterator[Totals]:
    """Printed at the end, whether the run shows what tests print or not."""
    given = Totals()
    yield given
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{given}")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("count", "members", "hosts"),
    [(1, 1, False), (3, 1, False), (3, 3, False), (5, 3, False), (3, 3, True), (5, 3, True)],
)
def test_nothing_acknowledged_is_lost_whatever_is_killed(
    tmp_path: Path, totals: Totals, count: int, members: int, *, hosts: bool
):
    print(f"seed {SEED}: HEADRACE_SOAK_SEED={SEED} repeats the choices")
    choice = random.Random(f"{SEED} {count} {members} {hosts}")
    gaps: dict[str, list[float]] = {}
    with ExitStack() as outer:
        network = outer.enter_context(Network(count + members)) if hosts else None
        # Members of etcd and brokers on a host of their own each, or all on this one.
        on = (network.hosts[count:], network.hosts[:count]) if network else (None, None)
        store = outer.enter_context(etcd_of(tmp_path, members, hosts=on[0]))
        address = f"etcd://{','.join(member.client for member in store)}"
        settings = {"leader_imbalance_check_interval_seconds": "3"}
        with ExitStack() as stack:
            nodes = stack.enter_context(brokers(tmp_path, address, count, on[1], **settings))
            servers = ",".join(node.address for node in nodes.values())
            create(servers, partitions=PARTITIONS, copies=min(count, 3))
            reader = stack.enter_context(DirectReader(servers))
            writer, direct = Writer(servers), DirectWriter(servers)
            faults = Faults(choice, nodes, store, servers, network)
            ends = time.monotonic() + SECONDS / 6
            try:
                while sum(faults.counts.values()) * 6 < FAULTS if FAULTS else time.monotonic() < ends:
                    writer.wait_for_more(50, PATIENCE_SECONDS)
                    began = time.monotonic()
                    what, partition = faults.one()
                    writer.wait_for_each(range(PARTITIONS), PATIENCE_SECONDS)
                    if partition is not None:
                        gaps.setdefault(what, []).append(longest_gap(writer.times[partition], began))
            finally:
                writer.end()
                direct.end()
                totals.add(count, faults.counts, gaps)
            found = read_all(servers)
            judged = verdict(found, writer, direct)
            totals.judge(judged)
            check_verdict(judged, writer, direct)
            reader.check(found)
            assert hosts or reader.direct_bytes > 0, "it has read memory"
    happened = ", ".join(f"{number} {what}" for what, number in faults.counts.items())
    records = f"{len(writer.acknowledged)} + {len(direct.acknowledged)} records"
    where = "on hosts of their own" if hosts else "on one host"
    print(f"{count} brokers, {members} of etcd, {where}, {records}: {happened}")
    for what, seconds in gaps.items():
        median, most = statistics.median(seconds), max(seconds)
        print(f"  without an acknowledgement, {what}: median {median:.2f} s, most {most:.2f} s")
