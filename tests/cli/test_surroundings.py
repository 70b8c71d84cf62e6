"""A machine that lacks what most have: /dev/shm, a home that can be written, a locale, a terminal, standard streams."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SHARED_MEMORY = "/dev/shm"  # noqa: S108 -- nothing is written there
# A folder that is there, and in which nobody can write, root neither.
NO_HOME = "/proc/self/fdinfo"
BARE = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "HOME": NO_HOME}
WORKS = r"""
import sys
import headrace as hr
for datapath in ("tcp", "shm"):
    with hr.Broker.start() as broker:
        servers = broker.bootstrap_servers
        with hr.Producer(servers, headrace_datapath=datapath) as producer:
            producer.send("t", b"\xc3\xa4").result(30)
        with hr.Consumer(servers, headrace_datapath=datapath, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            assert consumer.poll(30.0)["value"].to_pylist() == [b"\xc3\xa4"]
open(sys.argv[1], "w").write("works")
"""


def masked(*paths: str) -> list[str]:
    """Has a command see empty folders there that cannot be written."""
    mounts = "; ".join(f"mount -t tmpfs -o ro none {path}" for path in paths)
    return ["unshare", "--mount", "sh", "-c", f'{mounts}; exec "$@"', "sh"]


def can_mask() -> bool:
    command = [*masked(SHARED_MEMORY), "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
    except OSError:
        return False


def check(folder: Path, environment: dict[str, str], before: str = "", prefix: tuple[str, ...] = ()) -> None:
    marker = folder / "marker"
    command = [*prefix, sys.executable, "-c", before + WORKS, str(marker)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=110, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert marker.read_text() == "works"


@pytest.mark.slow
def test_without_shared_memory_in_a_folder_and_without_a_home(tmp_path):
    if not can_mask():
        pytest.skip("folders can be masked by root alone")
    check(tmp_path, BARE, prefix=tuple(masked(SHARED_MEMORY)))


@pytest.mark.slow
@pytest.mark.parametrize("locale", ["C", "POSIX", "xx_XX.nonsense", ""])
def test_whatever_the_locale_is(tmp_path, locale):
    check(tmp_path, {**BARE, "LANG": locale, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})


@pytest.mark.slow
def test_without_standard_streams(tmp_path):
    check(tmp_path, BARE, before="import os\nfor one in (0, 1, 2): os.close(one)\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("redirected", "status", "said"),
    [
        (">/dev/full", 1, "No space left on device"),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
        ("| true; exit ${PIPESTATUS[0]}", 0, ""),
    ],
)
def test_standard_streams_that_are_closed_or_full(embedded_broker, monkeypatch, redirected, status, said, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    for words in ("groups list", "completion bash", "produce t --json"):
        line = f"{sys.executable} -m headrace.cli {words}"
        if "completion" not in words:
            line += f" -b {embedded_broker.bootstrap_servers}"
        done = subprocess.run(
            ["bash", "-c", f"{line} {redirected}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == status, (words, done.stderr)
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
