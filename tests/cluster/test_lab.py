"""`headrace lab` over a cluster of our brokers, which are killed one after the other: each record is followed."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from headrace.lab import bundle
from tests.cluster.processes import brokers, etcd

if TYPE_CHECKING:
    from pathlib import Path

KILLS = 3
WORKLOAD = """
name: killed
mode: correctness
driver: {driver}
partitions: 4
replicationFactor: 3
topicConfig: {{min.insync.replicas: 2}}
producerRate: 2000
producerConfig: {{acks: all, enable.idempotence: true}}
consumers: 2
warmupDurationSeconds: 0
testDurationSeconds: {seconds}
drainTimeoutSeconds: 90
"""
SECONDS = 25


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["headrace", pytest.param("confluent-kafka", marks=pytest.mark.soak)])
def test_the_lab_finds_nothing_lost_while_brokers_are_killed(tmp_path: Path, driver: str):
    workload = tmp_path / "killed.yaml"
    workload.write_text(WORKLOAD.format(driver=driver, seconds=SECONDS))
    with etcd(tmp_path) as store, brokers(tmp_path, f"etcd://{store.client}", 3) as nodes:
        servers = ",".join(node.address for node in nodes.values())
        command = [sys.executable, "-m", "headrace", "lab", "run", str(workload), "-b", servers, "--plain"]
        command += ["--out", str(tmp_path / "out")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as lab:
            try:
                time.sleep(4)
                for number in range(1, KILLS + 1):
                    assert lab.poll() is None, "it has ended before all were killed"
                    nodes[number].kill()
                    time.sleep(4)
                    nodes[number].start()
                    time.sleep(2)
                said, _ = lab.communicate(timeout=150)
            finally:
                lab.kill()
        assert lab.returncode == 0, said
        [folder] = (tmp_path / "out").iterdir()
        [found] = bundle.read(folder)
        verdict = found["verdict"]
        assert (verdict["lost"], verdict["corrupt"], verdict["outOfOrder"]) == (0, 0, 0), verdict
        assert verdict["writtenTwice"] == 0, verdict
        assert found["received"] > SECONDS * 1000, "too little was written"
