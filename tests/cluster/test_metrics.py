"""Figures of brokers, in Python and over HTTP."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

import headrace as hr

if TYPE_CHECKING:
    from pathlib import Path


def test_figures_show_a_broker_that_is_missing(tmp_path: Path):
    with hr.Broker.start(tmp_path, nodes=3) as broker:
        with hr.Producer(broker.bootstrap_servers) as producer:
            for _ in range(10):
                producer.send("t", value=b"x" * 1000)
            producer.flush()
        well = broker.metrics()
        assert (well["LeaderCount"], well["PartitionCount"]) == (1, 3)
        assert well["BytesIn"] > 10_000
        assert (well["UnderReplicatedPartitions"], well["OfflinePartitionsCount"]) == (0, 0)
        assert {broker.metrics(node)["ActiveBrokerCount"] for node in (1, 2, 3)} == {3}
        broker.stop_node(2)
        with pytest.raises(hr.errors.ConfigError, match="no broker 2 runs"):
            broker.metrics(2)
        until = time.monotonic() + 30
        while broker.metrics()["UnderReplicatedPartitions"] != 1 and time.monotonic() < until:
            time.sleep(0.1)
        assert broker.metrics()["UnderReplicatedPartitions"] == 1
    assert broker.metrics() == {}


def test_figures_are_served_for_prometheus():
    command = [sys.executable, "-m", "headrace", "broker", "--port", "0", "--metrics-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            lines = [running.stdout.readline(), running.stdout.readline()]
            [url] = re.findall(r"metrics at (\S+)", "".join(lines))
            with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 -- the command's own
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                page = answer.read().decode()
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(url.replace("/metrics", "/other"), timeout=30)  # noqa: S310
        finally:
            running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=60) == 0
    assert "# TYPE kafka_server_replicamanager_leadercount gauge\nkafka_server_replicamanager_leadercount 0\n" in page
    assert "\n# TYPE kafka_server_brokertopicmetrics_bytesin_total counter\n" in page
    for line in page.splitlines():
        assert re.fullmatch(r"# HELP [a-z_]+ [A-Z].+\.|# TYPE [a-z_]+ (gauge|counter)|[a-z_]+ \d+", line), line


def test_every_metric_that_the_page_names_is_served():
    from pathlib import Path  # noqa: PLC0415

    from headrace.cli._metrics import text  # noqa: PLC0415

    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    named = set(re.findall(r"`(kafka_[a-z_]+)`", page))
    assert len(named) > 5
    with hr.Broker.start() as broker:
        served = set(re.findall(r"^([a-z_]+) \d+$", text(broker._figures()), re.MULTILINE))
    assert named <= served
