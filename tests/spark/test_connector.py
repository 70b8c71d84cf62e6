"""Beside Spark's own connector, on pyspark 4.2, for which it is published: the same rows, one checkpoint for both."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.kafka.java import ROOT, MissingError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.kafka]

PYSPARK = ROOT / ".deps" / "pyspark-4.2"
JARS = ROOT / ".deps" / "connector.cp"


def test_sparks_own_connector_and_ours_take_turns_on_a_checkpoint(embedded_broker, apache_kafka, topic, tmp_path):
    for needed in (PYSPARK / ".stamp", JARS):
        if not needed.exists():
            raise MissingError(f"make {needed.relative_to(ROOT)} fetches what this test needs")
    jars = JARS.read_text(encoding="utf-8").strip().replace(os.pathsep, ",")
    env = {**os.environ, "PYTHONPATH": str(PYSPARK), "PYSPARK_PYTHON": sys.executable}
    env.pop("SPARK_HOME", None)
    program = str(ROOT / "tests" / "spark" / "connector_program.py")
    brokers = {"embedded": embedded_broker.bootstrap_servers, "apache": apache_kafka.bootstrap_servers}
    done = subprocess.run(
        [sys.executable, program, json.dumps(brokers), topic, str(tmp_path), jars],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    right = {"batch": True, "schema": True, "turns": [True] * 4}
    assert found == {"version": "4.2.0", "embedded": right, "apache": right}
