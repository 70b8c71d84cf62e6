"""The examples run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, *arguments):
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_quickstart(cluster):
    out = run("quickstart.py", cluster.bootstrap_servers)
    assert "sent 1000 rows" in out
    assert "the group has read 1001 rows" in out
    assert "1001 rows read; best customers: [('customer-" in out


@pytest.mark.spark
def test_spark_stream():
    assert "|sensor-0| 2000|" in run("spark_stream.py")


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"quickstart.py", "spark_stream.py"}
