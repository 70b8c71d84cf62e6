"""A broker that spoils its answers: a proxy before a real one, which has done what the spoiled answer does not say."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import defaultdict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

PRODUCE, FETCH, METADATA, OFFSET_COMMIT, FIND_COORDINATOR = 0, 1, 3, 8, 10
HEARTBEAT, CONSUMER_GROUP_HEARTBEAT = 12, 68
API_VERSIONS, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 18, 22, 24, 26
DIRECT_CONNECT = 16384

SPOILED = {
    "garbage": lambda frame: framed(frame[:4] + b"\xff" * (len(frame) - 4)),
    "short": lambda frame: framed(frame[: 5 + (len(frame) - 5) // 2]),
    "correlation": lambda frame: framed(bytes([frame[0] ^ 0x40]) + frame[1:]),
    "negative": lambda frame: struct.pack(">i", -5) + frame,
    "huge": lambda frame: struct.pack(">i", 2**31 - 1) + frame,
}
"""What becomes of an answer. An answer begins with the id of its request. Besides: "silence", "cut" in its middle."""
UNREADABLE = sorted(SPOILED)


def framed(frame: bytes) -> bytes:
    """With its size in front."""
    return struct.pack(">i", len(frame)) + frame


def received(source: socket.socket) -> bytes | None:
    """A whole frame, or None at the end of the connection."""
    try:
        head = source.recv(4, socket.MSG_WAITALL)
        if len(head) < 4:
            return None
        size = struct.unpack(">i", head)[0]
        frame = source.recv(size, socket.MSG_WAITALL)
    except OSError:
        return None
    return frame if len(frame) == size else None


class Spoiler:
    """Stands before a broker of loopback and tells clients its own address in place of the broker's."""

    def __init__(self, bootstrap_servers: str, places: dict[int, int] | None = None) -> None:
        self._real = int(bootstrap_servers.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        # Spoilers before the nodes of one cluster share this: the answers of each name all of them.
        self._places = {} if places is None else places
        self._places[self._real] = self.port
        self._next: dict[int, deque[str]] = defaultdict(deque)
        self._always: dict[int, str] = {}
        self._rewrites: dict[int, Callable[[bytes], bytes]] = {}
        self._sockets: list[socket.socket] = []
        self.answered: dict[int, int] = defaultdict(int)
        """Bytes of the answers to each API key."""
        threading.Thread(target=self._accept, daemon=True).start()

    def spoil(self, key: int, *ways: str) -> None:
        """Spoils the next answers to requests of this API key, each in one of these ways."""
        self._next[key].extend(ways)

    def always(self, key: int, way: str | None) -> None:
        """Spoils all of them; None ends that."""
        if way is None:
            self._always.pop(key, None)
        else:
            self._always[key] = way

    def rewrite(self, key: int, change: Callable[[bytes], bytes] | None) -> None:
        """Sends what becomes of each answer to requests of this API key, id of the request included; None ends that."""
        if change is None:
            self._rewrites.pop(key, None)
        else:
            self._rewrites[key] = change

    def left(self, key: int) -> int:
        """How many answers are still to be spoiled."""
        return len(self._next[key])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (self._listener, *self._sockets):
            end(one)

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._real))
            except OSError:
                return
            self._sockets += [client, server]
            keys: dict[bytes, int] = {}
            threading.Thread(target=self._requests, args=(client, server, keys), daemon=True).start()
            threading.Thread(target=self._answers, args=(client, server, keys), daemon=True).start()

    @staticmethod
    def _requests(client: socket.socket, server: socket.socket, keys: dict[bytes, int]) -> None:
        while (frame := received(client)) is not None:
            keys[frame[4:8]] = struct.unpack_from(">h", frame)[0]
            with contextlib.suppress(OSError):
                server.sendall(framed(frame))
        end(server)

    def _answers(self, client: socket.socket, server: socket.socket, keys: dict[bytes, int]) -> None:
        mute = False
        while (frame := received(server)) is not None:
            key = keys.pop(frame[:4])
            self.answered[key] += len(frame)
            reported = frame
            for real, place in self._places.items():
                reported = reported.replace(self._place(real), self._place(place))
            if change := self._rewrites.get(key):
                reported = change(reported)
            way = self._next[key].popleft() if self._next[key] else self._always.get(key)
            mute |= way == "silence"
            if mute:
                continue
            try:
                if way == "cut":
                    client.sendall(framed(reported)[: len(reported) // 2 + 4])
                    break
                client.sendall(SPOILED[way](reported) if way else framed(reported))
            except OSError:
                break
        end(client)

    @staticmethod
    def _place(port: int) -> bytes:
        """A broker as its answers name it: a host, and behind it the port."""
        return b"127.0.0.1" + struct.pack(">i", port)


def end(one: socket.socket) -> None:
    """Ends a connection for both sides and for whoever waits in it."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
