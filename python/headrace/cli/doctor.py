"""``headrace doctor``: what this machine and a broker can do, and what to change."""

from __future__ import annotations

import ctypes.util
import json
import locale
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.cli._common import client_options, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from headrace.admin import Admin

GOOD: Final = "ok"
ABSENT: Final = "-"
BAD: Final = "!"
JAVA_MIN: Final = 17
_EXAMPLES: Final = """\
examples:
  headrace doctor                      this machine, and whether a broker answers at localhost:9092
  headrace doctor -b kafka-1:9092      ... or there
  headrace doctor --json | jq '.[] | select(.state == "!")'

States: ok; - is not there, and only some of what headrace can do needs it; ! has to be changed. The exit status is 1
where there is a !.
"""


class Finding(NamedTuple):
    """A line of the report."""

    state: str
    what: str
    found: str
    hint: str = ""
    """What to do, and what for."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.epilog = _EXAMPLES
    parser.add_argument("--json", action="store_true", help="print an array of objects: state, what, found, hint")
    client_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Looks, and says what it finds; 1 if something has to be changed."""
    found = [
        finding
        for check in (_python, _native, _pyarrow, _terminal, _folders, _rdma, _spark, _extras)
        for finding in check()
    ]
    found += _broker(options)
    if options.json:
        sys.stdout.write(json.dumps([finding._asdict() for finding in found], indent=2) + "\n")
    else:
        width = max(len(finding.what) for finding in found)
        for finding in found:
            sys.stdout.write(f"{finding.state:<2} {finding.what:<{width}}  {printable(finding.found)}\n")
            if finding.hint:
                sys.stdout.write(f"   {'':<{width}}  {printable(finding.hint)}\n")
    return 1 if any(finding.state == BAD for finding in found) else 0


def _python() -> Iterator[Finding]:
    libc = " ".join(platform.libc_ver()).strip() or "musl or another libc"
    here = f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield Finding(GOOD, "headrace", f"{_version()} on {here}, {libc}, {os.cpu_count()} processors")


def _version() -> str:
    """That of the package as it was installed; the native module may be another, or not there at all."""
    try:
        return metadata.version("headrace")
    except metadata.PackageNotFoundError:
        return "not installed, only found by Python's path,"


def _native() -> Iterator[Finding]:
    began = time.perf_counter()
    try:
        from headrace import _native  # noqa: PLC0415  (this is what is tried)
    except ImportError as error:
        yield Finding(BAD, "native module", str(error), "install a wheel that is made for this machine")
        return
    took = time.perf_counter() - began
    installed, found = _version(), f"{Path(_native.__file__).name}, loaded in {took * 1e3:.0f} ms"
    if installed[0].isdigit() and installed != _native.__version__:
        found += f"; it is of version {_native.__version__}, and the package {installed}"
        yield Finding(BAD, "native module", found, "pip install --force-reinstall headrace")
    else:
        yield Finding(GOOD, "native module", found)


def _pyarrow() -> Iterator[Finding]:
    wanted = _least("pyarrow")
    try:
        have = metadata.version("pyarrow")
        import pyarrow  # noqa: F401, ICN001, PLC0415  (this is what is tried)
    except ImportError as error:
        yield Finding(BAD, "pyarrow", str(error), f"pip install 'pyarrow>={wanted}'")
        return
    if int(have.partition(".")[0]) < int(wanted):
        yield Finding(
            BAD, "pyarrow", f"{have}, and headrace needs {wanted} or newer", f"pip install 'pyarrow>={wanted}'"
        )
    else:
        yield Finding(GOOD, "pyarrow", have)


def _least(package: str) -> str:
    """The oldest version of a package that headrace takes."""
    for need in metadata.requires("headrace") or ():
        if found := re.match(rf"{package}>=(\d+)", need.replace(" ", "")):
            return found[1]
    return "0"


def _terminal() -> Iterator[Finding]:
    encoding = sys.stdout.encoding or locale.getpreferredencoding(do_setlocale=False)
    if encoding.lower().replace("-", "") == "utf8":
        yield Finding(GOOD, "terminal", "UTF-8" if sys.stdout.isatty() else "UTF-8; the output is no terminal")
    else:
        yield Finding(ABSENT, "terminal", encoding, "set LANG=C.UTF-8, or other characters are shown as escapes")


def _folders() -> Iterator[Finding]:
    for what, folder in (("working folder", Path.cwd()), ("temporary folder", Path(tempfile.gettempdir()))):
        if os.access(folder, os.W_OK):
            yield Finding(GOOD, what, f"{folder}, {shutil.disk_usage(folder).free / 1e9:,.1f} GB free")
        else:
            yield Finding(ABSENT, what, f"{folder} cannot be written", "headrace broker needs another as --data-dir")


