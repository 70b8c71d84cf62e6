"""`headrace broker` as a process that is stopped or killed, and started again on its data."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kafka.apache import die_with_parent, free_ports, serves

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

COMMAND = Path(sys.executable).parent / "headrace"
TIMEOUT_SECONDS = 90


class BrokerProcess:
    """One port and one data folder for all its lives; a context manager that starts it and ends with a kill.

    Args:
        data: the data folder; what the process prints goes to a file beside it.
        settings: broker settings, `NAME=VALUE`.
        before: called in the new process before the command takes it over.
        options: further options of the command.
    """

    def __init__(
        self,
        data: Path,
        *settings: str,
        before: Callable[[], None] = lambda: None,
        options: tuple[str, ...] = (),
    ) -> None:
        self.port = free_ports(1)[0]
        self.data = data
        self.settings = [*options, *(part for setting in settings for part in ("-c", setting))]
        self.before = before
        self.output = data.parent / f"{data.name}.out"
        self.started_in_seconds = 0.0

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Starts it and waits until it serves."""

        def prepare() -> None:
            die_with_parent()
            self.before()

        began = time.monotonic()
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [COMMAND, "broker", "--port", str(self.port), "--data-dir", self.data, *self.settings],
                stdout=output,
                stderr=output,
                preexec_fn=prepare,  # noqa: PLW1509 -- the few calls in it are safe after fork
            )
        while not serves(self.port):
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < began + TIMEOUT_SECONDS, f"no answer: {self.output.read_text()}"
            time.sleep(0.001)
        self.started_in_seconds = time.monotonic() - began
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends it a signal and waits for its end; gives the exit status."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_SECONDS)

    def kill(self) -> None:
        """As kill -9."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
