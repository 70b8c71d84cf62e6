"""A follower that takes nothing any more: its leader's memory stays as it was, and it leaves the in-sync set."""

from __future__ import annotations

import re
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import headrace as hr
from tests.cluster.processes import Node, brokers, etcd
from tests.cluster.workload import TOPIC, create, leader

VALUE = bytes(64 << 10)
RECORDS = 4000
"""A quarter of a gigabyte."""
GROWTH_MAX = 96 << 20
"""What the leader may need for requests and rings besides."""


def private_bytes(node: Node) -> int:
    """Memory of a process that is no file's."""
    assert node.process is not None
    status = Path(f"/proc/{node.process.pid}/status").read_text(encoding="ascii")
    return int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) << 10


def in_sync(servers: str) -> set[int]:
    with hr.Admin(servers) as admin:
        return set(admin.describe_topics([TOPIC])[TOPIC].partitions[0].isr)


def wait_for(servers: str, nodes: set[int]) -> None:
    until = time.monotonic() + 90
    while (found := in_sync(servers)) != nodes and time.monotonic() < until:
        time.sleep(0.2)
    assert found == nodes


def test_a_follower_that_stops_taking_records_costs_its_leader_no_memory(tmp_path: Path):
    with ExitStack() as stack:
        store = stack.enter_context(etcd(tmp_path))
        # Its lease outlasts the pause: it is not dead, and takes nothing.
        settings = {"replica_lag_time_max_ms": "3000", "broker_session_timeout_ms": "120000"}
        nodes = stack.enter_context(brokers(tmp_path, f"etcd://{store.client}", 3, **settings))
        servers = ",".join(node.address for node in nodes.values())
        create(servers, partitions=1, copies=3)
        led_by = leader(servers)
        slow = next(number for number in nodes if number != led_by)
        first = ",".join(nodes[number].address for number in nodes if number != slow)
        with hr.Producer(first, acks="all", delivery_timeout_ms=120_000) as producer:
            for _ in range(100):
                producer.send(TOPIC, value=VALUE)
            producer.flush()
            wait_for(first, {1, 2, 3})
            before = private_bytes(nodes[led_by])
            nodes[slow].send(signal.SIGSTOP)
            most = before
            for number in range(RECORDS):
                producer.send(TOPIC, value=VALUE)
                if number % 100 == 0:
                    most = max(most, private_bytes(nodes[led_by]))
            producer.flush()
        most = max(most, private_bytes(nodes[led_by]))
        assert most - before < GROWTH_MAX, f"from {before >> 20} to {most >> 20} MiB"
        assert in_sync(first) == {1, 2, 3} - {slow}
        nodes[slow].send(signal.SIGCONT)
        wait_for(first, {1, 2, 3})
        end = hr.TopicPartition(TOPIC, 0)
        with hr.Admin(servers) as admin:
            assert admin.list_offsets({end: "latest"})[end].offset == RECORDS + 100
        # What it lacked it has: it leads with all of it.
        nodes[led_by].stop()
        other = {1, 2, 3} - {slow, led_by}
        for number in other:
            nodes[number].stop()
        alone = nodes[slow].address
        until = time.monotonic() + 60
        while leader(alone) != slow and time.monotonic() < until:
            time.sleep(0.2)
        with hr.Admin(alone) as admin:
            assert admin.list_offsets({end: "latest"})[end].offset == RECORDS + 100
