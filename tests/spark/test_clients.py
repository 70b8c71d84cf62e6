"""Clients kept between micro-batches: who has them, who closes them, and what a fork does to them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark import TaskContext

from headrace.errors import UnknownTopicOrPartitionError
from headrace.spark import clients
from headrace.spark.options import source_options
from headrace.spark.planning import Range
from headrace.spark.source import read_range
from tests.kafka.cluster import Cluster
from tests.spark.conftest import comm, numbers

others: set[Path] = set()
"""The threads that were there when the test began."""


@pytest.fixture(autouse=True)
def nothing_kept():
    clients.close_idle()
    others.clear()
    others.update(Path("/proc/self/task").iterdir())
    yield
    clients.close_idle()
    assert all_ended()


@pytest.fixture
def cluster(embedded_broker):
    return Cluster("embedded", embedded_broker.bootstrap_servers)


def native_threads() -> list[str]:
    """This process's client threads; the broker's and those of other tests' clients do not count."""
    names = [comm(task) for task in Path("/proc/self/task").iterdir() if task not in others]
    ours = [name for name in names if name.startswith("headrace-")]
    return sorted(name for name in ours if "broker" not in name and "fsync" not in name)


def all_ended(kind: str = "headrace-") -> bool:
    """Whether no thread of a client is left. The kernel lists one that was waited for a moment longer."""
    until = time.monotonic() + 5
    while any(name.startswith(kind) for name in native_threads()):
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def settings(cluster, **more):
    return (("bootstrap.servers", cluster.bootstrap_servers), *more.items())


def options(cluster, topic, **more):
    return source_options(
        {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, **more}, streaming=False
    )


def test_the_next_task_gets_the_same_client(cluster):
    with clients.range_reader(settings(cluster)) as first:
        pass
    with clients.range_reader(settings(cluster)) as second:
        assert second is first
        with clients.range_reader(settings(cluster)) as other:
            assert other is not first  # lent already
    with clients.range_reader(settings(cluster, check_crcs="false")) as different:
        assert different is not first


def test_a_client_whose_task_failed_is_closed(cluster):
    def fail():
        with clients.admin(settings(cluster)) as admin:
            admin.list_topics()
            assert native_threads()
            admin.describe_topics(["no-such-topic"])

    with pytest.raises(UnknownTopicOrPartitionError):
        fail()
    assert all_ended()


def test_a_task_that_stops_half_way_leaves_no_thread_and_no_rows_behind(cluster, topic):
    cluster.create_topic(topic)
    numbers(cluster, topic, range(100))
    work = Range(topic, 0, 0, 100)
    batches = read_range(options(cluster, topic, minPartitions="1"), work)
    assert next(batches).num_rows > 0
    assert native_threads()
    batches.close()
    assert all_ended()
    again = list(read_range(options(cluster, topic), Range(topic, 0, 40, 60)))
    assert [value for batch in again for value in batch.column("offset").to_pylist()] == list(range(40, 60))


def test_two_ranges_read_in_turns_do_not_mix(cluster, topic):
    cluster.create_topic(topic, 2)
    numbers(cluster, topic, range(40), partitions=2)
    left = read_range(options(cluster, topic), Range(topic, 0, 0, 20))
    right = read_range(options(cluster, topic), Range(topic, 1, 0, 20))
    rows = []
    for batches in (left, right, left, right):
        rows += [row for batch in [next(batches, None)] if batch for row in batch.column("value").to_pylist()]
    rows += [row for batches in (left, right) for batch in batches for row in batch.column("value").to_pylist()]
    assert sorted(rows, key=int) == [str(i).encode() for i in range(40)]


def test_a_process_keeps_few_idle_clients(cluster):
    for i in range(clients.IDLE_MAX + 3):
        with clients.range_reader(settings(cluster, **{"client.id": f"c{i}"})):
            pass
    kept = [key[1][1][1] for key in clients._idle]
    assert kept == [f"c{i}" for i in range(3, clients.IDLE_MAX + 3)]


def test_a_forked_process_makes_its_own_clients(cluster, topic):
    cluster.create_topic(topic)
    numbers(cluster, topic, range(10))
    opts = options(cluster, topic)
    before = list(read_range(opts, Range(topic, 0, 0, 10)))
    assert clients._idle
    # As if another thread were in the middle of taking a client when the fork happens.
    with clients._lock:
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(in_child(opts, topic))
            finally:
                os._exit(99)
    code = wait_for(pid, seconds=20)
    assert code == 0
    # The parent's client has not noticed.
    after = list(read_range(opts, Range(topic, 0, 0, 10)))
    assert sum(b.num_rows for b in after) == sum(b.num_rows for b in before) == 10


@pytest.mark.slow
def test_a_process_with_idle_clients_ends_at_once(cluster, topic):
    cluster.create_topic(topic)
    numbers(cluster, topic, range(10))
    program = f"""
from headrace.spark import clients
from headrace.spark.options import source_options
from headrace.spark.planning import Range
from headrace.spark.source import read_range
options = source_options(
    {{"kafka.bootstrap.servers": "{cluster.bootstrap_servers}", "subscribe": "{topic}"}}, streaming=False
)
assert sum(batch.num_rows for batch in read_range(options, Range("{topic}", 0, 0, 10))) == 10
with clients.producer(options.client) as producer, clients.admin(options.client) as admin:
    producer.send("{topic}", b"x").result(10)
    admin.list_topics()
assert len(clients._idle) == 3
print("done", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        assert process.wait(10) == 0


def test_only_in_sparks_workers_is_what_is_loaded_kept_from_the_collector(cluster, topic, monkeypatch):
    cluster.create_topic(topic)
    numbers(cluster, topic, range(10))
    opts, work, before = options(cluster, topic), Range(topic, 0, 0, 10), gc.get_freeze_count()
    assert sum(batch.num_rows for batch in read_range(opts, work)) == 10
    assert gc.get_freeze_count() == before
    monkeypatch.setattr(clients, "_settled", False)
    monkeypatch.setattr(TaskContext, "_taskContext", object())
    try:
        assert sum(batch.num_rows for batch in read_range(opts, work)) == 10
        assert gc.get_freeze_count() > before + 10_000
    finally:
        gc.unfreeze()


def in_child(opts, topic) -> int:
    if clients._idle or native_threads():
        return 1
    rows = sum(batch.num_rows for batch in read_range(opts, Range(topic, 0, 0, 10)))
    if rows != 10 or len(native_threads()) != 1:
        return 2
    clients.close_idle()
    return 0 if all_ended() else 3


def wait_for(pid: int, seconds: float) -> int:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError(f"the child still ran after {seconds} s")
