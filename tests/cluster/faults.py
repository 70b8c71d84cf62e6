"""What happens to a cluster by chance: brokers and members of its etcd are killed, paused, stopped and cut off."""

from __future__ import annotations

import os
import random
import signal
import time
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from tests.cluster.workload import leader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.cluster.networks import Network
    from tests.cluster.processes import Etcd, Node

SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
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
