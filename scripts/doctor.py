"""Says what is missing on this machine for a target of the Makefile, and how to get it.

Usage: doctor.py NEED...   A need is rust, cc, venv, openssl, java or maven. Prints nothing when all is there.
It runs before anything is installed, on whatever Python there is: the standard library only.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON_MIN = (3, 10)
JAVA_MIN = 17


def output(command: "list[str]") -> "str | None":
    """What a command prints on both streams, or None when it is not there or fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def version(text: "str | None", pattern: str) -> "tuple[int, ...] | None":
    """The dotted number that `pattern` finds, as a tuple."""
    found = re.search(pattern, text or "")
    return tuple(int(part) for part in found[1].split(".")) if found else None


def dotted(number: "tuple[int, ...] | None") -> str:
    """For people."""
    return ".".join(str(part) for part in number) if number else "none"


def check_rust() -> "str | None":
    """A toolchain as new as `rust-version` in Cargo.toml."""
    stated = version((ROOT / "Cargo.toml").read_text(encoding="utf-8"), r'rust-version = "([\d.]+)"')
    found = version(output(["rustc", "--version"]), r"rustc ([\d.]+)")
    if found is None or shutil.which("cargo") is None:
        return f"Rust {dotted(stated)} or newer, with cargo: https://rustup.rs"
    if stated and found < stated:
        return f"Rust {dotted(stated)} or newer; there is {dotted(found)}: rustup update"
    return None


def check_cc() -> "str | None":
    """Some crates compile C."""
    if shutil.which("cc") or shutil.which(os.environ.get("CC", "cc")):
        return None
    return "a C compiler (zstd is compiled from source): apt-get install build-essential"


def check_venv() -> "str | None":
    """This Python, and that it can make virtual environments."""
    if sys.version_info < PYTHON_MIN:
        here = sys.version.split()[0]
        return f"Python {dotted(PYTHON_MIN)} or newer; there is {here}: make PYTHON=/path/to/python3"
    if output([sys.executable, "-c", "import venv, ensurepip"]) is None:
        return f"Python's venv and ensurepip for {sys.executable}: apt-get install python3-venv"
    return None


def check_openssl() -> "str | None":
    """It makes the certificates of the tests."""
    if output(["openssl", "version"]) is None:
        return "openssl, the command (the tests make certificates with it): apt-get install openssl"
    return None


def java_version(java: str) -> "int | None":
    """Its major version."""
    found = version(output([java, "-version"]), r'version "(\d+)')
    return found[0] if found else None


def check_java() -> "str | None":
    """A whole JDK: the tests compile small Java programs."""
    home = os.environ.get("JAVA_HOME")
    java, javac = (str(Path(home) / "bin" / name) if home else name for name in ("java", "javac"))
    found = java_version(java)
    where = f"JAVA_HOME={home}" if home else "PATH"
    if found is not None and found >= JAVA_MIN and output([javac, "-version"]) is not None:
        return None
    has = f"Java {found}" if found else "none"
    how = "apt-get install openjdk-17-jdk-headless"
    return f"a JDK {JAVA_MIN} or newer, java and javac ({where} has {has}): {how}"


def check_maven() -> "str | None":
    """It brings Apache Kafka and Spark's own connector."""
    if output(["mvn", "--version"]) is None:
        return "Maven (it fetches Apache Kafka's jars): apt-get install maven"
    return None


CHECKS = {
    "rust": check_rust,
    "cc": check_cc,
    "venv": check_venv,
    "openssl": check_openssl,
    "java": check_java,
    "maven": check_maven,
}


def main() -> int:
    """Entry point."""
    missing = [text for text in (CHECKS[need]() for need in sys.argv[1:]) if text]
    if missing:
        print("headrace needs, and this machine lacks:", *missing, sep="\n  - ", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
