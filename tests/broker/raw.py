"""Bytes by hand: what no well-behaved client would send."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

import crc32c

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


def text(value: bytes) -> bytes:
    """A string of the older versions of Kafka's protocol."""
    return struct.pack(">h", len(value)) + value


def request(key: int, version: int, body: bytes, correlation: int = 1) -> bytes:
    """A whole request with its size, without a client's name."""
    frame = struct.pack(">hhih", key, version, correlation, -1) + body
    return struct.pack(">i", len(frame)) + frame


def varint(number: int) -> bytes:
    """A zigzag varint."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def record(offset_delta: int, value: bytes) -> bytes:
    """A record without key and headers."""
    body = b"\0" + varint(0) + varint(offset_delta) + varint(-1) + varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def batch(
    values: list[bytes],
    *,
    count: int | None = None,
    attributes: int = 0,
    magic: int = 2,
    crc: int | None = None,
    last_delta: int | None = None,
    body: bytes | None = None,
    timestamp: int = 1_700_000_000_000,
) -> bytes:
    """A record batch without keys and headers; every argument but `values` and `timestamp` is for telling lies."""
    records = b"".join(record(i, value) for i, value in enumerate(values)) if body is None else body
    number = len(values) if count is None else count
    delta = len(values) - 1 if last_delta is None else last_delta
    tail = struct.pack(">hiqqqhii", attributes, delta, timestamp, timestamp, -1, -1, -1, number) + records
    checksum = crc32c.crc32c(tail) if crc is None else crc
    return struct.pack(">qiibI", 0, len(tail) + 9, -1, magic, checksum) + tail


class Connection:
    """A socket that speaks frames."""

    def __init__(self, bootstrap_servers: str) -> None:
        """Connects."""
        host, port = bootstrap_servers.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=10)

    def __enter__(self) -> Self:
        """The connection."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self.socket.close()

    def send(self, frame: bytes) -> None:
        """Sends a frame with its size in front."""
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        """A whole frame, or nothing when the peer has closed the connection."""
        try:
            head = self._exactly(4)
            return self._exactly(struct.unpack(">i", head)[0])
        except (EOFError, ConnectionError):
            return b""

    def produce(self, topic: str, records: bytes, partition: int = 0) -> int:
        """Produce version 7; gives the partition's error code."""
        name = topic.encode()
        body = struct.pack(">hhih", 0, 7, 1, 3) + b"raw" + struct.pack(">hhi", -1, 1, 5000)
        body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, partition, len(records)) + records
        self.send(body)
        answer = self.receive()
        assert answer, "the broker closed the connection"
        code: int = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(name) + 4 + 4)[0]
        return code

    def _exactly(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            piece = self.socket.recv(count - len(got))
            if not piece:
                raise EOFError
            got += piece
        return got
