"""A Python of another processor, to try wheels that are cross-built: Debian's, run by qemu-user, installing nothing.

Packages are fetched by apt, which checks their signatures, with lists and a cache apart, and unpacked into a folder.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DEBIAN = {"aarch64": "arm64", "x86_64": "amd64"}
PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6", "tzdata")


def lacks(machine: str) -> str | None:
    """What this machine needs first; None where it can run programs of the other."""
    if machine not in DEBIAN:
        return f"Debian has no {machine}"
    missing = [tool for tool in ("apt-get", "dpkg-deb", f"qemu-{machine}-static") if shutil.which(tool) is None]
    return f"there is no {missing[0]}: apt-get install qemu-user-static" if missing else None


def python(machine: str, folder: Path) -> list[str]:
    """The command that runs it, with what it needs in `folder`."""
    for made in ("state/lists/partial", "cache/archives/partial", "root"):
        (folder / made).mkdir(parents=True)
    (folder / "status").touch()
    apt = ["apt-get", "-qq", "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root"]
    for name, value in {
        "APT::Architecture": DEBIAN[machine],
        "APT::Architectures": DEBIAN[machine],
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
    }.items():
        apt += ["-o", f"{name}={value}"]
    run([*apt, "update"])
    run([*apt, "install", "--yes", "--download-only", "--no-install-recommends", *PACKAGES])
    for package in (folder / "cache" / "archives").glob("*.deb"):
        run(["dpkg-deb", "-x", package, folder / "root"])
    return [f"qemu-{machine}-static", "-L", str(folder / "root"), str(folder / "root" / "usr" / "bin" / "python3")]


def run(command: list[str | Path]) -> None:
    """Runs it; what it prints is shown where it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
