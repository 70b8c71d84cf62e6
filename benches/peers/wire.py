"""As much of the Kafka protocol as the limits need: one connection, fetched bytes not decoded."""

from __future__ import annotations

import socket
import struct

PRODUCE, FETCH = (0, 7), (1, 4)  # key and version: the newest without flexible fields is enough
TIMEOUT_SECONDS = 30.0
HEADER_BYTES = 61


def text(string: str) -> bytes:
    """A Kafka string."""
    data = string.encode()
    return struct.pack(">h", len(data)) + data


class Connection:
    """One socket to one broker."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray(1 << 20)

    def send(self, api: tuple[int, int], correlation: int, body: bytes, tail: bytes = b"") -> None:
        """A request; `tail` is sent after the body without a copy."""
        head = struct.pack(">hhi", *api, correlation) + text("limit") + body
        self.socket.sendall(struct.pack(">i", len(head) + len(tail)) + head)
        if tail:
            self.socket.sendall(tail)

    def receive(self) -> memoryview:
        """The next response, from its correlation id on; valid until the next call."""
        self._read(4)
        size = struct.unpack_from(">i", self.buffer)[0]
        if size > len(self.buffer):
            self.buffer = bytearray(size)
        self._read(size)
        return memoryview(self.buffer)[:size]

    def _read(self, size: int) -> None:
        view = memoryview(self.buffer)
        got = 0
        while got < size:
            step = self.socket.recv_into(view[got:size])
            if step == 0:
                raise ConnectionError("the broker closed the connection")
            got += step

    def close(self) -> None:
        """Ends it."""
        self.socket.close()
