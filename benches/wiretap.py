"""A proxy on loopback that counts: requests of each kind, and bytes towards clients.

It runs as a process of its own. A line on its standard input names the port that connections go to from then on; an
empty line has it print what it has counted since the one before, as a line of JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import socket
import struct
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from benches.harness import ROOT
from tests.kafka.apache import die_with_parent

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

PIECE_BYTES = 1 << 20
EXIT_TIMEOUT_SECONDS = 10
FETCH_KEY = 1


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What went through."""

    fetches: int
    """Fetch requests."""
    requests: int
    """Requests of all kinds."""
    received: int
    """Bytes towards clients."""
    sent: int
    """Bytes towards the broker."""


class Wiretap:
    """The process; a context manager. It has its address before it has a target, as brokers must be told of it."""

    def __init__(self) -> None:
        self.port = 0

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benches.wiretap"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 -- the one call in it is safe after fork
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        return self

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def forward_to(self, port: int) -> None:
        """Connections made from now on go to this port of loopback."""
        self._say(str(port))

    def take(self) -> Traffic:
        """What has gone through since the last call."""
        self._say("")
        assert self.process.stdout is not None
        return Traffic(**json.loads(self.process.stdout.readline()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate(timeout=EXIT_TIMEOUT_SECONDS)


class Counters:
    """What all connections share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """From zero."""
        self.fetches = self.requests = self.received = self.sent = 0

    def take(self) -> Traffic:
        """What was counted, and from zero."""
        with self.lock:
            taken = Traffic(self.fetches, self.requests, self.received, self.sent)
            self.clear()
        return taken


def upstream(client: socket.socket, broker: socket.socket, counters: Counters) -> None:
    """Hands requests on, and reads the head of each."""
    head = bytearray()
    skip = 0
    while data := receive(client):
        fetches = requests = 0
        rest = memoryview(data)
        while rest:
            if skip:
                step = min(skip, len(rest))
                skip -= step
                rest = rest[step:]
                continue
            step = min(6 - len(head), len(rest))
            head += rest[:step]
            rest = rest[step:]
            if len(head) == 6:
                size, key = struct.unpack(">ih", head)
                skip = size - 2
                requests += 1
                fetches += key == FETCH_KEY
                head.clear()
        with counters.lock:
            counters.fetches += fetches
            counters.requests += requests
            counters.sent += len(data)
        if not hand_on(broker, data):
            break
    end(broker)


def downstream(broker: socket.socket, client: socket.socket, counters: Counters) -> None:
    """Hands answers on."""
    while data := receive(broker):
        with counters.lock:
            counters.received += len(data)
        if not hand_on(client, data):
            break
    end(client)


def receive(source: socket.socket) -> bytes:
    """What comes next; nothing at the end."""
    try:
        return source.recv(PIECE_BYTES)
    except OSError:
        return b""


def hand_on(sink: socket.socket, data: bytes) -> bool:
    """Whether the other side took it."""
    try:
        sink.sendall(data)
    except OSError:
        return False
    return True


def end(sink: socket.socket) -> None:
    """No more bytes go there, and none are wanted from there."""
    try:
        sink.shutdown(socket.SHUT_RDWR)
    except OSError:
        sink.close()


def serve(listener: socket.socket, target: list[int], counters: Counters) -> None:
    """Two threads for a connection."""
    while True:
        client, _ = listener.accept()
        try:
            broker = socket.create_connection(("127.0.0.1", target[0]))
        except OSError:
            client.close()
            continue
        for side in (client, broker):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=upstream, args=(client, broker, counters), daemon=True).start()
        threading.Thread(target=downstream, args=(broker, client, counters), daemon=True).start()


def main() -> None:
    """Prints its port, and serves until it is killed."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    counters = Counters()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        target = [int(sys.stdin.readline())]
        threading.Thread(target=serve, args=(listener, target, counters), daemon=True).start()
        for line in sys.stdin:
            if line.strip():
                target[0] = int(line)
            else:
                print(json.dumps(dataclasses.asdict(counters.take())), flush=True)


if __name__ == "__main__":
    main()
