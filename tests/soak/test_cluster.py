"""Brokers of a cluster and members of its etcd are killed, paused and stopped: nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import pytest

from tests.cluster.networks import Network
from tests.cluster.processes import Etcd, Node, brokers, etcd_of
from tests.cluster.workload import DirectReader, DirectWriter, Writer, check, create, leader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "300"))
FAULTS = int(os.environ.get("HEADRACE_SOAK_FAULTS", "0"))
"""So many happen in all, however long it takes; without it as many as there is time for."""
PARTITIONS = 3
PATIENCE_SECONDS = 90
"""All may have been killed at once, and a broker's number may be held by a lease that is not over."""


class Faults:
    """What happens to a cluster, by chance.

    Args:
        choice: where the chance comes from.
        nodes: its brokers.
        members: those of its etcd.
        servers: for clients.
        network: what it is cut in, if there is one.
    """

    WEIGHTS: ClassVar = {"kill": 8, "kill all": 1, "pause": 4, "stop": 3, "kill etcd": 2, "pause etcd": 2}
    CUTS: ClassVar = {"cut off": 4, "mute": 3, "cut from brokers": 4, "cut from etcd": 4}

    def __init__(
        self,
        choice: random.Random,
        nodes: Mapping[int, Node],
        members: Sequence[Etcd],
        servers: str,
        network: Network | None = None,
    ) -> None:
        self._choice, self._nodes, self._members, self._servers = choice, nodes, members, servers
        self._network = network
        self._weights = self.WEIGHTS | (self.CUTS if network else {})
        self.counts = dict.fromkeys(self._weights, 0)

    def one(self) -> tuple[str, int | None]:
        """Has one happen; what, and the partition whose leader it has hit."""
        what = self._choice.choices(list(self._weights), weights=list(self._weights.values()))[0]
        self.counts[what] += 1
        if what.endswith("etcd"):
            self._to_etcd(what)
            return what, None
        partition = self._choice.randrange(PARTITIONS)
        led_by = leader(self._servers, partition)
        node = self._nodes.get(led_by) or self._choice.choice(list(self._nodes.values()))
        if what in self.CUTS:
            self._cut(what, node)
            return what, partition
        if what == "pause":
            node.send(signal.SIGSTOP)
            time.sleep(self._choice.uniform(0.1, 6))
            node.send(signal.SIGCONT)
            return what, partition
        hit = list(self._nodes.values()) if what == "kill all" else [node]
        for one in hit:
            if what == "stop":
                one.stop()
            else:
                one.kill()
        time.sleep(self._choice.uniform(0, 5))
        for one in hit:
            one.begin()
        for one in hit:
            one.wait()
        return what, partition

    def _cut(self, what: str, node: Node) -> None:
        """Has packets of a broker be lost for a while; of all that it sends, or in both directions."""
        network, host = self._network, node.host
        assert network is not None
        assert host is not None
        stores = [one.host for one in self._members if one.host]
        others = [one.host for one in self._nodes.values() if one.host and one is not node]
        to = {"cut from etcd": stores, "cut from brokers": others}.get(what, stores + others)
        network.cut(host, to, both=what != "mute")
        if what in ("cut off", "mute"):
            host.lose(network.address)
        time.sleep(self._choice.uniform(0.1, 8))
        network.heal()

    def _to_etcd(self, what: str) -> None:
        member = self._choice.choice(self._members)
        if what == "pause etcd":
            member.send(signal.SIGSTOP)
            time.sleep(self._choice.uniform(0.5, 6))
            member.send(signal.SIGCONT)
        else:
            member.kill()
            time.sleep(self._choice.uniform(0, 5))
            member.start()


def longest_gap(times: Sequence[float], since: float) -> float:
    """The longest time without an acknowledgement, from shortly before `since` on."""
    later = [at for at in times if at > since - 0.1]
    return max((b - a for a, b in pairwise(later)), default=0.0)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("count", "members", "hosts"),
    [(1, 1, False), (3, 1, False), (3, 3, False), (5, 3, False), (3, 3, True), (5, 3, True)],
)
def test_nothing_acknowledged_is_lost_whatever_is_killed(tmp_path: Path, count: int, members: int, *, hosts: bool):
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
            check(servers, writer, direct, reader=reader)
            assert hosts or reader.direct_bytes > 0, "it has read memory"
    happened = ", ".join(f"{number} {what}" for what, number in faults.counts.items())
    records = f"{len(writer.acknowledged)} + {len(direct.acknowledged)} records"
    where = "on hosts of their own" if hosts else "on one host"
    print(f"{count} brokers, {members} of etcd, {where}, {records}: {happened}")
    for what, seconds in gaps.items():
        median, most = statistics.median(seconds), max(seconds)
        print(f"  without an acknowledgement, {what}: median {median:.2f} s, most {most:.2f} s")
