"""A real etcd that fails: members that are paused or killed, an older state, values of another version."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import confluent_kafka.admin
import pytest

from tests.cluster.processes import Node, brokers, etcd, etcd_of
from tests.cluster.workload import TOPIC, Writer, check, create, leader, read_all

if TYPE_CHECKING:
    from pathlib import Path

LEASE_SECONDS = 3


def wait_until_silent(writer: Writer) -> None:
    """Waits until nothing is acknowledged any more."""
    until = time.monotonic() + 30
    while True:
        before = len(writer.acknowledged)
        time.sleep(1.5)
        if len(writer.acknowledged) == before:
            return
        assert time.monotonic() < until, "brokers acknowledge without a metadata store"


@pytest.mark.timeout(240)
def test_members_of_etcd_fail_and_brokers_go_on_with_the_others(tmp_path: Path):
    with etcd_of(tmp_path, 3) as members:
        address = f"etcd://{','.join(member.client for member in members)}"
        with brokers(tmp_path, address, 3) as nodes:
            servers = ",".join(node.address for node in nodes.values())
            create(servers, partitions=3, copies=3)
            writer = Writer(servers)
            try:
                for member in members:
                    # It takes connections, and answers nothing.
                    member.send(signal.SIGSTOP)
                    time.sleep(LEASE_SECONDS + 1)
                    writer.wait_for_more()
                    member.send(signal.SIGCONT)
                    member.kill()
                    writer.wait_for_more()
                    member.start()
                # One without the others decides nothing, and must not keep anybody's lease alive.
                for member in members[:2]:
                    member.send(signal.SIGSTOP)
                wait_until_silent(writer)
                for member in members[:2]:
                    member.send(signal.SIGCONT)
                writer.wait_for_more()
                # The broker hears of what happens, whatever its watch was connected to.
                for node in nodes.values():
                    node.stop()
                    writer.wait_for_more()
                    node.start()
                    writer.wait_for_more()
            finally:
                writer.end()
            check(servers, writer)


def test_a_store_that_was_restored_from_a_backup_is_found_out(tmp_path: Path):
    with etcd(tmp_path) as store, brokers(tmp_path, f"etcd://{store.client}", 2) as nodes:
        servers = ",".join(node.address for node in nodes.values())
        create(servers, partitions=3, copies=2)
        store.kill()
        shutil.copytree(store.data, tmp_path / "backup")
        store.start()
        writer = Writer(servers)
        try:
            for _ in range(2):
                writer.wait_for_more()
                moved = nodes[leader(servers)]
                moved.stop()
                writer.wait_for_more()
                moved.start()
        finally:
            writer.end()
        written = len(writer.acknowledged)
        store.kill()
        shutil.rmtree(store.data)
        shutil.copytree(tmp_path / "backup", store.data)
        store.start()
        for node in nodes.values():
            assert node.wait_for_end() == 1
            gone_back = r"^headrace broker: the metadata store went back from revision \d+ to \d+"
            assert len(re.findall(gone_back, node.output(), re.MULTILINE)) == 1, node.output()
        # One that starts has noted what it had seen.
        for node in nodes.values():
            node.begin()
        for node in nodes.values():
            assert node.wait_for_end() == 1
            forgot = r"^headrace broker: the metadata store knows orders-\d as it was at revision \d+"
            assert len(re.findall(forgot, node.output(), re.MULTILINE)) == 1, node.output()
        for node in nodes.values():
            node.command += ["-c", "headrace.metadata.accept.restored=true"]
            node.begin()
        for node in nodes.values():
            node.wait()
        until = time.monotonic() + 30
        found: set[str] = set()
        while not found:
            found = {name for node in nodes.values() for name in refused(node.output())}
            assert time.monotonic() < until, "nobody notices"
            time.sleep(0.2)
        alter(servers, TOPIC, "unclean.leader.election.enable", "true")
        writer = Writer(servers)
        try:
            writer.wait_for_more()
        finally:
            writer.end()
        assert sum(read_all(servers).values()) == written + len(writer.acknowledged)


def refused(output: str) -> list[str]:
    """The partitions that a broker does not lead since its log is ahead."""
    return re.findall(r"(orders-\d+): the metadata store has the leader epoch \d+, and the log has", output)


def alter(servers: str, topic: str, name: str, value: str) -> None:
    """Gives a topic a setting."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    entry = confluent_kafka.admin.ConfigEntry(
        name, value, incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET
    )
    resource = confluent_kafka.admin.ConfigResource(
        confluent_kafka.admin.ResourceType.TOPIC, topic, incremental_configs=[entry]
    )
    admin.incremental_alter_configs([resource])[resource].result(30)


def test_values_of_another_version_are_not_taken_for_ours(tmp_path: Path):
    with etcd(tmp_path) as store:
        store.put("/headrace/cluster", '{"format": 2, "cluster_id": "of-the-future"}')
        command = [sys.executable, "-m", "headrace", "broker", "--port", "0", "--data-dir", str(tmp_path / "data")]
        command += ["--cluster", f"etcd://{store.client}"]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "format 2" in done.stderr, done.stderr


def test_etcd_is_reached_through_tls(tmp_path: Path, certificates: Path):
    ca, client = f"ssl.ca.location={certificates / 'ca.crt'}", f"ssl.certificate.location={certificates / 'client.pem'}"
    with etcd_of(tmp_path, 1, certificates) as [store]:
        good = f"etcds://{store.client}?{ca}&{client}"
        with brokers(tmp_path, good, 1) as nodes:
            create(nodes[1].address, partitions=3, copies=1)
            writer = Writer(nodes[1].address)
            try:
                writer.wait_for_more()
                # It is kept alive, and so is the watch.
                time.sleep(LEASE_SECONDS + 1)
                store.kill()
                store.start()
                writer.wait_for_more()
            finally:
                writer.end()
            check(nodes[1].address, writer)
        other_ca = f"ssl.ca.location={certificates / 'other-ca.crt'}"
        bad = {
            f"etcds://{store.client}?{ca}": f"cannot be reached: etcd at {store.client}: received fatal alert",
            f"etcds://{store.client}?{other_ca}&{client}": "UnknownIssuer",
            f"etcds://{store.client}?ssl.ca.location={tmp_path / 'none'}": "option 'ssl.ca.location'",
            f"etcd://{store.client}": f"etcd at {store.client}: it has closed the connection without an answer; if",
            f"etcds://{store.client}?{ca}&ssl.key.password=secret": "is none of ssl.ca.location,",
        }
        # Some try for half a minute.
        nodes_of_bad = [Node(tmp_path, address, number, {}) for number, address in enumerate(bad, 2)]
        for node in nodes_of_bad:
            node.begin()
        for node, why in zip(nodes_of_bad, bad.values(), strict=True):
            assert node.wait_for_end() != 0
            assert why in node.output(), node.output()
            assert "Traceback" not in node.output()
