"""Lays Kafka's classes down as the JVM has them in memory (class data sharing).

The tests' brokers and tools start in half the processor time so. `python -m tests.kafka.archive`; without an archive
all goes on as before.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kafka import java
from tests.kafka.apache import ApacheKafka

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_SECONDS = 120
TOPIC = "archive"
TOOLS = (
    (
        "org.apache.kafka.tools.TopicCommand",
        ("--create", "--topic", TOPIC, "--partitions", "2"),
    ),
    ("org.apache.kafka.tools.ConsoleProducer", ("--topic", TOPIC)),
    (
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        ("--topic", TOPIC, "--group", TOPIC, "--from-beginning", "--max-messages", "1", "--timeout-ms", "20000"),
    ),
    (
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        ("--describe", "--group", TOPIC),
    ),
)


class Recorded(ApacheKafka):
    """A broker that notes which classes it loads."""

    def __init__(self, classes: Path) -> None:
        super().__init__()
        self.classes = classes

    def jvm(self) -> Sequence[str]:
        return recording(self.classes)

    def end(self) -> None:
        """Ends it in good order, so that its notes are whole."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(TIMEOUT_SECONDS)


def recording(classes: Path) -> tuple[str, ...]:
    """Options of a JVM that notes which classes it loads."""
    return (*java.SHORT_LIVED, f"-XX:DumpLoadedClassList={classes}")


def loaded(folder: Path) -> set[str]:
    """The classes that a broker and the tools load in a short life, in the JVM's own words."""
    with Recorded(folder / "broker") as kafka:
        for number, (tool, arguments) in enumerate(TOOLS):
            command = java.command(tool, "--bootstrap-server", kafka.bootstrap_servers, *arguments)
            at = command.index("-cp")
            command[1:at] = [*recording(folder / f"tool-{number}"), *(c for c in command[1:at] if c.startswith("-D"))]
            subprocess.run(command, input=b"x\n", capture_output=True, timeout=TIMEOUT_SECONDS, check=True)
        kafka.end()
    lines = {line for file in folder.iterdir() for line in file.read_text(encoding="utf-8").splitlines()}
    # What is made at run time differs from run to run.
    return {line for line in lines if not line.startswith(("#", "@")) and " source:" not in line}


def make(target: Path = java.ARCHIVE_FILE) -> None:
    """Writes the archive, for the Java and the class path that there are now.

    Raises:
        java.MissingError, OSError, subprocess.SubprocessError: it cannot be made.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "lists").mkdir()
        classes = folder / "classes"
        classes.write_text("\n".join(sorted(loaded(folder / "lists"))) + "\n", encoding="utf-8")
        made = target.with_suffix(".new")
        made.unlink(missing_ok=True)
        options = ("-Xshare:dump", "-XX:+UseSerialGC", f"-XX:SharedClassListFile={classes}")
        command = [java.java(), *options, f"-XX:SharedArchiveFile={made}", "-cp", java.classpath()]
        subprocess.run(command, capture_output=True, timeout=TIMEOUT_SECONDS, check=True)
        made.rename(target)


if __name__ == "__main__":
    try:
        make()
    except (OSError, subprocess.SubprocessError, RuntimeError) as why:
        print(f"no archive of Kafka's classes, so that its tests start more slowly: {why}", file=sys.stderr)
        java.ARCHIVE_FILE.touch()  # an empty one is passed over; the next `make` need not try again
