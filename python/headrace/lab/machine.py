"""What a run ran on: the machine, and the versions of everything."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import psutil

from headrace import __version__

PACKAGES: Final = ("headrace", "pyarrow", "numpy", "confluent-kafka", "kafka-python")
_CGROUP: Final = Path("/sys/fs/cgroup")


def hardware(results: Path) -> dict[str, Any]:
    """Cores, memory, kernel, limits, load, and the file system of the results."""
    memory = psutil.virtual_memory()
    return {
        "cores": os.cpu_count(),
        "usableCores": len(os.sched_getaffinity(0)),
        "model": _model(),
        "memoryBytes": memory.total,
        "memoryAvailableBytes": memory.available,
        "kernel": platform.release(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cgroup": {name: text for name in ("cpu.max", "memory.max") if (text := _read(_CGROUP / name))},
        "load": list(os.getloadavg()),
        "fileSystem": _file_system(results),
    }


def versions() -> dict[str, Any]:
    """Of headrace, Python and the packages that matter."""
    found: dict[str, Any] = {"headrace": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found.setdefault(package, version(package))
        except PackageNotFoundError:
            continue
    return found


def _model() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"model name", "Model"}:
            return value.strip()
    return platform.processor()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _file_system(path: Path) -> str:
    """The kind of the file system that holds a path: of all mounts above it the deepest."""
    whole = path.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if whole.is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else ""
