"""``headrace cluster status``: healthy clusters, brokers that are gone, and Apache Kafka's."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import headrace as hr
from tests.cluster.workload import TOPIC, create

if TYPE_CHECKING:
    from pathlib import Path


def status(servers: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "cluster", "status", "-b", servers, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def rows(output: str, header: str) -> list[list[str]]:
    """The cells of the table that begins with a column of this name."""
    [table] = [part.splitlines() for part in output.split("\n\n") if part.startswith(header)]
    return [line.split() for line in table[1:] if not line.startswith("and ")]


def test_brokers_and_copies_that_are_behind_are_shown(tmp_path: Path):
    with hr.Broker.start(tmp_path, nodes=3) as broker:
        servers = broker.bootstrap_servers
        create(servers, partitions=24, copies=3)
        well = status(servers, "--wait", "30")
        assert (well.returncode, well.stderr) == (0, "")
        assert ": 3 brokers, 1 topics, 24 partitions, 72 copies\nall copies are in sync\n" in well.stdout
        shown = rows(well.stdout, "BROKER")
        assert [row[0] for row in shown] == ["1", "2", "3"]
        assert [row[1] for row in shown] == list(broker.nodes.values())
        assert sum(int(row[3]) for row in shown) == sum(int(row[4]) for row in shown) == 24
        assert [row[5:] for row in shown] == [["24", "24"]] * 3
        broker.stop_node(3)
        behind = status(servers, "--wait", "0.1")
        assert behind.returncode == 1
        assert "24 copies are not in sync; 0 partitions have no leader\n" in behind.stdout
        assert "waiting: 24 copies of 24 partitions are not in sync\n" in behind.stderr
        assert rows(behind.stdout, "BROKER")[2] == ["3", "not", "there", "-", "0", "8", "24", "0"]
        missing = rows(behind.stdout, "TOPIC")
        assert len(missing) == 20
        assert missing[0][:2] == [TOPIC, "0"]
        assert {row[-1] for row in missing} == {"3"}
        assert "\nand 4 more\n" in behind.stdout
        found = json.loads(status(servers, "--json").stdout)
        assert (found["topics"], found["partitions"], found["moving"]) == (1, 24, [])
        assert [one["in_sync"] for one in found["brokers"]] == [24, 24, 0]
        assert [one["missing"] for one in found["behind"]] == [[3]] * 24
        broker.start_node(3)
        again = status(servers, "--wait", "60")
        assert again.returncode == 0, again.stdout


def test_it_is_shown_again_and_again(tmp_path: Path):
    with hr.Broker.start(tmp_path) as broker:
        command = [sys.executable, "-m", "headrace", "cluster", "status", "--watch", "0.1"]
        command += ["-b", broker.bootstrap_servers]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
            assert watching.stdout is not None
            heads = [line for line, _ in zip(watching.stdout, range(15), strict=False) if "cluster " in line]
            watching.terminate()
        assert len(heads) > 1
        assert watching.returncode == 143


def test_what_cannot_be_is_named():
    for options in (("--wait", "soon"), ("--wait", "0"), ("--watch", "1", "--wait", "1")):
        done = status("127.0.0.1:1", *options)
        assert done.returncode == 2
        assert "--w" in done.stderr
    done = status("127.0.0.1:1", "-X", "default.api.timeout.ms=1000", "-X", "request.timeout.ms=500")
    assert done.returncode == 1
    assert "\nheadrace cluster: " in done.stderr


@pytest.mark.kafka
def test_an_apache_kafka_is_shown_too(apache_kafka, topic):
    create(apache_kafka.bootstrap_servers, partitions=2, copies=1, name=topic)
    done = status(apache_kafka.bootstrap_servers, "--wait", "30")
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = rows(done.stdout, "BROKER")
    assert row[:3] == ["1", apache_kafka.bootstrap_servers, "-"]
    assert int(row[3]) == int(row[6]) >= 2
