"""`headrace broker` as a process that is killed and started again on its data."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.kafka.apache import die_with_parent, free_ports, serves

COMMAND = Path(sys.executable).parent / "headrace"
START_TIMEOUT_SECONDS = 30


class BrokerProcess:
    """One port and one data folder for all its lives."""

    def __init__(self, data: Path, *settings: str) -> None:
        self.port = free_ports(1)[0]
        self.data = data
        self.settings = [part for setting in settings for part in ("-c", setting)]
        self.process: subprocess.Popen[bytes] | None = None
        self.output = data.parent / f"{data.name}.out"

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> BrokerProcess:
        """Starts it and waits until it serves."""
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [COMMAND, "broker", "--port", str(self.port), "--data-dir", self.data, *self.settings],
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent,  # noqa: PLW1509 -- the one call in it is safe after fork
            )
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not serves(self.port):
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, f"no answer: {self.output.read_text()}"
            time.sleep(0.01)
        return self

    def kill(self) -> None:
        """As kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """As Ctrl-C; the exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(START_TIMEOUT_SECONDS)
