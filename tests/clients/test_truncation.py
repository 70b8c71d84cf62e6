"""Logs cut by an unclean leader, readers sent to followers, and leaders that move: on three nodes of either broker."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

import headrace as hr
from headrace.errors import LogTruncationError
from tests.clients.spoiler import METADATA, Spoiler
from tests.cluster.nodes import HeadraceNodes
from tests.kafka import java
from tests.kafka.nodes import ApacheNodes

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(400)]  # three JVMs start

UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
PATIENCE_SECONDS = 120
ESTABLISHED = "01"


@pytest.fixture(scope="module", params=["apache", "headrace"])
def cluster(request, tmp_path_factory):
    given = ApacheNodes(3) if request.param == "apache" else HeadraceNodes(tmp_path_factory.mktemp("nodes"), 3)
    with given as running:
        yield running


@pytest.fixture
def nodes(cluster):
    yield cluster
    cluster.revive()


def write(nodes, topic, values):
    with hr.Producer(nodes.bootstrap_servers) as producer:
        for value in values:
            producer.send(topic, value.encode())
        producer.flush()


def read(consumer, count):
    """Values and offsets of the next `count` rows at least."""
    rows = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(rows) < count and time.monotonic() < deadline:
        batch = consumer.poll(timeout=1.0)
        rows += zip(batch["offset"].to_pylist(), (v.decode() for v in batch["value"].to_pylist()), strict=True)
    return rows


def named(prefix, first, end):
    return [(offset, f"{prefix}-{offset}") for offset in range(first, end)]


def connected_to(port):
    """Connections of this process to a port of loopback."""
    own = {str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.exists()}
    lines = [line.split() for line in Path("/proc/self/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return [
        line
        for line in lines
        if line[2].endswith(f":{port:04X}") and line[3] == ESTABLISHED and f"socket:[{line[9]}]" in own
    ]


def test_rows_that_an_unclean_leader_lacks_are_read_again_from_where_the_logs_part(nodes, topic, caplog):
    nodes.create_topic(topic, [[2, 3]], UNCLEAN)
    write(nodes, topic, [f"both-{offset}" for offset in range(100)])
    options = {"group_id": topic, "enable_auto_commit": False, "default_api_timeout_ms": PATIENCE_SECONDS * 1000}
    consumer = hr.Consumer(nodes.bootstrap_servers, auto_offset_reset="earliest", **options)
    strict = hr.Consumer(nodes.bootstrap_servers, auto_offset_reset="none")
    with consumer, strict:
        consumer.assign([(topic, 0)])
        assert read(consumer, 100) == named("both", 0, 100)
        nodes.node(3).kill()
        nodes.wait_in_sync(topic, [[2]])
        write(nodes, topic, [f"lost-{offset}" for offset in range(100, 200)])
        assert read(consumer, 100) == named("lost", 100, 200)
        consumer.commit()
        strict.assign([(topic, 0)])
        strict.seek((topic, 0), 0)
        assert len(read(strict, 200)) == 200
        nodes.node(2).kill()
        nodes.node(3).restart()
        nodes.wait_leader(topic, 0, 3)
        # More than was lost, so that the position is within the log again.
        write(nodes, topic, [f"new-{offset}" for offset in range(100, 350)])
        assert read(consumer, 250) == named("new", 100, 350)
        assert [record for record in caplog.records if topic in record.getMessage()], "it is notified of"
        with pytest.raises(LogTruncationError, match=r"auto\.offset\.reset") as caught:
            read(strict, 1)
        error = caught.value
        assert (error.topic, error.partition, error.offset, error.end_offset) == (topic, 0, 200, 100)
        strict.seek((topic, 0), error.end_offset)
        assert read(strict, 250) == named("new", 100, 350)
        # Whoever begins at the commit finds the cut by its epoch.
        with hr.Consumer(nodes.bootstrap_servers, **options) as later:
            later.assign([(topic, 0)])
            assert read(later, 250) == named("new", 100, 350)


def test_a_reader_is_served_by_the_replica_in_its_rack_and_by_the_leader_without_it(nodes, topic):
    nodes.create_topic(topic, [[1, 3]], {"min.insync.replicas": "1"})
    write(nodes, topic, [f"a-{offset}" for offset in range(50)])
    with hr.Consumer(nodes.bootstrap_servers, client_rack="RACK3", auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert read(consumer, 50) == named("a", 0, 50)
        write(nodes, topic, [f"a-{offset}" for offset in range(50, 100)])
        assert read(consumer, 50) == named("a", 50, 100)
        assert connected_to(nodes.node(3).port)
        nodes.node(3).kill()
        write(nodes, topic, [f"a-{offset}" for offset in range(100, 150)])
        assert read(consumer, 50) == named("a", 100, 150)
        assert not connected_to(nodes.node(3).port)


def move_leader(nodes, topic, replicas, folder):
    """Makes the first of these replicas the preferred one, and elects it."""
    wanted = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": replicas}]}
    plan = folder / "plan.json"
    plan.write_text(json.dumps(wanted), encoding="utf-8")
    tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    java.run(
        *(tool, "--bootstrap-server", nodes.bootstrap_servers, "--reassignment-json-file", str(plan), "--execute"),
        timeout=PATIENCE_SECONDS,
    )
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap_servers, "log_level": 0})
    admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, [confluent_kafka.TopicPartition(topic, 0)]).result(
        PATIENCE_SECONDS
    )
    nodes.wait_leader(topic, 0, replicas[0])


def test_the_old_leaders_word_alone_leads_to_the_new_one(nodes, topic, tmp_path):
    """KIP-951: metadata of before the move is all that the consumer is told besides, so it must go by the refusal."""
    nodes.create_topic(topic, [[2, 3]], {"min.insync.replicas": "1"})
    write(nodes, topic, [f"a-{offset}" for offset in range(50)])
    known, asked = [], []

    def remember(frame):
        if topic.encode() in frame:
            known.append(frame)
        return frame

    def old(frame):
        asked.append(frame)
        return frame[:4] + known[-1][4:]

    places = {}
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(Spoiler(node.bootstrap_servers, places)) for node in nodes.nodes]
        for proxy in proxies:
            proxy.rewrite(METADATA, remember)
        consumer = stack.enter_context(hr.Consumer(proxies[0].address, auto_offset_reset="earliest"))
        consumer.assign([(topic, 0)])
        assert read(consumer, 50) == named("a", 0, 50)
        for proxy in proxies:
            proxy.rewrite(METADATA, old)
        for turn, replicas in enumerate([[3, 2], [2, 3]], 1):
            move_leader(nodes, topic, replicas, tmp_path)
            write(nodes, topic, [f"a-{offset}" for offset in range(50 * turn, 50 * turn + 50)])
            assert read(consumer, 50) == named("a", 50 * turn, 50 * turn + 50)
        assert asked, "the metadata of before came, and was not believed"
