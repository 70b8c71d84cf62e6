"""`headrace lab run` for the tests that need what it leaves."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import headrace as hr
from tests.kafka import java

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def lab(tmp_path, request):
    """Starts `headrace lab run` with a workload's text; the results are in tmp_path / "out"."""
    started = []

    def start(text: str, *arguments: str, bootstrap: str = "") -> subprocess.Popen[str]:
        (tmp_path / "w.yaml").write_text(text)
        command = [sys.executable, "-m", "headrace.cli", "lab", "run", str(tmp_path / "w.yaml"), "--plain"]
        if "--kafka" not in arguments:
            command += ["-b", bootstrap or request.getfixturevalue("embedded_broker").bootstrap_servers]
        command += ["--out", str(tmp_path / "out"), *arguments]
        environment = dict(os.environ)
        with contextlib.suppress(java.MissingError):
            environment["HEADRACE_LAB_CLASSPATH"] = java.classpath()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


SMALL = """
name: small
description: "<two> clients"
driver: [headrace, confluent-kafka]
topics: 2
partitions: 3
consumers: 2
producerRate: 500
messageDistributor: PINNED_PARTITIONS
warmupDurationSeconds: 1
testDurationSeconds: 2
"""


@pytest.fixture(scope="session")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a campaign with two runs."""
    folder = tmp_path_factory.mktemp("campaign")
    (folder / "w.yaml").write_text(SMALL)
    with hr.Broker.start() as broker:
        command = [
            sys.executable,
            "-m",
            "headrace.cli",
            "lab",
            "run",
            str(folder / "w.yaml"),
            "--out",
            str(folder / "out"),
        ]
        subprocess.run([*command, "-b", broker.bootstrap_servers], check=True, timeout=100, capture_output=True)
    [made] = (folder / "out").iterdir()
    return made
