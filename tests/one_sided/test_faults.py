"""Who dies while it writes into the broker's memory takes nothing with it, and leaves nothing of its own behind."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time

import pytest

import headrace as hr
from tests.broker.process import BrokerProcess
from tests.kafka.apache import die_with_parent
from tests.one_sided.test_produce import linked, values_of

LIVES = 5
SECONDS = 30
WRITER = """
import sys
import headrace as hr

servers, name = sys.argv[1:]
with hr.Producer(servers, headrace_datapath="shm", linger_ms=0) as producer:
    told = False
    for number in range(10_000_000):
        producer.send("t", f"{name} {number}".encode(), partition=0)
        if not told and producer.metrics()["direct-bytes-produced-total"] > 100_000:
            told = True
            print("writes", flush=True)
"""


@contextlib.contextmanager
def writing(servers, name):
    """A process that writes through memory; it is killed in the end."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, servers, name],
        stdout=subprocess.PIPE,
        preexec_fn=die_with_parent,  # noqa: PLW1509 -- the few calls in it are safe after fork
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writes\n"
        yield writer
        writer.kill()
        writer.wait(SECONDS)


def check_own(found, name):
    own = [int(value.split()[1]) for value in found if value.startswith(name.encode() + b" ")]
    assert own == list(range(len(own))), "in order, none twice, none left out in between"
    assert own
    return len(own)


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_whole_batches_and_its_place():
    with hr.Broker.start() as broker:
        servers = broker.bootstrap_servers
        with hr.Admin(servers) as admin:
            admin.create_topics([hr.NewTopic("t", 1)])
        for life in range(LIVES):
            with writing(servers, str(life)):
                # Somewhere in the midst of it, and never at the same place.
                time.sleep(0.01 * life)
        with hr.Producer(servers, headrace_datapath="shm") as producer:
            linked(producer, "t")
        found = [value for value in values_of(servers, "t") if value != b"first"]
        for life in range(LIVES):
            check_own(found, str(life))


@pytest.mark.slow
def test_a_writer_that_is_killed_costs_those_that_share_its_ring_nothing_but_time(tmp_path):
    with BrokerProcess(tmp_path / "data", "headrace.direct.hole.timeout.ms=100") as broker:
        servers = broker.bootstrap_servers
        with hr.Producer(servers, headrace_datapath="shm", linger_ms=0) as producer:
            linked(producer, "t")
            futures = []
            for life in range(LIVES):
                with writing(servers, str(life)):
                    until = time.monotonic() + 0.05 + 0.01 * life
                    while time.monotonic() < until:
                        futures.append(producer.send("t", b"steady %d" % len(futures), partition=0))
                producer.flush(SECONDS)
                linked(producer, "t")
            assert all(future.exception(1) is None for future in futures)
        found = [value for value in values_of(servers, "t") if value != b"first"]
        assert check_own(found, "steady") == len(futures)
        for life in range(LIVES):
            check_own(found, str(life))


def test_a_writer_that_is_stopped_while_others_go_on_writes_nothing_twice_when_it_wakes(tmp_path):
    with BrokerProcess(tmp_path / "data", "headrace.direct.hole.timeout.ms=50") as broker:
        servers = broker.bootstrap_servers
        with hr.Producer(servers, headrace_datapath="shm", linger_ms=0) as producer:
            linked(producer, "t")
            sent = 0
            with writing(servers, "stopped") as writer:
                for _ in range(4 * LIVES):
                    linked(producer, "t")
                    # It may have drawn its turn, or be in the midst of writing: then all get another ring.
                    writer.send_signal(signal.SIGSTOP)
                    for _ in range(100):
                        producer.send("t", b"steady %d" % sent, partition=0).result(SECONDS)
                        sent += 1
                    writer.send_signal(signal.SIGCONT)
        found = [value for value in values_of(servers, "t") if value != b"first"]
        assert check_own(found, "steady") == sent
        check_own(found, "stopped")


def test_readers_that_come_and_go_cost_the_broker_nothing_that_stays():
    with hr.Broker.start() as broker:
        servers = broker.bootstrap_servers
        with hr.Producer(servers, headrace_datapath="shm") as producer:
            first = linked(producer, "t")
            for _ in range(30):
                with hr.Consumer(
                    servers, headrace_datapath="shm", auto_offset_reset="earliest", headrace_poll_spin_us=0
                ) as consumer:
                    consumer.assign([("t", 0)])
                    rows = 0
                    while rows < first:
                        rows += consumer.poll(10.0).num_rows
            # Who writes still does.
            before = producer.metrics()["direct-bytes-produced-total"]
            producer.send("t", b"last", partition=0).result(10)
            assert producer.metrics()["direct-bytes-produced-total"] > before
        assert values_of(servers, "t")[-1] == b"last"
