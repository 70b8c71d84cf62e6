"""As much of the Kafka protocol as the limits need: one connection, prebuilt batches, fetched bytes not decoded."""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING

import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

PRODUCE, FETCH = (0, 7), (1, 4)  # key and version: the newest without flexible fields is enough
TIMEOUT_SECONDS = 30.0
HEADER_BYTES = 61


def varint(number: int) -> bytes:
    """Zigzag, as in records."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def record_batch(values: Iterable[bytes]) -> bytes:
    """A plain record batch without keys and headers."""
    records = bytearray()
    count = 0
    for delta, value in enumerate(values):
        record = b"\0\0" + varint(delta) + varint(-1) + varint(len(value)) + value + b"\0"
        records += varint(len(record)) + record
        count = delta + 1
    now = int(time.time() * 1000)
    checked = struct.pack(">hiqqqhii", 0, count - 1, now, now, -1, -1, -1, count) + records
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c.crc32c(checked)) + checked


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
