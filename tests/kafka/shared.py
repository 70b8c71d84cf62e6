"""One Apache Kafka for all the processes of a test run.

pytest-xdist's controller starts it when a worker asks for the first time, and stops it when all workers are done: one
that a worker has started would end with that worker. Workers ask over a socket; its address and key come with their
input.
"""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.managers import BaseManager
from typing import TYPE_CHECKING, Final

from tests.kafka.apache import ApacheKafka, RunningKafka

if TYPE_CHECKING:
    from pathlib import Path

    from xdist.workermanage import WorkerController

HEAP: Final = "1g"
"""All workers' topics are in it."""
INPUT: Final = "shared_kafka"


class Shared:
    """The controller's side."""

    def __init__(self) -> None:
        self._kafka: ApacheKafka | None = None
        # One thread that stays: Apache Kafka is killed when the thread that has started it ends.
        self._starter = ThreadPoolExecutor(1)
        self._key = secrets.token_bytes(16)

        class Manager(BaseManager):
            """Hands this object out."""

        Manager.register("shared", callable=lambda: self)
        self._server = Manager(("127.0.0.1", 0), authkey=self._key).get_server()
        threading.Thread(target=self._server.serve_forever, name="shared Apache Kafka", daemon=True).start()

    def give_address(self, node: WorkerController) -> None:
        """Gives a worker that is about to start what it needs to ask."""
        node.workerinput[INPUT] = (self._server.address[1], self._key.hex())

    def where(self) -> tuple[int, Path]:
        """Port and folder; starts it the first time.

        Raises:
            StartError: it ended, or did not serve within a minute.
            java.MissingError: there is no Java, or no jars.
        """
        return self._starter.submit(self._start_once).result()

    def _start_once(self) -> tuple[int, Path]:
        if self._kafka is None:
            self._kafka = ApacheKafka(heap=HEAP).start()
        return self._kafka.port, self._kafka.directory

    def stop(self, logs: Path | None) -> None:
        """Stops it if it was started; `logs` is a folder for its log files."""
        if self._kafka is not None:
            self._kafka.stop(keep_logs=logs and logs / str(self._kafka.port))
        self._starter.shutdown()


class _Asking(BaseManager):
    """A worker's side."""


_Asking.register("shared", exposed=["where"])


def ask(given: tuple[int, str]) -> RunningKafka:
    """The one that all share; `given` is the worker's input."""
    port, key = given
    manager = _Asking(("127.0.0.1", port), authkey=bytes.fromhex(key))
    manager.connect()
    return RunningKafka(*manager.shared().where())  # type: ignore[attr-defined]  # registered above
