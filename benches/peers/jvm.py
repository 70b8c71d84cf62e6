"""Kafka's Java clients through JavaPeer.java: one JVM for a whole bench, so that they are measured warm."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from benches.peers.meter import Sample
from tests.kafka import java

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

PROGRAM = Path(__file__).resolve().parent / "JavaPeer.java"
EXIT_TIMEOUT_SECONDS = 10


class JavaPeer:
    """The running JVM; a context manager."""

    def __enter__(self) -> Self:
        command = java.command(str(PROGRAM), jvm=("-Xms1g", "-Xmx1g", "-XX:+UseG1GC"))
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(EXIT_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _ask(self, *words: object) -> Sample:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the Java peer ended with {self.process.wait()}; see its messages above")
        return Sample.parse(line)

    def consume(self, bootstrap: str, topic: str, partitions: int, records: int) -> Sample:
        """One pass over a topic; every record's value is looked at."""
        return self._ask("consume", bootstrap, topic, partitions, records)

    def produce(self, bootstrap: str, topic: str, records: int, *, size: int, batch_bytes: int) -> Sample:
        """Sends to partition 0 and flushes."""
        return self._ask("produce", bootstrap, topic, records, size, batch_bytes)

    def pause(self, bootstrap: str, topic: str, partitions: int, limits: tuple[int, float, int]) -> Sample:
        """All partitions but one paused before each poll; `limits` are those of `benches.pause`."""
        return self._ask("pause", bootstrap, topic, partitions, *limits)

    def resume(self, bootstrap: str, topic: str, rounds: int) -> float:
        """The median of seconds from a resumption to the record that waits."""
        return self._ask("resume", bootstrap, topic, rounds).seconds

    def flow(self, bootstrap: str, topic: str, partitions: int, records: int) -> Sample:
        """Slow and fast readers of many partitions, up to the last record."""
        return self._ask("flow", bootstrap, topic, partitions, records)
