"""Our metadata store in memory answers as etcd does: the cases of `crates/cluster/tests/it/etcd.rs`, on a real one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.processes import etcd

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_the_store_in_memory_answers_as_etcd_does(tmp_path):
    with etcd(tmp_path) as real:
        command = "cargo test --locked --quiet -p headrace-cluster --test it -- --include-ignored etcd::a_"
        done = subprocess.run(
            command.split(),
            cwd=ROOT,
            env={**os.environ, "HEADRACE_ETCD": real.client},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "2 passed" in done.stdout, done.stdout
