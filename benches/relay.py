"""Proxies on loopback that run as processes of their own, so that they share no interpreter lock with what is measured.

The process prints its port; a line on its standard input names the port that connections go to from then on, and an
empty one asks it to tell what it knows, as a line.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from benches.harness import ROOT
from tests.kafka.apache import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

EXIT_TIMEOUT_SECONDS = 10


class Relay:
    """The process; a context manager. It has its address before it has a target, as brokers must be notified of it.

    Args:
        module: what the process runs: it calls `serve`.
        arguments: of that program.
    """

    def __init__(self, module: str, *arguments: object) -> None:
        self._command = [sys.executable, "-m", module, *map(str, arguments)]
        self.port = 0

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 -- the one call in it is safe after fork
        )
        self.port = int(self._read())
        return self

    def forward_to(self, port: int) -> None:
        """Connections made from now on go to this port of loopback."""
        self._say(str(port))

    def ask(self) -> str:
        """What the process tells."""
        self._say("")
        return self._read()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate(timeout=EXIT_TIMEOUT_SECONDS)

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


def serve(handle: Callable[[socket.socket, socket.socket], None], tell: Callable[[], str] = str) -> None:
    """The program: until it is killed, `handle` is given each connection's client and server, and `tell` is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        target = [int(sys.stdin.readline())]
        begin(accept, listener, target, handle)
        for line in sys.stdin:
            if line.strip():
                target[0] = int(line)
            else:
                print(tell(), flush=True)


def accept(listener: socket.socket, target: list[int], handle: Callable[[socket.socket, socket.socket], None]) -> None:
    """Connects each client to the target."""
    while True:
        client, _ = listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", target[0]))
        except OSError:
            client.close()
            continue
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        handle(client, server)


def begin(work: Callable[..., None], *arguments: object) -> None:
    """In a thread that ends with the process."""
    threading.Thread(target=work, args=arguments, daemon=True).start()
