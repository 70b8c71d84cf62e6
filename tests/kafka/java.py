"""Java programs on Apache Kafka's class path: its command-line tools, and small programs of our own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
CLASSPATH_VARIABLE = "HEADRACE_KAFKA_CLASSPATH"
CLASSPATH_FILE = ROOT / ".deps" / "kafka.cp"
ARCHIVE_FILE = ROOT / ".deps" / "kafka.jsa"
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""What lives for seconds starts sooner with the quick compiler and the small collector."""


class MissingError(RuntimeError):
    """Something that these tests cannot do without is not on this machine."""


class ToolError(RuntimeError):
    """A Java tool failed; the message holds what it printed."""


def java() -> str:
    """Path of the `java` to run; JAVA_HOME wins over PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        raise MissingError(
            "no Java: the tests against Apache Kafka need a JDK 17 or newer on PATH or in JAVA_HOME "
            "(apt-get install openjdk-17-jdk-headless)"
        )
    return found


def classpath() -> str:
    """Class path of Apache Kafka's broker, clients and tools."""
    path = os.environ.get(CLASSPATH_VARIABLE, "")
    if not path and CLASSPATH_FILE.exists():
        path = CLASSPATH_FILE.read_text(encoding="utf-8").strip()
    if not path:
        raise MissingError(
            "Apache Kafka's jars are not here: `make .deps/kafka.cp` fetches them "
            f"(a class path in {CLASSPATH_VARIABLE} does as well)"
        )
    first = path.split(os.pathsep, 1)[0]
    if not Path(first).exists():
        raise MissingError(
            f"{first} is gone: `rm .deps/kafka.cp && make .deps/kafka.cp` fetches Apache Kafka's jars again"
        )
    return path


def quick_jvm() -> tuple[str, ...]:
    """Options of a JVM that lives for seconds: with Kafka's classes as `tests.kafka.archive` has laid them down.

    An archive of another Java or of other jars is passed over.
    """
    archive = (f"-XX:SharedArchiveFile={ARCHIVE_FILE}", "-Xlog:disable") if ARCHIVE_FILE.exists() else ()
    return (*SHORT_LIVED, "-Xshare:auto", *archive)


def command(main_class: str, *args: str, jvm: tuple[str, ...] | None = None) -> list[str]:
    """The command line of a Java program; `main_class` may be a `.java` file, compiled on the way.

    `jvm`: its options, by default those of `quick_jvm`.
    """
    jvm = quick_jvm() if jvm is None else jvm
    logging = f"-Dlog4j2.configurationFile={HERE / 'tools-log4j2.properties'}"
    return [java(), *jvm, logging, "-cp", classpath(), main_class, *args]


def run(
    main_class: str, *args: str, stdin: str | bytes | None = None, timeout: float = 60, check: bool = True
) -> subprocess.CompletedProcess[bytes]:
    """Runs a Java program to its end and returns what it printed; `timeout` in seconds.

    Raises:
        ToolError: it failed (unless `check` is false) or took longer.
    """
    data = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        done = subprocess.run(command(main_class, *args), input=data, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as late:
        printed = (late.stdout or b"") + (late.stderr or b"")
        raise ToolError(f"{main_class} took over {timeout} s: {printed.decode(errors='replace')}") from late
    if check and done.returncode != 0:
        printed = done.stdout + done.stderr
        raise ToolError(f"{main_class} ended with {done.returncode}: {printed.decode(errors='replace')}")
    return done


def dump_log_segments(*files: Path, deep: bool = True) -> str:
    """What Kafka's own DumpLogSegments says of segment files (`.log`, `.index`, `.timeindex`).

    It fails when an index does not fit its log; `deep` also decodes the records.
    """
    args = ["--files", ",".join(str(file) for file in files)]
    if deep:
        args += ["--deep-iteration", "--print-data-log"]
    return run("org.apache.kafka.tools.DumpLogSegments", *args).stdout.decode(errors="replace")
