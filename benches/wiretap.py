"""A proxy on loopback that counts: requests of each kind, and bytes towards clients.

Asked, it tells as a line of JSON what it has counted since it was asked before.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import socket
import struct
import threading

from benches.relay import Relay, begin, serve

PIECE_BYTES = 1 << 20
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


class Wiretap(Relay):
    """The process."""

    def __init__(self) -> None:
        super().__init__("benches.wiretap")

    def take(self) -> Traffic:
        """What has gone through since the last call."""
        return Traffic(**json.loads(self.ask()))


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


def main() -> None:
    """Serves until it is killed."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    counters = Counters()

    def handle(client: socket.socket, broker: socket.socket) -> None:
        begin(upstream, client, broker, counters)
        begin(downstream, broker, client, counters)

    serve(handle, lambda: json.dumps(dataclasses.asdict(counters.take())))


if __name__ == "__main__":
    main()
