"""Java for the driver ``java``: which one, and the class path of its worker."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.lab.worker.drivers import DriverError

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE: Final = Path(__file__).resolve().parent / "java"
CLASSPATH_VARIABLE: Final = "HEADRACE_LAB_CLASSPATH"
MAVEN_TIMEOUT_S: Final = 600
COMPILE_TIMEOUT_S: Final = 120
HEAP: Final = "1g"


def command() -> list[str]:
    """How the worker is started.

    Raises:
        DriverError: there is no JDK or no class path, or the worker does not compile with them.
    """
    java, path = find(), classpath()
    return [java, f"-Xmx{HEAP}", "-cp", os.pathsep.join([str(_classes(java, path)), path]), "lab.LabWorker"]


def _classes(java: str, path: str) -> Path:
    """The folder with the compiled worker; compiled once, since that takes longer than all else of its start."""
    sources = sorted(HERE.glob("*.java"))
    given = (*(source.read_bytes() for source in sources), path.encode(), os.path.realpath(java).encode())
    kept = _cache() / f"lab-{_mark(*given)}"
    if kept.is_dir():
        return kept
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix="lab-") as made:
            _compile(java, path, sources, Path(made, "classes"))
            # Another process may have been quicker: what it has made is the same.
            if not kept.is_dir():
                with contextlib.suppress(FileExistsError):
                    Path(made, "classes").rename(kept)
    except OSError as error:
        raise DriverError(f"the compiled worker of the driver java is kept in {kept.parent}: {error}") from None
    return kept


def _compile(java: str, path: str, sources: Sequence[Path], classes: Path) -> None:
    compiler = [java, "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    arguments = ["-nowarn", "-proc:none", "-cp", path, "-d", str(classes), *map(str, sources)]
    try:
        done = subprocess.run(
            [*compiler, *arguments], capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise DriverError(f"Java did not compile the worker within {COMPILE_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise DriverError(f"{java} does not compile the worker: {(done.stdout + done.stderr).strip()[:500]}")


def _mark(*given: bytes) -> str:
    """A name for what was made of these: made of others it has another one."""
    return hashlib.sha256(b"\0".join(given)).hexdigest()[:12]


def find() -> str:
    """The Java to run.

    Raises:
        DriverError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        raise DriverError("the driver java needs a JDK 17 or newer on PATH or in JAVA_HOME")
    return found


def classpath() -> str:
    """kafka-clients and what the worker needs besides: from the environment, or from Maven, once.

    Raises:
        DriverError: there is neither a class path nor a Maven that finds one.
    """
    if given := os.environ.get(CLASSPATH_VARIABLE):
        return given
    pom = HERE / "pom.xml"
    kept = _cache() / f"lab-{_mark(pom.read_bytes())}.cp"
    if kept.is_file():
        path = kept.read_text(encoding="utf-8").strip()
        if path and Path(path.split(os.pathsep)[0]).exists():
            return path
    maven = shutil.which("mvn")
    if maven is None:
        raise DriverError(
            "the driver java needs Maven (mvn) once to fetch Kafka's clients, "
            f"or their class path in {CLASSPATH_VARIABLE}"
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    arguments = ["--quiet", "--batch-mode", "-f", str(pom), "dependency:build-classpath"]
    arguments += ["-Dmdep.includeScope=runtime", f"-Dmdep.outputFile={kept}"]
    try:
        done = subprocess.run([maven, *arguments], capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise DriverError(f"Maven did not find Kafka's clients within {MAVEN_TIMEOUT_S} s") from None
    if done.returncode != 0 or not kept.is_file():
        raise DriverError(f"Maven did not find Kafka's clients: {(done.stdout + done.stderr).strip()[-500:]}")
    return kept.read_text(encoding="utf-8").strip()


def _cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "headrace"
