"""Our metadata store in memory answers as etcd does: the cases of `crates/cluster/tests/it/etcd.rs`, on a real one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.processes import etcd

ROOT = Path(__file__).parents[2]


def built() -> str:
    """The crate's tests, as they are built for all crates together: by itself it would have other features, and so be
    compiled again with all that it needs."""
    command = "cargo test --locked --quiet --workspace --test it --no-run --message-format json"
    done = subprocess.run(
        command.split(), cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    artifacts = [json.loads(line) for line in done.stdout.splitlines()]
    source = str(ROOT / "crates" / "cluster" / "tests" / "it")
    [found] = [
        one["executable"]
        for one in artifacts
        if one["reason"] == "compiler-artifact" and one["target"]["src_path"].startswith(source) and one["executable"]
    ]
    return str(found)


@pytest.mark.timeout(600)
def test_the_store_in_memory_answers_as_etcd_does(tmp_path):
    with etcd(tmp_path) as real:
        done = subprocess.run(
            [built(), "--include-ignored", "etcd::a_"],
            cwd=ROOT / "crates" / "cluster",
            env={**os.environ, "HEADRACE_ETCD": real.client},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "2 passed" in done.stdout, done.stdout