def _rdma() -> Iterator[Finding]:
    if ctypes.util.find_library("ibverbs") is None:
        hint = "only records over RDMA need it: apt-get install libibverbs1 ibverbs-providers"
        yield Finding(ABSENT, "RDMA", "no libibverbs", hint)
        return
    folder = Path("/sys/class/infiniband")
    devices = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
    if devices:
        yield Finding(GOOD, "RDMA", ", ".join(devices))
    else:
        yield Finding(
            ABSENT,
            "RDMA",
            "libibverbs, and no device",
            "rdma link add rxe0 type rxe netdev eth0 makes one of a network card",
        )


def _spark() -> Iterator[Finding]:
    try:
        have = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        yield Finding(ABSENT, "Spark", "no pyspark", "pip install 'headrace[spark]'")
        return
    if tuple(int(part) for part in re.findall(r"\d+", have)[:2]) < (4, 2):
        yield Finding(
            BAD, "Spark", f"pyspark {have}, and headrace.spark needs 4.2 or newer", "pip install 'pyspark>=4.2'"
        )
        return
    java = _java()
    if java is None or java < JAVA_MIN:
        there = "no Java" if java is None else f"Java {java}"
        hint = f"pyspark needs Java {JAVA_MIN} or newer: apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
        yield Finding(ABSENT, "Spark", f"pyspark {have}, {there}", hint)
    else:
        yield Finding(GOOD, "Spark", f"pyspark {have}, Java {java}")


def _java() -> int | None:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None:
        return None
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else None


def _extras() -> Iterator[Finding]:
    for extra, packages in {"demo": ("plotly", "rich"), "lab": ("plotly", "rich", "numpy", "psutil", "yaml")}.items():
        missing = [name for name in packages if not _is_there(name)]
        if missing:
            yield Finding(ABSENT, extra, f"no {', '.join(missing)}", f"pip install 'headrace[{extra}]'")
        else:
            yield Finding(GOOD, extra, "all of its packages are there")


def _is_there(module: str) -> bool:
    from importlib.util import find_spec  # noqa: PLC0415  (for this alone)

    return find_spec(module) is not None


def _broker(options: argparse.Namespace) -> Iterator[Finding]:
    try:
        from headrace.admin import Admin  # noqa: PLC0415  (without the native module there is none)
    except ImportError:
        yield Finding(ABSENT, "broker", "not asked, without the native module")
        return
    from headrace.errors import KafkaError  # noqa: PLC0415  (as above)

    settings = {"default.api.timeout.ms": "5000", **dict(options.option)}
    began = time.perf_counter()
    try:
        with Admin(options.bootstrap, settings) as admin:
            cluster = admin.describe_cluster()
            took = time.perf_counter() - began
            nodes = ", ".join(f"{node.host}:{node.port}" for node in cluster.nodes)
            found = f"cluster {cluster.cluster_id}: {nodes} (answered in {took * 1e3:.0f} ms)"
            yield Finding(GOOD, "broker", found)
            yield from _features(admin)
            yield from _can(
                ("share groups", lambda: admin.share_group_offsets("headrace-doctor"), "Apache Kafka 4.2 or newer"),
                ("moved partitions", admin.list_partition_reassignments, "Apache Kafka 2.4 or newer"),
            )
    except (KafkaError, ValueError) as error:
        hint = "headrace broker --data-dir ./data starts one; -b HOST:PORT or $HEADRACE_BOOTSTRAP names another"
        yield Finding(ABSENT, "broker", f"{options.bootstrap}: {error}", hint)


def _features(admin: Admin) -> Iterator[Finding]:
    """What the cluster has agreed to."""
    levels = sorted(admin.describe_features().finalized_features.items())
    if levels:
        yield Finding(GOOD, "features", ", ".join(f"{name} {level}" for name, level in levels))
    else:
        yield Finding(ABSENT, "features", "none", "transactions of version 2 and share groups need them")


def _can(*asked: tuple[str, Callable[[], object], str]) -> Iterator[Finding]:
    """What a broker answers, and what it does not know."""
    from headrace.errors import KafkaError, UnsupportedVersionError  # noqa: PLC0415  (as above)

    for what, ask, needs in asked:
        try:
            ask()
        except UnsupportedVersionError:
            yield Finding(ABSENT, what, "the broker has none", needs)
        except KafkaError as error:
            if error.name == "GROUP_ID_NOT_FOUND":
                yield Finding(GOOD, what, "yes")
            else:
                yield Finding(ABSENT, what, str(error))
        else:
            yield Finding(GOOD, what, "yes")
