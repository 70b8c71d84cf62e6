"""Hosts of their own on one machine: network namespaces with a bridge between them, and packets that are not carried.

It takes root. Brokers of different hosts share no memory: their leaders are asked for records over TCP.
"""

from __future__ import annotations

import os
import random
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


def _ip(*words: str) -> None:
    done = subprocess.run(("ip", *words), capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"ip {' '.join(words)}: {done.stderr.strip()} (network namespaces take root)"
        raise OSError(message)


class Host:
    """A network namespace with an address."""

    def __init__(self, namespace: str, address: str) -> None:
        self.namespace, self.address = namespace, address
        self.lost: set[str] = set()
        """Addresses to which it sends nothing."""

    @property
    def command(self) -> list[str]:
        """What runs a program on it."""
        return ["ip", "netns", "exec", self.namespace]

    def lose(self, address: str) -> None:
        """Has packets to an address be lost."""
        if address not in self.lost:
            _ip("-n", self.namespace, "route", "add", "blackhole", address)
            self.lost.add(address)

    def heal(self) -> None:
        """Has everything be carried again."""
        for address in self.lost:
            _ip("-n", self.namespace, "route", "del", "blackhole", address)
        self.lost.clear()


class Network:
    """A bridge, and hosts on it; this process is the last address of its network."""

    def __init__(self, hosts: int) -> None:
        # Other runs on this machine have networks of their own.
        chance = random.SystemRandom()
        self._name = f"hr{os.getpid() % 100_000:05d}{chance.randrange(100):02d}"
        self._prefix = f"10.{chance.randrange(64, 250)}.{chance.randrange(250)}"
        self.address = f"{self._prefix}.254"
        self.hosts = [Host(f"{self._name}n{number}", f"{self._prefix}.{number}") for number in range(1, hosts + 1)]

    def __enter__(self) -> Self:
        try:
            _ip("link", "add", self._name, "type", "bridge")
            _ip("addr", "add", f"{self.address}/24", "dev", self._name)
            _ip("link", "set", self._name, "up")
            for number, host in enumerate(self.hosts):
                ends = (f"{self._name}a{number}", f"{self._name}b{number}")
                _ip("netns", "add", host.namespace)
                _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
                _ip("link", "set", ends[1], "netns", host.namespace)
                _ip("link", "set", ends[0], "master", self._name, "up")
                _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", ends[1])
                _ip("-n", host.namespace, "link", "set", ends[1], "up")
                _ip("-n", host.namespace, "link", "set", "lo", "up")
        except OSError:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Removes it; the ends of its cables go with the namespaces."""
        for host in self.hosts:
            subprocess.run(("ip", "netns", "del", host.namespace), capture_output=True, check=False)
        subprocess.run(("ip", "link", "del", self._name), capture_output=True, check=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def cut(self, one: Host, others: list[Host], *, both: bool = True) -> None:
        """Has packets between a host and others be lost: of both directions, or those that it sends."""
        for other in others:
            one.lose(other.address)
            if both:
                other.lose(one.address)

    def heal(self) -> None:
        """Has everything be carried again."""
        for host in self.hosts:
            host.heal()
