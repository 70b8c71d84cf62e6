"""Brokers of a cluster: in one process, and in several beside a real etcd, with stock clients, and killed."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

import headrace as hr
from headrace.errors import ConfigError
from tests.cluster.processes import Node, brokers, etcd
from tests.cluster.workload import TOPIC, DirectReader, DirectWriter, Writer, check, create, leader, read_all

EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster"


def test_three_brokers_of_one_process_keep_what_one_of_them_forgets(tmp_path: Path):
    with hr.Broker.start(tmp_path, nodes=3) as broker:
        assert list(broker.nodes) == [1, 2, 3]
        servers = broker.bootstrap_servers
        with hr.Admin(bootstrap_servers=servers) as admin:
            admin.create_topics([hr.NewTopic(TOPIC, 3)])
        with hr.Producer(bootstrap_servers=servers) as producer:
            for number in range(300):
                producer.send(TOPIC, value=f"{number}".encode(), partition=number % 3)
            producer.flush()
            first = leader(servers)
            broker.stop_node(first)
            assert first not in broker.nodes
            for number in range(300, 600):
                producer.send(TOPIC, value=f"{number}".encode(), partition=number % 3)
            producer.flush()
        assert leader(servers) not in {first, -1}
        broker.start_node(first)
        with pytest.raises(ConfigError, match="it runs"):
            broker.start_node(first)
    # The same folder, another process of brokers.
    with hr.Broker.start(tmp_path, nodes=3) as broker:
        servers = broker.bootstrap_servers
        found = read_all(servers)
        assert found == Counter(f"{number}".encode() for number in range(600))
        consumer = hr.Consumer(bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest")
        consumer.subscribe([TOPIC])
        with consumer:
            rows = 0
            while rows < 600:
                rows += consumer.poll(timeout=10).num_rows
            consumer.commit()


def test_the_snippet_of_the_page_runs():
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    [snippet] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.fullmatch(r"\{2: '127.0.0.1:\d+', 3: '127.0.0.1:\d+'\}\n", done.stdout)


def test_brokers_in_processes_are_killed_and_nothing_is_lost(tmp_path: Path):
    choice = random.Random(7)
    with ExitStack() as stack:
        store = stack.enter_context(etcd(tmp_path))
        nodes = stack.enter_context(brokers(tmp_path, f"etcd://{store.client}", 3))
        servers = ",".join(node.address for node in nodes.values())
        create(servers, partitions=3, copies=3)
        reader = stack.enter_context(DirectReader(servers))
        writer, direct = Writer(servers), DirectWriter(servers)
        try:
            writer.wait_for_more()
            for _ in range(3):
                node = nodes[leader(servers, choice.randrange(3))]
                node.kill()
                writer.wait_for_more()
                node.start()
                writer.wait_for_more()
            # A pause is longer than its lease, and it comes back to a cluster that has gone on.
            paused = nodes[leader(servers)]
            paused.send(signal.SIGSTOP)
            writer.wait_for_more()
            time.sleep(4)
            paused.send(signal.SIGCONT)
            writer.wait_for_more()
            store.kill()
            store.start()
            writer.wait_for_more()
            stopped = nodes[leader(servers)]
            stopped.stop()
            writer.wait_for_more()
            stopped.start()
            writer.wait_for_more()
        finally:
            writer.end()
            direct.end()
        check(servers, writer, direct, reader=reader)
        assert direct.direct_bytes > 0, "it has written into memory"
        assert reader.direct_bytes > 0, "it has read memory"


def test_a_broker_that_cannot_be_a_member_says_why(tmp_path: Path):
    def start(*options: str) -> str:
        command = [sys.executable, "-m", "headrace", "broker", "--port", "0", *options]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "'--cluster'" in start("--cluster", "http://host") or "etcd://" in start("--cluster", "http://host")
    with etcd(tmp_path) as store:
        address = f"etcd://{store.client}"
        node = Node(tmp_path, address, 1, {})
        node.start()
        node.stop()
        other = start("--cluster", f"{address}/other", "--data-dir", str(tmp_path / "node-1"))
        assert "the metadata store is empty, and the data directory belongs to the cluster" in other
        alone = start(
            "--data-dir", str(tmp_path / "alone"), "--cluster", f"etcd://{store.client}", "-c", "cluster.id=x"
        )
        assert "cluster.id is x, and the metadata store is that of the cluster" in alone
        node.start()
        short = ("--data-dir", str(tmp_path / "twin"), "-c", "broker.session.timeout.ms=1000")
        twin = start("--cluster", address, *short)
        assert f"another broker has the number 1 in this cluster, and lives: 127.0.0.1:{node.port}" in twin
        store.put("/headrace/topics/x", "neither JSON nor ours")
        foreign = start("--cluster", address, "--node", "2", "--data-dir", str(tmp_path / "second"))
        assert 'the metadata store holds "topics/x", which headrace cannot read' in foreign
        # What cannot be read ends a broker that runs, which says why.
        assert node.process is not None
        assert node.process.wait(timeout=60) == 1
        assert "which headrace cannot read" in node.output()
    nobody = start("--cluster", f"etcd://{store.client}", "--data-dir", str(tmp_path / "nobody"))
    assert f"the metadata store cannot be reached: etcd at {store.client}" in nobody


def test_the_brokers_of_the_compose_file_are_a_cluster(tmp_path: Path):
    """Its commands, on ports and in folders of this test, beside an etcd of its own."""
    services = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]
    with ExitStack() as stack:
        store = stack.enter_context(etcd(tmp_path))
        nodes = []
        for name in ("broker1", "broker2", "broker3"):
            given = services[name]["command"]
            node = Node(tmp_path, f"etcd://{store.client}", int(given[given.index("--node") + 1]), {})
            own = {"--cluster": f"etcd://{store.client}", "--port": str(node.port), "--metrics-port": "0"}
            own["--data-dir"] = str(tmp_path / name)
            words = [own.get(before, word) for before, word in zip(["", *given], given, strict=False)]
            node.command = [sys.executable, "-m", "headrace", "broker", *words]
            stack.callback(node.kill)
            node.begin()
            nodes.append(node)
        for node in nodes:
            node.wait()
        servers = ",".join(node.address for node in nodes)
        with hr.Producer(servers) as producer:
            producer.send("t", value=b"x")
            producer.flush()
        with hr.Admin(servers) as admin:
            [partition] = admin.describe_topics(["t"])["t"].partitions
            assert sorted(partition.replicas) == [1, 2, 3]
            assert admin.describe_topic_config("t")["min.insync.replicas"] == "2"


def test_a_start_waits_for_no_time_that_is_not_over(tmp_path: Path):
    """With the longest session, one request whose answer is not noticed would take twenty minutes."""
    with etcd(tmp_path) as store:
        for number in (1, 2):
            node = Node(tmp_path, f"etcd://{store.client}", number, {"broker.session.timeout.ms": "3600000"})
            try:
                node.start()
            finally:
                node.kill()
