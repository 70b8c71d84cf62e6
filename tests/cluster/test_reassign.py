"""Partitions that move between brokers while they are written to: by our command line, stock clients, Kafka's tools."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import confluent_kafka.admin
import pytest

import headrace as hr
from tests.cluster.workload import TOPIC, Writer, check, create, leader
from tests.kafka import java
from tests.kafka.nodes import ApacheNodes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def headrace(verb: str, *words: str, servers: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "cluster", verb, "-b", servers, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def replicas(servers: str, topic: str = TOPIC) -> list[list[int]]:
    with hr.Admin(servers) as admin:
        return [one.replicas for one in admin.describe_topics([topic])[topic].partitions]


def leaders(servers: str, topic: str) -> list[int]:
    with hr.Admin(servers) as admin:
        return [one.leader for one in admin.describe_topics([topic])[topic].partitions]


def settled(servers: str) -> None:
    """Waits until nothing is moved any more."""
    until = time.monotonic() + 60
    with hr.Admin(servers) as admin:
        while (moving := admin.list_partition_reassignments()) and time.monotonic() < until:
            time.sleep(0.1)
    assert moving == {}


@pytest.fixture
def four(tmp_path: Path) -> Iterator[hr.Broker]:
    with hr.Broker.start(tmp_path, nodes=4) as broker:
        create(broker.bootstrap_servers, partitions=6, copies=3)
        yield broker


def test_a_broker_is_emptied_and_gets_its_share_again_while_records_are_written(four: hr.Broker, tmp_path: Path):
    servers = four.bootstrap_servers
    writer = Writer(servers)
    try:
        shown = headrace("drain", "3", "--dry-run", servers=servers)
        assert shown.returncode == 0, shown.stderr
        before = replicas(servers)
        moved = sum(3 in one for one in before)
        assert moved > 0
        assert len(shown.stdout.splitlines()) == moved + 1
        planned = json.loads(headrace("drain", "3", "--dry-run", "--json", servers=servers).stdout)
        assert len(planned["moves"]) == moved
        assert all(3 in one["from"] and 3 not in one["to"] for one in planned["moves"])
        assert planned["refused"] == planned["stuck"] == []
        drained = headrace("drain", "3", "--at-once", "2", servers=servers)
        assert drained.returncode == 0, drained.stderr
        assert f"{moved} of {moved} partitions are where they are to be\n" in drained.stderr
        after = replicas(servers)
        assert not any(3 in one for one in after)
        assert all(len(set(one)) == 3 for one in after)
        until = time.monotonic() + 30
        while (left := list(tmp_path.glob(f"*3*/{TOPIC}-*"))) and time.monotonic() < until:
            time.sleep(0.1)
        assert left == []
        again = headrace("drain", "3", servers=servers)
        assert (again.returncode, again.stdout) == (0, "all copies are where they are to be\n")
        four.stop_node(3)
        four.start_node(3)
        balanced = headrace("balance", servers=servers)
        assert balanced.returncode == 0, balanced.stderr
        counts = [sum(node in one for one in replicas(servers)) for node in (1, 2, 3, 4)]
        assert max(counts) - min(counts) <= 1, counts
        waited = headrace("status", "--wait", "60", servers=servers)
        assert waited.returncode == 0, waited.stdout
        writer.wait_for_more()
    finally:
        writer.end()
    check(servers, writer)


def test_a_topic_is_given_replicas_and_what_is_wrong_is_named(four: hr.Broker):
    servers = four.bootstrap_servers
    moved = headrace("reassign", TOPIC, "-p", "0", "--replicas", "4,2", servers=servers)
    assert moved.returncode == 0, moved.stderr
    assert replicas(servers)[0] == [4, 2]
    assert leader(servers) in (4, 2)
    led = headrace("elect", TOPIC, servers=servers)
    assert (led.returncode, led.stdout) == (0, "partitions are led as asked for\n")
    assert leader(servers) == 4
    for words, why in [
        ((TOPIC, "--replicas", "1,9"), "no broker 9"),
        ((TOPIC, "--replicas", "1,1"), "names a broker twice"),
        ((TOPIC, "-p", "17", "--replicas", "1"), "no partition 17"),
        (("nobodys", "--replicas", "1"), "nobodys"),
        ((TOPIC,), "--replicas"),
    ]:
        refused = headrace("reassign", *words, servers=servers)
        assert refused.returncode in (1, 2)
        assert why in refused.stderr, refused.stderr
    kept = headrace("reassign", TOPIC, "--cancel", servers=servers)
    assert (kept.returncode, kept.stdout) == (0, "0 partitions keep the replicas that they had\n")
    with hr.Admin(servers) as admin, pytest.raises(hr.errors.NoReassignmentInProgressError, match="orders-1"):
        admin.alter_partition_reassignments({(TOPIC, 1): None})


@pytest.mark.kafka
def test_kafkas_own_tools_move_partitions_and_elect_leaders(four: hr.Broker, tmp_path: Path):
    servers = four.bootstrap_servers
    plan = tmp_path / "plan.json"
    partitions = [{"topic": TOPIC, "partition": index, "replicas": [4, 1]} for index in range(6)]
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    tool = ("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", "--bootstrap-server", servers)
    java.run(*tool, "--reassignment-json-file", str(plan), "--execute")
    settled(servers)
    verified = java.run(*tool, "--reassignment-json-file", str(plan), "--verify").stdout.decode()
    assert verified.count("is completed") + verified.count("is complete.") >= 6, verified
    assert replicas(servers) == [[4, 1]] * 6
    elect = ("org.apache.kafka.tools.LeaderElectionCommand", "--bootstrap-server", servers)
    java.run(*elect, "--election-type", "preferred", "--all-topic-partitions")
    assert [leader(servers, index) for index in range(6)] == [4] * 6


def test_stock_clients_elect_leaders(four: hr.Broker):
    servers = four.bootstrap_servers
    headrace("reassign", TOPIC, "--replicas", "2,3,1", servers=servers)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    partitions = [confluent_kafka.TopicPartition(TOPIC, index) for index in range(6)]
    results = admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, partitions).result(30)
    assert len(results) == 6
    assert [leader(servers, index) for index in range(6)] == [2] * 6


@pytest.mark.kafka
def test_an_apache_kafka_moves_partitions_for_us():
    topic, wanted = "moved", [[3, 1], [1, 2]]
    with ApacheNodes(3) as nodes, hr.Admin(servers := nodes.bootstrap_servers) as admin:
        nodes.create_topic(topic, [[1, 2], [2, 3]], {})
        admin.alter_partition_reassignments({(topic, 0): wanted[0], (topic, 1): wanted[1]})
        settled(servers)
        # Its brokers learn of it one after another.
        until = time.monotonic() + 30
        while replicas(servers, topic) != wanted and time.monotonic() < until:
            time.sleep(0.1)
        assert replicas(servers, topic) == wanted
        admin.elect_leaders([(topic, 0), (topic, 1)])
        while leaders(servers, topic) != [3, 1] and time.monotonic() < until:
            time.sleep(0.1)
        assert leaders(servers, topic) == [3, 1]
