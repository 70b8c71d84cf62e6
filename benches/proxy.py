"""A network with delay: a proxy on loopback that hands every byte on some milliseconds later, in both directions.

It delays and does not narrow: as many bytes as fit into its memory may be on their way. Two threads a direction: one
reads and notes when each piece is due, one waits until then and writes; a sleep of a thread is more exact than the
clock of an event loop.
"""

from __future__ import annotations

import argparse
import queue
import socket
import time

from benches.relay import Relay, begin, serve

PIECE_BYTES = 256 << 10
PIECES_MAX = 1024
"""The most that is on its way in one direction of one connection, in pieces."""


class DelayingProxy(Relay):
    """The process.

    Args:
        delay_ms: of each direction.
    """

    def __init__(self, delay_ms: float) -> None:
        super().__init__("benches.proxy", "--delay-ms", delay_ms)


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


def join(client: socket.socket, server: socket.socket, delay: float) -> None:
    """Four threads for a connection."""
    for source, sink in ((client, server), (server, client)):
        pieces: queue.Queue[Piece] = queue.Queue(PIECES_MAX)
        begin(read, source, pieces, delay)
        begin(write, sink, pieces)


def main() -> None:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay-ms", type=float, required=True)
    delay = parser.parse_args().delay_ms / 1000
    serve(lambda client, server: join(client, server, delay))


if __name__ == "__main__":
    main()
