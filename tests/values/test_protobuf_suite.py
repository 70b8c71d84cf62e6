"""Protobuf's own conformance tests (Google's `conformance_test_runner`, 33.2), with our testee."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.values import suites

FAILURES = Path(__file__).parent / "suites" / "protobuf-failures.txt"
# Passed, skipped and failed, with those that are only recommended; first of the binary format and JSON, then of the
# text format. Skipped are JSON, the text format, and messages of editions.
COUNTS = [(1335, 1378, 66), (0, 434, 0)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_google_finds_no_failure_but_those_that_are_known(tmp_path):
    missing, run = suites.PROTOBUF / "missing", suites.PROTOBUF / "run"
    if missing.exists():
        pytest.skip(missing.read_text(encoding="utf-8"))
    assert run.exists(), "the suite is not there: make .deps/protobuf-suite/.stamp"
    testee = tmp_path / "testee"
    testee.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m tests.values.suites.testee\n", encoding="utf-8")
    testee.chmod(0o755)
    done = subprocess.run(
        [run, "--enforce_recommended", "--failure_list", FAILURES, "--output_dir", f"{tmp_path}/", testee],
        cwd=suites.ROOT,
        env={**os.environ, "PYTHONPATH": str(suites.ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=280,
        check=False,
    )
    unexpected = [line[:500] for line in done.stdout.splitlines() if line.startswith("ERROR")]
    assert done.returncode == 0, "\n".join(unexpected) or done.stdout[-3000:]
    counts = re.findall(r"PASSED: (\d+) successes, (\d+) skipped, (\d+) expected failures, 0 unexpected", done.stdout)
    assert [tuple(map(int, found)) for found in counts] == COUNTS, done.stdout[-1000:]
