"""kill -9 of the whole of Spark in the middle of a query; the next run goes on without loss or repeat."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.kafka.cluster import Cluster
from tests.kafka.java import ROOT
from tests.spark import killed_program
from tests.spark.conftest import numbers

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = str(ROOT / "tests" / "spark" / "killed_program.py")


@contextlib.contextmanager
def program(*args: str):
    """In a group of its own; whatever is left of it at the end is killed."""
    with subprocess.Popen([sys.executable, PROGRAM, *args], start_new_session=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_killed_query_goes_on_without_loss_or_repeat(spark, embedded_broker, topic, tmp_path):
    cluster = Cluster("embedded", embedded_broker.bootstrap_servers)
    cluster.create_topic(topic, 2)
    (tmp_path / "out").mkdir()
    count = 0

    def more(number: int) -> None:
        nonlocal count
        numbers(cluster, topic, range(count, count + number), partitions=2)
        count += number

    def batches() -> int:
        return len(list((tmp_path / "out").glob("*.json")))

    more(200)
    with program(cluster.bootstrap_servers, topic, str(tmp_path)) as process:
        deadline = time.monotonic() + 120
        while batches() < 3:
            assert process.poll() is None
            assert time.monotonic() < deadline
            # Not before it runs: while Spark starts slowly there would be more than the second run gets done in time.
            if batches():
                more(10)
            time.sleep(0.05)
    killed_after = batches()
    more(100)
    # The tests' own session is another Spark than the killed one, and is there already.
    again = killed_program.query(spark, cluster.bootstrap_servers, topic, tmp_path, 200)
    assert again.trigger(availableNow=True).start().awaitTermination(120)
    assert batches() > killed_after
    rows = [tuple(row) for file in (tmp_path / "out").glob("*.json") for row in json.loads(file.read_text())]
    assert len(rows) == len(set(rows)) == count
    assert sorted(value for _, _, value in rows) == list(range(count))
