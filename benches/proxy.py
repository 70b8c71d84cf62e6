"""A network with delay: a proxy on loopback that hands every byte on some milliseconds later, in both directions.

It delays and does not narrow: as many bytes as fit into its memory may be on their way. It runs as a process of its
own, so that it shares no interpreter lock with what is measured. Two threads a direction: one reads and notes when
each piece is due, one waits until then and writes; a sleep of a thread is more exact than the clock of an event loop.
"""

from __future__ import annotations

import argparse
import queue
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from benches.harness import ROOT
from tests.kafka.apache import die_with_parent

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

PIECE_BYTES = 256 << 10
PIECES_MAX = 1024
"""The most that is on its way in one direction of one connection, in pieces."""
EXIT_TIMEOUT_SECONDS = 10


class DelayingProxy:
    """The process; a context manager. It has its address before it has a target, as brokers must be told of it.

    Args:
        delay_ms: of each direction.
    """

    def __init__(self, delay_ms: float) -> None:
        self.delay_ms = delay_ms
        self.port = 0

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benches.proxy", "--delay-ms", str(self.delay_ms)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 -- the one call in it is safe after fork
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        return self

    def forward_to(self, port: int) -> None:
        """Connections made from now on go to this port of loopback."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{port}\n")
        self.process.stdin.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate(timeout=EXIT_TIMEOUT_SECONDS)


Piece = tuple[float, bytes]


def read(source: socket.socket, pieces: queue.Queue[Piece], delay: float) -> None:
    """Notes when each piece is due; an empty one is the end."""
    while True:
        try:
            data = source.recv(PIECE_BYTES)
        except OSError:
            data = b""
        pieces.put((time.monotonic() + delay, data))
        if not data:
            return


def write(sink: socket.socket, pieces: queue.Queue[Piece]) -> None:
    """Writes each piece when it is due; at the end, or when nobody takes it, the connection ends both ways."""
    while True:
        due, data = pieces.get()
        if (early := due - time.monotonic()) > 0:
            time.sleep(early)
        try:
            if data:
                sink.sendall(data)
                continue
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        if data:
            # The reader of the other side must not fill a queue that nobody empties.
            sink.close()
            while pieces.get()[1]:
                pass
        return


def join(client: socket.socket, port: int, delay: float) -> None:
    """Four threads for a connection."""
    try:
        server = socket.create_connection(("127.0.0.1", port))
    except OSError:
        client.close()
        return
    for source, sink in ((client, server), (server, client)):
        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pieces: queue.Queue[Piece] = queue.Queue(PIECES_MAX)
        threading.Thread(target=read, args=(source, pieces, delay), daemon=True).start()
        threading.Thread(target=write, args=(sink, pieces), daemon=True).start()


def main() -> None:
    """Prints its port, takes its targets from standard input, and serves until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay-ms", type=float, required=True)
    delay = parser.parse_args().delay_ms / 1000
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        targets = [int(sys.stdin.readline())]
        threading.Thread(target=lambda: targets.extend(map(int, sys.stdin)), daemon=True).start()
        while True:
            join(listener.accept()[0], targets[-1], delay)


if __name__ == "__main__":
    main()
