"""Java for the driver ``java``: which one, and the class path of its worker."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from headrace.lab.worker.drivers import DriverError

HERE: Final = Path(__file__).resolve().parent / "java"
CLASSPATH_VARIABLE: Final = "HEADRACE_LAB_CLASSPATH"
MAVEN_TIMEOUT_S: Final = 600
HEAP: Final = "1g"


def command() -> list[str]:
    """How the worker is started: `java` compiles the one file on the way.

    Raises:
        DriverError: there is no Java, or no class path.
    """
    return [_java(), f"-Xmx{HEAP}", "-cp", classpath(), str(HERE / "LabWorker.java")]


def _java() -> str:
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
    # Another version of what is needed is another file.
    mark = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    kept = _cache() / f"lab-{mark}.cp"
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
