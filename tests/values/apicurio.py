"""Apicurio Registry as one process that keeps everything in memory, with Confluent's REST API."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING

from tests.kafka import java
from tests.kafka.apache import die_with_parent, free_ports

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

HOME = java.ROOT / ".deps" / "registry"
START_TIMEOUT_SECONDS = 200


class Apicurio:
    """A context manager: it serves at `url` until the block ends."""

    def __init__(self, folder: Path) -> None:
        self._port = free_ports(1)[0]
        self._log = folder / "apicurio.log"
        self.url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def __enter__(self) -> Self:
        [jar] = HOME.glob("apicurio-registry-app-*-runner.jar")
        command = [java.java(), *java.SHORT_LIVED, "-Xmx384m", "-Dquarkus.http.host=127.0.0.1"]
        command += [f"-Dquarkus.http.port={self._port}", "-jar", str(jar)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,  # noqa: PLW1509 a plain system call
            )
        try:
            self._wait()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _wait(self) -> None:
        until = time.monotonic() + START_TIMEOUT_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/subjects", timeout=5):  # noqa: S310 (our own URL)
                    return
            except OSError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < until, self._log.read_text()
                time.sleep(0.1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
